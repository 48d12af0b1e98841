"""Runs the queues of a producer: from an accepted record to its acknowledgement or error.

A queue with something to send is given to the `BrokerSender` of its leader; one without a leader
waits until `MetadataWatch` has found it.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from functools import partial

import anyio

from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import Spawn
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ConnectionLostError,
    ErrorCode,
    KafkaGroupError,
    RequestTimeoutError,
)
from kafkagroup.produce.accumulator import Accumulator
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.identity import NO_IDENTITY, Identities
from kafkagroup.produce.partition_queue import MAX_IN_FLIGHT, PartitionQueue
from kafkagroup.produce.topic_queues import TopicQueues
from kafkagroup.runtime.member.metrics import Meter
from kafkagroup.runtime.produce.alarms import Alarms
from kafkagroup.runtime.produce.attempts import Attempts
from kafkagroup.runtime.produce.broker_sender import BrokerSender, Taken
from kafkagroup.runtime.produce.deadlines import Deadlines
from kafkagroup.runtime.produce.metadata_watch import MetadataWatch
from kafkagroup.runtime.produce.metrics import ProducerMetrics
from kafkagroup.runtime.produce.producer_ids import ProducerIds
from kafkagroup.runtime.produce.record_future import wait_ended_or_moved
from kafkagroup.runtime.produce.record_outcomes import RecordOutcomes
from kafkagroup.runtime.produce.transactions import TransactionManager
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.types import TopicPartition
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
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
        self._max_request_size = max_request_size
        self._alarms = Alarms()
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
        self._ids: ProducerIds | None = None
        if identities is not None and transactions is None:
            self._ids = ProducerIds(cluster, identities, spawn, self._on_id)
        self._responded = ChangeSignal()
        self._clock = loop_clock()
        self.outcomes = RecordOutcomes(accumulator, transactions)
        self.deadlines = Deadlines(
            accumulator,
            self.outcomes,
            self._alarms,
            transactions,
            self._clock,
            partial(self._late_error, f"delivery_timeout_ms={delivery_timeout * 1000:g}"),
            self.dispatch,
        )
        self._attempts = Attempts(
            cluster,
            self._watch,
            self._clock,
            self._on_attempt_ended,
            is_idempotent=identities is not None,
            is_transactional=transactions is not None,
        )
        self._meter = Meter()
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
        self.deadlines.arm(queue)
        if self._linger:
            due_at = queue.open.created_at + self._linger
            self._alarms.set(due_at, partial(self.dispatch, queue))
        if queue.closed or not self._linger:
            self.dispatch(queue)

    def _on_unplaced(self, topic: TopicQueues) -> None:
        self._watch.find(topic)
        self.deadlines.arm(topic)

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
            self._attempts.on_response(node_id, taken, response)

        try:
            if self._transactions is not None:
                await self._transactions.add_partitions([queue.tp for queue, _ in taken])
            await self._encode(taken)
            node = self._cluster.metadata.nodes.get(node_id)
            if node is None:
                self._attempts.on_no_response(taken, _unknown_broker(node_id), was_sent=False)
                return
            broker = self._cluster.broker(node)
            if self._acks == 0:
                if node_id in self._reached and not broker.is_connected(_CONNECTION):
                    # A broker that refuses records has no response to say so in: it closes the
                    # connection, as after its partition got another leader.
                    await self._watch.refreshed(_closed(node_id))
                    self._reached.discard(node_id)
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
                self._attempts.assume_written(node_id, taken)
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
                self._attempts.on_no_response(taken, error, was_sent=sent_at is not None)
            else:
                self._attempts.on_refused_request(taken, error, was_sent=sent_at is not None)

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

    def _on_attempt_ended(self, queue: PartitionQueue, batch: ProduceBatch) -> None:
        if batch.has_ended:
            self.outcomes.note_end(batch)
        self.outcomes.fail_not_in_flight_if_aborted()
        self.deadlines.arm(queue)
        self._responded.notify()
        self.dispatch(queue)

    # ------------------------------------------------------------ ends

    def fail_all(self, error: KafkaGroupError) -> None:
        """Fail all records that have not ended."""
        self.outcomes.fail_all(lambda _: error)

    def fail_late(self, timeout: float) -> None:
        """Fail all records that were not acknowledged within the `timeout` of the close, in
        seconds."""
        self.outcomes.fail_all(partial(self._late_error, f"{timeout:g} s"))

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

    @property
    def time(self) -> float:
        """The loop's time, in any thread."""
        return self._clock()

    def metrics(self) -> ProducerMetrics:
        """Return the metrics of the producer."""
        return ProducerMetrics(
            produce=self._meter.read(self._clock()),
            written_records=self._attempts.written_records,
            written_bytes=self._attempts.written_bytes,
            failed_records=self.outcomes.failed_records,
            retried_batches=self._retried_batches,
            buffered_bytes=self._accumulator.used,
        )


def _unknown_broker(node_id: int) -> KafkaGroupError:
    return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} has left the cluster")


def _closed(node_id: int) -> KafkaGroupError:
    return ConnectionLostError(f"broker {node_id} has closed the connection")


def _vanished(tp: TopicPartition, count: int) -> KafkaGroupError:
    what = f"{tp} does not exist any more: the topic was recreated with fewer partitions ({count})"
    return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
