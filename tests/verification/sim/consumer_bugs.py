"""Planted bugs of KIP-848 members, to whom the coordinator assigns; see `bugs`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.member import consumer_protocol, consumer_requests, consumer_state
from kafkagroup.member.consumer_state import Phase
from kafkagroup.member.vocabulary import Lose, Revoked, Send, SendFailed
from kafkagroup.runtime.consume.current_member import CurrentMember
from kafkagroup.runtime.offsets import group_offsets
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatResponse

from . import bugs
from .planting import (
    Bug,
    after_step,
    around,
    around_step,
    before_step,
    bug,
    heartbeats_while_waiting,
    left,
    own_only_if,
    replace,
    response_of,
    wake,
)

__all__ = ["BUGS"]

BUGS: dict[str, Bug] = {}

_bug = partial(bug, BUGS, "consumer")

_LOST = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


def _heartbeat_response(member: Any, event: Any) -> Any:
    """Return the response to the heartbeat in flight, if an event brings it; else None. The
    response to a join is no such response."""
    response = response_of(event, ConsumerGroupHeartbeatResponse)
    return response if response is None or event.token == member.heartbeat_in_flight else None


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

    def change(member: Any, event: Any) -> Any:
        if isinstance(event, Revoked) and member.phase is Phase.LOSING:
            had = member.member_id
            member = attrs.evolve(member, member_id=f"{int(had[:8], 16) ^ 1:08x}{had[8:]}")
        return member, event

    before_step(stack, "consumer", change)


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

    def change(member: Any, event: Any) -> Any:
        response = _heartbeat_response(member, event)
        if response is not None and response.error_code in _LOST:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            event = attrs.evolve(event, message=attrs.evolve(response, error_code=code))
        return member, event

    before_step(stack, "consumer", change)


@_bug("S2", "S1")
def keeps_its_partitions_when_it_is_fenced(stack: ExitStack) -> None:
    """A member that gets FENCED_MEMBER_EPOCH rejoins without losing its partitions."""

    def make(step: Any) -> Any:
        def faulty(before: Any, event: Any) -> Any:
            member, effects = step(before, event)
            response = _heartbeat_response(before, event)
            if response is None or response.error_code not in _LOST:
                return member, effects
            released = Revoked(now=event.now, jitter=event.jitter, token=member.pending or -1)
            member, later = step(member, released)
            return member, (*(e for e in effects if not isinstance(e, Lose)), *later)

        return faulty

    around_step(stack, "consumer", make)


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
        owned = self.owned if self.reconciling is None else self.next_owned
        return attrs.evolve(whole.fget(self), owned=owned)

    whole = consumer_state.Member.reported_state
    replace(stack, consumer_state.Member, "reported_state", property(claimed))


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

    def reported(self: Any) -> Any:
        return whole.fget(attrs.evolve(self, reconciliation_count=0))

    whole = consumer_state.Member.reported_state
    replace(stack, consumer_state.Member, "reported_state", property(reported))


@_bug("S10")
def sends_no_full_heartbeat_after_a_lost_one(stack: ExitStack) -> None:
    """A heartbeat counts as received even if its connection fails."""

    def change(before: Any, event: Any, member: Any, effects: Any) -> Any:
        if isinstance(event, SendFailed) and member.phase is Phase.MEMBER:
            said = before.state_in_flight or before.acknowledged_state
            member = attrs.evolve(member, acknowledged_state=said)
        return member, effects

    after_step(stack, "consumer", change)


@_bug("L4")
def leaves_without_a_request(stack: ExitStack) -> None:
    """No heartbeat with epoch -1 or -2 is sent on close."""

    def make(step: Any) -> Any:
        def faulty(before: Any, event: Any) -> Any:
            member, effects = step(before, event)
            if member.phase not in (Phase.DEPARTING, Phase.LEAVING):
                return member, effects
            return left(step, member, event, (e for e in effects if not isinstance(e, Send)))

        return faulty

    around_step(stack, "consumer", make)


# ------------------------------------------------------------------ responses


@_bug("L2", "S10", "S6")
def ignores_assignments_after_the_join(stack: ExitStack) -> None:
    """Assignments in the responses to later heartbeats are ignored."""

    def change(member: Any, event: Any) -> Any:
        response = _heartbeat_response(member, event)
        if response is not None:
            message = attrs.evolve(response, assignment=None)
            event = attrs.evolve(event, message=message, target_change=None)
        return member, event

    before_step(stack, "consumer", change)


@_bug("S10", "L2")
def ignores_epochs_after_the_join(stack: ExitStack) -> None:
    """Epochs in later responses are ignored."""

    def change(member: Any, event: Any) -> Any:
        response = _heartbeat_response(member, event)
        if response is not None:
            message = attrs.evolve(response, member_epoch=0)
            event = attrs.evolve(event, message=message, target_change=None)
        return member, event

    before_step(stack, "consumer", change)


# ------------------------------------------------------------------ heartbeats


@_bug("L3")
def sends_heartbeats_only_while_polled(stack: ExitStack) -> None:
    """Heartbeats are sent only while the application waits in the client."""
    heartbeats_while_waiting(stack, "consumer")


@_bug("L6")
def sends_heartbeats_in_a_loop_while_reconciling(stack: ExitStack) -> None:
    """During a reconciliation, heartbeats are sent as fast as possible."""

    def change(_: Any, event: Any, member: Any, effects: Any) -> Any:
        soon = member.heartbeat_sent_at + 0.01
        if event.now >= member.frequent_until or soon >= member.next_heartbeat_at:
            return member, effects
        member = attrs.evolve(member, next_heartbeat_at=soon)
        return (
            wake(member, effects, soon) if member.heartbeat_in_flight is None else (member, effects)
        )

    after_step(stack, "consumer", change)


@_bug("L1")
def delivers_nothing_while_it_reconciles(stack: ExitStack) -> None:
    """Nothing is delivered until the new assignment is applied."""

    own_only_if(stack, "consumer", lambda member: member.reconciling is None)


# ------------------------------------------------------------------ commits


@_bug("L2", "S3", "S5", "S7")
def commits_in_the_epoch_of_its_join(stack: ExitStack) -> None:
    """Commits always carry the epoch of the join."""
    epoch = property(lambda self: self.identity.generation_id)
    replace(stack, CurrentMember, "generation_id", epoch)


@_bug("S6", "S3")
def treats_a_stale_epoch_as_success(stack: ExitStack) -> None:
    """STALE_MEMBER_EPOCH on a commit is ignored."""

    def accepted(partition: Any) -> Any:
        is_stale = partition.error_code == ErrorCode.STALE_MEMBER_EPOCH
        return attrs.evolve(partition, error_code=0) if is_stale else partition

    def make(send: Any) -> Any:
        async def faulty(*given: Any, **options: Any) -> Any:
            response = await send(*given, **options)
            topics = (
                attrs.evolve(topic, partitions=tuple(map(accepted, topic.partitions)))
                for topic in response.topics
            )
            return attrs.evolve(response, topics=tuple(topics))

        return faulty

    around(stack, group_offsets, "commit_offsets", make)
