"""SCRAM (RFC 5802, RFC 7677, KIP-84): both sides prove that they know the password, and neither
sends it.

Everything that the server sends is bounded before use, above all the number of iterations: 2^31 of
them would occupy a core for many minutes. A server that does not prove its knowledge is refused. As
in Kafka itself, names and passwords are plain UTF-8 without SASLprep, and there is no channel
binding.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from functools import partial

import attrs

from kafkagroup._text import escaped
from kafkagroup.errors import AuthenticationError
from kafkagroup.transport.sasl import Exchange
from kafkagroup.transport.sasl.secret import Secret

__all__ = ["HASHES", "MAX_ITERATIONS", "MAX_SALT_BYTES", "MIN_ITERATIONS", "Conversation", "Scram"]

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism -> the name of its hash in `hashlib`."""

MIN_ITERATIONS = 4_096
"""RFC 7677, section 4: with fewer, an eavesdropper could guess the password more easily."""

MAX_ITERATIONS = 1_000_000
"""Less than a second of one core; Kafka's own tools take 4,096 by default."""

MAX_SALT_BYTES = 1_024
"""Servers use 16 to 64."""

_MAX_MESSAGE = 8_192
"""The limit of a server's message, in bytes: more than a nonce, a salt and a number ever need."""

_GS2_HEADER = "n,,"
"""No channel binding, no authorization identity."""


@attrs.frozen
class Scram:
    """A user's name and password."""

    name: str
    """The mechanism: a key of `HASHES`."""
    username: str
    password: Secret

    async def authenticate(self, exchange: Exchange) -> None:
        nonce = secrets.token_urlsafe(24)
        talk = Conversation(HASHES[self.name], self.username, self.password, nonce)
        salt, iterations = talk.take_challenge(await exchange.send(talk.first()))
        key = await exchange.run_in_thread(partial(talk.salted_password, salt, iterations))
        talk.check(await exchange.send(talk.final(key)))


class Conversation:
    """One authentication, without I/O or randomness: the four messages in their order."""

    def __init__(self, algorithm: str, username: str, password: Secret, nonce: str) -> None:
        self._hash = algorithm
        self._password = password
        self._client_nonce = self._nonce = nonce
        # Without this, a comma in the name would begin another attribute, such as another user.
        escaped_name = username.replace("=", "=3D").replace(",", "=2C")
        self._auth_message = f"n={escaped_name},r={nonce}"
        """The text that the proofs sign: all messages so far, without headers and proofs."""
        self._expected: Secret | None = None
        """The signature by which the server proves that it knows the password; None before
        `final`."""

    def first(self) -> bytes:
        """Return the client's first message: its name and nonce."""
        return (_GS2_HEADER + self._auth_message).encode()

    def take_challenge(self, message: bytes) -> tuple[bytes, int]:
        """Return the salt and the number of iterations that the server requires.

        Raises: AuthenticationError for anything malformed or out of bounds.
        """
        text = _text(message)
        nonce, salt64, iterations_text = _attributes(text, "r", "s", "i")
        # Without this check, an attacker could replay an old exchange, with its nonce.
        if not nonce.startswith(self._client_nonce) or nonce == self._client_nonce:
            raise AuthenticationError("the server's nonce does not continue the client's")
        salt = _decoded(salt64)
        if not 0 < len(salt) <= MAX_SALT_BYTES:
            raise AuthenticationError(
                f"the server's salt has {len(salt)} bytes; expected 1 to {MAX_SALT_BYTES}"
            )
        # The digits are counted first: converting very many of them takes long, or raises.
        is_decimal = iterations_text.isascii() and iterations_text.isdecimal()
        is_short = len(iterations_text) <= len(str(MAX_ITERATIONS))
        iterations = int(iterations_text) if is_decimal and is_short else -1
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise AuthenticationError(
                f"the server asks for {escaped(iterations_text, 20)} iterations;"
                f" {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
            )
        self._nonce = nonce
        self._auth_message += f",{text}"
        return salt, iterations

    def salted_password(self, salt: bytes, iterations: int) -> Secret:
        """Return the key for both proofs, in hex because `Secret` holds text. Slow: the time grows
        with the iterations."""
        return Secret(
            hashlib.pbkdf2_hmac(
                self._hash, self._password.reveal().encode(), salt, iterations
            ).hex()
        )

    def final(self, salted_password: Secret) -> bytes:
        """Return the client's final message, with its proof."""
        without_proof = f"c={b64encode(_GS2_HEADER.encode()).decode()},r={self._nonce}"
        auth_message = f"{self._auth_message},{without_proof}".encode()
        client_key = self._mac(salted_password, b"Client Key")
        stored_key = Secret(hashlib.new(self._hash, bytes.fromhex(client_key.reveal())).hexdigest())
        signature = self._mac(stored_key, auth_message)
        self._expected = self._mac(self._mac(salted_password, b"Server Key"), auth_message)
        return f"{without_proof},p={_xored(client_key, signature)}".encode()

    def check(self, message: bytes) -> None:
        """Check that the server knows the password, too. Raises: AuthenticationError."""
        text = _text(message)
        if text.startswith("e="):
            raise AuthenticationError(f"the server refuses: {escaped(text[2:])}", is_refusal=True)
        (signature,) = _attributes(text, "v")
        expected = b"" if self._expected is None else bytes.fromhex(self._expected.reveal())
        # Nothing is expected before `final`. In constant time: the duration must not reveal how
        # much of a guess was right.
        if not expected or not hmac.compare_digest(_decoded(signature), expected):
            raise AuthenticationError(
                "the server does not know the password: it is not the broker that it claims to be"
            )

    def _mac(self, key: Secret, data: bytes) -> Secret:
        """Return the HMAC of `data`; it and the key are in hex."""
        return Secret(hmac.digest(bytes.fromhex(key.reveal()), data, self._hash).hex())


def _xored(key: Secret, signature: Secret) -> str:
    """Return the client's proof, the key XOR the signature, in base64."""
    pairs = zip(bytes.fromhex(key.reveal()), bytes.fromhex(signature.reveal()), strict=True)
    return b64encode(bytes(a ^ b for a, b in pairs)).decode()


def _text(message: bytes) -> str:
    if len(message) > _MAX_MESSAGE:
        raise AuthenticationError(
            f"the server's message has {len(message)} bytes; the limit is {_MAX_MESSAGE}"
        )
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("the server's message is not UTF-8") from None


def _attributes(text: str, *names: str) -> list[str]:
    """Return the values of the attributes `names`. A message must begin with these, in this order;
    more may follow. Raises: AuthenticationError."""
    parts = text.split(",")
    found = [part.partition("=")[::2] for part in parts[: len(names)]]
    if tuple(name for name, _ in found) != names:
        # RFC 5802: "m=" before them is a mandatory extension, and none is supported here.
        raise AuthenticationError(
            f"the server's message lacks {' or '.join(f'{n}=' for n in names)} in its place"
        )
    return [value for _, value in found]


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationError("the server's message has invalid base64") from None
