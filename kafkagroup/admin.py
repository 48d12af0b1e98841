"""`Admin`: asks a cluster about its groups. It joins none, commits nothing, and changes nothing.

What a coordinator answers is passed on as values; what it keeps to itself is None here, never made
up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TypeVar

import anyio
import attrs
from anyio.abc import TaskGroup

from kafkagroup.assign import GroupSpec, MemberSpec
from kafkagroup.assign.cooperative_sticky import generation_in
from kafkagroup.errors import (
    BrokerError,
    ConfigurationError,
    ConsumerClosedError,
    DecodeError,
    ErrorCode,
    IllegalStateError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
    broker_error,
)
from kafkagroup.net.cluster import Cluster
from kafkagroup.net.metadata import ClusterMetadata, Node, merge
from kafkagroup.net.options import ClientOptions, parse_servers
from kafkagroup.net.retry import Pauses
from kafkagroup.net.security import Security
from kafkagroup.net.service import Service
from kafkagroup.types import TopicPartition
from kafkagroup.wire.group_log import Subscription, decode_assignment, decode_subscription
from kafkagroup.wire.messages.group import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
)
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

__all__ = ["Admin", "GroupDescription", "GroupState", "MemberDescription"]

T = TypeVar("T")

_CONSUMER = "consumer"
"""The protocol type whose members exchange subscriptions and assignments."""

_DEAD = "Dead"
"""What DescribeGroups 0-5 call a group that the broker does not have; 6 answers an error."""


class GroupState(StrEnum):
    """The states of a classic group, by the names that Kafka reports."""

    EMPTY = "Empty"
    """No members; its offsets are kept."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The coordinator waits for members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The coordinator waits for the leader's assignment."""
    STABLE = "Stable"
    UNKNOWN = "Unknown"
    """One that this library does not know."""

    @classmethod
    def _missing_(cls, value: object) -> GroupState:
        return cls.UNKNOWN


@attrs.frozen(kw_only=True)
class MemberDescription:
    """One member of a group."""

    member_id: str
    instance_id: str | None = None
    """Its `group_instance_id`, when it is a static member."""
    client_id: str
    host: str
    """Where it connects from, as the broker sees it."""
    metadata: bytes
    """What it told the leader; empty unless the group is stable."""
    assignment: bytes
    """What the leader assigned to it; while the group rebalances, that of before or nothing."""
    subscription: Subscription | None = None
    """The metadata of a consumer: topics, what it owned when it joined and in which generation,
    rack. None for other kinds of groups, and unless the group is stable."""
    partitions: tuple[TopicPartition, ...] | None = None
    """What is assigned to a consumer, sorted. None as `subscription` is."""


@attrs.frozen(kw_only=True)
class GroupDescription:
    """A classic group, as its coordinator tells of it."""

    group_id: str
    state: GroupState
    protocol_type: str
    """The kind of group: "consumer", "connect", or the application's own; "" when unset."""
    protocol_name: str
    """The strategy that was picked, such as an assignor's name; "" unless the group is stable."""
    members: tuple[MemberDescription, ...]
    """By member id."""
    coordinator: Node
    """The broker that answered."""


class Admin(Service):
    """Asks about groups.

    ```python
    async with Admin(bootstrap_servers="localhost:9092") as admin:
        group = await admin.describe_group("billing")
        print(group.state, [member.host for member in group.members])
    ```

    Also `await start()` and `await stop()` on asyncio, and `nursery.start(admin.run)` on trio.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "kafkagroup",
        security: Security | None = None,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        close_timeout: float = 10.0,
    ) -> None:
        """`default_api_timeout_ms` bounds a call with all its retries.

        Raises: ConfigurationError.
        """
        super().__init__(close_timeout)
        for name, value, least in (
            ("request_timeout_ms", request_timeout_ms, 1),
            ("default_api_timeout_ms", default_api_timeout_ms, 1),
            ("retry_backoff_ms", retry_backoff_ms, 1),
            ("retry_backoff_max_ms", retry_backoff_max_ms, retry_backoff_ms),
            ("close_timeout", close_timeout, 0),
        ):
            if not isinstance(value, int | float) or not least <= value < 2**31:
                raise ConfigurationError(f"{name}={value}; expected {least} to {2**31 - 1}")
        self._servers = parse_servers(bootstrap_servers)
        self._options = ClientOptions(
            client_id=client_id,
            request_timeout=request_timeout_ms / 1000,
            retry_backoff=retry_backoff_ms / 1000,
            retry_backoff_max=retry_backoff_max_ms / 1000,
            security=security,
        )
        self._timeout = default_api_timeout_ms / 1000
        self._cluster: Cluster | None = None

    async def describe_group(self, group_id: str) -> GroupDescription:
        """A classic group's state and members.

        While it rebalances the coordinator keeps to itself what members subscribe to and own.
        Raises: BrokerError GROUP_ID_NOT_FOUND when there is no such group or it is of another kind,
        GROUP_AUTHORIZATION_FAILED; DecodeError for a consumer whose metadata is damaged;
        TransportError, or the last retriable BrokerError, when the time is up.
        """
        if not group_id:
            raise ConfigurationError("group_id is empty")

        async def ask(cluster: Cluster) -> tuple[DescribedGroup, Node]:
            coordinator = await cluster.find_coordinator(group_id)
            request = DescribeGroupsRequest(groups=(group_id,))
            answer = await cluster.broker(coordinator).request(request)
            for group in answer.groups:
                if group.group_id == group_id:
                    return _checked(group), coordinator
            raise RemoteProtocolError(f"the coordinator did not answer for group {group_id!r}")

        group, coordinator = await self._retried(ask)
        return GroupDescription(
            group_id=group_id,
            state=GroupState(group.group_state),
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_data,
            members=tuple(
                _member(group, member)
                for member in sorted(group.members, key=lambda member: member.member_id)
            ),
            coordinator=coordinator,
        )

    async def find_coordinator(self, group_id: str) -> Node:
        """The broker that coordinates a group, or would if there were one.

        Raises: BrokerError GROUP_AUTHORIZATION_FAILED; TransportError, or the last retriable
        BrokerError, when the time is up.
        """
        if not group_id:
            raise ConfigurationError("group_id is empty")
        return await self._retried(lambda cluster: cluster.find_coordinator(group_id))

    async def group_spec(self, group: str | GroupDescription) -> GroupSpec:
        """A live group of consumers, as an assignor would be told of it at its next rebalance: what
        is assigned now counts as owned.

        The coordinator does not tell the current generation: members get one more than any of them
        remembers from before.

        Raises: what `describe_group` raises; IllegalStateError when the group has no members, is of
        another kind than consumers, or is rebalancing; BrokerError when a topic cannot be read.
        """
        if isinstance(group, str):
            group = await self.describe_group(group)
        name = f"group {group.group_id!r}"
        if group.state is GroupState.EMPTY:
            raise IllegalStateError(f"{name} has no members")
        if group.protocol_type != _CONSUMER:
            raise IllegalStateError(
                f"{name} is of type {group.protocol_type!r}; only consumers own partitions"
            )
        subscriptions = {
            m.member_id: m.subscription for m in group.members if m.subscription is not None
        }
        if len(subscriptions) < len(group.members):
            raise IllegalStateError(
                f"{name} is in state {group.state}, and its coordinator tells what members"
                " subscribe to only when it is Stable; ask again then"
            )
        topics = sorted({topic for s in subscriptions.values() for topic in s.topics})
        metadata = await self._retried(lambda cluster: _metadata(cluster, topics))
        generation = 1 + max(map(_generation, subscriptions.values()), default=-1)
        return GroupSpec(
            members={
                member.member_id: MemberSpec(
                    topics=frozenset(subscriptions[member.member_id].topics),
                    instance_id=member.instance_id,
                    rack=subscriptions[member.member_id].rack,
                    owned=member.partitions or (),
                    generation=generation,
                )
                for member in group.members
            },
            partitions=metadata.partition_counts(topics),
            racks=metadata.replica_racks(topics) if metadata.racks else {},
        )

    async def _retried(self, ask: Callable[[Cluster], Awaitable[T]]) -> T:
        """Ask until there is an answer that no retry would change, or the time is up."""
        if self._cluster is None or self._stop_requested.is_set():
            raise ConsumerClosedError("the admin is not running; use `async with` or start()")
        pauses = Pauses(self._options)
        last: Exception | None = None
        with anyio.move_on_after(self._timeout):
            while True:
                try:
                    return await ask(self._cluster)
                except BrokerError as error:
                    if not error.retriable:
                        raise
                    last = error
                except (TransportError, RemoteProtocolError) as error:
                    last = error
                await pauses.wait()
        raise last or RequestTimeoutError(f"no answer within {self._timeout:g} s")

    async def _open(self, tasks: TaskGroup) -> None:
        self._cluster = Cluster(self._servers, self._options, tasks)
        await self._cluster.refresh()

    async def _close(self) -> None:
        if self._cluster is not None:
            await self._cluster.aclose()

    def _crashed(self, error: Exception) -> None:
        """There are no background tasks."""


def _checked(group: DescribedGroup) -> DescribedGroup:
    code, message = group.error_code, group.error_message
    if code == ErrorCode.NONE and group.group_state == _DEAD:
        # Newer brokers answer with the error: callers need to know one answer only.
        code = ErrorCode.GROUP_ID_NOT_FOUND
    if code:
        raise broker_error(
            code,
            message or f"describing group {group.group_id!r}",
            operation="DESCRIBE",
            group=group.group_id,
        )
    return group


def _member(group: DescribedGroup, member: DescribedGroupMember) -> MemberDescription:
    metadata, assignment = bytes(member.member_metadata), bytes(member.member_assignment)
    subscription = partitions = None
    if group.protocol_type == _CONSUMER and group.group_state == GroupState.STABLE:
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


def _generation(subscription: Subscription) -> int:
    """The generation in which a member owned what it says it owned."""
    if subscription.generation >= 0:
        return subscription.generation
    return generation_in(subscription.user_data)


async def _metadata(cluster: Cluster, topics: Sequence[str]) -> ClusterMetadata:
    """Of these topics alone; those that do not exist are left out.

    Raises: BrokerError for a topic of which nothing is known, though it may exist: without it the
    spec would be another group's.
    """
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=topic) for topic in topics),
        allow_auto_topic_creation=False,
    )
    metadata = merge(ClusterMetadata(), await cluster.request_any(request))
    for name, topic in metadata.topics.items():
        absent = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic.error_code and not topic.partitions and not absent:
            raise broker_error(
                topic.error_code, f"metadata of topic {name!r}", operation="DESCRIBE", topic=name
            )
    return metadata
