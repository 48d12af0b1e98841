"""What one response of one broker must not do: S22 and S23.

The events show every metadata response. A count that is smaller than the known one, or a topic
that is absent or in error, is believed when the next response repeats it: then the known count
falls here, too. The simulation lets a client get at most one wrong response in a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from ..events import (
    Away,
    Computing,
    Deleted,
    Delivered,
    Formed,
    Polling,
    Raised,
    Rejoining,
    Responded,
    Revoking,
    Subscribing,
)
from .recorder import Handlers, MemberRun, Recorder

_AT_ONCE = 0.05
"""Seconds within which a client acts on a response."""

_DENIES = "OffsetOutOfRangeError"


@attrs.define(eq=False)
class _Known:
    """What a member knows of the topics."""

    counts: dict[str, int] = attrs.field(factory=dict)
    """Topic -> its partition count, as confirmed by the responses of brokers."""
    doubted: set[str] = attrs.field(factory=set)
    """The topics of which the last response reported less."""
    doubted_by: int = -1
    doubted_at: float = 0.0
    """When a response first reported less of some topic."""
    changed_at: float = -math.inf
    """When a response last reported more of some topic, which counts at once, or less of it for the
    second time."""
    away_by: int = -1
    """The last event by which the application itself may rejoin."""
    wanted: frozenset[str] | None = None
    """The topics that its application has subscribed to last; None if it has not changed them."""
    is_own: bool = False
    """Whether its next rejoin has another cause: its application has changed the subscription, or
    it has revoked partitions that the next generation gives to others."""
    is_subscribing: bool = False
    """Whether that call may not have returned: with a pattern, it rejoins after the metadata has
    come, and the client may have rejoined before, once it knew a match."""
    computed: Mapping[str, int] = attrs.field(factory=dict)
    computed_by: int = -1
    subscribed: frozenset[str] = frozenset()
    """The topics in its last JoinGroup, as of the coordinator."""
    subscribed_by: int = -1


class SecondOpinions:
    """The rules about answers that report less than is known, or that deny a position."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[MemberRun, _Known] = {}
        self._deleted_by: dict[str, int] = {}
        """Topic -> the event that deleted it last."""
        self.handlers: Handlers = {
            Responded: self._answered,
            Deleted: self._deleted,
            Subscribing: self._subscribing,
            Away: self._away,
            Polling: self._polls,
            Delivered: self._polls,
            Rejoining: self._rejoining,
            Computing: self._computing,
            Formed: self._formed,
            Revoking: self._revoking,
            Raised: self._raised,
        }

    def _of(self, name: str) -> tuple[MemberRun, _Known]:
        run = self._recorder.run_of(name)
        known = self._known.get(run)
        if known is None:
            known = self._known[run] = _Known()
        return run, known

    # ------------------------------------------------------------ what is known

    def _answered(self, number: int, event: Responded) -> None:
        if not event.counts:
            return
        _, known = self._of(event.member)
        for topic, count in event.counts.items():
            before = known.counts.get(topic, 0)
            if count < before and topic not in known.doubted:
                known.doubted.add(topic)
                known.doubted_by, known.doubted_at = number, event.time
                continue
            if count != before:
                known.changed_at = event.time
            known.doubted.discard(topic)
            known.counts[topic] = count

    def _deleted(self, number: int, event: Deleted) -> None:
        self._deleted_by[event.topic] = number

    def _subscribing(self, number: int, event: Subscribing) -> None:
        _, known = self._of(event.member)
        known.subscribed, known.wanted = frozenset(), frozenset(event.topics)
        known.away_by, known.is_own, known.is_subscribing = number, True, True

    def _away(self, number: int, event: Away) -> None:
        _, known = self._of(event.member)
        known.away_by, known.is_subscribing = number, False

    def _polls(self, number: int, event: Polling | Delivered) -> None:
        self._of(event.member)[1].is_subscribing = False

    # ------------------------------------------------------------ what is done with it

    def _rejoining(self, number: int, event: Rejoining) -> None:
        """A client has its member rejoin only because of what it has confirmed."""
        run, known = self._of(event.member)
        soon = event.time - known.doubted_at < _AT_ONCE
        # A client first requests the metadata of new topics.
        is_own, known.is_own = known.is_own or known.is_subscribing, False
        is_own = is_own or self._recorder.refuses_assignment(run)
        is_own = is_own or event.time - known.changed_at < _AT_ONCE
        if known.doubted and soon and known.away_by < known.doubted_by and not is_own:
            text = f"{run.name} rejoins because one answer reports less of {_listed(known.doubted)}"
            self._recorder.report("S22", event, text, known.doubted_by, number)

    def _computing(self, number: int, event: Computing) -> None:
        run, known = self._of(event.member)
        known.computed, known.computed_by = event.partitions, number
        for topic, count in event.partitions.items():
            if count < self._confirmed(known, topic, number):
                text = f"{run.name} assigns {count} partitions of {topic}, and knew"
                text = f"{text} {known.counts[topic]} until one answer had less"
                self._recorder.report("S22", event, text, known.doubted_by, number)

    def _confirmed(self, known: _Known, topic: str, number: int) -> int:
        """Return how many partitions of a topic are known, unless it was deleted meanwhile."""
        if self._deleted_by.get(topic, -1) > known.doubted_by:
            return 0
        return known.counts.get(topic, 0) if topic in known.doubted else 0

    def _formed(self, number: int, event: Formed) -> None:
        """A member's subscription does not shrink, and a leader assigns every known topic."""
        for member_id, topics in event.subscriptions.items():
            run = self._recorder.run_of_member_id.get(member_id)
            # In KIP-848 the coordinator matches patterns itself, after a member has joined.
            if run is None or run.opening.shards or run.uses_consumer_protocol:
                continue
            _, known = self._of(run.name)
            for topic in sorted(known.subscribed.difference(topics)):
                is_wanted = known.wanted is None or topic in known.wanted
                if is_wanted and self._confirmed(known, topic, number):
                    text = f"{run.name} no longer subscribes to {topic}, which one answer lacked"
                    self._recorder.report("S22", event, text, known.doubted_by, number)
            known.subscribed, known.subscribed_by = frozenset(topics), number
        leader = self._recorder.run_of_member_id.get(event.leader)
        if leader is None or leader.opening.shards:
            return
        _, known = self._of(leader.name)
        wanted = {topic for topics in event.subscriptions.values() for topic in topics}
        for topic in sorted(wanted.difference(known.computed)):
            if self._confirmed(known, topic, number) and known.computed_by > known.doubted_by:
                text = f"{leader.name} assigns nothing of {topic}, which one answer lacked"
                self._recorder.report("S22", event, text, known.doubted_by, number)

    def _revoking(self, number: int, event: Revoking) -> None:
        """KIP-848: only a heartbeat takes partitions away."""
        run, known = self._of(event.member)
        known.is_own = known.is_own or run.opening.cooperative
        if not run.uses_consumer_protocol or run.target is None or run.closing is not None:
            return
        if run.membership_end is not None or run.polls.expired:
            return
        kept = [tp for tp in event.partitions if tp in run.target]
        doubted = [tp for tp in kept if tp.topic in known.doubted]
        if doubted and known.away_by < known.doubted_by:
            text = f"{run.name} revokes {_listed(doubted)}, which the coordinator assigns to it"
            self._recorder.report("S22", event, text, known.doubted_by, number)

    def _raised(self, number: int, event: Raised) -> None:
        """A client reports a position as out of range only if it is."""
        if not event.error.startswith(_DENIES):
            return
        run, _ = self._of(event.member)
        if all(self._recorder.log(tp).has_appends for tp in run.held) and not any(
            period.truncations or self._recorder.log(tp).truncations
            for tp, period in run.held.items()
        ):
            text = f"{run.name} reports a position as out of range; every log has it"
            self._recorder.report("S23", event, text, number)


def _listed(things: object) -> str:
    return ", ".join(sorted(map(str, things)))  # type: ignore[call-overload]
