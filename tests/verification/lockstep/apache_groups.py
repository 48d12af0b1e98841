"""An embedded cluster whose groups are coordinated by Apache's code.

Requests about groups and committed offsets go to `ApacheCoordinator`; topics, records and all other
requests stay with the embedded broker. One coordinator serves all nodes:

- A group's requests to another node than its coordinator are refused, but requests about several
  groups are answered by every node.
- When one group moves to another node, or its node restarts, all groups are loaded anew.
- An `EmbeddedKafka` knows the offsets that its groups have committed, but not those that were
  deleted with or without their group; it cannot describe a group.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded import broker
from kafkagroup.testing.embedded.broker import Incoming, Reply
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.refusals import refuse
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.messages.consumer_describe import ConsumerGroupDescribeRequest
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.offset_delete import OffsetDeleteRequest
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
)
from kafkagroup.wire.schema import Request

from .apache import ApacheCoordinator
from .wire import decode_response, encode_request

__all__ = ["ApacheGroups"]

R = TypeVar("R")

_OF_ONE_GROUP = (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
)
_OF_SEVERAL_GROUPS = (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
)


class ApacheGroups:
    """Handles the requests of one embedded cluster.

    Put `handle` in the place of `kafkagroup.testing.embedded.server.handle`.
    """

    def __init__(self, coordinator: ApacheCoordinator, seed: int = 0) -> None:
        """The coordinator starts anew; member ids come from `seed`."""
        self._coordinator = coordinator
        self._pending: dict[int, tuple[Incoming, Reply]] = {}
        self._started_at: float | None = None
        """The time of the first request."""
        self._elapsed_ms = 0
        self._cluster: Cluster | None = None
        self.groups: dict[str, None] = {}
        """The groups that requests have named, for the cluster to tell which of them move."""
        coordinator.reset(seed)

    def handle(
        self,
        cluster: Cluster,
        node_id: int,
        incoming: Incoming,
        now: float,
        host: str,
        reply: Reply,
    ) -> None:
        """Handle a request as node `node_id`; `reply` is called once, now or later."""
        if self._cluster is None:
            self._cluster = cluster
            # The cluster calls `move` of its coordinators.
            cast(Any, cluster).classic_coordinator = self
        request = incoming.request
        if isinstance(request, _OF_ONE_GROUP):
            group_id: str = request.group_id
            self.groups[group_id] = None
            # An empty group id has no coordinator: every node rejects it.
            if group_id and cluster.coordinator_of(group_id) != node_id:
                reply(refuse(request, ErrorCode.NOT_COORDINATOR, incoming.version))
                return
        elif not isinstance(request, _OF_SEVERAL_GROUPS):
            broker.handle(cluster, node_id, incoming, now, host, reply)
            return
        self._advance(now)
        self._coordinator.set_topics(
            {name: (of.topic_id, len(of.partitions)) for name, of in cluster.topics.items()}
        )
        self._pending[self._coordinator.submit(_encode(incoming))] = incoming, reply
        self._deliver()

    def ask(self, request: Request[R], version: int) -> R:
        """Return the response to an observer's request, which must come at once."""
        incoming = Incoming(request, version, 0, "observer")
        ticket = self._coordinator.submit(_encode(incoming))
        # All others came with the request or the time that caused them.
        ((answered, data),) = self._coordinator.responses()
        assert answered == ticket
        response: R = _decode(incoming, data)
        return response

    def partition_counts(self) -> dict[str, int]:
        """Return topic -> its partition count, as the coordinator knows the topics."""
        assert self._cluster is not None
        return {name: len(of.partitions) for name, of in sorted(self._cluster.topics.items())}

    def move(self, group_id: str, now: float) -> None:
        """Load the group, and all others, on another node."""
        self._advance(now)
        self._coordinator.reload()
        self._deliver()

    def _advance(self, now: float) -> None:
        if self._started_at is None:
            self._started_at = now
        elapsed_ms = max(self._elapsed_ms, int((now - self._started_at) * 1000))
        self._coordinator.advance(elapsed_ms - self._elapsed_ms)
        self._elapsed_ms = elapsed_ms

    def _deliver(self) -> None:
        for ticket, data in self._coordinator.responses():
            incoming, reply = self._pending.pop(ticket)
            response = _decode(incoming, data)
            if isinstance(incoming.request, OffsetCommitRequest):
                self._keep_offsets(incoming.request, response)
            reply(response)
        assert self._started_at is not None
        assert self._cluster is not None
        due_ms = self._elapsed_ms + self._coordinator.until_next_timer
        # A deadline is a sum of floats: half a millisecond makes up for what it lacks.
        due_at = self._started_at + (due_ms + 0.5) / 1000

        def run(now: float) -> None:
            self._advance(now)
            self._deliver()

        self._cluster.timers.schedule(self, due_at, run)

    def _keep_offsets(self, request: OffsetCommitRequest, response: OffsetCommitResponse) -> None:
        """Let the cluster know committed offsets, for `EmbeddedKafka.committed`."""
        assert self._cluster is not None
        stored = {
            (topic.name, topic.topic_id, partition.partition_index)
            for topic in response.topics
            for partition in topic.partitions
            if not partition.error_code
        }
        offsets = self._cluster.offsets.setdefault(request.group_id, {})
        for topic in request.topics:
            by_id = None if topic.name else self._cluster.topic_by_id(topic.topic_id)
            name = topic.name if by_id is None else by_id.name
            for of in topic.partitions:
                if (topic.name, topic.topic_id, of.partition_index) in stored:
                    offsets[TopicPartition(name, of.partition_index)] = OffsetAndMetadata(
                        of.committed_offset, of.committed_metadata or "", of.committed_leader_epoch
                    )


def _encode(incoming: Incoming) -> bytes:
    return encode_request(
        incoming.request, incoming.version, incoming.client_id, incoming.correlation_id
    )


def _decode(incoming: Incoming, data: bytes) -> Any:
    return decode_response(incoming.request, incoming.version, data)
