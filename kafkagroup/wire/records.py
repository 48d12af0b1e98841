"""Read record batches of format v2, which `batch_format` describes. `message_sets` reads the older
formats, and returns their records in the form of v2.

`read_batches` and `RecordReader` trust no input: the length, count and CRC-32C of a batch are
checked before it is returned, and each length inside before it is used. The loops are plain on
purpose: this file is compiled, with the types in `records.pxd`, where a compiler is available, and
must be fast where none is.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from kafkagroup._record import Record
from kafkagroup.errors import CorruptRecordError, DecodeError, LimitExceededError
from kafkagroup.types import Headers, TimestampType
from kafkagroup.wire.batch_format import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL,
    CRC_OFFSET,
    HEADER,
    HEADER_SIZE,
    INT32,
    LAST_OFFSET_DELTA_OFFSET,
    LEADER_EPOCH_OFFSET,
    LOG_APPEND_TIME,
    PREFIX,
    TRANSACTIONAL,
    UINT32,
)
from kafkagroup.wire.compression import MAX_BATCH_BYTES, Codec, decompress
from kafkagroup.wire.crc import crc32c
from kafkagroup.wire.primitives import read_uvarint

try:
    import cython
except ImportError:  # Cython is needed to compile, not to run: users do not have it
    from kafkagroup import _uncompiled as cython

if TYPE_CHECKING:
    from kafkagroup.wire.message_sets import MessageSet, Records

__all__ = ["COMPILED", "ControlType", "RecordBatch", "RecordReader", "read_batches"]

COMPILED: bool = cython.compiled
"""Whether this is the compiled form of the file."""

Buffer = bytes | memoryview

_CONTROL_KEY = Struct(">hh")

_MIN_RECORD = 7
"""Bytes of the smallest record: length, attributes, two deltas, two lengths and a header count."""

_MAX_OFFSET = 2**63 - 1
_MAX_INT64 = 0x7FFFFFFFFFFFFFFF
_MIN_INT64 = -_MAX_INT64 - 1
_NULL = -1
"""The place of a key or value that is null, and of the headers if a record has none."""

_CODECS = tuple(Codec)

# Enum members as globals: access through the class is slow in Python 3.11.
_NO_CODEC = Codec.NONE
_CREATE_TIME = TimestampType.CREATE_TIME
_LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME

_SMALL = {
    Codec.GZIP: (128 * 1024, 256 * 1024),
    Codec.ZSTD: (256 * 1024, 1024 * 1024),
    Codec.LZ4: (1024 * 1024, 1024 * 1024),
    Codec.SNAPPY: (1024 * 1024, 1024 * 1024),
}
"""Codec -> the maximum number of bytes, compressed and decompressed, of a batch that takes a
millisecond or two to decompress: ten times the cost of using a thread. The compressed size alone is
not enough, because 8 KiB may decompress to 250 MiB."""

_SMALL_MESSAGE_SET = 16 * 1024
"""The maximum number of bytes, compressed as well as decompressed, of a compressed message of
formats 0 and 1 that takes as long: to convert the messages inside takes longer than to decompress
them."""

_SKIPPED_AT_ONCE = 2_000
"""The maximum number of records below the start offset that are skipped without a thread: 2 ms, if
not compiled."""

_SKIPPED_PER_SLICE = 200_000
"""The maximum number of records that a thread skips in one call: compiled code blocks all other
threads."""

_MOST_AHEAD = 64
"""The maximum number of records that are created ahead together: a tenth of a millisecond, if not
compiled."""

_MOST_AHEAD_BYTES = 64 * 1024
"""The maximum number of their bytes, estimated from the average size of the batch's records."""

_MAX_CONTROL_BYTES = 1024
"""The maximum number of decompressed bytes of a control batch: it has one small record, which is
decoded in the event loop."""

_NO_HEADERS: Headers = ()


class ControlType(IntEnum):
    """The type of a control batch, which marks how a transaction ended."""

    ABORT = 0
    COMMIT = 1


class RecordBatch:
    """One batch of a partition: its decoded header, and its records as bytes.

    It keeps the buffer alive that it was read from. In formats 0 and 1 a batch is either one
    compressed message, or several messages that are not compressed.
    """

    __slots__ = (
        "_attributes",
        "_max_batch_bytes",
        "_message_set",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "codec",
        "count",
        "is_control",
        "is_hidden",
        "last_offset",
        "leader_epoch",
        "max_timestamp",
        "partition",
        "producer_epoch",
        "producer_id",
        "raw",
        "timestamp_type",
        "topic",
    )

    topic: str
    partition: int
    raw: memoryview
    """The whole batch as received."""
    base_offset: int
    """Offset of the first record when the batch was written; compaction may have removed it. 0 for
    a compressed message of formats 0 and 1, where it is unknown."""
    last_offset: int
    """Offset of the last record when the batch was written; compaction may have removed it."""
    leader_epoch: int
    """Epoch of the leader that wrote the batch; -1 when unknown, as in formats 0 and 1."""
    timestamp_type: TimestampType
    """The origin of the records' timestamps."""
    base_timestamp: int
    """Milliseconds since the epoch; the records' timestamps are relative to it."""
    max_timestamp: int
    """Milliseconds since the epoch; under LOG_APPEND_TIME the timestamp of every record."""
    producer_id: int
    """-1 unless the producer is idempotent or transactional."""
    producer_epoch: int
    base_sequence: int
    count: int
    """How many records it has; 0 if compaction removed all of them. 1 for a compressed message of
    formats 0 and 1, where the number is unknown."""
    codec: Codec
    """The codec that the records are compressed with."""
    is_control: bool
    """Whether its records are the broker's markers, which are not delivered."""
    is_hidden: bool
    """Whether its records are not delivered: under read_committed, those of an aborted
    transaction."""
    _attributes: int
    _max_batch_bytes: int
    _message_set: MessageSet | None
    """The messages, in formats 0 and 1."""

    def __init__(
        self,
        raw: memoryview,
        topic: str,
        partition: int,
        max_batch_bytes: int,
        message_set: MessageSet | None = None,
    ) -> None:
        """Read the header of `raw`, one whole batch with magic 2, and check it, but not the CRC.
        With a `message_set`, which is checked already, take the fields from it."""
        self.raw = raw
        self.topic = topic
        self.partition = partition
        self.is_hidden = False
        self._message_set = message_set
        if message_set is not None:
            self._describe(message_set, max_batch_bytes)
            return
        (
            base_offset,
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
        ) = HEADER.unpack_from(raw)
        self.base_offset = base_offset
        self.is_control = bool(self._attributes & CONTROL)
        self._max_batch_bytes = (
            min(max_batch_bytes, _MAX_CONTROL_BYTES) if self.is_control else max_batch_bytes
        )
        last_offset = base_offset + last_offset_delta
        if base_offset < 0 or last_offset_delta < 0 or last_offset >= _MAX_OFFSET:
            reason = f"last offset delta {last_offset_delta} leads nowhere"
            raise CorruptRecordError(reason, topic=topic, partition=partition, offset=base_offset)
        self.last_offset = last_offset
        if not 0 <= self.count <= last_offset_delta + 1:
            raise self._corrupt(f"{self.count} records in {last_offset_delta + 1} offsets")
        if self._attributes & CODEC_MASK >= len(_CODECS):
            raise self._corrupt(f"unknown codec {self._attributes & CODEC_MASK}")
        stamped = self._attributes & LOG_APPEND_TIME
        self.timestamp_type = _LOG_APPEND_TIME if stamped else _CREATE_TIME
        self.codec = _CODECS[self._attributes & CODEC_MASK]
        if self.codec is _NO_CODEC:
            self._check_count(len(raw) - HEADER_SIZE)

    def _describe(self, message_set: MessageSet, max_batch_bytes: int) -> None:
        """Set the fields of the header, which a message set does not have, from the message set."""
        self._attributes = 0
        self._max_batch_bytes = max_batch_bytes
        self.is_control = False
        self.leader_epoch = self.producer_id = self.producer_epoch = self.base_sequence = -1
        self.base_offset, self.last_offset = message_set.base_offset, message_set.last_offset
        self.base_timestamp, self.max_timestamp = 0, message_set.max_timestamp
        self.count, self.codec = message_set.count, message_set.codec
        self.timestamp_type = message_set.timestamp_type

    def hide(self) -> None:
        """Deliver none of the batch's records: their transaction was aborted."""
        self.is_hidden = True

    @property
    def size(self) -> int:
        """The size of the batch in bytes, with its header, as compressed."""
        return len(self.raw)

    @property
    def next_offset(self) -> int:
        """The offset after this batch; compaction does not change it."""
        return self.last_offset + 1

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction; control batches do, too. In formats 0 and 1 there
        are none."""
        return bool(self._attributes & TRANSACTIONAL)

    def control_type(self) -> ControlType | None:
        """Return the type of a control batch; None if the type is unknown, and for other batches.

        Raises: as iterating `records`; CorruptRecordError also if the marker's key is too short.
        """
        if not self.is_control:
            return None
        for record in self.records():  # only the first: a control batch has one
            key = record.key
            if not isinstance(key, bytes) or len(key) < _CONTROL_KEY.size:
                raise self._corrupt("the key of a control record is too short")
            _version, kind = _CONTROL_KEY.unpack_from(key)
            return ControlType(kind) if kind in (0, 1) else None
        return None

    def records(self, start_offset: int = 0, *, views: bool = False) -> RecordReader:
        """Return an iterator that decodes the records from `start_offset` on; it skips those below.

        Keys and values are bytes or None; with `views` they are read-only memoryviews of the batch,
        which keep the batch and its response alive. A control batch yields its markers: check
        `is_control` first. Damage inside the batch raises after the records before it, and ends
        the iteration.

        Raises, only during iteration: CorruptRecordError, with the base offset; LimitExceededError
        if the batch decompresses to more than `max_batch_bytes`.
        """
        return RecordReader(self, start_offset, views)

    def _inflate(self, most: int = _MAX_OFFSET) -> Buffer | Records:
        """Return the decompressed records; for a message set, as `Records`. For an uncompressed
        batch this is a view if this file is compiled: only then are views fast. `most`: a limit of
        bytes below `_max_batch_bytes`; the default is larger than any.

        Raises: LimitExceededError, CorruptRecordError.
        """
        data = self.raw[HEADER_SIZE:]
        try:
            if self._message_set is not None:
                return self._message_set.records(min(most, self._max_batch_bytes))
            if COMPILED and self.codec is _NO_CODEC:
                return data
            return decompress(self.codec, data, min(most, self._max_batch_bytes))
        except LimitExceededError as error:
            raise LimitExceededError(
                f"{self.topic}/{self.partition} at offset {self._known_offset()}: {error}"
            ) from None
        except DecodeError as error:
            raise self._corrupt(str(error)) from None

    def _check_count(self, available: int) -> None:
        """Raise CorruptRecordError if the records cannot fit into `available` bytes."""
        if self.count * _MIN_RECORD > available:
            raise self._corrupt(f"{self.count} records in {available} bytes")

    def _corrupt(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(
            reason,
            topic=self.topic,
            partition=self.partition,
            offset=self._known_offset(),
            next_offset=self.next_offset,
        )

    def _known_offset(self) -> int:
        """Return the offset for errors: the base offset; of a message set the last one, as the base
        offset may be unknown."""
        return self.base_offset if self._message_set is None else self.last_offset


class RecordReader:
    """An iterator over the records of one batch, which creates them one at a time.

    It parses the bytes once, and stores the places of the current record's parts. `next` creates
    a `Record` of them, `skip` does not. `arrow.ColumnBuilder` reads the places directly.
    """

    __slots__ = (
        "_ahead",
        "_ahead_count",
        "_ahead_from",
        "_allowed",
        "_base_offset",
        "_base_timestamp",
        "_batch",
        "_buf",
        "_create_time",
        "_damage",
        "_data",
        "_end",
        "_gapless",
        "_headers_at",
        "_key_at",
        "_key_end",
        "_leader_epoch",
        "_left",
        "_max_delta",
        "_offset",
        "_partition",
        "_pos",
        "_previous",
        "_start_offset",
        "_timestamp",
        "_timestamp_type",
        "_topic",
        "_value_at",
        "_value_end",
        "_views",
    )

    def __init__(self, batch: RecordBatch, start_offset: int, views: bool) -> None:
        self._batch = batch
        self._data: Buffer | None = None
        """The decompressed records; None before. `_buf` has the same bytes, for parsing."""
        self._ahead: list[Record] | None = None
        """Uncompiled: the records that were created ahead and not returned yet, the next one
        last."""
        self._ahead_count = 0
        """How many records were created ahead, including those that were returned since."""
        self._ahead_from = (0, -1, 0, -1)
        """`_left`, `_previous`, `_pos` and `_offset` before those records were created."""
        self._damage: DecodeError | None = None
        """Why the batch cannot be decompressed: the next read raises it."""
        self._views = views
        """Whether keys and values are views of the batch."""
        self._start_offset = start_offset
        # By `self._batch`, not `batch`: the attribute has a C type, so that its fields are read in
        # C.
        self._topic = self._batch.topic
        self._partition = self._batch.partition
        self._leader_epoch = self._batch.leader_epoch
        self._base_offset = self._batch.base_offset
        self._max_delta = self._batch.last_offset - self._batch.base_offset
        # If no offset is missing, the offsets are counted and the records' deltas are ignored, as
        # brokers do when they assign offsets.
        self._gapless = self._batch.count == self._max_delta + 1
        self._timestamp_type = self._batch.timestamp_type
        self._create_time = self._timestamp_type is _CREATE_TIME
        """Whether each record has its own timestamp; if not, all have `max_timestamp`."""
        self._base_timestamp = self._batch.base_timestamp
        self._allowed = _MAX_INT64
        """How many more records may be returned (`stop_after`)."""
        self._left = self._batch.count if start_offset <= self._batch.last_offset else 0
        """How many records of the batch were not parsed yet."""
        self._previous = -1
        """The offset delta of the record that was parsed last."""
        self._pos = self._end = 0
        """Where the next record begins, and where the data ends."""
        self._offset = -1
        """The offset of the record that was parsed last."""
        self._timestamp = self._batch.max_timestamp
        self._key_at = self._key_end = self._value_at = self._value_end = self._headers_at = 0

    @property
    def offset(self) -> int:
        """Offset of the last record that was returned or skipped; -1 before the first."""
        self._put_back()
        return self._offset

    def __iter__(self) -> RecordReader:
        return self

    def __next__(self) -> Record:
        record = self.next()
        if record is None:
            raise StopIteration
        return record

    def next(self) -> Record | None:
        """Return the next record; None at the end. Raises: as `RecordBatch.records`."""
        if not cython.compiled:
            # `take`, by which they are created, counts them in `_allowed`.
            ahead = self._ahead or self._create_ahead()
            return ahead.pop() if ahead else None
        if not self._allowed:
            return None
        self._allowed -= 1
        return self._create() if self._step() else None

    def take(self, most: int) -> list[Record]:
        """Return up to `most` of the next records: fewer only at the end, and before damage, which
        the next call raises. Raises: as `RecordBatch.records`."""
        self._put_back()
        most = min(most, self._allowed)
        if not most or not self._step():
            return []
        made = [self._create()]
        left, previous, pos, offset = self._left, self._previous, self._pos, self._offset
        count = min(most - 1, left)
        try:
            self._parse(self._buf, count, made)
        except (IndexError, DecodeError):
            # The position is inside the damaged record: go back, and parse the records before it
            # again, which are in `made`.
            self._previous, self._pos, self._offset = previous, pos, offset
            count = len(made) - 1
            self._parse(self._buf, count, None)
        self._left = left - count
        self._allowed -= len(made)
        return made

    def _create_ahead(self) -> list[Record]:
        """Create the next records together, and return them as `_ahead`. Used only if this file is
        not compiled: a record then takes a fifth less time than one that is created alone."""
        if self._left and self._data is None:
            self._open()
        self._ahead_from = (self._left, self._previous, self._pos, self._offset)
        # How many records of average size fit into the limit.
        fitting = _MOST_AHEAD_BYTES * self._left // max(self._end - self._pos, 1)
        ahead = self.take(max(min(fitting, _MOST_AHEAD), 1))
        ahead.reverse()
        self._ahead, self._ahead_count = ahead, len(ahead)
        return ahead

    def _put_back(self) -> None:
        """Discard the records that were created ahead: go back to the end of the last record that
        was returned."""
        if not self._ahead:
            return
        returned = self._ahead_count - len(self._ahead)
        self._allowed += len(self._ahead)
        self._ahead = None
        self._left, self._previous, self._pos, self._offset = self._ahead_from
        for _ in range(returned):
            self._step()

    def skip(self, most: int) -> int:
        """Skip up to `most` records, with the checks of `next`; return how many were skipped.

        Damage after the first of them is raised by the next call.
        """
        self._put_back()
        skipped = 0
        while skipped < most:
            left, previous, pos, offset = self._left, self._previous, self._pos, self._offset
            try:
                if not self._step():
                    break
            except DecodeError:
                if not skipped:
                    raise
                self._left, self._previous, self._pos, self._offset = left, previous, pos, offset
                break
            skipped += 1
        return skipped

    def prepare_at_once(self) -> bool:
        """Decompress the batch and skip the records below the start offset, if that takes only a
        millisecond or two; return whether both are done. If not, `prepare` does the rest."""
        if not self._left:
            return True
        if self._data is None and not self._inflate_small():
            return False
        return self._skip_to_start(_SKIPPED_AT_ONCE)

    def prepare(self) -> bool:
        """Decompress the batch and skip records below the start offset, in any thread. A call skips
        up to `_SKIPPED_PER_SLICE` records; return whether that was all of them. Damage is raised
        when the first record is read."""
        if self._data is None and self._damage is None:
            self._inflate()
        return self._skip_to_start(_SKIPPED_PER_SLICE)

    def _inflate_small(self) -> bool:
        """Decompress the batch if it is small (`_SMALL`), or not compressed; return whether it was.
        Damage is kept for the next read."""
        codec = self._batch.codec
        if codec is not _NO_CODEC:
            most_compressed, most = _SMALL[codec]
            if self._batch._message_set is not None:
                most_compressed = most = _SMALL_MESSAGE_SET
            if self._batch.size > most_compressed:
                return False
            try:
                self._set_data(self._batch._inflate(most))
            except LimitExceededError:
                return False
            except DecodeError as error:
                self._damage = error
            return True
        self._inflate()
        return True

    def _inflate(self) -> None:
        try:
            self._set_data(self._batch._inflate())
        except DecodeError as error:
            self._damage = error

    def _set_data(self, found: Buffer | Records) -> None:
        """Begin to read `found`, which `RecordBatch._inflate` returned. Raises: CorruptRecordError
        if it is too short for the number of records."""
        if self._batch._message_set is None:
            data = cast(Buffer, found)
            self._batch._check_count(len(data))
        else:
            data, self._left, self._base_offset = cast("Records", found)
            self._max_delta = self._batch.last_offset - self._base_offset
            self._base_timestamp, self._create_time, self._gapless = 0, True, False
        self._buf = data
        self._end = len(data)
        # A response is a bytearray: a writable view could change other records of the batch.
        self._data = memoryview(data).toreadonly() if self._views else data

    def _skip_to_start(self, most: int) -> bool:
        """Skip up to `most` records below the start offset; return whether there are no more of
        them. Damage ends this, and is raised by `next`."""
        if self._data is None:  # damaged
            return True
        for _ in range(most):
            if not self._left:
                return True
            left, previous, pos, offset = self._left, self._previous, self._pos, self._offset
            self._left -= 1
            try:
                self._parse(self._buf, 1, None)
                if self._offset < self._start_offset:
                    continue
            except (IndexError, DecodeError):
                pass  # `next` parses the record again, and raises the error
            # Go back to the beginning of this record.
            self._left, self._previous, self._pos, self._offset = left, previous, pos, offset
            return True
        return False

    def unread_size(self) -> int:
        """Return the size of the records that are not read yet, decompressed. Raises: as `next`."""
        self._put_back()
        if self._left and self._data is None:
            self._open()
        return self._end - self._pos

    def fork(self) -> RecordReader:
        """Return another reader of the same batch, at the same place, which shares the decompressed
        data."""
        self._put_back()
        if self._left and self._data is None:
            self._open()
        other = RecordReader(self._batch, self._start_offset, self._views)
        if self._data is not None:
            other._data = self._data
            other._buf = self._buf
            other._base_offset, other._max_delta = self._base_offset, self._max_delta
            other._create_time, other._gapless = self._create_time, self._gapless
        other._end, other._allowed = self._end, self._allowed
        other._left, other._previous = self._left, self._previous
        other._pos, other._offset = self._pos, self._offset
        return other

    def stop_after(self, most: int) -> None:
        """End after `most` records. The caller has skipped them with another reader before, which
        has checked them."""
        self._allowed = most

    def _open(self) -> None:
        """Decompress the batch. Raises: as `next`."""
        if self._damage is None:
            self._inflate()
        if self._damage is not None:
            self._left = 0
            raise self._damage

    def _step(self) -> bool:
        """Parse the next record at or above the start offset; return whether there is one."""
        if not self._left:
            return self._check_end()
        if self._data is None:
            self._open()
        try:
            while self._left:
                self._left -= 1
                self._parse(self._buf, 1, None)
                if self._offset >= self._start_offset:
                    return True
            return self._check_end()
        except IndexError:
            self._stop()
            raise self._batch._corrupt("input ends inside a record") from None
        except CorruptRecordError:
            raise  # by `_check_end`
        except DecodeError as error:
            self._stop()
            raise self._batch._corrupt(str(error)) from None

    def _check_end(self) -> bool:
        """Return False: there are no more records. Raises: CorruptRecordError if bytes follow the
        last one."""
        extra = self._end - self._pos
        if extra:
            self._stop()
            raise self._batch._corrupt(f"{extra} bytes behind the last record")
        return False

    def _stop(self) -> None:
        """End the reading after damage: later calls return no record."""
        self._left = 0
        self._pos = self._end

    def _parse(self, buf: Buffer, count: int, made: list[Record] | None) -> None:
        """Check each length in the next `count` records against the available bytes, and advance
        past them. Store the places of the last one's parts; append all of them to `made`, if given.
        After an error the position is inside the damaged record, and `made` has those before."""
        # A varint of one byte, or the usual two, is read in place: a call for each would double the
        # time if this file is not compiled. Lengths stay in zigzag form: even is >= 0, odd is
        # negative. The length of null is -1, and brokers accept any other negative length for it.
        pos = self._pos
        end = self._end
        previous = self._previous
        timestamp = self._timestamp
        key_at = key_end = value_at = value_end = headers_at = _NULL
        if made is not None:
            # Parts of bytes are bytes, parts of a view are views.
            whole = cast(Buffer, self._data)
            data = whole if self._views else bytes(whole)
        while count:
            count -= 1
            n = buf[pos]
            pos += 1
            if n > 127:
                byte = buf[pos]
                if byte < 128:
                    n += (byte << 7) - 128
                    pos += 1
                else:
                    self._pos = pos - 1
                    n = self._read_varint(buf, 32)
                    pos = self._pos
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
                    pos += 1
                else:
                    self._pos = pos - 1
                    n = self._read_varint(buf, 64)
                    pos = self._pos
            if self._create_time:
                delta = (n >> 1) ^ -(n & 1)
                base_timestamp = self._base_timestamp
                # A sum beyond 64 bits wraps around, as in the broker that accepted it.
                if delta > 0 and base_timestamp > _MAX_INT64 - delta:
                    timestamp = base_timestamp - _MAX_INT64 - 1 + (delta - _MAX_INT64 - 1)
                elif delta < 0 and base_timestamp < _MIN_INT64 - delta:
                    timestamp = base_timestamp + _MAX_INT64 + 1 + (delta + _MAX_INT64 + 1)
                else:
                    timestamp = base_timestamp + delta

            n = buf[pos]
            pos += 1
            if n > 127:
                byte = buf[pos]
                if byte < 128:
                    n += (byte << 7) - 128
                    pos += 1
                else:
                    self._pos = pos - 1
                    n = self._read_varint(buf, 32)
                    pos = self._pos
            delta = n >> 1
            if self._gapless:
                delta = previous + 1
            elif n & 1 or delta <= previous or delta > self._max_delta:
                raise DecodeError("a record's offset is out of order or outside the batch")
            previous = delta

            n = buf[pos]
            pos += 1
            if n == 1:
                key_at = _NULL
            else:
                if n > 127:
                    self._pos = pos - 1
                    n = self._read_varint(buf, 32)
                    pos = self._pos
                if n & 1:
                    key_at = _NULL
                else:
                    key_at = pos
                    pos += n >> 1
                    if pos > record_end:
                        raise DecodeError("a key's length is beyond its record")
                    key_end = pos

            n = buf[pos]
            pos += 1
            if n == 1:
                value_at = _NULL
            else:
                if n > 127:
                    byte = buf[pos]
                    if byte < 128:
                        n += (byte << 7) - 128
                        pos += 1
                    else:
                        self._pos = pos - 1
                        n = self._read_varint(buf, 32)
                        pos = self._pos
                if n & 1:
                    value_at = _NULL
                else:
                    value_at = pos
                    pos += n >> 1
                    if pos > record_end:
                        raise DecodeError("a value's length is beyond its record")
                    value_end = pos

            if buf[pos]:
                self._pos = headers_at = pos
                self._check_headers(buf, record_end)
                pos = self._pos
            else:
                headers_at = _NULL
                pos += 1
            if pos != record_end:
                raise DecodeError("a record does not end where its length says")
            if made is not None:
                headers: Any = (
                    _NO_HEADERS if headers_at < 0 else _RawHeaders(_cut(buf, headers_at, pos))
                )
                made.append(
                    Record(
                        self._topic,
                        self._partition,
                        self._base_offset + previous,
                        timestamp,
                        self._timestamp_type,
                        None if key_at < 0 else data[key_at:key_end],
                        None if value_at < 0 else data[value_at:value_end],
                        headers,
                        self._leader_epoch,
                    )
                )
        self._pos = pos
        self._previous = previous
        self._offset = self._base_offset + previous
        self._timestamp = timestamp
        self._key_at, self._key_end = key_at, key_end
        self._value_at, self._value_end = value_at, value_end
        self._headers_at = headers_at

    def _check_headers(self, buf: Buffer, record_end: int) -> None:
        """Check the headers of a record, and advance past them. `_RawHeaders` decodes them."""
        n = self._read_varint(buf, 32)
        count = n >> 1
        # A header has at least two lengths, of one byte each.
        if n & 1 or count * 2 > record_end - self._pos:
            raise DecodeError("a record's header count is beyond its bytes")
        for _ in range(count):
            n = self._read_varint(buf, 32)
            start = self._pos
            pos = start + (n >> 1)
            if n & 1 or pos > record_end:
                raise DecodeError("a header key's length is beyond its record")
            self._pos = pos
            n = self._read_varint(buf, 32)
            if not n & 1:
                self._pos += n >> 1
                if self._pos > record_end:
                    raise DecodeError("a header value's length is beyond its record")

    def _read_varint(self, buf: Buffer, bits: int) -> int:
        """Read a varint of at most 32 or 64 bits at the position; return it in zigzag form."""
        value = shift = 0
        pos = self._pos
        end = self._end
        while pos < end:
            byte = buf[pos]
            pos += 1
            if shift == 63 and 1 < byte < 128:
                raise DecodeError("varint exceeds 64 bits")
            value |= (byte & 0x7F) << shift
            if byte < 128:
                if bits == 32 and value > 0xFFFFFFFF:
                    raise DecodeError("unsigned varint exceeds 32 bits")
                self._pos = pos
                return value
            shift += 7
            if bits == 32 and shift > 28:
                raise DecodeError("unsigned varint is longer than 5 bytes")
            if shift > 63:
                raise DecodeError("varint is longer than 10 bytes")
        raise DecodeError(f"input ends inside {'an unsigned' if bits == 32 else 'a'} varint")

    def _create(self) -> Record:
        """Create the record that was parsed last."""
        record = Record.__new__(Record)
        record._topic = self._topic
        record._partition = self._partition
        record._offset = self._offset
        record._timestamp = self._timestamp
        record._timestamp_type = self._timestamp_type
        record._leader_epoch = self._leader_epoch
        key_at, value_at, headers_at = self._key_at, self._value_at, self._headers_at
        record._key = None if key_at < 0 else self._part(key_at, self._key_end)
        record._value = None if value_at < 0 else self._part(value_at, self._value_end)
        record._headers = (
            _NO_HEADERS if headers_at < 0 else _RawHeaders(_cut(self._buf, headers_at, self._pos))
        )
        return record

    def _part(self, start: int, end: int) -> Buffer:
        if self._views:
            return cast(memoryview, self._data)[start:end]
        return _cut(self._buf, start, end)


class _RawHeaders:
    """The encoded headers of a record, whose lengths are checked. `Record.headers` decodes them on
    first access."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> Headers:
        buf = self._data
        n, pos = read_uvarint(buf, 0)
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(n >> 1):
            n, start = read_uvarint(buf, pos)
            pos = start + (n >> 1)
            name = buf[start:pos].decode(errors="surrogateescape")
            n, pos = read_uvarint(buf, pos)
            if n & 1:
                headers.append((name, None))
                continue
            start = pos
            pos += n >> 1
            headers.append((name, buf[start:pos]))
        return tuple(headers)


def _cut(buf: Buffer, start: int, end: int) -> bytes:
    """Return a copy of `buf[start:end]`; the caller has checked the bounds."""
    if cython.compiled:
        if start == end:
            return b""
        first = cython.cast(cython.p_char, cython.address(buf[start]))
        made: bytes = first[: end - start]
        return made
    return bytes(buf[start:end])


def read_batches(
    data: bytes | memoryview,
    *,
    topic: str,
    partition: int,
    check_crcs: bool = True,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> Iterator[RecordBatch]:
    """Split the records field of a fetch response or produce request into batches, lazily.

    One pass computes the CRCs; records are neither decompressed nor decoded. A truncated last batch
    is dropped, because brokers truncate at the fetch size: if that happened, the batches' `size`
    values add up to less than the data. The first batch may begin below the requested offset.

    Raises: CorruptRecordError, with the base offset of the batch, after the whole batches before
    it; LimitExceededError for a batch that claims more than `max_batch_bytes`. The errors and the
    records name the topic and the partition.
    """
    view = memoryview(data)
    size = len(view)
    pos = 0
    while size - pos >= PREFIX.size:
        base_offset, length, magic = PREFIX.unpack_from(view, pos)
        if magic < 2:
            found = _read_message_set(view[pos:], topic, partition, check_crcs, max_batch_bytes)
            if found is None:
                return
            yield RecordBatch(found.raw, topic, partition, max_batch_bytes, found)
            pos += len(found.raw)
            continue
        reason = ""
        if magic > 2:
            reason = f"message format v{magic} is not supported, only v0 to v2"
        elif length < HEADER_SIZE - LEADER_EPOCH_OFFSET:
            reason = f"batch length {length} is too small"
        if reason:
            raise CorruptRecordError(reason, topic=topic, partition=partition, offset=base_offset)
        # Such a batch may be larger than any response. Without the error it would be dropped as
        # truncated, and fetched endlessly.
        if length > max_batch_bytes:
            raise LimitExceededError(
                f"{topic}/{partition} at offset {base_offset}: batch of {length} bytes exceeds"
                f" {max_batch_bytes} (max_batch_bytes)"
            )
        end = pos + LEADER_EPOCH_OFFSET + length
        if end > size:
            return
        raw = view[pos:end]
        if check_crcs and crc32c(raw[ATTRIBUTES_OFFSET:]) != UINT32.unpack_from(raw, CRC_OFFSET)[0]:
            (delta,) = INT32.unpack_from(raw, LAST_OFFSET_DELTA_OFFSET)
            raise CorruptRecordError(
                "CRC-32C mismatch",
                topic=topic,
                partition=partition,
                offset=base_offset,
                # Unknown (-1) if one of the two is negative, and so damaged.
                next_offset=base_offset + delta + 1 if delta >= 0 <= base_offset else -1,
            )
        yield RecordBatch(raw, topic, partition, max_batch_bytes)
        pos = end


def _read_message_set(
    data: memoryview, topic: str, partition: int, check_crcs: bool, max_batch_bytes: int
) -> MessageSet | None:
    from kafkagroup.wire.message_sets import read_message_set  # few logs have the old formats

    return read_message_set(
        data,
        topic=topic,
        partition=partition,
        check_crcs=check_crcs,
        max_batch_bytes=max_batch_bytes,
    )
