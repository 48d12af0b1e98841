"""pykafka's `Broker`: requests to one broker, one coroutine each.

Responses are the main API's, with the names of Kafka's protocol: `error_code`, `member_id`,
`topics`. All connections use TLS, or none does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

import anyio

import kafkagroup
from kafkagroup import OffsetAndMetadata, Security, TopicPartition
from kafkagroup.broker import ClientOptions
from kafkagroup.compat._tasks import ContextTask, TaskOwner
from kafkagroup.compat.pykafka.membership import (
    GroupMembershipProtocol,
    RangeProtocol,
    metadata_of,
)
from kafkagroup.compat.pykafka.protocol import (
    BrokerMetadata,
    MemberAssignment,
    PartitionFetchRequest,
    PartitionOffsetCommitRequest,
    PartitionOffsetFetchRequest,
    PartitionOffsetRequest,
    ProduceRequest,
    text,
)
from kafkagroup.errors import ClosedError
from kafkagroup.wire import encode_assignment

if TYPE_CHECKING:
    from kafkagroup.wire.messages.fetch import FetchResponse
    from kafkagroup.wire.messages.group import (
        HeartbeatResponse,
        JoinGroupResponse,
        LeaveGroupResponse,
        SyncGroupResponse,
    )
    from kafkagroup.wire.messages.metadata import MetadataResponse
    from kafkagroup.wire.messages.offsets import (
        ListOffsetsResponse,
        OffsetCommitResponse,
        OffsetFetchResponse,
    )
    from kafkagroup.wire.messages.produce import ProduceResponse

__all__ = ["Broker"]

_SESSION_TIMEOUT = 30.0
"""Seconds: the session timeout of pykafka, which also is the rebalance timeout."""

_MAX_WAIT_FRACTION = 0.9
"""The part of the socket timeout for which a fetch may wait at the broker; the rest is for the
response."""


class Broker(TaskOwner):
    """One broker. Use it in `async with` on asyncio and trio, or, on asyncio, with `connect()` and
    `close()`.

    ```python
    async with Broker(1, "localhost", 9092, None, 30_000, 10_000) as broker:
        metadata = await broker.request_metadata([b"orders"])
    ```
    """

    def __init__(
        self,
        id_: int,
        host: str | bytes,
        port: int,
        handler: object,
        socket_timeout_ms: int,
        offsets_channel_socket_timeout_ms: int,
        buffer_size: int = 1024 * 1024,
        source_host: str = "",
        source_port: int = 0,
        *,
        security: Security | None = None,
    ) -> None:
        """`handler` is ignored: there are no threads."""
        self._id, self._host_name, self._port = int(id_), text(host), port
        self._offsets_timeout = offsets_channel_socket_timeout_ms / 1000
        self._options = ClientOptions(
            request_timeout=socket_timeout_ms / 1000,
            receive_bytes=buffer_size,
            source_host=source_host or None,
            source_port=source_port or None,
            security=security,
        )
        super().__init__()
        self._connection: ContextTask[kafkagroup.broker.Broker] | None = None
        self._connecting = anyio.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} (host={self._host_name}, port={self._port}, id={self._id})>"

    @classmethod
    def from_metadata(
        cls,
        metadata: BrokerMetadata,
        handler: object,
        socket_timeout_ms: int,
        offsets_channel_socket_timeout_ms: int,
        buffer_size: int = 64 * 1024,
        source_host: str = "",
        source_port: int = 0,
        *,
        security: Security | None = None,
    ) -> Self:
        """Return the broker that a metadata entry describes."""
        return cls(
            metadata.id,
            metadata.host,
            metadata.port,
            handler,
            socket_timeout_ms,
            offsets_channel_socket_timeout_ms,
            buffer_size,
            source_host,
            source_port,
            security=security,
        )

    async def _start_tasks(self) -> None:
        await self.connect()

    async def _stop_tasks(self) -> None:
        await self.close()

    # ------------------------------------------------------------ connections

    @property
    def id(self) -> int:
        """The broker's id in the cluster."""
        return self._id

    @property
    def host(self) -> str:
        """The broker's host."""
        return self._host_name

    @property
    def port(self) -> int:
        """The broker's port."""
        return self._port

    @property
    def _broker(self) -> kafkagroup.broker.Broker | None:
        return None if self._connection is None else self._connection.value

    @property
    def connected(self) -> bool:
        """Whether the main connection is open."""
        return self._broker is not None and self._broker.connected

    @property
    def offsets_channel_connected(self) -> bool:
        """Whether the connection for committed offsets is open."""
        return self._broker is not None and self._broker.offsets_channel_connected

    @property
    def handler(self) -> kafkagroup.broker.Broker | None:
        """The main API's broker, which sends requests; None while not connected."""
        return self._broker if self.connected else None

    @property
    def offsets_channel_handler(self) -> kafkagroup.broker.Broker | None:
        """The same broker, while its connection for committed offsets is open; else None."""
        return self._broker if self.offsets_channel_connected else None

    async def connect(self) -> None:
        """Open the main connection, if it is not open.

        Raises: ConnectionLostError, RequestTimeoutError, AuthenticationError.
        """
        async with self._connecting:
            if self._broker is not None:
                await self._broker.connect()
                return
            connection = ContextTask(
                kafkagroup.broker.Broker.open(
                    self._host_name,
                    self._port,
                    node_id=self._id,
                    options=self._options,
                    offsets_channel_timeout=self._offsets_timeout,
                )
            )
            await self._tasks.start(connection)
            self._connection = connection

    async def connect_offsets_channel(self) -> None:
        """Open the connection for committed offsets, if it is not open.

        Raises: ClosedError while not connected; ConnectionLostError, RequestTimeoutError,
        AuthenticationError.
        """
        await self._connected_broker.connect_offsets_channel()

    async def close(self) -> None:
        """Close every connection, also one that `connect` is opening. `connect` can open them
        again."""
        if self._connection is None and self._connecting.locked():
            # `connect` is opening a connection: wait until there is one to close.
            async with self._connecting:
                pass
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @property
    def _connected_broker(self) -> kafkagroup.broker.Broker:
        if self._broker is None:
            raise ClosedError("the broker is not connected; use `async with` or connect()")
        return self._broker

    # ------------------------------------------------------------ records

    async def fetch_messages(
        self,
        partition_requests: Iterable[PartitionFetchRequest],
        timeout: int = 30_000,
        min_bytes: int = 1,
    ) -> FetchResponse:
        """Fetch messages; the broker waits up to `timeout` ms for `min_bytes`, but at most 0.9 of
        the socket timeout. The response has them as bytes, for `kafkagroup.wire.decode_records`.

        Raises: RequestTimeoutError when the response takes longer than the socket timeout.
        """
        wanted = {_tp(r.topic, r.partition): r for r in partition_requests}
        return await self._connected_broker.fetch_messages(
            {tp: r.offset for tp, r in wanted.items()},
            max_wait=min(timeout / 1000, _MAX_WAIT_FRACTION * self._options.request_timeout),
            min_bytes=min_bytes,
            partition_max_bytes={tp: r.max_bytes for tp, r in wanted.items()},
            timeout=self._options.request_timeout,
        )

    async def produce_messages(self, produce_request: ProduceRequest) -> ProduceResponse | None:
        """Append messages. Return None with `required_acks=0`, which has no response."""
        return await self._connected_broker.produce_messages(
            produce_request.batches,
            acks=produce_request.required_acks,
            timeout=produce_request.timeout / 1000,
        )

    async def request_offset_limits(
        self, partition_requests: Iterable[PartitionOffsetRequest]
    ) -> ListOffsetsResponse:
        """Request the first offset at or after each timestamp."""
        return await self._connected_broker.request_offset_limits(
            {_tp(r.topic_name, r.partition_id): r.offsets_before for r in partition_requests}
        )

    async def request_metadata(
        self, topics: Iterable[str | bytes] | None = None
    ) -> MetadataResponse:
        """Request the metadata of the brokers and of these topics; None stands for all topics."""
        return await self._connected_broker.request_metadata(
            None if topics is None else [text(topic) for topic in topics]
        )

    # ------------------------------------------------------------ committed offsets

    async def commit_consumer_group_offsets(
        self,
        consumer_group: str | bytes,
        consumer_group_generation_id: int,
        consumer_id: str | bytes,
        preqs: Iterable[PartitionOffsetCommitRequest],
    ) -> OffsetCommitResponse:
        """Commit offsets. Without membership, the generation id is -1 and the consumer id b""."""
        offsets = {
            _tp(r.topic_name, r.partition_id): OffsetAndMetadata(r.offset, text(r.metadata))
            for r in preqs
        }
        return await self._connected_broker.commit_consumer_group_offsets(
            text(consumer_group), consumer_group_generation_id, text(consumer_id), offsets
        )

    async def fetch_consumer_group_offsets(
        self, consumer_group: str | bytes, preqs: Iterable[PartitionOffsetFetchRequest]
    ) -> OffsetFetchResponse:
        """Request the group's committed offsets."""
        return await self._connected_broker.fetch_consumer_group_offsets(
            text(consumer_group), [_tp(r.topic_name, r.partition_id) for r in preqs]
        )

    # ------------------------------------------------------------ membership

    # Each `connection_id` has a connection of its own.

    async def join_group(
        self,
        connection_id: object,
        consumer_group: str | bytes,
        member_id: str | bytes,
        topic_name: str | bytes | None = None,
        membership_protocol: GroupMembershipProtocol = RangeProtocol,
    ) -> JoinGroupResponse:
        """Join a group. Brokers since 2.2 respond to the member id b"" with error code 79 and a
        member id: join again with that id (KIP-394)."""
        metadata = metadata_of(membership_protocol, topic_name)
        return await self._connected_broker.join_group(
            text(consumer_group),
            text(member_id),
            protocol_type=membership_protocol.protocol_type.decode(),
            protocols=[(membership_protocol.protocol_name.decode(), metadata)],
            session_timeout=_SESSION_TIMEOUT,
            rebalance_timeout=_SESSION_TIMEOUT,
            connection_id=str(connection_id),
        )

    async def sync_group(
        self,
        connection_id: object,
        consumer_group: str | bytes,
        generation_id: int,
        member_id: str | bytes,
        group_assignment: Iterable[MemberAssignment],
    ) -> SyncGroupResponse:
        """Send every member's assignment (the leader; other members send none); return this
        member's, as bytes for `kafkagroup.wire.decode_assignment`."""
        assignments: Mapping[str, bytes] = {
            text(a.member_id): encode_assignment(a.partitions, version=a.version)
            for a in group_assignment
        }
        return await self._connected_broker.sync_group(
            text(consumer_group),
            generation_id,
            text(member_id),
            assignments,
            connection_id=str(connection_id),
        )

    async def heartbeat(
        self,
        connection_id: object,
        consumer_group: str | bytes,
        generation_id: int,
        member_id: str | bytes,
    ) -> HeartbeatResponse:
        """Send a heartbeat."""
        return await self._connected_broker.heartbeat(
            text(consumer_group), generation_id, text(member_id), connection_id=str(connection_id)
        )

    async def leave_group(
        self, connection_id: object, consumer_group: str | bytes, member_id: str | bytes
    ) -> LeaveGroupResponse:
        """Leave the group."""
        return await self._connected_broker.leave_group(
            text(consumer_group), text(member_id), connection_id=str(connection_id)
        )


def _tp(topic: str | bytes, partition: int) -> TopicPartition:
    return TopicPartition(text(topic), partition)
