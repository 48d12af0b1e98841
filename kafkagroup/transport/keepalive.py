"""TCP keepalive: the system probes an idle connection, and ends it if nothing answers.

The probes also keep the entries of firewalls and load balancers from expiring. If a connection
sets no values, the system begins to probe after two hours.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyio.abc import ByteStream

__all__ = ["keep_alive"]

_IDLE = 60
"""Seconds without traffic before the first probe: less than the idle timeouts of load balancers,
which begin at a few minutes."""

_INTERVAL = 10
"""Seconds between two probes."""

_COUNT = 3
"""Probes without a response after which the connection is broken."""

_OPTIONS = (
    ("TCP_KEEPIDLE", _IDLE),
    ("TCP_KEEPALIVE", _IDLE),  # the name on macOS
    ("TCP_KEEPINTVL", _INTERVAL),
    ("TCP_KEEPCNT", _COUNT),
    # Linux, in milliseconds. Without it, sent bytes that nothing acknowledges postpone the probes,
    # and are repeated for a quarter of an hour.
    ("TCP_USER_TIMEOUT", (_IDLE + _INTERVAL * _COUNT) * 1000),
)
"""The options of TCP. No system has all of them."""


def keep_alive(stream: ByteStream) -> None:
    """Let the system probe the connection while it is idle, if the stream is a socket."""
    # Imported here: it is a tenth of the import time of a consumer.
    from anyio.abc import SocketAttribute

    raw_socket = stream.extra(SocketAttribute.raw_socket, None)
    if raw_socket is None:
        return
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    options += [
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _OPTIONS
        if hasattr(socket, name)
    ]
    for option in options:
        with suppress(OSError):  # a system may know the name and refuse the option
            raw_socket.setsockopt(*option)
