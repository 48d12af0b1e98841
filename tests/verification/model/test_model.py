"""The embedded broker responds like Apache Kafka: `tests/verification/model/traces/*.txt`, played
on both.

The traces contain the responses of Kafka 4.3.1. The embedded broker is compared with them in
virtual time; with Java, Kafka itself is too, so that the traces stay correct.

    KAFKAGROUP_RECORD_TRACES=1 pytest tests/verification/model -k kafka

writes Kafka's responses into the traces. Read the difference before committing it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest
from memory_network import MemoryStream
from verification.model.replay import Broker, play, settings_of, warm_up

from kafkagroup.testing import EmbeddedKafka, LocalKafka
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.testing.local import LocalKafkaUnavailable

pytestmark = pytest.mark.anyio

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))
RECORD = bool(os.environ.get("KAFKAGROUP_RECORD_TRACES"))

SETTINGS: dict[str, Callable[[str], tuple[str, Any]]] = {
    "group.max.size": lambda value: ("group_max_size", int(value)),
    "group.initial.rebalance.delay.ms": lambda value: (
        "group_initial_rebalance_delay",
        int(value) / 1000,
    ),
}
"""Kafka's option -> the embedded broker's. It has no others: it has no segments of logs, and looks
for transactions to abort all the time."""

all_traces = pytest.mark.parametrize(
    ("path", "recorded"), [pytest.param(path, path.read_text(), id=path.stem) for path in TRACES]
)


@asynccontextmanager
async def embedded_broker(options: dict[str, str]) -> AsyncIterator[Broker]:
    """An embedded broker in the loop of the test, connected to in memory."""
    chosen = dict(SETTINGS[name](value) for name, value in options.items() if name in SETTINGS)
    settings = BrokerSettings(group_min_session_timeout=0.1, **chosen)
    nodes = int(options.get("nodes", 1))
    kafka = EmbeddedKafka(listen=False, settings=settings, nodes=nodes)

    async def connect(node: int) -> anyio.abc.ByteStream:
        there, here = MemoryStream.pair()
        tasks.start_soon(kafka.handle_stream, there, node)
        return here

    async def restart() -> None:
        kafka.kill(1)
        kafka.restart(1)

    async with kafka, anyio.create_task_group() as tasks:
        yield Broker(connect, 0.1, restart, nodes)
        # A connection whose request is never answered is never looked at again.
        tasks.cancel_scope.cancel()


@all_traces
async def test_embedded(path: Path, recorded: str) -> None:
    async with embedded_broker(settings_of(recorded)) as broker:
        assert await play(recorded, broker) == recorded


# ---------------------------------------------------------------- Kafka


FIRST_GROUP = """
> a@coordinator JoinGroup 9
> a@coordinator JoinGroup 9 member=a@coordinator-1
> a@coordinator SyncGroup 5 generation=1 member=a@coordinator-1 assign=a@coordinator-1:all
> b@coordinator JoinGroup 9
> & b@coordinator JoinGroup 9 member=b@coordinator-1
> x@coordinator DescribeGroups 5 groups=g
> a@coordinator LeaveGroup 5 members=a@coordinator-1
> await b@coordinator
> b@coordinator LeaveGroup 5 members=b@coordinator-1
"""
"""What Kafka does for the first time takes it longer than the traces wait. Whatever it takes, this
ends."""


class RealBrokers:
    """A running Kafka for each set of options, started on first use."""

    def __init__(self, version: str, running: ExitStack) -> None:
        self._version = version
        self._running = running
        self._made: dict[tuple[tuple[str, str], ...], LocalKafka] = {}

    async def get(self, options: dict[str, str]) -> Broker:
        nodes = int(options.get("nodes", 1))
        key = tuple(sorted(options.items()))
        first = key not in self._made
        if first:
            config = {name: value for name, value in options.items() if "." in name}
            made: AbstractContextManager[LocalKafka] = LocalKafka(
                self._version, nodes, config=config
            )
            self._made[key] = await anyio.to_thread.run_sync(self._running.enter_context, made)
        kafka = self._made[key]

        async def connect(node: int) -> anyio.abc.ByteStream:
            host, _, port = kafka.address(node).partition(":")
            return await anyio.connect_tcp(host, int(port))

        async def restart() -> None:
            await anyio.to_thread.run_sync(kafka.restart, 1)
            await warm_up(broker)

        broker = Broker(connect, 0.15, restart, nodes)
        if first:
            await warm_up(broker)
            await play(FIRST_GROUP, broker)
        return broker


@pytest.fixture(scope="module")
def real_brokers() -> Iterator[RealBrokers]:
    with ExitStack() as running:
        yield RealBrokers("4.3.1", running)


@pytest.mark.long
@pytest.mark.serial  # a request counts as unanswered after 0.15 s
@all_traces
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_kafka(path: Path, recorded: str, real_brokers: RealBrokers) -> None:
    try:
        broker = await real_brokers.get(settings_of(recorded))
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no Kafka on this machine: {error}")
    answered = await play(recorded, broker)
    if RECORD:
        await anyio.Path(path).write_text(answered)
    else:
        assert answered == recorded
