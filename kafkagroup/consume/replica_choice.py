"""Which replica of a partition to fetch from (KIP-392)."""

from __future__ import annotations

from kafkagroup._values import define

__all__ = ["ReplicaChoice"]


@define(eq=False)
class ReplicaChoice:
    """Whether a partition is fetched from a follower, which its leader has named.

    `ResponseHandler` sets it, and `FetchSources` reads it. Times are on the loop's clock.
    """

    node_id: int = -1
    """The follower to fetch from; -1 for the leader."""
    expires_at: float = 0.0
    """When to fetch from the leader again."""
    refusal_count: int = 0
    """How often in a row followers did not serve the partition."""
    leader_until: float = 0.0
    """Until when to fetch without naming the client's rack: the leader would name the follower
    again that does not serve the partition."""
    trouble: str = ""
    """Which follower did not serve it, and why, when `leader_until` was set."""

    def read_from(self, node_id: int, until: float) -> None:
        """Fetch from the follower `node_id` until `until`."""
        self.node_id, self.expires_at = node_id, until

    def count_refusal(self) -> int:
        """Count that a follower did not serve the partition; return how often in a row."""
        self.refusal_count += 1
        return self.refusal_count

    def avoid_replicas(self, until: float, trouble: str) -> None:
        """Fetch from the leader until `until`, even if a follower is nearer. `trouble`: as the
        field."""
        self.leader_until, self.trouble = until, trouble
