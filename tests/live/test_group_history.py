"""`__consumer_offsets` of real Kafka, after groups of every kind and client: every byte is
decoded."""

import json
import subprocess
import time
from pathlib import Path

import anyio
import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from anyio.to_thread import run_sync
from assign.java_side import find_java
from brokers import FAST, is_embedded, numbered
from click.testing import CliRunner

from kafkagroup import Admin, Consumer, TopicPartition
from kafkagroup.admin import GroupState, GroupType
from kafkagroup.broker import Broker
from kafkagroup.cli._app import app
from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.wire import decode_assignment
from kafkagroup.wire.coordinator.classic import GroupMetadataKey
from kafkagroup.wire.coordinator.offsets import OffsetCommitKey
from kafkagroup.wire.group_log import Undecoded, decode_group_record

pytestmark = pytest.mark.anyio

TOPIC = "__consumer_offsets"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def bootstrap(kafka):
    """Only real brokers: the embedded one stores its groups elsewhere."""
    if await is_embedded(kafka):
        pytest.skip("the records of groups are NOT READ from Kafka: no real Kafka here")
    return kafka


ABORTED = 2
"""The offset of the transaction that is aborted."""
LEFT_BEHIND = {
    "OffsetCommitKey",
    "GroupMetadataKey",
    "ConsumerGroupMetadataKey",
    "ConsumerGroupTargetAssignmentMetadataKey",
    "ShareGroupMetadataKey",
    "ShareGroupStatePartitionMetadataKey",
    "ShareGroupTargetAssignmentMetadataKey",
}
REMOVED = {
    "ConsumerGroupCurrentMemberAssignmentKey",
    "ConsumerGroupMemberMetadataKey",
    "ConsumerGroupRegularExpressionKey",
    "ConsumerGroupTargetAssignmentMemberKey",
    "ShareGroupCurrentMemberAssignmentKey",
    "ShareGroupMemberMetadataKey",
    "ShareGroupTargetAssignmentMemberKey",
}
"""What members take with them when they leave."""


def group_of(key):
    return getattr(key, "group_id", None) or key.group


def commits(decoded, prefix):
    return {
        (d.key.group.removeprefix(f"{prefix}-"), d.key.partition, d.value.offset)
        for d in decoded
        if isinstance(d.key, OffsetCommitKey)
        and d.value is not None
        and d.key.group.startswith(prefix)
    }


async def all_decoded(bootstrap, **options):
    records = await records_of(bootstrap, **options)
    return [decode_group_record(record.key, record.value) for record in records]


async def records_of(bootstrap, **options):
    """Return all records of the topic, in the order of each partition."""
    found = []
    host, port = bootstrap.split(",")[0].split(":")
    async with Broker.open(host, int(port)) as broker:
        (topic,) = (await broker.request_metadata([TOPIC])).topics
    partitions = sorted(TopicPartition(TOPIC, p.partition_index) for p in topic.partitions)
    options = {"auto_offset_reset": "earliest", **options}
    async with Consumer(bootstrap_servers=bootstrap, **options) as consumer:
        ends = await consumer.end_offsets(partitions)
        await consumer.assign(partitions)
        with anyio.fail_after(30):
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                batches = await consumer.getmany(timeout=0.2)
                found += [record for records in batches.values() for record in records]
    return found


async def with_aiokafka(bootstrap, group, topic):
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        await consumer.getone()
        await consumer.commit()


async def with_kafkagroup(bootstrap, group, topic):
    options = {**FAST, "auto_offset_reset": "earliest", "group_instance_id": "static"}
    async with Consumer(topic, bootstrap_servers=bootstrap, group_id=group, **options) as consumer:
        await consumer.getone()
        await consumer.commit()


def with_librdkafka(bootstrap, group, topic, **more):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    assert message.error() is None
    consumer.commit(message, asynchronous=False)
    consumer.close()


def with_transactions(bootstrap, group, topic):
    """Write one committed and one aborted transaction."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": group})
    producer.init_transactions(20)
    for offset, end in ((1, producer.commit_transaction), (2, producer.abort_transaction)):
        producer.begin_transaction()
        offsets = [confluent_kafka.TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 20)
        end(20)
    consumer.close()


def with_java(bootstrap, group, topic):
    """Yield the description of a Java consumer's share group while it has a member."""
    try:
        java = find_java()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"the records of Java's groups are NOT READ: {error}")
    program = Path(__file__).parent / "java" / "Groups.java"
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    options = ["-XX:TieredStopAtLevel=1", quiet, "-cp", f"{java.jars}/*"]
    command = [java.command, *options, program, bootstrap, topic, group]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        joined = [process.stdout.readline().strip() for _ in range(3)]
        # The member gets its assignment with its next heartbeat.
        deadline = time.monotonic() + 30
        printed = described(bootstrap, f"{group}-java-share")
        while not printed["members"][0]["partitions"] and time.monotonic() < deadline:
            printed = described(bootstrap, f"{group}-java-share")
        _, errors = process.communicate(timeout=90)
    assert (joined, process.returncode) == ([b"classic", b"consumer", b"share"], 0), errors[-2000:]
    return printed


def described(bootstrap, group):
    words = ["describe", group, "--json", "--bootstrap-servers", bootstrap]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.stderr
    (printed,) = json.loads(shown.stdout)["groups"]
    return printed


@pytest.mark.long
async def test_every_record_of_the_group_log_is_decoded(bootstrap, name, fill):
    await fill(2, {0: numbered(0, 3)})
    await with_aiokafka(bootstrap, f"{name}-aiokafka", name)
    await with_kafkagroup(bootstrap, f"{name}-kafkagroup", name)
    await run_sync(with_librdkafka, bootstrap, f"{name}-librdkafka", name)
    modern = f"{name}-848"
    await run_sync(lambda: with_librdkafka(bootstrap, modern, name, group_protocol="consumer"))
    regex = f"{name}-regex"
    pattern = f"^{name}.*"
    await run_sync(lambda: with_librdkafka(bootstrap, regex, pattern, group_protocol="consumer"))
    await run_sync(with_transactions, bootstrap, f"{name}-transactions", name)
    sharing = await run_sync(with_java, bootstrap, name, name)
    assert (sharing["type"], sharing["state"], len(sharing["members"])) == ("share", "Stable", 1)
    assert sharing["members"][0]["partitions"] == {name: [0, 1]}

    async with Admin(bootstrap_servers=bootstrap) as admin:
        share = await admin.describe_group(f"{name}-java-share")
    assert (share.type, share.state, share.members) == (GroupType.SHARE, GroupState.EMPTY, ())
    assert share.group_epoch > 0
    printed = await run_sync(described, bootstrap, share.group_id)
    assert (printed["type"], printed["offsets"]) == ("share", None)

    decoded = await all_decoded(bootstrap)
    assert [d for d in decoded if isinstance(d, Undecoded)] == []
    mine = [d for d in decoded if group_of(d.key).startswith(name)]
    assert {type(d.key).__name__ for d in mine} == LEFT_BEHIND | REMOVED
    assert {type(d.key).__name__ for d in mine if d.value is None} == REMOVED
    assert {commit for commit in commits(mine, name) if commit[1] == 0} == {
        ("aiokafka", 0, 1),
        ("kafkagroup", 0, 1),
        ("librdkafka", 0, 1),
        ("848", 0, 1),
        ("regex", 0, 1),
        ("java-classic", 0, 3),
        ("java-consumer", 0, 3),
        ("transactions", 0, 1),
        ("transactions", 0, ABORTED),
    }
    both = (TopicPartition(name, 0), TopicPartition(name, 1))
    assert [
        (decode_assignment(member.assignment), member.group_instance_id)
        for d in mine
        if d.key == GroupMetadataKey(group=f"{name}-kafkagroup") and d.value is not None
        for member in d.value.members
    ] == [(both, "static")]
    committed = await all_decoded(bootstrap, isolation_level="read_committed")
    assert commits(committed, name) == commits(mine, name) - {("transactions", 0, ABORTED)}
