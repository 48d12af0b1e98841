"""Change options of a topic or another resource (KIP-339).

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from enum import IntEnum

from kafkagroup.wire.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    STRING,
    Request,
    array,
    field,
    message,
    struct,
)

__all__ = [
    "AlterConfigsResource",
    "AlterConfigsResourceResponse",
    "AlterableConfig",
    "ConfigOperation",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
]


class ConfigOperation(IntEnum):
    """What to do with the value of an option; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@struct
class AlterConfigsResourceResponse:
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


@message(44, "0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = field(INT32)
    responses: tuple[AlterConfigsResourceResponse, ...] = field(array(AlterConfigsResourceResponse))


@struct
class AlterableConfig:
    name: str = field(STRING)
    config_operation: int = field(INT8)
    value: str | None = field(STRING, nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[AlterableConfig, ...] = field(array(AlterableConfig))


@message(44, "0-1", flexible="1+")
class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse]):
    response = IncrementalAlterConfigsResponse

    resources: tuple[AlterConfigsResource, ...] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOL)
