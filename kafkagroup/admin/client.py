"""`Admin`: lists, describes and changes the groups, offsets, topics and transactions of a cluster.

Only the public interface is here; the other modules make the requests. `Admin` joins no group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from operator import attrgetter

from kafkagroup._option_kinds import takes_options
from kafkagroup._public import public
from kafkagroup.admin import describing, lag, offsets, removing, reset, spec, transactions
from kafkagroup.admin import topics as topic_requests
from kafkagroup.admin.lag import PartitionLag
from kafkagroup.admin.listing import list_everywhere
from kafkagroup.admin.reset import OffsetPlan, ResetTo
from kafkagroup.admin.transaction_values import (
    OpenTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionList,
    TransactionState,
)
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
from kafkagroup.consume.partitions import (
    ByPartition,
    Partition,
    Partitions,
    offset_of,
    offsets_of,
    partition_of,
    partitions_of,
)
from kafkagroup.errors import ConfigurationError, IllegalStateError, KafkaGroupError
from kafkagroup.options import AdminOptions
from kafkagroup.runtime.client.calls import (
    CallingService,
    ChangeAttempts,
    changed,
    checked_group_ids,
    checked_names,
)
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.identity import require_cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.security import Security
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.error_codes import FINAL_IN_TOPIC_ADMIN
from kafkagroup.wire.messages.group import MemberIdentity

__all__ = ["Admin"]


@public
class Admin(CallingService):
    """Lists, describes and changes groups, committed offsets and topics.

    ```python
    async with Admin(bootstrap_servers="localhost:9092") as admin:
        group = await admin.describe_group("billing")
        print(group.state, [member.host for member in group.members])
    ```

    On asyncio, `await start()` and `await stop()` work as well; on trio,
    `nursery.start(admin.run)`.
    """

    @takes_options(AdminOptions)
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
        metadata_recovery_rebootstrap_trigger_ms: int = 300_000,
        connections_max_idle_ms: int = 540_000,
        close_timeout: float = 10.0,
    ) -> None:
        """`default_api_timeout_ms` bounds a call with all its retries.

        Raises: ConfigurationError.

        Args:
            bootstrap_servers: `host:port`, comma-separated or a sequence: the addresses of some
                brokers, through which the client finds the others. Default `'localhost:9092'`;
                Kafka's `bootstrap.servers`.
            client_id: The client's name in the brokers' logs and quotas. Default `'kafkagroup'`;
                Kafka's `client.id`.
            security: A `Security`: TLS, SASL or both; `None` is plain TCP.
            request_timeout_ms: How long a response may take. In milliseconds; default 30,000;
                Kafka's `request.timeout.ms`.
            default_api_timeout_ms: How long a call may take, including its retries. In
                milliseconds; default 60,000; Kafka's `default.api.timeout.ms`.
            retry_backoff_ms: Backoff before the first retry; it doubles, with jitter. In
                milliseconds; default 100; Kafka's `retry.backoff.ms`.
            retry_backoff_max_ms: Upper limit of that backoff, before its jitter of a fifth. In
                milliseconds; default 1,000; Kafka's `retry.backoff.max.ms`.
            metadata_recovery_rebootstrap_trigger_ms: How long all known brokers may fail before the
                client forgets their addresses and asks only the bootstrap addresses, whose names it
                resolves again (KIP-1102). It also asks those whenever no known broker responds. In
                milliseconds; default 300,000; Kafka's `metadata.recovery.rebootstrap.trigger.ms`.
            connections_max_idle_ms: Close a connection after this time without a request, before a
                load balancer or firewall forgets it; the next request opens another one. In
                milliseconds; default 540,000; Kafka's `connections.max.idle.ms`.
            close_timeout: Seconds that closing may take, with all that it waits for. Default
                `10.0`.
        """

    def _set_up(self, options: AdminOptions) -> None:
        super().__init__(options, options.default_api_timeout)

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster; None from brokers that report none. Raises: NotStartedError."""
        return self._calls.opened().identity.cluster_id

    # ------------------------------------------------------------ groups

    async def list_groups(
        self, *, states: Iterable[GroupState] = (), types: Iterable[GroupType] = ()
    ) -> GroupList:
        """List the groups of all brokers. `states`, `types`: only groups in one of these states, of
        one of these types; if empty, of every state or type.

        The list's `errors` have the brokers that failed: UnsupportedVersionError when a broker
        cannot filter by states (before Kafka 2.6) or types (before 3.8). Raises: ConfigurationError
        for a state or type that Kafka does not have; TransportError when no broker responds.
        """
        wanted = {"states": _names(states, GroupState), "types": _names(types, GroupType)}

        async def list_from(cluster: Cluster, node: Node) -> list[GroupListing]:
            return await describing.list_groups(cluster.broker(node), node, **wanted)

        groups, errors = await list_everywhere(self._calls, list_from, attrgetter("group_id"))
        return GroupList(groups=groups, errors=errors)

    async def describe_groups(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupDescription | KafkaGroupError]:
        """Return each group's description, or the error that `describe_group` raises."""
        return await self._calls.each(checked_group_ids(group_ids), describing.describe)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """Return a group's state and members, of a classic, KIP-848 or share group.

        While a classic group rebalances, the coordinator does not send what members subscribe to
        and own. Raises: BrokerError GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED;
        IllegalStateError for a group of another type, which it names; DecodeError for a consumer
        with damaged metadata; TransportError, or the last retriable BrokerError, after the timeout.
        """
        checked_group_ids([group_id])
        return await self._calls.one(lambda cluster: describing.describe(cluster, group_id))

    async def find_coordinator(self, group_id: str) -> Node:
        """Return the broker that coordinates a group of this id, whether or not it exists.

        Raises: BrokerError GROUP_AUTHORIZATION_FAILED; TransportError, or the last retriable
        BrokerError, after the timeout.
        """
        checked_group_ids([group_id])
        return await self._calls.one(lambda cluster: cluster.coordinators.look_up(group_id))

    async def group_spec(self, group: str | GroupDescription) -> GroupSpec:
        """Return the assignor's input for the next rebalance of a live group of consumers: the
        partitions that are assigned now count as owned.

        The coordinator of a classic group does not send the current generation. The spec's is one
        more than the highest generation in the members' metadata.

        Raises: what `describe_group` raises; IllegalStateError when the group has no members, is
        not a group of consumers, is rebalancing, or subscribes to a pattern that the coordinator
        matches; BrokerError when a topic cannot be read.
        """
        if isinstance(group, str):
            group = await self.describe_group(group)
        return await spec.group_spec(self._calls, group)

    async def partitions(self, topics: Iterable[str]) -> tuple[TopicPartition, ...]:
        """Return all partitions of these topics, sorted.

        Raises: BrokerError UNKNOWN_TOPIC_OR_PARTITION, which names the missing topics;
        AuthorizationError; TransportError.
        """
        return await offsets.partitions(self._calls, sorted(checked_names(topics, "topic")))

    # ------------------------------------------------------------ topics

    async def list_topics(self) -> tuple[TopicDescription, ...]:
        """Return every topic that this principal may describe, internal topics included, sorted by
        name.

        Raises: TransportError.
        """
        return tuple(await self._calls.one(topic_requests.list_all))

    async def describe_topics(
        self, topics: Iterable[str]
    ) -> dict[str, TopicDescription | KafkaGroupError]:
        """Return each topic's description, or its error: BrokerError UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_TOPIC_EXCEPTION; AuthorizationError."""
        return await self._calls.each(
            checked_names(topics, "topic"), topic_requests.describe, final=FINAL_IN_TOPIC_ADMIN
        )

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> tuple[str, ...]:
        """Create topics; with `validate_only` the controller only validates the request. Returns
        their names.

        It may take a moment until every broker knows a new topic. Raises: ChangesRefusedError, when
        topics were not created, with the names of those that were, and an error for each other
        topic: BrokerError TOPIC_ALREADY_EXISTS; INVALID_REPLICATION_FACTOR, INVALID_CONFIG,
        POLICY_VIOLATION and the like, with the controller's reason; AuthorizationError;
        ConfigurationError; TransportError.
        """
        wanted = {topic.name: topic for topic in _new_topics(topics)}
        attempts = defaultdict[str, topic_requests.Attempts](topic_requests.Attempts)

        async def create(cluster: Cluster, name: str) -> None:
            await topic_requests.create(
                cluster, wanted[name], attempts[name], validate_only=validate_only
            )

        return await self._calls.change("creating topics", wanted, create)

    async def delete_topics(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Delete topics with all their records and the groups' committed offsets for them. Returns
        their names.

        Raises: ChangesRefusedError, as `create_topics`, with an error for each topic that was not
        deleted: BrokerError UNKNOWN_TOPIC_OR_PARTITION, TOPIC_DELETION_DISABLED;
        AuthorizationError; TransportError.
        """
        attempts = defaultdict[str, topic_requests.Attempts](topic_requests.Attempts)

        async def delete(cluster: Cluster, name: str) -> None:
            await topic_requests.delete(cluster, name, attempts[name])

        return await self._calls.change(
            "deleting topics", checked_names(topics, "topic"), delete, final=FINAL_IN_TOPIC_ADMIN
        )

    async def add_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> tuple[str, ...]:
        """Increase the number of partitions to these totals; with `validate_only` the controller
        only validates the request. Returns the names of the topics.

        Producers then map keys to other partitions: later records of a key may be in another
        partition than earlier ones. Raises: ChangesRefusedError, as `create_topics`, with an error
        for each topic that was not changed: BrokerError INVALID_PARTITIONS for a total that is no
        increase, UNKNOWN_TOPIC_OR_PARTITION; AuthorizationError; ConfigurationError;
        TransportError.
        """
        if not isinstance(counts, Mapping):
            raise ConfigurationError("add_partitions() takes the totals by topic: {'orders': 6}")
        checked_names(counts, "topic")
        attempts = defaultdict[str, topic_requests.Attempts](topic_requests.Attempts)

        async def add(cluster: Cluster, name: str) -> None:
            await topic_requests.add_partitions(
                cluster, name, counts[name], attempts[name], validate_only=validate_only
            )

        return await self._calls.change(
            "adding partitions to topics", counts, add, final=FINAL_IN_TOPIC_ADMIN
        )

    # ------------------------------------------------------------ committed offsets

    async def committed(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaGroupError]:
        """Return each group's committed offsets by partition, or its error.

        A group that does not exist has no committed offsets. Waits for pending transactional
        offset commits.
        """
        return await self._calls.each(checked_group_ids(group_ids), offsets.committed)

    async def lag(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[TopicPartition, PartitionLag] | KafkaGroupError]:
        """Return each group's lag in all partitions of which it has committed offsets, or the error
        of `committed`.

        Reads one batch of each partition with lag: the lag in seconds is the age of the record at
        the committed offset. A value that cannot be measured is None, with a reason. Raises:
        TransportError, or the last retriable BrokerError, when a leader does not respond before the
        timeout.
        """
        return await lag.measure(self._calls, await self.committed(group_ids))

    async def alter_offsets(self, group_id: str, to: ByPartition[int | OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members; create the group if it does not exist.

        Raises: BrokerError NON_EMPTY_GROUP or UNKNOWN_TOPIC_OR_PARTITION, before any offset is
        changed; AuthorizationError for a topic, when offsets of other topics may have been changed;
        TransportError.
        """
        checked_group_ids([group_id])
        await offsets.alter(self._calls, group_id, offsets_of(to))

    async def delete_offsets(
        self, group_id: str, partitions: Partitions
    ) -> tuple[TopicPartition, ...]:
        """Delete a group's committed offsets of these partitions; return the partitions, sorted.

        Raises: ChangesRefusedError, when offsets were not deleted, with the partitions whose
        offsets were, and an error for each other one: BrokerError GROUP_SUBSCRIBED_TO_TOPIC while a
        member subscribes to the topic. Of the group as a whole: BrokerError GROUP_ID_NOT_FOUND;
        NON_EMPTY_GROUP for a group that is not of consumers; AuthorizationError; TransportError.
        """
        checked_group_ids([group_id])
        wanted = partitions_of(partitions)
        attempts = ChangeAttempts()
        results = await self._calls.one(
            lambda cluster: offsets.delete(cluster, group_id, wanted, attempts)
        )
        return changed(f"deleting offsets of group {group_id!r}", results)

    async def plan_reset(
        self,
        group_id: str,
        partitions: Partitions | None = None,
        *,
        to: ResetTo | None = None,
        shift: int | None = None,
    ) -> OffsetPlan:
        """Return a plan to reset offsets: `to` "earliest", "latest", an offset, a `datetime` with a
        time zone (the first record at or after it; the log's end without one) or a `timedelta`
        before now; or by `shift` offsets. Offsets stay within the log. `partitions` None: all that
        the group has committed offsets of. Changes nothing.

        Raises: ConfigurationError; BrokerError; TransportError.
        """
        committed = await self._committed(group_id)
        wanted = None if partitions is None else partitions_of(partitions)
        return await reset.plan(self._calls, group_id, committed, wanted, to, shift)

    async def plan_offsets(
        self, group_id: str, to: ByPartition[int | OffsetAndMetadata]
    ) -> OffsetPlan:
        """Return a plan to commit these offsets, such as those of `offsets_from_json`. Changes
        nothing. Raises: ConfigurationError; BrokerError; TransportError."""
        committed = await self._committed(group_id)
        return reset.plan_to_commit(self._calls, group_id, committed, offsets_of(to))

    async def apply(self, plan: OffsetPlan) -> None:
        """Commit the changed offsets of a plan.

        Raises: ClusterChangedError if the plan was made in another cluster; IllegalStateError when
        a committed offset has changed since the plan was made; what `alter_offsets` raises.
        """
        require_cluster(plan.cluster_id, self.cluster_id, "the plan's offsets")
        committed = await self._committed(plan.group_id)
        for tp, change in plan.changes.items():
            if committed.get(tp) != change.before:
                raise IllegalStateError(
                    f"group {plan.group_id!r} has committed {tp} since the plan was made; make"
                    " another"
                )
        await self.alter_offsets(
            plan.group_id,
            {tp: c.after for tp, c in plan.changes.items() if c.after != c.before},
        )

    async def _committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        checked_group_ids([group_id])
        return await self._calls.one(lambda cluster: offsets.committed(cluster, group_id))

    # ------------------------------------------------------------ transactions

    async def list_transactions(
        self,
        *,
        states: Iterable[TransactionState] = (),
        producer_ids: Iterable[int] = (),
        open_longer_than: timedelta | None = None,
        pattern: str | None = None,
    ) -> TransactionList:
        """List the transactional ids of all brokers. With arguments, only the ids that have one of
        these states, one of these producer ids, and a transaction that has been open for longer
        than this, and that `pattern`, in the syntax of RE2J, matches as a whole.

        Brokers leave out ids that this principal may not describe. The list's `errors` have the
        brokers that failed: UnsupportedVersionError before Kafka 3.0, and when a broker cannot
        filter by times (before 3.8) or patterns (before 4.1). Raises: ConfigurationError;
        TransportError when no broker responds.
        """
        if not isinstance(producer_ids, Iterable):
            raise ConfigurationError(f"producer_ids={producer_ids!r}; expected several, in a list")
        ids = tuple(producer_ids)
        # A request with another type cannot be encoded, as one with a filter for newer brokers.
        if not all(isinstance(one, int) for one in ids):
            raise ConfigurationError(f"producer_ids={ids!r}; expected whole numbers")
        if not isinstance(open_longer_than, timedelta | None):
            raise ConfigurationError(
                f"open_longer_than={open_longer_than!r}; expected a datetime.timedelta"
            )
        if not isinstance(pattern, str | None):
            raise ConfigurationError(f"pattern={pattern!r}; expected a string")
        return await transactions.list_transactions(
            self._calls,
            states=_names(states, TransactionState),
            producer_ids=ids,
            open_longer_than=open_longer_than,
            pattern=pattern,
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | KafkaGroupError]:
        """Return each transactional id's description, or the error that `describe_transaction`
        raises."""
        return await self._calls.each(_transactional_ids(transactional_ids), transactions.describe)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return the state of a transactional id, and the partitions of its open transaction.

        Raises: BrokerError TRANSACTIONAL_ID_NOT_FOUND; AuthorizationError; UnsupportedVersionError
        before Kafka 3.0; TransportError, or the last retriable BrokerError, after the timeout.
        """
        _transactional_ids([transactional_id])
        return await self._calls.one(
            lambda cluster: transactions.describe(cluster, transactional_id)
        )

    async def describe_producers(
        self, partitions: Partitions
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...] | KafkaGroupError]:
        """Return the idempotent and transactional producers that each partition's leader knows, by
        producer id, or the partition's error: BrokerError UNKNOWN_TOPIC_OR_PARTITION;
        AuthorizationError; UnsupportedVersionError before Kafka 2.8."""
        return await transactions.describe_producers(self._calls, partitions_of(partitions))

    async def open_transactions(
        self, partitions: Partitions
    ) -> dict[TopicPartition, tuple[OpenTransaction, ...] | KafkaGroupError]:
        """Return the open transactions of each partition, the first one first, or the partition's
        error. They come with what the coordinators know, so that `is_hanging` tells which of them
        nothing will end.

        Without the right to describe a transactional id, its transaction seems to hang. Raises:
        BrokerError, UnsupportedVersionError or TransportError when not every broker could list its
        transactional ids.
        """
        return await transactions.open_transactions(self._calls, partitions_of(partitions))

    async def abort_transaction(
        self, partition: Partition, start_offset: int, *, force: bool = False
    ) -> None:
        """Abort the transaction that begins at an offset of a partition and hangs: write an abort
        marker to the partition, as `kafka-transactions.sh abort` does. Consumers with
        `read_committed` then get the records after the transaction's start.

        A transaction that its coordinator will end is refused without `force`: a marker in one
        partition would abort a part of what the coordinator may commit. To end such a transaction
        earlier, start a producer with its transactional id, or stop the producer that has it.

        Raises: IllegalStateError when no transaction begins there, or it does not hang; BrokerError
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED when the producer or its coordinator
        has a later epoch by now; AuthorizationError without ALTER on the cluster; what
        `open_transactions` raises.
        """
        tp = partition_of(partition)
        offset_of(tp, start_offset)  # raises ConfigurationError for what is no offset
        found = (await transactions.open_transactions(self._calls, [tp]))[tp]
        if isinstance(found, KafkaGroupError):
            raise found
        opened = transactions.require_hanging(found, tp, start_offset, force=force)
        attempts = ChangeAttempts()
        await self._calls.one(lambda cluster: transactions.abort(cluster, opened, attempts))

    # ------------------------------------------------------------ removing

    async def remove_member(
        self,
        group_id: str,
        *,
        member_id: str | None = None,
        instance_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Remove a member from a group, by its member id, or a static member by its instance id.
        Its partitions are assigned to others at once. A member that still runs joins again.

        Raises: ConfigurationError for both ids or neither; BrokerError UNKNOWN_MEMBER_ID;
        UnsupportedVersionError for an instance id before Kafka 2.4; TransportError.
        """
        checked_group_ids([group_id])
        if (member_id is None) == (instance_id is None):
            raise ConfigurationError("expected one of member_id and instance_id")
        member = MemberIdentity(
            member_id=member_id or "", group_instance_id=instance_id, reason=reason
        )
        attempts = ChangeAttempts()
        await self._calls.one(
            lambda cluster: removing.remove_member(cluster, group_id, member, attempts)
        )

    async def delete_groups(self, group_ids: Iterable[str]) -> tuple[str, ...]:
        """Delete groups without members, with their committed offsets. Returns their ids.

        Raises: ChangesRefusedError, when groups were not deleted, with the ids of those that were,
        and an error for each other group: BrokerError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND;
        AuthorizationError; TransportError.
        """
        attempts = defaultdict[str, ChangeAttempts](ChangeAttempts)

        async def delete(cluster: Cluster, group_id: str) -> None:
            await removing.delete_group(cluster, group_id, attempts[group_id])

        return await self._calls.change("deleting groups", checked_group_ids(group_ids), delete)


def _new_topics(topics: Iterable[NewTopic]) -> list[NewTopic]:
    """Return the topics to create. Raises: ConfigurationError for anything else."""
    are_several = isinstance(topics, Iterable) and not isinstance(topics, str)
    several = list(topics) if are_several else []
    if not are_several or not all(isinstance(topic, NewTopic) for topic in several):
        raise ConfigurationError(
            "create_topics() takes a list: [kafkagroup.admin.NewTopic(name='orders', partitions=6)]"
        )
    checked_names((topic.name for topic in several), "topic")
    return several


def _transactional_ids(transactional_ids: Iterable[str]) -> list[str]:
    """Return the ids without duplicates. Raises: ConfigurationError as `checked_names`, and for an
    empty id."""
    found = checked_names(transactional_ids, "transactional id")
    if not all(found):
        raise ConfigurationError("transactional_id is empty")
    return found


def _names(
    values: Iterable[str],
    kind: type[GroupState] | type[GroupType] | type[TransactionState],
) -> list[str]:
    """Return Kafka's names of states or types. Raises: ConfigurationError for an unknown one, and
    for one in place of several."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigurationError(f"expected several states or types, not {values!r} alone")
    known = sorted({member.value for member in kind} - {kind.UNKNOWN.value})
    found = [str(value) for value in values]
    for name in found:
        if name not in known:
            raise ConfigurationError(f"{name!r} is none of {', '.join(known)}")
    return found
