"""What the response to a Produce request says of each batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    RecordRefusedError,
    RemoteProtocolError,
    broker_error,
)
from kafkagroup.transport.metadata import ClusterMetadata, NamedLeaders
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.produce import (
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
)

__all__ = ["by_partition", "named_leaders", "no_response_for", "refusal"]

_REASONS: dict[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the batch is larger than the topic's segment.bytes",
}
"""What a code means, for codes that brokers send without a message."""


def by_partition(response: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
    """Return the part of each partition. Of two parts for one partition, the first counts."""
    found: dict[TopicPartition, PartitionProduceResponse] = {}
    for topic in response.responses:
        for part in topic.partition_responses:
            found.setdefault(TopicPartition(topic.name, part.index), part)
    return found


def refusal(tp: TopicPartition, part: PartitionProduceResponse) -> BrokerError:
    """Return the error of a partition. If the part has errors of records (KIP-467), it names the
    first record that is at fault."""
    reason = part.error_message or _REASONS.get(part.error_code)
    what = f"writing to {tp}" + (f": {reason}" if reason else "")
    if part.record_errors:
        first = min(part.record_errors, key=lambda one: one.batch_index)
        message = first.batch_index_error_message or what
        return RecordRefusedError(part.error_code, message, first.batch_index)
    return broker_error(part.error_code, what, operation="WRITE", topic=tp.topic)


def no_response_for(tp: TopicPartition) -> RemoteProtocolError:
    """Return the error of a partition that the response leaves out."""
    return RemoteProtocolError(f"the broker did not answer for {tp}")


def named_leaders(
    known: ClusterMetadata,
    endpoints: Iterable[NodeEndpoint],
    parts: Mapping[TopicPartition, PartitionProduceResponse],
) -> NamedLeaders | None:
    """Return the new leaders that these parts name (KIP-951); None if they name none."""
    leaders = NamedLeaders(endpoints)
    # A list, not a generator: `any` would stop at the first leader that is added.
    named = [
        leaders.add(known, tp, part.current_leader)
        for tp, part in parts.items()
        if part.current_leader.leader_id >= 0
    ]
    return leaders if any(named) else None
