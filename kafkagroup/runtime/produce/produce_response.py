"""What the response to a Produce request says of each batch."""

from __future__ import annotations

from collections.abc import Iterable

from kafkagroup.errors import BrokerError, RecordRefusedError, broker_error
from kafkagroup.transport.metadata import ClusterMetadata, NamedLeaders
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.produce import PartitionProduceResponse, ProduceResponse

__all__ = ["by_partition", "named_leaders", "refusal"]


def by_partition(response: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
    """Return the part of each partition. Of two parts for one, the first counts."""
    found: dict[TopicPartition, PartitionProduceResponse] = {}
    for topic in response.responses:
        for part in topic.partition_responses:
            found.setdefault(TopicPartition(topic.name, part.index), part)
    return found


def refusal(tp: TopicPartition, part: PartitionProduceResponse) -> BrokerError:
    """Return the error of a partition. With KIP-467 it names the record that is at fault."""
    what = part.error_message or f"writing to {tp}"
    if part.record_errors:
        first = min(part.record_errors, key=lambda one: one.batch_index)
        message = first.batch_index_error_message or what
        return RecordRefusedError(part.error_code, message, first.batch_index)
    return broker_error(part.error_code, what, operation="WRITE", topic=tp.topic)


def named_leaders(
    known: ClusterMetadata, response: ProduceResponse, partitions: Iterable[TopicPartition]
) -> NamedLeaders | None:
    """Return the new leaders that the response names (KIP-951); None if it names none."""
    leaders = NamedLeaders(response.node_endpoints)
    parts = by_partition(response)
    named = [
        leaders.add(known, tp, parts[tp].current_leader)
        for tp in partitions
        if tp in parts and parts[tp].current_leader.leader_id >= 0
    ]
    return leaders if any(named) else None
