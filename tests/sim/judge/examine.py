"""The pass: each event goes to the families of rules that ask for its kind, in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import attrs

from ..events import (
    Answered,
    Closing,
    Ended,
    Event,
    Formed,
    Frozen,
    Healed,
    Killed,
    Misassigning,
    Opening,
    Sent,
    Thawed,
)
from .book import BEATS, Book, Violation
from .epochs import Epochs
from .figures import Counting, Figures
from .gaps import Gaps
from .leading import Leading
from .liveness import Liveness
from .membership import Membership
from .offsets import Offsets
from .ownership import Ownership
from .pace import Pace
from .pauses import Pauses
from .polls import PollTimer
from .revocations import Revocations
from .topics import Topics

_TIMED = frozenset(("L1", "L2", "L3"))
"""Asserted in virtual time only: on a real machine others may have taken the processor."""

_GREETING = frozenset(("ApiVersions", "SaslHandshake", "SaslAuthenticate"))
"""Requests that a connection begins with."""

_QUIETLY = ("NONE", "REBALANCE_IN_PROGRESS", "MEMBER_ID_REQUIRED")
"""Answers of a coordinator in good health to a member in good health."""


_LATE_ASSIGNMENT = 10.0
"""Seconds for which the SyncGroup of a leader may be on its way."""

_MEMBERSHIP = frozenset(("JoinGroup", "SyncGroup", "Heartbeat", BEATS))
"""Requests whose answers say that a member is in its group."""


@attrs.frozen
class Verdict:
    """What a history comes to."""

    violations: tuple[Violation, ...]
    """In the order in which they came to light."""
    figures: Figures

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong, and nobody missed a record."""
        return not self.violations and not self.figures.lost


def judge(history: Iterable[Event], *, virtual: bool = True) -> list[Violation]:
    """What is wrong in a history; nothing, if the list is empty. As `examine`."""
    return list(examine(history, virtual=virtual).violations)


def examine(history: Iterable[Event], *, virtual: bool = True) -> Verdict:
    """Judge a history, which is read once. O(events), and a byte for each offset of the logs.

    With `virtual` time L1 to L3 are asserted too; otherwise they are among the figures only.
    """
    book = Book(virtual=virtual)
    gaps, pace, liveness = Gaps(book), Pace(book), Liveness(book)
    counting = Counting(book, gaps, pace, liveness)
    families = (
        _Course(book),
        gaps,  # before the event changes what is held and how far it was delivered
        Revocations(book),  # before the event ends what is held
        Ownership(book),
        Pauses(book),
        Offsets(book),
        Topics(book),
        Leading(book),
        PollTimer(book),
        Membership(book),
        Epochs(book),
        pace,
        liveness,
        counting,
        _After(book),
    )
    handlers: dict[type[Event], list[Callable[..., None]]] = {}
    for family in families:
        for kind, handler in family.handlers.items():
            handlers.setdefault(kind, []).append(handler)
    for number, event in enumerate(history):
        for handler in handlers.get(type(event), ()):
            handler(number, event)
    asserted = [v for v in book.violations if virtual or v.invariant not in _TIMED]
    return Verdict(tuple(asserted), counting.figures())


class _Course:
    """What befalls processes, and which requests are on their way. First of all."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.handlers = {
            Opening: self._opening,
            Closing: self._closing,
            Frozen: self._frozen,
            Thawed: self._thawed,
            Healed: self._healed,
            Misassigning: self._misassigning,
            Formed: self._formed,
            Sent: self._sent,
            Answered: self._answered,
        }

    def _opening(self, number: int, event: Opening) -> None:
        life = self._book.life(event.member)
        life.told, life.opened = event, True

    def _closing(self, number: int, event: Closing) -> None:
        life = self._book.life(event.member)
        if life.closing is None:
            life.closing = (number, event.time)

    def _frozen(self, number: int, event: Frozen) -> None:
        self._book.life(event.member).frozen = True

    def _thawed(self, number: int, event: Thawed) -> None:
        life = self._book.life(event.member)
        life.frozen, life.thawed_at = False, event.time

    def _misassigning(self, number: int, event: Misassigning) -> None:
        # What it has computed by then the coordinator may still get.
        until = math.inf if event.active else event.time + _LATE_ASSIGNMENT
        self._book.life(event.member).misassigned_until = until

    def _formed(self, number: int, event: Formed) -> None:
        self._book.misassigned = frozenset(
            member
            for member, assigned in event.assignment.items()
            if any(tp.topic not in event.subscriptions.get(member, ()) for tp in assigned)
        )

    def _healed(self, number: int, event: Healed) -> None:
        self._book.healed = event.time

    def _sent(self, number: int, event: Sent) -> None:
        life = self._book.life(event.member)
        life.wired = True
        life.assigned_to = life.assigned_to or event.api == BEATS
        life.in_flight[event.connection, event.correlation] = (number, event)
        if event.api not in _GREETING:
            # All that has waited leaves at once.
            since = life.used.setdefault(event.connection, event.time)
            life.has_connected = event.time == since

    def _answered(self, number: int, event: Answered) -> None:
        if event.api != "Fetch" and event.error not in _QUIETLY:
            self._book.life(event.member).troubled = number
        if event.api == "FindCoordinator":
            self._book.life(event.member).found_by = number
        elif event.api in _MEMBERSHIP and event.error in _QUIETLY:
            life = self._book.life(event.member)
            if (request := self._book.request(event)) is not None:
                life.sure_until = request[1].time + life.told.session_timeout


class _After:
    """What is over once every rule has seen the event."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.handlers = {Answered: self._answered, Killed: self._over, Ended: self._over}

    def _answered(self, number: int, event: Answered) -> None:
        in_flight = self._book.life(event.member).in_flight
        in_flight.pop((event.connection, event.correlation), None)

    def _over(self, number: int, event: Killed | Ended) -> None:
        life = self._book.life(event.member)
        life.over = True
        life.in_flight.clear()
