"""Iterators over batches of records, of one partition each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kafkagroup.consume.delivery import Batch
from kafkagroup.errors import ConsumerClosedError, NotStartedError

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ArrowBatches", "Batches"]


class Batches:
    """The async iterator of `Consumer.batches`."""

    def __init__(self, wait: Callable[[], Awaitable[Batch]]) -> None:
        self._wait = wait

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        try:
            return await self._wait()
        except NotStartedError:
            raise
        except ConsumerClosedError:
            raise StopAsyncIteration from None


class ArrowBatches:
    """The async iterator of `Consumer.batches(arrow=True)`."""

    def __init__(self, wait: Callable[[], Awaitable[Batch]]) -> None:
        self._batches = Batches(wait)

    def __aiter__(self) -> ArrowBatches:
        return self

    async def __anext__(self) -> pyarrow.RecordBatch:
        return (await anext(self._batches)).to_arrow()
