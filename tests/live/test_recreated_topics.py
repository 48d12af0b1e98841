"""A topic deleted and recreated under a consumer: positions in the old topic are never committed to
the new one. Both group protocols: embedded broker, real Kafka."""

import anyio
import pytest
from brokers import FAST, TRIO_IS_LONG

from kafkagroup import Consumer
from kafkagroup.admin import Admin
from kafkagroup.errors import BrokerError, CommitFailedError, ErrorCode
from kafkagroup.runtime.offsets import group_offsets as offsets
from kafkagroup.wire.batch_writing import NewRecord

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("protocol", ["classic", "consumer"]),
]

READ = 5
"""Records of the old topic that are processed: an offset in the middle of the new one."""
NEW = 2 * READ


@pytest.fixture
def timeout_ms():
    """The maximum duration of commit retries, in milliseconds."""
    return 2_000


@pytest.fixture
def consumer(protocol, bootstrap, name, timeout_ms):
    return Consumer(
        name,
        bootstrap_servers=bootstrap,
        group_id=name,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        request_timeout_ms=timeout_ms,
        **({"session_timeout_ms": 6_000} if protocol == "consumer" else FAST),
    )


def values(what, count):
    return [b"%s %d" % (what, n) for n in range(count)]


def records(what, count):
    return [NewRecord(None, value, 1000) for value in values(what, count)]


async def delete(bootstrap, name):
    """Delete the topic, and return when the broker has removed it."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        assert await admin.delete_topics([name]) == (name,)
        with anyio.fail_after(20):
            while any(topic.name == name for topic in await admin.list_topics()):
                await anyio.sleep(0.01)


async def take(consumer, count):
    with anyio.fail_after(30):
        return [(await consumer.getone()).value for _ in range(count)]


async def commit_fails(consumer):
    """Check that the commit of a deleted topic fails and raises: the broker refuses it, or the
    consumer already knows that the topic was recreated."""
    with anyio.fail_after(20), pytest.raises((BrokerError, CommitFailedError)) as caught:
        await consumer.commit()
    if isinstance(caught.value, BrokerError):
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_ID


async def is_untouched(consumer, name):
    """Check that the new topic is read by the reset policy, and that nothing was committed to it
    before."""
    with anyio.fail_after(20):
        assert (await consumer.committed([(name, 0)]))[name, 0] is None
    assert await take(consumer, NEW) == values(b"new", NEW)
    with anyio.fail_after(20):
        await consumer.commit()
        assert (await consumer.committed([(name, 0)]))[name, 0].offset == NEW


@pytest.fixture
def late(monkeypatch):
    """Provide an event; commits wait for it in transit to the broker."""
    arrives = anyio.Event()
    commit = offsets.commit_offsets

    async def commit_late(*arguments, **options):
        await arrives.wait()
        return await commit(*arguments, **options)

    monkeypatch.setattr(offsets, "commit_offsets", commit_late)
    return arrives


@TRIO_IS_LONG
async def test_a_commit_in_flight_while_the_topic_is_recreated_is_rejected(
    bootstrap, name, fill, consumer, late
):
    """It is sent before the topic is deleted, and arrives after the recreation."""
    await fill(1, {0: records(b"old", READ)})
    async with consumer:
        await take(consumer, READ)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit_fails, consumer)
            await anyio.sleep(0.1)
            await delete(bootstrap, name)
            await fill(1, {0: records(b"new", NEW)})
            late.set()
        await is_untouched(consumer, name)


@TRIO_IS_LONG
async def test_a_commit_of_the_old_position_is_rejected_with_metadata_of_the_new_topic(
    bootstrap, name, fill, consumer
):
    """The position belongs to the old topic: it was committed under the new topic's id."""
    await fill(1, {0: records(b"old", READ)})
    async with consumer:
        await take(consumer, READ)
        await delete(bootstrap, name)
        await fill(1, {0: records(b"new", NEW)})
        await consumer._engine._cluster.refresh()
        await commit_fails(consumer)
        await is_untouched(consumer, name)


@TRIO_IS_LONG
async def test_a_commit_of_a_topic_missing_from_metadata_is_rejected(
    bootstrap, name, fill, consumer
):
    """It went by name, and was retried until the topic was recreated."""
    await fill(1, {0: records(b"old", READ)})
    async with consumer:
        await take(consumer, READ)
        await delete(bootstrap, name)
        await consumer._engine._cluster.refresh()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit_fails, consumer)
            await anyio.sleep(0.1)
            await fill(1, {0: records(b"new", NEW)})
        await is_untouched(consumer, name)


@pytest.mark.parametrize("timeout_ms", [30_000])
@TRIO_IS_LONG
async def test_a_commit_ends_long_before_its_timeout(bootstrap, name, fill, consumer):
    """It was retried for 30 s, while the application or a rebalance waited for it."""
    await fill(1, {0: records(b"old", READ)})
    async with consumer:
        await take(consumer, READ)
        await delete(bootstrap, name)
        with anyio.fail_after(10):
            await commit_fails(consumer)


async def test_the_same_offset_is_committed_again_in_the_recreated_topic(
    bootstrap, name, fill, consumer
):
    """The offset committed in the old topic counted as committed in the new one."""
    await fill(1, {0: records(b"old", NEW)})
    async with consumer:
        await take(consumer, NEW)
        await consumer.commit()
        await delete(bootstrap, name)
        await fill(1, {0: records(b"new", NEW)})
        await is_untouched(consumer, name)
