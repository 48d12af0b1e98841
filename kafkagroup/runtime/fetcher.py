"""Keeps the buffers full: which partitions are fetched when, and over which connection.

Each broker that leads something owned has a long poll in flight, one for each of the
`num_consumer_fetchers` lanes: the broker holds the request until there are records. The next one is
in flight while records are handed out. What becomes ready meanwhile (sought, resumed, assigned,
looked up) and is not in the long poll is fetched over a second connection to the broker, by
requests that the broker answers at once: nothing ever waits there for more than a round trip. The
next long poll takes these partitions over. The second connection is opened when it is first needed,
and closed when it was not needed for a minute.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Generator
from functools import partial
from typing import TypeVar
from uuid import UUID

import anyio

from kafkagroup._values import define, frozen
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.fetch_budget import FetchBudget
from kafkagroup.consume.fetch_in_flight import FetchInFlight, PollSchedule
from kafkagroup.consume.fetch_session import FetchSession, SessionRequest, sessionless
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.plan import is_fetchable, wanted
from kafkagroup.errors import BrokerError, RemoteProtocolError, TransportError
from kafkagroup.options import ConsumerOptions
from kafkagroup.runtime.coalescing_task import CoalescingTask, Spawn
from kafkagroup.runtime.fetch_request import HIGHEST_BY_NAME, fetch_request, partitions_of
from kafkagroup.runtime.fetch_response import ResponseHandler
from kafkagroup.runtime.slices import Slices, are_many, together
from kafkagroup.runtime.validation import is_doubtful
from kafkagroup.transport.clock import loop_clock
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.one_shot_event import OneShotEvent
from kafkagroup.transport.retry import Pauses
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import FetchPartition, FetchResponse

__all__ = ["Fetcher"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_BUDGET = 0.001
"""Seconds that looking through a response may keep the loop, and what came for one partition."""
_SMALL = 65_536
"""Bytes of records that the application goes through in less time than a request takes: for more,
the next request is sent first, so that the broker works meanwhile."""
_LONGEST_WAIT = 5.0
"""Seconds that a broker may hold a long poll, where nothing has come for a while."""
_LEAST_TO_EXTEND = 0.5
"""A `fetch_max_wait` below this default is never extended: the application wants it so."""
_MADE_AT_ONCE = 10_000
"""Partitions of a request that is made without a thread: some milliseconds' work."""
_IMMEDIATE = "fetch-immediate"
"""Connection id of the second connection to a broker, of immediate fetches."""
_UNUSED = 60.0
"""Seconds after which the second connection is closed when it was not used. Whoever seeks more
often pays for one handshake with TLS and SASL; an idle consumer keeps no connection for it."""


@frozen
class _Outcome:
    """What a fetch response has brought."""

    is_metadata_stale: bool
    """Whether an error shows that the metadata must be refreshed."""
    is_empty: bool
    """Whether no records came, and no error either."""


_NOTHING_ASKED = _Outcome(is_metadata_stale=False, is_empty=False)
"""Of no request, or of a session error: the next request is sent at once."""

_Taking = Generator[None, None, _Outcome]
"""Handles one response, and yields where other tasks may run."""


@define(eq=False)
class _Immediate:
    """The immediate fetches from one broker."""

    fetching: CoalescingTask
    closing: CoalescingTask
    is_woken: bool = False
    """Whether there may be partitions that the task has not seen."""
    used_at: float = -math.inf
    """When the connection was last used."""

    def wake(self) -> None:
        """There may be partitions that the task has not seen."""
        self.is_woken = True
        self.fetching.ask()

    def begin_round(self) -> None:
        """The task looks at all partitions."""
        self.is_woken = False

    def note_use(self, now: float) -> None:
        """The connection is used; it is closed once it was not for a while."""
        self.used_at = now
        self.closing.ask()


class Fetcher:
    """Fetches for a `Delivery`."""

    def __init__(
        self,
        cluster: Cluster,
        delivery: Delivery,
        options: ConsumerOptions,
        *,
        spawn: Spawn,
        arrived: Callable[[], None],
        look_up: Callable[[], None],
        failed: Callable[[OwnedPartition, Exception], None],
    ) -> None:
        self._cluster = cluster
        self._delivery = delivery
        self._options = options
        self._arrived = arrived
        self._look_up = look_up
        self._responses = ResponseHandler(
            delivery,
            options,
            cluster.troubles,
            on_source_changed=self.wake,
            look_up=look_up,
            failed=failed,
        )
        self._clock = loop_clock()
        self._wake = OneShotEvent()
        self._spawn = spawn
        self._running: set[tuple[int, int]] = set()
        """The lanes: brokers that are fetched from, and over which of the connections to each."""
        self._long_polls: dict[tuple[int, int], FetchInFlight] = {}
        """Those in flight, by lane."""
        self._immediate: dict[int, _Immediate] = {}
        """By broker, of those that immediate fetches were ever sent to."""
        self._last_fetch_id = 0
        self._wakes = 0
        """How often there may have been more to fetch."""
        self._is_woken = False
        """Whether there may be partitions that `_start_fetches` has not seen."""
        self._room = FetchBudget(options.fetch_max_bytes)
        self._starting = CoalescingTask(spawn, self._start_fetches, "lanes")
        self._leading = CoalescingTask(spawn, self._find_leaders, "leaders")

    @property
    def on_its_way(self) -> int:
        """Bytes that were asked for and may come."""
        return self._room.on_its_way

    def wake(self) -> None:
        """There may be more to fetch: partitions, leaders, or positions."""
        self.made_room()
        self._wakes += 1
        # Not at once: an application that seeks in a thousand partitions would have all of them
        # gone through a thousand times.
        self._look_around()

    def _look_around(self) -> None:
        self._is_woken = True
        self._starting.ask()

    def made_room(self) -> None:
        """Less is buffered, or on its way, than was."""
        self._wake.set()
        self._wake = OneShotEvent()

    async def _start_fetches(self) -> None:
        """Start the task of each lane that has none, and immediate fetches of what the long polls
        in flight leave out."""
        while self._is_woken:  # again while many were gone through
            self._is_woken = False
            if not self._all_led():
                self._leading.ask()
            lanes = set(await together(self._lanes, self._delivery.owned.values()))
            for node_id, lane in lanes - self._running:
                self._running.add((node_id, lane))
                self._spawn(partial(self._fetch_by_long_polls, node_id, lane), "fetching")
            if self._long_polls:
                left_out = await together(self._left_out, self._delivery.owned.values())
                for node_id in {self._source_of(o) for o in left_out}:
                    self._fetch_now(node_id)

    # ------------------------------------------------------------ where to fetch from

    def _lanes(self, owned: Collection[OwnedPartition]) -> set[tuple[int, int]]:
        """Brokers to fetch these from, and over which of the connections to each."""
        nodes = self._cluster.metadata.nodes
        lanes = {(self._source_of(o), self._lane_of(o)) for o in owned}
        return {(node_id, lane) for node_id, lane in lanes if node_id in nodes}

    def _lane_of(self, owned: OwnedPartition) -> int:
        """A partition keeps to one lane: two long polls for it would bring its records twice."""
        return owned.tp.partition % self._options.num_consumer_fetchers

    def _source_of(self, owned: OwnedPartition) -> int:
        """The broker to fetch from: the replica that the leader has named, else the leader."""
        leader = self._leader_of(owned.tp)
        if owned.replica < 0:
            return leader
        nearer = leader >= 0 and owned.replica in self._cluster.metadata.nodes
        return owned.replica if nearer and self._clock() < owned.replica_until else leader

    def _leader_of(self, tp: TopicPartition) -> int:
        leader = self._cluster.metadata.leader(tp)
        return -1 if leader is None else leader.leader

    async def _find_leaders(self) -> None:
        """Ask for metadata while something owned has no leader: an election is on, and nobody else
        would ask before metadata grows old."""
        pauses, troubles = Pauses(self._cluster.options), self._cluster.troubles
        while not self._all_led():
            if (problem := self._no_leader()) is not None:
                troubles.failed("leaders", self._clock(), problem)
            else:
                troubles.forget("leaders")
            await pauses.wait()
            if not self._all_led():
                await self._try_refresh()
        troubles.succeeded("leaders", self._clock())

    def _no_leader(self) -> Problem | None:
        """Why some of what is owned cannot be fetched; None where it is for its topic, which is
        reported by whoever follows topics."""
        metadata = self._cluster.metadata
        unled = (o for o in self._delivery.owned if self._leader_of(o) not in metadata.nodes)
        there = [tp for tp in unled if metadata.partition_counts((tp.topic,))]
        if not there:
            return None
        tp = min(there)
        count = metadata.partition_counts((tp.topic,))[tp.topic]
        others = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
        if metadata.leader(tp) is None:
            cause = f"it does not exist: topic {tp.topic} has {count} partitions"
            advice = "check what assigns it, and whether the topic was recreated"
        else:
            cause, advice = "it has no leader", "check that a broker with a replica of it is alive"
        return Problem(subject=f"fetching {tp}{others}", cause=cause, advice=advice)

    def _all_led(self) -> bool:
        nodes = self._cluster.metadata.nodes
        return all(self._leader_of(tp) in nodes for tp in self._delivery.owned)

    def _led(
        self, node_id: int, lane: int | None, owned: Collection[OwnedPartition]
    ) -> list[OwnedPartition]:
        """What of it is fetched from a broker, over one of the lanes or any."""
        return [
            o
            for o in owned
            if (lane is None or self._lane_of(o) == lane) and self._source_of(o) == node_id
        ]

    def _sound(self, led: Collection[OwnedPartition]) -> list[OwnedPartition]:
        """What of it is known to be good with its leader."""
        metadata = self._cluster.metadata
        return [o for o in led if not is_doubtful(metadata, o)]

    def _ready(self, sound: Collection[OwnedPartition], room: int) -> list[OwnedPartition]:
        """What of that may be asked for now."""
        return wanted(
            sound,
            self._clock(),
            room=room,
            records_per_partition=self._options.queued_max_records,
        )

    def _return_to_leaders(self, node_id: int) -> None:
        """Give back to their leaders what was read from this replica for long enough."""
        now = self._clock()
        for owned in self._delivery.owned.values():
            if owned.replica == node_id and owned.replica_until <= now:
                self._responses.forget_replica(owned, node_id)

    # ------------------------------------------------------------ long polls

    async def _fetch_by_long_polls(self, node_id: int, lane: int) -> None:
        pauses, early = Pauses(self._cluster.options), Pauses(self._cluster.options)
        session = FetchSession()
        base = wait = self._options.fetch_max_wait
        while True:
            self._return_to_leaders(node_id)
            wake, wakes = self._wake, self._wakes
            now = self._clock()
            led = await together(partial(self._led, node_id, lane), self._delivery.owned.values())
            sound = await together(self._sound, led)
            if len(sound) < len(led):
                self._look_up()
            room = self._room.share(
                buffered=self._delivery.buffered_bytes,
                unread=self._delivery.unread_bytes,
                lanes=len(self._running),
            )
            ready = self._ready(sound, room)
            node = self._cluster.metadata.nodes.get(node_id)
            if node is None or not ready:
                await wake.wait(_next_retry(led, now))
                continue
            if len(ready) < sum(map(is_fetchable, sound)):
                # They may be ready before the broker answers: backed off, or full of records.
                self._fetch_now(node_id)
            wait = self._max_wait(wait, led, ready)
            try:
                outcome = await self._long_poll(node, lane, ready, session, room, wait, wakes)
                if outcome.is_metadata_stale:
                    await self._cluster.refresh()
                pauses.reset()
                if outcome.is_empty and self._clock() - now < base / 2:
                    # The broker does not wait for records, so we do.
                    await early.wait()
                else:
                    early.reset()
                wait = 2 * wait if outcome.is_empty and not self._used_since(node_id, now) else base
            except (TransportError, RemoteProtocolError) as error:
                session.reset()  # the broker may have processed the request, or not
                wait = base
                await self._recover(error, node_id, ready, pauses)

    def _max_wait(
        self, wait: float, led: list[OwnedPartition], ready: list[OwnedPartition]
    ) -> float:
        """Return for how much of `wait`, in seconds, a broker may hold a long poll;
        `fetch_max_wait` where there may be something that it does not answer at once."""
        base = self._options.fetch_max_wait
        # What is left out is asked for again only after the long poll; and not all followers
        # answer the long polls that they hold when something comes.
        asked_for_all = len(ready) == len(led) and all(o.replica < 0 for o in led)
        if asked_for_all and self._options.fetch_min_bytes <= 1 and base >= _LEAST_TO_EXTEND:
            return min(wait, max(base, _LONGEST_WAIT))
        return base

    async def _long_poll(
        self,
        node: Node,
        lane: int,
        ready: list[OwnedPartition],
        session: FetchSession,
        room: int,
        wait: float,
        wakes: int,
    ) -> _Outcome:
        """Fetch up to `room` bytes, for which the broker waits up to `wait` seconds. `wakes`: the
        count when these partitions were chosen."""
        fetch = self._in_flight()
        ready, entries, ids = await self._entries(node.node_id, ready, fetch)
        if not ready:
            return _NOTHING_ASKED
        part = await self._made(partial(session.request, entries, ids), len(ready))
        key = (node.node_id, lane)
        self._long_polls[key] = fetch
        if wakes != self._wakes:
            self._look_around()  # who looked before did not know what this leaves out

        def take(response: FetchResponse) -> _Taking:
            del self._long_polls[key]
            session.answered(response.session_id, response.error_code)
            if FetchSession.is_session_error(response.error_code) and not part.full:
                return _NOTHING_ASKED
            return (yield from self._take(fetch, response, ready, session.ends, node))

        try:
            return await self._send(node, _connection(lane), ready, part, room, wait, take)
        finally:
            self._long_polls.pop(key, None)

    # ------------------------------------------------------------ immediate fetches

    def _fetch_now(self, node_id: int) -> None:
        """Fetch from a broker, over its second connection, what its long polls leave out."""
        immediate = self._immediate.get(node_id)
        if immediate is None:
            immediate = self._immediate[node_id] = _Immediate(
                CoalescingTask(
                    self._spawn, partial(self._fetch_left_out, node_id), "immediate fetches"
                ),
                CoalescingTask(
                    self._spawn, partial(self._close_unused, node_id), "unused connection"
                ),
            )
        immediate.wake()

    def _left_out(self, owned: Collection[OwnedPartition]) -> list[OwnedPartition]:
        """What of it is to be fetched, and is not in the long poll in flight of its lane."""
        return [
            o
            for o in owned
            if is_fetchable(o)
            and (poll := self._long_polls.get((self._source_of(o), self._lane_of(o)))) is not None
            and not (poll.covers(o) or self._adopts(poll, o))
        ]

    def _adopts(self, poll: FetchInFlight, owned: OwnedPartition) -> bool:
        """Whether a long poll in flight, of an assignment before, is taken over."""
        metadata = self._cluster.metadata
        if is_doubtful(metadata, owned):
            return False
        leader, topic = metadata.leader(owned.tp), metadata.topics[owned.tp.topic]
        return poll.adopt(owned, -1 if leader is None else leader.leader_epoch, topic.topic_id)

    async def _fetch_left_out(self, node_id: int) -> None:
        """Fetch what the long polls in flight leave out, until none of them does."""
        immediate = self._immediate[node_id]
        pauses, schedule = Pauses(self._cluster.options), PollSchedule()
        while True:
            wake, now = self._wake, self._clock()
            immediate.begin_round()
            left_out = await together(self._left_out, self._delivery.owned.values())
            led = self._led(node_id, None, left_out)
            node = self._cluster.metadata.nodes.get(node_id)
            if node is None or not led:
                if immediate.is_woken:
                    continue  # while many were gone through
                return
            room = self._room.immediate_share(buffered=self._delivery.buffered_bytes)
            # What has records waiting can wait for the next long poll: fetched here, the second
            # connection would be busy when the application seeks again.
            ready = [o for o in self._ready(self._sound(led), room) if not o.buffered]
            if not ready or not schedule.is_due(ready, now):
                due_at = schedule.due_at if ready else math.inf
                await wake.wait(min(due_at, _next_retry(led, now)))
                continue
            broker = self._cluster.broker(node)
            try:
                if not broker.is_connected(_IMMEDIATE):
                    # The long poll may end before, and take everything over.
                    await broker.ready(_IMMEDIATE)
                    immediate.note_use(self._clock())
                    continue
                immediate.note_use(self._clock())
                fetch = self._in_flight()
                asked = await self._entries(node_id, ready, fetch, left_out=True)
                ready, entries, ids = asked
                if not ready:
                    continue
                part = sessionless(entries, ids)
                take = partial(self._take, fetch, ready=ready, ends={}, node=node)
                outcome = await self._send(node, _IMMEDIATE, ready, part, room, 0.0, take)
                schedule.on_response(fetch, ready, self._clock(), empty=outcome.is_empty)
                if outcome.is_metadata_stale:
                    await self._cluster.refresh()
                pauses.reset()
            except (TransportError, RemoteProtocolError) as error:
                await self._recover(error, node_id, ready, pauses)

    def _used_since(self, node_id: int, time: float) -> bool:
        """Whether immediate fetches were sent to a broker since."""
        immediate = self._immediate.get(node_id)
        return immediate is not None and immediate.used_at >= time

    async def _close_unused(self, node_id: int) -> None:
        """Close the second connection to a broker once it was not used for a while."""
        immediate = self._immediate[node_id]
        until = immediate.used_at + _UNUSED
        while self._clock() < until:
            await anyio.sleep_until(until)
            until = immediate.used_at + _UNUSED
        if (node := self._cluster.metadata.nodes.get(node_id)) is not None:
            await self._cluster.broker(node).disconnect(_IMMEDIATE)

    # ------------------------------------------------------------ one fetch

    def _in_flight(self) -> FetchInFlight:
        self._last_fetch_id += 1
        return FetchInFlight(self._last_fetch_id)

    async def _entries(
        self,
        node_id: int,
        ready: list[OwnedPartition],
        fetch: FetchInFlight,
        *,
        left_out: bool = False,
    ) -> tuple[list[OwnedPartition], dict[TopicPartition, FetchPartition], dict[str, UUID]]:
        """What to ask a broker for, now in `fetch`; the same as entries; the ids of the topics.
        With `left_out`, only of what the long polls leave out."""
        entries: dict[TopicPartition, FetchPartition] = {}
        ids: dict[str, UUID] = {}

        def ask(some: Collection[OwnedPartition]) -> Collection[OwnedPartition]:
            if are_many(ready):
                # Others ran since these were chosen: they may be revoked, their leader another;
                # and their topic, since the request began, another of the same name.
                some = self._left_out(some) if left_out else some
                led, topics = self._led(node_id, None, some), self._cluster.metadata.topics
                some = [
                    o
                    for o in self._sound(led)
                    if is_fetchable(o)
                    and ids.get(o.tp.topic) in (None, topics[o.tp.topic].topic_id)
                ]
            self._enter(some, entries, ids)
            fetch.ask(some)
            return some

        return await together(ask, ready), entries, ids

    def _enter(
        self,
        ready: Collection[OwnedPartition],
        entries: dict[TopicPartition, FetchPartition],
        ids: dict[str, UUID],
    ) -> None:
        for owned in ready:
            leader = self._cluster.metadata.leader(owned.tp)
            leader_epoch = -1 if leader is None else leader.leader_epoch
            entries[owned.tp] = FetchPartition(
                partition=owned.tp.partition,
                current_leader_epoch=leader_epoch,
                fetch_offset=owned.fetch_offset,
                partition_max_bytes=self._options.max_partition_fetch_bytes,
            )
            ids[owned.tp.topic] = self._cluster.metadata.topics[owned.tp.topic].topic_id
            owned.note_request(ids[owned.tp.topic], leader_epoch)

    async def _made(self, make: Callable[[], T], partitions: int) -> T:
        """Make a request of so many partitions, or a part of it; in a thread where they are many.
        Nothing that it reads or changes may be anybody else's meanwhile."""
        if partitions <= _MADE_AT_ONCE:
            return make()
        return await self._cluster.options.run_in_thread(make)

    async def _send(
        self,
        node: Node,
        connection_id: str,
        ready: list[OwnedPartition],
        part: SessionRequest,
        room: int,
        wait: float,
        take: Callable[[FetchResponse], _Taking],
    ) -> _Outcome:
        """Send a fetch of up to `room` bytes, and `take` the response; return what that returns."""
        taking: Slices[_Outcome] | None = None

        def begin(response: FetchResponse) -> None:
            # As it comes: the application, which is woken here, then runs before the task below,
            # and has its records before the next request is made and sent. That takes longer than
            # all else between the socket and the application.
            nonlocal taking
            taking = Slices(take(response))
            taking.do_one()

        coming = min(room, len(ready) * self._options.max_partition_fetch_bytes)
        self._room.asked(coming)
        try:
            make = partial(fetch_request, part, self._options, max_bytes=room, wait=wait)
            await self._cluster.broker(node).request(
                await self._made(make, len(part.partitions)),
                connection_id=connection_id,
                timeout=self._cluster.options.request_timeout + wait,
                highest=None if part.by_id else HIGHEST_BY_NAME,
                on_response=begin,
            )
        finally:
            self._room.answered(coming)
            self.made_room()  # another connection may have waited for it
        assert taking is not None  # answered
        return await taking.do_rest()

    def _take(
        self,
        fetch: FetchInFlight,
        response: FetchResponse,
        ready: list[OwnedPartition],
        ends: dict[TopicPartition, int],
        node: Node,
    ) -> _Taking:
        """Take a response, and note in `ends` where the logs end."""
        if response.error_code:
            broker = self._cluster.broker(node)
            raise TransportError(f"{broker}: {BrokerError(response.error_code)}")
        stale, empty, came = False, True, 0
        unread, since = self._delivery.unread_bytes, self._clock()
        topics = self._cluster.metadata.topics
        names = {topics[t].topic_id: t for t in {o.tp.topic for o in ready} if t in topics}
        for tp, data in partitions_of(response, names):
            if self._clock() - since > _BUDGET:
                # Checked for damage in one go, 50 MB would keep the loop for more than 10 ms.
                yield
                since = self._clock()
            empty &= not (data.records or data.error_code)
            if not data.error_code:
                committed_only = self._options.isolation_level
                ends[tp] = data.last_stable_offset if committed_only else data.high_watermark
            if (owned := fetch.find(tp)) is None:
                continue
            # KIP-951: an error that names the new leader needs no look at the metadata.
            if data.error_code and self._cluster.take_leader(tp, data.current_leader, response):
                continue
            found = yield from self._responses.read(tp, data)
            # Others ran meanwhile: the position may have moved.
            if fetch.find(tp) is owned:
                stale |= self._responses.take(owned, data, found, node.node_id)
                came += len(data.records or b"")
        for owned in fetch.partitions:
            if (end := ends.get(owned.tp, owned.end)) != owned.end:
                owned.note_end(end)
        if came:
            self._room.arrived(unread)
        if came > _SMALL:
            yield  # to the task that sends the next request before the application runs
        if not empty:
            self._arrived()
        return _Outcome(is_metadata_stale=stale, is_empty=empty)

    # ------------------------------------------------------------ failures

    async def _recover(
        self, error: Exception, node_id: int, ready: list[OwnedPartition], pauses: Pauses
    ) -> None:
        """Pause after a request that failed, and look for other leaders."""
        for owned in ready:
            self._responses.forget_replica(owned, node_id)
        logger.info("fetching from broker %d: %s", node_id, error)
        await pauses.wait()
        await self._try_refresh()

    async def _try_refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except (TransportError, RemoteProtocolError) as error:
            logger.info("metadata: %s", error)


def _connection(lane: int) -> str:
    """The id of the connection of a lane's long polls."""
    return "fetch" if lane == 0 else f"fetch-{lane}"


def _next_retry(partitions: list[OwnedPartition], now: float) -> float:
    """When the first of those that back off may be fetched again."""
    return min((o.retry_at for o in partitions if o.retry_at > now), default=math.inf)
