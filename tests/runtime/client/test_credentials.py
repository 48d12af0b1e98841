"""Credentials and certificates that fail for a while, or at one broker: the client continues. In
virtual time, on embedded brokers."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from certificates import Authority, authority

from kafkagroup import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    Consumer,
    FencedError,
    GroupMember,
    GroupProtocol,
    HealthProblem,
    KafkaGroupError,
    Producer,
    Security,
    Token,
    TopicPartition,
)
from kafkagroup.admin import Admin
from kafkagroup.errors import ConfigurationError, ErrorCode, TlsError
from kafkagroup.testing.embedded import BrokerSettings, EmbeddedKafka
from kafkagroup.testing.embedded.faults import Close
from kafkagroup.testing.embedded.tls import TlsStream
from kafkagroup.transport.threads import WorkerThreads
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafkagroup.wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

pytestmark = pytest.mark.anyio

E = ErrorCode
USERS = {"ann": "secret"}
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@attrs.define
class Vault:
    """PLAIN, with a password that is fetched each time."""

    failures: list[Exception] = attrs.field(factory=list)
    """Raised by the next calls, one each."""
    lasting: Exception | None = None
    user: str = "ann"
    password: str = "secret"
    logins: int = 0
    name = "PLAIN"

    async def authenticate(self, exchange: Any) -> None:
        await anyio.sleep(0.01)
        if self.failures:
            raise self.failures.pop(0)
        if self.lasting is not None:
            raise self.lasting
        self.logins += 1
        await exchange.send(f"\0{self.user}\0{self.password}".encode())

    @property
    def security(self) -> Security:
        return Security(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=self,
            allow_plaintext_credentials=True,
        )


@attrs.define
class Served:
    """An embedded cluster, and connections to it that a test can break."""

    kafka: EmbeddedKafka
    network: Any
    vault: Vault = attrs.field(factory=Vault)

    async def break_connections(self) -> None:
        for stream in self.network.streams:
            await stream.aclose()

    def consumer(self, *topics: str, **given: Any) -> Consumer:
        defaults = {
            "bootstrap_servers": "kafka-1",
            "group_id": "g",
            "security": self.vault.security,
            "auto_offset_reset": "earliest",
        }
        return Consumer(*(topics or ("t",)), **{**defaults, **given})


@asynccontextmanager
async def served(
    network: Any, nodes: int = 1, partitions: int = 1, **settings: Any
) -> AsyncIterator[Served]:
    kafka = EmbeddedKafka(
        {"t": partitions},
        listen=False,
        nodes=nodes,
        users=USERS,
        mechanisms=["PLAIN"],
        settings=BrokerSettings(**settings),
    )
    async with network, kafka:
        network.serve_embedded(kafka, nodes)
        with anyio.fail_after(3_000):
            yield Served(kafka, network)


async def next_value(one: Consumer, seconds: float = 30.0) -> str:
    with anyio.fail_after(seconds):
        return str((await one.getone()).value.decode())


async def polled(one: Consumer, count: int, seconds: float) -> tuple[list[str], list[Exception]]:
    """Poll on through errors until `count` records are delivered, or the time is over."""
    values: list[str] = []
    errors: list[Exception] = []
    with anyio.move_on_after(seconds):
        while len(values) < count:
            try:
                values.append((await one.getone()).value.decode())
            except KafkaGroupError as error:
                errors.append(error)
                assert len(errors) < 500, "a failed consumer raises at every call"
    return values, errors


# ---------------------------------------------------------------- what the broker did not refuse


@pytest.mark.parametrize("group_id", ["g", None])
@PROTOCOLS
@pytest.mark.parametrize(
    "failure",
    [
        ConnectionError("the vault restarts"),
        TimeoutError("the vault is slow"),
        ConfigurationError("Token.value is no bearer token"),
        AuthenticationError("no ticket"),
        BrokerError(E.UNKNOWN_SERVER_ERROR),
        ExceptionGroup("several", [OSError("x")]),
    ],
    ids=lambda e: type(e).__name__,
)
async def test_a_source_of_credentials_that_fails_once_is_asked_again(
    network: Any, failure: Exception, protocol: Any, group_id: str | None
) -> None:
    """A vault that restarted while a broker did killed the consumer for ever."""
    async with served(network) as on:
        async with on.consumer(group_protocol=protocol, group_id=group_id) as one:
            on.kafka.produce("t", ["1"])
            assert await next_value(one) == "1"
            on.vault.failures = [failure] * 3
            await on.break_connections()
            on.kafka.produce("t", ["2"])
            assert await next_value(one) == "2"
            assert (on.vault.failures, one.health().findings) == ([], ())


async def test_a_token_callback_that_fails_once_is_called_again(network: Any) -> None:
    """Also one that returns what is no token."""
    responses: list[Any] = []

    async def callback() -> Any:
        response = responses.pop(0) if responses else Token("good")
        if isinstance(response, Exception):
            raise response
        return response

    security = Security(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token=callback,
        allow_plaintext_credentials=True,
    )
    async with served(network) as on:
        # The embedded broker knows no tokens: it accepts any mechanism's first message here.
        on.kafka._server._accounts.begin = lambda _: _any_user()  # type: ignore[union-attr]
        on.kafka._server._accounts.mechanisms = ("OAUTHBEARER",)  # type: ignore[union-attr]
        async with on.consumer(security=security) as one:
            on.kafka.produce("t", ["1"])
            assert await next_value(one) == "1"
            responses[:] = [None, OSError("unreachable"), "t0ken"]
            await on.break_connections()
            on.kafka.produce("t", ["2"])
            assert await next_value(one) == "2"
            assert responses == []


def _any_user() -> Any:
    def conversation() -> Any:
        yield b""
        return "ann", b""

    started = conversation()
    next(started)
    return started


async def test_a_lasting_failure_of_the_source_is_reported_and_not_raised(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(network) as on, on.consumer() as one:
        on.kafka.produce("t", ["1"])
        assert await next_value(one) == "1"
        on.vault.lasting = OSError("the vault is closed")
        await on.break_connections()
        with anyio.move_on_after(9):
            await one.getone()
        assert one.health().findings == ()
        with anyio.move_on_after(6):
            await one.getone()
        (finding,) = one.health().findings
        assert finding.problem is HealthProblem.NO_PROGRESS
        assert "kafka-1:9092: PLAIN failed with OSError" in finding.detail
        warned = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert any("PLAIN failed with OSError; check the source of the" in m for m in warned)
        on.vault.lasting = None
        on.kafka.produce("t", ["2"])
        assert await next_value(one) == "2"
        assert one.health().findings == ()


@pytest.mark.parametrize(
    "failure", [OSError("the vault is closed"), ConfigurationError("no bearer token")]
)
async def test_a_consumer_survives_the_end_of_a_session_that_the_source_cannot_renew(
    network: Any, failure: Exception
) -> None:
    """A source whose own error was one of this library's ended the consumer: the long poll in
    flight raised it."""
    async with served(network, connections_max_reauth=60.0) as on, on.consumer() as one:
        on.kafka.produce("t", ["1"])
        assert await next_value(one) == "1"
        on.vault.lasting = failure
        with anyio.move_on_after(90):
            await one.getone()
        on.vault.lasting = None
        on.kafka.produce("t", ["2"])
        assert await next_value(one) == "2"


@pytest.mark.parametrize(
    "failure", [OSError("the vault is closed"), ConfigurationError("no bearer token")]
)
async def test_at_the_first_start_a_failing_source_is_raised(
    network: Any, failure: Exception
) -> None:
    async with served(network, nodes=3) as on:
        on.vault.lasting = failure
        with pytest.raises((AuthenticationError, ConfigurationError)):
            async with on.consumer():
                raise AssertionError
        assert network.open == 0


async def test_calls_of_an_admin_and_a_producer_survive_a_failing_source(network: Any) -> None:
    async with served(network) as on:
        given: Any = {"bootstrap_servers": "kafka-1", "security": on.vault.security}
        async with Admin(**given) as admin, Producer(**given) as producer:
            assert [topic.name for topic in await admin.list_topics()] == ["t"]
            await producer.send("t", b"1")
            for _ in range(2):
                on.vault.failures = [OSError("the vault restarts")] * 2
                await on.break_connections()
                assert len(await admin.list_topics()) == 1
                on.vault.failures = [OSError("the vault restarts")] * 2
                await producer.send("t", b"2")
            on.vault.password = "wrong"
            await on.break_connections()
            began = anyio.current_time()
            with pytest.raises(AuthenticationError, match="Invalid username or password"):
                await admin.list_topics()
            assert anyio.current_time() - began < 1, "not repeated: that could lock the account"
            on.vault.password = "secret"
            assert len(await admin.list_topics()) == 1


# ---------------------------------------------------------------- what the broker refuses


@PROTOCOLS
@pytest.mark.parametrize("group_id", ["g", None])
async def test_a_refusal_is_raised_and_tried_again_when_the_application_polls_on(
    network: Any, protocol: Any, group_id: str | None
) -> None:
    """A broker that started before its user database refused everybody for a moment, and each of
    its consumers had to be restarted."""
    async with served(network) as on:
        async with on.consumer(group_protocol=protocol, group_id=group_id) as one:
            on.kafka.produce("t", ["1"])
            assert await next_value(one) == "1"
            fault = on.kafka.fail(SaslAuthenticateRequest, E.SASL_AUTHENTICATION_FAILED, times=None)
            await on.break_connections()
            on.kafka.produce("t", ["2"])
            with pytest.raises(AuthenticationError) as caught:
                await next_value(one)
            assert caught.value.is_refusal
            hits = fault.hits
            await anyio.sleep(30)
            assert fault.hits == hits < 6, "nothing is tried until the application polls on"
            with pytest.raises(AuthenticationError):
                await next_value(one, 12)
            assert fault.hits > hits
            fault.stop()
            values, errors = await polled(one, 1, 12)
            assert (values, len(errors)) == (["2"], 0)


@PROTOCOLS
async def test_a_client_that_closes_logs_in_once_more_after_a_refusal(
    network: Any, protocol: Any
) -> None:
    """The password was right again, but the application had not polled since: the group waited for
    the end of the member's session, and read again what it had processed."""
    api: Any = LeaveGroupRequest if protocol == "classic" else ConsumerGroupHeartbeatRequest
    async with served(network) as on:
        async with on.consumer(group_protocol=protocol, group_id="g") as one:
            on.kafka.produce("t", ["1"])
            assert await next_value(one) == "1"
            fault = on.kafka.fail(SaslAuthenticateRequest, E.SASL_AUTHENTICATION_FAILED, times=None)
            await on.break_connections()
            with pytest.raises(AuthenticationError):
                await next_value(one)
            fault.stop()
            await anyio.sleep(10)
            before = len(on.kafka.requests(api))
            assert on.kafka.committed("g", "t") == {}
        assert len(on.kafka.requests(api)) > before, "it has left"
        assert on.kafka.committed("g", "t") == {0: 1}


async def test_an_application_that_polls_on_logs_in_less_and_less_often(network: Any) -> None:
    async with served(network) as on, on.consumer(group_id=None) as one:
        await anyio.sleep(1)
        fault = on.kafka.fail(SaslAuthenticateRequest, E.SASL_AUTHENTICATION_FAILED, times=None)
        await on.break_connections()
        values, errors = await polled(one, 1, 120)
        assert values == []
        assert {type(error) for error in errors} == {AuthenticationError}
        assert 10 < fault.hits < 30
        assert 10 < len(errors) < 30


async def test_other_calls_raise_the_refusal_too(network: Any) -> None:
    async with served(network) as on, on.consumer(request_timeout_ms=20_000) as one:
        on.kafka.produce("t", ["1"])
        assert await next_value(one) == "1"
        on.kafka.fail(SaslAuthenticateRequest, E.SASL_AUTHENTICATION_FAILED, times=None)
        await on.break_connections()
        for call in (
            one.commit,
            one.committed,
            lambda: one.end_offsets([TopicPartition("t", 0)]),
            one.getone,
        ):
            with pytest.raises(AuthenticationError), anyio.fail_after(25):
                await call()


@pytest.mark.parametrize("code", [E.UNSUPPORTED_SASL_MECHANISM, E.SASL_AUTHENTICATION_FAILED])
async def test_at_the_first_start_a_refusal_is_fatal(network: Any, code: ErrorCode) -> None:
    async with served(network, nodes=3) as on:
        on.kafka.fail(SaslAuthenticateRequest, code, times=None)
        servers = ["kafka-1", "kafka-2", "kafka-3"]
        with pytest.raises(AuthenticationError):
            async with on.consumer(bootstrap_servers=servers):
                raise AssertionError
        assert network.dialled == [("kafka-1", 9092)]


@pytest.mark.parametrize("group_id", ["g", None])
async def test_one_broker_that_refuses_does_not_end_what_the_others_do(
    network: Any, group_id: str | None
) -> None:
    """One of three brokers had an old password file, and ended every consumer of the cluster."""
    async with served(network, nodes=3, partitions=3) as on:
        async with on.consumer(group_id=group_id) as one:
            for partition in range(3):
                on.kafka.produce("t", [f"{partition}-1"], partition=partition)
            assert sorted((await polled(one, 3, 30))[0]) == ["0-1", "1-1", "2-1"]
            coordinator = None if one.coordinator is None else one.coordinator.node_id
            bad = next(n for n in (1, 2, 3) if n != coordinator)
            led = [p for p in range(3) if on.kafka.leader("t", p) == bad]
            fault = on.kafka.fail(
                SaslAuthenticateRequest,
                E.SASL_AUTHENTICATION_FAILED,
                times=None,
                node_id=bad,
            )
            await on.break_connections()
            for partition in range(3):
                on.kafka.produce("t", [f"{partition}-2"], partition=partition)
            others = [f"{p}-2" for p in range(3) if p not in led]
            values, errors = await polled(one, 3, 9)
            assert (sorted(values), errors) == (others, [])
            values, errors = await polled(one, 1, 30)
            assert (values, [type(error) for error in errors]) == ([], [AuthenticationError])
            findings = {f.problem for f in one.health().findings}
            assert HealthProblem.NO_PROGRESS in findings
            assert fault.hits < 20
            fault.stop()
            values, errors = await polled(one, len(led), 12)
            assert (sorted(values), errors) == ([f"{p}-2" for p in led], [])


async def test_a_foreign_broker_that_refuses_at_a_reused_address_is_not_fatal(
    network: Any,
) -> None:
    """An address was given to a broker of another cluster, which knew no such user. The metadata of
    the other brokers says where the broker is now."""
    foreign = EmbeddedKafka(
        {"t": 3}, listen=False, nodes=3, users={"bob": "x"}, mechanisms=["PLAIN"], seed=7
    )
    async with served(network, nodes=3, partitions=3) as on, foreign:
        async with on.consumer() as one:
            for partition in range(3):
                on.kafka.produce("t", ["1"], partition=partition)
            await polled(one, 3, 30)

            async def serve_foreign(peer: Any) -> None:
                await foreign.handle_stream(peer.stream, 2)

            own = network.handlers["kafka-2", 9092]
            network.handlers["kafka-2", 9092] = serve_foreign
            await on.break_connections()
            on.kafka.produce("t", ["2"], partition=0)
            on.kafka.produce("t", ["2"], partition=1)
            on.kafka.produce("t", ["2"], partition=2)
            led = [p for p in range(3) if on.kafka.leader("t", p) == 2]
            values, errors = await polled(one, 3 - len(led), 9)
            assert (len(values), errors) == (3 - len(led), [])
            network.handlers["kafka-2", 9092] = own
            values, _ = await polled(one, len(led), 30)
            assert len(values) == len(led)
        apis = {seen.api for seen in foreign.requests()}
        assert apis == {ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest}


@PROTOCOLS
async def test_a_session_that_another_user_must_renew_is_replaced(
    network: Any, protocol: Any
) -> None:
    """Brokers refuse to renew a session for another user, such as the next session of a role, and
    close the connection. A new connection is accepted, so nothing is raised."""
    kafka = EmbeddedKafka(
        {"t": 1},
        listen=False,
        users={"ann": "secret", "bob": "secret"},
        mechanisms=["PLAIN"],
        settings=BrokerSettings(connections_max_reauth=10.0),
    )
    async with network, kafka:
        network.serve_embedded(kafka)
        on = Served(kafka, network)
        async with on.consumer(group_protocol=protocol) as one:
            for number in range(6):
                on.vault.user = "bob" if number % 2 else "ann"
                kafka.produce("t", [str(number)])
                assert await next_value(one) == str(number)
                await anyio.sleep(10)
            assert one.health().findings == ()


# ---------------------------------------------------------------- certificates


@attrs.define
class Tls:
    """Serves an embedded broker with TLS, with a context that a test may change."""

    kafka: EmbeddedKafka
    context: ssl.SSLContext

    async def __call__(self, peer: Any) -> None:
        stream = TlsStream(peer.stream, self.context)
        try:
            await stream.do_handshake()
        except ssl.SSLError:
            await stream.aclose()
            return
        await self.kafka.handle_stream(stream, 1)


async def inline(self: WorkerThreads, work: Callable[[], Any]) -> Any:
    await anyio.lowlevel.checkpoint()
    return work()


@asynccontextmanager
async def served_with_tls(network: Any, folder: Path, **given: Any) -> AsyncIterator[Any]:
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    context = authority().server_context(authority().issue("kafka-1"), folder, **given)
    async with network, kafka:
        tls = network.handlers["kafka-1", 9092] = Tls(kafka, context)
        with anyio.fail_after(3_000):
            yield tls


async def break_connections(network: Any) -> None:
    for stream in network.streams:
        await stream.aclose()


async def test_a_wrong_broker_certificate_for_two_seconds_is_survived(
    network: Any, tmp_path: Path
) -> None:
    """A broker served the certificate of its image until its own was mounted."""
    async with served_with_tls(network, tmp_path) as tls:
        security = Security(ssl_ca_pem=authority().pem)
        async with Consumer(
            "t", bootstrap_servers="kafka-1", group_id="g", security=security
        ) as one:
            tls.kafka.produce("t", ["1"])
            assert await next_value(one) == "1"
            right = tls.context
            tls.context = authority().server_context(Authority().issue("kafka-1"), tmp_path)
            await break_connections(network)
            tls.kafka.produce("t", ["2"])
            with anyio.move_on_after(2):
                await one.getone()
                raise AssertionError
            tls.context = right
            assert await next_value(one) == "2"


async def test_at_the_first_start_a_wrong_broker_certificate_is_raised(
    network: Any, tmp_path: Path
) -> None:
    async with served_with_tls(network, tmp_path):
        security = Security(ssl_ca_pem=Authority().pem)
        with pytest.raises(TlsError, match="certificate is refused"):
            async with Consumer("t", bootstrap_servers="kafka-1", security=security):
                raise AssertionError


async def test_renewed_files_are_used_by_the_next_connection(
    network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client presented the certificate of its start until it had expired, and was then dead. A
    refusal is raised; when the files are right and the application polls on, it continues."""
    monkeypatch.setattr(WorkerThreads, "__call__", inline)
    ca, mine = tmp_path / "ca.pem", tmp_path / "me.pem"
    ca.write_text(authority().pem)
    mine.write_text(authority().issue("me@example.org").pem)
    async with served_with_tls(network, tmp_path, mutual=True) as tls:
        security = Security(ssl_ca_location=ca, ssl_certificate_location=mine)
        async with Consumer(
            "t", bootstrap_servers="kafka-1", group_id="g", security=security
        ) as one:
            tls.kafka.produce("t", ["1"])
            assert await next_value(one) == "1"
            new = Authority()
            mine.write_text(new.issue("me@example.org").pem)
            await break_connections(network)
            tls.kafka.produce("t", ["2"])
            with pytest.raises(TlsError, match="the broker refuses the TLS handshake") as caught:
                await next_value(one)
            assert caught.value.is_refusal
            tls.context = new.server_context(new.issue("kafka-1"), tmp_path, mutual=True)
            ca.write_text(authority().pem + new.pem)
            assert (await polled(one, 1, 30))[0] == ["2"]


# ---------------------------------------------------------------- what a group refuses


@pytest.mark.parametrize("code", [E.GROUP_AUTHORIZATION_FAILED, E.UNKNOWN_SERVER_ERROR, 999])
@pytest.mark.parametrize(
    ("protocol", "api"),
    [
        ("classic", HeartbeatRequest),
        ("classic", JoinGroupRequest),
        ("classic", SyncGroupRequest),
        ("classic", FindCoordinatorRequest),
        ("consumer", ConsumerGroupHeartbeatRequest),
        ("consumer", FindCoordinatorRequest),
    ],
)
async def test_a_refused_member_continues_when_the_group_accepts_it_again(
    network: Any, protocol: Any, api: Any, code: int
) -> None:
    """An ACL that was replaced in two steps ended every consumer of the group."""
    async with served(network) as on, on.consumer(group_protocol=protocol) as one:
        on.kafka.produce("t", ["1"])
        assert await next_value(one) == "1"
        fault = on.kafka.fail(api, code, times=None)
        if api is FindCoordinatorRequest:
            one.forget_coordinator()
        elif api is not HeartbeatRequest and protocol == "classic":
            one.rejoin()
        with anyio.fail_after(30), pytest.raises(BrokerError) as caught:
            await one.getone()
        assert caught.value.code == code
        assert isinstance(caught.value, AuthorizationError) == (code == 30)
        values, errors = await polled(one, 1, 55)
        assert values == []
        assert len(errors) <= 1, "once a minute, and the auto-commit's"
        fault.stop()
        on.kafka.produce("t", ["2"])
        values, errors = await polled(one, 1, 60)
        assert (values[-1:], errors) == (["2"], []) or values == ["1"]


@PROTOCOLS
async def test_a_refusal_of_the_first_join_is_fatal(network: Any, protocol: Any) -> None:
    async with served(network) as on:
        api: Any = JoinGroupRequest if protocol == "classic" else ConsumerGroupHeartbeatRequest
        on.kafka.fail(api, E.GROUP_AUTHORIZATION_FAILED)
        async with on.consumer(group_protocol=protocol) as one:
            for _ in range(2):
                with pytest.raises(AuthorizationError), anyio.fail_after(20):
                    await one.getone()


@PROTOCOLS
async def test_a_member_that_was_expelled_is_no_new_one(network: Any, protocol: Any) -> None:
    async with served(network) as on:
        async with on.consumer(group_protocol=protocol, max_poll_interval_ms=6_000) as one:
            on.kafka.produce("t", ["1"])
            assert await next_value(one) == "1"
            await anyio.sleep(10)
            api: Any = JoinGroupRequest if protocol == "classic" else ConsumerGroupHeartbeatRequest
            on.kafka.fail(api, E.GROUP_AUTHORIZATION_FAILED, times=3)
            values, errors = await polled(one, 1, 30)
            assert [getattr(error, "code", error) for error in errors] == [30]
            assert values == ["1"]


async def test_a_refused_group_member_continues(network: Any) -> None:
    protocol = GroupProtocol("x", "x", b"", lambda members: dict.fromkeys(members, b""))
    async with served(network) as on:
        async with GroupMember(
            "g", protocol, bootstrap_servers="kafka-1", security=on.vault.security
        ) as member:
            first = await anext(member)
            fault = on.kafka.fail(HeartbeatRequest, E.GROUP_AUTHORIZATION_FAILED, times=None)
            with pytest.raises(AuthorizationError), anyio.fail_after(20):
                await anext(member)
            fault.stop()
            with anyio.fail_after(60):
                assert await anext(member) is first
            fault = on.kafka.fail(SaslAuthenticateRequest, E.SASL_AUTHENTICATION_FAILED, times=None)
            await on.break_connections()
            with pytest.raises(AuthenticationError), anyio.fail_after(60):
                await anext(member)
            fault.stop()
            with anyio.fail_after(90):
                assert (await anext(member)).member_id


# ---------------------------------------------------------------- other single failures


async def test_a_leader_without_metadata_assigns_what_it_knows(network: Any) -> None:
    """A leader ended when one look-up of another member's topic failed."""
    async with served(network) as on:
        on.kafka.create_topic("other")
        async with on.consumer("t") as leader:
            on.kafka.produce("t", ["1"])
            assert await next_value(leader) == "1"
            assert await leader.getmany() == {}  # the record counts as processed
            fault = on.kafka.fail(
                MetadataRequest,
                Close(before=True),
                times=2,
                when=lambda request: len(request.topics or ()) == 2,
            )
            async with on.consumer("other") as follower:
                on.kafka.produce("other", ["2"])
                assert await next_value(follower, 60) == "2"
                on.kafka.produce("t", ["3"])
                assert await next_value(leader, 60) == "3"
            assert fault.hits == 2


async def test_a_new_topic_has_no_fenced_member_join_again(network: Any) -> None:
    """It would have fenced the process that had taken its place. Its application decides."""
    async with served(network) as on:
        one = on.consumer(group_instance_id="i", metadata_max_age_ms=1_000)
        async with one:
            await one.unsubscribe()
            await one.subscribe(pattern="t.*")
            await one.wait_assignment()
            on.kafka.fail(HeartbeatRequest, E.FENCED_INSTANCE_ID)
            await anyio.sleep(10)
            joins = len(on.kafka.requests(JoinGroupRequest))
            on.kafka.create_topic("t2")
            await anyio.sleep(10)
            assert len(on.kafka.requests(JoinGroupRequest)) == joins
            with pytest.raises(FencedError):
                await one.getone()


@pytest.mark.parametrize("group_id", ["g", None])
async def test_a_pattern_is_applied_once_a_broker_responds(
    network: Any, group_id: str | None
) -> None:
    """A call that changed the subscription raised what the next attempt would not have met."""
    async with served(network) as on:
        on.kafka.create_topic("u1")
        async with on.consumer(group_id=group_id) as one:
            on.kafka.produce("t", ["1"])
            assert await next_value(one) == "1"
            on.vault.lasting = OSError("the vault restarts")
            await on.break_connections()
            await anyio.sleep(1)
            await one.subscribe(pattern="u.*")
            await anyio.sleep(3)
            on.vault.lasting = None
            on.kafka.produce("u1", ["2"])
            assert await next_value(one) == "2"


async def test_a_pattern_without_a_group_survives_a_lost_response(network: Any) -> None:
    """A new topic matched, and the metadata request that followed failed: the consumer ended."""
    async with served(network) as on:
        async with on.consumer(group_id=None, metadata_max_age_ms=1_000) as one:
            await one.unsubscribe()
            await one.subscribe(pattern="t.*")
            await anyio.sleep(10)
            requests = iter(range(1_000))
            on.kafka.fail(
                MetadataRequest,
                Close(before=True),
                times=4,
                when=lambda _: next(requests) > 0,  # the first one finds the topic
            )
            on.kafka.create_topic("t2")
            on.kafka.produce("t2", ["1"])
            assert await next_value(one) == "1"
