"""Append batches of records to logs."""

from __future__ import annotations

from concurrent.futures import Future

import anyio

from kafkagroup.errors import BrokerError, ErrorCode, broker_error
from kafkagroup.runtime.produce.appending import append
from kafkagroup.spark.cluster import Session
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_splitting import halves
from kafkagroup.wire.error_codes import BEING_CREATED
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

__all__ = ["Appends"]


_CREATION_TIMEOUT = 10.0
"""Seconds that a topic may take to be created: brokers do not tell "not yet" from "not allowed"."""


class Appends(Session):
    """The sink's requests to a cluster."""

    def partition_count(self, topic: str) -> int:
        """Return a topic's partition count. A topic that does not exist is created, if the cluster
        has `auto.create.topics.enable`, as Java's producer does.

        Raises: BrokerError, also if it does not exist and is not created.
        """
        return self._call(lambda: self._partition_count(topic))

    async def _partition_count(self, topic: str) -> int:
        self._topics.add(topic)
        if count := await self._described_count(topic):
            return count
        # Its default allows the broker to create the topic.
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
        response = await self._cluster.request_any(request)
        for found in response.topics:
            if found.error_code not in BEING_CREATED:
                what = f"topic {topic!r} does not exist, and cannot be created"
                raise broker_error(found.error_code, what, operation="CREATE", topic=topic)
        pauses = RetryBackoff(self._cluster.options)
        with anyio.move_on_after(min(_CREATION_TIMEOUT, self._options.api_timeout / 2)):
            while True:
                await pauses.wait()
                if count := await self._described_count(topic):
                    return count
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic!r} does not exist, and the cluster has not created it (its setting"
            " auto.create.topics.enable); correct the name, or create the topic: kafka-topics.sh"
            f" --bootstrap-server {self._options.bootstrap_servers} --create --topic {topic}",
        )

    async def _described_count(self, topic: str) -> int:
        """Return a topic's partition count; 0 if it does not exist, or is being created."""
        found = (await self._cluster.refresh()).topics.get(topic)
        if found is None:
            return 0
        if found.error_code not in BEING_CREATED:
            raise broker_error(found.error_code, f"topic {topic!r}", operation="WRITE", topic=topic)
        return len(found.partitions)

    def start_append(self, tp: TopicPartition, batch: bytes) -> Future[None]:
        """Append a batch to all in-sync replicas. A retry may append it twice.

        The future raises: BrokerError; TransportError when the timeout expires.
        """
        return self._portal.start_task_soon(
            self._bounded, lambda: self._retry(lambda: self._append(tp, batch))
        )

    async def _append(self, tp: TopicPartition, batch: bytes) -> None:
        """Append a batch; in two parts if it is too large for the topic, as Java's producer does:
        topics have limits of their own (`max.message.bytes`)."""
        self._topics.add(tp.topic)
        try:
            await append(self._cluster, tp, batch)
        except BrokerError as error:
            if error.code != ErrorCode.MESSAGE_TOO_LARGE or not (parts := halves(batch)):
                raise
            for part in parts:
                await self._append(tp, part)
