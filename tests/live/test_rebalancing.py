"""Several consumers of one group: the owners of partitions, and that no record is lost."""

import anyio
import anyio.lowlevel
import pytest
from brokers import FAST, Worker, numbered, until

from kafkagroup import ConfigurationError, Consumer, OffsetAndMetadata, TopicPartition
from kafkagroup.errors import NotAssignedError

pytestmark = pytest.mark.anyio


async def test_members_share_partitions_and_take_over(bootstrap, name, fill, produce):
    await fill(4, 100)
    first, second = Worker(bootstrap, name), Worker(bootstrap, name)
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: len(first.seen) == 400)
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 2)
            assert sorted(first.owns + second.owns) == [0, 1, 2, 3]
            for partition in range(4):
                await produce(partition, numbered(partition, 200, 100))
            await until(lambda: len(first.seen) + len(second.seen) == 800)
            await second.consumer.stop()
        await until(lambda: len(first.owns) == 4)
        await first.consumer.stop()
    # A clean handover: every record once.
    assert sorted(first.seen + second.seen) == [(p, o) for p in range(4) for o in range(200)]
    assert [what for what, _ in first.story] == ["assigned", "revoked"] * 3
    assert [what for what, _ in second.story] == ["assigned", "revoked"]


async def test_the_record_in_flight_is_processed_before_its_partition_is_released(
    bootstrap, name, fill
):
    """The revocation waits for slow work: otherwise the next owner would repeat it."""
    await fill(2, 3)
    first, second = Worker(bootstrap, name), Worker(bootstrap, name)
    async with first.consumer, anyio.create_task_group() as tasks:
        first.pause = 0.5
        tasks.start_soon(first.run)
        await until(lambda: first.seen)
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: len(first.seen) + len(second.seen) == 6)
            await second.consumer.stop()
        await first.consumer.stop()
    assert sorted(first.seen + second.seen) == [(p, o) for p in range(2) for o in range(3)]


async def test_callbacks_may_commit_and_seek(bootstrap, name, fill):
    """`seek` in `assigned` overrides the committed offset; `commit` in `revoked` still works."""
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    committed = []

    def assigned(partitions):
        consumer.seek(tp, 5)

    async def revoked(partitions):
        await consumer.commit({tp: 9})
        committed.append(await consumer.committed([tp]))

    consumer = Consumer(
        name,
        bootstrap_servers=bootstrap,
        group_id=name,
        on_partitions_assigned=assigned,
        on_partitions_revoked=revoked,
        **FAST,
    )
    async with consumer:
        with anyio.fail_after(20):
            assert (await consumer.getone()).offset == 5
    assert [{tp: o.offset for tp, o in offsets.items()} for offsets in committed] == [{tp: 9}]


async def test_a_callback_that_raises_has_no_veto(bootstrap, name, fill):
    await fill(1, 10)

    def assigned(partitions):
        raise ZeroDivisionError

    options = {**FAST, "on_partitions_assigned": assigned}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        with anyio.fail_after(20):
            with pytest.raises(ZeroDivisionError):
                await consumer.getone()
            assert (await consumer.getone()).offset == 0


async def test_a_cancelled_consumer_leaves_the_group(bootstrap, name, fill):
    """Without a leave the others would wait for its session of 6 s."""
    await fill(2)
    first, second = Worker(bootstrap, name), Worker(bootstrap, name)
    async with second.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(second.run)
        with anyio.CancelScope() as scope:
            async with first.consumer:
                await until(lambda: len(first.owns) == len(second.owns) == 1)
                scope.cancel()
                await anyio.sleep_forever()
        await until(lambda: len(second.owns) == 2, seconds=3.0)
        await second.consumer.stop()


async def test_an_application_that_stops_polling_loses_its_partitions(bootstrap, name, fill):
    """The member leaves once, and its next poll rejoins."""
    await fill(2, 3)
    stuck = Worker(bootstrap, name, max_poll_interval_ms=300, auto_commit_interval_ms=50)
    other = Worker(bootstrap, name)
    async with stuck.consumer, anyio.create_task_group() as tasks:
        with anyio.fail_after(20):
            await stuck.consumer.getone()
        # If it joined earlier, its rebalance could make this member revoke just before the interval
        # ends.
        await until(lambda: [what for what, _ in stuck.story] == ["assigned", "lost"])
        async with other.consumer:
            tasks.start_soon(other.run)
            await until(lambda: len(other.owns) == 2)
            with anyio.move_on_after(0.05):
                await stuck.consumer.getone()
            tasks.start_soon(stuck.run)
            await until(lambda: len(other.owns) == len(stuck.owns) == 1)
            await other.consumer.stop()
        await stuck.consumer.stop()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_heartbeats_continue_while_the_application_awaits(bootstrap, name, fill):
    """L3: slow awaits longer than the session must not cost the membership."""
    await fill(2, 3)
    slow = Worker(bootstrap, name)
    async with slow.consumer:
        with anyio.fail_after(20):
            await slow.consumer.getone()
        await anyio.sleep(7.0)  # longer than the session: this is real time, on a real broker
        await slow.consumer.commit()
        with anyio.fail_after(5):
            await slow.consumer.getone()
    assert [what for what, _ in slow.story] == ["assigned", "revoked"]


@pytest.mark.parametrize("awaits", [False, True])
async def test_partitions_start_at_the_offsets_that_the_callback_returns(
    bootstrap, name, fill, awaits
):
    """For offsets stored elsewhere, for example with the results. None means the committed
    offset."""
    await fill(4, 10)
    first, second, third, _ = (TopicPartition(name, p) for p in range(4))

    def assigned(partitions):
        assert len(partitions) == 4
        return {first: 7, second: OffsetAndMetadata(9, "from my table"), third: None}

    async def assigned_later(partitions):
        await anyio.lowlevel.checkpoint()
        return assigned(partitions)

    consumer = Consumer(
        name,
        bootstrap_servers=bootstrap,
        group_id=name,
        on_partitions_assigned=assigned_later if awaits else assigned,
        **FAST,
    )
    async with consumer:
        with anyio.fail_after(20):
            records = [await consumer.getone() for _ in range(3 + 1 + 10 + 10)]
    found = {p: [r.offset for r in records if r.partition == p] for p in range(4)}
    assert found == {0: [7, 8, 9], 1: [9], 2: [*range(10)], 3: [*range(10)]}


@pytest.mark.parametrize(
    ("response", "error"),
    [({("other", 0): 1}, NotAssignedError), ({0: -1}, ConfigurationError)],
)
async def test_a_wrong_return_value_of_the_callback_is_an_error(
    bootstrap, name, fill, response, error
):
    await fill(1, 10)
    offsets = {(name, 0) if at == 0 else at: offset for at, offset in response.items()}
    consumer = Consumer(
        name,
        bootstrap_servers=bootstrap,
        group_id=name,
        on_partitions_assigned=lambda partitions: offsets,
        **FAST,
    )
    async with consumer:
        with anyio.fail_after(20):
            with pytest.raises(error):
                await consumer.getone()
            assert (await consumer.getone()).offset == 0


async def test_what_revocation_callbacks_return_is_ignored(bootstrap, name, fill):
    await fill(1, 10)
    assigned = []
    consumer = Consumer(
        name,
        bootstrap_servers=bootstrap,
        group_id=name,
        on_partitions_assigned=assigned.append,
        on_partitions_revoked=lambda partitions: {TopicPartition(name, 0): 5},
        **FAST,
    )
    async with consumer:
        with anyio.fail_after(20):
            assert (await consumer.getone()).offset == 0
    assert assigned == [[TopicPartition(name, 0)]]
