"""Append batches of records to logs."""

from __future__ import annotations

from concurrent.futures import Future

from kafkagroup.errors import ErrorCode, broker_error
from kafkagroup.runtime.appending import append
from kafkagroup.spark.cluster import Session
from kafkagroup.types import TopicPartition

__all__ = ["Appends"]


class Appends(Session):
    """The sink's requests to a cluster."""

    def partition_count(self, topic: str) -> int:
        """Return a topic's partition count. Raises: BrokerError, also if it does not exist."""
        return self._call(lambda: self._partition_count(topic))

    async def _partition_count(self, topic: str) -> int:
        self._topics.add(topic)
        metadata = (await self._cluster.refresh()).topics.get(topic)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if metadata is None else metadata.error_code
        if metadata is None or code:
            raise broker_error(code, f"topic {topic!r}", operation="WRITE", topic=topic)
        return len(metadata.partitions)

    def start_append(self, tp: TopicPartition, batch: bytes) -> Future[None]:
        """Append a batch to all in-sync replicas. A retry may append it twice.

        The future raises: BrokerError; TransportError when the timeout expires.
        """
        return self._portal.start_task_soon(
            self._bounded, lambda: self._retry(lambda: self._append(tp, batch))
        )

    async def _append(self, tp: TopicPartition, batch: bytes) -> None:
        self._topics.add(tp.topic)
        await append(self._cluster, tp, batch)
