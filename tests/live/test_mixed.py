"""Groups of this library's consumer with those of aiokafka, kafka-python, librdkafka and Java.

Each kind of client leads and follows, or the coordinator assigns; members of one kind replace those
of another while the group consumes, or moves to the other protocol. On one broker, a real one if
there is Java; asyncio only, because of aiokafka.
"""

import contextlib
import subprocess
import threading
import time
import warnings
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from assign.java_side import compiled, find_java
from brokers import is_embedded, numbered, numbers, set_heartbeat_interval, until

from kafkagroup import Admin, Consumer
from kafkagroup.assign import (
    GroupSpec,
    cooperative_sticky_assignor,
    range_assignor,
    sticky_assignor,
)
from kafkagroup.assign.cooperative_sticky import generation_in
from kafkagroup.broker import Broker
from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.wire.embedded_protocol import decode_subscription
from kafkagroup.wire.messages.group import DescribeGroupsRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest

pytestmark = pytest.mark.anyio

PARTITIONS = 6
HEARTBEAT_MS = 100
SESSION_MS = 45_000
"""Longer than a busy machine starves a process: no member crashes in these tests, so none may be
expired."""
TIMEOUT = 120.0
"""Seconds after which a group that has not settled never will: a JVM may take 30 to be there."""
ASSIGNORS = {
    "range": range_assignor,
    "sticky": sticky_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}
JAVA_MEMBER = Path(__file__).parent / "java" / "Member.java"
OUR_VERSION = 3
"""Of the assignments that this library writes; aiokafka and librdkafka write version 0."""
JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def bootstrap(kafka):
    return kafka


@attrs.define(eq=False)
class Member:
    """A running consumer of any kind."""

    kind: str
    assigned_to: bool = False
    """Whether it leaves the assignment to the coordinator (KIP-848)."""
    chooses: bool = False
    """Whether it does so where the broker and the group permit it; only this library's."""
    owns: list[int] = attrs.field(factory=list)
    """The partitions it has now, sorted."""
    history: list[tuple[float, str, frozenset[int]]] = attrs.field(factory=list)
    """When it "gained" partitions, and when they were "gone": seconds since 1970."""
    over: anyio.Event = attrs.field(factory=anyio.Event)
    """Set to end it."""
    ended: anyio.Event = attrs.field(factory=anyio.Event)

    def record_change(self, what, partitions, when=None):
        """Record the partitions that it was assigned or lost."""
        changed = frozenset(partitions)
        self.history.append((time.time() if when is None else when, what, changed))
        kept = set(self.owns) - changed
        self.owns = sorted(kept | changed if what == "gained" else kept)


@attrs.define(eq=False)
class Group:
    """Members of all kinds that share one topic. Each runs in a task of its own."""

    bootstrap: str
    name: str
    strategy: str
    tasks: anyio.abc.TaskGroup
    seen: set[bytes] = attrs.field(factory=set)
    """Values that came to any member."""
    specs: list[GroupSpec] = attrs.field(factory=list)
    """The input of our assignor, each time that one of our members was the leader."""
    members: list[Member] = attrs.field(factory=list)
    """Those that have not been asked to end."""
    everyone: list[Member] = attrs.field(factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, bootstrap, name, strategy):
        async with anyio.create_task_group() as tasks:
            group = cls(bootstrap, name, strategy, tasks)
            yield group
            for member in tuple(group.members):
                await group.stop(member)

    def start(self, kind, *, assigned_to=False, chooses=False):
        """Start a new member of a kind."""
        member = Member(kind, assigned_to, chooses)
        self.members.append(member)
        self.everyone.append(member)
        runs = {
            "ours": self._ours,
            "aiokafka": self._aiokafka,
            "librdkafka": self._librdkafka,
            "java": self._java,
            "kafka-python": self._kafka_python,
        }
        self.tasks.start_soon(self._run, runs[kind], member)
        return member

    async def _run(self, run, member):
        try:
            await run(member)
        finally:
            member.ended.set()

    async def stop(self, member):
        """Close a member, and wait until it has left."""
        self.members.remove(member)
        member.over.set()
        with anyio.fail_after(TIMEOUT):
            await member.ended.wait()

    async def _ours(self, member):
        assignor = ASSIGNORS[self.strategy]

        def watched(spec):
            self.specs.append(spec)
            return assignor(spec)

        def gained(partitions):
            member.record_change("gained", numbers(partitions))

        def gone(partitions):
            member.record_change("gone", numbers(partitions))

        async def consume():
            async for record in consumer:
                self.seen.add(record.value)

        vars(watched).update(vars(assignor))
        protocol = {"assignors": [watched]}
        if member.assigned_to or member.chooses:
            protocol = {"group_protocol": "auto" if member.chooses else "consumer"}
        consumer = Consumer(
            self.name,
            bootstrap_servers=self.bootstrap,
            group_id=self.name,
            **protocol,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            on_partitions_assigned=gained,
            on_partitions_revoked=gone,
            on_partitions_lost=gone,
        )
        async with consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            await member.over.wait()
            await consumer.stop()

    async def _aiokafka(self, member):
        assignor = RangePartitionAssignor
        if self.strategy == "sticky":
            # It remembers its assignment in its class: each member needs one of its own.
            assignor = type("Sticky", (StickyPartitionAssignor,), {})

        async def consume():
            while True:
                batches = await consumer.getmany(timeout_ms=20)
                member.owns = numbers(consumer.assignment())
                self.seen.update(record.value for batch in batches.values() for record in batch)

        consumer = AIOKafkaConsumer(
            self.name,
            bootstrap_servers=self.bootstrap,
            group_id=self.name,
            partition_assignment_strategy=[assignor],
            auto_offset_reset="earliest",
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
        )
        await consumer.start()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume)
                await member.over.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await consumer.stop()

    async def _kafka_python(self, member):
        await self._in_thread(self._poll_kafka_python, member)

    def _poll_kafka_python(self, member, over):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python's, as it is imported
            from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            self.name,
            bootstrap_servers=self.bootstrap,
            group_id=self.name,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
        )
        # A leader that gets the topic's metadata while it assigns may assign nothing and never join
        # again: it remembers the new metadata as that which it has assigned.
        assert consumer.partitions_for_topic(self.name) == set(range(PARTITIONS))
        while not over.is_set():
            batches = consumer.poll(timeout_ms=20)
            member.owns = numbers(consumer.assignment())
            self.seen.update(record.value for batch in batches.values() for record in batch)
        consumer.close()

    async def _librdkafka(self, member):
        await self._in_thread(self._poll_librdkafka, member)

    async def _in_thread(self, poll, member):
        over = threading.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, poll, member, over)
            try:
                await member.over.wait()
            finally:
                over.set()

    def _poll_librdkafka(self, member, over):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                **_dotted(member, self.strategy),
            }
        )
        consumer.subscribe(
            [self.name],
            on_assign=lambda _, partitions: member.record_change("gained", numbers(partitions)),
            on_revoke=lambda _, partitions: member.record_change("gone", numbers(partitions)),
        )
        while not over.is_set():
            message = consumer.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                self.seen.add(message.value())
        consumer.close()

    async def _java(self, member):
        java = find_java()
        classes = f"{compiled(JAVA_MEMBER)}:{java.jars}/*"
        command = [java.command, "-XX:TieredStopAtLevel=1", "-cp", classes, JAVA_MEMBER.stem]
        options = _dotted(member, JAVA_ASSIGNORS[self.strategy])
        arguments = [self.bootstrap, self.name, *(f"{k}={v}" for k, v in options.items())]
        async with await anyio.open_process(
            [*command, *arguments], stderr=subprocess.DEVNULL
        ) as process:

            async def end():
                await member.over.wait()
                await process.stdin.aclose()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(end)
                rest = b""
                async for chunk in process.stdout:
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        self._on_java_line(member, line.decode().split())
                assert await process.wait() == 0
                tasks.cancel_scope.cancel()

    def _on_java_line(self, member, line):
        when, what, *details = line
        if what == "record":
            self.seen.add(details[0].encode())
        else:
            member.record_change(what, map(int, details), int(when) / 1e6)

    def owned_twice(self):
        """Return the partitions that a member gained while another member still owned them."""
        story = sorted(
            (when, what == "gained", member.kind, id(member), partition)
            for member in self.everyone
            for when, what, partitions in member.history
            for partition in partitions
        )
        owner, wrong = {}, []
        for when, gained, kind, member, partition in story:
            if gained and partition in owner:
                wrong.append((when, partition, owner[partition], (kind, member)))
            if gained:
                owner[partition] = kind, member
            elif owner.get(partition) == (kind, member):
                del owner[partition]
        return wrong

    async def settle(self):
        """Wait until the running members own all partitions, each member the same number, and each
        partition has one owner."""
        share = PARTITIONS // len(self.members)
        await until(
            lambda: (
                all(len(m.owns) == share for m in self.members)
                and sorted(p for m in self.members for p in m.owns) == list(range(PARTITIONS))
            ),
            TIMEOUT,
        )

    async def describe(self):
        """Describe the group once it is stable at the coordinator."""
        host, port = self.bootstrap.split(",")[0].split(":")
        async with Broker.open(host, int(port)) as broker:
            found = await broker.request(FindCoordinatorRequest(coordinator_keys=(self.name,)))
            (at,) = found.coordinators
            async with Broker.open(at.host, at.port) as coordinator:
                with anyio.fail_after(TIMEOUT):
                    while True:
                        response = await coordinator.request(
                            DescribeGroupsRequest(groups=(self.name,))
                        )
                        (group,) = response.groups
                        if group.group_state == "Stable":
                            return group
                        await anyio.sleep(0.02)

    async def type(self):
        """Return the group's type, "classic" or "consumer"."""
        async with Admin(bootstrap_servers=self.bootstrap) as admin:
            (listed,) = [g for g in (await admin.list_groups()).groups if g.group_id == self.name]
        return listed.type

    async def led_by_us(self):
        """Whether one of our members computed the current assignment, judged by its bytes."""
        group = await self.describe()
        assert group.protocol_data == self.strategy
        versions = {int.from_bytes(m.member_assignment[:2], "big") for m in group.members}
        assert len(versions) == 1
        return versions == {OUR_VERSION}


def _dotted(member, strategy):
    """Return the options of librdkafka or Java that determine the protocol; with the consumer
    protocol the broker sets the intervals."""
    if member.assigned_to:
        return {"group.protocol": "consumer"}
    return {
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "session.timeout.ms": SESSION_MS,
    }


@pytest.fixture
def wave(name, produce):
    """Append some records to each partition, and wait until the group has read them."""
    count = 0

    async def come(group, each=20):
        nonlocal count
        for partition in range(PARTITIONS):
            await produce(partition, numbered(partition, count + each, count))
        count += each
        everything = {b"%d/%d" % (p, n) for p in range(PARTITIONS) for n in range(count)}
        await until(lambda: group.seen == everything, TIMEOUT)

    return come


@pytest.mark.parametrize(
    "kinds",
    [
        ("ours", "aiokafka", "librdkafka"),
        pytest.param(("aiokafka", "librdkafka", "ours"), marks=pytest.mark.long),
        pytest.param(("librdkafka", "ours", "aiokafka"), marks=pytest.mark.long),
    ],
    ids="-".join,
)
async def test_each_client_leads_the_others_and_all_share_the_partitions(
    bootstrap, name, fill, wave, kinds
):
    """The first member leads; when the leader leaves, a member of the next kind joins, until all
    first members are replaced."""
    await fill(PARTITIONS)
    async with Group.on(bootstrap, name, "range") as group:
        for kind in kinds:
            group.start(kind)
            await group.settle()
        assert await group.led_by_us() == (kinds[0] == "ours")
        await wave(group)
        for kind in (*kinds[1:], kinds[0]):
            await group.stop(group.members[0])
            group.start(kind)
            await group.settle()
            await wave(group)


@pytest.fixture
def java():
    """Skip if Kafka's consumer cannot run."""
    try:
        compiled(JAVA_MEMBER)
    except LocalKafkaUnavailable as missing:
        pytest.skip(f"no Java member: {missing}")


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    "kinds",
    [
        ("ours", "java", "librdkafka"),
        pytest.param(("java", "librdkafka", "ours"), marks=pytest.mark.long),
        pytest.param(("librdkafka", "ours", "java"), marks=pytest.mark.long),
    ],
    ids="-".join,
)
async def test_each_client_leads_a_cooperative_group_with_clean_handovers(
    bootstrap, name, fill, wave, kinds
):
    """As above, and no member gains a partition before its owner has revoked it."""
    await fill(PARTITIONS)
    async with Group.on(bootstrap, name, "cooperative-sticky") as group:
        for kind in kinds:
            group.start(kind)
            await group.settle()
            assert (await group.describe()).protocol_data == "cooperative-sticky"
        await wave(group)
        for kind in (*kinds[1:], kinds[0]):
            await group.stop(group.members[0])
            group.start(kind)
            await group.settle()
            await wave(group)
    assert group.owned_twice() == []


@pytest.mark.usefixtures("java")
async def test_all_clients_share_a_consumer_protocol_group_with_clean_handovers(
    bootstrap, name, fill, wave
):
    """KIP-848, from the first member to the last; each kind replaces another."""
    kinds = "java", "ours", "librdkafka"
    await fill(PARTITIONS)
    await anyio.to_thread.run_sync(set_heartbeat_interval, bootstrap, name, HEARTBEAT_MS)
    async with Group.on(bootstrap, name, "cooperative-sticky") as group:
        for kind in kinds:
            group.start(kind, assigned_to=True)
            await group.settle()
            await wave(group)
        for kind in (*kinds[1:], kinds[0]):
            await group.stop(group.members[0])
            group.start(kind, assigned_to=True)
            await group.settle()
            await wave(group)
    assert group.owned_twice() == []


@pytest.mark.long
@pytest.mark.usefixtures("java")
async def test_a_group_of_all_clients_migrates_to_the_consumer_protocol_and_back(
    bootstrap, name, fill, wave
):
    """One member at a time: meanwhile members of both protocols share the group; nothing is lost.

    librdkafka's member is the first: as a leader it would write user data into its own assignment,
    which Kafka takes for that of a custom assignor, and then refuses to upgrade the group.
    """
    kinds = "ours", "java", "librdkafka"
    await fill(PARTITIONS)
    await anyio.to_thread.run_sync(set_heartbeat_interval, bootstrap, name, HEARTBEAT_MS)
    async with Group.on(bootstrap, name, "cooperative-sticky") as group:
        for kind in kinds:
            group.start(kind)
            await group.settle()
        await wave(group)
        for assigned_to in (True, False):
            for kind in reversed(kinds):
                (member,) = (m for m in group.members if m.kind == kind)
                await group.stop(member)
                group.start(kind, assigned_to=assigned_to)
                await group.settle()
                await wave(group)
    assert group.owned_twice() == []


@pytest.mark.parametrize("kind", ["aiokafka", "kafka-python", "librdkafka", "java"])
async def test_an_auto_member_shares_a_group_with_classic_members_of_each_client(
    bootstrap, name, fill, wave, kind, request
):
    """It upgrades the group (KIP-848). Classic members join and leave the upgraded group, which
    becomes classic again when its last member of the other protocol leaves."""
    if await is_embedded(bootstrap):
        pytest.skip("the embedded broker upgrades no group that has members")
    if kind == "java":
        request.getfixturevalue("java")
    await fill(PARTITIONS)
    async with Group.on(bootstrap, name, "range") as group:
        classic = group.start(kind)
        await group.settle()
        await wave(group)
        ours = group.start("ours", chooses=True)
        await group.settle()
        await wave(group)
        assert await group.type() == "consumer"
        group.start(kind)
        await group.settle()
        await wave(group)
        await group.stop(classic)
        await group.settle()
        await wave(group)
        await group.stop(ours)
        await group.settle()
        await wave(group)
        assert await group.type() == "classic"


@pytest.mark.long
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    "kinds",
    [("ours", "java", "aiokafka"), ("java", "aiokafka", "ours"), ("aiokafka", "ours", "java")],
    ids="-".join,
)
async def test_each_client_leads_the_others_with_the_sticky_assignor(
    bootstrap, name, fill, wave, kinds
):
    """Eager and sticky: the previous partitions are in the user data, whose format all clients
    share."""
    await fill(PARTITIONS)
    async with Group.on(bootstrap, name, "sticky") as group:
        for kind in kinds:
            had = [(member, set(member.owns)) for member in group.members]
            group.start(kind)
            await group.settle()
            assert all(set(member.owns) < before for member, before in had)
        await wave(group)
        for kind in (*kinds[1:], kinds[0]):
            had = [(member, set(member.owns)) for member in group.members[1:]]
            await group.stop(group.members[0])
            await group.settle()
            assert all(set(member.owns) > before for member, before in had)
            group.start(kind)
            await group.settle()
            await wave(group)


@pytest.mark.parametrize("leader", ["ours", "librdkafka"])
async def test_a_cooperative_leader_moves_as_few_partitions_as_possible(
    bootstrap, name, fill, wave, leader
):
    """Each client reads the owned partitions and their generation that other clients report."""
    other = "librdkafka" if leader == "ours" else "ours"
    await fill(PARTITIONS)
    async with Group.on(bootstrap, name, "cooperative-sticky") as group:
        first = group.start(leader)
        await group.settle()
        second = group.start(other)
        await group.settle()
        await wave(group)
        assert await group.led_by_us() == (leader == "ours")
        before = {member: set(member.owns) for member in (first, second)}
        rounds = len(group.specs)
        third = group.start(other)
        await group.settle()
        await wave(group)
        assert await group.led_by_us() == (leader == "ours")
        for member, held in before.items():
            assert set(member.owns) < held
        if leader == "ours":
            given = group.specs[rounds].members.values()
            assert sorted(numbers(m.owned) for m in given) == sorted(
                [[], *map(sorted, before.values())]
            )
            # Those who own something have owned it in the generation before.
            (generation,) = {m.generation for m in given if m.owned}
            assert generation > 0
        before = {member: set(member.owns) for member in (second, third)}
        await group.stop(first)
        await group.settle()
        await wave(group)
        assert await group.led_by_us() == (leader != "ours")
        for member, held in before.items():
            assert set(member.owns) > held


async def test_other_clients_read_our_owned_partitions(bootstrap, name, fill):
    """An assignor that does not know the generation of a subscription finds it in the user data."""
    await fill(PARTITIONS)
    async with Group.on(bootstrap, name, "cooperative-sticky") as group:
        group.start("ours")
        await group.settle()
        group.start("librdkafka")
        await group.settle()
        described = await group.describe()
    subscriptions = [decode_subscription(m.member_metadata) for m in described.members]
    (ours,) = (s for s in subscriptions if len(s.user_data or b"") == 4)
    assert ours.owned
    assert generation_in(ours.user_data) == ours.generation > 0
