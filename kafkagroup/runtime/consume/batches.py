"""Async iterators over batches of records; a batch has records of one partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kafkagroup._generic import K_co, KeyValueGeneric, V_co
from kafkagroup.consume.delivery import Batch
from kafkagroup.errors import ClosedError, NotStartedError

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ArrowBatches", "Batches"]


class Batches(KeyValueGeneric[K_co, V_co]):
    """The async iterator of `Consumer.batches`."""

    def __init__(self, wait: Callable[[], Awaitable[Batch[K_co, V_co]]]) -> None:
        """`wait`: waits for the next batch, and returns it."""
        self._wait = wait

    def __aiter__(self) -> Batches[K_co, V_co]:
        return self

    async def __anext__(self) -> Batch[K_co, V_co]:
        try:
            return await self._wait()
        except NotStartedError:  # a subclass of ClosedError, but a mistake of the application
            raise
        except ClosedError:
            raise StopAsyncIteration from None


class ArrowBatches:
    """The async iterator of `Consumer.batches(arrow=True)`."""

    def __init__(self, wait: Callable[[], Awaitable[Batch]]) -> None:
        """`wait`: waits for the next batch, and returns it."""
        self._batches = Batches(wait)

    def __aiter__(self) -> ArrowBatches:
        return self

    async def __anext__(self) -> pyarrow.RecordBatch:
        return (await anext(self._batches)).to_arrow()
