"""The classic group protocol: one pure `step`. Nothing here reads a clock or touches a socket.

A member finds its coordinator, joins, gets its assignment from the leader (perhaps itself), and
sends heartbeats until something changes. `classic_state.MOVES` is the whole table of phases.
Sources: the consumer rebalance protocol, KIP-62 (heartbeats during processing), KIP-394 (the
coordinator gives out member ids before the join), KIP-345 (static members), KIP-559 (protocol
checks), KIP-800 (reasons), KIP-814 (static leaders).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, assert_never

from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ErrorCode,
    FencedError,
    broker_error,
)
from kafkagroup.member.classic_requests import (
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from kafkagroup.member.classic_state import (
    COMMITTING,
    ENDING,
    HEARTBEATING,
    MOVES,
    PASSIVE,
    PURGATORY,
    Member,
    Phase,
)
from kafkagroup.member.coordinated import CoordinatedStep
from kafkagroup.member.vocabulary import (
    Assign,
    AssignFailed,
    ClassicEffect,
    ClassicEvent,
    Compute,
    Computed,
    ComputeFailed,
    Coordinator,
    CoordinatorInvalidated,
    Fail,
    GenerationInfo,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Replied,
    Revoke,
    Revoked,
    Route,
    SendFailed,
    Started,
    Woke,
)
from kafkagroup.wire.error_codes import COORDINATOR_MOVED
from kafkagroup.wire.messages.group import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

__all__ = ["step"]

_JOIN_GRACE = 5.0
"""Seconds on top of the rebalance timeout before a JoinGroup or SyncGroup counts as unanswered. The
Java client waits as long for JoinGroup."""

_INTERVAL_GROWTH = 0.25
"""The heartbeat interval grows to this fraction of the time since the last rebalance."""

_ID_TIMEOUT = 2.0
"""Seconds for which a member that leaves waits for the response to its first JoinGroup: the
response has the member id. The coordinator answers that JoinGroup at once (KIP-394)."""

_MAX_IMMEDIATE_REJOINS = 5
"""While a member has had fewer failures in a row than this, it rejoins without a pause if SyncGroup
was answered with REBALANCE_IN_PROGRESS."""


def step(member: Member, event: ClassicEvent) -> tuple[Member, tuple[ClassicEffect, ...]]:
    """Return the member after an event, and the effects to execute."""
    return _Step.run(member, event)


class _Step(CoordinatedStep[Member, ClassicEvent, ClassicEffect]):
    """One step of a classic member."""

    MOVES = MOVES
    UNJOINED = Phase.UNJOINED
    DEPARTING = Phase.DEPARTING
    ENDING = ENDING
    PASSIVE = PASSIVE
    HEARTBEATING = HEARTBEATING
    COMMITTING = COMMITTING

    # ------------------------------------------------------------ events

    def take(self, event: ClassicEvent) -> None:
        match event:
            case Started():
                self._move(Phase.UNJOINED)
            case Replied(token=token, message=message, sender=sender):
                self._on_reply(token, message, sender)
            case SendFailed(token=token, error=error):
                self._on_failure(token, error)
            case Revoked(token=token, protocols=protocols):
                self._on_revoked(token, protocols)
            case Computed(token=token, assignments=assignments):
                if token == self.member.pending:
                    self._sync(assignments)
            case ComputeFailed(token=token, error=error):
                if token == self.member.pending:
                    self._fail(error)
            case AssignFailed(error=error):
                if self.member.phase not in ENDING:
                    self._fail(error)
            case Woke():
                pass
            case RejoinRequested(reason=reason, protocols=protocols):
                self._on_rejoin(reason, protocols)
            case CoordinatorInvalidated():
                self._lose_coordinator()
            case Leaving():
                self._on_leaving(event)
            case _:
                assert_never(event)

    def _on_reply(self, token: int, message: object, sender: Coordinator | None) -> None:
        member = self.member
        if token == member.lookup_in_flight:
            assert isinstance(message, Coordinator)
            self._on_coordinator_found(message)
        elif token == member.heartbeat_in_flight:
            assert isinstance(message, HeartbeatResponse)
            self._set(heartbeat_in_flight=None)
            if member.phase in (Phase.UNJOINED, Phase.JOINING):
                self._on_heartbeat_response_while_joining(message.error_code)
            else:
                self._on_heartbeat_response(message.error_code)
        elif token == member.pending:
            match message:
                case JoinGroupResponse():
                    self._on_join_response(message)
                case SyncGroupResponse():
                    self._on_sync_response(message, sender)
                case LeaveGroupResponse():
                    self._on_leave_response(message)
        elif isinstance(message, HeartbeatResponse):
            self._on_late_heartbeat_response(token, message.error_code)

    def _on_failure(self, token: int, error: Exception) -> None:
        member = self.member
        if not member.awaits(token):
            return
        if member.phase is Phase.LEAVING and token == member.pending:
            self._on_leave_failed(error)
        elif token == member.lookup_in_flight:
            self._on_lookup_failed(error)
        elif not isinstance(error, RETRIED_ERRORS):
            self._fail(error)
        elif token == member.heartbeat_in_flight and member.phase is Phase.JOINING:
            self._set(heartbeat_in_flight=None)  # the join shows whether the coordinator is there
        elif token == member.heartbeat_in_flight:
            self._lose_coordinator()
            self._back_off(error)
        else:
            self._lose_coordinator()
            self._back_off(error)
            # A heartbeat on another connection may still be answered, and extend the lease.
            self._restart(
                "the coordinator did not answer",
                member.heartbeat_in_flight if member.ownership.is_assigned else None,
            )

    def _on_revoked(self, token: int, protocols: tuple[tuple[str, bytes], ...] | None) -> None:
        if token != self.member.pending:
            return
        if protocols is not None:
            self._set(protocols=protocols)
        if self.member.phase is Phase.LOSING:
            self._set(generation_id=-1)
        elif self.member.config.cooperative and not self.member.revokes_all:
            self._set(ownership=self.member.ownership.keep())
        else:
            self._set(ownership=self.member.ownership.release())
        is_assigned = self.member.ownership.is_assigned
        if self.member.leaving is None:
            # The response to a heartbeat in flight still extends the lease of what is kept.
            self._restart(
                self.member.reason, self.member.heartbeat_in_flight if is_assigned else None
            )
        elif is_assigned:
            # The application left while the member revoked a part: revoke the rest.
            self._revoke_all(self.member.leaving.reason)
        else:
            self._leave()

    def _on_rejoin(self, reason: str, protocols: tuple[tuple[str, bytes], ...] | None) -> None:
        if protocols is not None:
            self._set(protocols=protocols)
        if self.member.phase is Phase.STABLE:
            self._revoke(reason)
        elif self.member.phase in (
            Phase.JOINING,
            Phase.COMPUTING,
            Phase.SYNCING,
            Phase.SYNCED,
        ):
            # JoinGroup carried the old metadata: rejoin as soon as its generation is stable. In any
            # other phase, the next JoinGroup has the new metadata.
            self._set(must_rejoin=True, reason=reason)

    def _on_leaving(self, event: Leaving) -> None:
        if self.member.leaving is not None:
            self._leave_earlier(event.deadline)
            return
        self._set(leaving=event)
        match self.member.phase:
            case Phase.STABLE | Phase.REVOKING if event.lost:
                self._lose(event.reason)
            case Phase.STABLE:
                self._revoke_all(event.reason)
            case Phase.REVOKING | Phase.LOSING:
                pass  # leaves when the application has released
            case Phase.UNJOINED | Phase.JOINING if self._may_revoke and not event.lost:
                # `session_ends_at` is from before the join: by it, the session would be over.
                self._set(session_ends_at=self.now + self.member.config.session_timeout)
                self._revoke_all(event.reason)
            case _ if self.member.ownership.is_assigned:
                # The application left during a cooperative rebalance: the partitions that the
                # member kept may be reassigned by now.
                self._lose(event.reason)
            case Phase.JOINING if not self.member.member_id and self.member.leaves_group:
                # Wait for the response: it has the id that the coordinator gives out for this join
                # (KIP-394). Without a LeaveGroup of that id, the group would wait for the id until
                # its session ends.
                self._set(leave_by=min(event.deadline, self.now + _ID_TIMEOUT))
            case _:
                self._leave()

    @property
    def _may_revoke(self) -> bool:
        """Whether a cooperative member that is about to join, or has sent JoinGroup, may still
        commit: until all members have joined, the coordinator takes commits of the generation
        before."""
        member = self.member
        return (
            member.ownership.is_assigned
            and member.generation_id == member.assigned_generation
            and self.now < member.ownership.lease_expires_at
        )

    def _revoke_all(self, reason: str) -> None:
        """Revoke everything, then leave."""
        self._set(revokes_all=True)
        self._revoke(reason)

    # ------------------------------------------------------------ responses

    def _on_join_response(self, response: JoinGroupResponse) -> None:
        code = response.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            # KIP-394: the id is ours from here on; rejoin at once with it.
            if self.member.member_id or not response.member_id:
                # The broker has rejected its own id, or gave none: without a pause, this would be
                # an endless loop of joins.
                self._back_off()
            self._set_member_id(response.member_id)
            return self._restart(self.member.reason)
        if code != ErrorCode.NONE:
            return self._on_error(code, "JoinGroup")
        self._set_member_id(response.member_id)
        if self.member.leaving is not None:
            return self._leave()
        config = self.member.config
        if response.protocol_type not in (None, config.protocol_type):
            return self._fail(
                BrokerError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"group {config.group_id!r} is of type {response.protocol_type!r},"
                    f" not {config.protocol_type!r}",
                )
            )
        if self._missed_generation(response.generation_id):
            return self._lose("the group had a generation without this member")
        self._set(
            generation_id=response.generation_id,
            generation_token=self.member.last_token,
            protocol_name=response.protocol_name or "",
            leader_id=response.leader,
            members={m.member_id: m.metadata for m in response.members},
            instance_ids={
                m.member_id: m.group_instance_id
                for m in response.members
                if m.group_instance_id is not None
            },
            heartbeat_in_flight=None,  # it names the old generation: the coordinator rejects it
            next_heartbeat_at=self.now + config.heartbeat_interval,
            stable_at=self.member.join_sent_at,
            joined_after=max(self.member.rebalancing_at, self.member.join_sent_at),
            joined_at=self.now,
            is_unsynced=True,
            session_ends_at=self.now + config.session_timeout,
        )
        # KIP-814: when a static leader returns, the assignment is unchanged.
        if response.skip_assignment or not self.member.is_leader:
            return self._sync({})
        return self._compute()

    def _missed_generation(self, generation_id: int) -> bool:
        """Return whether another member may have consumed this member's partitions meanwhile.

        The coordinator removes a dynamic member that misses a rebalance. A static one stays a
        member (KIP-345), and the leader reassigns its partitions by the metadata of its last join.
        """
        member = self.member
        is_static = member.config.group_instance_id is not None
        has_missed_one = generation_id > member.generation_id + 1
        return is_static and member.ownership.is_assigned and has_missed_one

    def _compute(self) -> None:
        token = self._token()
        self._move(Phase.COMPUTING, pending=token)
        self.effects.append(
            Compute(
                token=token,
                protocol_name=self.member.protocol_name,
                members=self.member.members,
                instance_ids=self.member.instance_ids,
            )
        )

    def _on_sync_response(self, response: SyncGroupResponse, sender: Coordinator | None) -> None:
        member = self.member
        if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._set(is_unsynced=False)
            # Rejoin at once, as the group waits for this member, but not endlessly.
            if member.attempts < _MAX_IMMEDIATE_REJOINS:
                self._set(attempts=member.attempts + 1)
            else:
                self._back_off()
            return self._restart("the group rebalanced before the assignment came")
        if response.error_code != ErrorCode.NONE:
            return self._on_error(response.error_code, "SyncGroup")
        if response.protocol_type not in (None, member.config.protocol_type) or (
            response.protocol_name not in (None, member.protocol_name)
        ):
            return self._fail(
                BrokerError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"synced as {response.protocol_type!r}/{response.protocol_name!r},"
                    f" joined as {member.config.protocol_type!r}/{member.protocol_name!r}",
                )
            )
        if member.coordinator is None and sender is not None:
            # A heartbeat on the other connection has failed, and invalidated the coordinator, which
            # has answered now. The look-up may wait on that connection, too, for a whole session.
            self._set(coordinator=sender, lookup_in_flight=None)
        self._set(
            pending=None,
            assignment=response.assignment,
            is_unsynced=False,
            stable_at=member.join_sent_at,
            # The heartbeat in flight took the other connection, which may be dead: the next one
            # must not wait for its response.
            heartbeat_in_flight=None,
            session_ends_at=self.now + member.config.session_timeout,
        )
        return self._begin_generation()

    def _begin_generation(self) -> None:
        """Give the application its assignment if it has a lease; else send a heartbeat, whose
        response begins the lease."""
        member = self.member
        ownership = member.ownership.assign()
        if self.now >= ownership.lease_expires_at:
            return self._move(Phase.SYNCED, next_heartbeat_at=self.now)
        self._move(
            Phase.STABLE,
            ownership=ownership,
            assignment=b"",  # no longer needed: `Assign` below has it
            assigned_generation=member.generation_id,
            attempts=0,
            join_failures=0,
        )
        self._schedule_first_heartbeat()
        self.effects.append(
            Assign(
                generation=GenerationInfo(
                    generation_id=member.generation_id,
                    member_id=member.member_id,
                    leader_id=member.leader_id,
                    protocol_name=member.protocol_name,
                    members=member.members,
                    assignment=member.assignment,
                )
            )
        )
        return self._revoke(member.reason) if member.must_rejoin else None

    def _schedule_first_heartbeat(self) -> None:
        """Send the first heartbeat of a generation early: another rebalance often follows, and a
        member that notices it late delays the group."""
        config = self.member.config
        # If every generation ends at its first heartbeat, this delay is the only pause between
        # joins, so it grows. With a smaller factor a member sends more than 20 requests in the
        # first second (L6).
        pause = max(config.settling_interval, 4 * self.member.first_heartbeat_delay)
        pause = min(pause, config.heartbeat_interval)
        self._set(
            first_heartbeat_delay=pause,
            next_heartbeat_at=self.member.joined_at + pause,
        )

    def _on_heartbeat_response(self, code: int) -> None:
        match code:
            case ErrorCode.NONE:
                self._acknowledge(code, first_heartbeat_delay=0.0)
                if self.member.phase is Phase.SYNCED:
                    self._begin_generation()
            case ErrorCode.REBALANCE_IN_PROGRESS:
                # Heartbeats continue while the application drains (KIP-62).
                self._acknowledge(code)
                if self.member.phase is Phase.STABLE:
                    self._revoke("the group is rebalancing")
                elif self.member.phase is Phase.SYNCED:
                    self._restart("the group rebalanced before the assignment had a lease")
            case _:
                self._on_error(code, "Heartbeat")

    def _on_heartbeat_response_while_joining(self, code: int) -> None:
        """Handle the response on the other connection while JoinGroup is in purgatory. A JoinGroup
        that never reached the coordinator gets no response, so a heartbeat must report that the
        coordinator has removed or fenced the member. Other errors are left to JoinGroup."""
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._extend_lease(code)
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._on_error(code, "Heartbeat")

    def _on_late_heartbeat_response(self, token: int, code: int) -> None:
        """Handle a response that is no longer awaited, as the coordinator was invalidated or a join
        was sent since. The join will get most errors itself; a fenced instance id ends the
        membership at once, even if the join is delayed."""
        member = self.member
        if not member.member_id or token <= member.member_id_token or member.phase in ENDING:
            return
        is_unknown = code == ErrorCode.UNKNOWN_MEMBER_ID
        # ILLEGAL_GENERATION counts only for the current generation: older ones ended as expected.
        has_ended = code == ErrorCode.ILLEGAL_GENERATION and token > member.generation_token
        is_removed = (is_unknown or has_ended) and member.phase in COMMITTING
        if is_removed or code == ErrorCode.FENCED_INSTANCE_ID:
            self._on_error(code, "Heartbeat")

    def _acknowledge(self, code: int, **changes: Any) -> None:
        """Extend the session and the lease by the response to a heartbeat."""
        session_ends_at = self.member.heartbeat_sent_at + self.member.config.session_timeout
        self._extend_lease(code, session_ends_at=session_ends_at, attempts=0, **changes)

    def _extend_lease(self, code: int, **changes: Any) -> None:
        """Extend the lease from when the heartbeat was sent: the coordinator has begun a session
        since. Only a heartbeat proves that. JoinGroup, sent again after a lost response, and
        SyncGroup in a stable group are answered without beginning a session.

        While the group rebalances, extend the lease no further than the rebalance timeout, after
        which the coordinator removes a member that has not rejoined. That timeout began after the
        last request that found no rebalance. A second one begins when the members have joined: the
        coordinator then removes a member whose SyncGroup has not arrived (KAFKA-12890)."""
        member = self.member
        sent = member.heartbeat_sent_at
        if code == ErrorCode.NONE:
            began_after = member.joined_after if member.is_unsynced else math.inf
            self._set(stable_at=sent)
        else:
            began_after = member.stable_at
            self._set(rebalancing_at=sent)
            if member.is_unsynced:
                # Between JoinGroup and SyncGroup, brokers before 2.7 answer with
                # REBALANCE_IN_PROGRESS without beginning a session (KAFKA-10134).
                return self._set(**changes)
        # The lease ends a session timeout later, and must not outlast the rebalance timeout.
        limit = began_after + member.config.rebalance_timeout - member.config.session_timeout
        return self._set(ownership=self._extended_ownership(min(sent, limit)), **changes)

    def _on_error(self, code: int, request: str) -> None:
        """Handle an error code of JoinGroup, SyncGroup or Heartbeat."""
        group = self.member.config.group_id
        error = broker_error(code, f"{request} of group {group!r}", operation="READ", group=group)
        match code:
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self._set(member_id="")
                self._reset_generation("the coordinator does not know this member")
            case ErrorCode.ILLEGAL_GENERATION:
                self._reset_generation("the generation has ended")
            case ErrorCode.FENCED_INSTANCE_ID:
                self._fail(self._fenced())
            case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._back_off(error)
                self._retry_phase("the coordinator was loading")
            case _ if code in COORDINATOR_MOVED:
                self._lose_coordinator()
                self._back_off(error)
                self._retry_phase("the coordinator moved")
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._back_off(error)
                self._retry_phase(error.name)
            case _ if self._is_final(error):
                self._fail(error)
            case _:
                self._report_refusal(error)
                self._back_off(error)
                self._retry_phase(error.name)

    def _retry_phase(self, reason: str) -> None:
        # A stable member sends the next heartbeat after the back-off; any other joins again.
        if self.member.phase not in COMMITTING:
            self._restart(reason)

    def _reset_generation(self, reason: str) -> None:
        """Join anew: the coordinator has removed the member, or begun a generation without it."""
        if self.member.ownership.is_assigned:
            self._lose(reason)
        else:
            self._back_off()
            self._set(generation_id=-1)
            self._restart(reason)

    # ------------------------------------------------------------ moves

    def _restart(self, reason: str, heartbeat_in_flight: int | None = None) -> None:
        """Join again, or leave if the application has left. Responses to all earlier requests are
        stale, except for the given heartbeat."""
        if self.member.leaving is not None:
            return self._leave()
        return self._move(
            Phase.UNJOINED,
            pending=None,
            heartbeat_in_flight=heartbeat_in_flight,
            must_rejoin=False,
            reason=reason,
        )

    def _lose(self, reason: str) -> None:
        token = self._token()
        released = self.member.ownership.release()
        self._move(
            Phase.LOSING, pending=token, heartbeat_in_flight=None, ownership=released, reason=reason
        )
        self.effects.append(Lose(token=token, reason=reason))

    def _revoke(self, reason: str) -> None:
        token = self._token()
        revoked = self.member.ownership.revoke()
        self._hold_connection()
        self._move(
            Phase.REVOKING, pending=token, ownership=revoked, must_rejoin=False, reason=reason
        )
        self.effects.append(Revoke(token=token, deadline=self._drain_deadline()))

    def _sync(self, assignments: Mapping[str, bytes]) -> None:
        member, config = self.member, self.member.config
        if member.coordinator is None:
            # The coordinator moved while the assignor ran; the group joins again at the new one.
            return self._restart("the coordinator moved")
        # The coordinator answers when the leader has synced, at the latest after the rebalance
        # timeout.
        token = self._send(
            sync_request(member, assignments), timeout=config.rebalance_timeout + _JOIN_GRACE
        )
        return self._move(Phase.SYNCING, pending=token, join_sent_at=self.now)

    def _hold_connection(self) -> None:
        """Note that later requests need another connection, if a join may be in purgatory."""
        held = self.member.is_connection_held or self.member.phase not in COMMITTING
        self._set(is_connection_held=held)

    def _leave(self) -> None:
        if not self.member.member_id or not self.member.leaves_group:
            return self._left()
        self._hold_connection()
        return self._depart()

    def _send_leave(self) -> None:
        member, leaving = self.member, self.member.leaving
        assert leaving is not None
        route = Route.SEPARATE_CONNECTION if member.is_connection_held else Route.COORDINATOR
        request = leave_request(member, leaving.reason)
        token = self._send(request, timeout=self._leave_timeout(), route=route)
        self._move(Phase.LEAVING, pending=token)

    def _on_leave_response(self, response: LeaveGroupResponse) -> None:
        code = response.error_code or next((m.error_code for m in response.members), ErrorCode.NONE)
        group = self.member.config.group_id
        self._end_or_leave_again(
            broker_error(code, f"LeaveGroup of group {group!r}", operation="READ", group=group)
        )

    def _left(self, doubt: str = "") -> None:
        self._move(Phase.LEFT, pending=None, heartbeat_in_flight=None, lookup_in_flight=None)
        self.effects.append(Leave(doubt=doubt))

    def _fail(self, error: Exception, *, can_leave: bool = True) -> None:
        member = self.member
        if member.phase in ENDING:
            self._left(str(error))
            return
        self.effects.append(Fail(error=error))
        sends_leave = can_leave and not self._keeps_place(error)
        leaving = Leaving(now=self.now, reason=str(error), leave_group=sends_leave)
        if member.ownership.is_assigned:
            # After LeaveGroup others would own partitions that the application has not released.
            self._set(leaving=member.leaving or leaving)
            self._lose(str(error))
        elif member.member_id and sends_leave:
            self._set(leaving=member.leaving or leaving)
            self._depart()
        else:
            self._move(Phase.FAILED, pending=None, heartbeat_in_flight=None, lookup_in_flight=None)

    def _keeps_place(self, error: Exception) -> bool:
        """Return whether a member that failed does not leave the group. A static member keeps its
        place until it is started again, and a fenced one has no place. Any other leaves, so that
        the group does not wait until its session ends."""
        return self.member.config.group_instance_id is not None or isinstance(error, FencedError)

    def _lose_coordinator(self) -> None:
        self._set(coordinator=None, heartbeat_in_flight=None)

    # ------------------------------------------------------------ what is due

    def _join_when_due(self) -> None:
        member, config = self.member, self.member.config
        if member.phase is not Phase.UNJOINED or self.now < member.retry_at:
            return
        timeout = max(config.request_timeout, config.rebalance_timeout + _JOIN_GRACE)
        if not member.member_id and config.group_instance_id is None:
            timeout = config.request_timeout  # KIP-394: it is answered with an id at once
        token = self._send(join_request(member), timeout=timeout)
        self._move(Phase.JOINING, pending=token, must_rejoin=False, join_sent_at=self.now)
        if member.ownership.is_assigned:
            # Most joins are answered sooner, and need no heartbeat.
            self._set(next_heartbeat_at=self.now + config.heartbeat_interval)

    def _heartbeat_when_due(self) -> None:
        member, config = self.member, self.member.config
        if (
            not self._sends_heartbeats
            or member.heartbeat_in_flight is not None
            or self.now < member.next_heartbeat_at
        ):
            return
        in_purgatory = member.phase in PURGATORY or member.is_connection_held
        ends_at = member.ownership.lease_expires_at if in_purgatory else member.session_ends_at
        token = self._send(
            heartbeat_request(member),
            timeout=max(self._attempt_timeout(ends_at - self.now), config.heartbeat_interval),
            route=Route.SEPARATE_CONNECTION if in_purgatory else Route.COORDINATOR,
        )
        interval = config.heartbeat_interval
        if not in_purgatory:
            # A rebalance is often followed by another: the interval begins short, and grows.
            grown = (self.now - member.joined_at) * _INTERVAL_GROWTH
            interval = min(max(config.settling_interval, grown), interval)
        self._set(
            heartbeat_in_flight=token,
            heartbeat_sent_at=self.now,
            next_heartbeat_at=self.now + interval,
        )

    @property
    def _sends_heartbeats(self) -> bool:
        """Whether a member in its phase sends heartbeats. One that owns partitions while its
        JoinGroup or SyncGroup is in purgatory sends them on another connection: only they show
        whether the coordinator received the request; if not, it reassigns the partitions."""
        member = self.member
        return member.phase in HEARTBEATING or (
            member.phase in PURGATORY and member.ownership.is_assigned
        )

    def _set_member_id(self, member_id: str) -> None:
        if member_id != self.member.member_id:
            self._set(member_id=member_id, member_id_token=self.member.last_token)
