"""The coordinator of `EmbeddedKafka` in virtual time: no sockets, no tasks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial

from kafkagroup.testing.embedded.broker import Incoming, handle, read_request, write_response
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.testing.embedded.group import ClassicGroup
from kafkagroup.testing.embedded.settings import BrokerSettings

from .hash_map import JavaHashMap
from .java_random import JavaRandom

__all__ = ["KAFKAS", "MAX_SIZE", "EmbeddedCoordinator"]

MAX_SIZE = 4
"""Members in a group, so that some groups are full."""

KAFKAS = BrokerSettings(
    group_initial_rebalance_delay=3.0,
    group_consumer_assignment_interval=1.0,
    group_max_size=MAX_SIZE,
)
"""Kafka's own settings, where the embedded broker has other defaults; and small groups."""

_NODE = 1


class EmbeddedCoordinator:
    """The one node of an embedded cluster, called directly."""

    def __init__(
        self,
        settings: BrokerSettings = KAFKAS,
        prepare: Callable[[Cluster], object] = lambda _: None,
    ) -> None:
        """`prepare` gets each new cluster before the first request."""
        self._settings = settings
        self._prepare = prepare
        self._tickets = 0
        self.reset(0)

    def reset(self, seed: int) -> None:
        self._now_ms = 0
        self._responses: list[tuple[int, bytes]] = []
        self.cluster = Cluster(range(_NODE, _NODE + 1), self._settings, seed)
        self.cluster.new_id = JavaRandom(seed).uuid  # type: ignore[method-assign]
        self.cluster.classic_coordinator.groups = _ClassicGroups()
        self._prepare(self.cluster)

    def submit(self, request: bytes) -> int:
        self._tickets += 1
        incoming = read_request(request)
        reply = partial(self._reply, self._tickets, incoming)
        handle(self.cluster, _NODE, incoming, self._now_ms / 1000, "/127.0.0.1", reply)
        self.advance(0)  # a timeout of 0 is due at once
        return self._tickets

    def _reply(self, ticket: int, incoming: Incoming, response: object) -> None:
        self._responses.append((ticket, write_response(incoming, response)[4:]))

    def responses(self) -> list[tuple[int, bytes]]:
        came, self._responses = self._responses, []
        return came

    def advance(self, milliseconds: int) -> None:
        end = self._now_ms + milliseconds
        timers = self.cluster.timers
        while (due := timers.next()) is not None and round(due * 1000) <= end:
            # Deadlines are sums of floats, so their last digits are not exact.
            timers.run(due)
        self._now_ms = end

    def set_topics(self, topics: Mapping[str, tuple[uuid.UUID, int]]) -> None:
        cluster = self.cluster
        for name, topic in tuple(cluster.topics.items()):
            if name not in topics or topics[name][0] != topic.topic_id:
                cluster.delete_topic(name)
        for name, (topic_id, partitions) in topics.items():
            if name not in cluster.topics:
                cluster.add_topic(name, topic_id)
            cluster.add_partitions(name, partitions)

    def close(self) -> None:
        pass


class _ClassicGroups(dict[str, ClassicGroup]):
    """Groups whose members are in the order in which Kafka visits them."""

    def __setitem__(self, group_id: str, group: ClassicGroup) -> None:
        group.members = JavaHashMap()
        super().__setitem__(group_id, group)
