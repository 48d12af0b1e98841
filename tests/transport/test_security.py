"""`Security`: the options that it rejects, its defaults, and TLS over memory."""

from __future__ import annotations

import copy
import os
import pickle
import ssl
import stat
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from anyio.streams.tls import TLSStream
from certificates import Authority, authority

from kafkagroup import Admin, Consumer, Election, GroupMember, GroupProtocol
from kafkagroup.broker import Broker
from kafkagroup.errors import (
    ConfigurationError,
    ConnectionLostError,
    LimitExceededError,
    TlsError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.sasl.oauthbearer import OAuthBearer, Token
from kafkagroup.transport.sasl.plain import Plain
from kafkagroup.transport.sasl.scram import Scram
from kafkagroup.transport.security import InsecureConnectionWarning, Security

HERE = ("kafka.example", 9093)
USER = {"sasl_username": "me", "sasl_password": "word"}


def token() -> Token:
    return Token("t0ken")


# ---------------------------------------------------------------- given options


def test_security_is_safe_by_default() -> None:
    assert Security().security_protocol == "SSL"
    assert Security(sasl_mechanism="PLAIN", **USER).security_protocol == "SASL_SSL"


@pytest.mark.parametrize(
    ("given", "kind", "name"),
    [
        ({"sasl_mechanism": "PLAIN", **USER}, Plain, "PLAIN"),
        ({"sasl_mechanism": "SCRAM-SHA-256", **USER}, Scram, "SCRAM-SHA-256"),
        ({"sasl_mechanism": "SCRAM-SHA-512", **USER}, Scram, "SCRAM-SHA-512"),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token": token},
            OAuthBearer,
            "OAUTHBEARER",
        ),
    ],
)
def test_mechanisms_are_selected_by_name(given: dict[str, Any], kind: type, name: str) -> None:
    mechanism = Security(**given).mechanism
    assert mechanism is not None
    assert (type(mechanism), mechanism.name) == (kind, name)


def test_a_custom_mechanism() -> None:
    class Mine:
        name = "MINE"

        async def authenticate(self, exchange: Any) -> None: ...

    mine = Mine()
    security = Security(sasl_mechanism=mine)
    assert (security.security_protocol, security.mechanism) == ("SASL_SSL", mine)
    assert "sasl_mechanism='MINE'" in repr(security)


CA, ME = authority().pem, authority().issue("me@example.org")
OTHER = Authority()
CONTEXT = ssl.create_default_context(cadata=CA)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"security_protocol": "ssl"}, "security_protocol='ssl'; expected one of PLAINTEXT, SSL, SASL"),
    ({"security_protocol": "SASL_SSL"}, "sasl_mechanism=None; expected one of PLAIN, SCRAM-SHA-2"),
    ({"sasl_mechanism": "GSSAPI"}, "sasl_mechanism='GSSAPI'; expected one of PLAIN, SCRAM-SHA-256"),
    ({"sasl_mechanism": b"PLAIN"}, "sasl_mechanism is of type bytes; expected one of PLAIN, SCRAM"),
    ({"sasl_mechanism": "PLAIN"}, "PLAIN needs sasl_username and sasl_password"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "", "sasl_password": "x"}, "PLAIN needs sasl_us"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "a\0b", "sasl_password": "x"}, "cannot have NUL"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "x\0"}, "cannot have NUL"),
    ({"sasl_mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs sasl_oauthbearer_token"),
    (
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token": token, **USER},
        "sasl_username, sasl_password: no use with OAUTHBEARER",
    ),
    (
        {"sasl_mechanism": "PLAIN", "sasl_oauthbearer_token": token, **USER},
        "sasl_oauthbearer_token: no use with PLAIN",
    ),
    (
        {"sasl_mechanism": "PLAIN", "security_protocol": "SASL_PLAINTEXT", **USER},
        "PLAIN without TLS sends credentials that anyone can read; use SASL_SSL, or a SCRAM",
    ),
    (
        {
            "sasl_mechanism": "OAUTHBEARER",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_oauthbearer_token": token,
        },
        "OAUTHBEARER without TLS sends credentials",
    ),
    (
        {"sasl_mechanism": OAuthBearer(token), "security_protocol": "SASL_PLAINTEXT"},
        "OAUTHBEARER without TLS sends credentials",
    ),
    (
        {"sasl_mechanism": OAuthBearer(token), **USER},
        "sasl_username, sasl_password: no use beside a sasl_mechanism of your own",
    ),
    ({"security_protocol": "SSL", **USER}, "sasl_username, sasl_password: no use; security_protoc"),
    (
        USER,
        (
            "sasl_username, sasl_password: no use; security_protocol is SSL, and there is no"
            " sasl_mechanism: for SASL over TLS give sasl_mechanism, such as 'SCRAM-SHA-512', and n"
        ),
    ),
    (
        {"security_protocol": "PLAINTEXT", "ssl_ca_pem": CA},
        "ssl_ca_pem: no use without TLS; security_protocol is PLAINTEXT",
    ),
    (
        {"security_protocol": "SASL_PLAINTEXT", "ssl_context": CONTEXT, **USER},
        "ssl_context: no use without TLS; security_protocol is SASL_PLAINTEXT",
    ),
    (
        {
            "ssl_context": CONTEXT,
            "ssl_ca_pem": CA,
            "enable_ssl_certificate_verification": False,
            "ssl_endpoint_identification_algorithm": "none",
        },
        "ssl_ca_pem, enable_ssl_certificate_verification, ssl_endpoint_identification_algorithm: n",
    ),
    (
        {"ssl_endpoint_identification_algorithm": ""},
        "ssl_endpoint_identification_algorithm=''; expected 'https' or 'none'",
    ),
    ({"ssl_ca_pem": CA, "ssl_ca_location": "x"}, "ssl_ca_location and ssl_ca_pem: give one of the"),
    ({"ssl_ca_pem": "not PEM"}, "ssl_ca_pem: "),
    ({"ssl_ca_pem": ""}, "ssl_ca_pem: "),
    ({"ssl_ca_location": "/no/such"}, "ssl_ca_location='/no/such': No such file or directory;"),
    (
        {"ssl_ca_pem": "/etc/ssl/ca.pem"},
        "ssl_ca_pem: it has no '-----BEGIN', so it is not PEM; give the name of a file as ssl_ca_l",
    ),
    (
        {"ssl_ca_location": CA},
        "ssl_ca_location: it is a text in PEM, not the name of a file; give it as ssl_ca_pem",
    ),
    (
        {"ssl_certificate_pem": ME.chain, "ssl_key_location": ME.key},
        "ssl_key_location: it is a text in PEM, not the name of a file; give it as ssl_key_pem",
    ),
    ({"ssl_certificate_location": "/no/such"}, "ssl_certificate_location='/no/such': No such fi"),
    ({"ssl_key_pem": ME.key}, "ssl_key needs a certificate beside it"),
    ({"ssl_certificate_pem": ME.chain}, "ssl_certificate and ssl_key: "),
    (
        {"ssl_certificate_pem": ME.chain, "ssl_key_pem": authority().issue().key},
        "ssl_certificate and ssl_key: key values mismatch; expected a certificate in PEM and",
    ),
    (
        {"ssl_certificate_pem": ME.chain, "ssl_key_location": "/no/such"},
        "ssl_key_location='/no/such': No such file or directory; expected a certificate",
    ),
    (
        {"ssl_certificate_pem": ME.chain, "ssl_key_pem": ME.key_with("open")},
        "the key is encrypted; give ssl_key_password",
    ),
    (
        {
            "ssl_certificate_pem": ME.chain,
            "ssl_key_pem": ME.key_with("open"),
            "ssl_key_password": "wrong",
        },
        "ssl_certificate and ssl_key: ",
    ),
]


@pytest.mark.parametrize(
    ("name", "value", "kind", "expected"),
    [
        ("ssl_context", "ca.pem", "str", "an ssl.SSLContext"),
        ("ssl_ca_location", 5, "int", "a string"),
        ("ssl_ca_location", b"ca.pem", "bytes", "a string"),
        ("ssl_ca_pem", CA.encode(), "bytes", "a string"),
        ("ssl_key_password", b"hush", "bytes", "a string"),
        ("enable_ssl_certificate_verification", None, "NoneType", "True or False"),
        ("sasl_username", b"me", "bytes", "a string"),
        ("sasl_password", b"hush", "bytes", "a string"),
        ("sasl_oauthbearer_token", "hush", "str", "a function that returns a Token"),
        ("allow_plaintext_credentials", "false", "str", "True or False"),
    ],
)
def test_values_of_another_type_are_refused(
    name: str, value: Any, kind: str, expected: str
) -> None:
    given: dict[str, Any] = {"sasl_mechanism": "PLAIN", **USER, name: value}
    with pytest.raises(ConfigurationError) as caught:
        Security(**given)
    assert str(caught.value) == f"{name} is of type {kind}; expected {expected}"


@pytest.mark.parametrize(("given", "why"), REFUSED, ids=[why[:60] for _, why in REFUSED])
def test_invalid_security_options_raise(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Security(**given)
    assert str(caught.value).startswith(why) or why in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda security: Consumer("t", security=security),
        lambda security: GroupMember("g", GroupProtocol("t", "n", b"", dict), security=security),
        lambda security: Admin(security=security),
        lambda security: Election("g", security=security),
        lambda security: ClientOptions(security=security),
    ],
    ids=["Consumer", "GroupMember", "Admin", "Election", "ClientOptions"],
)
def test_every_client_accepts_only_a_security_object(make: Callable[[Any], object]) -> None:
    make(Security())
    with pytest.raises(ConfigurationError) as caught:
        make({"sasl_password": "word"})
    assert str(caught.value) == "security is a dict; expected kafkagroup.Security(...) or None"


def test_security_cannot_be_pickled_or_copied() -> None:
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="Security holds secrets and is not pickled"):
            way(Security())


def test_evolve_returns_a_changed_security() -> None:
    before = Security(sasl_mechanism="PLAIN", **USER)
    after = attrs.evolve(before, sasl_mechanism="SCRAM-SHA-256")
    assert isinstance(after.mechanism, Scram)
    assert after.mechanism.password.reveal() == "word"


def test_keys_given_as_text_are_not_written_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    unlink = os.unlink

    def watched(path: str) -> None:
        modes.append(stat.S_IMODE(os.stat(path).st_mode))
        unlink(path)

    monkeypatch.setattr(os, "unlink", watched)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Security(ssl_certificate_pem=ME.chain, ssl_key_pem=ME.key)
    with pytest.raises(ConfigurationError):
        Security(ssl_certificate_pem=ME.chain, ssl_key_pem="-----BEGIN no key")
    assert modes == [0o600] * 4
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- checks that are switched off


@pytest.mark.parametrize(
    ("given", "lax"),
    [
        ({"enable_ssl_certificate_verification": False}, "certificates are not verified"),
        ({"ssl_endpoint_identification_algorithm": "none"}, "host names are not checked"),
        (
            {"ssl_context": ssl._create_unverified_context()},
            "certificates are not verified",
        ),
    ],
)
def test_disabling_a_check_warns_at_the_callers_line(given: dict[str, Any], lax: str) -> None:
    with pytest.warns(InsecureConnectionWarning, match=lax) as caught:
        Security(**given)
    assert [warning.filename for warning in caught] == [__file__]


# ---------------------------------------------------------------- handshakes


@attrs.define
class Listener:
    """A TLS listener in memory; counts the bytes that it receives after the handshake."""

    context: ssl.SSLContext
    names: list[str | None] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        def remember(_: object, name: str | None, __: object) -> None:
            self.names.append(name)

        self.context.sni_callback = remember

    async def __call__(self, peer: Any) -> None:
        await type(peer)(await self.secure(peer.stream)).serve({})

    async def secure(self, stream: Any) -> TLSStream:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self.context.wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                await stream.send(outgoing.read())
                incoming.write(await stream.receive())
            except ssl.SSLError:
                # As Kafka does, and anyio does not: say why.
                await stream.send(outgoing.read())
                raise anyio.EndOfStream from None
            else:
                await stream.send(outgoing.read())
                return TLSStream(stream, False, tls, incoming, outgoing)


@pytest.fixture
def listen(tmp_path: Path) -> Callable[..., Listener]:
    def make(
        name: str = HERE[0],
        *,
        ca: Authority | None = None,
        expired: bool = False,
        mutual: bool = False,
        old: bool = False,
    ) -> Listener:
        certificate = (ca or authority()).issue(name, expired=expired)
        context = authority().server_context(certificate, tmp_path, mutual=mutual)
        if old:
            with warnings.catch_warnings(action="ignore"):
                context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        return Listener(context)

    return make


async def inline(work: Callable[[], Any]) -> Any:
    """Run threads inline: virtual time would not wait for a thread."""
    await anyio.lowlevel.checkpoint()
    return work()


async def connect(network: Any, listener: Any, **given: Any) -> None:
    network.handlers.setdefault(HERE, listener)
    security = Security(**{"ssl_ca_pem": CA, **given})
    options = ClientOptions(security=security, connect_timeout=3.0, run_in_thread=inline)
    async with network, Broker.open(*HERE, options=options) as broker:
        assert broker.connected


@pytest.mark.anyio
async def test_the_certificate_is_checked_against_the_requested_name(
    network: Any, listen: Any
) -> None:
    listener = listen()
    await connect(network, listener)
    assert listener.names == [HERE[0]]


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["pem", "context"])
async def test_a_name_with_a_final_dot_is_resolved_with_it_and_verified_without(
    network: Any, listen: Any, way: str
) -> None:
    """In Kubernetes the dot saves five look-ups, and made each handshake fail."""
    listener = network.handlers["kafka.example.", 9093] = listen()
    given = Security(ssl_ca_pem=CA) if way == "pem" else Security(ssl_context=CONTEXT)
    options = ClientOptions(security=given, connect_timeout=3.0, run_in_thread=inline)
    async with network, Broker.open("kafka.example.", 9093, options=options) as broker:
        assert broker.address == ("kafka.example.", 9093)
    assert (network.dialled, listener.names) == ([("kafka.example.", 9093)], ["kafka.example"])
    with pytest.raises(ConnectionLostError):
        async with Broker.open(".", 9093, options=options):
            raise AssertionError


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["file", "directory", "context"])
async def test_certificates_of_a_given_ca_are_accepted(
    network: Any, listen: Any, tmp_path: Path, way: str
) -> None:
    (tmp_path / "ca").mkdir()
    path = tmp_path / "ca" / "ca.pem"
    path.write_text(CA)
    if way == "directory":
        os.symlink(path, path.parent / f"{subject_hash(path)}.0")
    given: dict[str, Any] = {
        "file": {"ssl_ca_location": path},
        "directory": {"ssl_ca_location": path.parent},
        "context": {"ssl_context": CONTEXT},
    }[way]
    await connect(network, listen(), ssl_ca_pem=None, **given)


def subject_hash(path: Path) -> str:
    import subprocess

    command = ["openssl", "x509", "-noout", "-subject_hash", "-in", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.anyio
async def test_a_client_certificate_is_presented(network: Any, listen: Any, tmp_path: Path) -> None:
    chain, key = tmp_path / "me.pem", tmp_path / "me.key"
    chain.write_text(ME.chain)
    key.write_text(ME.key_with("open"))
    both = tmp_path / "both.pem"
    both.write_text(ME.pem)
    for given in (
        {"ssl_certificate_pem": ME.chain, "ssl_key_pem": ME.key},
        {"ssl_certificate_pem": ME.pem},
        {"ssl_certificate_location": both},
        {"ssl_certificate_location": chain, "ssl_key_location": key, "ssl_key_password": "open"},
        {"ssl_certificate_location": chain, "ssl_key_pem": ME.key},
    ):
        await connect(network, listen(mutual=True), **given)


REFUSES = "the broker refuses the TLS handshake"
STRANGE = OTHER.issue("me@example.org").pem


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "server", "given", "why"),
    [
        (
            HERE[0],
            {"ca": OTHER},
            {},
            "the broker's certificate is refused: unable to get local issuer certificate; give the",
        ),
        (
            "other.example",
            {},
            {},
            "the broker's certificate is refused: Hostname mismatch, certificate is not valid for",
        ),
        (
            HERE[0],
            {"expired": True},
            {},
            "the broker's certificate is refused: certificate has expired; give the CA",
        ),
        (HERE[0], {"mutual": True}, {}, f"{REFUSES}: tlsv13 alert certificate required; it may"),
        (
            HERE[0],
            {"mutual": True},
            {"ssl_certificate_pem": STRANGE},
            f"{REFUSES}: tlsv1 alert unknown ca; it may want another ssl_certificate and ssl_key",
        ),
        (
            HERE[0],
            {"old": True},
            {},
            f"{REFUSES}: ",
        ),
    ],
    ids=["other authority", "other name", "expired", "no certificate", "another's", "old TLS"],
)
async def test_a_failed_handshake_explains_the_cause(
    network: Any, listen: Any, name: str, server: dict[str, Any], given: dict[str, Any], why: str
) -> None:
    with pytest.raises(TlsError) as caught:
        await connect(network, listen(name, **server), **given)
    assert str(caught.value).startswith(f"kafka.example:9093: {why}")
    assert network.open == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    "given",
    [
        {"enable_ssl_certificate_verification": False, "ssl_ca_pem": None},
        {"ssl_endpoint_identification_algorithm": "none"},
    ],
)
async def test_disabled_checks_are_not_performed(
    network: Any, listen: Any, given: dict[str, Any]
) -> None:
    ca = OTHER if "ssl_ca_pem" in given else None
    with pytest.warns(InsecureConnectionWarning):
        await connect(network, listen("other.example", ca=ca), **given)


@pytest.mark.anyio
async def test_advertised_brokers_are_checked_with_the_same_policy(
    network: Any, listen: Any
) -> None:
    """A bootstrap server must not direct the client to a broker without a valid certificate."""
    async with EmbeddedKafka(listen=False) as kafka, network:
        for host, name in (("boot", "boot"), ("kafka-1", "somebody.else")):
            listener = listen(name)

            async def serve(peer: Any, listener: Any = listener) -> None:
                await kafka.handle_stream(await listener.secure(peer.stream), 1)

            network.handlers[host, 9092] = serve
        security = Security(ssl_ca_pem=CA)
        kafka.create_topic("t")
        consumer = Consumer("t", bootstrap_servers="boot:9092", security=security)
        with pytest.raises(TlsError, match=r"kafka-1:9092: .* not valid for 'kafka-1'"):
            async with consumer:
                await consumer.getone()


@pytest.mark.anyio
async def test_tls_to_a_plaintext_port_is_an_error(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.stream.receive()
        await peer.stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await anyio.sleep_forever()

    with pytest.raises(TlsError, match=r"9093: no TLS handshake: .*; is this the port of a TLS li"):
        await connect(network, handler)
    assert network.open == 0


@pytest.mark.anyio
async def test_plaintext_to_a_tls_port_is_an_error(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.stream.receive()
        await peer.stream.send(b"\x15\x03\x03\x00\x02\x02\x0a")  # an alert: unexpected message

    network.handlers[HERE] = handler
    async with network:
        with pytest.raises(LimitExceededError, match="the listener speaks TLS: set security"):
            async with Broker.open(*HERE):
                raise AssertionError


@pytest.mark.anyio
@pytest.mark.parametrize("cut", [0, 1, 20])
async def test_an_interrupted_handshake_is_retriable(network: Any, cut: int) -> None:
    async def handler(peer: Any) -> None:
        await peer.stream.receive()
        await peer.stream.send((b"\x16\x03\x03\x00\xff" + bytes(20))[:cut])

    with pytest.raises(ConnectionLostError, match=r"kafka.example:9093: in the TLS handshake: cl"):
        await connect(network, handler)
    assert network.open == 0


@pytest.mark.anyio
async def test_a_hanging_handshake_times_out(network: Any) -> None:
    async def handler(peer: Any) -> None:
        await anyio.sleep_forever()

    with pytest.raises(ConnectionLostError, match=r"no connection within 3.0 s"):
        await connect(network, handler)
    assert network.open == 0


@pytest.mark.anyio
@pytest.mark.parametrize("host", ["", ".", "a\0b", "x" * 300, "a..b", "\ud800", "é" * 80])
async def test_an_invalid_host_name_is_a_retriable_error(network: Any, host: str) -> None:
    """Names also come from brokers: any invalid one is one error that is not fatal."""
    network.handlers[host, 9093] = lambda peer: peer.stream.receive()
    options = ClientOptions(security=Security(ssl_ca_pem=CA), connect_timeout=3.0)
    async with network:
        with pytest.raises(ConnectionLostError) as caught:
            async with Broker.open(host, 9093, options=options):
                raise AssertionError
        assert str(caught.value).isprintable()
        assert network.open == 0


@pytest.mark.anyio
async def test_the_systems_certificates_are_loaded_in_a_thread(
    network: Any, listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading takes about 20 ms, and is done once; each connection compares the files."""
    read: list[ssl.SSLContext] = []
    work: list[str] = []

    def load(context: ssl.SSLContext) -> None:
        read.append(context)
        context.load_verify_locations(cadata=CA)

    async def run_in_thread(job: Callable[[], Any]) -> Any:
        work.append(job.__name__)
        await anyio.lowlevel.checkpoint()
        return job()

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    network.handlers[HERE] = listen()
    options = ClientOptions(security=Security(), run_in_thread=run_in_thread)
    async with network:
        for _ in range(2):
            async with Broker.open(*HERE, options=options):
                pass
    assert (len(read), work) == (1, ["renew", "renew"])
