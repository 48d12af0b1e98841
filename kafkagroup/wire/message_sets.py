"""Read message sets: the formats 0 and 1 of records, from before Kafka 0.11.

A topic that was written then, or under an old `message.format.version`, keeps these formats on any
later cluster. `read_message_set` takes the next messages of a fetch response: several that are not
compressed, or one compressed message, whose value is a message set. `MessageSet.records` returns
their records as a batch of format 2 encodes them, so that one reader reads all formats.

All fields are big-endian. The field `size` is the number of bytes after it; `crc` is the CRC-32 of
the bytes after it. The number before a field is its offset in the message:

    0 offset i64 | 8 size i32 | 12 crc u32 | 16 magic i8 | 17 attributes i8
    18 timestamp i64, in format 1 only | key length i32, key | value length i32, value

Attributes: bits 0-2 codec; in format 1, bit 3 log append time. A negative length is null. The
offset of a compressed message is that of its last record. The offsets inside are absolute in format
0, and relative to each other in format 1. Source: KIP-31, KIP-32.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import NamedTuple
from zlib import crc32

from kafkagroup.errors import CorruptRecordError, DecodeError, LimitExceededError
from kafkagroup.types import TimestampType
from kafkagroup.wire.batch_format import CODEC_MASK, INT32, INT64, LOG_APPEND_TIME, PREFIX, UINT32
from kafkagroup.wire.compression import Codec, decompress

__all__ = ["MessageSet", "Records", "read_message_set"]

_CRC_OFFSET = 12  # the size counts the bytes from here on
_MAGIC_OFFSET = 16  # the CRC covers the bytes from here on
_ATTRIBUTES_OFFSET = 17
_BODY_OFFSET = 18

_MIN_SIZES = (14, 22)
"""Format -> the field `size` of a message whose key and value are null."""
_CODECS = tuple(Codec)

_NO_TIMESTAMP = -1
_NULL = -1
_NO_HEADERS = b"\0"
_MAX_OFFSET = 2**63 - 1
_MAX_INT32 = 2**31 - 1

_MAX_MESSAGES = 500
"""The maximum number of messages in a set without compression: to check them takes a millisecond or
two."""
_ENOUGH_BYTES = 1024 * 1024
"""A set without compression ends with the message that reaches this size, because all its records
are converted in one call."""


class _Message(NamedTuple):
    """A message. The places of its parts are those in the data that it was read from."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    """Milliseconds since the epoch; -1 in format 0."""
    key_at: int
    """-1 for null, as is `value_at`."""
    key_end: int
    value_at: int
    value_end: int
    end: int

    @property
    def codec_number(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_stamped(self) -> bool:
        """Whether the message's timestamp is the log append time."""
        return self.magic == 1 and bool(self.attributes & LOG_APPEND_TIME)


class Records(NamedTuple):
    """Records as in the body of a batch of format 2. Their timestamps are relative to 0."""

    data: bytes
    record_count: int
    base_offset: int
    """The offset of the first record, which the others are relative to."""


class MessageSet:
    """Messages that are not compressed, or one compressed message."""

    __slots__ = (
        "_check_crcs",
        "_first",
        "base_offset",
        "codec",
        "count",
        "last_offset",
        "max_timestamp",
        "raw",
        "timestamp_type",
    )

    def __init__(self, data: memoryview, messages: list[_Message], check_crcs: bool) -> None:
        first, last = messages[0], messages[-1]
        self._first = first
        self._check_crcs = check_crcs
        self.raw = data[: last.end]
        """The messages as received."""
        self.codec = _CODECS[first.codec_number]
        self.base_offset = first.offset if self.codec is Codec.NONE else 0
        """At most the offset of the first record: the one inside a compressed message is unknown
        until it is decompressed."""
        self.last_offset = last.offset
        """The offset of the last record."""
        self.count = len(messages)
        """How many messages there are. A compressed one may have any number of records."""
        self.timestamp_type = (
            TimestampType.LOG_APPEND_TIME if first.is_stamped else TimestampType.CREATE_TIME
        )
        self.max_timestamp = max(message.timestamp for message in messages)
        """Milliseconds since the epoch; -1 in format 0, which has no timestamps."""

    def records(self, limit: int) -> Records:
        """Return the records.

        Raises: LimitExceededError if they decompress to more than `limit` bytes; DecodeError for
        damage inside a compressed message.
        """
        if self.codec is Codec.NONE:
            # Without CRC checks: `read_message_set` has made them.
            return _converted(BytesIO(bytes(len(self.raw))), self.raw, False, None)[0]
        wrapper = self._first  # the compressed message, around those inside
        if wrapper.value_at == _NULL:
            raise DecodeError("a compressed message has no value")
        value = self.raw[wrapper.value_at : wrapper.value_end]
        # With log append time, the broker sets the timestamp of the outer message only.
        timestamp = wrapper.timestamp if wrapper.is_stamped else None
        # A BytesIO takes over bytes that nothing else refers to, without a copy.
        inflated = BytesIO(decompress(self.codec, value, limit))
        records, last = _converted(inflated, None, self._check_crcs, timestamp)
        if not records.record_count:
            raise DecodeError("a compressed message has no messages inside")
        if wrapper.magic == 1:
            # The offsets inside are relative to each other; the last one is that of the wrapper.
            base = records.base_offset + self.last_offset - last
            records, last = records._replace(base_offset=base), self.last_offset
        if records.base_offset < 0 or last > self.last_offset:
            raise DecodeError(
                f"a compressed message has offsets {records.base_offset} to {last} inside"
            )
        return records


def read_message_set(
    data: memoryview, *, topic: str, partition: int, check_crcs: bool, max_batch_bytes: int
) -> MessageSet | None:
    """Return the message set at the beginning of `data`, whose first message is of format 0 or 1;
    None if that message is truncated. A set without compression ends before a message of another
    format or timestamp type, a compressed or a damaged one.

    Raises, for the first message only: CorruptRecordError, with its offset, if it is damaged;
    LimitExceededError if it claims more than `max_batch_bytes`.
    """
    messages: list[_Message] = []
    pos = 0
    while pos < _ENOUGH_BYTES and len(messages) < _MAX_MESSAGES:
        try:
            message = _message(data, pos, check_crcs, max_batch_bytes)
        except DecodeError as error:
            if messages:
                break  # the next call raises it
            offset, *_ = PREFIX.unpack_from(data)
            if isinstance(error, LimitExceededError):
                raise LimitExceededError(
                    f"{topic}/{partition} at offset {offset}: {error}"
                ) from None
            raise CorruptRecordError(
                str(error), topic=topic, partition=partition, offset=offset
            ) from None
        if message is None or (messages and not _continues(messages, message)):
            break
        messages.append(message)
        pos = message.end
        if message.codec_number:
            break
    return MessageSet(data, messages, check_crcs) if messages else None


def _continues(messages: list[_Message], message: _Message) -> bool:
    """Return whether a message can be in a set with those before it."""
    first = messages[0]
    return (
        (message.magic, message.is_stamped) == (first.magic, first.is_stamped)
        and not message.codec_number
        # In format 2 the offsets are relative to the first one, in 32 bits.
        and messages[-1].offset < message.offset <= first.offset + _MAX_INT32
    )


def _message(data: memoryview, pos: int, check_crc: bool, max_size: int) -> _Message | None:
    """Return the message at `pos`; None if it is truncated. Raises: DecodeError."""
    if len(data) - pos < PREFIX.size:
        return None
    offset, size, magic = PREFIX.unpack_from(data, pos)
    if magic > 1:
        raise DecodeError(f"message format v{magic} in a message set")
    if size < _MIN_SIZES[magic]:
        raise DecodeError(f"message size {size} is too small")
    # Such a message never arrives whole: dropped as truncated, it would be fetched endlessly.
    if size > max_size:
        raise LimitExceededError(f"message of {size} bytes exceeds {max_size} (max_batch_bytes)")
    end = pos + _CRC_OFFSET + size
    if end > len(data):
        return None
    if check_crc:
        (crc,) = UINT32.unpack_from(data, pos + _CRC_OFFSET)
        if crc32(data[pos + _MAGIC_OFFSET : end]) != crc:
            raise DecodeError("CRC-32 mismatch")
    if not 0 <= offset < _MAX_OFFSET:
        raise DecodeError(f"offset {offset} leads nowhere")
    attributes = data[pos + _ATTRIBUTES_OFFSET]
    if attributes & CODEC_MASK >= len(_CODECS):
        raise DecodeError(f"unknown codec {attributes & CODEC_MASK}")
    timestamp, key_at = _NO_TIMESTAMP, pos + _BODY_OFFSET
    if magic:
        (timestamp,) = INT64.unpack_from(data, key_at)
        key_at += INT64.size
    # The key ends before the length of the value.
    key_at, key_end = _part(data, key_at, end - INT32.size, "key")
    value_at, value_end = _part(data, key_end, end, "value")
    return _Message(offset, magic, attributes, timestamp, key_at, key_end, value_at, value_end, end)


def _part(data: memoryview, pos: int, end: int, name: str) -> tuple[int, int]:
    """Return where the key or value starts whose length is at `pos`, -1 if it is null, and where it
    ends; if it is null, where its length ends. Raises: DecodeError if it ends beyond `end`."""
    (length,) = INT32.unpack_from(data, pos)
    pos += INT32.size
    if length < 0:
        return _NULL, pos
    if length > end - pos:
        raise DecodeError(f"a {name}'s length is beyond its message")
    return pos, pos + length


def _messages(data: memoryview, check_crcs: bool) -> Iterator[_Message]:
    """Yield the messages of a set, none of which may be compressed. As brokers do, drop a truncated
    last one. Raises: DecodeError."""
    pos = 0
    while (message := _message(data, pos, check_crcs, _MAX_INT32)) is not None:
        if message.codec_number:
            raise DecodeError("a compressed message is inside a compressed message")
        yield message
        pos = message.end


def _converted(
    out: BytesIO, data: memoryview | None, check_crcs: bool, timestamp: int | None
) -> tuple[Records, int]:
    """Return the records of a set without compression, and the offset of the last one. `out` is as
    long as the set, and the records are written to it. With None as `data`, `out` contains the set
    itself, which the records replace: so this takes no more memory. `timestamp` replaces the
    timestamps of the records; None keeps them. Raises: DecodeError."""
    with out.getbuffer() as room:
        size, count, first, last = _encode(
            room if data is None else data, room, check_crcs, timestamp
        )
    out.truncate(size)
    return Records(out.getvalue(), count, first), last


def _encode(
    data: memoryview, room: memoryview, check_crcs: bool, timestamp: int | None
) -> tuple[int, int, int, int]:
    """Write the records to `room`. Return their size and number, and the first and the last offset.

    `room` may be the memory of `data`: a record is not longer than its message, whose offset, size,
    CRC and lengths take more bytes, so each part is read before it is overwritten. Raises:
    DecodeError for damage, for offsets that do not increase, and for a longer record, such as that
    of a message of format 0 with megabytes of key and value, in a compressed message whose
    timestamp is near -2^63.
    """
    size, count, first, last = 0, 0, 0, -1
    head = bytearray()
    for message in _messages(data, check_crcs):
        first = message.offset if not count else first
        if not last < message.offset <= first + _MAX_INT32:
            raise DecodeError(f"offset {message.offset} follows offset {last}")
        last = message.offset
        count += 1
        head.clear()
        head.append(0)  # the record's attributes, all unused
        _put(head, message.timestamp if timestamp is None else timestamp)
        _put(head, last - first)
        key_size = _put_length(head, message.key_at, message.key_end)
        middle = bytearray()
        value_size = _put_length(middle, message.value_at, message.value_end)
        start = bytearray()
        _put(start, len(head) + key_size + len(middle) + value_size + len(_NO_HEADERS))
        start += head
        key_at = size + len(start)
        value_at = key_at + key_size + len(middle)
        fits = (
            (not key_size or key_at <= message.key_at)
            and (not value_size or value_at <= message.value_at)
            and value_at + value_size + len(_NO_HEADERS) <= message.end
        )
        if not fits:
            raise DecodeError(f"the record at offset {last} is longer than its message")
        size = _write(room, size, start)
        size = _move(room, size, data, message.key_at, key_size)
        size = _write(room, size, middle)
        size = _move(room, size, data, message.value_at, value_size)
        size = _write(room, size, _NO_HEADERS)
    return size, count, first, last


def _write(room: memoryview, at: int, some: bytes | bytearray) -> int:
    """Write bytes at `at`; return where they end."""
    end = at + len(some)
    room[at:end] = some
    return end


def _move(room: memoryview, at: int, data: memoryview, start: int, size: int) -> int:
    """Copy a key or value to its place in the record; return where it ends."""
    if not size:  # null or empty: `start` may be -1
        return at
    room[at : at + size] = data[start : start + size]
    return at + size


def _put(out: bytearray, value: int) -> None:
    """Append a signed integer of at most 64 bits as a zigzag varint."""
    left = (value << 1) ^ (value >> 63)
    while left > 127:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)


def _put_length(out: bytearray, start: int, end: int) -> int:
    """Append the length of a key or value, -1 if it is null; return its size."""
    if start == _NULL:
        out.append(1)  # the length -1 in zigzag form
        return 0
    _put(out, end - start)
    return end - start
