"""Delete committed offsets (KIP-496).

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import INT16, INT32, STRING, Request, array, field, message, struct

__all__ = [
    "OffsetDeleteRequest",
    "OffsetDeleteRequestPartition",
    "OffsetDeleteRequestTopic",
    "OffsetDeleteResponse",
    "OffsetDeleteResponsePartition",
    "OffsetDeleteResponseTopic",
]


@struct
class OffsetDeleteResponsePartition:
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class OffsetDeleteResponseTopic:
    name: str = field(STRING)
    partitions: tuple[OffsetDeleteResponsePartition, ...] = field(
        array(OffsetDeleteResponsePartition)
    )


@message(47, "0")
class OffsetDeleteResponse:
    error_code: int = field(INT16)
    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: tuple[OffsetDeleteResponseTopic, ...] = field(array(OffsetDeleteResponseTopic))


@struct
class OffsetDeleteRequestPartition:
    partition_index: int = field(INT32)


@struct
class OffsetDeleteRequestTopic:
    name: str = field(STRING)
    partitions: tuple[OffsetDeleteRequestPartition, ...] = field(
        array(OffsetDeleteRequestPartition)
    )


@message(47, "0")
class OffsetDeleteRequest(Request[OffsetDeleteResponse]):
    response = OffsetDeleteResponse

    group_id: str = field(STRING)
    topics: tuple[OffsetDeleteRequestTopic, ...] = field(array(OffsetDeleteRequestTopic))
