"""`EmbeddedKafka`: the cluster and its server as one object, for tests and demonstrations.

In `with`, it runs on an event loop in its own thread, and its methods may be called from any
thread. In `async with`, it runs on the caller's loop (asyncio or trio, real or virtual time), and
its methods must be called there. Methods wait only for the broker, never for a client.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
from anyio.from_thread import BlockingPortal, start_blocking_portal

from kafkagroup.errors import BrokerError, ConfigurationError, ErrorCode, IllegalStateError
from kafkagroup.testing.embedded.cluster import Cluster, Node, Partition
from kafkagroup.testing.embedded.faults import Action, Fault, Faults, check_api, check_fault
from kafkagroup.testing.embedded.oauthbearer import TokenUser
from kafkagroup.testing.embedded.producer_states import ProducerState
from kafkagroup.testing.embedded.sasl import MECHANISMS, Accounts
from kafkagroup.testing.embedded.server import Seen, Server
from kafkagroup.testing.embedded.settings import BrokerSettings, check_transaction_version
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.group import DescribedGroup
from kafkagroup.wire.schema import Request

__all__ = ["EmbeddedKafka"]

T = TypeVar("T")

_DESCRIBE_VERSION = 5
"""The last version of DescribeGroups that describes an unknown group as "Dead" instead of returning
an error."""


class EmbeddedKafka:
    """A Kafka cluster in this process, on loopback: nodes, topics, records, offsets, and groups of
    both protocols.

    ```python
    with EmbeddedKafka({"orders": 2}) as kafka:
        kafka.produce("orders", ["one", "two"])
        consume(kafka.bootstrap_servers)
        assert kafka.committed("my-group", "orders") == {0: 1, 1: 1}
    ```

    Responses, errors and timing follow Apache Kafka 4.3; the docstring of the package lists the
    differences. Nodes are numbered from 1.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        nodes: int = 1,
        settings: BrokerSettings | None = None,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (),
        listen: bool = True,
        seed: int = 0,
        cluster_id: str | None = None,
        wall: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
        users: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
        token_user: TokenUser | None = None,
    ) -> None:
        """Prepare a cluster; nothing runs yet.

        `topics` maps names to partition counts. `nodes` is the number of nodes, and `host` the
        address that they listen on. `ports` are their ports, one per node; by default the system
        chooses them, and a node keeps its port over restarts. With `listen=False` there are no
        sockets: connections come through `handle_stream`, and the nodes are advertised as
        `kafka-<id>:9092`. `seed` determines topic and member ids. `wall` returns the time in
        seconds since the epoch, for records without a timestamp, appends and transactions.

        `cluster_id` is the id in Metadata responses; with None, all clusters have the same id. To
        give clients another cluster at known addresses, start one with another id on the ports of a
        stopped one.

        With `tls`, a server-side SSL context, all connections use TLS; its `verify_mode` decides
        whether clients need a certificate. With `users`, which maps names to passwords, clients
        must authenticate with one of `mechanisms`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. With
        `token_user`, a function that returns the user of a bearer token, or None to refuse it, they
        may authenticate with OAUTHBEARER, and must if there are no `users`. There is no
        authorization.

        Raises: ConfigurationError; BrokerError for a topic that cannot be created.
        """
        if not _is_whole(nodes) or nodes < 1:
            raise ConfigurationError(f"nodes={nodes!r}; expected at least 1")
        _check_arguments(topics, settings, ports, tls, users, token_user)
        if ports and len(ports) != nodes:
            raise ConfigurationError(
                f"{nodes} nodes with {len(ports)} ports: give one port per node"
            )
        self._cluster = Cluster(range(1, nodes + 1), settings or BrokerSettings(), seed, cluster_id)
        self._faults = Faults()
        self._cluster.wall = wall
        self._cluster.injected_error = self._faults.injected_error
        self._cluster.injected_error_after = partial(self._faults.injected_error, executed=True)
        accounts = None
        if users is not None or token_user is not None:
            accounts = Accounts(
                users or {},
                mechanisms if users is not None else (),
                self._cluster.settings,
                seed,
                token_user,
            )
        self._server = Server(self._cluster, self._faults, host, tls, accounts)
        self._listen = listen
        self._wall = wall
        self._next_partition = 0
        """Counts the records that `produce` distributes over partitions."""
        self._task_group: anyio.abc.TaskGroup | None = None
        self._portal: BlockingPortal | None = None
        self._thread_stack: ExitStack | None = None
        """Stops the cluster and ends its own thread; None unless `start` was called."""
        for node in self._cluster.nodes.values():
            node.host = host if listen else f"kafka-{node.node_id}"
            if listen:
                node.port = ports[node.node_id - 1] if ports else 0
            else:
                node.port = 9092
        for name, partitions in (topics or {}).items():
            _check_topic(name, partitions)
            self._cluster.create_topic(name, partitions)

    # ------------------------------------------------------------ running

    async def __aenter__(self) -> Self:
        if self._task_group is not None:
            raise IllegalStateError("this EmbeddedKafka runs already")
        self._task_group = await anyio.create_task_group().__aenter__()
        self._task_group.start_soon(self._server.run_clock)
        if self._listen:
            try:
                for node in self._cluster.nodes.values():
                    await self._task_group.start(self._server.run_node, node)
            except BaseException as error:
                # For example a port in use: what already runs must be stopped.
                await self.__aexit__(type(error), error, error.__traceback__)
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        group, self._task_group = self._task_group, None
        assert group is not None
        group.cancel_scope.cancel()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            await group.__aexit__(kind, error, trace)
        else:
            # The task group would wrap the caller's exception in an ExceptionGroup.
            await group.__aexit__(None, None, None)

    async def serve(
        self, *, task_status: anyio.abc.TaskStatus[Self] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until cancelled; for `await task_group.start(kafka.serve)`."""
        async with self:
            task_status.started(self)
            await anyio.sleep_forever()

    async def handle_stream(self, stream: anyio.abc.ByteStream, node_id: int) -> None:
        """Serve a connection as node `node_id`, and close the stream at the end."""
        await self._server.handle_stream(stream, node_id)

    def start(self) -> Self:
        """Run the cluster in a thread of its own until `stop`. Raises: IllegalStateError if it runs
        already."""
        if self._thread_stack is not None:
            raise IllegalStateError("this EmbeddedKafka runs already")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self))
            self._portal = portal
            self._thread_stack = stack.pop_all()
        return self

    def stop(self) -> None:
        """Close all connections and end the thread. The logs can still be read."""
        stack, self._thread_stack, self._portal = self._thread_stack, None, None
        if stack is not None:
            stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call the function on the loop's thread: the cluster is not thread-safe. Methods that read
        only one value, such as `leader`, do without.

        Raises: IllegalStateError if the function needs the loop's clock, and this thread has none.
        """
        if self._portal is not None:
            return self._portal.call(function, *arguments)
        try:
            return function(*arguments)
        except anyio.NoEventLoopError as error:
            raise IllegalStateError(
                "this EmbeddedKafka does not run in this thread: kill and restart nodes, and move"
                " coordinators, between its start and its stop; with `async with`, in its event"
                " loop"
            ) from error

    # ------------------------------------------------------------ addresses and nodes

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, alive or not, comma-separated. Raises: as `address`."""
        return ",".join(self.address(node_id) for node_id in self._cluster.nodes)

    def address(self, node_id: int) -> str:
        """`host:port` of one node. Raises: IllegalStateError before the start, if the system is to
        choose the port; ConfigurationError if there is no such node."""
        node = self._node(node_id)
        if node.port == 0:
            raise IllegalStateError(
                "this EmbeddedKafka was not started and has no port: use `with`, `async with` or"
                " start()"
            )
        return f"{node.host}:{node.port}"

    def kill(self, node_id: int) -> None:
        """Stop a node at once. Other nodes lead its partitions and coordinate its groups.

        Logs and committed offsets survive. A rebalance in progress is lost, as its coordinator had
        not written it to the log. In `async with`, the listener closes when the loop next runs.
        Raises: IllegalStateError if the cluster does not run; ConfigurationError if there is no
        such node.
        """
        self._node(node_id)
        self._call(self._server.kill, node_id)
        if self._portal is not None:
            self._portal.call(self._server.wait_down, node_id)

    def restart(self, node_id: int) -> None:
        """Restart a killed node on its port. Leaders do not move back. Raises: IllegalStateError if
        the node is alive, or the cluster does not run; ConfigurationError if there is no such
        node."""
        if self._node(node_id).is_alive:
            raise IllegalStateError(f"node {node_id} is alive; kill it first")
        self._call(self._server.restart, node_id)
        if self._portal is not None:
            self._portal.call(self._server.wait_up, node_id)

    def _node(self, node_id: int) -> Node:
        found = self._cluster.nodes.get(node_id)
        if found is None:
            raise ConfigurationError(
                f"there is no node {node_id!r}; the nodes are {[*self._cluster.nodes]}"
            )
        return found

    def leader(self, topic: str, partition: int) -> int:
        """Return the partition's leader; -1 while no node is alive."""
        return self._partition(topic, partition).leader

    def coordinator(self, key: str) -> int:
        """Return the coordinator of a group or a transactional id; -1 while no node is alive."""
        if not isinstance(key, str):
            raise ConfigurationError(f"key={key!r}; expected the id of a group or of transactions")
        return self._call(self._cluster.coordinator_of, key)

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make another node the partition's leader, in a new leader epoch.

        Raises: ValueError if that node is not alive; ConfigurationError if there is no such
        partition.
        """
        self._partition(topic, partition)
        self._call(self._cluster.move_leader, topic, partition, node_id)

    def move_coordinator(self, key: str, node_id: int) -> None:
        """Make another node the coordinator of a group or a transactional id.

        The node loads what the previous coordinator had written to the log, as after `kill`.
        Raises: ValueError if the node is not alive.
        """

        def move() -> None:
            self._cluster.move_coordinator(key, node_id, anyio.current_time())

        self._call(move)

    # ------------------------------------------------------------ topics and records

    def create_topic(
        self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, with options by Kafka's names. Raises: BrokerError; ConfigurationError
        for a name or a value that is no string, and a number of partitions that is none."""
        _check_topic(name, partitions)
        _check_configs(configs or {})
        self._call(self._cluster.create_topic, name, partitions, configs)

    def set_topic_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Set options of a topic, by Kafka's names; None resets one to its default.

        The docstring of the package lists the options that have an effect. Raises: BrokerError for
        an unknown topic or option, or an invalid value; ConfigurationError for one that is no
        string.
        """
        _check_configs(configs)
        found = self._cluster.topics.get(topic)
        if found is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic)
        self._call(found.configs.set, configs)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and the offsets committed for it. Raises: ConfigurationError if there is
        no such topic."""
        self.partitions(name)
        self._call(self._cluster.delete_topic, name)

    def add_partitions(self, topic: str, count: int) -> None:
        """Grow the topic to `count` partitions in all. Raises: ValueError if it has more;
        ConfigurationError if there is no such topic, and for a count that is none."""
        self.partitions(topic)
        _check_topic(topic, count)
        self._call(self._cluster.add_partitions, topic, count)

    def produce(
        self,
        topic: str,
        records: Iterable[str | bytes | NewRecord],
        *,
        partition: int | None = None,
    ) -> tuple[TopicPartition, ...]:
        """Append records, to one partition or round-robin; return the partition of each record.

        Each partition gets one batch. A str or bytes is the value of a record without a key.
        Records without a timestamp get the time of `wall`. Raises: ConfigurationError for a str or
        bytes instead of several records, a record of another type, and if there is no such topic or
        partition.
        """
        if isinstance(records, str | bytes | NewRecord) or not isinstance(records, Iterable):
            raise ConfigurationError(f"expected several records, not {records!r} alone")
        now_ms = int(self._wall() * 1000)
        batches: dict[int, list[NewRecord]] = {}
        assigned: list[TopicPartition] = []
        count = self.partitions(topic)
        if partition is not None:
            self._partition(topic, partition)
        for record in records:
            new = record
            if not isinstance(new, str | bytes | NewRecord):
                raise ConfigurationError(
                    f"a record is of type {type(new).__name__}; expected str or bytes, the value of"
                    " one without a key, or a kafkagroup.wire.NewRecord"
                )
            if not isinstance(new, NewRecord):
                new = NewRecord(None, new.encode() if isinstance(new, str) else new)
            if new.timestamp == -1:
                new = new._replace(timestamp=now_ms)
            index = partition
            if index is None:
                index = self._next_partition % count
                self._next_partition += 1
            batches.setdefault(index, []).append(new)
            assigned.append(TopicPartition(topic, index))
        for index, batch in batches.items():
            self.append(topic, index, encode_batch(batch))
        return tuple(assigned)

    def append(self, topic: str, partition: int, batch: bytes) -> int:
        """Append one encoded batch without checking its records; return the offset of its first
        record.

        For batches that producers do not send: compacted batches, control batches, and messages of
        formats 0 and 1. These messages keep the offsets that they have; for them, return where the
        log ended before. Raises: ValueError unless `batch` is exactly one batch, or whole messages
        that continue the log; CorruptRecordError if it is damaged.
        """
        return self._call(self._cluster.append, self._partition(topic, partition), batch)

    def partitions(self, topic: str) -> int:
        """Return the topic's partition count. Raises: ConfigurationError if there is no such
        topic."""
        if (found := self._cluster.topics.get(topic)) is None:
            raise ConfigurationError(f"there is no topic {topic}")
        return len(found.partitions)

    def log_start(self, topic: str, partition: int) -> int:
        """Return the first offset that can be read."""
        return self._partition(topic, partition).log.start

    def log_end(self, topic: str, partition: int) -> int:
        """Return the offset of the next record."""
        return self._partition(topic, partition).log.end

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records below an offset. Raises: ValueError for an offset beyond the end."""
        self._call(self._partition(topic, partition).log.delete_before, before)

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Drop the records from `offset` on and start a new leader epoch, as after an unclean
        leader election. A batch that contains `offset` is dropped as a whole. Needs a live node."""

        def truncate() -> None:
            found = self._partition(topic, partition)
            found.log.truncate(offset)
            self._cluster.move_leader(topic, partition, found.leader)

        self._call(truncate)

    def _partition(self, topic: str, partition: int) -> Partition:
        found = self._cluster.partition(topic, partition) if _is_whole(partition) else None
        if found is None:
            raise ConfigurationError(f"there is no partition {topic}/{partition}")
        return found

    # ------------------------------------------------------------ producers and transactions

    def producers(self, topic: str, partition: int) -> tuple[ProducerState, ...]:
        """Return what the partition knows of its idempotent and transactional producers.

        A producer that has expired is listed until a producer writes to the partition.
        """
        return self._call(self._partition(topic, partition).log.producers.states)

    def stable_end(self, topic: str, partition: int) -> int:
        """Return the last stable offset, up to which consumers with `read_committed` read."""
        return self._partition(topic, partition).log.stable_end

    def transaction_state(self, transactional_id: str) -> str:
        """Return the state of a transactional id by Kafka's name; "Dead" if unknown."""
        found = self._call(self._cluster.transaction_coordinator.transactions.get, transactional_id)
        return "Dead" if found is None else found.state.value

    def set_transaction_version(self, version: int) -> None:
        """Change the finalized feature `transaction.version`, which ApiVersions reports to clients.
        Raises: ConfigurationError unless it is 0, 1 or 2."""
        check_transaction_version(version)
        self._call(self._cluster.set_transaction_version, version)

    # ------------------------------------------------------------ groups

    def committed(self, group_id: str, topic: str) -> dict[int, int]:
        """Return partition -> the group's committed offset, for one topic."""
        offsets = self.committed_offsets(group_id)
        return {tp.partition: found.offset for tp, found in offsets.items() if tp.topic == topic}

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all committed offsets of the group, with metadata and leader epochs, sorted."""
        return self._call(lambda: dict(sorted(self._cluster.offsets.get(group_id, {}).items())))

    def expire_offsets(self, group_id: str) -> None:
        """Delete the group's committed offsets, as offset retention does."""
        self._call(self._cluster.offsets.pop, group_id, None)

    def group_state(self, group_id: str) -> str:
        """Return the group's state by Kafka's name, for either group type; "Dead" if unknown."""
        described = self._call(self._cluster.consumer_coordinator.describe, group_id)
        # "" if there is no such consumer group (KIP-848).
        return described.group_state or self.describe_group(group_id).group_state

    def describe_group(self, group_id: str) -> DescribedGroup:
        """Return the group's description in a DescribeGroups response."""
        return self._call(self._cluster.classic_coordinator.describe, group_id, _DESCRIBE_VERSION)

    # ------------------------------------------------------------ faults

    def fail(
        self,
        api: type[Request[Any]],
        action: Action,
        *,
        times: int | None = 1,
        node_id: int | None = None,
        when: Callable[[Any], bool] | None = None,
        partition: TopicPartition | None = None,
        executed: bool = False,
    ) -> Fault:
        """Inject a fault into the next `times` requests of this type; None: until `Fault.stop`.

        An error code is returned instead of executing the request; `Change`, `Close`, `Swallow`,
        `Delay` and `Throttle` affect the response, and `Late` the time of the execution.
        `Close(before=True)` prevents the execution. `node_id` and `when` select requests. If
        several faults match a request, the oldest one applies.

        With a `partition`, `action` must be an error code, and `when` has no effect. Only the entry
        of that partition has the error code, in the next `times` responses to DescribeProducers,
        Fetch, ListOffsets, OffsetFetch, OffsetForLeaderEpoch, Produce or WriteTxnMarkers that have
        such an entry. With `executed`, the records that a Produce has for that partition, or the
        marker, are appended all the same.

        Raises: ConfigurationError for a fault that could hit no request.
        """
        fault = Fault(api, action, times, node_id, when, partition, executed)
        check_fault(fault)
        if node_id is not None:
            self._node(node_id)
        self._call(self._faults.rules.append, fault)
        return fault

    def requests(self, api: type[Request[Any]] | None = None) -> list[Seen]:
        """Return those of the last 10,000 requests that are of one type, or all; oldest first.
        Raises: ConfigurationError for what is no class of requests."""
        if api is not None:
            check_api(api)
        seen = self._call(lambda: tuple(self._server.seen))
        return [one for one in seen if api in (None, one.api)]


def _check_configs(configs: Mapping[str, object]) -> None:
    if not isinstance(configs, Mapping):
        raise ConfigurationError(
            f"configs={configs!r}; expected a mapping, such as {{'cleanup.policy': 'compact'}}"
        )
    for name, value in configs.items():
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"{name}={value!r}; expected a string, such as {str(value)!r}")


def _check_arguments(
    topics: object, settings: object, ports: object, tls: object, users: object, token_user: object
) -> None:
    """Raises: ConfigurationError for arguments of the constructor that have a wrong type."""
    if not isinstance(topics, Mapping | None):
        raise ConfigurationError(
            f"topics={topics!r}; expected names with their numbers of partitions: {{'orders': 3}}"
        )
    if not isinstance(settings, BrokerSettings | None):
        raise ConfigurationError(f"settings={settings!r}; expected BrokerSettings(...)")
    if not isinstance(ports, Sequence) or not all(map(_is_whole, ports)):
        raise ConfigurationError(f"ports={ports!r}; expected whole numbers, one per node")
    if not isinstance(tls, ssl.SSLContext | None):
        raise ConfigurationError(f"tls={tls!r}; expected an ssl.SSLContext of a server")
    if not isinstance(users, Mapping | None):  # they may be secret
        raise ConfigurationError(
            f"users is of type {type(users).__name__}; expected names with their passwords:"
            " {'ann': 'secret'}"
        )
    if token_user is not None and not callable(token_user):
        raise ConfigurationError(f"token_user={token_user!r}; expected a function")


def _check_topic(name: object, partitions: object) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f"topic={name!r}; expected the name of a topic")
    if not _is_whole(partitions):
        raise ConfigurationError(
            f"topic {name!r}: partitions={partitions!r}; expected a whole number, at least 1"
        )


def _is_whole(value: object) -> bool:
    # bool is a subclass of int.
    return isinstance(value, int) and not isinstance(value, bool)
