"""One connection and one broker against a scripted peer, in virtual time."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from memory_network import api_versions

from kafkagroup.broker import Broker
from kafkagroup.errors import (
    ConnectionLostError,
    DecodeError,
    KafkaGroupError,
    LimitExceededError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from kafkagroup.testing.embedded.broker import write_response
from kafkagroup.transport import connection
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.transport.options import ClientOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.codec import encode
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from kafkagroup.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from kafkagroup.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.schema import Request, Versions

pytestmark = pytest.mark.anyio

HERE = ("broker", 9092)
METADATA = MetadataRequest(topics=())
OPTIONS = ClientOptions(request_timeout=10.0, connect_timeout=3.0)
BATCH = {TopicPartition("t", 0): encode_batch([NewRecord(None, b"v")])}


def heartbeat(name: str) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=name, generation_id=1, member_id="m")


def heartbeat_response(number: int) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=number)


def metadata(name: str = "c", **fields: Any) -> MetadataResponse:
    return MetadataResponse(brokers=(), topics=(), cluster_id=name, **fields)


@asynccontextmanager
async def connected(options: ClientOptions = OPTIONS) -> AsyncIterator[BrokerConnection]:
    async with anyio.create_task_group() as tasks:
        connection = await BrokerConnection.connect(*HERE, options, tasks)
        yield connection
        await connection.aclose()


class Outcomes:
    """The outcomes of several requests."""

    def __init__(self) -> None:
        self.of: dict[str, object] = {}

    async def take(self, name: str, call: Callable[[], Any]) -> None:
        try:
            self.of[name] = await call()
        except KafkaGroupError as error:
            self.of[name] = type(error)


# ---------------------------------------------------------------- requests and responses


async def test_pipelined_requests_are_matched_by_their_id(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        asked = [await peer.read() for _ in range(3)]
        for incoming in reversed(asked):
            await peer.respond(incoming, heartbeat_response(int(incoming.request.group_id)))
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    outcomes = Outcomes()
    async with network, connected() as connection, anyio.create_task_group() as tasks:
        for name in ("1", "2", "3"):
            tasks.start_soon(
                outcomes.take, name, lambda n=name: connection.request(heartbeat(n), timeout=1)
            )
    assert outcomes.of == {
        "1": heartbeat_response(1),
        "2": heartbeat_response(2),
        "3": heartbeat_response(3),
    }


async def test_on_response_runs_before_the_waiting_task_resumes(network: Any) -> None:
    """A fetch delivers records to the application there, not one turn of the loop later."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        asked = [await peer.read() for _ in range(2)]
        for incoming in asked:
            await peer.respond(incoming, heartbeat_response(int(incoming.request.group_id)))
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    story: list[str] = []

    def on_response(response: HeartbeatResponse) -> None:
        story.append(f"{response.error_code} came")
        if response.error_code == 2:
            raise ConnectionLostError("not that")

    async def ask(name: str) -> None:
        try:
            await connection.request(heartbeat(name), timeout=1, on_response=on_response)
            story.append(f"{name} goes on")
        except ConnectionLostError as error:
            story.append(f"{name} raises: {error}")

    async with network, connected() as connection:
        deliver = connection._deliver

        def delivered(response: Any) -> None:
            deliver(response)
            story.append("delivered")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "_deliver", delivered)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "1")
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(ask, "2")
        assert not connection.is_closed
    assert [line for line in story if not line.startswith("1 goes")] == [
        "1 came",
        "delivered",
        "2 came",
        "delivered",
        "2 raises: not that",
    ]
    assert "1 goes on" in story


async def test_the_handler_of_a_failed_request_gets_no_response(network: Any) -> None:
    """Its caller, told of the failure, repeats what the response has ended. Here both responses
    come in one read, and in the handling of the first the connection ends."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        asked = [await peer.read() for _ in range(2)]
        both = b"".join(write_response(incoming, heartbeat_response(0)) for incoming in asked)
        await peer.stream.send(both)
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    outcomes = Outcomes()
    handled: list[object] = []
    async with network, connected() as connection:

        def on_response(response: object) -> None:
            handled.append(response)
            connection._end(ConnectionLostError("closed"))

        async def ask(name: str) -> HeartbeatResponse:
            return await connection.request(heartbeat(name), timeout=1, on_response=on_response)

        async with anyio.create_task_group() as tasks:
            for name in "12":
                tasks.start_soon(outcomes.take, name, partial(ask, name))
                await checkpoint()
    assert outcomes.of == {"1": heartbeat_response(0), "2": ConnectionLostError}
    assert handled == [heartbeat_response(0)]


async def test_a_timeout_closes_the_connection_and_fails_the_requests_behind_it(
    network: Any,
) -> None:
    """A broker responds in order: requests behind one without a response would wait too."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    outcomes = Outcomes()
    async with network, connected() as connection:
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for name, timeout in (("short", 2), ("long", 60)):
                tasks.start_soon(
                    outcomes.take,
                    name,
                    lambda n=name, t=timeout: connection.request(heartbeat(n), timeout=t),
                )
        assert anyio.current_time() - start == pytest.approx(2)
        assert outcomes.of == {"short": RequestTimeoutError, "long": RequestTimeoutError}
        assert connection.is_closed
        await anyio.sleep(1)
        assert network.open == 0
        with pytest.raises(ConnectionLostError, match=r"connection is closed: .*no response to"):
            await connection.request(METADATA, timeout=1)


async def test_the_response_to_a_cancelled_request_is_dropped(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        first, second = await peer.read(), await peer.read()
        await peer.respond(first, heartbeat_response(1))
        await peer.respond(second, heartbeat_response(2))
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network, connected() as connection:
        with anyio.move_on_after(1) as given_up:
            await connection.request(heartbeat("1"), timeout=10)
        assert given_up.cancelled_caught
        assert await connection.request(heartbeat("2"), timeout=10) == heartbeat_response(2)
        assert (connection.is_closed, len(network.streams)) == (False, 1)


async def test_an_unanswered_cancelled_request_closes_the_connection_at_its_timeout(
    network: Any,
) -> None:
    """The timeouts of commits on a half-open connection passed at the same moment as their callers'
    deadlines. The connection stayed open, and no later commit succeeded."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network, connected() as connection:
        for name in ("1", "2"):
            with anyio.move_on_after(1) as given_up:
                await connection.request(heartbeat(name), timeout=1.5)
            assert given_up.cancelled_caught
        with pytest.raises(ConnectionLostError, match="a cancelled request"):
            await connection.request(heartbeat("3"), timeout=1.5)
        await anyio.sleep(1)
        assert (connection.is_closed, network.open) == (True, 0)


async def test_a_cancelled_write_leaves_no_partial_frame(
    network: Any,
) -> None:
    big = heartbeat("g" * 5000)

    async def handler(peer: Any) -> None:
        await peer.handshake()
        await anyio.sleep(5)
        for number in (1, 2, 3):
            incoming = await peer.read()
            assert incoming.request == (big if number < 3 else heartbeat("small"))
            await peer.respond(incoming, heartbeat_response(number))
        await anyio.sleep_forever()

    network.room = 100
    network.handlers[HERE] = handler
    async with network, connected() as connection:
        async with anyio.create_task_group() as tasks:

            async def give_up() -> None:
                with anyio.move_on_after(1):
                    await connection.request(big, timeout=60)

            tasks.start_soon(give_up)
            tasks.start_soon(give_up)
        assert await connection.request(heartbeat("small"), timeout=60) == heartbeat_response(3)


@pytest.mark.parametrize("cut", [3, 4, 9])
async def test_a_connection_closed_in_the_middle_of_a_response_is_an_error(
    network: Any, cut: int
) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        await peer.read()
        await peer.stream.send(bytes.fromhex("0000000b0000000100")[:cut])

    network.handlers[HERE] = handler
    async with network, connected() as connection:
        with pytest.raises(ConnectionLostError, match=r"^broker:9092: closed by the broker$"):
            await connection.request(heartbeat("g"), timeout=10)
        assert connection.is_closed


async def test_a_connection_closed_before_the_first_response_is_explained(network: Any) -> None:
    """Kafka's SASL listeners answer ApiVersions to unauthenticated clients, and nothing else."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        await peer.read()

    network.handlers[HERE] = handler
    async with network, connected() as connection:
        with pytest.raises(ConnectionLostError, match="a listener that requires SASL"):
            await connection.request(heartbeat("g"), timeout=10)


async def outcomes_of_two_requests(network: Any) -> Outcomes:
    """The outcomes of two requests on one connection."""
    outcomes = Outcomes()
    async with network, connected() as connection, anyio.create_task_group() as tasks:
        for name in ("1", "2"):
            tasks.start_soon(outcomes.take, name, lambda: connection.request(METADATA, timeout=10))
    assert network.open == 0
    return outcomes


async def test_a_protocol_error_fails_all_requests_in_flight(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        await peer.read()
        await peer.read()
        await peer.stream.send((2**31 - 1).to_bytes(4, "big"))
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    outcomes = await outcomes_of_two_requests(network)
    assert outcomes.of == {"1": LimitExceededError, "2": LimitExceededError}


async def test_a_response_before_a_protocol_error_counts(network: Any) -> None:
    """If both arrived together, an acknowledged commit was reported as failed."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        first, _ = await peer.read(), await peer.read()
        response = write_response(first, metadata())
        await peer.stream.send(response + response)
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    outcomes = await outcomes_of_two_requests(network)
    # trio starts the two tasks in any order: either one sends first, and gets the response.
    found = list(outcomes.of.values())
    assert found in ([metadata(), RemoteProtocolError], [RemoteProtocolError, metadata()])


class Thread:
    """Replaces a thread: its function takes a second, during which the loop runs."""

    def __init__(self) -> None:
        self.ran: list[object] = []

    async def __call__(self, work: Callable[[], Any]) -> Any:
        await anyio.sleep(1)
        self.ran.append(work)
        return work()

    @property
    def options(self) -> ClientOptions:
        return ClientOptions(request_timeout=10.0, connect_timeout=3.0, run_in_thread=self)


def large(name: str) -> MetadataResponse:
    node = MetadataResponseBroker(node_id=1, host="h", port=1)
    return MetadataResponse(brokers=(node,) * 1_001, topics=(), cluster_id=name)


async def test_a_large_response_is_decoded_in_a_thread(network: Any) -> None:
    """Responses behind it are delivered after it."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        for message in (heartbeat_response(1), large("c"), heartbeat_response(2)):
            await peer.respond(await peer.read(), message)
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    ends: dict[str, tuple[float, object]] = {}
    thread = Thread()
    async with network, connected(thread.options) as connection:
        began = anyio.current_time()

        async def ask(name: str, request: Request[Any]) -> None:
            response = await connection.request(request, timeout=5)
            ends[name] = (anyio.current_time() - began, response)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "small", heartbeat("1"))
            await anyio.sleep(0.001)
            tasks.start_soon(ask, "large", METADATA)
            await anyio.sleep(0.001)
            tasks.start_soon(ask, "behind", heartbeat("2"))
    assert {name: response for name, (_, response) in ends.items()} == {
        "small": heartbeat_response(1),
        "large": large("c"),
        "behind": heartbeat_response(2),
    }
    assert len(thread.ran) == 1
    assert ends["small"][0] < 0.1
    assert 1 <= ends["large"][0] <= ends["behind"][0] < 1.1


async def test_a_malformed_large_response_fails_the_connection(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        incoming = await peer.read()
        await peer.response_bytes(incoming, encode(large("c"), 13)[:-1])
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network, connected(Thread().options) as connection:
        with pytest.raises(DecodeError, match="the input ends early"):
            await connection.request(METADATA, timeout=5, highest=13)
        assert connection.is_closed


async def test_closing_while_a_large_response_is_decoded_fails_the_requests_in_flight(
    network: Any,
) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        await peer.respond(await peer.read(), large("c"))
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    outcomes = Outcomes()
    thread = Thread()
    async with network, connected(thread.options) as connection:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.take, "1", lambda: connection.request(METADATA, timeout=5))
            await anyio.sleep(0.5)
            await connection.aclose()
    assert (outcomes.of, thread.ran) == ({"1": ConnectionLostError}, [])


async def test_closing_fails_the_requests_in_flight(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    outcomes = Outcomes()
    async with network, connected() as connection, anyio.create_task_group() as tasks:
        tasks.start_soon(outcomes.take, "1", lambda: connection.request(METADATA, timeout=10))
        await anyio.sleep(1)
        await connection.aclose()
    assert outcomes.of == {"1": ConnectionLostError}
    assert network.open == 0


@pytest.mark.parametrize("steps", range(8))
async def test_a_request_while_the_connection_ends_fails(network: Any, steps: int) -> None:
    """Its bytes do not fit into the socket's buffer, and the group of the writer's task ends."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        await anyio.sleep_forever()

    network.room = 100
    network.handlers[HERE] = handler
    outcomes = Outcomes()
    async with network, anyio.create_task_group() as tasks:

        async def ask(connection: BrokerConnection) -> None:
            for _ in range(steps):
                await checkpoint()
            big = heartbeat("g" * 5000)
            await outcomes.take("1", lambda: connection.request(big, timeout=10))

        async with anyio.create_task_group() as client:
            connection = await BrokerConnection.connect(*HERE, OPTIONS, client)
            client.cancel_scope.cancel()
            tasks.start_soon(ask, connection)
    assert outcomes.of == {"1": ConnectionLostError}


async def test_a_request_that_cannot_be_encoded_leaves_the_connection_open(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        await peer.serve({HeartbeatRequest: lambda _: heartbeat_response(0)})

    network.handlers[HERE] = handler
    async with network, connected() as connection:
        with pytest.raises(LocalProtocolError):
            await connection.request(
                HeartbeatRequest(group_id="g", generation_id=2**40, member_id=""), timeout=1
            )
        assert await connection.request(heartbeat("g"), timeout=1) == heartbeat_response(0)


# ---------------------------------------------------------------- connecting


async def test_connection_refused(network: Any) -> None:
    async with network:
        with pytest.raises(ConnectionLostError, match=r"^broker:9092: refused$"):
            async with Broker.open(*HERE, options=OPTIONS):
                raise AssertionError


@pytest.mark.parametrize("shakes", [False, True])
async def test_a_connection_attempt_without_a_response_times_out(
    network: Any, shakes: bool
) -> None:
    """Neither an unreachable peer nor one that accepts and sends nothing delays the client for
    long."""

    async def silent(peer: Any) -> None:
        await anyio.sleep_forever()

    network.handlers[HERE] = silent if shakes else None
    expected = RequestTimeoutError if shakes else ConnectionLostError
    async with network:
        start = anyio.current_time()
        with pytest.raises(expected, match="within 3"):
            async with Broker.open(*HERE, options=OPTIONS):
                raise AssertionError
        assert anyio.current_time() - start == pytest.approx(3)
        assert network.open == 0


async def test_connecting_with_a_closed_client_is_a_connection_error(network: Any) -> None:
    """A task of the application that committed while another closed the consumer once got a
    RuntimeError of the task group, which no handler of the client's errors expects."""
    network.handlers[HERE] = lambda peer: peer.serve({})
    async with network:
        async with anyio.create_task_group() as tasks:
            pass
        with pytest.raises(ConnectionLostError, match=r"^broker:9092: the client is closed$"):
            await BrokerConnection.connect(*HERE, OPTIONS, tasks)
        assert network.open == 0


async def test_cancelled_while_connecting_leaves_no_connection(network: Any) -> None:
    async def silent(peer: Any) -> None:
        await anyio.sleep_forever()

    network.handlers[HERE] = silent
    async with network:
        async with anyio.create_task_group() as tasks:
            with anyio.move_on_after(1):
                await BrokerConnection.connect(*HERE, OPTIONS, tasks)
        assert (len(network.streams), network.open) == (1, 0)


@pytest.mark.parametrize("host", ["\udcff", "é" * 60], ids=["surrogate", "too long"])
async def test_an_invalid_host_name_is_a_connection_error(host: str) -> None:
    """Addresses also come from brokers: an invalid one is an unreachable broker, not a crash."""
    async with anyio.create_task_group() as tasks:
        with pytest.raises(ConnectionLostError):
            await BrokerConnection.connect(host, 9092, OPTIONS, tasks)


@pytest.mark.parametrize("port", [-1, 65536, 2**31 - 1])
async def test_an_invalid_port_is_a_connection_error(port: int) -> None:
    async with anyio.create_task_group() as tasks:
        with pytest.raises(ConnectionLostError, match=f"^127.0.0.1:{port}: "):
            await BrokerConnection.connect("127.0.0.1", port, OPTIONS, tasks)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ClientOptions(), (None, None)),
        (ClientOptions(source_host="127.0.0.2", source_port=4000), ("127.0.0.2", 4000)),
    ],
)
async def test_the_local_address_is_the_configured_one(
    network: Any, options: ClientOptions, expected: tuple[str | None, int | None]
) -> None:
    network.handlers[HERE] = lambda peer: peer.serve({})
    async with network, Broker.open(*HERE, options=options):
        assert network.local == [expected]


# ---------------------------------------------------------------- versions


async def test_a_request_in_no_common_version_leaves_the_connection_open(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake({MetadataRequest: Versions(14, 20)})
        await peer.serve({HeartbeatRequest: lambda _: heartbeat_response(0)})

    network.handlers[HERE] = handler
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        with pytest.raises(UnsupportedVersionError, match="supports versions 14 to 20"):
            await broker.request(METADATA)
        assert await broker.request(heartbeat("g")) == heartbeat_response(0)


async def test_api_versions_is_retried_in_a_version_that_the_broker_supports(network: Any) -> None:
    """KIP-511: the error response is in v0 and lists the supported versions."""
    seen: list[int] = []

    async def handler(peer: Any) -> None:
        for highest in (2, 0):
            incoming = await peer.read()
            seen.append(incoming.version)
            if incoming.version > highest:
                refusal = ApiVersionsResponse(
                    error_code=35,
                    api_keys=(ApiVersion(api_key=18, min_version=0, max_version=2),),
                )
                body = bytes.fromhex("0023 00000001 0012 0000 0002")
                assert refusal.api_keys[0].max_version == body[-1]
                await peer.response_bytes(incoming, body)
                break
        await peer.handshake({ApiVersionsRequest: Versions(0, 2)})
        await peer.serve({MetadataRequest: lambda _: metadata()})

    network.handlers[HERE] = handler
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        assert (await broker.request(METADATA)).cluster_id == "c"
    assert seen == [4]


@pytest.mark.parametrize("body", ["0023 00000000", "0023 00000001 0012 0000 7fff"])
async def test_api_versions_falls_back_to_v0_once(network: Any, body: str) -> None:
    """At most once: a broker that always refuses does not get requests without end."""
    seen: list[int] = []

    async def handler(peer: Any) -> None:
        for _ in range(2):
            incoming = await peer.read()
            seen.append(incoming.version)
            await peer.response_bytes(incoming, bytes.fromhex(body))
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network:
        with pytest.raises(ConnectionLostError, match=r"UNSUPPORTED_VERSION \(35\)"):
            async with Broker.open(*HERE, options=OPTIONS):
                raise AssertionError
    assert seen == ([4, 0] if body.endswith("00000000") else [4, 3])


# ---------------------------------------------------------------- throttling


@pytest.mark.parametrize(
    ("throttle_ms", "seconds"),
    [(1500, 1.5), (250, 0.25), (0, 0), (-1, 0), (-(2**31), 0), (2**31 - 1, 30.0)],
)
async def test_a_throttle_delays_requests_up_to_a_maximum(
    network: Any, throttle_ms: int, seconds: float
) -> None:
    """KIP-219: the broker answers at once and expects the client to wait."""
    arrived: list[float] = []

    def respond(_: object) -> MetadataResponse:
        arrived.append(anyio.current_time())
        return metadata(throttle_time_ms=throttle_ms if len(arrived) == 1 else 0)

    network.handlers[HERE] = lambda peer: peer.serve({MetadataRequest: respond})
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        for _ in range(3):
            await broker.request(METADATA)
    assert [arrived[1] - arrived[0], arrived[2] - arrived[1]] == pytest.approx([seconds, 0])


async def test_a_throttle_delays_every_connection_to_the_broker(network: Any) -> None:
    arrived: list[tuple[str, float]] = []

    def respond(request: HeartbeatRequest) -> HeartbeatResponse:
        arrived.append((request.group_id, anyio.current_time() - start))
        return HeartbeatResponse(
            error_code=0, throttle_time_ms={"a": 2000, "b": 3000}.get(request.group_id, 0)
        )

    network.handlers[HERE] = lambda peer: peer.serve({HeartbeatRequest: respond})
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        start = anyio.current_time()
        await broker.request(heartbeat("a"), connection_id="one")
        async with anyio.create_task_group() as tasks:

            async def later(name: str, delay: float) -> None:
                await anyio.sleep(delay)
                await broker.request(heartbeat(name), connection_id=name)

            tasks.start_soon(later, "b", 0.5)
        await broker.request(heartbeat("c"), connection_id="other")
    assert arrived == [
        ("a", pytest.approx(0)),
        ("b", pytest.approx(2)),
        ("c", pytest.approx(5)),
    ]


async def test_a_client_is_not_idle_while_a_request_waits_for_the_throttle(network: Any) -> None:
    """A cluster forgot it as unused: the request then opened a connection that nothing closed."""

    def respond(request: HeartbeatRequest) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=0, throttle_time_ms=2000)

    network.handlers[HERE] = lambda peer: peer.serve({HeartbeatRequest: respond})
    async with network, anyio.create_task_group() as tasks:
        broker = BrokerClient(1, *HERE, tasks, OPTIONS)
        await broker.request(heartbeat("a"))
        assert broker.is_idle
        async with anyio.create_task_group() as calls:
            calls.start_soon(broker.request, heartbeat("b"))
            await anyio.sleep(1)
            assert not broker.is_idle
        assert broker.is_idle
        await broker.aclose()


async def test_a_throttle_in_the_response_to_a_cancelled_request_applies(
    network: Any,
) -> None:
    """The throttle time in the response to a cancelled commit was once ignored."""
    arrived: list[float] = []

    async def late(_: object) -> HeartbeatResponse:
        arrived.append(anyio.current_time())
        await anyio.sleep(0.5)
        return HeartbeatResponse(error_code=0, throttle_time_ms=2000 if len(arrived) == 1 else 0)

    network.handlers[HERE] = lambda peer: peer.serve({HeartbeatRequest: late})
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        with anyio.move_on_after(0.25):
            await broker.request(heartbeat("a"))
        await anyio.sleep(0.5)
        await broker.request(heartbeat("b"))
    assert arrived[1] - arrived[0] == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("fast_ms", "slow_ms", "until"), [(2_000, 8_000, 9), (8_000, 2_000, 8), (2_000, 0, 2)]
)
async def test_of_two_throttles_the_one_that_ends_last_counts(
    network: Any, fast_ms: int, slow_ms: int, until: float
) -> None:
    """Two requests were in flight: the later response may extend the throttle, and a shorter one
    does not end it."""
    arrived: list[tuple[str, float]] = []

    async def handler(peer: Any) -> None:
        await peer.handshake()
        while True:
            incoming = await peer.read()
            if isinstance(incoming.request, ApiVersionsRequest):  # is an idle connection alive?
                await peer.respond(incoming, api_versions())
                continue
            name = incoming.request.group_id
            arrived.append((name, anyio.current_time() - start))
            await anyio.sleep({"slow": 1.0}.get(name, 0))
            await peer.respond(
                incoming,
                HeartbeatResponse(
                    error_code=0, throttle_time_ms={"fast": fast_ms, "slow": slow_ms}.get(name, 0)
                ),
            )

    network.handlers[HERE] = handler
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        await broker.connect("slow")
        await broker.connect("fast")
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:

            async def ask(name: str, delay: float = 0) -> None:
                await anyio.sleep(delay)
                await broker.request(heartbeat(name), connection_id=name)

            tasks.start_soon(ask, "slow")
            tasks.start_soon(ask, "fast")
            tasks.start_soon(ask, "third", 0.5)
    assert sorted(arrived) == [
        ("fast", pytest.approx(0)),
        ("slow", pytest.approx(0)),
        ("third", pytest.approx(until)),
    ]


# ---------------------------------------------------------------- the broker's connections


async def test_each_connection_id_has_its_own_connection(network: Any) -> None:
    """A pending JoinGroup must not delay a heartbeat or a commit."""

    def respond(request: HeartbeatRequest) -> HeartbeatResponse | None:
        return None if request.group_id == "parked" else heartbeat_response(0)

    network.handlers[HERE] = lambda peer: peer.serve({HeartbeatRequest: respond})
    async with (
        network,
        Broker.open(*HERE, options=OPTIONS, offsets_channel_timeout=1) as broker,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(
            lambda: broker.request(heartbeat("parked"), connection_id="group", timeout=99)
        )
        await anyio.sleep(1)
        assert await broker.request(
            heartbeat("free"), connection_id="offsets"
        ) == heartbeat_response(0)
        assert await broker.request(heartbeat("free")) == heartbeat_response(0)
        assert len(network.streams) == 3
        assert [broker.is_connected(c) for c in ("group", "offsets", "", "none")] == [
            True,
            True,
            True,
            False,
        ]
        assert (broker.connected, broker.offsets_channel_connected) == (True, True)
        await broker.disconnect("offsets")
        assert (broker.connected, broker.offsets_channel_connected) == (True, False)
        await broker.connect_offsets_channel()
        assert (broker.offsets_channel_connected, len(network.streams)) == (True, 4)
        tasks.cancel_scope.cancel()


async def test_concurrent_first_uses_open_one_connection(network: Any) -> None:
    network.handlers[HERE] = lambda peer: peer.serve({MetadataRequest: lambda _: metadata()})
    async with network, anyio.create_task_group() as tasks:
        broker = Broker(1, *HERE, tasks, OPTIONS)
        async with anyio.create_task_group() as users:
            for _ in range(5):
                users.start_soon(broker.request, METADATA)
        assert network.dialled == [HERE]
        await broker.aclose()


async def test_a_lost_connection_is_reopened_at_the_next_use(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        await peer.respond(await peer.read(), metadata())

    network.handlers[HERE] = handler
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        await broker.request(METADATA)
        await anyio.sleep(1)
        assert not broker.connected
        assert (await broker.request(METADATA)).cluster_id == "c"
        assert len(network.streams) == 2


async def test_a_response_received_before_the_close_is_delivered(network: Any) -> None:
    """Whichever task runs first: an acknowledged commit must not be reported as lost."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        await peer.respond(await peer.read(), metadata())

    network.handlers[HERE] = handler
    async with network:
        for _ in range(30):
            async with Broker.open(*HERE, options=OPTIONS) as broker:
                assert await broker.request(METADATA) == metadata()


async def test_cancelling_one_caller_does_not_cancel_the_connecting_of_another(
    network: Any,
) -> None:
    async def handler(peer: Any) -> None:
        await anyio.sleep(1)
        await peer.serve({MetadataRequest: lambda _: metadata()})

    network.handlers[HERE] = handler
    async with network, anyio.create_task_group() as tasks:
        broker = Broker(1, *HERE, tasks, OPTIONS)
        outcomes = Outcomes()
        async with anyio.create_task_group() as users:

            async def give_up() -> None:
                with anyio.move_on_after(0.5):
                    await broker.request(METADATA)

            users.start_soon(give_up)
            users.start_soon(outcomes.take, "other", lambda: broker.request(METADATA))
        assert outcomes.of == {"other": metadata()}
        await broker.aclose()
        await anyio.sleep(1)
        assert network.open == 0


async def test_closing_a_broker_closes_connections_still_being_opened(network: Any) -> None:
    """Otherwise the connection to a broker that has left the cluster would stay open."""

    async def handler(peer: Any) -> None:
        await anyio.sleep(1)
        await peer.serve({MetadataRequest: lambda _: metadata()})

    network.handlers[HERE] = handler
    outcomes = Outcomes()
    async with network, anyio.create_task_group() as tasks:
        broker = Broker(1, *HERE, tasks, OPTIONS)
        tasks.start_soon(outcomes.take, "1", lambda: broker.request(METADATA))
        await anyio.sleep(0.5)
        await broker.aclose()
        await anyio.sleep(5)
        assert outcomes.of == {"1": ConnectionLostError}
        assert network.open == 0


async def test_the_offsets_channel_has_its_own_timeout(network: Any) -> None:
    network.handlers[HERE] = lambda peer: peer.serve(
        {HeartbeatRequest: lambda _: None, OffsetFetchRequest: lambda _: None}
    )
    async with (
        network,
        Broker.open(*HERE, options=OPTIONS, offsets_channel_timeout=2) as broker,
    ):
        for ask, seconds in (
            (lambda: broker.fetch_consumer_group_offsets("g"), 2),
            (lambda: broker.heartbeat("g", 1, "m"), 10),
        ):
            start = anyio.current_time()
            with pytest.raises(RequestTimeoutError, match=f"within {seconds} s"):
                await ask()
            assert anyio.current_time() - start == pytest.approx(seconds)


async def test_committed_offsets_share_the_main_connection_unless_they_have_their_own(
    network: Any,
) -> None:
    def offsets(_: OffsetFetchRequest) -> OffsetFetchResponse:
        return OffsetFetchResponse(groups=(OffsetFetchResponseGroup(group_id="g"),))

    network.handlers[HERE] = lambda peer: peer.serve({OffsetFetchRequest: offsets})
    async with network:
        for own, connections in ((None, 1), (5, 2)):
            before = len(network.streams)
            async with Broker.open(*HERE, options=OPTIONS, offsets_channel_timeout=own) as broker:
                assert broker.offsets_channel_connected == (connections == 1)
                await broker.fetch_consumer_group_offsets("g")
                assert len(network.streams) - before == connections


async def test_produce_without_acknowledgement_returns_at_once(network: Any) -> None:
    seen: list[int] = []

    def take(request: ProduceRequest) -> None:
        seen.append(request.acks)

    network.handlers[HERE] = lambda peer: peer.serve(
        {ProduceRequest: take, MetadataRequest: lambda _: metadata()}
    )
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        assert await broker.produce_messages(BATCH, acks=0) is None
        # The next response on the connection is not taken for that of the Produce.
        assert (await broker.request_metadata()).cluster_id == "c"
    assert seen == [0]


async def test_a_request_without_a_response_is_a_use_of_the_connection(network: Any) -> None:
    """The connection of a producer with acks=0 seemed to be idle since its handshake."""
    network.handlers[HERE] = lambda peer: peer.serve({ProduceRequest: lambda _: None})
    async with network, connected() as connection:
        await anyio.sleep(100)
        await connection.send_only(ProduceRequest(acks=0, timeout_ms=1, topic_data=()))
        assert connection.idle_since == anyio.current_time()


# ---------------------------------------------------------------- errors leave bare


async def test_the_users_exception_is_raised_unwrapped(network: Any) -> None:
    network.handlers[HERE] = lambda peer: peer.serve({})
    async with network:
        with pytest.raises(ValueError, match=r"^mine$"):
            async with Broker.open(*HERE, options=OPTIONS):
                raise ValueError("mine")
        assert network.open == 0


async def test_the_users_cancellation_passes_through(network: Any) -> None:
    network.handlers[HERE] = lambda peer: peer.serve({})
    async with network:
        with anyio.move_on_after(1) as scope:
            async with Broker.open(*HERE, options=OPTIONS):
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert network.open == 0


async def test_a_protocol_error_of_the_handshake_is_raised_unwrapped(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.read()
        await peer.stream.send(b"HTTP/1.1 400 Bad Request\r\n")
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network:
        with pytest.raises(RemoteProtocolError, match="the limit is 1048576"):
            async with Broker.open(*HERE, options=OPTIONS):
                raise AssertionError
        assert network.open == 0


@pytest.mark.parametrize("where", ["keep_alive", "Channel"])
async def test_a_connection_that_finds_no_file_descriptor_leaves_no_socket_open(
    network: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module is imported at its first use: the error was no connection error, and the socket
    stayed open."""

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with network, anyio.create_task_group() as tasks:
        network.handlers[HERE] = lambda _: anyio.sleep_forever()
        monkeypatch.setattr(connection, where, full)
        with pytest.raises(ConnectionLostError, match=r"^broker:9092: Too many open files$"):
            await BrokerConnection.connect(*HERE, OPTIONS, tasks)
        assert network.open == 0
        tasks.cancel_scope.cancel()
