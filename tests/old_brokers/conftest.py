"""Real brokers of old releases, one node each, and a tap on every connection to them."""

import uuid
from collections import defaultdict

import anyio
import attrs
import pytest
from anyio.abc import ByteStream

from kafkagroup.testing import LocalKafka
from kafkagroup.testing.local import LocalKafkaUnavailable

CONFIG = {
    # How often the coordinator looks for transactions that are open for too long; 10 s by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", params=["2.4.1", "3.9.1"])
def old(request, tmp_path_factory):
    """Return a node of an old release, shared by the tests of a module."""
    folder = tmp_path_factory.mktemp("kafka")
    kafka = LocalKafka(request.param, directory=folder, config=CONFIG)
    try:
        kafka.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no Kafka {request.param} on this machine: {error}")
    yield kafka
    kafka.stop()


@pytest.fixture
def name():
    """Return a topic or group name of this test."""
    return f"test-{uuid.uuid4().hex[:8]}"


@attrs.define(eq=False)
class Tap(ByteStream):
    """A connection that records the key and version of each sent request."""

    stream: ByteStream
    sent: dict[int, list[int]]
    buffer: bytearray = attrs.field(factory=bytearray)

    async def send(self, item):
        self.buffer += item
        while len(self.buffer) >= 8:
            size = int.from_bytes(self.buffer[:4], "big")
            api_key, version = (int.from_bytes(self.buffer[i : i + 2], "big") for i in (4, 6))
            self.sent[api_key].append(version)
            assert len(self.buffer) >= 4 + size, "the writer sends whole requests"
            del self.buffer[: 4 + size]
        await self.stream.send(item)

    async def receive(self, max_bytes=65536):
        return await self.stream.receive(max_bytes)

    async def send_eof(self):
        await self.stream.send_eof()

    async def aclose(self):
        await self.stream.aclose()


@pytest.fixture
def sent(monkeypatch):
    """Return API key -> the versions of the sent requests, in order."""
    requests = defaultdict(list)
    connect = anyio.connect_tcp

    async def connect_tcp(*arguments, **options):
        return Tap(await connect(*arguments, **options), requests)

    monkeypatch.setattr(anyio, "connect_tcp", connect_tcp)
    return requests
