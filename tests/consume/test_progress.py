"""Deliveries of one partition in flight, completed in any order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.types import OffsetAndMetadata, TopicPartition

TP = TopicPartition("t", 0)


def starting(offset: int = 0) -> OwnedPartition:
    owned = OwnedPartition(TP)
    owned.start_at(offset, leader_epoch=1)
    return owned


def deliver(owned: OwnedPartition, count: int = 1, leader_epoch: int = 1) -> int:
    """Deliver `count` records; return the delivery's number."""
    delivery = owned.begin()
    owned.advance(owned.position + count, leader_epoch)
    return delivery


def test_the_lowest_offset_that_is_not_complete_is_committed() -> None:
    owned = starting(5)
    one, batch, last = deliver(owned), deliver(owned, 10), deliver(owned)
    committed = []
    for delivery in (last, one, batch):
        owned.complete(delivery)
        committed.append(owned.processed)
    assert committed == [5, 6, 17]


def test_the_leader_epoch_of_a_commit_is_that_of_the_record_before_it() -> None:
    owned = starting()
    first, _, third = [deliver(owned, leader_epoch=epoch) for epoch in (2, 3, 4)]
    assert owned.to_commit() == OffsetAndMetadata(0, leader_epoch=1)
    owned.complete(third)
    owned.complete(first)
    assert owned.to_commit() == OffsetAndMetadata(1, leader_epoch=2)


def test_what_is_skipped_is_complete_once_all_before_it_is() -> None:
    owned = starting()
    owned.advance(2, 1)
    assert owned.processed == 2
    delivery = deliver(owned)
    owned.advance(5, 2)
    assert owned.processed == 2
    owned.complete(delivery)
    assert (owned.processed, owned.processed_epoch) == (5, 2)


def test_a_completion_from_before_a_seek_changes_nothing() -> None:
    """The same offsets are in flight again."""
    owned = starting()
    before = [deliver(owned) for _ in range(3)]
    owned.seek(0)
    again = deliver(owned), deliver(owned)
    for delivery in before:
        owned.complete(delivery)
    assert owned.processed == 0
    owned.complete(again[0])
    assert owned.processed == 1


def test_a_completion_of_an_earlier_assignment_changes_nothing() -> None:
    """It is of another object, whose offsets are committed no more."""
    earlier, owned = starting(), starting()
    delivery = deliver(earlier)
    deliver(owned)
    earlier.complete(delivery)
    assert (earlier.processed, owned.processed) == (1, 0)


def test_a_truncation_leaves_what_is_below_it_in_flight() -> None:
    owned = starting()
    below, last, above = deliver(owned), deliver(owned, 2), deliver(owned)
    owned.relocate(3)
    replacing = deliver(owned)
    for delivery, processed in [(below, 1), (last, 3), (replacing, 4), (above, 4)]:
        owned.complete(delivery)
        assert owned.processed == processed


def test_nothing_of_a_deleted_topic_stays_in_flight() -> None:
    owned = starting()
    deliver(owned)
    owned.is_of_deleted_topic = True
    owned.relocate(9)
    assert owned.processed == 9


def test_a_position_that_is_forgotten_has_nothing_in_flight() -> None:
    owned = starting()
    delivery = deliver(owned)
    owned.forget_position()
    owned.complete(delivery)
    assert (owned.position, owned.processed, owned.to_commit()) == (UNKNOWN, UNKNOWN, None)


class Model:
    """The same, as one entry for each offset in flight."""

    def __init__(self) -> None:
        self.position = 0
        self.in_flight: dict[int, int] = {}
        """Offset -> the delivery that it belongs to."""
        self.epochs = {0: 1}
        """Position -> leader epoch of the record before it."""

    @property
    def processed(self) -> tuple[int, int]:
        offset = min(self.in_flight, default=self.position)
        return offset, self.epochs[offset]

    def deliver(self, delivery: int, count: int, epoch: int) -> None:
        self.in_flight |= dict.fromkeys(range(self.position, self.position + count), delivery)
        self.skip(count, epoch)

    def skip(self, count: int, epoch: int) -> None:
        self.position += count
        self.epochs[self.position] = epoch

    def complete(self, delivery: int) -> None:
        self.in_flight = {o: d for o, d in self.in_flight.items() if d != delivery}

    def move(self, offset: int, below: int) -> None:
        """Continue at `offset`; only what is below `below` stays in flight."""
        self.in_flight = {o: d for o, d in self.in_flight.items() if o < below}
        self.position = offset
        self.epochs[offset] = -1


OFFSETS, COUNTS = st.integers(0, 12), st.integers(1, 3)
MOVES = st.one_of(
    st.tuples(st.just("deliver"), COUNTS),
    st.tuples(st.just("deliver"), COUNTS),
    st.tuples(st.just("skip"), COUNTS),
    st.tuples(st.just("complete"), st.floats(0, 1, exclude_max=True)),
    st.tuples(st.just("complete"), st.floats(0, 1, exclude_max=True)),
    st.tuples(st.just("seek"), OFFSETS),
    st.tuples(st.just("relocate"), OFFSETS),
)


@settings(max_examples=400)
@given(st.lists(MOVES, max_size=60))
def test_s4_s5_commits_follow_the_lowest_offset_in_flight(moves: list[tuple[str, float]]) -> None:
    """Whatever order the deliveries are completed in, each maybe twice, or late."""
    owned, model, begun = starting(), Model(), [0]
    for epoch, (move, value) in enumerate(moves, start=2):
        before, count = owned.processed, int(value)
        match move:
            case "deliver":
                begun.append(deliver(owned, count, epoch))
                model.deliver(begun[-1], count, epoch)
            case "skip":
                owned.advance(owned.position + count, epoch)
                model.skip(count, epoch)
            case "complete":
                delivery = begun[int(value * len(begun))]
                owned.complete(delivery)
                model.complete(delivery)
            case "seek":
                owned.seek(count)
                model.move(count, 0)
            case "relocate":
                owned.relocate(count)
                model.move(count, count)
        assert owned.position == model.position
        assert (owned.processed, owned.processed_epoch) == model.processed
        assert owned.processed >= before or move in ("seek", "relocate")
