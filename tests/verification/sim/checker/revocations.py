"""The course of a revocation: S17, S18 and S21.

A revocation begins when the member learns that it must revoke partitions, from the group or from
its client, and releases them at `Revoked`. In between the client waits for the records in flight,
up to a deadline, commits, and calls the application. In flight is each record that was delivered,
until it is processed.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kafkagroup import TopicPartition

from ..events import (
    Assigned,
    Closing,
    Delivered,
    Event,
    Lost,
    Processed,
    Rejoining,
    Responded,
    Revoked,
    Revoking,
    Sent,
    Sought,
)
from .recorder import CONSUMER_HEARTBEAT, Handlers, MemberRun, Recorder

_DRAIN_FRACTION = 0.75
"""Share of the rebalance timeout for which a revocation waits for the records in flight."""

_EARLY = 1e-6
"""Seconds of tolerance for rounding in sums of times."""

_GRACE = 1.0
"""Seconds after that until the last commit must be answered or have timed out."""


@attrs.define(eq=False)
class _Member:
    in_flight: dict[TopicPartition, dict[int, tuple[int, float]]] = attrs.field(factory=dict)
    """Partition -> the offsets of its records in flight -> the event and time of the delivery."""
    due: dict[TopicPartition, tuple[int, float]] = attrs.field(factory=dict)
    """Partition to revoke -> by which event, and when the member learned of it."""
    rejoins_since: tuple[int, float] | None = None
    """By which event its client had it rejoin, and since when it could; None after JoinGroup."""
    assigned_without_lease: set[TopicPartition] | None = None
    """The assignment of its last join, if the member had no lease when it got it: the next
    heartbeat that begins one has it applied."""
    calling: bool = False
    """A callback of the application is running."""
    called_at: float = 0.0
    """When the last callback ended."""


class Revocations:
    """The rules of revocations."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._members: dict[MemberRun, _Member] = {}
        self.handlers: Handlers = {
            Delivered: self._delivered,
            Processed: self._processed,
            Sought: self._sought,
            Responded: self._answered,
            Sent: self._sent,
            Rejoining: self._rejoining,
            Assigned: self._assigned,
            Revoking: self._revoking,
            Revoked: self._revoked,
            Lost: self._lost,
            Closing: self._closing,
        }

    def _of(self, name: str) -> tuple[MemberRun, _Member]:
        run = self._recorder.run_of(name)
        return run, self._members.setdefault(run, _Member())

    # ------------------------------------------------------------ records in flight

    def _delivered(self, number: int, event: Delivered) -> None:
        _, member = self._of(event.member)
        member.in_flight.setdefault(event.partition, {})[event.offset] = (number, event.time)

    def _processed(self, number: int, event: Processed) -> None:
        _, member = self._of(event.member)
        member.in_flight.get(event.partition, {}).pop(event.offset, None)

    def _sought(self, number: int, event: Sought) -> None:
        # The records in flight then count as not processed, and the revocation does not wait.
        self._of(event.member)[1].in_flight.pop(event.partition, None)

    # ------------------------------------------------------------ partitions to revoke

    def _answered(self, number: int, event: Responded) -> None:
        run, member = self._of(event.member)
        if event.api == "SyncGroup" and event.error == "NONE" and member.rejoins_since:
            member.rejoins_since = (number, event.time)  # not before it was assigned something
        if run.closing is not None or not run.held:
            return
        if event.api == "Heartbeat":
            # The leader decides what a cooperative member must revoke.
            if event.error == "REBALANCE_IN_PROGRESS" and not run.opening.cooperative:
                self._expect(number, event, run, member, set(run.held))
            elif event.error == "NONE" and not run.opening.cooperative:
                member.due.clear()
            elif event.error == "NONE" and member.assigned_without_lease is not None:
                kept, member.assigned_without_lease = member.assigned_without_lease, None
                self._expect_all_but(kept, number, event, run, member)
        elif event.api == "SyncGroup" and (
            self._recorder.refuses_assignment(run) or _is_outdated(run, event.assigned or ())
        ):
            return  # it revokes nothing because of it, and rejoins
        elif event.assigned is None:
            return
        elif event.api == "SyncGroup" and event.time >= run.lease_expires_at:
            member.assigned_without_lease = set(event.assigned)
        elif event.api in ("SyncGroup", CONSUMER_HEARTBEAT):
            self._expect_all_but(set(event.assigned), number, event, run, member)

    def _expect_all_but(
        self,
        kept: set[TopicPartition],
        number: int,
        event: Responded,
        run: MemberRun,
        member: _Member,
    ) -> None:
        for tp in kept & member.due.keys():
            del member.due[tp]
        self._expect(number, event, run, member, set(run.held) - kept)

    def _expect(
        self,
        number: int,
        event: Responded,
        run: MemberRun,
        member: _Member,
        going: set[TopicPartition],
    ) -> None:
        for tp in sorted(going):
            if run.held[tp].revoking_by is None:
                member.due.setdefault(tp, (number, event.time))

    def _sent(self, number: int, event: Sent) -> None:
        run, member = self._of(event.member)
        self._check_due(number, event, run, member)
        if event.api != "JoinGroup":
            return
        member.assigned_without_lease = None
        rejoins = member.rejoins_since
        if rejoins and self._recorder.knew(*rejoins, event):
            member.rejoins_since = None

    def _rejoining(self, number: int, event: Rejoining) -> None:
        _, member = self._of(event.member)
        member.rejoins_since = member.rejoins_since or (number, event.time)

    def _check_due(self, number: int, event: Event, run: MemberRun, member: _Member) -> None:
        """S18: a revocation calls the application back by its deadline."""
        if not member.due or member.calling or run.closing is not None:
            return
        for tp, (by, at) in sorted(member.due.items()):
            late = self._recorder.elapsed(run, event.time, at, member.called_at)
            if late > run.opening.rebalance_timeout * _DRAIN_FRACTION + _GRACE:
                text = f"{run.name} has not revoked {tp} for {late:.1f} s"
                self._recorder.report("S18", event, text, by, number)
                del member.due[tp]

    # ------------------------------------------------------------ callbacks

    def _revoking(self, number: int, event: Revoking) -> None:
        run, member = self._of(event.member)
        self._check_due(number, event, run, member)
        member.calling = True
        drain = run.opening.rebalance_timeout * _DRAIN_FRACTION - _EARLY
        for tp in event.partitions:
            member.due.pop(tp, None)
            in_flight = member.in_flight.pop(tp, {})
            if not run.has_opening or run.closing is not None:
                continue
            for offset, (by, at) in in_flight.items():
                # A member may have to rejoin as soon as it is assigned something: its listener's
                # callback still runs, and records are delivered meanwhile.
                since = min(at, run.stable_at)
                if member.rejoins_since:
                    since = min(since, member.rejoins_since[1])
                if event.time - since < drain and run.thawed_at < at:
                    text = f"{run.name} revokes {tp} with offset {offset} in flight"
                    self._recorder.report("S17", event, text, by, number)
                    break
        if event.partitions and not run.opening.shards:
            self._check_member(number, event, run)

    def _check_member(self, number: int, event: Revoking, run: MemberRun) -> None:
        """S21: partitions are reported as revoked only while the membership lasts."""
        if run.closing is not None or run.membership_end is None:
            return
        by, _, _, _ = run.membership_end
        began = min(
            (run.held[tp].began_by for tp in event.partitions if tp in run.held), default=number
        )
        if by > began:
            text = f"{run.name} reports partitions as revoked, but its membership has ended"
            self._recorder.report("S21", event, text, by, number)

    def _revoked(self, number: int, event: Revoked) -> None:
        _, member = self._of(event.member)
        member.calling, member.called_at = False, event.time

    def _assigned(self, number: int, event: Assigned) -> None:
        self._of(event.member)[1].called_at = event.time

    def _lost(self, number: int, event: Lost) -> None:
        run, member = self._of(event.member)
        self._check_due(number, event, run, member)
        member.due.clear()
        member.in_flight.clear()
        member.calling, member.called_at = False, event.time

    def _closing(self, number: int, event: Closing) -> None:
        self._of(event.member)[1].due.clear()


def _is_outdated(run: MemberRun, assigned: Iterable[TopicPartition]) -> bool:
    """Whether an assignment has topics from which the application has unsubscribed since."""
    return run.topics is not None and any(tp.topic not in run.topics for tp in assigned)
