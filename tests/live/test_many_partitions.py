"""A consumer with more partitions than `SLICE_SIZE`: a commit is sent in several requests."""

import anyio
import pytest

from kafkagroup import Consumer, TopicPartition
from kafkagroup.admin import Admin
from kafkagroup.concurrency.slices import SLICE_SIZE

pytestmark = [pytest.mark.anyio, pytest.mark.long]

COUNT = SLICE_SIZE + 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_commit_of_many_partitions(bootstrap, name, fill, protocol):
    """All of the offsets are committed."""
    await fill(COUNT)
    options = {"bootstrap_servers": bootstrap, "group_id": name, "group_protocol": protocol}
    tps = [TopicPartition(name, n) for n in range(COUNT)]
    with anyio.fail_after(120):
        async with Consumer(name, enable_auto_commit=False, **options) as consumer:
            while len(consumer.assignment()) < COUNT:
                await anyio.sleep(0.05)
            for tp in tps:
                consumer.seek(tp, 0)
            await consumer.commit()
            committed = await consumer.committed(tps)
            assert {None if o is None else o.offset for o in committed.values()} == {0}
            await consumer.commit(dict.fromkeys(tps, 7))
            committed = await consumer.committed(tps)
            assert {None if o is None else o.offset for o in committed.values()} == {7}
        # All tests share the broker, which keeps files open for each partition.
        async with Admin(bootstrap_servers=bootstrap) as admin:
            assert await admin.delete_topics([name]) == (name,)
