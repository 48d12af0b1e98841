"""The public `Broker`: the requests of a group client to one broker, one coroutine each.

Requests are built by the modules that consumers and members use. Nothing here retries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self
from uuid import UUID

import anyio

from kafkagroup._explained import Explained, explains_unknown_keywords
from kafkagroup.member.classic_requests import (
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from kafkagroup.member.classic_state import Member
from kafkagroup.member.config import MemberConfig
from kafkagroup.runtime.client.late_modules import LateModules
from kafkagroup.runtime.offsets.offset_requests import commit_offsets, fetch_offsets
from kafkagroup.transport.broker import MAIN, BrokerClient
from kafkagroup.transport.options import ClientOptions
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.wire.messages.group import (
        HeartbeatResponse,
        JoinGroupResponse,
        LeaveGroupResponse,
        SyncGroupResponse,
    )
    from kafkagroup.wire.messages.offsets import OffsetCommitResponse, OffsetFetchResponse

__all__ = ["Broker", "ClientOptions"]

_OFFSETS = "offsets"
"""Connection id of the offsets channel."""


class Broker(Explained, BrokerClient):
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
    ) -> None:
        """Create a client that is not connected before `connect()`; `open` also connects it.

        Args:
            node_id: The broker's id in its cluster; -1 if it is not known.
            host: The broker's host name or address.
            port: The broker's port.
            tasks: The task group in which the connections run.
            options: Timeouts, limits, TLS and SASL; `None`: the defaults of `ClientOptions`.
            offsets_channel_timeout: Requests for committed offsets have a connection of their own,
                the offsets channel, and wait this many seconds for a response; `None`: they share
                the main connection and its timeout.
        """
        super().__init__(node_id, host, port, tasks, options)
        self._offsets_connection = MAIN if offsets_channel_timeout is None else _OFFSETS
        self._offsets_timeout = offsets_channel_timeout

    @classmethod
    @explains_unknown_keywords
    @asynccontextmanager
    async def open(
        cls,
        host: str,
        port: int,
        *,
        node_id: int = -1,
        options: ClientOptions | None = None,
        offsets_channel_timeout: float | None = None,
    ) -> AsyncIterator[Self]:
        """Connect to one address; close every connection on leaving. TLS and SASL are among the
        `options`: `ClientOptions(security=...)`.

        Raises: ConnectionLostError, RequestTimeoutError, RemoteProtocolError, AuthenticationError.
        """
        secured = options is not None and options.security is not None
        await LateModules(secured=secured).import_first()
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
    ) -> Self:
        """Return the broker that an entry of a metadata response describes, not connected."""
        return cls(
            metadata.node_id,
            metadata.host,
            metadata.port,
            tasks,
            options,
            offsets_channel_timeout=offsets_channel_timeout,
        )

    async def connect_offsets_channel(self) -> None:
        """Open the connection for committed offsets if it is not open."""
        await self.connect(self._offsets_connection)

    @property
    def offsets_channel_connected(self) -> bool:
        """Whether the connection for committed offsets is open."""
        return self.is_connected(self._offsets_connection)

    async def request_metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Request the brokers and the named topics; None: all topics. Never creates a topic."""
        names = None if topics is None else tuple(MetadataRequestTopic(name=t) for t in topics)
        return await self.request(MetadataRequest(topics=names, allow_auto_topic_creation=False))

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
        """Commit offsets on the offsets channel; generation -1 and member id "" for a caller that
        is not a member.

        With `topic_ids`, topic name -> id for each topic in `offsets`, a broker of 4.1 or later
        takes topics by id: it refuses the offsets of a topic that was deleted and recreated. The
        response has names either way.
        """
        return await commit_offsets(
            self,
            group,
            generation,
            member_id,
            offsets,
            group_instance_id=group_instance_id,
            topic_ids=topic_ids,
            connection_id=self._offsets_connection,
            timeout=self._offsets_timeout,
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
        """Request a group's committed offsets, on the offsets channel. `partitions` None: those of
        all partitions.

        `member`: member id and epoch in a group of KIP-848. If they are given, a broker of 4.0 or
        later refuses the request unless the group has the member with that epoch. `topic_ids` as
        in `commit_consumer_group_offsets`. `require_stable`: if a transactional commit of a
        partition is pending, the partition has an error, not its previous offset.
        """
        return await fetch_offsets(
            self,
            group,
            partitions,
            require_stable=require_stable,
            member=member,
            topic_ids=topic_ids,
            connection_id=self._offsets_connection,
            timeout=self._offsets_timeout,
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
        """Join, and wait until all members have joined, or the coordinator has expired the others.

        With member id "", a coordinator responds MEMBER_ID_REQUIRED at once, with the id to join
        with (KIP-394), unless `group_instance_id` is given. `protocols`: names and metadata, the
        preferred first. Timeouts are in seconds. Requests with the same `connection_id` share a
        connection.
        """
        config = MemberConfig(
            group_id=group,
            group_instance_id=group_instance_id,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            protocol_type=protocol_type,
        )
        member = Member(config=config, protocols=tuple(protocols), member_id=member_id)
        # The coordinator may hold the request for the rebalance timeout: 5 s more for the response.
        timeout = max(self._options.request_timeout, rebalance_timeout + 5)
        return await self.request(
            join_request(member), connection_id=connection_id, timeout=timeout
        )

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
        """Send every member's assignment (the leader; other members send none); return this
        member's. The coordinator checks the protocol if both its type and name are given
        (KIP-559)."""
        member = _member(
            group,
            member_id,
            generation,
            group_instance_id=group_instance_id,
            protocol_type=protocol_type or "",
            protocol_name=protocol_name or "",
        )
        # From version 5 the coordinator refuses a request without the protocol.
        highest = 4 if protocol_type is None or protocol_name is None else None
        return await self.request(
            sync_request(member, assignments or {}), connection_id=connection_id, highest=highest
        )

    async def heartbeat(
        self,
        group: str,
        generation: int,
        member_id: str,
        *,
        group_instance_id: str | None = None,
        connection_id: str = "group",
    ) -> HeartbeatResponse:
        """Send a heartbeat; the error code of the response tells whether a rebalance is under
        way."""
        member = _member(group, member_id, generation, group_instance_id=group_instance_id)
        return await self.request(heartbeat_request(member), connection_id=connection_id)

    async def leave_group(
        self, group: str, member_id: str, *, reason: str | None = None, connection_id: str = "group"
    ) -> LeaveGroupResponse:
        """Leave the group, so that the other members need not wait for the session timeout."""
        request = leave_request(_member(group, member_id), reason or "")
        return await self.request(request, connection_id=connection_id)


def _member(
    group_id: str,
    member_id: str,
    generation_id: int = -1,
    *,
    group_instance_id: str | None = None,
    protocol_type: str = "",
    protocol_name: str = "",
) -> Member:
    config = MemberConfig(
        group_id=group_id, group_instance_id=group_instance_id, protocol_type=protocol_type
    )
    return Member(
        config=config,
        protocols=(),
        member_id=member_id,
        generation_id=generation_id,
        protocol_name=protocol_name,
    )
