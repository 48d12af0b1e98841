"""The coordinator of consumer groups (KIP-848): heartbeats and time go in, responses come out.

`consumer_group` holds the group's state and decides which partitions a member gets; this module
decides what a request may do, and when a silent or slow member is removed. No I/O and no clock. The
caller has checked that this node coordinates the group.

A group does not change its type while it has members. Source: KIP-848 and Apache Kafka 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from kafkagroup.testing.embedded.timers import Timers
from kafkagroup.types import TopicPartition
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


class _Rejected(Exception):
    """The heartbeat is answered with an error."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code


class ConsumerCoordinator:
    """All consumer groups of the cluster."""

    def __init__(
        self,
        timers: Timers,
        settings: BrokerSettings,
        counts: Callable[[], Mapping[str, int]],
        ids: Callable[[], Mapping[str, UUID]],
    ) -> None:
        """`counts` returns the partition count of each topic, `ids` its id."""
        self._timers = timers
        self._settings = settings
        self._counts = counts
        self._ids = ids
        self.groups: dict[str, ConsumerGroup] = {}

    # ------------------------------------------------------------ heartbeats

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle a heartbeat: its epoch and fields make it a join, a renewal or a leave."""
        try:
            _check(request)
            if request.member_epoch < 0:
                return self._leave(request)
            return self._accept_heartbeat(request, caller)
        except _Rejected as rejection:
            return cast(
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
            group = self.groups[request.group_id] = ConsumerGroup(request.group_id)
        size = len(group.members)
        member = self._member(group, request, caller)
        if self._subscribe(member, request) or len(group.members) > size:
            group.epoch += 1
        if self._update_topics(group):
            group.epoch += 1  # a separate step, as in Kafka: a new group's first member has epoch 2
        self._assign_when_due(group, caller.now)
        listed = request.topic_partitions
        owned = None if listed is None else self._resolve(member, listed)
        changed = group.reconcile(member, owned)
        self._set_deadlines(group, member, caller.now)
        full = request.rebalance_timeout_ms != -1 and owned is not None
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=round(self._settings.group_consumer_heartbeat_interval * 1000),
            assignment=_assignment(member) if joins or full or changed else None,
        )

    def _member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, caller: Caller
    ) -> ConsumerMember:
        """Return the member that sent the heartbeat; if it joins, a new or a returning one."""
        joins, instance_id = request.member_epoch == 0, request.instance_id
        member = group.members.get(request.member_id)
        holder = None if instance_id is None else group.static_member(instance_id)
        if holder is not None and holder is not member:
            if not joins:
                raise _Rejected(ErrorCode.FENCED_INSTANCE_ID)
            if holder.epoch != AWAY:
                raise _Rejected(ErrorCode.UNRELEASED_INSTANCE_ID)
            self._cancel_deadlines(group, holder)
            return group.replace(holder, request.member_id)
        if member is None:
            if not joins:
                raise _Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
            if len(group.members) >= self._settings.group_max_size:
                raise _Rejected(ErrorCode.GROUP_MAX_SIZE_REACHED)
            member = ConsumerMember(request.member_id, instance_id, caller.client_id, caller.host)
            group.members[member.member_id] = member
        if not joins:
            self._check_epoch(member, request)
        return member

    def _check_epoch(self, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
        epoch, listed = request.member_epoch, request.topic_partitions
        if epoch == member.epoch:
            return
        # The response with the newer epoch may have been lost.
        is_repeat = epoch == member.previous_epoch and listed is not None
        if not is_repeat or not self._resolve(member, listed or ()) <= member.assigned.keys():
            raise _Rejected(ErrorCode.FENCED_MEMBER_EPOCH)

    def _subscribe(self, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
        """Store the member's fields. Returns whether they require a new assignment."""
        if request.rebalance_timeout_ms != -1:
            member.rebalance_timeout = request.rebalance_timeout_ms / 1000
        if request.rack_id is not None:
            member.rack = request.rack_id
        before = (member.subscribed, member.assignor)
        if request.server_assignor is not None:
            member.assignor = request.server_assignor
        if request.subscribed_topic_names is not None:
            member.topics = frozenset(request.subscribed_topic_names)
        if request.subscribed_topic_regex is not None:
            member.pattern = request.subscribed_topic_regex or None
        self._resolve_subscription(member)
        return (member.subscribed, member.assignor) != before

    def _resolve_subscription(self, member: ConsumerMember) -> None:
        pattern = member.pattern
        matching = {t for t in self._counts() if pattern is not None and re.fullmatch(pattern, t)}
        member.subscribed = member.topics | matching

    def _update_topics(self, group: ConsumerGroup) -> bool:
        """Whether topics were added, have grown, or were deleted or recreated."""
        for member in group.members.values():
            self._resolve_subscription(member)
        wanted = {topic for member in group.members.values() for topic in member.subscribed}
        ids, counts = self._ids(), self._counts()
        before = group.topics
        group.topics = {topic: (ids[topic], n) for topic, n in counts.items() if topic in wanted}
        return group.topics != before

    def _assign_when_due(self, group: ConsumerGroup, now: float) -> None:
        due = group.computed_at + self._settings.group_consumer_assignment_interval
        if group.epoch > group.target_epoch and now >= due:
            group.compute_target(now)

    # ------------------------------------------------------------ leaving and removal

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        group = self.groups.get(request.group_id)
        if group is None:
            raise _Rejected(ErrorCode.GROUP_ID_NOT_FOUND)
        member = group.members.get(request.member_id)
        if request.instance_id is not None:
            holder = group.static_member(request.instance_id)
            if holder is not None and holder is not member:
                raise _Rejected(ErrorCode.FENCED_INSTANCE_ID)
        if member is None:
            raise _Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if request.member_epoch == AWAY:
            member.epoch = AWAY
            self._timers.cancel(_revocation_key(group, member))
        else:
            self._remove(group, member)
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
        )

    def remove(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Remove members for an administrator, each with its own error."""
        group = self.groups[request.group_id]
        results = []
        for identity in request.members or (MemberIdentity(member_id=request.member_id),):
            instance_id = identity.group_instance_id
            if identity.member_id:
                member = group.members.get(identity.member_id)
            else:
                member = None if instance_id is None else group.static_member(instance_id)
            error = ErrorCode.NONE
            if member is None:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif instance_id is not None and member.instance_id != instance_id:
                error = ErrorCode.FENCED_INSTANCE_ID
            else:
                self._remove(group, member)
            results.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=instance_id, error_code=error
                )
            )
        # Before version 3, the one member's error is the response's error.
        error_code = ErrorCode.NONE if request.members else results[0].error_code
        return LeaveGroupResponse(
            error_code=error_code, members=tuple(results) if request.members else ()
        )

    def _set_deadlines(self, group: ConsumerGroup, member: ConsumerMember, now: float) -> None:
        """Set the deadlines that remove a member: its session, and its pending revocation."""

        def remove_member(_: float) -> None:
            self._remove(group, member)

        timeout = self._settings.group_consumer_session_timeout
        self._timers.schedule(_session_key(group, member), now + timeout, remove_member)
        if member.state is not MemberState.UNREVOKED:
            self._timers.cancel(_revocation_key(group, member))
        elif not self._timers.pending(_revocation_key(group, member)):
            self._timers.schedule(
                _revocation_key(group, member), now + member.rebalance_timeout, remove_member
            )

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._cancel_deadlines(group, member)
        group.remove(member)

    def _cancel_deadlines(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._timers.cancel(_session_key(group, member))
        self._timers.cancel(_revocation_key(group, member))

    # ------------------------------------------------------------ offsets

    def check_offsets(
        self, group_id: str, member_id: str, epoch: int, partition: TopicPartition | None
    ) -> ErrorCode:
        """Return the error for committing this partition's offset, or NONE; for None, the error
        for reading committed offsets."""
        group = self.groups[group_id]
        if epoch < 0 and not member_id and (partition is None or not group.members):
            return ErrorCode.NONE
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        # KIP-1251: an older epoch is valid if the member has owned the partition since then.
        owned_since = None
        if partition is not None and (topic_id := self._ids().get(partition.topic)) is not None:
            owned_since = member.assigned.get(AssignedPartition(*partition, topic_id))
        is_valid = owned_since is not None and owned_since <= epoch < member.epoch
        return ErrorCode.NONE if is_valid else ErrorCode.STALE_MEMBER_EPOCH

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
        members = self.groups[group_id].members.values()
        return any(topic in member.subscribed for member in members)

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
            member_type=1,
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
        """Load the group on another node: all state is in the log, and sessions restart."""
        group = self.groups[group_id]
        for member in group.members.values():
            self._set_deadlines(group, member, now)

    # ------------------------------------------------------------ names and ids

    def _resolve(
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


def _check(request: ConsumerGroupHeartbeatRequest) -> None:
    """Raise _Refused if the request is invalid by itself."""
    epoch = request.member_epoch
    joins = epoch == 0
    bad = (
        not request.group_id
        or not request.member_id
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
    if bad:
        raise _Rejected(ErrorCode.INVALID_REQUEST)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise _Rejected(ErrorCode.UNSUPPORTED_ASSIGNOR)
    try:
        re.compile(request.subscribed_topic_regex or "")
    except re.error:
        raise _Rejected(ErrorCode.INVALID_REGULAR_EXPRESSION) from None


def _session_key(group: ConsumerGroup, member: ConsumerMember) -> tuple[str, str, str]:
    return ("consumer session", group.group_id, member.member_id)


def _revocation_key(group: ConsumerGroup, member: ConsumerMember) -> tuple[str, str, str]:
    return ("consumer revocation", group.group_id, member.member_id)
