"""Authentication on a connection: its order, limits and errors, and reauthentication."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest
from memory_network import api_versions

from kafkagroup import Consumer
from kafkagroup.broker import Broker
from kafkagroup.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionLostError,
    KafkaGroupError,
    LimitExceededError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.transport.identity import ClusterIdentity
from kafkagroup.transport.logins import Logins
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.security import Security
from kafkagroup.transport.threads import WorkerThreads
from kafkagroup.transport.throttle import BrokerThrottle
from kafkagroup.transport.trouble import Troubles
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse, JoinGroupRequest
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from kafkagroup.wire.messages.produce import ProduceRequest
from kafkagroup.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafkagroup.wire.schema import Versions

pytestmark = pytest.mark.anyio

HERE = ("broker", 9092)
USERS = {"me": "word", "other": "word"}
SASL = {SaslHandshakeRequest: Versions(0, 1), SaslAuthenticateRequest: Versions(0, 2)}
GREETED = SaslHandshakeResponse(error_code=0, mechanisms=("PLAIN",))
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


async def inline(work: Callable[[], Any]) -> Any:
    """Run threads inline: virtual time would not wait for a thread."""
    await anyio.lowlevel.checkpoint()
    return work()


def security(mechanism: Any = "PLAIN", password: str = "word") -> Security:
    return Security(
        security_protocol="SASL_PLAINTEXT",
        allow_plaintext_credentials=True,
        sasl_mechanism=mechanism,
        sasl_username="me",
        sasl_password=password,
    )


def options(chosen: Security | None = None, **changes: Any) -> ClientOptions:
    changes = {"request_timeout": 10.0, "connect_timeout": 3.0, **changes}
    return ClientOptions(security=chosen or security(), run_in_thread=inline, **changes)


OPTIONS = options()


def heartbeat(name: str) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=name, generation_id=1, member_id="m")


def let_in(lifetime_ms: int = 0, **fields: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        **{
            "error_code": 0,
            "error_message": None,
            "auth_bytes": b"",
            "session_lifetime_ms": lifetime_ms,
            **fields,
        }
    )


@attrs.define
class Gate:
    """A broker with PLAIN that records its requests and their arrival times."""

    lifetimes: list[int] = attrs.field(factory=lambda: [0])
    """Of each session in turn, in milliseconds; the last one is that of all further ones."""
    slow: dict[str, float] = attrs.field(factory=dict)
    """Group -> seconds until its heartbeat is answered."""
    refuse_after: int = 99
    heard: list[tuple[str, float]] = attrs.field(factory=list)

    async def __call__(self, peer: Any) -> None:
        start = anyio.current_time()
        await peer.handshake(SASL)
        while True:
            incoming = await peer.read()
            request = incoming.request
            if isinstance(request, ApiVersionsRequest):  # is an idle connection alive?
                await peer.respond(incoming, api_versions(SASL))
                continue
            name = getattr(request, "group_id", type(request).__name__)
            self.heard.append((name, anyio.current_time() - start))
            if isinstance(request, SaslHandshakeRequest):
                await peer.respond(incoming, GREETED)
            elif isinstance(request, SaslAuthenticateRequest):
                await peer.respond(incoming, self._session())
            elif isinstance(request, HeartbeatRequest):
                await anyio.sleep(self.slow.get(name, 0))
                await peer.respond(incoming, HeartbeatResponse(error_code=0))
            elif isinstance(request, MetadataRequest):
                named = MetadataResponse(brokers=(), topics=(), cluster_id="ours")
                await peer.respond(incoming, named)

    def _session(self) -> SaslAuthenticateResponse:
        sessions = sum(name == "SaslAuthenticateRequest" for name, _ in self.heard)
        if sessions > self.refuse_after:
            return let_in(error_code=58, error_message="gone")
        lifetimes = self.lifetimes
        return let_in(lifetimes.pop(0) if len(lifetimes) > 1 else lifetimes[0])

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.heard]


LOGIN = ["SaslHandshakeRequest", "SaslAuthenticateRequest"]


@asynccontextmanager
async def connected(chosen: ClientOptions = OPTIONS) -> AsyncIterator[BrokerConnection]:
    async with anyio.create_task_group() as tasks:
        connection = await BrokerConnection.connect(*HERE, chosen, tasks)
        yield connection
        await connection.aclose()


async def outcome(call: Callable[[], Any], into: dict[str, Any], name: str) -> None:
    try:
        into[name] = await call()
    except KafkaGroupError as error:
        into[name] = type(error)


# ---------------------------------------------------------------- before the first request


async def test_authentication_precedes_any_other_request(network: Any) -> None:
    seen: list[tuple[str, int]] = []

    async def handler(peer: Any) -> None:
        await peer.handshake(SASL)
        for response in (GREETED, let_in(), HeartbeatResponse(error_code=0)):
            incoming = await peer.read()
            seen.append((type(incoming.request).__name__, incoming.version))
            await peer.respond(incoming, response)

    network.handlers[HERE] = handler
    async with network, connected() as connection:
        await connection.request(heartbeat("g"), timeout=1)
    assert seen == [
        ("SaslHandshakeRequest", 1),
        ("SaslAuthenticateRequest", 2),
        ("HeartbeatRequest", 4),
    ]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_each_mechanism_accepts_the_right_and_rejects_a_wrong_password(
    network: Any, mechanism: str
) -> None:
    async with EmbeddedKafka(listen=False, users=USERS) as kafka, network:
        network.serve_embedded(kafka)
        there = ("kafka-1", 9092)
        async with Broker.open(*there, options=options(security(mechanism))) as broker:
            assert (await broker.request_metadata([])).brokers
        with pytest.raises(AuthenticationError) as caught:
            async with Broker.open(*there, options=options(security(mechanism, "wrong"))):
                raise AssertionError
        assert str(caught.value).startswith(
            "kafka-1:9092: the broker refuses user 'me': SASL_AUTHENTICATION_FAILED (58):"
            " Authentication f"
        )
        assert network.open == 0


async def test_an_unsupported_mechanism_is_an_error(network: Any) -> None:
    async with EmbeddedKafka(listen=False, users=USERS, mechanisms=["PLAIN"]) as kafka, network:
        network.serve_embedded(kafka)
        with pytest.raises(AuthenticationError, match=r"not offer SCRAM-SHA-512;.* does: PLAIN$"):
            async with Broker.open("kafka-1", 9092, options=options(security("SCRAM-SHA-512"))):
                raise AssertionError


async def test_a_broker_without_sasl_is_an_error(network: Any) -> None:
    network.handlers[HERE] = lambda peer: peer.serve({})
    async with network:
        with pytest.raises(UnsupportedVersionError, match="does not know SaslHandshakeRequest"):
            async with Broker.open(*HERE, options=OPTIONS):
                raise AssertionError
        assert network.open == 0


@pytest.mark.parametrize(
    ("stage", "limit"), [("versions", 1_048_576), ("handshake", 65_536), ("tokens", 65_536)]
)
async def test_responses_before_authentication_are_limited_in_size(
    network: Any, stage: str, limit: int
) -> None:
    """Before authentication, no response is long."""

    async def handler(peer: Any) -> None:
        if stage == "versions":
            await peer.read()
        else:
            await peer.handshake(SASL)
            incoming = await peer.read()
        if stage == "tokens":
            await peer.respond(incoming, GREETED)
            await peer.read()
        await peer.stream.send((limit + 1).to_bytes(4, "big") + bytes(100))
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network:
        with pytest.raises(LimitExceededError, match=f"{limit + 1} bytes; the limit is {limit}$"):
            async with Broker.open(*HERE, options=OPTIONS):
                raise AssertionError


async def test_responses_after_authentication_may_be_larger(network: Any) -> None:
    brokers = (MetadataResponseBroker(node_id=1, host="broker", port=1),) * 5_000

    async def handler(peer: Any) -> None:
        await peer.handshake(SASL)
        await peer.respond(await peer.read(), GREETED)
        await peer.respond(await peer.read(), let_in())
        await peer.respond(await peer.read(), MetadataResponse(brokers=brokers, topics=()))

    network.handlers[HERE] = handler
    async with network, connected() as connection:
        response = await connection.request(MetadataRequest(topics=()), timeout=1)
    assert response.brokers == brokers


@pytest.mark.parametrize("silent_at", [1, 2])
async def test_an_unresponsive_broker_times_out(network: Any, silent_at: int) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake(SASL)
        for _ in range(silent_at - 1):
            await peer.respond(await peer.read(), GREETED)
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network:
        start = anyio.current_time()
        with pytest.raises(RequestTimeoutError, match="broker:9092: "):
            async with Broker.open(*HERE, options=OPTIONS):
                raise AssertionError
        assert anyio.current_time() - start == pytest.approx(3)
        assert network.open == 0


async def test_a_hanging_token_callback_times_out(network: Any) -> None:
    class Waits:
        name = "TIMEOUT"

        async def authenticate(self, exchange: Any) -> None:
            await anyio.sleep_forever()

    chosen = Security(security_protocol="SASL_PLAINTEXT", sasl_mechanism=Waits())
    network.handlers[HERE] = Gate()
    async with network:
        start = anyio.current_time()
        with pytest.raises(RequestTimeoutError, match="broker:9092: not authenticated within 3 s"):
            async with Broker.open(*HERE, options=options(chosen)):
                raise AssertionError
        assert anyio.current_time() - start == pytest.approx(3)
        assert network.open == 0


@pytest.mark.parametrize("delay", [0.5, 1.5, 2.5])
async def test_a_cancelled_authentication_leaves_nothing_open(network: Any, delay: float) -> None:
    async def handler(peer: Any) -> None:
        await anyio.sleep(1)
        await peer.handshake(SASL)
        for response in (GREETED, let_in()):
            incoming = await peer.read()
            await anyio.sleep(1)
            await peer.respond(incoming, response)
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network, anyio.create_task_group() as tasks:
        broker = Broker(1, *HERE, tasks, OPTIONS)
        with anyio.move_on_after(delay) as scope:
            await broker.connect()
        assert scope.cancelled_caught
        await anyio.sleep(0.1)
        assert network.open == 0


# ---------------------------------------------------------------- sessions that end (KIP-368)


async def test_a_session_is_reauthenticated_repeatedly_before_it_expires(network: Any) -> None:
    gate = network.handlers[HERE] = Gate([10_000, 20_000, 0])
    async with network, connected():
        await anyio.sleep(1000)
    assert gate.names == LOGIN * 3
    times = [at for name, at in gate.heard if name == LOGIN[0]]
    assert times[0] == 0
    assert 8.5 <= times[1] <= 9.5
    assert 17 <= times[2] - times[1] <= 19


async def test_a_reauthentication_loses_no_request_and_is_not_interrupted(network: Any) -> None:
    """Brokers close the connection on any request between the two; requests in flight are answered
    first, and their wait must not count for the reauthentication."""
    gate = network.handlers[HERE] = Gate([10_000, 0], {"parked": 30.0})
    outcomes: dict[str, Any] = {}
    async with network, connected() as connection:
        start = anyio.current_time()

        async def ask(name: str, at: float) -> None:
            await anyio.sleep_until(start + at)
            await outcome(lambda: connection.request(heartbeat(name), timeout=60), outcomes, name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "parked", 8.0)
            tasks.start_soon(ask, "first", 10.0)
            tasks.start_soon(ask, "second", 20.0)
        assert not connection.is_closed
    assert gate.names[:5] == [*LOGIN, "parked", *LOGIN]
    assert sorted(gate.names[5:]) == ["first", "second"]
    assert [at for _, at in gate.heard] == pytest.approx([0, 0, 8, 38, 38, 38, 38])
    assert set(outcomes.values()) == {HeartbeatResponse(error_code=0)}


async def test_a_request_without_a_response_waits_for_the_reauthentication(network: Any) -> None:
    gate = network.handlers[HERE] = Gate([10_000, 0], {"parked": 5.0})
    produce = ProduceRequest(acks=0, timeout_ms=1, topic_data=())
    async with network, connected() as connection, anyio.create_task_group() as tasks:
        await anyio.sleep(8)
        tasks.start_soon(lambda: connection.request(heartbeat("parked"), timeout=60))
        await anyio.sleep(2)
        await connection.send_only(produce, highest=12)
        await anyio.sleep(1)
    assert gate.names == [*LOGIN, "parked", *LOGIN, "ProduceRequest"]


async def test_a_request_without_a_response_waits_for_a_reauthentication_that_follows(
    network: Any,
) -> None:
    """The next one began while the broker throttled the request: sent in the middle of it, the
    request would have ended the connection."""
    gate = network.handlers[HERE] = Gate([10_000, 3_000, 0], {"parked": 5.0, "again": 12.0})
    produce = ProduceRequest(acks=0, timeout_ms=1, topic_data=())
    throttled: dict[tuple[str, int], float] = {}
    async with network, anyio.create_task_group() as tasks:
        connection = await BrokerConnection.connect(
            *HERE, OPTIONS, tasks, BrokerThrottle(HERE, throttled)
        )
        began = anyio.current_time()

        async def ask(name: str, at: float) -> None:
            await anyio.sleep_until(began + at)
            await connection.request(heartbeat(name), timeout=60)

        tasks.start_soon(ask, "parked", 8)
        tasks.start_soon(ask, "again", 14)
        await anyio.sleep_until(began + 10)
        tasks.start_soon(partial(connection.send_only, produce, highest=12))
        throttled[HERE] = began + 20
        await anyio.sleep_until(began + 40)
        await connection.aclose()
    assert gate.names == [*LOGIN, "parked", *LOGIN, "again", *LOGIN, "ProduceRequest"]


async def test_waiting_for_a_reauthentication_ends_at_the_requests_timeout(network: Any) -> None:
    network.handlers[HERE] = Gate([10_000], {"parked": 1000.0})
    outcomes: dict[str, Any] = {}
    async with network, connected() as connection:
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for name, delay, timeout in (("parked", 8, 500), ("late", 10, 5)):
                tasks.start_soon(ask_later, connection, name, delay, timeout, outcomes)
        # A broker answers in order: later requests would wait without a reauthentication, too.
        assert connection.is_closed
        assert outcomes == {"parked": RequestTimeoutError, "late": RequestTimeoutError}
        assert anyio.current_time() - start == pytest.approx(15)
    assert network.open == 0


async def ask_later(
    connection: BrokerConnection | Broker,
    name: str,
    delay: float,
    timeout: float,
    into: dict[str, Any],
) -> None:
    await anyio.sleep(delay)
    await outcome(lambda: connection.request(heartbeat(name), timeout=timeout), into, name)


async def test_a_failed_reauthentication_fails_the_waiting_requests_and_is_retried(
    network: Any,
) -> None:
    gate = network.handlers[HERE] = Gate([10_000], {"parked": 5.0}, refuse_after=1)
    outcomes: dict[str, Any] = {}
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_later, broker, "parked", 8, 60, outcomes)
            tasks.start_soon(ask_later, broker, "waits", 10, 60, outcomes)
        assert outcomes == {
            "parked": HeartbeatResponse(error_code=0),
            "waits": AuthenticationError,
        }
        gate.refuse_after = 99
        assert await broker.request(heartbeat("later")) == HeartbeatResponse(error_code=0)
    assert gate.names == [*LOGIN, "parked", *LOGIN, *LOGIN, "later"]


async def test_a_tls_key_update_during_a_write_closes_only_the_connection(
    network: Any,
) -> None:
    """TLS 1.3: the reader then has to write, which anyio rejects during another write."""
    network.handlers[HERE] = Gate()
    outcomes: dict[str, Any] = {}
    async with network, connected() as connection:

        async def busy(_: int) -> bytes:
            raise anyio.BusyResourceError("writing to")

        network.streams[0].receive = busy
        for name in ("one", "two"):
            await outcome(lambda: connection.request(heartbeat("g"), timeout=5), outcomes, name)
    assert outcomes == {"one": HeartbeatResponse(error_code=0), "two": ConnectionLostError}


async def test_a_lost_connection_fails_every_waiting_request(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake(SASL)
        await peer.respond(await peer.read(), GREETED)
        await peer.respond(await peer.read(), let_in(10_000))
        assert isinstance((await peer.read()).request, SaslHandshakeRequest)
        await anyio.sleep(2)

    network.handlers[HERE] = handler
    outcomes: dict[str, Any] = {}
    async with network, connected() as connection:
        await ask_later(connection, "waits", 10, 60, outcomes)
    assert outcomes == {"waits": ConnectionLostError}


@pytest.mark.parametrize("lifetime", [1, 999])
async def test_a_short_session_lifetime_reauthenticates_at_most_once_a_second(
    network: Any, lifetime: int
) -> None:
    gate = network.handlers[HERE] = Gate([lifetime])
    async with network, connected():
        await anyio.sleep(10.5)
    assert gate.names == LOGIN * 11


@pytest.mark.parametrize("lifetime", [0, -5, 2**63 - 1])
async def test_a_session_without_a_lifetime_is_not_reauthenticated(
    network: Any, lifetime: int
) -> None:
    gate = network.handlers[HERE] = Gate([lifetime])
    async with network, connected():
        await anyio.sleep(30 * 86400)
    assert gate.names == LOGIN


async def test_a_reauthentication_beyond_its_timeout_closes_the_connection(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake(SASL)
        await peer.respond(await peer.read(), GREETED)
        await peer.respond(await peer.read(), let_in(10_000))
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network, connected() as connection:
        await anyio.sleep(9.5 + 3.1)
        assert connection.is_closed


@attrs.define
class Source:
    """A mechanism whose credentials come from somewhere else."""

    failures: list[BaseException] = attrs.field(factory=list)
    """Raised by the next calls, one each."""
    delay: float = 0.0
    times: list[float] = attrs.field(factory=list)
    name = "PLAIN"

    async def authenticate(self, exchange: Any) -> None:
        self.times.append(anyio.current_time())
        await anyio.sleep(self.delay)
        if self.failures:
            raise self.failures.pop(0)
        await exchange.send(b"\0me\0word")


def from_source(source: Source) -> ClientOptions:
    return options(
        Security(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=source,
            allow_plaintext_credentials=True,
        )
    )


async def test_a_session_continues_while_its_credentials_cannot_be_renewed(network: Any) -> None:
    """A vault that restarted at the wrong moment ended the connection, and with it the client. The
    broker has refused nothing, and the old session lasts a while."""
    gate = network.handlers[HERE] = Gate([100_000, 0])
    source = Source()
    reported: list[KafkaGroupError | None] = []
    async with network, connected(from_source(source)) as connection:
        connection.on_renewal = reported.append
        source.failures = [OSError("the vault restarts"), LookupError("and again")]
        await anyio.sleep(97)
        assert await connection.request(heartbeat("g"), timeout=1) == HeartbeatResponse(
            error_code=0
        )
        assert not connection.is_closed
    assert gate.names == [*LOGIN, *LOGIN, "g"], "nothing was sent without credentials"
    assert [str(error) for error in reported] == [
        "broker:9092: PLAIN failed with OSError",
        "broker:9092: PLAIN failed with LookupError",
        "None",
    ]


async def test_a_throttle_that_began_during_the_renewal_is_waited_for(network: Any) -> None:
    """The requests that the renewal held back were sent to a broker that had just asked for a
    pause, on another connection."""
    gate = network.handlers[HERE] = Gate([100_000, 0], slow={"slow": 12.0})
    throttled: dict[tuple[str, int], float] = {}
    async with network, anyio.create_task_group() as tasks:
        connection = await BrokerConnection.connect(
            *HERE, from_source(Source()), tasks, BrokerThrottle(HERE, throttled)
        )
        began = anyio.current_time()
        await anyio.sleep(84.9)  # the renewal waits for this response
        tasks.start_soon(partial(connection.request, heartbeat("slow"), timeout=20))
        await anyio.sleep(10.6)
        tasks.start_soon(partial(connection.request, heartbeat("g"), timeout=3))
        await anyio.sleep(0.5)
        throttled[HERE] = began + 104.0
        await anyio.sleep_until(began + 105)
        await connection.aclose()
    assert gate.names == [*LOGIN, "slow", *LOGIN, "g"]
    assert gate.heard[-1][1] == pytest.approx(104, abs=0.1)


async def test_a_renewal_does_not_ask_for_the_cluster_of_a_new_connection(network: Any) -> None:
    """A connection was opened while the broker throttled, and not used until its session was
    renewed: the question for its cluster went ahead of SaslHandshake, into the next throttle."""
    gate = network.handlers[HERE] = Gate([100_000, 0])
    throttled = {HERE: math.inf}
    async with network, anyio.create_task_group() as tasks:
        connection = await BrokerConnection.connect(
            *HERE,
            from_source(Source()),
            tasks,
            BrokerThrottle(HERE, throttled),
            ClusterIdentity("ours"),
        )
        await anyio.sleep(100)
        assert (connection.is_closed, connection.is_identified) == (False, False)
        assert gate.names == [*LOGIN, *LOGIN]
        await connection.request(heartbeat("g"), timeout=3)
        assert connection.is_identified
        await connection.aclose()
    assert gate.names == [*LOGIN, *LOGIN, "MetadataRequest", "g"]


async def test_the_old_session_serves_until_its_end(network: Any) -> None:
    gate = network.handlers[HERE] = Gate([100_000])
    source = Source()
    async with network, connected(from_source(source)) as connection:
        began = anyio.current_time()
        source.failures = [OSError("the vault is closed") for _ in range(1_000)]
        await anyio.sleep(99.9)
        await connection.request(heartbeat("g"), timeout=1)
        await anyio.sleep(0.2)
        assert connection.is_closed
        with pytest.raises(AuthenticationError, match="PLAIN failed with OSError") as caught:
            await connection.request(heartbeat("late"), timeout=1)
        assert not caught.value.is_refusal
    assert gate.names == [*LOGIN, "g"]
    assert source.times[-1] - began == pytest.approx(100)
    assert len(source.times) < 20, "each connection renews its own session: with a growing pause"


async def test_requests_are_answered_while_the_credentials_are_fetched(network: Any) -> None:
    """The broker takes no other request during the exchange, but nothing is exchanged yet."""
    gate = network.handlers[HERE] = Gate([100_000])
    source = Source(delay=2.9)
    async with network, connected(from_source(source)) as connection:
        began = anyio.current_time()
        while len(source.times) < 2:
            await anyio.sleep(0.1)
        await connection.request(heartbeat("meanwhile"), timeout=1)
        await anyio.sleep_until(began + 100)
    assert gate.names == [*LOGIN, "meanwhile", *LOGIN]


async def test_a_source_that_hangs_leaves_the_session_alone(network: Any) -> None:
    gate = network.handlers[HERE] = Gate([100_000, 0])
    source = Source()
    async with network, connected(from_source(source)) as connection:
        source.delay = 1_000.0
        await anyio.sleep(95.1)
        await connection.request(heartbeat("g"), timeout=1)
        source.delay = 0.0
        await anyio.sleep(4)
        assert not connection.is_closed
    assert gate.names == [*LOGIN, "g", *LOGIN]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_task_of_the_source_is_a_failure_of_the_source(network: Any) -> None:
    """A token source awaited a task that its application had cancelled. The CancelledError ended
    the task of the connection's caller without a word."""
    import asyncio

    network.handlers[HERE] = Gate()
    source = Source([asyncio.CancelledError()])
    async with network, anyio.create_task_group() as tasks:
        with pytest.raises(AuthenticationError, match="PLAIN failed with CancelledError"):
            await BrokerConnection.connect(*HERE, from_source(source), tasks)


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (OSError("no route to the vault"), "PLAIN failed with OSError"),
        (ConfigurationError("no token"), "no token"),
        (AuthenticationError("rejected here"), "rejected here"),
    ],
)
async def test_a_failing_renewal_is_reported_after_ten_seconds(
    network: Any, caplog: pytest.LogCaptureFixture, failure: Exception, cause: str
) -> None:
    network.handlers[HERE] = Gate([500_000])
    source = Source()
    troubles = Troubles()
    async with network, anyio.create_task_group() as tasks:
        broker = BrokerClient(1, *HERE, tasks, from_source(source), troubles=troubles)
        await broker.connect()
        source.failures = [failure] * 8
        while len(source.times) < 2:
            await anyio.sleep(1)
        await anyio.sleep(5)
        assert troubles.lasting(anyio.current_time()) == []
        await anyio.sleep(11)
        ((problem, _),) = troubles.lasting(anyio.current_time())
        assert (problem.subject, problem.cause) == ("broker 1 at broker:9092", cause)
        assert [r.message for r in caplog.records if r.levelno == logging.WARNING] != []
        await anyio.sleep(30)
        assert source.failures == []
        assert troubles.lasting(anyio.current_time()) == []
        await broker.aclose()


@pytest.mark.parametrize(
    "failure", [OSError("the vault restarts"), ConfigurationError("no token")], ids=repr
)
async def test_sessions_are_renewed_by_one_connection_while_the_source_fails(
    network: Any, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr("random.uniform", min)  # all at the same moment
    network.handlers[HERE] = Gate([40_000] * 50)
    source, logins = Source(), Logins()
    logins.watch(lambda _: None)
    async with network, anyio.create_task_group() as tasks:
        broker = BrokerClient(1, *HERE, tasks, from_source(source), logins=logins)
        for connection_id in "abcde":
            await broker.connect(connection_id)
        source.failures = [failure] * 9
        began = len(source.times)
        await anyio.sleep(60)
        assert source.failures == []
        assert all(broker.is_connected(connection_id) for connection_id in "abcde")
        first, failed = source.times[began : began + 5], source.times[began + 4 : began + 9]
        assert first == [first[0]] * 5, "nothing is known to be wrong"
        pauses = [b - a for a, b in pairwise(failed)]
        assert min(pauses) >= 0.1, "none asks it when another one has just failed"
        await broker.aclose()


@pytest.mark.parametrize(
    "failure", [OSError("the vault restarts"), ConfigurationError("no token")], ids=repr
)
async def test_one_login_tries_for_all_brokers_while_the_source_fails(
    network: Any, failure: Exception
) -> None:
    """An error of this library counted for one broker: the source was asked for each."""
    there = ("other", 9092)
    network.handlers |= {HERE: Gate(), there: Gate()}
    source, logins = Source([failure] * 2), Logins()
    logins.watch(lambda _: None)
    logins.has_worked = True
    async with network, anyio.create_task_group() as tasks:
        for node_id, address in enumerate((HERE, there)):
            broker = BrokerClient(node_id, *address, tasks, from_source(source), logins=logins)
            with pytest.raises(AuthenticationError):
                await broker.connect()
    assert len(source.times) == 1


async def test_mechanisms_get_the_host_without_its_final_dot(network: Any) -> None:
    """Kerberos and others put it into what they sign."""
    hosts: list[str] = []

    class Records(Source):
        async def authenticate(self, exchange: Any) -> None:
            hosts.append(exchange.host)
            await exchange.send(b"")

    network.handlers["broker.", 9092] = Gate()
    async with network, Broker.open("broker.", 9092, options=from_source(Records())):
        pass
    assert (hosts, network.dialled) == (["broker"], [("broker.", 9092)])


# ---------------------------------------------------------------- a group behind it


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_consumer_continues_through_many_reauthentications(
    network: Any, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerThreads, "__call__", run_inline)
    short_sessions = BrokerSettings(connections_max_reauth=5.0)
    async with EmbeddedKafka(listen=False, users=USERS, settings=short_sessions) as kafka, network:
        network.serve_embedded(kafka)
        kafka.create_topic("t")
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1:9092",
            group_id="g",
            security=security(mechanism),
            auto_commit_interval_ms=1_000,
        )
        async with consumer:
            for number in range(10):
                kafka.produce("t", [str(number).encode()])
                assert (await consumer.getone()).value == str(number).encode()
                await anyio.sleep(5)
        dialled = len(network.dialled)
        # Once for the member id, once to join: no connection was lost.
        assert len(kafka.requests(JoinGroupRequest)) == 2
        assert len(kafka.requests(SaslHandshakeRequest)) > 5 * dialled


async def run_inline(self: WorkerThreads, work: Callable[[], Any]) -> Any:
    return await inline(work)


async def test_a_consumer_with_wrong_credentials_does_not_start(network: Any) -> None:
    """It is not retried, at no other address either: retries would lock the account."""
    async with EmbeddedKafka(nodes=3, listen=False, users=USERS) as kafka, network:
        network.serve_embedded(kafka, nodes=3)
        servers = ["kafka-1:9092", "kafka-2:9092", "kafka-3:9092"]
        with pytest.raises(AuthenticationError, match="SASL_AUTHENTICATION_FAILED"):
            async with Consumer("t", bootstrap_servers=servers, security=security(password="no")):
                raise AssertionError
        assert network.dialled == [("kafka-1", 9092)]
        assert network.open == 0


async def test_withdrawn_credentials_are_tried_again_when_the_application_goes_on(
    network: Any,
) -> None:
    """The consumer was dead for ever, also if the account was back a moment later. Each call raises
    the refusal; without a call, nothing logs in: that could lock the account."""
    async with EmbeddedKafka(listen=False, users=USERS) as kafka, network:
        network.serve_embedded(kafka)
        kafka.create_topic("t")
        consumer = Consumer(
            "t", bootstrap_servers="kafka-1:9092", group_id="g", security=security()
        )
        async with consumer:
            kafka.produce("t", [b"1"])
            assert (await consumer.getone()).value == b"1"
            async with EmbeddedKafka(listen=False, users={"me": "new"}) as changed:
                network.serve_embedded(changed)
                for stream in network.streams:
                    await stream.send_eof()
                for call in (consumer.getone, consumer.commit, consumer.getone):
                    with pytest.raises(AuthenticationError, match="SASL_AUTHENTICATION_FAILED"):
                        await call()
                await anyio.sleep(600)
                dialled = len(network.dialled)
                await anyio.sleep(3600)
                assert len(network.dialled) == dialled < 12
            network.serve_embedded(kafka)
            kafka.produce("t", [b"2"])
            # The commit was refused, and the session has ended.
            assert [(await consumer.getone()).value for _ in range(2)] == [b"1", b"2"]
