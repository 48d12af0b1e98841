"""The input of assignors in a real group: owned partitions, capacities, loads."""

import logging
from contextlib import asynccontextmanager

import anyio
import pytest
from brokers import Worker, until

from kafkagroup import TopicPartition
from kafkagroup.assign import sticky_assignor
from kafkagroup.assign.weighted import weighted_sticky

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def group(*workers):
    """Start the members of a group one after another."""
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(_run, worker)
            await until(lambda worker=worker: worker.owns)
        yield
        for worker in workers:
            await worker.consumer.stop()


async def _run(worker):
    async with worker.consumer:
        await worker.run()


async def test_eager_sticky_members_report_their_previous_partitions(bootstrap, name, fill):
    await fill(6)
    first, second, third = (Worker(bootstrap, name, assignors=[sticky_assignor]) for _ in range(3))
    async with group(first, second):
        await until(lambda: len(first.owns) == len(second.owns) == 3)
        before = first.owns, second.owns
        async with group(third):
            await until(lambda: all(len(w.owns) == 2 for w in (first, second, third)))
            for worker, had in zip((first, second), before, strict=True):
                assert set(worker.owns) < set(had)
            kept = first.owns, second.owns
        await until(lambda: len(first.owns) == len(second.owns) == 3)
        for worker, had in zip((first, second), kept, strict=True):
            assert set(worker.owns) > set(had)
    assert ("revoked", before[0]) in first.story


async def test_the_leader_receives_loads_and_capacities(bootstrap, name, fill):
    await fill(6)

    async def loads():
        return {TopicPartition(name, 0): 5.0}

    strong, weak = (
        Worker(bootstrap, name, assignors=[weighted_sticky(capacity=c)], partition_loads=loads)
        for c in (4.0, 1.0)
    )
    async with group(strong, weak):
        # 10 in all, of which the weak one can carry 2.
        await until(lambda: len(strong.owns) == 4 and len(weak.owns) == 2)
        assert 0 in strong.owns


async def test_a_group_is_assigned_without_loads_when_they_cannot_be_read(
    bootstrap, name, fill, caplog
):
    await fill(4)

    def broken():
        raise OSError("no metrics today")

    first, second = (
        Worker(bootstrap, name, assignors=[weighted_sticky()], partition_loads=broken)
        for _ in range(2)
    )
    with caplog.at_level(logging.WARNING, "kafkagroup.runtime.consume.leader"):
        async with group(first, second):
            await until(lambda: len(first.owns) == len(second.owns) == 2)
    assert (
        "partition_loads failed, all count as 1.0: OSError('no metrics today')" in caplog.messages
    )
