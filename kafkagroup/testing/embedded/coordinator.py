"""The classic group coordinator: requests and time go in, responses and deadlines come out.

It decides what a request does to its group, and when; `group` holds the group's state. A reply is a
callable, which another request or a deadline may call later. No I/O and no clock. The caller has
checked that this node coordinates the group.

Sources: the group membership protocol of Apache Kafka 4.3, KIP-345, 394, 559, 814.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.testing.embedded.group import ClassicGroup, GroupState, Member
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.timers import Timers
from kafkagroup.wire.messages.group import (
    DeletableGroupResult,
    DescribedGroup,
    DescribedGroupMember,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

__all__ = ["Caller", "ClassicCoordinator"]

_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE

_LEAST_PAUSE = 0.001
"""Fewest seconds until the coordinator tries again to complete a join phase in which no member has
joined: the resolution of Kafka's timers."""


@attrs.frozen
class Caller:
    """The sender of a request, the request's version, and the time of arrival."""

    version: int
    now: float
    """Seconds on the clock of the deadlines."""
    client_id: str = ""
    host: str = "/127.0.0.1"


class ClassicCoordinator:
    """All classic groups of the cluster."""

    def __init__(self, timers: Timers, new_id: Callable[[], str], settings: BrokerSettings) -> None:
        self._timers = timers
        self._new_id = new_id
        self._settings = settings
        self.groups: dict[str, ClassicGroup] = {}

    # ------------------------------------------------------------ joining

    def check_join(self, request: JoinGroupRequest) -> ErrorCode:
        """Return the error for which any node, coordinator or not, rejects a JoinGroup, or NONE."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        low = self._settings.group_min_session_timeout
        high = self._settings.group_max_session_timeout
        if not low <= request.session_timeout_ms / 1000 <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def join(
        self,
        request: JoinGroupRequest,
        caller: Caller,
        reply: Callable[[JoinGroupResponse], None],
    ) -> None:
        """Answer a JoinGroup, at once or when the rebalance completes."""
        given_id = request.member_id
        group = self.groups.get(request.group_id)
        error = self.check_join(request)
        if error:
            reply(_join_error(error, given_id))
        elif group is None and given_id:
            reply(_join_error(ErrorCode.UNKNOWN_MEMBER_ID, given_id))
        else:
            if group is None:
                group = self.groups[request.group_id] = ClassicGroup(request.group_id)
            if not self._accepts(group, given_id):
                # As in Kafka, a known or pending member that finds no room is removed.
                group.remove(given_id)
                self._timers.cancel(_session_key(group, given_id))
                reply(_join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
            elif not group.supports(request.protocol_type, request.protocols):
                reply(_join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, given_id))
            elif given_id:
                self._join_known(group, request, caller, reply)
            else:
                self._join_new(group, request, caller, reply)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group has room for this member. During a rebalance, only members that have
        joined again take up room."""
        limit = self._settings.group_max_size
        member = group.members.get(member_id)
        if group.state is _EMPTY:
            return True
        if group.state is _PREPARING:
            waiting = sum(m.awaiting_join is not None for m in group.members.values())
            return waiting < limit or (member is not None and member.awaiting_join is not None)
        return member is not None or len(group.members) < limit

    def _join_new(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        caller: Caller,
        reply: Callable[[JoinGroupResponse], None],
    ) -> None:
        instance_id = request.group_instance_id
        member_id = f"{caller.client_id if instance_id is None else instance_id}-{self._new_id()}"
        holder = group.static_member(instance_id)
        if holder is not None:
            self._replace_static(group, holder, member_id, request, caller, reply)
        elif instance_id is None and caller.version >= 4:
            # KIP-394: the client becomes a member only when it sends its id back. Without this, a
            # client that times out and retries would leave a dead member behind each time.
            group.pending.add(member_id)
            self._set_session_deadline(
                group, member_id, caller.now + request.session_timeout_ms / 1000
            )
            reply(_join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, member_id, request, caller, reply)

    def _join_known(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        caller: Caller,
        reply: Callable[[JoinGroupResponse], None],
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending:
            if request.group_instance_id is None:
                self._add(group, member_id, request, caller, reply)
            else:
                # As in Kafka: only dynamic members get an id by MEMBER_ID_REQUIRED.
                reply(_join_error(ErrorCode.UNKNOWN_SERVER_ERROR, ""))
            return
        error = _check_member(group, member_id, request.group_instance_id)
        if error:
            reply(_join_error(error, member_id))
            return
        member = group.members[member_id]
        changes_nothing = member.protocols == request.protocols and (
            group.state is _COMPLETING or (group.state is _STABLE and group.leader != member_id)
        )
        if changes_nothing:
            # The response to the join of this generation was lost: send it again.
            reply(_join_response(group, member))
        else:
            _update(member, request, caller, reply)
            self._rebalance_or_complete(group, caller.now)

    def _add(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroupRequest,
        caller: Caller,
        reply: Callable[[JoinGroupResponse], None],
    ) -> None:
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=caller.client_id,
            client_host=caller.host,
            # `_update` sets these three.
            session_timeout=0.0,
            rebalance_timeout=0.0,
            protocols=(),
            is_new=True,
        )
        _update(member, request, caller, reply)
        if group.state is _PREPARING and group.previous is _EMPTY:
            group.has_new_member = True
        group.add(member, request.protocol_type)
        # The client may vanish while its join is pending; without this deadline, each of its
        # retries would add a dead member to the rebalance.
        self._set_session_deadline(
            group, member_id, caller.now + self._settings.group_new_member_join_timeout
        )
        self._rebalance_or_complete(group, caller.now)

    def _replace_static(
        self,
        group: ClassicGroup,
        holder: Member,
        member_id: str,
        request: JoinGroupRequest,
        caller: Caller,
        reply: Callable[[JoinGroupResponse], None],
    ) -> None:
        """Replace a static member that returns with a new id; fence its old id (KIP-345)."""
        leader_before = group.leader
        holder.answer_join(_join_error(ErrorCode.FENCED_INSTANCE_ID, holder.member_id))
        holder.answer_sync(_sync_error(ErrorCode.FENCED_INSTANCE_ID))
        member = group.replace(holder, member_id)
        self._timers.cancel(_session_key(group, holder.member_id))
        # Before `_update`: as in Kafka, the member has its old session timeout until it sends a
        # heartbeat.
        self._extend_session(group, member, caller.now)
        _update(member, request, caller, reply)
        if group.state is _STABLE and group.select_protocol() == group.protocol:
            group.write()
            response = _join_response(group, member)
            if caller.version >= 9:
                # KIP-814: a returning leader gets the members, but does not assign.
                is_leader = group.leader == member_id
                response = evolve(response, skip_assignment=is_leader)
            else:
                # An old client that sees its old id as the leader does not assign again.
                response = evolve(response, leader=leader_before or "", members=())
            member.answer_join(response)
        elif group.state in (_STABLE, _COMPLETING):
            # While completing, the leader may be computing an assignment for the old id.
            self._prepare(group, caller.now)
        else:
            self._complete_if_ready(group, caller.now)

    # ------------------------------------------------------------ rebalancing

    def _rebalance_or_complete(self, group: ClassicGroup, now: float) -> None:
        if group.can_rebalance:
            self._prepare(group, now)
        else:
            self._complete_if_ready(group, now)

    def _complete_if_ready(self, group: ClassicGroup, now: float) -> None:
        # The first rebalance of an empty group waits for its delay, whether or not all have joined.
        is_first = group.previous is _EMPTY
        if group.state is _PREPARING and not is_first and group.all_joined:
            self._complete(group, now)

    def _prepare(self, group: ClassicGroup, now: float) -> None:
        """Begin a rebalance: the join phase."""
        if group.state is _COMPLETING:
            for member in group.members.values():
                member.assignment = b""
                if member.answer_sync(_sync_error(ErrorCode.REBALANCE_IN_PROGRESS)):
                    self._extend_session(group, member, now)
        group.unsynced.clear()
        self._timers.cancel(("sync", group.group_id))
        is_first = group.state is _EMPTY
        group.become(_PREPARING)
        if is_first:
            delay = self._settings.group_initial_rebalance_delay
            self._delay_first_rebalance(
                group, now, delay, max(group.rebalance_timeout - delay, 0.0)
            )
        elif group.all_joined:
            self._complete(group, now)
        else:
            self._complete_at(group, now + group.rebalance_timeout)

    def _delay_first_rebalance(
        self, group: ClassicGroup, now: float, delay: float, remaining: float
    ) -> None:
        """Complete the first rebalance of an empty group after `delay` seconds. If members have
        joined meanwhile, wait again, by up to `remaining` further seconds in all."""

        def on_deadline(now: float) -> None:
            if group.has_new_member and remaining:
                group.has_new_member = False
                step = min(self._settings.group_initial_rebalance_delay, remaining)
                # As in Kafka, the delay that is over is subtracted, not the next one.
                self._delay_first_rebalance(group, now, step, max(remaining - delay, 0.0))
            else:
                self._complete(group, now)

        self._timers.schedule(("join", group.group_id), now + delay, on_deadline)

    def _complete_at(self, group: ClassicGroup, at: float) -> None:
        self._timers.schedule(("join", group.group_id), at, lambda now: self._complete(group, now))

    def _complete(self, group: ClassicGroup, now: float) -> None:
        """Complete the join phase: remove the dynamic members that have not rejoined, and answer
        the others. If only static members are left, and none has rejoined, wait again."""
        self._timers.cancel(("join", group.group_id))
        for member in tuple(group.members.values()):
            if member.awaiting_join is None and member.instance_id is None:
                group.remove(member.member_id)
                self._timers.cancel(_session_key(group, member.member_id))
        if not group.elect_joined_leader() and group.members:
            # With a timeout of 0 the timers would run this forever at the same moment.
            self._complete_at(group, now + max(group.rebalance_timeout, _LEAST_PAUSE))
            return
        group.next_generation()
        if group.state is _EMPTY:
            group.write()
            return
        for member in group.members.values():
            member.answer_join(_join_response(group, member))
            self._extend_session(group, member, now)
            member.is_new = False
            group.unsynced.add(member.member_id)
        generation = group.generation
        self._timers.schedule(
            ("sync", group.group_id),
            now + group.rebalance_timeout,
            lambda now: self._expire_sync(group, generation, now),
        )

    def _expire_sync(self, group: ClassicGroup, generation: int, now: float) -> None:
        """Remove the members that have not sent SyncGroup in time."""
        # A deadline of an earlier generation has no effect.
        if generation == group.generation and group.unsynced:
            for member_id in tuple(group.unsynced):
                group.remove(member_id)
                self._timers.cancel(_session_key(group, member_id))
            self._prepare(group, now)

    # ------------------------------------------------------------ sessions

    def _extend_session(self, group: ClassicGroup, member: Member, now: float) -> None:
        self._set_session_deadline(group, member.member_id, now + member.session_timeout)

    def _set_session_deadline(self, group: ClassicGroup, member_id: str, at: float) -> None:
        self._timers.schedule(
            _session_key(group, member_id), at, lambda now: self._expire(group, member_id, now)
        )

    def _expire(self, group: ClassicGroup, member_id: str, now: float) -> None:
        """Remove a member, or a pending member, whose session has expired."""
        member = group.members.get(member_id)
        if member is None:
            group.remove(member_id)
            if group.state is _PREPARING and group.all_joined:
                self._complete(group, now)
        elif not member.needs_no_heartbeat:  # otherwise its response will set the next deadline
            self._remove_member(group, member)
            if group.state is not _PREPARING:
                self._rebalance_or_complete(group, now)
            elif group.all_joined:
                self._complete(group, now)

    def _remove_member(self, group: ClassicGroup, member: Member) -> None:
        """Remove a member; its pending join is answered UNKNOWN_MEMBER_ID."""
        self._timers.cancel(_session_key(group, member.member_id))
        member.answer_join(_join_error(ErrorCode.UNKNOWN_MEMBER_ID, ""))
        group.remove(member.member_id)

    def heartbeat(self, request: HeartbeatRequest, caller: Caller) -> HeartbeatResponse:
        """Extend a session, and report whether a rebalance is in progress."""
        return HeartbeatResponse(error_code=self._heartbeat(request, caller))

    def _heartbeat(self, request: HeartbeatRequest, caller: Caller) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = _check_member(
            group, request.member_id, request.group_instance_id
        ) or _check_generation(group, request.generation_id)
        if error:
            return error
        self._extend_session(group, group.members[request.member_id], caller.now)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is _PREPARING else ErrorCode.NONE

    def check_commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        caller: Caller,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Return the error for this commit, or NONE. A valid commit extends the member's session.

        `transactional`: the commit is part of a transaction. Then it does not extend the session,
        and is valid during a rebalance, too, and without a membership in a group that has members.
        """
        group = self.groups.get(group_id)
        if group is None:
            if generation < 0:
                # Commits without membership create a "simple" group.
                self.groups[group_id] = ClassicGroup(group_id)
                return ErrorCode.NONE
            if caller.version >= 9 and not transactional:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and group.state is _EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = _check_member(group, member_id, instance_id) or _check_generation(group, generation)
        if error or transactional:
            return error
        if group.state is _COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._extend_session(group, group.members[member_id], caller.now)
        return ErrorCode.NONE

    # ------------------------------------------------------------ assignments

    def check_sync(self, request: SyncGroupRequest, caller: Caller) -> ErrorCode:
        """Return the error for which any node, coordinator or not, rejects a SyncGroup, or NONE."""
        if caller.version >= 5 and None in (request.protocol_type, request.protocol_name):
            # KIP-559: from v5 on both fields are mandatory; this error takes precedence.
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE if request.group_id else ErrorCode.INVALID_GROUP_ID

    def sync(
        self,
        request: SyncGroupRequest,
        caller: Caller,
        reply: Callable[[SyncGroupResponse], None],
    ) -> None:
        """Answer a SyncGroup, at once or when the leader has sent the assignments."""
        group = self.groups.get(request.group_id)
        error = self.check_sync(request, caller)
        if error:
            reply(_sync_error(error))
            return
        if group is None:
            reply(_sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        error = _check_sync_in_group(group, request)
        if error:
            reply(_sync_error(error))
            return
        member = group.members[request.member_id]
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            self._timers.cancel(("sync", group.group_id))
        if group.state is _STABLE:
            reply(_sync_response(group, member))
            return
        member.awaiting_sync = reply
        if group.leader == member.member_id:
            assignments = {a.member_id: bytes(a.assignment) for a in request.assignments}
            for other in group.members.values():
                other.assignment = assignments.get(other.member_id, b"")
            group.become(_STABLE)
            group.write()
            for other in group.members.values():
                if other.answer_sync(_sync_response(group, other)):
                    # The pending request served as its heartbeat until now.
                    self._extend_session(group, other, caller.now)

    # ------------------------------------------------------------ leaving

    def leave(self, request: LeaveGroupRequest, caller: Caller) -> LeaveGroupResponse:
        """Remove one member (v0-2) or several (v3+), each with its own error."""
        if not request.group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        is_batch = caller.version >= 3
        requested = request.members if is_batch else (MemberIdentity(member_id=request.member_id),)
        group = self.groups.get(request.group_id)
        results = []
        for identity in requested:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._leave(group, identity)
            results.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=error,
                )
            )
        if group is not None and any(not result.error_code for result in results):
            if group.state in (_STABLE, _COMPLETING):
                self._prepare(group, caller.now)
            else:
                self._complete_if_ready(group, caller.now)
        if is_batch:
            return LeaveGroupResponse(error_code=ErrorCode.NONE, members=tuple(results))
        return LeaveGroupResponse(error_code=results[0].error_code)

    def _leave(self, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if member_id in group.pending:
            group.remove(member_id)
            self._timers.cancel(_session_key(group, member_id))
            return ErrorCode.NONE
        if member_id:
            error = _check_member(group, member_id, identity.group_instance_id)
            if error:
                return error
            member = group.members[member_id]
        else:
            # An administrator may remove a static member by its instance id alone.
            holder = group.static_member(identity.group_instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member = holder
        self._remove_member(group, member)
        return ErrorCode.NONE

    # ------------------------------------------------------------ administration

    def list_groups(self) -> Iterator[ListedGroup]:
        """List all groups."""
        for group in self.groups.values():
            yield ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type="classic",
            )

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """Describe one group; with the protocol and the members' metadata only if it is stable."""
        group = self.groups.get(group_id)
        if group is None:
            unknown = DescribedGroup(
                error_code=ErrorCode.NONE,
                group_id=group_id,
                group_state="Dead",
                protocol_type="",
                protocol_data="",
                members=(),
            )
            if version < 6:  # in these versions, Kafka describes it as dead, without an error
                return unknown
            return evolve(
                unknown,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} not found.",
            )
        is_stable = group.state is _STABLE
        return DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if is_stable else "",
            members=tuple(
                DescribedGroupMember(
                    member_id=m.member_id,
                    group_instance_id=m.instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    member_metadata=m.metadata(group.protocol) if is_stable else b"",
                    member_assignment=m.assignment,
                )
                for m in group.members.values()
            ),
        )

    def delete(self, group_id: str) -> DeletableGroupResult:
        """Delete an empty group."""
        group = self.groups.get(group_id)
        if group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif group.state is not _EMPTY:
            error = ErrorCode.NON_EMPTY_GROUP
        else:
            error = ErrorCode.NONE
            self._stop_timers(group)
            del self.groups[group_id]
        return DeletableGroupResult(group_id=group_id, error_code=error)

    def check_offset_delete(self, group_id: str) -> ErrorCode:
        """Return the error for deleting offsets of this group, or NONE. Offsets of topics that its
        members subscribe to are checked separately."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        may_delete = group.state is _EMPTY or group.protocol_type == "consumer"
        return ErrorCode.NONE if may_delete else ErrorCode.NON_EMPTY_GROUP

    def subscribes(self, group_id: str, topic: str) -> bool:
        """Whether a member of this group may subscribe to the topic."""
        group = self.groups[group_id]
        if group.subscribed is None:
            # A consumer whose subscription is not known may subscribe to any topic.
            return group.protocol_type == "consumer"
        return topic in group.subscribed

    def move(self, group_id: str, now: float) -> None:
        """Load the group on another node, from the state that the coordinator wrote to the log.

        Pending requests are answered NOT_COORDINATOR; a rebalance in progress is dropped, and every
        member gets a new session timeout.
        """
        group = self.groups[group_id]
        self._stop_timers(group)
        for member in group.members.values():
            member.answer_join(_join_error(ErrorCode.NOT_COORDINATOR, member.member_id))
            member.answer_sync(_sync_error(ErrorCode.NOT_COORDINATOR))
        loaded = self.groups[group_id] = group.as_written()
        for member in loaded.members.values():
            self._extend_session(loaded, member, now)

    def _stop_timers(self, group: ClassicGroup) -> None:
        self._timers.cancel(("join", group.group_id))
        self._timers.cancel(("sync", group.group_id))
        for member_id in (*group.members, *group.pending):
            self._timers.cancel(_session_key(group, member_id))


def _session_key(group: ClassicGroup, member_id: str) -> tuple[str, str, str]:
    return ("session", group.group_id, member_id)


def _update(
    member: Member,
    request: JoinGroupRequest,
    caller: Caller,
    reply: Callable[[JoinGroupResponse], None],
) -> None:
    """Store what the member sends in a JoinGroup, which stays pending."""
    # v0 has one timeout for both purposes.
    rebalance_ms = request.rebalance_timeout_ms if caller.version else request.session_timeout_ms
    member.session_timeout = request.session_timeout_ms / 1000
    member.rebalance_timeout = rebalance_ms / 1000
    member.protocols = request.protocols
    member.awaiting_join = reply


def _check_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    if instance_id is not None:
        holder = group.static_member(instance_id)
        if holder is not None and holder.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _check_generation(group: ClassicGroup, generation: int) -> ErrorCode:
    return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def _check_sync_in_group(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = _check_member(group, request.member_id, request.group_instance_id) or _check_generation(
        group, request.generation_id
    )
    if error:
        return error
    # Versions below 5 have neither field, and a first generation has no protocol yet: a missing
    # value matches.
    for theirs, ours in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol),
    ):
        if None not in (theirs, ours) and theirs != ours:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is _PREPARING else ErrorCode.NONE


def _join_response(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    is_leader = group.leader == member.member_id
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member.member_id,
        members=group.joined_members() if is_leader else (),
    )


def _join_error(error: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error, protocol_name=None, leader="", member_id=member_id, members=()
    )


def _sync_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def _sync_error(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error, assignment=b"")
