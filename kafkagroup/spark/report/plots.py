"""Plots of one group as SVG, embedded in the page of the report."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_hex
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from kafkagroup._text import printable
from kafkagroup.spark.report.facts import Bar, Group

__all__ = ["NARROW", "WIDE", "draw", "legend", "plot"]

MAX_PARTITIONS = 64
"""Most rows of a plot: each row makes the page 0.2 inches longer."""
MAX_MEMBERS = 12
"""Most members with a colour and a name; the others are grey."""
MAX_MARKERS = 200
"""Most samples that are marked by a point."""

WIDE, NARROW = 11.0, 4.6
"""Widths of a plot in inches, of which a browser shows 96 pixels each."""

# Without red, the colour of rebalances, and without grey. The dark tones are before the light ones.
_COLOURS = [to_hex(mpl.colormaps["tab20"](n)) for n in (0, 2, 4, 8, 10, 12, 16, 18, 1, 3, 5, 9)]
_GREY = "#b8b8b8"
_REBALANCE_COLOUR = "#d62728"
_FONT_MARGIN = 1.2
"""The factor by which a text may be wider in the fonts of a browser than matplotlib measures it."""
_STYLE = {
    # A "$" in a name must not begin a formula. Text stays text, for search and screen readers.
    "text.parse_math": False,
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def plot(group: Group, until: datetime, width: float = WIDE) -> str:
    """Return the figure of `draw` as an SVG element; "" if the group has neither lag nor bars."""
    if not group.lag and not group.bars:
        return ""
    # matplotlib warns if it lacks a font for a name. The browser that shows the name has one.
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        text = StringIO()
        figure = draw(group, until, width)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def draw(group: Group, until: datetime, width: float) -> Figure:
    """Return a figure with the lag over time, and below it the owner of each partition.

    A red line is the end of a rebalance, with the number of its generation if there is room. A gap
    in a row is a time in which no member owned the partition. `until`: the end of the bars that
    have not ended. `width` is in inches.
    """
    rows = sorted({(bar.topic, bar.partition) for bar in group.bars})[:MAX_PARTITIONS]
    # The heights of the plot of the lag and of the plot of the owners, in inches. Each row of the
    # latter has room for its label.
    heights = [1.6, max(0.8, 0.2 * len(rows))] if rows else [1.6]
    figure = Figure(figsize=(width, sum(heights) + 0.6), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    _lag(axes[0], group)
    if rows:
        # Labels of three letters per inch of the width leave room for the bars.
        _owners(axes[1], group.bars, rows, until, int(3 * width))
    for axis in axes:
        _rebalances(axis, group)
    locator = AutoDateLocator(minticks=3, maxticks=max(6, int(width)))
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    _generations(figure, axes[0], group)
    return figure


def legend(bars: Sequence[Bar]) -> list[tuple[str, str]]:
    """Return name and colour of each member that has a colour, in the order of their first bars."""
    names = _names(bars)
    return [(names[member], colour) for member, colour in _colours(bars).items()]


def _lag(axis: Any, group: Group) -> None:
    """Draw steps: a lag is known at the time of a sample, and holds until the next one."""
    if group.lag:
        times = [time for time, _ in group.lag]
        lags = [lag for _, lag in group.lag]
        marker = "." if len(lags) <= MAX_MARKERS else ""
        axis.plot(
            times,
            lags,
            color="#1f77b4",
            linewidth=1.2,
            marker=marker,
            markersize=3,
            drawstyle="steps-post",
        )
        axis.fill_between(times, lags, color="#1f77b4", alpha=0.15, linewidth=0, step="post")
    # The default formatter writes the power of ten of a large lag above the axis, over the numbers
    # of generations.
    axis.yaxis.set_major_formatter(EngFormatter(sep=""))
    axis.set_ylim(bottom=0)
    axis.set_ylabel("lag, records")


def _owners(
    axis: Any,
    bars: Sequence[Bar],
    rows: Sequence[tuple[str, int]],
    until: datetime,
    most_letters: int,
) -> None:
    colours = _colours(bars)
    for row, key in enumerate(rows):
        same_row = [bar for bar in bars if (bar.topic, bar.partition) == key]
        spans = [
            (date2num(bar.started), date2num(bar.ended or until) - date2num(bar.started))
            for bar in same_row
        ]
        axis.broken_barh(
            spans,
            (row - 0.4, 0.8),
            facecolors=[colours.get(bar.member, _GREY) for bar in same_row],
            # A line between two generations in which the owner is the same.
            edgecolor="white",
            linewidth=0.6,
        )
    axis.set_yticks(range(len(rows)))
    axis.set_yticklabels([_short(f"{t}/{p}", most_letters) for t, p in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)


def _names(bars: Sequence[Bar]) -> dict[str, str]:
    """Return member -> its name in the legend: its client id, or `Bar.member` if it has none or
    another member has the same."""
    members: dict[str | None, set[str]] = {}
    for bar in bars:
        members.setdefault(bar.client, set()).add(bar.member)
    return {
        bar.member: _short(
            bar.client if bar.client and len(members[bar.client]) == 1 else bar.member
        )
        for bar in bars
    }


def _colours(bars: Sequence[Bar]) -> Mapping[str, Any]:
    """Return member -> colour, of the members with the most bars, in the order of their first
    bars."""
    count: dict[str, int] = {}
    for bar in bars:
        count[bar.member] = count.get(bar.member, 0) + 1
    shown = set(sorted(count, key=lambda member: -count[member])[:MAX_MEMBERS])
    return dict(zip((m for m in count if m in shown), _COLOURS, strict=False))


def _rebalances(axis: Any, group: Group) -> None:
    for rebalance in group.rebalances:
        end = rebalance.ended or rebalance.started
        axis.axvspan(rebalance.started, end, color=_REBALANCE_COLOUR, alpha=0.3, lw=0)
        axis.axvline(end, color=_REBALANCE_COLOUR, linewidth=0.7)


def _generations(figure: Figure, axis: Any, group: Group) -> None:
    """Write the number of each generation above the plot, from the last to the first, unless it
    would overlap the number of a later generation."""
    if not group.rebalances:
        return
    figure.draw_without_rendering()  # places the axes
    free_until = float("inf")  # where the later number begins, in pixels
    for rebalance in reversed(group.rebalances):
        label = axis.annotate(
            str(rebalance.generation),
            (rebalance.ended or rebalance.started, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color=_REBALANCE_COLOUR,
        )
        box = label.get_window_extent()
        margin = (_FONT_MARGIN - 1) * box.width + box.height / 3
        if box.x1 + margin > free_until:
            label.remove()
        else:
            free_until = box.x0 - margin


def _short(name: str, most: int = 32) -> str:
    """Shorten a name for a plot: librdkafka's member ids alone have 44 characters."""
    shown = printable(name)
    return shown if len(shown) <= most else f"{shown[: most // 2]}…{shown[1 - (most + 1) // 2 :]}"
