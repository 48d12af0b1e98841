"""What a correct group client does, seen from outside.

Most safety tests check one recorded run of a group with many events, eager and cooperative: members
join and leave, one is expired, the coordinator moves. Time is virtual, the network is in memory.
The names of docs/invariants.md are those of the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import attrs
import pytest
from brokers import Worker, numbered, until
from conftest import anyio_backend
from memory_network import Leader, Network, network

from kafkagroup import ConfigurationError, Consumer, TopicPartition
from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    cooperative_sticky_assignor,
    range_assignor,
    roundrobin_assignor,
)
from kafkagroup.assign.spec import named
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Delay
from kafkagroup.types import Assignment
from kafkagroup.wire.embedded_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

__all__ = ["anyio_backend", "network"]

pytestmark = pytest.mark.anyio

# ---------------------------------------------------------------- the group under test

SERVER = "kafka-1:9092"
COOPERATIVE = {"assignors": [cooperative_sticky_assignor]}


@asynccontextmanager
async def broker(
    network: Network, partitions: int, records: int = 0, nodes: int = 1
) -> AsyncIterator[EmbeddedKafka]:
    """Provide a topic t with `records` records in each partition, for at most ten virtual
    minutes."""
    kafka = EmbeddedKafka({"t": partitions}, nodes=nodes, listen=False)
    for p in range(partitions if records else 0):
        kafka.produce("t", numbered(p, records), partition=p)
    async with network, kafka:
        network.serve_embedded(kafka, nodes)
        with anyio.fail_after(600):
            yield kafka


def watch(kafka: EmbeddedKafka, api: type[Any], see: Callable[[Any], object]) -> None:
    """Call `see` with each arriving request of a kind; it is executed as usual."""

    def look(request: Any) -> bool:
        see(request)
        return False

    kafka.fail(api, Delay(0), times=None, when=look)


def member_id(worker: Worker) -> str:
    return worker.consumer.group_metadata().member_id


# ---------------------------------------------------------------- joining and callbacks


async def test_an_assignment_outside_the_subscription_is_refused(
    network: Network,
) -> None:
    """The leader assigned by the old subscription. The assignment is not applied."""
    assigned: list[list[TopicPartition]] = []
    async with broker(network, 1) as kafka:
        kafka.create_topic("u")
        kafka.fail(SyncGroupRequest, Delay(2))
        options = {"bootstrap_servers": SERVER, "on_partitions_assigned": assigned.append}
        async with Consumer("t", group_id="g", **options) as c:
            await anyio.sleep(1)
            await c.subscribe("u")
            await anyio.sleep(5)
            assert c.assignment() == {TopicPartition("u", 0)}
            assert len(kafka.requests(SyncGroupRequest)) == 2
    assert assigned == [[TopicPartition("u", 0)]]


async def test_the_leader_watches_topics_that_only_others_subscribe_to(
    network: Network,
) -> None:
    async with broker(network, 1) as kafka:
        kafka.create_topic("u", 1)
        options = {"bootstrap_servers": SERVER, "group_id": "g", "metadata_max_age_ms": 1_000}
        async with Consumer("t", **options) as leader:
            await until(leader.assignment)
            # Too seldom for the other to notice by itself.
            async with Consumer("u", **{**options, "metadata_max_age_ms": 500_000}) as other:
                await until(other.assignment)
                kafka.add_partitions("u", 3)
                await until(lambda: len(other.assignment()) == 3)
                assert leader.assignment() == {TopicPartition("t", 0)}


async def test_an_offline_replica_causes_no_rejoin(
    network: Network,
) -> None:
    async with broker(network, 4, nodes=2) as kafka:
        kafka.move_coordinator("t", 1)
        worker = Worker(SERVER, "t", metadata_max_age_ms=1_000)
        async with worker.consumer:
            await until(lambda: len(worker.owns) == 4)
            assert {kafka.leader("t", p) for p in range(4)} == {1, 2}
            before = len(kafka.requests(JoinGroupRequest))
            kafka.kill(2)
            await anyio.sleep(10)
            kafka.restart(2)
            await anyio.sleep(10)
            assert len(kafka.requests(JoinGroupRequest)) == before
            assert worker.story == [("assigned", [0, 1, 2, 3])]


async def test_the_leader_rejoins_when_racks_change(network: Network) -> None:
    racks = ["a"]

    class Racked(Leader):
        def metadata(self, _: object) -> object:
            response: Any = super().metadata(_)
            brokers = [attrs.evolve(b, rack=racks[0]) for b in response.brokers]
            return attrs.evolve(response, brokers=tuple(brokers))

    leader = Racked(lambda _: b"")
    leader.assignment = encode_assignment([])  # this broker keeps no offsets
    leader.members = leader.member("me", encode_subscription(Subscription(topics=("t",), rack="a")))
    async with network:
        network.handlers["b", 9092] = leader
        options = {"group_id": "g", "client_rack": "a", "metadata_max_age_ms": 1_000}
        async with Consumer("t", bootstrap_servers="b", **options):
            await anyio.sleep(10)
            assert leader.count("join") == 1
            racks[0] = "b"
            await anyio.sleep(10)
            assert leader.count("join") == 2


@pytest.mark.parametrize(
    ("wrong", "times", "committed", "tries", "within"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 3, 1, 3, 5.0),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None, None, 5, 10.0),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, None, 1, 1.0),
    ],
)
async def test_the_last_commit_before_a_rebalance_ends_at_its_deadline(
    wrong: ErrorCode,
    times: int | None,
    committed: int | None,
    tries: int,
    within: float,
    network: Network,
) -> None:
    options = {"auto_commit_interval_ms": 500_000, "rebalance_timeout_ms": 10_000}
    async with broker(network, 1, records=2) as kafka:
        first, second = Worker(SERVER, "t", **options), Worker(SERVER, "t", **options)
        async with first.consumer, anyio.create_task_group() as tasks:
            await first.consumer.getone()
            await first.consumer.getone()
            first.consumer.seek(TopicPartition("t", 0), 1)  # what is read is processed: offset 1
            fault = kafka.fail(OffsetCommitRequest, wrong, times=times)
            async with second.consumer:
                start = anyio.current_time()
                await until(lambda: len(first.story) == 3)
                assert anyio.current_time() - start < within
                assert kafka.committed("t", "t").get(0) == committed
                assert fault.hits >= tries
                fault.stop()
            tasks.cancel_scope.cancel()


async def test_a_callback_that_raises_does_not_veto(network: Network) -> None:
    """Its error is raised once, after the join is complete."""

    def revoked(partitions: object) -> None:
        raise ZeroDivisionError

    async with broker(network, 2, records=1):
        first = Worker(SERVER, "t")
        second = Worker(SERVER, "t")
        first.consumer = Consumer(
            "t", bootstrap_servers=SERVER, group_id="t", on_partitions_revoked=revoked
        )
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            async with second.consumer:
                await until(lambda: len(first.owns) == len(second.owns) == 1)
                with pytest.raises(ZeroDivisionError):
                    await first.consumer.getone()
                assert (await first.consumer.getone()).partition == first.owns[0]
                await first.consumer.stop()


@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, [("revoked", [])]), (COOPERATIVE, [])],
)
async def test_a_member_without_partitions_gets_an_empty_assignment(
    options: dict[str, Any], ends: list[tuple[str, list[int]]], network: Network
) -> None:
    """`assigned` is called once per rebalance, even without partitions; an empty `revoked` only for
    an eager one."""
    async with broker(network, 1):
        first = Worker(SERVER, "t", group_instance_id="a", **options)
        second = Worker(SERVER, "t", group_instance_id="b", **options)
        async with first.consumer:
            await until(lambda: first.owns)
            async with second.consumer:
                await until(lambda: second.story)
                await anyio.sleep(5)
                assert (first.owns, second.story) == ([0], [("assigned", [])])
                generations = second.consumer.group_metadata().generation_id
                assert sum(what == "assigned" for what, _ in first.story) == generations
            assert second.story == [("assigned", []), *ends]


# ---------------------------------------------------------------- cooperative


async def test_a_cooperative_assignor_that_moves_owned_partitions_is_refused(
    network: Network,
) -> None:
    @named("faulty", cooperative=True)
    def faulty(group: GroupSpec) -> Assignment:
        return roundrobin_assignor(group)

    async with broker(network, 2):
        first = Worker(SERVER, "t", assignors=[faulty])
        second = Worker(SERVER, "t", assignors=[faulty])
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            async with second.consumer:
                with pytest.raises(ConfigurationError, match=r"'faulty' hands t/[01] over to"):
                    await first.consumer.getone()
                # The group is not stuck with it.
                await until(lambda: len(second.owns) == 2)


async def test_after_revoking_a_member_rejoins_at_once(network: Network) -> None:
    joined: list[tuple[str, float]] = []
    async with broker(network, 2) as kafka:
        watch(
            kafka,
            JoinGroupRequest,
            lambda request: joined.append((request.member_id, anyio.current_time())),
        )
        first = Worker(SERVER, "t", heartbeat_interval_ms=2_000, **COOPERATIVE)
        second = Worker(SERVER, "t", **COOPERATIVE)
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            me = member_id(first)
            async with second.consumer:
                await until(lambda: len(first.story) >= 2)
                assert first.story[1][0] == "revoked"
                now = anyio.current_time()
                await anyio.sleep(0.05)
                mine = [at for member, at in joined if member == me]
                assert len(mine) == 3  # at first, for the other, and after the revocation
                assert mine[-1] == pytest.approx(now, abs=0.02)
                await until(lambda: len(second.owns) == 1)


async def test_partitions_assigned_back_while_the_application_drains_are_kept(
    network: Network,
) -> None:
    """The late release of the revoked partitions must not drop the new assignment."""
    async with broker(network, 2, records=2) as kafka:
        first = Worker(SERVER, "t", auto_commit_interval_ms=100, **COOPERATIVE)
        second = Worker(SERVER, "t", **COOPERATIVE)
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            in_hand = await first.consumer.getmany(max_records=4, timeout=5)
            assert len(in_hand) == 2
            async with second.consumer:
                await until(lambda: len(first.owns) == 1)
            await anyio.sleep(5)
            assert len(first.owns) == 1  # it still drains: the application is not back
            kafka.produce("t", numbered(0, 1), partition=0)
            kafka.produce("t", numbered(1, 1), partition=1)
            seen: Counter[tuple[int, int]] = Counter()
            for _ in range(2):
                record = await first.consumer.getone()
                seen[record.partition, record.offset] += 1
            await until(lambda: len(first.owns) == 2)
        assert seen == {(0, 2): 1, (1, 2): 1}
        assert [w for w, tps in first.story if tps] == [
            "assigned",
            "revoked",
            "assigned",
            "revoked",
        ]


@pytest.mark.parametrize(
    ("assignors", "revoked"),
    [
        ([cooperative_sticky_assignor], 1),
        ([cooperative_sticky_assignor, range_assignor], 2),
        ([range_assignor, cooperative_sticky_assignor], 2),
    ],
)
async def test_a_member_is_eager_unless_every_assignor_is_cooperative(
    assignors: list[Assignor], revoked: int, network: Network
) -> None:
    async with broker(network, 2):
        first = Worker(SERVER, "t", assignors=assignors)
        second = Worker(SERVER, "t", assignors=assignors)
        async with first.consumer:
            await until(lambda: len(first.owns) == 2)
            async with second.consumer:
                await until(lambda: len(second.owns) == 1)
                assert first.story[1][0] == "revoked"
                assert len(first.story[1][1]) == revoked


# ---------------------------------------------------------------- offsets


async def test_an_unstable_offset_is_awaited_without_limit(
    network: Network,
) -> None:
    """The wait has no limit and can be cancelled; the reset policy is never applied."""
    tp = TopicPartition("t", 0)
    async with broker(network, 1, records=6) as kafka:
        async with Worker(SERVER, "t").consumer as c:
            assert (await c.getone()).offset == 0
            await c.commit({tp: 4})
            c.seek(tp, 4)
        fault = kafka.fail(OffsetFetchRequest, ErrorCode.UNSTABLE_OFFSET_COMMIT, times=None)
        async with Worker(SERVER, "t").consumer as c:
            with anyio.move_on_after(200) as scope:
                await c.getone()
            assert scope.cancelled_caught
            assert 150 < fault.hits < 400
            with anyio.move_on_after(1) as scope:
                await c.committed([tp])
            assert scope.cancelled_caught
            fault.stop()
            assert (await c.getone()).offset == 4


# ---------------------------------------------------------------- one recorded run


@attrs.frozen
class Event:
    """A callback or an action of a member, or a request of it that arrived at the broker."""

    at: float
    who: str
    what: str
    """assigned, revoking, revoked, losing, lost: callbacks, the -ing at their begin; deliver,
    processed: the application; join, leave, commit: requests; fenced: a heartbeat is refused;
    granted: what the leader assigns."""
    partition: int = -1
    offset: int = -1
    """Of a record; what is committed; at assigned, granted and join the generation, at revoking
    what is committed."""
    claims: frozenset[int] = frozenset()
    """At join: the partitions that the member says it owns."""


class RecordedRun:
    """The members of one group, and their recorded events."""

    def __init__(self, kafka: EmbeddedKafka, options: dict[str, Any]) -> None:
        self.kafka = kafka
        self.options = options
        self.events: list[Event] = []
        self.consumers: dict[str, Consumer] = {}
        self._ids: dict[str, str] = {}
        """Member id -> who."""
        watch(kafka, JoinGroupRequest, self._joins)
        watch(kafka, SyncGroupRequest, self._grants)
        watch(kafka, LeaveGroupRequest, lambda r: self.record_event(self._sender(r), "leave"))
        watch(kafka, OffsetCommitRequest, self._commits)

    def record_event(
        self,
        who: str,
        what: str,
        partition: int = -1,
        offset: int = -1,
        claims: frozenset[int] = frozenset(),
    ) -> None:
        self.events.append(Event(anyio.current_time(), who, what, partition, offset, claims))

    def of(self, *what: str) -> list[Event]:
        return [event for event in self.events if event.what in what]

    def _sender(self, request: object) -> str:
        """Return the member whose request has just arrived."""
        return self.kafka.requests(type(request))[-1].client_id

    def _joins(self, request: JoinGroupRequest) -> None:
        who = self._ids[request.member_id] = self._sender(request)
        claim = decode_subscription(request.protocols[0].metadata)
        owned = frozenset(tp.partition for tp in claim.owned)
        self.record_event(who, "join", offset=claim.generation, claims=owned)

    def _grants(self, request: SyncGroupRequest) -> None:
        for given in request.assignments:
            for tp in decode_assignment(given.assignment):
                who = self._ids[given.member_id]
                self.record_event(who, "granted", tp.partition, request.generation_id)

    def _commits(self, request: OffsetCommitRequest) -> None:
        for topic in request.topics:
            for p in topic.partitions:
                who = self._sender(request)
                self.record_event(who, "commit", p.partition_index, p.committed_offset)

    def member(self, who: str) -> Consumer:
        def callback(begin: str, end: str) -> Any:
            async def call(partitions: list[TopicPartition]) -> None:
                committed = self.kafka.committed("g", "t")
                for tp in partitions:
                    self.record_event(who, begin, tp.partition, committed.get(tp.partition, 0))
                await anyio.sleep(0.1)
                for tp in partitions:
                    self.record_event(who, end, tp.partition)

            return call

        def assigned(partitions: list[TopicPartition]) -> None:
            consumer = self.consumers[who]
            for tp in consumer.assignment():
                self.record_event(
                    who, "assigned", tp.partition, consumer.group_metadata().generation_id
                )

        self.consumers[who] = Consumer(
            "t",
            bootstrap_servers=SERVER,
            group_id="g",
            client_id=who,
            on_partitions_assigned=assigned,
            on_partitions_revoked=callback("revoking", "revoked"),
            on_partitions_lost=callback("losing", "lost"),
            auto_commit_interval_ms=300,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            **self.options,
        )
        return self.consumers[who]

    async def work(self, who: str) -> None:
        async with self.member(who) as consumer:
            async for record in consumer:
                self.record_event(who, "deliver", record.partition, record.offset)
                await anyio.sleep(0.02)
                self.record_event(who, "processed", record.partition, record.offset)


PARTITIONS, RECORDS = 4, 150
WAYS = pytest.mark.parametrize("options", [{}, COOPERATIVE], ids=["eager", "cooperative"])


async def live(network: Network, options: dict[str, Any]) -> RecordedRun:
    """Members join and leave; b is expired at 4 s; the coordinator moves at 6 s."""
    async with broker(network, PARTITIONS, RECORDS, nodes=2) as kafka:
        run = RecordedRun(kafka, options)
        async with anyio.create_task_group() as tasks:
            for who in "abc":
                tasks.start_soon(run.work, who)
                await anyio.sleep(1.3)
            b = run.consumers["b"].group_metadata().member_id

            def fence(request: HeartbeatRequest) -> bool:
                if request.member_id != b:
                    return False
                run.record_event("b", "fenced")
                return True

            kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID, when=fence)
            await anyio.sleep(2)
            kafka.move_coordinator("g", 3 - kafka.coordinator("g"))
            await anyio.sleep(1)
            await run.consumers["a"].stop()
            await until(lambda: sum(kafka.committed("g", "t").values()) >= PARTITIONS * RECORDS, 90)
            for who in "bc":
                await run.consumers[who].stop()
    return run


@WAYS
async def test_the_recorded_run_has_every_kind_of_event(
    options: dict[str, Any], network: Network
) -> None:
    """Otherwise the assertions below would check nothing."""
    counts = Counter((e.who, e.what) for e in (await live(network, options)).events)
    assert counts["b", "lost"] > 0
    assert all(counts[who, "revoked"] and counts[who, "deliver"] for who in "abc")


@WAYS
async def test_s1_a_partition_has_one_owner_per_generation(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    owners: dict[tuple[int, int], set[str]] = {}
    for event in run.of("assigned"):
        owners.setdefault((event.offset, event.partition), set()).add(event.who)
    assert {key: who for key, who in owners.items() if len(who) > 1} == {}
    assert len({generation for generation, _ in owners}) >= 4
    # Nor from one generation to the next: a partition is assigned after it was revoked.
    owner: dict[int, str] = {}
    for event in run.of("assigned", "revoked", "losing"):
        if event.what == "assigned":
            assert owner.setdefault(event.partition, event.who) == event.who, event
        elif owner.get(event.partition) == event.who:
            del owner[event.partition]


@WAYS
async def test_s2_revocation_ends_before_the_rejoin_is_sent(
    options: dict[str, Any], network: Network
) -> None:
    """A rejoin reports exactly the partitions assigned in its generation that the member still
    owns; none if eager."""
    run = await live(network, options)
    held: dict[str, set[int]] = {who: set() for who in "abc"}
    granted: set[tuple[str, int, int]] = set()
    for event in run.events:
        match event.what:
            case "granted":
                granted.add((event.who, event.offset, event.partition))
            case "assigned":
                held[event.who].add(event.partition)
            case "revoked" | "lost":
                held[event.who].discard(event.partition)
            case "join":
                assert held[event.who] == event.claims, event
                assert {(event.who, event.offset, p) for p in event.claims} <= granted, event
                assert not event.claims or options, event
            case "leave":
                assert held[event.who] == set(), event


@WAYS
async def test_s3_the_last_commit_is_answered_before_a_partition_is_released(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    done = dict.fromkeys(range(PARTITIONS), 0)
    released = 0
    for event in run.events:
        if event.what == "processed":
            done[event.partition] = event.offset + 1
        elif event.what == "revoking":
            assert event.offset == done[event.partition], event
            released += 1
    assert released >= 4


@WAYS
async def test_s4_a_commit_never_exceeds_the_processed_records(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    done = dict.fromkeys(range(PARTITIONS), 0)
    for event in run.of("processed", "commit"):
        if event.what == "processed":
            done[event.partition] = max(done[event.partition], event.offset + 1)
        else:
            assert event.offset <= done[event.partition], event


@WAYS
async def test_s5_a_commit_never_moves_back(options: dict[str, Any], network: Network) -> None:
    run = await live(network, options)
    for partition in range(PARTITIONS):
        offsets = [e.offset for e in run.of("commit") if e.partition == partition]
        assert offsets == sorted(offsets)
        assert offsets[-1] == RECORDS


@WAYS
async def test_s6_every_record_below_the_last_commit_was_processed(
    options: dict[str, Any], network: Network
) -> None:
    """Any commit may be the last: a crash can follow it."""
    run = await live(network, options)
    processed: dict[int, set[int]] = {p: set() for p in range(PARTITIONS)}
    last = dict.fromkeys(range(PARTITIONS), 0)
    for event in run.of("processed", "commit"):
        if event.what == "processed":
            processed[event.partition].add(event.offset)
        else:
            assert set(range(event.offset)) - processed[event.partition] == set(), event
            last[event.partition] = event.offset
    assert last == dict.fromkeys(range(PARTITIONS), RECORDS)


@WAYS
async def test_s7_only_lost_uncommitted_records_are_delivered_twice(
    options: dict[str, Any], network: Network
) -> None:
    """From the last commit to the position at the loss; none after a clean handover."""
    run = await live(network, options)
    may_repeat: set[tuple[int, int]] = set()
    at = dict.fromkeys(range(PARTITIONS), 0)
    for event in run.events:
        if event.what == "deliver":
            at[event.partition] = event.offset + 1
        elif event.what == "losing":
            may_repeat |= {(event.partition, o) for o in range(event.offset, at[event.partition])}
    times = Counter((e.partition, e.offset) for e in run.of("deliver"))
    assert {record for record, count in times.items() if count > 1} <= may_repeat
    assert 0 < len(may_repeat) < 100


@WAYS
async def test_s8_offsets_rise_one_by_one_while_a_partition_is_owned(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    last: dict[tuple[str, int], int] = {}
    for event in run.events:
        key = (event.who, event.partition)
        if event.what in ("revoking", "losing"):
            last.pop(key, None)
        elif event.what == "deliver":
            assert event.offset == last.get(key, event.offset - 1) + 1, event
            last[key] = event.offset


@WAYS
async def test_s9_nothing_is_delivered_after_the_callback_for_revoked_or_lost(
    options: dict[str, Any], network: Network
) -> None:
    run = await live(network, options)
    owned: set[tuple[str, int]] = set()
    for event in run.events:
        key = (event.who, event.partition)
        if event.what == "assigned":
            owned.add(key)
        elif event.what in ("revoking", "losing"):
            owned.discard(key)
        elif event.what == "deliver":
            assert key in owned, event


@WAYS
async def test_s13_lost_never_commits(options: dict[str, Any], network: Network) -> None:
    run = await live(network, options)
    out: set[tuple[str, int]] = set()
    for event in run.events:
        key = (event.who, event.partition)
        if event.what == "fenced":
            out |= {(event.who, p) for p in range(PARTITIONS)}
        elif event.what == "assigned":
            out.discard(key)
        elif event.what == "commit":
            assert key not in out, event


# ---------------------------------------------------------------- liveness


async def test_l1_retained_partitions_are_delivered_without_a_gap(network: Network) -> None:
    """A member joins. The other continues with the partitions that it keeps: at most 100 ms between
    records."""
    gap = 0.1
    async with broker(network, 3, records=1_000):
        first = Worker(SERVER, "t", **COOPERATIVE)
        second = Worker(SERVER, "t", **COOPERATIVE)
        times: list[float] = []

        async def read() -> None:
            async for _ in first.consumer:
                times.append(anyio.current_time())
                await anyio.sleep(0.005)

        async with first.consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(0.5)
            async with second.consumer:
                await until(lambda: second.owns)
                await anyio.sleep(1)
                assert len(first.owns) == 2
                assert max(b - a for a, b in pairwise(times)) <= gap
                await second.consumer.stop()
            await first.consumer.stop()


@pytest.mark.parametrize("down", [3.0, 20.0])
async def test_l2_a_member_rejoins_within_2_s_of_its_coordinators_return(
    down: float, network: Network
) -> None:
    """Whether it was away for less than a session timeout or for more."""
    async with broker(network, 1, records=6) as kafka:
        async with Worker(SERVER, "t").consumer as c:
            assert (await c.getone()).offset == 0
            await c.commit()
            kafka.kill(1)
            await anyio.sleep(down)
            kafka.restart(1)
            with anyio.fail_after(2):
                assert (await c.getone()).offset == 1
                await c.commit()
        assert kafka.committed("t", "t") == {0: 2}


async def test_l2_a_dead_members_partitions_move_within_its_session(network: Network) -> None:
    session = 6.0
    async with broker(network, 2):
        dead, alive = Worker(SERVER, "t", leave_group_on_close=False), Worker(SERVER, "t")
        async with dead.consumer:
            await until(lambda: len(dead.owns) == 2)
            async with alive.consumer:
                await until(lambda: len(dead.owns) == len(alive.owns) == 1)
                await dead.consumer.stop()
                start = anyio.current_time()
                await until(lambda: len(alive.owns) == 2)
                assert session - 1 < anyio.current_time() - start <= session + 2
