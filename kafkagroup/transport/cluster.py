"""All brokers of one cluster: its metadata, the client of each broker, a group's coordinator.

Only a `Cluster` makes a `BrokerClient` for a node. A request that any broker can answer goes to a
connected broker first, then to the other known brokers, then to the bootstrap addresses: so a
cluster is found again after all its brokers were replaced.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import anyio

from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    NoBrokersAvailableError,
    RemoteProtocolError,
    TransportError,
    broker_error,
)
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.metadata import ClusterMetadata, Node, merge, with_leader
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.transport.throttle import BrokerThrottle
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import FetchResponse, LeaderIdAndEpoch
from kafkagroup.wire.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from kafkagroup.wire.schema import NO_ID, Request

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["Cluster", "coordinator_in"]

R = TypeVar("R")

logger = logging.getLogger(__name__)

_MAX_MERGED_IN_LOOP = 2_000
"""Responses with more partitions are merged in a thread: merging this many takes a few
milliseconds."""

_MAX_REASONS = 5
"""The limit of reasons in one error: a response may name any number of brokers."""


class Cluster:
    """The cluster behind some bootstrap addresses. Connections run in `tasks`."""

    def __init__(
        self,
        bootstrap_servers: tuple[Address, ...],
        options: ClientOptions,
        tasks: TaskGroup,
        troubles: Troubles | None = None,
    ) -> None:
        """Lasting failures are reported to `troubles`; with None they are only logged."""
        self.options = options
        self.troubles = Troubles() if troubles is None else troubles
        self.metadata = ClusterMetadata()
        self.topics: set[str] = set()
        """The topics that a refresh requests."""
        self.requests_all_topics = False
        """Whether a refresh requests all topics."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change of the metadata."""
        self.bootstrap_servers = bootstrap_servers
        self._tasks = tasks
        self._brokers: dict[int, BrokerClient] = {}
        self._bootstrap: dict[Address, BrokerClient] = {}
        self._throttled_until: dict[Address, float] = {}
        """By address, not in the clients: a throttle remains in force if the broker gets another
        node id, or leaves the metadata and returns, when it has a second client."""
        self._refreshing = anyio.Lock()
        self._request_number = 0
        """Of the last metadata request."""
        self._answered_number = 0
        """Of the last metadata request that was answered."""

    def request_all_topics(self, requests_all: bool, /) -> None:
        """Let each refresh request the metadata of all topics, or of `topics` only."""
        self.requests_all_topics = requests_all

    def set_on_change(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after each change of the metadata."""
        self.on_change = on_change

    async def refresh(self) -> ClusterMetadata:
        """Request the metadata of `topics`, or of all topics. Callers that wait while a request is
        in flight share the next one. Raises: what `request_any` raises."""
        # The response to a request that was sent before this call may be too old for the caller.
        wanted = self._request_number + 1
        async with self._refreshing:
            if self._answered_number < wanted:
                await self._request_metadata()
        return self.metadata

    async def _request_metadata(self) -> None:
        self._request_number += 1
        complete = self.requests_all_topics
        names = None
        if not complete:
            names = tuple(MetadataRequestTopic(name=topic) for topic in sorted(self.topics))
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        response = await self.request_any(request)
        self._answered_number = self._request_number
        metadata = await self._merge(response, complete=complete)
        if not metadata.nodes:
            return  # a broker that is still starting
        await self.replace_metadata(metadata)

    async def _merge(self, response: MetadataResponse, *, complete: bool) -> ClusterMetadata:
        """Merge a response; return the same object as before if nothing has changed."""
        if sum(len(topic.partitions) for topic in response.topics) <= _MAX_MERGED_IN_LOOP:
            return _merged(self.metadata, response, complete=complete)
        while True:
            known = self.metadata
            work = partial(_merged, known, response, complete=complete)
            merged = await self.options.run_in_thread(work)
            if known is self.metadata:
                return merged
            # Merge again: a fetch response has named a new leader meanwhile.

    async def replace_metadata(self, metadata: ClusterMetadata) -> None:
        """Replace the metadata by newer metadata; close the clients that it makes stale."""
        await self._close_stale_brokers(metadata)
        # Compared by identity: comparing many partitions would block the loop.
        if metadata is not self.metadata:
            self._replace(metadata)

    async def _close_stale_brokers(self, metadata: ClusterMetadata) -> None:
        """Close the clients of brokers that have left or moved. Close those of the bootstrap
        addresses: known brokers are tried first from now on."""
        for node_id, broker in tuple(self._brokers.items()):
            node = metadata.nodes.get(node_id)
            if node is None or (node.host, node.port) != (broker.host, broker.port):
                await self._brokers.pop(node_id).aclose()
        while self._bootstrap:
            await self._bootstrap.popitem()[1].aclose()
        now = anyio.current_time()
        for address in [a for a, until in self._throttled_until.items() if until <= now]:
            del self._throttled_until[address]

    def apply_leader(
        self, tp: TopicPartition, leader: LeaderIdAndEpoch, response: FetchResponse
    ) -> bool:
        """Apply the new leader that a fetch response names with its address (KIP-951); return
        whether the metadata changed."""
        metadata = with_leader(self.metadata, tp, leader, response.node_endpoints)
        if metadata is None:
            return False
        self._replace(metadata)
        return True

    def _replace(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        self.on_change()

    def broker(self, node: Node) -> BrokerClient:
        """Return the client of a node's broker."""
        broker = self._brokers.get(node.node_id)
        if broker is not None and (broker.host, broker.port) != (node.host, node.port):
            # FindCoordinator may know a new address before Metadata does. Close the old client.
            self._tasks.start_soon(broker.aclose)
            broker = None
        if broker is None:
            broker = self._brokers[node.node_id] = self._create_client(
                node.node_id, (node.host, node.port)
            )
        return broker

    def leader(self, tp: TopicPartition) -> BrokerClient:
        """Return the client of a partition's leader, as of the metadata. Raises: BrokerError
        LEADER_NOT_AVAILABLE."""
        partition = self.metadata.leader(tp)
        node = None if partition is None else self.metadata.nodes.get(partition.leader)
        if node is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
        return self.broker(node)

    async def request_any(self, request: Request[R]) -> R:
        """Send a request that any broker can answer, to one broker after the other until one does.

        Raises: NoBrokersAvailableError with up to five of the brokers' reasons;
        AuthenticationError or UnsupportedVersionError of the first broker that answers with one.
        """
        reasons: list[str] = []
        for broker in self._candidates():
            try:
                return await broker.request(request)
            except (TransportError, RemoteProtocolError) as error:
                address = f"{broker.host}:{broker.port}"
                # A decoding error does not name the address.
                reasons.append(str(error) if address in str(error) else f"{address}: {error}")
                logger.debug("%r did not respond: %s", broker, error)
        distinct = list(dict.fromkeys(reasons))
        more = f"; and {len(distinct) - _MAX_REASONS} more" if len(distinct) > _MAX_REASONS else ""
        raise NoBrokersAvailableError(
            "no broker answered: " + "; ".join(distinct[:_MAX_REASONS]) + more
        )

    async def topic_names(self, topic_ids: Collection[UUID]) -> dict[UUID, str]:
        """Return topic id -> name, for the ids that the metadata or a broker knows. Raises: what
        `request_any` raises."""
        known = self.metadata.topics.items()
        names = {t.topic_id: name for name, t in known if t.topic_id in topic_ids}
        missing = sorted({*topic_ids} - names.keys())
        if not missing:
            return names
        wanted = tuple(MetadataRequestTopic(topic_id=i, name=None) for i in missing)
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response = await self.request_any(request)
        found = {t.topic_id: t.name for t in response.topics if t.name and not t.error_code}
        return names | {i: name for i, name in found.items() if i in topic_ids}

    def topic_ids(self, names: Collection[str]) -> dict[str, UUID]:
        """Return the topics' ids by name, if all are known and refreshed; else an empty mapping."""
        known = self.metadata.topics
        if not self.requests_all_topics and not self.topics.issuperset(names):
            return {}  # a refresh would not notice that a topic was recreated
        ids = {name: known[name].topic_id for name in names if name in known}
        return {} if len(ids) < len(names) or NO_ID in ids.values() else ids

    def was_deleted_or_recreated(self, topic: str, topic_id: UUID) -> bool:
        """Return whether a topic was deleted or recreated, as of the metadata; False for a topic
        that is not refreshed. `topic_id`: the topic's id, `NO_ID` if it is unknown."""
        found = self.metadata.topics.get(topic)
        if found is None:
            return self.requests_all_topics
        if found.error_code:
            return found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return NO_ID not in (topic_id, found.topic_id) and topic_id != found.topic_id

    def _candidates(self) -> Iterator[BrokerClient]:
        nodes = list(self.metadata.nodes.values())
        random.shuffle(nodes)
        # Lazy: a response may name a million brokers, and each client is created when it is tried.
        yield from map(self.broker, sorted(nodes, key=lambda node: not self._is_connected(node)))
        for address in self.bootstrap_servers:
            if address not in self._bootstrap:
                self._bootstrap[address] = self._create_client(-1, address)
            yield self._bootstrap[address]

    def _create_client(self, node_id: int, address: Address) -> BrokerClient:
        return BrokerClient(
            node_id,
            *address,
            self._tasks,
            self.options,
            throttle=BrokerThrottle(address, self._throttled_until),
            troubles=self.troubles,
        )

    def _is_connected(self, node: Node) -> bool:
        broker = self._brokers.get(node.node_id)
        return broker is not None and broker.connected

    async def find_coordinator(self, group: str) -> Node:
        """Look up the coordinator of a group.

        Raises: BrokerError, often a retriable one; what `request_any` raises.
        """
        request = FindCoordinatorRequest(coordinator_keys=(group,))
        return coordinator_in(await self.request_any(request))

    async def aclose(self) -> None:
        """Close every connection."""
        for broker in (*self._brokers.values(), *self._bootstrap.values()):
            await broker.aclose()


def _merged(
    known: ClusterMetadata, response: MetadataResponse, *, complete: bool
) -> ClusterMetadata:
    merged = merge(known, response, complete=complete)
    return known if merged == known else merged


def coordinator_in(response: FindCoordinatorResponse) -> Node:
    """Return the coordinator that a response names. Raises: BrokerError."""
    if not response.coordinators:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the answer names no coordinator")
    found = response.coordinators[0]
    if found.error_code:
        raise broker_error(
            found.error_code, found.error_message, operation="DESCRIBE", group=found.key
        )
    return Node(found.node_id, found.host, found.port)
