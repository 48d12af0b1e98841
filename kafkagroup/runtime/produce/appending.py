"""Appends one batch of records to the log of its partition, and translates the broker's errors."""

from __future__ import annotations

from kafkagroup.runtime.produce.produce_response import by_partition, no_response_for, refusal
from kafkagroup.transport.cluster import Cluster
from kafkagroup.types import TopicPartition

__all__ = ["append"]


async def append(cluster: Cluster, tp: TopicPartition, batch: bytes) -> None:
    """Append an encoded batch; return when all in-sync replicas have it. A retry after an error may
    append it twice.

    Raises: BrokerError; TransportError; RemoteProtocolError.
    """
    response = await cluster.leader(tp).produce_messages({tp: batch})
    part = None if response is None else by_partition(response).get(tp)
    if part is None:
        raise no_response_for(tp)
    if part.error_code:
        raise refusal(tp, part)
