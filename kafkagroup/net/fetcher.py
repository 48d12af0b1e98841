"""Keeps the buffers full: one task and one connection for each broker that leads something owned.

The next fetch is on its way while records are handed out. What comes back is kept as bytes; what
comes back for a partition that was revoked, or sought away from, meanwhile is dropped.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from uuid import UUID

import anyio

from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.fetch_session import FetchSession, SessionRequest
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.plan import Remedy, remedy, wanted
from kafkagroup.consume.room import Room
from kafkagroup.consume.transactions import mark_aborted
from kafkagroup.errors import (
    BrokerError,
    CorruptRecordError,
    DecodeError,
    RemoteProtocolError,
    TransportError,
    broker_error,
)
from kafkagroup.member.backoff import backoff
from kafkagroup.net.chore import Chore, Spawn
from kafkagroup.net.clock import loop_clock
from kafkagroup.net.cluster import Cluster
from kafkagroup.net.latch import Latch
from kafkagroup.net.metadata import Node
from kafkagroup.net.retry import Pauses
from kafkagroup.net.trouble import Problem
from kafkagroup.net.validation import is_doubtful
from kafkagroup.options import ConsumerOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from kafkagroup.wire.records import RecordBatch, read_batches

__all__ = ["Fetcher"]

logger = logging.getLogger(__name__)

_BUDGET = 0.001
"""Seconds that looking through an answer may keep the loop, and what came for one partition."""
_PATIENCE = 5.0
"""Seconds that a broker may keep a question, where nothing has come for a while."""
_IMPATIENCE = 0.5
"""Whoever sets less than this default for `fetch_max_wait` wants it to be so always."""
_BY_NAME = 12
"""Highest version of Fetch that names topics; later ones go by topic id."""


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
        self._failed = failed
        self._clock = loop_clock()
        self._wake = Latch()
        self._spawn = spawn
        self._running: set[tuple[int, int]] = set()
        """Brokers that are fetched from, and over which of the connections to each."""
        self._parked: dict[tuple[int, int], Mapping[OwnedPartition, int]] = {}
        """Those of them whose question the broker may keep for longer, and the offsets in it."""
        self._overtaken: set[tuple[int, int]] = set()
        """Those whose connection was closed over such a question."""
        self._room = Room(options.fetch_max_bytes)
        self._starting = Chore(spawn, self._start_lanes, "lanes")
        self._leading = Chore(spawn, self._find_leaders, "leaders")

    @property
    def on_its_way(self) -> int:
        """Bytes that were asked for and may come."""
        return self._room.on_its_way

    def wake(self) -> None:
        """There may be more to fetch: partitions, leaders, or positions."""
        self.made_room()
        # Not at once: who seeks in a thousand partitions would have all looked at a thousand times.
        self._starting.ask()

    def made_room(self) -> None:
        """Less is buffered, or on its way, than was."""
        self._wake.set()
        self._wake = Latch()

    async def _start_lanes(self) -> None:
        """Each broker that leads something has a task, from when it is needed on."""
        while True:
            if not self._all_led():
                self._leading.ask()
            for node_id, lane in self._lanes() - self._running:
                self._running.add((node_id, lane))
                self._spawn(partial(self._fetch_from, node_id, lane), "fetching")
            overtaken = next(filter(self._is_overtaken, self._parked), None)
            if overtaken is None:
                return
            # What was sent behind the question would wait with it.
            del self._parked[overtaken]
            self._overtaken.add(overtaken)
            node_id, lane = overtaken
            if (node := self._cluster.metadata.nodes.get(node_id)) is not None:
                await self._cluster.broker(node).disconnect(_connection(lane))

    def _is_overtaken(self, parked: tuple[int, int]) -> bool:
        """Whether there is something to ask for that is not in the question."""
        ready = self._ready(self._sound(self._led(*parked)), room=1)
        return any(self._parked[parked].get(o) != o.fetch_offset for o in ready)

    def _lanes(self) -> set[tuple[int, int]]:
        """Brokers to fetch from, and over which of the connections to each."""
        nodes = self._cluster.metadata.nodes
        owned = self._delivery.owned.values()
        return {
            (self._source_of(o), self._lane_of(o)) for o in owned if self._source_of(o) in nodes
        }

    def _lane_of(self, owned: OwnedPartition) -> int:
        """A partition keeps to one connection: two fetches of it at once would bring it twice."""
        return owned.tp.partition % self._options.num_consumer_fetchers

    def _source_of(self, owned: OwnedPartition) -> int:
        """The broker to fetch from: the replica that the leader has named, else the leader."""
        leader = self._leader_of(owned.tp)
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

    async def _fetch_from(self, node_id: int, lane: int) -> None:
        pauses, early = Pauses(self._cluster.options), Pauses(self._cluster.options)
        session = FetchSession()
        base = wait = self._options.fetch_max_wait
        while True:
            self._ask_leaders_again(node_id)
            wake = self._wake
            now = self._clock()
            led = self._led(node_id, lane)
            sound = self._sound(led)
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
                retries = [o.retry_at for o in led if o.retry_at > now]
                await wake.wait(min(retries, default=math.inf))
                continue
            wait = self._patience(wait, led, ready)
            self._overtaken.discard((node_id, lane))
            try:
                stale, empty = await self._fetch(node, lane, ready, session, room, wait)
                if stale:
                    await self._cluster.refresh()
                pauses.reset()
                if empty and self._clock() - now < base / 2:
                    # The broker does not wait for records, so we do.
                    await early.wait()
                else:
                    early.reset()
                wait = 2 * wait if empty else base
            except (TransportError, RemoteProtocolError) as error:
                session.reset()  # nobody knows what the broker has heard
                wait = base
                if (node_id, lane) in self._overtaken:
                    continue
                for owned in ready:
                    self._forget_replica(owned, node_id)
                logger.info("fetching from broker %d: %s", node_id, error)
                await pauses.wait()
                await self._try_refresh()

    def _patience(
        self, wait: float, led: list[OwnedPartition], ready: list[OwnedPartition]
    ) -> float:
        """How much of `wait`, in seconds, a broker may keep the question; `fetch_max_wait` where
        there may be something that it does not answer at once."""
        base = self._options.fetch_max_wait
        # Of what is not in the question nobody tells when it is to be asked for again; and not all
        # followers answer what they have kept when something comes.
        asked_for_all = len(ready) == len(led) and all(o.replica < 0 for o in led)
        if asked_for_all and self._options.fetch_min_bytes <= 1 and base >= _IMPATIENCE:
            return min(wait, max(base, _PATIENCE))
        return base

    def _led(self, node_id: int, lane: int) -> list[OwnedPartition]:
        """What is fetched from a broker over one of the connections to it."""
        return [
            o
            for o in self._delivery.owned.values()
            if self._source_of(o) == node_id and self._lane_of(o) == lane
        ]

    def _sound(self, led: list[OwnedPartition]) -> list[OwnedPartition]:
        """What of it is known to be good with its leader."""
        return [o for o in led if not is_doubtful(self._cluster.metadata, o)]

    def _ready(self, sound: list[OwnedPartition], room: int) -> list[OwnedPartition]:
        """What of that may be asked for now."""
        return wanted(
            sound,
            self._clock(),
            room=room,
            records_per_partition=self._options.queued_max_records,
        )

    def _ask_leaders_again(self, node_id: int) -> None:
        """Give back to their leaders what was read from this replica for long enough."""
        now = self._clock()
        for owned in self._delivery.owned.values():
            if owned.replica_until <= now:
                self._forget_replica(owned, node_id)

    def _forget_replica(self, owned: OwnedPartition, node_id: int) -> bool:
        """Read from the leader again; answer whether it was this replica that was read from."""
        if owned.replica != node_id:
            return False
        owned.replica = -1
        self.wake()  # the task of the leader may not expect it
        return True

    async def _try_refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except (TransportError, RemoteProtocolError) as error:
            logger.info("metadata: %s", error)

    async def _fetch(
        self,
        node: Node,
        lane: int,
        ready: list[OwnedPartition],
        session: FetchSession,
        room: int,
        wait: float,
    ) -> tuple[bool, bool]:
        """One fetch of up to `room` bytes, for which the broker waits up to `wait` seconds; answer
        whether metadata has turned out to be stale, and whether nothing came at all, no error
        either."""
        part = session.request(*self._entries(ready))
        asked = {o.tp: (o, o.fetch_offset, o.checked_epoch) for o in ready}
        broker = self._cluster.broker(node)
        coming = min(room, len(ready) * self._options.max_partition_fetch_bytes)
        self._room.asked(coming)
        if wait > self._options.fetch_max_wait:
            self._parked[node.node_id, lane] = {o: o.fetch_offset for o in ready}
        try:
            answer = await broker.request(
                self._request(part, room, wait),
                connection_id=_connection(lane),
                timeout=self._cluster.options.request_timeout + wait,
                highest=None if part.by_id else _BY_NAME,
            )
        finally:
            self._parked.pop((node.node_id, lane), None)
            self._room.answered(coming)
            if len(self._running) > 1:
                self.made_room()  # another lane may have waited for it
        session.answered(answer.session_id, answer.error_code)
        if FetchSession.is_session_error(answer.error_code) and not part.full:
            return False, False
        if answer.error_code:
            raise TransportError(f"{broker}: {BrokerError(answer.error_code)}")
        stale, empty, came = False, True, False
        unread, since = self._delivery.unread_bytes, self._clock()
        for tp, data in self._answers(answer):
            if self._clock() - since > _BUDGET:
                # Checked for damage in one go, 50 MB would keep the loop for more than 10 ms.
                await anyio.sleep(0)  # noqa: ASYNC115 - anyio.lowlevel takes an import of its own
                since = self._clock()
            empty &= not (data.records or data.error_code)
            if not data.error_code:
                committed_only = self._options.isolation_level
                end = data.last_stable_offset if committed_only else data.high_watermark
                session.ends[tp] = end
            owned, *at = asked.get(tp, (None, 0, 0))
            # Not what it was when the request left: revoked, or the application has sought. Or
            # there is a leader whose log agrees up to here, but need not have what this brings.
            if owned is None or owned.revoked or [owned.fetch_offset, owned.checked_epoch] != at:
                continue
            # KIP-951: an error that names the new leader needs no look at the metadata.
            if not (data.error_code and self._cluster.take_leader(tp, data.current_leader, answer)):
                stale |= self._take(owned, data, node.node_id)
                came |= bool(data.records)
        for owned in ready:
            owned.end = session.ends.get(owned.tp, owned.end)
        if came:
            self._room.arrived(unread)
        if not empty:
            self._arrived()
        return stale, empty

    def _entries(
        self, ready: list[OwnedPartition]
    ) -> tuple[dict[TopicPartition, FetchPartition], dict[str, UUID]]:
        """What to ask for, and the ids of the topics."""
        entries: dict[TopicPartition, FetchPartition] = {}
        ids: dict[str, UUID] = {}
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
            # What this brings is of this topic, and of this leader's log.
            owned.topic_id = ids[owned.tp.topic]
            owned.checked_epoch = leader_epoch
        return entries, ids

    def _request(self, part: SessionRequest, room: int, wait: float) -> FetchRequest:
        options = self._options
        return FetchRequest(
            max_wait_ms=round(wait * 1000),
            min_bytes=options.fetch_min_bytes,
            max_bytes=room,
            isolation_level=options.isolation_level,
            session_id=part.session_id,
            session_epoch=part.epoch,
            topics=tuple(
                FetchTopic(
                    topic=topic,
                    topic_id=part.topic_ids[topic],
                    partitions=tuple(part.partitions[tp] for tp in partitions),
                )
                for topic, partitions in _by_topic(part.partitions).items()
            ),
            forgotten_topics_data=tuple(
                ForgottenTopic(
                    topic=topic,
                    topic_id=part.topic_ids[topic],
                    partitions=tuple(tp.partition for tp in partitions),
                )
                for topic, partitions in _by_topic(part.forgotten).items()
            ),
            rack_id=options.client_rack or "",
        )

    def _answers(self, answer: FetchResponse) -> Iterator[tuple[TopicPartition, PartitionData]]:
        names = {t.topic_id: name for name, t in self._cluster.metadata.topics.items()}
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                yield TopicPartition(name, data.partition_index), data

    def _take(self, owned: OwnedPartition, data: PartitionData, node_id: int) -> bool:
        """Buffer what came for one partition, or see to its error."""
        if data.error_code:
            if self._forget_replica(owned, node_id):
                # The leader knows better; a follower may lag behind or be one no longer.
                self._back_off(owned)
                return False
            return self._see_to(owned, data.error_code)
        if data.preferred_read_replica >= 0:
            # KIP-392: nothing came; it is to be had nearer. No success yet: between a leader and a
            # follower that send us to each other and fro there would be no back-off.
            owned.replica = data.preferred_read_replica
            owned.replica_until = self._clock() + self._options.metadata_max_age
            self.wake()
            return False
        owned.attempts = 0
        if (troubles := self._cluster.troubles).open:
            troubles.succeeded(("fetch", owned.tp), self._clock())
        batches: list[RecordBatch] = []
        try:
            for batch in read_batches(
                memoryview(data.records or b""),
                topic=owned.tp.topic,
                partition=owned.tp.partition,
                check_crcs=self._options.check_crcs,
                max_batch_bytes=self._options.max_batch_bytes,
            ):
                batches.append(batch)  # noqa: PERF402 - what came before a damaged batch counts
        except DecodeError as error:
            if not batches:
                self._failed(owned, error)
        if self._options.isolation_level:
            mark_aborted(batches, data.aborted_transactions or ())
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

    def _see_to(self, owned: OwnedPartition, code: int) -> bool:
        action = remedy(code)
        error = broker_error(
            code,
            f"fetching {owned.tp} at {owned.fetch_offset}",
            operation="READ",
            topic=owned.tp.topic,
        )
        logger.log(logging.WARNING if action is Remedy.RESET else logging.INFO, "%s", error)
        if action is Remedy.RAISE:
            self._failed(owned, error)
            return False
        problem = Problem(
            subject=f"fetching topic {owned.tp.topic}",
            cause=str(BrokerError(code)),
            advice="check that the topic exists, and that the brokers agree on who leads it",
        )
        self._cluster.troubles.failed(("fetch", owned.tp), self._clock(), problem)
        if action is Remedy.RESET and owned.position == owned.fetch_offset:
            # Only once all that was fetched is handed out: that is still good.
            owned.reset = True
            self._look_up()
        self._back_off(owned)
        return action is Remedy.REFRESH

    def _back_off(self, owned: OwnedPartition) -> None:
        owned.attempts += 1
        options = self._options
        pause = backoff(
            owned.attempts, options.retry_backoff, options.retry_backoff_max, random.random()
        )
        # To full ticks: a hundred partitions that fail are asked for together, not one by one.
        tick = 2 * options.retry_backoff
        owned.retry_at = math.ceil((self._clock() + pause) / tick) * tick


def _connection(lane: int) -> str:
    """The id of a lane's connection to a broker."""
    return "fetch" if lane == 0 else f"fetch-{lane}"


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp)
    return by_topic


def _no_progress(owned: OwnedPartition, data: PartitionData, batches: list[RecordBatch]) -> str:
    """Why what came brings nothing, so that asking again would bring the same for ever."""
    if not batches:
        return (
            f"the next batch is larger than the {len(data.records or b'')} bytes that came;"
            " raise max_partition_fetch_bytes"
        )
    if batches[-1].next_offset <= owned.fetch_offset:
        return f"the batches that came end at {batches[-1].last_offset}, below it"
    return ""
