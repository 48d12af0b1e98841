"""Another cluster at the address of a broker: S24."""

from __future__ import annotations

from ..events import Delivered, Misdirected
from .recorder import Handlers, Recorder

FOREIGN = 1_000_000_000
"""The first sequence number of the records of another cluster."""


class Identity:
    """The rule that a client keeps to its cluster."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.handlers: Handlers = {Delivered: self._delivered, Misdirected: self._misdirected}

    def _delivered(self, number: int, event: Delivered) -> None:
        if event.sequence >= FOREIGN:
            text = f"{event.member} delivers {event.partition}@{event.offset} of another cluster"
            self._recorder.report("S24", event, text, number)

    def _misdirected(self, number: int, event: Misdirected) -> None:
        text = f"{event.member} sends {event.api} to another cluster at node {event.node}"
        self._recorder.report("S24", event, text, number)
