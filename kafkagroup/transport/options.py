"""The options of connections to brokers: timeouts, limits and security; durations in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkagroup._values import field, frozen
from kafkagroup.errors import ConfigurationError
from kafkagroup.transport.threads import WorkerThreads
from kafkagroup.wire.limits import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from kafkagroup.transport.sasl import RunInThread
    from kafkagroup.transport.security import Security

__all__ = ["Address", "ClientOptions", "parse_servers"]

Address = tuple[str, int]
"""Host and port."""


@frozen(kw_only=True)
class ClientOptions:
    """The options of one client's connections to all brokers.

    Args:
        client_id: The name in the brokers' logs and quotas, and the prefix of member ids; None
            sends none. Default `'kafkagroup'`; Kafka's `client.id`.
        name: How log lines name the client; "" for its client id alone. Default `''`.
        request_timeout: Seconds after which a request without a response fails, and its connection
            with it. Default `30.0`.
        connect_timeout: Seconds for the look-up of the name, connecting to any of its addresses,
            and TLS; the same again for ApiVersions, and for SASL. Default `10.0`.
        retry_backoff: Seconds before the first retry; doubled, with jitter, for each further one.
            Default `0.1`.
        retry_backoff_max: The longest backoff in seconds, to which jitter adds up to 20%. Default
            `1.0`.
        metadata_recovery_rebootstrap_trigger: Seconds without a response of any known broker after
            which all of these are forgotten, and only the bootstrap addresses are asked (KIP-1102).
            Default `300.0`.
        connections_max_idle: Seconds without a request after which a connection is closed; the next
            request opens one. Default `540.0`.
        adopts_cluster_change: Whether the client adopts another cluster if its bootstrap addresses
            lead there. Default `False`.
        max_frame_bytes: The largest response that is accepted, in bytes. Default `MAX_FRAME_BYTES`.
        receive_bytes: Bytes to read from a socket at a time; many, so that a fetch response takes
            few system calls. Default 1,048,576.
        security: TLS and SASL, the same for every broker; None for neither.
        run_in_thread: Runs functions that would block the event loop, such as the derivation of
            keys and the decoding of large responses; by default in threads that only these options
            use. Simulations with virtual time pass a function without threads.
        source_host: Local address to connect from; None lets the system choose.
        source_port: Local port to connect from; one connection at a time can have it. Default
            `None`.
    """

    client_id: str | None = "kafkagroup"
    """The name in the brokers' logs and quotas, and the prefix of member ids; None sends none."""
    name: str = ""
    """How log lines name the client; "" for its client id alone."""
    request_timeout: float = 30.0
    """Seconds after which a request without a response fails, and its connection with it."""
    connect_timeout: float = 10.0
    """Seconds for the look-up of the name, connecting to any of its addresses, and TLS; the same
    again for ApiVersions, and for SASL."""
    retry_backoff: float = 0.1
    """Seconds before the first retry; doubled, with jitter, for each further one."""
    retry_backoff_max: float = 1.0
    """The longest backoff in seconds, to which jitter adds up to 20%."""
    metadata_recovery_rebootstrap_trigger: float = 300.0
    """Seconds without a response of any known broker after which all of these are forgotten, and
    only the bootstrap addresses are asked (KIP-1102)."""
    connections_max_idle: float = 540.0
    """Seconds without a request after which a connection is closed; the next request opens one."""
    adopts_cluster_change: bool = False
    """Whether the client adopts another cluster if its bootstrap addresses lead there."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    """The largest response that is accepted, in bytes."""
    receive_bytes: int = 1_048_576
    """Bytes to read from a socket at a time; many, so that a fetch response takes few system
    calls."""
    security: Security | None = None
    """TLS and SASL, the same for every broker; None for neither."""
    run_in_thread: RunInThread = field(factory=WorkerThreads, repr=False)
    """Runs functions that would block the event loop, such as the derivation of keys and the
    decoding of large responses; by default in threads that only these options use. Simulations with
    virtual time pass a function without threads."""
    source_host: str | None = None
    """Local address to connect from; None lets the system choose."""
    source_port: int | None = None
    """Local port to connect from; one connection at a time can have it."""

    def __attrs_post_init__(self) -> None:
        if self.security is None:
            return
        # Imported here: TLS and the SASL mechanisms take long to import, and most clients need
        # neither.
        from kafkagroup.transport.security import Security

        if not isinstance(self.security, Security):
            # Without the value: it may be a mapping with a password.
            raise ConfigurationError(
                f"security is a {type(self.security).__name__}; expected"
                " kafkagroup.Security(...) or None"
            )


def parse_servers(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """Parse bootstrap addresses: "host:port,host:port", or a sequence of "host:port".

    IPv6 addresses are in brackets. The default port is 9092. Raises: ConfigurationError.
    """
    entries = servers.split(",") if isinstance(servers, str) else list(servers)
    for entry in entries:
        if not isinstance(entry, str):
            raise ConfigurationError(
                f"bootstrap_servers has an item of type {type(entry).__name__}; expected"
                " 'host:port'"
            )
    addresses = tuple(_parse_server(entry.strip()) for entry in entries if entry.strip())
    if not addresses:
        raise ConfigurationError("bootstrap_servers is empty; give at least one host:port")
    return addresses


def _parse_server(entry: str) -> Address:
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
        is_valid = bool(bracket) and (not rest or rest.startswith(":"))
    else:
        host, _, port = entry.partition(":")
        is_valid = ":" not in port
    port = port or "9092"
    # Python refuses to convert thousands of digits.
    is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    if not (is_valid and host and is_port):
        _, at_sign, address = entry.rpartition("@")  # before it, a URL may have a password
        shown = f"...@{address}" if at_sign else entry
        raise ConfigurationError(
            f"bootstrap_servers has {shown!r}; expected host:port, or [ipv6-address]:port"
        )
    return host, int(port)
