"""Let one coordinator use the assignments that another one has computed.

Assignors of equal balance break ties differently, so their results are not compared: the second
coordinator takes over each target assignment of the first. When members get their partitions, in
which epoch, and who has to revoke first, each decides itself.
"""

from __future__ import annotations

from kafkagroup.testing.embedded.consumer_group import AssignedPartition, ConsumerGroup
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest

from .coordinator import Coordinator
from .embedded import EmbeddedCoordinator
from .wire import decode_response, encode_request

__all__ = ["follow"]

_VERSION = 1


def follow(follower: EmbeddedCoordinator, leader: Coordinator) -> None:
    """Let the follower take the leader's target whenever it computes one of the same epoch."""
    consumer_coordinator = follower.cluster.consumer_coordinator
    compute = consumer_coordinator._assign_when_due

    def assign_when_due(group: ConsumerGroup, now: float) -> None:
        before = group.target_epoch
        compute(group, now)
        if group.target_epoch != before:
            epoch, target = _target(leader, group.group_id)
            if epoch == group.target_epoch and target.keys() == group.members.keys():
                group.target = target

    consumer_coordinator._assign_when_due = assign_when_due  # type: ignore[method-assign]


def _target(
    coordinator: Coordinator, group_id: str
) -> tuple[int, dict[str, frozenset[AssignedPartition]]]:
    request = ConsumerGroupDescribeRequest(
        group_ids=(group_id,), include_authorized_operations=False
    )
    coordinator.submit(encode_request(request, _VERSION, "targets"))
    ((_, data),) = coordinator.responses()
    (group,) = decode_response(request, _VERSION, data).groups
    target = {
        member.member_id: frozenset(
            AssignedPartition(topic.topic_name, number, topic.topic_id)
            for topic in member.target_assignment.topic_partitions
            for number in topic.partitions
        )
        for member in group.members
    }
    return group.assignment_epoch, target
