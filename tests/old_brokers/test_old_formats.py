"""Topics in message formats 0 and 1 on a real broker, which converts what it is sent.

A topic that was written before Kafka 0.11 keeps its format on any later cluster. Kafka 2.4.1 still
writes it, with the codec of the producer, and reads it for every consumer.
"""

import json
import subprocess
import sys
import time

import anyio
import pytest
from anyio.to_thread import run_sync
from brokers import FAST, append
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kafkagroup import Admin, Consumer, TopicPartition
from kafkagroup.admin import NewTopic
from kafkagroup.broker import Broker
from kafkagroup.testing import LocalKafka
from kafkagroup.testing.local import LocalKafkaUnavailable
from kafkagroup.types import TimestampType
from kafkagroup.wire.arrow import arrow_batches
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.coordinator.classic import GroupMetadataKey
from kafkagroup.wire.coordinator.offsets import OffsetCommitKey
from kafkagroup.wire.group_log import decode_group_record
from kafkagroup.wire.records import read_batches

pytestmark = [pytest.mark.anyio, pytest.mark.brokers]

FORMATS = {"0.9.0": 0, "0.10.0": 1}
"""message.format.version -> the number in each message."""
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """Return a node that writes format 1 by default, also the records of groups."""
    config = {"log.message.format.version": "0.10.0", "offsets.topic.compression.codec": "1"}
    broker = LocalKafka("2.4.1", directory=tmp_path_factory.mktemp("kafka"), config=config)
    try:
        broker.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no Kafka 2.4.1 on this machine: {error}")
    yield broker
    broker.stop()


async def create(kafka, name, **configs):
    new = NewTopic(
        name=name, partitions=1, configs={k.replace("_", "."): v for k, v in configs.items()}
    )
    async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        assert await admin.create_topics([new]) == (name,)


async def write(kafka, name, *batches):
    """Append encoded batches; return the bytes of the log."""
    tp = TopicPartition(name, 0)
    host, port = kafka.address(1).split(":")
    async with Broker.open(host, int(port)) as broker:
        await append(broker, tp, [NewRecord(b"first", b"", 999)])
        for batch in batches:
            response = await broker.produce_messages({tp: batch})
            assert response.responses[0].partition_responses[0].error_code == 0
        response = await broker.fetch_messages({tp: 0})
        return bytes(response.responses[0].partitions[0].records)


async def consumed(kafka, name, count, start=0, **options):
    async with Consumer(bootstrap_servers=kafka.bootstrap_servers, **options) as consumer:
        await consumer.assign([(name, 0)])
        consumer.seek((name, 0), start)
        with anyio.fail_after(20):
            return [await consumer.getone() for _ in range(count - start)]


def set_format(kafka, name, version):
    entry = ConfigEntry(
        "message.format.version", version, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(20)
    time.sleep(0.5)  # the broker learns it from ZooKeeper


WRITTEN = [
    NewRecord(b"key", b"value" * 500, 1001),
    NewRecord(None, b"", 1002),
    NewRecord(b"key", None, 1003),
    *(NewRecord(b"%d" % n, bytes(n), 1004 + n) for n in range(300)),
]


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
async def test_records_of_old_formats_are_read(kafka, name, version, codec):
    """The consumer, the columns and the command line read them, from any offset."""
    magic = FORMATS[version]
    await create(kafka, name, message_format_version=version)
    data = await write(kafka, name, encode_batch(WRITTEN, codec=codec))
    assert data[16] == magic
    batches = list(read_batches(data, topic=name, partition=0))
    assert {batch.codec for batch in batches} == {Codec.NONE, codec}
    expected = [
        (n, key, value, stamp if magic else -1)
        for n, (key, value, stamp, _) in enumerate([NewRecord(b"first", b"", 999), *WRITTEN])
    ]
    for start in (0, 1, 2, 150, 303):
        found = await consumed(kafka, name, len(expected), start, isolation_level="read_committed")
        assert [(r.offset, r.key, r.value, r.timestamp) for r in found] == expected[start:]
    columns = [batch.to_pylist() for batch in arrow_batches(data, topic=name, partition=0)]
    rows = [(row["offset"], row["key"], row["value"]) for rows in columns for row in rows]
    assert rows == [row[:3] for row in expected]
    command = (sys.executable, "-m", "kafkagroup", "consume", name, "--json")
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    run = (*command, *servers, "--from-beginning", "--exit-at-end")
    done = await anyio.run_process(run, stderr=subprocess.STDOUT)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [(one["offset"], one["timestamp"]) for one in lines]
    assert found == [(offset, timestamp) for offset, _, _, timestamp in expected]


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
async def test_log_append_time(kafka, name, codec):
    await create(
        kafka, name, message_format_version="0.10.0", message_timestamp_type="LogAppendTime"
    )
    await write(kafka, name, encode_batch(WRITTEN, codec=codec))
    found = await consumed(kafka, name, 304)
    assert {r.timestamp_type for r in found} == {TimestampType.LOG_APPEND_TIME}
    assert len({r.timestamp for r in found[1:]}) == 1
    assert min(r.timestamp for r in found) > 1_700_000_000_000


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
async def test_a_topic_whose_format_was_raised(kafka, name, codec):
    """One response has all formats."""
    await create(kafka, name, message_format_version="0.9.0")
    for version in ("0.9.0", "0.10.0", "2.4"):
        await run_sync(set_format, kafka, name, version)
        data = await write(kafka, name, encode_batch(WRITTEN[:3], codec=codec))
    assert data[16] == 0
    found = await consumed(kafka, name, 12)
    assert [r.value for r in found] == [b"", *(r.value for r in WRITTEN[:3])] * 3
    assert [r.timestamp for r in found] == [-1] * 4 + [999, 1001, 1002, 1003] * 2
    assert {r.leader_epoch for r in found[:8]} == {-1}
    assert {r.leader_epoch for r in found[8:]} == {0}


async def test_a_group_and_its_history_in_an_old_format(kafka, name):
    """`__consumer_offsets` has an old format, too, and its records are compressed."""
    await create(kafka, name, message_format_version="0.10.0")
    await write(kafka, name, encode_batch(WRITTEN, codec=Codec.LZ4))
    for expected in (range(100), range(100, 304)):
        async with Consumer(
            name, bootstrap_servers=kafka.bootstrap_servers, group_id=name, **FAST
        ) as consumer:
            with anyio.fail_after(30):
                found = [(await consumer.getone()).offset for _ in expected]
            assert found == list(expected)
            await consumer.commit()
    async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        tps = await admin.partitions(["__consumer_offsets"])
    keys = set()
    async with Consumer(bootstrap_servers=kafka.bootstrap_servers) as consumer:
        await consumer.assign(tps)
        ends = await consumer.end_offsets(tps)
        with anyio.fail_after(30):
            for _ in range(sum(ends.values())):
                record = await consumer.getone()
                assert record.leader_epoch == -1
                key = decode_group_record(record.key, record.value).key
                if name in repr(key):
                    keys.add(type(key))
    assert keys == {OffsetCommitKey, GroupMetadataKey}
