"""Where a consumer stands and where its logs begin and end; pausing; subscriptions by pattern."""

import re

import anyio
import pytest
from brokers import FAST, TRIO_IS_LONG, Worker, numbered, until

from kafkagroup import Admin, ConfigurationError, Consumer, TopicPartition
from kafkagroup.errors import BrokerError, NotAssignedError
from kafkagroup.types import GroupMetadata, OffsetAndTimestamp

pytestmark = pytest.mark.anyio


async def take(consumer, count):
    with anyio.fail_after(20):
        return [await consumer.getone() for _ in range(count)]


async def test_offsets_of_partitions_that_are_not_assigned(bootstrap, name, fill):
    await fill(2, {0: numbered(0, 10)})
    full, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        with anyio.fail_after(20):
            assert await consumer.beginning_offsets([full, empty]) == {full: 0, empty: 0}
            assert await consumer.end_offsets([full, empty]) == {full: 10, empty: 0}
            assert await consumer.offsets_for_times({full: 1005, empty: 1005}) == {
                full: OffsetAndTimestamp(5, 1005, 0),
                empty: None,
            }
            assert await consumer.offsets_for_times({full: 99_999}) == {full: None}
        with pytest.raises(ConfigurationError, match="is -1; expected milliseconds"):
            await consumer.offsets_for_times({full: -1})


async def test_lag_and_seeks_to_the_ends(bootstrap, name, fill):
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        await take(consumer, 4)
        with anyio.fail_after(20):
            assert await consumer.lag() == {tp: 6}
            await consumer.seek_to_end()
            assert await consumer.position(tp) == 10
            assert await consumer.lag() == {tp: 0}
            await consumer.seek_to_beginning(tp)
        assert [r.offset for r in await take(consumer, 2)] == [0, 1]
        with pytest.raises(NotAssignedError):
            await consumer.seek_to_end(TopicPartition("other", 0))


async def test_a_paused_partition_resumes_at_its_position(bootstrap, name, fill, produce):
    await fill(2, 20)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
        first = (await take(consumer, 1))[0].partition
        paused, other = (zero, one) if first == 0 else (one, zero)
        consumer.pause(paused)
        assert consumer.paused() == {paused}
        assert [(r.partition, r.offset) for r in await take(consumer, 20)] == [
            (other.partition, offset) for offset in range(20)
        ]
        with anyio.move_on_after(0.3):
            pytest.fail(f"{await consumer.getone()} came out of a pause")
        consumer.resume(paused)
        assert consumer.paused() == frozenset()
        assert [(r.partition, r.offset) for r in await take(consumer, 19)] == [
            (first, offset) for offset in range(1, 20)
        ]
        with pytest.raises(NotAssignedError):
            consumer.pause(TopicPartition("other", 0))


async def test_a_pause_ends_with_the_assignment(bootstrap, name, fill):
    """Policy: a partition that is revoked and assigned again is not paused."""
    await fill(2)
    first, second = Worker(bootstrap, name), Worker(bootstrap, name)
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: len(first.owns) == 2)
        first.consumer.pause(*first.consumer.assignment())
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 1)
            assert first.consumer.paused() == frozenset()
            await second.consumer.stop()
        await first.consumer.stop()


async def test_group_metadata(bootstrap, name, fill):
    await fill(1, 1)
    options = {**FAST, "group_instance_id": "me"}
    async with Consumer(name, bootstrap_servers=bootstrap, group_id=name, **options) as consumer:
        assert consumer.group_metadata() == GroupMetadata(name, -1, "", "me")
        await take(consumer, 1)
        found = consumer.group_metadata()
        assert found == GroupMetadata(name, found.generation_id, found.member_id, "me")
        assert found.generation_id >= 1
        assert found.member_id
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        with pytest.raises(ConfigurationError, match="without group_id"):
            consumer.group_metadata()


@pytest.mark.parametrize("group", [True, False])
async def test_a_pattern_matches_present_and_later_topics(bootstrap, name, fill, group):
    await fill(1, 3)
    options = {**FAST, "metadata_max_age_ms": 100, "pattern": f"{name}(-late)?"}
    if group:
        options["group_id"] = name
    async with Consumer(bootstrap_servers=bootstrap, **options) as consumer:
        assert {r.topic for r in await take(consumer, 3)} == {name}
        await fill(2, 3, topic=f"{name}-late")
        await fill(1, 3, topic=f"{name}-late-and-longer")
        assert {r.topic for r in await take(consumer, 6)} == {f"{name}-late"}
        assert {tp.topic for tp in consumer.assignment()} == {name, f"{name}-late"}


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
@TRIO_IS_LONG
async def test_a_pattern_that_matches_nothing_joins_the_group(
    bootstrap, name, fill, group_protocol
):
    """The member has joined, owns nothing, and gets the topic once it exists; it waited outside the
    group, and wait_assignment() with it."""
    options = {"group_protocol": group_protocol, "metadata_max_age_ms": 100}
    if group_protocol == "classic":
        options = {**FAST, **options}
    async with (
        Consumer(
            bootstrap_servers=bootstrap, group_id=name, pattern=f"{name}-.*", **options
        ) as consumer,
        Admin(bootstrap_servers=bootstrap) as admin,
    ):
        with anyio.fail_after(20):
            assert await consumer.wait_assignment() == frozenset()
            assert len((await admin.describe_group(name)).members) == 1
        await fill(1, 1, topic=f"{name}-late")
        with anyio.fail_after(60):  # Kafka looks for new topics of a pattern every 10 s
            assert (await consumer.getone()).topic == f"{name}-late"


async def test_a_pattern_does_not_match_internal_topics(bootstrap, name, fill):
    await fill(1, 1)
    pattern = re.compile(f"{name}|__consumer_offsets")
    async with Consumer(
        name, bootstrap_servers=bootstrap, group_id=f"{name}-makes-the-offsets-topic", **FAST
    ) as consumer:
        await take(consumer, 1)
    async with Consumer(bootstrap_servers=bootstrap, group_id=name, pattern=pattern, **FAST) as c:
        await take(c, 1)
        assert c.assignment() == {TopicPartition(name, 0)}


async def test_a_topic_that_does_not_exist_has_no_offsets(bootstrap, name):
    options = {"request_timeout_ms": 300}
    async with Consumer(bootstrap_servers=bootstrap, **options) as consumer:
        with pytest.raises(Exception, match=f"{name}/0") as caught:
            await consumer.end_offsets([TopicPartition(name, 0)])
        assert not isinstance(caught.value, BrokerError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": "("}, "is no regular expression"),
        ({"pattern": "t", "topics": ("t",)}, "topics or a pattern"),
        ({"group_instance_id": "me"}, "needs a group_id"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    arguments = dict(arguments)
    with pytest.raises(ConfigurationError, match=message):
        Consumer(*arguments.pop("topics", ()), **arguments)
