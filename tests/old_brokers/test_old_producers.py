"""The producer at old brokers: its records, their order, and what brokers before 2.5 answer."""

from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from live.clients import (
    OTHERS,
    by_partition,
    read,
    read_by,
    samples,
    samples_of,
    topics_of,
    write_by,
)

from kafkagroup import Admin, Consumer, Producer, TopicPartition
from kafkagroup.admin import NewTopic
from kafkagroup.errors import ChangesRefusedError, NotWrittenError

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]


async def create(old: Any, *topics: str, partitions: int = 1, **configs: str) -> None:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    new = [
        NewTopic(name=topic, partitions=partitions, replication_factor=1, configs=settings)
        for topic in topics
    ]
    async with Admin(bootstrap_servers=old.bootstrap_servers) as admin:
        with anyio.fail_after(20):
            while True:
                try:
                    return await admin.create_topics(new)
                except ChangesRefusedError as error:
                    # Brokers with ZooKeeper delete a topic some time after their response.
                    if "TOPIC_ALREADY_EXISTS" not in str(error):
                        raise
                await anyio.sleep(0.05)


async def values(
    old: Any, topic: str, partition: int = 0, isolation: Any = "read_uncommitted"
) -> list[bytes | None]:
    """Return the values of a partition up to its end, or its last stable offset."""
    tp = TopicPartition(topic, partition)
    found: list[bytes | None] = []
    async with Consumer(
        bootstrap_servers=old.bootstrap_servers, isolation_level=isolation
    ) as consumer:
        await consumer.assign([tp])
        with anyio.fail_after(20):
            end = (await consumer.end_offsets([tp]))[tp]
            while await consumer.position(tp) < end:
                for records in (await consumer.getmany(timeout=0.1)).values():
                    found += [record.value for record in records]
    return found


# ---------------------------------------------------------------- other clients


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
async def test_other_clients_read_our_records(old, name, is_transactional):
    topics = topics_of(name)
    await create(old, *topics, partitions=3)
    key = name if is_transactional else None
    await write_by("kafkagroup", old.bootstrap_servers, topics, samples(), key)
    counts = dict.fromkeys(topics, len(samples()))
    for reader in OTHERS:
        found = await read_by(reader, old.bootstrap_servers, counts, "read_committed")
        for topic in topics:
            assert found[topic] == by_partition(samples()), (reader, topic)


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("writer", ["kafkagroup", *OTHERS])
async def test_records_of_every_client_are_read(old, name, writer, is_transactional):
    topics = topics_of(name)
    await create(old, *topics, partitions=3)
    records = samples_of(writer)
    key = name if is_transactional else None
    await write_by(writer, old.bootstrap_servers, topics, records, key)
    counts = dict.fromkeys(topics, len(records))
    found = await read(old.bootstrap_servers, counts, "read_committed")
    for topic in topics:
        assert found[topic] == by_partition(records), topic


# ---------------------------------------------------------------- acknowledgements and order


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_acknowledgements(old, name, acks):
    await create(old, name, partitions=3)
    async with Producer(
        bootstrap_servers=old.bootstrap_servers, acks=acks, enable_idempotence=False
    ) as producer:
        sent = [producer.send_nowait(name, b"%d" % n, partition=n % 3) for n in range(300)]
        await producer.flush()
        offsets = [(await one).offset for one in sent]
    assert offsets == [-1 if acks == 0 else n // 3 for n in range(300)]
    found = await read(old.bootstrap_servers, {name: 300})
    for partition, records in found[name].items():
        assert [one.value for one in records] == [b"%d" % n for n in range(partition, 300, 3)]


async def test_each_record_is_written_once_and_in_order_while_the_broker_restarts(old, name):
    await create(old, name, partitions=3)
    sent: list[Any] = []
    async with Producer(bootstrap_servers=old.bootstrap_servers, batch_size=500) as producer:

        async def write() -> None:
            while True:
                number = len(sent) // 3
                sent.extend(
                    producer.send_nowait(name, b"%d" % number, partition=p) for p in range(3)
                )
                await anyio.sleep(0.001)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.sleep(0.3)
            await run_sync(old.restart, 1)
            await run_sync(old.kill, 1)
            await anyio.sleep(0.3)
            await run_sync(old.start_node, 1)
            await anyio.sleep(0.5)
            tasks.cancel_scope.cancel()
        await producer.flush()
        assert producer.metrics().retried_batches > 0
        assert [(await one).offset for one in sent] == [n // 3 for n in range(len(sent))]
    for partition in range(3):
        assert await values(old, name, partition) == [b"%d" % n for n in range(len(sent) // 3)]


# ---------------------------------------------------------------- refused batches


async def test_a_batch_that_is_too_large_is_split(old, name):
    await create(old, name, max_message_bytes="2048")
    data = [b"%3d" % n + bytes(497) for n in range(100)]
    async with Producer(
        bootstrap_servers=old.bootstrap_servers, batch_size=16_384, linger_ms=50
    ) as producer:
        sent = [producer.send_nowait(name, one) for one in data]
        too_large = producer.send_nowait(name, bytes(4_000))
        later = producer.send_nowait(name, b"later")
        assert [(await one).offset for one in sent] == list(range(100))
        with pytest.raises(NotWrittenError, match="MESSAGE_TOO_LARGE") as raised:
            await too_large
        assert not raised.value.is_maybe_written
        assert (await later).offset == 100
    assert await values(old, name) == [*data, b"later"]


async def test_the_record_that_the_broker_refuses_is_named(old, name):
    """KIP-467; the records behind it are written in another epoch."""
    await create(old, name, cleanup_policy="compact")
    async with Producer(bootstrap_servers=old.bootstrap_servers, linger_ms=20) as producer:
        await producer.send(name, b"first", key=b"k")
        sent = [producer.send_nowait(name, b"", key=key) for key in (b"a", None, b"c")]
        await anyio.sleep(0.1)
        later = producer.send_nowait(name, b"later", key=b"k")
        for number, one in enumerate(sent):
            with pytest.raises(NotWrittenError, match="INVALID_RECORD") as raised:
                await one
            assert raised.value.is_of_another_record == (number != 1)
        assert (await later).offset == 1


# ---------------------------------------------------------------- producers the broker forgot


async def test_a_topic_that_is_created_again_is_written_to(old, name):
    """Topics have no ids before 2.8, and an unknown producer may begin at any number from 2.5 on.
    Brokers before refuse it with UNKNOWN_PRODUCER_ID."""
    await create(old, name)
    async with Producer(bootstrap_servers=old.bootstrap_servers) as producer:
        for n in range(3):
            assert (await producer.send(name, b"%d" % n)).offset == n
        async with Admin(bootstrap_servers=old.bootstrap_servers) as admin:
            await admin.delete_topics([name])
        await create(old, name)
        for n in range(3):
            assert (await producer.send(name, b"again %d" % n)).offset == n
        if old.version == "2.4.1":
            assert producer.metrics().retried_batches > 0
    assert await values(old, name) == [b"again 0", b"again 1", b"again 2"]


async def test_all_records_of_the_producer_are_deleted(old, name):
    """KAFKA-7190: brokers before 2.4 forget a producer with its last record."""
    await create(old, name)
    async with Producer(bootstrap_servers=old.bootstrap_servers) as producer:
        for n in range(6):
            assert (await producer.send(name, b"%d" % n)).offset == n
            if n % 3 == 2:
                await delete_records(old, name, n + 1)
    assert await values(old, name) == []


async def delete_records(old: Any, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": old.bootstrap_servers})
    for deleted in admin.delete_records([Place(topic, 0, offset)]).values():
        await run_sync(deleted.result, 20)
