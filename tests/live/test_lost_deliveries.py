"""`commit()` of lost deliveries, with both group protocols: embedded broker, real Kafka."""

import anyio
import pytest
from brokers import TRIO_IS_LONG, Worker, until

from kafkagroup import CommitFailedError, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("protocol", ["classic", "consumer"]),
]


async def fails(consumer):
    with anyio.fail_after(20), pytest.raises(CommitFailedError) as caught:
        await consumer.commit()
    return caught.value


def generation_of(worker):
    return worker.consumer.group_metadata().generation_id


async def take_all(consumer):
    """Poll until records of both partitions are in flight."""
    held = {}
    with anyio.fail_after(20):
        while len(held) < 2:
            held = await consumer.getmany(timeout=1)


@pytest.mark.parametrize("thread", [False, True], ids=["", "thread"])
@TRIO_IS_LONG
async def test_a_commit_after_the_poll_timeout_fails(bootstrap, name, fill, protocol, thread):
    """A job that always took too long once never learned that its commits were dropped."""
    await fill(1, 3)
    worker = Worker(
        bootstrap,
        name,
        group_protocol=protocol,
        heartbeat_thread=thread,
        enable_auto_commit=False,
        max_poll_interval_ms=500,
        rebalance_timeout_ms=500,
    )
    tp = TopicPartition(name, 0)
    async with worker.consumer as consumer:
        with anyio.fail_after(20):
            await consumer.getone()
        await anyio.sleep(1)
        error = await fails(consumer)
        assert error.partitions == (tp,)
        assert worker.story == [("assigned", [0]), ("lost", [0])]
        await consumer.commit()
        with anyio.fail_after(20):
            assert (await consumer.getone()).offset == 0
            await consumer.commit()
            assert (await consumer.committed([tp]))[tp].offset == 1


@TRIO_IS_LONG
async def test_a_commit_fails_for_the_partition_that_a_rebalance_moved(
    bootstrap, name, fill, protocol
):
    """The owned partitions are committed first."""
    await fill(2, 3)
    options = {
        "group_protocol": protocol,
        "enable_auto_commit": False,
        "rebalance_timeout_ms": 2_000,
    }
    if protocol == "classic":
        options["assignors"] = [cooperative_sticky_assignor]
    first, second = (Worker(bootstrap, name, **options) for _ in range(2))
    async with first.consumer as consumer:
        await until(lambda: first.owns == [0, 1])
        await take_all(consumer)
        async with second.consumer:
            await until(lambda: second.owns)
            # Until the first member has this generation too, it may not commit at all.
            await until(lambda: generation_of(first) == generation_of(second))
            (lost,), (kept,) = second.owns, first.owns
            error = await fails(consumer)
            assert error.partitions == (TopicPartition(name, lost),)
            assert ("revoked", [lost]) in first.story
            tps = [TopicPartition(name, kept), TopicPartition(name, lost)]
            with anyio.fail_after(20):
                committed = await consumer.committed(tps)
                await consumer.commit()
            assert committed[tps[0]].offset == 3
            assert committed[tps[1]] is None
