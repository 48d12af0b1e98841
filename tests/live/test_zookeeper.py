"""Groups in a real ZooKeeper; their topics on the embedded broker and on Kafka.

The soak test with ZooKeeper (tests/verification/soak) is about processes: killed and frozen.
"""

import socket
import subprocess
import sys
from collections import Counter

import anyio
import anyio.to_thread
import pytest
from brokers import TRIO_IS_LONG, Worker, until
from gate import Gate
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

from kafkagroup import (
    BrokerError,
    CommitFailedError,
    ConfigurationError,
    Consumer,
    Election,
    GroupMember,
    GroupProtocol,
    Shards,
    ZooKeeperMembership,
)
from kafkagroup.assign import range_assignor, roundrobin_assignor
from kafkagroup.errors import ErrorCode
from kafkagroup.member.zookeeper_nodes import Paths
from kafkagroup.runtime.member.threaded import running_loop
from kafkagroup.testing import EmbeddedKafka, LocalZooKeeper
from kafkagroup.testing.local import LocalKafkaUnavailable
from kafkagroup.zookeeper.session import Access, Session

pytestmark = pytest.mark.anyio

SESSION = 2.0
"""Seconds of a session that must expire in a test."""


@pytest.fixture(scope="module")
def zookeeper():
    ensemble = LocalZooKeeper()
    try:
        ensemble.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real ZooKeeper on this machine: {error}")
    yield ensemble
    ensemble.stop()


@pytest.fixture
def membership(zookeeper):
    """Return a membership with sessions long enough for a busy machine."""
    return ZooKeeperMembership(zookeeper.hosts, session_timeout_ms=10_000)


@pytest.fixture
def keeper(zookeeper):
    """Return a ZooKeeper client of the test."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def session_with(hosts, *, timeout=SESSION, on_event=lambda event: None):
    _, _, post = running_loop()
    return Session(
        1,
        hosts,
        timeout,
        Paths("/kafkagroup", "g"),
        "me",
        client="member me of group g",
        access=Access(),
        exclusive_generations=False,
        post=post,
        on_event=on_event,
    )


async def test_a_warning_of_a_session_names_why_it_cannot_connect():
    """The warning names the cause, which kazoo does not report."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*closed.getsockname())
        session = session_with(address)
        session.open()
        try:
            await until(lambda: session.connect_error)
        finally:
            session.close()
    assert session.connect_error.startswith(f"{address}: ")
    assert session.connect_error.endswith("Connection refused")


@pytest.mark.parametrize(("servers", "seconds"), [(1, SESSION / 3), (5, SESSION / 5)])
async def test_a_host_that_is_down_does_not_use_up_the_session_timeout(
    monkeypatch, servers, seconds
):
    waits = []

    def connect(handler, *, timeout, **options):
        waits.append(timeout)
        raise OSError("no route to host")

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", connect)
    session = session_with(",".join(f"127.0.0.{n}:2181" for n in range(1, servers + 1)))
    session.open()
    try:
        await until(lambda: len(waits) >= servers)
    finally:
        session.close()
    assert set(waits) == {seconds}


async def test_a_session_has_the_timeout_that_the_server_grants():
    """A server may grant less than was requested; the lease is computed from it."""
    events = []
    try:
        ensemble = await anyio.to_thread.run_sync(
            LocalZooKeeper(config={"maxSessionTimeout": "4000"}).__enter__
        )
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real ZooKeeper on this machine: {error}")
    try:
        session = session_with(ensemble.hosts, timeout=10.0, on_event=events.append)
        session.open()
        try:
            await until(lambda: events)
        finally:
            session.close()
    finally:
        await anyio.to_thread.run_sync(ensemble.stop)
    assert events[0].timeout == 4.0


def claims(keeper, group):
    """Return partition -> the name of the member that claims it."""
    path = f"/kafkagroup/{group}/claims"
    return {
        int(unit.rpartition(":")[2]): keeper.get(f"{path}/{unit}")[0].decode().partition("-")[0]
        for unit in keeper.get_children(path)
    }


async def test_members_share_the_partitions_and_hand_them_over(
    bootstrap, name, fill, membership, keeper
):
    await fill(4, 300)
    first = Worker(bootstrap, name, membership=membership, client_id="first")
    second = Worker(bootstrap, name, membership=membership, client_id="second")
    # So slowly that records are left for the second, however long it takes to join.
    first.pause, second.pause = 0.02, 0.001
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: len(first.seen) > 20)
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: second.owns and len(first.owns) == len(second.owns) == 2)
            kept, moved = first.owns, second.owns
            expected = dict.fromkeys(kept, "first") | dict.fromkeys(moved, "second")
            assert claims(keeper, name) == expected
            await until(lambda: second.seen)
            await second.consumer.stop()
            first.pause = 0.001
        await until(lambda: len(first.owns) == 4)
        await until(lambda: len(set(first.seen + second.seen)) == 1200)
        await first.consumer.stop()
    assert Counter(first.seen + second.seen).most_common(1)[0][1] == 1
    revoked = [partitions for what, partitions in first.story if what == "revoked"]
    assert revoked == [moved, [0, 1, 2, 3]]
    assert all(what != "lost" for what, _ in first.story + second.story)
    assert keeper.get_children(f"/kafkagroup/{name}/members") == []
    assert keeper.get_children(f"/kafkagroup/{name}/claims") == []


async def test_a_member_whose_session_expired_loses_its_partitions_and_rejoins(
    bootstrap, name, fill, membership
):
    await fill(2, 500)
    worker = Worker(bootstrap, name, membership=membership)
    worker.pause = 0.001
    async with worker.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await until(lambda: len(worker.seen) > 50)
        session = worker.consumer._session.member.driver._session._client.client_id

        def end_session():
            # A client with a session's id and password can resume it, and close it.
            thief = KazooClient(membership.hosts, client_id=session)
            thief.start()
            thief.stop()
            thief.close()

        with anyio.fail_after(20):
            while ("lost", [0, 1]) not in worker.story:
                # The member's own client may have resumed the session before it was closed.
                await anyio.to_thread.run_sync(end_session)
                await anyio.sleep(0.1)
        # Without this wait, a member that reads fast ends before it notices.
        await until(lambda: len(worker.story) == 3)
        await until(lambda: len(set(worker.seen)) == 1000)
        await worker.consumer.stop()
    assert worker.story == [
        ("assigned", [0, 1]),
        ("lost", [0, 1]),
        ("assigned", [0, 1]),
        ("revoked", [0, 1]),
    ]


@TRIO_IS_LONG
async def test_a_disconnected_member_stops_delivery_before_its_partitions_are_reassigned(
    bootstrap, name, fill, zookeeper, membership
):
    """Without a response, its own clock ends its lease before ZooKeeper expires its session."""
    await fill(2, 2_000)
    with Gate(zookeeper.address(1)) as gate:
        behind = ZooKeeperMembership(gate.address, session_timeout_ms=int(SESSION * 1000))
        first = Worker(bootstrap, name, membership=behind, auto_commit_interval_ms=100)
        second = Worker(bootstrap, name, membership=membership)
        first.pause = second.pause = 0.001
        async with first.consumer, second.consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            await until(lambda: len(first.seen) > 50)
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 1)
            await until(lambda: second.seen)
            gate.bar()
            await until(lambda: len(second.owns) == 2)
            at_takeover = len(first.seen)
            await until(lambda: first.story[-1][0] == "lost")
            assert len(first.seen) == at_takeover
            with pytest.raises(CommitFailedError):
                await first.consumer.commit({(name, 0): 1})
            gate.unbar()
            await until(lambda: len(first.owns) == len(second.owns) == 1)
            await until(lambda: len(set(first.seen + second.seen)) == 4_000, 40.0)
            await first.consumer.stop()
            await second.consumer.stop()
    # Twice come those that were processed and not committed: of half a session, at this rate.
    assert len(first.seen + second.seen) - 4_000 <= SESSION / first.pause


class Split(LocalZooKeeper):
    """An ensemble whose connections between nodes can be blocked."""

    def _lay_out(self, directory, undo):
        super()._lay_out(directory, undo)
        self.gates = {}
        for node, server in self._nodes.items():
            path = server.directory / "zoo.cfg"
            lines = dict(line.split("=") for line in path.read_text("ascii").splitlines())
            for other in self._nodes:
                host, *ports = lines[f"server.{other}"].split(":")
                if other == node:
                    # Else it would say where it is, and be called back without passing a gate.
                    host = "0.0.0.0"
                else:
                    gates = [undo.enter_context(Gate(f"{host}:{port}")) for port in ports]
                    self.gates[node, other] = gates
                    ports = [str(gate.port) for gate in gates]
                lines[f"server.{other}"] = ":".join((host, *ports))
            path.write_text("".join(f"{k}={v}\n" for k, v in lines.items()), "ascii")

    def cut_off(self, node):
        """The node is partitioned from the other nodes, but not from its clients."""
        for ends, gates in self.gates.items():
            if node in ends:
                for gate in gates:
                    gate.bar()

    def heal(self):
        for gates in self.gates.values():
            for gate in gates:
                gate.unbar()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("leads", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_a_network_partition_of_the_ensemble_gives_no_partition_two_owners(name, leads):
    """A node that is partitioned from the others still responds to its clients for a while; a
    former leader even to requests for the leader. Its members stop before others get their
    partitions."""
    config = {"initLimit": "6", "syncLimit": "4" if leads else "24"}
    with EmbeddedKafka({name: 2}) as kafka, Split(3, config=config) as zookeeper:
        leader = zookeeper.leader
        cut = leader if leads else leader % 3 + 1
        rest = [zookeeper.address(node) for node in (1, 2, 3) if node != cut]
        for partition in (0, 1):
            kafka.produce(name, [b"%d" % n for n in range(4_000)], partition=partition)

        def worker(*hosts):
            options = {"session_timeout_ms": int(SESSION * 1000)}
            membership = ZooKeeperMembership(",".join(hosts), **options)
            made = Worker(
                kafka.bootstrap_servers, name, membership=membership, auto_commit_interval_ms=60_000
            )
            made.pause = 0.004
            return made

        first, second = worker(zookeeper.address(cut)), worker(*rest)
        async with first.consumer, second.consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(first.run)
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 1)
            await until(lambda: len(first.seen) > 50 and len(second.seen) > 50)
            zookeeper.cut_off(cut)
            await until(lambda: len(second.owns) == 2, 40.0)
            at_takeover = len(first.seen)
            await until(lambda: first.story[-1][0] == "lost")
            assert len(first.seen) == at_takeover
            zookeeper.heal()
            await until(lambda: len(first.owns) == len(second.owns) == 1, 40.0)
            after = len(first.seen)
            await until(lambda: len(first.seen) > after)
            await first.consumer.stop()
            await second.consumer.stop()


@TRIO_IS_LONG
async def test_a_zookeeper_restart_within_the_session_timeout_moves_nothing(bootstrap, name, fill):
    await fill(2, 3_000)
    with LocalZooKeeper() as zookeeper:
        membership = ZooKeeperMembership(f"{zookeeper.hosts}/a/chroot", session_timeout_ms=30_000)
        worker = Worker(bootstrap, name, membership=membership)
        worker.pause = 0.001
        async with worker.consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await until(lambda: len(worker.seen) > 100)
            await anyio.to_thread.run_sync(zookeeper.kill, 1)
            await anyio.to_thread.run_sync(zookeeper.start_node, 1)
            await until(lambda: len(worker.seen) == 6_000, 40.0)
            await worker.consumer.stop()
    assert worker.story == [("assigned", [0, 1]), ("revoked", [0, 1])]
    assert len(set(worker.seen)) == 6_000


@TRIO_IS_LONG
async def test_a_server_that_never_answers_one_connection_moves_nothing(
    bootstrap, name, fill, zookeeper
):
    """A starting ZooKeeper may accept a connection that it never reads. Waiting on it for the whole
    session timeout lost the partitions."""
    await fill(2, 10)
    with Gate(zookeeper.address(1)) as gate:
        membership = ZooKeeperMembership(gate.address, session_timeout_ms=6_000)
        worker = Worker(bootstrap, name, membership=membership)
        async with worker.consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await until(lambda: len(worker.seen) == 20)
            before = gate.accepted
            gate.disconnect(leave_unanswered=1)
            await until(lambda: gate.accepted == before + 2)
            await fill(2, 10)
            await until(lambda: len(worker.seen) == 40)
            await worker.consumer.stop()
    assert worker.story == [("assigned", [0, 1]), ("revoked", [0, 1])]


async def test_a_commit_verifies_the_claim_first(bootstrap, name, fill, membership, keeper):
    await fill(2, 10)
    async with Consumer(
        name, bootstrap_servers=bootstrap, group_id=name, membership=membership
    ) as consumer:
        await consumer.getone()
        await consumer.commit({(name, 0): 3, (name, 1): 4})
        await anyio.to_thread.run_sync(keeper.delete, f"/kafkagroup/{name}/claims/{name}:1")
        await consumer.commit({(name, 0): 5})
        with pytest.raises(CommitFailedError, match=f"not claimed by this member.*{name}/1"):
            await consumer.commit({(name, 1): 6})
        committed = await consumer.committed()
        assert {tp.partition: o.offset for tp, o in committed.items()} == {0: 5, 1: 4}


async def test_the_member_waits_for_a_claim_held_by_another(
    bootstrap, name, fill, membership, keeper
):
    await fill(2, 10)
    path = f"/kafkagroup/{name}/claims/{name}:1"
    keeper.create(path, b"somebody", ephemeral=True, makepath=True)
    worker = Worker(bootstrap, name, membership=membership)
    async with worker.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await until(lambda: len(worker.seen) == 10)
        assert worker.owns == [0]
        await anyio.to_thread.run_sync(keeper.delete, path)
        await until(lambda: len(worker.seen) == 20)
        await worker.consumer.stop()


async def test_a_changed_subscription_changes_the_assignment(bootstrap, name, fill, membership):
    other = f"{name}-too"
    await fill(2, 10)
    await fill(1, 1, topic=other)
    worker = Worker(bootstrap, name, membership=membership)
    async with worker.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await until(lambda: len(worker.seen) == 20)
        await worker.consumer.subscribe(other)
        assert {tp.topic for tp in await worker.consumer.wait_assignment()} == {other}
        await worker.consumer.subscribe(name)
        await until(lambda: worker.owns == [0, 1])
        assert {tp.topic for tp in worker.consumer.assignment()} == {name}
        await worker.consumer.stop()


async def test_added_partitions_are_assigned(name, membership):
    with EmbeddedKafka({name: 1}) as kafka:
        await grow(kafka, name, membership)


def generation_of(worker):
    return worker.consumer.group_metadata().generation_id


async def grow(kafka, name, membership):
    # The second reads metadata once: the first registers again, so that all members compute again.
    first = Worker(kafka.bootstrap_servers, name, membership=membership, metadata_max_age_ms=200)
    second = Worker(kafka.bootstrap_servers, name, membership=membership)
    async with first.consumer, second.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        tasks.start_soon(second.run)
        await until(lambda: len(first.owns) + len(second.owns) == 1)
        # A member that computes only now would know the new count, and would not register again: it
        # reads the count after it has the generation.
        await until(lambda: generation_of(first) == generation_of(second))
        await anyio.sleep(1.0)
        await anyio.to_thread.run_sync(kafka.add_partitions, name, 4)
        await until(lambda: len(first.owns) == len(second.owns) == 2)
        await first.consumer.stop()
        await second.consumer.stop()


async def test_a_member_without_a_common_assignor_is_refused(bootstrap, name, fill, membership):
    await fill(1, 10)
    options = {"bootstrap_servers": bootstrap, "group_id": name, "membership": membership}
    async with Consumer(name, assignors=[range_assignor], **options) as consumer:
        await consumer.getone()
        async with Consumer(name, assignors=[roundrobin_assignor], **options) as stranger:
            with pytest.raises(BrokerError) as caught:
                await stranger.getone()
        assert caught.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        await consumer.getone()


# ---------------------------------------------------------------- members of any group


def protocol(value):
    def assign(members):
        ranked = sorted(members, key=lambda member: members[member])
        return {m: b"%d/%d" % (i, len(ranked)) for i, m in enumerate(ranked)}

    return GroupProtocol("workers", "even", value, assign)


async def test_a_generation_begins_after_all_members_released_the_previous_one(name, membership):
    """The first member ends slowly; no Kafka broker is needed."""
    working = {}
    seen = []

    async def work(member, who, linger):
        async for generation in member:
            assert set(working.values()) <= {generation.generation_id}
            working[who] = generation.generation_id
            seen.append((who, generation.assignment))
            with generation.scope():
                await anyio.sleep_forever()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(linger)
            del working[who]

    nowhere = {"bootstrap_servers": "127.0.0.1:1", "membership": membership}
    first = GroupMember(name, protocol(b"a"), **nowhere)
    second = GroupMember(name, protocol(b"b"), **nowhere)
    async with anyio.create_task_group() as tasks, first:
        tasks.start_soon(work, first, "first", 0.3)
        await until(lambda: seen == [("first", b"0/1")])
        async with second:
            tasks.start_soon(work, second, "second", 0.0)
            await until(lambda: len(working) == 2)
            assert sorted(seen[1:]) == [("first", b"0/2"), ("second", b"1/2")]
            second.update(protocol(b"0"))
            await until(lambda: sorted(seen[-2:]) == [("first", b"1/2"), ("second", b"0/2")])
            await second.stop()
        await until(lambda: seen[-1] == ("first", b"0/1"))
        await first.stop()


async def test_a_disconnected_member_ends_its_generation_when_its_lease_expires(
    name, zookeeper, membership
):
    with Gate(zookeeper.address(1)) as gate:
        behind = ZooKeeperMembership(gate.address, session_timeout_ms=int(SESSION * 1000))
        first = GroupMember(name, protocol(b"a"), membership=behind)
        second = GroupMember(name, protocol(b"b"), membership=membership)
        async with first, second:
            ended = anyio.Event()

            async def work():
                async for generation in first:
                    with generation.scope():
                        await anyio.sleep_forever()
                    if generation.assignment == b"0/2":
                        ended.set()

            async def work_too():
                async for generation in second:
                    with generation.scope():
                        if generation.assignment == b"0/1":
                            # The first is without it: only now has ZooKeeper ended its session.
                            assert ended.is_set()
                            break
                        await anyio.sleep_forever()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                await first.wait_generation()
                tasks.start_soon(work_too)
                while (await second.wait_generation()).assignment != b"1/2":
                    await anyio.sleep(0.01)
                gate.bar()
                await ended.wait()
                with anyio.fail_after(20):
                    while (await second.wait_generation()).assignment != b"0/1":
                        await anyio.sleep(0.01)
                gate.unbar()
                await first.stop()


async def test_elections_and_shards_run_on_zookeeper(name, membership):
    election = Election(name, b"one", membership=membership)
    shards = Shards(f"{name}-shards", 4, membership=membership)
    async with election, shards:
        assert (await anext(election)).token > 0
        assert (await anext(shards)).mine == (0, 1, 2, 3)
        for client in (election, shards):
            assert client.health().findings == ()
            assert client.metrics().session_seconds_left > 0.0


# ---------------------------------------------------------------- to Kafka's own groups


async def test_a_group_migrates_to_kafka_with_its_offsets(bootstrap, name, fill, membership):
    """docs/zookeeper.md: stop all members, start all without `membership`. The offsets are kept."""
    await fill(3, 400)
    before = [Worker(bootstrap, name, membership=membership) for _ in range(2)]
    after = [Worker(bootstrap, name) for _ in range(2)]
    for workers, enough in ((before, 600), (before + after, 1_200)):
        started = workers[-2:]
        async with anyio.create_task_group() as tasks:
            for worker in started:
                worker.pause = 0.001
                await tasks.start(worker.consumer.run)
                tasks.start_soon(worker.run)
            await until(lambda w=workers, e=enough: sum(len(worker.seen) for worker in w) >= e)
            for worker in started:
                await worker.consumer.stop()
    seen = [record for worker in before + after for record in worker.seen]
    assert len(seen) == len(set(seen)) == 1_200


async def test_commits_are_refused_while_the_group_has_members_in_kafka(
    bootstrap, name, fill, membership
):
    """docs/zookeeper.md: why both must not run at the same time, and the error that reports it."""
    await fill(1, 10)
    options = {"bootstrap_servers": bootstrap, "group_id": name}
    async with (
        Consumer(name, membership=membership, **options) as old,
        Consumer(name, **options) as new,
    ):
        await old.getone()
        await new.getone()
        with pytest.raises(CommitFailedError):
            await old.commit()
        await new.commit()


# ---------------------------------------------------------------- what cannot work


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group_id": None}, "needs a group_id"),
        ({"group_instance_id": "i"}, "group_instance_id"),
        ({"partition_loads": dict}, "partition_loads"),
    ],
)
def test_options_that_need_a_coordinator_are_an_error(options, said):
    membership = ZooKeeperMembership("zk:2181")
    with pytest.raises(ConfigurationError, match=said):
        Consumer("t", **{"group_id": "g", "membership": membership, **options})
    if "group_instance_id" in options:
        with pytest.raises(ConfigurationError, match=said):
            GroupMember("g", protocol(b""), membership=membership, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"hosts": ""},
        {"hosts": "/chroot"},
        {"hosts": "zk:2181", "session_timeout_ms": 0},
        {"hosts": "zk:2181", "root": "relative"},
        {"hosts": "zk:2181", "root": "/a//b"},
        {"hosts": "zk:2181", "root": "/.."},
    ],
)
def test_invalid_options_of_a_membership_are_an_error(options):
    with pytest.raises(ConfigurationError):
        ZooKeeperMembership(**options)


def test_kazoo_is_imported_on_demand_and_named_if_missing():
    code = (
        "import sys, kafkagroup; from kafkagroup import Consumer, GroupMember;"
        "assert 'kazoo' not in sys.modules; sys.modules['kazoo'] = None\n"
        "try: kafkagroup.ZooKeeperMembership('zk:2181')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kafkagroup[zookeeper]'" in done.stdout
