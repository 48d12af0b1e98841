"""The state of the demo's group, shown as a live table or as plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum

import anyio
import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

__all__ = ["Board", "Member", "Rebalance", "State", "ranges", "show_live"]

COLOURS = ("cyan", "magenta", "green", "yellow")
LOG_LINES = 12


class State(StrEnum):
    """The state of a member, by the events that the demo has read."""

    STARTING = "starting"
    JOINING = "joining"
    OWNING = "owning"
    REBALANCING = "rebalancing"
    LEAVING = "leaving"
    LEFT = "left"
    KILLED = "killed"


@attrs.define(eq=False)
class Member:
    """One member process, by the events that the demo has read."""

    name: str
    pid: int
    state: State = State.STARTING
    partitions: frozenset[int] = frozenset()
    processed: int = 0

    @property
    def in_group(self) -> bool:
        """Whether it owns partitions, or will once the rebalance ends."""
        return self.state not in (State.LEAVING, State.LEFT, State.KILLED)


@attrs.define(eq=False)
class Rebalance:
    """From its cause until every partition has an owner again. Times are seconds since the demo
    began."""

    cause: str
    began: float
    stopped: float | None = None
    """When the first partition had no owner."""
    ended: float | None = None


@attrs.define(eq=False)
class Board:
    """The state of the demo. `changed` is set, and replaced, at every change."""

    title: str
    partitions: int
    plain: bool
    members: dict[str, Member] = attrs.field(factory=dict)
    rebalances: list[Rebalance] = attrs.field(factory=list)
    produced: int = 0
    processed: int = 0
    """Distinct records."""
    failed: bool = False
    lines: list[str] = attrs.field(factory=list)
    changed: anyio.Event = attrs.field(factory=anyio.Event)
    _started: float = attrs.field(factory=time.monotonic)

    @property
    def now(self) -> float:
        return time.monotonic() - self._started

    def log(self, text: str) -> None:
        line = f"{self.now:6.2f} s  {text}"
        self.lines.append(line)
        if self.plain:
            print(line, flush=True)

    def update(self) -> None:
        """Apply a change of the members: a rebalance may have revoked partitions, or ended."""
        if (rebalance := self.open_rebalance) is not None:
            if rebalance.stopped is None and not self._all_owned():
                rebalance.stopped = self.now
            if self.is_stable():
                rebalance.ended = self.now
                owners = ", ".join(
                    f"{m.name}: {ranges(m.partitions)}" for m in self.members.values() if m.in_group
                )
                self.log(f"every partition has an owner again ({owners})")
        self.changed.set()
        self.changed = anyio.Event()

    def begin(self, cause: str) -> None:
        """Begin a rebalance with this cause, unless one is under way."""
        if self.open_rebalance is None:
            self.rebalances.append(Rebalance(cause, self.now))

    @property
    def open_rebalance(self) -> Rebalance | None:
        last = self.rebalances[-1] if self.rebalances else None
        return last if last is not None and last.ended is None else None

    def is_stable(self) -> bool:
        """Whether every partition has one owner, and every member owns some: in a cooperative
        group, the first assignment of a new member is empty."""
        members = [m for m in self.members.values() if m.in_group]
        owned = sum(len(m.partitions) for m in members)
        return (
            self._all_owned()
            and owned == self.partitions
            and all(m.state is State.OWNING and m.partitions for m in members)
        )

    def _all_owned(self) -> bool:
        owned = {p for m in self.members.values() if m.in_group for p in m.partitions}
        return len(owned) == self.partitions


def ranges(partitions: Iterable[int]) -> str:
    """Return the numbers as text: {0, 1, 2, 5} is "0-2 5"; the empty set is "nothing"."""
    runs: list[list[int]] = []
    for number in sorted(partitions):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "nothing"


async def show_live(board: Board, console: Console) -> None:
    """Draw the board until cancelled; its last state stays on the screen."""
    with Live(console=console, auto_refresh=False, get_renderable=lambda: _draw(board)) as live:
        try:
            while True:
                live.refresh()
                await anyio.sleep(0.1)
        finally:
            live.refresh()


def _draw(board: Board) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, border_style="dim", header_style="dim")
    table.add_column("member")
    for partition in range(board.partitions):
        table.add_column(f"{partition:2}", min_width=2)
    table.add_column("state", min_width=11)
    table.add_column("records", justify="right", min_width=7)
    for member, colour in zip(board.members.values(), COLOURS, strict=False):
        style = colour if member.in_group else "dim"
        table.add_row(
            Text(f"{member.name} ({member.pid})", style),
            *(
                Text("██" if partition in member.partitions else " ·", style)
                for partition in range(board.partitions)
            ),
            Text(member.state, "bold red" if member.state is State.KILLED else style),
            Text(str(member.processed), style),
        )
    counts = Text.assemble(
        ("  produced ", "dim"),
        f"{board.produced:5}",
        ("   processed ", "dim"),
        f"{board.processed:5}",
        ("   behind ", "dim"),
        f"{board.produced - board.processed:5}",
    )
    log = Text("\n".join(board.lines[-LOG_LINES:]), no_wrap=True, overflow="ellipsis")
    head = Text(f"  {board.title}   {board.now:4.1f} s", "bold", no_wrap=True, overflow="ellipsis")
    return Group(
        head, table, counts, Panel(log, title="what happens", border_style="dim", height=14)
    )
