"""The addresses of host names, looked up in threads of the client's own.

The system's look-up blocks, for half a minute where no name server responds. While a look-up takes
long, or fails for a reason that may pass, the addresses of the last one are used: a broker keeps
its address for longer than an outage of a name server lasts, and if a broker of another cluster has
taken it over, `identity` finds out.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from kafkagroup._text import escaped
from kafkagroup._values import frozen
from kafkagroup.errors import ConnectionLostError
from kafkagroup.transport.os_errors import reason
from kafkagroup.transport.threads import Job, WorkerThreads

__all__ = ["Names", "Resolved", "SocketAddress", "UnresolvedError"]

logger = logging.getLogger(__name__)

SocketAddress = tuple[int, tuple[Any, ...]]
"""The address family, and the address of that family with port 0."""

_FALLBACK_AFTER = 1.0
"""Seconds to wait for a look-up while the addresses of an earlier one are known."""

_MAX_KNOWN = 1_000
"""The limit of names whose addresses are kept: a broker may name any number of hosts."""

_NO_SUCH_NAME = {
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)
}
"""The error codes of a look-up which mean that the name has no address. Failures with other codes
may pass. Not every system has both codes."""


class UnresolvedError(ConnectionLostError):
    """A host name has no address, or its look-up takes too long: no request was sent."""


@frozen
class Resolved:
    """The addresses of a name."""

    addresses: Sequence[SocketAddress]
    """At least one, in the system's order of preference."""
    trouble: str = ""
    """Why these are the addresses of an earlier look-up; "" if they are not."""


class Names:
    """The look-ups of one client, in one loop, and their last results."""

    def __init__(self) -> None:
        self._threads = WorkerThreads()
        self._look_ups: dict[str, Job[list[SocketAddress]]] = {}
        """The look-ups under way, by name: connections to one host share them."""
        self._known: dict[str, list[SocketAddress]] = {}
        """Name -> the addresses that were found last."""

    async def resolve(self, host: str, until: float = math.inf) -> Resolved:
        """Return the addresses of a name. `until`: when to give up, on the loop's clock.

        Raises: UnresolvedError.
        """
        if (numeric := _numeric(host)) is not None:
            return numeric
        known, began_at = self._known.get(host), anyio.current_time()
        look_up = self._look_ups.get(host)
        if look_up is None:
            look_up = Job(partial(_addresses, host), self._threads, partial(self._on_end, host))
            self._look_ups[host] = look_up
        wait_until = until if known is None else min(until, began_at + _FALLBACK_AFTER)
        if not await look_up.wait(wait_until):
            took = f"{anyio.current_time() - began_at:.3g} s"
            busy = "" if look_up.has_begun else "; all threads for look-ups are busy"
            trouble = f"the name is not resolved within {took}{busy}"
        else:
            try:
                return Resolved(look_up.result())
            except (OSError, ValueError) as error:  # ValueError: not a possible host name
                trouble = f"the name is not resolved: {reason(error)}"
                # The earlier addresses are used only if the failure may pass.
                if not isinstance(error, socket.gaierror) or error.errno in _NO_SUCH_NAME:
                    known = None
        if known is None:
            raise UnresolvedError(trouble)
        logger.info("%s: %s; its last addresses are used", escaped(host), trouble)
        return Resolved(known, trouble)

    def _on_end(self, host: str, look_up: Job[list[SocketAddress]]) -> None:
        del self._look_ups[host]
        with suppress(OSError, ValueError):
            found = look_up.result()
            self._known.pop(host, None)  # put at the end: the names looked up last are kept
            self._known[host] = found
            if len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]


def _numeric(host: str) -> Resolved | None:
    """Return the address if `host` is a numeric one; None if it is a name. Does not block."""
    try:
        return Resolved(_addresses(host, socket.AI_NUMERICHOST))
    except (OSError, ValueError):
        return None


def _addresses(host: str, flags: int = 0) -> list[SocketAddress]:
    """Return the addresses of a host name, by the system's look-up. Raises: OSError, ValueError."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=flags)
    # A Python without IPv6 returns (number, bytes) for addresses of that family.
    return [(family, address) for family, _, _, _, address in found if isinstance(address[0], str)]
