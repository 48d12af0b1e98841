"""`EmbeddedKafka`: the cluster and its server as one object, for tests and demonstrations.

Between `with` it runs on an event loop in a thread of its own, and every method may be called from
any thread. Between `async with` it runs on the caller's loop, asyncio or trio, real or virtual
time, and its methods are to be called there. Methods wait for no client, only for the broker.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
from anyio.from_thread import BlockingPortal, start_blocking_portal

from kafkagroup.errors import ConfigurationError, IllegalStateError
from kafkagroup.testing.embedded.cluster import Cluster, Partition
from kafkagroup.testing.embedded.faults import Action, Fault, Faults
from kafkagroup.testing.embedded.sasl import MECHANISMS, Accounts
from kafkagroup.testing.embedded.server import Seen, Server
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.group import DescribedGroup
from kafkagroup.wire.records import NewRecord, encode_batch
from kafkagroup.wire.schema import Request

__all__ = ["EmbeddedKafka"]

T = TypeVar("T")

_DESCRIBE_VERSION = 5
"""The last one that describes an unknown group as "Dead" rather than as an error."""


class EmbeddedKafka:
    """Kafka in this process, on loopback: topics, records, offsets, groups of both kinds, nodes.

    ```python
    with EmbeddedKafka({"orders": 2}) as kafka:
        kafka.produce("orders", ["one", "two"])
        consume(kafka.bootstrap_servers)
        assert kafka.committed("my-group", "orders") == {0: 1, 1: 1}
    ```

    Answers, errors and timing rules follow Apache Kafka 4.3; the docstring of the package lists
    where they do not. Nodes are numbered from 1.
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
        wall: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
        users: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
    ) -> None:
        """Prepare a cluster; nothing runs yet.

        `topics` maps names to partition counts. `ports` are those to listen on, one a node; by
        default the system chooses, and a node keeps its port over restarts. With `listen=False`
        there are no sockets: connections come by `handle_stream`, and the nodes are advertised as
        `kafka-<id>:9092`. Topic and member ids follow from `seed`, timestamps of produced records
        from `wall`, in seconds since the epoch.

        With `tls`, a server's context, all connections are TLS; clients need a certificate if its
        `verify_mode` says so. With `users`, names and their passwords, clients have to authenticate
        by one of `mechanisms`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Whoever has may do anything.

        Raises: ConfigurationError.
        """
        if nodes < 1 or (ports and len(ports) != nodes):
            raise ConfigurationError(f"{nodes} nodes with {len(ports)} ports: give one port a node")
        self._cluster = Cluster(range(1, nodes + 1), settings or BrokerSettings(), seed)
        self._faults = Faults()
        accounts = None
        if users is not None:
            accounts = Accounts(users, mechanisms, self._cluster.settings, seed)
        self._server = Server(self._cluster, self._faults, host, tls, accounts)
        self._listen = listen
        self._wall = wall
        self._next_partition = 0
        self._group: anyio.abc.TaskGroup | None = None
        self._portal: BlockingPortal | None = None
        self._thread: ExitStack | None = None
        for node in self._cluster.nodes.values():
            node.host = host if listen else f"kafka-{node.node_id}"
            node.port = 9092 if not listen else ports[node.node_id - 1] if ports else 0
        for name, partitions in (topics or {}).items():
            self._cluster.create_topic(name, partitions)

    # ------------------------------------------------------------ running

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise IllegalStateError("this EmbeddedKafka runs already")
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._server.run_clock)
        if self._listen:
            try:
                for node in self._cluster.nodes.values():
                    await self._group.start(self._server.run_node, node)
            except BaseException as error:
                # A port that is taken: what runs already would be left behind.
                await self.__aexit__(type(error), error, error.__traceback__)
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        group, self._group = self._group, None
        assert group is not None
        group.cancel_scope.cancel()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            await group.__aexit__(kind, error, trace)
        else:
            # The task group would wrap the caller's own exception; this way it leaves bare.
            await group.__aexit__(None, None, None)

    async def serve(
        self, *, task_status: anyio.abc.TaskStatus[Self] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until cancelled: for `await task_group.start(kafka.serve)`."""
        async with self:
            task_status.started(self)
            await anyio.sleep_forever()

    async def handle_stream(self, stream: anyio.abc.ByteStream, node_id: int) -> None:
        """Be node `node_id` at the other end of a connection; closes the stream at the end."""
        await self._server.handle_stream(stream, node_id)

    def start(self) -> Self:
        """Run in a thread of its own until `stop`."""
        if self._thread is not None:
            raise IllegalStateError("this EmbeddedKafka runs already")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self))
            self._portal = portal
            self._thread = stack.pop_all()
        return self

    def stop(self) -> None:
        """Cut all connections and end the thread. What is in the logs can still be asked for."""
        thread, self._thread, self._portal = self._thread, None, None
        if thread is not None:
            thread.close()

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
        """Call on the loop's thread: the cluster is for one thread alone."""
        if self._portal is None:
            return function(*arguments)
        return self._portal.call(function, *arguments)

    # ------------------------------------------------------------ addresses and nodes

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node, comma-separated, whether it is alive or not."""
        return ",".join(self.address(node_id) for node_id in self._cluster.nodes)

    def address(self, node_id: int) -> str:
        """`host:port` of one node."""
        node = self._cluster.nodes[node_id]
        return f"{node.host}:{node.port}"

    def kill(self, node_id: int) -> None:
        """Cut a node off at once. Others lead its partitions and coordinate its groups.

        Logs and offsets survive. A rebalance that was under way is forgotten, as its coordinator
        had not written it. On the caller's own loop the listener closes when the loop next runs.
        """
        self._call(self._server.kill, node_id)
        if self._portal is not None:
            self._portal.call(self._server.wait_down, node_id)

    def restart(self, node_id: int) -> None:
        """Bring a killed node back, on its port. Leaders stay where they are."""
        self._call(self._server.restart, node_id)
        if self._portal is not None:
            self._portal.call(self._server.wait_up, node_id)

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads the partition; -1 when none is alive."""
        return self._partition(topic, partition).leader

    def coordinator(self, group_id: str) -> int:
        """The node that coordinates the group; -1 when none is alive."""
        return self._call(self._cluster.coordinator_of, group_id)

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Let another node lead the partition, in a new leader epoch."""
        self._call(self._cluster.move_leader, topic, partition, node_id)

    def move_coordinator(self, group_id: str, node_id: int) -> None:
        """Let another node coordinate the group. It knows what was written of it, as in `kill`."""

        def move() -> None:
            self._cluster.move_coordinator(group_id, node_id, anyio.current_time())

        self._call(move)

    # ------------------------------------------------------------ topics and records

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic. Raises: BrokerError."""
        self._call(self._cluster.create_topic, name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and the offsets committed for it."""
        self._call(self._cluster.delete_topic, name)

    def add_partitions(self, topic: str, count: int) -> None:
        """Let the topic have `count` partitions. Raises: ValueError when it has more."""
        self._call(self._cluster.add_partitions, topic, count)

    def produce(
        self,
        topic: str,
        records: Iterable[str | bytes | NewRecord],
        *,
        partition: int | None = None,
    ) -> tuple[TopicPartition, ...]:
        """Append records, to one partition or to all in turn; answer where each one went.

        One batch per partition. A record without a timestamp gets the time of `wall`.
        """
        now_ms = int(self._wall() * 1000)
        batches: dict[int, list[NewRecord]] = {}
        went: list[TopicPartition] = []
        count = self.partitions(topic)
        for record in records:
            made = record
            if not isinstance(made, NewRecord):
                made = NewRecord(None, made.encode() if isinstance(made, str) else made)
            if made.timestamp < 0:
                made = made._replace(timestamp=now_ms)
            index = partition
            if index is None:
                index = self._next_partition % count
                self._next_partition += 1
            batches.setdefault(index, []).append(made)
            went.append(TopicPartition(topic, index))
        for index, batch in batches.items():
            self.append(topic, index, encode_batch(batch))
        return tuple(went)

    def append(self, topic: str, partition: int, batch: bytes) -> int:
        """Append one encoded batch as it is, unchecked; answer the offset of its first record.

        For what producers do not send: batches that compaction has thinned out, control batches.
        """
        return self._call(self._cluster.append, self._partition(topic, partition), batch)

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return len(self._cluster.topics[topic].partitions)

    def log_start(self, topic: str, partition: int) -> int:
        """The first offset that can be read."""
        return self._partition(topic, partition).log.start

    def log_end(self, topic: str, partition: int) -> int:
        """The offset that the next record gets."""
        return self._partition(topic, partition).log.end

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records below an offset. Raises: ValueError for one beyond the end."""
        self._call(self._partition(topic, partition).log.delete_before, before)

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Lose the records from `offset` on, as an unclean election does: in a new leader epoch."""

        def truncate() -> None:
            found = self._partition(topic, partition)
            found.log.truncate(offset)
            self._cluster.move_leader(topic, partition, found.leader)

        self._call(truncate)

    def _partition(self, topic: str, partition: int) -> Partition:
        found = self._cluster.partition(topic, partition)
        if found is None:
            raise ConfigurationError(f"there is no partition {topic}/{partition}")
        return found

    # ------------------------------------------------------------ groups

    def committed(self, group_id: str, topic: str) -> dict[int, int]:
        """Partition -> the offset that the group has committed for it."""
        offsets = self.committed_offsets(group_id)
        return {tp.partition: found.offset for tp, found in offsets.items() if tp.topic == topic}

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All that the group has committed, with metadata and leader epochs, sorted."""
        return self._call(lambda: dict(sorted(self._cluster.offsets.get(group_id, {}).items())))

    def expire_offsets(self, group_id: str) -> None:
        """Forget what the group has committed, as retention does in time."""
        self._call(self._cluster.offsets.pop, group_id, None)

    def group_state(self, group_id: str) -> str:
        """Kafka's name of the group's state, of whatever kind it is; "Dead" if it is not known."""
        described = self._call(self._cluster.consumer_groups.describe, group_id)
        return described.group_state or self.describe_group(group_id).group_state

    def describe_group(self, group_id: str) -> DescribedGroup:
        """The group as DescribeGroups tells of it."""
        return self._call(self._cluster.coordinator.describe, group_id, _DESCRIBE_VERSION)

    # ------------------------------------------------------------ faults

    def fail(
        self,
        api: type[Request[Any]],
        action: Action,
        *,
        times: int | None = 1,
        node_id: int | None = None,
        when: Callable[[Any], bool] | None = None,
    ) -> Fault:
        """Let the next `times` requests of this kind go wrong; None: all, until `Fault.stop`.

        An `ErrorCode` is answered instead of doing what was asked; `Close`, `Swallow` and `Delay`
        say what happens to the answer. `when` picks among the requests. The oldest rule wins.
        """
        fault = Fault(api, action, times, node_id, when)
        self._call(self._faults.rules.append, fault)
        return fault

    def requests(self, api: type[Request[Any]] | None = None) -> list[Seen]:
        """The last 10,000 requests, oldest first; of one kind, or all."""
        seen = self._call(lambda: tuple(self._server.seen))
        return [one for one in seen if api in (None, one.api)]
