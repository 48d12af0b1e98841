"""What distinguishes the protocols of membership: one value for each, which other code reads.

`classic_protocol.CLASSIC` and `consumer_protocol.CONSUMER` are those of Kafka's coordinator, and
`kafkagroup.zookeeper.driver.CLAIMS` that of members in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kafkagroup._values import frozen
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import (
    AssignmentRequested,
    Coordinator,
    Leaving,
    MemberMetadata,
)

if TYPE_CHECKING:
    from enum import Enum

    from kafkagroup.member.consumer_target import TargetChange
    from kafkagroup.runtime.member.topic_names import TopicNames

__all__ = [
    "CoordinatedProtocol",
    "CoordinatedState",
    "MemberState",
    "MembershipProtocol",
    "Predecessor",
    "SupportedProtocols",
]

SupportedProtocols = tuple[tuple[str, bytes], ...]
"""Protocol name and metadata, the preferred first."""


class GroupConfig(Protocol):
    """What the runtime reads of a member's configuration, whatever its protocol."""

    @property
    def group_id(self) -> str: ...

    @property
    def session_timeout(self) -> float: ...


class MemberState(Protocol):
    """What the runtime reads of a member's state, whatever its protocol. The states document their
    fields: see `Member` of `member.classic_state`."""

    @property
    def config(self) -> GroupConfig: ...

    @property
    def phase(self) -> Enum: ...

    @property
    def ownership(self) -> Ownership: ...

    @property
    def leaving(self) -> Leaving | None: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def member_id(self) -> str: ...

    @property
    def generation_id(self) -> int: ...

    @property
    def protocols(self) -> SupportedProtocols: ...

    @property
    def leads(self) -> bool: ...

    @property
    def may_commit(self) -> bool: ...

    @property
    def follows_subscription(self) -> bool: ...

    def is_current(self, generation_id: int) -> bool: ...


class CoordinatedConfig(GroupConfig, Protocol):
    """What the runtime reads of the configuration of a member that has a coordinator."""

    @property
    def heartbeat_interval(self) -> float: ...


class CoordinatedState(MemberState, Protocol):
    """What the runtime reads of the state of a member that has a coordinator."""

    @property
    def config(self) -> CoordinatedConfig: ...

    @property
    def coordinator(self) -> Coordinator | None: ...

    @property
    def heartbeat_interval(self) -> float: ...

    @property
    def heartbeat_sent_at(self) -> float: ...

    @property
    def attempts(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def leaves_group(self) -> bool: ...

    @property
    def may_be_known(self) -> bool: ...

    def awaits(self, token: int) -> bool: ...


M = TypeVar("M", bound=MemberState)
C = TypeVar("C", bound=CoordinatedState)


@frozen(kw_only=True)
class Predecessor:
    """What a member takes over from the last one of its client."""

    client_member_id: str
    """The member id under KIP-848: the client generates it, and keeps it (KIP-1082)."""
    unanswered_id: str = ""
    """The member id that the coordinator may still count, because leaving the group failed."""
    may_be_known: bool = False
    """Whether the coordinator may count `client_member_id`, or hold its instance id."""


@frozen(kw_only=True)
class MembershipProtocol(Generic[M]):
    """One way of being a member of a group, and how a consumer differs by it."""

    step: Callable[[M, Any], tuple[M, Sequence[object]]]
    """Member and event -> the next member, and the effects to execute."""
    change_metadata: Callable[[float, str, MemberMetadata], AssignmentRequested]
    """Time, reason and new metadata -> the event that requests an assignment by that metadata."""
    coordinator_assigns: bool
    """Whether the coordinator matches patterns and computes the assignment (KIP-848). The
    generation is then the epoch of the member, which advances while the assignment stays: commits
    and look-ups name the current epoch, not that of the assignment. If false, members compute the
    assignment by the protocols that they support, and a member that needs another assignment
    rejoins."""
    claims_partitions: bool
    """Whether each partition is claimed in ZooKeeper. The claims then define the owners: no member
    leads, metadata need not have the owned partitions, and commits name no member."""


@frozen(kw_only=True)
class CoordinatedProtocol(MembershipProtocol[C]):
    """A protocol of members that Kafka coordinates."""

    first_state: Callable[[Any, MemberMetadata, Predecessor], C]
    """The protocol's configuration, metadata and predecessor -> a member that has not joined."""
    preparation: Callable[[C, Any], Callable[[], TargetChange] | None]
    """Member and response -> what a thread does before the step uses the response; None for
    nothing."""
    topic_names: type[TopicNames] | None
    """Looks up the names of topics that the coordinator assigns by id; None where it does not."""
