"""The protocol of consumer groups (KIP-848): one pure `step`. Nothing here reads a clock or touches
a socket.

The coordinator assigns: responses to heartbeats carry the assignment, and heartbeats report what
the member owns. A member first processes, commits and releases what is revoked, then applies the
rest, then reports it. An assignment can only arrive with the response to a heartbeat, so heartbeats
are frequent around any change. `consumer_state.MOVES` is the whole table of phases. Sources:
KIP-848, KIP-1082 (clients generate member ids), KIP-1092 (static members may leave permanently).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never
from uuid import UUID

from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ErrorCode,
    FencedError,
    UnsupportedVersionError,
    broker_error,
)
from kafkagroup.member.consumer_requests import (
    LEAVE_EPOCH,
    OWN_IDS_VERSION,
    STATIC_LEAVE_EPOCH,
    heartbeat_request,
    join_request,
    leave_request,
)
from kafkagroup.member.consumer_state import (
    ENDING,
    HEARTBEATING,
    MOVES,
    PASSIVE,
    Member,
    Phase,
)
from kafkagroup.member.consumer_target import PartitionsByTopicId, TargetChange, is_missing
from kafkagroup.member.consumer_vocabulary import (
    ConsumerEffect,
    ConsumerEvent,
    FallBack,
    LookUpNames,
    Reconcile,
    Subscribed,
    TopicsNamed,
)
from kafkagroup.member.coordinated import CoordinatedStep
from kafkagroup.member.vocabulary import (
    AssignFailed,
    AssignmentApplied,
    Coordinator,
    CoordinatorInvalidated,
    Fail,
    GenerationInfo,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Replied,
    ReportError,
    Revoke,
    Revoked,
    SendFailed,
    Started,
    Woke,
)
from kafkagroup.wire.error_codes import (
    COORDINATOR_MOVED,
    MAY_HAVE_JOINED,
    MEMBERSHIP_LOST,
    PROTOCOL_UNAVAILABLE,
    UNKNOWN_MEMBER,
)
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatResponse

__all__ = ["step"]

_FREQUENT_INTERVALS = 2.0
"""For how many heartbeat intervals after a change heartbeats are frequent: brokers compute
assignments once a second (`group.consumer.assignment.interval.ms`)."""

_ASSIGNMENT_TIMEOUT = 3.0
"""Seconds from the end of frequent heartbeats until a new subscription counts as one that changes
no assignment, unless the epoch changes before."""

_MAX_ATTEMPTS = 5
"""How often in a row a member sends a heartbeat at once to report a change, or joins at once after
it was removed. Then it backs off: a group that is never stable must not flood the coordinator."""


def step(member: Member, event: ConsumerEvent) -> tuple[Member, tuple[ConsumerEffect, ...]]:
    """Return the member after an event, and the effects to execute."""
    return _Step.run(member, event)


class _Step(CoordinatedStep[Member, ConsumerEvent, ConsumerEffect]):
    """One step of a member of a consumer group."""

    MOVES = MOVES
    UNJOINED = Phase.UNJOINED
    DEPARTING = Phase.DEPARTING
    ENDING = ENDING
    PASSIVE = PASSIVE
    HEARTBEATING = HEARTBEATING
    COMMITTING = HEARTBEATING

    _prepared: TargetChange | None = None
    """What a thread has prepared of the response that this step handles; None if nothing."""

    # ------------------------------------------------------------ events

    def take(self, event: ConsumerEvent) -> None:
        match event:
            case Started():
                self._move(Phase.UNJOINED)
            case Replied(token=token, message=message):
                self._prepared = event.target_change
                self._on_reply(token, message)
            case SendFailed(token=token, error=error):
                self._on_failure(token, error)
            case AssignmentApplied(token=token):
                if token == self.member.reconciling:
                    self._set(
                        reconciling=None,
                        owned=self.member.next_owned,
                        next_owned={},
                        reconciliation_count=self.member.reconciliation_count + 1,
                    )
                    self._heartbeat_now()
            case Revoked(token=token):
                if token == self.member.pending:
                    self._on_revoked()
            case Subscribed(topics=topics, pattern=pattern):
                if (topics, pattern) != (self.member.topics, self.member.pattern):
                    self._set(topics=topics, pattern=pattern, outdated_epoch=self.member.epoch)
                self._heartbeat_now()
            case TopicsNamed(names=names):
                self._on_names(names)
            case RejoinRequested():
                # Only the coordinator can start a rebalance. A heartbeat that reports everything
                # gets the whole assignment. The heartbeat in flight does not report everything, so
                # its response must not set `acknowledged_state` again.
                self._set(acknowledged_state=None, state_in_flight=None)
                self._heartbeat_now()
            case AssignFailed(error=error):
                if self.member.phase not in ENDING:
                    self._fail(error)
            case CoordinatorInvalidated():
                self._lose_coordinator()
            case Woke():
                pass
            case Leaving():
                self._on_leaving(event)
            case _:
                assert_never(event)

    def _on_names(self, found: Mapping[UUID, str]) -> None:
        """Add names, and drop those of topics that are neither assigned nor owned any more: the
        coordinator may assign other topics again and again, so all names would be too many."""
        member = self.member
        target: PartitionsByTopicId = member.target or {}
        names = {
            topic: name
            for topic, name in (*member.names.items(), *found.items())
            if topic in target or topic in member.owned or topic in member.next_owned
        }
        if member.target is not None:
            member.target.note_named(member.names, names, found)
        self._set(names=names, unnamed=member.unnamed.difference(found))

    def _on_reply(self, token: int, message: object) -> None:
        member = self.member
        if token == member.lookup_in_flight:
            assert isinstance(message, Coordinator)
            self._on_coordinator_found(message)
        elif token == member.heartbeat_in_flight:
            assert isinstance(message, ConsumerGroupHeartbeatResponse)
            self._set(heartbeat_in_flight=None)
            self._on_heartbeat_response(message)
        elif token == member.abandoned_heartbeat:
            assert isinstance(message, ConsumerGroupHeartbeatResponse)
            # Other errors are left to the next heartbeat. A lost membership is handled now, and not
            # only after the look-up of the coordinator.
            if message.error_code in MEMBERSHIP_LOST:
                self._on_error(message)
        elif token == member.pending and member.phase is Phase.JOINING:
            assert isinstance(message, ConsumerGroupHeartbeatResponse)
            self._on_join_response(message)
        elif token == member.pending and member.phase is Phase.RELEASING:
            assert isinstance(message, ConsumerGroupHeartbeatResponse)
            self._on_release_response(message)
        elif token == member.pending and member.phase is Phase.LEAVING:
            assert isinstance(message, ConsumerGroupHeartbeatResponse)
            self._on_leave_response(message)

    def _on_failure(self, token: int, error: Exception) -> None:
        member = self.member
        if not member.awaits(token):
            return
        if member.phase is Phase.LEAVING and token == member.pending:
            self._on_leave_failed(error)
        elif token == member.lookup_in_flight:
            self._on_lookup_failed(error)
        elif not isinstance(error, RETRIED_ERRORS):
            is_too_old = isinstance(error, UnsupportedVersionError)
            if token == member.pending and is_too_old and member.phase is Phase.RELEASING:
                self._set(can_release=False)
                self._restart(str(error))
            elif token == member.pending and is_too_old and member.config.may_fall_back:
                self._fall_back(error)
            else:
                self._fail(error)
        else:
            # The coordinator may not have received the request: report everything again.
            self._lose_coordinator()
            self._back_off(error)
            if member.phase in (Phase.JOINING, Phase.RELEASING):
                self._restart("the coordinator did not answer")

    def _on_revoked(self) -> None:
        self._set(ownership=self.member.ownership.release(), owned={})
        if self.member.leaving is not None:
            self._leave()
        else:
            self._restart(self.member.reason)

    def _on_leaving(self, event: Leaving) -> None:
        if self.member.leaving is not None:
            self._leave_earlier(event.deadline)
            return
        self._set(leaving=event)
        match self.member.phase:
            case Phase.MEMBER if not self.member.ownership.is_assigned:
                self._leave()
            case Phase.MEMBER if event.lost:
                self._lose(event.reason)
            case Phase.MEMBER:
                token = self._token()
                revoked = self.member.ownership.revoke()
                self._move(Phase.REVOKING, pending=token, ownership=revoked, reason=event.reason)
                self.effects.append(Revoke(token=token, deadline=self._drain_deadline()))
            case Phase.LOSING:
                pass  # leaves when the application has released
            case _:
                self._leave()

    # ------------------------------------------------------------ responses

    def _on_join_response(self, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            return self._on_error(response)
        if response.member_epoch <= 0:
            # A heartbeat with such an epoch would join again, or leave.
            self._back_off()
            return self._restart("the coordinator gave no epoch")
        self._move(
            Phase.MEMBER,
            pending=None,
            epoch=response.member_epoch,
            join_failures=0,
            unreleased_since=None,
        )
        return self._on_heartbeat_accepted(response, has_changed=True)

    def _on_leave_response(self, response: ConsumerGroupHeartbeatResponse) -> None:
        leaving = self.member.leaving
        will_rejoin = leaving is not None and leaving.lost
        if will_rejoin and response.error_code == ErrorCode.FENCED_INSTANCE_ID:
            # The application's next poll would join again, and take the instance id from the
            # process that has it now.
            self.effects.append(Fail(error=self._fenced()))
            self._move_out(Phase.FAILED, may_be_known=False)
        else:
            self._end_or_leave_again(self._error(response))

    def _on_release_response(self, response: ConsumerGroupHeartbeatResponse) -> None:
        """Join if the coordinator has released the instance id, or has refused because this member
        does not hold it. But fail if the member was accepted before and does not hold the id any
        more: another process has taken its place. After an error that may pass, release the id
        again."""
        error = self._error(response)
        if error.code == ErrorCode.FENCED_INSTANCE_ID and self.member.was_accepted:
            return self._fail(self._fenced())
        if not error.retriable:
            self._set(may_be_known=False)
            return self._restart(self.member.reason)
        if error.code in COORDINATOR_MOVED:
            self._lose_coordinator()
        self._back_off(error)
        return self._restart(str(error))

    def _error(self, response: ConsumerGroupHeartbeatResponse) -> BrokerError:
        """Return the error of a response; its code may be NONE."""
        group = self.member.config.group_id
        return broker_error(
            response.error_code, response.error_message, operation="READ", group=group
        )

    def _on_heartbeat_response(self, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            return self._on_error(response)
        epoch = response.member_epoch
        has_new_epoch = epoch > 0 and epoch != self.member.epoch
        has_changed = has_new_epoch or response.assignment is not None
        self._set(epoch=epoch if epoch > 0 else self.member.epoch, loss_count=0)
        return self._on_heartbeat_accepted(response, has_changed=has_changed)

    def _on_heartbeat_accepted(
        self, response: ConsumerGroupHeartbeatResponse, *, has_changed: bool
    ) -> None:
        """Record that the coordinator has acknowledged a heartbeat. `has_changed`: whether the
        response has a new epoch or an assignment."""
        member = self.member
        self._set(
            acknowledged_state=member.state_in_flight,
            state_in_flight=None,
            session_ends_at=member.heartbeat_sent_at + member.config.session_timeout,
            attempts=0,
            has_reported_denial=False,
            is_unavailable=False,
        )
        if response.heartbeat_interval_ms > 0:
            self._set(broker_interval=response.heartbeat_interval_ms / 1000)
        self._extend_lease(self._target_change(response))
        if has_changed:
            self._heartbeat_often()
        elif self.now >= member.frequent_until:
            self._set(immediate_heartbeats=0)
        self._follow_subscription()

    def _follow_subscription(self) -> None:
        """Note whether the coordinator has assigned by the present subscription. It begins a new
        epoch for that, unless a pattern matches the same topics as the one before."""
        member, known = self.member, self.member.acknowledged_state
        if member.outdated_epoch is None or known is None:
            return
        if (known.topics, known.pattern) != (member.topics, member.pattern):
            self._set(outdated_epoch=member.epoch)
        elif member.epoch != member.outdated_epoch or (
            member.reconciling is None and self.now >= member.frequent_until + _ASSIGNMENT_TIMEOUT
        ):
            self._set(outdated_epoch=None)

    def _target_change(self, response: ConsumerGroupHeartbeatResponse) -> TargetChange | None:
        """Return the change of the target, if the response has an assignment."""
        if response.assignment is None:
            return None
        change = self._prepared
        if change is not None and change.before is self.member.target:
            return change
        return TargetChange.of(response.assignment, self.member.target)

    def _extend_lease(self, change: TargetChange | None) -> None:
        """Extend the lease from when the heartbeat was sent. While the coordinator waits for a
        revocation, extend it no further than the rebalance timeout, after which it removes the
        member despite its heartbeats. As a response may have been lost, that timeout may have begun
        at any time after the last acknowledged heartbeat."""
        member, config = self.member, self.member.config
        known, sent = member.acknowledged_state, member.heartbeat_sent_at
        revocation_requested_at = member.revocation_requested_at
        if (
            known is not None
            and known.reconciliation_count == member.reconciliation_count
            and member.reconciling is None
        ):
            revocation_requested_at = None
        if change is not None:
            if revocation_requested_at is None and change.takes_away:
                revocation_requested_at = member.last_acknowledged_at
            self._set(target=change.target)
        self._set(last_acknowledged_at=sent)
        if revocation_requested_at is not None:
            sent = min(
                sent, revocation_requested_at + config.rebalance_timeout - config.session_timeout
            )
        self._set(
            revocation_requested_at=revocation_requested_at,
            ownership=self._extended_ownership(sent),
        )

    def _on_error(self, response: ConsumerGroupHeartbeatResponse) -> None:
        """Handle an error code. The next heartbeat reports everything again."""
        self._set(acknowledged_state=None, state_in_flight=None)
        config, code, error = self.member.config, response.error_code, self._error(response)
        is_joining = self.member.phase is Phase.JOINING
        is_refused = is_joining and code not in MAY_HAVE_JOINED
        # Without `_releases_id`, an earlier join may have succeeded despite this refusal.
        if is_refused and (self._releases_id or not error.retriable):
            self._set(may_be_known=False)
        was_unavailable = self.member.is_unavailable
        self._set(is_unavailable=is_joining and code in PROTOCOL_UNAVAILABLE)
        match code:
            case _ if self.member.is_unavailable and not was_unavailable:
                self._retry(error)  # counts only if the next join gets such an error, too
            case _ if self.member.is_unavailable and config.may_fall_back:
                self._fall_back(error)
            case _ if self.member.is_unavailable:
                self._on_refusal(error)
            case _ if code in MEMBERSHIP_LOST:
                self._on_membership_lost(error)
            case ErrorCode.FENCED_INSTANCE_ID:
                self._fail(self._fenced())
            case ErrorCode.UNRELEASED_INSTANCE_ID:
                self._on_instance_unreleased(error)
            case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                # The member may still read its other topics, and an ACL may be added later.
                if not self.member.has_reported_denial:
                    self.effects.append(ReportError(error=error))
                self._set(has_reported_denial=True)
                self._retry(error)
            case _ if code in COORDINATOR_MOVED:
                self._lose_coordinator()
                self._retry(error)
            case _:
                self._on_refusal(error)

    def _on_refusal(self, error: BrokerError) -> None:
        if self._is_final(error):
            return self._fail(error)
        self._report_refusal(error)
        return self._retry(error)

    def _retry(self, error: Exception) -> None:
        self._back_off(error)
        if self.member.phase is Phase.JOINING:
            self._restart(str(error))

    def _on_membership_lost(self, error: BrokerError) -> None:
        """Join again after the coordinator has removed the member; the first `_MAX_ATTEMPTS` times
        without a pause, unless the error answers a join."""
        may_be_known = error.code not in UNKNOWN_MEMBER and self.member.phase is not Phase.JOINING
        self._set(loss_count=self.member.loss_count + 1, may_be_known=may_be_known)
        if self.member.phase is Phase.JOINING or self.member.loss_count > _MAX_ATTEMPTS:
            self._back_off(error)
        if self.member.ownership.is_assigned:
            self._lose(str(error))
        else:
            self._restart(str(error))

    def _on_instance_unreleased(self, error: BrokerError) -> None:
        """Retry until the coordinator releases the instance id. After a crash, the member's former
        process holds it until its session ends. This member may hold the id itself: a response that
        the member was removed, or that the release was refused, may have been wrong."""
        since = self.member.unreleased_since
        since = self.now if since is None else since
        if self.now - since >= self.member.config.release_timeout:
            return self._fail(error)
        self._set(unreleased_since=since, may_be_known=True)
        return self._retry(error)

    # ------------------------------------------------------------ moves

    def _restart(self, reason: str) -> None:
        """Join again, or leave if the application has left. Responses to all earlier requests are
        stale."""
        if self.member.leaving is not None:
            return self._leave()
        return self._move_out(Phase.UNJOINED, reason=reason)

    def _lose(self, reason: str) -> None:
        token = self._token()
        self._move_out(Phase.LOSING, pending=token, reason=reason)
        self.effects.append(Lose(token=token, reason=reason))

    def _leave(self) -> None:
        if self._leave_epoch() is None or not self.member.may_be_known:
            return self._left()
        self._set(**_NOT_IN_GROUP, ownership=self.member.ownership.release())
        return self._depart()

    def _send_leave(self) -> None:
        epoch = self._leave_epoch()
        assert epoch is not None
        # Requests in flight are answered first; those responses are ignored.
        token = self._send(leave_request(self.member, epoch), timeout=self._leave_timeout())
        self._move(Phase.LEAVING, pending=token)

    def _leave_epoch(self) -> int | None:
        """Return the epoch with which this member leaves; None to send nothing."""
        if self.member.leaves_group:
            return LEAVE_EPOCH
        return None if self.member.config.group_instance_id is None else STATIC_LEAVE_EPOCH

    def _left(self, doubt: str = "") -> None:
        may_be_known = self.member.may_be_known and bool(doubt)
        self._move_out(Phase.LEFT, lookup_in_flight=None, may_be_known=may_be_known)
        self.effects.append(Leave(doubt=doubt))

    def _fall_back(self, error: Exception) -> None:
        self._move_out(Phase.LEFT, lookup_in_flight=None)
        self.effects.append(FallBack(error=error))

    def _fail(self, error: Exception, *, can_leave: bool = True) -> None:
        member = self.member
        if member.phase in ENDING:
            self._left(str(error))
            return
        self.effects.append(Fail(error=error))
        may_leave = can_leave and not isinstance(error, FencedError)
        self._set(may_be_known=member.may_be_known and may_leave)
        # A static member keeps its place, and releases its instance id for its next process.
        leaving = member.leaving or Leaving(now=self.now, reason=str(error))
        if member.ownership.is_assigned:
            # Once it leaves, others own partitions that the application has not released yet.
            self._set(leaving=leaving)
            self._lose(str(error))
        elif self.member.may_be_known:
            self._set(leaving=leaving)
            self._leave()
        else:
            self._move_out(Phase.FAILED, lookup_in_flight=None)

    def _move_out(self, phase: Phase, **changes: Any) -> None:
        """Move to a phase in which the member is not in the group, and owns nothing."""
        released = self.member.ownership.release()
        self._move(phase, **{**_NOT_IN_GROUP, "ownership": released, **changes})

    def _lose_coordinator(self) -> None:
        abandoned_heartbeat = self.member.heartbeat_in_flight or self.member.abandoned_heartbeat
        self._set(
            coordinator=None,
            heartbeat_in_flight=None,
            abandoned_heartbeat=abandoned_heartbeat,
            acknowledged_state=None,
            state_in_flight=None,
        )

    def _heartbeat_now(self) -> None:
        """Send a heartbeat at once, at most `_MAX_ATTEMPTS` times until the member is stable."""
        if self.member.immediate_heartbeats < _MAX_ATTEMPTS:
            self._set(
                immediate_heartbeats=self.member.immediate_heartbeats + 1,
                next_heartbeat_at=min(self.member.next_heartbeat_at, self.now),
            )
        self._heartbeat_often()

    def _heartbeat_often(self) -> None:
        """Send heartbeats more often for a while: after a change, others follow soon."""
        config = self.member.config
        soon = max(self.member.heartbeat_sent_at + config.settling_interval, self.now)
        self._set(
            next_heartbeat_at=min(self.member.next_heartbeat_at, soon),
            frequent_until=self.now + _FREQUENT_INTERVALS * config.heartbeat_interval,
        )

    # ------------------------------------------------------------ what is due

    def _reconcile(self) -> None:
        """Have the application own what is assigned, except for topics whose names are unknown. One
        reconciliation runs at a time."""
        member = self.member
        if (
            member.phase is not Phase.MEMBER
            or member.target is None
            or member.reconciling is not None
        ):
            return
        unnamed = member.target.unnamed(member.names)
        # By identity first: comparing 200,000 topic ids again in each step would take a while.
        if unnamed is not member.unnamed and unnamed != member.unnamed:
            self._set(unnamed=unnamed)
            self.effects.append(LookUpNames(topic_ids=unnamed))
        named = member.target.named(member.names)
        if unnamed and not named and not member.owned:
            return  # do not report an empty assignment: the names are only missing
        if self._reports_less_than(named):
            return
        if member.ownership.is_assigned and named == member.owned:
            known = member.acknowledged_state
            if (
                member.revocation_requested_at is not None
                and known
                and known.reconciliation_count == member.reconciliation_count
            ):
                # The revoked topic had no name yet, so the application never owned it. The
                # coordinator still waits for a report.
                self._set(reconciliation_count=member.reconciliation_count + 1)
                self._heartbeat_now()
            return
        token = self._token()
        self._set(reconciling=token, next_owned=named, ownership=member.ownership.assign())
        self.effects.append(
            Reconcile(
                token=token,
                generation=GenerationInfo(
                    generation_id=member.epoch,
                    member_id=member.member_id,
                    leader_id="",
                    protocol_name=member.config.assignor or "",
                    members={},
                    assignment=b"",
                    topics=_by_name(named, member.names),
                    topic_ids={member.names[topic_id]: topic_id for topic_id in named},
                ),
            )
        )

    def _reports_less_than(self, target: PartitionsByTopicId) -> bool:
        """Return whether the heartbeat in flight reports that the member does not own a partition
        of the target. The coordinator may assign that partition to another member, and then its
        response has another target."""
        reported = self.member.state_in_flight
        return (
            reported is not None
            and reported != self.member.acknowledged_state
            and is_missing(reported.owned, target)
        )

    def _join_when_due(self) -> None:
        member = self.member
        if member.phase is not Phase.UNJOINED or self.now < member.retry_at:
            return None
        timeout = member.config.request_timeout
        if self._releases_id and member.may_be_known:
            # The coordinator would refuse a join until its session for this member ends.
            request = leave_request(member, STATIC_LEAVE_EPOCH)
            token = self._send(request, timeout=timeout, lowest=OWN_IDS_VERSION)
            return self._move(Phase.RELEASING, pending=token)
        timeout = self._attempt_timeout(timeout)
        token = self._send(join_request(member), timeout=timeout)
        self._move(Phase.JOINING, pending=token, may_be_known=True)
        return self._note_heartbeat_sent()

    @property
    def _releases_id(self) -> bool:
        """Whether this member releases its instance id before it joins again, if an earlier join
        may hold it. After a release, the refusal of a join shows that no join of this member holds
        the id; without the release, an earlier join may have succeeded, with its response lost."""
        return self.member.config.group_instance_id is not None and self.member.can_release

    def _heartbeat_when_due(self) -> None:
        member = self.member
        if (
            member.phase not in HEARTBEATING
            or member.heartbeat_in_flight is not None
            or self.now < member.next_heartbeat_at
        ):
            return
        timeout = self._attempt_timeout(member.session_ends_at - self.now)
        timeout = max(timeout, member.config.heartbeat_interval)
        token = self._send(heartbeat_request(member), timeout=timeout)
        self._set(heartbeat_in_flight=token, abandoned_heartbeat=None)
        self._note_heartbeat_sent()

    def _note_heartbeat_sent(self) -> None:
        member = self.member
        self._set(
            state_in_flight=member.reported_state,
            has_sent_pattern=member.has_sent_pattern or member.pattern is not None,
            heartbeat_sent_at=self.now,
            next_heartbeat_at=self.now + self._next_interval(),
        )

    def _next_interval(self) -> float:
        """Return the seconds until the next heartbeat, fewer around a change."""
        interval = self.member.heartbeat_interval
        if self.now < self.member.frequent_until:
            return min(self.member.config.settling_interval, interval)
        return interval


_NOT_IN_GROUP: Mapping[str, Any] = {
    "epoch": 0,
    "target": None,
    "abandoned_heartbeat": None,
    "revocation_requested_at": None,
    "owned": {},
    "next_owned": {},
    "reconciling": None,
    "outdated_epoch": None,
    "acknowledged_state": None,
    "state_in_flight": None,
    "pending": None,
    "heartbeat_in_flight": None,
}
"""The fields of a member to reset when it leaves the group, besides `ownership`."""


def _by_name(
    assigned: PartitionsByTopicId, names: Mapping[UUID, str]
) -> dict[str, tuple[int, ...]]:
    """Return topic -> partitions. Two topics may have one name, if one was recreated."""
    found: dict[str, tuple[int, ...]] = {}
    for topic_id, partitions in assigned.items():
        name = names[topic_id]
        found[name] = (*found[name], *partitions) if name in found else partitions
    return found
