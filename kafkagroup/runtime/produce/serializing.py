"""Calls the serializers of a producer."""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import isawaitable, iscoroutine
from typing import Any, cast

from kafkagroup.callbacks import Serializer
from kafkagroup.errors import ConfigurationError

__all__ = ["Serializing"]


class Serializing:
    """The serializer of keys or values."""

    def __init__(self, part: str, serializer: Serializer[Any] | None) -> None:
        """`part`: "key" or "value". `serializer`: None if the application passes bytes."""
        self._part = part
        self._serializer = serializer

    async def encoded(self, data: Any) -> Any:
        """Return the bytes of a key or value; None stays None."""
        if self._serializer is None or data is None:
            return data
        result = self._serializer(data)
        while isawaitable(result):  # its result may be awaitable, too
            result = await cast(Awaitable[Any], result)
        return result

    def encoded_now(self, data: Any) -> Any:
        """Return the bytes of a key or value without waiting; None stays None. Raises:
        ConfigurationError if the serializer returns an awaitable."""
        if self._serializer is None or data is None:
            return data
        result = self._serializer(data)
        if isawaitable(result):
            if iscoroutine(result):
                result.close()  # else Python warns that it was never awaited
            raise ConfigurationError(
                f"{self._part}_serializer is a coroutine function, which send_nowait cannot wait"
                " for; use send()"
            )
        return result
