"""One broker: its connections, and every request of a group client as a coroutine.

Connections are made on first use and kept apart by connection id, because a broker answers one
connection's requests in order: a parked JoinGroup or a long Fetch blocks what is behind it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import anyio

from kafkagroup.errors import (
    ConnectionLostError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
    escaped,
)
from kafkagroup.transport.clock import loop_clock
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.trouble import WARN_AFTER, Problem, Troubles
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopics,
)
from kafkagroup.wire.schema import NO_ID, Request

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.wire.messages.produce import ProduceResponse

__all__ = ["MAIN", "Broker", "BrokerThrottle"]

R = TypeVar("R")

MAIN = ""
"""Connection id of what answers at once: metadata, offsets of logs, committed offsets, and what a
member says beside a parked join."""

_OFFSETS = "offsets"
"""Connection id of committed offsets, where they have a channel of their own."""

_MAX_THROTTLE = 30.0
"""Longest that a broker can mute us, in seconds; a claim beyond it is a bug or an attack."""


_NOT_CONNECTED = (
    "check that a broker listens there, and that names, firewalls and advertised.listeners lead"
    " this client to it"
)
_NO_ANSWER = "check that the broker is alive and not overloaded, and what lies between"
_WAITS = (
    "either the coordinator hangs, or another member of the group does not rejoin: the coordinator"
    " waits for it as long as its rebalance timeout"
)
_NO_BROKER = "check that a Kafka broker listens there, and that no proxy changes what it sends"


class BrokerThrottle:
    """What a broker wants to hear: nothing, for a while (KIP-219). Of one address, whichever
    `Broker` it is known by."""

    def __init__(self) -> None:
        self.until = 0.0
        """When it listens again, on the loop's clock."""


class Broker:
    """One broker of a cluster, or any address that speaks the protocol.

    ```python
    async with Broker.open("localhost", 9092) as broker:
        metadata = await broker.request_metadata(["orders"])
    ```
    """

    def __init__(
        self,
        node_id: int,
        host: str,
        port: int,
        tasks: TaskGroup,
        options: ClientOptions | None = None,
        *,
        offsets_channel_timeout: float | None = None,
        silence: BrokerThrottle | None = None,
        troubles: Troubles | None = None,
    ) -> None:
        """With `offsets_channel_timeout`, in seconds, committed offsets have a connection of their
        own, the offsets channel; else they share the main one. What fails is reported to
        `troubles`, where something tries it again."""
        self.node_id = node_id
        self.host = host
        self.port = port
        self._tasks = tasks
        self._options = options or ClientOptions()
        self._offsets = MAIN if offsets_channel_timeout is None else _OFFSETS
        self._offsets_timeout = offsets_channel_timeout or self._options.request_timeout
        self._connections: dict[str, BrokerConnection] = {}
        self._connecting: dict[str, anyio.Lock] = {}
        self._silence = silence or BrokerThrottle()
        self._troubles = troubles
        self._closings = 0

    def __repr__(self) -> str:
        return f"Broker({self.node_id}, {escaped(self.host)!r}, {self.port})"

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        host: str,
        port: int,
        *,
        node_id: int = -1,
        options: ClientOptions | None = None,
        offsets_channel_timeout: float | None = None,
    ) -> AsyncIterator[Broker]:
        """A broker on its own, connected; everything is closed on leaving. TLS and SASL are among
        the `options`: `ClientOptions(security=...)`.

        Raises: ConnectionLostError, RequestTimeoutError, RemoteProtocolError, AuthenticationError.
        """
        async with anyio.create_task_group() as tasks:
            broker = cls(
                node_id, host, port, tasks, options, offsets_channel_timeout=offsets_channel_timeout
            )
            failure: Exception | None = None
            try:
                await broker.connect()
                yield broker
            except Exception as error:
                # Raised below, outside the task group, which would wrap it into an ExceptionGroup.
                failure = error
            finally:
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    @classmethod
    def from_metadata(
        cls,
        metadata: MetadataResponseBroker,
        tasks: TaskGroup,
        options: ClientOptions | None = None,
        *,
        offsets_channel_timeout: float | None = None,
    ) -> Broker:
        """The broker that an entry of a metadata answer describes, not yet connected."""
        return cls(
            metadata.node_id,
            metadata.host,
            metadata.port,
            tasks,
            options,
            offsets_channel_timeout=offsets_channel_timeout,
        )

    # ------------------------------------------------------------ connections

    async def connect(self, connection_id: str = MAIN) -> None:
        """Open a connection if it is not open."""
        await self._connection(connection_id)

    async def connect_offsets_channel(self) -> None:
        """Open the connection for committed offsets if it is not open."""
        await self._connection(self._offsets)

    def is_connected(self, connection_id: str = MAIN) -> bool:
        """Whether a connection is open."""
        return self._open_connection(connection_id) is not None

    @property
    def connected(self) -> bool:
        """Whether the main connection is open."""
        return self.is_connected()

    @property
    def offsets_channel_connected(self) -> bool:
        """Whether the connection for committed offsets is open."""
        return self.is_connected(self._offsets)

    async def aclose(self) -> None:
        """Close every connection; what waits on them fails with ConnectionLostError."""
        self._closings += 1
        for connection in tuple(self._connections.values()):
            await connection.aclose()

    async def disconnect(self, connection_id: str) -> None:
        """Close one connection, if it is open."""
        if connection := self._connections.pop(connection_id, None):
            await connection.aclose()

    async def _connection(self, connection_id: str) -> BrokerConnection:
        if (connection := self._open_connection(connection_id)) is not None:
            return connection
        lock = self._connecting.setdefault(connection_id, anyio.Lock())
        try:
            async with lock:
                return await self._connect(connection_id)
        finally:
            # Kept for those alone who wait for it: it takes more than the rest of an idle broker.
            # By then others may have one of their own.
            if not lock.locked() and self._connecting.get(connection_id) is lock:
                del self._connecting[connection_id]

    def _open_connection(self, connection_id: str) -> BrokerConnection | None:
        connection = self._connections.get(connection_id)
        return None if connection is None or connection.closed else connection

    async def _connect(self, connection_id: str) -> BrokerConnection:
        if (connection := self._open_connection(connection_id)) is not None:
            return connection  # another has made it meanwhile
        closings, started = self._closings, anyio.current_time()
        try:
            connection = await BrokerConnection.connect(
                self.host, self.port, self._options, self._tasks
            )
        except (TransportError, RemoteProtocolError) as error:
            self._failed(None, error, _NOT_CONNECTED, since=started)
            raise
        self._succeeded(None)
        if closings != self._closings:
            # Closed while it connected: nobody else would ever close this one.
            await connection.aclose()
            raise ConnectionLostError(f"{escaped(self.host)}:{self.port}: was closed here")
        connection.heard = self._mute
        connection.late = partial(self._late, connection_id)
        self._connections[connection_id] = connection
        return connection

    async def request(
        self,
        request: Request[R],
        *,
        connection_id: str = MAIN,
        timeout: float | None = None,
        highest: int | None = None,
        keeps: float | None = None,
        on_answer: Callable[[R], None] | None = None,
    ) -> R:
        """Send any request; answer its answer, error codes and all. `keeps`: seconds that the
        broker may rightly take; None for what `timeout` has beyond the request timeout.
        `on_answer` as of `BrokerConnection.request`.

        Raises: TransportError, RemoteProtocolError, UnsupportedVersionError.
        """
        usual = self._options.request_timeout
        if timeout is None:
            timeout = usual
        if keeps is None:
            keeps = max(timeout - usual, 0.0)
        connection = await self._audible(connection_id)
        try:
            answer = await connection.request(
                request,
                timeout=timeout,
                highest=highest,
                late_after=WARN_AFTER + keeps,
                on_answer=on_answer,
            )
        except RequestTimeoutError as error:
            started = anyio.current_time() - timeout
            self._unanswered(connection_id, type(request), error, started)
            raise
        except ConnectionLostError as error:
            self._failed(connection_id, error, _NOT_CONNECTED)
            raise
        except RemoteProtocolError as error:
            self._failed(connection_id, error, _NO_BROKER)
            raise
        self._succeeded(connection_id)
        return answer

    async def ready(self, connection_id: str = MAIN) -> None:
        """Wait until a request would leave at once. Raises as `request`."""
        await self._audible(connection_id)

    async def _audible(self, connection_id: str) -> BrokerConnection:
        """An open connection, while the broker listens."""
        # Again and again: an answer that comes meanwhile may ask for a longer silence.
        while True:
            connection = await self._connection(connection_id)
            until = self._silence.until
            if not until or anyio.current_time() >= until:
                return connection
            await anyio.sleep_until(until)

    def _late(self, connection_id: str, request: type[Request[Any]], sent: float) -> None:
        error = RequestTimeoutError(f"no answer to {request.__name__}")
        self._unanswered(connection_id, request, error, sent)

    def _unanswered(
        self,
        connection_id: str,
        request: type[Request[Any]],
        error: RequestTimeoutError,
        sent: float,
    ) -> None:
        waits = request in (JoinGroupRequest, SyncGroupRequest)
        advice = _WAITS if waits else _NO_ANSWER
        self._failed(connection_id, error, advice, since=sent, is_rebalance=waits)

    def _succeeded(self, connection_id: str | None) -> None:
        """Report that a request was answered on a connection; None: that one could be made."""
        if self._troubles is not None and self._troubles.open:
            self._troubles.succeeded((self.host, self.port, connection_id), anyio.current_time())

    def _failed(
        self,
        connection_id: str | None,
        error: TransportError | RemoteProtocolError,
        advice: str,
        *,
        since: float | None = None,
        is_rebalance: bool = False,
    ) -> None:
        if self._troubles is None:
            return
        address = f"{escaped(self.host)}:{self.port}"
        name = address if self.node_id < 0 else f"broker {self.node_id} at {address}"
        problem = Problem(
            subject=name,
            cause=str(error).removeprefix(f"{address}: "),
            advice=advice,
            has_own_finding=is_rebalance,
        )
        key = (self.host, self.port, connection_id)
        self._troubles.failed(key, anyio.current_time(), problem, since=since)

    def _mute(self, answer: Any) -> None:
        # KIP-219: the broker answers first and throttles after; it counts on us to hold back.
        throttle = min(getattr(answer, "throttle_time_ms", 0) / 1000, _MAX_THROTTLE)
        if throttle > 0:
            # No task may run here, and anyio may ask for one to know which loop it is.
            self._silence.until = max(self._silence.until, loop_clock()() + throttle)

    # ------------------------------------------------------------ records

    async def fetch_messages(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait: float = 0.5,
        min_bytes: int = 1,
        max_bytes: int = 52_428_800,
        partition_max_bytes: int | Mapping[TopicPartition, int] = 1_048_576,
        connection_id: str = "fetch",
        timeout: float | None = None,
    ) -> FetchResponse:
        """Records from each partition's position on. The broker waits `max_wait` seconds at most
        for `min_bytes` bytes. `partition_max_bytes` is one limit for all, or one for each.
        `timeout` is how long the answer may take; None: the request timeout after `max_wait`."""
        limits = partition_max_bytes
        if isinstance(limits, int):
            limits = dict.fromkeys(positions, limits)
        request = FetchRequest(
            max_wait_ms=round(max_wait * 1000),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=tuple(
                FetchTopic(
                    topic=topic,
                    partitions=tuple(
                        FetchPartition(
                            partition=partition,
                            fetch_offset=positions[TopicPartition(topic, partition)],
                            partition_max_bytes=limits[TopicPartition(topic, partition)],
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in _by_topic(positions).items()
            ),
        )
        # From version 13 topics go by id; here the caller has names.
        return await self.request(
            request,
            connection_id=connection_id,
            timeout=self._options.request_timeout + max_wait if timeout is None else timeout,
            highest=12,
        )

    async def produce_messages(
        self,
        batches: Mapping[TopicPartition, bytes],
        *,
        acks: int = -1,
        timeout: float | None = None,
    ) -> ProduceResponse | None:
        """Append encoded record batches. The answer is None with acks=0, which has none."""
        # Only here: who only reads need not wait for the import.
        from kafkagroup.wire.messages.produce import (
            PartitionProduceData,
            ProduceRequest,
            TopicProduceData,
        )

        if timeout is None:
            timeout = self._options.request_timeout
        request = ProduceRequest(
            acks=acks,
            timeout_ms=round(timeout * 1000),
            topic_data=tuple(
                TopicProduceData(
                    name=topic,
                    partition_data=tuple(
                        PartitionProduceData(
                            index=partition, records=batches[TopicPartition(topic, partition)]
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in _by_topic(batches).items()
            ),
        )
        if acks == 0:
            await (await self._audible(MAIN)).send_only(request, highest=12)
            return None
        return await self.request(request, timeout=timeout + 1, highest=12)

    async def request_offset_limits(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> ListOffsetsResponse:
        """The first offset at or after each timestamp (ms); -2 asks for the log's start, -1 for
        its end."""
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=tuple(
                ListOffsetsTopic(
                    name=topic,
                    partitions=tuple(
                        ListOffsetsPartition(
                            partition_index=partition,
                            timestamp=timestamps[TopicPartition(topic, partition)],
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in _by_topic(timestamps).items()
            ),
            timeout_ms=round(self._options.request_timeout * 1000),
        )
        return await self.request(request)

    async def request_metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Brokers, and the named topics; None asks for all topics. Never creates a topic."""
        request = MetadataRequest(
            topics=None
            if topics is None
            else tuple(MetadataRequestTopic(name=topic) for topic in topics),
            allow_auto_topic_creation=False,
        )
        return await self.request(request)

    # ------------------------------------------------------------ committed offsets

    async def commit_consumer_group_offsets(
        self,
        group: str,
        generation: int,
        member_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        group_instance_id: str | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> OffsetCommitResponse:
        """Commit offsets on the offsets channel; generation -1 and "" for no membership.

        With `topic_ids`, of all the topics, a broker of 4.1 or later takes them by id: of one
        deleted and made anew it then refuses them. The answer has names either way."""
        ids = topic_ids or {}
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
            topics=tuple(
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=ids.get(topic, NO_ID),
                    partitions=tuple(
                        _commit_partition(partition, offsets[TopicPartition(topic, partition)])
                        for partition in partitions
                    ),
                )
                for topic, partitions in _by_topic(offsets).items()
            ),
        )
        answer = await self._request_offsets(request, ids)
        names = {topic_id: name for name, topic_id in ids.items()}
        return OffsetCommitResponse(
            throttle_time_ms=answer.throttle_time_ms,
            topics=tuple(
                OffsetCommitResponseTopic(
                    name=t.name or names.get(t.topic_id, ""),
                    topic_id=t.topic_id,
                    partitions=t.partitions,
                )
                for t in answer.topics
            ),
        )

    async def fetch_consumer_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        member: tuple[str, int] | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> OffsetFetchResponse:
        """A group's committed offsets, on the offsets channel; None asks for all of them.

        With `member`, its id and epoch, a broker of 4.0 or later refuses a member that its group
        (KIP-848) does not know in that epoch. `topic_ids` as in `commit_consumer_group_offsets`."""
        topics = None
        ids = topic_ids or {}
        member_id, member_epoch = member or (None, -1)
        if partitions is not None:
            topics = tuple(
                OffsetFetchRequestTopics(
                    name=topic,
                    topic_id=ids.get(topic, NO_ID),
                    partition_indexes=tuple(numbers),
                )
                for topic, numbers in _by_topic(partitions).items()
            )
        asked = OffsetFetchRequestGroup(
            group_id=group, member_id=member_id, member_epoch=member_epoch, topics=topics
        )
        request = OffsetFetchRequest(groups=(asked,), require_stable=require_stable)
        answer = await self._request_offsets(request, ids)
        names = {topic_id: name for name, topic_id in ids.items()}
        return OffsetFetchResponse(
            throttle_time_ms=answer.throttle_time_ms,
            groups=tuple(_with_names(g, names) for g in answer.groups),
        )

    async def _request_offsets(self, request: Request[R], topic_ids: Mapping[str, UUID]) -> R:
        return await self.request(
            request,
            connection_id=self._offsets,
            timeout=self._offsets_timeout,
            # From version 10 committed offsets have no names of topics.
            highest=None if topic_ids else 9,
        )

    # ------------------------------------------------------------ membership

    async def join_group(
        self,
        group: str,
        member_id: str,
        *,
        protocol_type: str,
        protocols: Sequence[tuple[str, bytes]],
        session_timeout: float = 45.0,
        rebalance_timeout: float = 300.0,
        group_instance_id: str | None = None,
        connection_id: str = "group",
    ) -> JoinGroupResponse:
        """Join, and wait until the coordinator has heard all members or gives up on them."""
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=round(session_timeout * 1000),
            rebalance_timeout_ms=round(rebalance_timeout * 1000),
            member_id=member_id,
            group_instance_id=group_instance_id,
            protocol_type=protocol_type,
            protocols=tuple(
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in protocols
            ),
        )
        timeout = max(self._options.request_timeout, rebalance_timeout + 5)
        return await self.request(request, connection_id=connection_id, timeout=timeout)

    async def sync_group(
        self,
        group: str,
        generation: int,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        group_instance_id: str | None = None,
        connection_id: str = "group",
    ) -> SyncGroupResponse:
        """Hand in every member's assignment (the leader; others give none); receive one's own.
        The protocol that was joined is checked where it is given (KIP-559)."""
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in sorted((assignments or {}).items())
            ),
        )
        # From version 5 the coordinator refuses whoever names no protocol.
        highest = 4 if protocol_type is None or protocol_name is None else None
        return await self.request(request, connection_id=connection_id, highest=highest)

    async def heartbeat(
        self,
        group: str,
        generation: int,
        member_id: str,
        *,
        group_instance_id: str | None = None,
        connection_id: str = "group",
    ) -> HeartbeatResponse:
        """Say that the member lives; the answer says whether a rebalance is on."""
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=group_instance_id,
        )
        return await self.request(request, connection_id=connection_id)

    async def leave_group(
        self, group: str, member_id: str, *, reason: str | None = None, connection_id: str = "group"
    ) -> LeaveGroupResponse:
        """Leave, so that the others need not wait for the session to time out."""
        member = MemberIdentity(member_id=member_id, reason=reason)
        request = LeaveGroupRequest(group_id=group, members=(member,))
        return await self.request(request, connection_id=connection_id)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _with_names(
    group: OffsetFetchResponseGroup, names: Mapping[UUID, str]
) -> OffsetFetchResponseGroup:
    topics = (
        OffsetFetchResponseTopics(
            name=t.name or names.get(t.topic_id, ""), topic_id=t.topic_id, partitions=t.partitions
        )
        for t in group.topics
    )
    return OffsetFetchResponseGroup(
        group_id=group.group_id, topics=tuple(topics), error_code=group.error_code
    )


def _commit_partition(partition: int, offset: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
