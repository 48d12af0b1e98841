"""ConsumerGroupHeartbeat (KIP-848): join a consumer group, stay in it, report partitions, leave it.

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
    INT16,
    INT32,
    STRING,
    UUID_,
    Request,
    array,
    field,
    message,
    struct,
)


@struct
class TopicPartitions:
    topic_id: UUID = field(UUID_)
    partitions: tuple[int, ...] = field(array(INT32))


@struct
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))


@message(68, "0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, default=None, nullable="0+")
    member_id: str | None = field(STRING, default=None, nullable="0+")
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    assignment: Assignment | None = field(Assignment, default=None, nullable="0+")


@message(68, "0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse]):
    response = ConsumerGroupHeartbeatResponse

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, default=None, nullable="0+")
    rack_id: str | None = field(STRING, default=None, nullable="0+")
    rebalance_timeout_ms: int = field(INT32, default=-1)
    subscribed_topic_names: tuple[str, ...] | None = field(
        array(STRING), default=None, nullable="0+"
    )
    subscribed_topic_regex: str | None = field(STRING, "1+", default=None, nullable="1+")
    server_assignor: str | None = field(STRING, default=None, nullable="0+")
    topic_partitions: tuple[TopicPartitions, ...] | None = field(
        array(TopicPartitions), default=None, nullable="0+"
    )
