"""Positions that the log no longer has: commits beyond a truncation, recreated topics."""

import anyio
import pytest
from brokers import FAST, append, numbered

from kafkagroup import Consumer, OffsetAndMetadata, TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.errors import OffsetOutOfRangeError
from kafkagroup.wire.messages.admin import DeleteTopicsRequest, DeleteTopicState

pytestmark = pytest.mark.anyio


def delete_records(bootstrap, tp, before):
    """Delete records at once, as retention does."""
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import AdminClient

    at, admin = Place(*tp, before), AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([at])[at].result(20)


async def take(consumer, count):
    with anyio.fail_after(20):
        return [(await consumer.getone()).value for _ in range(count)]


async def test_a_commit_past_a_truncation_continues_at_the_end_of_its_epoch(bootstrap, name, fill):
    """Simulates a truncation: with an epoch, reading continues at the log's end; without one, by
    the reset policy."""
    await fill(1, 5)
    tp = TopicPartition(name, 0)
    options = {"bootstrap_servers": bootstrap, "group_id": name, "enable_auto_commit": False}
    async with Consumer(**options) as consumer:
        await consumer.assign([tp])
        await consumer.commit({tp: OffsetAndMetadata(8, leader_epoch=0)})
    async with Consumer(name, **options, **FAST) as consumer:
        with anyio.fail_after(20):
            while not consumer.assignment() or await consumer.position(tp) == 8:
                await anyio.sleep(0.01)
            assert await consumer.position(tp) == 5


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(("policy", "first"), [("earliest", 6), ("latest", 10), ("none", None)])
@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
async def test_a_commit_below_the_start_of_the_log_follows_the_policy(
    bootstrap, name, fill, caplog, protocol, policy, first
):
    """Retention has deleted the records after the commit: the leader reports where its log
    starts."""
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    options = {
        "bootstrap_servers": bootstrap,
        "group_id": name,
        "enable_auto_commit": False,
        "auto_offset_reset": policy,
        "group_protocol": protocol,
    }
    async with Consumer(**options) as consumer:
        await consumer.assign([tp])
        await consumer.commit({tp: 2})
    delete_records(bootstrap, tp, 6)
    async with Consumer(name, **options) as consumer:
        with anyio.fail_after(20):
            if first is None:
                with pytest.raises(OffsetOutOfRangeError) as caught:
                    await consumer.getone()
                assert caught.value.offsets == {tp: 2}
            else:
                while not consumer.assignment() or await consumer.position(tp) == 2:
                    await anyio.sleep(0.01)
                assert await consumer.position(tp) == first
    assert f"{tp}: position 2 is below the start of the log, 6: its records" in caplog.text


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
async def test_a_position_in_the_log_is_read_from_wherever_it_is(bootstrap, name, fill):
    """The start and the end of the log are in range, and no record is there at the end."""
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    delete_records(bootstrap, tp, 6)
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer:
        await consumer.assign([tp])
        consumer.seek(tp, 6)
        assert await take(consumer, 1) == [b"0/6"]
        consumer.seek(tp, 10)
        with anyio.move_on_after(1) as idle:
            await consumer.getone()
        assert idle.cancelled_caught


async def test_a_committed_leader_epoch_is_resumed(bootstrap, name, fill):
    await fill(1, 5)
    tp = TopicPartition(name, 0)
    options = {"bootstrap_servers": bootstrap, "group_id": name, **FAST}
    async with Consumer(name, **options) as consumer:
        await take(consumer, 3)
        await consumer.commit()
        assert await consumer.committed() == {tp: OffsetAndMetadata(3, leader_epoch=0)}
    async with Consumer(name, **options) as consumer:
        assert await take(consumer, 2) == [b"0/3", b"0/4"]


@pytest.mark.parametrize("count", [2, 12])
async def test_a_recreated_topic_is_read_from_its_start(bootstrap, name, fill, count):
    """With twelve records the old position is within the new log: only the topic id differs."""
    await fill(1, 10)
    tp = TopicPartition(name, 0)
    host, port = bootstrap.split(",")[0].split(":")
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        await consumer.assign([tp])
        assert len(await take(consumer, 10)) == 10
        async with Broker.open(host, int(port)) as broker:
            gone = DeleteTopicsRequest(topics=(DeleteTopicState(name=name),), timeout_ms=10_000)
            response = await broker.request(gone)
            assert [r.error_code for r in response.responses] == [0]
            await fill(1)
            await append(broker, tp, numbered(7, count))
        assert await take(consumer, 2) == [b"7/0", b"7/1"]
