"""Another cluster, or a broker of one, answers at a known address. In virtual time, on two embedded
clusters with the same topics and different ids."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from kafkagroup import (
    CommitFailedError,
    Consumer,
    GroupMember,
    GroupProtocol,
    HealthProblem,
    NotWrittenError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from kafkagroup.admin import Admin, NewTopic, offsets_from_json, offsets_to_json
from kafkagroup.errors import ClusterChangedError, ErrorCode
from kafkagroup.events import MembershipLost
from kafkagroup.events import RebalanceCause as Cause
from kafkagroup.testing.embedded import Close, EmbeddedKafka
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafkagroup.wire.messages.produce import ProduceRequest

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)
KNOWN, OTHER = "kafkagroup-embedded-01", "another-cluster-000001"
HARMLESS = {ApiVersionsRequest, MetadataRequest, FetchRequest, FindCoordinatorRequest}
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])
VALUES = [str(n) for n in range(20)]


class Address:
    """The addresses of two clusters, of which one responds."""

    def __init__(self, network: Any, nodes: int) -> None:
        self.network = network
        self.nodes = nodes
        topics = {"t": 1}
        self.old = EmbeddedKafka(topics, listen=False, nodes=nodes)
        self.new = EmbeddedKafka(topics, listen=False, nodes=nodes, seed=7, cluster_id=OTHER)

    async def lead_to(self, kafka: EmbeddedKafka, *nodes: int) -> None:
        """Let a cluster answer: at all addresses, or at those of some nodes."""
        handlers = dict(self.network.handlers)
        self.network.serve_embedded(kafka, self.nodes)
        for number in range(1, self.nodes + 1):
            if nodes and number not in nodes:
                self.network.handlers[f"kafka-{number}", 9092] = handlers[f"kafka-{number}", 9092]
        for stream in self.network.streams:
            await stream.aclose()


@asynccontextmanager
async def addresses(network: Any, nodes: int = 1) -> AsyncIterator[Address]:
    address = Address(network, nodes)
    async with network, address.old, address.new:
        network.serve_embedded(address.old, nodes)
        with anyio.fail_after(3_000):
            yield address


def consumer(*topics: str, **options: Any) -> Consumer:
    defaults = {"bootstrap_servers": "kafka-1", "group_id": "g", "auto_commit_interval_ms": 500}
    return Consumer(*topics, **{**defaults, **options})


async def values_of(one: Consumer, count: int) -> list[str]:
    return [(await one.getone()).value.decode() for _ in range(count)]


def harmful(kafka: EmbeddedKafka) -> set[type]:
    """Return the kinds of requests that a foreign cluster got and should not have."""
    return {seen.api for seen in kafka.requests()} - HARMLESS


@BOTH
async def test_nothing_is_read_from_or_committed_to_another_cluster(
    network: Any, protocol: Any, caplog: Any
) -> None:
    """Positions were reset in the other cluster, its records delivered, and offsets committed to
    it, while `health` was empty. When the earlier cluster is back, the consumer continues."""
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        at.new.produce("t", ["foreign"] * 5)
        async with consumer("t", group_protocol=protocol) as one:
            assert await values_of(one, 18) == VALUES[:18]
            await anyio.sleep(1)
            await at.lead_to(at.new)
            began = anyio.current_time()
            assert await values_of(one, 2) == VALUES[18:], "fetched before"
            with pytest.raises(ClusterChangedError) as caught:
                await one.getone()
            assert anyio.current_time() - began < 15
            error = caught.value
            assert (error.expected, error.found, error.address) == (KNOWN, OTHER, "kafka-1:9092")
            await anyio.sleep(20)
            assert {f.problem for f in one.health().findings} >= {HealthProblem.CLUSTER}
            assert any(r.levelno == logging.WARNING and OTHER in r.message for r in caplog.records)
            with pytest.raises(ClusterChangedError), anyio.fail_after(61):
                await one.getone()  # again, as it lasts
            assert harmful(at.new) == set()
            await at.lead_to(at.old)
            at.old.produce("t", ["next"])
            # Again from its last commit: its session has expired meanwhile.
            assert await values_of(one, 4) == ["17", "18", "19", "next"]
            await anyio.sleep(60)
            assert HealthProblem.CLUSTER not in {f.problem for f in one.health().findings}
        assert (at.new.committed("g", "t"), at.old.committed("g", "t")) == ({}, {0: 20})


async def test_a_close_beside_another_cluster_commits_nothing_to_it(network: Any) -> None:
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        async with consumer("t") as one:
            await values_of(one, 10)
            await at.lead_to(at.new)
        assert (harmful(at.new), at.new.committed("g", "t")) == (set(), {})


@pytest.mark.parametrize("group_id", ["g", None])
async def test_assigned_partitions_are_not_reset_in_another_cluster(
    network: Any, group_id: str | None
) -> None:
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        at.new.produce("t", ["foreign"] * 5)
        async with consumer(group_id=group_id) as one:
            await one.assign([T0])
            await values_of(one, 20)
            await at.lead_to(at.new)
            with pytest.raises(ClusterChangedError):
                await one.getone()
            assert await one.position(T0) == 20
            assert harmful(at.new) == set()


# ---------------------------------------------------------------- one broker of many


async def test_one_foreign_broker_among_good_ones_is_an_opinion(network: Any) -> None:
    """An address of a broker was given to another cluster's. Its partitions wait, what the others
    lead is read, and once they lead all, everything is."""
    async with addresses(network, nodes=3) as at:
        at.old.create_topic("u", 3)
        for index in range(3):
            at.old.move_leader("u", index, index + 1)
        async with consumer(bootstrap_servers="kafka-1,kafka-2,kafka-3", group_id=None) as one:
            await one.assign([TopicPartition("u", index) for index in range(3)])
            at.old.produce("u", ["a", "b", "c"])
            assert sorted(await values_of(one, 3)) == ["a", "b", "c"]
            await at.lead_to(at.new, 3)
            at.old.produce("u", ["d", "e", "f"])
            assert sorted(await values_of(one, 2)) == ["d", "e"]
            await anyio.sleep(30)
            (finding,) = one.health().findings
            assert finding.problem is HealthProblem.CLUSTER
            assert "broker 3 at kafka-3:9092: belongs to cluster 'another" in finding.detail
            at.old.move_leader("u", 2, 1)
            assert await values_of(one, 1) == ["f"]
        assert harmful(at.new) == set()


# ---------------------------------------------------------------- bootstrapping again


async def test_a_broker_may_require_to_bootstrap_again(network: Any) -> None:
    """REBOOTSTRAP_REQUIRED at the top of a Metadata response was ignored (KIP-1102): the client
    stayed with a broker that had been taken out of service."""
    async with addresses(network) as at:
        network.handlers["seed", 9092] = network.handlers["kafka-1", 9092]
        at.old.produce("t", VALUES)
        options = {"bootstrap_servers": "seed", "metadata_max_age_ms": 1_000}
        async with consumer("t", **options) as one:
            assert await values_of(one, 20) == VALUES
            fault = at.old.fail(MetadataRequest, ErrorCode.REBOOTSTRAP_REQUIRED, times=None)
            before = len(network.dialled)
            await anyio.sleep(20)
            assert ("seed", 9092) in network.dialled[before:]
            assert fault.hits < 100, "no hot loop"
            fault.stop()
            at.old.produce("t", ["more"])
            assert await values_of(one, 1) == ["more"]
            assert await one.position(T0) == 21


async def test_a_heartbeat_that_requires_to_bootstrap_again_is_no_failure(network: Any) -> None:
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        async with consumer("t") as one:
            at.old.fail(HeartbeatRequest, ErrorCode.REBOOTSTRAP_REQUIRED)
            assert await values_of(one, 20) == VALUES
            await anyio.sleep(5)
            at.old.produce("t", ["more"])
            assert await values_of(one, 1) == ["more"]


async def test_known_brokers_that_fail_for_long_are_not_asked_any_more(network: Any) -> None:
    """With many brokers that do not accept connections, a round takes minutes."""
    async with addresses(network, nodes=5) as at:
        at.old.produce("t", VALUES)
        options = {"bootstrap_servers": "seed", "metadata_recovery_rebootstrap_trigger_ms": 15_000}
        network.handlers["seed", 9092] = network.handlers["kafka-1", 9092]
        async with consumer("t", **options) as one:
            await values_of(one, 20)
            del network.handlers["seed", 9092]
            for number in range(1, 6):
                network.handlers[f"kafka-{number}", 9092] = None
            for stream in network.streams:
                await stream.aclose()
            # Up to two connect timeouts until the first look-up fails, then the trigger, and one
            # more broker that does not accept until it is checked.
            await anyio.sleep(50)
            dialled = set(network.dialled[-5:])
        assert dialled == {("seed", 9092)}


# ---------------------------------------------------------------- adopting


@BOTH
async def test_an_adopted_cluster_is_read_from_its_committed_offsets(
    network: Any, protocol: Any, caplog: Any
) -> None:
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        at.new.produce("t", [f"new {n}" for n in range(10)])
        lost: list[TopicPartition] = []
        at.new._cluster.offsets["g"] = {T0: OffsetAndMetadata(7)}
        options = {"group_protocol": protocol, "on_partitions_lost": lost.extend}
        async with consumer("t", on_cluster_change="adopt", **options) as one:
            assert await values_of(one, 20) == VALUES
            await at.lead_to(at.new)
            assert await values_of(one, 3) == ["new 7", "new 8", "new 9"]
            assert lost == [T0]
            await anyio.sleep(30)
            assert one.health().findings == ()
            assert any(r.levelno == logging.WARNING and OTHER in r.message for r in caplog.records)
        assert at.new.committed("g", "t") == {0: 9}


async def test_assigned_partitions_are_looked_up_in_the_adopted_cluster(network: Any) -> None:
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        at.new.produce("t", [f"new {n}" for n in range(10)])
        at.new._cluster.offsets["g"] = {T0: OffsetAndMetadata(8)}
        async with consumer(on_cluster_change="adopt") as one:
            await one.assign([T0])
            assert await values_of(one, 20) == VALUES
            await at.lead_to(at.new)
            assert await values_of(one, 2) == ["new 8", "new 9"]
        assert at.new.committed("g", "t") == {0: 9}


async def test_without_a_group_the_adopted_cluster_is_read_by_the_policy(network: Any) -> None:
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        at.new.produce("t", ["new 0", "new 1"])
        async with consumer("t", group_id=None, on_cluster_change="adopt") as one:
            assert await values_of(one, 20) == VALUES
            await at.lead_to(at.new)
            assert await values_of(one, 2) == ["new 0", "new 1"]


async def test_no_topic_of_an_adopted_cluster_counts_as_new(network: Any) -> None:
    """Its topics have other ids, as recreated ones do, which are read from their beginning."""
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        at.new.produce("t", ["new 0", "new 1"])
        options: dict[str, Any] = {"auto_offset_reset": "latest"}
        async with consumer("t", group_id=None, on_cluster_change="adopt", **options) as one:
            await anyio.sleep(10)
            await at.lead_to(at.new)
            with anyio.move_on_after(30):
                await values_of(one, 1)
            at.new.produce("t", ["new 2"])
            assert await values_of(one, 1) == ["new 2"]


@BOTH
async def test_the_adoption_is_the_cause_of_the_loss(network: Any, protocol: Any) -> None:
    """An operator looked for an application that does not poll."""
    async with addresses(network) as at:
        at.new.produce("t", ["new"])
        async with consumer("t", group_protocol=protocol, on_cluster_change="adopt") as one:
            await one.wait_assignment()
            events = one.events()
            await at.lead_to(at.new)
            assert await values_of(one, 1) == ["new"]
            while not isinstance(lost := await anext(events), MembershipLost):
                pass
    assert (lost.cause, lost.reason) == (Cause.COORDINATOR, f"cluster {OTHER} was adopted")


async def test_nothing_fetched_before_is_delivered_once_a_cluster_is_adopted(network: Any) -> None:
    """The member learns of it later, in its own task or thread: a record or a fetch in between
    would be of the earlier cluster's position."""
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        async with consumer("t", on_cluster_change="adopt") as one:
            await values_of(one, 1)
            cluster = one._engine._cluster
            change = ClusterChangedError("changed", expected=KNOWN, found=OTHER, address="kafka-1")
            cluster._adopt(change)
            assert [owned.revoked for owned in one._delivery.owned.values()] == [True]
            assert not one._session.member.may_commit
            await at.lead_to(at.new)
            at.new.produce("t", ["new"])
            assert await values_of(one, 1) == ["new"]


async def test_a_commit_that_began_before_the_adoption_is_not_sent(network: Any) -> None:
    """Its offset is of the earlier cluster. The offset there would skip records here."""
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        at.new.produce("t", ["new 0"])
        options = {"enable_auto_commit": False, "on_cluster_change": "adopt"}
        async with consumer(**options) as one:
            await one.assign([T0])
            await values_of(one, 20)
            await at.lead_to(at.new)
            with pytest.raises(CommitFailedError):
                await one.commit()
            assert at.new.committed("g", "t") == {}
            assert await values_of(one, 1) == ["new 0"]


# ---------------------------------------------------------------- other clients


PROTOCOL = GroupProtocol("work", "any", b"", lambda members: dict.fromkeys(members, b"x"))


async def test_a_member_of_any_group_stays_out_of_another_cluster(network: Any) -> None:
    async with addresses(network) as at:
        async with GroupMember("g", PROTOCOL, bootstrap_servers="kafka-1") as member:
            await anext(member)
            await at.lead_to(at.new)
            with pytest.raises(ClusterChangedError):
                await anext(member)
            await anyio.sleep(20)
            assert HealthProblem.CLUSTER in {f.problem for f in member.health().findings}
            assert harmful(at.new) == set()
            await at.lead_to(at.old)
            await anext(member)


async def test_a_member_of_any_group_joins_in_the_adopted_cluster(network: Any) -> None:
    async with addresses(network) as at:
        options: Any = {"bootstrap_servers": "kafka-1", "on_cluster_change": "adopt"}
        async with GroupMember("g", PROTOCOL, **options) as member:
            first = await anext(member)
            await at.lead_to(at.new)
            await first.over.wait()
            await anext(member)
            assert at.new.group_state("g") == "Stable"


async def test_a_producer_writes_nothing_to_another_cluster(network: Any) -> None:
    """Records wait for their own cluster."""
    options: Any = {"bootstrap_servers": "kafka-1", "delivery_timeout_ms": 20_000}
    async with addresses(network) as at, Producer(**options) as producer:
        await producer.send("t", b"one")
        await at.lead_to(at.new)
        with pytest.raises(NotWrittenError, match="belongs to cluster 'another-cl") as caught:
            await producer.send("t", b"two")
        assert not caught.value.is_maybe_written
        assert at.new.log_end("t", 0) == 0
        assert {one.problem for one in producer.health().findings} >= {HealthProblem.CLUSTER}
        waiting = producer.send_nowait("t", b"three")
        await anyio.sleep(5)
        await at.lead_to(at.old)
        await waiting
        assert at.old.log_end("t", 0) == 2
        await anyio.sleep(60)
        assert producer.health().findings == ()


async def test_an_admin_does_not_act_on_another_cluster(network: Any) -> None:
    async with addresses(network) as at, Admin(bootstrap_servers="kafka-1") as admin:
        await admin.create_topics([NewTopic(name="u")])
        await at.lead_to(at.new)
        for call in (
            lambda: admin.create_topics([NewTopic(name="v")]),
            lambda: admin.describe_groups(["g"]),
            lambda: admin.list_groups(),
            lambda: admin.alter_offsets("g", {T0: 0}),
            lambda: admin.delete_groups(["g"]),
        ):
            began = anyio.current_time()
            try:
                results = (await call()).values()
            except* ClusterChangedError:
                results = ()
            assert all(isinstance(one, ClusterChangedError) for one in results)
            assert anyio.current_time() - began < 5
        assert harmful(at.new) == set()


@pytest.mark.parametrize("count", [3, 4])
async def test_a_batch_of_the_earlier_cluster_is_sent_under_another_id(
    network: Any, count: int
) -> None:
    """In the adopted cluster its id is that of another producer: the leader would take the batch
    for one of that producer, or the next one of that producer for this."""
    options = {"bootstrap_servers": "kafka-1", "request_timeout_ms": 1000}
    async with (
        addresses(network) as at,
        Producer(**options, on_cluster_change="adopt") as mine,
    ):
        for n in range(count):
            await mine.send("t", b"mine %d" % n)
        await at.lead_to(at.new)
        async with Producer(**options) as other:
            for n in range(4):
                await other.send("t", b"other %d" % n)
            await at.lead_to(at.old)
            at.old.fail(ProduceRequest, Close(before=True))
            future = mine.send_nowait("t", b"mine, in flight")
            await anyio.sleep(0.01)
            await at.lead_to(at.new)
            await future
            await other.send("t", b"other 4")
        async with consumer("t", group_id=None) as one:
            found = await values_of(one, 6)
    assert sorted(found) == ["mine, in flight", *(f"other {n}" for n in range(5))]


async def test_plans_and_exports_belong_to_their_cluster(network: Any) -> None:
    """A plan that was made in one cluster is not applied in another; exports name theirs, and old
    ones without it are read."""
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        at.new.produce("t", VALUES)
        async with Admin(bootstrap_servers="kafka-1") as admin:
            await admin.alter_offsets("g", {T0: 5})
            plan = await admin.plan_reset("g", to="earliest")
            assert (plan.cluster_id, admin.cluster_id) == (KNOWN, KNOWN)
            text = offsets_to_json("g", {T0: OffsetAndMetadata(5)}, admin.cluster_id)
            await admin.apply(plan)
        await at.lead_to(at.new)
        async with Admin(bootstrap_servers="kafka-1") as other:
            await other.alter_offsets("g", {T0: 5})
            with pytest.raises(ClusterChangedError) as caught:
                await other.apply(plan)
            assert (caught.value.expected, caught.value.found) == (KNOWN, OTHER)
            assert at.new.committed("g", "t") == {0: 5}
            with pytest.raises(ClusterChangedError, match="the exported offsets belong to"):
                offsets_from_json(text, other.cluster_id)
            before = offsets_to_json("g", {T0: OffsetAndMetadata(5)})
            for given, cluster_id in ((text, KNOWN), (text, None), (before, other.cluster_id)):
                assert offsets_from_json(given, cluster_id)[1] == {T0: OffsetAndMetadata(5)}
            await other.apply(attrs.evolve(plan, cluster_id=None))
            assert at.new.committed("g", "t") == {0: 0}


# ---------------------------------------------------------------- the cost


async def test_starting_takes_one_more_round_trip_at_most(network: Any) -> None:
    async with addresses(network) as at:
        at.old.produce("t", VALUES)
        async with consumer("t", group_id=None) as one:
            await values_of(one, 1)
        connections = {seen.connection for seen in at.old.requests()}
        assert len(at.old.requests(MetadataRequest)) <= len(connections) + 1
