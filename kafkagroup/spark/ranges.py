"""Positions in logs as Spark keeps them, and what lies between two of them. Pure.

Spark compares offsets as JSON, so the same positions are always the same text. A position carries
the id of its topic: offsets of a topic that was deleted and made anew have nothing to do with those
before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import attrs

from kafkagroup.errors import ConfigurationError, KafkaGroupError
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = ["DataLossError", "Note", "Positions", "Range", "capped", "split"]

_VERSION = 1


class DataLossError(KafkaGroupError):
    """What was to be read is not there any more: the log has moved on, or the topic is another.

    `failOnDataLoss=false` reads what there is, and logs a warning.
    """


@attrs.frozen
class Positions:
    """The next offset of each partition."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    """Of each topic; "" from brokers before 2.8, which have none."""
    group: str | None = None
    """To which they may be committed: who only sees the offsets of a query knows them by it."""

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps them, in one order."""
        topics: dict[str, Any] = {}
        for tp, offset in sorted(self.offsets.items()):
            of = topics.setdefault(tp.topic, {"id": self.topic_ids[tp.topic], "offsets": {}})
            of["offsets"][str(tp.partition)] = offset
        return {"kafkagroup": _VERSION, "group": self.group, "topics": topics}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Positions:
        """Raises: ConfigurationError for what was not written here."""
        if given.get("kafkagroup") != _VERSION:
            raise ConfigurationError(f"not the offsets of a kafkagroup source: {given}")
        return cls(
            {
                TopicPartition(topic, int(partition)): offset
                for topic, of in given["topics"].items()
                for partition, offset in of["offsets"].items()
            },
            {topic: of["id"] for topic, of in given["topics"].items()},
            given["group"],
        )


@attrs.frozen
class Note:
    """What is written beside a committed offset."""

    topic_id: str = ""
    """"" where it is not known."""
    first: bool = False
    """Whether no batch has ended here: a query was to begin here."""

    def to_text(self) -> str:
        return json.dumps(
            {"kafkagroup": "first" if self.first else "batch", "topic": self.topic_id}
        )

    @classmethod
    def of(cls, committed: OffsetAndMetadata) -> Note:
        """The note of a commit; of those of other programs nothing is known."""
        try:
            told = json.loads(committed.metadata)
            return cls(str(told["topic"]), told["kafkagroup"] == "first")
        except (ValueError, KeyError, TypeError):
            return cls()

    def is_of(self, topic_id: str) -> bool:
        """Whether the offset can be compared with those of that topic."""
        return not (self.topic_id and topic_id) or self.topic_id == topic_id


@attrs.frozen
class Range:
    """What one task reads."""

    tp: TopicPartition
    topic_id: str
    start: int
    end: int
    """The first offset that is not read. The task ends when its position is there, however many
    records it met: compaction, aborted transactions and markers leave gaps."""


def capped(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """Ends that lie `most` offsets behind the starts at most, all together.

    Each partition with anything waiting gets one, and a share of the rest by how much waits: none
    starves. Only where there are more such partitions than `most` is it more. O(partitions).
    """
    waiting = {tp: end[tp] - start[tp] for tp in end if end[tp] > start[tp]}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    spare, wanted = max(0, most - len(waiting)), max(1, total - len(waiting))
    shares = {tp: 1 + (count - 1) * spare // wanted for tp, count in waiting.items()}
    return {tp: start[tp] + shares[tp] if tp in shares else end[tp] for tp in end}


def split(ranges: Iterable[Range], least: int) -> list[Range]:
    """The ranges, those with the most offsets cut so that there are about `least` in all.

    Nothing is lost or doubled; empty ranges are left out. O(ranges + least).
    """
    whole = [r for r in ranges if r.start < r.end]
    if len(whole) >= least:
        return whole
    total = sum(r.end - r.start for r in whole)
    made = []
    for r in whole:
        size = r.end - r.start
        parts = min(size, max(1, round(size * least / total)))
        cuts = [r.start + size * n // parts for n in range(parts + 1)]
        made += [attrs.evolve(r, start=start, end=end) for start, end in pairwise(cuts)]
    return made
