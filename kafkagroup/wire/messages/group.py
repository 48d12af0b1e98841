"""Membership of classic groups, and administration of groups.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import (
    BOOL,
    BYTES,
    INT16,
    INT32,
    STRING,
    LookUp,
    Request,
    array,
    field,
    message,
    struct,
)


@struct
class JoinGroupResponseMember:
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)
    metadata: bytes = field(BYTES)


@message(11, "0-9", flexible="6+")
class JoinGroupResponse:
    throttle_time_ms: int = field(INT32, "2+", default=0, ignorable=True)
    error_code: int = field(INT16)
    generation_id: int = field(INT32, default=-1)
    protocol_type: str | None = field(STRING, "7+", default=None, nullable="7+", ignorable=True)
    protocol_name: str | None = field(STRING, nullable="7+")
    leader: str = field(STRING)
    skip_assignment: bool = field(BOOL, "9+", default=False)
    member_id: str = field(STRING)
    members: tuple[JoinGroupResponseMember, ...] = field(array(JoinGroupResponseMember))


@struct
class JoinGroupRequestProtocol:
    name: str = field(STRING)
    metadata: bytes = field(BYTES)


@message(11, "0-9", flexible="6+")
class JoinGroupRequest(Request[JoinGroupResponse]):
    response = JoinGroupResponse

    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", default=None, nullable="5+")
    protocol_type: str = field(STRING)
    protocols: tuple[JoinGroupRequestProtocol, ...] = field(array(JoinGroupRequestProtocol))
    reason: str | None = field(STRING, "8+", default=None, nullable="8+", ignorable=True)


@message(14, "0-5", flexible="4+")
class SyncGroupResponse:
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16)
    protocol_type: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)
    protocol_name: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)
    assignment: bytes = field(BYTES)


@struct
class SyncGroupRequestAssignment:
    member_id: str = field(STRING)
    assignment: bytes = field(BYTES)


@message(14, "0-5", flexible="4+")
class SyncGroupRequest(Request[SyncGroupResponse]):
    response = SyncGroupResponse

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    protocol_type: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)
    protocol_name: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)
    assignments: tuple[SyncGroupRequestAssignment, ...] = field(array(SyncGroupRequestAssignment))


@message(12, "0-4", flexible="4+")
class HeartbeatResponse:
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16)


@message(12, "0-4", flexible="4+")
class HeartbeatRequest(Request[HeartbeatResponse]):
    response = HeartbeatResponse

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")


@struct
class MemberResponse:
    member_id: str = field(STRING, "3+", default="")
    group_instance_id: str | None = field(STRING, "3+", default="", nullable="3+")
    error_code: int = field(INT16, "3+", default=0)


@message(13, "0-5", flexible="4+")
class LeaveGroupResponse:
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16)
    members: tuple[MemberResponse, ...] = field(array(MemberResponse), "3+", default=())


@struct
class MemberIdentity:
    member_id: str = field(STRING, "3+", default="")
    group_instance_id: str | None = field(STRING, "3+", default=None, nullable="3+")
    reason: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)


@message(13, "0-5", flexible="4+")
class LeaveGroupRequest(Request[LeaveGroupResponse]):
    response = LeaveGroupResponse

    group_id: str = field(STRING)
    member_id: str = field(STRING, "0-2", default="")
    members: tuple[MemberIdentity, ...] = field(array(MemberIdentity), "3+", default=())


@struct
class ListedGroup:
    group_id: str = field(STRING)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, "4+", default="", ignorable=True)
    group_type: str = field(STRING, "5+", default="", ignorable=True)


@message(16, "0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16)
    groups: tuple[ListedGroup, ...] = field(array(ListedGroup))


@message(16, "0-5", flexible="3+")
class ListGroupsRequest(LookUp[ListGroupsResponse]):
    response = ListGroupsResponse

    states_filter: tuple[str, ...] = field(array(STRING), "4+", default=())
    types_filter: tuple[str, ...] = field(array(STRING), "5+", default=())


@struct
class DescribedGroupMember:
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "4+", default=None, nullable="4+", ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    member_metadata: bytes = field(BYTES)
    member_assignment: bytes = field(BYTES)


@struct
class DescribedGroup:
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "6+", default=None, nullable="6+")
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)
    members: tuple[DescribedGroupMember, ...] = field(array(DescribedGroupMember))
    authorized_operations: int = field(INT32, "3+", default=-(2**31))
    """A bit field; the default means that it was not requested."""


@message(15, "0-6", flexible="5+")
class DescribeGroupsResponse:
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    groups: tuple[DescribedGroup, ...] = field(array(DescribedGroup))


@message(15, "0-6", flexible="5+")
class DescribeGroupsRequest(LookUp[DescribeGroupsResponse]):
    response = DescribeGroupsResponse

    groups: tuple[str, ...] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL, "3+", default=False)


@struct
class DeletableGroupResult:
    group_id: str = field(STRING)
    error_code: int = field(INT16)


@message(42, "0-2", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: int = field(INT32)
    results: tuple[DeletableGroupResult, ...] = field(array(DeletableGroupResult))


@message(42, "0-2", flexible="2+")
class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    response = DeleteGroupsResponse

    groups_names: tuple[str, ...] = field(array(STRING))
