"""Paused partitions: S15 and S16."""

from __future__ import annotations

import attrs

from ..events import Assigned, Delivered, Paused
from .recorder import Handlers, MemberRun, OwnershipPeriod, Recorder


@attrs.define(eq=False)
class _Pause:
    """One pause in one period. It ends with the period, or when the application resumes."""

    period: OwnershipPeriod
    number: int
    rebalanced_by: int = -1
    """The event of the member's last assignment since then; -1 for none."""


class Pauses:
    """The rules of paused partitions."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._paused: dict[MemberRun, dict[object, _Pause]] = {}
        self.handlers: Handlers = {
            Paused: self._pauses,
            Assigned: self._assigned,
            Delivered: self._delivered,
        }

    def _pauses(self, number: int, event: Paused) -> None:
        run = self._recorder.run_of(event.member)
        before = self._paused.get(run, {})
        now: dict[object, _Pause] = {}
        for tp in event.partitions:
            period = run.held.get(tp)
            if period is None:
                continue
            known = before.get(tp)
            lasts = known is not None and known.period is period
            now[tp] = known if known is not None and lasts else _Pause(period, number)
        self._paused[run] = now

    def _assigned(self, number: int, event: Assigned) -> None:
        run = self._recorder.run_of(event.member)
        for pause in self._paused.get(run, {}).values():
            pause.rebalanced_by = number

    def _delivered(self, number: int, event: Delivered) -> None:
        run = self._recorder.run_of(event.member)
        pause = self._paused.get(run, {}).get(event.partition)
        if pause is None or run.held.get(event.partition) is not pause.period:
            return
        what = f"{run.name} delivers {event.partition}@{event.offset}, which is paused"
        if pause.rebalanced_by < 0:
            self._recorder.report("S15", event, what, pause.number, number)
        else:
            text = f"{what} and was kept in a rebalance"
            self._recorder.report("S16", event, text, pause.number, pause.rebalanced_by, number)
