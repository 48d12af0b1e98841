"""Topics and partitions that are created while a consumer with `latest` is subscribed, on the
embedded broker and on real Kafka."""

import anyio
import anyio.lowlevel
import pytest
from brokers import FAST, TRIO_IS_LONG, numbered, until

from kafkagroup import Admin, Consumer, TopicPartition

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("protocol", ["classic", "consumer", "alone"]),
]

RECORDS = 4


@pytest.fixture
def consumer(protocol, bootstrap, name):
    """Return a function that makes a consumer with `latest`."""
    of_protocol = {
        "classic": {**FAST, "group_id": name},
        "consumer": {"group_id": name, "group_protocol": "consumer"},
        "alone": {},
    }[protocol]
    options = {"auto_offset_reset": "latest", "metadata_max_age_ms": 500, **of_protocol}

    def consumer(*topics, **others):
        return Consumer(*topics, bootstrap_servers=bootstrap, **{**options, **others})

    return consumer


async def take(consumer, count):
    """Return partition and value of the next records, sorted."""
    with anyio.fail_after(60):  # Kafka looks for new topics of a pattern every 10 s
        records = [await consumer.getone() for _ in range(count)]
    return sorted((r.partition, r.value) for r in records)


async def is_idle(consumer, seconds):
    with anyio.move_on_after(seconds) as scope:
        await consumer.getone()
    return scope.cancelled_caught


def values(*partitions):
    return [(p, r.value) for p in partitions for r in numbered(p, RECORDS)]


def records(*partitions):
    return {p: numbered(p, RECORDS) for p in partitions}


@TRIO_IS_LONG
async def test_a_topic_created_after_the_start_is_read_from_its_beginning(name, fill, consumer):
    async with consumer(name) as c:
        await anyio.sleep(1)
        await fill(2, records(0, 1))
        assert await take(c, 2 * RECORDS) == values(0, 1)


@TRIO_IS_LONG
async def test_a_topic_that_a_pattern_matches_later_is_read_from_its_beginning(
    name, fill, consumer
):
    await fill(1, records(0), topic=f"{name}-old")
    async with consumer(pattern=f"{name}-.*") as c:
        await until(lambda: TopicPartition(f"{name}-old", 0) in c.assignment())
        await anyio.sleep(1)
        await fill(2, records(0, 1), topic=f"{name}-new")
        assert await take(c, 2 * RECORDS) == values(0, 1)


@TRIO_IS_LONG
async def test_added_partitions_are_read_from_their_beginning(
    bootstrap, name, fill, produce, consumer
):
    await fill(1, records(0))
    async with consumer(name) as c, Admin(bootstrap_servers=bootstrap) as admin:
        await until(lambda: TopicPartition(name, 0) in c.assignment())
        await c.position((name, 0))
        assert await admin.add_partitions({name: 3}) == (name,)
        for partition in (1, 2):
            await produce(partition, numbered(partition, RECORDS))
        assert await take(c, 2 * RECORDS) == values(1, 2)


@TRIO_IS_LONG
async def test_a_member_that_joins_later_follows_the_policy(name, fill, produce, consumer):
    await fill(2, records(0, 1))
    async with consumer(name) as c:
        await until(lambda: len(c.assignment()) == 2)
        assert [await c.position((name, p)) for p in (0, 1)] == [RECORDS, RECORDS]
        later = numbered(0, RECORDS + 1, RECORDS)
        await produce(0, later)
        assert await take(c, 1) == [(0, later[0].value)]
        assert await is_idle(c, 1)


@TRIO_IS_LONG
async def test_a_member_that_joins_later_continues_at_the_committed_start(
    protocol, name, fill, consumer
):
    """The first member dies after its first record, and has not committed that one."""
    if protocol == "alone":
        pytest.skip("there is no group")
    with anyio.CancelScope() as death:
        async with consumer(name, enable_auto_commit=False) as c:
            await anyio.sleep(1)
            await fill(1, records(0))
            assert await take(c, 1) == values(0)[:1]
            death.cancel()
            await anyio.lowlevel.checkpoint()
    async with consumer(name) as later:
        assert await take(later, RECORDS) == values(0)
