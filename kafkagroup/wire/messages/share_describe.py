"""Describe share groups (KIP-932): their epochs, and the assignments of their members.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.messages.consumer_describe import Assignment
from kafkagroup.wire.schema import (
    BOOL,
    INT16,
    INT32,
    STRING,
    LookUp,
    array,
    field,
    message,
    struct,
)


@struct
class Member:
    member_id: str = field(STRING)
    rack_id: str | None = field(STRING, default=None, nullable="0+")
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: tuple[str, ...] = field(array(STRING))
    assignment: Assignment = field(Assignment)


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


@message(77, "1", flexible="0+")
class ShareGroupDescribeResponse:
    throttle_time_ms: int = field(INT32)
    groups: tuple[DescribedGroup, ...] = field(array(DescribedGroup))


@message(77, "1", flexible="0+")
class ShareGroupDescribeRequest(LookUp[ShareGroupDescribeResponse]):
    response = ShareGroupDescribeResponse

    group_ids: tuple[str, ...] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL)
