"""TLS, SASL and ACLs with three real brokers, and with embedded ones where they support it.

Every test is a canary too: its log, at any level, must not show a password, token or key.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from anyio.to_thread import run_sync
from brokers import FAST, TRIO_IS_LONG, Worker, until
from certificates import Authority, Certificate, authority
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import kafkagroup
from kafkagroup import Consumer, HealthProblem, TopicPartition
from kafkagroup.admin import Admin
from kafkagroup.broker import Broker
from kafkagroup.errors import AuthenticationError, AuthorizationError, KafkaGroupError, TlsError
from kafkagroup.testing import EmbeddedKafka, Listener, LocalKafka
from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.testing.embedded import BrokerSettings
from kafkagroup.transport.sasl.oauthbearer import Token
from kafkagroup.transport.security import InsecureConnectionWarning, Security
from kafkagroup.wire.messages.acls import DescribeAclsRequest
from kafkagroup.wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

pytestmark = pytest.mark.anyio

PASSWORD = "canary in \"ann's\\ mine"
USERS = {"ann": PASSWORD, "bob": "canary of bob's"}
KEY_PASSWORD = "canary on a key"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
TIMEOUT = 15.0
"""Seconds within which an error that is not retriable must be raised."""

SESSION = 1.3
"""Seconds that a session of MORTAL lasts; Kafka refuses to renew one more than once a second."""


@attrs.frozen
class ListenerConfig:
    """The configuration of a listener, for real and for embedded brokers."""

    certificate: Certificate | None = None
    mutual: bool = False
    mechanisms: tuple[str, ...] = ()
    session: float = 0.0


GOOD = authority().issue()
CLIENT = authority().issue("ann@example.org")
LISTENERS = {
    "BARE": ListenerConfig(),
    "TLS": ListenerConfig(GOOD),
    "MUTUAL": ListenerConfig(GOOD, mutual=True),
    "SASL": ListenerConfig(GOOD, mechanisms=("PLAIN", *SCRAM, "OAUTHBEARER")),
    "SASL_BARE": ListenerConfig(mechanisms=("PLAIN", *SCRAM)),
    "ONLY_SCRAM": ListenerConfig(GOOD, mechanisms=SCRAM),
    "MORTAL": ListenerConfig(GOOD, mechanisms=("PLAIN", *SCRAM, "OAUTHBEARER"), session=SESSION),
    "EXPIRED": ListenerConfig(authority().issue(expired=True)),
    "STRANGER": ListenerConfig(Authority().issue()),
    "ELSEWHERE": ListenerConfig(authority().issue("localhost")),
}


class RealBrokers:
    """Three brokers, each with all listeners."""

    kind = "kafka"

    def __init__(self) -> None:
        self.kafka = LocalKafka(
            nodes=3,
            listeners={
                name: Listener(
                    certificate=listener.certificate and listener.certificate.pem,
                    client_ca=authority().pem if listener.mutual else None,
                    mechanisms=listener.mechanisms,
                    settings={"connections.max.reauth.ms": f"{listener.session * 1000:.0f}"},
                )
                for name, listener in LISTENERS.items()
            },
            users=USERS,
            config={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:ann",
                "allow.everyone.if.no.acl.found": "true",
                # Three for each of the listeners would be a hundred.
                "num.network.threads": "1",
            },
        )
        self.kafka.start()
        plain = {"bootstrap.servers": self.kafka.bootstrap_servers}
        self.admin = AdminClient(plain)
        self._producer = Producer({**plain, "linger.ms": 0})

    def servers(self, listener: str) -> str:
        return self.kafka.bootstrap_servers_of(listener)

    def create(self, listener: str, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT)

    def append(self, listener: str, topic: str, partition: int, values: list[str]) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=partition)
        assert self._producer.flush(TIMEOUT) == 0

    def allow(self, user: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
        """Allow an operation. From then on, principals without such a rule are denied."""
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        binding = AclBinding(kind, name, literal, f"User:{user}", "*", operation, allow)
        self.admin.create_acls([binding])[binding].result(TIMEOUT)
        anyio.run(self._wait_enforced, user, kind, name, operation, True)

    def withdraw(self, user: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
        """Withdraw a permission."""
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        rule = AclBindingFilter(kind, name, literal, f"User:{user}", "*", operation, allow)
        self.admin.delete_acls([rule])[rule].result(TIMEOUT)
        anyio.run(self._wait_enforced, user, kind, name, operation, False)

    async def _wait_enforced(
        self, user: str, kind: ResourceType, name: str, operation: AclOperation, is_allowed: bool
    ) -> None:
        """Wait until each broker has a rule, or has it no more: the controller responds before."""
        request = DescribeAclsRequest(
            resource_type_filter=kind.value,
            resource_name_filter=name,
            principal_filter=f"User:{user}",
            host_filter=None,
            operation=operation.value,
            permission_type=AclPermissionType.ALLOW.value,
        )
        for address in self.kafka.bootstrap_servers.split(","):
            host, port = address.rsplit(":", 1)
            async with Broker.open(host, int(port)) as broker:
                with anyio.fail_after(TIMEOUT):
                    while bool((await broker.request(request)).resources) is not is_allowed:
                        await anyio.sleep(0.02)

    def stop(self) -> None:
        self.kafka.stop()


class EmbeddedBrokers:
    """Two brokers behind each listener, separate from those of the other listeners."""

    kind = "embedded"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clusters: dict[str, EmbeddedKafka] = {}

    def brokers_of(self, name: str) -> EmbeddedKafka:
        if name not in self._clusters:
            listener = LISTENERS[name]
            tls = listener.certificate and authority().server_context(
                listener.certificate, self._folder, mutual=listener.mutual
            )
            self._clusters[name] = EmbeddedKafka(
                nodes=2,
                tls=tls,
                users=USERS if listener.mechanisms else None,
                mechanisms=[m for m in listener.mechanisms if m != "OAUTHBEARER"] or SCRAM,
                token_user=user_of if "OAUTHBEARER" in listener.mechanisms else None,
                settings=BrokerSettings(connections_max_reauth=listener.session),
            ).start()
        return self._clusters[name]

    def servers(self, listener: str) -> str:
        return self.brokers_of(listener).bootstrap_servers

    def create(self, listener: str, topic: str, partitions: int) -> None:
        self.brokers_of(listener).create_topic(topic, partitions)

    def append(self, listener: str, topic: str, partition: int, values: list[str]) -> None:
        self.brokers_of(listener).produce(topic, values, partition=partition)

    def stop(self) -> None:
        for cluster in self._clusters.values():
            cluster.stop()


Brokers = RealBrokers | EmbeddedBrokers


@pytest.fixture(scope="module")
def real() -> Iterator[RealBrokers]:
    try:
        made = RealBrokers()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")
    yield made
    made.stop()


@pytest.fixture
def embedded_brokers(tmp_path: Path) -> Iterator[EmbeddedBrokers]:
    made = EmbeddedBrokers(tmp_path)
    yield made
    made.stop()


@pytest.fixture(params=["embedded", "kafka"])
def brokers(request: pytest.FixtureRequest) -> Brokers:
    own = {"embedded": "embedded_brokers", "kafka": "real"}
    return request.getfixturevalue(own[request.param])


# ---------------------------------------------------------------- the canary

_TOKENS: list[str] = []


def _secrets() -> Iterator[str]:
    """Return the secrets in every encoding in which they could appear."""
    for password in (*USERS.values(), KEY_PASSWORD, "canary"):
        yield password
        yield repr(password)[1:-1]
        yield base64.b64encode(password.encode()).decode().rstrip("=")[:-1]
    for key in (GOOD.key, CLIENT.key):
        yield from key.splitlines()[1:-1]
    for token in _TOKENS:
        yield token.split(".")[1]


def shown_in(text: str) -> list[str]:
    return [secret for secret in _secrets() if secret in text]


@pytest.fixture(autouse=True)
def canary(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    _TOKENS.clear()
    with caplog.at_level(logging.DEBUG):
        yield
    records = caplog.get_records("setup") + caplog.get_records("call")
    lines = [f"{logging.Formatter().format(record)} {record.args!r}" for record in records]
    assert shown_in("\n".join(lines)) == []


def checked(error: KafkaGroupError) -> KafkaGroupError:
    """Return the error, after checking that neither it nor the variables in its traceback show a
    secret."""
    seen = [repr(error), str(error)]
    cause: BaseException | None = error
    while cause is not None:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            if Path(frame.f_code.co_filename).is_relative_to(Path(kafkagroup.__file__).parent):
                seen += [f"{name}={value!r}" for name, value in frame.f_locals.items()]
        cause = cause.__cause__ or cause.__context__
    assert shown_in("\n".join(seen)) == []
    return error


# ---------------------------------------------------------------- shared by the tests


def token(lifetime: float = 3600.0) -> Token:
    """An unsigned token, which Kafka's unsecured validator accepts."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": "ann", "iat": now - 60, "exp": now + lifetime})
    text = "".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") + "."
        for part in parts
    )
    _TOKENS.append(text)
    return Token(text)


def user_of(text: str) -> str | None:
    """Return the user of such a token; None once it has expired."""
    payload = text.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims["sub"]) if claims["exp"] > time.time() else None


def security(mechanism: str | None = None, **options: object) -> Security:
    """Return TLS that trusts the tests' CA, with ann's credentials."""
    given: dict[str, object] = {"ssl_ca_pem": authority().pem, "sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        given["sasl_oauthbearer_token"] = token
    elif mechanism is not None:
        given |= {"sasl_username": "ann", "sasl_password": PASSWORD}
    return Security(**(given | options))


def bare(mechanism: str | None = None, **options: object) -> Security:
    protocol = "PLAINTEXT" if mechanism is None else "SASL_PLAINTEXT"
    return security(mechanism, security_protocol=protocol, ssl_ca_pem=None, **options)


@pytest.fixture
def topic() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


async def first_record(
    servers: str, topic: str, security: Security | None, group_id: str | None = None
) -> str:
    """Return the value of the first record. An error must be raised within the timeout."""
    consumer = Consumer(
        topic, bootstrap_servers=servers, group_id=group_id, security=security, **FAST
    )
    with anyio.fail_after(TIMEOUT):
        async with consumer:
            return (await consumer.getone()).value.decode()


async def refused(
    kind: type[KafkaGroupError], servers: str, topic: str, security: Security | None, **options: str
) -> str:
    """Return the consumer's authentication error."""
    with pytest.raises(kind) as raised:
        await first_record(servers, topic, security, **options)
    return str(checked(raised.value))


async def filled(brokers: Brokers, listener: str, topic: str) -> str:
    """Create the topic with one record; return the addresses of the listener."""
    await run_sync(brokers.create, listener, topic, 1)
    await run_sync(brokers.append, listener, topic, 0, ["a record"])
    return brokers.servers(listener)


# ---------------------------------------------------------------- who is let in


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM, "OAUTHBEARER"])
@TRIO_IS_LONG
async def test_a_group_works_with_every_sasl_mechanism(
    brokers: Brokers, topic: str, mechanism: str
) -> None:
    """Two members share the partitions, commit and leave; a later member resumes."""
    await run_sync(brokers.create, "SASL", topic, 4)
    for partition in range(4):
        await run_sync(brokers.append, "SASL", topic, partition, ["early"] * 10)
    options = {"security": security(mechanism)}
    first, second, third = (Worker(brokers.servers("SASL"), topic, **options) for _ in range(3))
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: len(first.seen) == 40)
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 2)
            for partition in range(4):
                await run_sync(brokers.append, "SASL", topic, partition, ["late"] * 10)
            await until(lambda: len(first.seen) + len(second.seen) == 80)
            await second.consumer.stop()
        await first.consumer.stop()
    assert sorted(first.seen + second.seen) == [(p, o) for p in range(4) for o in range(20)]
    await run_sync(brokers.append, "SASL", topic, 3, ["last"])
    async with third.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(third.run)
        await until(lambda: third.seen)
        await third.consumer.stop()
    assert third.seen == [(3, 20)]


@pytest.mark.parametrize("mechanism", SCRAM)
async def test_scram_needs_no_tls(brokers: Brokers, topic: str, mechanism: str) -> None:
    servers = await filled(brokers, "SASL_BARE", topic)
    assert await first_record(servers, topic, bare(mechanism)) == "a record"


async def test_plain_without_tls_needs_an_option(brokers: Brokers, topic: str) -> None:
    servers = await filled(brokers, "SASL_BARE", topic)
    asked = bare("PLAIN", allow_plaintext_credentials=True)
    assert await first_record(servers, topic, asked) == "a record"


async def test_a_ca_is_loaded_from_a_file(brokers: Brokers, topic: str, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text(authority().pem)
    servers = await filled(brokers, "TLS", topic)
    assert await first_record(servers, topic, Security(ssl_ca_location=ca)) == "a record"


async def test_a_custom_ssl_context(brokers: Brokers, topic: str) -> None:
    servers = await filled(brokers, "TLS", topic)
    own = Security(ssl_context=authority().client_context())
    assert await first_record(servers, topic, own) == "a record"


def by_string(_: Path) -> dict[str, object]:
    return {"ssl_certificate_pem": CLIENT.chain, "ssl_key_pem": CLIENT.key}


def by_string_encrypted(_: Path) -> dict[str, object]:
    return {
        "ssl_certificate_pem": CLIENT.chain,
        "ssl_key_pem": CLIENT.key_with(KEY_PASSWORD),
        "ssl_key_password": KEY_PASSWORD,
    }


def by_file(folder: Path) -> dict[str, object]:
    return {"ssl_certificate_location": CLIENT.save(folder)}


def by_files_encrypted(folder: Path) -> dict[str, object]:
    certificate, key = folder / "me.pem", folder / "me.key"
    certificate.write_text(CLIENT.chain)
    key.write_text(CLIENT.key_with(KEY_PASSWORD))
    return {
        "ssl_certificate_location": certificate,
        "ssl_key_location": key,
        "ssl_key_password": KEY_PASSWORD,
    }


@pytest.mark.parametrize("given", [by_string, by_string_encrypted, by_file, by_files_encrypted])
async def test_a_client_certificate_is_accepted(
    brokers: Brokers, topic: str, tmp_path: Path, given: Callable[[Path], dict[str, object]]
) -> None:
    servers = await filled(brokers, "MUTUAL", topic)
    folder = tmp_path / "client"
    folder.mkdir()
    assert await first_record(servers, topic, security(**given(folder))) == "a record"


@pytest.mark.parametrize(
    ("listener", "lax"),
    [
        ("STRANGER", {"enable_ssl_certificate_verification": False}),
        ("EXPIRED", {"enable_ssl_certificate_verification": False}),
        ("ELSEWHERE", {"ssl_endpoint_identification_algorithm": "none"}),
    ],
)
async def test_checks_can_be_switched_off_with_a_warning(
    brokers: Brokers, topic: str, listener: str, lax: dict[str, object]
) -> None:
    servers = await filled(brokers, listener, topic)
    with pytest.warns(InsecureConnectionWarning):
        made = security(**lax)
    assert await first_record(servers, topic, made) == "a record"


# ---------------------------------------------------------------- who is not


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@pytest.mark.parametrize("who", [{"sasl_password": "wrong"}, {"sasl_username": "eve"}])
async def test_wrong_credentials_are_reported_and_not_retried(
    brokers: Brokers, topic: str, mechanism: str, who: dict[str, str]
) -> None:
    """Retries would lock the account on some servers."""
    servers = await filled(brokers, "SASL", topic)
    message = await refused(AuthenticationError, servers, topic, security(mechanism, **who))
    assert mechanism in message or "Invalid username or password" in message
    if isinstance(brokers, EmbeddedBrokers):
        tokens = 1 if mechanism == "PLAIN" or "sasl_username" in who else 2
        assert len(brokers.brokers_of("SASL").requests(SaslAuthenticateRequest)) == tokens


async def test_an_unsupported_mechanism_is_reported(brokers: Brokers, topic: str) -> None:
    """The error lists the supported mechanisms; none of them is used instead."""
    servers = await filled(brokers, "ONLY_SCRAM", topic)
    message = await refused(AuthenticationError, servers, topic, security("PLAIN"))
    assert {"PLAIN", *SCRAM} <= set(re.findall(r"[A-Z]+(?:-[A-Z0-9]+)*", message))


async def test_an_expired_token_is_reported(brokers: Brokers, topic: str) -> None:
    servers = await filled(brokers, "SASL", topic)
    expired = security("OAUTHBEARER", sasl_oauthbearer_token=lambda: token(-30.0))
    message = await refused(AuthenticationError, servers, topic, expired)
    assert message.count('{"status":"invalid_token"}') == 2


@pytest.mark.parametrize(
    ("listener", "reason"),
    [("EXPIRED", "expired"), ("STRANGER", "issuer|self.signed"), ("ELSEWHERE", "127.0.0.1")],
)
async def test_a_broker_without_a_valid_proof_is_refused(
    brokers: Brokers, topic: str, listener: str, reason: str
) -> None:
    servers = await filled(brokers, listener, topic)
    message = await refused(TlsError, servers, topic, security())
    assert re.search(reason, message)


async def test_a_broker_with_a_private_ca_is_refused_by_default(
    brokers: Brokers, topic: str
) -> None:
    servers = await filled(brokers, "TLS", topic)
    await refused(TlsError, servers, topic, Security())


async def test_advertised_addresses_are_checked_like_the_first(
    brokers: Brokers, topic: str
) -> None:
    """The certificate is for localhost, the bootstrap address; the brokers advertise 127.0.0.1."""
    servers = await filled(brokers, "ELSEWHERE", topic)
    message = await refused(TlsError, servers.replace("127.0.0.1", "localhost"), topic, security())
    assert "127.0.0.1" in message


async def test_a_missing_client_certificate_is_reported(brokers: Brokers, topic: str) -> None:
    servers = await filled(brokers, "MUTUAL", topic)
    message = await refused(TlsError, servers, topic, security())
    assert "certificate" in message


async def test_an_untrusted_client_certificate_is_reported(brokers: Brokers, topic: str) -> None:
    servers = await filled(brokers, "MUTUAL", topic)
    stranger = Authority().issue("eve@example.org")
    made = security(ssl_certificate_pem=stranger.chain, ssl_key_pem=stranger.key)
    message = await refused(TlsError, servers, topic, made)
    assert "certificate" in message


@pytest.mark.parametrize("given", [None, bare], ids=["none", "PLAINTEXT"])
async def test_a_plaintext_client_at_a_tls_port_is_reported(
    brokers: Brokers, topic: str, given: Callable[[], Security] | None
) -> None:
    servers = await filled(brokers, "TLS", topic)
    message = await refused(KafkaGroupError, servers, topic, given and given())
    assert "TLS" in message


async def test_a_missing_authentication_is_reported(brokers: Brokers, topic: str) -> None:
    servers = await filled(brokers, "SASL_BARE", topic)
    message = await refused(KafkaGroupError, servers, topic, None)
    assert "SASL" in message


async def test_a_tls_client_at_a_plaintext_port_is_reported(brokers: Brokers, topic: str) -> None:
    servers = await filled(brokers, "BARE", topic)
    message = await refused(KafkaGroupError, servers, topic, security())
    assert "TLS" in message


async def test_authentication_with_a_broker_without_sasl_is_reported(
    brokers: Brokers, topic: str
) -> None:
    servers = await filled(brokers, "TLS", topic)
    message = await refused(AuthenticationError, servers, topic, security("SCRAM-SHA-256"))
    assert "SASL" in message


# ---------------------------------------------------------------- sessions that end


def connections_to(servers: str) -> set[str]:
    """Return our ends of the open connections to these addresses, as Linux lists them."""
    ports = {f"{int(server.rpartition(':')[2]):04X}" for server in servers.split(",")}
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {row[1] for row in rows if row[2].rpartition(":")[2] in ports and row[3] == "01"}


async def consume_for(
    brokers: Brokers, listener: str, topic: str, made: Security, enough: Callable[[], bool]
) -> None:
    """Produce and consume records one by one, over the same connections."""
    await run_sync(brokers.create, listener, topic, 1)
    servers = brokers.servers(listener)
    worker = Worker(servers, topic, security=made, auto_commit_interval_ms=100)
    produced = 0
    async with worker.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)

        async def produce() -> None:
            nonlocal produced
            await run_sync(brokers.append, listener, topic, 0, [str(produced)])
            produced += 1
            await until(lambda: len(worker.seen) == produced)

        await produce()
        await until(lambda: worker.owns == [0])
        worker.story.clear()  # the broker that was asked first may not know the topic yet
        opened = connections_to(servers)
        with anyio.fail_after(30):
            while not enough():
                await produce()
        assert len(opened) >= 2
        assert connections_to(servers) == opened
        await worker.consumer.stop()
    assert worker.seen == [(0, offset) for offset in range(produced)]
    assert worker.story == [("revoked", [0])]


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="connections are not listed")
@pytest.mark.serial  # sessions of 1.3 s are renewed or end
class TestSessions:
    @pytest.mark.parametrize(
        ("anyio_backend", "mechanism"),
        [
            ("asyncio", "PLAIN"),
            ("asyncio", "OAUTHBEARER"),
            ("asyncio", "SCRAM-SHA-256"),
            ("trio", "SCRAM-SHA-256"),
        ],
    )
    async def test_a_session_is_reauthenticated_while_records_arrive(
        self, brokers: Brokers, topic: str, mechanism: str
    ) -> None:
        """Two reauthentications lose no record, no connection and no generation."""
        began = time.monotonic()

        def renewed_twice() -> bool:
            """By what the broker saw, where it tells; else by the time, as it ends what is not."""
            if not isinstance(brokers, EmbeddedBrokers):
                return time.monotonic() - began > 2.5 * SESSION
            embedded = brokers.brokers_of("MORTAL")
            numbers = [seen.connection for seen in embedded.requests(SaslHandshakeRequest)]
            return sum(numbers.count(number) >= 3 for number in set(numbers)) >= 2

        await consume_for(brokers, "MORTAL", topic, security(mechanism), renewed_twice)

    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    async def test_a_session_is_reauthenticated_before_its_token_expires(
        self, real: RealBrokers, topic: str
    ) -> None:
        """The broker has no session limit; each token lasts two seconds."""
        made = security("OAUTHBEARER", sasl_oauthbearer_token=lambda: token(2.0))
        began = time.monotonic()
        await consume_for(real, "SASL", topic, made, lambda: time.monotonic() - began > 5.0)
        assert len(set(_TOKENS)) >= 6


# ---------------------------------------------------------------- who may do what


async def denied(real: RealBrokers, topic: str) -> AuthorizationError:
    """Return the error that bob gets, who may not read this topic or join this group."""
    bob = security("SCRAM-SHA-256", sasl_username="bob", sasl_password=USERS["bob"])
    with pytest.raises(AuthorizationError) as raised:
        await first_record(real.servers("SASL"), topic, bob, group_id=topic)
    error = checked(raised.value)
    assert isinstance(error, AuthorizationError)
    return error


async def test_a_topic_without_describe_permission_is_an_error(
    real: RealBrokers, topic: str
) -> None:
    await filled(real, "SASL", topic)
    await run_sync(real.allow, "ann", ResourceType.TOPIC, topic, AclOperation.ALL)
    error = await denied(real, topic)
    assert (error.resource, error.operation) == (f"topic {topic!r}", "DESCRIBE")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_topic_without_describe_permission_is_warned_about(
    real: RealBrokers, topic: str, protocol: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An application that catches the error and continues would otherwise wait without a
    warning."""
    await filled(real, "SASL", topic)
    await run_sync(real.allow, "ann", ResourceType.TOPIC, topic, AclOperation.ALL)
    bob = security("SCRAM-SHA-256", sasl_username="bob", sasl_password=USERS["bob"])
    consumer = Consumer(
        topic,
        bootstrap_servers=real.servers("SASL"),
        security=bob,
        group_id=topic,
        group_protocol=protocol,
        **FAST,
    )
    said = f"topic '{topic}': it may not be described: TOPIC_AUTHORIZATION_FAILED (29); this client"
    async with consumer:
        with anyio.fail_after(5.0):
            while not any(said in record.getMessage() for record in caplog.records):
                await anyio.sleep(0.05)
        assert HealthProblem.TOPIC in [f.problem for f in consumer.health().findings]
        with pytest.raises(AuthorizationError, match="DESCRIBE on topic"):
            await consumer.end_offsets([TopicPartition(topic, 0)])


async def test_a_topic_without_read_permission_is_an_error(real: RealBrokers, topic: str) -> None:
    await filled(real, "SASL", topic)
    await run_sync(real.allow, "bob", ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    error = await denied(real, topic)
    assert (error.resource, error.operation) == (f"topic {topic!r}", "READ")


async def test_a_group_without_permission_is_an_error(real: RealBrokers, topic: str) -> None:
    await filled(real, "SASL", topic)
    await run_sync(real.allow, "ann", ResourceType.GROUP, topic, AclOperation.READ)
    error = await denied(real, topic)
    assert (error.resource, error.operation) == (f"group {topic!r}", "DESCRIBE")


async def test_a_group_without_read_permission_cannot_be_joined(
    real: RealBrokers, topic: str
) -> None:
    await filled(real, "SASL", topic)
    await run_sync(real.allow, "bob", ResourceType.GROUP, topic, AclOperation.DESCRIBE)
    error = await denied(real, topic)
    assert (error.resource, error.operation) == (f"group {topic!r}", "READ")


async def test_a_group_without_describe_permission_is_an_error(
    real: RealBrokers, topic: str
) -> None:
    await run_sync(real.allow, "ann", ResourceType.GROUP, topic, AclOperation.ALL)
    bob = security("SCRAM-SHA-256", sasl_username="bob", sasl_password=USERS["bob"])
    async with Admin(bootstrap_servers=real.servers("SASL"), security=bob) as admin:
        with pytest.raises(AuthorizationError) as raised, anyio.fail_after(TIMEOUT):
            await admin.describe_group(topic)
    error = raised.value
    assert (error.resource, error.operation) == (f"group {topic!r}", "DESCRIBE")


async def test_an_authorized_user_consumes(real: RealBrokers, topic: str) -> None:
    servers = await filled(real, "SASL", topic)
    await run_sync(real.allow, "bob", ResourceType.TOPIC, topic, AclOperation.READ)
    await run_sync(real.allow, "bob", ResourceType.GROUP, topic, AclOperation.READ)
    bob = security("SCRAM-SHA-512", sasl_username="bob", sasl_password=USERS["bob"])
    assert await first_record(servers, topic, bob, group_id=topic) == "a record"


async def polled(
    consumer: Consumer, until: Callable[[list[str], list[AuthorizationError]], bool]
) -> tuple[list[str], list[AuthorizationError]]:
    """Return the values and the errors of polls, as an application polls that logs errors."""
    values: list[str] = []
    errors: list[AuthorizationError] = []
    with anyio.fail_after(30.0):
        while not until(values, errors):
            try:
                batches = await consumer.getmany(timeout=0.2)
            except AuthorizationError as error:
                errors.append(error)
            else:
                values += [str(r.value, "utf-8") for some in batches.values() for r in some]
    return values, errors


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_topic_whose_permission_is_withdrawn_is_read_on_once_it_is_granted(
    real: RealBrokers, topic: str, protocol: Any
) -> None:
    """The partition was silent until a seek."""
    servers = await filled(real, "SASL", topic)
    for operation in (AclOperation.DESCRIBE, AclOperation.READ):
        await run_sync(real.allow, "bob", ResourceType.TOPIC, topic, operation)
    consumer = Consumer(
        topic,
        bootstrap_servers=servers,
        security=security("SCRAM-SHA-512", sasl_username="bob", sasl_password=USERS["bob"]),
        group_id=topic,
        group_protocol=protocol,
        enable_auto_commit=False,  # a commit needs READ too
        **FAST,
    )
    async with consumer:
        values, errors = await polled(consumer, lambda values, _: bool(values))
        assert (values, errors) == (["a record"], [])

        await run_sync(real.withdraw, "bob", ResourceType.TOPIC, topic, AclOperation.READ)
        refused_at = time.monotonic()
        values, errors = await polled(consumer, lambda _, __: time.monotonic() > refused_at + 6.0)
        assert values == []
        assert [(e.resource, e.operation) for e in errors] == [(f"topic {topic!r}", "READ")]
        (finding,) = consumer.health().findings
        assert (finding.problem, finding.partition) == (HealthProblem.REFUSED, (topic, 0))

        await run_sync(real.append, "SASL", topic, 0, ["another"])
        await run_sync(real.allow, "bob", ResourceType.TOPIC, topic, AclOperation.READ)
        values, errors = await polled(consumer, lambda values, _: bool(values))
        assert (values, errors) == (["another"], [])
        assert consumer.health().healthy


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_whose_group_is_denied_continues_once_it_is_granted(
    real: RealBrokers, topic: str, protocol: Any
) -> None:
    """The member ended, and with it the consumer."""
    servers = await filled(real, "SASL", topic)
    operations = (AclOperation.DESCRIBE, AclOperation.READ)
    for operation in operations:
        await run_sync(real.allow, "bob", ResourceType.GROUP, topic, operation)
    consumer = Consumer(
        topic,
        bootstrap_servers=servers,
        security=security("SCRAM-SHA-512", sasl_username="bob", sasl_password=USERS["bob"]),
        group_id=topic,
        group_protocol=protocol,
        auto_commit_interval_ms=100,
        **FAST,
    )
    async with consumer:
        values, errors = await polled(consumer, lambda values, _: bool(values))
        assert (values, errors) == (["a record"], [])
        began = time.monotonic()
        await polled(consumer, lambda _, __: time.monotonic() > began + 1.0)  # commits

        await run_sync(real.allow, "ann", ResourceType.GROUP, topic, AclOperation.READ)
        for operation in operations:
            await run_sync(real.withdraw, "bob", ResourceType.GROUP, topic, operation)
        began = time.monotonic()
        values, errors = await polled(consumer, lambda _, __: time.monotonic() > began + 6.0)
        assert values == []
        assert {(e.code, e.resource) for e in errors} == {(30, f"group {topic!r}")}
        assert len(errors) <= 2, "of the heartbeat, and perhaps of an auto-commit"

        for operation in operations:
            await run_sync(real.allow, "bob", ResourceType.GROUP, topic, operation)
        await run_sync(real.append, "SASL", topic, 0, ["another"])
        values, errors = await polled(consumer, lambda values, _: bool(values))
        assert (values, errors) == (["another"], [])
        await until(lambda: consumer.health().healthy)


async def test_a_token_source_that_fails_for_a_while_is_asked_again(
    real: RealBrokers, topic: str
) -> None:
    """Of two-second tokens, some renewals find no token, and one an expired one."""
    servers = await filled(real, "SASL", topic)
    failures: list[str] = []
    calls = 0

    def source() -> Token:
        nonlocal calls
        calls += 1
        if failures and failures.pop(0) == "nothing":
            raise OSError("the identity provider restarts")
        return token(2.0)

    consumer = Consumer(
        topic,
        bootstrap_servers=servers,
        security=security("OAUTHBEARER", sasl_oauthbearer_token=source),
        group_id=topic,
        **FAST,
    )
    async with consumer:
        assert (await consumer.getone()).value == b"a record"
        failures += ["nothing"] * 8
        with anyio.fail_after(30):
            while failures:
                await anyio.sleep(0.05)
        before = calls
        await run_sync(real.append, "SASL", topic, 0, ["another"])
        with anyio.fail_after(20):
            assert (await consumer.getone()).value == b"another"
        assert calls >= before
        assert consumer.health().healthy


async def test_a_renewed_client_certificate_is_presented(
    real: RealBrokers, topic: str, tmp_path: Path
) -> None:
    """The certificate of the start was presented for ever."""
    servers = await filled(real, "MUTUAL", topic)
    mine = tmp_path / "me.pem"
    mine.write_text(CLIENT.pem)
    made = Security(ssl_ca_pem=authority().pem, ssl_certificate_location=mine)
    async with Admin(bootstrap_servers=servers, security=made) as admin:
        assert await admin.list_topics()
        mine.write_text(Authority().issue("ann@example.org").pem)
        with pytest.raises(TlsError) as raised:
            async with Admin(bootstrap_servers=servers, security=made):
                raise AssertionError
        assert raised.value.is_refusal
        mine.write_text(authority().issue("ann@example.org").pem)
        async with Admin(bootstrap_servers=servers, security=made) as again:
            assert await again.list_topics()


async def test_offsets_of_a_group_are_read_once_it_is_granted(
    real: RealBrokers, topic: str
) -> None:
    """Its partitions were silent until a seek."""
    servers = await filled(real, "SASL", topic)
    await run_sync(real.allow, "ann", ResourceType.GROUP, topic, AclOperation.ALL)
    consumer = Consumer(
        bootstrap_servers=servers,
        security=security("SCRAM-SHA-512", sasl_username="bob", sasl_password=USERS["bob"]),
        group_id=topic,
        enable_auto_commit=False,
    )
    async with consumer:
        await consumer.assign([TopicPartition(topic, 0)])
        began = time.monotonic()
        values, errors = await polled(consumer, lambda _, __: time.monotonic() > began + 4.0)
        assert values == []
        assert [(e.resource, e.operation) for e in errors] == [(f"group {topic!r}", "DESCRIBE")]
        await run_sync(real.allow, "bob", ResourceType.GROUP, topic, AclOperation.DESCRIBE)
        values, errors = await polled(consumer, lambda values, _: bool(values))
        assert (values, errors) == (["a record"], [])
        assert consumer.health().healthy
