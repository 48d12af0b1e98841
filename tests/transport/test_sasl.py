"""The SASL mechanisms without a connection: their messages, and the servers that they reject."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from kafkagroup.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionLostError,
    KafkaGroupError,
)
from kafkagroup.transport.sasl import Mechanism
from kafkagroup.transport.sasl.conversation import authenticate
from kafkagroup.transport.sasl.oauthbearer import OAuthBearer, Token
from kafkagroup.transport.sasl.plain import Plain
from kafkagroup.transport.sasl.scram import Conversation, Scram
from kafkagroup.transport.sasl.secret import Secret
from kafkagroup.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

pytestmark = pytest.mark.anyio

PENCIL = Secret("pencil")


@attrs.define
class Script:
    """A broker that sends these responses in order, whatever the requests are."""

    responses: list[bytes | SaslAuthenticateResponse] = attrs.field(factory=list)
    offered: tuple[str, ...] = ()
    handshake_error: int = 0
    received: list[Any] = attrs.field(factory=list)

    async def __call__(self, request: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        if isinstance(request, SaslHandshakeRequest):
            self.received.append(request.mechanism)
            return SaslHandshakeResponse(error_code=self.handshake_error, mechanisms=self.offered)
        assert isinstance(request, SaslAuthenticateRequest)
        self.received.append(request.auth_bytes)
        found = self.responses.pop(0)
        return response(found) if isinstance(found, bytes) else found


def response(auth_bytes: bytes = b"", **fields: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        **{"error_code": 0, "error_message": None, "auth_bytes": auth_bytes, **fields}
    )


async def inline(work: Callable[[], Any]) -> Any:
    await anyio.lowlevel.checkpoint()
    return work()


async def log_in(mechanism: Mechanism, script: Script) -> float:
    return await authenticate(mechanism, "broker", script, inline)


async def refused(mechanism: Mechanism, *responses: bytes | SaslAuthenticateResponse) -> str:
    with pytest.raises(AuthenticationError) as caught:
        await log_in(mechanism, Script(list(responses)))
    return str(caught.value)


# ---------------------------------------------------------------- the flow around them


async def test_plain_sends_user_and_password_and_returns_the_session_lifetime() -> None:
    script = Script([response(session_lifetime_ms=3_600_000)])
    assert await log_in(Plain("me", Secret("word")), script) == 3600.0
    assert script.received == ["PLAIN", b"\0me\0word"]


async def test_the_server_cannot_choose_the_mechanism() -> None:
    """A server that offers only PLAIN gets no credentials."""
    script = Script(offered=("PLAIN", "GSSAPI\x1b[2J", "x" * 600), handshake_error=33)
    with pytest.raises(AuthenticationError) as caught:
        await log_in(Scram("SCRAM-SHA-256", "me", PENCIL), script)
    assert script.received == ["SCRAM-SHA-256"]
    text = str(caught.value)
    assert text.startswith("the broker does not offer SCRAM-SHA-256; sasl_mechanism can be one")
    assert ": PLAIN, GSSAPI\\x1b[2J, xxx" in text
    assert text.endswith("xx…")
    assert len(text) < 650


async def test_a_listener_without_sasl_is_an_error() -> None:
    with pytest.raises(AuthenticationError, match="does not use SASL: leave sasl_mechanism out"):
        await log_in(Plain("me", Secret("word")), Script(handshake_error=34))


async def test_an_authentication_error_contains_the_brokers_message() -> None:
    refusal = response(error_code=58, error_message="bad\ncredentials \x1b[31m" + "!" * 1000)
    text = await refused(Plain("me", Secret("word")), refusal)
    assert text.startswith(
        "the broker refuses user 'me': SASL_AUTHENTICATION_FAILED (58):"
        " bad\\ncredentials \\x1b[31m!!!"
    )
    assert len(text) < 600


@pytest.mark.parametrize("lifetime", [0, -1, -(2**63)])
async def test_a_session_lifetime_of_zero_means_no_limit(lifetime: int) -> None:
    assert await log_in(Plain("me", PENCIL), Script([response(session_lifetime_ms=lifetime)])) == 0


async def test_the_error_of_a_mechanism_is_the_cause_and_not_in_the_message() -> None:
    class Broken:
        name = "BROKEN"

        async def authenticate(self, exchange: Any) -> None:
            raise ValueError("a secret")

    with pytest.raises(AuthenticationError) as caught:
        await log_in(Broken(), Script())
    assert str(caught.value) == "BROKEN failed with ValueError"
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_mechanism_may_raise_a_retriable_error() -> None:
    class Away:
        name = "AWAY"

        async def authenticate(self, exchange: Any) -> None:
            raise ConnectionLostError(f"no ticket for {exchange.host}")

    with pytest.raises(ConnectionLostError, match="no ticket for broker"):
        await log_in(Away(), Script())


async def test_plain_rejects_a_challenge() -> None:
    assert await refused(Plain("me", PENCIL), b"go on") == (
        "the broker's response to PLAIN is not empty"
    )


# ---------------------------------------------------------------- SCRAM

VECTORS = [
    pytest.param(
        "sha1",
        "fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        id="RFC 5802",
    ),
    pytest.param(
        "sha256",
        "rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        id="RFC 7677",
    ),
]


@pytest.mark.parametrize(("algorithm", "nonce", "server_first", "final", "server_final"), VECTORS)
def test_the_example_exchanges_of_the_standards(
    algorithm: str, nonce: str, server_first: str, final: str, server_final: str
) -> None:
    talk = Conversation(algorithm, "user", PENCIL, nonce)
    assert talk.first() == f"n,,n=user,r={nonce}".encode()
    challenge = talk.take_challenge(server_first.encode())
    assert talk.final(talk.salted_password(*challenge)) == final.encode()
    talk.check(server_final.encode())
    with pytest.raises(AuthenticationError, match="does not know the password"):
        talk.check(b"v=" + base64.b64encode(b"\0" * 32))


def test_commas_and_equals_signs_in_names_are_escaped() -> None:
    assert Conversation("sha256", "a=b,c", PENCIL, "nonce").first() == b"n,,n=a=3Db=2Cc,r=nonce"


def test_unknown_attributes_after_the_known_ones_are_skipped() -> None:
    talk = Conversation("sha256", "user", PENCIL, "n")
    assert talk.take_challenge(b"r=nx,s=QSXCR+Q6sek8bf92,i=4096,future=1")[1] == 4096


SALT = base64.b64encode(b"0123456789abcdef").decode()
HOSTILE = {
    "2^31 iterations": (f"r=nx,s={SALT},i=2147483648", "asks for 2147483648 iterations; 4096 to"),
    "one too many": (f"r=nx,s={SALT},i=1000001", "asks for 1000001 iterations; 4096 to 1000000"),
    "one too few": (f"r=nx,s={SALT},i=4095", "asks for 4095 iterations; 4096 to 1000000 are"),
    "none": (f"r=nx,s={SALT},i=0", "asks for 0 iterations"),
    "negative": (f"r=nx,s={SALT},i=-4096", "asks for -4096 iterations"),
    "a number to choke on": (f"r=nx,s={SALT},i={'9' * 5000}", "asks for 9999999999999999999… it"),
    "no number": (f"r=nx,s={SALT},i=4e3", "asks for 4e3 iterations"),
    "a number in other digits": (f"r=nx,s={SALT},i=²", "asks for ² iterations"),
    "no salt": ("r=nx,s=,i=4096", "salt has 0 bytes; expected 1 to 1024"),
    "much salt": (
        f"r=nx,s={base64.b64encode(bytes(1025)).decode()},i=4096",
        "salt has 1025 bytes; expected 1 to 1024",
    ),
    "garbage for salt": ("r=nx,s=?!,i=4096", "invalid base64"),
    "other letters for salt": ("r=nx,s=é,i=4096", "invalid base64"),
    "another nonce": (f"r=x,s={SALT},i=4096", "nonce does not continue the client's"),
    "a nonce of the client's alone": (f"r=n,s={SALT},i=4096", "nonce does not continue"),
    "no nonce": (f"s={SALT},i=4096", "lacks r= or s= or i= in its place"),
    "another order": (f"s={SALT},r=nx,i=4096", "lacks r= or s= or i= in its place"),
    "an extension that must be understood": (f"m=x,r=nx,s={SALT},i=4096", "lacks r="),
    "nothing": ("", "lacks r="),
    "very much": ("r=n" + "x" * 8192, "has 8195 bytes; the limit is 8192"),
    "no text": (b"r=n\xff", "is not UTF-8"),
}


@pytest.mark.parametrize(("message", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_malformed_challenge_is_an_error(message: str | bytes, why: str) -> None:
    talk = Conversation("sha256", "user", PENCIL, "n")
    with pytest.raises(AuthenticationError) as caught:
        talk.take_challenge(message if isinstance(message, bytes) else message.encode())
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"e=unknown-user\x07", "the server refuses: unknown-user\\x07"),
        (b"", "lacks v= in its place"),
        (b"v=", "does not know the password"),
        (b"v=?", "invalid base64"),
    ],
)
def test_a_malformed_final_message_is_an_error(message: bytes, why: str) -> None:
    talk = Conversation("sha256", "user", PENCIL, "n")
    talk.final(talk.salted_password(*talk.take_challenge(f"r=nx,s={SALT},i=4096".encode())))
    with pytest.raises(AuthenticationError) as caught:
        talk.check(message)
    assert why in str(caught.value)


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_each_exchange_has_a_new_nonce(name: str) -> None:
    script = Script([b"no", b"no"])
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            await log_in(Scram(name, "me", PENCIL), script)
    assert script.received[0] == name
    nonces = {first.rpartition(b",r=")[2] for first in script.received[1::2]}
    assert [len(nonce) for nonce in nonces] == [32, 32]


async def test_keys_are_derived_off_the_loop() -> None:
    """A server may demand half a second of computing: heartbeats must not wait for it."""
    work: list[Callable[[], Any]] = []

    class Nonce:
        async def __call__(self, request: Any) -> Any:
            if isinstance(request, SaslHandshakeRequest):
                return SaslHandshakeResponse(error_code=0, mechanisms=())
            nonce = request.auth_bytes.rpartition(b",r=")[2].decode()
            return response(f"r={nonce}x,s={SALT},i=1000000".encode())

    async def never(job: Callable[[], Any]) -> Any:
        work.append(job)
        await anyio.sleep_forever()

    with anyio.move_on_after(1):
        await authenticate(Scram("SCRAM-SHA-512", "me", PENCIL), "broker", Nonce(), never)
    assert len(work) == 1


# ---------------------------------------------------------------- OAUTHBEARER


def bearer(value: str = "t0ken", **extensions: str) -> OAuthBearer:
    return OAuthBearer(lambda: Token(value, extensions))


async def test_the_token_and_its_extensions_are_sent() -> None:
    script = Script([b""])
    await log_in(bearer(logicalCluster="lkc-1", pool="p 2"), script)
    assert script.received == [
        "OAUTHBEARER",
        b"n,,\x01auth=Bearer t0ken\x01logicalCluster=lkc-1\x01pool=p 2\x01\x01",
    ]


async def test_the_token_callback_is_called_each_time_and_may_be_a_coroutine() -> None:
    numbers = iter(range(9))

    async def token() -> Token:
        await anyio.sleep(1)
        return Token(f"token-{next(numbers)}")

    script = Script([b"", b""])
    for _ in range(2):
        await log_in(OAuthBearer(token), script)
    assert script.received[1::2] == [
        b"n,,\x01auth=Bearer token-0\x01\x01",
        b"n,,\x01auth=Bearer token-1\x01\x01",
    ]


async def test_a_rejected_token_is_an_error() -> None:
    """RFC 7628, 3.2.3: the server sends the reason first, and fails after the client's response."""
    script = Script([b'{"status":"invalid_token"}\n', response(error_code=58, error_message="no")])
    with pytest.raises(AuthenticationError) as caught:
        await log_in(bearer(), script)
    assert script.received[-1] == b"\x01"
    assert str(caught.value) == (
        'the broker refuses the token: {"status":"invalid_token"}\\n:'
        " the broker refuses: SASL_AUTHENTICATION_FAILED (58): no"
    )


async def test_a_success_after_a_token_error_is_still_an_error() -> None:
    assert await refused(bearer(), b"{\xff}", b"") == "the broker refuses the token: {\ufffd}"


async def test_an_error_of_the_token_callback_is_the_cause() -> None:
    def fails() -> Token:
        raise LookupError("the vault is closed")

    with pytest.raises(AuthenticationError, match=r"^OAUTHBEARER failed with LookupError$") as e:
        await log_in(OAuthBearer(fails), Script())
    assert str(e.value.__cause__) == "the vault is closed"


async def test_a_token_callback_that_returns_a_string_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="returned a str; expected a Token"):
        await log_in(OAuthBearer(lambda: "t0ken"), Script())  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("value", "extensions", "why"),
    [
        ("", {}, "Token.value is no bearer token"),
        ("a b", {}, "Token.value is no bearer token"),
        ("a\x01auth=Bearer b", {}, "Token.value is no bearer token"),
        ("a", {"auth": "b"}, "Token.extensions has 'auth'"),
        ("a", {"": "b"}, "Token.extensions has ''"),
        ("a", {"k": "b\x01c=d"}, "Token.extensions has 'k'"),
        ("a", {"k\x01": "b"}, "Token.extensions has 'k\\\\x01'"),
    ],
)
def test_a_token_cannot_inject_fields(value: str, extensions: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        Token(value, extensions)
    assert isinstance(caught.value, KafkaGroupError)
