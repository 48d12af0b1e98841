"""Runs the queues of a producer: from an accepted record to its acknowledgement or error.

A queue with something to send is given to the `BrokerSender` of its leader; one without a leader
waits until `MetadataWatch` has found it.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from functools import partial

import anyio

from kafkagroup._backoff import backoff
from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import Spawn
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ErrorCode,
    KafkaGroupError,
    RequestTimeoutError,
    TransactionAbortedError,
)
from kafkagroup.produce.accumulator import Accumulator
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.identity import NO_IDENTITY, Identities
from kafkagroup.produce.partition_queue import MAX_IN_FLIGHT, PartitionQueue
from kafkagroup.produce.splitting import split
from kafkagroup.produce.topic_queues import TopicQueues
from kafkagroup.runtime.member.metrics import Meter
from kafkagroup.runtime.produce.alarms import Alarms
from kafkagroup.runtime.produce.broker_sender import BrokerSender, Taken
from kafkagroup.runtime.produce.metadata_watch import MetadataWatch
from kafkagroup.runtime.produce.metrics import ProducerMetrics
from kafkagroup.runtime.produce.produce_response import (
    by_partition,
    named_leaders,
    no_response_for,
    refusal,
)
from kafkagroup.runtime.produce.producer_ids import ProducerIds
from kafkagroup.runtime.produce.record_future import wait_ended_or_moved
from kafkagroup.runtime.produce.record_outcomes import RecordOutcomes
from kafkagroup.runtime.produce.transactions import MARKER_PAUSE, TransactionManager
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.error_codes import PRODUCE_AWAITS_MARKERS, ProduceAction, produce_action
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

__all__ = ["Sender"]

_THREAD_BYTES = {
    Codec.GZIP: 32_768,
    Codec.ZSTD: 262_144,
    Codec.LZ4: 1_048_576,
    Codec.SNAPPY: 1_048_576,
}
"""Codec -> the size of a batch's records from which on a thread compresses them: about the size
whose compression takes a millisecond."""

_CONNECTION = "produce"
"""The id of the connection to each broker for Produce requests."""

_HIGHEST_VERSION = 12
"""The highest version of Produce that is sent: later ones name topics by id."""

_PROMPT_ATTEMPTS = 2
"""Attempts up to which a batch is sent to another leader without a pause."""

_LATE_PAUSE = 1.0
"""Seconds between two checks of a transaction that is open after its deadline."""

_ADVICE = "check the brokers that lead the partition, its replicas, and what this client may write"


class Sender:
    """Sends what an `Accumulator` has accepted."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        identities: Identities | None,
        spawn: Spawn,
        *,
        acks: int,
        codec: Codec,
        level: int | None,
        linger: float,
        delivery_timeout: float,
        max_request_size: int,
        metadata_max_age: float,
        transactions: TransactionManager | None = None,
    ) -> None:
        """`identities`: None for a producer that is not idempotent; `transactions`: None for one
        that is not transactional. `level`: of the compression; None for the codec's default. Times
        are in seconds."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._identities = identities
        self._spawn = spawn
        self._acks = acks
        self._codec = codec
        self._level = level
        self._linger = linger
        self._delivery_timeout = delivery_timeout
        self._max_request_size = max_request_size
        self._alarms = Alarms()
        self._expiring: set[PartitionQueue | TopicQueues] = set()
        """The queues and topics for whose earliest deadline an alarm is set."""
        self._brokers: dict[int, BrokerSender] = {}
        self._watch = MetadataWatch(
            cluster,
            accumulator,
            spawn,
            self.dispatch,
            self._on_placed,
            self._follow_leaders,
            metadata_max_age,
        )
        self._transactions = transactions
        self._transaction_alarm_at = math.inf
        """The time of the alarm for the deadline of a transaction; infinity without one."""
        self._ids: ProducerIds | None = None
        if identities is not None and transactions is None:
            self._ids = ProducerIds(cluster, identities, spawn, self._on_id)
        self.outcomes = RecordOutcomes(accumulator, transactions)
        self._responded = ChangeSignal()
        self._clock = loop_clock()
        self._meter = Meter()
        self._written_records = self._written_bytes = 0
        self._retried_batches = 0
        self._reached: set[int] = set()
        """With acks=0: the brokers whose connection has been opened, and was not seen closed."""
        self._unsent: dict[int, tuple[Taken, anyio.CancelScope]] = {}
        """Broker -> the batches that wait until it can be reached, and the scope of that wait."""
        self._retry_alarms: dict[PartitionQueue, float] = {}
        """Queue -> the time of the alarm for its last retry."""
        accumulator.clock = self._clock  # which does not look up the loop each time
        accumulator.on_open = self._on_open
        accumulator.on_unplaced = self._on_unplaced
        if linger:
            accumulator.on_full = self._push_all

    def start(self) -> None:
        """Start the background tasks."""
        self._spawn(self._alarms.run, "deadlines")
        self._watch.start()
        if self._ids is not None:
            self._ids.request()

    # ------------------------------------------------------------ from the accumulator

    def _on_open(self, queue: PartitionQueue) -> None:
        assert queue.open is not None
        self._accumulator.topics[queue.tp.topic].used_at = self._clock()
        self._set_expiry(queue)
        if self._linger:
            due_at = queue.open.created_at + self._linger
            self._alarms.set(due_at, partial(self.dispatch, queue))
        if queue.closed or not self._linger:
            self.dispatch(queue)

    def _on_unplaced(self, topic: TopicQueues) -> None:
        self._watch.find(topic)
        self._set_expiry(topic)

    def dispatch(self, queue: PartitionQueue) -> None:
        """Give a queue that is not empty to the `BrokerSender` of its leader, or have an unknown
        leader looked up; if the partition has vanished, fail what no request has. Called whenever
        the queue may have another batch to send."""
        if queue.is_idle:
            return
        count = self._accumulator.topics[queue.tp.topic].count
        if queue.tp.partition >= count:
            self.outcomes.fail_waiting(queue, _vanished(queue.tp, count))
            return
        node = self._cluster.metadata.leader_node(queue.tp)
        if node is None:
            self._watch.find_leader(queue)
            return
        broker = self._brokers.get(node.node_id)
        if broker is None:
            take = partial(self._take, node.node_id)
            exchange = partial(self._exchange, node.node_id)
            broker = BrokerSender(take, exchange, self._spawn, MAX_IN_FLIGHT)
            self._brokers[node.node_id] = broker
        broker.add(queue)

    async def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions, as soon as it is known. A missing topic is
        created where the brokers do so. Raises: BrokerError; ConfigurationError."""
        return await self._watch.partition_count(self._accumulator.topic(topic))

    async def finds_partition(self, topic: str, partition: int | None) -> bool:
        """Look up a partition that was not known. Return whether it is now. Raises: as
        `Cluster.refresh`."""
        return await self._watch.finds_partition(topic, partition)

    def find_partition_soon(self, topic: str, partition: int | None) -> None:
        """Look up a partition that was not known, in the background."""
        self._watch.find_partition_soon(topic, partition)

    def cause(self, topic: str) -> KafkaGroupError | None:
        """Return why the partitions of a topic are not known yet, if that is known."""
        return self._watch.cause(TopicPartition(topic, -1))

    def _on_placed(self, topic: TopicQueues, unplaced: ProduceBatch) -> None:
        """Note the end of `unplaced`: its records, which waited for the partitions of a topic, were
        moved to queues, or have failed."""
        self.outcomes.note_end(unplaced)
        for batch, _ in unplaced.moved or ():
            if batch.has_ended:
                self.outcomes.note_end(batch)

    def _follow_leaders(self) -> None:
        """Act on new metadata: what waits for a broker that is not the leader any more, because it
        cannot be reached or has too many requests in flight, is sent to the new leader."""
        for node_id, (taken, wait) in self._unsent.items():
            if not all(self._is_led_by(node_id, queue) for queue, _ in taken):
                wait.cancel()
        for queue in self._accumulator.queues():
            if queue.has_waiting:
                self.dispatch(queue)

    def _is_led_by(self, node_id: int, queue: PartitionQueue) -> bool:
        leader = self._cluster.metadata.leader_node(queue.tp)
        return leader is not None and leader.node_id == node_id

    def _on_id(self, error: KafkaGroupError | None) -> None:
        """Send what waited for a producer id; or, with the `error` by which the brokers refuse one,
        fail all records."""
        if error is not None:
            self.fail_all(error)
        for queue in self._accumulator.queues():
            self.dispatch(queue)

    def leave_cluster(self) -> None:
        """Request another producer id: the client writes to another cluster from now on. A
        transactional producer cannot: its id is the coordinator's."""
        if self._ids is not None and self._identities is not None:
            for queue in self._accumulator.queues():
                queue.leave_cluster()
            self._identities.current = NO_IDENTITY
            self._ids.request()

    # ------------------------------------------------------------ requests

    def _take(self, node_id: int, ready: OrderedDict[PartitionQueue, None]) -> Taken:
        """Take the batches of the next request to a broker from the queues that are ready."""
        taken: list[tuple[PartitionQueue, ProduceBatch]] = []
        now, size = self._clock(), 0
        for queue in tuple(ready):
            batch = self._next(queue, node_id, now)
            if batch is None:
                del ready[queue]
                continue
            added = len(batch.data) if batch.data is not None else len(batch.records)
            if taken and size + added > self._max_request_size:
                break
            size += added
            queue.taken(batch)
            taken.append((queue, batch))
            if queue.has_waiting:
                ready.move_to_end(queue)  # each gets its turn
            else:
                del ready[queue]
        return taken

    def _next(self, queue: PartitionQueue, node_id: int, now: float) -> ProduceBatch | None:
        """Close what has lingered, and return the batch that may be sent; without one, set the
        alarm for a retry, or request an id."""
        if not self._is_led_by(node_id, queue):
            self.dispatch(queue)  # to the new leader
            return None
        queue.follow(node_id, self._cluster.metadata.topics[queue.tp.topic].topic_id)
        if (
            queue.open is not None
            and not queue.closed
            and queue.open.created_at + self._linger <= now
        ):
            queue.close_open()
        batch = queue.next(now)
        if batch is None:
            if now < queue.retry_at and self._retry_alarms.get(queue) != queue.retry_at:
                self._retry_alarms[queue] = queue.retry_at
                self._alarms.set(queue.retry_at, partial(self.dispatch, queue))
            if self._ids is not None and queue.closed:
                self._ids.request()  # does nothing if there is one
        return batch

    async def _exchange(
        self,
        node_id: int,
        taken: Taken,
        on_sent: Callable[[], None],
        on_answered: Callable[[], None],
    ) -> None:
        sent_at: float | None = None
        is_answered = False

        def sent() -> None:
            nonlocal sent_at
            sent_at = self._clock()
            on_sent()

        def answered(response: ProduceResponse) -> None:
            # Called as soon as the response is read: the senders of its records, woken here, run
            # before this task, which then sends what they write next.
            nonlocal is_answered
            is_answered = True
            on_answered()
            if sent_at is not None:
                now = self._clock()
                self._meter.record(now, now - sent_at)
            self._on_response(node_id, taken, response)

        try:
            if self._transactions is not None:
                await self._transactions.add_partitions([queue.tp for queue, _ in taken])
            await self._encode(taken)
            node = self._cluster.metadata.nodes.get(node_id)
            if node is None:
                self._on_no_response(taken, _unknown_broker(node_id), was_sent=False)
                return
            broker = self._cluster.broker(node)
            if self._acks == 0:
                if node_id in self._reached and not broker.is_connected(_CONNECTION):
                    # A broker that refuses records has no response to say so in: it closes the
                    # connection, as after its partition got another leader.
                    self._reached.discard(node_id)
                    await self._cluster.refresh()
                    self._put_back(taken)
                    return
                self._reached.add(node_id)
            if not (broker.is_ready(_CONNECTION) or await self._reach(broker, taken)):
                return
            taken = self._without_ended(taken)
            if not taken:
                return
            # From now on nothing stops the request: a batch that expires before the request is sent
            # may still be written.
            for _, batch in taken:
                self._retried_batches += batch.attempts > 0
                batch.attempts += 1
            request = self._request_of(taken)
            if self._acks == 0:
                await broker.send_only(
                    request, connection_id=_CONNECTION, highest=_HIGHEST_VERSION, on_sent=sent
                )
                self._assume_written(node_id, taken)
                return
            await broker.request(
                request,
                connection_id=_CONNECTION,
                highest=self._highest_version(),
                on_sent=sent,
                on_response=answered,
            )
        except KafkaGroupError as error:
            if is_answered:
                raise  # by what handles the response, such as a log handler of the application
            if isinstance(error, RETRIED_ERRORS):
                self._on_no_response(taken, error, was_sent=sent_at is not None)
            else:
                self._on_refused_request(taken, error, was_sent=sent_at is not None)

    async def _encode(self, taken: Taken) -> None:
        for _, batch in taken:
            if batch.has_ended:
                continue
            is_transactional = self._transactions is not None
            encode = partial(batch.encode, self._codec, self._level, is_transactional)
            if len(batch.records) >= _THREAD_BYTES.get(self._codec, math.inf):
                await self._cluster.options.run_in_thread(encode)
            else:
                encode()

    async def _reach(self, broker: BrokerClient, taken: Taken) -> bool:
        """Wait until a request to the broker would be sent at once. Return False, with the batches
        in their queues again, if a partition has got another leader meanwhile."""
        with anyio.CancelScope() as wait:
            self._unsent[broker.node_id] = taken, wait
            try:
                await broker.ready(_CONNECTION)
            finally:
                del self._unsent[broker.node_id]
        if wait.cancelled_caught:
            self._put_back(taken)
        return not wait.cancelled_caught

    def _put_back(self, taken: Taken) -> None:
        """Put batches that were not sent back into their queues."""
        for queue, batch in taken:
            queue.put_back(batch, self._clock())
            self._on_attempt_ended(queue, batch)

    def _without_ended(self, taken: Taken) -> Taken:
        """Put back the batches that have expired since they were taken: the application knows that
        they were not written. Return the others."""
        ended = [(queue, batch) for queue, batch in taken if batch.has_ended]
        if not ended:
            return taken
        remaining = [(queue, batch) for queue, batch in taken if not batch.has_ended]
        self._put_back(ended)
        return remaining

    def _request_of(self, taken: Taken) -> ProduceRequest:
        transactions = self._transactions
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for queue, batch in taken:
            assert batch.data is not None
            data = memoryview(batch.data)
            part = PartitionProduceData(index=queue.tp.partition, records=data)
            by_topic.setdefault(queue.tp.topic, []).append(part)
        return ProduceRequest(
            transactional_id=None if transactions is None else transactions.transactional_id,
            acks=self._acks,
            timeout_ms=round(self._cluster.options.request_timeout * 1000),
            topic_data=tuple(
                TopicProduceData(name=topic, partition_data=tuple(parts))
                for topic, parts in by_topic.items()
            ),
        )

    def _highest_version(self) -> int:
        if self._transactions is None:
            return _HIGHEST_VERSION
        return self._transactions.produce_highest_version() or _HIGHEST_VERSION

    # ------------------------------------------------------------ responses

    def _assume_written(self, node_id: int, taken: Taken) -> None:
        """End batches for which no response was requested (acks=0)."""
        for queue, batch in taken:
            self._acknowledged(queue, batch, node_id, -1, -1, self._clock())
            self._on_attempt_ended(queue, batch)

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
        self._written_bytes += len(batch.data or b"")
        self._written_records += 0 if batch.has_ended else batch.count
        queue.acknowledged(batch, node_id, base_offset, append_time, now)
        self._watch.forget(queue.tp)
        if self._cluster.troubles.ongoing:  # else no failure to end
            self._cluster.troubles.succeeded(queue.tp, now)

    def _on_no_response(self, taken: Taken, error: KafkaGroupError, *, was_sent: bool) -> None:
        """Retry batches whose request got no response. If it was sent, they may be in the log."""
        now = self._clock()
        for queue, batch in taken:
            at = self._retry_at(batch, now)
            if was_sent:
                self._retry_unknown(queue, batch, error, now, at)
            else:
                queue.put_back(batch, at)
                self._report(queue, error, now)
            self._on_attempt_ended(queue, batch)
        self._watch.refresh(error)

    def _on_refused_request(self, taken: Taken, error: KafkaGroupError, *, was_sent: bool) -> None:
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
            self._on_attempt_ended(queue, batch)

    def _on_response(self, node_id: int, taken: Taken, response: ProduceResponse) -> None:
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
            self._on_attempt_ended(queue, batch)

    def _on_refused(
        self,
        queue: PartitionQueue,
        batch: ProduceBatch,
        node_id: int,
        part: PartitionProduceResponse,
        now: float,
    ) -> None:
        error = refusal(queue.tp, part)
        awaits_markers = (
            self._transactions is not None and part.error_code in PRODUCE_AWAITS_MARKERS
        )
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
            case ProduceAction.DUPLICATE | ProduceAction.NEW_EPOCH if self._ids is not None:
                queue.epoch_refused(batch, at)
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
        if self._transactions is not None:
            return not queue.is_next(batch)
        return self._identities is not None

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

    def _on_attempt_ended(self, queue: PartitionQueue, batch: ProduceBatch) -> None:
        """Act on the end of an attempt: the batch is not in flight any more. It has ended, or is in
        its queue again."""
        if batch.has_ended:
            self.outcomes.note_end(batch)
        self.outcomes.fail_not_in_flight_if_aborted()
        self._set_expiry(queue)
        self._responded.notify()
        self.dispatch(queue)

    # ------------------------------------------------------------ ends

    def _set_expiry(self, of: PartitionQueue | TopicQueues) -> None:
        """Set an alarm for the earliest deadline in a queue, or for that of the records that wait
        for a topic's partitions, unless one is set."""
        if of in self._expiring:
            return
        unplaced = of.unplaced if isinstance(of, TopicQueues) else None
        if isinstance(of, PartitionQueue) and not of.is_idle:
            at = of.next_deadline()
        elif unplaced is not None:
            at = unplaced.deadline
        else:
            return
        if at < float("inf"):
            self._expiring.add(of)
            self._alarms.set(at, partial(self._expire, of))

    def _expire(self, of: PartitionQueue | TopicQueues) -> None:
        """Fail the records whose deadline has passed, and set the next alarm."""
        self._expiring.discard(of)
        now = self._clock()
        if isinstance(of, PartitionQueue):
            for batch in of.expire(now, self._timeout_error(of.tp)):
                if batch in of.in_flight:  # its memory is still in use
                    self.outcomes.note_failure(batch)
                else:
                    self.outcomes.note_end(batch)
            self.outcomes.fail_not_in_flight_if_aborted()
            self.dispatch(of)
        elif (unplaced := of.unplaced) is not None and unplaced.deadline <= now:
            of.unplaced = None
            unplaced.fail(self._timeout_error(unplaced.tp))
            self.outcomes.note_end(unplaced)
        self._set_expiry(of)

    def expire_transaction_at(self, at: float, why: Callable[[], KafkaGroupError]) -> None:
        """At `at`, fail the records of the open transaction that are not acknowledged, if its
        deadline has passed by then. `why` returns the error."""
        if at < self._transaction_alarm_at:  # else the earlier alarm sets one for this deadline
            self._transaction_alarm_at = at
            self._alarms.set(at, partial(self._expire_transaction, why))

    def _expire_transaction(self, why: Callable[[], KafkaGroupError]) -> None:
        manager, now = self._transactions, self._clock()
        if now >= self._transaction_alarm_at:
            self._transaction_alarm_at = math.inf
        if manager is None or not (manager.is_open or manager.must_abort):
            return
        if now < manager.abort_at:
            self.expire_transaction_at(manager.abort_at, why)
            return
        if manager.must_abort and manager.error is not None:
            error: KafkaGroupError = TransactionAbortedError(manager.error)
        else:
            error = why()
        for queue in self._accumulator.queues():
            for batch in queue.in_flight:
                if not batch.has_ended:
                    batch.is_maybe_written = batch.is_maybe_written or batch.attempts > 0
                    batch.fail(error)
                    self.outcomes.note_failure(batch)  # its memory is still in use
        self.outcomes.fail_not_in_flight(error)
        # If no record has failed, the transaction is still open, and its block may write more.
        self.expire_transaction_at(now + _LATE_PAUSE, why)

    def fail_all(self, error: KafkaGroupError) -> None:
        """Fail all records that have not ended."""
        self.outcomes.fail_all(lambda _: error)

    def fail_late(self, timeout: float) -> None:
        """Fail all records that were not acknowledged within the `timeout` of the close, in
        seconds."""
        self.outcomes.fail_all(partial(self._late_error, f"{timeout:g} s"))

    def _timeout_error(self, tp: TopicPartition) -> KafkaGroupError:
        return self._late_error(f"delivery_timeout_ms={self._delivery_timeout * 1000:g}", tp)

    def _late_error(self, within: str, tp: TopicPartition) -> KafkaGroupError:
        """Return the error of a partition's records that are late, with the cause if one is
        known."""
        cause = self._watch.cause(tp)
        if cause is None and self._ids is not None:
            cause = self._ids.error
        text = f"no acknowledgement within {within}" + (f": {cause}" if cause is not None else "")
        node = self._cluster.metadata.leader_node(tp)
        if node is not None and (seconds := self._cluster.broker(node).throttled_seconds) > 0:
            text += f"; broker {node.node_id} throttles this client for another {seconds:.2g} s"
        return RequestTimeoutError(text)

    async def abandon(self, error: KafkaGroupError) -> None:
        """Fail each batch that no request has; return as soon as no request has any."""
        while True:
            self.outcomes.fail_not_in_flight(error)
            if not any(queue.in_flight for queue in self._accumulator.queues()):
                return
            await self._responded.wait()

    def needs_epoch(self) -> bool:
        """Whether a partition needs another epoch from the transaction coordinator, once nothing is
        in flight. One that has vanished does not: it would need another for each transaction."""
        return any(
            queue.needs_coordinator_epoch
            for topic in self._accumulator.topics.values()
            for queue in topic.queues[: topic.count]
        )

    async def flush(self) -> None:
        """Send what lingers, and wait until all records that were accepted so far have ended.
        Raises: NotWrittenError for failures that were not awaited."""
        # The failures of these are raised here even if another task has raised them meanwhile: the
        # caller must not take its records for written.
        waited = await self.wait_all()
        self.outcomes.raise_unread(waited)

    async def wait_all(self) -> Collection[ProduceBatch]:
        """Send what lingers, and wait until all records that were accepted so far have ended.
        Return their batches."""
        pending = deque(self._accumulator.unfinished())
        seen = dict.fromkeys(pending)
        for batch in tuple(pending):  # all, before the first one ends
            self._push(batch)
        while pending:
            batch = pending.popleft()
            await wait_ended_or_moved(batch)
            for other, _ in batch.moved or ():
                if other not in seen:
                    seen[other] = None
                    pending.append(other)
                    self._push(other)
        return seen.keys()

    def _push_all(self) -> None:
        """Send the open batches of all queues now: there is no room for more records."""
        for queue in self._accumulator.queues():
            if queue.open is not None:
                queue.close_open()
                self.dispatch(queue)

    def _push(self, batch: ProduceBatch) -> None:
        """Send a batch now, if it is the open one of its queue."""
        topic = self._accumulator.topics.get(batch.tp.topic)
        if topic is None or not 0 <= batch.tp.partition < len(topic.queues):
            return
        queue = topic.queues[batch.tp.partition]
        if queue.open is batch:
            queue.close_open()
            self.dispatch(queue)

    # ------------------------------------------------------------ reports

    def _report(self, queue: PartitionQueue, error: KafkaGroupError, now: float) -> None:
        self._watch.note(queue.tp, error)
        problem = Problem(
            subject=f"writing to {queue.tp}",
            cause=str(error),
            advice=_ADVICE,
            topic=queue.tp.topic,
        )
        self._cluster.troubles.failed(queue.tp, now, problem)

    @property
    def time(self) -> float:
        """The loop's time, in any thread."""
        return self._clock()

    def metrics(self) -> ProducerMetrics:
        """Return the metrics of the producer."""
        return ProducerMetrics(
            produce=self._meter.read(self._clock()),
            written_records=self._written_records,
            written_bytes=self._written_bytes,
            failed_records=self.outcomes.failed_records,
            retried_batches=self._retried_batches,
            buffered_bytes=self._accumulator.used,
        )


def _unknown_broker(node_id: int) -> KafkaGroupError:
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} has left the cluster")


def _vanished(tp: TopicPartition, count: int) -> KafkaGroupError:
    what = f"{tp} does not exist any more: the topic was recreated with fewer partitions ({count})"
    return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
