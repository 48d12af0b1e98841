"""Record batches, format v2 (magic 2): split, check, read, write. No other format is known here.

The reader trusts nothing: a batch's length, count and CRC-32C are checked before the batch is
handed out, each length inside it before it is used. The loops are plain on purpose: this file is
compiled where a compiler is at hand, and must be fast where none is.

Layout of a batch, big-endian. The length counts what follows it; the CRC covers what follows it:

    0 base offset i64 | 8 length i32 | 12 leader epoch i32 | 16 magic i8 | 17 crc u32
    21 attributes i16 | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64
    43 producer id i64 | 51 producer epoch i16 | 53 base sequence i32 | 57 count i32 | 61 records

Attributes: bits 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 the base timestamp is a
delete horizon (which changes nothing for a reader). Source: KIP-98, KIP-534.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from kafkagroup.errors import (
    CorruptRecordError,
    DecodeError,
    LimitExceededError,
    LocalProtocolError,
)
from kafkagroup.types import Record, TimestampType
from kafkagroup.wire.compression import MAX_BATCH_BYTES, Codec, compress, decompress
from kafkagroup.wire.primitives import UVARINT_1, encode_varint, read_uvarint, read_varint

__all__ = [
    "ControlType",
    "NewRecord",
    "RecordBatch",
    "encode_batch",
    "read_batches",
    "with_base_offset",
    "with_log_append_time",
]

Headers = tuple[tuple[str, bytes | None], ...]

_HEADER = Struct(">qiibIhiqqqhii")
_HEADER_SIZE = 61
_LENGTH_AT = 8
_EPOCH_AT = 12  # where what the length counts begins
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21  # where what the CRC covers begins
_MAX_TIMESTAMP_AT = 35
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT64 = Struct(">q")
_CONTROL_KEY = Struct(">hh")

# Length, attributes, two deltas, two lengths and a header count, of one byte each.
_MIN_RECORD = 7
_MAX_OFFSET = 2**63 - 1

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20

_CODECS = tuple(Codec)
_NO_HEADERS: Headers = ()


class ControlType(IntEnum):
    """What a control batch marks: the end of a transaction, and which."""

    ABORT = 0
    COMMIT = 1


class NewRecord(NamedTuple):
    """A record to write."""

    key: bytes | None
    value: bytes | None
    timestamp: int = -1
    """Milliseconds since the epoch; -1 for none."""
    headers: Headers = ()


class RecordBatch:
    """One batch of a partition: its header, and its records still as bytes.

    It keeps the buffer it was read from alive.
    """

    __slots__ = (
        "_attributes",
        "_max_batch_bytes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "count",
        "hidden",
        "last_offset",
        "leader_epoch",
        "max_timestamp",
        "partition",
        "producer_epoch",
        "producer_id",
        "raw",
        "topic",
    )

    topic: str
    partition: int
    raw: memoryview
    """The whole batch as it came."""
    base_offset: int
    """Offset of the first record when the batch was written; compaction may have removed it."""
    last_offset: int
    """Offset of the last record when the batch was written; compaction may have removed it."""
    leader_epoch: int
    """Epoch of the leader that wrote the batch; -1 when unknown."""
    base_timestamp: int
    """Milliseconds since the epoch; what the records' timestamps are relative to."""
    max_timestamp: int
    """Milliseconds since the epoch; of every record under LOG_APPEND_TIME."""
    producer_id: int
    """-1 unless the producer is idempotent or transactional."""
    producer_epoch: int
    base_sequence: int
    count: int
    """How many records it holds: 0 for one that compaction emptied."""
    hidden: bool
    """Whether no application may see its records: set by read_committed on aborted ones."""
    _attributes: int
    _max_batch_bytes: int

    def __init__(self, raw: memoryview, topic: str, partition: int, max_batch_bytes: int) -> None:
        """Read and check the header of `raw`, one whole batch with magic 2. Not the CRC."""
        self.raw = raw
        self.topic = topic
        self.partition = partition
        self.hidden = False
        self._max_batch_bytes = max_batch_bytes
        (
            self.base_offset,
            _length,
            self.leader_epoch,
            _magic,
            _crc,
            self._attributes,
            last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = _HEADER.unpack_from(raw)
        self.last_offset = self.base_offset + last_offset_delta
        if self.base_offset < 0 or last_offset_delta < 0 or self.last_offset >= _MAX_OFFSET:
            raise self._corrupt(f"last offset delta {last_offset_delta} leads nowhere")
        if not 0 <= self.count <= last_offset_delta + 1:
            raise self._corrupt(f"{self.count} records in {last_offset_delta + 1} offsets")
        if self._attributes & _CODEC_MASK >= len(_CODECS):
            raise self._corrupt(f"unknown codec {self._attributes & _CODEC_MASK}")
        if self.codec is Codec.NONE:
            self._check_count(len(raw) - _HEADER_SIZE)

    @property
    def size(self) -> int:
        """Bytes that the batch takes, header included and still compressed."""
        return len(self.raw)

    @property
    def next_offset(self) -> int:
        """Where reading goes on behind this batch, whatever compaction left of it."""
        return self.last_offset + 1

    @property
    def codec(self) -> Codec:
        """What the records are compressed with."""
        return _CODECS[self._attributes & _CODEC_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        """Who stamped the records."""
        if self._attributes & _LOG_APPEND_TIME:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction; a control batch does too."""
        return bool(self._attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether its records are the broker's markers, which no application sees."""
        return bool(self._attributes & _CONTROL)

    def control_type(self) -> ControlType | None:
        """What this control batch marks. None for any other kind or batch.

        Raises: CorruptRecordError when the key of the marker is too short.
        """
        if not self.is_control:
            return None
        for record in self.records():
            key = record.key
            if not isinstance(key, bytes) or len(key) < _CONTROL_KEY.size:
                raise self._corrupt("the key of a control record is too short")
            _version, kind = _CONTROL_KEY.unpack_from(key)
            return ControlType(kind) if kind in (0, 1) else None
        return None

    def records(self, start_offset: int = 0) -> Iterator[Record]:
        """Decode the records from `start_offset` on; what lies below is skipped in silence.

        Keys and values are bytes or None. A control batch yields its markers: ask `is_control`
        first. What is wrong in the middle is raised there, after the records before it.

        Raises: CorruptRecordError, with the base offset; LimitExceededError when the batch
        inflates beyond `max_batch_bytes`.
        """
        if self.count == 0 or start_offset > self.last_offset:
            return
        buf = self._inflate()
        end = len(buf)
        self._check_count(end)
        topic = self.topic
        partition = self.partition
        leader_epoch = self.leader_epoch
        base_offset = self.base_offset
        max_delta = self.last_offset - base_offset
        timestamp_type = self.timestamp_type
        timestamp = self.max_timestamp
        create_time = timestamp_type is TimestampType.CREATE_TIME
        base_timestamp = self.base_timestamp
        new_record = tuple.__new__  # half the cost of calling Record
        previous = -1
        pos = 0
        try:
            # Every varint is read in place while it has one byte, or the usual two: a call each
            # would double the time. Lengths stay in zigzag form: even is >= 0, 1 is -1 (null).
            for _ in range(self.count):
                n = buf[pos]
                pos += 1
                if n > 127:
                    byte = buf[pos]
                    if byte < 128:
                        n += (byte << 7) - 128
                        pos += 1
                    else:
                        n, pos = read_uvarint(buf, pos - 1)
                record_end = pos + (n >> 1)
                if n & 1 or record_end > end:
                    raise DecodeError("a record's length is beyond the batch")

                pos += 1  # the record's attributes, all unused

                n = buf[pos]
                pos += 1
                if n > 127:
                    byte = buf[pos]
                    if byte < 128:
                        n += (byte << 7) - 128
                        n = (n >> 1) ^ -(n & 1)
                        pos += 1
                    else:
                        n, pos = read_varint(buf, pos - 1)
                else:
                    n = (n >> 1) ^ -(n & 1)
                if create_time:
                    timestamp = base_timestamp + n

                n = buf[pos]
                pos += 1
                if n > 127:
                    byte = buf[pos]
                    if byte < 128:
                        n += (byte << 7) - 128
                        pos += 1
                    else:
                        n, pos = read_uvarint(buf, pos - 1)
                delta = n >> 1
                if n & 1 or delta <= previous or delta > max_delta:
                    raise DecodeError("a record's offset is out of order or outside the batch")
                previous = delta

                n = buf[pos]
                pos += 1
                if n == 1:
                    key = None
                else:
                    if n > 127:
                        n, pos = read_uvarint(buf, pos - 1)
                    start = pos
                    pos += n >> 1
                    if n & 1 or pos > record_end:
                        raise DecodeError("a key's length is beyond its record")
                    key = buf[start:pos]

                n = buf[pos]
                pos += 1
                if n == 1:
                    value = None
                else:
                    if n > 127:
                        byte = buf[pos]
                        if byte < 128:
                            n += (byte << 7) - 128
                            pos += 1
                        else:
                            n, pos = read_uvarint(buf, pos - 1)
                    start = pos
                    pos += n >> 1
                    if n & 1 or pos > record_end:
                        raise DecodeError("a value's length is beyond its record")
                    value = buf[start:pos]

                headers = _NO_HEADERS
                if buf[pos]:
                    headers, pos = _read_headers(buf, pos, record_end)
                else:
                    pos += 1

                if pos != record_end:
                    raise DecodeError("a record does not end where its length says")
                if base_offset + delta >= start_offset:
                    yield new_record(
                        Record,
                        (
                            topic,
                            partition,
                            base_offset + delta,
                            timestamp,
                            timestamp_type,
                            key,
                            value,
                            headers,
                            leader_epoch,
                        ),
                    )
            if pos != end:
                raise DecodeError(f"{end - pos} bytes behind the last record")
        except IndexError:
            raise self._corrupt("input ends inside a record") from None
        except DecodeError as error:
            raise self._corrupt(str(error)) from None

    def _inflate(self) -> bytes:
        try:
            return decompress(self.codec, self.raw[_HEADER_SIZE:], self._max_batch_bytes)
        except LimitExceededError as error:
            raise LimitExceededError(
                f"{self.topic}/{self.partition} at offset {self.base_offset}: {error}"
            ) from None
        except DecodeError as error:
            raise self._corrupt(str(error)) from None

    def _check_count(self, available: int) -> None:
        if self.count * _MIN_RECORD > available:
            raise self._corrupt(f"{self.count} records in {available} bytes")

    def _corrupt(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(
            reason, topic=self.topic, partition=self.partition, offset=self.base_offset
        )


def read_batches(
    data: bytes | memoryview,
    *,
    topic: str,
    partition: int,
    check_crcs: bool = True,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> Iterator[RecordBatch]:
    """Split the records field of a fetch answer or produce request into batches, lazily.

    Costs one pass for the CRCs; records are neither inflated nor decoded. A truncated last batch is
    dropped, as brokers cut where the fetch size ends: `size` summed up tells whether one was. The
    first batch may begin below the offset that was asked for.

    Raises: CorruptRecordError, with the base offset of the batch, after the whole batches before
    it; LimitExceededError for a batch that claims more than `max_batch_bytes`. The topic and
    partition serve these errors and the records.
    """
    view = memoryview(data)
    size = len(view)
    pos = 0
    while size - pos >= _CRC_AT:
        (base_offset,) = _INT64.unpack_from(view, pos)
        (length,) = _INT32.unpack_from(view, pos + _LENGTH_AT)
        # First the magic: it has this place in every format, the other fields have not.
        magic = view[pos + _MAGIC_AT]
        reason = ""
        if magic != 2:
            reason = f"message format v{magic} is not supported, only v2 (Kafka 0.11 and newer)"
        elif length < _HEADER_SIZE - _EPOCH_AT:
            reason = f"batch length {length} is too small"
        if reason:
            raise CorruptRecordError(reason, topic=topic, partition=partition, offset=base_offset)
        # Such a batch never arrives whole: dropped as truncated it would be asked for for ever.
        if length > max_batch_bytes:
            raise LimitExceededError(
                f"{topic}/{partition} at offset {base_offset}: batch of {length} bytes exceeds"
                f" {max_batch_bytes} (max_batch_bytes)"
            )
        end = pos + _EPOCH_AT + length
        if end > size:
            return
        raw = view[pos:end]
        if check_crcs and crc32c(raw[_ATTRIBUTES_AT:]) != _UINT32.unpack_from(raw, _CRC_AT)[0]:
            raise CorruptRecordError(
                "CRC-32C mismatch", topic=topic, partition=partition, offset=base_offset
            )
        yield RecordBatch(raw, topic, partition, max_batch_bytes)
        pos = end


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
    """Encode records, at consecutive offsets from `base_offset` on, as one batch.

    Raises: LocalProtocolError when there are no records: brokers refuse such a batch.
    """
    if not records:
        raise LocalProtocolError("a batch needs a record")
    base_timestamp = max_timestamp = records[0].timestamp
    out = bytearray()
    for delta, (key, value, timestamp, headers) in enumerate(records):
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        body = bytearray(1)  # the record's attributes, all unused
        body += encode_varint(timestamp - base_timestamp)
        body += encode_varint(delta)
        _put_bytes(body, key)
        _put_bytes(body, value)
        body += encode_varint(len(headers))
        for name, content in headers:
            _put_bytes(body, name.encode())
            _put_bytes(body, content)
        out += encode_varint(len(body))
        out += body
    payload = compress(codec, out)
    batch = bytearray(_HEADER_SIZE)
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        _HEADER_SIZE - _EPOCH_AT + len(payload),
        leader_epoch,
        2,
        0,
        codec
        | (_LOG_APPEND_TIME if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (_TRANSACTIONAL if transactional else 0)
        | (_CONTROL if control else 0),
        len(records) - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += payload
    return _seal(batch)


def with_base_offset(batch: bytes | memoryview, base_offset: int, leader_epoch: int) -> bytes:
    """A copy of one whole batch at another offset and epoch, as a broker appends it.

    The CRC stays: it does not cover these two fields, for just this purpose.
    """
    out = bytearray(batch)
    _INT64.pack_into(out, 0, base_offset)
    _INT32.pack_into(out, _EPOCH_AT, leader_epoch)
    return bytes(out)


def with_log_append_time(batch: bytes | memoryview, timestamp: int) -> bytes:
    """A copy of one whole batch stamped by the broker: all its records take this timestamp (ms)."""
    out = bytearray(batch)
    (attributes,) = _INT16.unpack_from(out, _ATTRIBUTES_AT)
    _INT16.pack_into(out, _ATTRIBUTES_AT, attributes | _LOG_APPEND_TIME)
    _INT64.pack_into(out, _MAX_TIMESTAMP_AT, timestamp)
    return _seal(out)


def _seal(batch: bytearray) -> bytes:
    with memoryview(batch) as view:
        crc = crc32c(view[_ATTRIBUTES_AT:])
    _UINT32.pack_into(batch, _CRC_AT, crc)
    return bytes(batch)


def _read_headers(buf: bytes, pos: int, record_end: int) -> tuple[Headers, int]:
    n, pos = read_uvarint(buf, pos)
    count = n >> 1
    # A header is two lengths at least.
    if n & 1 or count * 2 > record_end - pos:
        raise DecodeError("a record's header count is beyond its bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        n, start = read_uvarint(buf, pos)
        pos = start + (n >> 1)
        if n & 1 or pos > record_end:
            raise DecodeError("a header key's length is beyond its record")
        try:
            name = buf[start:pos].decode()
        except UnicodeDecodeError:
            raise DecodeError("a header key is not UTF-8") from None
        n, pos = read_uvarint(buf, pos)
        if n == 1:
            headers.append((name, None))
            continue
        start = pos
        pos += n >> 1
        if n & 1 or pos > record_end:
            raise DecodeError("a header value's length is beyond its record")
        headers.append((name, buf[start:pos]))
    return tuple(headers), pos


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out += UVARINT_1[1]
        return
    n = len(data) << 1
    out += UVARINT_1[n] if n < 128 else encode_varint(len(data))
    out += data
