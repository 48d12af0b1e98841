"""Write record batches of format v2, as a producer sends them and a broker appends them.

Compiled where possible, with the types in `batch_writing.pxd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkagroup.errors import LocalProtocolError
from kafkagroup.types import MAX_INT64, Headers, TimestampType
from kafkagroup.wire.batch_format import (
    ATTRIBUTES_OFFSET,
    CONTROL,
    CRC_OFFSET,
    HEADER,
    HEADER_SIZE,
    INT32,
    INT64,
    LEADER_EPOCH_OFFSET,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    UINT32,
)
from kafkagroup.wire.compression import Codec, compress
from kafkagroup.wire.crc import crc32c

try:
    import cython
except ImportError:  # Cython is needed to compile, not to run: users do not have it
    from kafkagroup import _uncompiled as cython

__all__ = [
    "EncodedRecords",
    "NewRecord",
    "encode_batch",
    "put_record",
    "seal",
    "varint_size",
    "with_base_offset",
]

_NO_HEADERS = b"\x00"
"""The encoded headers of a record that has none: the count 0."""


class NewRecord(NamedTuple):
    """A record to encode."""

    key: bytes | None
    value: bytes | None
    timestamp: int = -1
    """Milliseconds since the epoch; -1 for none."""
    headers: Headers = ()


class EncodedRecords(NamedTuple):
    """The records of one batch, encoded but not compressed."""

    data: bytearray
    """`HEADER_SIZE` unused bytes, then the records. `seal` can write the header into the unused
    bytes."""
    record_count: int
    base_timestamp: int
    """That of the first record, in milliseconds since the epoch."""
    max_timestamp: int


def encode_batch(
    records: Sequence[NewRecord],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Encode records as one batch, with consecutive offsets from `base_offset` on. A leader epoch,
    producer id, producer epoch or base sequence of -1 means none.

    Raises: LocalProtocolError if there are no records, as brokers refuse such a batch, or if a
    timestamp, or its difference from the first one, does not fit 64 bits.
    """
    if not records:
        raise LocalProtocolError("a batch needs a record")
    timestamps = [record.timestamp for record in records]
    base_timestamp, least, max_timestamp = timestamps[0], min(timestamps), max(timestamps)
    # The batch stores the difference of each timestamp to the first one.
    for number in (least, max_timestamp, least - base_timestamp, max_timestamp - base_timestamp):
        if not -MAX_INT64 - 1 <= number <= MAX_INT64:
            raise LocalProtocolError(
                f"the timestamps {least} to {max_timestamp} do not fit the 64 bits of one batch"
            )
    out = bytearray()
    for delta, (key, value, timestamp, headers) in enumerate(records):
        put_record(out, delta, timestamp - base_timestamp, key, value, headers)
    batch = bytearray(HEADER_SIZE)
    batch += compress(codec, out)
    seal(
        batch,
        codec
        | (LOG_APPEND_TIME if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0),
        len(records),
        base_timestamp,
        max_timestamp,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return bytes(batch)


def put_record(
    out: bytearray,
    delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> None:
    """Append a record to `out`. `delta`: its offset minus that of the first record of the batch;
    `timestamp_delta`: the same for the timestamp."""
    # The record's size comes first, and is not known before the headers are encoded.
    encoded_headers = _encode_headers(headers) if headers else _NO_HEADERS
    size = 1 + varint_size(timestamp_delta) + varint_size(delta) + len(encoded_headers)
    size += _nullable_size(key) + _nullable_size(value)
    at = _put(out, _extend(out, varint_size(size) + size), size)
    out[at] = 0  # the record's attributes, all unused
    at = _put(out, at + 1, timestamp_delta)
    at = _put(out, at, delta)
    at = _put_nullable(out, at, key)
    at = _put_nullable(out, at, value)
    _put_bytes(out, at, encoded_headers)


def _encode_headers(headers: Headers) -> bytes:
    out = bytearray()
    _put(out, _extend(out, varint_size(len(headers))), len(headers))
    for name, content in headers:
        for part in (name.encode(errors="surrogateescape"), content):
            _put_nullable(out, _extend(out, _nullable_size(part)), part)
    return bytes(out)


def seal(
    batch: bytearray,
    attributes: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> None:
    """Write the header of a batch into its first `HEADER_SIZE` bytes, which its `count` records
    follow."""
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LEADER_EPOCH_OFFSET,
        leader_epoch,
        2,  # magic
        0,  # the CRC, which is written below
        attributes,
        count - 1,  # the last offset delta
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    UINT32.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]))


def with_base_offset(batch: bytes | memoryview, base_offset: int, leader_epoch: int) -> bytes:
    """Return a copy of one whole batch with another offset and epoch, as a broker appends it.

    The CRC stays valid: it does not cover these two fields, so that a broker can set them.
    """
    out = bytearray(batch)
    INT64.pack_into(out, 0, base_offset)
    INT32.pack_into(out, LEADER_EPOCH_OFFSET, leader_epoch)
    return bytes(out)


def varint_size(value: int) -> int:
    """Return how many bytes a signed integer of at most 64 bits takes as a zigzag varint."""
    left = (value << 1) ^ (value >> 63)
    size = 1
    while left > 127:
        left >>= 7
        size += 1
    return size


def _nullable_size(data: bytes | None) -> int:
    """Return how many bytes `_put_nullable` writes."""
    return 1 if data is None else varint_size(len(data)) + len(data)


def _extend(out: bytearray, size: int) -> int:
    """Append `size` bytes, whose content is undefined; return where they begin."""
    at = len(out)
    if cython.compiled:
        PyByteArray_Resize(out, at + size)  # type: ignore[name-defined]  # noqa: F821
    else:
        out += bytes(size)
    return at


# These write at a position, and return the next one: to append each part by itself takes twice as
# long where the module is compiled.


def _put(out: bytearray, at: int, value: int) -> int:
    """Write a signed integer of at most 64 bits as a zigzag varint."""
    left = (value << 1) ^ (value >> 63)
    while left > 127:
        out[at] = left & 0x7F | 0x80
        left >>= 7
        at += 1
    out[at] = left
    return at + 1


def _put_nullable(out: bytearray, at: int, data: bytes | None) -> int:
    if data is None:
        out[at] = 1  # the length -1 in zigzag form
        return at + 1
    return _put_bytes(out, _put(out, at, len(data)), data)


def _put_bytes(out: bytearray, at: int, data: bytes) -> int:
    end = at + len(data)
    if cython.compiled and type(data) is bytes:
        copy_into(out, at, data)  # type: ignore[name-defined]  # noqa: F821
    else:
        out[at:end] = data
    return end
