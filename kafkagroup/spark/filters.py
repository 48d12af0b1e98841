"""Filters that Spark pushes down to a table: which part of which logs they need. Pure."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from datetime import datetime

import attrs
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from kafkagroup.spark.option_values import milliseconds_of
from kafkagroup.types import TopicPartition

__all__ = ["Selection", "select"]


@attrs.frozen
class Selection:
    """The part of the logs in which all rows that pass the filters are."""

    topics: frozenset[str] | None = None
    """None for all."""
    partitions: frozenset[int] | None = None
    """Numbers of partitions; None for all."""
    first: int = 0
    """The lowest offset."""
    end: float = math.inf
    """The first offset that is not needed."""
    since: int | None = None
    """Milliseconds since the epoch: the records before the first one with this timestamp or a later
    one are not needed."""

    def includes(self, tp: TopicPartition) -> bool:
        """Whether rows of the partition can pass the filters."""
        return (self.topics is None or tp.topic in self.topics) and (
            self.partitions is None or tp.partition in self.partitions
        )

    def narrow(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of a range of offsets that is needed; the end is at least the start."""
        start = max(start, self.first)
        return start, max(start, int(min(end, self.end)))


def select(
    filters: Iterable[Filter], fields: Container[str] = ()
) -> tuple[Selection, list[Filter]]:
    """Return what the filters select together, and those that Spark must still evaluate: the
    filters that cannot be used here, and those on timestamps, which here only skip the start of a
    log.

    `fields`: the columns that are fields of the value. Filters on them cannot be used, also where a
    field has the name of a column of the record, such as "topic", and replaces it.
    """
    selection, remaining = Selection(), []
    for one in filters:
        narrowed = _narrowed(selection, one)
        if narrowed is not None and one.attribute[0] in fields:
            narrowed = None
        if narrowed is not None:
            selection = narrowed
        if narrowed is None or one.attribute == ("timestamp",):
            remaining.append(one)
    return selection, remaining


def _narrowed(selection: Selection, one: Filter) -> Selection | None:
    """Return the part of `selection` that the filter `one` selects, too; None if the filter cannot
    be used. An upper bound of the timestamp cannot be used: a later record may have an earlier
    timestamp."""
    match one:
        case EqualTo(("topic",), str(value)):
            return _topics(selection, [value])
        case In(("topic",), found) if all(isinstance(value, str) for value in found):
            return _topics(selection, found)
        case EqualTo(("partition",), int(value)):
            return _partitions(selection, [value])
        case In(("partition",), found) if all(isinstance(value, int) for value in found):
            return _partitions(selection, found)
        case EqualTo(("offset",), int(value)):
            return _offsets(selection, value, value + 1)
        case GreaterThan(("offset",), int(value)):
            return _offsets(selection, value + 1)
        case GreaterThanOrEqual(("offset",), int(value)):
            return _offsets(selection, value)
        case LessThan(("offset",), int(value)):
            return _offsets(selection, end=value)
        case LessThanOrEqual(("offset",), int(value)):
            return _offsets(selection, end=value + 1)
        case (
            EqualTo(("timestamp",), datetime(tzinfo=zone) as value)
            | GreaterThan(("timestamp",), datetime(tzinfo=zone) as value)
            | GreaterThanOrEqual(("timestamp",), datetime(tzinfo=zone) as value)
        ) if zone is not None:
            since = max(milliseconds_of(value), selection.since or 0)
            return attrs.evolve(selection, since=since)
        case _:
            return None


def _topics(selection: Selection, found: Iterable[str]) -> Selection:
    topics = frozenset(found) if selection.topics is None else selection.topics & set(found)
    return attrs.evolve(selection, topics=topics)


def _partitions(selection: Selection, found: Iterable[int]) -> Selection:
    known = selection.partitions
    numbers = frozenset(found) if known is None else known & set(found)
    return attrs.evolve(selection, partitions=numbers)


def _offsets(selection: Selection, first: int = 0, end: float = math.inf) -> Selection:
    return attrs.evolve(selection, first=max(selection.first, first), end=min(selection.end, end))
