"""The response to DescribeQuorum: the voters of the metadata log, as its leader reports them.

The fields are those of Apache Kafka 4.3's schemas; a test compares them. The request has a module
of its own, because its parts have the same names. Source: KIP-595.
"""

from uuid import UUID

from kafkagroup.wire.schema import (
    INT16,
    INT32,
    INT64,
    NO_ID,
    STRING,
    UINT16,
    UUID_,
    array,
    field,
    message,
    struct,
)

__all__ = [
    "DescribeQuorumResponse",
    "Listener",
    "Node",
    "PartitionData",
    "ReplicaState",
    "TopicData",
]


@struct
class ReplicaState:
    replica_id: int = field(INT32)
    replica_directory_id: UUID = field(UUID_, "2+", default=NO_ID)
    log_end_offset: int = field(INT64)
    last_fetch_timestamp: int = field(INT64, "1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = field(INT64, "1+", default=-1, ignorable=True)
    """For the leader itself: its current time."""


@struct
class PartitionData:
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "2+", default="", nullable="2+", ignorable=True)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    high_watermark: int = field(INT64)
    current_voters: tuple[ReplicaState, ...] = field(array(ReplicaState))
    observers: tuple[ReplicaState, ...] = field(array(ReplicaState))


@struct
class TopicData:
    topic_name: str = field(STRING)
    partitions: tuple[PartitionData, ...] = field(array(PartitionData))


@struct
class Listener:
    name: str = field(STRING, "2+", default="")
    host: str = field(STRING, "2+", default="")
    port: int = field(UINT16, "2+", default=0)


@struct
class Node:
    node_id: int = field(INT32, "2+", default=0)
    listeners: tuple[Listener, ...] = field(array(Listener), "2+", default=())


@message(55, "0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "2+", default="", nullable="2+", ignorable=True)
    topics: tuple[TopicData, ...] = field(array(TopicData))
    nodes: tuple[Node, ...] = field(array(Node), "2+", default=())
