"""The producers of other clients write to the embedded broker, with their default options,
idempotent, and in transactions of every version. A consumer of ours reads what they have
committed."""

import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import anyio
import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from assign.java_side import compiled, find_java

from kafkagroup import Consumer
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.transactions import AddPartitionsToTxnRequest

with warnings.catch_warnings():
    # It reads its schemas by functions that Python 3.11 and 3.12 call deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer, OffsetAndMetadata
    from kafka import TopicPartition as PythonPartition

DEADLINE = 30.0
VALUES = ["one", "aborted two", "three"]
VERSIONS = pytest.mark.parametrize("version", [0, 1, 2], ids="TV{}".format)
WRITTEN = {"one", "aborted two", "three", "tx one", "tx three"}


async def committed(kafka: EmbeddedKafka) -> set[str]:
    """Return what a consumer reads up to the last stable offset."""
    tp = TopicPartition("t", 0)
    async with Consumer(
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        value_deserializer=bytes.decode,
    ) as consumer:
        await consumer.assign([tp])
        found: set[str] = set()
        while await consumer.position(tp) < kafka.stable_end("t", 0):
            for records in (await consumer.getmany(timeout=0.1)).values():
                found.update(record.value for record in records)
        return found


def librdkafka(kafka: EmbeddedKafka) -> None:
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    for is_idempotent, values in (False, VALUES[:1]), (True, VALUES[1:]):
        producer = confluent_kafka.Producer(servers | {"enable.idempotence": is_idempotent})
        for value in values:
            producer.produce("t", value)
        assert producer.flush(DEADLINE) == 0
    producer = confluent_kafka.Producer(servers | {"transactional.id": "tx"})
    producer.init_transactions(DEADLINE)
    group = confluent_kafka.Consumer(servers | {"group.id": "g"}).consumer_group_metadata()
    for count, value in enumerate(VALUES):
        producer.begin_transaction()
        producer.produce("t", f"tx {value}")
        offsets = [confluent_kafka.TopicPartition("t", 0, count)]
        producer.send_offsets_to_transaction(offsets, group, DEADLINE)
        if value.startswith("aborted"):
            producer.abort_transaction(DEADLINE)
        else:
            producer.commit_transaction(DEADLINE)


def kafka_python(kafka: EmbeddedKafka) -> None:
    for is_idempotent, values in (True, VALUES[:1]), (False, VALUES[1:]):
        producer = KafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, enable_idempotence=is_idempotent
        )
        for value in values:
            producer.send("t", value.encode())
        producer.close(DEADLINE)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="tx")
    producer.init_transactions()
    for count, value in enumerate(VALUES):
        producer.begin_transaction()
        producer.send("t", f"tx {value}".encode()).get(DEADLINE)
        offsets = {PythonPartition("t", 0): OffsetAndMetadata(count, "", -1)}
        producer.send_offsets_to_transaction(offsets, "g")
        if value.startswith("aborted"):
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close(DEADLINE)


@VERSIONS
@pytest.mark.parametrize("write", [librdkafka, kafka_python])
@pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")
def test_other_producers_write(write: Callable[[EmbeddedKafka], None], version: int) -> None:
    settings = BrokerSettings(transaction_version=version)
    with EmbeddedKafka({"t": 1}, settings=settings) as kafka:
        write(kafka)
        assert anyio.run(committed, kafka) == WRITTEN
        assert kafka.committed("g", "t") == {0: 2}


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@VERSIONS
async def test_aiokafkas_producers_write(version: int) -> None:
    settings = BrokerSettings(transaction_version=version)
    async with EmbeddedKafka({"t": 1}, settings=settings) as kafka:
        servers = kafka.bootstrap_servers
        for is_idempotent, values in (False, VALUES[:1]), (True, VALUES[1:]):
            async with AIOKafkaProducer(
                bootstrap_servers=servers, enable_idempotence=is_idempotent
            ) as producer:
                for value in values:
                    await producer.send_and_wait("t", value.encode())
        async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id="tx") as producer:
            for count, value in enumerate(VALUES):
                await producer.begin_transaction()
                await producer.send_and_wait("t", f"tx {value}".encode())
                await producer.send_offsets_to_transaction({AioPartition("t", 0): count}, "g")
                if value.startswith("aborted"):
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        assert await committed(kafka) == WRITTEN
        assert kafka.committed("g", "t") == {0: 2}


@VERSIONS
def test_javas_producers_write(version: int) -> None:
    try:
        java = find_java()
        classes = compiled(Path(__file__).parent / "java" / "Writer.java")
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no Java producer on this machine: {error}")
    command = (java.command, "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{java.jars}/*", "Writer")
    with EmbeddedKafka({"t": 1}, settings=BrokerSettings(transaction_version=version)) as kafka:
        subprocess.run(
            [*command, kafka.bootstrap_servers, "t", ",".join(VALUES)],
            check=True,
            timeout=2 * DEADLINE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert anyio.run(committed, kafka) == WRITTEN
        # From version 2 on partitions need not be added.
        assert bool(kafka.requests(AddPartitionsToTxnRequest)) == (version < 2)
        assert kafka.committed("g", "t") == {0: 2}


@pytest.fixture(scope="module")
def franz_go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program that writes with franz-go. Compiling it takes half a minute of CPU."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("franz-go's producer is NOT TRIED: there is no Go here")
    program = tmp_path_factory.mktemp("go") / "writer"
    built = subprocess.run(
        (go, "build", "-o", program, "."),
        cwd=Path(__file__).parent / "go",
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    if built.returncode and re.search("dial tcp|toolchain|requires go", built.stderr):
        pytest.skip(f"franz-go's producer is NOT TRIED: {built.stderr[-200:]}")
    assert not built.returncode, built.stderr
    return program


@pytest.mark.long
@VERSIONS
def test_franz_gos_producers_write(franz_go: Path, version: int) -> None:
    with EmbeddedKafka({"t": 1}, settings=BrokerSettings(transaction_version=version)) as kafka:
        subprocess.run(
            (franz_go, kafka.bootstrap_servers, "t", ",".join(VALUES)),
            check=True,
            timeout=2 * DEADLINE,
        )
        assert anyio.run(committed, kafka) == WRITTEN
