"""What the checker needs to know of the group's state at its coordinator, and how to read it from
the embedded broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from kafkagroup import TopicPartition
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.consumer_group import AWAY
from kafkagroup.wire.messages.group import SyncGroupRequest

from .events import Partitions

__all__ = ["EmbeddedView", "GroupView", "StableGroup", "Target"]


@attrs.frozen
class StableGroup:
    """A group of the classic protocol, after its leader has synced."""

    generation: int
    protocol: str
    leader: str
    members: Mapping[str, tuple[bytes, bytes]]
    """Member id -> its metadata, and its assignment."""


@attrs.frozen
class Target:
    """What the coordinator of a consumer group assigns (KIP-848)."""

    epoch: int
    assignor: str
    assignment: Mapping[str, Partitions]
    """Member id -> its partitions."""
    subscriptions: Mapping[str, tuple[str, ...]]
    """Member id -> its topics when the target was computed, by name or by pattern."""
    partitions: Mapping[str, int]
    """Topic -> its partition count when the target was computed."""


class GroupView(Protocol):
    """Reads the state of the simulated group."""

    def stable_group(self, request: SyncGroupRequest) -> StableGroup | None:
        """Return the group if it is stable in the generation of this request, which its leader has
        sent and the coordinator has accepted."""
        ...

    def target(self) -> Target | None:
        """Return the target assignment, if there is one."""
        ...

    def holder(self, instance: str) -> str:
        """Return the id of the static member of a consumer group that holds this instance id; ""
        without one, or if that is unknown."""
        ...

    def counted(self, client: str) -> tuple[str, ...]:
        """Return the ids of this client that the coordinator counts: of members, and of those to be
        (KIP-394). Empty if that is unknown. A static member that is away is none."""
        ...


class EmbeddedView:
    """Reads the embedded broker's own groups."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id

    def stable_group(self, request: SyncGroupRequest) -> StableGroup | None:
        group = self._cluster.classic_coordinator.groups.get(self._group_id)
        if group is None or group.state.value != "Stable":
            return None
        if request.generation_id != group.generation:
            return None
        return StableGroup(
            group.generation,
            group.protocol or "",
            group.leader or "",
            {
                m.member_id: (m.metadata(group.protocol or ""), m.assignment)
                for m in group.members.values()
            },
        )

    def target(self) -> Target | None:
        group = self._cluster.consumer_coordinator.groups.get(self._group_id)
        if group is None or not group.subscriptions:
            return None
        return Target(
            group.target_epoch,
            group.assignor,
            {
                member: tuple(TopicPartition(p.topic, p.partition) for p in sorted(partitions))
                for member, partitions in group.target.items()
            },
            {member: tuple(sorted(topics)) for member, topics in group.subscriptions.items()},
            {topic: count for topic, (_, count) in sorted(group.topics.items())},
        )

    def holder(self, instance: str) -> str:
        group = self._cluster.consumer_coordinator.groups.get(self._group_id)
        found = None if group is None else group.static_member(instance)
        return "" if found is None else found.member_id

    def counted(self, client: str) -> tuple[str, ...]:
        found: list[str] = []
        classic = self._cluster.classic_coordinator.groups.get(self._group_id)
        if classic is not None:
            found += [m.member_id for m in classic.members.values() if m.client_id == client]
            found += sorted(i for i in classic.pending if i.startswith(f"{client}-"))
        consumers = self._cluster.consumer_coordinator.groups.get(self._group_id)
        if consumers is not None:
            found += [
                m.member_id
                for m in consumers.members.values()
                if m.client_id == client and m.epoch != AWAY
            ]
        return tuple(found)
