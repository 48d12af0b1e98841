"""The requests of a member of a consumer group, made from its state: heartbeats, all of them."""

from __future__ import annotations

from typing import Any

from kafkagroup._values import evolve
from kafkagroup.member.consumer_state import Member, PartitionsByTopicId
from kafkagroup.wire.messages.consumer_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)

__all__ = ["LEAVES", "LEAVES_FOR_A_WHILE", "heartbeat_request", "join_request", "leave_request"]

_JOINS = 0
LEAVES = -1
"""The epoch of a member that leaves."""
LEAVES_FOR_A_WHILE = -2
"""The epoch of a static member that is to find its place again within a session."""


def join_request(member: Member) -> ConsumerGroupHeartbeatRequest:
    """Return the heartbeat of epoch 0: it reports everything, and owns nothing."""
    return _full(evolve(member, epoch=_JOINS, owned={}))


def heartbeat_request(member: Member) -> ConsumerGroupHeartbeatRequest:
    """That this member lives, with what the coordinator does not know yet (None: unchanged)."""
    said, now = member.acknowledged_state, member.reported_state
    if said is None:
        return _full(member)
    changed = now.pattern != said.pattern
    owns = now.owned != said.owned or now.reconciliation_count != said.reconciliation_count
    return _request(
        member,
        member.epoch,
        subscribed_topic_names=now.topics if now.topics != said.topics else None,
        subscribed_topic_regex=(now.pattern or "") if changed else None,
        topic_partitions=_listed(now.owned) if owns else None,
    )


def leave_request(member: Member, epoch: int) -> ConsumerGroupHeartbeatRequest:
    """That this member goes, so that the others need not wait for its session to end."""
    return _request(member, epoch)


def _full(member: Member) -> ConsumerGroupHeartbeatRequest:
    # A pattern that may be known is taken back by an empty one; brokers of version 0 have none.
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


def _listed(share: PartitionsByTopicId) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id=topic_id, partitions=share[topic_id]) for topic_id in sorted(share)
    )
