"""The next fetch requests, and the table of fetch errors."""

from __future__ import annotations

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.plan import partitions_to_fetch
from kafkagroup.errors import ErrorCode, NoOffsetError
from kafkagroup.types import TopicPartition

E = ErrorCode


def owned(partition: int, **changes: object) -> OwnedPartition:
    made = OwnedPartition(TopicPartition("t", partition))
    made.start_at(0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def ask(*partitions: OwnedPartition, now: float = 10.0, room: int = 1) -> list[int]:
    found = partitions_to_fetch(partitions, now, room=room, records_per_partition=50)
    return [o.tp.partition for o in found]


def test_partitions_with_the_fewest_buffered_bytes_are_fetched_first() -> None:
    """A broker fills its response in the requested order: the last partitions may get nothing."""
    assert ask(
        owned(0, buffered_bytes=99),
        owned(1, buffered_bytes=50),
        owned(2),
        owned(3, buffered_bytes=50),
    ) == [2, 1, 3, 0]


def test_back_pressure_applies_to_each_partition_and_in_total() -> None:
    assert ask(owned(0, buffered_records=50), owned(1, buffered_records=49)) == [1]
    assert ask(owned(0), room=0) == []
    assert ask(owned(0), room=-1) == []


def test_a_partition_that_cannot_be_fetched_is_omitted() -> None:
    assert ask(
        OwnedPartition(TopicPartition("t", 0)),
        owned(1, revoked=True),
        owned(2, paused=True),
        owned(3, failure=NoOffsetError(())),
        owned(4, needs_reset=True),
        owned(5, is_out_of_range=True),
        owned(6, awaits_start_commit=True),
        owned(7, awaits_listener=True),
        owned(8),
    ) == [8]


def test_a_partition_in_backoff_is_omitted() -> None:
    waiting = owned(0, retry_at=10.5)
    assert ask(waiting, now=10.25) == []
    assert ask(waiting, now=10.5) == [0]
