"""Where partitions are fetched from: the broker, and which of its lanes. A lane is one long poll.

The metadata has the leaders; a leader may have named a nearer replica (KIP-392). While a partition
has no leader, the metadata is requested again. What is fetched, and when, is the fetcher's part.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import RETRIED_ERRORS
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.consume.validation import needs_validation
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition

__all__ = ["FetchSources"]

logger = logging.getLogger(__name__)


class FetchSources:
    """The brokers that the owned partitions are fetched from."""

    def __init__(self, session: Session, cluster: Cluster, spawn: Spawn) -> None:
        self._cluster = cluster
        self._delivery = session.delivery
        self._lane_count = session.options.num_consumer_fetchers
        """How many long polls to one broker are in flight at a time."""
        self._clock = loop_clock()
        self._finding_leaders = CoalescingTask(spawn, self._find_leaders, "leaders")
        self._refreshing = CoalescingTask(spawn, self._try_refresh, "metadata for fetching")

    def refresh(self) -> None:
        """Refresh the metadata in a task of its own, so that fetching does not wait: the broker
        that gets this request may not respond, while the brokers that are fetched from do."""
        self._refreshing.ensure_running()

    def find_leaders(self) -> None:
        """Refresh the metadata while an owned partition has no leader, in a task."""
        if not self._all_have_leaders():
            self._finding_leaders.ensure_running()

    def lanes(self, owned: Collection[OwnedPartition]) -> set[tuple[int, int]]:
        """Return the lanes of these partitions, as node id and number of the lane; without those of
        brokers that the metadata does not have."""
        nodes = self._cluster.metadata.nodes
        return {lane for lane in map(self.lane_of, owned) if lane[0] in nodes}

    def lane_of(self, owned: OwnedPartition) -> tuple[int, int]:
        """Return the broker to fetch a partition from, and the number of its lane there. A
        partition always has the same number: two long polls would return its records twice."""
        return self.source_of(owned), self._lane_number(owned)

    def source_of(self, owned: OwnedPartition) -> int:
        """Return the node id of the broker to fetch from: the replica that the leader has named
        (KIP-392), else the leader; -1 without a leader."""
        leader = self._leader_of(owned.tp)
        replica = owned.replica
        if replica is None or replica.node_id < 0:
            return leader
        is_present = leader >= 0 and replica.node_id in self._cluster.metadata.nodes
        return replica.node_id if is_present and self._clock() < replica.expires_at else leader

    def rack_for(self, owned: Collection[OwnedPartition], rack: str | None) -> str:
        """Return the rack to name in a request for these partitions; "" without a `rack`, and if a
        partition is read from its leader because replicas do not serve it: the leader would name
        such a replica again."""
        if not rack:
            return ""
        now = self._clock()
        choices = (o.replica for o in owned)
        return "" if any(r is not None and now < r.leader_until for r in choices) else rack

    def fetched_from(
        self, node_id: int, lane: int | None, owned: Collection[OwnedPartition]
    ) -> list[OwnedPartition]:
        """Return the partitions that are fetched from a broker, over one lane; None: over any."""
        return [
            o
            for o in owned
            if (lane is None or self._lane_number(o) == lane) and self.source_of(o) == node_id
        ]

    def valid(self, owned: Collection[OwnedPartition]) -> list[OwnedPartition]:
        """Return the partitions whose positions need no validation (KIP-320)."""
        metadata = self._cluster.metadata
        return [o for o in owned if not needs_validation(metadata, o)]

    def _lane_number(self, owned: OwnedPartition) -> int:
        return owned.tp.partition % self._lane_count

    def _leader_of(self, tp: TopicPartition) -> int:
        leader = self._cluster.metadata.leader(tp)
        return -1 if leader is None else leader.leader

    def _all_have_leaders(self) -> bool:
        return next(self._cluster.metadata.without_leader(self._delivery.owned), None) is None

    async def _find_leaders(self) -> None:
        """Request metadata while an owned partition has no leader. Other tasks request it only when
        it is old, and an election takes less time."""
        pauses, troubles = RetryBackoff(self._cluster.options), self._cluster.troubles
        while not self._all_have_leaders():
            if (problem := self._leaderless_problem()) is not None:
                troubles.failed("leaders", self._clock(), problem)
            else:
                troubles.forget("leaders")
            await pauses.wait()
            if not self._all_have_leaders():
                await self._try_refresh()
        troubles.succeeded("leaders", self._clock())

    def _leaderless_problem(self) -> Problem | None:
        """Describe why owned partitions cannot be fetched; None if those are all of unknown topics,
        which the `TopicWatch` reports."""
        metadata = self._cluster.metadata
        leaderless = list(metadata.without_leader(self._delivery.owned))
        # Once for each topic: all of 90,000 partitions may be without a leader.
        counts = metadata.partition_counts({tp.topic for tp in leaderless})
        existing = [tp for tp in leaderless if tp.topic in counts]
        if not existing:
            return None
        tp = min(existing)
        count = counts[tp.topic]
        others = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
        if metadata.leader(tp) is None:  # the metadata has no such partition
            cause = f"it does not exist: topic {tp.topic} has {count} partitions"
            advice = "check what assigns it, and whether the topic was recreated"
        else:
            cause, advice = "it has no leader", "check that a broker with a replica of it is alive"
        return Problem(subject=f"fetching {tp}{others}", cause=cause, advice=advice)

    async def _try_refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except RETRIED_ERRORS as error:
            logger.info("metadata: %s", error)
