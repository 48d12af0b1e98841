"""Other clients form groups on the embedded broker: it speaks Kafka, not a private dialect.

Sockets and time are real; polls have deadlines, and there are no fixed sleeps.
"""

import asyncio
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from assign.java_side import compiled, find_java
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest

with warnings.catch_warnings():
    # It reads its schemas by functions that Python 3.11 and 3.12 call deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

DEADLINE = 30.0
EVERYTHING = {f"value {n}".encode() for n in range(40)}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    settings = BrokerSettings(group_min_session_timeout=0.5)
    with EmbeddedKafka({"t": 4}, nodes=2, settings=settings) as kafka:
        yield kafka


def produce(kafka: EmbeddedKafka) -> None:
    """Write ten records to each partition with librdkafka."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 1})
    for n, value in enumerate(sorted(EVERYTHING)):
        producer.produce("t", value, partition=n % 4)
    assert producer.flush(DEADLINE) == 0


def wait(until: Callable[[], bool]) -> None:
    """Wait for a condition that other threads and processes bring about."""
    deadline = time.monotonic() + DEADLINE
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def consumer(kafka: EmbeddedKafka, **options: Any) -> Consumer:
    """Return a librdkafka consumer of group "g"; options have underscores for dots."""
    made = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 6000,
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in options.items()},
        }
    )
    made.subscribe(["t"])
    return made


def poll(
    consumers: list[Consumer], until: Callable[[], bool], into: set[bytes] | None = None
) -> None:
    """Let the consumers work until the condition holds."""
    deadline = time.monotonic() + DEADLINE
    while not until():
        assert time.monotonic() < deadline, [c.assignment() for c in consumers]
        for one in consumers:
            message = one.poll(0.02)
            if message is not None and into is not None:
                assert message.error() is None
                into.add(message.value())


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_two_librdkafka_members_share_a_topic(kafka: EmbeddedKafka, strategy: str) -> None:
    produce(kafka)
    assert [kafka.log_end("t", n) for n in range(4)] == [10] * 4
    got: set[bytes] = set()
    consumers = [consumer(kafka, partition_assignment_strategy=strategy) for _ in range(2)]
    poll(consumers, lambda: [len(c.assignment()) for c in consumers] == [2, 2], got)
    poll(consumers, lambda: got == EVERYTHING, got)
    owned = [sorted(tp.partition for tp in c.assignment()) for c in consumers]
    assert sorted([*owned[0], *owned[1]]) == [0, 1, 2, 3]
    assert kafka.describe_group("g").protocol_data == strategy
    offsets = [TopicPartition("t", n, 10) for n in owned[0]]
    consumers[0].commit(offsets=offsets, asynchronous=False)
    assert kafka.committed("g", "t") == dict.fromkeys(owned[0], 10)
    for one in consumers:
        one.close()
    assert kafka.group_state("g") == "Empty"


def test_a_librdkafka_static_member_restarts_without_a_rebalance(kafka: EmbeddedKafka) -> None:
    first = consumer(kafka, group_instance_id="one")
    poll([first], lambda: len(first.assignment()) == 4)
    first.close()
    (left,) = kafka.describe_group("g").members
    again = consumer(kafka, group_instance_id="one")
    poll([again], lambda: len(again.assignment()) == 4)
    (back,) = kafka.describe_group("g").members
    assert (back.group_instance_id, back.member_id != left.member_id) == ("one", True)
    assert len(kafka.requests(JoinGroupRequest)) == 2
    again.close()


def test_librdkafka_survives_the_death_of_its_coordinator(kafka: EmbeddedKafka) -> None:
    produce(kafka)
    got: set[bytes] = set()
    one = consumer(kafka)
    poll([one], lambda: got == EVERYTHING, got)
    kafka.kill(kafka.coordinator("g"))
    kafka.produce("t", ["after"], partition=0)
    poll([one], lambda: b"after" in got, got)
    one.commit(offsets=[TopicPartition("t", 0, 11)], asynchronous=False)
    assert kafka.committed("g", "t") == {0: 11}
    one.close()


def test_librdkafka_rejoins_after_a_fault(kafka: EmbeddedKafka) -> None:
    one = consumer(kafka)
    poll([one], lambda: len(one.assignment()) == 4)
    assert len(kafka.requests(SyncGroupRequest)) == 1
    fault = kafka.fail(HeartbeatRequest, ErrorCode.ILLEGAL_GENERATION)
    poll([one], lambda: len(kafka.requests(SyncGroupRequest)) == 2)
    assert fault.hits == 1
    poll([one], lambda: len(one.assignment()) == 4 and kafka.group_state("g") == "Stable")
    one.close()


def test_librdkafka_administers_topics_and_groups(kafka: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic("made", 3)])["made"].result(DEADLINE)
    assert len(admin.list_topics(timeout=DEADLINE).topics["made"].partitions) == 3
    admin.delete_topics(["made"])["made"].result(DEADLINE)
    assert "made" not in admin.list_topics(timeout=DEADLINE).topics
    one = consumer(kafka)
    poll([one], lambda: len(one.assignment()) == 4)
    groups = admin.list_consumer_groups().result(DEADLINE)
    assert [group.group_id for group in groups.valid] == ["g"]
    described = admin.describe_consumer_groups(["g"])["g"].result(DEADLINE)
    (member,) = described.members
    assert len(member.assignment.topic_partitions) == 4
    one.close()
    admin.delete_consumer_groups(["g"])["g"].result(DEADLINE)
    assert kafka.group_state("g") == "Dead"


@pytest.mark.asyncio
async def test_two_aiokafka_members_share_a_topic(kafka: EmbeddedKafka) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    await producer.start()
    for n, value in enumerate(sorted(EVERYTHING)):
        await producer.send_and_wait("t", value, partition=n % 4)
    await producer.stop()
    consumers = [
        AIOKafkaConsumer(
            "t",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            # A consumer in the middle of a long poll would hold up its `stop`.
            fetch_max_wait_ms=50,
        )
        for _ in range(2)
    ]
    got: set[bytes] = set()
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(one.start() for one in consumers))
        while got != EVERYTHING or [len(c.assignment()) for c in consumers] != [2, 2]:
            for one in consumers:
                for records in (await one.getmany(timeout_ms=20)).values():
                    got |= {record.value for record in records}
        for one in consumers:
            await one.commit(dict.fromkeys(one.assignment(), 10))
        assert kafka.committed("g", "t") == dict.fromkeys(range(4), 10)
        await asyncio.gather(*(one.stop() for one in consumers))
    assert kafka.group_state("g") == "Empty"
    assert len(kafka.requests(OffsetCommitRequest)) == 2


class KafkaPython:
    """A consumer of kafka-python in a thread, until `end`."""

    def __init__(self, kafka: EmbeddedKafka, got: set[bytes]) -> None:
        self.owns: list[int] = []
        self._over = threading.Event()
        self._consumer = KafkaConsumer(
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=6000,
            max_poll_interval_ms=30_000,
        )
        # One that joins before it knows the topic has to join again.
        assert self._consumer.partitions_for_topic("t") == {0, 1, 2, 3}
        self._consumer.subscribe(["t"])
        self._thread = threading.Thread(target=self._run, args=(got,))
        self._thread.start()

    def _run(self, got: set[bytes]) -> None:
        while not self._over.is_set():
            # In kafka-python 3.0.12, a poll that ends during a rebalance can lose the response to
            # SyncGroup, also that of Apache Kafka; the consumer then waits without end.
            for records in self._consumer.poll(timeout_ms=1000).values():
                got.update(record.value for record in records)
            self.owns = sorted(tp.partition for tp in self._consumer.assignment())
        self._consumer.commit()
        self._consumer.close()

    def end(self) -> None:
        """Commit the records it has read, leave, and wait until that is done."""
        self._over.set()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


@pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")
def test_two_kafka_python_members_share_a_topic(kafka: EmbeddedKafka) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, enable_idempotence=False)
    for n, value in enumerate(sorted(EVERYTHING)):
        producer.send("t", value, partition=n % 4)
    producer.close(DEADLINE)
    assert [kafka.log_end("t", n) for n in range(4)] == [10] * 4
    got: set[bytes] = set()
    members = [KafkaPython(kafka, got)]
    try:
        wait(lambda: members[0].owns == [0, 1, 2, 3])
        members.append(KafkaPython(kafka, got))
        wait(lambda: [len(m.owns) for m in members] == [2, 2] and got == EVERYTHING)
        assert sorted(members[0].owns + members[1].owns) == [0, 1, 2, 3]
        members.pop(0).end()
        wait(lambda: members[0].owns == [0, 1, 2, 3])
        kafka.produce("t", ["after 0", "after 1", "after 2", "after 3"])
        wait(lambda: len(got) == 44)
    finally:
        for member in members:
            member.end()
    assert kafka.committed("g", "t") == dict.fromkeys(range(4), 11)
    assert kafka.group_state("g") == "Empty"


class JavaMember:
    """Kafka's own consumer in a JVM, until its input ends."""

    def __init__(self, kafka: EmbeddedKafka, assignor: str, got: set[bytes]) -> None:
        java = find_java()
        program = Path(__file__).parent.parent / "live" / "java" / "Member.java"
        classes = f"{compiled(program)}:{java.jars}/*"
        command = (java.command, "-XX:TieredStopAtLevel=1", "-cp", classes, program.stem)
        options = (
            f"partition.assignment.strategy={assignor}",
            "heartbeat.interval.ms=100",
            "session.timeout.ms=6000",
        )
        self.owns: set[int] = set()
        self.process = subprocess.Popen(
            [*command, kafka.bootstrap_servers, "t", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, args=(got,))
        self._thread.start()

    def _read(self, got: set[bytes]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            _, what, rest = line.rstrip("\n").split(" ", 2)
            if what == "record":
                got.add(rest.encode())
            else:
                changed = set(map(int, rest.split()))
                self.owns = self.owns | changed if what == "gained" else self.owns - changed

    def end(self) -> None:
        """Let it commit and leave, and wait until it has."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE) == 0
        self._thread.join(DEADLINE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_two_java_members_share_a_topic(kafka: EmbeddedKafka, assignor: str) -> None:
    produce(kafka)
    got: set[bytes] = set()
    members: list[JavaMember] = []

    def start() -> None:
        try:
            name = f"org.apache.kafka.clients.consumer.{assignor}"
            members.append(JavaMember(kafka, name, got))
        except LocalKafkaUnavailable as error:
            pytest.skip(f"no Java consumer on this machine: {error}")

    try:
        start()
        wait(lambda: members[0].owns == {0, 1, 2, 3})
        start()
        wait(lambda: [len(m.owns) for m in members] == [2, 2] and got == EVERYTHING)
        assert members[0].owns | members[1].owns == {0, 1, 2, 3}
        members.pop(0).end()
        wait(lambda: members[0].owns == {0, 1, 2, 3})
        kafka.produce("t", ["after 0", "after 1", "after 2", "after 3"])
        wait(lambda: len(got) == 44)
    finally:
        for member in members:
            member.end()
    assert kafka.committed("t", "t") == dict.fromkeys(range(4), 11)
    assert kafka.group_state("t") == "Empty"
