"""The invariants, by name: what the checker asserts of every run, simulated or real.

A real run asserts those that its events allow: without the wire there is no S2, S3, S10, S11, S18
and S21; without the broker no S14 and S20. L1 to L3 are asserted in virtual time only.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["INVARIANTS"]

INVARIANTS: Mapping[str, str] = {
    "S1": "a partition has at most one owner in each generation or epoch",
    "S2": "a revocation ends before the acknowledgement or the rejoin is sent",
    "S3": "the last commit is answered, or its deadline passed, before ownership is released",
    "S4": "a commit never exceeds what was processed",
    "S5": "a commit never goes back, unless the application seeks",
    "S6": "every record below the last commit was processed",
    "S7": "a clean handover repeats no record that was committed",
    "S8": "the offsets of a partition increase, and skip only what no reader may see",
    "S9": "nothing is delivered from a partition once it is revoked or lost",
    "S10": "a stale answer changes nothing",
    "S11": "the member id survives disconnects",
    "S12": "a failed offset fetch is not offset 0",
    "S13": "a lost membership never commits",
    "S14": "an assignment is complete, disjoint, balanced, and sticky where its assignor is",
    "S15": "nothing is delivered from a partition between pause and resume",
    "S16": "a paused partition that stays through a rebalance stays paused",
    "S17": "the record in flight is processed before the last commit of a revocation, unless the"
    " deadline passed",
    "S18": "a revocation begins to call back by its deadline",
    "S19": "what was read of a topic is neither committed to, nor continued in, a topic recreated"
    " under its name",
    "S20": "a cooperative leader gives nobody what another member reports as owned",
    "S21": "partitions are reported as revoked only while the membership lasts",
    "L1": "partitions that stay see a delivery gap of at most 100 ms in a cooperative rebalance",
    "L2": "members rejoin, and the partitions of dead and absent ones move, in time",
    "L3": "heartbeats go on while the application works",
    "L4": "close keeps its deadline and leaves nothing open",
    "L5": "a cancelled call ends",
    "L6": "requests that fail are repeated with growing, jittered pauses",
    "L7": "a leader that repeats a bad assignment causes a bounded rate of rebalances",
    "L9": "a member leaves for max_poll_interval only if it owns partitions and is not polled",
}
"""Name -> what holds. L8, that lasting trouble is reported, is asserted by tests of its own."""
