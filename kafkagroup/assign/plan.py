"""A dry run of an assignor: the assignment that it would return, and the reason of each move.

The plan derives the reasons from the spec, and from running the assignor, a pure function, again on
the spec without loads, racks or owners. It does not guess: a move that neither explains is reported
as `UNOWNED` or `FREE_CHOICE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from enum import Enum
from functools import cached_property

import attrs

from kafkagroup.assign.spec import Assignor, GroupSpec, MemberSpec, is_cooperative, protocol_name
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import Assignment, TopicPartition

__all__ = [
    "MAX_ROUNDS",
    "Change",
    "MemberPlan",
    "Move",
    "Plan",
    "Reason",
    "Round",
    "Spread",
    "VoidClaim",
    "plan",
    "with_newcomers",
    "without",
]

MAX_ROUNDS = 10
"""Most rebalances of a cooperative group that a plan follows. The assignors here need two, or three
when claims contradict each other; one that needs ten does not converge."""


class Reason(Enum):
    """Why a partition moves, or why a claim is ignored."""

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
    """Without the move, the more loaded of the two members would have a higher load; and without
    loads and capacities the assignor would not have moved it there."""
    RACK = "rack"
    """It has a replica in the new owner's rack and none in the old one's, and without racks the
    assignor would not have moved it there."""
    BALANCE = "balance"
    """Without the move (and without all unneeded moves), the partition counts of the two members
    would differ more; and the old owner gets no partition that the new owner could have got
    instead."""
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
    capacity: float = 1.0


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

    let_go: Assignment
    """Member id -> the partitions that it revokes."""
    taken_up: Assignment
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
    """Its name on the wire."""
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
    """The partitions that their owner revokes, so that no member consumes them for a while: all
    owned ones when eager."""
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


def plan(spec: GroupSpec, assignor: Assignor, *, was: GroupSpec | None = None) -> Plan:
    """Return the plan of a rebalance in which all members support only this assignor.

    For a cooperative assignor the plan has all rounds: members revoke the partitions that move, and
    rejoin, until no member has to revoke any. `was` is the group before a change, such as a member
    that leaves: the owners are read from it, and reasons may then name the change.

    Calls the assignor once for each round, and at most three times as often again for the reasons.
    Raises: ConfigurationError when the assignor assigns to an unknown member, or a partition twice.
    """
    was = was or spec
    name = protocol_name(assignor)
    claims = _Claims(was)
    before = claims.owner
    rounds, after, is_stable = _rounds(spec, assignor)
    reasons = _Reasons(spec, was, assignor, claims, after)
    round_of = {
        tp: number
        for number, rebalance in enumerate(rounds, 1)
        for partitions in rebalance.taken_up.values()
        for tp in partitions
    }
    changed = sorted(tp for tp in before.keys() | after.keys() if before.get(tp) != after.get(tp))
    moves = []
    for tp in changed:
        reason, text = reasons.of(tp)
        moves.append(
            Move(
                partition=tp,
                before=before.get(tp),
                after=after.get(tp),
                round=round_of.get(tp) if tp in after else None,
                why=reason,
                text=text,
            )
        )
    paused = {
        tp
        for rebalance in rounds
        for member, partitions in rebalance.let_go.items()
        for tp in partitions
        # A member that drops an ignored claim interrupts no consumption.
        if before.get(tp, member) == member
    }
    paused |= {tp for tp, owner in before.items() if owner not in spec.members}
    return Plan(
        assignor=name,
        cooperative=is_cooperative(assignor),
        members=_members(spec, was, before, after),
        moves=tuple(moves),
        void_claims=tuple(sorted(claims.void, key=lambda c: (c.partition, c.member_id))),
        rounds=rounds,
        settled=is_stable,
        kept=sum(after.get(tp) == owner for tp, owner in before.items()),
        paused=tuple(sorted(paused)),
        unassigned=tuple(
            tp
            for topic in spec.topics()
            for p in range(spec.partitions[topic])
            if (tp := TopicPartition(topic, p)) not in after
        ),
    )


def without(spec: GroupSpec, member: str) -> GroupSpec:
    """Return the group without a member, named by its id or its instance id.

    Raises: ConfigurationError when there is no such member.
    """
    gone = {m for m, member_spec in spec.members.items() if member in (m, member_spec.instance_id)}
    if not gone:
        known = ", ".join(sorted(spec.members)[:5]) or "none"
        more = ", ..." if len(spec.members) > 5 else ""
        raise ConfigurationError(f"{member!r} is not in the group; its members: {known}{more}")
    return attrs.evolve(
        spec, members={m: member_spec for m, member_spec in spec.members.items() if m not in gone}
    )


def with_newcomers(spec: GroupSpec, count: int) -> GroupSpec:
    """Return the group with `count` more members, named new-1 and so on. They own nothing, and
    subscribe to all topics that the group subscribes to."""
    topics = frozenset[str]().union(*(member_spec.topics for member_spec in spec.members.values()))
    members = dict(spec.members)
    number = 0
    while len(members) < len(spec.members) + count:
        number += 1
        members.setdefault(f"new-{number}", MemberSpec(topics=topics))
    return attrs.evolve(spec, members=members)


class _Claims:
    """Which member owned each partition, by the claims of the members.

    The claim with the highest generation is valid, if only one member has it (KIP-792), even if
    that member no longer subscribes to the topic.
    """

    def __init__(self, spec: GroupSpec) -> None:
        self.owner: dict[TopicPartition, str] = {}
        self.void: list[VoidClaim] = []
        self.doubled: dict[TopicPartition, str] = {}
        """Partition -> why all claims to it are ignored."""
        claims: dict[TopicPartition, list[str]] = {}
        for member in spec.order():
            for tp in dict.fromkeys(spec.members[member].owned):
                claims.setdefault(tp, []).append(member)
        for tp, claimants in claims.items():
            self._resolve_claims(spec, tp, claimants)

    def _resolve_claims(self, spec: GroupSpec, tp: TopicPartition, claimants: list[str]) -> None:
        if not _exists(spec, tp):
            self._void(claimants, tp, Reason.GONE, _gone(spec, tp))
            return
        newest = max(spec.members[m].generation for m in claimants)
        latest = [m for m in claimants if spec.members[m].generation == newest]
        names = " and ".join(_label(spec, m) for m in latest)
        stale = [m for m in claimants if m not in latest]
        text = f"{names} claimed it later, in generation {newest}"
        self._void(stale, tp, Reason.CLAIM_STALE, text)
        if len(latest) == 1:
            self.owner[tp] = latest[0]
        else:
            self.doubled[tp] = text = f"{names} claim it with the same generation, {newest}"
            self._void(latest, tp, Reason.CLAIM_DOUBLED, text)

    def _void(self, members: Iterable[str], tp: TopicPartition, why: Reason, text: str) -> None:
        for member in members:
            self.void.append(VoidClaim(member_id=member, partition=tp, why=why, text=text))


def _rounds(
    spec: GroupSpec, assignor: Assignor
) -> tuple[tuple[Round, ...], dict[TopicPartition, str], bool]:
    """Return the rounds, the owners after them, and whether the group is stable then."""
    owned = {m: frozenset(member_spec.owned) for m, member_spec in spec.members.items()}
    owner = _run_assignor(spec, assignor)
    if not is_cooperative(assignor):
        return (Round(let_go=_sorted(owned), taken_up=_sorted(_by_member(owner))),), owner, True
    generation = max((member_spec.generation for member_spec in spec.members.values()), default=-1)
    rounds: list[Round] = []
    while True:
        held = _by_member(owner)
        revoked = {m: owned[m] - held.get(m, frozenset()) for m in owned}
        gained = {m: held.get(m, frozenset()) - owned[m] for m in owned}
        rounds.append(Round(let_go=_sorted(revoked), taken_up=_sorted(gained)))
        rejoins = any(revoked.values())
        if not rejoins or len(rounds) == MAX_ROUNDS:
            return tuple(rounds), owner, not rejoins
        owned = {m: frozenset(held.get(m, ())) for m in owned}
        generation += 1
        members = {
            m: attrs.evolve(member_spec, owned=tuple(sorted(owned[m])), generation=generation)
            for m, member_spec in spec.members.items()
        }
        spec = attrs.evolve(spec, members=members)
        owner = _run_assignor(spec, assignor)


def _run_assignor(spec: GroupSpec, assignor: Assignor) -> dict[TopicPartition, str]:
    """Run the assignor; return partition -> owner. Raises: ConfigurationError."""
    owner: dict[TopicPartition, str] = {}
    for member, held in assignor(spec).items():
        if member not in spec.members:
            raise ConfigurationError(
                f"assignor {protocol_name(assignor)!r} assigns to {member!r}, which is not a member"
            )
        for tp in held:
            if tp in owner:
                raise ConfigurationError(
                    f"assignor {protocol_name(assignor)!r} assigns {tp} to {owner[tp]!r}"
                    f" and to {member!r}"
                )
            owner[tp] = member
    return owner


class _Reasons:
    """The reasons of one plan's moves. Call `of` once for each moved partition, in order: which of
    several moves counts as unneeded depends on those before it."""

    def __init__(
        self,
        spec: GroupSpec,
        was: GroupSpec,
        assignor: Assignor,
        claims: _Claims,
        after: Mapping[TopicPartition, str],
    ) -> None:
        self._spec = spec
        self._was = was
        self._assignor = assignor
        self._claims = claims
        self._before = claims.owner
        self._after = after
        self._counts_before = Counter(self._before.values())
        self._counts_after = Counter(after.values())
        self._counts_kept = Counter(after.values())
        """As `_counts_after`, without the moves that are not needed for balance."""
        self._loads_before = _loads(was, self._before)
        self._loads_after = _loads(spec, after)
        self._gains: dict[str, Counter[str]] = {}
        """Member id -> topic -> how many partitions it gained, without the unneeded moves."""
        for tp, taker in after.items():
            if self._before.get(tp) != taker:
                self._gains.setdefault(taker, Counter())[tp.topic] += 1
        self._weighted = bool(spec.loads) or any(m.capacity != 1 for m in spec.members.values())
        self._owned_topics = {tp.topic for tp in self._before}

    def of(self, tp: TopicPartition) -> tuple[Reason, str]:
        """Return why a partition moves, and the reason as text."""
        giver, taker = self._before.get(tp), self._after.get(tp)
        if taker is None:
            return self._dropped(tp)
        if giver is None:
            return self._given(tp)
        name = _label(self._was, giver)
        if giver not in self._spec.members:
            return Reason.OWNER_LEFT, f"{name} left"
        if tp.topic not in self._spec.members[giver].topics:
            return Reason.OWNER_UNSUBSCRIBED, f"{name} no longer subscribes to {tp.topic}"
        return self._moved(tp, giver, taker)

    def _dropped(self, tp: TopicPartition) -> tuple[Reason, str]:
        if not _exists(self._spec, tp):
            return Reason.GONE, _gone(self._spec, tp)
        if not any(tp.topic in member_spec.topics for member_spec in self._spec.members.values()):
            return Reason.NO_SUBSCRIBER, f"no member subscribes to {tp.topic}"
        return Reason.LEFT_OUT, f"{protocol_name(self._assignor)} assigns it to no member"

    def _given(self, tp: TopicPartition) -> tuple[Reason, str]:
        if (text := self._claims.doubled.get(tp)) is not None:
            return Reason.CLAIM_DOUBLED, text
        if not (count := self._was.partitions.get(tp.topic, 0)):
            return Reason.TOPIC_NEW, f"topic {tp.topic} is new"
        if tp.partition >= count:
            now = self._spec.partitions[tp.topic]
            return Reason.PARTITION_NEW, f"{tp.topic} grew from {count} to {now} partitions"
        if not self._before:
            return Reason.UNOWNED, "no member owned any partition"
        if tp.topic not in self._owned_topics:
            return Reason.UNOWNED, f"no member owned a partition of {tp.topic}"
        return Reason.UNOWNED, "no member owned it"

    def _moved(self, tp: TopicPartition, giver: str, taker: str) -> tuple[Reason, str]:
        give, take = _label(self._was, giver), _label(self._spec, taker)
        if self._weighted and self._is_needed_for_load(tp, giver, taker):
            loads = ", ".join(
                f"{name} {self._loads_before[m]:g} -> {self._loads_after[m]:g}"
                for m, name in ((giver, give), (taker, take))
            )
            return Reason.LOAD, f"load: {loads}"
        if self._is_needed_for_rack(tp, giver, taker):
            rack = self._spec.members[taker].rack
            return Reason.RACK, f"a replica is in {take}'s rack {rack}, none in {give}'s"
        alternative = self._alternative_topic(giver, taker)
        if self._counts_kept[giver] < self._counts_kept[taker]:
            self._undo(tp, giver, taker)
        elif alternative is not None:
            self._replace(tp, alternative, giver, taker)
        else:
            counts = ", ".join(
                f"{name} {self._counts_before[m]} -> {self._counts_after[m]}"
                for m, name in ((giver, give), (taker, take))
            )
            return Reason.BALANCE, f"balance: {counts}"
        name = protocol_name(self._assignor)
        if self._without_owners.get(tp) == taker:
            return Reason.NOT_STICKY, f"{name} ignores who owned it"
        return Reason.FREE_CHOICE, f"{name} moves it without need"

    def _is_needed_for_load(self, tp: TopicPartition, giver: str, taker: str) -> bool:
        load = self._spec.loads.get(tp, 1.0)

        def higher_load(shift: float) -> float:
            return max(
                (self._loads_after[m] + change) / self._spec.members[m].capacity
                for m, change in ((giver, shift), (taker, -shift))
            )

        return higher_load(load) > higher_load(0.0) and self._without_loads.get(tp) != taker

    def _is_needed_for_rack(self, tp: TopicPartition, giver: str, taker: str) -> bool:
        racks = self._spec.racks.get(tp.topic, ())
        here = racks[tp.partition] if tp.partition < len(racks) else frozenset()
        members = self._spec.members
        return (
            bool(members[taker].rack)  # an empty rack name means no rack
            and members[taker].rack in here
            and members[giver].rack not in here
            and self._without_racks.get(tp) != taker
        )

    def _alternative_topic(self, giver: str, taker: str) -> str | None:
        """Return a topic of which the giver gained a partition that the taker could have got
        instead; None if there is none."""
        topics, gains = self._spec.members[taker].topics, self._gains.get(giver, Counter())
        return next((t for t in sorted(gains) if gains[t] > 0 and t in topics), None)

    # A move that is not needed for balance is ignored when the moves after it are examined. So if
    # any one of several moves would restore the balance, exactly one is reported as needed.

    def _undo(self, tp: TopicPartition, giver: str, taker: str) -> None:
        """Count the partition as still the giver's."""
        self._counts_kept[giver] += 1
        self._counts_kept[taker] -= 1
        self._gains[taker][tp.topic] -= 1

    def _replace(self, tp: TopicPartition, topic: str, giver: str, taker: str) -> None:
        """Count the partition as still the giver's, and one of `topic` that it gained as the
        taker's: the counts stay the same."""
        self._gains[giver][topic] -= 1
        self._gains[taker][topic] += 1
        self._gains[taker][tp.topic] -= 1

    @cached_property
    def _without_loads(self) -> dict[TopicPartition, str]:
        members = self._spec.members.items()
        return self._final_owners(
            attrs.evolve(
                self._spec,
                loads={},
                members={m: attrs.evolve(member_spec, capacity=1.0) for m, member_spec in members},
            )
        )

    @cached_property
    def _without_racks(self) -> dict[TopicPartition, str]:
        return self._final_owners(attrs.evolve(self._spec, racks={}))

    @cached_property
    def _without_owners(self) -> dict[TopicPartition, str]:
        members = self._spec.members.items()
        return self._final_owners(
            attrs.evolve(
                self._spec,
                members={
                    m: attrs.evolve(member_spec, owned=(), generation=-1)
                    for m, member_spec in members
                },
            )
        )

    def _final_owners(self, spec: GroupSpec) -> dict[TopicPartition, str]:
        return _rounds(spec, self._assignor)[1]


def _members(
    spec: GroupSpec,
    was: GroupSpec,
    before: Mapping[TopicPartition, str],
    after: Mapping[TopicPartition, str],
) -> tuple[MemberPlan, ...]:
    held_before, held_after = _sorted(_by_member(before)), _sorted(_by_member(after))
    loads_before, loads_after = _loads(was, before), _loads(spec, after)
    found = []
    for member in (*spec.order(), *(m for m in was.order() if m not in spec.members)):
        member_spec = spec.members.get(member) or was.members[member]
        change = Change.STAYS if member in spec.members else Change.LEAVES
        found.append(
            MemberPlan(
                member_id=member,
                instance_id=member_spec.instance_id,
                change=change if member in was.members else Change.JOINS,
                before=held_before.get(member, ()),
                after=held_after.get(member, ()),
                load_before=loads_before.get(member, 0.0),
                load_after=loads_after.get(member, 0.0),
                capacity=member_spec.capacity,
            )
        )
    return tuple(found)


def _loads(spec: GroupSpec, owner: Mapping[TopicPartition, str]) -> dict[str, float]:
    """Return member id -> the sum of its loads, added in the partitions' order: in another order
    the last digit may differ."""
    loads = dict.fromkeys(spec.members, 0.0)
    for tp in sorted(owner):
        loads[owner[tp]] += spec.loads.get(tp, 1.0)
    return loads


def _by_member(owner: Mapping[TopicPartition, str]) -> dict[str, frozenset[TopicPartition]]:
    """Return member id -> its partitions."""
    held: dict[str, set[TopicPartition]] = {}
    for tp, member in owner.items():
        held.setdefault(member, set()).add(tp)
    return {member: frozenset(tps) for member, tps in held.items()}


def _sorted(held: Mapping[str, Set[TopicPartition]]) -> dict[str, tuple[TopicPartition, ...]]:
    """Return the partitions of each member, sorted, without members that have none."""
    return {member: tuple(sorted(held[member])) for member in sorted(held) if held[member]}


def _spread(counts: Iterable[int]) -> Spread:
    found = tuple(counts)
    return Spread(min(found, default=0), max(found, default=0))


def _exists(spec: GroupSpec, tp: TopicPartition) -> bool:
    return 0 <= tp.partition < spec.partitions.get(tp.topic, 0)


def _gone(spec: GroupSpec, tp: TopicPartition) -> str:
    """Return why a partition does not exist, as text."""
    count = spec.partitions.get(tp.topic, 0)
    return f"{tp.topic} has {count} partitions" if count else f"topic {tp.topic} does not exist"


def _label(spec: GroupSpec, member: str) -> str:
    """Return the name to show for a member: its instance id, if it has one."""
    return spec.members[member].instance_id or member
