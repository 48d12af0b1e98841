"""The authentication of one connection. Before it is complete, the connection accepts only
ApiVersions and SASL requests.

States, responses and messages are those of Kafka's `SaslServerAuthenticator`; the mechanisms are
PLAIN, SCRAM and OAUTHBEARER. SaslHandshake v0, after which tokens come without headers, is not
supported. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from random import Random
from typing import Any

import attrs

from kafkagroup.errors import ConfigurationError, ErrorCode
from kafkagroup.testing.embedded.broker import Incoming
from kafkagroup.testing.embedded.oauthbearer import TokenUser, oauthbearer
from kafkagroup.testing.embedded.refusals import refuse
from kafkagroup.testing.embedded.scram import (
    SCRAM_HASHES,
    Conversation,
    ReportedSaslError,
    SaslError,
    ScramSecret,
    scram,
)
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.wire.messages.metadata import ApiVersionsRequest
from kafkagroup.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

__all__ = ["MAX_REQUEST_BYTES", "MECHANISMS", "Accounts", "SaslAuthenticator", "Verdict"]

MECHANISMS = ("PLAIN", *SCRAM_HASHES)
"""The supported mechanisms with passwords."""

MAX_REQUEST_BYTES = 524_288
"""The largest request before authentication: Kafka's `sasl.server.max.receive.size`."""

_MIN_REAUTHENTICATION_INTERVAL = 1.0
"""Minimum seconds between the starts of two re-authentications. An earlier SaslHandshake is
executed like any other request, and `broker` answers it with ILLEGAL_SASL_STATE."""


class Accounts:
    """The broker's users, with the credentials of each mechanism."""

    def __init__(
        self,
        users: Mapping[str, str],
        mechanisms: Sequence[str],
        settings: BrokerSettings,
        seed: int,
        token_user: TokenUser | None = None,
    ) -> None:
        """`users` maps names to passwords, for `mechanisms`. With `token_user`, OAUTHBEARER is
        offered, too. `seed` determines salts and nonces. Raises: ConfigurationError for an unknown
        mechanism, and if there are neither `mechanisms` nor `token_user`."""
        unknown = [name for name in mechanisms if name not in MECHANISMS]
        if unknown or not (mechanisms or token_user):
            raise ConfigurationError(
                f"mechanisms {list(mechanisms)}: choose among {', '.join(MECHANISMS)}"
            )
        self._token_user = token_user
        self.mechanisms = (*mechanisms, *(["OAUTHBEARER"] if token_user else []))
        """All that clients are offered."""
        self.session_lifetime = settings.connections_max_reauth
        """In seconds; 0: unlimited."""
        self._random = Random(seed)
        self._passwords = dict(users)
        self._secrets = {
            mechanism: {user: self._secret(users[user], mechanism, settings) for user in users}
            for mechanism in mechanisms
            if mechanism in SCRAM_HASHES
        }

    def _secret(self, password: str, mechanism: str, settings: BrokerSettings) -> ScramSecret:
        salt = self._random.randbytes(16)
        return ScramSecret.of(password, SCRAM_HASHES[mechanism], salt, settings.scram_iterations)

    def begin(self, mechanism: str) -> Conversation:
        """Start a conversation of one of `mechanisms`; it waits for the client's first message."""
        if mechanism == "PLAIN":
            conversation = _plain(self._passwords)
        elif mechanism == "OAUTHBEARER":
            assert self._token_user is not None
            conversation = oauthbearer(self._token_user)
        else:
            nonce = self._random.randbytes(16).hex()
            conversation = scram(self._secrets[mechanism], SCRAM_HASHES[mechanism], nonce)
        next(conversation)
        return conversation


def _plain(passwords: Mapping[str, str]) -> Conversation:
    """PLAIN as in RFC 4616."""
    message = yield b""
    parts = message.decode("utf-8", "replace").split("\0")
    if len(parts) != 3:
        raise ReportedSaslError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    authorized_as, user, password = parts
    if not user:
        raise ReportedSaslError("Authentication failed: username not specified")
    if not password:
        raise ReportedSaslError("Authentication failed: password not specified")
    if passwords.get(user) != password:
        raise ReportedSaslError("Authentication failed: Invalid username or password")
    if authorized_as not in ("", user):
        raise ReportedSaslError(
            "Authentication failed: Client requested an authorization id that is different from"
            " username"
        )
    return user, b""


@attrs.frozen
class Verdict:
    """The response to a request that is not executed."""

    response: Any = None
    """The response; None for no response."""
    must_close: bool = False
    """Whether to close the connection afterwards."""


_CLOSE = Verdict(must_close=True)


class _Stage(Enum):
    """What a connection accepts next."""

    GREETING = auto()
    """Waits for ApiVersions or SaslHandshake."""
    HANDSHAKE = auto()
    """Waits for SaslHandshake, after ApiVersions in a supported version. As in Kafka, another
    ApiVersions closes the connection."""
    TOKENS = auto()
    """Exchanges the messages of the mechanism, which Kafka calls tokens."""
    WRONG_MECHANISM = auto()
    """Closes at the next message: a re-authentication must use the same mechanism."""
    OPEN = auto()
    """The client is authenticated."""


class SaslAuthenticator:
    """The authentication state of one connection. Times are in seconds, on the caller's clock."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._stage = _Stage.GREETING
        self._conversation: Conversation | None = None
        self._mechanism = ""
        self._user: str | None = None
        self._expires_at = float("inf")
        self._reauthenticated_at = float("-inf")

    @property
    def is_authenticated(self) -> bool:
        """Whether the client is authenticated."""
        return self._stage is _Stage.OPEN

    def admit(self, incoming: Incoming, now: float) -> Verdict | None:
        """Check a request. Return None if it is to be executed."""
        request = incoming.request
        match self._stage:
            case _Stage.OPEN:
                if isinstance(request, SaslHandshakeRequest) and self._may_reauthenticate(now):
                    self._reauthenticated_at = now
                    return self._handshake(request, incoming.version)
                # KIP-368: an expired session closes the connection only at its next request.
                return _CLOSE if now > self._expires_at else None
            case _Stage.TOKENS:
                if isinstance(request, SaslAuthenticateRequest):
                    return self._authenticate(request, now)
                refusal = refuse(request, ErrorCode.ILLEGAL_SASL_STATE, incoming.version)
                return Verdict(refusal, must_close=True)
            case _Stage.GREETING | _Stage.HANDSHAKE if isinstance(request, SaslHandshakeRequest):
                return self._handshake(request, incoming.version)
            case _Stage.GREETING if isinstance(request, ApiVersionsRequest):
                # In another version the response is an error: the client asks again in this one.
                if incoming.version in request.versions:
                    self._stage = _Stage.HANDSHAKE
                return None
            case _:
                return _CLOSE

    def _may_reauthenticate(self, now: float) -> bool:
        return (
            self._expires_at < float("inf")
            and now - self._reauthenticated_at >= _MIN_REAUTHENTICATION_INTERVAL
        )

    def _handshake(self, request: SaslHandshakeRequest, version: int) -> Verdict:
        if version < 1:
            return _CLOSE
        offered = self._accounts.mechanisms
        if request.mechanism not in offered:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return Verdict(
                SaslHandshakeResponse(error_code=code, mechanisms=offered), must_close=True
            )
        if self._user is not None and request.mechanism != self._mechanism:
            self._stage = _Stage.WRONG_MECHANISM
        else:
            self._stage = _Stage.TOKENS
            self._mechanism = request.mechanism
            self._conversation = self._accounts.begin(request.mechanism)
        return Verdict(SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=offered))

    def _authenticate(self, request: SaslAuthenticateRequest, now: float) -> Verdict:
        assert self._conversation is not None
        try:
            return _token(self._conversation.send(request.auth_bytes))
        except StopIteration as done:
            user, token = done.value
        except ReportedSaslError as error:
            return _failed(str(error))
        except SaslError:
            attempt = "authentication" if self._user is None else "re-authentication"
            return _failed(
                f"Authentication failed during {attempt} due to invalid credentials with SASL"
                f" mechanism {self._mechanism}"
            )
        if self._user not in (None, user):
            return _failed(
                "Cannot change principals during re-authentication from"
                f" User.{self._user}: User.{user}"
            )
        self._user, self._stage, self._conversation = user, _Stage.OPEN, None
        lifetime = self._accounts.session_lifetime
        if lifetime > 0:
            self._expires_at = now + lifetime
        return _token(token, session_lifetime_ms=round(lifetime * 1000))


def _token(token: bytes, session_lifetime_ms: int = 0) -> Verdict:
    return Verdict(
        SaslAuthenticateResponse(
            error_code=ErrorCode.NONE,
            error_message="",
            auth_bytes=token,
            session_lifetime_ms=session_lifetime_ms,
        )
    )


def _failed(reason: str) -> Verdict:
    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    response = SaslAuthenticateResponse(error_code=code, error_message=reason, auth_bytes=b"")
    return Verdict(response, must_close=True)
