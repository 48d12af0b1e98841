"""`Admin`: one connection to a cluster, and what can be asked and done about its groups and topics.

Only what users call is here; how each question is put is the business of the other modules. It
joins no group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafkagroup._foreign_options import explains_unknown_options
from kafkagroup._public import public
from kafkagroup.admin import describing, lag, offsets, removing, reset, spec
from kafkagroup.admin import topics as topic_requests
from kafkagroup.admin.asking import AskingService, named
from kafkagroup.admin.lag import PartitionLag
from kafkagroup.admin.reset import OffsetPlan, ResetTo
from kafkagroup.admin.values import (
    GroupDescription,
    GroupList,
    GroupListing,
    GroupState,
    GroupType,
    NewTopic,
    TopicDescription,
)
from kafkagroup.assign import GroupSpec
from kafkagroup.consume.partitions import ByPartition, Partitions, offsets_of, partitions_of
from kafkagroup.errors import BrokerError, ConfigurationError, IllegalStateError, KafkaGroupError
from kafkagroup.options import AdminOptions
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.security import Security
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.group import MemberIdentity

__all__ = ["Admin"]


@public
class Admin(AskingService):
    """Asks about groups and topics, and changes what is kept of them.

    ```python
    async with Admin(bootstrap_servers="localhost:9092") as admin:
        group = await admin.describe_group("billing")
        print(group.state, [member.host for member in group.members])
    ```

    Also `await start()` and `await stop()` on asyncio, and `nursery.start(admin.run)` on trio.
    """

    @explains_unknown_options
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
        options = AdminOptions.checked(locals())
        super().__init__(options, options.default_api_timeout)

    # ------------------------------------------------------------ groups

    async def list_groups(
        self, *, states: Iterable[GroupState] = (), types: Iterable[GroupType] = ()
    ) -> GroupList:
        """The groups of all brokers, in any of these states and of any of these types; without
        any, all.

        A broker that does not answer is named in the list's `errors`: UnsupportedVersionError when
        it cannot filter by states (before Kafka 2.6) or types (before 3.8). Raises: TransportError
        when no broker answers.
        """
        wanted = {"states": _names(states, GroupState), "types": _names(types, GroupType)}

        async def of(cluster: Cluster, node: Node) -> list[GroupListing]:
            return await describing.list_groups(cluster.broker(node), node, **wanted)

        metadata = await self._asking.once(lambda cluster: cluster.refresh())
        answers = await self._asking.each(metadata.nodes.values(), of)
        groups: dict[str, GroupListing] = {}
        errors: dict[Node, KafkaGroupError] = {}
        for node, answer in answers.items():
            if isinstance(answer, KafkaGroupError):
                errors[node] = answer
            else:
                # Two brokers may list one that moves from one to the other.
                groups |= {group.group_id: group for group in answer}
        return GroupList(groups=tuple(groups[name] for name in sorted(groups)), errors=errors)

    async def describe_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | KafkaGroupError]:
        """Group -> its description, or what `describe_group` raises for it."""
        return await self._asking.each(named(group_ids), describing.describe)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """A group's state and members: a classic one, one of KIP-848, or a share group.

        While a classic group rebalances the coordinator keeps to itself what members subscribe to
        and own. Raises: BrokerError GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED;
        IllegalStateError for a group of another type, which it names; DecodeError for a consumer
        whose metadata is damaged; TransportError, or the last retriable BrokerError, when the time
        is up.
        """
        named([group_id])
        return await self._asking.once(lambda cluster: describing.describe(cluster, group_id))

    async def find_coordinator(self, group_id: str) -> Node:
        """The broker that coordinates a group, or would if there were one.

        Raises: BrokerError GROUP_AUTHORIZATION_FAILED; TransportError, or the last retriable
        BrokerError, when the time is up.
        """
        named([group_id])
        return await self._asking.once(lambda cluster: cluster.find_coordinator(group_id))

    async def group_spec(self, group: str | GroupDescription) -> GroupSpec:
        """A live group of consumers, as an assignor would be told of it at its next rebalance: what
        is assigned now counts as owned.

        The coordinator of a classic group does not tell the current generation: members get one
        more than any of them remembers from before.

        Raises: what `describe_group` raises; IllegalStateError when the group has no members, is of
        another kind than consumers, is rebalancing, or subscribes to a pattern that the coordinator
        evaluates; BrokerError when a topic cannot be read.
        """
        if isinstance(group, str):
            group = await self.describe_group(group)
        return await spec.group_spec(self._asking, group)

    async def partitions(self, topics: Iterable[str]) -> tuple[TopicPartition, ...]:
        """All partitions of these topics, sorted.

        Raises: BrokerError UNKNOWN_TOPIC_OR_PARTITION that names the topics which do not exist;
        AuthorizationError; TransportError.
        """
        return await offsets.partitions(self._asking, sorted(_topic_names(topics)))

    # ------------------------------------------------------------ topics

    async def list_topics(self) -> tuple[TopicDescription, ...]:
        """Every topic that this user may describe, Kafka's own included, by name.

        Raises: TransportError.
        """
        return tuple(await self._asking.once(topic_requests.list_all))

    async def describe_topics(
        self, topics: Iterable[str]
    ) -> dict[str, TopicDescription | KafkaGroupError]:
        """Topic -> its description, or why there is none: BrokerError UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_TOPIC_EXCEPTION; AuthorizationError."""
        return await self._asking.each(
            _topic_names(topics), topic_requests.describe, final=topic_requests.FINAL
        )

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, KafkaGroupError | None]:
        """Create topics; with `validate_only` the controller only checks whether it would. Answers
        None for each, or why it was not created: BrokerError TOPIC_ALREADY_EXISTS, also where the
        answer to a first attempt was lost; INVALID_REPLICATION_FACTOR, INVALID_CONFIG,
        POLICY_VIOLATION and their kin, with the controller's reason; AuthorizationError.

        Other clients may have to wait for a moment until every broker knows of a new topic.
        """
        wanted = {topic.name: topic for topic in topics}

        async def create(cluster: Cluster, name: str) -> None:
            await topic_requests.create(cluster, wanted[name], validate_only=validate_only)

        return await self._asking.each(wanted, create)

    async def delete_topics(self, topics: Iterable[str]) -> dict[str, KafkaGroupError | None]:
        """Delete topics with all their records, and what groups have committed for them. Answers
        None for each, or why it is kept: BrokerError UNKNOWN_TOPIC_OR_PARTITION,
        TOPIC_DELETION_DISABLED; AuthorizationError."""
        return await self._asking.each(
            _topic_names(topics), topic_requests.delete, final=topic_requests.FINAL
        )

    async def add_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> dict[str, KafkaGroupError | None]:
        """Let topics have so many partitions in all; with `validate_only` the controller only
        checks whether it would. Answers None for each, or why it has as many as before: BrokerError
        INVALID_PARTITIONS where that would be no increase, UNKNOWN_TOPIC_OR_PARTITION;
        AuthorizationError.

        Producers then place keys elsewhere: records of one key before and after are in different
        partitions.
        """

        async def add(cluster: Cluster, name: str) -> None:
            count = counts[name]
            await topic_requests.add_partitions(cluster, name, count, validate_only=validate_only)

        return await self._asking.each(counts, add, final=topic_requests.FINAL)

    # ------------------------------------------------------------ committed offsets

    async def committed(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaGroupError]:
        """Group -> all that it has committed, by partition, or why that is not told.

        A group that does not exist has committed nothing. Offsets that a transaction is about to
        move are waited for.
        """
        return await self._asking.each(named(group_ids), offsets.committed)

    async def lag(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[TopicPartition, PartitionLag] | KafkaGroupError]:
        """Group -> how far it is behind in each partition that it has committed, or why that is not
        told: the error of `committed`.

        Reads one batch of records of each partition that is behind: its seconds are the age of the
        record at the committed offset. What cannot be told of a partition is None in its lag, with
        the reason. Raises: TransportError, or the last retriable BrokerError, when a leader has not
        answered in time.
        """
        return await lag.measure(self._asking, await self.committed(group_ids))

    async def alter_offsets(self, group_id: str, to: ByPartition[int | OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members; one that does not exist is made.

        Raises: BrokerError NON_EMPTY_GROUP while there are members, UNKNOWN_TOPIC_OR_PARTITION,
        either before anything is changed; AuthorizationError for one topic when those of others may
        have been changed; TransportError.
        """
        named([group_id])
        await offsets.alter(self._asking, group_id, offsets_of(to))

    async def delete_offsets(
        self, group_id: str, partitions: Partitions
    ) -> dict[TopicPartition, BrokerError | None]:
        """Forget what a group has committed for these; answers None for each, or why its offset is
        kept: GROUP_SUBSCRIBED_TO_TOPIC while a member subscribes to the topic.

        Raises: BrokerError GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP for a group of another kind than
        consumers; TransportError.
        """
        named([group_id])
        wanted = partitions_of(partitions)
        return await self._asking.once(lambda cluster: offsets.delete(cluster, group_id, wanted))

    async def plan_reset(
        self,
        group_id: str,
        partitions: Partitions | None = None,
        *,
        to: ResetTo | None = None,
        shift: int | None = None,
    ) -> OffsetPlan:
        """Where these partitions would go on: `to` "earliest", "latest", an offset within the log,
        a `datetime` with a time zone (the first record that is not older; the log's end if all are)
        or a `timedelta` before now; or by `shift` offsets, within the log. None: all partitions
        that the group has committed. Changes nothing.

        Raises: ConfigurationError; BrokerError; TransportError.
        """
        committed = await self._committed(group_id)
        wanted = None if partitions is None else partitions_of(partitions)
        return await reset.plan(self._asking, group_id, committed, wanted, to, shift)

    async def plan_offsets(
        self, group_id: str, to: ByPartition[int | OffsetAndMetadata]
    ) -> OffsetPlan:
        """A plan to commit these offsets, such as those that `offsets_from_json` has read."""
        return reset.planned(group_id, await self._committed(group_id), offsets_of(to))

    async def apply(self, plan: OffsetPlan) -> None:
        """Commit what the plan says, all of it that changes anything.

        Raises: IllegalStateError when the group has committed something else since the plan was
        made; what `alter_offsets` raises.
        """
        now = await self._committed(plan.group_id)
        for tp, change in plan.changes.items():
            if now.get(tp) != change.before:
                raise IllegalStateError(
                    f"group {plan.group_id!r} has committed {tp} since the plan was made; make"
                    " another"
                )
        await self.alter_offsets(
            plan.group_id,
            {tp: c.after for tp, c in plan.changes.items() if c.after != c.before},
        )

    async def _committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        named([group_id])
        return await self._asking.once(lambda cluster: offsets.committed(cluster, group_id))

    # ------------------------------------------------------------ removing

    async def remove_member(
        self,
        group_id: str,
        *,
        member_id: str | None = None,
        instance_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Take a member out of a group, by its member id, or a static one by its instance id: its
        partitions are given away at once. A member that lives joins again.

        Raises: BrokerError UNKNOWN_MEMBER_ID; UnsupportedVersionError for an instance id before
        Kafka 2.4; TransportError.
        """
        named([group_id])
        if (member_id is None) == (instance_id is None):
            raise ConfigurationError("expected one of member_id and instance_id")
        member = MemberIdentity(
            member_id=member_id or "", group_instance_id=instance_id, reason=reason
        )
        await self._asking.once(lambda cluster: removing.remove_member(cluster, group_id, member))

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, KafkaGroupError | None]:
        """Delete groups without members, with their committed offsets; answers None for each, or
        why it is kept: BrokerError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
        return await self._asking.each(named(group_ids), removing.delete_group)


def _topic_names(topics: Iterable[str]) -> list[str]:
    """The names, each once. Raises: ConfigurationError for one string."""
    if isinstance(topics, str):
        raise ConfigurationError(f"expected several topics, not {topics!r} alone")
    return list(dict.fromkeys(topics))


def _names(values: Iterable[str], kind: type[GroupState] | type[GroupType]) -> list[str]:
    """What brokers call these. Raises: ConfigurationError for what is not one of them."""
    known = sorted({member.value for member in kind} - {kind.UNKNOWN.value})
    found = [str(value) for value in values]
    for name in found:
        if name not in known:
            raise ConfigurationError(f"{name!r} is none of {', '.join(known)}")
    return found
