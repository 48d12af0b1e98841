"""The membership of a KIP-848 member: S2, S10, S11, L2 and L4 of its heartbeats. Each but the first
names the epoch in the response to the previous one.

A heartbeat that lists partitions reports what its member owns: a partition that it no longer lists
is revoked, and other members may get it. A heartbeat that lists none reports no change, which is
valid only if the coordinator has certainly received the previous one.
"""

from __future__ import annotations

import attrs

from kafkagroup import TopicPartition

from ..events import Answered, Assigned, Closing, Ended, Event, Lost, Partitions, Sent
from .recorder import BEATS, Handlers, MemberRun, Recorder, longest_wait

_SLACK = 0.5
"""Seconds in which a closing member has notified its group."""

GONE = frozenset(
    ("FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "GROUP_ID_NOT_FOUND")
)
"""Errors that end the membership."""


@attrs.define(eq=False)
class Standing:
    """The reported and acknowledged state of a member."""

    member_id: str = ""
    """The member id that it generated."""
    named_by: int = -1
    beat: int = -1
    """The event of the last heartbeat that was sent."""
    issued_at: float = 0.0
    """When that was issued."""
    heard: bool = False
    """The coordinator has received the last heartbeat, and its response arrived."""
    epoch: int = 0
    """The epoch in that response; 0 outside of the group."""
    before: int = 0
    """The previous epoch of the same membership."""
    named: int = 0
    """The epoch in its last heartbeat."""
    left: int = 0
    """The epoch in which it left or lost its membership, if it has."""
    epoch_by: int = -1
    """The event of the last response."""
    epoch_at: float = -1.0
    """When the epoch last changed."""
    over: int = -1
    """The connection of the last heartbeat."""
    overlooked: bool = False
    """It was frozen while it waited for the last response, and may have given up."""
    targets: list[tuple[int, float, Partitions]] = attrs.field(factory=list)
    """Its assignments: by which event, when and which, from the one it has applied on."""
    given: set[TopicPartition] = attrs.field(factory=set)
    """All partitions that it was assigned since it joined."""
    said: dict[TopicPartition, int] = attrs.field(factory=dict)
    """All partitions that it has reported as owned since then -> the last event that reported
    it."""


class Epochs:
    """The rules of member epochs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._standings: dict[MemberRun, Standing] = {}
        self.handlers: Handlers = {
            Sent: self._sent,
            Answered: self._answered,
            Assigned: self._assigned,
            Lost: self._lost,
            Closing: self._closing,
            Ended: self._ended,
        }

    # ------------------------------------------------------------ heartbeats

    def _sent(self, number: int, event: Sent) -> None:
        if event.api != BEATS:
            return
        run = self._recorder.run_of(event.member)
        standing = self._standings.get(run)
        if standing is None:
            standing = self._standings[run] = Standing(event.member_id, number)
        if event.issued_at < standing.issued_at:
            return  # it has waited, and the member has given it up and sent a newer one
        if event.member_id != standing.member_id:
            text = f"{run.name} beats as {event.member_id}, and was {standing.member_id}"
            self._recorder.report("S11", event, text, standing.named_by, number)
            standing.member_id, standing.named_by = event.member_id, number
        if event.generation == 0:
            self._joins(number, event, run, standing)
        elif event.generation > 0:
            if not self._beats(number, event, run, standing):
                return
        else:
            standing.left, standing.epoch = standing.epoch, 0
        standing.beat, standing.issued_at = number, event.issued_at
        standing.heard, standing.over = False, event.connection
        standing.named = event.generation

    def _joins(self, number: int, event: Sent, run: MemberRun, standing: Standing) -> None:
        if standing.epoch and not (standing.overlooked or event.connection != standing.over):
            text = f"{run.name} joins again, and nothing has ended its epoch {standing.epoch}"
            self._recorder.report("S10", event, text, standing.epoch_by, number)
        if event.owned != ():
            listed = "nothing of it" if event.owned is None else ", ".join(map(str, event.owned))
            text = f"{run.name} joins, which begins with nothing owned, and says {listed}"
            self._recorder.report("S2", event, text, number)
        for tp, period in run.held.items():
            text = f"{run.name} joins without having let go of {tp}"
            self._recorder.report("S2", event, text, period.began, number)
        standing.epoch = standing.before = 0
        standing.targets.clear()
        standing.given.clear()
        standing.said.clear()

    def _beats(self, number: int, event: Sent, run: MemberRun, standing: Standing) -> bool:
        """Return whether it is the heartbeat of a member: one that has waited may be of an epoch
        that has ended."""
        # A member changes the connection, or looks up a coordinator that has just responded, only
        # if it has given up the response.
        looked = standing.epoch and run.found_by > standing.epoch_by
        overlooked = standing.overlooked or event.connection != standing.over or looked
        overlooked = overlooked and event.generation == standing.before == standing.named
        knew = self._recorder.knew(run, standing.epoch_at, event.issued_at)
        if not (knew or overlooked) and event.generation < (standing.epoch or standing.left + 1):
            return False  # it was issued before the membership, or its epoch, ended
        if event.generation != standing.epoch and not overlooked:
            now = standing.epoch or "none"
            text = f"{run.name} beats for epoch {event.generation}, in {now}"
            self._recorder.report("S10", event, text, standing.epoch_by, number)
        if event.owned is None:
            if not standing.heard:
                text = f"{run.name} says that nothing has changed since what may not be known"
                self._recorder.report("S10", event, text, standing.beat, number)
            return True
        for tp, period in run.held.items():
            if tp in event.owned or event.issued_at <= period.began_at:
                continue
            if period.revoking is not None:
                text = f"{run.name} says that it let go of {tp}, which is being revoked"
                self._recorder.report("S2", event, text, period.revoking, number)
            elif standing.said.get(tp, -1) > period.began:
                text = f"{run.name} says that it let go of {tp}, and has it"
                self._recorder.report("S2", event, text, period.began, number)
        for tp in event.owned:
            if tp not in standing.given:
                text = f"{run.name} claims {tp}, which it was not given since it joined"
                self._recorder.report("S2", event, text, standing.epoch_by, number)
        standing.said.update(dict.fromkeys(event.owned, number))
        return True

    # ------------------------------------------------------------ responses

    def _answered(self, number: int, event: Answered) -> None:
        if event.api != BEATS:
            return
        request = self._recorder.request(event)
        run = self._recorder.run_of(event.member)
        standing = self._standings.get(run)
        if request is None or standing is None:
            return
        if request[0] != standing.beat:
            return
        standing.overlooked = request[1].time <= run.thawed_at
        if event.error in GONE or request[1].generation < 0:
            standing.before, standing.epoch, standing.epoch_by = standing.epoch, 0, number
            standing.epoch_at = event.time
        if event.error != "NONE" or request[1].generation < 0:
            return
        standing.heard, standing.epoch_by = True, number
        if event.generation > 0 and event.generation != standing.epoch:
            standing.before, standing.epoch = standing.epoch, event.generation
            standing.epoch_at = event.time
        if event.assigned is not None:
            standing.targets.append((number, event.time, event.assigned))
            standing.given.update(event.assigned)

    # ------------------------------------------------------------ consequences

    def _assigned(self, number: int, event: Assigned) -> None:
        run = self._recorder.run_of(event.member)
        standing = self._standings.get(run)
        if standing is None:
            return
        if event.generation not in (standing.epoch, standing.before) or not event.generation:
            now = standing.epoch or "none"
            text = f"{run.name} takes up epoch {event.generation}, in {now}"
            self._recorder.report("S10", event, text, standing.epoch_by, number)
        held = set(run.held)
        for place, (_, _, target) in enumerate(standing.targets):
            if _is_of(held, target):
                del standing.targets[:place]
                return
        by, _, target = standing.targets[-1] if standing.targets else (-1, 0.0, ())
        listed = ", ".join(map(str, sorted(held ^ set(target)))) or "nothing of it"
        text = f"{run.name} has other partitions than it was assigned: {listed}"
        self._recorder.report("S10", event, text, by, number)

    def _lost(self, number: int, event: Lost) -> None:
        standing = self._standings.get(self._recorder.run_of(event.member))
        if standing is not None:
            # It may have left without a request: it does not know the coordinator.
            standing.left, standing.epoch, standing.beat = standing.epoch, 0, -1
            standing.epoch_at = event.time
            standing.targets.clear()

    # ------------------------------------------------------------ the end

    def _closing(self, number: int, event: Closing) -> None:
        """L2: the member has applied its last assignment."""
        run = self._recorder.run_of(event.member)
        standing = self._standings.get(run)
        if standing is None or self._recorder.healed is None or not standing.targets:
            return
        by, at, target = standing.targets[-1]
        late = event.time - max(at, self._recorder.healed, run.hindered_until)
        if late > longest_wait(run) and set(run.held) != set(target):
            text = f"{run.name} has not taken up what it was assigned for {late:.1f} s"
            self._recorder.report("L2", event, text, by, number)

    def _ended(self, number: int, event: Ended) -> None:
        """L4: a closing member leaves the group if nothing prevents it, so that the others need not
        wait for its session timeout."""
        self._check_told(number, event, self._recorder.run_of(event.member))

    def _check_told(self, number: int, event: Event, run: MemberRun) -> None:
        standing = self._standings.get(run)
        if standing is None or run.closing is None or self._recorder.healed is None:
            return
        by, at = run.closing
        calm = at - max(self._recorder.healed, run.hindered_until) > longest_wait(run) / 2
        if calm and standing.epoch and standing.heard and event.time - at < _SLACK:
            text = f"{run.name} ends without a word, in epoch {standing.epoch}"
            self._recorder.report("L4", event, text, by, number)


def _is_of(held: set[TopicPartition], target: Partitions) -> bool:
    """Whether these are the target's partitions, but for topics that are entirely unknown."""
    topics = {tp.topic for tp in held}
    named = {tp for tp in target if tp.topic in topics}
    return held == named
