"""Removes members from a group, and deletes groups."""

from __future__ import annotations

from kafkagroup.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
    broker_error,
)
from kafkagroup.transport.cluster import Cluster
from kafkagroup.wire.messages.group import (
    DeleteGroupsRequest,
    LeaveGroupRequest,
    MemberIdentity,
)

__all__ = ["delete_group", "remove_member"]


async def remove_member(cluster: Cluster, group_id: str, member: MemberIdentity) -> None:
    """Remove a member from a group.

    If the response to an earlier call was lost, UNKNOWN_MEMBER_ID may mean that it removed it.
    Raises: BrokerError; UnsupportedVersionError for an instance id where the broker is too old.
    """
    broker = cluster.broker(await cluster.find_coordinator(group_id))
    request = LeaveGroupRequest(group_id=group_id, members=(member,))
    try:
        answer = await broker.request(request)
    except LocalProtocolError:
        if member.group_instance_id is None:
            raise
        # KIP-345: instance ids need version 3.
        raise UnsupportedVersionError(
            f"removing {member.group_instance_id!r} of group {group_id!r}: the coordinator's broker"
            " is older than Kafka 2.4; remove the member by its member id, or upgrade the broker"
        ) from None
    for code in (answer.error_code, *(one.error_code for one in answer.members)):
        if code:
            who = member.group_instance_id or member.member_id
            what = f"removing member {who!r} of group {group_id!r}"
            raise broker_error(code, what, operation="READ", group=group_id)


async def delete_group(cluster: Cluster, group_id: str) -> None:
    """Delete a group without members. Raises: BrokerError."""
    broker = cluster.broker(await cluster.find_coordinator(group_id))
    answer = await broker.request(DeleteGroupsRequest(groups_names=(group_id,)))
    for result in answer.results:
        if result.group_id == group_id:
            if result.error_code:
                what = f"deleting group {group_id!r}"
                raise broker_error(result.error_code, what, operation="DELETE", group=group_id)
            return
    raise RemoteProtocolError(f"the coordinator did not answer for group {group_id!r}")
