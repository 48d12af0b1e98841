"""Request the state of the voters from the leader of the metadata log (KIP-595).

The fields are those of Apache Kafka 4.3's schemas; a test compares them.
"""

from kafkagroup.wire.messages.quorum_state import DescribeQuorumResponse
from kafkagroup.wire.schema import INT32, STRING, LookUp, array, field, message, struct

__all__ = ["DescribeQuorumRequest", "PartitionData", "TopicData"]


@struct
class PartitionData:
    partition_index: int = field(INT32)


@struct
class TopicData:
    topic_name: str = field(STRING)
    partitions: tuple[PartitionData, ...] = field(array(PartitionData))


@message(55, "0-2", flexible="0+")
class DescribeQuorumRequest(LookUp[DescribeQuorumResponse]):
    response = DescribeQuorumResponse

    topics: tuple[TopicData, ...] = field(array(TopicData))
