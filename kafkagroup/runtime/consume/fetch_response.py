"""Handles a fetch response: buffers the records of each partition, or acts on its error."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import NoReturn

from kafkagroup._text import escaped
from kafkagroup._values import frozen
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.consume.fetch_budget import FetchBudget
from kafkagroup.consume.fetch_in_flight import FetchInFlight
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.transactions import AbortedTransactions
from kafkagroup.errors import (
    BrokerError,
    CorruptRecordError,
    DecodeError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
    broker_error,
)
from kafkagroup.runtime.consume.fetch_request import partitions_of
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.refusals import Refusals, retry_time
from kafkagroup.runtime.consume.session import Session
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import NamedLeaders, Node
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import FETCH_ACTIONS, REFUSED_TOPIC_ID, FetchAction, fetch_action
from kafkagroup.wire.messages.fetch import FetchResponse, PartitionData
from kafkagroup.wire.records import RecordBatch, read_batches

__all__ = ["FetchOutcome", "ResponseHandler", "ResponseProcessing"]

logger = logging.getLogger(__name__)

_MAX_BATCHES = 20_000
"""The limit of batches of one partition that are taken from one response; the rest is fetched
again. As objects, small batches need three times their bytes, long before the application reads
them."""

_SLICE = 500
"""Batches that are read before other tasks run: some milliseconds' work where they are small."""

_MAX_BLOCKED = 0.001
"""Seconds that processing a response may block the event loop before other tasks run."""

_PROMPT_FAILURES = 2
"""Failures in a row up to which a partition is fetched from a named leader without a pause."""

_SMALL_RESPONSE = 65_536
"""Bytes of records that the application processes in less time than a request takes. After a larger
response the next request is sent before the application runs, so that the broker works
meanwhile."""

_MAX_REPLICA_REFUSALS = 2
"""How often in a row a replica fails to serve a partition before the partition is read from its
leader for `metadata_max_age`: the leader would name the same replica again."""

_ReadResult = tuple[list[RecordBatch], DecodeError | None]
"""The batches of one partition, and the error in the data after them, if any."""


@frozen
class FetchOutcome:
    """The result of a fetch."""

    is_metadata_stale: bool
    """Whether an error shows that the metadata must be refreshed."""
    is_empty: bool
    """Whether the response had neither records nor errors."""


ResponseProcessing = Generator[None, None, FetchOutcome]
"""The processing of one response; it yields where other tasks may run."""


class ResponseHandler:
    """Applies fetch responses to the session's `Delivery`."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        budget: FetchBudget,
        refusals: Refusals,
        engine: FetchControl,
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._delivery = session.delivery
        self._options = session.options
        self._budget = budget
        self._refusals = refusals
        self._troubles = cluster.troubles
        self._engine = engine
        self._clock = loop_clock()

    def process(
        self,
        fetch: FetchInFlight,
        response: FetchResponse,
        ends: dict[TopicPartition, int],
        node: Node,
    ) -> ResponseProcessing:
        """Process the response to `fetch` from `node`. `ends`: the ends of the logs that responses
        in the same fetch session have reported; those in this response are added to it.

        Raises: TransportError if the response as a whole has an error.
        """
        if response.error_code:
            self._raise_error_of_all(fetch, response.error_code, node)
        if self._troubles.ongoing:  # nearly always empty
            self._troubles.succeeded(("fetch from", node.node_id), self._clock())
        is_stale, is_empty, received = False, True, 0
        unread, since = self._delivery.unread_bytes, self._clock()
        leaders = NamedLeaders(response.node_endpoints)
        for tp, data, evidence in partitions_of(response, fetch.topic_ids):
            if self._clock() - since > _MAX_BLOCKED:
                # Without this, checking the CRCs of 50 MB blocks the loop for more than 10 ms.
                yield
                since = self._clock()
            if not fetch.requests(tp):
                continue
            is_empty &= not (data.records or data.error_code)
            if not data.error_code:
                is_committed_only = self._options.isolation_level  # 1 for read_committed, else 0
                ends[tp] = data.last_stable_offset if is_committed_only else data.high_watermark
            if (owned := fetch.find(tp)) is None:
                continue
            # The earlier of two requests may have gone to a former leader, see `fetch_in_flight`.
            if data.error_code and not fetch.is_latest(owned):
                continue
            # KIP-951: an error that names the new leader needs no metadata request. Without the
            # limit, brokers that name each other would be asked without a pause.
            if (
                data.error_code
                and leaders.add(self._cluster.metadata, tp, data.current_leader)
                and owned.count_failure() <= _PROMPT_FAILURES
            ):
                continue
            found = yield from self._read(tp, data)
            # Other tasks may have run meanwhile, and changed the position.
            if fetch.find(tp) is owned:
                topic_id = fetch.topic_ids[tp.topic]
                if data.error_code in REFUSED_TOPIC_ID and self._is_leader(tp, node.node_id):
                    owned.note_refused(topic_id)
                    self._engine.look_up_positions()
                elif not data.error_code:
                    owned.note_served(topic_id, evidence)
                is_stale |= self._take(owned, data, found, node.node_id)
                received += len(data.records or b"")
        self._cluster.apply_leaders(leaders)
        for owned in fetch.partitions:
            end = ends.get(owned.tp, owned.end)
            # A former leader may report an earlier end.
            if end != owned.end and fetch.is_of_current_leader(owned):
                owned.end = end
        if received:
            self._budget.on_records(unread)
        if received > _SMALL_RESPONSE:
            yield  # so that the next request is sent before the application runs
        if not is_empty:
            self._session.notify()
        return FetchOutcome(is_metadata_stale=is_stale, is_empty=is_empty)

    def _raise_error_of_all(self, fetch: FetchInFlight, code: int, node: Node) -> NoReturn:
        """Report the error of a response as a whole. Raises: TransportError."""
        broker = self._cluster.broker(node)
        if fetch_action(code) is FetchAction.RAISE:
            error = broker_error(code, f"fetching from {broker}")
            for owned in fetch.partitions:
                if fetch.covers(owned):
                    self._refusals.refuse(owned, error, about=("fetch from", node.node_id))
        else:
            problem = Problem(
                subject=f"fetching from {broker}",
                cause=str(BrokerError(code)),
                advice="check the log of that broker",
            )
            self._troubles.failed(("fetch from", node.node_id), self._clock(), problem)
        raise TransportError(f"{broker}: {BrokerError(code)}")

    def forget_replica(
        self, owned: OwnedPartition, node_id: int, error: Exception | None = None
    ) -> bool:
        """Fetch from the leader again if the partition is fetched from this replica; return whether
        it was. `error`: why the replica does not serve the partition; None if the time to fetch
        from the replica has passed."""
        replica = owned.replica
        if replica is None or replica.node_id != node_id:
            return False
        replica.node_id = -1
        if error is not None:
            self._count_replica_refusal(owned, node_id, error)
        self._engine.wake()  # the leader's lane does not fetch this partition yet
        return True

    def _count_replica_refusal(self, owned: OwnedPartition, node_id: int, error: Exception) -> None:
        """Count that a replica has not served the partition. If too many in a row have not, read
        from the leader for a while."""
        replica = owned.replica_choice()
        refusals = replica.count_refusal()
        # A timeout has already lasted as long as an application should wait.
        if refusals < _MAX_REPLICA_REFUSALS and not isinstance(error, RequestTimeoutError):
            return
        now, topic = self._clock(), escaped(owned.tp.topic)
        replica.avoid_replicas(
            now + self._options.metadata_max_age, f"broker {node_id} does not serve it: {error}"
        )
        problem = Problem(
            subject=f"fetching topic {topic} from broker {node_id}, the nearest replica",
            cause=str(error),
            advice="check that broker; the client reads from the leader meanwhile",
            has_own_finding=True,
        )
        self._troubles.failed(("replica", owned.tp), now, problem, warn_after=0.0)

    def _is_follower(self, owned: OwnedPartition, node_id: int) -> bool:
        """Whether another broker leads the partition now."""
        leader = self._cluster.metadata.leader(owned.tp)
        return leader is not None and leader.leader not in (-1, node_id)

    def _read(self, tp: TopicPartition, data: PartitionData) -> Generator[None, None, _ReadResult]:
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
                if len(batches) % _SLICE == 0 or self._clock() - since > _MAX_BLOCKED:
                    # A response may have a million small batches.
                    yield
                    since = self._clock()
        except DecodeError as error:
            return batches, error
        return batches, None

    def _take(
        self, owned: OwnedPartition, data: PartitionData, found: _ReadResult, node_id: int
    ) -> bool:
        """Buffer what `_read` found for one partition, or act on its error; return whether the
        metadata is stale."""
        if data.error_code:
            error = BrokerError(data.error_code)
            if self.forget_replica(owned, node_id, error) or self._is_follower(owned, node_id):
                # The error is not final before the leader responds: a follower may lag behind, or
                # no longer be a replica.
                self._back_off(owned)
                return False
            return self._act_on(owned, data.error_code, node_id)
        if data.preferred_read_replica >= 0:
            return self._redirect(owned, data.preferred_read_replica, node_id)
        owned.end_backoff()
        replica = owned.replica
        if replica is not None and replica.refusal_count and replica.node_id == node_id:
            replica.refusal_count = 0
            self._troubles.succeeded(("replica", owned.tp), self._clock())
        if self._troubles.ongoing:  # nearly always empty
            self._troubles.succeeded(("fetch", owned.tp), self._clock())
            self._refusals.end(owned)
        batches, damage = found
        # The batches before the damage are delivered first; the next fetch then begins at it.
        if damage is not None and not batches:
            self._engine.fail_partition(owned, damage)
        if data.records and not owned.failed and (reason := _no_progress(owned, data, batches)):
            tp = owned.tp
            self._engine.fail_partition(
                owned,
                CorruptRecordError(
                    reason, topic=tp.topic, partition=tp.partition, offset=owned.fetch_offset
                ),
            )
        self._delivery.add(owned, batches)
        return False

    def _redirect(self, owned: OwnedPartition, replica: int, node_id: int) -> bool:
        """Fetch from the nearer replica that a response names instead of returning records
        (KIP-392); return whether the metadata is stale."""
        if replica == node_id or replica not in self._cluster.metadata.nodes:
            error = RemoteProtocolError(f"broker {node_id} names it, and it cannot be fetched from")
            self._count_replica_refusal(owned, replica, error)
            self._back_off(owned)
            return True
        # This does not end the back-off: a leader and a follower that redirect to each other would
        # otherwise be asked without a pause.
        until = self._clock() + self._options.metadata_max_age
        owned.replica_choice().read_from(replica, until)
        self._engine.wake()
        return False

    def _is_leader(self, tp: TopicPartition, node_id: int) -> bool:
        leader = self._cluster.metadata.leader(tp)
        return leader is not None and leader.leader == node_id

    def _act_on(self, owned: OwnedPartition, code: int, node_id: int) -> bool:
        """Act on the error of one partition, and back off; return whether the metadata is stale."""
        action = fetch_action(code)
        error = broker_error(
            code,
            f"fetching {owned.tp} at {owned.fetch_offset}",
            operation="READ",
            topic=owned.tp.topic,
        )
        # `RangeCheck` logs what follows from a position out of range.
        level = logging.DEBUG if action is FetchAction.RESET else logging.INFO
        logger.log(level, "%s: %s", self._cluster.options.name, error)
        if action is FetchAction.RAISE:
            self._refusals.refuse(owned, error)
            self._back_off(owned)
            # A newer broker may send a code that this client does not know: it may mean that the
            # leader has changed.
            return code not in FETCH_ACTIONS
        self._back_off(owned)
        if action is FetchAction.RESET:
            # Not before all buffered records are delivered: a reset would drop these valid records.
            is_delivered = owned.position == owned.fetch_offset
            if is_delivered and self._is_leader(owned.tp, node_id):
                owned.is_out_of_range = True
                self._engine.look_up_positions()
            return False
        problem = Problem(
            subject=f"fetching topic {owned.tp.topic}",
            cause=str(BrokerError(code)),
            advice="check that the topic exists, and that the brokers agree on its leaders",
        )
        self._troubles.failed(("fetch", owned.tp), self._clock(), problem)
        return action is FetchAction.REFRESH

    def _back_off(self, owned: OwnedPartition) -> None:
        owned.retry_at = retry_time(self._cluster.options, owned.count_failure(), self._clock())


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
