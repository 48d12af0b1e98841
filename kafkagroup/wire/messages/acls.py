"""Describe access control lists.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import (
    INT8,
    INT16,
    INT32,
    STRING,
    LookUp,
    array,
    field,
    message,
    struct,
)

__all__ = [
    "AclDescription",
    "DescribeAclsRequest",
    "DescribeAclsResource",
    "DescribeAclsResponse",
]


@struct
class AclDescription:
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@struct
class DescribeAclsResource:
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)
    acls: tuple[AclDescription, ...] = field(array(AclDescription))


@message(29, "1-3", flexible="2+")
class DescribeAclsResponse:
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resources: tuple[DescribeAclsResource, ...] = field(array(DescribeAclsResource))


@message(29, "1-3", flexible="2+")
class DescribeAclsRequest(LookUp[DescribeAclsResponse]):
    response = DescribeAclsResponse

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)
