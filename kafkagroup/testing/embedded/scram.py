"""The server side of SCRAM (RFC 5802, RFC 7677): two messages in, two out. No I/O.

A `SaslError` names the client's mistake, for tracebacks. Like Kafka, the broker sends the client
the same message for all mistakes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Generator, Mapping

import attrs

__all__ = [
    "SCRAM_HASHES",
    "Conversation",
    "ReportedSaslError",
    "SaslError",
    "ScramSecret",
    "scram",
]

SCRAM_HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism -> its hash function, by `hashlib`'s name."""

Conversation = Generator[bytes, bytes, tuple[str, bytes]]
"""A generator. It first yields b"". Then it is sent the client's messages and yields the server's;
it returns the user's name and the server's last message. Raises: SaslError."""

# Channel binding is not supported: "y" and "p" are refused, as by Kafka. "biws" is "n,," in base64.
_CLIENT_FIRST = re.compile(r"n,(?:a=([^,]+))?,(n=([^,]+),r=([!-+\--~]+)(?:,[A-Za-z]=[^,]*)*)")
_CLIENT_FINAL = re.compile(r"(c=biws|c=[^,]+),r=([^,]+)(?:,[A-Za-z]=[^,]*)*,p=([A-Za-z0-9+/=]+)")


class SaslError(Exception):
    """Authentication failed. The text is not for the client."""


class ReportedSaslError(SaslError):
    """An error whose message Kafka sends to the client; others become "invalid credentials"."""


@attrs.frozen
class ScramSecret:
    """What the server stores of a password: the password cannot be computed from it."""

    salt: bytes
    iterations: int
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, password: str, hash_name: str, salt: bytes, iterations: int) -> ScramSecret:
        """Derive the secret of a password. Takes milliseconds for Kafka's 4,096 iterations."""
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        return cls(
            salt=salt,
            iterations=iterations,
            stored_key=hashlib.new(hash_name, client_key).digest(),
            server_key=hmac.digest(salted, b"Server Key", hash_name),
        )


def scram(secrets: Mapping[str, ScramSecret], hash_name: str, nonce: str) -> Conversation:
    """Run one authentication. `secrets`: user -> secret. `nonce` is the server's part of the nonce,
    and must be new for each authentication."""
    first = _match(_CLIENT_FIRST, (yield b""))
    authorized_as, first_bare, name, client_nonce = first.groups()
    user = _unescape(name)
    if user not in secrets:
        raise SaslError(f"no user {user!r}")
    if authorized_as is not None and _unescape(authorized_as) != user:
        raise SaslError("an authorization id that is not the user's name")
    secret = secrets[user]
    salt = b64encode(secret.salt).decode()
    server_first = f"r={client_nonce}{nonce},s={salt},i={secret.iterations}"

    message = yield server_first.encode()
    binding, whole_nonce, proof = _match(_CLIENT_FINAL, message).groups()
    if binding != "c=biws":
        raise SaslError("a channel binding that was not announced")
    if whole_nonce != client_nonce + nonce:
        raise SaslError("not the nonce of this authentication")
    without_proof = message[: message.rindex(b",p=")].decode()
    signed = f"{first_bare},{server_first},{without_proof}".encode()
    client_signature = hmac.digest(secret.stored_key, signed, hash_name)
    try:
        # Not strict: a proof of another length does not match below.
        client_key = bytes(a ^ b for a, b in zip(b64decode(proof), client_signature, strict=False))
    except ValueError:
        raise SaslError("a proof that is not base64") from None
    if not hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), secret.stored_key):
        raise SaslError("not the password")
    server_signature = hmac.digest(secret.server_key, signed, hash_name)
    return user, b"v=" + b64encode(server_signature)


def _match(pattern: re.Pattern[str], message: bytes) -> re.Match[str]:
    found = pattern.fullmatch(message.decode("utf-8", "replace"))
    if found is None:
        raise SaslError("not a message of SCRAM")
    return found


def _unescape(name: str) -> str:
    # In this order: the name "=2C" is sent as "=3D2C".
    return name.replace("=2C", ",").replace("=3D", "=")
