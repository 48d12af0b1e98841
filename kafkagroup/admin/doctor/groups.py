"""Checks one group: its coordinator, its state, its offsets, and whether this client may join."""

from __future__ import annotations

from collections.abc import Sequence

from kafkagroup.admin import describing, offsets
from kafkagroup.admin.doctor.addresses import name_of
from kafkagroup.admin.doctor.findings import Finding, denied, failed, not_checked, ok, warning
from kafkagroup.admin.doctor.requesting import request_from
from kafkagroup.errors import (
    AuthorizationError,
    BrokerError,
    ErrorCode,
    IllegalStateError,
    KafkaGroupError,
    broker_error,
)
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.wire.messages.group import HeartbeatRequest

__all__ = ["examine_group"]

_PENDING_TRANSACTION = (
    "a transaction that commits offsets of the group is open: see that its producer is alive, and"
    " whether it hangs, by Admin.open_transactions() of __consumer_offsets"
)
"""The advice on offsets that stay pending for the whole request timeout (KIP-447)."""

_UNUSED_MEMBER_ID = "kafkagroup-doctor"
"""A member id that no coordinator has given to any member."""


async def examine_group(
    servers: Sequence[Address], options: ClientOptions, group_id: str
) -> list[Finding]:
    """Check a group step by step; stop if its coordinator is not found, or fails to describe
    it. If there is no such group, the checks go on: a member may create it."""
    subject = group_id

    def failed_or_denied(check: str, error: KafkaGroupError, advice: str = "") -> Finding:
        if isinstance(error, AuthorizationError):
            return denied(check, subject, error, f"--group {group_id}", options)
        return failed(
            check, subject, error, advice or "try again; then look into the coordinator's log"
        )

    try:
        node = await request_from(servers, options, lambda c: c.coordinators.find(group_id))
    except KafkaGroupError as error:
        advice = "see the offsets topic; a cluster that has just started needs some seconds"
        return [failed_or_denied("coordinator", error, advice)]
    found = [
        ok("coordinator", subject, f"broker {node.node_id} at {name_of((node.host, node.port))}")
    ]
    try:
        group = await request_from(servers, options, lambda c: describing.describe(c, group_id))
    except BrokerError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            return [*found, failed_or_denied("group", error)]
        found.append(
            warning(
                "group",
                subject,
                "there is no such group",
                "check its name: Admin.list_groups() lists them; the first member that joins"
                " creates a new group",
            )
        )
    except IllegalStateError as error:  # a group of another type, such as Kafka Streams'
        found.append(not_checked("group", subject, str(error)))
    except KafkaGroupError as error:
        return [*found, failed_or_denied("group", error)]
    else:
        members = f"{len(group.members)} member{'' if len(group.members) == 1 else 's'}"
        found.append(ok("group", subject, f"{group.type}, {group.state}, {members}"))
    try:
        committed = await request_from(servers, options, lambda c: offsets.committed(c, group_id))
    except KafkaGroupError as error:
        pending = getattr(error, "code", 0) == ErrorCode.UNSTABLE_OFFSET_COMMIT
        advice = _PENDING_TRANSACTION if pending else ""
        found.append(failed_or_denied("committed offsets", error, advice))
    else:
        found.append(ok("committed offsets", subject, f"can be read; there are {len(committed)}"))
    try:
        await request_from(
            servers, options, lambda cluster: _check_may_join(cluster, node, group_id)
        )
    except KafkaGroupError as error:
        found.append(failed_or_denied("joining", error))
    else:
        found.append(ok("joining", subject, "is allowed"))
    return found


async def _check_may_join(cluster: Cluster, node: Node, group_id: str) -> None:
    """Check whether this client may join and commit, without joining. To the heartbeat of a member
    that does not exist, a coordinator responds UNKNOWN_MEMBER_ID if it authorizes the client.
    Raises: AuthorizationError if not, and what a request raises."""
    request = HeartbeatRequest(group_id=group_id, generation_id=-1, member_id=_UNUSED_MEMBER_ID)
    response = await cluster.broker(node).request(request)
    if response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        raise broker_error(response.error_code, operation="READ", group=group_id)
