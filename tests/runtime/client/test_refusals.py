"""The errors about an address without a working broker, over real sockets, as the messages are the
system's."""

from __future__ import annotations

import pickle
import socket
import ssl
from collections.abc import Iterator

import anyio
import pytest
from trustme import CA

from kafkagroup import Consumer, ConsumerBusyError, KafkaGroupError, Security
from kafkagroup.broker import Broker
from kafkagroup.errors import ConnectionLostError, IllegalStateError, NoBrokersAvailableError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport.os_errors import reason

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Provide a port that refuses connections. It stays bound, so no other test listens there."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_is_reported_with_its_address(
    host: str, closed_port: int
) -> None:
    """The message was "All connection attempts failed", whatever the reason."""
    with pytest.raises(ConnectionLostError) as caught:
        async with Broker.open(host, closed_port):
            raise AssertionError
    assert str(caught.value) == f"{host}:{closed_port}: Connection refused"
    with pytest.raises(NoBrokersAvailableError) as none:
        async with Consumer("t", bootstrap_servers=f"{host}:{closed_port}"):
            raise AssertionError
    assert str(none.value) == f"no broker answered: {host}:{closed_port}: Connection refused"


def test_each_reason_of_a_failed_connection_is_named_once() -> None:
    """The name has one IPv6 and two IPv4 addresses."""
    failed = OSError("All connection attempts failed")
    failed.__cause__ = ExceptionGroup(
        "multiple connection attempts failed",
        [
            OSError(101, "Connect call failed ('2001:db8::1', 9092)"),
            ConnectionRefusedError(111, "Connect call failed ('10.0.0.1', 9092)"),
            ConnectionRefusedError(111, "Connect call failed ('10.0.0.2', 9092)"),
        ],
    )
    assert reason(failed) == "Network is unreachable, Connection refused"
    for number in (-2, 8, 11_001):  # on Linux, macOS and Windows
        failed_look_up = socket.gaierror(number, "Name or service not known")
        assert reason(failed_look_up) == "Name or service not known"
    assert reason(OSError("refused")) == "refused"


async def test_tls_to_a_plaintext_port_is_explained() -> None:
    """Kafka reads a ClientHello as a request that is far too large, and closes."""
    with EmbeddedKafka({"t": 1}) as kafka:
        host, port = kafka.bootstrap_servers.split(":")
        consumer = Consumer("t", bootstrap_servers=kafka.bootstrap_servers, security=Security())
        with pytest.raises(NoBrokersAvailableError) as caught:
            async with consumer:
                raise AssertionError
    assert str(caught.value) == (
        f"no broker answered: {host}:{port}: in the TLS handshake: closed by the broker; is this"
        " the port of a TLS listener? One without TLS takes security=None, or a Security with"
        ' security_protocol="SASL_PLAINTEXT"'
    )


async def test_plaintext_to_a_tls_port_is_explained() -> None:
    """The address was missing from the error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA().issue_cert("127.0.0.1").configure_cert(context)
    with EmbeddedKafka({"t": 1}, tls=context) as kafka:
        with pytest.raises(NoBrokersAvailableError) as caught:
            async with Consumer("t", bootstrap_servers=kafka.bootstrap_servers):
                raise AssertionError
        assert str(caught.value).startswith(
            f"no broker answered: {kafka.bootstrap_servers}: response of "
        )
        assert str(caught.value).endswith("; the listener speaks TLS: set security=Security(...)")


async def test_two_concurrent_readers_raise_an_error() -> None:
    """The error is of this library and of anyio."""
    with EmbeddedKafka({"t": 1}) as kafka:
        async with Consumer("t", bootstrap_servers=kafka.bootstrap_servers) as consumer:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.getmany, 1, 30.0)
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(ConsumerBusyError, match="another task is reading") as caught:
                    await consumer.getone()
                tasks.cancel_scope.cancel()
    error = caught.value
    for kind in (KafkaGroupError, IllegalStateError, anyio.BusyResourceError):
        assert isinstance(error, kind)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
