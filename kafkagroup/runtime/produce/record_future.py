"""`RecordFuture`: what `send_nowait` returns, and how its record is awaited."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.types import RecordMetadata

__all__ = ["RecordFuture", "wait_ended"]


class RecordFuture:
    """A record on its way. `await` it for its `RecordMetadata`, as often as you like, or never: the
    record is sent anyway, and a failure that nobody has awaited is raised by `flush()` and at the
    close of the producer. A cancelled `await` withdraws nothing.

    Awaiting raises: NotWrittenError.
    """

    def __init__(self, batch: ProduceBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp
        self._is_read = False

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._outcome().__await__()

    def done(self) -> bool:
        """Return whether the record is written, or has failed."""
        self._follow()
        return self._batch.has_ended

    def _follow(self) -> None:
        """Find the batch to which the record has moved."""
        while (moved := self._batch.moved) is not None:
            self._batch, self._index = moved[self._index]
            self._is_read = False

    async def _outcome(self) -> RecordMetadata:
        while True:
            self._follow()
            if not self._is_read:
                self._is_read = True
                self._batch.read_count += 1
            if self._batch.has_ended:
                break
            batch = self._batch
            try:
                await _end_of(batch).wait()
            except BaseException:
                self._is_read = False
                batch.read_count -= 1
                raise
        batch, index = self._batch, self._index
        if (error := batch.error_of(index)) is not None:
            raise error from batch.error
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        timestamp = batch.append_time if batch.append_time >= 0 else self._timestamp
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)

    def __repr__(self) -> str:
        state = "done" if self.done() else "on its way"
        return f"RecordFuture({self._batch.tp}, {state})"


async def wait_ended(batch: ProduceBatch) -> None:
    """Wait until the records of a batch have ended, or moved to other batches."""
    if not batch.has_ended:
        await _end_of(batch).wait()


def _end_of(batch: ProduceBatch) -> OneShotEvent:
    """Return the event that is set when the records of a batch have ended, or moved."""
    if batch.waiters is None:
        batch.waiters = OneShotEvent()
    return cast(OneShotEvent, batch.waiters)
