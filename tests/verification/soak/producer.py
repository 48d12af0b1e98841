"""An idempotent producer (KIP-98): each batch is appended once, however often the connection fails.

Not part of the product, whose producer is not idempotent. A stage of the pipeline needs one without
duplicates, which would be indistinguishable from the consumer's.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

from kafkagroup import TopicPartition
from kafkagroup.errors import (
    ErrorCode,
    NoBrokersAvailableError,
    TransportError,
    broker_error,
)
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.schema import INT16, INT32, INT64, STRING, Request, field, message

logger = logging.getLogger(__name__)


@message(22, "0", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)


@message(22, "0", flexible="2+")
class InitProducerIdRequest(Request[InitProducerIdResponse]):
    response = InitProducerIdResponse

    transactional_id: str | None = field(STRING, default=None, nullable="0+")
    transaction_timeout_ms: int = field(INT32, default=0)


class Producer:
    """Appends to one topic, one batch at a time."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._sequences: Counter[int] = Counter()
        """Partition -> the number of the next record."""
        self._id = -1
        self._epoch = -1

    async def start(self) -> None:
        """Get an id; wait for a broker that returns one."""
        self._cluster.topics.follow(lambda: {self._topic})
        pauses = RetryBackoff(self._cluster.options)
        while not await self._ask_id():
            await pauses.wait()

    async def _ask_id(self) -> bool:
        try:
            response = await self._cluster.request_any(InitProducerIdRequest())
        except NoBrokersAvailableError as error:
            logger.info("no producer id: %s", error)
            return False
        self._id, self._epoch = response.producer_id, response.producer_epoch
        return _succeeded(response.error_code)

    async def append(self, partition: int, values: Sequence[bytes]) -> None:
        """Append records to a partition; return once the in-sync replicas have them."""
        now = round(time.time() * 1000)
        batch = encode_batch(
            [NewRecord(None, value, now) for value in values],
            producer_id=self._id,
            producer_epoch=self._epoch,
            base_sequence=self._sequences[partition],
        )
        tp = TopicPartition(self._topic, partition)
        pauses = RetryBackoff(self._cluster.options)
        while not await self._append_once(tp, batch):
            await pauses.wait()
        self._sequences[partition] += len(values)

    async def _append_once(self, tp: TopicPartition, batch: bytes) -> bool:
        try:
            leader = self._cluster.metadata.leader(tp)
            node = None if leader is None else self._cluster.metadata.nodes.get(leader.leader)
            if node is not None:
                response = await self._cluster.broker(node).produce_messages({tp: batch})
                assert response is not None
                if _succeeded(response.responses[0].partition_responses[0].error_code):
                    return True
        except TransportError as error:
            # Whether the broker has the batch is not known. It is asked with the same number.
            logger.info("appending to %s: %s", tp, error)
        try:
            await self._cluster.refresh()
        except NoBrokersAvailableError as error:
            logger.info("appending to %s: %s", tp, error)
        return False


def _succeeded(code: int) -> bool:
    """Whether the request succeeded; False: it may be retried. Raises: BrokerError otherwise."""
    # The broker has it already, and more behind it than it keeps the offsets of.
    if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return True
    error = broker_error(code)
    if not error.retriable:
        raise error
    logger.info("%s", error)
    return False
