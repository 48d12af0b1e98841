"""`decode_records`: every kind of data that a fetch returns, for users of a broker's own calls."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from old_messages import stored

from kafkagroup import Codec, Record
from kafkagroup.errors import CorruptRecordError, LimitExceededError
from kafkagroup.types import TimestampType
from kafkagroup.wire import NewRecord, decode_records, encode_batch

CREATED = TimestampType.CREATE_TIME


def batch(base: int, *values: bytes, codec: Codec = Codec.NONE, **options: Any) -> bytes:
    records = [NewRecord(b"k", value, 5, (("h", b"1"),)) for value in values]
    return encode_batch(records, codec=codec, base_offset=base, leader_epoch=2, **options)


def marker(base: int, kind: int) -> bytes:
    end = [NewRecord(pack(">hh", 0, kind), b"\0" * 6)]
    return encode_batch(
        end, base_offset=base, producer_id=7, producer_epoch=0, transactional=True, control=True
    )


def read(data: bytes | memoryview | None, **options: int) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in decode_records(data, "t", 3, **options)]


def test_records_are_returned_whole() -> None:
    assert list(decode_records(batch(8, b"a"), "t", 3)) == [
        Record("t", 3, 8, 5, CREATED, b"k", b"a", (("h", b"1"),), 2)
    ]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        pytest.param(None, [], id="none"),
        pytest.param(b"", [], id="empty"),
        pytest.param(memoryview(batch(0, b"a") + batch(1, b"b")), [(0, b"a"), (1, b"b")], id="two"),
        *[
            pytest.param(batch(4, b"a", b"b", codec=codec), [(4, b"a"), (5, b"b")], id=codec.name)
            for codec in Codec
        ],
        *[
            pytest.param(stored(magic, codec, 4, [b"a", None]), [(4, b"a"), (5, None)])
            for magic in (0, 1)
            for codec in (Codec.NONE, Codec.GZIP)
        ],
        pytest.param(batch(0, b"a") + batch(1, b"b")[:-1], [(0, b"a")], id="partial last batch"),
        pytest.param(batch(0, b"a") + batch(1, b"b")[:5], [(0, b"a")], id="partial last header"),
        pytest.param(
            batch(0, b"a", producer_id=7, producer_epoch=0, transactional=True)
            + marker(1, 0)
            + batch(2, b"b", producer_id=7, producer_epoch=0, transactional=True)
            + marker(3, 1),
            [(0, b"a"), (2, b"b")],
            id="transactions, the first aborted",
        ),
        pytest.param(marker(0, 1), [], id="a marker alone"),
    ],
)
def test_what_is_treated_how(
    data: bytes | memoryview | None, found: list[tuple[int, bytes | None]]
) -> None:
    assert read(data) == found


def test_records_below_the_requested_offset_are_left_out() -> None:
    data = batch(0, b"a", b"b", b"c") + batch(3, b"d")
    assert read(data, start_offset=2) == [(2, b"c"), (3, b"d")]


def until_error(data: bytes, **options: int) -> tuple[list[bytes | None], Exception]:
    found: list[bytes | None] = []
    with pytest.raises((CorruptRecordError, LimitExceededError)) as raised:
        found.extend(record.value for record in decode_records(data, "t", 3, **options))
    return found, raised.value


def test_damaged_bytes_raise_after_what_is_before_them() -> None:
    damaged = bytearray(batch(1, b"b"))
    damaged[-1] ^= 1
    found, error = until_error(batch(0, b"a") + damaged + batch(2, b"c"))
    assert found == [b"a"]
    assert isinstance(error, CorruptRecordError)
    assert (error.topic, error.partition, error.offset, error.next_offset) == ("t", 3, 1, 2)
    assert "CRC" in str(error)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (batch(0, b"a")[:-1], f"{len(batch(0, b'a')) - 1} bytes of {len(batch(0, b'a'))} of its"),
        (batch(0, b"a")[:10], "10 bytes of its"),
        (stored(1, Codec.NONE, 0, [b"a"])[:-1], "of its first batch; fetch with a larger limit"),
    ],
)
def test_a_part_of_one_batch_is_an_error(data: bytes, what: str) -> None:
    """It would be fetched and found empty forever."""
    found, error = until_error(data)
    assert (found, type(error)) == ([], LimitExceededError)
    assert what in str(error)


def test_a_batch_that_decompresses_to_too_much_is_an_error() -> None:
    found, error = until_error(batch(0, b"x" * 9_000, codec=Codec.GZIP), max_batch_bytes=1_000)
    assert (found, type(error)) == ([], LimitExceededError)
