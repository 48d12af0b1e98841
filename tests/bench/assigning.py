"""Assigning: the duration of the sticky assignors, compared with Java's (warm) and aiokafka's.

python -m tests.bench.assigning [--repeats N] [--json FILE]

The clock runs from a GroupSpec, or its counterpart, to the assignment, without decoding the
members' metadata. Java's JVM has run the same case until it got no faster. A second part grows the
group at 50 partitions a member and draws the times into build/bench/assigning.png, with n log n for
comparison.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import attrs
import matplotlib
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyAssignmentExecutor,
    StickyAssignorMemberMetadataV1,
)

from kafkagroup import TopicPartition
from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    MemberSpec,
    cooperative_sticky_assignor,
    sticky_assignor,
)
from tests.assign import java_side

from . import trial as trials
from .command import Settings, main
from .figures import Figure, Target

__all__ = ["measure", "trial"]

ASSIGNORS: Mapping[str, Assignor] = {
    "sticky": sticky_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}
PLOT = Path("build", "bench", "assigning.png")
PER_MEMBER = 50
"""Partitions a member, in the part that grows."""
GROWTH = (6_250, 12_500, 25_000, 50_000, 100_000, 200_000)
"""Partitions in all, in the part that grows."""
WARM_UP = 5
"""Runs before one of Java's counts, and more of them while it gets faster."""


@attrs.frozen
class Case:
    """A group to assign, new or after one member left."""

    members: int
    partitions: int
    topics: int
    mixed: bool = False
    """Whether each member subscribes to a random half of the topics, instead of to all."""

    def __str__(self) -> str:
        mixed = ", mixed" if self.mixed else ""
        return f"{self.members:,} x {self.partitions:,}{mixed}"

    def fresh(self) -> GroupSpec:
        """Return a spec in which no member owns partitions."""
        chance = random.Random(0)
        names = [f"topic-{n:03}" for n in range(self.topics)]
        return GroupSpec(
            members={
                f"member-{n:05}": MemberSpec(
                    topics=frozenset(chance.sample(names, len(names) // 2) if self.mixed else names)
                )
                for n in range(self.members)
            },
            partitions=dict.fromkeys(names, self.partitions // self.topics),
        )

    def one_leaves(self) -> GroupSpec:
        """Return a spec in which all own partitions of generation 1, and one member has left."""
        spec = self.fresh()
        owned = sticky_assignor(spec)
        stay = sorted(spec.members)
        del stay[len(stay) // 2]
        return attrs.evolve(
            spec,
            members={
                member: attrs.evolve(spec.members[member], owned=owned[member], generation=1)
                for member in stay
            },
        )


CHANGES: Mapping[str, Callable[[Case], GroupSpec]] = {
    "fresh": Case.fresh,
    "one leaves": Case.one_leaves,
}

LIMITS: Mapping[Case, tuple[str, float]] = {
    Case(2_000, 100_000, 100): ("java", 1.0),
    Case(500, 20_000, 200, mixed=True): ("java", 3.0),
    Case(100, 5_000, 50): ("aiokafka", 0.01),
}
"""Case -> the peer, and how many times its median ours may take."""


def measure(_bootstrap: str, settings: Settings) -> list[Figure]:
    """Return the figures of all assignors, in seconds."""
    figures = []
    for case, (peer, times) in LIMITS.items():
        for change, make in CHANGES.items():
            spec = make(case)
            for name in ASSIGNORS:
                theirs = _times(peer, name, case, change, spec, settings.repeats)
                ours = _times("kafkagroup", name, case, change, spec, settings.repeats)
                target = Target(50, median(theirs) * times)
                what = f"{name}, {case}, {change}: s"
                note = f"at most {times:g} x {peer}"
                figures.append(
                    Figure(what=what, client="kafkagroup", values=ours, target=target, note=note)
                )
                figures.append(Figure(what=what, client=peer, values=theirs))
    return figures + _growth(settings.repeats)


def _growth(repeats: int) -> list[Figure]:
    """Measure growing groups, and draw the times."""
    figures = []
    curves: dict[str, list[float]] = {}
    for change, make in CHANGES.items():
        for partitions in GROWTH:
            case = Case(partitions // PER_MEMBER, partitions, 50)
            spec = make(case)
            for client in ("kafkagroup", "java"):
                took = _times(client, "sticky", case, change, spec, repeats)
                what = f"sticky grows, {case}, {change}: s"
                figures.append(Figure(what=what, client=client, values=took))
                curves.setdefault(f"{client}, {change}", []).append(median(took))
    _draw(curves)
    return figures


def _draw(curves: Mapping[str, list[float]]) -> None:
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name, seconds in curves.items():
        style = "-o" if name.startswith("kafkagroup") else "--x"
        axes.loglog(GROWTH, seconds, style, label=name)
        if name.startswith("kafkagroup"):
            per = seconds[0] / (GROWTH[0] * math.log(GROWTH[0]))
            line = [per * n * math.log(n) for n in GROWTH]
            axes.loglog(GROWTH, line, ":", color="grey", label=f"n log n from {name}")
    axes.set(
        xlabel=f"partitions, {PER_MEMBER} a member",
        ylabel="seconds, median",
        title="Sticky assignment: cost by size",
    )
    axes.legend()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=120)
    pyplot.close(figure)
    print(f"drawn: {PLOT}", file=sys.stderr)


def _times(
    client: str, name: str, case: Case, change: str, spec: GroupSpec, repeats: int
) -> tuple[float, ...]:
    """Return the seconds of each repeat of a client, in a separate process."""
    if client == "java":
        return tuple(java_side.time_assignor(name, spec, WARM_UP, repeats))
    found = trials.run(
        "assigning",
        client=client,
        name=name,
        case=attrs.asdict(case),
        change=change,
        repeats=repeats,
    )
    return tuple(found["seconds"])


# ---------------------------------------------------------------- in the process of a trial


def trial(
    *, client: str, name: str, case: Mapping[str, int], change: str, repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of each repeat; the first run does not count."""
    spec = CHANGES[change](Case(**case))  # type: ignore[arg-type]
    run = _ours(ASSIGNORS[name], spec) if client == "kafkagroup" else _aiokafka(spec)
    run()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds}


def _ours(assignor: Assignor, spec: GroupSpec) -> Callable[[], object]:
    return lambda: assignor(spec)


class _Cluster:
    """The part of a cluster that aiokafka's assignor uses."""

    def __init__(self, spec: GroupSpec) -> None:
        self._partitions = {topic: set(range(n)) for topic, n in spec.partitions.items()}

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._partitions.get(topic)


def _aiokafka(spec: GroupSpec) -> Callable[[], object]:
    cluster = _Cluster(spec)
    members = {
        member: StickyAssignorMemberMetadataV1(
            subscription=sorted(of.topics),
            partitions=[TopicPartition(*tp) for tp in of.owned],
            generation=of.generation,
        )
        for member, of in spec.members.items()
    }

    def assign() -> object:
        executor = StickyAssignmentExecutor(cluster, members)
        executor.perform_initial_assignment()
        executor.balance()
        return {member: sorted(executor.get_final_assignment(member)) for member in members}

    return assign


if __name__ == "__main__":
    main(__doc__, {"assigning": measure})
