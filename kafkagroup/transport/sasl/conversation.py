"""Authenticates a connection by SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from kafkagroup._text import escaped
from kafkagroup._user_code import USER_ERRORS, is_own_cancellation
from kafkagroup.errors import AuthenticationError, BrokerError, ErrorCode, KafkaGroupError
from kafkagroup.transport.sasl import Mechanism, RunInThread
from kafkagroup.wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafkagroup.wire.schema import Request

__all__ = ["authenticate"]

R = TypeVar("R")
T = TypeVar("T")


class Ask(Protocol):
    """Sends one request of the authentication and returns its response."""

    def __call__(self, request: Request[R], /) -> Awaitable[R]: ...


async def _begin_at_once() -> None:
    """Do nothing: on a new connection no request is in flight."""


async def authenticate(
    mechanism: Mechanism,
    host: str,
    ask: Ask,
    run_in_thread: RunInThread,
    begin: Callable[[], Awaitable[None]] = _begin_at_once,
) -> float:
    """Authenticate; return the session's lifetime in seconds, 0.0 if it has no limit.

    `host` is the name that the client connected to. `begin` is awaited before the first request,
    after the mechanism has got its credentials: if it cannot get them, nothing was sent, and an
    earlier session of the connection continues.

    Raises: AuthenticationError, TransportError.
    """
    user = getattr(mechanism, "username", None)  # None with a token: only the broker knows its user
    exchange = _Exchange(mechanism.name, user, host, ask, run_in_thread, begin)
    try:
        await mechanism.authenticate(exchange)
    except KafkaGroupError:
        raise
    except USER_ERRORS as error:
        if is_own_cancellation(error):
            raise
        # The error's text may have secrets, so it is only the cause.
        raise AuthenticationError(
            f"{mechanism.name} failed with {type(error).__name__}", is_of_source=True
        ) from error
    return exchange.session_lifetime


class _Exchange:
    """The `Exchange` that a mechanism gets. It sends SaslHandshake before the first message."""

    def __init__(
        self,
        name: str,
        user: str | None,
        host: str,
        ask: Ask,
        run_in_thread: RunInThread,
        begin: Callable[[], Awaitable[None]],
    ) -> None:
        self.host = host
        self.session_lifetime = 0.0
        """In seconds; 0.0 if it has no limit."""
        self._name = name
        self._user = user
        self._ask = ask
        self._run_in_thread = run_in_thread
        self._begin = begin
        self._has_begun = False

    async def _handshake(self) -> None:
        self._has_begun = True
        await self._begin()
        response = await self._ask(SaslHandshakeRequest(mechanism=self._name))
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = escaped(", ".join(response.mechanisms)) or "none"
            raise AuthenticationError(
                f"the broker does not offer {self._name}; sasl_mechanism can be one that it does:"
                f" {offered}",
                is_refusal=True,
            )
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(
                "this listener of the broker does not use SASL: leave sasl_mechanism out, or"
                " connect to the port of one that does",
                is_refusal=True,
            )
        _check(response.error_code, None)

    async def send(self, message: bytes) -> bytes:
        request = SaslAuthenticateRequest(auth_bytes=message)
        del message  # with PLAIN it is the password, and tracebacks may show variables
        if not self._has_begun:
            await self._handshake()
        response = await self._ask(request)
        _check(response.error_code, response.error_message, self._user)
        self.session_lifetime = max(0.0, response.session_lifetime_ms / 1000)
        return bytes(response.auth_bytes)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await self._run_in_thread(work)


def _check(code: int, message: str | None, user: str | None = None) -> None:
    """Raise AuthenticationError for an error code; `user`, if known, is named in it."""
    if code:
        whom = "" if user is None else f" user {user!r}"
        error = BrokerError(code, message)
        raise AuthenticationError(f"the broker refuses{whom}: {error}", is_refusal=True)
