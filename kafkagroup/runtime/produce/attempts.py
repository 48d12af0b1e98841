"""What becomes of each attempt to send a batch: by its response, or by why there is none."""

from __future__ import annotations

import random
from collections.abc import Callable

from kafkagroup._backoff import backoff
from kafkagroup.errors import ErrorCode, KafkaGroupError
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.produce.splitting import split
from kafkagroup.runtime.produce.broker_sender import Taken
from kafkagroup.runtime.produce.metadata_watch import MetadataWatch
from kafkagroup.runtime.produce.produce_response import (
    by_partition,
    named_leaders,
    no_response_for,
    refusal,
)
from kafkagroup.runtime.produce.transactions import MARKER_PAUSE
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.trouble import Problem
from kafkagroup.wire.error_codes import PRODUCE_AWAITS_MARKERS, ProduceAction, produce_action
from kafkagroup.wire.messages.produce import PartitionProduceResponse, ProduceResponse

__all__ = ["Attempts"]

_PROMPT_ATTEMPTS = 2
"""Attempts up to which a batch is sent to another leader without a pause."""

_ADVICE = "check the brokers that lead the partition, its replicas, and what this client may write"


class Attempts:
    """Ends attempts: each batch is acknowledged, retried, split, or has failed."""

    def __init__(
        self,
        cluster: Cluster,
        watch: MetadataWatch,
        clock: Callable[[], float],
        on_end: Callable[[PartitionQueue, ProduceBatch], None],
        *,
        is_idempotent: bool,
        is_transactional: bool,
    ) -> None:
        """`clock`: returns the loop's time. `on_end` is called when an attempt has ended: the batch
        is not in flight any more. It has ended, or is in its queue again."""
        self._cluster = cluster
        self._watch = watch
        self._clock = clock
        self._on_end = on_end
        self._is_transactional = is_transactional
        self._has_own_epochs = is_idempotent and not is_transactional
        """Whether the producer can begin a new epoch by itself."""
        self.written_records = 0
        """The number of records that were acknowledged since the start."""
        self.written_bytes = 0
        """The bytes of their batches, as they were sent."""

    def assume_written(self, node_id: int, taken: Taken) -> None:
        """End batches for which no response was requested (acks=0)."""
        for queue, batch in taken:
            self._acknowledged(queue, batch, node_id, -1, -1, self._clock())
            self._on_end(queue, batch)

    def on_no_response(self, taken: Taken, error: KafkaGroupError, *, was_sent: bool) -> None:
        """Retry batches whose request got no response. If it was sent, they may be in the log."""
        now = self._clock()
        for queue, batch in taken:
            at = self._retry_at(batch, now)
            if was_sent:
                self._retry_unknown(queue, batch, error, now, at)
            else:
                queue.put_back(batch, at)
                self._report(queue, error, now)
            self._on_end(queue, batch)
        self._watch.refresh(error)

    def on_refused_request(self, taken: Taken, error: KafkaGroupError, *, was_sent: bool) -> None:
        """Fail batches whose request is not repeated, such as one that the broker has no version
        of."""
        for queue, batch in taken:
            if was_sent:
                batch.is_maybe_written = True
                queue.failed(batch, error)
            else:
                if not batch.has_ended:
                    batch.fail(error)  # first: `put_back` drops a batch that has ended
                queue.put_back(batch, self._clock())
            self._on_end(queue, batch)

    def on_response(self, node_id: int, taken: Taken, response: ProduceResponse) -> None:
        """End each attempt by the part of its partition."""
        now = self._clock()
        parts = by_partition(response)
        named = {queue.tp: parts[queue.tp] for queue, _ in taken if queue.tp in parts}
        leaders = named_leaders(self._cluster.metadata, response.node_endpoints, named)
        if leaders is not None:
            self._cluster.apply_leaders(leaders)
        for queue, batch in taken:
            part = named.get(queue.tp)
            if part is not None and part.error_code:
                self._on_refused(queue, batch, node_id, part, now)
            elif part is not None and part.base_offset >= 0:
                offset, append_time = part.base_offset, part.log_append_time_ms
                self._acknowledged(queue, batch, node_id, offset, append_time, now)
            else:  # also a success without an offset, which proves nothing
                at = self._retry_at(batch, now)
                self._retry_unknown(queue, batch, no_response_for(queue.tp), now, at)
            self._on_end(queue, batch)

    def _acknowledged(
        self,
        queue: PartitionQueue,
        batch: ProduceBatch,
        node_id: int,
        base_offset: int,
        append_time: int,
        now: float,
    ) -> None:
        """Acknowledge a batch. `base_offset` and `append_time`: -1 if they are not known."""
        self.written_bytes += len(batch.data or b"")
        self.written_records += 0 if batch.has_ended else batch.count
        queue.acknowledged(batch, node_id, base_offset, append_time, now)
        self._watch.forget(queue.tp)
        if self._cluster.troubles.ongoing:  # else no failure to end
            self._cluster.troubles.succeeded(queue.tp, now)

    def _on_refused(
        self,
        queue: PartitionQueue,
        batch: ProduceBatch,
        node_id: int,
        part: PartitionProduceResponse,
        now: float,
    ) -> None:
        error = refusal(queue.tp, part)
        awaits_markers = self._is_transactional and part.error_code in PRODUCE_AWAITS_MARKERS
        at = self._retry_at(batch, now, MARKER_PAUSE if awaits_markers else None)
        match produce_action(part.error_code):
            case ProduceAction.REFRESH:
                # If the metadata has another leader by now, such as one that the response names,
                # the batch is sent to it at once, but not again and again: brokers may name each
                # other. Otherwise this broker may lag behind: wait.
                leader = self._cluster.metadata.leader_node(queue.tp)
                has_moved = leader is not None and leader.node_id != node_id
                is_prompt = has_moved and batch.attempts <= _PROMPT_ATTEMPTS
                self._retry_unknown(queue, batch, error, now, now if is_prompt else at)
                if not is_prompt:
                    self._watch.refresh(error)
            case ProduceAction.RETRY_UNKNOWN:
                self._retry_unknown(queue, batch, error, now, at)
            case ProduceAction.RETRY:
                self._retry(queue, batch, error, now, at)
            case ProduceAction.OUT_OF_ORDER if self._is_retried_out_of_order(queue, batch):
                queue.out_of_order(batch, at)
                self._report(queue, error, now)
            case ProduceAction.DUPLICATE if batch.is_maybe_written:
                self._acknowledged(queue, batch, node_id, -1, -1, now)
            case ProduceAction.DUPLICATE | ProduceAction.NEW_EPOCH if self._has_own_epochs:
                queue.epoch_refused(batch, at)
                self._report(queue, error, now)
            case ProduceAction.NEW_ID if self._has_own_epochs:
                queue.id_refused(batch, at)
                self._report(queue, error, now)
            case ProduceAction.NEW_EPOCH if part.error_code == ErrorCode.UNKNOWN_PRODUCER_ID:
                queue.producer_unknown(batch, at)
                self._report(queue, error, now)
            case ProduceAction.OUT_OF_ORDER | ProduceAction.DUPLICATE | ProduceAction.NEW_EPOCH:
                queue.number_refused(batch, error)
            # Halves of a batch that may be in the log would be there a second time.
            case ProduceAction.SPLIT if batch.count > 1 and not (
                batch.has_ended or batch.is_maybe_written
            ):
                halves = split(batch)
                queue.split(batch, halves, now)
            case ProduceAction.FAIL_UNKNOWN:
                batch.is_maybe_written = True
                queue.failed(batch, error)
            case _:
                queue.failed(batch, error)

    def _is_retried_out_of_order(self, queue: PartitionQueue, batch: ProduceBatch) -> bool:
        """Whether to send a batch again that the leader found out of order: because a batch before
        it is sent again, or because an idempotent producer can begin a new epoch by itself."""
        if self._is_transactional:
            return not queue.is_next(batch)
        return self._has_own_epochs

    def _retry_unknown(
        self,
        queue: PartitionQueue,
        batch: ProduceBatch,
        error: KafkaGroupError,
        now: float,
        at: float,
    ) -> None:
        """Retry at `at` a batch whose outcome is unknown: it may be in the log."""
        batch.is_maybe_written = True
        self._retry(queue, batch, error, now, at)

    def _retry(
        self,
        queue: PartitionQueue,
        batch: ProduceBatch,
        error: KafkaGroupError,
        now: float,
        at: float,
    ) -> None:
        queue.retry(batch, at)
        self._report(queue, error, now)

    def _retry_at(self, batch: ProduceBatch, now: float, first: float | None = None) -> float:
        """Return when to send a batch again, after a backoff. `first`: the seconds of its first
        backoff; None: `retry_backoff`."""
        options = self._cluster.options
        pause = backoff(
            max(batch.attempts, 1),
            options.retry_backoff if first is None else first,
            options.retry_backoff_max,
            random.random(),
        )
        return now + pause

    def _report(self, queue: PartitionQueue, error: KafkaGroupError, now: float) -> None:
        self._watch.note(queue.tp, error)
        problem = Problem(
            subject=f"writing to {queue.tp}",
            cause=str(error),
            advice=_ADVICE,
            topic=queue.tp.topic,
        )
        self._cluster.troubles.failed(queue.tp, now, problem)
