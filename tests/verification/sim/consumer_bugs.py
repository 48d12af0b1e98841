"""Planted bugs of KIP-848 members, to whom the coordinator assigns; see `bugs`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs

from kafkagroup.errors import BrokerError, ErrorCode
from kafkagroup.member import consumer_protocol, consumer_requests, consumer_state
from kafkagroup.member.consumer_state import Phase
from kafkagroup.member.ownership import Ownership
from kafkagroup.runtime.consume.current_membership import CurrentMembership
from kafkagroup.runtime.member import driver as drivers
from kafkagroup.runtime.offsets import group_offsets

from . import bugs
from .planting import Bug, around, bug, heartbeats_while_waiting, replace

__all__ = ["BUGS"]

BUGS: dict[str, Bug] = {}

_bug = partial(bug, BUGS, "consumer")

_Step = consumer_protocol._Step

for _name in (
    "skips_the_last_commit",
    "delivers_after_revoke",
    "commits_when_lost",
    "does_not_call_on_partitions_lost",
    "does_not_check_ownership_after_a_freeze",
    "ignores_max_poll_interval",
):
    BUGS[f"consumer_{_name}"] = attrs.evolve(
        bugs.BUGS[_name], name=f"consumer_{_name}", protocol="consumer"
    )


# ------------------------------------------------------------------ identity


@_bug("S11")
def rejoins_with_a_new_member_id(stack: ExitStack) -> None:
    """A fenced member rejoins with a new member id."""

    def make(restart: Any) -> Any:
        def renamed(self: Any, reason: str) -> None:
            restart(self, reason)
            member_id = self.member.member_id
            self._set(member_id=f"{int(member_id[:8], 16) ^ 1:08x}{member_id[8:]}")

        return renamed

    around(stack, _Step, "_restart", make)


@_bug("S10")
def rejoins_with_its_old_epoch(stack: ExitStack) -> None:
    """A member that has lost its membership rejoins with its old epoch, not 0."""
    had: dict[str, int] = {}

    def heartbeat_in_flight(beat: Any) -> Any:
        def noting(member: Any) -> Any:
            had[member.member_id] = member.epoch
            return beat(member)

        return noting

    def joining(join: Any) -> Any:
        def faulty(member: Any) -> Any:
            return attrs.evolve(join(member), member_epoch=had.get(member.member_id, 0))

        return faulty

    around(stack, consumer_protocol, "heartbeat_request", heartbeat_in_flight)
    around(stack, consumer_protocol, "join_request", joining)


@_bug("S10", "S1", "L2", "L6")
def retries_with_a_fenced_epoch(stack: ExitStack) -> None:
    """FENCED_MEMBER_EPOCH and UNKNOWN_MEMBER_ID are retried."""

    def make(gone: Any) -> Any:
        def faulty(self: Any, error: BrokerError) -> None:
            if self.member.phase is Phase.JOINING:
                gone(self, error)
            else:
                self._retry(error)

        return faulty

    around(stack, _Step, "_on_membership_lost", make)


@_bug("S2", "S1")
def keeps_its_partitions_when_it_is_fenced(stack: ExitStack) -> None:
    """A member that gets FENCED_MEMBER_EPOCH rejoins without losing its partitions."""

    def gone(self: Any, error: BrokerError) -> None:
        self._set(loss_count=self.member.loss_count + 1, may_be_known=False)
        self._back_off(error)
        self._restart(str(error))

    replace(stack, _Step, "_on_membership_lost", gone)


@_bug("S2")
def rejoins_with_its_old_partitions(stack: ExitStack) -> None:
    """A member that has lost its membership rejoins with its old partitions as owned."""
    had: dict[str, Any] = {}

    def heartbeat_in_flight(beat: Any) -> Any:
        def noting(member: Any) -> Any:
            if member.owned:
                had[member.member_id] = consumer_requests._listed(member.owned)
            return beat(member)

        return noting

    def joining(join: Any) -> Any:
        def faulty(member: Any) -> Any:
            return attrs.evolve(join(member), topic_partitions=had.get(member.member_id, ()))

        return faulty

    around(stack, consumer_protocol, "heartbeat_request", heartbeat_in_flight)
    around(stack, consumer_protocol, "join_request", joining)


# ------------------------------------------------------------------ reported ownership


@_bug("S2")
def acknowledges_a_revocation_too_early(stack: ExitStack) -> None:
    """Partitions to revoke are omitted from the owned ones before they are revoked."""

    def claimed(self: Any) -> Any:
        return self.owned if self.reconciling is None else self.next_owned

    replace(stack, consumer_state.Member, "_reported_partitions", property(claimed))


@_bug("L2")
def does_not_acknowledge_revocations(stack: ExitStack) -> None:
    """Heartbeats list no partitions."""

    def make(request: Any) -> Any:
        def faulty(member: Any) -> Any:
            return attrs.evolve(request(member), topic_partitions=None)

        return faulty

    around(stack, consumer_protocol, "heartbeat_request", make)


@_bug("L2")
def does_not_report_partitions_assigned_and_withdrawn(stack: ExitStack) -> None:
    """A partition assigned and taken back between two heartbeats is not reported as revoked."""

    def statement(self: Any) -> Any:
        return consumer_state.ReportedState(self.topics, self.pattern, self._reported_partitions)

    def claimed(self: Any) -> Mapping[Any, Any]:
        return whole.fget(attrs.evolve(self, reconciliation_count=0))

    whole = consumer_state.Member._reported_partitions
    replace(stack, consumer_state.Member, "_reported_partitions", property(claimed))
    replace(stack, consumer_state.Member, "reported_state", property(statement))


@_bug("S10")
def sends_no_full_heartbeat_after_a_lost_one(stack: ExitStack) -> None:
    """A heartbeat counts as received even if its connection fails."""

    def make(take_failure: Any) -> Any:
        def faulty(self: Any, token: int, error: Exception) -> None:
            said = self.member.state_in_flight or self.member.acknowledged_state
            take_failure(self, token, error)
            if self.member.phase is Phase.MEMBER:
                self._set(acknowledged_state=said)

        return faulty

    around(stack, _Step, "_on_failure", make)


@_bug("L4")
def leaves_without_a_request(stack: ExitStack) -> None:
    """No heartbeat with epoch -1 or -2 is sent on close."""
    replace(stack, _Step, "_leave", lambda self: self._left())


# ------------------------------------------------------------------ responses


@_bug("L2", "S10", "S6")
def ignores_assignments_after_the_join(stack: ExitStack) -> None:
    """Assignments in the responses to later heartbeats are ignored."""

    def make(handled: Any) -> Any:
        def faulty(self: Any, answer: Any) -> None:
            handled(self, attrs.evolve(answer, assignment=None))

        return faulty

    around(stack, _Step, "_on_heartbeat_response", make)


@_bug("S10", "L2")
def ignores_epochs_after_the_join(stack: ExitStack) -> None:
    """Epochs in later responses are ignored."""

    def make(handled: Any) -> Any:
        def faulty(self: Any, answer: Any) -> None:
            handled(self, attrs.evolve(answer, member_epoch=0))

        return faulty

    around(stack, _Step, "_on_heartbeat_response", make)


# ------------------------------------------------------------------ heartbeats


@_bug("L3")
def sends_heartbeats_only_while_polled(stack: ExitStack) -> None:
    """Heartbeats are sent only while the application waits in the client."""
    heartbeats_while_waiting(stack, _Step)


@_bug("L6")
def sends_heartbeats_in_a_loop_while_reconciling(stack: ExitStack) -> None:
    """During a reconciliation, heartbeats are sent as fast as possible."""

    def make(pace: Any) -> Any:
        def faulty(self: Any) -> float:
            return 0.01 if self.now < self.member.frequent_until else pace(self)

        return faulty

    around(stack, _Step, "_heartbeat_interval", make)


@_bug("L1")
def delivers_nothing_while_it_reconciles(stack: ExitStack) -> None:
    """Nothing is delivered until the new assignment is applied."""

    def faulty(self: Any) -> Ownership:
        ownership: Ownership = self.member.ownership
        return ownership if self.member.reconciling is None else ownership.release()

    replace(stack, drivers.Driver, "ownership", property(faulty))


# ------------------------------------------------------------------ commits


@_bug("L2", "S3", "S5", "S7")
def commits_in_the_epoch_of_its_join(stack: ExitStack) -> None:
    """Commits always carry the epoch of the join."""
    epoch = property(lambda self: self.identity.generation_id)
    replace(stack, CurrentMembership, "generation_id", epoch)


@_bug("S6", "S3")
def treats_a_stale_epoch_as_success(stack: ExitStack) -> None:
    """STALE_MEMBER_EPOCH on a commit is ignored."""

    def make(raising: Any) -> Any:
        def faulty(self: Any, code: int, *rest: Any) -> None:
            if code != ErrorCode.STALE_MEMBER_EPOCH:
                raising(self, code, *rest)

        return faulty

    around(stack, group_offsets.GroupOffsets, "_raise_error", make)
