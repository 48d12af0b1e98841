"""What a member owns and until when: one immutable value, which only the steps replace.

A member owns its assignment under a lease. The group, which is a coordinator or ZooKeeper, extends
the lease when it acknowledges a request of the member. The lease runs from the moment at which that
request was *sent*: the group knew the member after that, but how long after is unknown.

Each protocol has one rule for which acknowledgement extends the lease, and for how long:

- classic: heartbeats, for one session timeout; while the group rebalances, or waits for SyncGroup,
  no further than the rebalance timeout allows (`classic._extend_lease`). The application gets an
  assignment as soon as it has a lease.
- KIP-848: heartbeats, for one session timeout. While the coordinator waits for a revocation, no
  further than the rebalance timeout allows (`consumer_protocol._extend_lease`).
- ZooKeeper: confirmations by ZooKeeper's leader, for `LEASE_FRACTION` of the granted session
  timeout (`zookeeper._on_confirmed`).

An event loop that stalls needs no rule. A request is sent in a step, so a lease never ends later
than one `lease_timeout` after the last step: a member that stalls for so long finds it expired. So
does a member whose system was suspended: the times are on the lease clock, which counts suspends
(`concurrency/clock.py`).

The runtime passes the value on to the reader, commits, health checks and metrics. With a heartbeat
thread, other threads read it at any time, so it is never changed in place.

    becomes                     by             with
    not assigned                `Ownership()`  the start; in ZooKeeper also the end of a session
    not assigned, acknowledged  `acknowledge`  the event `Replied` or `Confirmed`
    assigned                    `assign`       the effect `Assign`, `Reconcile` or `AssignUnits`
    assigned, lease extended    `acknowledge`  the event `Replied` or `Confirmed`
    assigned, lease shortened   `limit`        the event `SessionEstablished`
    assigned, revoking          `revoke`       the effect `Revoke`
    assigned                    `keep`         the event `Revoked`, where only a part is released
    not assigned                `release`      the event `Revoked`, the effect `Lose`, or an
                                               `AssignUnits` without units

Which partitions are assigned is known to each protocol alone: to a classic member an assignment is
opaque bytes.
"""

from __future__ import annotations

from kafkagroup._values import evolve, frozen

__all__ = ["Ownership"]

_NEVER = float("-inf")


@frozen(kw_only=True)
class Ownership:
    """What a member owns, and until when."""

    is_assigned: bool = False
    """Whether the application has an assignment, or is being given one."""
    is_revoking: bool = False
    """Whether the application is processing, committing and releasing. It still owns what it has
    not released."""
    acknowledged_at: float = _NEVER
    """When the last request that the group acknowledged was sent, or an earlier moment to which a
    protocol's rule limits the lease."""
    lease_timeout: float = 0.0
    """For how many seconds after `acknowledged_at` the lease runs."""

    @property
    def lease_expires_at(self) -> float:
        """Until when, on the lease clock, the member owns its assignment if no other request is
        acknowledged; 0.0 without an assignment."""
        return self.acknowledged_at + self.lease_timeout if self.is_assigned else 0.0

    def acknowledge(self, sent_at: float, lease_timeout: float) -> Ownership:
        """Extend the lease. A response to an older request never shortens it."""
        acknowledged_at = max(self.acknowledged_at, sent_at)
        return evolve(self, acknowledged_at=acknowledged_at, lease_timeout=lease_timeout)

    def limit(self, lease_timeout: float) -> Ownership:
        """Shorten the lease, counted from the same acknowledgement; never extend it."""
        return evolve(self, lease_timeout=min(self.lease_timeout, lease_timeout))

    def assign(self) -> Ownership:
        """Give the application an assignment."""
        return evolve(self, is_assigned=True)

    def revoke(self) -> Ownership:
        """Have the application release what it owns."""
        return evolve(self, is_revoking=True)

    def keep(self) -> Ownership:
        """End a revocation after which the member keeps a part."""
        return evolve(self, is_revoking=False)

    def release(self) -> Ownership:
        """End the assignment: the application has released it, or the group has taken it back. What
        was acknowledged last is kept: the next assignment is under that lease at once."""
        return evolve(self, is_assigned=False, is_revoking=False)
