"""Late modules: those that clients import on first use, so that `import kafkagroup` stays short.

Such an import blocks the event loop for up to 20 ms. A client imports them in a thread of its own
when it starts, before its loop needs them. Nothing here uses anyio: its backend is one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module

from kafkagroup._backend import asyncio_loop
from kafkagroup.options import ConsumerOptions, ConsumerProtocol, GroupMemberOptions
from kafkagroup.transport.threads import Job, WorkerThreads

__all__ = ["PRODUCE", "LateModules", "late_modules_of_consumer", "late_modules_of_member"]

# What each part of a client imports on first use.
_CONNECTION = (
    "encodings.idna",  # the socket module encodes host names with it
    "kafkagroup.transport.plain_stream",
    "kafkagroup.wire.codec_compiler",
)
_SASL = ("kafkagroup.transport.sasl.conversation",)
_RECORDS = ("crc32c",)
_CONSUMER_PROTOCOL = ("kafkagroup.runtime.member.consumer_protocol",)
_ENGINE = ("kafkagroup.runtime.consume.engine",)
_HEARTBEAT_THREAD = ("kafkagroup.runtime.member.threaded",)
_LEADER = (
    "encodings.utf_16_be",  # assignors order member ids by it, as Java compares strings
    "kafkagroup.assign.check",
    "kafkagroup.assign.target",
)
_RENEWAL = ("kafkagroup.runtime.consume.renewal",)
_CHECKUP = ("kafkagroup.runtime.consume.health",)

PRODUCE = (*_RECORDS, "kafkagroup.wire.messages.produce")
"""What a producer needs to write records."""


class LateModules:
    """The late modules of one client."""

    def __init__(
        self, to_start: Iterable[str] = (), afterwards: Iterable[str] = (), *, secured: bool = False
    ) -> None:
        """`to_start`: what the start itself needs, besides what each connection needs.
        `afterwards`: what the background tasks and the application need later; each background
        task begins with this import. `secured`: whether connections have security options, and so
        may use SASL."""
        self._to_start = (*_CONNECTION, *(_SASL if secured else ()), *to_start)
        self._afterwards = tuple(afterwards)
        self._job: Job[None] | None = None
        """The job that imports `_afterwards`; None before it begins, and if no thread runs it."""

    async def import_first(self) -> None:
        """Import what the start needs."""
        backend = "trio" if asyncio_loop() is None else "asyncio"
        job = _import_in_thread((f"anyio._backends._{backend}", *self._to_start))
        if job is not None:
            await job.wait()

    async def import_others(self) -> None:
        """Import the other modules. To be called when the client has connected: while a thread
        imports, the loop runs up to 5 ms later after each wait, so connecting would take longer."""
        if self._afterwards:
            self._job, self._afterwards = _import_in_thread(self._afterwards), ()
        if self._job is not None and not self._job.has_ended:
            await self._job.wait()


def late_modules_of_consumer(options: ConsumerOptions) -> LateModules:
    """Return the late modules of a consumer."""
    to_start = [*_ENGINE]
    afterwards = [*_RECORDS, *_CHECKUP]
    if options.group_id is not None:
        afterwards += _RENEWAL
        if options.group_protocol is not ConsumerProtocol.CLASSIC:
            to_start += _CONSUMER_PROTOCOL
        if options.group_protocol is not ConsumerProtocol.CONSUMER:
            afterwards += _LEADER
        if options.heartbeat_thread:
            to_start += _HEARTBEAT_THREAD
    return LateModules(to_start, afterwards, secured=options.security is not None)


def late_modules_of_member(options: GroupMemberOptions) -> LateModules:
    """Return the late modules of a `GroupMember`."""
    to_start = _HEARTBEAT_THREAD if options.heartbeat_thread else ()
    return LateModules(to_start, secured=options.security is not None)


def _import_in_thread(names: Iterable[str]) -> Job[None] | None:
    """Begin to import those of the modules that are not imported yet; return the job. None if all
    are imported, or if the process can start no thread: then they are imported on first use."""
    late = [name for name in names if name not in sys.modules or name in _being_imported]
    if not late:
        return None
    job = Job(partial(_import_all, late), WorkerThreads(short_limit=1))
    job.begin()
    return job if job.has_begun else None


_being_imported: set[str] = set()
"""The modules that threads import now. They are in `sys.modules` already, but the first use would
block the loop until the import has ended."""


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        _being_imported.add(name)
        with suppress(Exception):  # the first use raises it
            import_module(name)
        _being_imported.discard(name)
