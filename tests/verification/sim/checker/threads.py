"""Threads and look-ups that take long: L16 and L17."""

from __future__ import annotations

import math

from ..events import Borrowed, LookedUp
from .recorder import Handlers, Recorder

_FALLBACK = 1.0
"""Seconds after which a client uses the addresses that it knows."""

_SLACK = 0.2


class Threads:
    """The rules of threads."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[tuple[str, str], float] = {}
        """Member and host -> since when it knows the host's addresses."""
        self.handlers: Handlers = {LookedUp: self._looked_up, Borrowed: self._borrowed}

    def _looked_up(self, number: int, event: LookedUp) -> None:
        """L16: a look-up keeps no client from a broker whose address it knows."""
        run, key = self._recorder.run_of(event.member), (event.member, event.host)
        began_at = event.time - event.seconds
        took = self._recorder.elapsed(run, event.time, began_at)
        if self._known.get(key, math.inf) <= began_at and event.outcome != "cancelled":
            if took > _FALLBACK + _SLACK or event.outcome != "ok":
                text = f"{run.name} waits {took:.1f} s for the name {event.host}, which it knows"
                self._recorder.report("L16", event, text, number)
        elif event.outcome == "ok":
            self._known.setdefault(key, event.time)

    def _borrowed(self, number: int, event: Borrowed) -> None:
        """L17: the application's threads may be busy for as long as it likes."""
        text = f"{event.member} waits for {event.what} that the application shares"
        self._recorder.report("L17", event, text, number)
