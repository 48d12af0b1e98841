"""Lists and describes groups.

Each type of group has an API of its own, to which a coordinator responds GROUP_ID_NOT_FOUND for
groups of other types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kafkagroup.admin.listing import request_list
from kafkagroup.admin.values import (
    GroupDescription,
    GroupListing,
    GroupState,
    GroupType,
    MemberDescription,
)
from kafkagroup.errors import (
    BrokerError,
    DecodeError,
    ErrorCode,
    IllegalStateError,
    RemoteProtocolError,
    UnsupportedVersionError,
    broker_error,
)
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import Subscription, decode_assignment, decode_subscription
from kafkagroup.wire.error_codes import NO_SUCH_GROUP
from kafkagroup.wire.messages import consumer_describe, share_describe
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest
from kafkagroup.wire.messages.group import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafkagroup.wire.messages.share_describe import ShareGroupDescribeRequest

__all__ = ["CONSUMER", "describe", "list_groups"]

G = TypeVar("G", DescribedGroup, consumer_describe.DescribedGroup, share_describe.DescribedGroup)

CONSUMER = "consumer"
"""The protocol type whose members exchange subscriptions and assignments."""

_DEAD = "Dead"
"""The state of a missing group in DescribeGroups 0 to 5; version 6 has an error code."""

_DESCRIBABLE = (GroupType.CLASSIC, GroupType.CONSUMER, GroupType.SHARE)


async def list_groups(
    broker: BrokerClient, node: Node, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[GroupListing]:
    """Return the groups that one broker, `node`, coordinates, with one of the `states` and one of
    the `types`; if either is empty, it filters nothing. Raises: BrokerError;
    UnsupportedVersionError when the broker cannot filter; TransportError."""
    request = ListGroupsRequest(states_filter=tuple(states), types_filter=tuple(types))
    # Filters by state need Kafka 2.6 (KIP-518), filters by type 3.8 (KIP-848).
    response = await request_list(broker, request, "listing groups")
    return [
        GroupListing(
            group_id=group.group_id,
            type=GroupType(group.group_type),
            state=GroupState(group.group_state),
            protocol_type=group.protocol_type,
            coordinator=node,
        )
        for group in response.groups
    ]


async def describe(cluster: Cluster, group_id: str) -> GroupDescription:
    """Return the description of a group. Raises: BrokerError; IllegalStateError for a type that
    cannot be described here; DecodeError; RemoteProtocolError; TransportError."""
    async with cluster.coordinator(group_id) as broker:
        node = Node(broker.node_id, broker.host, broker.port)
        return await _describe(broker, node, group_id)


async def _describe(broker: BrokerClient, node: Node, group_id: str) -> GroupDescription:
    try:
        return await _describe_classic(broker, node, group_id)
    except BrokerError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        absent = error
    for describe_type in (_describe_consumer, _describe_share):
        try:
            return await describe_type(broker, node, group_id)
        except UnsupportedVersionError:
            continue  # KIP-848 groups need Kafka 4.0, share groups 4.1
        except BrokerError as error:
            if error.code not in NO_SUCH_GROUP:
                raise
    # A group of another type, such as Kafka Streams', is listed but not described.
    for listed in await list_groups(broker, node):
        if listed.group_id == group_id and listed.type not in _DESCRIBABLE:
            raise IllegalStateError(
                f"group {group_id!r} is of type {listed.type.value!r}, in state"
                f" {listed.state.value}; only classic, consumer and share groups can be"
                " described"
            )
    raise absent


# ---------------------------------------------------------------- classic groups


async def _describe_classic(broker: BrokerClient, node: Node, group_id: str) -> GroupDescription:
    response = await broker.request(DescribeGroupsRequest(groups=(group_id,)))
    group = _group_of(response.groups, group_id)
    code = group.error_code
    if code == ErrorCode.NONE and group.group_state == _DEAD:
        # Brokers with version 6 respond with this code themselves.
        code = ErrorCode.GROUP_ID_NOT_FOUND
    _raise_if_error(code, group.error_message, group_id)
    return GroupDescription(
        group_id=group_id,
        state=GroupState(group.group_state),
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_data,
        members=tuple(
            _classic_member(group, member)
            for member in sorted(group.members, key=lambda member: member.member_id)
        ),
        coordinator=node,
    )


def _classic_member(group: DescribedGroup, member: DescribedGroupMember) -> MemberDescription:
    metadata, assignment = bytes(member.member_metadata), bytes(member.member_assignment)
    subscription = partitions = None
    # In other states the coordinator does not send the members' metadata.
    if group.protocol_type == CONSUMER and group.group_state == GroupState.STABLE:
        try:
            subscription = decode_subscription(metadata)
            partitions = decode_assignment(assignment)
        except DecodeError as error:
            raise DecodeError(
                f"group {group.group_id!r}, member {member.member_id!r}: {error}"
            ) from error
    return MemberDescription(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        metadata=metadata,
        assignment=assignment,
        subscription=subscription,
        partitions=partitions,
    )


# ---------------------------------------------------------------- groups of KIP-848


async def _describe_consumer(broker: BrokerClient, node: Node, group_id: str) -> GroupDescription:
    request = ConsumerGroupDescribeRequest(
        group_ids=(group_id,), include_authorized_operations=False
    )
    response = await broker.request(request)
    group = _group_of(response.groups, group_id)
    _raise_if_error(group.error_code, group.error_message, group_id)
    members = [_consumer_member(member) for member in group.members]
    return _with_epochs(group, node, GroupType.CONSUMER, CONSUMER, members)


def _consumer_member(member: consumer_describe.Member) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        subscription=_subscription(member),
        topic_pattern=member.subscribed_topic_regex or None,
        partitions=_partitions(member.assignment),
        target=_partitions(member.target_assignment),
        member_epoch=member.member_epoch,
    )


def _subscription(member: consumer_describe.Member | share_describe.Member) -> Subscription:
    return Subscription(
        topics=tuple(sorted(member.subscribed_topic_names)),
        generation=member.member_epoch,
        rack=member.rack_id,
    )


# ---------------------------------------------------------------- share groups


async def _describe_share(broker: BrokerClient, node: Node, group_id: str) -> GroupDescription:
    request = ShareGroupDescribeRequest(group_ids=(group_id,), include_authorized_operations=False)
    response = await broker.request(request)
    group = _group_of(response.groups, group_id)
    _raise_if_error(group.error_code, group.error_message, group_id)
    members = [
        MemberDescription(
            member_id=member.member_id,
            client_id=member.client_id,
            host=member.client_host,
            subscription=_subscription(member),
            partitions=_partitions(member.assignment),
            member_epoch=member.member_epoch,
        )
        for member in group.members
    ]
    return _with_epochs(group, node, GroupType.SHARE, GroupType.SHARE.value, members)


# ---------------------------------------------------------------- shared


def _group_of(groups: Iterable[G], group_id: str) -> G:
    """Return the requested group. Raises: RemoteProtocolError if the response lacks it."""
    for group in groups:
        if group.group_id == group_id:
            return group
    raise RemoteProtocolError(f"the coordinator did not answer for group {group_id!r}")


def _with_epochs(
    group: consumer_describe.DescribedGroup | share_describe.DescribedGroup,
    node: Node,
    kind: GroupType,
    protocol_type: str,
    members: Iterable[MemberDescription],
) -> GroupDescription:
    """Return the description of a group with epochs: KIP-848 or share."""
    return GroupDescription(
        group_id=group.group_id,
        type=kind,
        state=GroupState(group.group_state),
        protocol_type=protocol_type,
        protocol_name=group.assignor_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        members=tuple(sorted(members, key=lambda member: member.member_id)),
        coordinator=node,
    )


def _partitions(assignment: consumer_describe.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, partition)
            for topic in assignment.topic_partitions
            for partition in topic.partitions
        )
    )


def _raise_if_error(code: int, message: str | None, group_id: str) -> None:
    if code:
        what = message or f"describing group {group_id!r}"
        raise broker_error(code, what, operation="DESCRIBE", group=group_id)
