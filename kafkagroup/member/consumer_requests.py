"""The requests of a member of a consumer group, made from its state. All are heartbeats: their
epoch makes them a join or a leave."""

from __future__ import annotations

from typing import Any

from kafkagroup._values import evolve
from kafkagroup.member.consumer_state import Member
from kafkagroup.member.consumer_target import PartitionsByTopicId
from kafkagroup.wire.messages.consumer_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)

__all__ = [
    "LEAVE_EPOCH",
    "OWN_IDS_VERSION",
    "STATIC_LEAVE_EPOCH",
    "heartbeat_request",
    "join_request",
    "leave_request",
]

OWN_IDS_VERSION = 1
"""The first version of the heartbeat in which members generate their ids (KIP-1082)."""
_JOIN_EPOCH = 0
LEAVE_EPOCH = -1
"""The epoch with which a member leaves."""
STATIC_LEAVE_EPOCH = -2
"""The epoch with which a static member leaves temporarily: the coordinator keeps its place for one
session."""


def join_request(member: Member) -> ConsumerGroupHeartbeatRequest:
    """Return the heartbeat of epoch 0: it reports everything, and owns nothing."""
    return _full(evolve(member, epoch=_JOIN_EPOCH, owned={}))


def heartbeat_request(member: Member) -> ConsumerGroupHeartbeatRequest:
    """Return a heartbeat with what the coordinator has not acknowledged yet; in its fields, None
    means unchanged."""
    known, current = member.acknowledged_state, member.reported_state
    if known is None:
        return _full(member)
    pattern_changed = current.pattern != known.pattern
    # The coordinator waits for a report after each reconciliation, also of the same partitions,
    # before the member gets the next epoch.
    owned_changed = (
        current.owned != known.owned or current.reconciliation_count != known.reconciliation_count
    )
    return _request(
        member,
        member.epoch,
        subscribed_topic_names=current.topics if current.topics != known.topics else None,
        subscribed_topic_regex=(current.pattern or "") if pattern_changed else None,
        topic_partitions=_listed(current.owned) if owned_changed else None,
    )


def leave_request(member: Member, epoch: int) -> ConsumerGroupHeartbeatRequest:
    """Return the request to leave. With `LEAVE_EPOCH` the coordinator reassigns the partitions at
    once; with `STATIC_LEAVE_EPOCH` it keeps the assignment until the session times out."""
    return _request(member, epoch)


def _full(member: Member) -> ConsumerGroupHeartbeatRequest:
    # An empty pattern removes one that the coordinator may know. If it knows none, leave out the
    # field, which version 0 does not have.
    pattern = member.pattern or ("" if member.has_sent_pattern else None)
    return _request(
        member,
        member.epoch,
        rack_id=member.config.rack,
        rebalance_timeout_ms=round(member.config.rebalance_timeout * 1000),
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=pattern,
        server_assignor=member.config.assignor,
        topic_partitions=_listed(member.reported_state.owned),
    )


def _request(member: Member, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=member.config.group_id,
        member_id=member.member_id,
        member_epoch=epoch,
        instance_id=member.config.group_instance_id,
        **fields,
    )


def _listed(owned: PartitionsByTopicId) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id=topic_id, partitions=owned[topic_id]) for topic_id in sorted(owned)
    )
