"""Versions, leaders and coordinators: ApiVersions, Metadata, FindCoordinator.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from collections.abc import Sequence
from uuid import UUID

from kafkagroup.wire.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    STRING,
    UUID_,
    LookUp,
    array,
    field,
    message,
    struct,
)


@struct
class ApiVersion:
    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


@struct
class SupportedFeatureKey:
    name: str = field(STRING, "3+", default="")
    min_version: int = field(INT16, "3+", default=0)
    max_version: int = field(INT16, "3+", default=0)


@struct
class FinalizedFeatureKey:
    name: str = field(STRING, "3+", default="")
    max_version_level: int = field(INT16, "3+", default=0)
    min_version_level: int = field(INT16, "3+", default=0)


@message(18, "0-4", flexible="3+")
class ApiVersionsResponse:
    error_code: int = field(INT16)
    api_keys: tuple[ApiVersion, ...] = field(array(ApiVersion))
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    supported_features: tuple[SupportedFeatureKey, ...] = field(
        array(SupportedFeatureKey), "3+", default=(), tag=0, tagged="3+", ignorable=True
    )
    finalized_features_epoch: int = field(
        INT64, "3+", default=-1, tag=1, tagged="3+", ignorable=True
    )
    finalized_features: tuple[FinalizedFeatureKey, ...] = field(
        array(FinalizedFeatureKey), "3+", default=(), tag=2, tagged="3+", ignorable=True
    )
    zk_migration_ready: bool = field(BOOL, "3+", default=False, tag=3, tagged="3+", ignorable=True)


@message(18, "0-4", flexible="3+")
class ApiVersionsRequest(LookUp[ApiVersionsResponse]):
    response = ApiVersionsResponse

    client_software_name: str = field(STRING, "3+", default="", ignorable=True)
    client_software_version: str = field(STRING, "3+", default="", ignorable=True)


@struct
class MetadataResponseBroker:
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, "1+", default=None, nullable="1+", ignorable=True)


@struct
class MetadataResponsePartition:
    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = field(array(INT32))
    isr_nodes: tuple[int, ...] = field(array(INT32))
    offline_replicas: tuple[int, ...] = field(array(INT32), "5+", default=(), ignorable=True)


@struct
class MetadataResponseTopic:
    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="12+")
    topic_id: UUID = field(UUID_, "10+", default=NO_ID, ignorable=True)
    is_internal: bool = field(BOOL, "1+", default=False, ignorable=True)
    partitions: Sequence[MetadataResponsePartition] = field(
        array(MetadataResponsePartition, as_rows=True)
    )
    topic_authorized_operations: int = field(INT32, "8+", default=-(2**31))
    """A bit field; the default means that it was not requested."""


@message(3, "0-13", flexible="9+")
class MetadataResponse:
    throttle_time_ms: int = field(INT32, "3+", default=0, ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = field(array(MetadataResponseBroker))
    cluster_id: str | None = field(STRING, "2+", default=None, nullable="2+", ignorable=True)
    controller_id: int = field(INT32, "1+", default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] = field(array(MetadataResponseTopic))
    cluster_authorized_operations: int = field(INT32, "8-10", default=-(2**31))
    """A bit field; the default means that it was not requested."""
    error_code: int = field(INT16, "13+", default=0, ignorable=True)


@struct
class MetadataRequestTopic:
    topic_id: UUID = field(UUID_, "10+", default=NO_ID, ignorable=True)
    name: str | None = field(STRING, nullable="10+")


@message(3, "0-13", flexible="9+")
class MetadataRequest(LookUp[MetadataResponse]):
    response = MetadataResponse

    topics: tuple[MetadataRequestTopic, ...] | None = field(
        array(MetadataRequestTopic), nullable="1+"
    )
    allow_auto_topic_creation: bool = field(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, "8-10", default=False)
    include_topic_authorized_operations: bool = field(BOOL, "8+", default=False)


@struct
class Coordinator:
    key: str = field(STRING, "4+", default="")
    node_id: int = field(INT32, "4+", default=0)
    host: str = field(STRING, "4+", default="")
    port: int = field(INT32, "4+", default=0)
    error_code: int = field(INT16, "4+", default=0)
    error_message: str | None = field(STRING, "4+", default="", nullable="4+", ignorable=True)


@message(10, "0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16, "0-3", default=0)
    error_message: str | None = field(STRING, "1-3", default="", nullable="1-3", ignorable=True)
    node_id: int = field(INT32, "0-3", default=0)
    host: str = field(STRING, "0-3", default="")
    port: int = field(INT32, "0-3", default=0)
    coordinators: tuple[Coordinator, ...] = field(array(Coordinator), "4+", default=())


@message(10, "0-6", flexible="3+")
class FindCoordinatorRequest(LookUp[FindCoordinatorResponse]):
    response = FindCoordinatorResponse

    key: str = field(STRING, "0-3", default="")
    key_type: int = field(INT8, "1+", default=0)
    coordinator_keys: tuple[str, ...] = field(array(STRING), "4+", default=())
