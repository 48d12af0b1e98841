"""Every other coroutine that users can await (brokers, administration, elections and shards),
cancelled at each place where it waits. The object then still works, and leaks nothing."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from live.cancelling import (
    ONE,
    RECORDS,
    ZERO,
    Canceller,
    anyio_backend,
    broker,
    cancel_at_each_suspension,
    settle,
    timing,
)

import kafkagroup
from kafkagroup import (
    Admin,
    BrokerError,
    BufferFullError,
    ChangesRefusedError,
    Consumer,
    Election,
    ErrorCode,
    GroupMember,
    GroupProtocol,
    OffsetAndMetadata,
    Producer,
    Shards,
)
from kafkagroup.admin import NewTopic
from kafkagroup.admin.doctor import Finding, Status, examine
from kafkagroup.broker import Broker
from kafkagroup.coordination import Leaders
from kafkagroup.errors import IllegalStateError
from kafkagroup.events import CoordinatorFound, GroupLeft, Rebalanced, RebalanceStarted
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport.broker import MAIN
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.group import HeartbeatRequest

__all__ = ["anyio_backend", "timing"]

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------- brokers

PROTOCOL = {"protocol_type": "workers", "protocols": [("all", b"x")]}


async def connect(canceller: Canceller, one: Broker) -> None:
    await canceller.cancel_in(one.connect("more"))
    assert one.is_connected("more")


async def connect_offsets_channel(canceller: Canceller, one: Broker) -> None:
    await canceller.cancel_in(one.connect_offsets_channel())
    assert one.offsets_channel_connected


async def ready(canceller: Canceller, one: Broker) -> None:
    await canceller.cancel_in(one.ready("more"))
    assert one.is_connected("more")


async def request(canceller: Canceller, one: Broker) -> None:
    beat = HeartbeatRequest(group_id="other", generation_id=1, member_id="m")
    assert (await canceller.cancel_in(one.request(beat))).error_code == 25


async def attempt(canceller: Canceller, one: Broker) -> None:
    beat = HeartbeatRequest(group_id="other", generation_id=1, member_id="m")
    assert (await canceller.cancel_in(one.attempt(beat))).error_code == 25


async def request_metadata(canceller: Canceller, one: Broker) -> None:
    response = await canceller.cancel_in(one.request_metadata(["t"]))
    assert [topic.name for topic in response.topics] == ["t"]


async def request_offset_limits(canceller: Canceller, one: Broker) -> None:
    response = await canceller.cancel_in(one.request_offset_limits({ZERO: -1}))
    assert response.topics[0].partitions[0].offset == 6


async def fetch_messages(canceller: Canceller, one: Broker) -> None:
    response = await canceller.cancel_in(one.fetch_messages({ZERO: 0}))
    assert response.responses[0].partitions[0].high_watermark == 6


async def fetch_and_wait(canceller: Canceller, one: Broker) -> None:
    response = await canceller.cancel_in(one.fetch_messages({ZERO: 6}, max_wait=5))
    assert response.responses[0].partitions[0].records == b""


async def produce_messages(canceller: Canceller, one: Broker) -> None:
    batch = encode_batch([NewRecord(None, b"new")])
    response = await canceller.cancel_in(one.produce_messages({ZERO: batch}))
    assert response.responses[0].partition_responses[0].base_offset == 6


async def produce_unacknowledged(canceller: Canceller, one: Broker) -> None:
    batch = encode_batch([NewRecord(None, b"new")])
    assert await canceller.cancel_in(one.produce_messages({ZERO: batch}, acks=0)) is None


async def commit_consumer_group_offsets(canceller: Canceller, one: Broker) -> None:
    offsets = {ZERO: OffsetAndMetadata(3)}
    response = await canceller.cancel_in(
        one.commit_consumer_group_offsets("other", -1, "", offsets)
    )
    assert response.topics[0].partitions[0].error_code == 0


async def fetch_consumer_group_offsets(canceller: Canceller, one: Broker) -> None:
    response = await canceller.cancel_in(one.fetch_consumer_group_offsets("other", [ZERO]))
    assert response.groups[0].topics[0].partitions[0].committed_offset == -1


async def join_group(canceller: Canceller, one: Broker) -> None:
    response = await canceller.cancel_in(one.join_group("other", "", **PROTOCOL))
    assert response.error_code == 79


async def sync_group(canceller: Canceller, one: Broker) -> None:
    assert (await canceller.cancel_in(one.sync_group("other", 1, "m"))).error_code == 25


async def heartbeat(canceller: Canceller, one: Broker) -> None:
    assert (await canceller.cancel_in(one.heartbeat("other", 1, "m"))).error_code == 25


async def leave_group(canceller: Canceller, one: Broker) -> None:
    response = await canceller.cancel_in(one.leave_group("other", "m"))
    assert response.members[0].error_code == 25


async def opened(canceller: Canceller, _: Broker) -> None:
    opening = Broker.open("kafka-1", 9092)
    another = await canceller.cancel_in(opening.__aenter__())
    assert another.connected
    await opening.__aexit__(None, None, None)


@pytest.mark.parametrize(
    "act",
    [
        connect,
        connect_offsets_channel,
        ready,
        request,
        attempt,
        request_metadata,
        request_offset_limits,
        fetch_messages,
        fetch_and_wait,
        produce_messages,
        produce_unacknowledged,
        commit_consumer_group_offsets,
        fetch_consumer_group_offsets,
        join_group,
        sync_group,
        heartbeat,
        leave_group,
        opened,
    ],
)
async def test_a_broker_serves_the_next_request_after_a_cancellation(
    act: Callable[[Canceller, Broker], Coroutine[Any, Any, None]], timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (_, network):
            async with Broker.open("kafka-1", 9092, offsets_channel_timeout=30) as one:
                await canceller.run(act(canceller, one))
                await request_metadata(Canceller(0, timing), one)
                await connect_offsets_channel(Canceller(0, timing), one)
                await one.disconnect("more")
                await one.disconnect("group")
                await one.disconnect("fetch")
                await settle()
                assert network.open == 2  # the main one, and that for offsets

    await cancel_at_each_suspension(timing, story)


async def test_closing_a_broker_never_waits(timing: str) -> None:
    async with broker() as (_, network), Broker.open("kafka-1", 9092) as one:
        for closing in (one.disconnect(MAIN), one.aclose()):
            with pytest.raises(StopIteration):
                closing.send(None)
        assert not one.connected
        await settle()
        assert network.open == 0


# ---------------------------------------------------------------- administration


async def describe_group(canceller: Canceller, admin: Admin) -> None:
    found = await canceller.cancel_in(admin.describe_group("g"))
    assert [found.state.value, len(found.members)] == ["Stable", 1]


async def describe_groups(canceller: Canceller, admin: Admin) -> None:
    found = await canceller.cancel_in(admin.describe_groups(["c", "g"]))
    assert [type(group).__name__ for group in found.values()] == ["GroupDescription"] * 2


async def list_groups(canceller: Canceller, admin: Admin) -> None:
    found = await canceller.cancel_in(admin.list_groups())
    assert ([group.group_id for group in found.groups], found.errors) == (["c", "g", "idle"], {})


async def group_spec(canceller: Canceller, admin: Admin) -> None:
    spec = await canceller.cancel_in(admin.group_spec("c"))
    assert [len(spec.members), spec.partitions] == [1, {"t": 2}]


async def find_coordinator(canceller: Canceller, admin: Admin) -> None:
    assert (await canceller.cancel_in(admin.find_coordinator("g"))).node_id == 1


async def committed(canceller: Canceller, admin: Admin) -> None:
    found = await canceller.cancel_in(admin.committed(["idle"]))
    assert found == {"idle": {ZERO: OffsetAndMetadata(3)}}


async def lag(canceller: Canceller, admin: Admin) -> None:
    found = await canceller.cancel_in(admin.lag(["idle"]))
    assert [one.lag for one in found["idle"].values()] == [3]


async def alter_offsets(canceller: Canceller, admin: Admin) -> None:
    await canceller.cancel_in(admin.alter_offsets("idle", {ZERO: 3}))
    assert await admin.committed(["idle"]) == {"idle": {ZERO: OffsetAndMetadata(3)}}


async def delete_offsets(canceller: Canceller, admin: Admin) -> None:
    assert await canceller.cancel_in(admin.delete_offsets("idle", [ZERO])) == (ZERO,)
    assert await admin.committed(["idle"]) == {"idle": {}}


async def partitions(canceller: Canceller, admin: Admin) -> None:
    assert await canceller.cancel_in(admin.partitions(["t"])) == (ZERO, ONE)


async def plan_reset(canceller: Canceller, admin: Admin) -> None:
    plan = await canceller.cancel_in(admin.plan_reset("idle", shift=1))
    assert [change.after for change in plan.changes.values()] == [OffsetAndMetadata(4)]


async def plan_offsets(canceller: Canceller, admin: Admin) -> None:
    plan = await canceller.cancel_in(admin.plan_offsets("idle", {ZERO: OffsetAndMetadata(5)}))
    assert [change.before for change in plan.changes.values()] == [OffsetAndMetadata(3)]


async def apply(canceller: Canceller, admin: Admin) -> None:
    # A plan can be applied once: after a cancellation, make another.
    await canceller.cancel_in(admin.apply(await admin.plan_reset("idle", to="latest")))
    assert await admin.committed(["idle"]) == {"idle": {ZERO: OffsetAndMetadata(6)}}


async def remove_member(canceller: Canceller, admin: Admin) -> None:
    (member,) = (await admin.describe_group("g")).members or (None,)
    if member is not None:
        await canceller.cancel_in(admin.remove_member("g", member_id=member.member_id))


async def delete_groups(canceller: Canceller, admin: Admin) -> None:
    code = await _code(canceller, admin.delete_groups(["idle"]))
    assert code in (None, ErrorCode.GROUP_ID_NOT_FOUND)
    assert await admin.committed(["idle"]) == {"idle": {}}


async def list_topics(canceller: Canceller, admin: Admin) -> None:
    found = await canceller.cancel_in(admin.list_topics())
    assert {"t": 2, "u": 1}.items() <= {one.name: len(one.partitions) for one in found}.items()


async def describe_topics(canceller: Canceller, admin: Admin) -> None:
    found = await canceller.cancel_in(admin.describe_topics(["t", "u"]))
    assert [type(topic).__name__ for topic in found.values()] == ["TopicDescription"] * 2


async def create_topics(canceller: Canceller, admin: Admin) -> None:
    code = await _code(canceller, admin.create_topics([NewTopic(name="new", partitions=3)]))
    # The cancelled call may have created it.
    assert code in (None, ErrorCode.TOPIC_ALREADY_EXISTS)
    assert len(await admin.partitions(["new"])) == 3


async def delete_topics(canceller: Canceller, admin: Admin) -> None:
    code = await _code(canceller, admin.delete_topics(["u"]))
    assert code in (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert "u" not in {topic.name for topic in await admin.list_topics()}


async def add_partitions(canceller: Canceller, admin: Admin) -> None:
    code = await _code(canceller, admin.add_partitions({"u": 3}))
    assert code in (None, ErrorCode.INVALID_PARTITIONS)
    assert len(await admin.partitions(["u"])) == 3


async def list_transactions(canceller: Canceller, admin: Admin) -> None:
    assert not (await canceller.cancel_in(admin.list_transactions())).errors


async def describe_transactions(canceller: Canceller, admin: Admin) -> None:
    found = await canceller.cancel_in(admin.describe_transactions(["tx"]))
    assert isinstance(found["tx"], BrokerError)


async def describe_transaction(canceller: Canceller, admin: Admin) -> None:
    with suppress(BrokerError):
        await canceller.cancel_in(admin.describe_transaction("tx"))


async def describe_producers(canceller: Canceller, admin: Admin) -> None:
    assert await canceller.cancel_in(admin.describe_producers([ZERO])) == {ZERO: ()}


async def open_transactions(canceller: Canceller, admin: Admin) -> None:
    assert await canceller.cancel_in(admin.open_transactions([ZERO])) == {ZERO: ()}


async def abort_transaction(canceller: Canceller, admin: Admin) -> None:
    with suppress(IllegalStateError):  # none is open
        await canceller.cancel_in(admin.abort_transaction(ZERO, 0))


async def _code(canceller: Canceller, change: Awaitable[object]) -> int | None:
    """Return the code of the error of one change; None if it was made."""
    try:
        await canceller.cancel_in(change)
    except ChangesRefusedError as refused:
        (error,) = refused.exceptions
        assert isinstance(error, BrokerError)
        return error.code
    return None


@pytest.mark.parametrize(
    "act",
    [
        abort_transaction,
        add_partitions,
        alter_offsets,
        apply,
        committed,
        create_topics,
        delete_groups,
        delete_offsets,
        delete_topics,
        describe_group,
        describe_groups,
        describe_producers,
        describe_topics,
        describe_transaction,
        describe_transactions,
        find_coordinator,
        group_spec,
        lag,
        list_groups,
        list_topics,
        list_transactions,
        open_transactions,
        partitions,
        plan_offsets,
        plan_reset,
        remove_member,
    ],
)
async def test_an_admin_works_after_a_cancellation(
    act: Callable[[Canceller, Admin], Coroutine[Any, Any, None]], timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with (
            broker() as (_, network),
            GroupMember("g", WORKERS, bootstrap_servers="kafka-1:9092") as member,
            kafkagroup.Consumer("t", bootstrap_servers="kafka-1:9092", group_id="c") as consumer,
        ):
            await anext(member)
            await consumer.getone()
            before = network.open
            async with Admin(bootstrap_servers="kafka-1:9092") as admin:
                await admin.alter_offsets("idle", {ZERO: 3})
                await canceller.run(act(canceller, admin))
                await act(Canceller(0, timing), admin)
                # The main one, that for offsets, and that for records.
                assert network.open <= before + 3

    await cancel_at_each_suspension(timing, story)


async def enter(canceller: Canceller, admin: Admin) -> None:
    await canceller.cancel_in(admin.__aenter__())
    await admin.__aexit__(None, None, None)


async def exit_(canceller: Canceller, admin: Admin) -> None:
    await admin.__aenter__()
    await canceller.cancel_in(admin.__aexit__(None, None, None))


async def stop(canceller: Canceller, admin: Admin) -> None:
    async with admin:
        await canceller.cancel_in(admin.stop())


async def run(canceller: Canceller, admin: Admin) -> None:
    async def later() -> None:
        await anyio.sleep(1)
        await admin.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(later)
        await canceller.cancel_in(admin.run())


@pytest.mark.parametrize("act", [enter, exit_, stop, run])
async def test_an_admin_closes_after_a_cancellation(
    act: Callable[[Canceller, Admin], Coroutine[Any, Any, None]], timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (_, network):
            admin = Admin(bootstrap_servers="kafka-1:9092")
            await canceller.run(act(canceller, admin))
            assert network.open == 0

    await cancel_at_each_suspension(timing, story)


# ---------------------------------------------------------------- writing, and looking


async def partition_count(canceller: Canceller, producer: Producer) -> None:
    assert await canceller.cancel_in(producer.partition_count("t")) == 2


VALUES = [b"%d" % n for n in range(4)]


async def send(canceller: Canceller, producer: Producer) -> None:
    for value in VALUES:
        await canceller.cancel_in(producer.send("t", value))


async def send_many(canceller: Canceller, producer: Producer) -> None:
    await canceller.cancel_in(producer.send_many("t", VALUES))


async def flush(canceller: Canceller, producer: Producer) -> None:
    for value in VALUES:
        producer.send_nowait("t", value)
    await canceller.cancel_in(producer.flush())


async def await_records(canceller: Canceller, producer: Producer) -> None:
    for record in [producer.send_nowait("t", value) for value in VALUES]:
        await canceller.cancel_in(record)


async def ready(canceller: Canceller, producer: Producer) -> None:
    """There is room for three records."""
    for value in VALUES:
        try:
            producer.send_nowait("t", value)
        except BufferFullError:
            await canceller.cancel_in(producer.ready())
            producer.send_nowait("t", value)


@pytest.mark.parametrize("act", [partition_count, send, send_many, flush, await_records, ready])
async def test_a_producer_works_after_a_cancellation(
    act: Callable[[Canceller, Producer], Coroutine[Any, Any, None]], timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, network):
            room = {"buffer_memory": 160} if act is ready else {}
            async with Producer(bootstrap_servers="kafka-1:9092", **room) as producer:
                await canceller.run(act(canceller, producer))
                await producer.flush()
                # An accepted record is written all the same.
                accepted_count = producer.metrics().written_records
                assert kafka.log_end("t", 0) + kafka.log_end("t", 1) - RECORDS == accepted_count
                assert len(await producer.send_many("t", VALUES)) == 4
                assert kafka.log_end("t", 0) + kafka.log_end("t", 1) - RECORDS == accepted_count + 4
                assert network.open == 2
            assert network.open == 0

    await cancel_at_each_suspension(timing, story)


async def test_a_producer_works_after_a_cancelled_transaction(timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        servers: Any = {"bootstrap_servers": "kafka-1:9092"}
        member: Any = servers | {"group_id": "g", "enable_auto_commit": False}
        async with broker() as (kafka, network):
            async with (
                Consumer("u", **member) as consumer,
                Producer(**servers, transactional_id="tx") as producer,
            ):
                await consumer.getone()

                async def transact() -> None:
                    async with producer.transaction() as tx:
                        await tx.send("t", b"0", partition=0)
                        await tx.send_many("t", [b"1", b"2"], partition=0)
                        await tx.send_offsets(consumer)

                async def cut() -> None:
                    await canceller.cancel_in(transact())

                await canceller.run(cut())
                await transact()
                assert kafka.committed("g", "u")[0] == 1
                assert kafka.stable_end("t", 0) == kafka.log_end("t", 0)
            assert network.open == 0

    await cancel_at_each_suspension(timing, story)


async def test_a_cancelled_diagnosis_leaves_nothing_open(timing: str) -> None:
    async def look(cancel_in: Callable[[Any], Any]) -> list[Finding]:
        findings = examine("kafka-1:9092", groups=["idle"], topics=["t"])
        found = []
        async with aclosing(findings):
            while (finding := await cancel_in(anext(findings, None))) is not None:
                found.append(finding)
        return found

    async def simply(awaitable: Any) -> Any:
        return await awaitable

    async def story(canceller: Canceller) -> None:
        async with broker() as (_, network):

            async def act() -> None:
                await look(canceller.cancel_in)

            await canceller.run(act())
            await settle()
            assert network.open == 0
            assert Status.FAILED not in {finding.status for finding in await look(simply)}

    await cancel_at_each_suspension(timing, story)


# ---------------------------------------------------------------- recipes

WORKERS = GroupProtocol("workers", "all", b"", lambda members: dict.fromkeys(members, b"x"))

Recipe = Election | Shards
MAKES: dict[str, Callable[[], Recipe]] = {
    "election": lambda: Election("g", b"a", bootstrap_servers="kafka-1:9092"),
    "shards": lambda: Shards("g", 4, bootstrap_servers="kafka-1:9092"),
}


@asynccontextmanager
async def recipe(name: str) -> AsyncIterator[tuple[Recipe, EmbeddedKafka]]:
    async with broker() as (kafka, _):
        yield MAKES[name](), kafka


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("again", [False, True])
async def test_a_coordination_client_works_after_a_cancellation(
    name: str, again: bool, timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with recipe(name) as (one, _), one:
            if again:
                await anext(one)
                if isinstance(one, Shards):
                    one._member.rejoin()
            got = []

            async def act() -> None:
                got.append(await canceller.cancel_in(anext(one)))

            await canceller.run(act())
            if not got:
                got.append(await anext(one))
            (turn,) = got
            with turn.scope():
                await anyio.sleep(30)
            assert not turn.over.is_set()

    await cancel_at_each_suspension(timing, story)


async def test_leaders_are_observed_after_a_cancellation(timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        async with recipe("election") as (election, _), election:
            assert isinstance(election, Election)
            leaders = election.leaders()
            got = []

            async def watch() -> None:
                got.append(await canceller.cancel_in(anext(leaders)))

            await canceller.run(watch())
            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anext, election)
                    while not got or got[-1] is None:
                        got.append(await anext(leaders))
            assert got[-1].value == b"a"

    await cancel_at_each_suspension(timing, story)


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("way", ["enter", "exit", "stop", "run"])
async def test_a_coordination_client_closes_after_a_cancellation(
    name: str, way: str, timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with recipe(name) as (one, kafka):

            async def enter_or_exit() -> None:
                opening = one.__aenter__()
                await (canceller.cancel_in(opening) if way == "enter" else opening)
                closing = one.__aexit__(None, None, None)
                await (canceller.cancel_in(closing) if way == "exit" else closing)

            async def stop() -> None:
                async with one:
                    await anext(one)
                    await canceller.cancel_in(one.stop())

            async def run() -> None:
                async def later() -> None:
                    await anyio.sleep(1)
                    await one.stop()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(later)
                    await canceller.cancel_in(one.run())

            await canceller.run({"stop": stop, "run": run}.get(way, enter_or_exit)())
            assert kafka.group_state("g") in ("Empty", "Dead")
            assert [turn async for turn in one] == []

    await cancel_at_each_suspension(timing, story)


async def test_a_cancelled_read_of_events_loses_no_event(timing: str) -> None:
    """No event is lost, not even one that arrives at the moment of the cancellation."""

    async def story(canceller: Canceller) -> None:
        async with broker():
            protocol = GroupProtocol("workers", "all", b"", lambda m: dict.fromkeys(m, b""))
            one = GroupMember("g", protocol, bootstrap_servers="kafka-1:9092")
            events, got = one.events(), []

            async def act() -> None:
                for _ in range(3):
                    got.append(await canceller.cancel_in(anext(events)))

            async with one:
                await canceller.run(act())
                while len(got) < 3:
                    got.append(await anext(events))
            got += [event async for event in events]
            kinds = [RebalanceStarted, CoordinatorFound, Rebalanced, GroupLeft]
            assert [type(event) for event in got] == kinds

    await cancel_at_each_suspension(timing, story)


async def test_a_consuming_transaction_that_is_cancelled_is_done_again(timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        servers: Any = {"bootstrap_servers": "kafka-1:9092"}
        member: Any = servers | {"group_id": "g", "enable_auto_commit": False}
        async with broker() as (kafka, network):
            async with (
                Consumer("u", **member, isolation_level="read_committed") as consumer,
                Producer(**servers, transactional_id="tx") as producer,
            ):

                async def forward() -> None:
                    iterator = producer.transactions(consumer, max_records=3, max_interval=5)
                    tx = await anext(iterator)
                    async with tx as records:
                        for record in records:
                            await tx.send("t", record.value, partition=0)

                async def cut() -> None:
                    await canceller.cancel_in(forward())

                await canceller.run(cut())
                if kafka.committed("g", "u").get(0, 0) < 3:
                    await forward()
                assert kafka.committed("g", "u")[0] == 3
                assert kafka.stable_end("t", 0) == kafka.log_end("t", 0)
            assert network.open == 0

    await cancel_at_each_suspension(timing, story)


# ---------------------------------------------------------------- none is missing

SERVICE = {"__aenter__", "__aexit__", "run", "start", "stop"}
SERVICE |= {"aclose"}  # another name of stop
"""Shared by all that runs; `start` is `run` in a task of its own, and cut with a consumer's."""

SWEPT = {
    "Admin": SERVICE
    | {
        "abort_transaction",
        "add_partitions",
        "alter_offsets",
        "apply",
        "committed",
        "create_topics",
        "delete_groups",
        "delete_offsets",
        "delete_topics",
        "describe_group",
        "describe_groups",
        "describe_producers",
        "describe_topics",
        "describe_transaction",
        "describe_transactions",
        "find_coordinator",
        "group_spec",
        "lag",
        "list_groups",
        "list_topics",
        "list_transactions",
        "open_transactions",
        "partitions",
        "plan_offsets",
        "plan_reset",
        "remove_member",
    },
    "Broker": {
        "aclose",
        "attempt",
        "commit_consumer_group_offsets",
        "connect",
        "connect_offsets_channel",
        "disconnect",
        "fetch_consumer_group_offsets",
        "fetch_messages",
        "heartbeat",
        "join_group",
        "leave_group",
        "produce_messages",
        "ready",
        "request",
        "request_metadata",
        "request_offset_limits",
        "send_only",
        "sync_group",
    },
    "ConsumingTransaction": {"__aenter__", "__aexit__", "send", "send_many", "send_offsets"},
    "Consumer": SERVICE
    | {
        "__anext__",
        "assign",
        "beginning_offsets",
        "commit",
        "committed",
        "end_offsets",
        "getmany",
        "getone",
        "lag",
        "offsets_for_times",
        "position",
        "seek_to_beginning",
        "seek_to_end",
        "subscribe",
        "unsubscribe",
        "wait_assignment",
    },
    "Election": SERVICE | {"__anext__"},
    "GroupEvents": {"__anext__"},
    "GroupMember": SERVICE | {"__anext__", "describe", "wait_generation"},
    "Leaders": {"__anext__"},
    "Producer": SERVICE | {"flush", "partition_count", "ready", "send", "send_many"},
    "Security": {"wrap"},  # called by connections alone, within their deadline
    "Shards": SERVICE | {"__anext__"},
    "Transaction": {"__aenter__", "__aexit__", "send", "send_many", "send_offsets"},
}
"""Class -> its coroutines that this module or `test_cancellation` cuts, or shows never to wait."""


def test_every_public_coroutine_has_a_cancellation_test() -> None:
    """A new coroutine needs a sweep, and its name in the table above."""
    found: dict[str, set[str]] = {}
    public_names = {name: getattr(kafkagroup, name) for name in kafkagroup.__all__}
    for name, value in {**public_names, "Broker": Broker, "Leaders": Leaders}.items():
        for method in dir(value) if inspect.isclass(value) else ():
            function = inspect.getattr_static(value, method)
            is_public = not method.startswith("_") or method in (
                "__aenter__",
                "__aexit__",
                "__anext__",
            )
            if is_public and inspect.iscoroutinefunction(getattr(function, "__func__", function)):
                found.setdefault(name, set()).add(method)
    assert found == SWEPT
