"""Known bugs of Kafka group clients, planted into this one to test the checker.

For each bug there must be a simulated run that violates one of the bug's invariants.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any
from unittest import mock

import anyio
import attrs

from kafkagroup import assign as assignors
from kafkagroup.assign import check
from kafkagroup.concurrency.clock import LeaseClock
from kafkagroup.consume.commits import of_processed
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.consume.progress import Progress
from kafkagroup.errors import ErrorCode, KafkaGroupError
from kafkagroup.member import classic, coordinated
from kafkagroup.member.classic_state import Phase
from kafkagroup.member.vocabulary import Assign, FindCoordinator, Leaving, Send, SendFailed
from kafkagroup.runtime.client import service as services
from kafkagroup.runtime.consume import close_sequence, committer, fetch_sources, refusals
from kafkagroup.runtime.consume import engine as engines
from kafkagroup.runtime.consume import fetch_response as fetch_responses
from kafkagroup.runtime.consume import fetcher as fetchers
from kafkagroup.runtime.consume import positions as position_lookups
from kafkagroup.runtime.consume import reader as readers
from kafkagroup.runtime.consume import session as sessions
from kafkagroup.runtime.consume import subscriber as subscribers
from kafkagroup.runtime.consume import topic_watch as topic_watches
from kafkagroup.runtime.consume import validation as validations
from kafkagroup.runtime.consume.committer import Committer
from kafkagroup.runtime.consume.current_member import CurrentMember
from kafkagroup.runtime.consume.poll_state import PollState
from kafkagroup.runtime.consume.range_check import RangeCheck
from kafkagroup.runtime.member import driver as drivers
from kafkagroup.runtime.member import generations
from kafkagroup.runtime.offsets import group_offsets
from kafkagroup.runtime.offsets import values as offset_values
from kafkagroup.runtime.offsets.values import GroupCommit
from kafkagroup.transport import connection as connections
from kafkagroup.transport import retry, throttle
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire import error_codes
from kafkagroup.wire.messages.group import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupResponse,
)
from kafkagroup.wire.records import RecordBatch

from . import process
from .planting import (
    Bug,
    after_step,
    before_step,
    bug,
    change_lease,
    heartbeats_while_waiting,
    mistake,
    own_only_if,
    reset_without_asking,
    response_of,
    wake,
    with_options,
)
from .planting import around as _around
from .planting import replace as _replace

__all__ = ["BUGS"]


BUGS: dict[str, Bug] = {}

_bug = partial(bug, BUGS, "classic")

_OF_GENERATIONS = (JoinGroupResponse, SyncGroupResponse, HeartbeatResponse)
"""The responses that may end a generation, or keep one from beginning."""


def _joining_as(member_id: str, member: Any, effects: Any) -> Any:
    """Return a member and its effects with another id, also in JoinGroup."""

    def renamed(effect: Any) -> Any:
        if not (isinstance(effect, Send) and isinstance(effect.request, JoinGroupRequest)):
            return effect
        return attrs.evolve(effect, request=attrs.evolve(effect.request, member_id=member_id))

    return attrs.evolve(member, member_id=member_id), tuple(map(renamed, effects))


async def _nothing(*_: Any, **__: Any) -> None:
    pass


class _Anyio:
    """The anyio module as one product module sees it, with a few names replaced."""

    def __init__(self, **others: Any) -> None:
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(anyio, name)


# ------------------------------------------------------------------ revocation


def _on_last_commit(stack: ExitStack, faulty: Callable[[Any], Any]) -> None:
    """Call `faulty(commit)` for the commit before partitions are released."""

    def make(commit: Any) -> Any:
        async def committed(self: Any, deadline: float, *rest: Any, **named: Any) -> None:
            # The others name a note, or the partitions.
            if rest or named:
                await commit(self, deadline, *rest, **named)
            else:
                await faulty(partial(commit, self))

        return committed

    _around(stack, Committer, "commit_processed", make)


@_bug("S3")
def skips_the_last_commit(stack: ExitStack) -> None:
    """Revoked partitions are released without a commit of the processed records."""
    _on_last_commit(stack, _nothing)


@_bug("S3")
def does_not_wait_for_the_last_commit(stack: ExitStack) -> None:
    """The member rejoins while its last commit is in flight."""

    async def faulty(commit: Any) -> None:
        with anyio.move_on_after(0.001):
            await commit(anyio.current_time() + 1.0)

    _on_last_commit(stack, faulty)


@_bug("S2")
def rejoins_while_revoking(stack: ExitStack) -> None:
    """The member rejoins when the callback starts, not when it returns."""

    def change(session: Any, spawn: Any) -> Any:
        revoked = session.options.on_partitions_revoked

        async def faulty(partitions: Any) -> None:
            if partitions:
                spawn(partial(revoked, partitions), "on_partitions_revoked")
                await anyio.sleep(0.001)
            else:
                await revoked(partitions)

        return {"on_partitions_revoked": faulty}

    with_options(stack, change)


@_bug("S2")
def keeps_its_partitions_in_an_eager_rebalance(stack: ExitStack) -> None:
    """A member of an eager group rejoins without a revocation."""

    def ending(end: Any) -> Any:
        def faulty(self: Any, *, lost: bool) -> None:
            end(self, lost=lost)
            if not (lost or self.cooperative):
                for owned in self._session.delivery.owned.values():
                    owned.revoked = False

        return faulty

    def revoking(revoke: Any) -> Any:
        async def faulty(self: Any, deadline: float) -> Any:
            return await revoke(self, deadline) if self.cooperative else self.protocols()

        return faulty

    _around(stack, subscribers.Subscriber, "on_generation_end", ending)
    _around(stack, subscribers.Subscriber, "revoke", revoking)


@_bug("S9")
def delivers_after_revoke(stack: ExitStack) -> None:
    """Buffered records are delivered while their partition is being revoked."""
    _replace(stack, Delivery, "revoke", lambda self, partitions: None)


@_bug("S9")
def delivers_after_lost(stack: ExitStack) -> None:
    """Buffered records are delivered after their partition was released."""

    def release(self: Any, partitions: Any) -> None:
        for tp in tuple(partitions):
            self.owned.pop(tp, None)
        self.acknowledgement.forget_all()

    _replace(stack, Delivery, "revoke", lambda self, partitions: None)
    _replace(stack, Delivery, "release", release)


def _pending(delivery: Delivery) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that are processed and not committed."""
    return {c.tp: c.offset for c in of_processed(delivery.owned, delivery.owned.values())}


@_bug("S13")
def commits_when_lost(stack: ExitStack) -> None:
    """A member that has lost its membership still commits."""

    def make(lose: Any) -> Any:
        async def losing(self: Any, reason: str) -> Any:
            session = self._session
            if pending := _pending(session.delivery):
                try:
                    await session.committer.group_offsets.commit(
                        GroupCommit(identity=session.member.identity, offsets=pending),
                        anyio.current_time() + 0.5,
                    )
                except KafkaGroupError:
                    pass
            return await lose(self, reason)

        return losing

    _around(stack, subscribers.Subscriber, "lose", make)


@_bug("S2", "S10")
def does_not_call_on_partitions_lost(stack: ExitStack) -> None:
    """`on_partitions_lost` is not called."""
    with_options(stack, lambda session, spawn: {"on_partitions_lost": None})


@_bug("S3", "S13", "S5")
def commits_released_partitions(stack: ExitStack) -> None:
    """An auto-commit computes its offsets, waits, and does not check ownership again."""

    draining: set[int] = set()

    def make(commit: Any) -> Any:
        async def late(self: Any, deadline: float, *rest: Any, **named: Any) -> None:
            pending = _pending(self._delivery)
            if pending and self.group_offsets is not None and id(self._delivery) not in draining:
                await anyio.sleep(0.5)
                # After the pause the commit has as much time as it would have had before.
                await self.group_offsets.commit(
                    GroupCommit(identity=self.member.identity, offsets=pending), deadline + 0.5
                )
                return
            await commit(self, deadline, *rest, **named)

        return late

    def noting(drain: Any) -> Any:
        async def drained(self: Any, *arguments: Any) -> None:
            draining.add(id(self.delivery))
            try:
                await drain(self, *arguments)
            finally:
                draining.discard(id(self.delivery))

        return drained

    _around(stack, Committer, "commit_processed", make)
    _around(stack, sessions.Session, "drain", noting)


# ------------------------------------------------------------------ membership


@_bug("S11")
def drops_its_member_id_on_a_disconnect(stack: ExitStack) -> None:
    """A lost connection makes the member join with a new member id."""

    def change(member: Any, event: Any) -> Any:
        if isinstance(event, SendFailed) and event.token in (
            member.heartbeat_in_flight,
            member.pending,
        ):
            member = attrs.evolve(member, member_id="")
        return member, event

    before_step(stack, "classic", change)


@_bug("S11")
def drops_its_member_id_with_the_generation(stack: ExitStack) -> None:
    """ILLEGAL_GENERATION also discards the member id."""

    def change(member: Any, event: Any) -> Any:
        response = response_of(event, *_OF_GENERATIONS)
        if response is not None and response.error_code == ErrorCode.ILLEGAL_GENERATION:
            member = attrs.evolve(member, member_id="")
        return member, event

    before_step(stack, "classic", change)


@_bug("L6", "L2")
def ignores_the_assigned_member_id(stack: ExitStack) -> None:
    """MEMBER_ID_REQUIRED is answered by an identical join."""

    def change(_: Any, event: Any, member: Any, effects: Any) -> Any:
        response = response_of(event, JoinGroupResponse)
        if response is not None and response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return _joining_as("", member, effects)
        return member, effects

    after_step(stack, "classic", change)


@_bug("S11", "L2", "L6")
def keeps_an_unknown_member_id(stack: ExitStack) -> None:
    """UNKNOWN_MEMBER_ID does not reset the member id."""

    def change(before: Any, event: Any, member: Any, effects: Any) -> Any:
        response = response_of(event, *_OF_GENERATIONS)
        if response is not None and response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            return _joining_as(before.member_id, member, effects)
        return member, effects

    after_step(stack, "classic", change)


@_bug("S1")
def continues_when_fenced(stack: ExitStack) -> None:
    """FENCED_INSTANCE_ID is treated as a transient error."""
    codes = {ErrorCode.FENCED_INSTANCE_ID: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    mistake(stack, "classic", codes, *_OF_GENERATIONS)


@_bug("L2")
def ignores_rebalance_in_progress(stack: ExitStack) -> None:
    """REBALANCE_IN_PROGRESS on a heartbeat is ignored."""
    mistake(stack, "classic", {ErrorCode.REBALANCE_IN_PROGRESS: 0}, HeartbeatResponse)


@_bug("S10", "S1", "L2")
def continues_in_an_ended_generation(stack: ExitStack) -> None:
    """ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID on a heartbeat are retried."""
    codes = {ErrorCode.ILLEGAL_GENERATION: 0, ErrorCode.UNKNOWN_MEMBER_ID: 0}
    mistake(stack, "classic", codes, HeartbeatResponse)


@_bug("S10", "S11", "S2")
def acts_on_a_stale_heartbeat(stack: ExitStack) -> None:
    """The response to a heartbeat of an earlier generation is applied to the current one."""
    refusal = JoinGroupResponse(
        error_code=ErrorCode.UNKNOWN_MEMBER_ID,
        generation_id=-1,
        protocol_name="",
        leader="",
        member_id="",
        members=(),
    )

    def change(member: Any, event: Any) -> Any:
        response = response_of(event, HeartbeatResponse)
        is_stale = response is not None and event.token != member.heartbeat_in_flight
        if is_stale and response.error_code and member.phase is Phase.JOINING:
            # As if the join had been refused.
            event = attrs.evolve(event, token=member.pending, message=refusal)
        return member, event

    before_step(stack, "classic", change)


@_bug("S10")
def applies_an_assignment_under_the_previous_generation(stack: ExitStack) -> None:
    """The assignment is applied under the previous generation."""

    def earlier(effect: Any) -> Any:
        if not isinstance(effect, Assign):
            return effect
        generation_id = effect.generation.generation_id - 1
        generation = attrs.evolve(effect.generation, generation_id=generation_id)
        return attrs.evolve(effect, generation=generation)

    def change(_: Any, event: Any, member: Any, effects: Any) -> Any:
        return member, tuple(map(earlier, effects))

    after_step(stack, "classic", change)


@_bug("S10")
def sends_heartbeats_of_the_previous_generation(stack: ExitStack) -> None:
    """Heartbeats carry the previous generation."""

    def make(request: Any) -> Any:
        return lambda member: request(attrs.evolve(member, generation_id=member.generation_id - 1))

    _around(stack, classic, "heartbeat_request", make)


@_bug("L2", "S3", "S5", "S4", "S10")
def commits_with_its_first_generation(stack: ExitStack) -> None:
    """Commits always carry the first generation."""

    class FirstIdentity:
        def __get__(self, session: Any, _: Any) -> Any:
            return session.__dict__.get("stuck", offset_values.NO_MEMBER)

        def __set__(self, session: Any, identity: Any) -> None:
            kept = session.__dict__.get("stuck", offset_values.NO_MEMBER)
            if kept.generation_id < 0 or kept.member_id != identity.member_id:
                session.__dict__["stuck"] = identity

    stack.enter_context(mock.patch.object(CurrentMember, "identity", FirstIdentity(), create=True))


@_bug("S1")
def does_not_check_ownership_after_a_freeze(stack: ExitStack) -> None:
    """A process that was frozen delivers without checking that it still owns anything."""

    change_lease(stack, "classic", lambda ownership, expires_at: math.inf)


@_bug("L3")
def sends_no_heartbeats_while_draining(stack: ExitStack) -> None:
    """No heartbeat is sent during a revocation."""

    def change(member: Any, event: Any) -> Any:
        if member.phase is Phase.REVOKING and member.next_heartbeat_at <= event.now:
            member = attrs.evolve(member, next_heartbeat_at=event.now + 0.1)
        return member, event

    before_step(stack, "classic", change)


@_bug("L3")
def sends_heartbeats_only_when_polled(stack: ExitStack) -> None:
    """Heartbeats are sent only while the application waits in the client."""
    heartbeats_while_waiting(stack, "classic")


@_bug("L2")
def ignores_max_poll_interval(stack: ExitStack) -> None:
    """A member whose application stops polling keeps its partitions."""
    _replace(stack, subscribers.Subscriber, "poll_due_at", lambda self, ran: float("inf"))


@_bug("L2")
def does_not_rejoin_after_max_poll_interval(stack: ExitStack) -> None:
    """The first poll after the poll interval does not rejoin."""

    def make(join: Any) -> Any:
        def once(self: Any) -> None:
            if not self._session.member.is_expelled:
                join(self)

        return once

    _around(stack, engines.Engine, "join", make)


@_bug("L2", "L6")
def does_not_look_up_a_moved_coordinator(stack: ExitStack) -> None:
    """A coordinator that has moved is not looked up again."""

    def change(before: Any, event: Any, member: Any, effects: Any) -> Any:
        if before.coordinator is None or member.coordinator is not None:
            return member, effects
        kept = attrs.evolve(member, coordinator=before.coordinator, lookup_in_flight=None)
        sent = (effect for effect in effects if not isinstance(effect, FindCoordinator))
        return wake(kept, sent, max(kept.retry_at, event.now))

    after_step(stack, "classic", change)


# ------------------------------------------------------------------ back-off


@_bug("L6")
def retries_without_backoff(stack: ExitStack) -> None:
    """Failed requests are retried at once."""
    for module in (coordinated, retry, refusals):
        _replace(stack, module, "backoff", lambda *_: 0.0)


@_bug("L6")
def has_no_backoff_jitter(stack: ExitStack) -> None:
    """The back-off has no jitter, so all members retry at the same time."""
    for module in (coordinated, retry, refusals):
        _around(
            stack,
            module,
            "backoff",
            lambda backoff: lambda attempt, first, most, _: backoff(attempt, first, most, 0.5),
        )


@_bug("L6")
def rejoins_after_each_assignment(stack: ExitStack) -> None:
    """The member rejoins after each assignment."""

    def make(assign: Any) -> Any:
        async def again(self: Any, generation: Any) -> None:
            await assign(self, generation)
            if self._session.member.driver is not None:
                self._session.member.driver.rejoin("again")

        return again

    _around(stack, subscribers.Subscriber, "assign", make)


@_bug("L6")
def requests_metadata_in_a_hot_loop(stack: ExitStack) -> None:
    """Metadata is requested in a hot loop."""

    async def faulty(self: Any) -> None:
        while True:
            try:
                await self._cluster.refresh()
            except KafkaGroupError:
                pass

    _replace(stack, topic_watches.TopicWatch, "run", faulty)


# ------------------------------------------------------------------ cooperative


@_bug("S2", "S1", "S14")
def joins_without_its_owned_partitions(stack: ExitStack) -> None:
    """A cooperative member does not report the partitions that it owns."""

    def make(protocols: Any) -> Any:
        def faulty(self: Any) -> Any:
            owned, self._session.delivery.owned = self._session.delivery.owned, {}
            try:
                return protocols(self)
            finally:
                self._session.delivery.owned = owned

        return faulty

    _around(stack, subscribers.Subscriber, "protocols", make)


@_bug("S2")
def reports_lost_partitions_as_owned(stack: ExitStack) -> None:
    """A cooperative member reports its previous partitions as owned, even after losing them."""

    def make(protocols: Any) -> Any:
        def faulty(self: Any) -> Any:
            owned = self._session.delivery.owned
            if self.cooperative:
                had = {tp: OwnedPartition(tp) for tp in self._last_assignment[0]}
                self._session.delivery.owned = had | owned
            try:
                return protocols(self)
            finally:
                self._session.delivery.owned = owned

        return faulty

    _around(stack, subscribers.Subscriber, "protocols", make)


@_bug("S10", "S1")
def keeps_partitions_that_a_rebalance_revokes(stack: ExitStack) -> None:
    """Partitions that a cooperative rebalance takes away are not revoked."""

    keeps: set[int] = set()

    def make(release: Any) -> Any:
        def keeping(self: Any, partitions: Any) -> None:
            if id(self) not in keeps:
                release(self, partitions)
                return
            for tp in partitions:
                if tp in self.owned:
                    self.owned[tp].revoked = False

        return keeping

    def assigning(assign: Any) -> Any:
        async def assigned(self: Any, generation: Any) -> None:
            session, options = self._session, self._session.options
            if self.cooperative:
                session.options = attrs.evolve(options, on_partitions_revoked=None)
                keeps.add(id(self._session.delivery))
            try:
                await assign(self, generation)
            finally:
                keeps.discard(id(self._session.delivery))
                session.options = options

        return assigned

    _around(stack, Delivery, "release", make)
    _around(stack, subscribers.Subscriber, "assign", assigning)


@_bug("L2")
def does_not_rejoin_after_revoking(stack: ExitStack) -> None:
    """A cooperative member does not rejoin after a revocation, so its partitions stay
    unassigned."""

    def make(rejoin: Any) -> Any:
        def faulty(self: Any, reason: str) -> None:
            if not reason.startswith("revoked"):
                rejoin(self, reason)

        return faulty

    _around(stack, drivers.Driver, "rejoin", make)


@_bug("L1")
def delivers_nothing_while_it_rejoins(stack: ExitStack) -> None:
    """A cooperative member delivers nothing until the rebalance is over."""

    own_only_if(stack, "classic", lambda member: member.phase is Phase.STABLE)


# ------------------------------------------------------------------ assignors


def _assignor(stack: ExitStack, spoil: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Spoil the result of every assignor, and skip the check of what it hands over."""
    _replace(stack, check, "newest_claims", lambda spec: {})
    spoilt: dict[str, Any] = {}
    for name, whole in process._ASSIGNORS.items():

        def assignor(spec: Any, whole: Any = whole) -> Any:
            return spoil(spec, dict(whole(spec)))

        vars(assignor).update(vars(whole))
        spoilt[name] = assignor
    stack.enter_context(mock.patch.dict(process._ASSIGNORS, spoilt))


@_bug("S14")
def assigns_partitions_before_their_revocation(stack: ExitStack) -> None:
    """The cooperative assignor assigns partitions that another member still owns."""

    def spoil(spec: Any, _: Any) -> Any:
        return assignors.sticky_assignor(spec)

    _assignor(stack, spoil)


@_bug("S14")
def leaves_a_partition_unassigned(stack: ExitStack) -> None:
    """An assignor leaves one partition unassigned."""

    def spoil(spec: Any, assignment: dict[str, Any]) -> Any:
        for member in sorted(assignment):
            if len(assignment[member]) > 1:
                return assignment | {member: assignment[member][1:]}
        return assignment

    _assignor(stack, spoil)


@_bug("S14")
def assigns_a_partition_twice(stack: ExitStack) -> None:
    """An assignor assigns one partition to two members."""

    def spoil(spec: Any, assignment: dict[str, Any]) -> Any:
        rich = next((m for m in sorted(assignment) if assignment[m]), None)
        for member in sorted(assignment):
            if rich not in (None, member):
                both = tuple(sorted({*assignment[member], assignment[rich][0]}))
                return assignment | {member: both}
        return assignment

    _assignor(stack, spoil)


@_bug("S14")
def assigns_most_partitions_to_one_member(stack: ExitStack) -> None:
    """A sticky assignor assigns as many partitions as possible to the first member."""

    def spoil(spec: Any, assignment: dict[str, Any]) -> Any:
        if any(member.owned for member in spec.members.values()):
            return assignment
        first, *others = sorted(assignment)
        topics = spec.members[first].topics
        given = {tp for share in assignment.values() for tp in share if tp.topic in topics}
        rest = {m: tuple(tp for tp in assignment[m] if tp not in given) for m in others}
        return {first: tuple(sorted(given)), **rest}

    _assignor(stack, spoil)


# ------------------------------------------------------------------ delivery


@_bug("S12", "S8")
def continues_at_its_old_position_when_assigned_again(stack: ExitStack) -> None:
    """A partition that is assigned again continues at the member's old position."""
    memory: dict[Any, Any] = {}

    def make(assign: Any) -> Any:
        def remembering(self: Any, fresh: Any) -> None:
            kept = memory.setdefault(id(self), {})
            for owned in fresh:
                before = kept.get(owned.tp)
                if before is not None and before.position != UNKNOWN:
                    owned.start_at(before.position)
                kept[owned.tp] = owned
            assign(self, fresh)

        return remembering

    _around(stack, Delivery, "assign", make)


@_bug("S26")
def starts_new_partitions_at_their_end(stack: ExitStack) -> None:
    """A partition without a committed offset starts at its end, though it was created while the
    member was subscribed."""
    _replace(stack, position_lookups, "EARLIEST", offset_values.LATEST)


@_bug("S8", "S7")
def resets_on_any_fetch_error(stack: ExitStack) -> None:
    """Any fetch error triggers the reset policy."""
    _replace(stack, fetch_responses, "fetch_action", lambda code: error_codes.FetchAction.RESET)
    _replace(stack, RangeCheck, "wake", reset_without_asking)


@_bug("S8")
def skips_on_a_fetch_error(stack: ExitStack) -> None:
    """A record that cannot be fetched at the moment is skipped."""

    def make(count_failure: Any) -> Any:
        def skipping(self: Any) -> Any:
            if self.position == self.fetch_offset != UNKNOWN:
                self.position += 1
                self.fetch_offset += 1
            return count_failure(self)

        return skipping

    _around(stack, OwnedPartition, "count_failure", make)


@_bug("S8", "S6")
def does_not_validate_positions_after_a_truncation(stack: ExitStack) -> None:
    """A position is not validated with a new leader: records that replaced those already read are
    skipped."""
    for module in (fetch_sources, fetchers, validations):
        _replace(stack, module, "needs_validation", lambda *_: False)


@_bug("S8")
def resets_a_truncated_position(stack: ExitStack) -> None:
    """A truncated position triggers the reset policy, though the leader has returned where the logs
    diverge."""

    def waking(wake: Any) -> Any:
        def faulty(self: Any) -> None:
            self.look_up_positions()
            wake(self)

        return faulty

    def reset(self: Any, epoch: int, leader_epoch: int) -> None:
        self.request_reset()

    _replace(stack, OwnedPartition, "follow_truncation", reset)
    _around(stack, engines.Engine, "wake", waking)


@_bug("S8")
def does_not_report_a_truncation(stack: ExitStack) -> None:
    """A truncation is not reported to an application that asked for it: reading continues at the
    cut."""

    def make(init: Any) -> Any:
        def faulty(self: Any, session: Any, *rest: Any) -> None:
            options = session.options
            session.options = attrs.evolve(options, auto_offset_reset="earliest")
            init(self, session, *rest)
            session.options = options

        return faulty

    _around(stack, validations.Validation, "__init__", make)


@_bug("S8")
def repeats_the_batch_from_its_start(stack: ExitStack) -> None:
    """Records of a batch below the position are delivered again."""

    def make(records: Any) -> Any:
        return lambda self, start_offset, **named: records(self, 0, **named)

    _around(stack, RecordBatch, "records", make)


@_bug("S8")
def delivers_control_records(stack: ExitStack) -> None:
    """A control record is delivered to the application."""
    control: dict[int, RecordBatch] = {}

    class Unmarked:
        """Control records with a value that the simulated applications can parse."""

        def __init__(self, markers: Any) -> None:
            self._markers = markers

        def next(self) -> Any:
            marker = self._markers.next()
            return None if marker is None else marker._replace(value=b"-1")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._markers, name)

    def adding(add: Any) -> Any:
        def faulty(self: Any, owned: Any, batches: Any) -> None:
            for batch in batches:
                if batch.is_control:
                    control[id(batch)] = batch
                    batch.is_control = False
            add(self, owned, batches)

        return faulty

    def reading(records: Any) -> Any:
        def faulty(self: Any, *given: Any, **named: Any) -> Any:
            found = records(self, *given, **named)
            return Unmarked(found) if id(self) in control else found

        return faulty

    _around(stack, Delivery, "add", adding)
    _around(stack, RecordBatch, "records", reading)


@_bug("S8", "L2")
def stays_before_control_records_at_the_end(stack: ExitStack) -> None:
    """The position stays before the control records at the end of a log."""
    _replace(stack, OwnedPartition, "skip_to", lambda self, offset, epoch: None)


@_bug("S8", "S6")
def loses_a_record_to_a_cancellation(stack: ExitStack) -> None:
    """A call can be cancelled after it has removed its record from the buffer."""

    def make(following: Any) -> Any:
        async def late(self: Any, *arguments: Any) -> Any:
            taken = await following(self, *arguments)
            await anyio.sleep(0.02)
            return taken

        return late

    _around(stack, readers.Reader, "next", make)


@_bug("S6", "S8", "S4")
def starts_after_the_committed_offset(stack: ExitStack) -> None:
    """The committed offset is treated as that of the last record."""

    def make(committed: Any) -> Any:
        def off_by_one(data: Any) -> Any:
            found = committed(data)
            return None if found is None else attrs.evolve(found, offset=found.offset + 1)

        return off_by_one

    _around(stack, group_offsets, "committed_offset", make)


@_bug("S7")
def starts_before_the_committed_offset(stack: ExitStack) -> None:
    """The record before the committed offset is delivered again."""

    def make(committed: Any) -> Any:
        def off_by_one(data: Any) -> Any:
            found = committed(data)
            return found and attrs.evolve(found, offset=max(0, found.offset - 1))

        return off_by_one

    _around(stack, group_offsets, "committed_offset", make)


@_bug("S8", "S6", "S4")
def starts_at_the_end(stack: ExitStack) -> None:
    """Without a committed offset, reading starts at the log's end, whatever the policy."""
    with_options(stack, lambda session, spawn: {"auto_offset_reset": "latest"})


@_bug("S12")
def treats_a_failed_offset_fetch_as_no_offset(stack: ExitStack) -> None:
    """A failed offset fetch is treated as no committed offset."""

    def make(once: Any) -> Any:
        async def faulty(self: Any, partitions: Any, *rest: Any) -> Any:
            found = await once(self, partitions, *rest)
            missing = [tp for tp in partitions if tp not in found.offsets]
            found.offsets.update(dict.fromkeys(missing))
            return found

        return faulty

    _around(stack, group_offsets.GroupOffsets, "fetch_once", make)


@_bug("L2", "S12", "S8", "L6")
def uses_a_negative_offset_as_position(stack: ExitStack) -> None:
    """The -1 of "no committed offset" is used as a position."""
    _replace(
        stack,
        group_offsets,
        "committed_offset",
        lambda data: OffsetAndMetadata(data.committed_offset if data.committed_offset >= 0 else -2),
    )


# ------------------------------------------------------------------ commits


@_bug("S4")
def commits_records_in_flight(stack: ExitStack) -> None:
    """A record counts as processed when it is delivered."""
    _replace(stack, Progress, "begin", lambda self: 0)


@_bug("S4")
def commits_the_fetch_position(stack: ExitStack) -> None:
    """The fetch position is committed, not that of the application."""

    def ahead(self: Any) -> OffsetAndMetadata | None:
        if self.fetch_offset in (UNKNOWN, self.committed):
            return None
        return OffsetAndMetadata(self.fetch_offset)

    _replace(stack, OwnedPartition, "to_commit", ahead)


@_bug("S5")
def commits_the_last_record(stack: ExitStack) -> None:
    """Some commits store the offset of the last record, not the next one."""

    def make(to_commit: Any) -> Any:
        def faulty(self: Any) -> OffsetAndMetadata | None:
            found: OffsetAndMetadata | None = to_commit(self)
            if found is not None:
                return found
            if self.processed == UNKNOWN or self.processed < 1:
                return None
            return OffsetAndMetadata(self.processed - 1)

        return faulty

    _around(stack, OwnedPartition, "to_commit", make)


@_bug("S5", "S10", "S13")
def lets_commits_overtake(stack: ExitStack) -> None:
    """Two commits can be in flight, and a retry of the older can follow the newer."""

    class NoLock:
        async def acquire(self) -> None:
            pass

        def release(self) -> None:
            pass

        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *_: object) -> None:
            pass

    _replace(stack, committer, "anyio", _Anyio(Lock=NoLock))


@_bug("S6")
def reports_a_failed_commit_as_done(stack: ExitStack) -> None:
    """`commit` logs its error and returns."""

    def make(commit: Any) -> Any:
        async def faulty(self: Any, *arguments: Any, **options: Any) -> None:
            try:
                await commit(self, *arguments, **options)
            except KafkaGroupError:
                pass

        return faulty

    for name in ("commit", "commit_processed", "send"):
        _around(stack, Committer, name, make)


# ------------------------------------------------------------------ cancellation, closing, time


@_bug("L5")
def swallows_a_cancellation(stack: ExitStack) -> None:
    """A cancelled call keeps waiting, in a shielded scope."""

    def make(following: Any) -> Any:
        async def faulty(self: Any, *arguments: Any, **options: Any) -> Any:
            with anyio.CancelScope(shield=True), anyio.move_on_after(3.0):
                return await following(self, *arguments, **options)
            return await following(self, *arguments, **options)

        return faulty

    _around(stack, readers.Reader, "next", make)


@_bug("L4")
def leaves_connections_open(stack: ExitStack) -> None:
    """Closing leaves the connections open."""
    _replace(stack, connections, "anyio", _Anyio(aclose_forcefully=_nothing))


@_bug("L4", kinds=["partings"])
def closes_without_a_deadline(stack: ExitStack) -> None:
    """Closing has no deadline."""

    def make(init: Any) -> Any:
        def faulty(self: Any, close_timeout: float, *rest: Any) -> None:
            init(self, 10_000.0, *rest)

        return faulty

    _around(stack, services.Service, "__init__", make)
    _around(stack, close_sequence.CloseSequence, "__init__", make)

    def leaving(member: Any, event: Any) -> Any:
        if isinstance(event, Leaving):
            event = attrs.evolve(event, deadline=math.inf)
        return member, event

    def departing(_: Any, event: Any, member: Any, effects: Any) -> Any:
        def patient(effect: Any) -> Any:
            if isinstance(effect, FindCoordinator | Send):
                effect = attrs.evolve(effect, timeout=member.config.request_timeout)
            return effect

        if member.leave_by < math.inf:
            effects = tuple(map(patient, effects))
        return attrs.evolve(member, leave_by=math.inf), effects

    before_step(stack, "classic", leaving)
    after_step(stack, "classic", departing)


@_bug("L2")
def uses_the_wall_clock_for_its_lease(stack: ExitStack) -> None:
    """The ownership lease uses the wall clock."""

    def make(use_clock: Any) -> Any:
        def faulty(self: Any, clock: Any) -> None:
            start = time.time()
            use_clock(self, LeaseClock(lambda: clock.now() + time.time() - start, clock.loop_now))

        return faulty

    _around(stack, readers.Reader, "use_clock", make)


@_bug("L2")
def backs_off_without_a_limit(stack: ExitStack) -> None:
    """The back-off of coordinator requests grows without a limit."""
    _replace(stack, coordinated, "backoff", lambda attempts, *_: 4.0 * (1 + attempts))


@_bug("S8")
def overwrites_a_seek_of_the_assignment_callback(stack: ExitStack) -> None:
    """A seek in the assignment callback is overwritten by the committed offset."""

    def change(session: Any, _: Any) -> Any:
        assigned = session.options.on_partitions_assigned

        async def faulty(partitions: Any) -> None:
            await assigned(list(partitions))
            for tp in partitions:
                if (owned := session.delivery.owned.get(tp)) is not None:
                    owned.start_at(UNKNOWN)

        return {"on_partitions_assigned": faulty}

    with_options(stack, change)


# ------------------------------------------------------------------ throttling


@_bug("L6")
def ignores_throttle_times(stack: ExitStack) -> None:
    """Throttle times are ignored."""
    _replace(stack, throttle.BrokerThrottle, "on_response", lambda self, message: None)


# ------------------------------------------------------------------ members that share shards


@_bug("S1", "S2")
def rejoins_during_the_work_of_a_generation(stack: ExitStack) -> None:
    """A group member rejoins while its application still works in the previous generation."""

    async def faulty(self: Any, deadline: float) -> None:
        self.on_generation_end(lost=False)
        self.pending = None

    _replace(stack, generations.GenerationQueue, "revoke", faulty)


@_bug("S1", "S2")
def continues_work_after_losing_its_membership(stack: ExitStack) -> None:
    """Work in a generation is cancelled only by a regular rebalance, not by a loss."""

    def make(ending: Any) -> Any:
        def partial(self: Any, *, lost: bool) -> None:
            if not lost:
                ending(self, lost=False)

        return partial

    async def lose(self: Any, reason: str) -> None:
        self.pending = None

    never = property(lambda self: float("inf"))
    _replace(stack, generations.Generation, "lease_expires_at", never)
    _replace(stack, generations.GenerationQueue, "lose", lose)
    _around(stack, generations.GenerationQueue, "on_generation_end", make)


@_bug("L2")
def does_not_notify_of_a_lost_membership(stack: ExitStack) -> None:
    """A member that has lost its membership rejoins without notifying its application."""

    async def lose(self: Any, reason: str) -> None:
        self.on_generation_end(lost=True)
        self.pending = None
        self.unlucky = True

    def make(assign: Any) -> Any:
        async def assigned(self: Any, generation: Any) -> None:
            if not hasattr(self, "unlucky"):
                await assign(self, generation)

        return assigned

    _replace(stack, generations.GenerationQueue, "lose", lose)
    _around(stack, generations.GenerationQueue, "assign", make)


# ------------------------------------------------------------------ paused partitions


@_bug("S15")
def delivers_what_was_buffered_when_paused(stack: ExitStack) -> None:
    """A pause delivers the rest of the open batch and of the buffered ones."""

    def pause(self: Any, tp: Any) -> None:
        self.owned[tp].paused = True
        self.on_room()

    _replace(stack, Delivery, "pause", pause)


@_bug("S15", "S16")
def delivers_what_arrives_after_a_pause(stack: ExitStack) -> None:
    """The response to a fetch in flight is delivered though its partition was paused."""

    def make(add: Any) -> Any:
        def adding(self: Any, owned: Any, batches: Any) -> None:
            was_paused, owned.paused = owned.paused, False
            add(self, owned, batches)
            owned.paused = was_paused

        return adding

    _around(stack, Delivery, "add", make)


@_bug("S15")
def resumes_a_partition_on_seek(stack: ExitStack) -> None:
    """A seek resumes its partition."""

    def make(seek: Any) -> Any:
        def seeking(self: Any, tp: Any, offset: int) -> None:
            seek(self, tp, offset)
            self.owned[tp].paused = False

        return seeking

    _around(stack, Delivery, "seek", make)


@_bug("S15", "S16")
def resumes_when_the_leader_moves(stack: ExitStack) -> None:
    """A change of leader resumes the partition."""

    def make(source: Any) -> Any:
        leaders: dict[Any, int] = {}

        def following(self: Any, owned: Any) -> int:
            leader: int = source(self, owned)
            if leader not in (-1, leaders.setdefault(owned, leader)):
                leaders[owned] = leader
                owned.paused = False
            return leader

        return following

    _around(stack, fetch_sources.FetchSources, "source_of", make)


def _on_assign(stack: ExitStack, spoil: Callable[[Any, Any], None]) -> None:
    """Apply a function to the owned partitions after each assignment."""

    def make(assign: Any) -> Any:
        async def assigned(self: Any, generation: Any) -> None:
            await assign(self, generation)
            for owned in self._session.delivery.owned.values():
                spoil(self._session.delivery, owned)

        return assigned

    _around(stack, subscribers.Subscriber, "assign", make)


def _unpause(delivery: Any, owned: Any) -> None:
    if owned.paused:
        delivery.resume(owned.tp)


@_bug("S16")
def resumes_kept_partitions_in_a_rebalance(stack: ExitStack) -> None:
    """A rebalance resumes the partitions that the member keeps."""
    _on_assign(stack, _unpause)


@_bug("S16")
def resumes_when_it_rejoins(stack: ExitStack) -> None:
    """Sending a JoinGroup resumes the partitions that the member keeps."""

    def make(protocols: Any) -> Any:
        def resuming(self: Any) -> Any:
            for owned in self._session.delivery.owned.values():
                _unpause(self._session.delivery, owned)
            return protocols(self)

        return resuming

    _around(stack, subscribers.Subscriber, "protocols", make)


@_bug("S16")
def resumes_when_others_are_revoked(stack: ExitStack) -> None:
    """Releasing some partitions resumes the others."""

    def make(release: Any) -> Any:
        def releasing(self: Any, partitions: Any) -> None:
            release(self, partitions)
            for owned in self.owned.values():
                _unpause(self, owned)

        return releasing

    _around(stack, Delivery, "release", make)


# ------------------------------------------------------------------ the course of a revocation


@_bug("S17")
def does_not_wait_for_the_record_in_flight(stack: ExitStack) -> None:
    """A revocation commits and calls back while a record is being processed."""
    _replace(stack, sessions.Session, "drain", _nothing)


@_bug("S17")
def waits_too_briefly_for_the_record_in_flight(stack: ExitStack) -> None:
    """A revocation uses a tenth of its deadline."""

    def make(drain: Any) -> Any:
        async def faulty(self: Any, partitions: Any, deadline: float) -> None:
            now = anyio.current_time()
            await drain(self, partitions, now + (deadline - now) / 10)

        return faulty

    _around(stack, sessions.Session, "drain", make)


@_bug("S17")
def waits_for_the_first_record_in_flight_only(stack: ExitStack) -> None:
    """A revocation with several records in flight waits for the first one only."""

    def make(drain: Any) -> Any:
        async def partial(self: Any, partitions: Any, deadline: float) -> None:
            await drain(self, sorted(partitions)[:1], deadline)

        return partial

    _around(stack, sessions.Session, "drain", make)


@_bug("S18", "L2")
def waits_without_deadline_for_the_record_in_flight(stack: ExitStack) -> None:
    """A revocation has no deadline."""

    def make(drain: Any) -> Any:
        async def faulty(self: Any, partitions: Any, deadline: float) -> None:
            await drain(self, partitions, float("inf"))

        return faulty

    _around(stack, sessions.Session, "drain", make)


@_bug("S18")
def restarts_the_revocation_deadline_with_each_record(stack: ExitStack) -> None:
    """A revocation waits three times as long as the group does."""

    def make(drain: Any) -> Any:
        async def faulty(self: Any, partitions: Any, deadline: float) -> None:
            now = anyio.current_time()
            await drain(self, partitions, now + 3 * (deadline - now))

        return faulty

    _around(stack, sessions.Session, "drain", make)


@_bug("S18")
def waits_for_the_application_to_poll(stack: ExitStack) -> None:
    """A revocation waits until the application polls."""

    def make(drain: Any) -> Any:
        async def polled(self: Any, partitions: Any, deadline: float) -> None:
            while partitions and not (self.polls.is_waiting or self.closing.has_begun):
                await anyio.sleep(0.05)
            await drain(self, partitions, deadline)

        return polled

    _around(stack, sessions.Session, "drain", make)


@_bug("S21", "S13", "S3")
def reports_revoked_for_lost(stack: ExitStack) -> None:
    """A lost membership is reported with `on_partitions_revoked`, not `on_partitions_lost`."""

    def change(session: Any, _: Any) -> Any:
        return {"on_partitions_lost": session.options.on_partitions_revoked}

    with_options(stack, change)


@_bug("S21")
def revokes_when_a_generation_has_ended(stack: ExitStack) -> None:
    """ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID on a heartbeat revoke, as a rebalance does."""
    codes = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)

    def change(member: Any, event: Any) -> Any:
        response = response_of(event, HeartbeatResponse)
        if response is None or response.error_code not in codes or member.phase is not Phase.STABLE:
            return member, event
        message = attrs.evolve(response, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return attrs.evolve(member, generation_id=-1), attrs.evolve(event, message=message)

    before_step(stack, "classic", change)


@_bug("S21", "S10")
def revokes_partitions_lost_during_a_revocation(stack: ExitStack) -> None:
    """A membership that is lost while the revocation waits for the record in flight is reported
    with `on_partitions_revoked`."""

    def make(ending: Any) -> Any:
        def faulty(self: Any, *, lost: bool) -> None:
            if not (lost and self._session.is_draining):
                ending(self, lost=lost)

        return faulty

    def change(session: Any, _: Any) -> Any:
        return {"on_partitions_lost": session.options.on_partitions_revoked}

    _around(stack, subscribers.Subscriber, "on_generation_end", make)
    with_options(stack, change)


# ------------------------------------------------------------------ recreated topics


@_bug("S19", "S6")
def commits_by_name_to_a_recreated_topic(stack: ExitStack) -> None:
    """A commit carries topic names, not the ids of the topics that were read."""

    def make(send: Any) -> Any:
        async def named(*given: Any, **options: Any) -> Any:
            return await send(*given, **{**options, "topic_ids": {}})

        return named

    _around(stack, group_offsets, "commit_offsets", make)
    _around(stack, group_offsets, "fetch_offsets", make)


@_bug("S19", "S6")
def looks_up_topic_ids_in_each_commit_attempt(stack: ExitStack) -> None:
    """A commit looks up its topic ids in each attempt, not when it is requested."""
    clusters: dict[Any, Any] = {}
    current: ContextVar[Any] = ContextVar("cluster")

    def making(init: Any) -> Any:
        def faulty(self: Any, cluster: Any, *rest: Any, **named: Any) -> None:
            init(self, cluster, *rest, **named)
            clusters[self] = cluster

        return faulty

    def committing(commit: Any) -> Any:
        async def faulty(self: Any, *given: Any, **named: Any) -> Any:
            current.set(clusters[self])
            return await commit(self, *given, **named)

        return faulty

    def sending(send: Any) -> Any:
        async def faulty(*given: Any, **named: Any) -> Any:
            ids = current.get().topic_ids({tp.topic for tp in given[4]})
            return await send(*given, **{**named, "topic_ids": ids})

        return faulty

    _replace(stack, committer, "topic_ids", lambda commits: {})
    _around(stack, group_offsets.GroupOffsets, "__init__", making)
    _around(stack, group_offsets.GroupOffsets, "commit", committing)
    _around(stack, group_offsets, "commit_offsets", sending)


@_bug("S19", "S8", "L2", "S6")
def keeps_its_position_in_a_recreated_topic(stack: ExitStack) -> None:
    """A position survives the recreation of its topic, so the first records are skipped."""
    _replace(stack, OwnedPartition, "is_of_other_topic", lambda self, topic_id: False)
    _replace(stack, OwnedPartition, "requested_id", lambda self, current_id: current_id)


# ------------------------------------------------------------------ leaders


def _pausing(stack: ExitStack, seconds: float) -> None:
    """Set the pause of a member after an assignment of topics it does not subscribe to."""

    class RetryBackoff(retry.RetryBackoff):
        def next(self) -> float:
            return seconds

    _replace(stack, subscribers, "RetryBackoff", RetryBackoff)


@_bug("L7")
def rejoins_at_once_after_a_bad_assignment(stack: ExitStack) -> None:
    """A member rejoins without a pause after an assignment of topics it does not subscribe to."""
    _pausing(stack, 0.0)


@_bug("L7")
def does_not_increase_the_backoff_after_bad_assignments(stack: ExitStack) -> None:
    """The back-off after a bad assignment does not grow."""

    class ConstantBackoff(retry.RetryBackoff):
        def next(self) -> float:
            self.reset()
            return super().next()

    _replace(stack, subscribers, "RetryBackoff", ConstantBackoff)


@_bug("L7")
def has_a_short_constant_backoff_after_bad_assignments(stack: ExitStack) -> None:
    """The pause after a bad assignment is short and constant."""
    _pausing(stack, 0.02)


def _handing_over(stack: ExitStack, spoil: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Spoil the result of the cooperative assignor."""
    whole = process._ASSIGNORS["cooperative_sticky"]

    def assignor(spec: Any) -> Any:
        return spoil(spec, dict(whole(spec)))

    vars(assignor).update(vars(whole))
    _replace(stack, check, "newest_claims", lambda spec: {})
    spoilt = {"cooperative_sticky": assignor}
    stack.enter_context(mock.patch.dict(process._ASSIGNORS, spoilt))


@_bug("S20")
def assigns_partitions_that_others_report_as_owned(stack: ExitStack) -> None:
    """The cooperative assignor ignores what members report as owned."""

    def spoil(spec: Any, _: Any) -> Any:
        members = {m: attrs.evolve(of, owned=()) for m, of in spec.members.items()}
        return assignors.sticky_assignor(attrs.evolve(spec, members=members))

    _handing_over(stack, spoil)


@_bug("S20")
def does_not_withhold_moving_partitions(stack: ExitStack) -> None:
    """The cooperative assignor does not withhold the partitions that move."""
    _handing_over(stack, lambda spec, _: assignors.sticky_assignor(spec))


@_bug("S20")
def ignores_the_owned_partitions_of_one_member(stack: ExitStack) -> None:
    """The cooperative assignor ignores what one member reports as owned."""

    def spoil(spec: Any, _: Any) -> Any:
        first = min(spec.members)
        members = {**spec.members, first: attrs.evolve(spec.members[first], owned=())}
        return assignors.cooperative_sticky_assignor(attrs.evolve(spec, members=members))

    _handing_over(stack, spoil)


# ------------------------------------------------------------------ the poll timer, and pauses


@_bug("L9")
def runs_the_poll_timer_without_partitions(stack: ExitStack) -> None:
    """The poll timer also runs for a member that owns no partition."""

    def due(self: Any, ran: float) -> float:
        since = ran if self._session.polls.is_waiting else self._session.polls.last_poll_at
        return float(since + self._session.options.max_poll_interval)

    _replace(stack, subscribers.Subscriber, "poll_due_at", due)


@_bug("S10", "L9")
def expires_the_poll_timer_too_early(stack: ExitStack) -> None:
    """The poll timer runs out after a third of the interval."""

    def make(due: Any) -> Any:
        def early(self: Any, ran: float) -> float:
            found = due(self, ran)
            return float(found - self._session.options.max_poll_interval * 2 / 3)

        return early

    _around(stack, subscribers.Subscriber, "poll_due_at", make)


@_bug("L9", "S10")
def counts_only_deliveries_as_polls(stack: ExitStack) -> None:
    """Waiting in the client does not restart the poll timer, receiving a record does."""

    before: dict[int, float] = {}

    def waiting(begin_wait: Any) -> Any:
        def noted(self: Any, *, owns: bool) -> None:
            before[id(self)] = self.last_poll_at
            begin_wait(self, owns=owns)

        return noted

    def waited(end_wait: Any) -> Any:
        return lambda self, _: end_wait(self, before[id(self)])

    def timing(due: Any) -> Any:
        return lambda self, _: due(self, self._session.polls.last_poll_at)

    _around(stack, PollState, "begin_wait", waiting)
    _around(stack, PollState, "end_wait", waited)
    _around(stack, subscribers.Subscriber, "poll_due_at", timing)


@_bug("L6")
def retries_a_rejected_join_at_once(stack: ExitStack) -> None:
    """A rejected join is retried without a pause."""

    def change(_: Any, event: Any, member: Any, effects: Any) -> Any:
        response = response_of(event, JoinGroupResponse)
        if response is None or response.error_code in (0, ErrorCode.MEMBER_ID_REQUIRED):
            return member, effects
        return wake(attrs.evolve(member, retry_at=event.now), effects, event.now)

    after_step(stack, "classic", change)


@_bug("L6")
def retries_a_rejected_join_without_jitter(stack: ExitStack) -> None:
    """The pause before a retried join has no jitter."""
    _around(
        stack,
        coordinated,
        "backoff",
        lambda backoff: lambda attempt, first, most, _: backoff(attempt, first, most, 0.5),
    )


@_bug("L6")
def retries_a_rejected_join_too_soon(stack: ExitStack) -> None:
    """The pause before a retried join is too short, and does not grow."""
    joining = (Phase.UNJOINED, Phase.JOINING, Phase.SYNCING)

    def change(before: Any, event: Any, member: Any, effects: Any) -> Any:
        if before.phase not in joining or member.attempts <= before.attempts:
            return member, effects
        soon = event.now + 0.005
        return wake(attrs.evolve(member, retry_at=soon), effects, soon)

    after_step(stack, "classic", change)
