"""Delivery after the end of a lease: S27.

The lease is counted on the coordinator's clock, which no suspend of the member's machine stops.
"""

from __future__ import annotations

from ..events import Delivered, Worked
from .recorder import Handlers, Recorder

_ROUNDING = 1e-6
"""Seconds by which sums of times may differ."""


class Leases:
    """The rule of what may be done under a lease."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.handlers: Handlers = {Delivered: self._delivered, Worked: self._worked}

    def _delivered(self, number: int, event: Delivered) -> None:
        self._used(number, event, f"delivers {event.partition}@{event.offset}")

    def _worked(self, number: int, event: Worked) -> None:
        # When a process resumes, it may work until it notices, and its scope is cancelled.
        if event.time > self._recorder.run_of(event.member).scopes_end_at:
            self._used(number, event, f"works on {event.partition}")

    def _used(self, number: int, event: Delivered | Worked, what: str) -> None:
        run = self._recorder.run_of(event.member)
        if not run.has_wire_events or run.assigned_by < 0:
            return
        late = event.time - run.lease_expires_at
        if late > self._recorder.notice_delay + _ROUNDING:
            text = f"{run.name} {what} {late:.3f} s after its lease has expired"
            self._recorder.report("S27", event, text, number)
