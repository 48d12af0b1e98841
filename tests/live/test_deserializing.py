"""Coroutine deserializers in a rebalancing group: nothing is lost, and unconverted records are not
committed."""

import anyio
import pytest
from brokers import FAST, TRIO_IS_LONG, Worker, until

from kafkagroup import Consumer, TopicPartition

pytestmark = pytest.mark.anyio

PARTITIONS, EACH = 4, 50
ALL = [(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@TRIO_IS_LONG
async def test_a_rebalance_during_a_deserialization_loses_nothing(bootstrap, name, fill, protocol):
    """The new owner of a partition delivers the record that the old one was converting."""
    await fill(PARTITIONS, EACH)
    hangs = anyio.Event()
    converted = {1: set(), 2: set()}

    def deserializer(member):
        async def decode(data):
            partition, offset = map(int, data.split(b"/"))
            if member == 1 and len(converted[1]) == 20 and not hangs.is_set():
                hangs.set()
                await anyio.sleep(2)
            await anyio.sleep(0.002)
            converted[member].add((partition, offset))
            return partition, offset

        return decode

    first, second = (
        Worker(bootstrap, name, group_protocol=protocol, value_deserializer=deserializer(member))
        for member in (1, 2)
    )
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        with anyio.fail_after(20):
            await hangs.wait()
        async with second.consumer:
            tasks.start_soon(second.run)
            # The group rebalances while the first member's record is being converted.
            await until(lambda: len(first.owns) == len(second.owns) == 2, 60)
            await until(lambda: len(first.seen) + len(second.seen) >= len(ALL), 60)
            await second.consumer.stop()
        await first.consumer.stop()
    # A clean handover: every record once, and only by who has converted it.
    assert sorted(first.seen + second.seen) == ALL
    assert set(first.seen) <= converted[1]
    assert set(second.seen) <= converted[2]
    async with Consumer(bootstrap_servers=bootstrap, group_id=name) as consumer:
        tps = [TopicPartition(name, partition) for partition in range(PARTITIONS)]
        committed = await consumer.committed(tps)
    assert {tp.partition: o.offset for tp, o in committed.items()} == dict.fromkeys(range(4), EACH)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_record_being_deserialized_at_the_close_is_not_committed(
    bootstrap, name, fill, protocol
):
    await fill(1, 10)

    async def decode(data):
        if data == b"0/3":
            await anyio.sleep_forever()
        return data

    options = {"bootstrap_servers": bootstrap, "group_id": name, "group_protocol": protocol, **FAST}
    async with Consumer(name, value_deserializer=decode, **options) as consumer:
        with anyio.move_on_after(20):
            async for record in consumer:
                if record.offset == 2:
                    with anyio.move_on_after(1):
                        await consumer.getone()
                    await consumer.commit()
                    break
    async with Consumer(name, **options) as consumer:
        with anyio.fail_after(20):
            assert (await consumer.getone()).offset == 3
