"""The invariants by name, which the checker asserts of every run, simulated or real.

`docs/invariants.md` gives the reason for each, and names the module that checks it.

A run on real brokers asserts those that its events permit, as that page says. L1 to L3 and S27
are asserted in virtual time only.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["INVARIANTS"]

INVARIANTS: Mapping[str, str] = {
    "S1": "a partition has at most one owner in each generation or member epoch",
    "S2": "a revocation is complete before the member acknowledges it or rejoins",
    "S3": "the last commit is answered, or its deadline has passed, before the member releases "
    "ownership",
    "S4": "a commit never exceeds the lowest offset that the application has not processed",
    "S5": "the committed offset never moves back, unless the application seeks",
    "S6": "every record below the last commit was processed",
    "S7": "a clean handover repeats no record below the commit",
    "S8": "the delivered offsets of a partition increase, and skip only what no reader may see",
    "S9": "nothing is delivered from a partition after it is revoked or lost",
    "S10": "a stale response changes nothing",
    "S11": "the member id survives disconnects",
    "S12": "a failed offset fetch is never treated as offset 0",
    "S13": "a member never commits for a membership that it has lost",
    "S14": "an assignment is complete, disjoint and balanced, and sticky where its assignor is",
    "S15": "nothing is delivered from a partition between pause and resume",
    "S16": "a paused partition that a member keeps through a rebalance stays paused",
    "S17": "the records in flight are processed before the last commit of a revocation, unless the "
    "deadline has passed",
    "S18": "a revocation calls the application back by its deadline",
    "S19": "a position or commit of a deleted topic is never applied to a topic recreated under "
    "its name",
    "S20": "a cooperative leader assigns a partition only after its owner has revoked it",
    "S21": "the client reports partitions as revoked only while the membership lasts",
    "S22": "no partition is revoked, lost or assigned anew because one response of one broker "
    "reports less than is known",
    "S23": "a position moves only when its leader confirms it",
    "S24": "nothing of another cluster is delivered, and nothing is committed to it",
    "S25": "a commit belongs to the assignment of its call, and is never below where that began",
    "S26": "a partition that is created while a member is subscribed is read from its start",
    "S27": "nothing is delivered after the lease has expired, however long the machine was "
    "suspended",
    "L1": "partitions that a member keeps see a delivery gap of at most 100 ms in a cooperative "
    "rebalance",
    "L2": "members rejoin in time, and partitions of dead or absent members are reassigned in time",
    "L3": "heartbeats continue while the application works",
    "L4": "closing keeps its deadline and leaves nothing open",
    "L5": "a cancelled call ends",
    "L6": "failed requests are repeated with growing, jittered backoff",
    "L7": "a leader that repeats a bad assignment causes a bounded rate of rebalances",
    "L9": "a member leaves for `max_poll_interval_ms` only if it owns partitions and the "
    "application is not polling",
    "L10": "an acknowledged offset that the broker has forgotten is stored again when its "
    "partition is released",
    "L11": "a partition that a broker refuses is asked for again, until it is revoked, and the "
    "application is notified",
    "L12": "a member that closes leaves its group",
    "L13": "a static member is not held off by its own earlier join",
    "L14": "one silent connection does not use up a call",
    "L15": "credentials that fail for a while end no client that has started",
    "L16": "a broker whose address is known is reached while name servers are slow",
    "L17": "the client waits for no thread that the application shares",
}
"""Name -> the invariant. L8, that lasting problems are reported, has separate tests."""
