"""pykafka's balanced consumer: its group in a real ZooKeeper, its topic and offsets in Kafka."""

import inspect

import anyio
import pytest
from brokers import until

from kafkagroup import Consumer, HealthProblem, TopicPartition, ZooKeeperMembership
from kafkagroup.compat.pykafka import (
    BalancedConsumer,
    ManagedBalancedConsumer,
    OffsetType,
    RoundRobinProtocol,
)
from kafkagroup.errors import ClosedError, ConfigurationError, JoinFailedError
from kafkagroup.zookeeper import driver

pytestmark = pytest.mark.anyio

QUICK = {"rebalance_backoff_ms": 50}


@pytest.fixture
def consumer_of(bootstrap, name, zookeeper):
    def make(**options):
        options = {"zookeeper_connect": zookeeper.hosts, **QUICK, **options}
        return BalancedConsumer(name, bootstrap, name.encode(), **options)

    return make


async def take(consumer, count):
    with anyio.fail_after(20):
        return [await consumer.consume() for _ in range(count)]


def test_the_options_are_those_of_the_managed_consumer_and_of_zookeeper():
    """With pykafka's defaults, which differ in useless options."""
    managed = inspect.signature(ManagedBalancedConsumer).parameters
    ours = inspect.signature(BalancedConsumer).parameters
    defaults = {name: parameter.default for name, parameter in ours.items()}
    shared = {n: p.default for n, p in managed.items() if n in ours}
    zookeeper = {
        "zookeeper_connection_timeout_ms": 6000,
        "zookeeper_connect": "127.0.0.1:2181",
        "zookeeper": None,
    }
    assert defaults == {**shared, **zookeeper, "compacted_topic": False}
    kafkas_own = {"heartbeat_interval_ms", "session_timeout_ms", "heartbeat_thread"}
    assert managed.keys() - ours.keys() == kafkas_own


async def test_members_share_partitions_take_over_and_call_their_callbacks(
    name, fill, consumer_of, members_in
):
    """Kept partitions are among the owned ones after the rebalance, though they were not
    interrupted."""
    await fill(2, 5)
    calls = []
    callback = lambda *call: calls.append(call)  # noqa: E731
    async with consumer_of(post_rebalance_callback=callback) as consumer:
        messages = await take(consumer, 10)
        assert {(m.partition_id, m.offset) for m in messages} == {
            (p, n) for p in range(2) for n in range(5)
        }
        await consumer.commit_offsets()
        async with consumer_of() as other:
            await until(lambda: len(consumer.partitions) == len(other.partitions) == 1)
            await until(lambda: len(consumer.held_offsets) == len(other.held_offsets) == 1)
            assert len(await members_in(f"/pykafka/{name}")) == 2
        await until(lambda: consumer.held_offsets == {0: 4, 1: 4})
    rebalances = [(before, after) for _, before, after in calls if before != after]
    ((_, (mine,)), *_) = [(b, list(a)) for b, a in rebalances if len(a) == 1]
    assert rebalances == [
        ({}, {0: -2, 1: -2}),
        ({0: 4, 1: 4}, {mine: 4}),
        ({mine: 4}, {0: 4, 1: 4}),
    ]
    assert {call[0] for call in calls} == {consumer}


async def test_a_custom_membership_protocol(fill, consumer_of):
    await fill(4)
    async with consumer_of(membership_protocol=RoundRobinProtocol) as one:
        async with consumer_of(membership_protocol=RoundRobinProtocol) as other:
            await until(lambda: len(one.partitions) == len(other.partitions) == 2)
            assert {*one.partitions} & {0, 1}
            assert {*other.partitions} & {0, 1}


@pytest.mark.parametrize(("reset", "first"), [(OffsetType.EARLIEST, 0), (OffsetType.LATEST, 3)])
async def test_offsets_are_reset_on_start(bootstrap, name, fill, consumer_of, reset, first):
    await fill(1, 3)
    async with consumer_of() as consumer:
        await take(consumer, 2)
        await consumer.commit_offsets()
    async with consumer_of(reset_offset_on_start=True, auto_offset_reset=reset) as consumer:
        await until(lambda: consumer.held_offsets)
        async with Consumer(bootstrap_servers=bootstrap, group_id=name) as other:
            (found,) = (await other.committed([TopicPartition(name, 0)])).values()
        assert found.offset == first


async def test_a_claim_held_by_another_member_is_retried_up_to_a_limit(
    name, fill, consumer_of, keeper
):
    await fill(1, 3)
    path = f"/pykafka/{name}/claims/{name}:0"
    keeper.create(path, b"somebody", ephemeral=True, makepath=True)
    with pytest.raises(JoinFailedError, match=f"refused 3 times.*{name}:0"):
        async with consumer_of(rebalance_max_retries=2):
            pass


async def test_it_starts_with_its_first_assignment(name, fill, consumer_of):
    """The start once returned before it: no partitions, and a reset was an error."""
    await fill(2, 8)
    async with consumer_of() as consumer:
        assert [*consumer.partitions] == [0, 1]
        await consumer.reset_offsets([(0, 4)])
        assert consumer.held_offsets == {0: 4, 1: -2}


@pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)
async def test_a_start_without_zookeeper_fails_in_time(name, fill, consumer_of):
    """It once succeeded, and consumed nothing forever."""
    await fill(1, 3)
    down = {"zookeeper_connect": "127.0.0.1:1", "auto_start": False, "start_timeout_ms": 300}
    async with consumer_of(**down) as consumer:
        with pytest.raises(JoinFailedError, match="nothing within start_timeout_ms=300"):
            await consumer.start()
        with pytest.raises(ClosedError):
            await consumer.consume()


@pytest.mark.long
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)
async def test_a_start_without_zookeeper_names_its_servers(name, fill, consumer_of):
    """After the ten seconds that a failure may last before it is reported."""
    await fill(1, 3)
    down = {"zookeeper_connect": "127.0.0.1:1", "start_timeout_ms": 14_000}
    with pytest.raises(JoinFailedError, match=r"ZooKeeper at 127\.0\.0\.1:1\).*refused.*majority"):
        async with consumer_of(**down):
            pass


@pytest.mark.parametrize("python", [2, 3])
async def test_it_refuses_to_start_beside_members_of_pykafka(
    name, fill, consumer_of, keeper, zookeeper, python
):
    """Both owned every partition, and each record was processed twice. The nodes are those of
    pykafka 2.8.0, which on Python 3 names a topic's by the `repr` of its name."""
    await fill(1, 3)
    theirs = f"/consumers/{name}/owners"
    claim = f"{theirs}/{name}/1-0" if python == 2 else f"{theirs}/b'{name}'/1-0"
    keeper.create(f"{theirs}/other/1-0", b"host:uuid", ephemeral=True, makepath=True)
    async with consumer_of() as consumer:  # theirs has another topic
        await take(consumer, 1)
    keeper.create(claim, b"host:uuid", ephemeral=True, makepath=True)
    refused = pytest.raises(
        JoinFailedError, match=f"{name}'.*another library.*: {claim} of host:uuid; .* Stop them"
    )
    for options in ({}, {"zookeeper": ZooKeeperMembership(zookeeper.hosts, root="/mine")}):
        with refused:
            async with consumer_of(**options):
                pass
    keeper.delete(claim)
    async with consumer_of() as consumer:
        await take(consumer, 1)


@pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)
async def test_it_reports_a_member_of_pykafka_that_starts_later(
    name, fill, consumer_of, keeper, caplog, monkeypatch
):
    monkeypatch.setattr(driver, "_FOREIGN_INTERVAL", 0.05)
    await fill(1, 3)
    theirs = f"/consumers/{name}/owners/{name}/1-0"
    async with consumer_of() as consumer:
        keeper.create(theirs, b"host:uuid", ephemeral=True, makepath=True)
        await until(
            lambda: f"both libraries process every record: {theirs} of host:uuid" in caplog.text
        )
        assert "stop either the members of the other library" in caplog.text
        assert consumer._consumer.health().findings[0].problem is HealthProblem.NO_PROGRESS
        keeper.delete(theirs)
        await until(consumer._consumer.health)


async def test_zookeeper_hosts_are_accepted_in_every_form_of_pykafka(
    name, fill, consumer_of, keeper, members_in, zookeeper
):
    await fill(1, 3)
    nowhere = "127.0.0.1:1"
    async with consumer_of(zookeeper_connect=nowhere, zookeeper=keeper) as consumer:
        await take(consumer, 1)
        assert len(await members_in(f"/pykafka/{name}")) == 1
    membership = ZooKeeperMembership(zookeeper.hosts, root="/mine")
    async with consumer_of(zookeeper_connect=nowhere, zookeeper=membership) as consumer:
        await take(consumer, 1)
        assert len(await members_in(f"/mine/{name}")) == 1


def test_unsupported_options_are_refused():
    with pytest.raises(ConfigurationError, match="librdkafka"):
        BalancedConsumer("t", "localhost:9092", b"g", use_rdkafka=True)
    with pytest.raises(ConfigurationError, match="zookeeper_connection_timeout_ms=0"):
        BalancedConsumer("t", "localhost:9092", b"g", zookeeper_connection_timeout_ms=0)
