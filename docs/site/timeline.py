"""Draw an eager and a cooperative rebalance, each run on the embedded broker.

Two members share six partitions, and a third one joins. B processes records slowly. The members'
callbacks report which partitions they own; their `events()` report when they rebalance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import anyio
import attrs
from svg import GREY, INK, PAPER, Svg
from virtual import run

from kafkagroup import Consumer, TopicPartition
from kafkagroup.assign import Assignor, cooperative_sticky_assignor, range_assignor
from kafkagroup.events import Rebalanced, RebalanceStarted
from kafkagroup.testing import EmbeddedKafka

__all__ = ["Timeline", "draw", "draw_cooperative", "run_timeline"]

_JOINS, _ENDS = 4.0, 8.0
"""When the third member starts, and when the run ends, in seconds."""
_FROM = 3.4
_PARTITIONS = 6
_PROCESSING = {"A": 0.05, "B": 1.1, "C": 0.05}
"""Member -> processing time of a record, in seconds."""
_COLOURS = {"A": "#3f6896", "B": "#b45f06", "C": "#3d7d35"}


@attrs.define
class Timeline:
    """What happened in one run."""

    owned: list[tuple[int, str, float, float]] = attrs.field(factory=list)
    """Partition, member, from, until."""
    rebalanced: list[tuple[str, float, float]] = attrs.field(factory=list)
    """Member, from, until, according to its events."""

    def unowned(self) -> dict[int, float]:
        """Return partition -> seconds without an owner, from when the third member starts."""
        found = {}
        for partition in range(_PARTITIONS):
            held = [(f, u) for p, _, f, u in self.owned if p == partition and u > _JOINS]
            gaps = [later[0] - sooner[1] for sooner, later in pairwise(held)]
            found[partition] = round(sum(gaps), 3)
        return found


def run_timeline(assignor: Assignor) -> Timeline:
    """Run the members with this assignor, and return what happened."""
    timeline = Timeline()

    async def story(kafka: EmbeddedKafka) -> None:
        kafka.produce("orders", ["paid"] * 100 * _PARTITIONS)
        async with anyio.create_task_group() as tasks:
            for number, name in enumerate("AB"):
                tasks.start_soon(_member, name, assignor, timeline)
                await anyio.sleep(0.1 + 0.3 * number)
            await anyio.sleep_until(_JOINS)
            tasks.start_soon(_member, "C", assignor, timeline)
            await anyio.sleep_until(_ENDS)
            tasks.cancel_scope.cancel()

    run(story, {"orders": _PARTITIONS})
    timeline.owned.sort()
    timeline.rebalanced.sort()
    return timeline


async def _member(name: str, assignor: Assignor, timeline: Timeline) -> None:
    since: dict[int, float] = {}

    def on_assigned(partitions: Sequence[TopicPartition]) -> None:
        since.update({tp.partition: anyio.current_time() for tp in partitions})

    def on_revoked(partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            timeline.owned.append(
                (tp.partition, name, since.pop(tp.partition), anyio.current_time())
            )

    consumer = Consumer(
        "orders",
        bootstrap_servers="kafka-1:9092",
        group_id="billing",
        client_id=name,
        assignors=[assignor],
        on_partitions_assigned=on_assigned,
        on_partitions_revoked=on_revoked,
    )

    async def watch() -> None:
        began = None
        async for event in consumer.events():
            match event:
                case RebalanceStarted(at=at):
                    began = at if began is None else began
                case Rebalanced(at=at):
                    timeline.rebalanced.append((name, at if began is None else began, at))
                    began = None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            async with consumer:
                async for _ in consumer:
                    await anyio.sleep(_PROCESSING[name])
        finally:
            timeline.owned += [(p, name, at, _ENDS) for p, at in since.items()]


_EAGER = ("Eager (range)", range_assignor)
_COOPERATIVE = ("Cooperative (cooperative-sticky)", cooperative_sticky_assignor)


def draw() -> str:
    """Draw both runs, one below the other, on one time scale."""
    title = "The third member joins: eager and cooperative rebalancing"
    return _draw(title, (_EAGER, _COOPERATIVE))


def draw_cooperative() -> str:
    """Draw the cooperative run alone."""
    return _draw("The third member joins: cooperative rebalancing", (_COOPERATIVE,))


def _draw(title: str, panels: Sequence[tuple[str, Assignor]]) -> str:
    height = 310 * len(panels)
    picture = Svg(860, height + 44, title)
    left, scale = 110, 700 / (_ENDS - _FROM)

    def x(at: float) -> float:
        return round(left + (min(max(at, _FROM), _ENDS) - _FROM) * scale, 1)

    for number, (words, assignor) in enumerate(panels):
        timeline = run_timeline(assignor)
        top = 52 + 310 * number
        picture.text(left, top - 14, words, size=16, anchor="start", bold=True)
        unowned = timeline.unowned()
        picture.text(
            left + 700,
            top - 14,
            f"longest without an owner: {max(unowned.values()):.2f} s,"
            f" {sum(gap > 0 for gap in unowned.values())} of {_PARTITIONS} partitions",
            anchor="end",
            size=13,
        )
        for partition in range(_PARTITIONS):
            y = top + 27 * partition
            picture.text(left - 12, y + 16, f"partition {partition}", size=13, anchor="end")
            picture.box(left, y, 700, 22, fill="#f4d9d6", round=0)
        for partition, name, since, until in timeline.owned:
            if until <= _FROM:
                continue
            y, start, end = top + 27 * partition, x(since), x(until)
            picture.box(start, y, end - start, 22, fill=_COLOURS[name], round=0)
            if end - start > 20:
                picture.text((start + end) / 2, y + 16, name, size=13, colour=PAPER, bold=True)
        for row, name in enumerate("ABC"):
            y = top + 27 * _PARTITIONS + 10 + 19 * row
            picture.text(left - 12, y + 11, f"{name} rebalances", size=12, anchor="end")
            picture.path(f"M{left},{y + 7} L{left + 700},{y + 7}", "#d5dbe1")
            for member, since, until in timeline.rebalanced:
                if member == name and until > _FROM:
                    width = max(x(until) - x(since), 2)
                    picture.box(x(since), y + 1, width, 12, fill=_COLOURS[name], round=2)
        bottom = top + 27 * _PARTITIONS + 68
        picture.path(f"M{x(_JOINS)},{top - 6} L{x(_JOINS)},{bottom}", INK, dots=True)
        picture.text(x(_JOINS), bottom + 14, "C joins", size=12)
        for second in range(5, int(_ENDS) + 1):
            picture.path(f"M{x(second)},{bottom - 4} L{x(second)},{bottom}", GREY)
            picture.text(x(second), bottom + 14, f"{second - _JOINS:+.0f} s", size=12, colour=GREY)
    picture.box(left, height + 18, 22, 14, fill="#f4d9d6", round=0)
    words = "no owner: no record of the partition is processed"
    picture.text(left + 30, height + 30, words, size=13, anchor="start")
    return picture.render()
