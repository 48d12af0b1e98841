"""Signals as an async iterator, on every platform. Other modules pass the names of signals, as
Windows lacks some of them, and open no receiver of anyio's themselves."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType

import anyio

__all__ = ["ENDING", "open_signal_receiver", "signals_of"]

ENDING = ("SIGINT", "SIGTERM", "SIGBREAK")
"""The signals that ask a program to end. Windows sends SIGBREAK for Ctrl-Break, and when a console
is closed."""


def open_signal_receiver(
    *names: str,
) -> AbstractContextManager[AsyncIterator[signal.Signals]]:
    """Receive signals by name, as `anyio.open_signal_receiver` does by number, but also for asyncio
    on Windows. Names that the platform lacks are left out. Without names: SIGINT, SIGTERM, and
    SIGBREAK of Windows.

    ```python
    with open_signal_receiver() as signals:
        async for _ in signals:
            await consumer.stop()
    ```

    Call it in the main thread: Python sets signal handlers nowhere else.
    """
    return _opened(signals_of(*(names or ENDING)))


def signals_of(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals of these names that the platform has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


@contextmanager
def _opened(numbers: tuple[signal.Signals, ...]) -> Iterator[AsyncIterator[signal.Signals]]:
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with ExitStack() as stack:
            try:
                signals = stack.enter_context(anyio.open_signal_receiver(*numbers))
            except NotImplementedError:  # asyncio's loops on Windows
                signals = stack.enter_context(_handled(numbers))
            yield signals
    finally:
        for number, handler in before.items():
            # asyncio's receiver has restored the default handler, not the one before: put back that
            # of another library, or have the signal ignored again.
            is_replaced = signal.getsignal(number) is not handler
            is_foreign = callable(handler) and not _is_of_loop(handler)
            if is_replaced and (is_foreign or handler is signal.SIG_IGN):
                signal.signal(number, handler)


def _is_of_loop(handler: Callable[..., object]) -> bool:
    """Return whether a handler is an event loop's, for another receiver that is still open. Such a
    handler only wakes the loop, which no longer has that receiver: if it were put back, signals
    would go unnoticed."""
    module = getattr(handler, "__module__", None) or ""
    return module.partition(".")[0] in ("asyncio", "uvloop")


@contextmanager
def _handled(numbers: tuple[signal.Signals, ...]) -> Iterator[AsyncIterator[signal.Signals]]:
    """Receive signals by handlers of the module `signal`: they wake asyncio's loop on Windows."""
    loop = asyncio.get_running_loop()
    sender, receiver = anyio.create_memory_object_stream[signal.Signals](math.inf)

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(sender.send_nowait, signal.Signals(number))

    with sender, receiver:
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield receiver
        finally:
            for number, handler in before.items():
                # None stands for a handler that Python did not install, and cannot put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
