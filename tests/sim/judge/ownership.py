"""Who has which partition when: S1, S2 and S9.

A tenure begins with `Assigned` and ends with `Revoked`, `Lost` or the member. Between `Revoking`
and `Revoked` it is still the member's, to commit, and nothing of it is delivered any more.

A member that was given up without knowing it may have a tenure beside its successor's; what it may
not do is deliver. That holds by the clock, as long as the group waits for nobody shorter than a
session: a rebalance timeout below the session timeout gives members up that could not know yet.
"""

from __future__ import annotations

from kafkagroup import TopicPartition

from ..events import (
    Assigned,
    Delivered,
    Ended,
    Killed,
    Lost,
    Revoked,
    Revoking,
    Sent,
    Worked,
)
from .book import Book, Handlers, Life, Tenure, joins, leaves

_WAKING = 0.5
"""Seconds in which one that stood still ends what is overdue."""


class Ownership:
    """The rules of owning."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._owners: dict[tuple[int, TopicPartition], tuple[Life, int]] = {}
        """Generation and partition -> who has it, and by which event."""
        self.handlers: Handlers = {
            Assigned: self._assigned,
            Revoking: self._revoking,
            Revoked: self._revoked,
            Lost: self._lost,
            Delivered: self._delivered,
            Worked: self._worked,
            Sent: self._sent,
            Killed: self._killed,
            Ended: self._ended,
        }

    def _assigned(self, number: int, event: Assigned) -> None:
        life = self._book.life(event.member)
        for tp in event.partitions:
            if (before := life.held.get(tp)) is not None:
                text = f"{life.name} is assigned {tp}, which it has already"
                self._book.report("S1", event, text, before.began, number)
            last = life.tenures.get(tp)
            late = last.sent if last is not None and last.loose and last.flying else None
            tenure = Tenure(life, tp, number, event.time, event.generation, late=late)
            life.held[tp] = life.tenures[tp] = tenure
            log = self._book.log(tp)
            if not _is_late(tenure, log.holder):
                log.holder = tenure
        # What it keeps it has in this generation too.
        for tp in life.held if event.generation >= 0 else ():
            owner, since = self._owners.setdefault((event.generation, tp), (life, number))
            if owner is not life and not _same_instance(owner, life):
                text = f"{owner.name} and {life.name} both own {tp} in generation"
                self._book.report("S1", event, f"{text} {event.generation}", since, number)

    def _revoking(self, number: int, event: Revoking) -> None:
        life = self._book.life(event.member)
        for tp in event.partitions:
            if (tenure := life.held.get(tp)) is not None:
                tenure.revoking = number
                tenure.forsaken = life.told.shards and _has_lost(life, event.time)

    def _revoked(self, number: int, event: Revoked) -> None:
        self._end(number, event, "revoked")

    def _lost(self, number: int, event: Lost) -> None:
        self._end(number, event, "lost")

    def _end(self, number: int, event: Revoked | Lost, how: str) -> None:
        life = self._book.life(event.member)
        for tp in event.partitions:
            if (tenure := life.held.pop(tp, None)) is not None:
                _close(tenure, number, event.time, how)

    def _killed(self, number: int, event: Killed) -> None:
        life = self._book.life(event.member)
        for tenure in life.held.values():
            _close(tenure, number, event.time, "killed")
        life.held.clear()

    def _ended(self, number: int, event: Ended) -> None:
        life = self._book.life(event.member)
        since = event.time if life.closing is None else life.closing[1]
        in_time = event.time - since < life.told.close_timeout
        for tp, tenure in life.held.items():
            # By force, when its time is over, nobody can be told any more.
            if in_time:
                text = f"{life.name} ended without letting go of {tp}"
                self._book.report("S2", event, text, tenure.began, number)
            _close(tenure, number, event.time, "closed")
        life.held.clear()

    def _delivered(self, number: int, event: Delivered) -> None:
        self._used(number, event, f"{event.member} delivers {event.partition}@{event.offset}")

    def _worked(self, number: int, event: Worked) -> None:
        # Who has just woken up goes on until its scope has been cancelled.
        if event.time > self._book.life(event.member).thawed_at:
            self._used(number, event, f"{event.member} works on {event.partition}")

    def _used(self, number: int, event: Delivered | Worked, what: str) -> None:
        tp = event.partition
        life = self._book.life(event.member)
        tenure = life.held.get(tp)
        if tenure is None or tenure.revoking is not None:
            last = life.tenures.get(tp)
            if last is None:
                self._book.report("S9", event, f"{what} and never had the partition", number)
            elif last.revoking is not None and not last.ended:
                text = f"{what} while the partition is being revoked"
                self._book.report("S9", event, text, last.revoking, number)
            else:
                text = f"{what} and has the partition no longer ({last.ended})"
                self._book.report("S9", event, text, last.ended_by, number)
            return
        holder = self._book.log(tp).holder
        if holder is not None and holder is not tenure:
            self._trespass(number, event, tenure, holder, what)

    def _trespass(
        self, number: int, event: Delivered | Worked, tenure: Tenure, holder: Tenure, what: str
    ) -> None:
        life = tenure.life
        if life.told.rebalance_timeout < life.told.session_timeout:
            return
        if _same_instance(life, holder.life) or self._book.is_replaced(life):
            return
        text = f"{what}, which is {holder.life.name}'s now"
        self._book.report("S1", event, text, tenure.began, holder.began, number)

    def _sent(self, number: int, event: Sent) -> None:
        if not (joins(event) or leaves(event)):
            return
        life = self._book.life(event.member)
        if event.api == "JoinGroup" and life.told.instance is not None:
            self._book.instances[life.told.instance] = life
        if life.told.shards and _has_lost(life, event.time):
            return  # and its application hears of it at the same time
        for tp, tenure in life.held.items():
            if tenure.revoking is not None and not tenure.forsaken:
                text = f"{life.name} sends {event.api} while {tp} is being revoked"
                self._book.report("S2", event, text, tenure.revoking, number)
        if event.api == "JoinGroup":
            self._claims(number, event, life)

    def _claims(self, number: int, event: Sent, life: Life) -> None:
        """A join says what its member has: all of it, or somebody else gets it too soon; nothing
        else, or it is kept from everybody."""
        claimed = event.owned or ()
        for tp, tenure in life.held.items():
            if tenure.revoking is None and not (life.told.cooperative and tp in claimed):
                text = f"{life.name} joins without having let go of {tp}"
                self._book.report("S2", event, text, tenure.began, number)
        for tp in claimed:
            if tp not in life.held:
                last = life.tenures.get(tp)
                if last is not None and self._has_just_lost(last, event.time):
                    continue  # the join was on its way out, or waited for its connection
                text = f"{life.name} claims {tp}, which it does not have"
                self._book.report("S2", event, text, -1 if last is None else last.ended_by, number)

    def _has_just_lost(self, tenure: Tenure, now: float) -> bool:
        waited = tenure.life.has_waited(now) or now - tenure.ended_at <= self._book.race
        return tenure.ended == "lost" and waited


def _close(tenure: Tenure, number: int, time: float, how: str) -> None:
    tenure.ended, tenure.ended_by, tenure.ended_at = how, number, time


def _is_late(tenure: Tenure, holder: Tenure | None) -> bool:
    """Whether what is taken up is over: it stood still, and another has had it since."""
    return holder is not None and 0 <= tenure.generation < holder.generation


def _has_lost(life: Life, now: float) -> bool:
    """Whether it is out of its group, or cannot know that it is not: nobody waits for it."""
    wakes = now - life.thawed_at < _WAKING
    return life.refused is not None or now >= life.sure_until or wakes


def _same_instance(one: Life, other: Life) -> bool:
    """Two lives of one static member: the later takes the place of the earlier, generation and
    all."""
    return one.told.instance is not None and one.told.instance == other.told.instance
