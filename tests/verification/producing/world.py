"""One run: producers and exactly-once workers on three embedded brokers in virtual time, under
faults that a seed chooses; then all heals, and what stands in the logs is checked."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import anyio
import attrs
import conftest  # noqa: F401  # without it a thread looks up the names of brokers
import pytest
from memory_network import Network

from kafkagroup import Consumer, Producer
from kafkagroup.errors import BufferFullError, ErrorCode, KafkaGroupError, NotWrittenError
from kafkagroup.runtime.consume import engine
from kafkagroup.runtime.produce.record_future import RecordFuture
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Change, Close, Delay, Fault, Late, Swallow
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from verification.sim.loop import run_virtual

__all__ = ["Violation", "run"]

NODES = 3
SERVERS = {"bootstrap_servers": ",".join(f"kafka-{n}:9092" for n in range(1, NODES + 1))}
TIMEOUT = 3_000.0
"""Virtual seconds until all must have healed and ended."""

REQUESTS = (
    *[ProduceRequest] * 6,
    MetadataRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    *[TxnOffsetCommitRequest] * 2,
    *[EndTxnRequest] * 3,
)

CODES: Mapping[object, tuple[ErrorCode, ...]] = {
    ProduceRequest: (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_RECORD,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ),
    EndTxnRequest: (ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS),
    TxnOffsetCommitRequest: (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    AddPartitionsToTxnRequest: (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR),
    AddOffsetsToTxnRequest: (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR),
    InitProducerIdRequest: (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR),
    FindCoordinatorRequest: (ErrorCode.COORDINATOR_NOT_AVAILABLE,),
}

TRANSACTIONAL = frozenset(REQUESTS) - {ProduceRequest, MetadataRequest, FindCoordinatorRequest}
"""The requests to a coordinator."""

AFTER_APPEND = (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT)

AFTER_LOG = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
"""The codes of a coordinator that has executed a request, and could not replicate its log, or has
moved."""


def failed(code: ErrorCode, response: Any) -> Any:
    """Return a response with the error code in place of all of its codes."""
    changes: dict[str, Any] = {}
    for field in attrs.fields(type(response)):
        value = getattr(response, field.name)
        if field.name in ("error_code", "partition_error_code"):
            changes[field.name] = code
        elif isinstance(value, tuple) and value:
            changes[field.name] = tuple(failed(code, one) for one in value)
    return evolve(response, **changes)


class Violation(AssertionError):
    """What must never be."""


@attrs.define
class Written:
    """A record that a producer has accepted."""

    producer: int
    partition: int
    value: bytes
    future: RecordFuture
    offset: int = -1
    failure: NotWrittenError | None = None


@attrs.define
class World:
    """The clients and faults of one run."""

    random: random.Random
    kafka: EmbeddedKafka
    end: float
    """When all heals, in virtual seconds."""
    is_healed: bool = False
    written: list[Written] = attrs.field(factory=list)
    inputs: int = 0
    faults: list[Fault] = attrs.field(factory=list)
    partitions: dict[str, int] = attrs.field(factory=dict)

    # ------------------------------------------------------------ clients

    def options(self) -> dict[str, Any]:
        choose = self.random.choice
        return SERVERS | {
            "request_timeout_ms": choose((1_000, 3_000)),
            "batch_size": choose((1, 50, 1_000_000)),
            "linger_ms": choose((0, 0, 20)),
            "compression_type": choose(("none", "none", "lz4")),
            "close_timeout": choose((0.0, 5.0, 60.0)),
        }

    async def write(self, number: int) -> None:
        """Write records of one producer to "plain", which is closed and started anew at times."""
        count = 0
        while not self.is_healed:
            options = self.options() | {
                "delivery_timeout_ms": self.random.choice((2_000, 10_000, 120_000)),
                "buffer_memory": self.random.choice((10_000, 1_000_000)),
                "close_timeout": 60.0,
            }
            with suppress(KafkaGroupError):
                async with Producer(**options) as producer:
                    until = anyio.current_time() + self.random.expovariate(1 / 40)
                    while anyio.current_time() < until and not self.is_healed:
                        for _ in range(self.random.choice((1, 3, 30))):
                            partition = self.random.randrange(self.partitions["plain"])
                            value = b"%d:%d" % (number, count)
                            try:
                                future = producer.send_nowait("plain", value, partition=partition)
                            except BufferFullError:
                                break
                            count += 1
                            self.written.append(Written(number, partition, value, future))
                        if self.random.random() < 0.1:
                            await producer.flush()
                        await anyio.sleep(self.random.expovariate(2))
            await anyio.sleep(1)

    async def transform(self, transactional_id: str, protocol: str) -> None:
        """Write each record of "in" to "out", as a member of one group."""
        while True:
            with suppress(KafkaGroupError, LookupError), anyio.CancelScope() as scope:
                if not self.is_healed:
                    scope.deadline = anyio.current_time() + self.random.expovariate(1 / 60)
                async with (
                    Producer(
                        **self.options(),
                        transactional_id=transactional_id,
                        transaction_timeout_ms=10_000,
                        delivery_timeout_ms=self.random.choice((4_000, 8_000)),
                    ) as producer,
                    Consumer(
                        "in",
                        **SERVERS,
                        group_id="g",
                        group_protocol=protocol,  # type: ignore[arg-type]
                        auto_offset_reset="earliest",
                        enable_auto_commit=False,
                        isolation_level="read_committed",
                        session_timeout_ms=6_000,
                        rebalance_timeout_ms=10_000,
                        close_timeout=self.random.choice((0.0, 5.0)),
                    ) as consumer,
                ):
                    most = self.random.choice((1, 5, 100))
                    async for tx in producer.transactions(consumer, max_records=most):
                        async with tx as records:
                            for record in records:
                                tx.send_nowait("out", record.value)
                            await anyio.sleep(self.random.choice((0.0, 0.0, 0.5, 3.0)))
                            if not self.is_healed and self.random.random() < 0.1:
                                raise LookupError
            await anyio.sleep(self.random.random())

    async def feed(self) -> None:
        while not self.is_healed:
            count = self.random.choice((1, 5, 20))
            values = [b"%d" % n for n in range(self.inputs, self.inputs + count)]
            partition = self.random.randrange(self.partitions["in"])
            self.kafka.produce("in", values, partition=partition)
            self.inputs += count
            await anyio.sleep(self.random.expovariate(0.5))

    # ------------------------------------------------------------ faults

    async def disturb(self) -> None:
        dead: dict[int, float] = {}
        while anyio.current_time() < self.end:
            await anyio.sleep(self.random.expovariate(0.5))
            for node, until in tuple(dead.items()):
                if until <= anyio.current_time():
                    del dead[node]
                    self.kafka.restart(node)
            match self.random.choice(("fault",) * 8 + ("kill", "leader", "coordinator")):
                case "fault":
                    self.faults.append(self.fault())
                case "kill" if len(dead) < NODES - 1:
                    node = self.random.choice([n for n in range(1, NODES + 1) if n not in dead])
                    dead[node] = anyio.current_time() + self.random.expovariate(1 / 10)
                    self.kafka.kill(node)
                case "leader":
                    topic = self.random.choice(list(self.partitions))
                    with suppress(Exception):
                        self.kafka.move_leader(
                            topic,
                            self.random.randrange(self.partitions[topic]),
                            self.random.choice([n for n in range(1, NODES + 1) if n not in dead]),
                        )
                case "coordinator":
                    with suppress(Exception):
                        self.kafka.move_coordinator(
                            self.random.choice(("g", "tx-0", "tx-1")),
                            self.random.choice([n for n in range(1, NODES + 1) if n not in dead]),
                        )
        for fault in self.faults:
            fault.stop()
        for node in dead:
            self.kafka.restart(node)
        self.is_healed = True

    def fault(self) -> Fault:
        api = self.random.choice(REQUESTS)
        times = self.random.choice((1, 1, 2, 5))
        if api is ProduceRequest and self.random.random() < 0.4:
            topic = self.random.choice(("plain", "out"))
            tp = TopicPartition(topic, self.random.randrange(self.partitions[topic]))
            executed = self.random.random() < 0.4
            code = self.random.choice(AFTER_APPEND if executed else CODES[api])
            return self.kafka.fail(api, code, times=times, partition=tp, executed=executed)
        actions: list[Any] = [
            Close(),
            Close(before=True),
            Late(self.random.choice((0.1, 1.0, 5.0))),
            Delay(self.random.choice((0.1, 2.0))),
            Swallow(),
        ]
        if api is not ProduceRequest:
            actions += CODES.get(api, ())
        if api in TRANSACTIONAL:
            actions.append(Change(partial(failed, self.random.choice(AFTER_LOG))))
        return self.kafka.fail(api, self.random.choice(actions), times=times)

    # ------------------------------------------------------------ checks

    async def read(self, topic: str, isolation_level: str) -> list[list[bytes]]:
        """Return the values of each partition."""
        found: list[list[bytes]] = []
        async with Consumer(
            **SERVERS, auto_offset_reset="earliest", isolation_level=isolation_level
        ) as consumer:
            for partition in range(self.partitions[topic]):
                tp = TopicPartition(topic, partition)
                await consumer.assign([tp])
                values: list[bytes] = []
                while await consumer.position(tp) < self.kafka.log_end(topic, partition):
                    for records in (await consumer.getmany(timeout=0.1)).values():
                        values += [record.value or b"" for record in records]
                found.append(values)
        return found

    async def check_plain(self) -> None:
        logs = await self.read("plain", "read_uncommitted")
        for written in self.written:
            try:
                written.offset = (await written.future).offset
            except NotWrittenError as error:
                written.failure = error
        for partition, values in enumerate(logs):
            doubled = [value for value, count in Counter(values).items() if count > 1]
            if doubled:
                raise Violation(f"plain/{partition}: written twice: {doubled[:5]}")
            places = {value: place for place, value in enumerate(values)}
            last: dict[int, int] = {}
            for one in self.written:
                if one.partition != partition:
                    continue
                place = places.get(one.value)
                if one.failure is None:
                    if place is None or one.offset not in (-1, place):
                        raise Violation(
                            f"{one.value!r} was acknowledged at {one.offset}, and is at {place}"
                        )
                elif not one.failure.is_maybe_written and place is not None:
                    raise Violation(f"{one.value!r} is written: {one.failure}")
                # What failed may be executed late, after what another producer has written since.
                if place is not None and one.failure is None:
                    if place < last.get(one.producer, -1):
                        raise Violation(f"{one.value!r} is out of order")
                    last[one.producer] = place

    async def check_out(self, *, is_complete: bool) -> None:
        values = [value for log in await self.read("out", "read_committed") for value in log]
        counts = Counter(map(int, values))
        doubled = [value for value, count in counts.items() if count > 1]
        if doubled:
            raise Violation(f"out: written twice: {doubled[:5]}")
        missing = [n for n in range(self.inputs) if n not in counts]
        if missing and is_complete:
            raise Violation(f"out: lost: {missing[:5]} of {self.inputs}")

    def is_done(self) -> bool:
        committed = self.kafka.committed("g", "in")
        return all(
            committed.get(partition, 0) >= self.kafka.log_end("in", partition)
            for partition in range(self.partitions["in"])
        )


async def simulate(seed: int) -> Mapping[str, int]:
    """Run one seed; return figures. Raises: Violation."""
    chosen = random.Random(seed)
    partitions = {name: chosen.randint(1, 3) for name in ("plain", "in", "out")}
    settings = BrokerSettings(any_first_sequence=chosen.random() < 0.7)
    network = Network()
    kafka = EmbeddedKafka(partitions, nodes=NODES, listen=False, settings=settings, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio, "connect_tcp", network.connect_tcp)
        patch.setattr(engine, "uuid4", lambda: UUID(int=random.getrandbits(128)))
        async with network, kafka:
            network.serve_embedded(kafka, NODES)
            kafka.set_transaction_version(chosen.choice((0, 1, 2, 2)))
            world = World(chosen, kafka, end=chosen.uniform(20, 120), partitions=partitions)
            protocol = chosen.choice(("classic", "consumer"))
            ids = [f"tx-{n}" for n in range(chosen.randint(0, 3))]
            if ids and chosen.random() < 0.3:
                ids.append(ids[0])  # two processes with one id
            with anyio.fail_after(TIMEOUT):
                async with anyio.create_task_group() as tasks:
                    writers = chosen.randint(0 if ids else 1, 2)
                    async with anyio.create_task_group() as writing:
                        for number in range(writers):
                            writing.start_soon(world.write, number)
                        if ids:
                            writing.start_soon(world.feed)
                        for name in ids:
                            tasks.start_soon(world.transform, name, protocol)
                        writing.start_soon(world.disturb)
                    # Two with one id fence each other for ever.
                    is_complete = bool(ids) and len(set(ids)) == len(ids)
                    while is_complete and not world.is_done():
                        await anyio.sleep(1)
                    tasks.cancel_scope.cancel()
                await anyio.sleep(20)  # what was left open has timed out
                await world.check_plain()
                await world.check_out(is_complete=is_complete)
    return {
        "records": len(world.written),
        "failed": sum(one.failure is not None for one in world.written),
        "inputs": world.inputs,
        "faults": sum(fault.hits for fault in world.faults),
    }


def run(seed: int) -> Mapping[str, int]:
    """Run one seed on the loop that it chooses. Raises: Violation, and what a client must not."""
    logging.disable(logging.CRITICAL)
    backend = "trio" if seed % 4 == 3 else "asyncio"
    return run_virtual(lambda _: simulate(seed), backend=backend, seed=seed)
