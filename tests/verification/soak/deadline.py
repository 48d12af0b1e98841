"""The time limit of a part of the soak: a part that exceeds it fails by name."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlowError(Exception):
    """A part of the soak exceeded its deadline."""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Raise TooSlowError in the main thread after so many seconds, during any wait."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"{what} was not over within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
