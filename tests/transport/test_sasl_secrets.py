"""Canaries: no secret appears in a log, repr, pickle, error or traceback.

The secrets are module globals and used inside calls, so a traceback with the variables of every
frame shows them only if the library kept one in a variable.
"""

from __future__ import annotations

import base64
import logging
import pickle
import re
import traceback
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest
from certificates import authority

from kafkagroup import Consumer
from kafkagroup.broker import Broker
from kafkagroup.errors import AuthenticationError, ConfigurationError, KafkaGroupError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.sasl.oauthbearer import OAuthBearer, Token
from kafkagroup.transport.security import Security
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafkagroup.wire.schema import Versions

PASSWORD = "canary-" + "password"
TOKEN = "canary-" + "token"
KEY_PASSWORD = "canary-" + "key-password"
CERTIFICATE = authority().issue("me@example.org")
KEY = CERTIFICATE.key_with(KEY_PASSWORD)

HERE = ("broker", 9092)
SASL = {SaslHandshakeRequest: Versions(0, 1), SaslAuthenticateRequest: Versions(0, 2)}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def canaries() -> list[str]:
    """Return the secrets in all encodings."""
    plain = [PASSWORD, TOKEN, KEY_PASSWORD, *CERTIFICATE.key.split("\n")[1:-2]]
    plain += KEY.split("\n")[1:-2]
    encoded = [base64.b64encode(text.encode()).decode().rstrip("=") for text in plain[:3]]
    return plain + encoded + [text.encode().hex() for text in plain[:3]]


def check(*texts: str) -> None:
    for text in texts:
        found = [canary[:12] + "…" for canary in canaries() if canary in text]
        assert not found, f"{found} in a text of {len(text)} characters"


def formatted(error: BaseException) -> str:
    """Format it as pytest and rich do: with the variables of every frame."""
    whole = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(whole.format()) + repr(error) + repr(error.args) + repr(vars(error))


def token() -> Token:
    return Token(TOKEN, {"id": "1"})


def security(mechanism: str) -> Security:
    if mechanism == "OAUTHBEARER":
        return Security(
            security_protocol="SASL_PLAINTEXT",
            allow_plaintext_credentials=True,
            sasl_mechanism=mechanism,
            sasl_oauthbearer_token=token,
        )
    return Security(
        security_protocol="SASL_PLAINTEXT",
        allow_plaintext_credentials=True,
        sasl_mechanism=mechanism,
        sasl_username="me",
        sasl_password=PASSWORD,
    )


async def inline(work: Callable[[], Any]) -> Any:
    await anyio.lowlevel.checkpoint()
    return work()


def options(mechanism: str) -> ClientOptions:
    return ClientOptions(security=security(mechanism), connect_timeout=3.0, run_in_thread=inline)


def said(auth_bytes: bytes = b"", **fields: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        **{"error_code": 0, "error_message": None, "auth_bytes": auth_bytes, **fields}
    )


def challenge(incoming: Any, tail: str) -> bytes:
    nonce = incoming.request.auth_bytes.rpartition(b",r=")[2].split(b",")[0].decode()
    return f"r={nonce}x,s=QSXCR+Q6sek8bf92,{tail}".encode()


async def silence(peer: Any, incoming: Any) -> None:
    await anyio.sleep_forever()


async def hanging_up(peer: Any, incoming: Any) -> None:
    await peer.stream.aclose()


async def refusing(peer: Any, incoming: Any) -> None:
    await peer.respond(incoming, said(error_code=58, error_message="no"))


async def garbage(peer: Any, incoming: Any) -> None:
    await peer.response_bytes(incoming, b"\0\0\xff\xff\xff\xff\xff\xff")


async def impostor(peer: Any, incoming: Any) -> None:
    await peer.respond(incoming, said(challenge(incoming, "i=4096")))
    await peer.respond(await peer.read(), said(b"v=" + base64.b64encode(bytes(32))))


async def greedy(peer: Any, incoming: Any) -> None:
    await peer.respond(incoming, said(challenge(incoming, "i=2147483648")))


async def dropping_out(peer: Any, incoming: Any) -> None:
    await peer.respond(incoming, said(challenge(incoming, "i=4096")))
    await peer.read()


ENDS = [silence, hanging_up, refusing, garbage, impostor, greedy, dropping_out]


@pytest.mark.anyio
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_failed_authentication_shows_no_secret(
    network: Any, caplog: pytest.LogCaptureFixture, mechanism: str, end: Any
) -> None:
    caplog.set_level(logging.DEBUG)

    async def handler(peer: Any) -> None:
        await peer.handshake(SASL)
        await peer.respond(await peer.read(), SaslHandshakeResponse(error_code=0, mechanisms=()))
        await end(peer, await peer.read())

    network.handlers[HERE] = handler
    async with network:
        with pytest.raises(KafkaGroupError) as caught:
            async with Broker.open(*HERE, options=options(mechanism)):
                raise AssertionError
        check(formatted(caught.value), caplog.text)
        caplog.clear()
        # As a whole client sees and logs it.
        with pytest.raises(KafkaGroupError) as caught:
            async with Consumer(
                "t", bootstrap_servers="broker:9092", security=security("PLAIN")
            ) as consumer:
                await consumer.getone()
        check(formatted(caught.value), caplog.text)


@pytest.mark.anyio
@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
async def test_a_successful_authentication_shows_no_secret(
    network: Any, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    caplog.set_level(logging.DEBUG)
    async with EmbeddedKafka(listen=False, users={"me": PASSWORD}) as kafka, network:
        network.serve_embedded(kafka)
        async with Broker.open("kafka-1", 9092, options=options(mechanism)) as broker:
            await broker.request_metadata()
            check(caplog.text, repr(broker))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_values_show_no_secret(mechanism: str) -> None:
    made = options(mechanism)
    assert made.security is not None
    looked_at = [made, made.security, made.security.mechanism, token()]
    check(*map(repr, looked_at), *map(str, looked_at), *(f"{one}" for one in looked_at))
    check(repr(attrs.asdict(made.security)), repr(attrs.astuple(made.security, recurse=False)))
    for one in looked_at:
        try:
            check(pickle.dumps(one).decode("latin-1"))
        except TypeError as error:
            check(formatted(error))


def test_the_repr_of_a_message_shows_no_secret() -> None:
    """Their fields contain the secret, their repr does not."""
    request = SaslAuthenticateRequest(auth_bytes=f"\0me\0{PASSWORD}".encode())
    response = said(PASSWORD.encode(), session_lifetime_ms=1, error_message="x")
    assert re.sub("[0-9]+", "N", f"{request}; {response}") == (
        "SaslAuthenticateRequest(auth_bytes=<N bytes>);"
        " SaslAuthenticateResponse(error_code=N, error_message='x', auth_bytes=<N bytes>,"
        " session_lifetime_ms=N)"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Security(sasl_password=PASSWORD),
        lambda: Security(sasl_mechanism="PLAIN", sasl_password=PASSWORD),
        lambda: Security(sasl_mechanism="PLAIN", sasl_username="me", sasl_password=f"{PASSWORD}\0"),
        lambda: Security(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="me",
            sasl_password=PASSWORD,
        ),
        lambda: Security(ssl_key_pem=KEY, ssl_key_password=KEY_PASSWORD),
        lambda: Security(ssl_certificate_pem=CERTIFICATE.pem, ssl_key_pem=KEY),
        lambda: Security(
            ssl_certificate_pem=CERTIFICATE.chain, ssl_key_pem=KEY, ssl_key_password=PASSWORD
        ),
        lambda: Security(ssl_certificate_pem=CERTIFICATE.key),
        lambda: Security(ssl_ca_pem=CERTIFICATE.key),
        lambda: Token(f"{TOKEN} "),
        lambda: Token(TOKEN, {"auth": "x"}),
    ],
)
def test_errors_about_options_show_no_secret(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    check(formatted(caught.value))


@pytest.mark.anyio
async def test_a_callback_that_returns_the_bare_token_shows_no_secret() -> None:
    with pytest.raises(ConfigurationError) as caught:
        await OAuthBearer(lambda: TOKEN).authenticate(UnusedExchange())  # type: ignore[arg-type,return-value]
    check(formatted(caught.value))


class UnusedExchange:
    async def send(self, message: bytes) -> bytes:
        raise AssertionError


@pytest.mark.anyio
@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
async def test_a_failed_reauthentication_shows_no_secret(
    network: Any, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    caplog.set_level(logging.DEBUG)

    async def handler(peer: Any) -> None:
        await peer.handshake(SASL)
        for response in (said(session_lifetime_ms=2_000), said(error_code=58)):
            await peer.respond(
                await peer.read(), SaslHandshakeResponse(error_code=0, mechanisms=())
            )
            await peer.respond(await peer.read(), response)
        await anyio.sleep_forever()

    network.handlers[HERE] = handler
    async with network, anyio.create_task_group() as tasks:
        connection = await BrokerConnection.connect(*HERE, options(mechanism), tasks)
        await anyio.sleep(5)
        with pytest.raises(AuthenticationError) as caught:
            await connection.request(MetadataRequest(topics=()), timeout=1)
        await connection.aclose()
    check(formatted(caught.value), caplog.text)


def test_the_check_detects_each_secret() -> None:
    for canary in canaries():
        with pytest.raises(AssertionError):
            check(f"x{canary}x")
