"""Partitions that a broker refuses to serve: L11.

That they are read on once the broker serves them again is L2: at the end of a run, everything was
read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import attrs

from kafkagroup import TopicPartition

from ..events import (
    Absent,
    Away,
    Closing,
    Committed,
    Committing,
    Delivered,
    Event,
    Lost,
    OfMember,
    Paused,
    Polling,
    Processed,
    Raised,
    Responded,
    Revoked,
    Sent,
    Sought,
)
from .recorder import Handlers, MemberRun, Recorder

RAISED = frozenset(
    (
        "TOPIC_AUTHORIZATION_FAILED",
        "CORRUPT_MESSAGE",
        "OFFSET_MOVED_TO_TIERED_STORAGE",
        "UNSUPPORTED_COMPRESSION_TYPE",
    )
)
"""Refusals that no retry of the client is known to resolve."""

_TIMEOUT = 10.0
"""Seconds within which the application hears of a refusal."""

_PERIOD = 60.0
"""Seconds in which it hears at most once of one partition and error."""


@attrs.define(eq=False)
class _Refusals:
    """The refusals of one member."""

    due: dict[tuple[TopicPartition, str], tuple[int, float, int]] = attrs.field(factory=dict)
    """Partition and error -> the first response with it that was not raised, when the application
    could first hear of it, and the node."""
    refused: dict[str, dict[str, float]] = attrs.field(factory=dict)
    """Error -> each kind of request that got it -> when it last did, the latest kind last."""
    raised: dict[tuple[TopicPartition | None, str], dict[str, tuple[int, float]]] = attrs.field(
        factory=dict
    )
    """Partition and error -> kind of request -> by which event it was last raised for that kind,
    and when; None: an error that names no partition, and may be about any."""
    paused: frozenset[TopicPartition] = frozenset()
    delivered_at: float = 0.0
    """When the application last got a record."""
    processing: int = 0
    """How many records it has got and not processed."""
    away_at: float | None = None
    """Since when it has been doing something else; None while it polls."""
    lapsed_at: float | None = None
    """Since when the member has no lease; None while it has one."""

    def is_raised_lately(self, tp: TopicPartition | None, error: str, now: float) -> bool:
        """Return whether this was raised in the last minute."""
        return any(now - at < _PERIOD for _, at in self.raised.get((tp, error), {}).values())

    def raise_again(
        self, tp: TopicPartition | None, error: str, number: int, now: float
    ) -> int | None:
        """Note that this is raised, for a kind of request that was refused since it was last raised
        for that kind. Return the event by which it was raised for it already, if that was in the
        last minute."""
        raised = self.raised.setdefault((tp, error), {})
        kinds = self.refused.get(error, {"": now})
        kind = next(
            (
                kind
                for kind, refused_at in kinds.items()
                if (last := raised.get(kind)) is None
                or (last[1] < refused_at and now - last[1] >= _PERIOD)
            ),
            next(reversed(kinds)),
        )
        before, at = raised.get(kind, (None, -math.inf))
        raised[kind] = number, now
        return before if now - at < _PERIOD else None

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Expect no error of these partitions any more."""
        for key in [key for key in self.due if key[0] in partitions]:
            del self.due[key]

    def postpone(self, now: float, away_at: float) -> None:
        """Do not count the time since `away_at`."""
        for key, (by, since, node) in self.due.items():
            self.due[key] = (by, since + max(0.0, now - max(since, away_at)), node)


class Refused:
    """The rule of refused partitions."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._refusals: dict[MemberRun, _Refusals] = {}
        self.handlers: Handlers = {
            Responded: self._answered,
            Raised: self._raised,
            Paused: self._paused,
            Sought: self._sought,
            Sent: self._sent,
            Closing: self._passes,
            Revoked: self._released,
            Lost: self._released,
            Delivered: self._delivered,
            Processed: self._processed,
            Away: self._away,
            Absent: self._away,
            Committing: self._away,
            Committed: self._polls,
            Polling: self._polls,
        }

    def _of(self, name: str) -> tuple[MemberRun, _Refusals]:
        run = self._recorder.run_of(name)
        refusals = self._refusals.get(run)
        if refusals is None:
            refusals = self._refusals[run] = _Refusals()
        return run, refusals

    def _answered(self, number: int, event: Responded) -> None:
        if event.error == "NONE" and not event.refused:
            return
        run, refusals = self._of(event.member)
        for error in RAISED.intersection((event.error, *event.refused.values())):
            kinds = refusals.refused.setdefault(error, {})
            kinds.pop(event.api, None)  # so that it becomes the last
            kinds[event.api] = event.time
        if event.api != "Fetch":
            return
        for tp, error in event.refused.items():
            was_raised = any(
                refusals.is_raised_lately(named, error, event.time) for named in (tp, None)
            )
            if error in RAISED and tp in run.held and not was_raised:
                asked = self._recorder.request(event)
                node = 0 if asked is None else asked[1].node
                refusals.due.setdefault((tp, error), (number, event.time, node))

    def _sent(self, number: int, event: Sent) -> None:
        """A client that asks another broker may not raise: the refusal was a follower's."""
        if event.api == "Fetch":
            _, refusals = self._of(event.member)
            for key in [key for key in refusals.due if key[0] in event.offsets]:
                if refusals.due[key][2] != event.node:
                    del refusals.due[key]
        self._passes(number, event)

    def _released(self, number: int, event: Revoked | Lost) -> None:
        self._of(event.member)[1].forget(event.partitions)

    def _sought(self, number: int, event: Sought) -> None:
        """What was refused at another position is no longer of interest."""
        self._of(event.member)[1].forget((event.partition,))

    def _paused(self, number: int, event: Paused) -> None:
        _, refusals = self._of(event.member)
        refusals.paused = frozenset(event.partitions)

    def _away(self, number: int, event: OfMember) -> None:
        _, refusals = self._of(event.member)
        if refusals.away_at is None:
            refusals.away_at = event.time

    def _polls(self, number: int, event: OfMember) -> None:
        """While it does something else, the application hears of no refusal."""
        _, refusals = self._of(event.member)
        if refusals.away_at is not None:
            refusals.postpone(event.time, refusals.away_at)
            refusals.away_at = None

    def _delivered(self, number: int, event: Delivered) -> None:
        self._polls(number, event)
        _, refusals = self._of(event.member)
        refusals.delivered_at = event.time
        refusals.processing += 1

    def _processed(self, number: int, event: Processed) -> None:
        _, refusals = self._of(event.member)
        refusals.postpone(event.time, refusals.delivered_at)
        refusals.processing -= 1

    def _passes(self, number: int, event: OfMember) -> None:
        if event.member in self._recorder.runs:
            run, refusals = self._of(event.member)
            self._check(number, event, run, refusals)

    def _check(self, number: int, event: Event, run: MemberRun, refusals: _Refusals) -> None:
        if refusals.away_at is not None or refusals.processing > 0:
            return
        if self._has_lapsed(event, run, refusals):
            return
        for key, by, since in [(k, by, at) for k, (by, at, _) in refusals.due.items()]:
            tp, error = key
            period = run.held.get(tp)
            if period is None or period.revoking_by is not None or tp in refusals.paused:
                del refusals.due[key]
            elif self._recorder.elapsed(run, event.time, since) > _TIMEOUT:
                text = f"{run.name} has not raised {error} of {tp} for {_TIMEOUT:.0f} s"
                self._recorder.report("L11", event, text, by, number)
                del refusals.due[key]

    def _has_lapsed(self, event: Event, run: MemberRun, refusals: _Refusals) -> bool:
        """Whether the member may not deliver: an error follows the records before it."""
        if run.has_wire_events and run.assigned_by >= 0 and event.time > run.lease_expires_at:
            if refusals.lapsed_at is None:
                refusals.lapsed_at = run.lease_expires_at
            return True
        if refusals.lapsed_at is not None:
            refusals.postpone(run.lease_since, refusals.lapsed_at)
            refusals.lapsed_at = None
        return False

    def _raised(self, number: int, event: Raised) -> None:
        self._polls(number, event)
        _, refusals = self._of(event.member)
        tp = event.partition
        for error in _refused_with(event.error):
            for key in [key for key in refusals.due if key[1] == error and tp in (key[0], None)]:
                del refusals.due[key]
            # What may not be read and what may not be committed are two reports.
            before = refusals.raise_again(tp, error, number, event.time)
            if tp is not None and before is not None:
                text = f"{event.member} raises {error} of {tp} twice in {_PERIOD:.0f} s"
                self._recorder.report("L11", event, text, before, number)


def _refused_with(raised: str) -> Iterator[str]:
    return (error for error in RAISED if f"({error})" in raised)
