"""What `Admin` tells of groups and topics: frozen values.

What a coordinator answers is passed on; what it keeps to itself is None here, never made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

import attrs

from kafkagroup.errors import KafkaGroupError
from kafkagroup.transport.metadata import Node
from kafkagroup.types import TopicPartition
from kafkagroup.wire.group_log import Subscription

__all__ = [
    "GroupDescription",
    "GroupList",
    "GroupListing",
    "GroupState",
    "GroupType",
    "MemberDescription",
    "NewTopic",
    "PartitionDescription",
    "TopicDescription",
]


class GroupType(StrEnum):
    """The types of groups, by the names that Kafka reports (KIP-848, KIP-932, KIP-1071)."""

    CLASSIC = "classic"
    """Its members agree on who gets what, by JoinGroup and SyncGroup."""
    CONSUMER = "consumer"
    """The coordinator assigns (KIP-848)."""
    SHARE = "share"
    STREAMS = "streams"
    UNKNOWN = "unknown"
    """One that this library does not know, or that the broker does not tell (before 3.8)."""

    @classmethod
    def _missing_(cls, value: object) -> GroupType:
        return cls.UNKNOWN


class GroupState(StrEnum):
    """The states of a group, by the names that Kafka reports."""

    EMPTY = "Empty"
    """No members; its offsets are kept."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Classic: the coordinator waits for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Classic: the coordinator waits for the leader's assignment."""
    ASSIGNING = "Assigning"
    """KIP-848: the target assignment is of an older epoch than the group."""
    RECONCILING = "Reconciling"
    """KIP-848: members are on their way to the target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"
    """About to be removed."""
    UNKNOWN = "Unknown"
    """One that this library does not know, or that the broker does not tell (before 2.6)."""

    @classmethod
    def _missing_(cls, value: object) -> GroupState:
        return cls.UNKNOWN


@attrs.frozen(kw_only=True)
class GroupListing:
    """A group, as lists have it."""

    group_id: str
    type: GroupType
    state: GroupState
    protocol_type: str
    """The kind of group: "consumer", "connect", "share", or the application's own; "" when unset,
    as for a group that has only committed offsets."""
    coordinator: Node
    """The broker that listed it."""


@attrs.frozen(kw_only=True)
class GroupList:
    """The groups of a cluster, and which brokers did not tell of theirs."""

    groups: tuple[GroupListing, ...]
    """By group id."""
    errors: Mapping[Node, KafkaGroupError] = attrs.field(factory=dict)
    """Broker -> why it did not answer: the groups that it coordinates are missing. Empty when
    `groups` is all there is."""


@attrs.frozen(kw_only=True)
class MemberDescription:
    """One member of a group."""

    member_id: str
    instance_id: str | None = None
    """Its `group_instance_id`, when it is a static member."""
    client_id: str
    host: str
    """Where it connects from, as the broker sees it."""
    metadata: bytes = b""
    """Classic: what it told the leader; empty unless the group is stable."""
    assignment: bytes = b""
    """Classic: what the leader assigned to it; while the group rebalances, that of before or
    nothing."""
    subscription: Subscription | None = None
    """The metadata of a consumer: topics, what it owned when it joined and in which generation,
    rack. None for other kinds of groups, and unless a classic group is stable. KIP-848: topics and
    rack, and the member's epoch as its generation."""
    topic_pattern: str | None = None
    """KIP-848: the pattern that it subscribes to, which the coordinator evaluates."""
    partitions: tuple[TopicPartition, ...] | None = None
    """What is assigned to a consumer, sorted; members of a share group read the same ones. None as
    `subscription` is."""
    target: tuple[TopicPartition, ...] | None = None
    """KIP-848: what it is to have in the end, sorted; None in classic and share groups."""
    member_epoch: int | None = None
    """KIP-848: the epoch that the member is in; it is behind while it has still to give up what
    others get. Share groups have one, too. None in classic groups."""


@attrs.frozen(kw_only=True)
class GroupDescription:
    """A group, as its coordinator tells of it."""

    group_id: str
    type: GroupType = GroupType.CLASSIC
    state: GroupState
    protocol_type: str
    """The kind of group: "consumer", "connect", or the application's own; "" when unset."""
    protocol_name: str
    """The strategy that was picked, such as an assignor's name; "" unless a classic group is
    stable."""
    group_epoch: int | None = None
    """KIP-848, and share groups: counts changes of members, subscriptions and topics. None in
    classic groups."""
    assignment_epoch: int | None = None
    """The group epoch that the target assignment is of. None in classic groups."""
    members: tuple[MemberDescription, ...]
    """By member id."""
    coordinator: Node
    """The broker that answered."""


@attrs.frozen(kw_only=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int | None = None
    """How many; None: the cluster's `num.partitions`."""
    replication_factor: int | None = None
    """Replicas of each partition; None: the cluster's `default.replication.factor`."""
    configs: Mapping[str, str] = attrs.field(factory=dict)
    """Settings by Kafka's names, such as `{"cleanup.policy": "compact"}`."""


@attrs.frozen(kw_only=True)
class PartitionDescription:
    """One partition of a topic."""

    partition: int
    leader: Node | None
    """The broker that leads it; None while there is none."""
    leader_epoch: int
    """-1 from brokers before 2.1."""
    replicas: tuple[int, ...]
    """Node ids, the preferred leader first."""
    in_sync_replicas: tuple[int, ...]
    """Node ids of the replicas that have all that is committed."""
    offline_replicas: tuple[int, ...]
    """Node ids of the replicas whose broker or disk is down."""


@attrs.frozen(kw_only=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    topic_id: UUID
    """All zeros from brokers before 2.8."""
    internal: bool
    """Whether it is one of Kafka's own, such as `__consumer_offsets`."""
    partitions: tuple[PartitionDescription, ...]
    """By number."""

    @property
    def replication_factor(self) -> int:
        """Replicas of the partition that has the most: a reassignment adds some for its time."""
        return max((len(one.replicas) for one in self.partitions), default=0)
