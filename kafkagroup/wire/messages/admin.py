"""Create and delete topics, and add partitions to them.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    NO_ID,
    STRING,
    UUID_,
    Request,
    array,
    field,
    message,
    struct,
)


@struct
class CreatableTopicConfigs:
    name: str = field(STRING, "5+", default="")
    value: str | None = field(STRING, "5+", default="", nullable="5+")
    read_only: bool = field(BOOL, "5+", default=False)
    config_source: int = field(INT8, "5+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL, "5+", default=False)


@struct
class CreatableTopicResult:
    name: str = field(STRING)
    topic_id: UUID = field(UUID_, "7+", default=NO_ID, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, default="", nullable="0+", ignorable=True)
    topic_config_error_code: int = field(INT16, "5+", default=0, tag=0, tagged="5+", ignorable=True)
    num_partitions: int = field(INT32, "5+", default=-1, ignorable=True)
    replication_factor: int = field(INT16, "5+", default=-1, ignorable=True)
    configs: tuple[CreatableTopicConfigs, ...] | None = field(
        array(CreatableTopicConfigs), "5+", default=(), nullable="5+", ignorable=True
    )


@message(19, "2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: int = field(INT32, default=0, ignorable=True)
    topics: tuple[CreatableTopicResult, ...] = field(array(CreatableTopicResult))


@struct
class CreatableReplicaAssignment:
    partition_index: int = field(INT32)
    broker_ids: tuple[int, ...] = field(array(INT32))


@struct
class CreatableTopicConfig:
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@struct
class CreatableTopic:
    name: str = field(STRING)
    num_partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    assignments: tuple[CreatableReplicaAssignment, ...] = field(array(CreatableReplicaAssignment))
    configs: tuple[CreatableTopicConfig, ...] = field(array(CreatableTopicConfig))


@message(19, "2-7", flexible="5+")
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    response = CreateTopicsResponse

    topics: tuple[CreatableTopic, ...] = field(array(CreatableTopic))
    timeout_ms: int = field(INT32, default=60000)
    validate_only: bool = field(BOOL, default=False)


@struct
class DeletableTopicResult:
    name: str | None = field(STRING, nullable="6+")
    topic_id: UUID = field(UUID_, "6+", default=NO_ID, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)


@message(20, "1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: int = field(INT32, default=0, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = field(array(DeletableTopicResult))


@struct
class DeleteTopicState:
    name: str | None = field(STRING, "6+", default=None, nullable="6+")
    topic_id: UUID = field(UUID_, "6+", default=NO_ID)


@message(20, "1-6", flexible="4+")
class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    response = DeleteTopicsResponse

    topics: tuple[DeleteTopicState, ...] = field(array(DeleteTopicState), "6+", default=())
    topic_names: tuple[str, ...] = field(array(STRING), "0-5", default=(), ignorable=True)
    timeout_ms: int = field(INT32)


@struct
class CreatePartitionsTopicResult:
    name: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, default=None, nullable="0+")


@message(37, "0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: int = field(INT32)
    results: tuple[CreatePartitionsTopicResult, ...] = field(array(CreatePartitionsTopicResult))


@struct
class CreatePartitionsAssignment:
    broker_ids: tuple[int, ...] = field(array(INT32))


@struct
class CreatePartitionsTopic:
    name: str = field(STRING)
    count: int = field(INT32)
    assignments: tuple[CreatePartitionsAssignment, ...] | None = field(
        array(CreatePartitionsAssignment), nullable="0+"
    )


@message(37, "0-3", flexible="2+")
class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    response = CreatePartitionsResponse

    topics: tuple[CreatePartitionsTopic, ...] = field(array(CreatePartitionsTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)
