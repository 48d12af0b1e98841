"""Opens TCP connections: names are looked up first, then the addresses are tried.

`anyio.connect_tcp` is not used: it looks up names, and a local address, in threads that it shares
with the application.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import ConnectionLostError
from kafkagroup.transport.names import Names, Resolved, UnresolvedError
from kafkagroup.transport.os_errors import reason

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from kafkagroup.transport.options import ClientOptions

__all__ = ["connect", "open_stream"]

_Target = tuple[int, tuple[Any, ...], tuple[Any, ...] | None]
"""The arguments of `connect`: address family, remote address, local address or None."""

_NEXT_ADDRESS_AFTER = 0.25
"""Seconds after which the next address of a name is tried beside those before it (RFC 8305)."""


async def open_stream(
    host: str, port: int, options: ClientOptions, names: Names, deadline: float
) -> ByteStream:
    """Connect to the first address of a host that accepts; `deadline` is a time on the loop's
    clock.

    Raises: UnresolvedError, ConnectionLostError; both without the name of the broker.
    """
    source = None
    found = await names.resolve(host, deadline)
    if options.source_host is not None:
        try:
            source = await names.resolve(options.source_host, deadline)
        except UnresolvedError as error:
            raise UnresolvedError(f"source_host {options.source_host!r}: {error}") from None
    try:
        with anyio.fail_after(deadline - anyio.current_time()):
            targets = _targets(found, port, source, options.source_port or 0)
            return await (connect(*targets[0]) if len(targets) == 1 else _connect_any(targets))
    except OSError as error:
        # A timeout of the system has a number, that of `fail_after` has none.
        is_late = isinstance(error, TimeoutError) and error.errno is None
        why = f"no connection within {options.connect_timeout} s" if is_late else reason(error)
        # `trouble`: why the addresses are those of an earlier look-up.
        raise ConnectionLostError(f"{why}; {found.trouble}" if found.trouble else why) from error


async def connect(
    family: int, address: tuple[Any, ...], source: tuple[Any, ...] | None
) -> ByteStream:
    """Connect to one address, from the local address `source` if it is not None; its host "" is for
    any local address. Raises: OSError."""
    # Imported here: `anyio.abc` is a tenth of the import time of a consumer.
    from kafkagroup.transport.plain_stream import PlainStream

    raw_socket = socket.socket(family, socket.SOCK_STREAM)
    try:
        raw_socket.setblocking(False)
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source is not None:
            raw_socket.bind(source)
        try:
            raw_socket.connect(address)
        except BlockingIOError:
            await anyio.wait_writable(raw_socket)
            if code := raw_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code)) from None
    except BaseException:
        raw_socket.close()
        raise
    return PlainStream(raw_socket)


def _targets(
    found: Resolved, port: int, source: Resolved | None, source_port: int
) -> list[_Target]:
    """Return the addresses to try. If there is a `source`, each has a local address of the same
    family, and one without is left out."""
    if source is None:
        any_host = ("", source_port) if source_port else None
        return [
            (family, _with_port(address, port), any_host) for family, address in found.addresses
        ]
    # Reversed: of several local addresses of one family, the first counts.
    local = {f: _with_port(a, source_port) for f, a in reversed(source.addresses)}
    return [(f, _with_port(a, port), local[f]) for f, a in found.addresses if f in local]


def _with_port(address: tuple[Any, ...], port: int) -> tuple[Any, ...]:
    return (address[0], port, *address[2:])


async def _connect_any(targets: Sequence[_Target]) -> ByteStream:
    """Try one address after the other, each at the latest `_NEXT_ADDRESS_AFTER` seconds after the
    one before it; return the stream of the first that connects. Raises: OSError."""
    connected: list[ByteStream] = []
    errors: list[OSError] = []

    async def attempt(target: _Target, has_ended: OneShotEvent) -> None:
        try:
            connected.append(await connect(*target))
        except OSError as error:
            errors.append(error)
        else:
            tasks.cancel_scope.cancel()
        finally:
            has_ended.set()

    is_done = False
    try:
        async with anyio.create_task_group() as tasks:
            for target in targets:
                has_ended = OneShotEvent()
                tasks.start_soon(attempt, target, has_ended)
                await has_ended.wait(anyio.current_time() + _NEXT_ADDRESS_AFTER)
        if not connected:
            raise _failure(errors)
        is_done = True
        return connected[0]
    finally:
        errors.clear()  # each has a traceback that refers to this list
        for unused in connected[1 if is_done else 0 :]:  # several may connect at the same time
            await anyio.aclose_forcefully(unused)


def _failure(errors: list[OSError]) -> OSError:
    """Return the error of a host without an address that connects."""
    if len(errors) == 1:
        return errors[0]
    if not errors:
        return OSError("source_host has no address of the families of the broker's")
    failure = OSError("every address has failed")
    failure.__cause__ = ExceptionGroup(str(failure), tuple(errors))  # as `reason` expects it
    return failure
