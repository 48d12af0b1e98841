"""kafka-python's `Future`: the result of an asynchronous commit."""

from __future__ import annotations

from collections.abc import Generator

import anyio

from kafkagroup.errors import BrokerError, TransportError

__all__ = ["Future"]


class Future:
    """The result of a commit. Awaiting it raises its error."""

    def __init__(self) -> None:
        self.is_done = False
        self.value: object = None
        self.exception: Exception | None = None
        self._done = anyio.Event()

    def succeeded(self) -> bool:
        """Whether it is done, without an error."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """Whether it is done, with an error."""
        return self.is_done and self.exception is not None

    def retriable(self) -> bool:
        """Whether it failed with an error that a retry may cure."""
        error = self.exception
        return isinstance(error, TransportError) or (
            isinstance(error, BrokerError) and error.retriable
        )

    def success(self, value: object) -> Future:
        """Complete it with a value."""
        self.value, self.is_done = value, True
        self._done.set()
        return self

    def failure(self, error: Exception) -> Future:
        """Complete it with an error."""
        self.exception, self.is_done = error, True
        self._done.set()
        return self

    async def wait(self) -> None:
        """Wait until it is done; does not raise its error."""
        await self._done.wait()

    def __await__(self) -> Generator[object, object, object]:
        yield from self._done.wait().__await__()
        if self.exception is not None:
            raise self.exception
        return self.value
