"""What a paused partition does: S15 and S16."""

from __future__ import annotations

import attrs

from ..events import Assigned, Delivered, Paused
from .book import Book, Handlers, Life, Tenure


@attrs.define(eq=False)
class _Pause:
    """One pause of one tenure. It ends with the tenure, or when the application resumes."""

    tenure: Tenure
    number: int
    rebalanced_by: int = -1
    """The event in which the member was assigned partitions since; -1 for none."""


class Pauses:
    """The rules of paused partitions."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._paused: dict[Life, dict[object, _Pause]] = {}
        self.handlers: Handlers = {
            Paused: self._pauses,
            Assigned: self._assigned,
            Delivered: self._delivered,
        }

    def _pauses(self, number: int, event: Paused) -> None:
        life = self._book.life(event.member)
        before = self._paused.get(life, {})
        now: dict[object, _Pause] = {}
        for tp in event.partitions:
            tenure = life.held.get(tp)
            if tenure is None:
                continue
            known = before.get(tp)
            lasts = known is not None and known.tenure is tenure
            now[tp] = known if known is not None and lasts else _Pause(tenure, number)
        self._paused[life] = now

    def _assigned(self, number: int, event: Assigned) -> None:
        life = self._book.life(event.member)
        for pause in self._paused.get(life, {}).values():
            pause.rebalanced_by = number

    def _delivered(self, number: int, event: Delivered) -> None:
        life = self._book.life(event.member)
        pause = self._paused.get(life, {}).get(event.partition)
        if pause is None or life.held.get(event.partition) is not pause.tenure:
            return
        what = f"{life.name} delivers {event.partition}@{event.offset}, which is paused"
        if pause.rebalanced_by < 0:
            self._book.report("S15", event, what, pause.number, number)
        else:
            text = f"{what} and stayed through a rebalance"
            self._book.report("S16", event, text, pause.number, pause.rebalanced_by, number)
