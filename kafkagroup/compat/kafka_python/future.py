"""kafka-python's `Future`: what comes of something that nobody waits for, yet."""

from __future__ import annotations

from collections.abc import Generator

import anyio

from kafkagroup.errors import BrokerError, TransportError

__all__ = ["Future"]


class Future:
    """The outcome of a commit. It may be awaited, which raises its error."""

    def __init__(self) -> None:
        self.is_done = False
        self.value: object = None
        self.exception: Exception | None = None
        self._done = anyio.Event()

    def succeeded(self) -> bool:
        """Whether it is over, and went well."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """Whether it is over, and went wrong."""
        return self.is_done and self.exception is not None

    def retriable(self) -> bool:
        """Whether it went wrong, and may go better later."""
        error = self.exception
        return isinstance(error, TransportError) or (
            isinstance(error, BrokerError) and error.retriable
        )

    def success(self, value: object) -> Future:
        """It went well."""
        self.value, self.is_done = value, True
        self._done.set()
        return self

    def failure(self, error: Exception) -> Future:
        """It went wrong."""
        self.exception, self.is_done = error, True
        self._done.set()
        return self

    async def wait(self) -> None:
        """Wait until it is over, however it went."""
        await self._done.wait()

    def __await__(self) -> Generator[object, object, object]:
        yield from self._done.wait().__await__()
        if self.exception is not None:
            raise self.exception
        return self.value
