"""`MemberConfig`: what a membership is configured with, whichever protocol it speaks."""

from __future__ import annotations

from kafkagroup._values import frozen

__all__ = ["MemberConfig"]


@frozen(kw_only=True)
class MemberConfig:
    """Configuration of a member. Times in seconds. The defaults are those of the options."""

    group_id: str
    protocol_type: str = "consumer"
    client_id: str | None = None
    """In ZooKeeper, the beginning of the member ids; None: "kafkagroup"."""
    was_member: bool = False
    """Whether an earlier membership of this client has succeeded, so that a refusal may be
    temporary."""
    group_instance_id: str | None = None
    """Set for a static member (KIP-345), which keeps its place while it is away for no longer than
    a session timeout."""
    session_timeout: float = 45.0
    """With KIP-848 the broker has its own value, which the member cannot read; ZooKeeper grants 2
    to 20 of its ticks."""
    rebalance_timeout: float = 300.0
    heartbeat_interval: float = 1.0
    """Seconds between heartbeats of a stable member."""
    settling_interval: float = 0.1
    """Seconds between heartbeats around a change, when more changes follow soon."""
    request_timeout: float = 30.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    max_retries: int | None = None
    """How often in a row joining, or claims that were refused, may be retried; None: without
    limit."""

    # Each for one protocol only.
    cooperative: bool = False
    """Classic: whether the application keeps its partitions while the group rebalances
    (KIP-429)."""
    rack: str | None = None
    """KIP-848: the rack of the client."""
    assignor: str | None = None
    """KIP-848: the server's assignor, "uniform" or "range"; None: the broker's default."""
    may_fall_back: bool = False
    """KIP-848: whether the membership ends with `FallBack`, not an error, if the broker does not
    support the protocol, or the group cannot be upgraded to it."""
    release_timeout: float = 60.0
    """KIP-848: how long another member may hold this member's `group_instance_id`. After a crash,
    that is the member's former process."""
    exclusive_generations: bool = False
    """ZooKeeper: whether members claim generations, of which only one may be in use at a time, and
    not partitions."""
