"""The values of a plan: members, moves with their reasons, ignored claims and rounds."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import attrs

from kafkagroup.types import Assignment, TopicPartition

__all__ = ["Change", "MemberPlan", "Move", "Plan", "Reason", "Round", "Spread", "VoidClaim"]


class Reason(Enum):
    """Why a partition moves, or why a claim to it is ignored."""

    OWNER_LEFT = "owner-left"
    """Its owner is no longer in the group."""
    OWNER_UNSUBSCRIBED = "owner-unsubscribed"
    """Its owner no longer subscribes to the topic."""
    CLAIM_DOUBLED = "claim-doubled"
    """Several members claim it with the same generation, so all their claims are ignored."""
    CLAIM_STALE = "claim-stale"
    """Another member claims it with a higher generation. Only a `VoidClaim` has this reason."""
    TOPIC_NEW = "topic-new"
    """The topic did not exist before."""
    PARTITION_NEW = "partition-new"
    """The topic had fewer partitions before."""
    UNOWNED = "unowned"
    """No member owned it. The spec does not show whether it is new or its owner left."""
    LOAD = "load"
    """Without the move, the more loaded of the two members would have a higher load, relative to
    its capacity. Besides, without loads and capacities the assignor would not have moved it there;
    or, if the move is not needed for balance, it would have returned another assignment."""
    RACK = "rack"
    """It has a replica in the new owner's rack and none in the old one's, and without racks the
    assignor would not have moved it there."""
    BALANCE = "balance"
    """Without the move (and without all unneeded moves), the partition counts of the two members
    would differ more; and the old owner gets no partition that the new owner could have got
    instead, nor does the new owner give one to a member that could have got this one."""
    NOT_STICKY = "not-sticky"
    """Not needed for balance: the assignor ignores who owned it."""
    FREE_CHOICE = "free-choice"
    """None of the above: the assignor moves it without a need."""
    GONE = "gone"
    """It does not exist, or was deleted."""
    NO_SUBSCRIBER = "no-subscriber"
    """No member subscribes to the topic."""
    LEFT_OUT = "left-out"
    """The assignor assigns it to no member, though the topic has subscribers."""


class Change(Enum):
    """Whether a member stays, joins or leaves."""

    STAYS = "stays"
    JOINS = "joins"
    LEAVES = "leaves"


@attrs.frozen(kw_only=True)
class MemberPlan:
    """One member, before and after the rebalance."""

    member_id: str
    instance_id: str | None = None
    change: Change = Change.STAYS
    before: tuple[TopicPartition, ...]
    """The partitions that it owned by its valid claims, sorted."""
    after: tuple[TopicPartition, ...]
    """The partitions that it owns when the group is stable, sorted."""
    load_before: float
    """The sum of the loads of `before`; a partition without one counts as 1.0."""
    load_after: float
    """The same sum for `after`."""
    capacity: float = 1.0
    """As in `MemberSpec`."""


@attrs.frozen(kw_only=True)
class Move:
    """One partition that moves."""

    partition: TopicPartition
    before: str | None
    """Member id of its owner; None when no member owned it."""
    after: str | None
    """Member id of its new owner; None when it has none."""
    round: int | None
    """The round, from 1, in which it is assigned to the new owner; None when that never happens, or
    when the new owner consumes it already by a claim that was ignored."""
    why: Reason
    text: str
    """The reason in words, with this partition's facts."""


@attrs.frozen(kw_only=True)
class VoidClaim:
    """A partition that a member claims to own, and does not own."""

    member_id: str
    partition: TopicPartition
    why: Reason
    text: str


@attrs.frozen(kw_only=True)
class Round:
    """One rebalance. A member without partitions has no entry; partitions are sorted.

    Eager members revoke before they join, cooperative members after they got their assignment.
    """

    revoked: Assignment
    """Member id -> the partitions that it revokes."""
    assigned: Assignment
    """Member id -> the partitions that it starts to consume."""


@attrs.frozen
class Spread:
    """The fewest and the most partitions of a member."""

    least: int
    most: int


@attrs.frozen(kw_only=True)
class Plan:
    """The outcome of a dry run."""

    assignor: str
    """The assignor's name on the wire."""
    cooperative: bool
    """Whether members keep consuming the partitions that do not move."""
    members: tuple[MemberPlan, ...]
    """In the order of the spec, then those that leave."""
    moves: tuple[Move, ...]
    """Sorted by partition."""
    void_claims: tuple[VoidClaim, ...]
    """The claims that are ignored, sorted by partition and member."""
    rounds: tuple[Round, ...]
    settled: bool
    """False when members would still revoke and rejoin after `MAX_ROUNDS` rounds."""
    kept: int
    """How many partitions stay with their owner."""
    paused: tuple[TopicPartition, ...]
    """The partitions that no member consumes for a while: those that their owner revokes or,
    without an owner, the members that claim them; and those of members that leave. When eager, all
    owned ones."""
    unassigned: tuple[TopicPartition, ...]
    """Partitions of subscribed topics that no member gets; empty if the assignor is correct."""

    @property
    def moved(self) -> int:
        """How many partitions move from one member to another."""
        return sum(m.before is not None and m.after is not None for m in self.moves)

    @property
    def given(self) -> int:
        """How many partitions without an owner get one."""
        return sum(m.before is None for m in self.moves)

    @property
    def dropped(self) -> int:
        """How many partitions lose their owner and get no other."""
        return sum(m.after is None for m in self.moves)

    @property
    def spread_before(self) -> Spread:
        """The spread of the partition counts before the rebalance."""
        return _spread(len(m.before) for m in self.members if m.change is not Change.JOINS)

    @property
    def spread_after(self) -> Spread:
        """The spread of the partition counts after the rebalance."""
        return _spread(len(m.after) for m in self.members if m.change is not Change.LEAVES)


def _spread(counts: Iterable[int]) -> Spread:
    found = tuple(counts)
    return Spread(min(found, default=0), max(found, default=0))
