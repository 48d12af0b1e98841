"""Answers of single brokers that differ from the state of the cluster.

A broker lags behind the others, refuses a partition without a reason, or names a replica that
refuses. A client gets one such response about metadata, and then none for `_APART` seconds:
whichever broker it asks for a second opinion is right.

Here is also what another cluster answers, at the address of a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import attrs

from kafkagroup import TopicPartition
from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.broker import Incoming
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
)
from kafkagroup.wire.schema import NO_ID

from .events import Misdirected, Unlisted

__all__ = ["OFFSET_CODES", "Lag", "Opinions", "refuse_offsets"]

Handle = Callable[..., None]

_APART = 10.0
"""Seconds between two such responses about metadata to one client."""

FOREIGN_ID = "another-cluster-000001"

_OF_CLUSTER = (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
"""Requests that a client must not send before it knows whose broker it is connected to."""

_TOP_LEVEL = ("REBOOTSTRAP_REQUIRED",)
_OF_PARTITIONS = ("REPLICA_NOT_AVAILABLE", "LISTENER_NOT_FOUND")

OFFSET_CODES = (
    "UNKNOWN_TOPIC_OR_PARTITION",
    "TOPIC_AUTHORIZATION_FAILED",
    "UNSTABLE_OFFSET_COMMIT",
    "UNKNOWN_TOPIC_ID",
)
"""Errors of partitions, not of the whole group, in OffsetFetch."""


@attrs.define(eq=False)
class Lag:
    """A way in which a broker's metadata differs from the cluster's, for a time."""

    how: str
    """The name of a way, or of an error."""
    node: int
    """0: all nodes."""
    once: bool = False
    """Whether one client gets it; otherwise each does once."""
    clients: set[str] = attrs.field(factory=set)
    """The clients that got it."""
    is_over: bool = False

    @property
    def hits(self) -> int:
        """How many clients got it."""
        return len(self.clients)

    def stop(self) -> None:
        """Let the broker catch up."""
        self.is_over = True

    def concerns(self, node: int, client: str) -> bool:
        """Whether this client gets such a response from this node now."""
        return not (self.is_over or client in self.clients) and self.node in (0, node)


class Opinions:
    """Wraps the function that handles the brokers' requests."""

    def __init__(self, cluster: Cluster, record_event: Callable[..., None]) -> None:
        self._cluster = cluster
        self._record_event = record_event
        self.foreign: Cluster | None = None
        """The other cluster."""
        self.old_ids: dict[str, UUID] = {}
        """Topic -> the id of a deleted topic of this name."""
        self.refusing_replica: tuple[int, ErrorCode, int] | None = None
        """A node that refuses to be read as a follower, its error, and how many times; 0: always.
        """
        self._lags: list[Lag] = []
        self._sent_at: dict[str, float] = {}
        """Client -> when it last got a wrong response about metadata."""

    def lag(self, lag: Lag) -> None:
        """Let a broker lag until it is stopped."""
        self._lags.append(lag)

    def around(self, handle: Handle, handle_foreign: Handle) -> Handle:
        """Return the function that gives all responses, of both clusters."""

        def handled(
            cluster: Cluster,
            node_id: int,
            incoming: Incoming,
            now: float,
            host: str,
            reply: Callable[[Any], None],
        ) -> None:
            request, client = incoming.request, incoming.client_id
            if cluster is self.foreign:
                if isinstance(request, _OF_CLUSTER):
                    api = type(request).__name__.removesuffix("Request")
                    self._record_event(Misdirected, member=client, api=api, node=node_id)
                handle_foreign(cluster, node_id, incoming, now, host, _named(reply))
                return
            if isinstance(request, MetadataRequest):
                if (lag := self._next_lag(node_id, client, now)) is not None:
                    reply = self._lagging(lag, node_id, client, request, reply)
            elif isinstance(request, FetchRequest) and request.rack_id:
                incoming, reply = self._near(node_id, incoming, request, reply)
            handle(cluster, node_id, incoming, now, host, reply)

        return handled

    # ------------------------------------------------------------ metadata

    def _next_lag(self, node: int, client: str, now: float) -> Lag | None:
        if now < self._sent_at.get(client, -_APART) + _APART:
            return None
        lag = next((lag for lag in self._lags if lag.concerns(node, client)), None)
        if lag is not None:
            lag.clients.add(client)
            lag.is_over = lag.once
            if lag.how == "no_brokers" and client in self._sent_at:
                return None  # not its first response
        self._sent_at.setdefault(client, -_APART)
        if lag is not None:
            self._sent_at[client] = now
        return lag

    def _lagging(
        self,
        lag: Lag,
        node: int,
        client: str,
        request: MetadataRequest,
        reply: Callable[[Any], None],
    ) -> Callable[[Any], None]:
        def lagging(response: MetadataResponse) -> None:
            lagged = self._lagged(lag.how, node, response, of_all=request.topics is None)
            if lag.how == "fewer_partitions":
                left_out = _partitions(response) - _partitions(lagged)
                self._record_event(Unlisted, member=client, partitions=tuple(sorted(left_out)))
            reply(lagged)

        return lagging

    def _lagged(
        self, how: str, node: int, response: MetadataResponse, *, of_all: bool
    ) -> MetadataResponse:
        topics = response.topics
        match how:
            case "no_brokers":
                return evolve(
                    response, brokers=(), topics=_in_error(topics, "LEADER_NOT_AVAILABLE")
                )
            case "no_node":
                others = [b for b in response.brokers if b.node_id != node]
                return evolve(
                    response, brokers=tuple(b for b in response.brokers if b not in others[-1:])
                )
            case "no_topic" if of_all:
                return evolve(response, topics=topics[1:])
            case "no_topic":
                return evolve(response, topics=_in_error(topics, "UNKNOWN_TOPIC_OR_PARTITION"))
            case "leaderless_topic":
                return evolve(response, topics=_in_error(topics, "LEADER_NOT_AVAILABLE"))
            case "fewer_partitions":
                return evolve(response, topics=tuple(map(_with_fewer_partitions, topics)))
            case "old_id":
                return evolve(response, topics=tuple(map(self._with_old_id, topics)))
            case "old_epoch":
                return evolve(response, topics=tuple(map(self._with_old_epochs, topics)))
            case "high_epoch":
                return evolve(response, topics=tuple(map(_with_high_epochs, topics)))
        code = ErrorCode[how]
        if how in _TOP_LEVEL:
            return evolve(response, brokers=(), topics=(), error_code=code)
        if how in _OF_PARTITIONS:
            return evolve(response, topics=tuple(_each(t, error_code=code) for t in topics))
        return evolve(response, topics=_in_error(topics, how))

    def _with_old_id(self, topic: MetadataResponseTopic) -> MetadataResponseTopic:
        return evolve(topic, topic_id=self.old_ids.get(topic.name or "", topic.topic_id))

    def _with_old_epochs(self, topic: MetadataResponseTopic) -> MetadataResponseTopic:
        """The broker has missed the last election of each leader."""
        nodes = list(self._cluster.nodes)

        def old(partition: MetadataResponsePartition) -> MetadataResponsePartition:
            if partition.leader_epoch < 1 or partition.leader_id < 0:
                return partition
            before = nodes[nodes.index(partition.leader_id) - 1]
            return evolve(partition, leader_id=before, leader_epoch=partition.leader_epoch - 1)

        return evolve(topic, partitions=tuple(map(old, topic.partitions)))

    # ------------------------------------------------------------ the nearest replica

    def _near(
        self, node: int, incoming: Incoming, request: FetchRequest, reply: Callable[[Any], None]
    ) -> tuple[Incoming, Callable[[Any], None]]:
        """As the leader, name the replica in the client's rack instead of records (KIP-392); as
        that replica, refuse if it is to."""
        nearest = int(request.rack_id.removeprefix("r"))
        has_near = nearest != node and self._cluster.nodes[nearest].is_alive
        found = (self._leader(t, p.partition) for t in request.topics for p in t.partitions)
        leaders = set(found)
        refusing = self.refusing_replica
        refuses = refusing is not None and refusing[0] == node and bool(leaders - {node})
        at_once = refuses or (has_near and node in leaders)
        # Without a session: its responses would leave out a partition that has nothing new.
        asked = evolve(
            request,
            session_id=0,
            session_epoch=-1,
            max_wait_ms=0 if at_once else request.max_wait_ms,
        )
        if refuses and refusing is not None and refusing[2]:
            self.refusing_replica = None  # once

        def near(response: FetchResponse) -> None:
            def changed(topic: Any, data: PartitionData) -> PartitionData:
                leader = self._leader(topic, data.partition_index)
                if data.error_code or leader is None:
                    return data
                if leader == node and has_near:
                    return evolve(data, records=b"", preferred_read_replica=nearest)
                if leader != node and refuses and refusing is not None:
                    return evolve(data, records=b"", error_code=refusing[1], high_watermark=-1)
                return data

            topics = tuple(
                evolve(t, partitions=tuple(changed(t, p) for p in t.partitions))
                for t in response.responses
            )
            reply(evolve(response, responses=topics))

        return attrs.evolve(incoming, request=asked), near

    def _leader(self, topic: Any, index: int) -> int | None:
        found = self._cluster.topic_by_id(topic.topic_id)
        partition = self._cluster.partition(topic.topic or (found.name if found else ""), index)
        return None if partition is None else partition.leader


def _named(reply: Callable[[Any], None]) -> Callable[[Any], None]:
    """Answer with the id of the other cluster."""

    def named(response: Any) -> None:
        if isinstance(response, MetadataResponse):
            response = evolve(response, cluster_id=FOREIGN_ID)
        reply(response)

    return named


def _in_error(
    topics: tuple[MetadataResponseTopic, ...], error: str
) -> tuple[MetadataResponseTopic, ...]:
    code = ErrorCode[error]
    return tuple(
        evolve(
            topic, error_code=code, topic_id=NO_ID if topic.name else topic.topic_id, partitions=()
        )
        for topic in topics
    )


def _each(topic: MetadataResponseTopic, **changes: Any) -> MetadataResponseTopic:
    return evolve(topic, partitions=tuple(evolve(p, **changes) for p in topic.partitions))


def _partitions(response: MetadataResponse) -> set[TopicPartition]:
    return {
        TopicPartition(topic.name or "", one.partition_index)
        for topic in response.topics
        for one in topic.partitions
    }


def _with_fewer_partitions(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    known = max(1, len(topic.partitions) // 2)
    return evolve(topic, partitions=topic.partitions[:known])


def _with_high_epochs(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    return evolve(
        topic,
        partitions=tuple(evolve(p, leader_epoch=p.leader_epoch + 2) for p in topic.partitions),
    )


def refuse_offsets(error: ErrorCode, response: OffsetFetchResponse) -> OffsetFetchResponse:
    """Return the response to an offset fetch with this error for each partition."""

    def refused(topics: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(evolve(t, partitions=tuple(map(refused_one, t.partitions))) for t in topics)

    def refused_one(partition: Any) -> Any:
        if partition.error_code:
            return partition
        return evolve(partition, error_code=error, committed_offset=-1)

    groups = tuple(evolve(group, topics=refused(group.topics)) for group in response.groups)
    return evolve(response, topics=refused(response.topics), groups=groups)
