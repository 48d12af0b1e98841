"""The membership of a member: S10, S11 and S14, and what a fenced member may do (S1).

A member is in a generation from the response to its JoinGroup until the next one, or until its
membership ends. A response is stale if it is not to the last JoinGroup or SyncGroup sent, or if its
request named another member id or generation than the current ones; but a member id that the
coordinator does not know is so in every generation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from kafkagroup.assign import GroupSpec, MemberSpec
from kafkagroup.assign.check import RULES, VALID, violations

from ..events import (
    Assigned,
    Computing,
    Delivered,
    Formed,
    Lost,
    Partitions,
    Responded,
    Sent,
)
from .epochs import ENDS_MEMBERSHIP
from .recorder import (
    CONSUMER_HEARTBEAT,
    MEMBERSHIP,
    Handlers,
    MemberRun,
    Recorder,
    is_leave,
    is_release,
)

_PASSING = frozenset(
    (
        "NONE",
        "REBALANCE_IN_PROGRESS",
        "MEMBER_ID_REQUIRED",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
    )
)
"""Errors that excuse nothing."""

_ENDING = frozenset(
    (
        "UNKNOWN_MEMBER_ID",
        "ILLEGAL_GENERATION",
        "FENCED_INSTANCE_ID",
        "GROUP_MAX_SIZE_REACHED",
        "INVALID_REQUEST",
    )
)
"""Errors that end a generation of the classic protocol. Others may pass (L12)."""

_UNKNOWN_ID = ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID")
"""Errors of a member id, whatever the generation."""


@attrs.define(eq=False)
class MemberState:
    """The state of a membership, from the responses that the member received."""

    member_id: str = ""
    """Its current member id."""
    used_by: int = -1
    offered: set[str] = attrs.field(factory=set)
    """Member ids that the coordinator has assigned to it."""
    id_gone: bool = False
    """The coordinator does not know the id, or the member has left with it."""
    unknown: tuple[int, float] | None = None
    """By which event the member learned that the coordinator does not know the id, and when."""
    joined_by: int = -1
    """The event of the last JoinGroup."""
    synced_by: int = -1
    """The event of the SyncGroup after that JoinGroup."""
    generation: int = -1
    """Its generation; -1 for none."""
    generation_by: int = -1
    generation_at: float = -math.inf
    """By which event that last changed, and when."""
    assigned: Partitions | None = None
    """The assignment in the response to the SyncGroup after that JoinGroup; None before it."""
    assigned_by: int = -1
    excused_by: int = -1
    """The last event that justifies a loss of partitions."""
    computed_from: Mapping[str, int] | None = None
    """As the leader: topic -> partition count, as it last computed an assignment from; None if it
    has computed none."""
    fenced: tuple[int, float] | None = None
    """By which event it learned that another process has its instance id, and when."""


class Membership:
    """The rules of membership."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._states: dict[MemberRun, MemberState] = {}
        self.handlers: Handlers = {
            Sent: self._sent,
            Responded: self._answered,
            Assigned: self._assigned,
            Lost: self._lost,
            Delivered: self._delivered,
            Computing: self._computing,
            Formed: self._formed,
        }

    def _state(self, name: str) -> tuple[MemberRun, MemberState]:
        run = self._recorder.run_of(name)
        state = self._states.get(run)
        if state is None:
            state = self._states[run] = MemberState()
        return run, state

    # ------------------------------------------------------------ requests

    def _sent(self, number: int, event: Sent) -> None:
        if event.api not in MEMBERSHIP and event.api != "LeaveGroup":
            return
        run, state = self._state(event.member)
        if state.fenced is not None and event.api in MEMBERSHIP:
            self._check_fenced(number, event, run, state, f"sends {event.api}")
        match event.api:
            case "JoinGroup":
                self._check_id(number, event, run, state)
                state.joined_by, state.synced_by, state.assigned = number, -1, None
            case "SyncGroup":
                state.synced_by = number
                self._check_generation(number, event, state)
            case "Heartbeat":
                self._check_generation(number, event, state)
            case "LeaveGroup":
                state.id_gone = True
        if is_leave(event) and run.membership_end is None:
            run.membership_end = (number, event.time, event.member_id, state.generation)
        self._recorder.run_of_member_id[event.member_id] = run

    def _check_id(self, number: int, event: Sent, run: MemberRun, state: MemberState) -> None:
        used, name = state.member_id, event.member
        if event.member_id == used:
            if used and state.unknown and self._recorder.knew(*state.unknown, event):
                text = f"{name} joins as {used}, which the coordinator does not know"
                self._recorder.report("S11", event, text, state.used_by, number)
        elif not event.member_id:
            if not (state.id_gone or run.polls.expired):
                text = f"{name} joins without its member id {used}"
                self._recorder.report("S11", event, text, state.used_by, number)
        elif event.member_id not in state.offered:
            text = f"{name} joins as {event.member_id}, an id that it was never given"
            self._recorder.report("S11", event, text, state.used_by, number)
        if event.member_id != used:
            state.member_id, state.used_by = event.member_id, number
            state.id_gone, state.unknown = False, None

    def _check_generation(self, number: int, event: Sent, state: MemberState) -> None:
        """S10: a request names the generation that its member was in when it issued it."""
        knew = self._recorder.knew(state.generation_by, state.generation_at, event)
        if knew and event.generation != state.generation:
            now = state.generation if state.generation >= 0 else "none"
            text = f"{event.member} sends {event.api} of generation {event.generation}, in {now}"
            self._recorder.report("S10", event, text, state.joined_by, number)

    # ------------------------------------------------------------ responses

    def _answered(self, number: int, event: Responded) -> None:
        if event.api not in MEMBERSHIP and event.error in _PASSING:
            return
        request = self._recorder.request(event)
        if request is None:
            return
        by, sent = request
        run, state = self._state(event.member)
        if event.api not in MEMBERSHIP:
            # A permanent error, of FindCoordinator or of an offset request.
            state.excused_by = number
            return
        if event.api == "JoinGroup" and event.member_id:
            state.offered.add(event.member_id)
        if event.api == CONSUMER_HEARTBEAT:
            self._heartbeat_answered(number, event, run, state, sent)
        elif self._is_stale(by, event, sent, state):
            return
        elif event.error == "NONE":
            self._succeeded(number, event, run, state)
        elif event.error in _ENDING:
            self._failed(number, event, run, state, sent)

    def _succeeded(self, number: int, event: Responded, run: MemberRun, state: MemberState) -> None:
        if event.api == "JoinGroup":
            if run.opening.instance is not None and event.generation > state.generation + 1:
                state.excused_by = number  # KIP-345: it may have missed a generation
            state.generation, state.generation_by = event.generation, number
            state.generation_at = event.time
            state.member_id, state.used_by = event.member_id, number
            state.id_gone, state.unknown = False, None
            run.membership_end = None
        elif event.api == "SyncGroup":
            state.assigned, state.assigned_by = event.assigned, number

    def _failed(
        self, number: int, event: Responded, run: MemberRun, state: MemberState, sent: Sent
    ) -> None:
        state.excused_by = number
        run.membership_end = (number, event.time, sent.member_id, state.generation)
        state.generation, state.generation_by, state.generation_at = -1, number, event.time
        if event.error in _UNKNOWN_ID:
            state.id_gone, state.unknown = True, (number, event.time)
        if event.error == "FENCED_INSTANCE_ID":
            state.fenced = state.fenced or (number, event.time)

    def _heartbeat_answered(
        self, number: int, event: Responded, run: MemberRun, state: MemberState, sent: Sent
    ) -> None:
        if event.error == "NONE":
            if sent.generation == 0:
                run.membership_end = None
        elif event.error not in _PASSING:
            state.excused_by = number
            # Another process that has the instance id refuses its release, too: the join decides.
            if event.error == "FENCED_INSTANCE_ID" and not is_release(run, sent):
                state.fenced = state.fenced or (number, event.time)
            if event.error in ENDS_MEMBERSHIP and sent.generation > 0:
                run.membership_end = (number, event.time, sent.member_id, sent.generation)

    def _is_stale(self, by: int, event: Responded, sent: Sent, state: MemberState) -> bool:
        if sent.api == "JoinGroup":
            return by != state.joined_by
        if sent.api == "SyncGroup":
            return by != state.synced_by
        is_current = event.error in _UNKNOWN_ID or sent.generation == state.generation
        return sent.member_id != state.member_id or not is_current

    # ------------------------------------------------------------ consequences

    def _assigned(self, number: int, event: Assigned) -> None:
        run, state = self._state(event.member)
        if not run.has_wire_events or run.uses_consumer_protocol:
            return
        name = run.name
        if event.generation != state.generation:
            now = state.generation if state.generation >= 0 else "no answer"
            text = f"{name} applies generation {event.generation}; its last join has {now}"
            self._recorder.report("S10", event, text, state.joined_by, number)
        elif state.assigned is None:
            text = f"{name} applies generation {event.generation} without its assignment"
            self._recorder.report("S10", event, text, state.joined_by, number)
        elif foreign := set(run.held) ^ set(state.assigned):
            listed = ", ".join(map(str, sorted(foreign)))
            text = f"{name} owns other partitions than it was assigned: {listed}"
            self._recorder.report("S10", event, text, state.assigned_by, number)

    def _lost(self, number: int, event: Lost) -> None:
        run, state = self._state(event.member)
        closing = run.closing is not None
        caused = max(state.excused_by, run.raised_by) > run.assigned_by or closing
        caused = caused or run.polls.expired or self._recorder.fails_by_assignment(run, event.time)
        if run.has_wire_events and event.partitions and not caused:
            text = f"{run.name} loses its partitions, and nothing has ended its generation"
            self._recorder.report("S10", event, text, run.assigned_by, number)

    def _delivered(self, number: int, event: Delivered) -> None:
        run, state = self._state(event.member)
        if state.fenced is not None:
            self._check_fenced(number, event, run, state, f"delivers {event.partition}")

    def _check_fenced(
        self, number: int, event: Sent | Delivered, run: MemberRun, state: MemberState, what: str
    ) -> None:
        if state.fenced is not None and self._recorder.knew(*state.fenced, event):
            text = f"{run.name} {what} although another process has its instance id"
            self._recorder.report("S1", event, text, state.fenced[0], number)

    # ------------------------------------------------------------ assignments

    def _computing(self, number: int, event: Computing) -> None:
        _, state = self._state(event.member)
        state.computed_from = event.partitions

    def _formed(self, number: int, event: Formed) -> None:
        leader = self._recorder.run_of_member_id.get(event.leader)
        misassigned = leader is not None and event.time < leader.misassigns_until
        if misassigned or not event.partitions:
            return
        members = {
            member: MemberSpec(
                topics=frozenset(topics),
                owned=event.claims.get(member, ()),
                generation=event.claimed_at.get(member, -1),
            )
            for member, topics in event.subscriptions.items()
        }
        rules = RULES.get(event.protocol, VALID)
        # The leader may not know of a new partition yet; if it stays unassigned, L2 detects it.
        leading = None if leader is None else self._states[leader].computed_from
        known = event.partitions if leading is None else leading
        spec = GroupSpec(members=members, partitions=known)
        for wrong in violations(spec, event.assignment, rules):
            text = f"generation {event.generation} by {event.protocol}: {wrong}"
            self._recorder.report("S14", event, text, number)
