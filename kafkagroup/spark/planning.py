"""What the next batch of a stream may read, from its positions and the ends of the logs. Pure.

A broker whose metadata lags behind leaves partitions out. If the stream dropped their positions, it
would find them later as new partitions, and read all their records again. So a position is dropped
only if its topic was deleted or recreated, or if the options do not select it any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafkagroup.errors import BrokerError
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import Positions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import ABSENT

__all__ = ["LogEnds", "Plan", "may_be_same_topic", "plan_batch"]


@attrs.frozen
class LogEnds:
    """The ends of the logs that a stream reads."""

    offsets: Mapping[TopicPartition, int]
    """Partition -> the end, of the partitions in which it could be read."""
    topic_ids: Mapping[str, str]
    """Topic -> id, of the topics that the metadata describes; "" if the brokers have no ids."""
    errors: Mapping[str, BrokerError] = attrs.field(factory=dict)
    """Topic -> the error for which the metadata does not describe the topic or some of its
    partitions, confirmed by several responses; or the error of reading an end."""
    cluster_id: str | None = None


@attrs.frozen
class Plan:
    """What a stream may read."""

    latest: Positions
    """The log end of each partition in which the stream has a position; the position itself if
    the log ends before it, or while the metadata does not describe the partition."""
    new: list[TopicPartition]
    """The partitions without a position, sorted: added ones, and those of new and of recreated
    topics."""
    losses: list[str]
    """Messages: which records cannot be read any more, and why."""
    errors: Mapping[str, BrokerError]
    """Topic -> why it is not read for now."""
    deleted: frozenset[str]
    """The topics that were deleted."""


def plan_batch(begin: Positions, ends: LogEnds, options: SourceOptions) -> Plan:
    """Return what can be read from `begin` on. O(partitions).

    Raises: BrokerError for a topic that the options name, if it may not be read, or if it has no
    position and its metadata has an error, for example because it does not exist.
    """
    losses: list[str] = []
    errors: dict[str, BrokerError] = {}
    deleted: set[str] = set()
    dropped: set[TopicPartition] = set()
    ids = {**begin.topic_ids, **{topic: found for topic, found in ends.topic_ids.items() if found}}
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in sorted(begin.offsets):
        by_topic.setdefault(tp.topic, []).append(tp)
    for topic, partitions in by_topic.items():
        error = ends.errors.get(topic)
        selected = [tp for tp in partitions if options.selects(tp)]
        dropped.update(set(partitions) - set(selected))
        if error is not None and options.pattern is None and not error.retriable:
            raise error
        if not selected:
            losses.append(f"topic {topic!r} has a position, but the options do not select it")
        elif topic in ends.topic_ids:
            missing = [tp for tp in selected if tp not in ends.offsets]
            if not may_be_same_topic(topic, begin.topic_ids, ends.topic_ids):
                dropped.update(partitions)
                losses.append(f"topic {topic!r} was recreated")
            elif missing and error is not None and _has_shrunk(topic, begin, ends, error):
                dropped.update(missing)
                losses.append(f"{', '.join(map(str, missing))} were deleted")
            elif error is not None:
                errors[topic] = error
        elif error is not None and error.code in ABSENT:
            deleted.add(topic)
            losses.append(f"topic {topic!r} was deleted")
            # A topic that the options name keeps its position, or the next plan would raise.
            if options.pattern is not None:
                dropped.update(partitions)
        elif error is not None:
            errors[topic] = error
    _check_named(begin, ends, options)
    offsets = {}
    for tp, position in begin.offsets.items():
        if tp in dropped:
            continue
        end = ends.offsets.get(tp, position)
        if end < position:
            losses.append(f"{tp} was read up to {position}, but ends at {end}")
        offsets[tp] = max(end, position)
    new = sorted(ends.offsets.keys() - offsets.keys())
    latest = Positions(offsets, ids, options.group_id, ends.cluster_id)
    return Plan(latest, new, losses, errors, frozenset(deleted))


def _has_shrunk(topic: str, begin: Positions, ends: LogEnds, error: BrokerError) -> bool:
    """Return whether a topic has lost partitions: without topic ids, it may have been recreated
    with fewer. Under the same id a topic never loses partitions."""
    has_same_id = begin.topic_ids[topic] == ends.topic_ids[topic] != ""
    return error.code in ABSENT and not has_same_id


def _check_named(begin: Positions, ends: LogEnds, options: SourceOptions) -> None:
    """Check that the metadata describes each topic and partition that the options name and in which
    the stream has no position. Raises: BrokerError."""
    if options.pattern is not None:
        return
    topics = {tp.topic for tp in begin.offsets}
    missing = {
        tp.topic for tp in options.assign if tp not in begin.offsets and tp not in ends.offsets
    }
    for topic, error in ends.errors.items():
        if topic not in topics or topic in missing:
            raise error


def may_be_same_topic(topic: str, one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether the ids of a topic in two mappings are equal, or one of them is unknown:
    ""."""
    return one[topic] == other[topic] or "" in (one[topic], other[topic])
