"""Appends one batch of records to the log of its partition, and translates the broker's errors."""

from __future__ import annotations

from kafkagroup.errors import BrokerError, RecordRefusedError, RemoteProtocolError, broker_error
from kafkagroup.transport.cluster import Cluster
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.produce import PartitionProduceResponse

__all__ = ["append"]


async def append(cluster: Cluster, tp: TopicPartition, batch: bytes) -> None:
    """Append an encoded batch; return when all in-sync replicas have it. A retry after an error may
    append it twice.

    Raises: BrokerError; TransportError; RemoteProtocolError.
    """
    response = await cluster.leader(tp).produce_messages({tp: batch})
    for topic in () if response is None else response.responses:
        for done in topic.partition_responses:
            if (topic.name, done.index) == tp:
                if done.error_code:
                    raise _refusal(tp, done)
                return
    raise RemoteProtocolError(f"the broker did not answer for {tp}")


def _refusal(tp: TopicPartition, response: PartitionProduceResponse) -> BrokerError:
    what = f"writing to {tp}" + (f": {response.error_message}" if response.error_message else "")
    if response.record_errors:
        first = min(response.record_errors, key=lambda one: one.batch_index)
        message = first.batch_index_error_message or what
        return RecordRefusedError(response.error_code, message, first.batch_index)
    return broker_error(response.error_code, what, operation="WRITE", topic=tp.topic)
