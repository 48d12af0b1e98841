"""The HTML page of the report. Names of groups and topics are untrusted: all text is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from kafkagroup._text import printable
from kafkagroup.spark.evaluation import Status
from kafkagroup.spark.report.facts import Facts, Group, Stuck
from kafkagroup.spark.report.plots import NARROW, WIDE, legend, plot

__all__ = ["render"]

MAX_OPEN = 20
"""A list of more generations than this is folded."""

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Groups</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; font-size: 13px; margin: .6rem 0; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; border-bottom: 1px solid #e3e3e3;
  vertical-align: top; overflow-wrap: normal; }
td { white-space: nowrap; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.OK { color: #1a7f37; } .WARN { color: #9a6700; }
.STOP, .STALL, .REWIND { color: #cf222e; font-weight: 600; }
summary { cursor: pointer; }
.ended > summary { font-size: 1.2rem; font-weight: 600; margin-top: 2.5rem; }
svg { display: block; max-width: 100%; height: auto; } .note { color: #666; font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; font-size: 13px; margin: .2rem 0;
  padding: 0; list-style: none; }
.legend i { display: inline-block; width: 1.4em; height: .7em; margin-right: .4em; }
.narrow { display: none; }
@media (max-width: 70rem) {
  /* A row of a table is a paragraph: each cell has its heading before it. */
  table, tbody, tr { display: block; } th { display: none; }
  tr { border-bottom: 1px solid #e3e3e3; padding: .3rem 0; }
  td, td.name { display: inline-block; border: 0; padding: 0 .9rem 0 0; white-space: normal;
    text-align: left; min-width: 0; }
  td.name { display: block; font-weight: 600; } td:empty { display: none; }
  td:not(.name)::before { content: attr(data-head) " "; color: #666; }
}
@media (max-width: 44rem) { .wide { display: none; } .narrow { display: block; } }
</style>
</head>
<body>
"""

_ENDED_NOTE = (
    "They were deleted, have expired or have no members any more; or they never had members, and no"
    " longer commit."
)


def render(facts: Facts) -> str:
    """Return the page: first the living groups, then the ended ones, which are folded if there are
    living ones. Each part has the stuck partitions, then a table of all groups, then the groups
    with their plots."""
    note = (
        "Rebalances are counted since the log of groups can be read without a gap;"
        " generations without members do not count."
    )
    times = "All times" if facts.made_at is None else f"As of {_time(facts.made_at)}, all times"
    living = [group for group in facts.groups if not group.is_ended]
    ended = [group for group in facts.groups if group.is_ended]
    body = [
        "<h1>Groups</h1>",
        f'<p class="note">{times} in UTC. {note}</p>',
        f"<p>{_counts('living', living)}. {_counts('ended', ended)}.</p>",
    ]
    if facts.others:
        body.append(f'<p class="note">{facts.others} more groups are in the tables.</p>')
    body += _part("h2", living, [s for s in facts.stuck if not s.is_ended], facts.made_at)
    if ended:
        body += [
            f'<details class="ended"{_open_attribute(not living)}>',
            f"<summary>{_counts('ended', ended)}</summary>",
            f'<p class="note">{_ENDED_NOTE}</p>',
            *_part("h3", ended, [s for s in facts.stuck if s.is_ended], facts.made_at),
            "</details>",
        ]
    return _HEAD + "\n".join(body) + "\n</body>\n</html>\n"


def _counts(state: str, groups: Sequence[Group]) -> str:
    """Return text with the number of groups, and of those with each status, the worst first."""
    found = Counter(group.health["status"] for group in groups)
    statuses = [
        f"{found[name]}&nbsp;{_status(name)}"
        for name in (status.name for status in reversed(Status))
        if found[name]
    ]
    noun = "group" if len(groups) == 1 else "groups"
    text = f"{len(groups)} {state} {noun}"
    return f"{text}: {', '.join(statuses)}" if statuses else text


def _part(
    heading: str, groups: Sequence[Group], stuck: Sequence[Stuck], until: datetime | None
) -> Iterator[str]:
    """Yield the HTML of the living or of the ended groups. `until`: the end of the plots' bars that
    have not ended; None without groups."""
    yield f"<{heading}>Stuck partitions</{heading}>"
    yield _stuck(stuck) if stuck else "<p>None.</p>"
    yield f"<{heading}>Health</{heading}>"
    yield _health(groups) if groups else "<p>None.</p>"
    for group in groups:
        if until is not None and (group.lag or group.rebalances or group.bars):
            yield _group(heading, group, until)


def _stuck(stuck: Iterable[Stuck]) -> str:
    return _table(
        ("group", "partition", "status", "lag", "seconds behind", "last commit"),
        [
            (
                _text(row.group),
                _text(f"{row.topic}/{row.partition}"),
                _status(row.status),
                _number(row.lag),
                _number(row.seconds),
                _time(row.last_commit),
            )
            for row in stuck
        ],
        numbers=(3, 4),
        names=(0, 1),
    )


def _health(groups: Iterable[Group]) -> str:
    return _table(
        (
            "group",
            "kind",
            "status",
            "members",
            "lag",
            "seconds behind",
            "rebalances",
            "an hour",
            "unstable",
            "skew",
            "skew of lag",
            "counted since",
        ),
        [
            (
                _text(group.name),
                _text(health["kind"] or "offsets only"),
                _state(health),
                _number(health["members"]),
                _number(health["lag"]),
                _number(health["seconds"]),
                _number(health["rebalances"]),
                _number(health["rebalances_per_hour"]),
                _share(health["unstable_share"]),
                _number(health["skew"]),
                _number(health["lag_skew"]),
                _time(health["coverage"]),
            )
            for group in groups
            for health in (group.health,)
        ],
        numbers=range(3, 11),
        names=(0,),
    )


def _group(heading: str, group: Group, until: datetime) -> str:
    parts = [f"<{heading}>{_text(group.name)} {_state(group.health)}</{heading}>"]
    for kind, width in (("wide", WIDE), ("narrow", NARROW)):
        if svg := plot(group, until, width):
            parts.append(f'<div class="{kind}">{svg}</div>')
    if members := legend(group.bars):
        items = (
            f'<li><i style="background:{colour}"></i>{_text(name)}</li>' for name, colour in members
        )
        parts.append(f'<ul class="legend">{"".join(items)}</ul>')
    if group.rebalances:
        rows = [
            (
                str(rebalance.generation),
                _text(rebalance.cause),
                _time(rebalance.started),
                _duration(rebalance.started, rebalance.ended),
                _number(rebalance.members),
                _number(rebalance.moved),
            )
            for rebalance in reversed(group.rebalances)
        ]
        heads = ("generation", "cause", "started", "seconds", "members", "partitions moved")
        parts.append(
            f"<details{_open_attribute(len(rows) <= MAX_OPEN)}>"
            f"<summary>{len(rows)} generations, the last first</summary>"
            f"{_table(heads, rows, numbers=(0, 3, 4, 5))}</details>"
        )
    return "\n".join(parts)


def _table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[int] = (),
    names: Iterable[int] = (),
) -> str:
    """Return an HTML table. The cells of `rows` must be HTML already. `numbers` and `names`: the
    columns of numbers, and those of names, which may be long."""
    kinds = {**dict.fromkeys(numbers, "n"), **dict.fromkeys(names, "name")}

    def cells(row: Sequence[str]) -> str:
        html = (
            f'<td data-head="{head}"{_class_attribute(kinds.get(n))}>{cell}</td>'
            for n, (head, cell) in enumerate(zip(heads, row, strict=True))
        )
        return f"<tr>{''.join(html)}</tr>"

    header = "".join(
        f"<th{_class_attribute(kinds.get(n))}>{head}</th>" for n, head in enumerate(heads)
    )
    return "\n".join(["<table>", f"<tr>{header}</tr>", *map(cells, rows), "</table>"])


def _open_attribute(is_open: bool) -> str:
    return " open" if is_open else ""


def _class_attribute(name: str | None) -> str:
    return "" if name is None else f" class={name}"


def _text(text: str) -> str:
    return escape(printable(text))


def _status(status: str | None) -> str:
    return f'<span class="{_text(status)}">{_text(status)}</span>' if status else "unknown"


def _state(health: Mapping[str, Any]) -> str:
    """Return the status of a group; if the group is gone, the time since which it is."""
    gone = health["gone_at"]
    return _status(health["status"]) if gone is None else f"gone since {_time(gone)}"


def _time(time: datetime | None) -> str:
    return "never" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def _duration(started: datetime, ended: datetime | None) -> str:
    return "not ended" if ended is None else f"{(ended - started).total_seconds():.3f}"


def _share(share: Any) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _number(number: Any) -> str:
    """Return a number, rounded for reading; "" if it is unknown."""
    if number is None:
        return ""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
