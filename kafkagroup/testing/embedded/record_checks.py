"""What the options of a topic ask of the records of a batch (KIP-467), and the time of the append.

Records are decoded only for a topic whose options concern them.
Source: the validator of Apache Kafka 4.3.
"""

from __future__ import annotations

import attrs

from kafkagroup.errors import CorruptRecordError, ErrorCode
from kafkagroup.testing.embedded.topic_configs import TopicConfigs
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_format import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    HEADER,
    LOG_APPEND_TIME,
    UINT32,
)
from kafkagroup.wire.crc import crc32c
from kafkagroup.wire.messages.produce import BatchIndexAndErrorMessage
from kafkagroup.wire.records import RecordBatch

__all__ = ["RecordErrors", "check_records", "with_append_time"]

_ATTRIBUTES, _MAX_TIMESTAMP = 5, 8
"""Their places among the fields of a batch's header."""


@attrs.frozen
class RecordErrors:
    """The errors of a batch's records."""

    code: ErrorCode = ErrorCode.NONE
    """Of the batch, which is refused as a whole; NONE if every record is valid."""
    records: tuple[BatchIndexAndErrorMessage, ...] = ()

    @property
    def message(self) -> str | None:
        """The error message of the batch."""
        if not self.records:
            return None
        return (
            f"One or more records have been rejected due to {len(self.records)} record errors in"
            " total, and only showing the first three errors at most:"
            f" {[error.batch_index_error_message for error in self.records[:3]]}"
        )


def check_records(
    batch: RecordBatch, configs: TopicConfigs, tp: TopicPartition, now_ms: int
) -> RecordErrors:
    """Check the records of a batch that a client writes to a partition."""
    earliest, latest = configs.timestamp_range(now_ms)
    if not configs.is_compacted and earliest is None and latest is None:
        return RecordErrors()
    try:
        records = tuple(batch.records(0))
    except CorruptRecordError:
        return RecordErrors(ErrorCode.CORRUPT_MESSAGE)
    code, errors = ErrorCode.INVALID_RECORD, []
    for index, record in enumerate(records):
        problem = None
        if configs.is_compacted and record.key is None:
            problem = (
                "Compacted topic cannot accept message without key in topic partition"
                f" {tp.topic}-{tp.partition}."
            )
        elif record.timestamp >= 0 and (
            (earliest is not None and record.timestamp < earliest)
            or (latest is not None and record.timestamp > latest)
        ):
            code = ErrorCode.INVALID_TIMESTAMP
            problem = (
                f"Timestamp {record.timestamp} of message with offset {record.offset} is out of"
                f" range. The timestamp should be within [{earliest}, {latest}]"
            )
        if problem is not None:
            errors.append(
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=problem)
            )
    return RecordErrors(code, tuple(errors)) if errors else RecordErrors()


def with_append_time(batch: bytes | memoryview, now_ms: int) -> bytes:
    """Return a copy of one whole batch whose records have the time of the append."""
    out = bytearray(batch)
    header = list(HEADER.unpack_from(out))
    header[_ATTRIBUTES] |= LOG_APPEND_TIME
    header[_MAX_TIMESTAMP] = now_ms
    HEADER.pack_into(out, 0, *header)
    UINT32.pack_into(out, CRC_OFFSET, crc32c(memoryview(out)[ATTRIBUTES_OFFSET:]))
    return bytes(out)
