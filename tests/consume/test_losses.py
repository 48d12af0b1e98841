"""The deliveries lost with revoked partitions, and their report."""

from __future__ import annotations

import pickle

from kafkagroup.consume.losses import Losses
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.types import OffsetAndMetadata, TopicPartition

T0, T1, T2 = (TopicPartition("t", p) for p in range(3))


def delivered(tp: TopicPartition, position: int, start: int = 0) -> OwnedPartition:
    owned = OwnedPartition(tp)
    owned.start_at(start)
    owned.position = position
    return owned


def test_partitions_without_uncommitted_records_are_not_losses() -> None:
    losses = Losses()
    assert losses.take({}) is None
    losses.add(OwnedPartition(T0), "the generation has ended")
    losses.add(delivered(T1, 5, start=5), "the generation has ended")
    assert losses.take({}) is None


def test_a_loss_is_reported_once_with_the_reason() -> None:
    losses = Losses()
    losses.add(delivered(T1, 5), "the generation has ended")
    losses.add(delivered(T0, 5), "the generation has ended")
    error = losses.take({})
    assert error is not None
    assert error.partitions == (T0, T1)
    assert str(error) == (
        "commit of t/0, t/1 failed: lost before the delivered records were committed (the"
        " generation has ended); the new owner continues from the last committed offset"
    )
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.partitions) == (str(error), error.partitions)
    assert losses.take({}) is None


def test_a_loss_lists_the_partitions_of_each_reason() -> None:
    losses = Losses()
    losses.add(delivered(T2, 5), "a rebalance revoked it")
    losses.add(delivered(T0, 5), "the application stopped polling")
    losses.add(delivered(T1, 5), "a rebalance revoked it")
    assert "(t/0: the application stopped polling; t/1, t/2: a rebalance revoked it)" in str(
        losses.take({})
    )


def test_a_loss_of_a_thousand_partitions_shows_their_number() -> None:
    losses = Losses()
    for n in range(1_000):
        losses.add(delivered(TopicPartition("t", n), 5), "the generation has ended")
    error = losses.take({})
    assert error is not None
    assert len(error.partitions) == 1_000
    assert str(error).startswith("commit of t/0, t/1, ")
    assert "t/19 and 980 more failed" in str(error)


def test_no_loss_is_reported_if_the_commit_is_acknowledged_after_the_release() -> None:
    losses, owned = Losses(), delivered(T0, 5)
    losses.add(owned, "the generation has ended")
    owned.acknowledge(OffsetAndMetadata(5), 0.0)
    assert losses.take({}) is None


def test_a_late_commit_response_covers_only_the_loss_of_its_own_assignment() -> None:
    losses, first, second = Losses(), delivered(T0, 5), delivered(T0, 7)
    losses.add(first, "first")
    losses.add(second, "second")
    second.acknowledge(OffsetAndMetadata(7), 0.0)
    assert "(first)" in str(losses.take({}))
    losses.add(first, "first")
    first.acknowledge(OffsetAndMetadata(5), 0.0)
    losses.add(delivered(T0, 7), "second")
    assert "(second)" in str(losses.take({}))


def test_records_committed_after_redelivery_are_not_lost() -> None:
    losses, again = Losses(), delivered(T0, 9)
    for acknowledged, lost in ((4, True), (5, False), (9, False)):
        losses.add(delivered(T0, 5), "the generation has ended")
        again.acknowledge(OffsetAndMetadata(acknowledged), 0.0)
        assert (losses.take({T0: again}) is not None) == lost


def test_forgotten_losses_are_not_reported() -> None:
    losses = Losses()
    losses.add(delivered(T0, 5), "the generation has ended")
    losses.forget()
    assert losses.take({}) is None
