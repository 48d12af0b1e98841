"""kafka-python's `Future`: the result of an asynchronous commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, ClassVar

import anyio

from kafkagroup._user_code import USER_ERRORS, user_error
from kafkagroup.errors import BrokerError, IllegalStateError, TransportError

__all__ = ["Future"]

logger = logging.getLogger(__name__)


class Future:
    """The result of a commit. Awaiting it raises its error."""

    error_on_callbacks: ClassVar[bool] = False
    """Whether `success` and `failure` raise the error of a callback, besides the log. The commits
    of this library only log it."""

    def __init__(self) -> None:
        self.is_done = False
        self.value: object = None
        self.exception: Exception | None = None
        self._done = anyio.Event()
        self._callbacks: list[Callable[[Any], object]] = []
        self._errbacks: list[Callable[[Any], object]] = []

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
        """Complete it with a value. Raises: IllegalStateError if it is complete."""
        self._complete(value, None)
        return self

    def failure(self, error: Exception) -> Future:
        """Complete it with an error. Raises: IllegalStateError if it is complete."""
        self._complete(None, error)
        return self

    def _complete(self, value: object, error: Exception | None) -> None:
        if self.is_done:
            raise IllegalStateError("the future is already complete")
        self.value, self.exception, self.is_done = value, error, True
        self._done.set()
        if error is None:
            self._call("callback", self._callbacks, value)
        else:
            self._call("errback", self._errbacks, error)

    def add_callback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Future:
        """Call `f(*args, value, **kwargs)` when it succeeds; at once if it has. An error of `f` is
        logged."""
        f = partial(f, *args, **kwargs)
        if self.succeeded():
            self._call("callback", [f], self.value)
        else:
            self._callbacks.append(f)
        return self

    def add_errback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Future:
        """Call `f(*args, error, **kwargs)` when it fails; at once if it has. An error of `f` is
        logged."""
        f = partial(f, *args, **kwargs)
        if self.failed():
            self._call("errback", [f], self.exception)
        else:
            self._errbacks.append(f)
        return self

    def add_both(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Future:
        """Call `f` with the value or with the error."""
        self.add_callback(f, *args, **kwargs)
        return self.add_errback(f, *args, **kwargs)

    def chain(self, future: Future) -> Future:
        """Complete another future as this one."""
        self.add_callback(future.success)
        return self.add_errback(future.failure)

    def _call(self, kind: str, functions: list[Callable[[Any], object]], result: object) -> None:
        for function in functions:
            try:
                function(result)
            except USER_ERRORS as error:
                failure = user_error(error, f"the {kind} {function!r}")
                logger.error("the %s of a commit failed", kind, exc_info=failure)
                if self.error_on_callbacks:
                    raise failure from error

    async def wait(self) -> None:
        """Wait until it is done; does not raise its error."""
        await self._done.wait()

    def __await__(self) -> Generator[object, object, object]:
        yield from self._done.wait().__await__()
        if self.exception is not None:
            raise self.exception
        return self.value
