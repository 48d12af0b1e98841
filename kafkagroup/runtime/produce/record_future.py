"""`RecordFuture`: what `send_nowait` returns, and how its record is awaited."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from kafkagroup._backend import asyncio_loop
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.runtime.produce.batch_end import BatchEnd, Waiter
from kafkagroup.types import RecordMetadata

try:
    import cython
except ImportError:  # Cython is needed to compile, not to run: users do not have it
    from kafkagroup import _uncompiled as cython

if TYPE_CHECKING:
    import asyncio

__all__ = ["RecordFuture", "wait_ended_or_moved"]

_new_tuple = tuple.__new__


class RecordFuture:
    """A record on its way. `await` it for its `RecordMetadata`, as often as you like, or never: the
    record is sent anyway, and a failure that was not awaited is raised by `flush()` and at the
    close of the producer. A cancelled `await` withdraws nothing.

    Awaiting raises: NotWrittenError.
    """

    def __init__(self, batch: ProduceBatch, loop: asyncio.AbstractEventLoop | None) -> None:
        """For the last record of `batch`. `loop`: that of the producer; None on trio."""
        self._batch = batch
        self._index = batch.count - 1
        self._timestamp = batch.last_timestamp
        self._loop = loop
        self._reader_count = 0
        """The number of awaits that wait for the outcome or have got it; without cancelled ones."""

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        self._follow()
        if not self._reader_count:
            self._batch.read_count += 1
        self._reader_count += 1
        while not self._batch.has_ended:
            try:
                end = _end_of(self._batch, self._loop)
                if isinstance(end, BatchEnd):
                    yield Waiter(end)  # as `yield from end`, without its generator
                else:
                    yield from end.wait().__await__()
            except BaseException:
                self._reader_count -= 1
                if not self._reader_count:
                    # Unread again: flush() raises the failure.
                    self._batch.read_count -= 1
                raise
            self._follow()
        batch, index = self._batch, self._index
        if batch.error is not None and (error := batch.error_of(index)) is not None:
            raise error from batch.error
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        timestamp = batch.append_time if batch.append_time >= 0 else self._timestamp
        # As `RecordMetadata(...)`, without the call of a Python function.
        topic, partition = batch.tp
        return _new_tuple(RecordMetadata, (topic, partition, offset, timestamp))

    def done(self) -> bool:
        """Return whether the record is written, or has failed."""
        self._follow()
        return self._batch.has_ended

    def _follow(self) -> None:
        """Find the batch to which the record has moved. That batch counts the record as read if
        the old one did."""
        while (moved := self._batch.moved) is not None:
            old = self._batch
            self._batch, self._index = moved[self._index]
            if self._reader_count:
                old.read_count -= 1
                self._batch.read_count += 1

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name):
            """Raise an AttributeError for a name that the class does not have. If the future of
            another Kafka client has it, the error says what to use here."""
            from kafkagroup._foreign_names import unknown_attribute

            raise unknown_attribute(self, name)

    def __repr__(self) -> str:
        state = "done" if self.done() else "on its way"
        return f"RecordFuture({self._batch.tp}, {state})"


if not cython.compiled:
    # In Python code `__getattr__` would make each access to a field slower, and each record has
    # several: Python's own AttributeError is enough there.
    del RecordFuture.__getattr__  # type: ignore[attr-defined]


async def wait_ended_or_moved(batch: ProduceBatch) -> None:
    """Wait until the records of a batch have ended, or moved to other batches."""
    if not batch.has_ended:
        end = _end_of(batch, asyncio_loop())
        await (end if isinstance(end, BatchEnd) else end.wait())


def _end_of(batch: ProduceBatch, loop: asyncio.AbstractEventLoop | None) -> BatchEnd | OneShotEvent:
    """Return the end of a batch, for which the first call creates it. `loop`: that of the producer;
    None on trio."""
    # Typed as `EndEvent` there: the package `produce` must not import the classes.
    end: BatchEnd | OneShotEvent | None = batch.end_event  # type: ignore[assignment]
    if end is None:
        end = batch.end_event = OneShotEvent() if loop is None else BatchEnd(loop)
    return end
