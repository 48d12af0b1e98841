"""The coordinator of consumer groups (KIP-848): heartbeats and time go in, responses come out.

`consumer_group` holds the group's state and decides which partitions a member gets; this module
decides what a request may do, and when a member is removed that sends no heartbeats or does not
revoke in time. No I/O and no clock. The caller has checked that this node coordinates the group.

A group does not change its type while it has members. Source: KIP-848 and Apache Kafka 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import cast
from uuid import UUID

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.consumer_group import (
    ASSIGNORS,
    AWAY,
    AssignedPartition,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.refusals import describe_with_error, refuse
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.timers import Timers, elapsed_ms
from kafkagroup.wire.messages import consumer_describe
from kafkagroup.wire.messages.consumer_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kafkagroup.wire.messages.group import (
    DeletableGroupResult,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
)

__all__ = ["ConsumerCoordinator"]

_PATTERN_MIN_INTERVAL_MS = 10_000
"""Milliseconds after which a group's regular expressions may be resolved again."""

_PATTERN_MAX_INTERVAL_MS = 600_000
"""Milliseconds after which the regular expressions are resolved again, even if no topic was created
(group.consumer.regex.refresh.interval.ms)."""


class _Rejected(Exception):
    """The heartbeat is answered with an error."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code


class _Change(Enum):
    """What a heartbeat does to the member's subscription."""

    NONE = "none"
    PENDING = "pending"
    """The heartbeat replaces the regular expression by one that is not resolved yet."""
    EFFECTIVE = "effective"
    """It changes the subscribed topics, so the group must compute a new target."""


class ConsumerCoordinator:
    """All consumer groups of the cluster."""

    def __init__(
        self,
        timers: Timers,
        settings: BrokerSettings,
        counts: Callable[[], Mapping[str, int]],
        ids: Callable[[], Mapping[str, UUID]],
        topic_creations: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        """`counts` returns the partition count of each topic; `ids`, the id of each topic;
        `topic_creations`, how many topics have been created, also those that were deleted since;
        `new_id`, a random member id."""
        self._new_id = new_id
        self._timers = timers
        self._settings = settings
        self._counts = counts
        self._ids = ids
        self._topic_creations = topic_creations
        self.groups: dict[str, ConsumerGroup] = {}

    # ------------------------------------------------------------ heartbeats

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle a heartbeat: its epoch and fields make it a join, a renewal or a leave."""
        try:
            _check(request, caller.version)
            if request.member_epoch < 0:
                return self._leave(request)
            return self._accept_heartbeat(request, caller)
        except _Rejected as rejection:
            return cast(  # `refuse` returns Any: the type depends on the request
                ConsumerGroupHeartbeatResponse, refuse(request, rejection.code, caller.version)
            )

    def _accept_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller
    ) -> ConsumerGroupHeartbeatResponse:
        joins = request.member_epoch == 0
        group = self.groups.get(request.group_id)
        if group is None:
            if not joins:
                raise _Rejected(ErrorCode.GROUP_ID_NOT_FOUND)
            group = ConsumerGroup(request.group_id)
        member = self._member(group, request, caller)
        # The group and the member are stored only now: a rejected heartbeat changes nothing.
        self.groups[request.group_id] = group
        if member.member_id not in group.members:
            group.members[member.member_id] = member
        assigned_before, state_before = dict(member.assigned), _assignment_state(member)
        must_resolve = self._must_resolve(group, member, request, caller.now)
        image = self._image()
        # Before `_subscribe`: the topics to compare are those of the subscriptions so far.
        has_changed_topics = group.has_changed_topics(image)
        change = self._subscribe(group, member, request, caller)
        must_bump = change is _Change.EFFECTIVE
        if must_bump or has_changed_topics:
            must_bump |= group.update_topics(image)
            group.image = image
        if must_bump:
            group.epoch += 1
        self._assign_when_due(group, caller.now)
        listed = request.topic_partitions
        owned = None if listed is None else self._owned_partitions(member, listed)
        subscribed = group.subscribed(member)
        group.reconcile(
            member,
            owned,
            {topic_id for topic, (topic_id, _) in image.items() if topic in subscribed},
            is_subscription_new=change is not _Change.NONE,
        )
        group.note_instance(member)
        self._set_session_deadline(group, member, caller.now)
        # A heartbeat that changes nothing must not extend the deadline of the revocation.
        if _assignment_state(member) != state_before:
            self._set_revocation_deadline(group, member, caller.now)
        # A heartbeat with all fields gets the assignment, changed or not.
        is_full = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names, request.subscribed_topic_regex) != (None, None)
            and owned is not None
        )
        is_changed = member.assigned != assigned_before
        response = ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=round(self._settings.group_consumer_heartbeat_interval * 1000),
            assignment=_assignment(member) if joins or is_full or is_changed else None,
        )
        if must_resolve:
            # Kafka resolves regular expressions in the background, after the response.
            self._resolve_patterns(group, caller.now)
        return response

    def _member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, caller: Caller
    ) -> ConsumerMember:
        """Return the member that sent the heartbeat; if it joins, a new or a returning one.

        Changes the group only if the heartbeat is accepted.
        """
        joins, instance_id = request.member_epoch == 0, request.instance_id
        member = group.members.get(request.member_id)
        if len(group.members) >= self._settings.group_max_size and member is None:
            raise _Rejected(ErrorCode.GROUP_MAX_SIZE_REACHED)
        # Before version 1, the coordinator may choose the id. As in Kafka, none is generated if the
        # group is full: each one changes the random ids that follow.
        member_id = request.member_id or self._new_id()
        holder = None
        if instance_id is not None:
            holder = group.static_member(instance_id)
            if holder is None and (not joins or instance_id in group.static_ids):
                raise _Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder is not None and joins and holder.epoch != AWAY:
                raise _Rejected(ErrorCode.UNRELEASED_INSTANCE_ID)
            if holder is not None and not joins and holder is not member:
                raise _Rejected(ErrorCode.FENCED_INSTANCE_ID)
        elif member is None and not joins:
            raise _Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if member is not None and not joins:
            self._check_epoch(member, request)
        self._check_pattern(holder or member, request)
        if holder is not None and joins:
            self._cancel_deadlines(group, holder)
            member = group.replace(holder, member_id)
        elif member is None:
            member = ConsumerMember(member_id, instance_id, caller.client_id, caller.host)
        return member

    def _check_epoch(self, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
        epoch, listed = request.member_epoch, request.topic_partitions
        if epoch == member.epoch:
            return
        # The response with the newer epoch may have been lost.
        is_repeat = epoch < member.epoch and epoch == member.previous_epoch and listed is not None
        if (
            not is_repeat
            or not self._owned_partitions(member, listed or ()) <= member.assigned.keys()
        ):
            raise _Rejected(ErrorCode.FENCED_MEMBER_EPOCH)

    def _check_pattern(
        self, member: ConsumerMember | None, request: ConsumerGroupHeartbeatRequest
    ) -> None:
        pattern = request.subscribed_topic_regex
        if pattern and (member is None or member.pattern != pattern):
            try:
                re.compile(pattern)
            except re.error:
                raise _Rejected(ErrorCode.INVALID_REGULAR_EXPRESSION) from None

    def _subscribe(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
    ) -> _Change:
        """Store the fields of the request in the member. Returns what they change in its
        subscription."""
        member.client_id, member.client_host = caller.client_id, caller.host
        if request.instance_id is not None:
            member.instance_id = request.instance_id
        if request.rebalance_timeout_ms != -1:
            member.rebalance_timeout = request.rebalance_timeout_ms / 1000
        if request.rack_id is not None:
            member.rack = request.rack_id
        if request.server_assignor is not None:
            member.assignor = request.server_assignor
        change = _Change.NONE
        pattern = request.subscribed_topic_regex
        if pattern is not None and pattern != member.pattern:
            before, member.pattern = member.pattern, pattern
            if not group.subscriber_count(before):
                group.resolved.pop(before, None)
            # A new pattern takes effect when it is resolved.
            is_effective = pattern in group.resolved or not pattern
            change = _Change.EFFECTIVE if is_effective else _Change.PENDING
        names = request.subscribed_topic_names
        if names is not None and frozenset(names) != member.topics:
            member.topics, change = frozenset(names), _Change.EFFECTIVE
        return change

    def _must_resolve(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        request: ConsumerGroupHeartbeatRequest,
        now: float,
    ) -> bool:
        """Whether to resolve the patterns of the group's members, with that of the request in place
        of the member's."""
        before = {m.pattern for m in group.members.values()} - {""}
        after = {m.pattern for m in group.members.values() if m is not member} - {""}
        pattern = request.subscribed_topic_regex
        if pattern is None:
            pattern = member.pattern
        is_new = bool(pattern) and pattern not in before
        after |= {pattern} - {""}
        if not after:
            return False
        resolved_at = group.resolved_at if group.resolved else float("-inf")
        elapsed = elapsed_ms(resolved_at, now)
        if elapsed <= _PATTERN_MIN_INTERVAL_MS:
            return False
        return (
            is_new
            or len(after) != len(group.resolved)
            or group.resolved_creations < self._topic_creations()
            or elapsed > _PATTERN_MAX_INTERVAL_MS
        )

    def _resolve_patterns(self, group: ConsumerGroup, now: float) -> None:
        image = self._image()
        before = group.resolved
        patterns = {m.pattern for m in group.members.values()} - {""}
        group.resolved = {
            p: frozenset(topic for topic in image if re.fullmatch(p, topic)) for p in patterns
        }
        group.resolved_at = now
        group.resolved_creations = self._topic_creations()
        none: frozenset[str] = frozenset()
        changed = any(before.get(p, none) != group.resolved[p] for p in patterns)
        if group.update_topics(image) or changed:
            group.epoch += 1
            group.image = image

    def _image(self) -> dict[str, tuple[UUID, int]]:
        """Return the id and the partition count of each topic."""
        ids = self._ids()
        return {topic: (ids[topic], count) for topic, count in self._counts().items()}

    def _assign_when_due(self, group: ConsumerGroup, now: float) -> None:
        interval_ms = round(self._settings.group_consumer_assignment_interval * 1000)
        if group.epoch > group.target_epoch and elapsed_ms(group.computed_at, now) >= interval_ms:
            group.compute_target(now)

    # ------------------------------------------------------------ leaving and removal

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """Handle a heartbeat by which a member leaves; with the epoch `AWAY`, temporarily."""
        group = self.groups.get(request.group_id)
        if group is None:
            raise _Rejected(ErrorCode.GROUP_ID_NOT_FOUND)
        member = group.members.get(request.member_id)
        if request.instance_id is not None:
            holder = group.static_member(request.instance_id)
            if holder is not None and holder is not member:
                raise _Rejected(ErrorCode.FENCED_INSTANCE_ID)
            member = holder
        if member is None:
            raise _Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if request.member_epoch == AWAY:
            member.epoch = AWAY
            member.revoking = {}
            # The process that returns may commit in any epoch (KIP-1251).
            member.assigned = dict.fromkeys(member.assigned, 0)
        else:
            self._remove(group, member)
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
        )

    def check_classic(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error for a SyncGroup or Heartbeat, which members of this group do not use."""
        holder = None
        if instance_id is not None:
            holder = self.groups[group_id].static_member(instance_id)
        if holder is not None and holder.member_id != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.UNKNOWN_MEMBER_ID

    def remove_members(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Remove members for an administrator, each with its own error."""
        group = self.groups[request.group_id]
        results = []
        leaving: dict[str, ConsumerMember] = {}
        for identity in request.members or (MemberIdentity(member_id=request.member_id),):
            member_id, instance_id = identity.member_id, identity.group_instance_id
            error = ErrorCode.NONE
            if instance_id is None:
                member = group.members.get(member_id)
            else:
                # An administrator may remove a static member by its instance id alone.
                member = group.static_member(instance_id)
            if member is None:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif instance_id is not None and member_id not in ("", member.member_id):
                error = ErrorCode.FENCED_INSTANCE_ID
            else:
                leaving[member.member_id] = member
            results.append(
                MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)
            )
        if leaving:
            # All leave in one epoch. The results above do not see each other's removals.
            epoch = group.epoch + 1
            for member in leaving.values():
                self._remove(group, member)
            group.epoch = epoch
        # Before version 3, the one member's error is the response's error.
        error_code = ErrorCode.NONE if request.members else results[0].error_code
        return LeaveGroupResponse(
            error_code=error_code, members=tuple(results) if request.members else ()
        )

    def _set_session_deadline(
        self, group: ConsumerGroup, member: ConsumerMember, now: float
    ) -> None:
        def remove_member(_: float) -> None:
            self._remove(group, member)

        timeout = self._settings.group_consumer_session_timeout
        self._timers.schedule(_session_key(group, member), now + timeout, remove_member)

    def _set_revocation_deadline(
        self, group: ConsumerGroup, member: ConsumerMember, now: float
    ) -> None:
        """Set the deadline by which the member must have revoked; cancel it if the member has
        nothing to revoke."""
        epoch = member.epoch

        def remove_member(_: float) -> None:
            # In another epoch, the member has revoked, or has left temporarily.
            if member.epoch == epoch:
                self._remove(group, member)

        key = _revocation_key(group, member)
        if member.state is MemberState.UNREVOKED:
            self._timers.schedule(key, now + member.rebalance_timeout, remove_member)
        else:
            self._timers.cancel(key)

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._cancel_deadlines(group, member)
        group.remove(member, self._image())

    def _cancel_deadlines(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._timers.cancel(_session_key(group, member))
        self._timers.cancel(_revocation_key(group, member))

    # ------------------------------------------------------------ offsets

    def check_commit(
        self, group_id: str, member_id: str, epoch: int, version: int
    ) -> tuple[ErrorCode, Callable[[UUID, int], bool]]:
        """Return the error for a commit, or NONE; and a function of a topic id and a partition
        number that returns whether the member may commit that partition's offset."""

        def always(_: UUID, __: int) -> bool:
            return True

        group = self.groups[group_id]
        if epoch < 0 and not group.members:
            return ErrorCode.NONE, always
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, always
        if version < 9:
            # These versions of OffsetCommit have no error code for a stale epoch.
            return ErrorCode.UNSUPPORTED_VERSION, always
        if epoch == member.epoch:
            return ErrorCode.NONE, always
        if epoch > member.epoch:
            return ErrorCode.STALE_MEMBER_EPOCH, always
        # KIP-1251: an older epoch is valid if the member has owned the partition since then.
        since = {
            (partition.topic_id, partition.partition): assigned_in
            for partition, assigned_in in (*member.revoking.items(), *member.assigned.items())
        }

        def has_owned_since(topic_id: UUID, partition: int) -> bool:
            return since.get((topic_id, partition), epoch + 1) <= epoch

        return ErrorCode.NONE, has_owned_since

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Return the error for reading committed offsets, or NONE."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.groups[group_id].members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    # ------------------------------------------------------------ administration

    def list_groups(self) -> Iterator[ListedGroup]:
        """List all groups."""
        for group in self.groups.values():
            yield ListedGroup(
                group_id=group.group_id,
                protocol_type="consumer",
                group_state=group.state,
                group_type="consumer",
            )

    def delete(self, group_id: str) -> DeletableGroupResult:
        """Delete an empty group."""
        error = ErrorCode.NON_EMPTY_GROUP if self.groups[group_id].members else ErrorCode.NONE
        if not error:
            del self.groups[group_id]
        return DeletableGroupResult(group_id=group_id, error_code=error)

    def subscribes(self, group_id: str, topic: str) -> bool:
        """Whether a member of the group subscribes to the topic."""
        group = self.groups[group_id]
        return any(topic in group.subscribed(member) for member in group.members.values())

    def describe(self, group_id: str) -> consumer_describe.DescribedGroup:
        """Describe one group, with its members' current and target assignments."""
        group = self.groups.get(group_id)
        if group is None:
            return describe_with_error(
                group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
            )
        return consumer_describe.DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.preferred_assignor(),
            members=tuple(self._describe_member(group, m) for m in group.members.values()),
        )

    def _describe_member(
        self, group: ConsumerGroup, member: ConsumerMember
    ) -> consumer_describe.Member:
        return consumer_describe.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(member.topics)),
            subscribed_topic_regex=member.pattern,
            assignment=self._describe_assignment(member.held),
            target_assignment=self._describe_assignment(group.target.get(member.member_id, ())),
            member_type=1,  # a member under KIP-848; 0 is a classic one
        )

    def _describe_assignment(
        self, partitions: Iterable[AssignedPartition]
    ) -> consumer_describe.Assignment:
        ids = self._ids()
        return consumer_describe.Assignment(
            topic_partitions=tuple(
                consumer_describe.TopicPartitions(topic_id=i, topic_name=name, partitions=numbers)
                for name, i, numbers in _by_topic(partitions)
                if ids.get(name) == i
            )
        )

    def move(self, group_id: str, now: float) -> None:
        """Load the group on another node. All state is in the log; the deadlines of sessions and
        revocations start again."""
        group = self.groups[group_id]
        for member in group.members.values():
            self._set_session_deadline(group, member, now)
            self._set_revocation_deadline(group, member, now)

    # ------------------------------------------------------------ names and ids

    def _owned_partitions(
        self, member: ConsumerMember, listed: Iterable[TopicPartitions]
    ) -> set[AssignedPartition]:
        """Return the partitions that a member reports as owned, also those of deleted topics."""
        names = {topic_id: name for name, topic_id in self._ids().items()}
        names |= {p.topic_id: p.topic for p in member.held}
        return {
            AssignedPartition(names.get(topic.topic_id, ""), partition, topic.topic_id)
            for topic in listed
            for partition in topic.partitions
        }


def _assignment(member: ConsumerMember) -> Assignment:
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=numbers)
            for _, topic_id, numbers in _by_topic(member.assigned)
        )
    )


def _by_topic(partitions: Iterable[AssignedPartition]) -> list[tuple[str, UUID, tuple[int, ...]]]:
    """Return the name, the id and the partition numbers of each topic."""
    grouped: dict[tuple[str, UUID], list[int]] = {}
    for topic, partition, topic_id in sorted(partitions):
        grouped.setdefault((topic, topic_id), []).append(partition)
    return [(*topic, tuple(numbers)) for topic, numbers in grouped.items()]


def _check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Raise _Rejected if the request is invalid by itself."""
    epoch = request.member_epoch
    joins = epoch == 0
    # A member leaves with the epoch -1.
    is_invalid = (
        not request.group_id
        or (not request.member_id and (version >= 1 or epoch > 0 or epoch == -1))
        or "" in (request.instance_id, request.rack_id)
        or epoch < AWAY
        or (epoch == AWAY and request.instance_id is None)
        or (joins and request.rebalance_timeout_ms == -1)
        or (joins and request.topic_partitions != ())
        or (
            joins
            and request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None
        )
    )
    if is_invalid:
        raise _Rejected(ErrorCode.INVALID_REQUEST)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise _Rejected(ErrorCode.UNSUPPORTED_ASSIGNOR)


def _assignment_state(member: ConsumerMember) -> tuple[object, ...]:
    """Return the fields that reconciliation changes."""
    return (
        member.state,
        member.epoch,
        member.previous_epoch,
        dict(member.assigned),
        dict(member.revoking),
    )


def _session_key(group: ConsumerGroup, member: ConsumerMember) -> tuple[str, str, str]:
    return ("consumer session", group.group_id, member.member_id)


def _revocation_key(group: ConsumerGroup, member: ConsumerMember) -> tuple[str, str, str]:
    return ("consumer revocation", group.group_id, member.member_id)
