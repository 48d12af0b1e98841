"""Positions in logs as Spark stores them, and the ranges between them. Pure.

Spark compares offsets as JSON text, so equal positions must have equal text. Positions contain the
topic ids: offsets of a recreated topic are not comparable with those of the deleted one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import attrs

from kafkagroup.consume.partitions import offset_of, partition_of
from kafkagroup.errors import ConfigurationError, KafkaGroupError
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = ["CommitMetadata", "DataLossError", "Positions", "Range", "capped", "split"]

_VERSION = 1
"""The version of the JSON form of `Positions`."""


class DataLossError(KafkaGroupError):
    """Records were deleted before they were read, or the topic was deleted or recreated.

    With `failOnDataLoss=false` the query logs a warning and reads the remaining records.
    """


@attrs.frozen
class Positions:
    """The next offset of each partition."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    """Topic -> id; "" from brokers before 2.8, which have none, and in a checkpoint of Spark's own
    connector."""
    group: str | None = None
    """The group to which the offsets are committed; None without the option `group.id`. Spark
    stores it with the offsets: a `CommitListener` gets the offsets of all queries, and so finds
    those of its group."""
    cluster_id: str | None = None
    """The id of the cluster; None in checkpoints of earlier releases, and if the cluster has no
    id."""

    def by_topic(self) -> dict[str, dict[str, int]]:
        """Return topic -> partition number as text -> offset, sorted: in JSON this is a value of
        the option `startingOffsets`."""
        topics: dict[str, dict[str, int]] = {}
        for tp, offset in sorted(self.offsets.items()):
            topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
        return topics

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value for Spark, sorted."""
        topics = {
            topic: {"id": self.topic_ids[topic], "offsets": offsets}
            for topic, offsets in self.by_topic().items()
        }
        content = {"kafkagroup": _VERSION, "group": self.group, "topics": topics}
        # Without an id there is no "cluster": the text must equal that of earlier releases.
        return content if self.cluster_id is None else {"cluster": self.cluster_id, **content}

    @staticmethod
    def is_own(given: Mapping[str, Any]) -> bool:
        """Return whether `given` is a result of `to_json`. Raises: AttributeError if it is no
        mapping."""
        return bool(given.get("kafkagroup") == _VERSION)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Positions:
        """Parse the result of `to_json`, or the offsets of Spark's own connector, which have no
        topic ids. Raises: ConfigurationError for offsets of other sources."""
        if not isinstance(given, Mapping) or not cls.is_own(given):
            return cls._of_connector(given)
        return cls(
            {
                (tp := partition_of((topic, int(partition)))): offset_of(tp, offset)
                for topic, entry in given["topics"].items()
                for partition, offset in entry["offsets"].items()
            },
            {topic: entry["id"] for topic, entry in given["topics"].items()},
            given["group"],
            given.get("cluster"),
        )

    @classmethod
    def _of_connector(cls, given: Mapping[str, Any]) -> Positions:
        """Parse the offsets of Spark's own connector."""
        try:
            offsets = {
                (tp := partition_of((topic, int(partition)))): offset_of(tp, offset)
                for topic, by_partition in given.items()
                for partition, offset in by_partition.items()
            }
        except (ValueError, TypeError, AttributeError):
            raise ConfigurationError(
                f"not the offsets of a kafkagroup source, nor of Spark's own connector: {given}"
            ) from None
        return cls(offsets, dict.fromkeys(given, ""))


@attrs.frozen
class CommitMetadata:
    """The metadata of a committed offset."""

    topic_id: str = ""
    """"" if unknown."""
    is_start: bool = False
    """Whether the offset is the start of a query, and not the end of a batch."""

    def to_text(self) -> str:
        """Return the metadata as text."""
        return json.dumps(
            {"kafkagroup": "first" if self.is_start else "batch", "topic": self.topic_id}
        )

    @classmethod
    def of(cls, committed: OffsetAndMetadata) -> CommitMetadata:
        """Return the metadata of a commit; the defaults for a commit of another program."""
        try:
            found = json.loads(committed.metadata)
            return cls(str(found["topic"]), found["kafkagroup"] == "first")
        except (ValueError, KeyError, TypeError):
            return cls()

    def is_of_topic(self, topic_id: str) -> bool:
        """Whether the offset is one of the topic with this id; also if either id is unknown."""
        return not (self.topic_id and topic_id) or self.topic_id == topic_id


@attrs.frozen
class Range:
    """The offsets that one task reads."""

    tp: TopicPartition
    topic_id: str
    start: int
    end: int
    """The first offset that is not read. The task ends when its position reaches it; the number of
    records may be lower, because of compaction, aborted transactions and markers."""
    cluster_id: str | None = None
    """The id of the cluster to read from; None if it has none."""


def capped(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """Return ends, none above `end`, with at most `most` offsets between the starts and these ends.

    Each partition with unread offsets gets one offset, so that none starves, and then a part of the
    rest in proportion to its unread offsets. If more partitions than `most` have unread offsets,
    the result has more than `most` offsets. O(partitions).
    """
    unread = {tp: end[tp] - start[tp] for tp in end if end[tp] > start[tp]}
    total = sum(unread.values())
    if total <= most:
        return dict(end)
    # Without the first offset of each partition. `wanted` is a divisor, and must not be 0.
    spare, wanted = max(0, most - len(unread)), max(1, total - len(unread))
    counts = {tp: 1 + (count - 1) * spare // wanted for tp, count in unread.items()}
    return {tp: start[tp] + counts[tp] if tp in counts else end[tp] for tp in end}


def split(ranges: Iterable[Range], least: int, most: int | None = None) -> list[Range]:
    """Split ranges of more than `most` offsets. If there are then fewer than `least` ranges, split
    them further, in proportion to their sizes, into about `least`. Leave out empty ranges.

    O(ranges + least + offsets / most).
    """
    filled = [r for r in ranges if r.start < r.end]
    if most is not None:
        # The two negations round the number of parts up.
        filled = [part for r in filled for part in _divided(r, -(-(r.end - r.start) // most))]
    if len(filled) >= least:
        return filled
    total = sum(r.end - r.start for r in filled)
    return [part for r in filled for part in _divided(r, round((r.end - r.start) * least / total))]


def _divided(r: Range, parts: int) -> list[Range]:
    """Split a range into `parts` of about the same size; into fewer if it has fewer offsets."""
    size = r.end - r.start
    parts = min(size, max(1, parts))
    cuts = [r.start + size * n // parts for n in range(parts + 1)]
    return [attrs.evolve(r, start=start, end=end) for start, end in pairwise(cuts)]
