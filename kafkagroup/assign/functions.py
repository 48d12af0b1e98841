"""Assignors made of functions of other shapes, and kiel's own function.

What such a function answers is held against the rules of any assignment: the group hears of a
mistake at once, in words, and not by partitions that two members consume or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle

from kafkagroup.assign.check import VALID, violations
from kafkagroup.assign.spec import Assignor, GroupSpec, named
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["Allocate", "Decide", "allocating", "deciding", "naive_allocator"]

Allocate = Callable[[list[str], list[TopicPartition]], Mapping[str, Mapping[str, Iterable[int]]]]
"""Member ids in order and partitions, sorted, in; member id -> topic -> partition numbers out."""

Decide = Callable[[list[str], list[TopicPartition], str], Iterable[TopicPartition]]
"""Member ids in order, partitions of one topic, sorted, and a member id in; what that one gets out.
`decide_partitions_range` is one."""


def allocating(name: str, allocate: Allocate) -> Assignor:
    """An assignor that asks one function for everything.

    Where members subscribe to different topics, it is asked once for each set of subscribers, as it
    is not told who wants what.
    Raises, when asked: ConfigurationError that says what is wrong with the answer.
    """

    @named(name)
    def assignor(spec: GroupSpec) -> Assignment:
        wanted: dict[tuple[str, ...], list[TopicPartition]] = {}
        for topic, takers in spec.subscribers().items():
            wanted.setdefault(tuple(takers), []).extend(_of(spec, topic))
        given: dict[str, list[TopicPartition]] = {}
        for members, partitions in wanted.items():
            for member, row in allocate(list(members), partitions).items():
                mine = given.setdefault(member, [])
                for topic, numbers in row.items():
                    mine += (TopicPartition(topic, number) for number in numbers)
        return _checked(spec, name, given)

    return assignor


def deciding(name: str, decide: Decide) -> Assignor:
    """An assignor that asks a function for each member's share of each topic, among those who
    subscribe to it.

    Raises, when asked: ConfigurationError that says what is wrong with the answers.
    """

    @named(name)
    def assignor(spec: GroupSpec) -> Assignment:
        given: dict[str, list[TopicPartition]] = {}
        for topic, members in spec.subscribers().items():
            partitions = list(_of(spec, topic))
            for member in members:
                given.setdefault(member, []).extend(decide(members, partitions, member))
        return _checked(spec, name, given)

    return assignor


def naive_allocator(
    members: Iterable[str], partitions: Iterable[str]
) -> dict[str, dict[str, list[int]]]:
    """Cycle over the members and give each a partition until none is left. Partitions are written
    "topic:number", as kiel does. O(partitions). `naive_assignor` is the same for a group."""
    given: dict[str, dict[str, list[int]]] = {}
    for member, partition in zip(cycle(members), partitions, strict=False):
        topic, _, number = partition.rpartition(":")
        given.setdefault(member, {}).setdefault(topic, []).append(int(number))
    return given


def _of(spec: GroupSpec, topic: str) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, number) for number in range(spec.partitions[topic]))


def _checked(
    spec: GroupSpec, name: str, given: Mapping[str, Sequence[TopicPartition]]
) -> Assignment:
    assignment = {m: tuple(sorted(given.get(m, ()))) for m in (*spec.members, *given)}
    if wrong := violations(spec, assignment, VALID):
        raise ConfigurationError(f"assignor {name!r}: {wrong[0]}")
    return assignment
