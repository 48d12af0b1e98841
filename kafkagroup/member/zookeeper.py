"""Membership kept in ZooKeeper: one pure `step`. Nothing here reads a clock or touches a socket.

There is no leader: every member reads the same list of members, computes the same assignment, and
claims the units of its own part (a unit: see `zookeeper_nodes`). The node of a claim belongs to one
session at a time, so two members never own the same unit, even if they see different lists for a
moment. For this a member claims a unit before it assigns the unit to the application, and releases
the claim after the application has revoked and committed. All claims end with the session: when
ZooKeeper reports its end, or when by this member's clock it was not confirmed for one session
timeout. `zookeeper_state.MOVES` is the table of phases.
"""

from __future__ import annotations

from typing import Any, assert_never

import attrs

from kafkagroup._backoff import backoff
from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    JoinFailedError,
    LocalProtocolError,
    TransportError,
)
from kafkagroup.member.coordinated import DRAIN_FRACTION
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import (
    AssignFailed,
    AssignmentApplied,
    Compute,
    Computed,
    ComputeFailed,
    Fail,
    GenerationInfo,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Revoke,
    Revoked,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.member.zookeeper_nodes import (
    Metadata,
    admitted,
    encode_metadata,
    partition_of,
    unit_of,
)
from kafkagroup.member.zookeeper_state import LEASE_FRACTION, MOVES, Member, Phase, View
from kafkagroup.member.zookeeper_vocabulary import (
    AssignUnits,
    Claim,
    Claimed,
    Confirm,
    Confirmed,
    Connect,
    Disconnect,
    MembersChanged,
    MembersRead,
    ReadMembers,
    Register,
    Registered,
    Release,
    Released,
    RequestFailed,
    SessionClosed,
    SessionEstablished,
    SessionExpired,
    SessionFailed,
    ZooKeeperEffect,
    ZooKeeperEvent,
)
from kafkagroup.wire.embedded_protocol import decode_assignment, encode_assignment

__all__ = ["step"]

_IN_SESSION = frozenset((Phase.REGISTERING, Phase.MEMBER, Phase.REVOKING))
"""Phases with a session."""


def step(member: Member, event: ZooKeeperEvent) -> tuple[Member, tuple[ZooKeeperEffect, ...]]:
    """Return the member after an event, and the effects to execute. A stale event changes
    nothing."""
    if member.phase in (Phase.LEFT, Phase.FAILED):
        return member, ()
    run = _Step(member, event.now, event.jitter)
    run.take(event)
    run.advance()
    return run.member, tuple(run.effects)


class _Step:
    """One step: the member and the effects so far."""

    def __init__(self, member: Member, now: float, jitter: float) -> None:
        self.member = member
        self.now = now
        self.jitter = jitter
        self.effects: list[ZooKeeperEffect] = []

    # ------------------------------------------------------------ events

    def take(self, event: ZooKeeperEvent) -> None:
        """Handle an event; ignore a stale one."""
        member = self.member
        match event:
            case Started():
                self._connect()
            case SessionEstablished(session=session, timeout=timeout):
                if session == member.session:
                    self._on_session_established(timeout)
            case SessionExpired(session=session):
                if session == member.session and member.phase in _IN_SESSION:
                    self._lose("ZooKeeper has ended the session")
            case SessionFailed(session=session, error=error):
                if session == member.session:
                    self._fail(error)
            case SessionClosed(session=session):
                if session == member.session and member.phase is Phase.LEAVING:
                    self._left()
            case Registered(token=token):
                if token == member.registering:
                    self._on_registered()
            case MembersChanged(session=session):
                if session == member.session:
                    self._set(is_outdated=True)
            case MembersRead(token=token):
                if token == member.reading:
                    self._on_members_read(event)
            case Confirmed(token=token, version=version):
                if token == member.confirming:
                    self._on_confirmed(version)
            case Claimed(token=token, granted=granted):
                if token == member.write_in_flight:
                    self._on_claimed(granted)
            case Released(token=token):
                if token == member.write_in_flight:
                    self._on_released()
            case RequestFailed(token=token, error=error):
                self._on_request_failed(token, error)
            case AssignmentApplied(token=token):
                if token == member.reconciling and member.phase is Phase.MEMBER:
                    self._set(reconciling=None)
            case Revoked(token=token):
                if token == member.reconciling:
                    self._on_revoked()
            case Computed(token=token, assignments=assignments):
                if token == member.computing:
                    self._on_computed(assignments.get(member.member_id, b""))
            case ComputeFailed(token=token, error=error):
                if token == member.computing:
                    self._fail(error)
            case AssignFailed(error=error):
                self._fail(error)
            case Woke():
                pass
            case RejoinRequested(protocols=protocols):
                # A new registration makes all members compute again.
                self._set(must_register=True, protocols=protocols or member.protocols)
            case Leaving():
                self._on_leaving(event)
            case _:
                assert_never(event)

    def _on_session_established(self, timeout: float) -> None:
        if self.member.phase is Phase.CONNECTING:
            self._move(
                Phase.REGISTERING,
                timeout=timeout,
                session_ends_at=self.now + timeout,
                next_confirm_at=self.now,
                must_register=True,
                is_outdated=True,
                attempts=0,
                retry_at=self.now,
            )
        elif self.member.phase in _IN_SESSION:
            # The connection was lost: pending responses and watches may never arrive. And the new
            # server may have granted another timeout: the lease must not outlive a shorter session.
            member = self.member
            self._set(
                is_outdated=True,
                next_confirm_at=self.now,
                timeout=timeout,
                session_ends_at=min(member.session_ends_at, self.now + timeout),
                ownership=member.ownership.limit(LEASE_FRACTION * timeout),
            )

    def _on_registered(self) -> None:
        # Drop the read in flight: its list may lack the new node.
        self._set(registering=None, reading=None, is_outdated=True, attempts=0)
        if self.member.phase is Phase.REGISTERING:
            self._move(Phase.MEMBER)

    def _on_members_read(self, read: MembersRead) -> None:
        member = self.member
        self._set(reading=None, attempts=0)
        if member.view is not None and member.view.version == read.version:
            return
        if all(node.member_id != member.member_id for node in read.nodes):
            # Only an operator can have deleted this member's node, as its session still exists.
            self._back_off()
            self._set(must_register=True)
            return
        name, members = admitted(read.nodes)
        if member.member_id not in members:
            group, kind = member.config.group_id, member.config.protocol_type
            self._fail(
                BrokerError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"the members of group {group!r} are of another type than {kind!r}, or share"
                    f" no protocol with {[n for n, _ in member.protocols]}",
                )
            )
            return
        view = View(read.version, read.nodes)
        token = self._token()
        self._set(view=view, protocol_name=name, members=members, computing=token)
        self.effects.append(
            Compute(token=token, protocol_name=name, members=members, instance_ids={})
        )

    def _on_computed(self, assignment: bytes) -> None:
        if self.member.config.exclusive_generations:
            target = frozenset((str(self.member.generation_id),))
        else:
            partitions = decode_assignment(assignment) if assignment else ()
            target = frozenset(unit_of(tp) for tp in partitions)
        self._set(
            computing=None,
            assignment=assignment,
            target=target,
            computed_registration=self.member.registration,
            retry_at=self.now,  # the back-off was for the claims of another target
        )

    def _on_confirmed(self, version: int) -> None:
        member = self.member
        sent = member.confirm_sent_at
        self._set(
            confirming=None,
            ownership=member.ownership.acknowledge(sent, LEASE_FRACTION * member.timeout),
            session_ends_at=sent + member.timeout,
        )
        if member.view is not None and version != member.view.version:
            self._set(is_outdated=True)  # a watch may get lost

    def _on_claimed(self, granted: frozenset[str]) -> None:
        member = self.member
        refused = member.written_units - granted
        self._set(write_in_flight=None, held=member.held | granted)
        if not refused:
            self._set(attempts=0)
            return
        # The former owner may still be processing. Retry, and keep what was granted meanwhile.
        self._back_off()
        limit = member.config.max_retries
        if limit is not None and self.member.attempts > limit:
            group, claims = member.config.group_id, ", ".join(sorted(refused))
            self._fail(
                JoinFailedError(
                    f"claims of group {group!r} were refused {self.member.attempts} times in a row,"
                    f" as others hold them: {claims}"
                )
            )

    def _on_released(self) -> None:
        member = self.member
        self._set(
            write_in_flight=None,
            held=member.held - member.written_units,
            uncertain=member.uncertain - member.written_units,
            attempts=0,
        )

    def _on_request_failed(self, token: int, error: Exception) -> None:
        member = self.member
        awaited = (member.registering, member.reading, member.write_in_flight, member.confirming)
        if token not in awaited:
            return
        if not isinstance(error, TransportError):
            self._fail(error)
            return
        if token == member.registering:
            self._set(registering=None, must_register=True)
        elif token == member.reading:
            self._set(reading=None, is_outdated=True)
        elif token == member.confirming:
            # No growing back-off: the lease would expire meanwhile.
            self._set(confirming=None, next_confirm_at=self.now + member.config.retry_backoff)
            return
        else:
            # The write may have succeeded: own none of these units before they are released.
            self._set(
                write_in_flight=None,
                held=member.held - member.written_units,
                uncertain=member.uncertain | member.written_units,
            )
        self._back_off()

    def _on_revoked(self) -> None:
        self._set(reconciling=None)
        if self.member.leaving is not None:
            self._leave()
        else:
            self._connect()

    def _on_leaving(self, event: Leaving) -> None:
        """Revoke, then end the session. Its end is the only way to leave and is requested once, so
        `leave_group` and `deadline` do not matter."""
        member = self.member
        if member.leaving is not None:
            return
        self._set(leaving=event)
        match member.phase:
            case Phase.MEMBER if member.may_own_units and event.lost:
                self._lose(event.reason)
            case Phase.MEMBER if member.may_own_units:
                token = self._token()
                self._move(Phase.REVOKING, reconciling=token, ownership=member.ownership.revoke())
                self.effects.append(Revoke(token=token, deadline=self._drain_deadline()))
            case Phase.LOSING:
                pass  # leaves when the application has released
            case _:
                self._leave()

    # ------------------------------------------------------------ moves

    def _connect(self) -> None:
        session = self.member.session + 1
        self._move(Phase.CONNECTING, session=session)
        self.effects.append(Connect(session=session))

    def _end_session(self) -> None:
        """Reset what ends with the session. Responses to its requests are stale from here."""
        self.effects.append(Disconnect(session=self.member.session))
        self._set(
            timeout=0.0,
            view=None,
            is_outdated=False,
            members={},
            target=None,
            held=frozenset(),
            uncertain=frozenset(),
            assigned_units=frozenset(),
            registering=None,
            reading=None,
            computing=None,
            write_in_flight=None,
            confirming=None,
            ownership=Ownership(),
        )

    def _lose(self, reason: str) -> None:
        """End the session. Its claims have ended, or may have: others may own the units."""
        may_own_units = self.member.may_own_units
        self._end_session()
        if may_own_units:
            token = self._token()
            self._move(Phase.LOSING, reconciling=token)
            self.effects.append(Lose(token=token, reason=reason))
        elif self.member.leaving is not None:
            self._leave()
        else:
            self._connect()

    def _leave(self) -> None:
        if self.member.phase in (Phase.IDLE, Phase.LOSING):  # without a session
            self._left()
            return
        # With the session, ZooKeeper deletes the member's node and all its claims.
        self._end_session()
        self._move(Phase.LEAVING)

    def _left(self) -> None:
        self._move(Phase.LEFT)
        self.effects.append(Leave())

    def _fail(self, error: Exception) -> None:
        if self.member.phase in (Phase.LEAVING, Phase.LEFT):
            return
        if self.member.may_own_units:
            # The member ends without waiting for the `Revoked` that answers this.
            self.effects.append(Lose(token=self._token(), reason=str(error)))
        self.effects.append(Fail(error=error))
        if self.member.phase is not Phase.LOSING:
            self._end_session()
        self._move(Phase.FAILED, reconciling=None)

    def _back_off(self) -> None:
        config, attempts = self.member.config, self.member.attempts + 1
        pause = backoff(attempts, config.retry_backoff, config.retry_backoff_max, self.jitter)
        self._set(attempts=attempts, retry_at=self.now + pause)

    # ------------------------------------------------------------ what is due

    def advance(self) -> None:
        """Do what is due now, and request a wake-up for what is due next."""
        if self.member.phase in _IN_SESSION and self.now >= self.member.session_ends_at:
            self._lose("ZooKeeper has not confirmed the session within its timeout")
        if self.member.phase not in _IN_SESSION:
            return
        self._confirm_when_due()
        if self.now >= self.member.retry_at:
            self._register_when_due()
            self._read_when_due()
        if self.member.phase is Phase.MEMBER:
            self._reconcile_when_due()
        self._wake()

    def _confirm_when_due(self) -> None:
        member = self.member
        if member.phase is Phase.REGISTERING:
            return  # the node of the list, whose version a confirmation reads, may not exist yet
        if member.confirming is not None or self.now < member.next_confirm_at:
            return
        token = self._token()
        next_confirm_at = self.now + member.confirm_interval
        self._set(confirming=token, confirm_sent_at=self.now, next_confirm_at=next_confirm_at)
        self.effects.append(Confirm(token=token))

    def _register_when_due(self) -> None:
        member = self.member
        # A claim or release in flight would fail if the member's node changed.
        if (
            member.phase is Phase.REVOKING
            or not member.must_register
            or member.registering is not None
            or member.write_in_flight is not None
        ):
            return
        token = self._token()
        replaces = member.member_id if member.phase is Phase.MEMBER else None
        # What is being computed has no assignment for the new member id, and a list that is being
        # read may lack its node: that would look deleted.
        self._set(
            registering=token,
            registration=member.registration + 1,
            must_register=False,
            reading=None,
            computing=None,
        )
        metadata = Metadata(member.config.protocol_type, member.protocols)
        self.effects.append(
            Register(
                token=token,
                member_id=self.member.member_id,
                data=encode_metadata(metadata),
                replaces=replaces,
            )
        )

    def _read_when_due(self) -> None:
        member = self.member
        if (
            member.phase is not Phase.MEMBER
            or not member.is_outdated
            or member.reading is not None
            or member.registering is not None
        ):
            return
        token = self._token()
        self._set(reading=token, is_outdated=False)
        self.effects.append(ReadMembers(token=token))

    def _reconcile_when_due(self) -> None:
        """Take one step from the held and assigned units towards the target: revoke, then release,
        claim and assign."""
        member = self.member
        target = member.target
        if target is None or not (
            member.write_in_flight is None
            and member.reconciling is None
            and member.registering is None
        ):
            return
        keep, missing = member.held & target, target - member.held
        excess = member.uncertain | (member.held - target)
        is_due = self.now >= member.retry_at
        # The application is notified of its new member id with the assignment for it, even an equal
        # one. With exclusive generations each registration changes the target, so none is equal.
        is_renamed = member.notified_registration != member.computed_registration
        if member.assigned_units - target:
            self._assign(keep)
        elif excess and is_due:
            self._write(Release, excess)
        elif missing and is_due:
            self._write(Claim, missing)
        elif keep != member.assigned_units or (
            is_renamed and not member.config.exclusive_generations
        ):
            self._assign(keep)

    def _write(self, request: type[Claim] | type[Release], units: frozenset[str]) -> None:
        token = self._token()
        self._set(write_in_flight=token, written_units=units)
        self.effects.append(request(token=token, units=units))

    def _assign(self, units: frozenset[str]) -> None:
        member = self.member
        token = self._token()
        assignment = member.assignment
        if not member.config.exclusive_generations:
            assignment = encode_assignment(sorted(map(partition_of, units)))
        leads = member.leader_id == member.member_id
        generation = GenerationInfo(
            generation_id=member.generation_id,
            member_id=member.member_id,
            leader_id=member.leader_id,
            protocol_name=member.protocol_name,
            members=member.members if leads else {},
            assignment=assignment,
        )
        ownership = member.ownership.assign() if units else member.ownership.release()
        self._set(
            reconciling=token,
            assigned_units=units,
            notified_registration=member.computed_registration,
            ownership=ownership,
        )
        self.effects.append(
            AssignUnits(
                token=token, generation=generation, units=units, deadline=self._drain_deadline()
            )
        )

    def _drain_deadline(self) -> float:
        """Return when the application must have processed the records in flight."""
        return self.now + self.member.config.rebalance_timeout * DRAIN_FRACTION

    def _wake(self) -> None:
        member = self.member
        times = [member.session_ends_at]
        if member.confirming is None and member.phase is not Phase.REGISTERING:
            times.append(member.next_confirm_at)
        if self.now < member.retry_at:
            times.append(member.retry_at)
        self.effects.append(WakeAt(time=min(times)))

    # ------------------------------------------------------------ helpers

    def _set(self, **changes: Any) -> None:
        self.member = attrs.evolve(self.member, **changes)

    def _move(self, phase: Phase, **changes: Any) -> None:
        if phase not in MOVES[self.member.phase]:
            raise LocalProtocolError(f"no move from {self.member.phase} to {phase}")
        self._set(phase=phase, **changes)

    def _token(self) -> int:
        self._set(last_token=self.member.last_token + 1)
        return self.member.last_token
