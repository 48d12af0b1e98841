"""The frozen values that `Admin` returns, and `NewTopic`, which it takes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

import attrs

from kafkagroup._foreign_options import explains_unknown_options
from kafkagroup.errors import KafkaGroupError
from kafkagroup.transport.metadata import Node
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import Subscription

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
    """The group leader assigns, by JoinGroup and SyncGroup."""
    CONSUMER = "consumer"
    """The coordinator assigns (KIP-848)."""
    SHARE = "share"
    STREAMS = "streams"
    UNKNOWN = "unknown"
    """A type that this library does not know, or no type: brokers before 3.8 do not send it."""

    @classmethod
    def _missing_(cls, value: object) -> GroupType:
        return cls.UNKNOWN


class GroupState(StrEnum):
    """The states of a group, by the names that Kafka reports."""

    EMPTY = "Empty"
    """No members; the committed offsets remain."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Classic: the coordinator waits for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Classic: the coordinator waits for the leader's assignment."""
    ASSIGNING = "Assigning"
    """KIP-848: the target assignment has an older epoch than the group."""
    RECONCILING = "Reconciling"
    """KIP-848: members are moving to the target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"
    """About to be removed."""
    UNKNOWN = "Unknown"
    """A state that this library does not know, or no state: brokers before 2.6 do not send it."""

    @classmethod
    def _missing_(cls, value: object) -> GroupState:
        return cls.UNKNOWN


@attrs.frozen(kw_only=True)
class GroupListing:
    """A group in a list."""

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
    """The groups of a cluster, and the brokers that did not list theirs."""

    groups: tuple[GroupListing, ...]
    """By group id."""
    errors: Mapping[Node, KafkaGroupError] = attrs.field(factory=dict)
    """Broker -> its error: the groups that it coordinates are missing. Empty when `groups` is
    complete."""


@attrs.frozen(kw_only=True)
class MemberDescription:
    """One member of a group."""

    member_id: str
    instance_id: str | None = None
    """The `group_instance_id` of a static member."""
    client_id: str
    host: str
    """The address from which the member connects, as the broker sees it."""
    metadata: bytes = b""
    """Classic: the member's metadata for the leader; empty unless the group is stable."""
    assignment: bytes = b""
    """Classic: the leader's assignment; while the group rebalances, the previous one or none."""
    subscription: Subscription | None = None
    """The metadata of a consumer: its topics, its rack, and the partitions that it owned when it
    joined, with their generation. None for groups that are not of consumers, and unless a classic
    group is stable. KIP-848: topics, rack, and the member epoch as generation."""
    topic_pattern: str | None = None
    """KIP-848: the subscribed pattern, which the coordinator matches."""
    partitions: tuple[TopicPartition, ...] | None = None
    """A consumer's assigned partitions, sorted. Members of a share group may have the same ones.
    None where `subscription` is None."""
    target: tuple[TopicPartition, ...] | None = None
    """KIP-848: the target assignment, sorted; None in classic and share groups."""
    member_epoch: int | None = None
    """KIP-848 and share groups: the member's epoch, which stays behind the group's until the member
    has revoked the partitions that move. None in classic groups."""


@attrs.frozen(kw_only=True)
class GroupDescription:
    """A group's description by its coordinator."""

    group_id: str
    type: GroupType = GroupType.CLASSIC
    state: GroupState
    protocol_type: str
    """The kind of group: "consumer", "connect", "share", or the application's own; "" when
    unset."""
    protocol_name: str
    """The strategy that the coordinator picked, such as an assignor's name; "" for a classic group
    that is not stable."""
    group_epoch: int | None = None
    """KIP-848 and share groups: grows with each change of members, subscriptions or topics. None in
    classic groups."""
    assignment_epoch: int | None = None
    """The group epoch of the target assignment. None in classic groups."""
    members: tuple[MemberDescription, ...]
    """By member id."""
    coordinator: Node
    """The broker that described it."""


@attrs.frozen(kw_only=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int | None = None
    """The number of partitions; None: the cluster's `num.partitions`."""
    replication_factor: int | None = None
    """Replicas of each partition; None: the cluster's `default.replication.factor`."""
    configs: Mapping[str, str] = attrs.field(factory=dict)
    """Settings by Kafka's names, such as `{"cleanup.policy": "compact"}`."""


# The error of the generated constructor for an unknown keyword does not say what to write instead.
NewTopic.__init__ = explains_unknown_options(NewTopic.__init__)  # type: ignore[method-assign]


@attrs.frozen(kw_only=True)
class PartitionDescription:
    """One partition of a topic."""

    partition: int
    leader: Node | None
    """The leader's broker; None without a leader."""
    leader_epoch: int
    """-1 from brokers before 2.1."""
    replicas: tuple[int, ...]
    """Node ids, the preferred leader first."""
    in_sync_replicas: tuple[int, ...]
    """Node ids of the in-sync replicas."""
    offline_replicas: tuple[int, ...]
    """Node ids of the replicas whose broker or disk is down."""


@attrs.frozen(kw_only=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    topic_id: UUID
    """All zeros from brokers before 2.8."""
    internal: bool
    """Whether the topic is one of Kafka's own, such as `__consumer_offsets`."""
    partitions: tuple[PartitionDescription, ...]
    """By partition number."""

    @property
    def replication_factor(self) -> int:
        """The largest number of replicas of any partition. A reassignment adds some for a while."""
        return max((len(one.replicas) for one in self.partitions), default=0)
