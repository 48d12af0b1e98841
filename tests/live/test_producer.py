"""The producer on real Kafka, judged by the consumers of librdkafka, aiokafka and Java."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from brokers import FAST, is_embedded
from live.clients import (
    OTHERS,
    by_partition,
    java_partitions,
    read,
    read_by,
    samples,
    samples_of,
    topics_of,
    write_by,
)

from kafkagroup import Consumer, Producer, TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.errors import NotWrittenError
from kafkagroup.runtime.produce.record_future import RecordFuture
from kafkagroup.testing import LocalKafka
from kafkagroup.transport import dialing
from kafkagroup.wire.messages.admin import CreatableTopic, CreateTopicsRequest
from kafkagroup.wire.murmur2 import partition_of

pytestmark = pytest.mark.anyio

MORE = "more"
"""Ends the name of another topic."""


@pytest.fixture
def anyio_backend() -> str:
    """Return one backend; tests/runtime has the same responses on both."""
    return "asyncio"


@pytest.fixture
async def bootstrap(kafka: str) -> str:
    """Only real brokers: tests/runtime has the embedded one."""
    if await is_embedded(kafka):
        pytest.skip("no real Kafka here")
    return kafka


async def test_other_clients_read_our_records(bootstrap: str, name: str, fill: Any) -> None:
    topics = topics_of(name)
    for topic in topics:
        await fill(3, topic=topic)
    await write_by("kafkagroup", bootstrap, topics, samples())
    for reader in OTHERS:
        found = await read_by(reader, bootstrap, dict.fromkeys(topics, len(samples())))
        for topic in topics:
            assert found[topic] == by_partition(samples()), (reader, topic)


async def test_other_clients_read_our_transactions(bootstrap: str, name: str, fill: Any) -> None:
    topics = topics_of(name)
    for topic in topics:
        await fill(3, topic=topic)
    await write_by("kafkagroup", bootstrap, topics, samples(), name)
    counts = dict.fromkeys(topics, len(samples()))
    for reader in OTHERS:
        found = await read_by(reader, bootstrap, counts, "read_committed")
        for topic in topics:
            assert found[topic] == by_partition(samples()), (reader, topic)


@pytest.mark.parametrize("is_transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("writer", OTHERS)
async def test_records_of_other_clients_are_read(
    bootstrap: str, name: str, fill: Any, writer: str, is_transactional: bool
) -> None:
    topics = topics_of(name)
    for topic in topics:
        await fill(3, topic=topic)
    records = samples_of(writer)
    await write_by(writer, bootstrap, topics, records, name if is_transactional else None)
    counts = dict.fromkeys(topics, len(records))
    found = await read(bootstrap, counts, "read_committed")
    for topic in topics:
        assert found[topic] == by_partition(records), topic


# ---------------------------------------------------------------- order


async def write_at_once(bootstrap: str, topics: list[str]) -> None:
    """Write records of 0 to 29 to the only partition of each topic, in five batches at once, while
    the topics are created; check the offsets."""
    host, port = bootstrap.split(",")[0].split(":")
    new = [
        CreatableTopic(
            name=topic, num_partitions=1, replication_factor=1, assignments=(), configs=()
        )
        for topic in topics
    ]
    sent: list[list[RecordFuture]] = []
    async with (
        Producer(bootstrap_servers=bootstrap, batch_size=400) as producer,
        Broker.open(host, int(port)) as broker,
    ):
        for known, created in ((0, new[::2]), (1, new[1::2])):
            # Half of the records wait for their topics; half of the topics have no leader yet.
            if known:
                await broker.request(CreateTopicsRequest(topics=tuple(created)))
            for topic in created:
                futures = [producer.send_nowait(topic.name, b"%d" % n) for n in range(30)]
                sent.append(futures)
            if not known:
                await broker.request(CreateTopicsRequest(topics=tuple(created)))
        for futures in sent:
            assert [(await one).offset for one in futures] == list(range(30))
    found = await read_by("librdkafka", bootstrap, dict.fromkeys(topics, 30), "read_uncommitted")
    for topic in topics:
        assert [one.value for one in found[topic][0]] == [b"%d" % n for n in range(30)]


async def test_the_first_batches_of_new_topics_are_in_order(bootstrap: str, name: str) -> None:
    """KAFKA-15591: brokers before 4.5 accept any first sequence number of a producer. If the first
    batch finds no leader, and the second one does, the first one is lost."""
    await write_at_once(bootstrap, [f"{name}-{n}" for n in range(20)])


@pytest.mark.long
async def test_the_first_batches_of_new_topics_are_in_order_on_three_nodes(
    bootstrap: str, name: str
) -> None:
    with LocalKafka(nodes=3) as kafka:
        for round_ in range(4):
            topics = [f"{name}-{round_}-{n}" for n in range(50)]
            await write_at_once(kafka.bootstrap_servers, topics)


# ---------------------------------------------------------------- partitions


def keys() -> list[bytes]:
    """Return 10,000 keys, the same in each run: the empty one, short and long ones."""
    source = random.Random(15)
    lengths = [0, 1, 2, 3, 4, 5, *(source.randrange(1, 40) for _ in range(9_974))]
    return [source.randbytes(n) for n in [*lengths, *range(1_000, 21_000, 1_000)]]


async def test_keys_are_in_the_partitions_of_java(bootstrap: str) -> None:
    theirs = await run_sync(java_partitions, keys())
    for number, (key, partitions) in enumerate(zip(keys(), theirs, strict=True)):
        count = number % 50 + 1
        assert partition_of(key, count) == partitions[count - 1], (key, count)


async def test_a_key_is_written_to_its_partition(bootstrap: str, name: str, fill: Any) -> None:
    await fill(50)
    some = keys()[:200] + keys()[-10:]
    theirs = await run_sync(java_partitions, some)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        sent = [producer.send_nowait(name, None, key=key) for key in some]
        assert [(await one).partition for one in sent] == [found[49] for found in theirs]


# ---------------------------------------------------------------- acknowledgements


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_acknowledgements(bootstrap: str, name: str, fill: Any, acks: Any) -> None:
    await fill(3)
    # With acks=0 nobody says that the leader of a new topic is not up yet.
    async with Consumer(bootstrap_servers=bootstrap) as reader:
        await reader.end_offsets([TopicPartition(name, partition) for partition in range(3)])
    values = [b"%d" % n for n in range(300)]
    async with Producer(
        bootstrap_servers=bootstrap, acks=acks, enable_idempotence=False
    ) as producer:
        sent = [
            producer.send_nowait(name, value, partition=n % 3) for n, value in enumerate(values)
        ]
        await producer.flush()
        offsets = [(await one).offset for one in sent]
    assert offsets == [-1 if acks == 0 else n // 3 for n in range(300)]
    found = await read_by("librdkafka", bootstrap, {name: 300}, "read_uncommitted")
    for partition, records in found[name].items():
        assert [one.value for one in records] == values[partition::3]


# ---------------------------------------------------------------- who owns the bytes


_WINDOW = 65_536
"""Bytes that are read at a time: fewer than a request of the test has."""


class StallingProxy:
    """A port that forwards to a broker, and stops reading within a request while it `stalls`."""

    def __init__(self, address: str) -> None:
        host, _, port = address.split(",")[0].rpartition(":")
        self._target = (host, int(port))
        self._reads = threading.Event()
        self._reads.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.stalled = 0
        """How many connections have stalled within a request."""
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def stall(self) -> None:
        self._reads.clear()

    def resume(self) -> None:
        self._reads.set()

    def close(self) -> None:
        self.resume()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):  # the other side was faster
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, target: Any, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW)
                self._start(self._relay, client)

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            self._sockets += (client, server)
            answering = self._start(self._forward, server, client, False)
            self._forward(client, server, True)
            answering.join()

    def _forward(self, source: socket.socket, sink: socket.socket, stalls: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_WINDOW):
                if stalls and len(data) > 1_000 and not self._reads.is_set():
                    self.stalled += 1
                    self._reads.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StallingProxy]:
    """Put a proxy between this process's clients of ours and the broker."""
    running = StallingProxy(bootstrap)
    connect = dialing.connect

    async def connect_to_proxy(family: int, address: Any, source: Any) -> Any:
        return await connect(family, running.address, source)

    monkeypatch.setattr(dialing, "connect", connect_to_proxy)
    yield running
    running.close()


async def test_records_that_expire_within_a_write_are_in_no_other_topic(
    bootstrap: str, name: str, fill: Any, proxy: StallingProxy
) -> None:
    """KAFKA-19012: a batch expired while its request was written, and the next one got its buffer.
    The checksum of a batch does not cover the topic."""
    topics = (name, f"{name}-{MORE}")
    for topic in topics:
        await fill(3, topic=topic)
    ended = {"written": 0, "failed": 0}
    async with Producer(
        bootstrap_servers=bootstrap,
        delivery_timeout_ms=50,
        request_timeout_ms=1_000,
        batch_size=200_000,
        close_timeout=20.0,
    ) as producer:
        for round_ in range(20):
            with suppress(NotWrittenError):  # the topics' partitions may be asked for too late
                await producer.send(topics[0], topics[0].encode(), partition=0)
                await producer.send(topics[1], topics[1].encode(), partition=0)
            proxy.stall()
            sent = [
                producer.send_nowait(topic, topic.encode() + b"%d" % n * 20_000, partition=n % 3)
                for topic in topics[:: 1 - 2 * (round_ % 2)]
                for n in range(30)
            ]
            await anyio.sleep(0.08)
            sent += [
                producer.send_nowait(topic, topic.encode() + b"%d" % n * 20_000, partition=n % 3)
                for topic in topics
                for n in range(30)
            ]
            proxy.resume()
            for one in sent:
                try:
                    await one
                    ended["written"] += 1
                except NotWrittenError:
                    ended["failed"] += 1
    assert proxy.stalled > 0
    assert ended["failed"] > 0
    found = await read_by("librdkafka", bootstrap, dict.fromkeys(topics, 1), "read_uncommitted")
    for topic in topics:
        for records in found[topic].values():
            for one in records:
                head, rest = (one.value or b"")[: len(topic)], (one.value or b"")[len(topic) :]
                assert head == topic.encode()
                assert rest == rest[: len(rest) // 20_000] * 20_000
    assert sum(len(r) for t in found.values() for r in t.values()) >= ended["written"]


# ---------------------------------------------------------------- transactions


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_consume_transform_and_produce(
    bootstrap: str, name: str, fill: Any, protocol: Any
) -> None:
    await fill(2, 150)
    out = f"{name}-out"
    await fill(3, topic=out)
    reader = Consumer(
        name,
        bootstrap_servers=bootstrap,
        group_id=name,
        group_protocol=protocol,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **(FAST if protocol == "classic" else {}),
    )
    done: set[bytes] = set()
    aborts = rounds = 0
    async with (
        reader,
        Producer(bootstrap_servers=bootstrap, transactional_id=name, linger_ms=5) as producer,
    ):
        with anyio.fail_after(60):
            while len(done) < 300:
                with suppress(ZeroDivisionError):
                    async for tx in producer.transactions(reader, max_records=25):
                        rounds += 1
                        async with tx as records:
                            for record in records:
                                tx.send_nowait(out, record.value, key=record.value)
                            if rounds % 3 == 0:
                                await producer.flush()
                                aborts += 1
                                raise ZeroDivisionError
                        done |= {record.value for record in records}
                        if len(done) == 300:
                            break
        committed = await reader.committed()
    assert aborts > 2
    assert {tp.partition: found and found.offset for tp, found in committed.items()} == {
        0: 150,
        1: 150,
    }
    wanted = sorted(b"%d/%d" % (partition, n) for partition in range(2) for n in range(150))
    for client in ("librdkafka", "java"):
        found = await read_by(client, bootstrap, {out: 300}, "read_committed")
        records = [one for of in found[out].values() for one in of]
        assert sorted(one.value or b"" for one in records) == wanted, client
        # In each partition of the output, those of one partition of the input are in order.
        for of in found[out].values():
            for source in (b"0", b"1"):
                numbers = [
                    int((one.value or b"").split(b"/")[1])
                    for one in of
                    if (one.value or b"").split(b"/")[0] == source
                ]
                assert numbers == sorted(numbers)
    everything = await read_by("librdkafka", bootstrap, {out: 301}, "read_uncommitted")
    assert sum(map(len, everything[out].values())) > 300
