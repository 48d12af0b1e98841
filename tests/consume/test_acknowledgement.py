"""A poll, or a commit, completes what was delivered before it."""

from __future__ import annotations

from kafkagroup.consume.acknowledgement import SequentialPolling
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.types import TopicPartition

TPS = [TopicPartition("t", number) for number in range(3)]


def polling(*delivered: int) -> tuple[SequentialPolling, list[OwnedPartition]]:
    """Return the policy and three partitions; of those numbered, a record is delivered."""
    policy, partitions = SequentialPolling(), [OwnedPartition(tp) for tp in TPS]
    for owned in partitions:
        owned.start_at(0)
    for number in delivered:
        deliver(policy, partitions[number])
    return policy, partitions


def deliver(policy: SequentialPolling, owned: OwnedPartition) -> None:
    policy.begin(owned)
    owned.advance(owned.position + 1, 0)


def processed(partitions: list[OwnedPartition]) -> list[int]:
    return [owned.processed for owned in partitions]


def test_a_poll_completes_all_that_was_delivered_before() -> None:
    policy, partitions = polling(0, 1, 0, 2, 2)
    assert processed(partitions) == [0, 0, 0]
    assert policy.in_flight_among(TPS) == TPS
    assert policy.in_flight_among(TPS[1:]) == TPS[1:]
    policy.complete()
    assert (processed(partitions), policy.in_flight_among(TPS)) == ([2, 1, 2], [])
    policy.complete()
    assert processed(partitions) == [2, 1, 2]


def test_what_is_forgotten_is_not_processed() -> None:
    policy, partitions = polling(0, 1, 2)
    policy.forget(partitions[:1])
    assert policy.in_flight_among(TPS) == TPS[1:]
    policy.complete()
    assert processed(partitions) == [0, 1, 1]
    policy, partitions = polling(0, 1)
    policy.forget_all()
    assert policy.in_flight_among(TPS) == []
    policy.complete()
    assert processed(partitions) == [0, 0, 0]


def test_a_rebalance_waits_for_truncated_records_too() -> None:
    """The application works on them, though their completion changes nothing."""
    policy, (owned, *_) = polling(0)
    owned.relocate(0)
    assert policy.in_flight_among(TPS) == TPS[:1]
    policy.complete()
    assert (owned.processed, policy.in_flight_among(TPS)) == (0, [])


def test_records_that_replace_truncated_ones_are_in_flight_until_the_next_poll() -> None:
    """One call may deliver both: it waits in between."""
    policy, (owned, *_) = polling(0)
    owned.relocate(0)
    deliver(policy, owned)
    assert owned.processed == 0
    policy.complete()
    assert owned.processed == 1
