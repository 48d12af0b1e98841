"""A client uses none of the threads that the application shares: not anyio's, not the executor of
the loop. Both are busy here, until each test ends. Threads and sockets are real, so time is real.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import trustme

from kafkagroup import Codec, Consumer, Security
from kafkagroup.assign.loads import MeasuredLoads, encode_loads
from kafkagroup.broker import Broker, ClientOptions
from kafkagroup.runtime.consume.loads_file import LoadsFile
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire import NewRecord, encode_batch

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LIMIT = 10.0
"""Seconds: what waits for a busy thread would wait for ever."""

PARTITIONS = 3_000
"""So many that a thread decodes the metadata and the leader assigns in one."""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def busy_application(backend: str) -> AsyncIterator[None]:
    """Keep all threads busy that an application shares."""
    may_end = threading.Event()
    executor = ThreadPoolExecutor(1)
    executor.submit(may_end.wait)
    if backend == "asyncio":
        asyncio.get_running_loop().set_default_executor(executor)
    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 2
    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(anyio.to_thread.run_sync, may_end.wait)
            while limiter.available_tokens:
                await anyio.lowlevel.checkpoint()
            try:
                with anyio.fail_after(LIMIT):
                    yield
            finally:
                may_end.set()
    finally:
        executor.shutdown()


def record_in(value: bytes, codec: Codec = Codec.NONE) -> bytes:
    return encode_batch([NewRecord(None, value, 1_000)], codec=codec)


async def test_a_batch_is_decompressed(anyio_backend_name: str) -> None:
    value = bytes(range(256)) * 8192
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.append("t", 0, record_in(value, Codec.LZ4))
        async with (
            busy_application(anyio_backend_name),
            Consumer("t", bootstrap_servers=kafka.bootstrap_servers) as c,
        ):
            assert (await c.getone()).value == value


@pytest.mark.parametrize("heartbeat_thread", [False, True])
async def test_a_large_group_is_led(anyio_backend_name: str, heartbeat_thread: bool) -> None:
    """All other members wait for the leader."""
    with EmbeddedKafka({"t": PARTITIONS}) as kafka:
        async with (
            busy_application(anyio_backend_name),
            Consumer(
                "t",
                bootstrap_servers=kafka.bootstrap_servers,
                group_id="g",
                heartbeat_thread=heartbeat_thread,
            ) as c,
        ):
            assert len(await c.wait_assignment()) == PARTITIONS


async def test_a_name_is_looked_up(anyio_backend_name: str) -> None:
    """A member that could not reconnect lost its session, and the warning blamed the broker."""
    with EmbeddedKafka({"t": 1}, host="localhost") as kafka:
        kafka.produce("t", ["one"])
        async with (
            busy_application(anyio_backend_name),
            Consumer("t", bootstrap_servers=kafka.bootstrap_servers, group_id="g") as c,
        ):
            assert (await c.getone()).value == b"one"
            kafka.kill(1)
            kafka.restart(1)
            kafka.produce("t", ["two"])
            while (await c.getone()).value != b"two":
                pass


async def test_scram_authenticates(anyio_backend_name: str) -> None:
    security = Security(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="ann",
        sasl_password="secret",
    )
    with EmbeddedKafka({"t": 1}, users={"ann": "secret"}) as kafka:
        kafka.produce("t", ["one"])
        async with (
            busy_application(anyio_backend_name),
            Consumer("t", bootstrap_servers=kafka.bootstrap_servers, security=security) as c,
        ):
            assert (await c.getone()).value == b"one"


async def test_tls_reads_the_systems_certificates(
    anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    monkeypatch.setattr(
        ssl.SSLContext, "load_default_certs", lambda self: authority.configure_trust(self)
    )
    with EmbeddedKafka({"t": 1}, host="localhost", tls=server) as kafka:
        kafka.produce("t", ["one"])
        async with (
            busy_application(anyio_backend_name),
            Consumer(
                "t",
                bootstrap_servers=kafka.bootstrap_servers,
                security=Security(security_protocol="SSL"),
            ) as c,
        ):
            assert (await c.getone()).value == b"one"


async def test_a_file_of_loads_is_read(anyio_backend_name: str, tmp_path: Path) -> None:
    loads = {TopicPartition("t", 0): 5.0}
    path = tmp_path / "loads.json"
    path.write_text(encode_loads(MeasuredLoads(made_at=1e9, loads=loads)))
    async with busy_application(anyio_backend_name):
        assert await LoadsFile(path, max_age=60, clock=lambda: 1e9)() == loads


async def test_a_local_address_needs_no_thread(anyio_backend_name: str) -> None:
    with EmbeddedKafka() as kafka:
        host, _, port = kafka.bootstrap_servers.partition(":")
        options = ClientOptions(source_host="localhost")
        async with (
            busy_application(anyio_backend_name),
            Broker.open(host, int(port), options=options) as broker,
        ):
            assert (await broker.request_metadata()).brokers


async def test_records_are_read_by_the_application_threads_that_wait_for_them(
    anyio_backend_name: str,
) -> None:
    """Threads that waited for the consumer's records held the thread that was to decompress
    them."""
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.append("t", 0, record_in(bytes(2**21), Codec.LZ4))
        async with Consumer("t", bootstrap_servers=kafka.bootstrap_servers) as c:
            limiter = anyio.to_thread.current_default_thread_limiter()
            limiter.total_tokens = 1

            def read() -> Any:
                return anyio.from_thread.run(c.getone).value

            with anyio.fail_after(LIMIT):
                assert await anyio.to_thread.run_sync(read) == bytes(2**21)
