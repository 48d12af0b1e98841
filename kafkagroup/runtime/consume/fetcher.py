"""Keeps the buffers full: decides which partitions to fetch, when, and over which connection.

Each broker that owned partitions are fetched from has a long poll in flight, one for each of the
`num_consumer_fetchers` lanes: the broker holds the request until it has records. The next long poll
is in flight while the application processes records. A partition that becomes fetchable meanwhile
(after a seek, a resume, an assignment or an offset look-up) and is not in the long poll is fetched
over a second connection to the broker, by immediate fetches: the broker responds to them at once,
so no request on that connection waits longer than a round trip. The next long poll includes these
partitions. The second connection is opened on first use, and closed after a minute without use.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar
from uuid import UUID

import anyio

from kafkagroup._values import define
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.concurrency.slices import Slices, are_many, process_in_slices
from kafkagroup.consume.fetch_budget import FetchBudget
from kafkagroup.consume.fetch_in_flight import FetchInFlight, ImmediateFetchSchedule
from kafkagroup.consume.fetch_session import FetchSession, SessionRequest, sessionless
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.plan import is_fetchable, partitions_to_fetch
from kafkagroup.errors import RETRIED_ERRORS, RequestTimeoutError
from kafkagroup.runtime.consume.fetch_request import HIGHEST_BY_NAME, fetch_request
from kafkagroup.runtime.consume.fetch_response import (
    FetchOutcome,
    ResponseHandler,
    ResponseProcessing,
)
from kafkagroup.runtime.consume.fetch_sources import FetchSources
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.refusals import Refusals
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.consume.validation import needs_validation
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.retry import RetryBackoff, part_of
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import FetchPartition, FetchResponse

__all__ = ["Fetcher"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MAX_EXTENDED_WAIT = 5.0
"""The longest time, in seconds, that a broker may hold a long poll after empty responses."""
_MIN_WAIT_TO_EXTEND = 0.5
"""A `fetch_max_wait` below this default (seconds) is never extended: the application chose it."""
_MAX_BUILT_IN_LOOP = 10_000
"""The limit of partitions in a request that is built without a thread: some milliseconds' work."""
_IMMEDIATE_CONNECTION = "fetch-immediate"
"""The id of the second connection to a broker, for immediate fetches."""
_CLOSE_UNUSED_AFTER = 60.0
"""Seconds without use after which the second connection is closed. An application that seeks more
often keeps it, and pays for one handshake of TLS and SASL; an idle consumer does not keep it."""


_NO_REQUEST = FetchOutcome(is_metadata_stale=False, is_empty=False)
"""The outcome without a request, or after a session error: the next request is sent at once."""


@define(eq=False)
class _ImmediateFetches:
    """The immediate fetches from one broker, over the second connection."""

    fetching: CoalescingTask
    """Sends the fetches."""
    closing: CoalescingTask
    """Closes the connection after a while without use."""
    is_woken: bool = False
    """Whether there may be partitions that `fetching` has not checked."""
    used_at: float = -math.inf
    """When the connection was last used, on the loop's clock."""

    def wake(self) -> None:
        """Have `fetching` check all partitions, once more if it already runs."""
        self.is_woken = True
        self.fetching.ensure_running()

    def begin_round(self) -> None:
        """Note that `fetching` checks all partitions now."""
        self.is_woken = False

    def note_use(self, now: float) -> None:
        """Note a use of the connection, which is closed after a while without use."""
        self.used_at = now
        self.closing.ensure_running()


class Fetcher:
    """Fetches records into the buffers of the session's `Delivery`."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        refusals: Refusals,
        engine: FetchControl,
        spawn: Spawn,
    ) -> None:
        self._cluster = cluster
        self._delivery = session.delivery
        self._delivery.on_room = self.wake_waiting
        self._options = session.options
        self._engine = engine
        self._budget = FetchBudget(self._options.fetch_max_bytes)
        self._sources = FetchSources(session, cluster, spawn)
        self._responses = ResponseHandler(session, cluster, self._budget, refusals, engine)
        self._timeout = cluster.options.request_timeout
        self._attempt_timeout = part_of(self._timeout)
        """How many seconds a response may take beyond the time for which the broker may hold the
        request. After that the request is sent again over a new connection: the old one may be
        dead."""
        self._slow: set[tuple[int, str]] = set()
        """Node id and connection id of each connection on which a fetch took longer than
        `_attempt_timeout`. The next fetch there gets the whole `_timeout`: the broker may be slow,
        and the connection alive."""
        self._clock = loop_clock()
        self._woken = OneShotEvent()
        """Set when the waiting tasks must check again what to fetch."""
        self._spawn = spawn
        self._running_lanes: set[tuple[int, int]] = set()
        """The lanes that have a task: the node id of a broker, and the number of the lane."""
        self._long_polls: dict[tuple[int, int], FetchInFlight] = {}
        """The long polls in flight, by lane."""
        self._immediate: dict[int, _ImmediateFetches] = {}
        """Node id -> the immediate fetches from that broker, once it has needed one."""
        self._last_fetch_id = 0
        self._wake_count = 0
        """The number of calls of `wake`."""
        self._must_check = False
        """Whether there may be partitions that `_start_fetches` has not checked."""
        self._starting = CoalescingTask(spawn, self._start_fetches, "lanes")

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that fetch requests in flight may return."""
        return self._budget.in_flight_bytes

    def wake(self) -> None:
        """Check what to fetch: there may be new partitions, leaders or positions."""
        self.wake_waiting()
        self._wake_count += 1
        # Not here but in a task, once for many calls: an application that seeks in a thousand
        # partitions would cause a thousand checks of all partitions.
        self._request_check()

    def _request_check(self) -> None:
        """Have `_start_fetches` check all partitions, once more if it already runs."""
        self._must_check = True
        self._starting.ensure_running()

    def wake_waiting(self) -> None:
        """Have the waiting tasks check again: there may be room, or more to fetch."""
        self._woken.set()
        self._woken = OneShotEvent()

    async def _start_fetches(self) -> None:
        """Start the task of each lane that has none, and immediate fetches of partitions that the
        long polls in flight leave out."""
        while self._must_check:  # other tasks may wake this one while it checks many partitions
            self._must_check = False
            self._sources.find_leaders()
            lanes = set(await process_in_slices(self._sources.lanes, self._delivery.owned.values()))
            for node_id, lane in lanes - self._running_lanes:
                self._running_lanes.add((node_id, lane))
                self._spawn(partial(self._fetch_by_long_polls, node_id, lane), "fetching")
            if self._long_polls:
                left_out = await process_in_slices(self._left_out, self._delivery.owned.values())
                for node_id in {self._sources.source_of(o) for o in left_out}:
                    self._fetch_now(node_id)

    # ------------------------------------------------------------ which partitions

    def _ready(self, room: int, valid: Collection[OwnedPartition]) -> list[OwnedPartition]:
        """Return the partitions that may be fetched now, with `room` bytes left in the buffers:
        those with the fewest buffered bytes first."""
        return partitions_to_fetch(
            valid,
            self._clock(),
            room=room,
            records_per_partition=self._options.queued_max_records,
        )

    def _return_to_leaders(self, node_id: int) -> None:
        """Fetch from the leader again where the time to fetch from this replica has passed
        (KIP-392)."""
        now = self._clock()
        for owned in self._delivery.owned.values():
            replica = owned.replica
            if replica is not None and replica.node_id == node_id and replica.expires_at <= now:
                self._responses.forget_replica(owned, node_id)

    # ------------------------------------------------------------ long polls

    async def _fetch_by_long_polls(self, node_id: int, lane: int) -> None:
        """Repeat the long polls of a lane until the consumer closes. While there is nothing to
        fetch from its broker, the task waits."""
        pauses = RetryBackoff(self._cluster.options)
        early_pauses = RetryBackoff(self._cluster.options)
        session = FetchSession()
        base = wait = self._options.fetch_max_wait
        longest = max(base, _MAX_EXTENDED_WAIT)  # less after a timeout, see below
        adoption_count = self._cluster.identity.adoption_count
        while True:
            if adoption_count != self._cluster.identity.adoption_count:
                adoption_count = self._cluster.identity.adoption_count
                session.reset()  # it is a session of the earlier cluster
            self._return_to_leaders(node_id)
            # Read first: a wake-up while the partitions are checked must end the wait below.
            woken, wake_count = self._woken, self._wake_count
            now = self._clock()
            in_lane = await process_in_slices(
                partial(self._sources.fetched_from, node_id, lane), self._delivery.owned.values()
            )
            valid = await process_in_slices(self._sources.valid, in_lane)
            if len(valid) < len(in_lane):
                self._engine.look_up_positions()  # this validates positions, too
            room = self._budget.long_poll_size(
                buffered=self._delivery.buffered_bytes,
                unread=self._delivery.unread_bytes,
                lanes=len(self._running_lanes),
            )
            ready = await process_in_slices(partial(self._ready, room), valid)
            if are_many(ready):
                ready.sort(key=lambda o: o.buffered_bytes)  # each slice is sorted by itself
            node = self._cluster.metadata.nodes.get(node_id)
            if node is None or not ready:
                await woken.wait(_next_retry(in_lane, now))
                continue
            fetchable = await process_in_slices(_fetchable, valid)
            if len(ready) < len(fetchable):
                # Partitions that back off or are full may be ready before this long poll ends.
                self._fetch_now(node_id)
            wait = self._max_wait(min(wait, longest), in_lane, ready)
            try:
                outcome = await self._long_poll(node, lane, ready, session, room, wait, wake_count)
                if outcome.is_metadata_stale:
                    self._sources.refresh()
                pauses.reset()
                if outcome.is_empty and self._clock() - now < base / 2:
                    # The broker responded early without records. Without this pause, the lane would
                    # request in a tight loop.
                    await early_pauses.wait()
                else:
                    early_pauses.reset()
                # Wait longer while the broker has nothing new. If immediate fetches were sent
                # meanwhile, an empty response does not show that: they may have got new records.
                wait = 2 * wait if outcome.is_empty and not self._used_since(node_id, now) else base
            except RETRIED_ERRORS as error:
                session.reset()  # the broker may have processed the request, or not
                if isinstance(error, RequestTimeoutError):
                    # A firewall or load balancer may drop a connection that is idle for so long.
                    longest = max(base, wait / 2)
                wait = base
                await self._recover(error, node_id, ready, pauses)

    def _max_wait(
        self, wait: float, in_lane: list[OwnedPartition], ready: list[OwnedPartition]
    ) -> float:
        """Return how long a broker may hold a long poll, in seconds: `wait`, but only
        `fetch_max_wait` if new records might not end the long poll."""
        base = self._options.fetch_max_wait
        # New records of partitions that this long poll leaves out do not end it. Nor may those of a
        # partition that is fetched from a follower: some followers do not respond until the wait
        # has passed.
        choices = (o.replica for o in in_lane)
        are_all_leaders = all(choice is None or choice.node_id < 0 for choice in choices)
        requests_all = len(ready) == len(in_lane) and are_all_leaders
        if requests_all and self._options.fetch_min_bytes <= 1 and base >= _MIN_WAIT_TO_EXTEND:
            return wait
        return base

    async def _long_poll(
        self,
        node: Node,
        lane: int,
        ready: list[OwnedPartition],
        session: FetchSession,
        room: int,
        wait: float,
        wake_count: int,
    ) -> FetchOutcome:
        """Send a long poll for up to `room` bytes, which the broker may hold for `wait` seconds.
        `wake_count`: the count of `wake` calls when these partitions were chosen."""
        fetch, chosen_count = self._new_fetch(), len(ready)
        ready, entries = await self._entries(node.node_id, ready, fetch)
        if not ready:
            return _NO_REQUEST
        session_request = await self._build(
            partial(session.request, entries, fetch.topic_ids), len(ready)
        )
        key = (node.node_id, lane)
        self._long_polls[key] = fetch
        if wake_count != self._wake_count or len(ready) < chosen_count:
            self._request_check()  # earlier checks did not know what this long poll leaves out

        def process(response: FetchResponse) -> ResponseProcessing:
            del self._long_polls[key]
            session.on_response(response.session_id, response.error_code)
            # The next request is full, which ends a session error. If this one was full already,
            # the next one must back off.
            if FetchSession.is_session_error(response.error_code) and not session_request.is_full:
                return _NO_REQUEST
            return (yield from self._responses.process(fetch, response, session.log_ends, node))

        try:
            return await self._send(
                node, _connection_id(lane), ready, session_request, room, wait, process
            )
        finally:
            self._long_polls.pop(key, None)

    # ------------------------------------------------------------ immediate fetches

    def _fetch_now(self, node_id: int) -> None:
        """Fetch the partitions that a broker's long polls leave out, over the second connection."""
        immediate = self._immediate.get(node_id)
        if immediate is None:
            immediate = self._immediate[node_id] = _ImmediateFetches(
                CoalescingTask(
                    self._spawn, partial(self._fetch_left_out, node_id), "immediate fetches"
                ),
                CoalescingTask(
                    self._spawn, partial(self._close_unused, node_id), "unused connection"
                ),
            )
        immediate.wake()

    def _left_out(self, owned: Collection[OwnedPartition]) -> list[OwnedPartition]:
        """Return the fetchable partitions that their lane's long poll in flight leaves out. A long
        poll adopts the partitions that it requests already (`_adopt`)."""
        return [
            o
            for o in owned
            if is_fetchable(o)
            and (poll := self._long_polls.get(self._sources.lane_of(o))) is not None
            and not (poll.covers(o) or self._adopt(poll, o))
        ]

    def _adopt(self, poll: FetchInFlight, owned: OwnedPartition) -> bool:
        """Let a long poll in flight, which was sent in an earlier assignment of the partition,
        count for `owned` if it requests the same; return whether it does."""
        metadata = self._cluster.metadata
        if needs_validation(metadata, owned):
            return False
        leader, topic = metadata.leader(owned.tp), metadata.topics[owned.tp.topic]
        topic_id = owned.requested_id(topic.topic_id)
        return poll.adopt(owned, -1 if leader is None else leader.leader_epoch, topic_id)

    async def _fetch_left_out(self, node_id: int) -> None:
        """Send immediate fetches until the long polls in flight leave no partition out."""
        immediate = self._immediate[node_id]
        pauses, schedule = RetryBackoff(self._cluster.options), ImmediateFetchSchedule()
        while True:
            # Read first: a wake-up while the partitions are checked must end the wait below.
            woken, now = self._woken, self._clock()
            immediate.begin_round()
            left_out = await process_in_slices(self._left_out, self._delivery.owned.values())
            of_broker = self._sources.fetched_from(node_id, None, left_out)
            node = self._cluster.metadata.nodes.get(node_id)
            if node is None or not of_broker:
                if immediate.is_woken:
                    continue  # woken while this task checked many partitions
                return
            room = self._budget.immediate_size(buffered=self._delivery.buffered_bytes)
            # Partitions with buffered records can wait for the next long poll: fetching them here
            # would keep the second connection busy when the application seeks again.
            ready = [o for o in self._ready(room, self._sources.valid(of_broker)) if not o.buffered]
            if not ready or not schedule.is_due(ready, now):
                due_at = schedule.due_at if ready else math.inf
                await woken.wait(min(due_at, _next_retry(of_broker, now)))
                continue
            broker = self._cluster.broker(node)
            try:
                if not broker.is_connected(_IMMEDIATE_CONNECTION):
                    # Check again: while this task connects, the next long poll may be sent, which
                    # includes these partitions.
                    await broker.ready(_IMMEDIATE_CONNECTION)
                    immediate.note_use(self._clock())
                    continue
                immediate.note_use(self._clock())
                fetch = self._new_fetch()
                ready, entries = await self._entries(node_id, ready, fetch, left_out=True)
                if not ready:
                    continue
                session_request = sessionless(entries, fetch.topic_ids)
                process = partial(self._responses.process, fetch, ends={}, node=node)
                outcome = await self._send(
                    node, _IMMEDIATE_CONNECTION, ready, session_request, room, 0.0, process
                )
                schedule.on_response(fetch, ready, self._clock(), is_empty=outcome.is_empty)
                if outcome.is_metadata_stale:
                    self._sources.refresh()
                pauses.reset()
            except RETRIED_ERRORS as error:
                await self._recover(error, node_id, ready, pauses)

    def _used_since(self, node_id: int, time: float) -> bool:
        """Whether immediate fetches were sent to a broker since a time."""
        immediate = self._immediate.get(node_id)
        return immediate is not None and immediate.used_at >= time

    async def _close_unused(self, node_id: int) -> None:
        """Close the second connection to a broker after a while without use."""
        immediate = self._immediate[node_id]
        until = immediate.used_at + _CLOSE_UNUSED_AFTER
        while self._clock() < until:
            await anyio.sleep_until(until)
            until = immediate.used_at + _CLOSE_UNUSED_AFTER
        if (node := self._cluster.metadata.nodes.get(node_id)) is not None:
            await self._cluster.broker(node).disconnect(_IMMEDIATE_CONNECTION)

    # ------------------------------------------------------------ one fetch

    def _new_fetch(self) -> FetchInFlight:
        self._last_fetch_id += 1
        return FetchInFlight(self._last_fetch_id)

    async def _entries(
        self,
        node_id: int,
        ready: list[OwnedPartition],
        fetch: FetchInFlight,
        *,
        left_out: bool = False,
    ) -> tuple[list[OwnedPartition], dict[TopicPartition, FetchPartition]]:
        """Return the partitions to request, now noted in `fetch`, and their entries in the request.
        With `left_out`, only partitions that the long polls leave out."""
        entries: dict[TopicPartition, FetchPartition] = {}

        def add(some: Collection[OwnedPartition]) -> Collection[OwnedPartition]:
            if are_many(ready):
                # Other tasks ran since these were chosen: partitions may be revoked or have another
                # leader; a topic may have been recreated since the request was begun.
                some = self._left_out(some) if left_out else some
                of_broker = self._sources.fetched_from(node_id, None, some)
                some = [o for o in self._sources.valid(of_broker) if is_fetchable(o)]
            some = self._add_entries(some, entries, fetch.topic_ids)
            fetch.add(some)
            return some

        return await process_in_slices(add, ready), entries

    def _add_entries(
        self,
        ready: Collection[OwnedPartition],
        entries: dict[TopicPartition, FetchPartition],
        ids: dict[str, UUID],
    ) -> list[OwnedPartition]:
        """Add the partitions to the entries and topic ids of a request; return those added. A
        request has one id for each topic: partitions of the same topic with another id, from before
        it was recreated, are left out."""
        added: list[OwnedPartition] = []
        metadata = self._cluster.metadata
        for owned in ready:
            name = owned.tp.topic
            if (topic := metadata.topics.get(name)) is None:
                continue  # it has left the metadata while other partitions were checked
            current_id = topic.topic_id
            topic_id = owned.requested_id(current_id)
            known = ids.setdefault(name, topic_id)
            if known is not topic_id and known != topic_id:  # `is` first: comparing UUIDs is slow
                continue
            # The leader epochs of a topic with another id are not comparable.
            leader = None if owned.is_of_other_topic(current_id) else metadata.leader(owned.tp)
            if leader is not None:
                # Noted with the request: a position after records of this leader needs no
                # validation in the leader's epoch.
                owned.checked_epoch = leader.leader_epoch
            entries[owned.tp] = FetchPartition(
                partition=owned.tp.partition,
                current_leader_epoch=-1 if leader is None else leader.leader_epoch,
                fetch_offset=owned.fetch_offset,
                partition_max_bytes=self._options.max_partition_fetch_bytes,
            )
            added.append(owned)
        return added

    async def _build(self, make: Callable[[], T], partition_count: int) -> T:
        """Build a request for this number of partitions, or a part of it, in a thread if they are
        many. No other task may use what `make` reads or changes."""
        if partition_count <= _MAX_BUILT_IN_LOOP:
            return make()
        return await self._cluster.options.run_in_thread(make)

    async def _send(
        self,
        node: Node,
        connection_id: str,
        ready: list[OwnedPartition],
        session_request: SessionRequest,
        room: int,
        wait: float,
        process: Callable[[FetchResponse], ResponseProcessing],
    ) -> FetchOutcome:
        """Send a fetch of up to `room` bytes, which the broker may hold for `wait` seconds. Process
        the response by `process`; return the outcome. Raises: the errors of the request."""
        slices: Slices[FetchOutcome] | None = None

        def begin(response: FetchResponse) -> None:
            # Called as soon as the response is received. The application, woken here, then runs
            # before the task of this fetch, so it has its records before the next request is built
            # and sent, which takes longer than all other work between the socket and the
            # application.
            nonlocal slices
            slices = Slices(process(response))
            slices.do_one()

        key, sent_at = (node.node_id, connection_id), self._clock()
        is_slow = key in self._slow
        reserved = min(room, len(ready) * self._options.max_partition_fetch_bytes)
        self._budget.on_request(reserved)
        try:
            rack = self._sources.rack_for(ready, self._options.client_rack)
            make = partial(
                fetch_request, session_request, self._options, max_bytes=room, wait=wait, rack=rack
            )
            await self._cluster.broker(node).request(
                await self._build(make, len(session_request.partitions)),
                connection_id=connection_id,
                timeout=wait + (self._timeout if is_slow else self._attempt_timeout),
                highest=None if session_request.uses_topic_ids else HIGHEST_BY_NAME,
                on_response=begin,
            )
            if is_slow and self._clock() < sent_at + wait + self._attempt_timeout:
                self._slow.discard(key)
        except RequestTimeoutError:
            self._slow.add(key)
            raise
        finally:
            self._budget.on_response(reserved)
            self.wake_waiting()  # another lane may wait for room
        assert slices is not None  # `begin` was called
        return await slices.do_rest()

    # ------------------------------------------------------------ failures

    async def _recover(
        self, error: Exception, node_id: int, ready: list[OwnedPartition], pauses: RetryBackoff
    ) -> None:
        """Back off after a failed request, and refresh the metadata: leaders may have changed. If
        the broker is a follower, fetch the partitions from their leaders again."""
        for owned in ready:
            self._responses.forget_replica(owned, node_id, error)
        logger.info("fetching from broker %d: %s", node_id, error)
        self._sources.refresh()
        await pauses.wait()


def _connection_id(lane: int) -> str:
    """Return the id of the connection for a lane's long polls."""
    return "fetch" if lane == 0 else f"fetch-{lane}"


def _fetchable(owned: Collection[OwnedPartition]) -> list[OwnedPartition]:
    return [o for o in owned if is_fetchable(o)]


def _next_retry(partitions: list[OwnedPartition], now: float) -> float:
    """Return when the first partition that backs off may be fetched again; infinity for none."""
    return min((o.retry_at for o in partitions if o.retry_at > now), default=math.inf)
