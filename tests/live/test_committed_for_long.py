"""Committed offsets that the broker deletes, and commits of earlier assignments: the broker decides
which of them it keeps, and which commits it takes."""

from contextlib import asynccontextmanager

import anyio
import pytest
from brokers import FAST, is_embedded, until

from kafkagroup import Admin, CommitFailedError, Consumer, OffsetAndMetadata, TopicPartition
from kafkagroup.errors import ChangesRefusedError, ErrorCode
from kafkagroup.wire.coordinator.offsets import OffsetCommitKey
from kafkagroup.wire.group_log import decode_group_record

pytestmark = pytest.mark.anyio

PROTOCOLS = {"classic": FAST, "consumer": {"group_protocol": "consumer"}}
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)

LOG = "__consumer_offsets"


@asynccontextmanager
async def idle(consumer, *partitions):
    """The consumer polls, and has read and committed everything."""

    async def poll():
        async for _ in consumer:
            pass

    async with consumer, anyio.create_task_group() as tasks:
        if partitions:
            await consumer.assign(partitions)
        tasks.start_soon(poll)
        yield consumer
        tasks.cancel_scope.cancel()


async def committed(admin, name):
    return (await admin.committed([name]))[name]


async def all_read(admin, name, partitions):
    """Wait until all five records of each partition are committed; return the offsets."""
    while True:
        found = await committed(admin, name)
        if [at.offset for at in found.values()] == [5] * partitions:
            return found
        await anyio.sleep(0.05)


async def test_offsets_deleted_while_their_consumer_is_idle_are_committed_again(
    bootstrap, name, fill
):
    await fill(2, 5)
    one, two = (TopicPartition(name, p) for p in range(2))
    noted = OffsetAndMetadata(5, "by hand", 0)
    options = {"bootstrap_servers": bootstrap, "group_id": name, "auto_commit_interval_ms": 100}
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(30):
            await admin.alter_offsets(name, {one: noted})
            aged = Consumer(**options, committed_offsets_max_age_ms=300)
            async with idle(aged, one, two):
                before = await all_read(admin, name, 2)
                assert before[one] == noted
                assert await admin.delete_offsets(name, [one, two]) == (one, two)
                while await committed(admin, name) != before:
                    await anyio.sleep(0.05)
            async with idle(Consumer(**options), one, two) as consumer:
                assert [await consumer.position(tp) for tp in (one, two)] == [5, 5]
                assert await admin.delete_offsets(name, [one, two]) == (one, two)
                await admin.alter_offsets(name, {two: 3})
            moved = {one: noted, two: OffsetAndMetadata(3)}
            assert await committed(admin, name) == moved, "after the close"


@each_protocol
async def test_a_member_commits_once_more_at_the_close_what_the_broker_has_kept(
    bootstrap, name, fill, protocol
):
    """The broker refuses to delete the offsets of a member, and takes them again."""
    await fill(1, 5)
    tp = TopicPartition(name, 0)
    options = {"bootstrap_servers": bootstrap, "group_id": name, "auto_commit_interval_ms": 100}
    async with Admin(bootstrap_servers=bootstrap) as admin:
        with anyio.fail_after(60):
            async with idle(Consumer(name, **options, **PROTOCOLS[protocol])):
                before = await all_read(admin, name, 1)
                with pytest.raises(ChangesRefusedError) as caught:
                    await admin.delete_offsets(name, [tp])
                assert caught.value.errors[tp].code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                if is_real := not await is_embedded(bootstrap):
                    logged = await commits_in_the_log(bootstrap, name)
                    assert logged[-1] == 5
            assert await committed(admin, name) == before
            if is_real:
                assert await commits_in_the_log(bootstrap, name) == [*logged, 5]


async def commits_in_the_log(bootstrap, group):
    """Return the offsets that the coordinator has written for a group."""
    found = []
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            partitions = await admin.partitions([LOG])
        ends = await consumer.end_offsets(partitions)
        await consumer.assign(partitions)
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for records in (await consumer.getmany(timeout=1)).values():
                decoded = (decode_group_record(r.key, r.value) for r in records)
                found += [
                    d.value.offset
                    for d in decoded
                    if isinstance(getattr(d, "key", None), OffsetCommitKey)
                    and d.key.group == group
                    and d.value is not None
                ]
    return found


@each_protocol
async def test_a_commit_of_an_earlier_assignment_does_not_rewind_the_group(
    bootstrap, name, fill, protocol
):
    """The broker would take it: it cannot know in which generation the offset was determined."""
    await fill(1, 30)
    tp = TopicPartition(name, 0)
    options = {"bootstrap_servers": bootstrap, "group_id": name, "enable_auto_commit": False}
    options |= PROTOCOLS[protocol]
    with anyio.fail_after(60):
        async with Consumer(name, **options) as late:
            for _ in range(10):
                record = await late.getone()
            await late.unsubscribe()
            async with Consumer(name, **options) as other:
                for _ in range(20):
                    await other.getone()
                await other.commit()
            await late.subscribe(name)
            await until(late.assignment)
            assert await late.position(tp) == 20
            with pytest.raises(CommitFailedError, match="10 is below 20, where this assignment"):
                await late.commit({tp: record.offset + 1})
            assert (await late.committed([tp]))[tp].offset == 20
            late.seek(tp, 10)
            await late.commit({tp: 10})
            assert (await late.committed([tp]))[tp].offset == 10
