"""How the library talks to brokers: timeouts, limits and security; durations are in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import anyio

from kafkagroup._public import public
from kafkagroup._values import field, frozen
from kafkagroup.errors import ConfigurationError
from kafkagroup.wire.connection import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from kafkagroup.options import CommonOptions
    from kafkagroup.transport.sasl import RunInThread
    from kafkagroup.transport.security import Security

__all__ = ["Address", "ClientOptions", "client_options", "parse_servers"]

Address = tuple[str, int]
"""Host and port."""

T = TypeVar("T")


async def _run_in_thread(work: Callable[[], T]) -> T:
    # Left to itself when nobody waits any more: it only computes.
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


@public
@frozen(kw_only=True)
class ClientOptions:
    """How one client talks to all brokers."""

    client_id: str | None = "kafkagroup"
    """Shown in the brokers' logs and quotas, and the prefix of member ids."""
    request_timeout: float = 30.0
    """Seconds until a request without an answer fails, and its connection with it."""
    connect_timeout: float = 10.0
    """Seconds for connecting, and as many for the handshake and for the authentication; each
    address is tried in turn."""
    retry_backoff: float = 0.1
    """Seconds before the first retry; doubled, with jitter, for each further one."""
    retry_backoff_max: float = 1.0
    """Seconds that a back-off grows to at most."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    """Largest answer that is accepted."""
    receive_bytes: int = 1_048_576
    """Bytes asked of a socket at a time; a fetch answer takes few system calls."""
    security: Security | None = None
    """TLS and SASL, the same towards every broker; None for neither."""
    run_in_thread: RunInThread = field(default=_run_in_thread, repr=False)
    """Runs what would hold the loop: the derivation of keys, and the decoding of large answers.
    Where time is virtual, something without threads."""
    source_host: str | None = None
    """Local address to connect from; None lets the system choose."""
    source_port: int | None = None
    """Local port to connect from; one connection at a time can have it."""

    def __attrs_post_init__(self) -> None:
        if self.security is None:
            return
        # Only here: TLS and the mechanisms of SASL take long to import, and most do without.
        from kafkagroup.transport.security import Security

        if not isinstance(self.security, Security):
            # Not shown: it may be a mapping with a password in it.
            raise ConfigurationError(
                f"security is a {type(self.security).__name__}; expected"
                " kafkagroup.Security(...) or None"
            )


def client_options(options: CommonOptions, max_frame_bytes: int = MAX_FRAME_BYTES) -> ClientOptions:
    """How a client with these options talks to brokers."""
    return ClientOptions(
        client_id=options.client_id,
        request_timeout=options.request_timeout,
        retry_backoff=options.retry_backoff,
        retry_backoff_max=options.retry_backoff_max,
        max_frame_bytes=max_frame_bytes,
        security=options.security,
    )


def parse_servers(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """Bootstrap addresses from "host:port,host:port" or a sequence of "host:port".

    IPv6 addresses stand in brackets. A missing port is 9092. Raises: ConfigurationError.
    """
    entries = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = tuple(_parse_server(entry.strip()) for entry in entries if entry.strip())
    if not addresses:
        raise ConfigurationError("bootstrap_servers is empty; give at least one host:port")
    return addresses


def _parse_server(entry: str) -> Address:
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
        valid = bool(bracket) and (not rest or rest.startswith(":"))
    else:
        host, _, port = entry.partition(":")
        valid = ":" not in port
    if not valid or not host or (port and not port.isdecimal()) or int(port or 9092) > 65535:
        raise ConfigurationError(
            f"bootstrap_servers has {entry!r}; expected host:port, or [ipv6-address]:port"
        )
    return host, int(port or 9092)
