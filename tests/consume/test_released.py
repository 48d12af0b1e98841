"""Where partitions continue that were released while their topic was absent."""

from __future__ import annotations

from uuid import UUID

import pytest

from kafkagroup.consume import released
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition, TopicEvidence
from kafkagroup.consume.released import ReleasedPartitions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.records import read_batches
from kafkagroup.wire.schema import NO_ID

TP, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
ONE, TWO = UUID(int=1), UUID(int=2)


def at(offset: int, topic_id: UUID = ONE, tp: TopicPartition = TP) -> OwnedPartition:
    owned = OwnedPartition(tp)
    owned.start_at(offset, leader_epoch=3)
    owned.note_served(topic_id, TopicEvidence.READ_BY_ID)
    owned.paused = True
    return owned


@pytest.mark.parametrize(
    ("before", "now", "position"),
    [(ONE, ONE, 7), (ONE, TWO, UNKNOWN), (NO_ID, NO_ID, 7), (NO_ID, ONE, 7), (ONE, NO_ID, 7)],
)
def test_a_position_stays_unless_the_topic_has_another_id(
    before: UUID, now: UUID, position: int
) -> None:
    kept, owned = ReleasedPartitions(), OwnedPartition(TP)
    kept.keep([at(7, before)])
    kept.restore(owned, now)
    is_kept = position != UNKNOWN
    assert (owned.position, owned.fetch_offset, owned.paused) == (position, position, is_kept)
    assert owned.fetch_epoch == (3 if is_kept else -1)
    again = OwnedPartition(TP)
    kept.restore(again, now)
    assert again.position == UNKNOWN


def test_what_was_fetched_is_not_kept() -> None:
    """Up to 100,000 partitions are."""
    (batch,) = read_batches(
        memoryview(encode_batch([NewRecord(None, b"x")])), topic="t", partition=0
    )
    kept, owned = ReleasedPartitions(), at(0)
    owned.add([batch])
    kept.keep([owned])
    assert (owned.buffered_bytes, owned.buffered) == (0, None)


def test_partitions_of_other_topics_are_forgotten() -> None:
    kept = ReleasedPartitions()
    kept.keep([at(7), at(8, tp=OTHER)])
    kept.forget(lambda topic: topic == "u")
    first, second = OwnedPartition(TP), OwnedPartition(OTHER)
    kept.restore(first, ONE)
    kept.restore(second, ONE)
    assert (first.position, second.position) == (UNKNOWN, 8)


def test_the_partitions_released_first_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released, "_MAX_PARTITIONS", 1)
    kept = ReleasedPartitions()
    kept.keep([at(7), at(8, tp=OTHER)])
    first, second = OwnedPartition(TP), OwnedPartition(OTHER)
    kept.restore(first, ONE)
    kept.restore(second, ONE)
    assert (first.position, second.position) == (UNKNOWN, 8)
