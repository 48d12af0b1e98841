"""Check the records of a batch that a client writes, also against the options of their topic. Each
invalid record is reported (KIP-467).

The time of the append is set here, too.
Source: the validator of Apache Kafka 4.3. Like it, these checks decode every record, and do not
check the offsets of records within the batch.
"""

from __future__ import annotations

import attrs

from kafkagroup._record import Record
from kafkagroup.errors import CorruptRecordError, ErrorCode, LimitExceededError
from kafkagroup.testing.embedded.topic_configs import TopicConfigs
from kafkagroup.types import TimestampType, TopicPartition
from kafkagroup.wire.batch_format import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    HEADER,
    LOG_APPEND_TIME,
    UINT32,
)
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.crc import crc32c
from kafkagroup.wire.messages.produce import BatchIndexAndErrorMessage
from kafkagroup.wire.records import RecordBatch

__all__ = ["RecordErrors", "check_records", "has_valid_crc", "with_append_time"]

_NO_TIMESTAMP = -1
_ATTRIBUTES, _MAX_TIMESTAMP = 5, 8
"""Their indexes among the fields of `HEADER`."""


@attrs.frozen
class RecordErrors:
    """The errors of a batch's records."""

    code: ErrorCode = ErrorCode.NONE
    """The error of the batch, which is refused as a whole; NONE if every record is valid."""
    records: tuple[BatchIndexAndErrorMessage, ...] = ()
    """One error for each invalid record; empty if the batch itself is invalid."""

    @property
    def message(self) -> str | None:
        """The error message of the batch, as Kafka words it; None without an invalid record."""
        if not self.records:
            return None
        if self.code is ErrorCode.INVALID_TIMESTAMP:
            return "One or more records have been rejected due to invalid timestamp"
        return (
            f"One or more records have been rejected due to {len(self.records)} record errors in"
            " total, and only showing the first three errors at most:"
            f" {[error.batch_index_error_message for error in self.records[:3]]}"
        )


def check_records(
    batch: RecordBatch, configs: TopicConfigs, tp: TopicPartition, now_ms: int
) -> RecordErrors:
    """Check a batch that a client writes to a partition, and its records. `now_ms`: the wall
    clock's time."""
    # A client's batch begins at offset 0, and has no gaps and no markers. With a producer id it has
    # a sequence number.
    if (
        batch.base_offset
        or batch.is_control
        or batch.count != batch.last_offset + 1
        or (batch.producer_id >= 0 and batch.base_sequence < 0)
    ):
        return RecordErrors(ErrorCode.INVALID_RECORD)
    try:
        records = tuple(batch.records(0, views=True))
    except (CorruptRecordError, LimitExceededError):
        # Kafka has no error code for records that cannot be decompressed.
        is_compressed = batch.codec is not Codec.NONE
        return RecordErrors(
            ErrorCode.UNKNOWN_SERVER_ERROR if is_compressed else ErrorCode.INVALID_RECORD
        )
    check = _RecordCheck(batch, configs, tp, *configs.timestamp_range(now_ms))
    code, errors = ErrorCode.INVALID_RECORD, []
    for index, record in enumerate(records):
        wrong_key, wrong_time = check.wrong_key(record), check.wrong_time(record)
        if wrong_time is not None and wrong_key is None:
            # As in Kafka, one invalid timestamp decides the code of the batch.
            code = ErrorCode.INVALID_TIMESTAMP
        if (problem := wrong_key or wrong_time) is not None:
            errors.append(
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=problem)
            )
    return RecordErrors(code, tuple(errors)) if errors else RecordErrors()


@attrs.frozen
class _RecordCheck:
    """The checks of single records of a batch. They return an error message, or None."""

    batch: RecordBatch
    configs: TopicConfigs
    tp: TopicPartition
    earliest: int | None
    latest: int | None
    """The first and last valid timestamp, in milliseconds; None without a limit."""

    def wrong_key(self, record: Record) -> str | None:
        if record.key is not None or not self.configs.is_compacted:
            return None
        return (
            "Compacted topic cannot accept message without key in topic partition"
            f" {self.tp.topic}-{self.tp.partition}."
        )

    def wrong_time(self, record: Record) -> str | None:
        if not self.configs.has_append_time and record.timestamp != _NO_TIMESTAMP:
            is_too_old = self.earliest is not None and record.timestamp < self.earliest
            is_too_new = self.latest is not None and record.timestamp > self.latest
            if not is_too_old and not is_too_new:
                return None
            return (
                f"Timestamp {record.timestamp} of message with offset {record.offset} is out of"
                f" range. The timestamp should be within [{self.earliest}, {self.latest}]"
            )
        if self.batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return "Producer should not set timestamp type to LogAppendTime."
        return None


def has_valid_crc(batch: RecordBatch) -> bool:
    """Whether the batch's CRC is that of its contents."""
    written: int = UINT32.unpack_from(batch.raw, CRC_OFFSET)[0]
    return crc32c(batch.raw[ATTRIBUTES_OFFSET:]) == written


def with_append_time(batch: bytes | memoryview, now_ms: int) -> bytes:
    """Return a copy of one whole batch whose records have the time of the append."""
    out = bytearray(batch)
    header = list(HEADER.unpack_from(out))
    header[_ATTRIBUTES] |= LOG_APPEND_TIME
    header[_MAX_TIMESTAMP] = now_ms
    HEADER.pack_into(out, 0, *header)
    UINT32.pack_into(out, CRC_OFFSET, crc32c(memoryview(out)[ATTRIBUTES_OFFSET:]))
    return bytes(out)
