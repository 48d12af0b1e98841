"""Adapters that make assignors of functions with other signatures, and `naive_allocator`, which is
the function of kiel, another client for Kafka (see `compat/kiel.py`).

The result of such a function is checked by the rules for any assignment, so a mistake raises an
error at once. Otherwise it would show only as partitions that two members consume, or none.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from operator import index
from typing import Any

from kafkagroup.assign.check import VALID, violations
from kafkagroup.assign.spec import Assignor, GroupSpec, named
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition

__all__ = ["Allocate", "Decide", "allocating", "deciding", "naive_allocator"]

Allocate = Callable[[list[str], list[TopicPartition]], Mapping[str, Mapping[str, Iterable[int]]]]
"""A function of the member ids, in the order of `GroupSpec.order`, and the sorted partitions. It
returns the partition numbers, as member id -> topic -> numbers."""

Decide = Callable[[list[str], list[TopicPartition], str], Iterable[TopicPartition]]
"""A function of the member ids, in the order of `GroupSpec.order`, the sorted partitions of one
topic, and a member id. It returns the partitions of that member. `decide_partitions_range` is an
example."""


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
            wanted.setdefault(tuple(takers), []).extend(_partitions_of(spec, topic))
        given: dict[str, list[TopicPartition]] = {}
        for members, partitions in wanted.items():
            for member, tp in _allocated(name, allocate(list(members), partitions)):
                given.setdefault(member, []).append(tp)
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
            partitions = list(_partitions_of(spec, topic))
            for member in members:
                # Copies: a function may change its arguments.
                decided = decide(list(members), list(partitions), member)
                given.setdefault(member, []).extend(_decided(name, topic, member, decided))
        return _checked(spec, name, given)

    return assignor


def naive_allocator(
    members: Iterable[str], partitions: Iterable[str]
) -> dict[str, dict[str, list[int]]]:
    """Assign the partitions to the members in turn. A partition is written "topic:number", as in
    kiel, so this function is no argument for `allocating`. O(partitions). `naive_assignor` does the
    same for a group."""
    given: dict[str, dict[str, list[int]]] = {}
    for member, partition in zip(cycle(members), partitions, strict=False):
        topic, _, number = partition.rpartition(":")
        given.setdefault(member, {}).setdefault(topic, []).append(int(number))
    return given


def _partitions_of(spec: GroupSpec, topic: str) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, number) for number in range(spec.partitions[topic]))


def _allocated(name: str, result: Any) -> Iterator[tuple[str, TopicPartition]]:
    """Yield member and partition of what an `Allocate` has returned. Raises: ConfigurationError."""
    if not isinstance(result, Mapping):
        expected = "member id -> topic -> numbers"
        raise _wrong_type(name, "the function's result", result, expected)
    for member, topics in result.items():
        if not isinstance(member, str):
            raise _wrong_type(name, "a member id", member, "a str")
        if not isinstance(topics, Mapping):
            raise _wrong_type(name, f"what {member!r} gets", topics, "topic -> numbers")
        for topic, numbers in topics.items():
            for number in _iterated(name, member, topic, numbers, "partition numbers"):
                yield member, _partition(name, member, topic, number)


def _decided(name: str, topic: str, member: str, result: Any) -> Iterator[TopicPartition]:
    """Yield the partitions that a `Decide` has returned. Raises: ConfigurationError."""
    for tp in _iterated(name, member, topic, result, "TopicPartitions"):
        if not isinstance(tp, TopicPartition):
            raise _wrong_type(name, f"a partition of {member!r}", tp, "a TopicPartition")
        yield _partition(name, member, tp.topic, tp.partition)


def _iterated(name: str, member: str, topic: Any, result: Any, expected: str) -> Iterator[Any]:
    try:
        return iter(result)
    except TypeError:
        raise _wrong_type(name, f"what {member!r} gets of {topic!r}", result, expected) from None


def _partition(name: str, member: str, topic: Any, number: Any) -> TopicPartition:
    if not isinstance(topic, str):
        raise _wrong_type(name, f"a topic of {member!r}", topic, "a str")
    try:
        if isinstance(number, bool):
            raise TypeError
        return TopicPartition(topic, index(number))  # NumPy's numbers are no ints
    except TypeError:
        what = f"a partition number of {topic!r}"
        raise _wrong_type(name, what, number, "an int") from None


def _wrong_type(name: str, what: str, value: object, expected: str) -> ConfigurationError:
    shown = reprlib.repr(value)
    return ConfigurationError(f"assignor {name!r}: {what} is {shown}; expected {expected}")


def _checked(
    spec: GroupSpec, name: str, given: Mapping[str, Sequence[TopicPartition]]
) -> Assignment:
    assignment = {m: tuple(sorted(given.get(m, ()))) for m in (*spec.members, *given)}
    if wrong := violations(spec, assignment, VALID):
        raise ConfigurationError(f"assignor {name!r}: {wrong[0]}")
    return assignment
