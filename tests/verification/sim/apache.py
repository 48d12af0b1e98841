"""The simulation's groups at Apache Kafka's own coordinator (see `lockstep/apache.py`).

Topics, records and everything else stay with the embedded brokers.
"""

from __future__ import annotations

import atexit
import re
from functools import cache

from kafkagroup import TopicPartition
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest, Member
from kafkagroup.wire.messages.group import DescribeGroupsRequest, SyncGroupRequest
from tests.verification.lockstep.apache import ApacheCoordinator
from tests.verification.lockstep.apache_groups import ApacheGroups

from .groups import StableGroup, Target

__all__ = ["ApacheView", "start_groups"]


def start_groups(settings: BrokerSettings, seed: int) -> ApacheGroups:
    """Return a coordinator without groups. Raises: LocalKafkaUnavailable."""
    coordinator = _coordinator()
    milliseconds = {
        "group.initial.rebalance.delay.ms": settings.group_initial_rebalance_delay,
        "group.consumer.session.timeout.ms": settings.group_consumer_session_timeout,
        "group.consumer.heartbeat.interval.ms": settings.group_consumer_heartbeat_interval,
        "group.consumer.assignment.interval.ms": settings.group_consumer_assignment_interval,
        # Kafka's minima are higher than what the plans choose.
        "group.consumer.min.session.timeout.ms": 1.0,
        "group.consumer.min.heartbeat.interval.ms": 0.1,
        "group.consumer.min.assignment.interval.ms": 0.0,
    }
    coordinator.settings = {name: str(round(value * 1000)) for name, value in milliseconds.items()}
    return ApacheGroups(coordinator, seed)


@cache
def _coordinator() -> ApacheCoordinator:
    """One JVM for all runs of this process."""
    coordinator = ApacheCoordinator()
    atexit.register(coordinator.close)
    return coordinator


class ApacheView:
    """Reads the state of the simulated group from descriptions."""

    def __init__(self, groups: ApacheGroups, group_id: str) -> None:
        self._groups = groups
        self._group_id = group_id

    def stable_group(self, request: SyncGroupRequest) -> StableGroup | None:
        (group,) = self._groups.ask(
            DescribeGroupsRequest(groups=(self._group_id,), include_authorized_operations=False), 5
        ).groups
        if group.group_state != "Stable":
            return None
        return StableGroup(
            request.generation_id,
            group.protocol_data,
            request.member_id,
            {m.member_id: (m.member_metadata, m.member_assignment) for m in group.members},
        )

    def target(self) -> Target | None:
        (group,) = self._groups.ask(
            ConsumerGroupDescribeRequest(
                group_ids=(self._group_id,), include_authorized_operations=False
            ),
            1,
        ).groups
        if group.error_code:
            return None
        target = {
            m.member_id: tuple(
                sorted(
                    TopicPartition(topic.topic_name, index)
                    for topic in m.target_assignment.topic_partitions
                    for index in topic.partitions
                )
            )
            for m in group.members
        }
        # A pattern is evaluated after the first assignment, and what it matches is not described.
        # When its member joins while another assignment is due, Kafka 4.3.1 takes all members for
        # subscribed to the same topics. Until the next epoch a member may then have no partition,
        # or those of a topic that it does not subscribe to. So in a group with patterns, count the
        # topics that the member is assigned, and of its own those of which any is assigned.
        assigned = {tp.topic for partitions in target.values() for tp in partitions}
        has_pattern = any(m.subscribed_topic_regex for m in group.members)

        def topics(member: Member) -> tuple[str, ...]:
            names, pattern = member.subscribed_topic_names, member.subscribed_topic_regex
            if not has_pattern:
                return tuple(sorted(names))
            found = {t for t in assigned if t in names or (pattern and re.fullmatch(pattern, t))}
            return tuple(sorted(found.union(tp.topic for tp in target[member.member_id])))

        return Target(
            group.assignment_epoch,
            group.assignor_name,
            target,
            {m.member_id: topics(m) for m in group.members},
            self._groups.partition_counts(),
        )

    def holder(self, instance: str) -> str:
        return ""

    def counted(self, client: str) -> tuple[str, ...]:
        return ()
