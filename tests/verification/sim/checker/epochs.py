"""The membership of a KIP-848 member: S2, S10, S11, L2 and L4 of its heartbeats. Each but the first
names the epoch in the response to the previous one.

A heartbeat that lists partitions reports what its member owns: a partition that it no longer lists
is revoked, and other members may get it. A heartbeat that lists none reports no change, which is
valid only if the coordinator has certainly received the previous one.
"""

from __future__ import annotations

import attrs

from kafkagroup import TopicPartition

from ..events import Assigned, Closing, Ended, Event, Lost, Partitions, Responded, Sent
from .recorder import CONSUMER_HEARTBEAT, Handlers, MemberRun, Recorder, longest_wait

_SLACK = 0.5
"""Seconds in which a closing member has notified its group."""

ENDS_MEMBERSHIP = frozenset(
    ("FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "GROUP_ID_NOT_FOUND")
)
"""Errors that end the membership."""


@attrs.define(eq=False)
class MemberState:
    """The reported and acknowledged state of a member."""

    member_id: str = ""
    """The member id that it generated."""
    named_by: int = -1
    heartbeat_by: int = -1
    """The event of the last heartbeat that was sent."""
    issued_at: float = 0.0
    """When that was issued."""
    is_acknowledged: bool = False
    """The coordinator has received the last heartbeat, and its response arrived."""
    epoch: int = 0
    """The epoch in that response; 0 outside of the group."""
    first_epoch: int = 0
    """The epoch in which it joined."""
    epoch_by: int = -1
    epoch_at: float = -1.0
    """By which event the epoch last changed, and when."""
    targets: list[tuple[int, float, Partitions]] = attrs.field(factory=list)
    """Its assignments: by which event, when and which, from the one it has applied on."""
    given: set[TopicPartition] = attrs.field(factory=set)
    """All partitions that it was assigned since it joined."""
    reported: dict[TopicPartition, int] = attrs.field(factory=dict)
    """All partitions that it has reported as owned since then -> the last event that reported
    it."""


class Epochs:
    """The rules of member epochs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._states: dict[MemberRun, MemberState] = {}
        self.handlers: Handlers = {
            Sent: self._sent,
            Responded: self._answered,
            Assigned: self._assigned,
            Lost: self._lost,
            Closing: self._closing,
            Ended: self._ended,
        }

    # ------------------------------------------------------------ heartbeats

    def _sent(self, number: int, event: Sent) -> None:
        if event.api != CONSUMER_HEARTBEAT:
            return
        run = self._recorder.run_of(event.member)
        state = self._states.get(run)
        if state is None:
            state = self._states[run] = MemberState(event.member_id, number)
        if event.member_id != state.member_id:
            text = f"{run.name} is {state.member_id}, but sends a heartbeat as {event.member_id}"
            self._recorder.report("S11", event, text, state.named_by, number)
            state.member_id, state.named_by = event.member_id, number
        if event.generation == 0:
            self._check_join(number, event, run, state)
        elif event.generation > 0:
            if not self._check_heartbeat(number, event, run, state):
                return
        else:
            _change_epoch(state, 0, number, event.time)
        state.heartbeat_by, state.issued_at = number, event.issued_at
        state.is_acknowledged = False

    def _check_join(self, number: int, event: Sent, run: MemberRun, state: MemberState) -> None:
        if state.epoch:
            text = f"{run.name} joins again, and nothing has ended its epoch {state.epoch}"
            self._recorder.report("S10", event, text, state.epoch_by, number)
        if event.owned != ():
            listed = "no change" if event.owned is None else ", ".join(map(str, event.owned))
            text = f"{run.name} joins in epoch 0 and reports {listed} as owned"
            self._recorder.report("S2", event, text, number)
        for tp, period in run.held.items():
            text = f"{run.name} joins without having revoked {tp}"
            self._recorder.report("S2", event, text, period.began_by, number)
        state.epoch = 0
        state.targets.clear()
        state.given.clear()
        state.reported.clear()

    def _check_heartbeat(
        self, number: int, event: Sent, run: MemberRun, state: MemberState
    ) -> bool:
        """Return whether it is the heartbeat of a member: one that has waited may be of an epoch
        that has ended."""
        if not self._recorder.knew(state.epoch_by, state.epoch_at, event):
            return False  # it was issued before the membership, or its epoch, ended
        if event.generation != state.epoch:
            now = state.epoch or "none"
            text = f"{run.name} sends a heartbeat of epoch {event.generation}; its epoch is {now}"
            self._recorder.report("S10", event, text, state.epoch_by, number)
        if event.owned is None:
            if not state.is_acknowledged:
                text = f"{run.name} reports no change, though its last report may not have arrived"
                self._recorder.report("S10", event, text, state.heartbeat_by, number)
            return True
        for tp, period in run.held.items():
            if tp in event.owned or event.issued_at <= period.began_at:
                continue
            if period.revoking_by is not None:
                text = f"{run.name} reports {tp} as released while it is being revoked"
                self._recorder.report("S2", event, text, period.revoking_by, number)
            elif state.reported.get(tp, -1) > period.began_by:
                text = f"{run.name} reports {tp} as released, but owns it"
                self._recorder.report("S2", event, text, period.began_by, number)
        for tp in event.owned:
            if tp not in state.given:
                text = f"{run.name} reports {tp} as owned, but was not assigned it since it joined"
                self._recorder.report("S2", event, text, state.epoch_by, number)
        state.reported.update(dict.fromkeys(event.owned, number))
        return True

    # ------------------------------------------------------------ responses

    def _answered(self, number: int, event: Responded) -> None:
        if event.api != CONSUMER_HEARTBEAT:
            return
        request = self._recorder.request(event)
        run = self._recorder.run_of(event.member)
        state = self._states.get(run)
        if request is None or state is None:
            return
        if request[0] != state.heartbeat_by:
            return
        if event.error in ENDS_MEMBERSHIP or request[1].generation < 0:
            _change_epoch(state, 0, number, event.time)
        if event.error != "NONE" or request[1].generation < 0:
            return
        state.is_acknowledged = True
        if event.generation > 0 and event.generation != state.epoch:
            state.first_epoch = state.first_epoch if state.epoch else event.generation
            _change_epoch(state, event.generation, number, event.time)
        if event.assigned is not None:
            state.targets.append((number, event.time, event.assigned))
            state.given.update(event.assigned)

    # ------------------------------------------------------------ consequences

    def _assigned(self, number: int, event: Assigned) -> None:
        run = self._recorder.run_of(event.member)
        state = self._states.get(run)
        if state is None:
            return
        if not (state.epoch and state.first_epoch <= event.generation <= state.epoch):
            now = state.epoch or "none"
            text = (
                f"{run.name} applies an assignment of epoch {event.generation}; its epoch is {now}"
            )
            self._recorder.report("S10", event, text, state.epoch_by, number)
        held = set(run.held)
        for place, (_, _, target) in enumerate(state.targets):
            if _is_of(held, target):
                del state.targets[:place]
                return
        by, _, target = state.targets[-1] if state.targets else (-1, 0.0, ())
        listed = ", ".join(map(str, sorted(held ^ set(target)))) or "nothing of it"
        text = f"{run.name} owns other partitions than it was assigned: {listed}"
        self._recorder.report("S10", event, text, by, number)

    def _lost(self, number: int, event: Lost) -> None:
        state = self._states.get(self._recorder.run_of(event.member))
        if state is not None:
            # It may have left without a request: it does not know the coordinator.
            _change_epoch(state, 0, number, event.time)
            state.heartbeat_by = -1
            state.targets.clear()

    # ------------------------------------------------------------ the end

    def _closing(self, number: int, event: Closing) -> None:
        """L2: the member has applied its last assignment."""
        run = self._recorder.run_of(event.member)
        state = self._states.get(run)
        if state is None or not state.targets:
            return
        by, at, target = state.targets[-1]
        late = self._recorder.elapsed_healthy(run, event.time, at)
        if late > longest_wait(run) and set(run.held) != set(target):
            text = f"{run.name} has not applied its assignment for {late:.1f} s"
            self._recorder.report("L2", event, text, by, number)

    def _ended(self, number: int, event: Ended) -> None:
        """L4: a closing member leaves the group if nothing prevents it, so that the others need not
        wait for its session timeout."""
        self._check_leaves(number, event, self._recorder.run_of(event.member))

    def _check_leaves(self, number: int, event: Event, run: MemberRun) -> None:
        state = self._states.get(run)
        if state is None or run.closing is None:
            return
        by, at = run.closing
        calm = self._recorder.elapsed_healthy(run, at) > longest_wait(run) / 2
        if calm and state.epoch and state.is_acknowledged and event.time - at < _SLACK:
            text = f"{run.name} ends without leaving its group, in epoch {state.epoch}"
            self._recorder.report("L4", event, text, by, number)


def _change_epoch(state: MemberState, epoch: int, number: int, time: float) -> None:
    state.epoch, state.epoch_by, state.epoch_at = epoch, number, time


def _is_of(held: set[TopicPartition], target: Partitions) -> bool:
    """Whether these are the target's partitions, but for topics that are entirely unknown."""
    topics = {tp.topic for tp in held}
    named = {tp for tp in target if tp.topic in topics}
    return held == named
