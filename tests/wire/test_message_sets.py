"""Message sets of formats 0 and 1: what brokers store is read; errors; limits."""

from __future__ import annotations

import random
import tracemalloc
from struct import pack, pack_into
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from old_messages import STAMPED, compressed, message, stored, with_wrong_checksum

from kafkagroup.errors import CorruptRecordError, DecodeError, LimitExceededError
from kafkagroup.types import Record, TimestampType
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec, compress
from kafkagroup.wire.records import RecordBatch, read_batches

OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
formats = pytest.mark.parametrize("magic", [0, 1])
codecs = pytest.mark.parametrize("codec", OLD_CODECS, ids=lambda c: c.name)
CREATED, STAMPED_TYPE = TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME


def read(data: bytes, **options: Any) -> list[RecordBatch]:
    return list(read_batches(data, topic="t", partition=3, **options))


def records(data: bytes, start: int = 0, **options: Any) -> list[Record]:
    return [record for batch in read(data, **options) for record in batch.records(start)]


def record(
    offset: int,
    value: bytes | None = b"v",
    key: bytes | None = None,
    timestamp: int = 1000,
    kind: TimestampType = CREATED,
) -> Record:
    return Record("t", 3, offset, timestamp, kind, key, value, (), -1)


def expected(magic: int, base: int, values: list[bytes | None]) -> list[Record]:
    """What `stored` holds."""
    return [
        record(n, value, timestamp=1000 + n if magic else -1)
        for n, value in enumerate(values, base)
    ]


# What brokers store.


@formats
@codecs
@pytest.mark.parametrize("base", [0, 7, 2**40, 2**62])
def test_messages_as_brokers_store_them(magic: int, codec: Codec, base: int) -> None:
    values: list[bytes | None] = [b"a", None, b"", b"b" * 5000]
    data = stored(magic, codec, base, values)
    assert records(data) == expected(magic, base, values)
    assert [batch.next_offset for batch in read(data)] == [base + 4]


@formats
@codecs
def test_all_formats_in_one_response(magic: int, codec: Codec) -> None:
    """A topic whose format was raised, and lowered again."""
    new = encode_batch([NewRecord(None, b"c", 5)], base_offset=9, leader_epoch=4)
    data = stored(magic, codec, 7, [b"a", b"b"]) + new + stored(1 - magic, codec, 10, [b"d"])
    assert records(data) == [
        *expected(magic, 7, [b"a", b"b"]),
        Record("t", 3, 9, 5, CREATED, None, b"c", (), 4),
        *expected(1 - magic, 10, [b"d"]),
    ]


def test_a_batch_of_messages_field_by_field() -> None:
    (batch,) = read(stored(1, Codec.NONE, 7, [b"a", b"b"]))
    names = [n for n in dir(RecordBatch) if n[0] != "_" and n not in ("raw", "records", "hide")]
    assert {name: getattr(batch, name) for name in names if name != "control_type"} == {
        "topic": "t",
        "partition": 3,
        "base_offset": 7,
        "last_offset": 8,
        "next_offset": 9,
        "leader_epoch": -1,
        "codec": Codec.NONE,
        "timestamp_type": CREATED,
        "base_timestamp": 0,
        "max_timestamp": 1008,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "is_transactional": False,
        "is_control": False,
        "count": 2,
        "is_hidden": False,
        "size": 2 * len(message(1, 7, b"a")),
    }
    assert batch.control_type() is None


def test_a_compressed_message_is_a_batch_of_unknown_records() -> None:
    data = stored(1, Codec.GZIP, 7, [b"a", b"b"])
    (batch,) = read(data)
    assert (batch.base_offset, batch.last_offset, batch.count, batch.size) == (0, 8, 1, len(data))
    assert (batch.codec, batch.max_timestamp, bytes(batch.raw)) == (Codec.GZIP, 1008, data)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_the_wrong_checksum_of_an_lz4_header_is_no_damage(magic: int) -> None:
    """KAFKA-3160: what Kafka's clients before 0.10 wrote is still stored."""
    inside = message(min(magic, 1), 0)
    frame = with_wrong_checksum(compress(Codec.LZ4, inside))
    assert frame != compress(Codec.LZ4, inside)
    data = message(min(magic, 1), 0, frame, attributes=Codec.LZ4)
    assert [r.value for r in records(data)] == [b"v"]


# Timestamps.


@codecs
def test_the_log_append_time_of_a_compressed_message_is_that_of_its_records(codec: Codec) -> None:
    if codec is Codec.NONE:
        data = b"".join(message(1, n, timestamp=5000 + n, attributes=STAMPED) for n in range(3))
        times = [5000, 5001, 5002]
    else:
        inside = b"".join(message(1, n, timestamp=n) for n in range(3))
        data = compressed(1, codec, 2, inside, timestamp=5000, attributes=STAMPED)
        times = [5000] * 3
    assert records(data) == [record(n, timestamp=t, kind=STAMPED_TYPE) for n, t in enumerate(times)]


def test_messages_with_and_without_log_append_time_side_by_side() -> None:
    """The topic's message.timestamp.type was changed."""
    data = message(1, 0) + message(1, 1, timestamp=7, attributes=STAMPED) + message(1, 2)
    assert records(data) == [record(0), record(1, timestamp=7, kind=STAMPED_TYPE), record(2)]


def test_the_bit_means_nothing_in_format_0() -> None:
    assert records(message(0, 0, attributes=STAMPED)) == [record(0, timestamp=-1)]


@pytest.mark.parametrize("timestamp", [-1, 0, -(2**63), 2**63 - 1])
def test_timestamps_of_every_width(timestamp: int) -> None:
    assert records(message(1, 0, timestamp=timestamp)) == [record(0, timestamp=timestamp)]


# Positions.


@formats
@codecs
@pytest.mark.parametrize("start", range(5, 13))
def test_records_below_the_position_are_skipped(magic: int, codec: Codec, start: int) -> None:
    data = stored(magic, codec, 7, [b"a", b"b", b"c", b"d"])
    found = expected(magic, 7, [b"a", b"b", b"c", b"d"])
    assert records(data, start) == [r for r in found if r.offset >= start]


@formats
@codecs
def test_a_fork_reads_records_that_the_original_skips(magic: int, codec: Codec) -> None:
    (batch,) = read(stored(magic, codec, 7, [b"a", b"b", b"c"]))
    reader = batch.records(8)
    unread = reader.fork()
    assert (reader.skip(1), reader.offset, reader.unread_size() > 0) == (1, 8, True)
    unread.stop_after(1)
    whole = expected(magic, 7, [b"a", b"b", b"c"])
    assert (list(unread), list(reader)) == (whole[1:2], whole[2:])


@formats
def test_gaps_that_compaction_left(magic: int) -> None:
    alone = message(magic, 3) + message(magic, 9)
    inside = message(magic, 2 if magic else 12) + message(magic, 5 if magic else 15)
    data = alone + compressed(magic, Codec.GZIP, 15, inside)
    assert [r.offset for r in records(data)] == [3, 9, 12, 15]
    assert [batch.next_offset for batch in read(data)] == [10, 16]


@formats
def test_a_gap_of_more_than_32_bits(magic: int) -> None:
    data = message(magic, 3) + message(magic, 2**31 + 2) + message(magic, 2**33)
    assert [r.offset for r in records(data)] == [3, 2**31 + 2, 2**33]
    assert [batch.count for batch in read(data)] == [2, 1]


@formats
@codecs
def test_a_truncated_last_message_is_dropped(magic: int, codec: Codec) -> None:
    whole, more = stored(magic, codec, 0, [b"a", b"b"]), stored(magic, codec, 2, [b"c"])
    for end in range(len(more)):
        assert [r.offset for r in records(whole + more[:end])] == [0, 1]
        assert records(more[:end]) == []


@formats
def test_a_truncated_last_message_inside_is_dropped(magic: int) -> None:
    """Brokers drop it, too, when they assign offsets."""
    inside = message(magic, 0) + message(magic, 1)
    data = compressed(magic, Codec.GZIP, 1, inside + message(magic, 2)[:-1])
    assert [r.offset for r in records(data)] == [0, 1]


def test_many_messages_are_batches_of_500() -> None:
    data = b"".join(message(1, n, b"%d" % n) for n in range(1_200))
    assert [batch.count for batch in read(data)] == [500, 500, 200]
    assert [r.value for r in records(data)] == [b"%d" % n for n in range(1_200)]


def test_large_messages_are_batches_of_a_megabyte() -> None:
    data = b"".join(message(1, n, bytes(400_000)) for n in range(5))
    assert [batch.count for batch in read(data)] == [3, 2]


# What brokers accepted.


def test_formats_may_differ_inside() -> None:
    """Some clients raised the format of the outer message only."""
    data = compressed(1, Codec.GZIP, 5, message(0, 0) + message(0, 1))
    assert records(data) == [record(4, timestamp=-1), record(5, timestamp=-1)]


@pytest.mark.parametrize("length", [-1, -2, -(2**31)])
def test_any_negative_length_is_null(length: int) -> None:
    body = pack(">bbii", 0, 0, length, length)
    data = pack(">qiI", 0, 4 + len(body), crc32(body)) + body
    assert records(data) == [record(0, None, None, -1)]


def test_unused_attributes_and_bytes_are_ignored() -> None:
    body = pack(">bbii", 0, 0x70, -1, 1) + b"v" + b"more"
    data = pack(">qiI", 0, 4 + len(body), crc32(body)) + body
    assert records(data) == [record(0, timestamp=-1)]


# Damage.


def by_reason(value: object) -> str:
    return value if isinstance(value, str) else "-"


def sealed(data: bytes, at: int, new: bytes) -> bytes:
    """Return one message with other bytes, and the CRC that they have."""
    out = bytearray(data)
    out[at : at + len(new)] = new
    pack_into(">I", out, 12, crc32(out[16:]))
    return bytes(out)


def corrupt(data: bytes) -> tuple[list[int], str, int]:
    """Return the offsets of the records before the damage, its reason and its offset."""
    seen = []
    with pytest.raises(CorruptRecordError) as caught:
        for batch in read_batches(data, topic="t", partition=3):
            seen.extend(found.offset for found in batch.records())
    error = caught.value
    assert (error.topic, error.partition) == ("t", 3)
    return seen, error.reason, error.offset


GOOD = message(1, 7) + message(1, 8)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (sealed(message(1, 9), 17, b"\x07"), "unknown codec 7"),
        (pack(">qi", 9, -1) + message(1, 9)[12:], "message size -1 is too small"),
        (pack(">qi", 9, 21) + message(1, 9)[12:], "message size 21 is too small"),
        (message(1, 9)[:-1] + b"w", "CRC-32 mismatch"),
        (sealed(message(1, 9), 26, pack(">i", 2)), "a key's length is beyond its message"),
        (sealed(message(1, 9), 30, pack(">i", 2)), "a value's length is beyond its message"),
        (sealed(message(1, 9), 26, pack(">i", 2**31 - 1)), "a key's length is beyond its message"),
    ],
    ids=by_reason,
)
def test_a_damaged_message_is_an_error_after_those_before_it(data: bytes, reason: str) -> None:
    assert corrupt(GOOD + data + message(1, 10)) == ([7, 8], reason, 9)
    assert corrupt(data) == ([], reason, 9)


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
def test_an_offset_out_of_range_is_an_error(offset: int) -> None:
    assert corrupt(message(0, offset)) == ([], f"offset {offset} leads nowhere", offset)


def test_every_flipped_bit_is_detected() -> None:
    """From the CRC on; offset and size are not under it."""
    for magic in (0, 1):
        good = message(magic, 9, b"value", b"key")
        for bit in range(12 * 8, len(good) * 8):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            seen, reason, offset = corrupt(bytes(bad))
            assert (seen, offset) == ([], 9)
            # A flipped magic may make it another format, whose smallest size is larger.
            assert bit // 8 == 16 or reason == "CRC-32 mismatch"


def nested(depth: int) -> bytes:
    data = message(1, 0)
    for _ in range(depth):
        data = compressed(1, Codec.GZIP, 0, data)
    return data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (nested(2), "a compressed message is inside a compressed message"),
        (nested(500), "a compressed message is inside a compressed message"),
        (message(1, 0, None, attributes=Codec.GZIP), "a compressed message has no value"),
        (compressed(1, Codec.GZIP, 0, b""), "a compressed message has no messages inside"),
        (
            compressed(1, Codec.GZIP, 0, encode_batch([NewRecord(None, b"")])),
            "message format v2 in a message set",
        ),
        (compressed(1, Codec.GZIP, 0, message(1, 0)[:-1] + b"w"), "CRC-32 mismatch"),
        (
            compressed(1, Codec.GZIP, 0, pack(">qi", 0, -5) + message(1, 0)[12:]),
            "message size -5 is too small",
        ),
        (
            compressed(0, Codec.GZIP, 0, message(0, 0) + message(0, 1)),
            "a compressed message has offsets 0 to 1 inside",
        ),
        (
            compressed(1, Codec.GZIP, 0, message(1, 0) + message(1, 1)),
            "a compressed message has offsets -1 to 0 inside",
        ),
        (
            compressed(1, Codec.GZIP, 0, message(1, 3) + message(1, 3)),
            "offset 3 follows offset 3",
        ),
        (
            compressed(1, Codec.GZIP, 0, message(1, 3) + message(1, 2**31 + 3)),
            f"offset {2**31 + 3} follows offset 3",
        ),
        (message(1, 0, b"garbage!", attributes=Codec.SNAPPY), "snappy: "),
        (message(1, 0, b"", attributes=Codec.GZIP), "gzip: input ends inside a member"),
    ],
    ids=by_reason,
)
def test_damage_inside_a_compressed_message_is_an_error(data: bytes, reason: str) -> None:
    seen, found, offset = corrupt(GOOD + data)
    assert (seen, found[: len(reason)], offset) == ([7, 8], reason, 0)


def test_a_record_that_is_longer_than_its_message_is_an_error() -> None:
    """Format 0 has no timestamp; that of the outer message takes ten bytes here. The records are
    written where the messages are, and wrote over what was not read yet."""
    part = bytes(1 << 20)
    inside = message(0, 0, part, key=part) + message(0, 1 << 28, part, key=part)
    data = compressed(1, Codec.GZIP, 1 << 28, inside, timestamp=-(2**63), attributes=STAMPED)
    assert corrupt(data)[1] == f"the record at offset {1 << 28} is longer than its message"


def test_without_crcs_they_are_not_checked_inside_either() -> None:
    bad = message(1, 0)[:-1] + b"w"
    data = bad + compressed(1, Codec.GZIP, 1, bad)
    assert [r.value for r in records(data, check_crcs=False)] == [b"w", b"w"]


# Limits.


def test_a_message_that_decompresses_beyond_the_limit_is_an_error() -> None:
    data = compressed(1, Codec.GZIP, 6, message(1, 0, bytes(100_000)))
    (batch,) = read(data, max_batch_bytes=50_000)
    with pytest.raises(LimitExceededError) as caught:
        list(batch.records())
    assert str(caught.value) == (
        "t/3 at offset 6: batch inflates beyond 50000 bytes (max_batch_bytes)"
    )


@pytest.mark.parametrize("cut", [0, 1000])
def test_a_size_beyond_the_limit_is_an_error_after_the_messages_before_it(cut: int) -> None:
    data = message(1, 6, bytes(50_000))
    batches = read_batches(
        message(1, 5) + data[: len(data) - cut], topic="t", partition=3, max_batch_bytes=50_000
    )
    assert next(batches).last_offset == 5
    with pytest.raises(LimitExceededError) as caught:
        next(batches)
    assert str(caught.value) == (
        f"t/3 at offset 6: message of {len(data) - 12} bytes exceeds 50000 (max_batch_bytes)"
    )


@pytest.mark.parametrize("codec", OLD_CODECS[1:], ids=lambda c: c.name)
def test_memory_stays_near_the_limit(codec: Codec) -> None:
    """8 MiB of zeros, of which nothing is kept."""
    data = message(0, 0, compress(codec, bytes(8 << 20)), attributes=codec)
    (batch,) = read(data, max_batch_bytes=1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            list(batch.records())
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("values", [[bytes(100)] * 60_000, [bytes(6 << 20)]], ids=["many", "one"])
@formats
@pytest.mark.parametrize("codec", OLD_CODECS[1:], ids=lambda c: c.name)
def test_reading_a_compressed_message_takes_its_decompressed_size(
    magic: int, codec: Codec, values: list[bytes | None]
) -> None:
    """It took three to four times that: 387 MiB against a limit of 128 MiB."""
    size = sum(len(message(magic, 0, value)) for value in values)
    (batch,) = read(stored(magic, codec, 0, values), max_batch_bytes=size)
    reader = batch.records()
    tracemalloc.start()
    try:
        assert reader.prepare()
        held, peak = tracemalloc.get_traced_memory()
        assert 0.7 * size < held <= peak < 1.3 * size
    finally:
        tracemalloc.stop()
    assert sum(1 for _ in reader) == len(values)


def test_a_small_compressed_message_is_prepared_without_a_thread() -> None:
    small, large = stored(1, Codec.GZIP, 0, [b"v"] * 400), stored(1, Codec.GZIP, 0, [b"v"] * 5_000)
    (of_small,), (of_large,) = read(small), read(large)
    assert of_small.records().prepare_at_once()
    reader = of_large.records(4_000)
    assert not reader.prepare_at_once()
    assert reader.prepare()
    assert [r.offset for r in reader] == list(range(4_000, 5_000))


# Any bytes.

repeatable = settings(max_examples=200)


def drain(data: bytes, *, check_crcs: bool) -> None:
    try:
        for batch in read(data, check_crcs=check_crcs, max_batch_bytes=100_000):
            seen = batch.base_offset - 1
            for found in batch.records():
                assert seen < found.offset <= batch.last_offset
                seen = found.offset
    except DecodeError:
        pass


@formats
@codecs
def test_damaged_messages_are_records_or_an_error(magic: int, codec: Codec) -> None:
    rng = random.Random(f"damage {magic} {codec.name}")
    good = stored(magic, codec, 5, [b"a" * 30, None, b"c"])
    for _ in range(2_000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        drain(bytes(data), check_crcs=False)


@repeatable
@given(inside=st.binary(max_size=200), magic=st.integers(0, 1), codec=st.sampled_from(OLD_CODECS))
def test_any_bytes_inside_are_records_or_an_error(inside: bytes, magic: int, codec: Codec) -> None:
    drain(compressed(magic, codec, 9, inside), check_crcs=False)
