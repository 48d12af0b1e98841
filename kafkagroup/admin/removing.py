"""Removes members from a group, and deletes groups.

If the response to an attempt is lost, and a later attempt finds no such member or group, the member
or group counts as removed.
"""

from __future__ import annotations

from kafkagroup.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
    broker_error,
)
from kafkagroup.runtime.client.calls import ChangeAttempts
from kafkagroup.transport.cluster import Cluster
from kafkagroup.wire.messages.group import (
    DeleteGroupsRequest,
    LeaveGroupRequest,
    MemberIdentity,
)

__all__ = ["delete_group", "remove_member"]


async def remove_member(
    cluster: Cluster, group_id: str, member: MemberIdentity, attempts: ChangeAttempts
) -> None:
    """Remove a member from a group.

    Raises: BrokerError; TransportError; UnsupportedVersionError for an instance id where the broker
    is too old.
    """
    request = LeaveGroupRequest(group_id=group_id, members=(member,))
    async with cluster.coordinator(group_id) as broker:
        try:
            response = await attempts.send(broker, request)
        except LocalProtocolError:
            if member.group_instance_id is None:
                raise
            # KIP-345: instance ids need version 3.
            raise UnsupportedVersionError(
                f"removing {member.group_instance_id!r} of group {group_id!r}: the coordinator's"
                " broker is older than Kafka 2.4; remove the member by its member id, or upgrade"
                " the broker"
            ) from None
        for code in (response.error_code, *(one.error_code for one in response.members)):
            if code and not (attempts.is_lost and code == ErrorCode.UNKNOWN_MEMBER_ID):
                who = member.group_instance_id or member.member_id
                what = f"removing member {who!r} of group {group_id!r}"
                raise broker_error(code, what, operation="READ", group=group_id)


async def delete_group(cluster: Cluster, group_id: str, attempts: ChangeAttempts) -> None:
    """Delete a group without members. Raises: BrokerError; RemoteProtocolError; TransportError."""
    request = DeleteGroupsRequest(groups_names=(group_id,))
    async with cluster.coordinator(group_id) as broker:
        response = await attempts.send(broker, request)
        for result in response.results:
            if result.group_id == group_id:
                is_gone = result.error_code == ErrorCode.GROUP_ID_NOT_FOUND
                if result.error_code and not (attempts.is_lost and is_gone):
                    what = f"deleting group {group_id!r}"
                    if result.error_code == ErrorCode.NON_EMPTY_GROUP:
                        what += ": it has members; stop them first"
                    raise broker_error(result.error_code, what, operation="DELETE", group=group_id)
                return
    raise RemoteProtocolError(f"the coordinator did not answer for group {group_id!r}")
