"""Consumers of the consumer group protocol (KIP-848): embedded broker and real Kafka.

A consumer group without members keeps its offsets; the real broker computes assignments at most
once a second, so no test expects one at once.
"""

from __future__ import annotations

import re
import time

import anyio
import confluent_kafka
import pytest
from brokers import TRIO_IS_LONG, Worker, is_embedded, until

from kafkagroup import BrokerError, Consumer, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor, range_assignor
from kafkagroup.broker import Broker
from kafkagroup.errors import ErrorCode
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest

pytestmark = pytest.mark.anyio

NEW = {"group_protocol": "consumer"}


async def describe(bootstrap, group):
    """Return what the coordinator describes: (state, assignor, member types)."""
    host, port = bootstrap.split(",")[0].split(":")
    async with Broker.open(host, int(port)) as broker:
        request = ConsumerGroupDescribeRequest(
            group_ids=(group,), include_authorized_operations=False
        )
        (group,) = (await broker.request(request)).groups
    return group.group_state, group.assignor_name, sorted(m.member_type for m in group.members)


@pytest.mark.parametrize("thread", [False, True], ids=["", "thread"])
async def test_only_moving_partitions_are_revoked_when_members_join_and_leave(
    bootstrap, name, fill, thread
):
    await fill(4)
    options = {**NEW, "heartbeat_thread": thread}
    first, second = Worker(bootstrap, name, **options), Worker(bootstrap, name, **options)
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: first.owns == [0, 1, 2, 3])
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 2)
            kept, moved = first.owns, second.owns
            assert (await describe(bootstrap, name))[1:] == ("uniform", [1, 1])
            await second.consumer.stop()
        await until(lambda: len(first.owns) == 4)
        await first.consumer.stop()
    # Before: nothing, perhaps, while the coordinator has yet to compute.
    assert first.story[first.story.index(("assigned", [0, 1, 2, 3])) :] == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", moved),
        ("assigned", []),
        ("assigned", moved),
        ("revoked", [0, 1, 2, 3]),
    ]
    assert [step for step in second.story if step[1]] == [("assigned", moved), ("revoked", moved)]
    assert sorted(kept + moved) == [0, 1, 2, 3]
    assert await describe(bootstrap, name) == ("Empty", "uniform", [])


async def test_nothing_is_lost_while_members_join_and_leave(bootstrap, name, fill):
    """Line 45: commits succeed while the epoch of their member changes."""
    await fill(4, 500)
    workers = [Worker(bootstrap, name, **NEW, auto_commit_interval_ms=20) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            worker.pause = 0.001
            await tasks.start(worker.consumer.run)
            tasks.start_soon(worker.run)
            await until(lambda worker=worker: worker.owns)
        await workers[0].consumer.stop()
        await until(lambda: sum(len(w.owns) for w in workers[1:]) == 4)
        await until(lambda: len({r for w in workers for r in w.seen}) == 2_000)
        for worker in workers[1:]:
            await worker.consumer.stop()
    assert sorted(r for w in workers for r in w.seen) == [
        (p, o) for p in range(4) for o in range(500)
    ]


async def test_group_metadata_has_the_current_epoch(bootstrap, name, fill):
    """KIP-447: the metadata once kept the epoch in which the member had joined."""
    await fill(2)
    first, second = Worker(bootstrap, name, **NEW), Worker(bootstrap, name, **NEW)
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: first.owns == [0, 1])
        joined = first.consumer.group_metadata().generation_id
        async with second.consumer:
            tasks.start_soon(second.run)
            # Where both know of the same epoch, it is a later one than that of the first.
            metadata = [w.consumer.group_metadata for w in (first, second)]
            await until(lambda: metadata[0]().generation_id == metadata[1]().generation_id > joined)
            await second.consumer.stop()
        await first.consumer.stop()


async def test_a_restart_resumes_at_the_committed_offset(bootstrap, name, fill):
    await fill(1, 6)
    seen = []
    for _ in range(2):
        async with Worker(bootstrap, name, **NEW).consumer as consumer:
            seen += [(await consumer.getone()).offset for _ in range(3)]
            await consumer.commit()
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_a_restarted_static_member_keeps_its_partitions(bootstrap, name, fill):
    await fill(2)
    other = Worker(bootstrap, name, **NEW)
    async with other.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(other.run)
        for _ in range(2):
            static = Worker(bootstrap, name, **NEW, group_instance_id="s")
            async with static.consumer:
                tasks.start_soon(static.run)
                await until(lambda static=static: len(static.owns) == len(other.owns) == 1)
                await static.consumer.stop()
            before = list(other.story)
        assert other.story == before
        async with Worker(
            bootstrap, name, **NEW, group_instance_id="s", leave_group_on_close=True
        ).consumer as last:
            await last.wait_assignment()
        await until(lambda: other.owns == [0, 1])
        await other.consumer.stop()


@TRIO_IS_LONG
async def test_the_broker_matches_the_pattern_also_with_later_topics(bootstrap, name, fill):
    await fill(2, 1)
    consumer = Consumer(
        pattern=re.compile(f"{name.upper()}(-more)?", re.IGNORECASE),
        bootstrap_servers=bootstrap,
        group_id=name,
        **NEW,
    )
    async with consumer:
        with anyio.fail_after(60):  # Kafka looks for new topics of a pattern every 10 s
            records = [await consumer.getone() for _ in range(2)]
            await fill(1, 1, topic=f"{name}-more")
            record = await consumer.getone()
    assert {(r.topic, r.partition) for r in records} == {(name, 0), (name, 1)}
    assert record.topic == f"{name}-more"


async def test_the_coordinator_uses_the_requested_assignor(bootstrap, name, fill):
    await fill(4)
    options = {**NEW, "group_remote_assignor": "range"}
    first, second = Worker(bootstrap, name, **options), Worker(bootstrap, name, **options)
    async with first.consumer, second.consumer:
        await until(lambda: len(first.owns) == len(second.owns) == 2)
        assert sorted((first.owns, second.owns)) == [[0, 1], [2, 3]]
        assert (await describe(bootstrap, name))[1:] == ("range", [1, 1])


async def test_an_unknown_assignor_is_fatal(bootstrap, name, fill):
    await fill(1)
    worker = Worker(bootstrap, name, **NEW, group_remote_assignor="none-such")
    with pytest.raises(BrokerError) as caught:
        async with worker.consumer as consumer:
            await consumer.getone()
    assert caught.value.code == ErrorCode.UNSUPPORTED_ASSIGNOR


async def test_the_coordinator_follows_a_changed_subscription(bootstrap, name, fill):
    await fill(1)
    await fill(2, topic=f"{name}-b")
    worker = Worker(bootstrap, name, **NEW)
    async with worker.consumer as consumer:
        await until(lambda: consumer.assignment() == {(name, 0)})
        await consumer.subscribe(f"{name}-b")
        await until(
            lambda: (
                consumer.assignment()
                == {TopicPartition(f"{name}-b", 0), TopicPartition(f"{name}-b", 1)}
            )
        )
    assert [what for what, _ in worker.story if what == "lost"] == []


async def test_auto_chooses_the_consumer_protocol_where_the_broker_has_it(bootstrap, name, fill):
    await fill(1)
    async with Worker(bootstrap, name, group_protocol="auto").consumer as consumer:
        await until(lambda: len(consumer.assignment()) == 1)
        assert (await describe(bootstrap, name))[2] == [1]


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
async def test_auto_chooses_classic_for_a_pattern_that_the_broker_refuses(bootstrap, name, fill):
    """RE2J has no look-ahead."""
    if await is_embedded(bootstrap):
        pytest.skip("the embedded broker matches patterns as Python does")
    await fill(1)
    options = {"bootstrap_servers": bootstrap, "group_id": name, "pattern": f"(?!no){name}"}
    async with Consumer(**options, group_protocol="auto") as consumer:
        await until(lambda: consumer.assignment() == {(name, 0)})
    with pytest.raises(BrokerError, match="INVALID_REGULAR_EXPRESSION"):
        async with Consumer(**options, **NEW) as consumer:
            await consumer.getone()


@pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)
async def test_auto_chooses_classic_in_a_group_that_cannot_be_upgraded(bootstrap, name, fill):
    """On the embedded broker, which never upgrades a group that has members."""
    await fill(2)
    classic = Worker(bootstrap, name, assignors=[range_assignor])
    auto = Worker(bootstrap, name, group_protocol="auto")
    async with classic.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(classic.run)
        await until(lambda: classic.owns == [0, 1])
        with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
            async with Worker(bootstrap, name, **NEW).consumer as refused:
                await refused.getone()
        async with auto.consumer:
            tasks.start_soon(auto.run)
            await until(lambda: len(classic.owns) == len(auto.owns) == 1)
            await auto.consumer.stop()
        await classic.consumer.stop()


@TRIO_IS_LONG
async def test_with_the_heartbeat_thread_a_blocked_loop_stays_a_member(bootstrap, name, fill):
    """A revocation waits for the blocked loop, while heartbeats continue: the member is not
    expired."""
    await fill(4)
    options = {**NEW, "heartbeat_thread": True}
    first = Worker(bootstrap, name, **options)
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: first.owns == [0, 1, 2, 3])
        async with Worker(bootstrap, name, **NEW).consumer as second:
            await second.wait_assignment()
            driver = first.consumer._session.member.driver
            before = driver.member.ownership.acknowledged_at
            time.sleep(2.5)  # noqa: ASYNC251
            assert driver.member.ownership.acknowledged_at > before + 1
            await until(lambda: len(first.owns) == len(second.assignment()) == 2)
        await first.consumer.stop()
    assert "lost" not in dict(first.story)


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "cooperative"])
async def test_a_group_migrates_to_the_consumer_protocol_and_back(bootstrap, name, fill, eager):
    """One member at a time, during consumption; meanwhile members of both protocols share the
    partitions."""
    if await is_embedded(bootstrap):
        pytest.skip("the embedded broker changes no group that has members")
    await fill(6, 400)
    assignor = range_assignor if eager else cooperative_sticky_assignor
    classic = {"assignors": [assignor], "auto_commit_interval_ms": 20}
    new = {**NEW, "auto_commit_interval_ms": 20}
    workers = []

    async def start(options):
        worker = Worker(bootstrap, name, **options)
        worker.pause = 0.002
        workers.append(worker)
        await tasks.start(worker.consumer.run)
        tasks.start_soon(worker.run)
        return worker

    async with anyio.create_task_group() as tasks:
        members = [await start(classic) for _ in range(3)]
        kinds = []
        for options in (new, classic):
            for n in range(3):
                await until(lambda: all(len(w.owns) == 2 for w in members), 40)
                await members[n].consumer.stop()
                members[n] = await start(options)
            await until(lambda: all(len(w.owns) == 2 for w in members), 40)
            kinds.append((await describe(bootstrap, name))[2])
        await until(lambda: len({r for w in workers for r in w.seen}) == 2_400, 60)
        for worker in members:
            await worker.consumer.stop()
    assert kinds == [[1, 1, 1], []]
    assert sorted({r for w in workers for r in w.seen}) == [
        (p, o) for p in range(6) for o in range(400)
    ]


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_group_is_shared_with_members_of_librdkafka(bootstrap, name, fill):
    """It joins, both own partitions, and one continues where the other has left."""
    await fill(4, 50)
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    seen = set()

    async def poll():
        message = await anyio.to_thread.run_sync(theirs.poll, 0.05)
        if message is not None and message.error() is None:
            seen.add((message.partition(), message.offset()))

    ours = Worker(bootstrap, name, **NEW)
    async with ours.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(ours.run)
        await until(lambda: len(ours.seen) == 200)
        theirs.subscribe([name])
        with anyio.fail_after(60):
            while not (len(ours.owns) == len(theirs.assignment()) == 2):
                await poll()
        assert (await describe(bootstrap, name))[1:] == ("uniform", [1, 1])
        await anyio.to_thread.run_sync(theirs.close)
        await until(lambda: len(ours.owns) == 4)
        await ours.consumer.stop()
    # What it was given it began where our commit was: at the end.
    assert seen == set()
    assert len(ours.seen) == len(set(ours.seen))
