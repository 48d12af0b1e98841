"""Records one membership: its rebalances, their causes, and where their time went.

The `Driver` reports each step (event, state, effects), and the `History` publishes events for the
application. Callers pass the time of the loop's clock. A member in ZooKeeper reports no steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkagroup._values import evolve, frozen
from kafkagroup.errors import ErrorCode
from kafkagroup.events import (
    CoordinatorFound,
    GroupLeft,
    MembershipLost,
    RebalanceCause,
    Rebalanced,
    RebalancePhases,
    RebalanceStarted,
)
from kafkagroup.member.consumer_vocabulary import Reconcile
from kafkagroup.member.vocabulary import (
    Coordinator,
    Fail,
    GenerationInfo,
    Leave,
    Lose,
    Replied,
    Revoke,
    SendFailed,
    Started,
)
from kafkagroup.runtime.member.event_feed import EventFeed
from kafkagroup.runtime.member.metrics import GroupMeters, GroupMetrics
from kafkagroup.wire.error_codes import COORDINATOR_MOVED, FENCED

if TYPE_CHECKING:
    from kafkagroup.runtime.member.interfaces import RunningMember
    from kafkagroup.runtime.member.protocol import CoordinatedState

__all__ = ["History", "Step"]

_NEVER = float("-inf")

_STAGES = {
    "unjoined": "waiting",
    "releasing": "joining",
    "joining": "joining",
    "computing": "computing",
    "syncing": "syncing",
    "synced": "syncing",
    "revoking": "revoking",
    "losing": "revoking",
    "stable": "assigning",
    "member": "assigning",
}
"""Phase of a member, in either of Kafka's protocols -> the field of RebalancePhases that the time
in it counts for."""


@frozen
class Step:
    """One step of a member."""

    before: CoordinatedState
    event: Any
    after: CoordinatedState
    effects: Sequence[object]
    at: float
    """When the step was made, on the loop's clock. The time of the event is on the lease clock."""


class History:
    """The rebalances, losses and events of one member of one group."""

    def __init__(self) -> None:
        self.meters = GroupMeters()
        self.feed = EventFeed()
        self.last_rebalance: Rebalanced | None = None
        self.loss_count = 0
        """How often the assignment was lost instead of revoked; see `GroupMetrics.losses`."""
        self.causes: Counter[RebalanceCause] = Counter()
        """The causes of all rebalances; one with two causes counts for both."""
        self.rebalance_count = 0
        self._began_at: float | None = None
        """When the current rebalance began; None between rebalances."""
        self._accounted_until = 0.0
        """The moment up to which `_stage_seconds` counts."""
        self._stage_seconds: dict[str, float] = {}
        """Field of RebalancePhases -> its seconds in the current rebalance."""
        self._current_causes: dict[RebalanceCause, str] = {}
        """The causes of the current rebalance, each with its reason."""
        self._requested_causes: dict[RebalanceCause, str] = {}
        """The causes for which this member has requested a rebalance that has not begun, each with
        its reason."""
        self._coordinator: Coordinator | None = None
        self._last_members: frozenset[str] | None = None
        """Ids of the members of the last generation, if this member led it; else None."""

    def metrics(self, now: float, driver: RunningMember | None, loop_delay: float) -> GroupMetrics:
        """Return the metrics of the membership. In ZooKeeper the counts of rebalances and losses
        stay 0."""
        return evolve(
            self.meters.read(now),
            rebalances=self.rebalance_count,
            rebalance_causes=dict(self.causes),
            last_rebalance=self.last_rebalance,
            losses=self.loss_count,
            last_heartbeat_seconds_ago=now - (_NEVER if driver is None else driver.last_heartbeat),
            session_seconds_left=0.0 if driver is None else max(driver.lease_left, 0.0),
            loop_delay=loop_delay,
        )

    # ------------------------------------------------------------ reports

    def note_rejoin_request(self, cause: RebalanceCause, reason: str) -> None:
        """Note that this member requests a rebalance. If one is under way, another follows it."""
        self._requested_causes.setdefault(cause, reason)

    def note_cause(self, cause: RebalanceCause, reason: str) -> None:
        """Add a cause of the current rebalance."""
        self._current_causes.setdefault(cause, reason)

    def note_revocation_time(self, seconds: float) -> None:
        """Count these seconds as revocation, and not as part of applying the assignment: a
        cooperative consumer revokes while it applies an assignment."""
        self._add_time("revoking", seconds)
        self._add_time("assigning", -seconds)

    def on_step(self, step: Step) -> None:
        """Note a step of the member."""
        event, after, now = step.event, step.after, step.at
        self._add_time_until(now, step.before)
        found = after.coordinator
        if found is not None and found != self._coordinator:
            self._coordinator = found
            self.feed.publish(
                CoordinatorFound(at=now, node_id=found.node_id, host=found.host, port=found.port)
            )
        for effect in step.effects:
            match effect:
                case Lose(reason=reason):
                    self._on_loss(step, reason)
                case Revoke() | Reconcile() if after.leaving is None:
                    self._begin_rebalance(step, _cause(event))
                case Leave():
                    self._on_leave(now, "" if after.leaving is None else after.leaving.reason)
                case Fail(error=error) if after.is_closed:  # else `Leave` follows
                    self._on_leave(now, str(error))
        if after.phase.value == "unjoined":
            self._begin_rebalance(step, _cause(event))

    def on_assignment_applied(
        self, now: float, state: CoordinatedState, generation: GenerationInfo
    ) -> None:
        """Note that the application has applied the assignment of the current generation."""
        if self._began_at is None:
            return
        self._add_time_until(now, state)
        members = frozenset(generation.members)
        joined: frozenset[str] = frozenset()
        left: frozenset[str] = frozenset()
        if generation.is_leader and self._last_members is not None:
            joined, left = members - self._last_members, self._last_members - members
            if joined:
                self._current_causes.setdefault(RebalanceCause.MEMBER_JOINED, "")
            if left:
                self._current_causes.setdefault(RebalanceCause.MEMBER_LEFT, "")
        self._last_members = members if generation.is_leader else None
        causes = tuple(self._current_causes) or (RebalanceCause.UNKNOWN,)
        event = Rebalanced(
            at=now,
            generation_id=generation.generation_id,
            member_id=generation.member_id,
            is_leader=generation.is_leader,
            causes=causes,
            reason=_reasons(self._current_causes),
            joined=tuple(sorted(joined)),
            left=tuple(sorted(left)),
            seconds=now - self._began_at,
            phases=RebalancePhases(**self._stage_seconds),
        )
        self._end_rebalance()
        self.last_rebalance = event
        self.rebalance_count += 1
        self.causes.update(causes)
        self.meters.rebalance.record(now, event.seconds)
        self.feed.publish(event)

    # ------------------------------------------------------------ events

    def _begin_rebalance(self, step: Step, cause: RebalanceCause | None) -> None:
        """Begin a rebalance, unless one is under way. In both cases the causes for which this
        member has requested a rebalance are causes of this one."""
        self._current_causes = {**self._current_causes, **self._requested_causes}
        self._requested_causes = {}
        if self._began_at is not None:
            return
        if cause is not None:
            self._current_causes.setdefault(cause, step.after.reason)
        self._began_at = self._accounted_until = step.at
        self.feed.publish(
            RebalanceStarted(
                at=step.at,
                generation_id=step.before.generation_id,
                causes=tuple(self._current_causes),
                reason=_reasons(self._current_causes),
            )
        )

    def _on_loss(self, step: Step, reason: str) -> None:
        self.loss_count += 1
        self._last_members = None
        leaving = step.after.leaving
        # An event without a cause is a response to JoinGroup without an error: the group has had a
        # generation without this member.
        cause = _cause(step.event) or RebalanceCause.FENCED
        if leaving is not None:
            cause = RebalanceCause.POLL_TIMEOUT if leaving.lost else RebalanceCause.UNKNOWN
            if leaving.lost and leaving.leave_group is False:
                cause = RebalanceCause.COORDINATOR  # that of another cluster, which was adopted
        self.feed.publish(
            MembershipLost(
                at=step.at,
                generation_id=step.before.generation_id,
                cause=cause,
                reason=reason,
            )
        )
        if leaving is None and not any(isinstance(effect, Fail) for effect in step.effects):
            self._begin_rebalance(step, cause)
            self._current_causes.setdefault(cause, reason)

    def _on_leave(self, now: float, reason: str) -> None:
        self._last_members = None
        self._requested_causes = {}
        self._end_rebalance()
        self.feed.publish(GroupLeft(at=now, reason=reason))

    def _end_rebalance(self) -> None:
        self._began_at = None
        self._stage_seconds = {}
        self._current_causes = {}

    def _add_time_until(self, now: float, state: CoordinatedState) -> None:
        """Count the time since the last call as spent in this state."""
        stage = _STAGES.get(state.phase.value)
        if stage is not None:
            self._add_time(stage, now - self._accounted_until)
        self._accounted_until = now

    def _add_time(self, stage: str, seconds: float) -> None:
        if self._began_at is not None:
            self._stage_seconds[stage] = self._stage_seconds.get(stage, 0.0) + seconds


def _cause(event: object) -> RebalanceCause | None:
    """Return the cause that an event names; None if it names none."""
    match event:
        case Started():
            return RebalanceCause.JOINING
        case SendFailed():
            return RebalanceCause.COORDINATOR
        case Replied(message=message):
            code = getattr(message, "error_code", None)
            if code in FENCED:
                return RebalanceCause.FENCED
            if code in COORDINATOR_MOVED or code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return RebalanceCause.COORDINATOR
    return None


def _reasons(causes: Mapping[RebalanceCause, str]) -> str:
    return "; ".join(filter(None, causes.values()))
