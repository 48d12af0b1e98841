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

_MERGED_AT_ONCE = 2_000
"""Partitions in an answer that is merged without a thread: a few milliseconds' work."""

_MOST_TOLD = 5
"""Most reasons in one error: there may be as many brokers as an answer has room for."""


class Cluster:
    """The brokers behind some bootstrap addresses. Its connections run in `tasks`."""

    def __init__(
        self,
        bootstrap_servers: tuple[Address, ...],
        options: ClientOptions,
        tasks: TaskGroup,
        troubles: Troubles | None = None,
    ) -> None:
        """`troubles`: takes what fails for long; None: what is warned of is enough."""
        self.options = options
        self.troubles = Troubles() if troubles is None else troubles
        self.metadata = ClusterMetadata()
        self.topics: set[str] = set()
        """The topics that a refresh asks for."""
        self.all_topics = False
        """Whether a refresh asks for every topic there is."""
        self.on_change: Callable[[], None] = lambda: None
        """Called at every change of metadata."""
        self.bootstrap_servers = bootstrap_servers
        self._tasks = tasks
        self._brokers: dict[int, BrokerClient] = {}
        self._bootstrap: dict[Address, BrokerClient] = {}
        self._throttles: dict[Address, BrokerThrottle] = {}
        """A broker that comes by another name, or comes back, may still want to hear nothing."""
        self._refreshing = anyio.Lock()
        self._asked = 0
        self._answered = 0

    async def refresh(self) -> ClusterMetadata:
        """Ask for metadata of `topics`. Callers at the same time share one request.

        Raises: NoBrokersAvailableError when no broker answers.
        """
        # An answer to a request sent before this call may not know what the caller wants to know.
        wanted = self._asked + 1
        async with self._refreshing:
            if self._answered < wanted:
                await self._ask_metadata()
        return self.metadata

    async def _ask_metadata(self) -> None:
        self._asked += 1
        complete = self.all_topics
        names = None
        if not complete:
            names = tuple(MetadataRequestTopic(name=topic) for topic in sorted(self.topics))
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        answer = await self.request_any(request)
        self._answered = self._asked
        metadata = await self._merge(answer, complete=complete)
        if not metadata.nodes:
            return  # a broker that is still starting
        await self.take(metadata)

    async def _merge(self, answer: MetadataResponse, *, complete: bool) -> ClusterMetadata:
        """Return what is known after an answer: the same object as before if that is no news."""
        if sum(len(topic.partitions) for topic in answer.topics) <= _MERGED_AT_ONCE:
            return _merged(self.metadata, answer, complete=complete)
        while True:
            known = self.metadata
            work = partial(_merged, known, answer, complete=complete)
            merged = await self.options.run_in_thread(work)
            if known is self.metadata:
                return merged
            # A fetch response has named a new leader meanwhile, which would be forgotten.

    async def take(self, metadata: ClusterMetadata) -> None:
        """Take metadata that is newer."""
        await self._forget_gone(metadata)
        # Not compared: of many partitions that would hold the loop.
        if metadata is not self.metadata:
            self._replace(metadata)

    async def _forget_gone(self, metadata: ClusterMetadata) -> None:
        for node_id, broker in tuple(self._brokers.items()):
            node = metadata.nodes.get(node_id)
            if node is None or (node.host, node.port) != (broker.host, broker.port):
                await self._brokers.pop(node_id).aclose()
        while self._bootstrap:
            await self._bootstrap.popitem()[1].aclose()
        used = {(broker.host, broker.port) for broker in self._brokers.values()}
        now = anyio.current_time()
        self._throttles = {
            address: throttle
            for address, throttle in self._throttles.items()
            if address in used or throttle.throttled_until > now
        }

    def take_leader(
        self, tp: TopicPartition, leader: LeaderIdAndEpoch, answer: FetchResponse
    ) -> bool:
        """Take a new leader from a fetch answer that names it and its address (KIP-951); answer
        whether that was news."""
        metadata = with_leader(self.metadata, tp, leader, answer.node_endpoints)
        if metadata is None:
            return False
        self._replace(metadata)
        return True

    def _replace(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        self.on_change()

    def broker(self, node: Node) -> BrokerClient:
        """The broker at a node's address."""
        broker = self._brokers.get(node.node_id)
        if broker is not None and (broker.host, broker.port) != (node.host, node.port):
            # FindCoordinator may know of a move before Metadata does. Nobody else closes this one.
            self._tasks.start_soon(broker.aclose)
            broker = None
        if broker is None:
            broker = self._brokers[node.node_id] = self._make(node.node_id, (node.host, node.port))
        return broker

    def leader(self, tp: TopicPartition) -> BrokerClient:
        """The broker that leads a partition, as far as the metadata says. Raises: BrokerError
        LEADER_NOT_AVAILABLE."""
        leader = self.metadata.leader(tp)
        node = None if leader is None else self.metadata.nodes.get(leader.leader)
        if node is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
        return self.broker(node)

    async def request_any(self, request: Request[R]) -> R:
        """Send a request that every broker can answer to one that does.

        Raises: NoBrokersAvailableError with each address's reason.
        """
        reasons: list[str] = []
        for broker in self._candidates():
            try:
                return await broker.request(request)
            except (TransportError, RemoteProtocolError) as error:
                address = f"{broker.host}:{broker.port}"
                # What is wrong with the bytes of an answer does not say whose they are.
                reasons.append(str(error) if address in str(error) else f"{address}: {error}")
                logger.debug("%r did not answer: %s", broker, error)
        told = list(dict.fromkeys(reasons))
        more = f"; and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
        raise NoBrokersAvailableError("no broker answered: " + "; ".join(told[:_MOST_TOLD]) + more)

    async def names(self, topic_ids: Collection[UUID]) -> dict[UUID, str]:
        """The names of topics, of those that are known by now. Raises: NoBrokersAvailableError."""
        known = self.metadata.topics.items()
        names = {t.topic_id: name for name, t in known if t.topic_id in topic_ids}
        missing = sorted({*topic_ids} - names.keys())
        if not missing:
            return names
        wanted = tuple(MetadataRequestTopic(topic_id=i, name=None) for i in missing)
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = await self.request_any(request)
        told = {t.topic_id: t.name for t in answer.topics if t.name and not t.error_code}
        return names | {i: name for i, name in told.items() if i in topic_ids}

    def topic_ids(self, names: Collection[str]) -> dict[str, UUID]:
        """Their ids, by name, if that of each is known and kept up to date; none otherwise."""
        known = self.metadata.topics
        if not self.all_topics and not self.topics.issuperset(names):
            return {}  # nobody would hear that one of them was made anew
        ids = {name: known[name].topic_id for name in names if name in known}
        return {} if len(ids) < len(names) or NO_ID in ids.values() else ids

    def has_lost(self, topic: str, topic_id: UUID) -> bool:
        """Whether metadata has a topic no more, or another of its name. `topic_id`: its id, `NO_ID`
        where that is not known. Never of a topic that metadata is not kept of."""
        found = self.metadata.topics.get(topic)
        if found is None:
            return self.all_topics
        if found.error_code:
            return found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return NO_ID not in (topic_id, found.topic_id) and topic_id != found.topic_id

    def _candidates(self) -> Iterator[BrokerClient]:
        nodes = list(self.metadata.nodes.values())
        random.shuffle(nodes)
        # Made one at a time as they are tried: an answer may name a million brokers.
        yield from map(self.broker, sorted(nodes, key=lambda node: not self._is_connected(node)))
        for address in self.bootstrap_servers:
            if address not in self._bootstrap:
                self._bootstrap[address] = self._make(-1, address)
            yield self._bootstrap[address]

    def _make(self, node_id: int, address: Address) -> BrokerClient:
        throttle = self._throttles.setdefault(address, BrokerThrottle())
        return BrokerClient(
            node_id,
            *address,
            self._tasks,
            self.options,
            throttle=throttle,
            troubles=self.troubles,
        )

    def _is_connected(self, node: Node) -> bool:
        broker = self._brokers.get(node.node_id)
        return broker is not None and broker.connected

    async def find_coordinator(self, group: str) -> Node:
        """The broker that coordinates a group.

        Raises: NoBrokersAvailableError; BrokerError, often a retriable one.
        """
        request = FindCoordinatorRequest(coordinator_keys=(group,))
        return coordinator_in(await self.request_any(request))

    async def aclose(self) -> None:
        """Close every connection."""
        for broker in (*self._brokers.values(), *self._bootstrap.values()):
            await broker.aclose()


def _merged(known: ClusterMetadata, answer: MetadataResponse, *, complete: bool) -> ClusterMetadata:
    merged = merge(known, answer, complete=complete)
    return known if merged == known else merged


def coordinator_in(answer: FindCoordinatorResponse) -> Node:
    """The coordinator that an answer names. Raises: BrokerError."""
    if not answer.coordinators:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the answer names no coordinator")
    found = answer.coordinators[0]
    if found.error_code:
        raise broker_error(
            found.error_code, found.error_message, operation="DESCRIBE", group=found.key
        )
    return Node(found.node_id, found.host, found.port)
