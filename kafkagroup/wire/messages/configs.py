"""Describe the options of brokers, topics and other resources.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.schema import (
    BOOL,
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
    "BROKER",
    "TOPIC",
    "DescribeConfigsRequest",
    "DescribeConfigsResource",
    "DescribeConfigsResourceResult",
    "DescribeConfigsResponse",
    "DescribeConfigsResult",
    "DescribeConfigsSynonym",
]

TOPIC = 2
"""The type of the resource that is a topic; its name is the topic's."""
BROKER = 4
"""The type of the resource that is a broker; its name is the broker's id."""


@struct
class DescribeConfigsSynonym:
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    source: int = field(INT8)


@struct
class DescribeConfigsResourceResult:
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOL)
    config_source: int = field(INT8, default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL)
    synonyms: tuple[DescribeConfigsSynonym, ...] = field(
        array(DescribeConfigsSynonym), ignorable=True
    )
    config_type: int = field(INT8, "3+", default=0, ignorable=True)
    documentation: str | None = field(STRING, "3+", default="", nullable="0+", ignorable=True)


@struct
class DescribeConfigsResult:
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[DescribeConfigsResourceResult, ...] = field(array(DescribeConfigsResourceResult))


@message(32, "1-4", flexible="4+")
class DescribeConfigsResponse:
    throttle_time_ms: int = field(INT32)
    results: tuple[DescribeConfigsResult, ...] = field(array(DescribeConfigsResult))


@struct
class DescribeConfigsResource:
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configuration_keys: tuple[str, ...] | None = field(array(STRING), nullable="0+")


@message(32, "1-4", flexible="4+")
class DescribeConfigsRequest(LookUp[DescribeConfigsResponse]):
    response = DescribeConfigsResponse

    resources: tuple[DescribeConfigsResource, ...] = field(array(DescribeConfigsResource))
    include_synonyms: bool = field(BOOL, default=False)
    include_documentation: bool = field(BOOL, "3+", default=False)
