"""The `GroupSpec` of a live group, as an assignor would get it."""

from __future__ import annotations

from collections.abc import Sequence

from kafkagroup.admin.describing import CONSUMER
from kafkagroup.admin.values import GroupDescription, GroupState
from kafkagroup.assign import GroupSpec, MemberSpec
from kafkagroup.assign.cooperative_sticky import generation_in
from kafkagroup.errors import ErrorCode, IllegalStateError, broker_error
from kafkagroup.runtime.client.calls import RetriedCalls
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.merging import merge
from kafkagroup.transport.metadata import ClusterMetadata
from kafkagroup.wire.embedded_protocol import Subscription
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

__all__ = ["group_spec", "topics_metadata"]


async def group_spec(calls: RetriedCalls, group: GroupDescription) -> GroupSpec:
    """Implement `Admin.group_spec`."""
    name = f"group {group.group_id!r}"
    if group.state is GroupState.EMPTY:
        raise IllegalStateError(f"{name} has no members")
    if group.protocol_type != CONSUMER:
        raise IllegalStateError(
            f"{name} is of type {group.protocol_type!r}; only consumers own partitions"
        )
    subscriptions = {
        m.member_id: m.subscription for m in group.members if m.subscription is not None
    }
    if len(subscriptions) < len(group.members):
        raise IllegalStateError(
            f"{name} is in state {group.state}, and its coordinator reports subscriptions only"
            " when it is Stable; try again then"
        )
    for member in group.members:
        if member.topic_pattern is not None:
            raise IllegalStateError(
                f"{name}: member {member.member_id!r} subscribes to the pattern"
                f" {member.topic_pattern!r}, and the coordinator does not report its topics"
            )
    topics = sorted({topic for s in subscriptions.values() for topic in s.topics})
    metadata = await calls.one(lambda cluster: topics_metadata(cluster, topics))
    # `owned` is the present assignment, which is later than what any subscription reports. The
    # coordinator does not send the generation of that assignment: any number works that is higher
    # than all reported generations.
    generation = 1 + max(map(_generation, subscriptions.values()), default=-1)
    return GroupSpec(
        members={
            member.member_id: MemberSpec(
                topics=frozenset(subscriptions[member.member_id].topics),
                instance_id=member.instance_id,
                rack=subscriptions[member.member_id].rack,
                owned=member.partitions or (),
                generation=generation,
                user_data=subscriptions[member.member_id].user_data,
            )
            for member in group.members
        },
        partitions=metadata.partition_counts(topics),
        racks=metadata.replica_racks(topics) if metadata.racks else {},
    )


def _generation(subscription: Subscription) -> int:
    """Return the generation in which a member owned the partitions that its subscription reports;
    -1 if it is unknown. Before version 2 of the subscription, it is in the user data."""
    if subscription.generation >= 0:
        return subscription.generation
    return generation_in(subscription.user_data)


async def topics_metadata(cluster: Cluster, topics: Sequence[str]) -> ClusterMetadata:
    """Return the metadata of these topics alone. Topics that do not exist have no partitions.

    Raises: BrokerError for a topic that may exist but cannot be read: a spec or plan without it
    would be wrong.
    """
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=topic) for topic in topics),
        allow_auto_topic_creation=False,
    )
    response = await cluster.describe_topics(request)
    metadata, _ = merge(ClusterMetadata(), response, requested=frozenset(topics))
    for name, topic in metadata.topics.items():
        is_absent = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic.error_code and not topic.partitions and not is_absent:
            raise broker_error(
                topic.error_code, f"metadata of topic {name!r}", operation="DESCRIBE", topic=name
            )
    return metadata
