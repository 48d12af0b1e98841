"""Authenticates a connection by SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from kafkagroup.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    KafkaGroupError,
    escaped,
)
from kafkagroup.transport.sasl import Mechanism, RunInThread
from kafkagroup.wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafkagroup.wire.schema import Request

__all__ = ["authenticate"]

R = TypeVar("R")
T = TypeVar("T")


class Ask(Protocol):
    """Sends one request of the authentication and returns its response."""

    def __call__(self, request: Request[R], /) -> Awaitable[R]: ...


async def authenticate(
    mechanism: Mechanism, host: str, ask: Ask, run_in_thread: RunInThread
) -> float:
    """Authenticate; return the session's lifetime in seconds, 0.0 if it has no limit.

    Raises: AuthenticationError, TransportError.
    """
    name = mechanism.name
    answer = await ask(SaslHandshakeRequest(mechanism=name))
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = escaped(", ".join(answer.mechanisms)) or "none"
        raise AuthenticationError(
            f"the broker does not offer {name}; sasl_mechanism can be one that it does: {offered}"
        )
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError(
            "this listener of the broker does not use SASL: leave sasl_mechanism out, or connect to"
            " the port of one that does"
        )
    _check(answer.error_code, None)
    exchange = _Exchange(host, ask, run_in_thread)
    try:
        await mechanism.authenticate(exchange)
    except KafkaGroupError:
        raise
    except Exception as error:
        # The error's text may have secrets, so it is only the cause.
        raise AuthenticationError(f"{name} failed with {type(error).__name__}") from error
    return exchange.session_lifetime


class _Exchange:
    def __init__(self, host: str, ask: Ask, run_in_thread: RunInThread) -> None:
        self.host = host
        self.session_lifetime = 0.0
        self._ask = ask
        self._run_in_thread = run_in_thread

    async def send(self, message: bytes) -> bytes:
        request = SaslAuthenticateRequest(auth_bytes=message)
        del message  # with PLAIN it is the password, and tracebacks may show variables
        answer = await self._ask(request)
        _check(answer.error_code, answer.error_message)
        self.session_lifetime = max(0.0, answer.session_lifetime_ms / 1000)
        return bytes(answer.auth_bytes)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await self._run_in_thread(work)


def _check(code: int, message: str | None) -> None:
    if code:
        raise AuthenticationError(f"the broker refuses: {BrokerError(code, message)}")
