"""Adapters that make assignors of functions with other signatures, and kiel's own function.

The result of such a function is checked by the rules for any assignment: a mistake raises an error
at once, and does not show only as partitions that two members consume, or none.
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
"""A function of the member ids, in order, and the sorted partitions. It returns the partition
numbers, as member id -> topic -> numbers."""

Decide = Callable[[list[str], list[TopicPartition], str], Iterable[TopicPartition]]
"""A function of the member ids, in order, the sorted partitions of one topic, and a member id. It
returns the partitions of that member. `decide_partitions_range` is an example."""


def allocating(name: str, allocate: Allocate) -> Assignor:
    """Return an assignor that calls one function for the whole assignment.

    If members subscribe to different topics, the function is called once for each set of
    subscribers, because it does not get the subscriptions.
    The assignor raises ConfigurationError, which names the mistake in the function's result.
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
    """Return an assignor that calls a function for each topic and each of its subscribers.

    The assignor raises ConfigurationError, which names the mistake in the function's results.
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
    """Assign the partitions to the members in turn. A partition is written "topic:number", as in
    kiel. O(partitions). `naive_assignor` does the same for a group."""
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
