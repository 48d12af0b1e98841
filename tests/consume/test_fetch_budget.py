"""The number of bytes fetched in advance."""

from __future__ import annotations

from kafkagroup.consume.fetch_budget import FetchBudget

MIB = 1024 * 1024


def share(room: FetchBudget, buffered: int = 0, unread: int | None = None, lanes: int = 1) -> int:
    return room.long_poll_size(
        buffered=buffered, unread=buffered if unread is None else unread, lanes=lanes
    )


def test_the_target_doubles_up_to_its_limit_when_the_application_waits() -> None:
    room = FetchBudget(7 * MIB)
    asked = []
    for _ in range(5):
        asked.append(share(room))
        room.on_records(0)
    assert asked == [MIB, 2 * MIB, 4 * MIB, 6 * MIB, 6 * MIB]


def test_an_unused_target_halves_down_to_a_mebibyte() -> None:
    room = FetchBudget(50 * MIB)
    room.target = 8 * MIB
    room.on_records(6 * MIB)
    assert room.target == 8 * MIB
    room.on_records(6 * MIB + 1)
    assert room.target == 4 * MIB
    for _ in range(5):
        room.on_records(50 * MIB)
    assert room.target == MIB


def test_nothing_is_fetched_while_enough_records_are_buffered() -> None:
    room = FetchBudget(50 * MIB)
    assert share(room, buffered=MIB) == 0
    assert share(room, buffered=MIB - 1) == MIB


def test_paused_partitions_count_only_for_their_memory() -> None:
    room = FetchBudget(4 * MIB)
    assert share(room, buffered=2 * MIB, unread=0) == MIB
    assert share(room, buffered=3 * MIB - 1, unread=0) == 1
    assert share(room, buffered=3 * MIB, unread=0) == 0


def test_fetches_in_flight_reserve_bytes_until_their_response() -> None:
    room = FetchBudget(4 * MIB)
    room.target = 3 * MIB
    room.on_request(2 * MIB)
    assert (room.in_flight_bytes, share(room)) == (2 * MIB, MIB)
    room.on_response(2 * MIB)
    assert (room.in_flight_bytes, share(room)) == (0, 3 * MIB)


def test_no_connection_uses_the_bytes_of_another() -> None:
    room = FetchBudget(9 * MIB)
    room.target = 8 * MIB
    asked = []
    for _ in range(4):
        asked.append(share(room, lanes=4))
        room.on_request(asked[-1])
    assert asked == [2 * MIB] * 4


def test_a_limit_below_a_mebibyte_is_respected() -> None:
    room = FetchBudget(1000)
    room.on_records(0)
    assert share(room) == 750
    room.on_records(1000)
    assert share(room, buffered=1) == 749


def test_long_polls_leave_bytes_for_an_immediate_fetch() -> None:
    """A broker may hold a long poll for seconds, and with it the bytes reserved for its
    response."""
    room = FetchBudget(4 * MIB)
    room.target = 4 * MIB
    room.on_request(share(room))
    assert share(room) == 0
    assert room.immediate_size(buffered=0) == MIB
    room.on_request(MIB)
    assert room.immediate_size(buffered=0) == 0


def test_an_immediate_fetch_is_limited_by_buffered_bytes_only() -> None:
    room = FetchBudget(4 * MIB)
    assert share(room, buffered=2 * MIB) == 0
    assert room.immediate_size(buffered=2 * MIB) == MIB
    assert room.immediate_size(buffered=4 * MIB - 1) == 1
    assert room.immediate_size(buffered=4 * MIB) == 0
