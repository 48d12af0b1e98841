"""The figures of a benchmark, and their output: medians with their spread, ours beside the peers.

Pure, except for `show`, `write_table` and `write_json`. A figure without a peer in the same run
proves nothing: absolute numbers belong to one machine, ratios carry over.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import ClassVar

import attrs
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

__all__ = [
    "OURS",
    "Figure",
    "Least",
    "Target",
    "percentile",
    "ratios",
    "show",
    "summary",
    "write_json",
    "write_table",
]

OURS = "kafkagroup"
"""Names of our clients begin with this, those of peers never."""

_CLIENTS = ("kafkagroup", "aiokafka", "confluent-kafka")

_WIDTH = 160
"""Columns of the table where the output is no terminal."""

_FEW = 8
"""Below this many values, high percentiles are but the largest one."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed (nearest rank)."""
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


@attrs.frozen
class Target:
    """A target of this library: at most `most` at a percentile of the values."""

    percent: float
    """50 is the median, 100 the largest value."""
    most: float

    def met(self, values: Sequence[float]) -> bool:
        """Whether the values meet it. The median of an even count is the mean of the middle two."""
        return (median(values) if self.percent == 50 else percentile(values, self.percent)) <= (
            self.most
        )

    def __str__(self) -> str:
        names: dict[float, str] = {50: "median", 100: "max"}
        where = names.get(self.percent, f"p{self.percent:g}")
        return f"{where} <= {self.most:g}"


@attrs.frozen
class Least:
    """A target of this library: a median of at least `least`."""

    least: float
    percent: ClassVar[float] = 50

    def met(self, values: Sequence[float]) -> bool:
        """Whether the values meet it."""
        return median(values) >= self.least

    def __str__(self) -> str:
        return f"median >= {_number(self.least)}"


@attrs.frozen(kw_only=True)
class Figure:
    """One quantity of one client, measured several times. Figures with the same `what` belong
    together: ours and the peers'. Values are in the order of the rounds, so those of one round can
    be compared."""

    what: str
    """The quantity, and its unit."""
    client: str
    values: tuple[float, ...]
    """At least one."""
    paired: bool = True
    """Whether the values of one round stand at one place; else only their spreads compare."""
    target: Target | Least | None = None
    note: str = ""
    """What one must know to read it: a setting, the case that was worst."""

    @property
    def ours(self) -> bool:
        """Whether it belongs to this library."""
        return self.client.startswith(OURS)

    @property
    def missed(self) -> bool:
        """Whether it has a target and does not meet it."""
        return self.target is not None and not self.target.met(self.values)


def ratios(ours: Figure, peer: Figure) -> tuple[float, ...]:
    """Return our values divided by the peer's, round by round; without rounds, one ratio, at the
    percentile of the target or of the medians. Never divides by zero."""
    if ours.paired:
        return tuple(a / b for a, b in zip(ours.values, peer.values, strict=False) if b)
    percent = 50 if ours.target is None else ours.target.percent
    base = percentile(peer.values, percent)
    return (percentile(ours.values, percent) / base,) if base else ()


def summary(values: Sequence[float]) -> str:
    """Format median and range: "2.1 (1.9-2.4)"; of one value, the value."""
    if len(values) == 1:
        return _number(values[0])
    low, middle, high = (_number(v) for v in (min(values), median(values), max(values)))
    return f"{middle} ({low}-{high})"


def _number(value: float) -> str:
    """Format with three significant digits."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f} k"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show(figures: Iterable[Figure]) -> None:
    """Print one table, a block for each quantity, ours first."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(_table(figures))


def write_table(path: Path, figures: Iterable[Figure]) -> None:
    """Write the table that `show` prints."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        Console(file=file, width=_WIDTH).print(_table(figures))


def _table(figures: Iterable[Figure]) -> Table:
    table = Table(
        "", "client", "median (min-max)", "p95", "p99", "n", "ours / it", "target", "", box=SIMPLE
    )
    for what, block in _blocks(figures).items():
        ours = next((figure for figure in block if figure.ours), None)
        table.add_section()
        for figure in sorted(block, key=lambda f: not f.ours):
            table.add_row(what, *_cells(figure, ours))
            what = ""
    return table


def _blocks(figures: Iterable[Figure]) -> Mapping[str, list[Figure]]:
    blocks: dict[str, list[Figure]] = {}
    for figure in figures:
        blocks.setdefault(figure.what, []).append(figure)
    return blocks


def _cells(figure: Figure, ours: Figure | None) -> Sequence[str]:
    against = () if ours is None or figure.ours else ratios(ours, figure)
    target = ""
    if figure.target is not None:
        target = f"[red]MISSED[/red] {figure.target}" if figure.missed else f"met {figure.target}"
    few = len(figure.values) < _FEW
    return (
        figure.client,
        summary(figure.values),
        "" if few else _number(percentile(figure.values, 95)),
        "" if few else _number(percentile(figure.values, 99)),
        str(len(figure.values)),
        summary(against) if against else "",
        target,
        figure.note,
    )


def write_json(path: Path, figures: Iterable[Figure], settings: Mapping[str, object]) -> None:
    """Write every value and the measurement's settings as JSON."""
    kept = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "clients": {name: version(name) for name in _CLIENTS},
        "settings": settings,
        "figures": [attrs.asdict(f) | {"missed": f.missed} for f in figures],
    }
    path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
