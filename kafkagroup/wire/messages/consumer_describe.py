"""Describe consumer groups (KIP-848): their epochs, and the assignments of their members.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    STRING,
    UUID_,
    LookUp,
    array,
    field,
    message,
    struct,
)


@struct
class TopicPartitions:
    topic_id: UUID = field(UUID_)
    topic_name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@struct
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))


@struct
class Member:
    member_id: str = field(STRING)
    instance_id: str | None = field(STRING, default=None, nullable="0+")
    rack_id: str | None = field(STRING, default=None, nullable="0+")
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: tuple[str, ...] = field(array(STRING))
    subscribed_topic_regex: str | None = field(STRING, default=None, nullable="0+")
    assignment: Assignment = field(Assignment)
    target_assignment: Assignment = field(Assignment)
    member_type: int = field(INT8, "1+", default=-1, ignorable=True)


@struct
class DescribedGroup:
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, default=None, nullable="0+")
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: tuple[Member, ...] = field(array(Member))
    authorized_operations: int = field(INT32, default=-(2**31))
    """A bit field; the default means that it was not requested."""


@message(69, "0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = field(INT32)
    groups: tuple[DescribedGroup, ...] = field(array(DescribedGroup))


@message(69, "0-1", flexible="0+")
class ConsumerGroupDescribeRequest(LookUp[ConsumerGroupDescribeResponse]):
    response = ConsumerGroupDescribeResponse

    group_ids: tuple[str, ...] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL)
