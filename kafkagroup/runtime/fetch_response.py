"""Handles each partition of a fetch response: buffers its records, or acts on its error."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Generator

from kafkagroup._backoff import backoff
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.plan import ErrorAction, action_for
from kafkagroup.consume.transactions import AbortedTransactions
from kafkagroup.errors import BrokerError, CorruptRecordError, DecodeError, broker_error
from kafkagroup.options import ConsumerOptions
from kafkagroup.transport.clock import loop_clock
from kafkagroup.transport.trouble import Problem, Troubles
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import PartitionData
from kafkagroup.wire.records import RecordBatch, read_batches

__all__ = ["Found", "ResponseHandler"]

logger = logging.getLogger(__name__)

_MAX_BATCHES = 20_000
"""The limit of batches of one partition that are taken from one response; the rest is fetched
again. As objects, small batches need three times their bytes, long before the application reads
them."""

_SLICE = 500
"""Batches that are read before other tasks run: some milliseconds' work where they are small."""

_BUDGET = 0.001
"""Seconds that reading the batches of one partition may block the event loop."""

Found = tuple[list[RecordBatch], DecodeError | None]
"""The batches of one partition, and the error in the data after them, if any."""


class ResponseHandler:
    """Applies partitions of fetch responses to a `Delivery`."""

    def __init__(
        self,
        delivery: Delivery,
        options: ConsumerOptions,
        troubles: Troubles,
        *,
        on_source_changed: Callable[[], None],
        look_up: Callable[[], None],
        failed: Callable[[OwnedPartition, Exception], None],
    ) -> None:
        """`on_source_changed` is called when a partition must be fetched from another broker."""
        self._delivery = delivery
        self._options = options
        self._troubles = troubles
        self._on_source_changed = on_source_changed
        self._look_up = look_up
        self._failed = failed
        self._clock = loop_clock()

    def forget_replica(self, owned: OwnedPartition, node_id: int) -> bool:
        """Fetch from the leader again if this replica is fetched from; return whether it was."""
        if owned.replica != node_id:
            return False
        owned.read_from_leader()
        self._on_source_changed()  # the leader's lane does not fetch this partition yet
        return True

    def read(self, tp: TopicPartition, data: PartitionData) -> Generator[None, None, Found]:
        """Return the batches of one partition in a response; yield where other tasks may run."""
        aborted = data.aborted_transactions if self._options.isolation_level else None
        transactions = AbortedTransactions(aborted or ())
        batches: list[RecordBatch] = []
        since = self._clock()
        try:
            for batch in read_batches(
                memoryview(data.records or b""),
                topic=tp.topic,
                partition=tp.partition,
                check_crcs=self._options.check_crcs,
                max_batch_bytes=self._options.max_batch_bytes,
            ):
                if self._options.isolation_level:
                    transactions.mark(batch)
                batches.append(batch)
                if len(batches) == _MAX_BATCHES:
                    break
                if len(batches) % _SLICE == 0 or self._clock() - since > _BUDGET:
                    # A response may have a million small batches.
                    yield
                    since = self._clock()
        except DecodeError as error:
            return batches, error
        return batches, None

    def take(self, owned: OwnedPartition, data: PartitionData, found: Found, node_id: int) -> bool:
        """Buffer what `read` found for one partition, or act on its error; return whether the
        metadata is stale."""
        if data.error_code:
            if self.forget_replica(owned, node_id):
                # Ask the leader first: a follower may lag behind, or no longer be a replica.
                self._back_off(owned)
                return False
            return self._act_on(owned, data.error_code)
        if data.preferred_read_replica >= 0:
            # KIP-392: the response names a nearer replica instead of returning records. This does
            # not end the back-off: a leader and a follower that redirect to each other would
            # otherwise be asked without a pause.
            until = self._clock() + self._options.metadata_max_age
            owned.read_from(data.preferred_read_replica, until)
            self._on_source_changed()
            return False
        owned.end_backoff()
        if self._troubles.open:
            self._troubles.succeeded(("fetch", owned.tp), self._clock())
        batches, damage = found
        if damage is not None and not batches:
            self._failed(owned, damage)
        if data.records and not owned.failed and (reason := _no_progress(owned, data, batches)):
            tp = owned.tp
            self._failed(
                owned,
                CorruptRecordError(
                    reason, topic=tp.topic, partition=tp.partition, offset=owned.fetch_offset
                ),
            )
        self._delivery.add(owned, batches)
        return False

    def _act_on(self, owned: OwnedPartition, code: int) -> bool:
        action = action_for(code)
        error = broker_error(
            code,
            f"fetching {owned.tp} at {owned.fetch_offset}",
            operation="READ",
            topic=owned.tp.topic,
        )
        logger.log(logging.WARNING if action is ErrorAction.RESET else logging.INFO, "%s", error)
        if action is ErrorAction.RAISE:
            self._failed(owned, error)
            return False
        problem = Problem(
            subject=f"fetching topic {owned.tp.topic}",
            cause=str(BrokerError(code)),
            advice="check that the topic exists, and that the brokers agree on its leaders",
        )
        self._troubles.failed(("fetch", owned.tp), self._clock(), problem)
        if action is ErrorAction.RESET and owned.position == owned.fetch_offset:
            # Only once all buffered records are delivered: they are still valid.
            owned.request_reset()
            self._look_up()
        self._back_off(owned)
        return action is ErrorAction.REFRESH

    def _back_off(self, owned: OwnedPartition) -> None:
        options, attempts = self._options, owned.count_failure()
        pause = backoff(attempts, options.retry_backoff, options.retry_backoff_max, random.random())
        # Rounded up to full ticks, so that a hundred partitions that fail are fetched again by one
        # request, not one by one.
        tick = 2 * options.retry_backoff
        owned.back_off(math.ceil((self._clock() + pause) / tick) * tick)


def _no_progress(owned: OwnedPartition, data: PartitionData, batches: list[RecordBatch]) -> str:
    """Return why the next fetch would return the same data again; "" if the position advances."""
    if not batches:
        return (
            f"the next batch is larger than the {len(data.records or b'')} bytes that came;"
            " raise max_partition_fetch_bytes"
        )
    if batches[-1].next_offset <= owned.fetch_offset:
        return f"the batches that came end at {batches[-1].last_offset}, below it"
    return ""
