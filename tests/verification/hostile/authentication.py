"""Attacks before authentication: malformed TLS, endless SASL.

The client chooses the mechanism, the server's demands are bounded before they are used, and the
password is in no error and no log, at any level.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from certificates import Authority, authority

from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.metadata import MetadataRequest
from kafkagroup.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from .frames import claim, first, frame_size, pouring
from .honest import Raw, Responses, serving
from .server import Conversation, Wire
from .trial import MEBIBYTE, PASSWORD, Attack

__all__ = ["ATTACKS"]

LIMIT = 64 * 1024
"""Most bytes of a response before authentication."""

SCRAM = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": "alice",
    "sasl_password": PASSWORD,
}
PLAIN = {**SCRAM, "sasl_mechanism": "PLAIN", "allow_plaintext_credentials": True}
BEARER = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_token": PASSWORD,
    "allow_plaintext_credentials": True,
}


# ---------------------------------------------------------------- SASL


def handshake(code: int = 0, *mechanisms: str) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=code, mechanisms=mechanisms or ("SCRAM-SHA-256",))


def said(data: bytes, **fields: Any) -> SaslAuthenticateResponse:
    given = {"error_code": 0, "error_message": None, "auth_bytes": data}
    return SaslAuthenticateResponse(**(given | fields))


def sasl(*messages: Callable[[bytes], object], shaken: object = None) -> Callable[[], Conversation]:
    """Return responses to SaslAuthenticate in order, the last one repeatedly."""

    def authenticate(request: SaslAuthenticateRequest, wire: Wire) -> object:
        turn = wire.asked[SaslAuthenticateRequest]
        return messages[min(turn, len(messages)) - 1](request.auth_bytes)

    responses: Responses = {
        SaslHandshakeRequest: lambda _, __: handshake() if shaken is None else shaken,
        SaslAuthenticateRequest: authenticate,
    }
    return lambda: serving(responses)


def challenge(
    *,
    nonce: str = "{}server",
    salt: str = "c2FsdHNhbHRzYWx0",
    iterations: str = "4096",
    ahead: str = "",
) -> Callable[[bytes], object]:
    """Return SCRAM's server-first-message; `{}` is the client's nonce."""

    def message(client_first: bytes) -> object:
        client = client_first.decode().rpartition(",r=")[2]
        return said(f"{ahead}r={nonce.format(client)},s={salt},i={iterations}".encode())

    return message


def then(data: bytes) -> Callable[[bytes], object]:
    return lambda _: said(data)


def _sasl(name: str, does: Callable[[], Conversation], ends: str, **more: Any) -> Attack:
    security = more.pop("security", SCRAM)
    return Attack(
        name=name,
        family="sasl",
        does=does,
        ends=ends,
        job={"security": security, **more.pop("job", {})},
        **{"client": "open_it", **more},
    )


def _refused(name: str, does: Callable[[], Conversation], reason: str, **more: Any) -> Attack:
    return _sasl(name, does, f"AuthenticationError: HOSTILE: {reason}", **more)


def _rounds(asked: str, shown: str | None = None) -> Attack:
    return _refused(
        f"SCRAM with {shown or asked} iterations",
        sasl(challenge(iterations=asked)),
        f"the server asks for {shown or asked} iterations; 4096 to 1000000 are accepted",
    )


def _session(milliseconds: int) -> Attack:
    return _sasl(
        f"a session of {milliseconds} ms",
        sasl(lambda _: said(b"", session_lifetime_ms=milliseconds), shaken=handshake(0, "PLAIN")),
        "heartbeats [0, 0]",
        client="beat_twice",
        security=PLAIN,
    )


FORGED = "\x1b[31mno\r\nCRITICAL forged"
SHOWN = r"\x1b[31mno\r\nCRITICAL forged"

SASL = (
    _sasl(
        "64 KiB and a byte before authentication",
        lambda: serving({SaslHandshakeRequest: pouring(frame_size(LIMIT + 1), bytes(LIMIT))}),
        claim(LIMIT + 1, LIMIT),
    ),
    _sasl(
        "2 GiB within SCRAM",
        sasl(lambda _: Raw(frame_size(2**31 - 1) + bytes(MEBIBYTE))),
        claim(2**31 - 1, LIMIT),
    ),
    *(_rounds(n) for n in ("2147483648", "1000001", "4095", "0", "-1", "", "1e6")),
    _rounds("9" * 5000, "9999999999999999999…"),
    _refused(
        "SCRAM with 1,000,000 iterations and no proof",
        sasl(challenge(iterations="1000000"), then(b"v=" + b"A" * 43 + b"=")),
        "the server does not know the password: it is not the broker that it claims to be",
    ),
    _refused(
        "SCRAM with an empty salt",
        sasl(challenge(salt="")),
        "the server's salt has 0 bytes; expected 1 to 1024",
    ),
    _refused(
        "SCRAM with a salt of 6,000 bytes",
        sasl(challenge(salt="AAAA" * 2000)),
        "the server's salt has 6000 bytes; expected 1 to 1024",
    ),
    _refused(
        "SCRAM with a salt that is none",
        sasl(challenge(salt="%%%")),
        "the server's message has invalid base64",
    ),
    _refused(
        "SCRAM with another's nonce",
        sasl(challenge(nonce="x{}")),
        "the server's nonce does not continue the client's",
    ),
    _refused(
        "SCRAM with the client's own nonce",
        sasl(challenge(nonce="{}")),
        "the server's nonce does not continue the client's",
    ),
    _refused(
        "SCRAM with an unknown extension",
        sasl(challenge(ahead="m=new,")),
        "the server's message lacks r= or s= or i= in its place",
    ),
    _refused(
        "SCRAM with a message of 60 KB",
        sasl(then(b"r=" * 30_000)),
        "the server's message has 60000 bytes; the limit is 8192",
    ),
    _refused("SCRAM that is not UTF-8", sasl(then(b"\xff")), "the server's message is not UTF-8"),
    _refused(
        "SCRAM with a wrong signature",
        sasl(challenge(), then(b"v=" + b"A" * 43 + b"=")),
        "the server does not know the password: it is not the broker that it claims to be",
    ),
    _refused(
        "SCRAM with an empty signature",
        sasl(challenge(), then(b"v=")),
        "the server does not know the password: it is not the broker that it claims to be",
    ),
    _refused(
        "SCRAM without a signature",
        sasl(challenge(), then(b"")),
        "the server's message lacks v= in its place",
    ),
    _refused(
        "SCRAM that begins anew for ever",
        sasl(challenge()),
        "the server's message lacks v= in its place",
    ),
    _refused(
        "SCRAM with an error that forges",
        sasl(challenge(), then(b"e=" + FORGED.encode())),
        f"the server refuses: {SHOWN}",
    ),
    _sasl(
        "SCRAM that falls silent",
        lambda: serving(
            {
                SaslHandshakeRequest: lambda _, __: handshake(),
                SaslAuthenticateRequest: lambda _, __: None,
            }
        ),
        "RequestTimeoutError: HOSTILE: no...within 1 s",
        job={"connect_timeout": 1.0},
    ),
    _refused(
        "PLAIN offered to a client of SCRAM",
        sasl(then(b""), shaken=handshake(33, "PLAIN")),
        "the broker does not offer SCRAM-SHA-256; sasl_mechanism can be one that it does: PLAIN",
    ),
    _refused(
        "mechanisms with names that forge",
        sasl(then(b""), shaken=handshake(33, FORGED)),
        "the broker does not offer SCRAM-SHA-256; sasl_mechanism can be one that it does: " + SHOWN,
    ),
    _refused(
        "PLAIN's empty answer to SCRAM",
        sasl(then(b""), shaken=handshake(0, "PLAIN")),
        "the server's message lacks r= or s= or i= in its place",
    ),
    _refused(
        "a refusal that forges",
        sasl(lambda _: said(b"", error_code=58, error_message=FORGED)),
        f"the broker refuses user 'alice': SASL_AUTHENTICATION_FAILED (58): {SHOWN}",
    ),
    _refused(
        "a refusal of 30,000 characters",
        sasl(lambda _: said(b"", error_code=58, error_message="A" * 30_000)),
        f"the broker refuses user 'alice': SASL_AUTHENTICATION_FAILED (58): {'A' * 499}…",
    ),
    _refused(
        "a refused token with a reason that forges",
        sasl(then(FORGED.encode()), shaken=handshake(0, "OAUTHBEARER")),
        f"the broker refuses the token: {SHOWN}",
        security=BEARER,
    ),
    *(_session(n) for n in (1, 0, -1, -(2**63), 2**63 - 1)),
)


# ---------------------------------------------------------------- TLS


@cache
def _context(*names: str, expired: bool = False, trusted: bool = True) -> ssl.SSLContext:
    signer = authority() if trusted else Authority()
    with tempfile.TemporaryDirectory() as folder:
        return signer.server_context(signer.issue(*names, expired=expired), Path(folder))


def secure(
    conversation: Conversation, *names: str, **certificate: bool
) -> Callable[[], Conversation]:
    """Run the same within TLS, with a certificate for these hosts, or for the right one."""

    def converse(wire: Wire) -> None:
        wire.start_tls(_context(*names, **certificate))
        conversation(wire)

    return lambda: converse


def _hello(data: bytes, times: int = 1) -> Callable[[], Conversation]:
    """Send these bytes in response to a ClientHello."""

    def conversation(wire: Wire) -> None:
        wire.receive(5)
        for _ in range(times):
            wire.send(data)
        wire.wait_until_left()

    return lambda: conversation


def _tls(name: str, does: Callable[[], Conversation], ends: str, **more: Any) -> Attack:
    return Attack(
        name=name,
        family="tls",
        does=does,
        ends=ends,
        job={"security": {"ssl_ca_pem": authority().pem}, **more.pop("job", {})},
        **{"client": "open_it", **more},
    )


ENDLESS = 1_000_000
"""More than any client reads."""

NO_TLS = "TlsError: HOSTILE: no TLS handshake: ...; is this the port of a TLS listener? ..."
REFUSED = "TlsError: HOSTILE: the broker refuses the TLS handshake: ..."
MISTRUSTED = "TlsError: HOSTILE: the broker's certificate is refused: ..."
CLOSED = "ConnectionLostError: HOSTILE: in the TLS handshake: closed by the broker; ..."


def half_a_hello(wire: Wire) -> None:
    wire.receive(5)
    wire.send(bytes.fromhex("160303007a0200007603"))


def half_a_hello_for_ever(wire: Wire) -> None:
    half_a_hello(wire)
    wire.wait_until_left()


TLS = (
    _tls("HTTP in answer to a ClientHello", _hello(b"HTTP/1.1 400 Bad Request\r\n\r\n"), NO_TLS),
    _tls("Kafka in answer to a ClientHello", _hello(bytes(64)), NO_TLS),
    _tls("a TLS alert in answer", _hello(bytes.fromhex("15030300020228")), REFUSED),
    _tls("endless TLS warnings", _hello(bytes.fromhex("1503030002015a") * 100, ENDLESS), REFUSED),
    _tls("endless changes of cipher", _hello(bytes.fromhex("140303000101") * 100, ENDLESS), NO_TLS),
    _tls(
        "endless requests for a hello",
        _hello(bytes.fromhex("1603034000") + bytes(0x4000), ENDLESS),
        "ConnectionLostError: HOSTILE: no connection within 0.3 s",
        job={"connect_timeout": 0.3},
    ),
    _tls("half a ServerHello, then closed", lambda: half_a_hello, CLOSED),
    _tls(
        "half a ServerHello, then silence",
        lambda: half_a_hello_for_ever,
        "ConnectionLostError: HOSTILE: no connection within 0.3 s",
        job={"connect_timeout": 0.3},
    ),
    _tls(
        "a ClientHello met by silence",
        lambda: lambda wire: wire.wait_until_left(),
        "ConnectionLostError: HOSTILE: no connection within 0.3 s",
        job={"connect_timeout": 0.3},
    ),
    _tls("a ClientHello met by a close", lambda: lambda wire: wire.close(), CLOSED),
    _tls(
        "a certificate for another host",
        secure(serving(), "broker.example"),
        MISTRUSTED.replace("...", "...certificate is not valid for '127.0.0.1'..."),
    ),
    _tls("an expired certificate", secure(serving(), expired=True), MISTRUSTED),
    _tls("a stranger's certificate", secure(serving(), trusted=False), MISTRUSTED),
    _tls(
        "2 GiB claimed within TLS",
        secure(serving({MetadataRequest: pouring(frame_size(2**31 - 1), bytes(MEBIBYTE))})),
        claim(2**31 - 1, 16 * MEBIBYTE),
        client="ask_metadata",
    ),
    _tls(
        "1 MiB and a byte before ApiVersions, within TLS",
        secure(first(frame_size(MEBIBYTE + 1) + bytes(MEBIBYTE))),
        claim(MEBIBYTE + 1, MEBIBYTE),
    ),
    _tls(
        "half an answer within TLS, then silence",
        secure(serving({HeartbeatRequest: lambda _, __: Raw(frame_size(100))})),
        "RequestTimeoutError: HOSTILE: no response to HeartbeatRequest within 0.3 s",
        client="beat_twice",
        job={"request_timeout": 0.3},
    ),
)

ATTACKS = SASL + TLS
