"""Committed offsets of all group types.

The names and fields are those of Apache Kafka 4.3's schemas; a test compares them. The number of
each message is the record type. Timestamps are in milliseconds since the epoch.
"""

from uuid import UUID

from kafkagroup.wire.schema import INT32, INT64, NO_ID, STRING, UUID_, field, message


@message(0, "0")
class LegacyOffsetCommitKey:
    group: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


@message(0, "0")
class LegacyOffsetCommitValue:
    offset: int = field(INT64)
    metadata: str = field(STRING)
    commit_timestamp: int = field(INT64)


@message(1, "0")
class OffsetCommitKey:
    group: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


@message(1, "0-4", flexible="4+")
class OffsetCommitValue:
    offset: int = field(INT64)
    leader_epoch: int = field(INT32, "3+", default=-1, ignorable=True)
    metadata: str = field(STRING)
    commit_timestamp: int = field(INT64)
    expire_timestamp: int = field(INT64, "1", default=-1, ignorable=True)
    topic_id: UUID = field(UUID_, "4+", default=NO_ID, tag=0, tagged="4+", ignorable=True)
