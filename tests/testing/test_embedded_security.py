"""TLS and SASL of the embedded broker: its responses equal those of Apache Kafka.

The tests of `TestAsKafka` run on both. Sockets and time are real; no fixed sleeps.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiokafka import AIOKafkaConsumer
from certificates import Authority, authority
from confluent_kafka import Consumer, KafkaException

import kafkagroup
from kafkagroup.errors import ConfigurationError, ErrorCode
from kafkagroup.testing import EmbeddedKafka, Listener, LocalKafka
from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.testing.embedded import BrokerSettings, Close
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.testing.embedded.sasl import MECHANISMS
from kafkagroup.testing.embedded.scram import SaslError, ScramSecret, scram
from kafkagroup.wire.codec import decode, encode
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from kafkagroup.wire.messages.metadata import ApiVersionsRequest
from kafkagroup.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafkagroup.wire.schema import Request

PASSWORD = "a secret; of \"ann's\\"
USERS = {"ann": PASSWORD, "bob": "another"}
DEADLINE = 20.0
LIFETIME = 1.5
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
ILLEGAL = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())
DENIED = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism"
)

PARTS = "Invalid SASL/PLAIN response: expected 3 tokens, got"
OTHER_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


def client_final(password: str, client_first: str, server_first: str, final: str) -> bytes:
    """Return the client's last message of SCRAM-SHA-256: `final` and its proof."""
    _, salt, iterations = (part[2:] for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password.encode(), base64.b64decode(salt), int(iterations)
    )
    key = hmac.digest(salted, b"Client Key", "sha256")
    signed = f"{client_first},{server_first},{final}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    return f"{final},p=".encode() + proof


class Peer:
    """One connection, byte by byte."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=DEADLINE)
        self.stream = self.socket.makefile("rb")

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def ask(self, request: Request[Any], version: int) -> Any:
        """Return the response; None if the broker closes the connection instead."""
        flexible = version in request.flexible
        head = struct.pack(">hhih", request.api_key, version, 7, -1) + (b"\0" if flexible else b"")
        body = encode(request, version)
        try:
            self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            size = self.stream.read(4)
            if len(size) < 4:
                return None
            frame = self.stream.read(struct.unpack(">i", size)[0])
        except ConnectionError:
            return None
        tags = flexible and not isinstance(request, ApiVersionsRequest)
        return decode(request.response, version, frame, 5 if tags else 4)

    def handshake(self, mechanism: str) -> Any:
        """Kafka does not define the order of the mechanisms."""
        response = self.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
        return response and evolve(response, mechanisms=tuple(sorted(response.mechanisms)))

    def token(self, token: bytes) -> Any:
        return self.ask(SaslAuthenticateRequest(auth_bytes=token), 2)

    def plain(self, user: str = "ann", password: str = PASSWORD) -> Any:
        return self.token(f"\0{user}\0{password}".encode())

    def scram(self, user: str, password: str) -> Any:
        """Return the last response of SCRAM-SHA-256."""
        client_first = f"n={user},r=mine"
        server_first = self.token(f"n,,{client_first}".encode()).auth_bytes.decode()
        final = f"c=biws,{server_first.split(',')[0]}"
        return self.token(client_final(password, client_first, server_first, final))

    @property
    def closed(self) -> bool:
        """Whether the broker has closed the connection, with nothing left to read."""
        return self.stream.read(1) == b""

    @property
    def responses(self) -> bool:
        """Whether an ordinary request succeeds."""
        return bool(self.ask(HEARTBEAT, 4) == HeartbeatResponse(error_code=25))


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[str, str]]:
    listener = Listener(mechanisms=MECHANISMS)
    mortal = Listener(
        mechanisms=MECHANISMS, settings={"connections.max.reauth.ms": f"{LIFETIME * 1000:.0f}"}
    )
    kafka = LocalKafka(
        listeners={"SASL": listener, "MORTAL": mortal},
        users=USERS,
        # Kafka's 100 ms before each refusal.
        config={"connection.failed.authentication.delay.ms": "0"},
    )
    try:
        kafka.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")
    try:
        # Kafka creates the coordinator's topic at the first request, which takes a moment.
        anyio.run(ask_for_a_coordinator, kafka.bootstrap_servers)
        peer = Peer(kafka.address(1))
        deadline = time.monotonic() + DEADLINE
        while not peer.responses:
            assert time.monotonic() < deadline
        peer.close()
        yield kafka.address(1, "SASL"), kafka.address(1, "MORTAL")
    finally:
        kafka.stop()


async def ask_for_a_coordinator(bootstrap: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with kafkagroup.Consumer(bootstrap_servers=bootstrap, group_id="g") as consumer:
            await consumer.committed([kafkagroup.TopicPartition("t", 0)])


@pytest.fixture(scope="module")
def embedded() -> Iterator[tuple[str, str]]:
    settings = BrokerSettings(connections_max_reauth=LIFETIME)
    with (
        EmbeddedKafka(users=USERS) as kafka,
        EmbeddedKafka(users=USERS, settings=settings) as mortal,
    ):
        yield kafka.address(1), mortal.address(1)


@pytest.fixture(params=["embedded", "real"])
def addresses(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.getfixturevalue(request.param)


@pytest.fixture
def peer(addresses: tuple[str, str]) -> Iterator[Peer]:
    peer = Peer(addresses[0])
    yield peer
    peer.close()


@pytest.fixture
def mortal(addresses: tuple[str, str]) -> Iterator[Peer]:
    """Provide a connection to a listener with limited sessions."""
    peer = Peer(addresses[1])
    yield peer
    peer.close()


def accepted(mechanisms: tuple[str, ...] = MECHANISMS) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=mechanisms)


def response(code: int, message: str | None, token: bytes = b"", lifetime_ms: int = 0) -> Any:
    return SaslAuthenticateResponse(
        error_code=code, error_message=message, auth_bytes=token, session_lifetime_ms=lifetime_ms
    )


def failed(message: str) -> Any:
    return response(ErrorCode.SASL_AUTHENTICATION_FAILED, message)


class TestAsKafka:
    @pytest.mark.parametrize(
        ("request_", "version"),
        [(HEARTBEAT, 4), (SaslAuthenticateRequest(auth_bytes=b"\0ann\0a secret"), 2)],
        ids=["heartbeat", "token"],
    )
    def test_nothing_is_answered_before_the_handshake(
        self, peer: Peer, request_: Request[Any], version: int
    ) -> None:
        assert peer.ask(request_, version) is None

    def test_api_versions_may_be_requested_once(self, peer: Peer) -> None:
        assert peer.ask(ApiVersionsRequest(), 2).error_code == 0
        assert peer.ask(ApiVersionsRequest(), 2) is None

    def test_api_versions_may_be_repeated_after_an_unsupported_version(self, peer: Peer) -> None:
        # By hand: it cannot be encoded.
        peer.socket.sendall(struct.pack(">ihhihB", 11, 18, 99, 7, -1, 0))
        (size,) = struct.unpack(">i", peer.stream.read(4))
        assert peer.stream.read(size)[4:6] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
        assert peer.ask(ApiVersionsRequest(), 2).error_code == 0
        assert peer.handshake("PLAIN") == accepted()

    def test_requests_before_authentication_are_limited_in_size(self, peer: Peer) -> None:
        peer.socket.sendall(struct.pack(">i", 524_289))
        assert peer.closed

    def test_plain_accepts_the_right_password(self, peer: Peer) -> None:
        assert peer.handshake("PLAIN") == accepted()
        assert peer.plain() == response(ErrorCode.NONE, "")
        assert peer.responses

    def test_plain_accepts_the_users_own_authorization_id(self, peer: Peer) -> None:
        peer.handshake("PLAIN")
        assert peer.token(f"ann\0ann\0{PASSWORD}".encode()) == response(ErrorCode.NONE, "")
        assert peer.responses

    @pytest.mark.parametrize(
        ("token", "message"),
        [
            ("\0ann\0wrong", "Authentication failed: Invalid username or password"),
            ("\0eve\0wrong", "Authentication failed: Invalid username or password"),
            ("\0\0secret", "Authentication failed: username not specified"),
            ("\0ann\0", "Authentication failed: password not specified"),
            (f"bob\0ann\0{PASSWORD}", OTHER_ID),
            (f"ann\0{PASSWORD}", f"{PARTS} 2"),
            (f"\0ann\0{PASSWORD}\0", f"{PARTS} 4"),
        ],
        ids=["password", "user", "no user", "no password", "authorization id", "two", "four"],
    )
    def test_plain_rejects_a_wrong_password(self, peer: Peer, token: str, message: str) -> None:
        peer.handshake("PLAIN")
        assert peer.token(token.encode()) == failed(message)
        assert peer.closed

    def test_an_unsupported_mechanism_is_rejected(self, peer: Peer) -> None:
        assert peer.handshake("OAUTHBEARER") == SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=MECHANISMS
        )
        assert peer.closed

    @pytest.mark.parametrize("mechanism", MECHANISMS[1:])
    def test_scram_rejects_a_wrong_password(self, peer: Peer, mechanism: str) -> None:
        peer.handshake(mechanism)
        first = peer.token(b"n,,n=ann,r=mine")
        assert first == response(ErrorCode.NONE, "", first.auth_bytes)
        found = re.fullmatch(rb"r=(mine[!-+\--~]{16,}),s=([\w+/=]{16,}),i=4096", first.auth_bytes)
        assert found is not None
        size = 32 if mechanism == "SCRAM-SHA-256" else 64
        proof = base64.b64encode(bytes(size))
        assert peer.token(b"c=biws,r=%b,p=%b" % (found[1], proof)) == failed(
            f"{DENIED} {mechanism}"
        )
        assert peer.closed

    @pytest.mark.parametrize(
        "message",
        [
            b"n,,n=eve,r=mine",
            b"n,a=bob,n=ann",
            b"y,,n=ann,r=mine",
            b"n,,r=mine,n=ann",
            b"",
            b"\xff",
        ],
    )
    def test_scram_rejects_a_malformed_first_message(self, peer: Peer, message: bytes) -> None:
        peer.handshake("SCRAM-SHA-256")
        assert peer.token(message) == failed(f"{DENIED} SCRAM-SHA-256")
        assert peer.closed

    def test_scram_rejects_another_nonce(self, peer: Peer) -> None:
        peer.handshake("SCRAM-SHA-256")
        peer.token(b"n,,n=ann,r=mine")
        proof = base64.b64encode(bytes(32))
        assert peer.token(b"c=biws,r=mine,p=" + proof) == failed(f"{DENIED} SCRAM-SHA-256")

    def test_a_request_during_authentication_is_refused(self, peer: Peer) -> None:
        peer.handshake("SCRAM-SHA-256")
        peer.token(b"n,,n=ann,r=mine")
        illegal = HeartbeatResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        assert peer.ask(HEARTBEAT, 4) == illegal
        assert peer.closed

    def test_authenticating_again_in_the_same_session_is_rejected(self, peer: Peer) -> None:
        peer.handshake("PLAIN")
        peer.plain()
        assert peer.handshake("PLAIN") == ILLEGAL
        assert peer.plain() == response(
            ErrorCode.ILLEGAL_SASL_STATE,
            "SaslAuthenticate request received after successful authentication",
        )
        assert peer.responses

    # Sessions end after LIFETIME, while the test still speaks if the machine is busy.
    @pytest.mark.serial
    def test_a_session_is_reauthenticated(self, mortal: Peer) -> None:
        mortal.handshake("PLAIN")
        alive = response(ErrorCode.NONE, "", lifetime_ms=1500)
        assert mortal.plain() == alive
        assert mortal.handshake("PLAIN") == accepted()
        assert mortal.plain() == alive
        assert mortal.responses

    @pytest.mark.serial
    def test_a_session_cannot_be_reauthenticated_twice_a_second(self, mortal: Peer) -> None:
        for _ in range(2):
            assert mortal.handshake("PLAIN") == accepted()
            assert mortal.plain().error_code == 0
        assert mortal.handshake("PLAIN") == ILLEGAL
        assert mortal.responses

    @pytest.mark.serial
    def test_a_request_during_reauthentication_is_refused(self, mortal: Peer) -> None:
        mortal.handshake("PLAIN")
        mortal.plain()
        mortal.handshake("PLAIN")
        assert mortal.ask(HEARTBEAT, 4) == HeartbeatResponse(error_code=34)
        assert mortal.closed

    @pytest.mark.serial
    def test_a_session_is_reauthenticated_by_its_user_only(self, mortal: Peer) -> None:
        mortal.handshake("PLAIN")
        mortal.plain()
        mortal.handshake("PLAIN")
        assert mortal.plain("bob", "another") == failed(
            "Cannot change principals during re-authentication from User.ann: User.bob"
        )
        assert mortal.closed

    @pytest.mark.serial
    def test_a_session_is_reauthenticated_with_its_mechanism_only(self, mortal: Peer) -> None:
        mortal.handshake("PLAIN")
        mortal.plain()
        assert mortal.handshake("SCRAM-SHA-256") == accepted()
        assert mortal.token(b"n,,n=ann,r=mine") is None

    @pytest.mark.serial
    def test_a_wrong_password_ends_the_session(self, mortal: Peer) -> None:
        mortal.handshake("SCRAM-SHA-256")
        assert mortal.scram("ann", PASSWORD).session_lifetime_ms == LIFETIME * 1000
        mortal.handshake("SCRAM-SHA-256")
        again = DENIED.replace("authentication", "re-authentication")
        assert mortal.scram("ann", "wrong") == failed(f"{again} SCRAM-SHA-256")
        assert mortal.closed

    @pytest.mark.serial
    def test_a_connection_is_closed_after_its_session(self, mortal: Peer) -> None:
        """The expiry is not announced: the next request gets no response."""
        mortal.handshake("PLAIN")
        mortal.plain()
        began = time.monotonic()
        while mortal.responses:
            time.sleep(0.02)
        assert time.monotonic() - began >= LIFETIME - 0.1


class TestTheEmbeddedBrokerAlone:
    def test_without_users_there_is_no_authentication(self) -> None:
        with EmbeddedKafka() as kafka:
            peer = Peer(kafka.address(1))
            assert peer.handshake("PLAIN") == ILLEGAL
            assert peer.responses
            peer.close()

    def test_tokens_without_kafka_headers_are_rejected(self) -> None:
        """They would follow version 0 of the handshake, which is neither supported nor accepted."""
        with EmbeddedKafka(users=USERS) as kafka:
            peer = Peer(kafka.address(1))
            spoken = peer.ask(ApiVersionsRequest(), 2).api_keys
            (handshake,) = (api for api in spoken if api.api_key == SaslHandshakeRequest.api_key)
            assert (handshake.min_version, handshake.max_version) == (1, 1)
            assert peer.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0) is None
            peer.close()

    def test_the_mechanisms_can_be_restricted(self) -> None:
        with EmbeddedKafka(users=USERS, mechanisms=["SCRAM-SHA-512"]) as kafka:
            first, second = Peer(kafka.address(1)), Peer(kafka.address(1))
            assert first.handshake("SCRAM-SHA-512") == accepted(("SCRAM-SHA-512",))
            assert second.handshake("PLAIN") == SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=("SCRAM-SHA-512",)
            )
            first.close()
            second.close()

    @pytest.mark.parametrize("mechanisms", [["GSSAPI"], []])
    def test_unknown_mechanisms_are_refused(self, mechanisms: list[str]) -> None:
        with pytest.raises(ConfigurationError, match="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
            EmbeddedKafka(users=USERS, mechanisms=mechanisms)

    def test_nonces_are_unique(self) -> None:
        with EmbeddedKafka(users=USERS) as kafka:
            responses = set()
            for _ in range(2):
                peer = Peer(kafka.address(1))
                peer.handshake("SCRAM-SHA-256")
                responses.add(peer.token(b"n,,n=ann,r=mine").auth_bytes)
                peer.close()
            assert len(responses) == 2

    def test_scram_iterations_are_configurable(self) -> None:
        with EmbeddedKafka(users=USERS, settings=BrokerSettings(scram_iterations=5000)) as kafka:
            peer = Peer(kafka.address(1))
            peer.handshake("SCRAM-SHA-256")
            assert peer.token(b"n,,n=ann,r=mine").auth_bytes.endswith(b",i=5000")
            peer.close()

    def test_authentication_failures_can_be_injected(self) -> None:
        with EmbeddedKafka(users=USERS) as kafka:
            kafka.fail(SaslAuthenticateRequest, ErrorCode.SASL_AUTHENTICATION_FAILED)
            kafka.fail(SaslHandshakeRequest, Close(), times=1)
            lost, denied, let_in = (Peer(kafka.address(1)) for _ in range(3))
            assert lost.handshake("PLAIN") is None
            denied.handshake("PLAIN")
            assert denied.plain() == response(ErrorCode.SASL_AUTHENTICATION_FAILED, None)
            assert denied.closed
            let_in.handshake("PLAIN")
            assert let_in.plain() == response(ErrorCode.NONE, "")
            assert [seen.connection for seen in kafka.requests(SaslHandshakeRequest)] == [1, 2, 3]
            for peer in (lost, denied, let_in):
                peer.close()

    def test_a_client_without_tls_is_disconnected(self, tmp_path: Path) -> None:
        certificate = authority().issue()
        with EmbeddedKafka(tls=authority().server_context(certificate, tmp_path)) as kafka:
            peer = Peer(kafka.address(1))
            peer.socket.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            # As Java has it: a fatal alert, internal_error.
            assert peer.stream.read() == bytes([21, 3, 3, 0, 2, 2, 80])
            peer.close()
            assert kafka.requests() == []


class TestScram:
    # The example of RFC 7677, section 3.
    SECRET = ScramSecret.of("pencil", "sha256", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    SERVER_FIRST = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    CLIENT_FINAL = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

    def converse(self, first: bytes, *others: bytes) -> list[bytes]:
        conversation = scram({"user": self.SECRET}, "sha256", self.NONCE)
        assert next(conversation) == b""
        responses = [conversation.send(first)]
        for message in others:
            with pytest.raises(StopIteration) as done:
                conversation.send(message)
            user, last = done.value.value
            assert user == "user"
            responses.append(last)
        return responses

    def test_the_example_of_the_standard(self) -> None:
        assert self.converse(self.CLIENT_FIRST, self.CLIENT_FINAL) == [
            self.SERVER_FIRST,
            self.SERVER_FINAL,
        ]

    @pytest.mark.parametrize(
        ("old", "new"), [(b"p=d", b"p=e"), (b"Q=", b""), (b"p=dHzb", b"p="), (b",p=d", b",p=d,x=d")]
    )
    def test_malformed_proofs_are_refused(self, old: bytes, new: bytes) -> None:
        assert old in self.CLIENT_FINAL
        with pytest.raises(SaslError):
            self.converse(self.CLIENT_FIRST, self.CLIENT_FINAL.replace(old, new))

    @pytest.mark.parametrize(
        "final",
        [
            "c=eSws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k1",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO",
        ],
        ids=["binding", "nonce", "half a nonce"],
    )
    def test_the_proof_covers_the_whole_exchange(self, final: str) -> None:
        bare, server_first = self.CLIENT_FIRST.decode()[3:], self.SERVER_FIRST.decode()
        agreed = self.CLIENT_FINAL.decode().rpartition(",p=")[0]
        assert client_final("pencil", bare, server_first, agreed) == self.CLIENT_FINAL
        with pytest.raises(SaslError):
            self.converse(self.CLIENT_FIRST, client_final("pencil", bare, server_first, final))

    def test_names_are_unescaped(self) -> None:
        conversation = scram({"a,b=2C": self.SECRET}, "sha256", self.NONCE)
        next(conversation)
        assert conversation.send(b"n,,n=a=2Cb=3D2C,r=x").startswith(b"r=x%hv")

    def test_the_repr_shows_no_secret(self) -> None:
        shown = repr(self.SECRET)
        assert "key" not in shown
        assert "pencil" not in shown


# ---------------------------------------------------------------- other people's clients


@pytest.mark.asyncio
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_over_tls(tmp_path: Path, mechanism: str) -> None:
    tls = authority().server_context(authority().issue(), tmp_path, mutual=True)
    context = authority().client_context()
    context.load_cert_chain(authority().issue("ann@example.org").save(tmp_path))
    with EmbeddedKafka({"t": 2}, nodes=2, tls=tls, users=USERS) as kafka:
        kafka.produce("t", ["one", "two"])
        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            security_protocol="SASL_SSL",
            ssl_context=context,
            sasl_mechanism=mechanism,
            sasl_plain_username="ann",
            sasl_plain_password=PASSWORD,
        )
        async with asyncio.timeout(DEADLINE):
            await consumer.start()
            assert {(await consumer.getone()).value for _ in range(2)} == {b"one", b"two"}
            await consumer.commit()
            await consumer.stop()
        assert kafka.committed("g", "t") == {0: 1, 1: 1}
        connections = {seen.connection for seen in kafka.requests()}
        assert {seen.connection for seen in kafka.requests(SaslAuthenticateRequest)} == connections


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_over_tls(tmp_path: Path, mechanism: str) -> None:
    tls = authority().server_context(authority().issue(), tmp_path)
    with EmbeddedKafka({"t": 1}, tls=tls, users=USERS) as kafka:
        kafka.produce("t", ["one"])
        options = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.pem": authority().pem,
            "sasl.mechanism": mechanism,
            "sasl.username": "ann",
            "sasl.password": PASSWORD,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
        with Consumer(options) as consumer:
            consumer.subscribe(["t"])
            message = consumer.poll(DEADLINE)
            assert message is not None
            assert message.value() == b"one"
        errors: list[Any] = []
        with Consumer({**options, "sasl.password": "wrong", "error_cb": errors.append}) as consumer:
            with pytest.raises(KafkaException):
                consumer.list_topics(timeout=1.0)
        assert "_AUTHENTICATION" in {error.name() for error in errors}


def test_a_client_without_a_certificate_gets_an_alert(tmp_path: Path) -> None:
    """In TLS 1.3 the client's handshake ends before the broker misses the certificate."""
    tls = authority().server_context(authority().issue(), tmp_path, mutual=True)
    with EmbeddedKafka(tls=tls) as kafka:
        host, _, port = kafka.address(1).rpartition(":")
        with socket.create_connection((host, int(port))) as raw:
            with authority().client_context().wrap_socket(raw, server_hostname=host) as client:
                client.sendall(b"early")
                with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
                    client.recv(1)


def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    stranger = Authority()
    with EmbeddedKafka(tls=stranger.server_context(stranger.issue(), tmp_path)) as kafka:
        host, _, port = kafka.address(1).rpartition(":")
        with socket.create_connection((host, int(port))) as raw:
            with pytest.raises(ssl.SSLCertVerificationError):
                authority().client_context().wrap_socket(raw, server_hostname=host)
        assert kafka.requests() == []
