"""Replace all options of a topic or another resource.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

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
    "AlterConfigsRequest",
    "AlterConfigsResource",
    "AlterConfigsResourceResponse",
    "AlterConfigsResponse",
    "AlterableConfig",
]


@struct
class AlterConfigsResourceResponse:
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


@message(33, "0-2", flexible="2+")
class AlterConfigsResponse:
    throttle_time_ms: int = field(INT32)
    responses: tuple[AlterConfigsResourceResponse, ...] = field(array(AlterConfigsResourceResponse))


@struct
class AlterableConfig:
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[AlterableConfig, ...] = field(array(AlterableConfig))


@message(33, "0-2", flexible="2+")
class AlterConfigsRequest(Request[AlterConfigsResponse]):
    response = AlterConfigsResponse

    resources: tuple[AlterConfigsResource, ...] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOL)
