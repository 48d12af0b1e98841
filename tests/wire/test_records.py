"""Record batches: Java's bytes written and read, the error for each corruption, fuzzing."""

from __future__ import annotations

import pickle
import random
from struct import pack, pack_into
from typing import Any

import pytest
from crc32c import crc32c
from generated_records import any_records, codecs, repeatable
from hypothesis import given
from hypothesis import strategies as st

from kafkagroup.errors import (
    CorruptRecordError,
    DecodeError,
    LimitExceededError,
    LocalProtocolError,
)
from kafkagroup.types import Record, TimestampType
from kafkagroup.wire.batch_format import HEADER_SIZE
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset
from kafkagroup.wire.compression import Codec, compress
from kafkagroup.wire.records import ControlType, RecordBatch, RecordReader, read_batches

# From Apache Kafka 4.3.1: MemoryRecords.builder with each codec, base offset 1000, leader epoch 9,
# producer 77 epoch 3 sequence 5, transactional; then a commit marker, and what compaction leaves of
# a batch whose records are all gone.
JAVA = {
    Codec.NONE: bytes.fromhex(
        "00000000000003e80000011f000000090258d930260010000000020000018bcfe568000000018bcf"
        "e56be7000000000000004d00030000000500000003b203000000026b9003"
        + "76" * 200
        + "040668c3a90231026e010e00ce0f020100001400cf0f04066b65790100"
    ),
    Codec.GZIP: bytes.fromhex(
        "00000000000003e80000006f0000000902b0eea62e0011000000020000018bcfe568000000018bcf"
        "e56be7000000000000004d000300000005000000031f8b08000000000000ffdbc4ccc0c0c0943d81"
        "b96c980016b68cc32b990c99f218f918cef13331323088309ce76761cb4ead646400005e80078bee"
        "000000"
    ),
    Codec.SNAPPY: bytes.fromhex(
        "00000000000003e80000007b00000009023f1152d80012000000020000018bcfe568000000018bcf"
        "e56be7000000000000004d0003000000050000000382534e41505059000000000100000001000000"
        "36ee0124b203000000026b900376fe0100fe0100fe01000d0170040668c3a90231026e010e00ce0f"
        "020100001400cf0f04066b65790100"
    ),
    Codec.LZ4: bytes.fromhex(
        "00000000000003e80000006d00000009024de114480013000000020000018bcfe568000000018bcf"
        "e56be7000000000000004d0003000000050000000304224d186040822d000000afb203000000026b"
        "9003760100b4f00e040668c3a90231026e010e00ce0f020100001400cf0f04066b65790100000000"
        "00"
    ),
    Codec.ZSTD: bytes.fromhex(
        "00000000000003e80000006c00000009028ae26fd50014000000020000018bcfe568000000018bcf"
        "e56be7000000000000004d0003000000050000000328b52ffd00587c01007402b203000000026b90"
        "0376040668c3a90231026e010e00ce0f020100001400cf0f04066b657901000100440a2001010000"
    ),
}
JAVA_COMMIT = bytes.fromhex(
    "00000000000000050000004200000002028ef266740030000000000000018bcfe568000000018bcf"
    "e5680000000000000000070001ffffffff000000012000000008000000010c00000000000400"
)
JAVA_EMPTY = bytes.fromhex(
    "000000000000000a000000310000000202416691d5000000000004ffffffffffffffff0000018bcf"
    "e56800000000000000000700010000000300000000"
)

JAVA_RECORDS = (
    NewRecord(b"k", b"v" * 200, 1_700_000_000_000, (("hé", b"1"), ("n", None))),
    NewRecord(None, b"", 1_700_000_000_999),
    NewRecord(b"key", None, 1_699_999_999_000),
)


def read(data: bytes, **options: Any) -> list[RecordBatch]:
    return list(read_batches(data, topic="t", partition=3, **options))


def only(data: bytes, **options: Any) -> RecordBatch:
    (batch,) = read(data, **options)
    return batch


def records(data: bytes, start_offset: int = 0) -> list[Record]:
    return [record for batch in read(data) for record in batch.records(start_offset)]


def as_read(
    written: tuple[NewRecord, ...] | list[NewRecord], base: int = 0, epoch: int = -1
) -> list[Record]:
    return [
        Record("t", 3, offset, timestamp, TimestampType.CREATE_TIME, key, value, headers, epoch)
        for offset, (key, value, timestamp, headers) in enumerate(written, base)
    ]


def header(batch: RecordBatch) -> dict[str, object]:
    """Return every public field and property of the header, to compare it as a whole."""
    return {
        name: getattr(batch, name)
        for name in dir(RecordBatch)
        if name[0] != "_" and name not in ("raw", "records", "control_type", "hide")
    }


# A writer that knows nothing of the one under test, and can lie.


def varint(n: int) -> bytes:
    n = n << 1 if n >= 0 else (-n << 1) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes((n,))


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    delta: int = 0, key: bytes | None = None, value: bytes | None = b"v", headers: bytes = b"\x00"
) -> bytes:
    return sized(b"\x00" + varint(0) + varint(delta) + sized(key) + sized(value) + headers)


def seal(batch: bytearray) -> bytes:
    pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def handmade(
    payload: bytes,
    *,
    count: int = 1,
    base_offset: int = 40,
    last_delta: int = 9,
    attributes: int = 0,
    magic: int = 2,
    length: int | None = None,
) -> bytes:
    length = 49 + len(payload) if length is None else length
    batch = bytearray(pack(">qiibI", base_offset, length, 5, magic, 0))
    batch += pack(">hiqqqhii", attributes, last_delta, 1000, 2000, -1, -1, -1, count)
    return seal(batch + payload)


# Java's bytes.


def test_java_batch_field_by_field() -> None:
    assert header(only(JAVA[Codec.GZIP])) == {
        "topic": "t",
        "partition": 3,
        "base_offset": 1000,
        "last_offset": 1002,
        "next_offset": 1003,
        "leader_epoch": 9,
        "codec": Codec.GZIP,
        "timestamp_type": TimestampType.CREATE_TIME,
        "base_timestamp": 1_700_000_000_000,
        "max_timestamp": 1_700_000_000_999,
        "producer_id": 77,
        "producer_epoch": 3,
        "base_sequence": 5,
        "is_transactional": True,
        "is_control": False,
        "count": 3,
        "is_hidden": False,
        "size": len(JAVA[Codec.GZIP]),
    }


@codecs
def test_java_records_are_read(codec: Codec) -> None:
    assert only(JAVA[codec]).codec is codec
    assert records(JAVA[codec]) == as_read(JAVA_RECORDS, base=1000, epoch=9)


def test_java_bytes_are_written() -> None:
    assert (
        encode_batch(
            JAVA_RECORDS,
            base_offset=1000,
            leader_epoch=9,
            producer_id=77,
            producer_epoch=3,
            base_sequence=5,
            transactional=True,
        )
        == JAVA[Codec.NONE]
    )


def test_a_java_commit_marker_round_trips() -> None:
    batch = only(JAVA_COMMIT)
    assert (batch.is_control, batch.is_transactional) == (True, True)
    assert (batch.control_type(), batch.next_offset) == (ControlType.COMMIT, 6)
    marker = NewRecord(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x04", 1_700_000_000_000)
    assert list(batch.records()) == as_read([marker], base=5, epoch=2)
    assert (
        encode_batch(
            [marker],
            base_offset=5,
            leader_epoch=2,
            producer_id=7,
            producer_epoch=1,
            transactional=True,
            control=True,
        )
        == JAVA_COMMIT
    )


def test_a_batch_emptied_by_compaction_advances_the_position() -> None:
    batch = only(JAVA_EMPTY)
    assert (batch.base_offset, batch.next_offset, batch.count) == (10, 15, 0)
    assert (list(batch.records()), batch.control_type()) == ([], None)


# Generated records.


@codecs
@repeatable
@given(written=any_records, base=st.integers(0, 2**62), epoch=st.integers(-1, 2**31 - 1))
def test_round_trip(codec: Codec, written: list[NewRecord], base: int, epoch: int) -> None:
    data = encode_batch(written, codec=codec, base_offset=base, leader_epoch=epoch)
    assert records(data) == as_read(written, base=base, epoch=epoch)


@pytest.mark.parametrize("size", [0, 63, 64, 8191, 8192, 1_048_575, 1_048_576, 3_000_000])
def test_lengths_of_every_width(size: int) -> None:
    data = bytes(size)
    written = [
        NewRecord(data, None),
        NewRecord(None, data),
        NewRecord(b"", b"", -1, (("h", data),)),
    ]
    assert records(encode_batch(written)) == as_read(written)


def test_timestamps_and_offsets_of_every_width() -> None:
    times = [0, *(sign * (1 << bits) for bits in range(0, 56, 3) for sign in (1, -1))]
    written = [NewRecord(None, None, times[n % len(times)]) for n in range(20_000)]
    assert records(encode_batch(written)) == as_read(written)


def test_a_long_header_name() -> None:
    written = [NewRecord(None, None, 5, (("é" * 100, b"x"),) * 70)]
    assert records(encode_batch(written)) == as_read(written)


# Splitting.


def test_batches_one_after_the_other() -> None:
    a = encode_batch([NewRecord(b"a", b"1")], base_offset=7)
    b = encode_batch([NewRecord(b"b", b"2"), NewRecord(b"c", b"3")], base_offset=20)
    batches = read(a + b)
    assert [bytes(batch.raw) for batch in batches] == [a, b]
    assert [(batch.base_offset, batch.next_offset, batch.size) for batch in batches] == [
        (7, 8, len(a)),
        (20, 22, len(b)),
    ]


def test_a_memoryview_is_read_like_bytes() -> None:
    data = memoryview(b"xx" + JAVA[Codec.NONE])[2:]
    found = [r for b in read_batches(data, topic="t", partition=3) for r in b.records()]
    assert found == as_read(JAVA_RECORDS, base=1000, epoch=9)
    assert [type(r.value) for r in found] == [bytes, bytes, type(None)]


@codecs
def test_keys_and_values_as_views_of_the_batch(codec: Codec) -> None:
    found = list(only(JAVA[codec]).records(views=True))
    assert found == as_read(JAVA_RECORDS, base=1000, epoch=9)
    parts = [part for r in found for part in (r.key, r.value) if part is not None]
    assert all(isinstance(part, memoryview) and part.readonly for part in parts)
    assert len(parts) == 4
    assert [r.headers for r in found] == [r.headers for r in JAVA_RECORDS]


def test_a_timestamp_beyond_64_bits_wraps_around() -> None:
    """Kafka 2.4 accepts such a batch, and its consumer's sum overflows: it is no damage."""
    early = sized(b"\x00" + varint(-(2**63)) + bytes(4))
    late = sized(b"\x00" + varint(2**63 - 1001) + bytes(4))
    assert [r.timestamp for r in records(handmade(early))] == [1000 - 2**63]
    assert [r.timestamp for r in records(handmade(late))] == [2**63 - 1]
    beyond = sized(b"\x00" + varint(2**63 - 1000) + bytes(4))
    assert [r.timestamp for r in records(handmade(beyond))] == [-(2**63)]
    below = bytearray(handmade(sized(b"\x00" + varint(-(2**63)) + bytes(4))))
    pack_into(">q", below, 27, -(2**63))
    assert [r.timestamp for r in records(seal(below))] == [0]


@pytest.mark.parametrize("most", [0, 1, 2, 3, 9])
def test_a_fork_reads_records_that_the_original_skips(most: int) -> None:
    reader = only(JAVA[Codec.LZ4]).records()
    unread = reader.fork()
    count = reader.skip(most)
    assert count == min(most, 3)
    unread.stop_after(count)
    expected = as_read(JAVA_RECORDS, base=1000, epoch=9)
    assert list(unread) == expected[:count]
    assert list(reader) == expected[count:]


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("start", [0, 1_003])
def test_records_are_taken_together_as_one_by_one(start: int, views: bool) -> None:
    batch = batch_of_200()
    one_by_one = list(batch.records(start, views=views))
    reader = batch.records(start, views=views)
    taken = [reader.take(most) for most in (0, 1, 70, 0, 500, 9)]
    assert [len(part) for part in taken] == [0, 1, 70, 0, len(one_by_one) - 71, 0]
    assert [record for part in taken for record in part] == one_by_one
    assert {type(record.value) for part in taken for record in part} == {
        memoryview if views else bytes
    }


@pytest.mark.parametrize("returned", [0, 1, 63, 64, 65, 130, 200])
@pytest.mark.parametrize("start", [0, 1_003])
def test_a_reader_continues_behind_the_last_record_that_it_returned(
    start: int, returned: int
) -> None:
    """Uncompiled, it has created some of the next ones already."""
    batch = batch_of_200()
    expected = list(batch.records(start))
    returned = min(returned, len(expected))

    def reader() -> RecordReader:
        made = batch.records(start)
        assert [made.next() for _ in range(returned)] == expected[:returned]
        return made

    rest = expected[returned:]
    assert list(reader()) == rest
    assert list(reader().fork()) == rest
    assert reader().take(500) == rest
    assert reader().offset == (expected[returned - 1].offset if returned else -1)
    skipping = reader()
    assert skipping.skip(5) == min(5, len(rest))
    assert list(skipping) == rest[5:]
    measured = reader()
    assert measured.unread_size() == reader().fork().unread_size()
    assert list(measured) == rest
    stopped = reader().fork()
    stopped.stop_after(70)
    part = [stopped.next() for _ in range(min(3, len(rest)))]
    assert part + list(stopped.fork()) == rest[:70]


@pytest.mark.parametrize("damaged", [0, 1, 40, 63, 64, 100])
def test_all_records_before_damage_are_returned(damaged: int) -> None:
    data = bytearray(batch_of_200().raw)
    place = HEADER_SIZE
    for _ in range(damaged):
        place += 1 + (data[place] >> 1)
    data[place + (4 if damaged < 64 else 6)] = 0x7E  # the key's length, behind two deltas
    batch = next(read_batches(bytes(data), topic="t", partition=0, check_crcs=False))
    expected = list(batch_of_200().records())[:damaged]
    one_by_one, together = batch.records(), batch.records()
    assert [one_by_one.next() for _ in range(damaged)] == expected
    if damaged:
        assert together.take(500) == expected
    for reader in (one_by_one, together):
        with pytest.raises(CorruptRecordError, match="a key's length is beyond its record"):
            reader.next()
        assert (reader.next(), reader.take(9)) == (None, [])


def batch_of_200() -> RecordBatch:
    """A batch of 200 records whose offsets begin at 1,000."""
    records = [NewRecord(b"k", b"%d" % n, n, (("h", b"v"),) * (n % 3)) for n in range(200)]
    return next(read_batches(encode_batch(records, base_offset=1_000), topic="t", partition=0))


def test_damaged_batches_are_not_skipped() -> None:
    reader = only(handmade(record(0) + record(1) + record(1), count=3)).records()
    assert (reader.skip(9), reader.offset) == (2, 41)
    with pytest.raises(CorruptRecordError):
        reader.skip(9)
    assert reader.skip(9) == 0


def test_no_bytes_contain_no_batch() -> None:
    assert read(b"") == []


def test_a_truncated_last_batch_is_dropped() -> None:
    whole = encode_batch([NewRecord(b"a", b"1")])
    for end in range(len(JAVA[Codec.NONE])):
        assert [bytes(b.raw) for b in read(whole + JAVA[Codec.NONE][:end])] == [whole]


def test_batches_are_read_lazily() -> None:
    """An error in a later batch does not delay the earlier ones."""
    good = encode_batch([NewRecord(b"a", b"1")])
    batches = read_batches(good + handmade(record(), magic=1), topic="t", partition=3)
    assert bytes(next(batches).raw) == good
    with pytest.raises(CorruptRecordError):
        next(batches)


@codecs
@pytest.mark.parametrize("start", [0, 999, 1000, 1001, 1002, 1003, 2**62])
def test_records_below_the_position_are_skipped(codec: Codec, start: int) -> None:
    expected = [r for r in as_read(JAVA_RECORDS, base=1000, epoch=9) if r.offset >= start]
    assert records(JAVA[codec], start) == expected


def test_a_batch_wholly_below_the_position_is_not_inflated() -> None:
    data = handmade(b"garbage", attributes=Codec.ZSTD)
    assert records(data, 50) == []
    with pytest.raises(CorruptRecordError):
        records(data, 49)


def test_an_empty_batch_that_names_a_codec_is_not_inflated() -> None:
    assert records(handmade(b"", count=0, attributes=Codec.ZSTD)) == []


def test_gaps_left_by_compaction_are_read() -> None:
    data = handmade(record(0, b"a") + record(4, b"b") + record(8, b"c"), count=3)
    assert [(r.offset, r.key) for r in records(data)] == [(40, b"a"), (44, b"b"), (48, b"c")]
    assert only(data).next_offset == 50


def test_the_delete_horizon_bit_changes_nothing() -> None:
    """KIP-534: bit 6 changes the meaning of the base timestamp, not the records' times."""
    assert [r.timestamp for r in records(handmade(record(), attributes=0x40))] == [1000]


def test_log_append_time_applies_to_every_record() -> None:
    data = encode_batch(JAVA_RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert [(r.timestamp, r.timestamp_type) for r in records(data)] == [
        (1_700_000_000_999, TimestampType.LOG_APPEND_TIME)
    ] * 3


# What brokers accept: tried on Kafka 2.4.1 and 4.3.1.


@codecs
@pytest.mark.parametrize("name", [b"\xc3(id", b"\xff" * 200, b"h\xc3\xa9\x80", b"\xed\xa0\x80"])
def test_a_header_name_that_is_not_utf8_is_read_and_written_unchanged(
    codec: Codec, name: bytes
) -> None:
    """Such a name, which other clients write, once stopped its partition."""
    payload = record(headers=varint(1) + sized(name) + sized(b"7"))
    (found,) = records(handmade(compress(codec, payload), attributes=codec))
    ((text, value),) = found.headers
    assert (text.encode("utf-8", "surrogateescape"), value) == (name, b"7")
    again = encode_batch([NewRecord(None, b"v", 1000, found.headers)], base_offset=40)
    assert records(again) == [found._replace(leader_epoch=-1)]
    assert name in again
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("length", [-1, -2, -64, -65, -300, -(2**31)])
def test_any_negative_length_is_null(length: int) -> None:
    """Brokers, and Java's consumer, take every negative number for -1."""

    def read_with(null: bytes) -> list[list[Record]]:
        payloads = (
            sized(bytes(3) + null + sized(b"v") + b"\x00"),
            sized(bytes(3) + sized(b"k") + null + b"\x00"),
            record(headers=varint(1) + sized(b"h") + null),
        )
        return [records(handmade(payload)) for payload in payloads]

    assert read_with(varint(length)) == read_with(varint(-1))


@pytest.mark.parametrize("deltas", [(0, 0, 0), (0, 2, 1), (1, 2, 3), (-1, 7, 2**31 - 1), (0, 1, 2)])
def test_records_of_a_whole_batch_are_numbered_by_their_order(deltas: tuple[int, ...]) -> None:
    """Brokers check no deltas if a batch is not compressed. They give it as many offsets as it has
    records, so that the order of the records is their order in the log."""
    data = handmade(b"".join(map(record, deltas)), count=3, last_delta=2)
    assert [r.offset for r in records(data)] == [40, 41, 42]
    assert [r.offset for r in records(data, 41)] == [41, 42]


@pytest.mark.parametrize("attributes", [0x40, 0x80, 0x0F80, -0x8000])
def test_unused_attributes_change_nothing(attributes: int) -> None:
    whole = record().replace(b"\x00", b"\xff", 1)  # the record's own attributes
    found = records(handmade(whole, attributes=attributes))
    assert found == records(handmade(record()))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"\x00\x00\x00\x00", ControlType.ABORT),
        (b"\x00\x00\x00\x01", ControlType.COMMIT),
        (b"\x00\x07\x00\x01and more", ControlType.COMMIT),
        (b"\x00\x00\x00\x02", None),  # a raft leader change
        (b"\x00\x00\xff\xff", None),
    ],
)
def test_control_types(key: bytes, expected: ControlType | None) -> None:
    assert only(encode_batch([NewRecord(key, b"")], control=True)).control_type() is expected
    assert only(encode_batch([NewRecord(key, b"")])).control_type() is None


# Writing.


@codecs
def test_base_offset_and_epoch_are_replaced_without_changing_the_crc(codec: Codec) -> None:
    written = encode_batch(JAVA_RECORDS, codec=codec)
    patched = with_base_offset(memoryview(written), 2**40, 17)
    assert patched == encode_batch(JAVA_RECORDS, codec=codec, base_offset=2**40, leader_epoch=17)
    assert records(patched) == as_read(JAVA_RECORDS, base=2**40, epoch=17)


@pytest.mark.parametrize("timestamps", [(2**63,), (-(2**63) - 1,), (-1, 2**63 - 1), (-(2**63), 0)])
def test_timestamps_beyond_64_bits_are_not_written(timestamps: tuple[int, ...]) -> None:
    """The batch stores the distance from the first one, too. The pure Python wrote another one."""
    with pytest.raises(LocalProtocolError, match="do not fit the 64 bits of one batch"):
        encode_batch([NewRecord(None, None, timestamp) for timestamp in timestamps])


def test_an_empty_batch_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match=r"^a batch needs a record$"):
        encode_batch([])


# Corruption: batches.


def by_reason(value: object) -> str:
    return value if isinstance(value, str) else "-"


def corrupt(data: bytes) -> tuple[str, str, int, int]:
    with pytest.raises(CorruptRecordError) as caught:
        records(data)
    error = caught.value
    assert str(error) == f"{error.topic}/{error.partition} at offset {error.offset}: {error.reason}"
    return error.reason, error.topic, error.partition, error.offset


FORMAT = "message format v{} is not supported, only v0 to v2"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (handmade(record(), length=-1), "batch length -1 is too small"),
        (handmade(record(), length=-(2**31)), "batch length -2147483648 is too small"),
        (handmade(record(), length=0), "batch length 0 is too small"),
        (handmade(record(), length=48), "batch length 48 is too small"),
        (handmade(record(), magic=3), FORMAT.format(3)),
        (handmade(record(), magic=-1), FORMAT.format(255)),
        (handmade(record(), count=-1), "-1 records in 10 offsets"),
        (handmade(record() * 11, count=11), "11 records in 10 offsets"),
        (handmade(record(), count=2), "2 records in 8 bytes"),
        (handmade(b"", count=1), "1 records in 0 bytes"),
        (handmade(bytes(13), count=2), "2 records in 13 bytes"),
        (
            handmade(b"", count=2**31 - 1, last_delta=2**31 - 1),
            "2147483647 records in 0 bytes",
        ),
        (
            handmade(compress(Codec.GZIP, record()), attributes=Codec.GZIP, count=2),
            "2 records in 8 bytes",
        ),
        (handmade(record(), last_delta=-1), "last offset delta -1 leads nowhere"),
        (handmade(record(), attributes=5), "unknown codec 5"),
        (handmade(record(), attributes=7), "unknown codec 7"),
        (handmade(b"\x60", attributes=Codec.SNAPPY), "snappy: 1 bytes cannot inflate to 96"),
    ],
    ids=by_reason,
)
def test_a_corrupt_batch_is_an_error_with_its_reason(data: bytes, reason: str) -> None:
    assert corrupt(data) == (reason, "t", 3, 40)


def test_a_record_count_beyond_the_bytes_is_an_error_before_delivery() -> None:
    with pytest.raises(CorruptRecordError, match="2 records in 8 bytes"):
        read(handmade(record(), count=2))


@pytest.mark.parametrize("codec", list(Codec)[1:], ids=lambda c: c.name)
def test_a_batch_not_compressed_with_its_codec_is_an_error(codec: Codec) -> None:
    reason, *where = corrupt(handmade(b"\xff" * 30, attributes=codec))
    assert (reason.partition(":")[0], where) == (codec.name.lower(), ["t", 3, 40])


@pytest.mark.parametrize(("base", "last_delta"), [(-1, 9), (-(2**63), 9), (2**63 - 1, 0)])
def test_invalid_offsets_of_a_batch_are_an_error(base: int, last_delta: int) -> None:
    data = handmade(record(), base_offset=base, last_delta=last_delta)
    reason = f"last offset delta {last_delta} leads nowhere"
    assert corrupt(data) == (reason, "t", 3, base)


def test_the_highest_possible_offset_is_read() -> None:
    assert only(handmade(record(), base_offset=2**63 - 2, last_delta=0)).next_offset == 2**63 - 1


def test_every_flipped_bit_is_detected() -> None:
    """From the magic on; offset, length and epoch are not under the CRC."""
    good = JAVA[Codec.NONE]
    for bit in range(16 * 8, len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        reason = FORMAT.format(bad[16]) if bit < 17 * 8 else "CRC-32C mismatch"
        if bad[16] == 0:
            reason = "CRC-32 mismatch"  # of a message of format 0
        assert corrupt(bytes(bad)) == (reason, "t", 3, 1000)


@pytest.mark.parametrize(
    ("data", "next_offset"),
    [
        (handmade(record(), base_offset=7, last_delta=4)[:-1] + b"?", 12),
        (handmade(b"\0" * 6, base_offset=7, last_delta=4), 12),
        (handmade(record(), base_offset=7, last_delta=-2)[:-1] + b"?", -1),
        (handmade(record(), base_offset=7, last_delta=-2), -1),
    ],
)
def test_the_error_of_a_damaged_batch_names_the_offset_after_it(
    data: bytes, next_offset: int
) -> None:
    """Its own offset is the batch's first: a `seek` to the next one fetched the batch again."""
    with pytest.raises(CorruptRecordError) as caught:
        records(data)
    assert caught.value.next_offset == next_offset


def test_a_flipped_bit_in_the_length_delivers_no_record() -> None:
    good = JAVA[Codec.NONE]
    for bit in range(32):
        bad = bytearray(good)
        bad[8 + bit // 8] ^= 1 << bit % 8
        try:
            assert read(bytes(bad)) == []
        except DecodeError:
            pass


def test_the_crc_is_checked_before_any_record_by_default() -> None:
    bad = bytearray(JAVA[Codec.NONE])
    bad[17] ^= 1
    with pytest.raises(CorruptRecordError):
        next(read_batches(bytes(bad), topic="t", partition=3))
    assert list(only(bytes(bad), check_crcs=False).records()) == as_read(
        JAVA_RECORDS, base=1000, epoch=9
    )


# Corruption: records. The CRC is right in each: these are bugs or malice, not broken disks.


NO_KEY_NO_VALUE = varint(-1) * 2


@pytest.mark.parametrize(
    ("payload", "count", "reason"),
    [
        (varint(-1) + bytes(9), 1, "a record's length is beyond the batch"),
        (varint(10) + bytes(9), 1, "a record's length is beyond the batch"),
        (varint(9000) + bytes(9), 1, "a record's length is beyond the batch"),
        (varint(2**31 - 1) + bytes(9), 1, "a record's length is beyond the batch"),
        (b"\xff" * 9, 1, "unsigned varint is longer than 5 bytes"),
        (b"\xff\xff\xff\xff\x1f" + bytes(9), 1, "unsigned varint exceeds 32 bits"),
        (varint(6) + b"\x00" + b"\xff" * 11, 1, "varint is longer than 10 bytes"),
        (varint(6) + b"\x00" + b"\xff" * 9 + b"\x02", 1, "varint exceeds 64 bits"),
        (varint(6) + b"\x00" + b"\xff" * 5, 1, "input ends inside a varint"),
        (record(-1), 1, "a record's offset is out of order or outside the batch"),
        (record(10), 1, "a record's offset is out of order or outside the batch"),
        (record(9000), 1, "a record's offset is out of order or outside the batch"),
        (record(3) + record(3), 2, "a record's offset is out of order or outside the batch"),
        (record(3) + record(2), 2, "a record's offset is out of order or outside the batch"),
        (sized(bytes(3) + varint(9) + bytes(8)), 1, "a key's length is beyond its record"),
        (sized(bytes(3) + varint(900) + bytes(8)), 1, "a key's length is beyond its record"),
        (sized(bytes(4) + varint(9) + bytes(8)), 1, "a value's length is beyond its record"),
        (sized(bytes(4) + varint(900) + bytes(8)), 1, "a value's length is beyond its record"),
        (sized(bytes(4) + varint(9000) + bytes(8)), 1, "a value's length is beyond its record"),
        # Lengths that stay in the batch, but not in their record.
        (
            sized(bytes(3) + varint(5) + bytes(4)) + record(1),
            2,
            "a key's length is beyond its record",
        ),
        (
            sized(bytes(4) + varint(4) + bytes(3)) + record(1),
            2,
            "a value's length is beyond its record",
        ),
        (record(headers=varint(-1)), 1, "a record's header count is beyond its bytes"),
        (record(headers=varint(1) + b"\x00"), 1, "a record's header count is beyond its bytes"),
        (
            record(headers=varint(2**31 - 1) + bytes(9)),
            1,
            "a record's header count is beyond its bytes",
        ),
        (
            record(headers=varint(1) + varint(-1) + sized(b"x")),
            1,
            "a header key's length is beyond its record",
        ),
        (
            record(headers=varint(1) + varint(9) + bytes(8)),
            1,
            "a header key's length is beyond its record",
        ),
        (
            record(headers=varint(1) + sized(b"h") + varint(9) + bytes(8)),
            1,
            "a header value's length is beyond its record",
        ),
        (
            record(headers=varint(1) + sized(b"h") + b"\x80"),
            1,
            "input ends inside an unsigned varint",
        ),
        (record(headers=b"\x00\x00"), 1, "a record does not end where its length says"),
        (
            sized(bytes(3) + NO_KEY_NO_VALUE) + record(1, value=bytes(9)),
            2,
            "a record's header count is beyond its bytes",
        ),
        (
            varint(0) + record(value=bytes(9)),
            2,
            "a key's length is beyond its record",
        ),
        (
            sized(bytes(3) + NO_KEY_NO_VALUE) + b"\x00",
            1,
            "a record does not end where its length says",
        ),
        (sized(bytes(3) + varint(-1) + sized(b"v")), 1, "input ends inside a record"),
        (varint(6) + b"\x00\x80\x80\x80\x80\x01\x80", 1, "input ends inside a record"),
        (record() + b"\x00", 1, "1 bytes behind the last record"),
        (record() + record(1), 1, "8 bytes behind the last record"),
    ],
    ids=by_reason,
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4], ids=lambda c: c.name)
def test_a_corrupt_record_is_an_error_with_its_reason(
    codec: Codec, payload: bytes, count: int, reason: str
) -> None:
    data = handmade(compress(codec, payload), attributes=codec, count=count)
    assert corrupt(data) == (reason, "t", 3, 40)


def test_records_before_a_corrupt_one_are_delivered() -> None:
    found = only(handmade(record(0) + record(0), count=2)).records()
    assert next(found).offset == 40
    with pytest.raises(CorruptRecordError):
        next(found)


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00"])
def test_a_control_record_without_a_key_is_an_error(key: bytes | None) -> None:
    batch = only(encode_batch([NewRecord(key, b"")], control=True))
    with pytest.raises(CorruptRecordError) as caught:
        batch.control_type()
    assert str(caught.value) == "t/3 at offset 0: the key of a control record is too short"


# Limits.


def test_a_batch_that_inflates_beyond_the_limit_is_an_error() -> None:
    data = encode_batch([NewRecord(None, bytes(100_000))], codec=Codec.ZSTD, base_offset=6)
    batch = only(data, max_batch_bytes=50_000)
    with pytest.raises(LimitExceededError) as caught:
        list(batch.records())
    assert str(caught.value) == (
        "t/3 at offset 6: batch inflates beyond 50000 bytes (max_batch_bytes)"
    )


@pytest.mark.parametrize("cut", [0, 1000])
def test_a_batch_length_beyond_the_limit_is_an_error(cut: int) -> None:
    """Dropped as a truncated last batch, it would be fetched without end, and never arrive
    whole."""
    data = encode_batch([NewRecord(None, bytes(50_000))], base_offset=6)
    with pytest.raises(LimitExceededError) as caught:
        read(data[: len(data) - cut], max_batch_bytes=50_000)
    length = len(data) - 12
    assert str(caught.value) == (
        f"t/3 at offset 6: batch of {length} bytes exceeds 50000 (max_batch_bytes)"
    )


# Fuzzing: every error belongs to one family.


def drain(data: bytes, *, check_crcs: bool) -> None:
    try:
        for batch in read(data, check_crcs=check_crcs, max_batch_bytes=100_000):
            seen = batch.base_offset - 1
            for r in batch.records():
                assert seen < r.offset <= batch.last_offset
                seen = r.offset
            batch.control_type()
    except DecodeError:
        pass


@repeatable
@given(data=st.binary(max_size=300), check_crcs=st.booleans())
def test_any_bytes_are_batches_or_an_error(data: bytes, check_crcs: bool) -> None:
    drain(data, check_crcs=check_crcs)


@repeatable
@given(payload=st.binary(max_size=200), count=st.integers(0, 20), attributes=st.integers(0, 127))
def test_any_payload_with_a_valid_crc_is_records_or_an_error(
    payload: bytes, count: int, attributes: int
) -> None:
    drain(handmade(payload, count=count, last_delta=30, attributes=attributes), check_crcs=True)


@codecs
def test_a_damaged_payload_with_a_valid_crc_is_records_or_an_error(codec: Codec) -> None:
    rng = random.Random(f"damage {codec.name}")
    for _ in range(3000):
        data = bytearray(JAVA[codec])
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(12, len(data))] = rng.choice(
                (0, 1, 127, 128, 255, rng.randrange(256))
            )
        drain(seal(data), check_crcs=True)


# ---------------------------------------------------------------- what a thread prepares


def one_batch(data: bytes) -> RecordBatch:
    (batch,) = read_batches(data, topic="t", partition=0)
    return batch


def values_of(count: int, size: int, *, dense: bool = True) -> list[NewRecord]:
    fill = (lambda size: b"v" * size) if dense else random.Random(1).randbytes
    return [NewRecord(None, fill(size), 1_000) for _ in range(count)]


@pytest.mark.parametrize(
    ("codec", "size", "dense", "at_once"),
    [
        (Codec.GZIP, 250_000, True, True),
        (Codec.GZIP, 270_000, True, False),
        (Codec.GZIP, 140_000, False, False),
        (Codec.ZSTD, 1_000_000, True, True),
        (Codec.ZSTD, 1_100_000, True, False),
        (Codec.ZSTD, 300_000, False, False),
        (Codec.LZ4, 1_000_000, True, True),
        (Codec.LZ4, 1_100_000, True, False),
        (Codec.SNAPPY, 1_000_000, True, True),
        (Codec.SNAPPY, 1_100_000, True, False),
        (Codec.NONE, 1_100_000, True, True),
    ],
)
def test_large_batches_are_inflated_in_a_thread(
    codec: Codec, size: int, dense: bool, at_once: bool
) -> None:
    """The size of the output decides: 8 KB of zstd that inflate to 128 MiB blocked the loop."""
    records = values_of(4, size // 4, dense=dense)
    reader = one_batch(encode_batch(records, codec=codec)).records()
    assert reader.prepare_at_once() is at_once
    assert reader.prepare()
    assert [record.value for record in reader] == [record.value for record in records]


@pytest.mark.parametrize(("passed", "at_once"), [(1_999, True), (2_001, False)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_position_far_inside_a_batch_is_reached_in_a_thread(
    codec: Codec, passed: int, at_once: bool
) -> None:
    """Three million records below the position blocked the uncompiled loop for seconds."""
    records = values_of(3_000, 1)
    reader = one_batch(encode_batch(records, codec=codec)).records(passed)
    assert reader.prepare_at_once() is at_once
    assert reader.offset == (passed - 1 if at_once else 1_999)
    assert reader.prepare()
    assert [record.offset for record in reader] == [*range(passed, 3_000)]


@pytest.mark.slow
def test_a_thread_skips_records_in_slices() -> None:
    records = values_of(450_000, 0)
    reader = one_batch(encode_batch(records)).records(449_000)
    assert [reader.prepare_at_once(), *(reader.prepare() for _ in range(3))] == [
        False,
        False,
        False,
        True,
    ]
    assert next(reader).offset == 449_000


def test_damage_below_the_position_is_raised_by_the_first_record() -> None:
    data = bytearray(encode_batch(values_of(3_000, 1)))
    # The length of record 2,500, each of which has two offset bytes from the 64th on.
    data[61 + 64 * 8 + 2_436 * 9] = 1
    pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    reader = one_batch(bytes(data)).records(2_900)
    assert not reader.prepare_at_once()
    assert reader.prepare()
    with pytest.raises(CorruptRecordError, match="a record's length is beyond the batch"):
        next(reader)
    assert [*reader] == []


def test_a_failed_inflation_in_a_thread_is_raised_by_the_first_record() -> None:
    data = encode_batch(values_of(4, 300_000), codec=Codec.GZIP)
    (batch,) = read_batches(data, topic="t", partition=0, max_batch_bytes=500_000)
    reader = batch.records()
    assert not reader.prepare_at_once()
    assert reader.prepare()
    with pytest.raises(LimitExceededError, match="batch inflates beyond 500000 bytes"):
        next(reader)


def test_control_batches_have_a_small_limit() -> None:
    """They are inflated in the loop; five bombs blocked it for a second."""
    bomb = encode_batch(values_of(1, 1_100), codec=Codec.GZIP, control=True, transactional=True)
    with pytest.raises(LimitExceededError, match="beyond 1024 bytes"):
        one_batch(bomb).control_type()
