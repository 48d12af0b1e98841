"""The requests of a classic member, made from its state."""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup.member.classic_state import Member
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

__all__ = ["heartbeat_request", "join_request", "leave_request", "sync_request"]

_MAX_REASON = 255
"""The most characters of a reason, as in Java's clients (KIP-800)."""


def join_request(member: Member) -> JoinGroupRequest:
    """Return the request, with every supported protocol: the coordinator picks one that all members
    support."""
    config = member.config
    return JoinGroupRequest(
        group_id=config.group_id,
        session_timeout_ms=round(config.session_timeout * 1000),
        rebalance_timeout_ms=round(config.rebalance_timeout * 1000),
        member_id=member.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=config.protocol_type,
        protocols=tuple(
            JoinGroupRequestProtocol(name=name, metadata=metadata)
            for name, metadata in member.protocols
        ),
        reason=member.reason[:_MAX_REASON] or None,
    )


def sync_request(member: Member, assignments: Mapping[str, bytes]) -> SyncGroupRequest:
    """Return the request: with all assignments from the leader, with none from other members."""
    config = member.config
    return SyncGroupRequest(
        group_id=config.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=config.protocol_type,
        protocol_name=member.protocol_name,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in sorted(assignments.items())
        ),
    )


def heartbeat_request(member: Member) -> HeartbeatRequest:
    """Return the heartbeat of this member and generation."""
    return HeartbeatRequest(
        group_id=member.config.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.config.group_instance_id,
    )


def leave_request(member: Member, reason: str) -> LeaveGroupRequest:
    """Return the request to leave, so that the group does not wait for the session to end."""
    identity = MemberIdentity(
        member_id=member.member_id,
        # KIP-345: with both ids the request is refused if another process has taken the place.
        group_instance_id=member.config.group_instance_id,
        reason=reason[:_MAX_REASON] or None,
    )
    return LeaveGroupRequest(group_id=member.config.group_id, members=(identity,))
