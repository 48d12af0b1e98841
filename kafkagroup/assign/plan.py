"""What an assignor would do with a group, and why: a dry run, as values.

A reason follows from the spec alone, or from what the assignor, a pure function, answers to a
spec that lacks one thing (loads, racks, owners). What neither tells is not guessed.
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
"""Rounds that a cooperative group is followed for. The assignors here need two, three when claims
contradict each other; one that needs more does not settle."""


class Reason(Enum):
    """Why a partition changes hands, or why a claim does not count."""

    OWNER_LEFT = "owner-left"
    """Its owner is no longer in the group."""
    OWNER_UNSUBSCRIBED = "owner-unsubscribed"
    """Its owner no longer subscribes to the topic."""
    CLAIM_DOUBLED = "claim-doubled"
    """Several members claim it with the same generation, so nobody's claim counts."""
    CLAIM_STALE = "claim-stale"
    """Another member claims it with a higher generation. Of claims only."""
    TOPIC_NEW = "topic-new"
    """The topic was not there before."""
    PARTITION_NEW = "partition-new"
    """The topic had fewer partitions before."""
    UNOWNED = "unowned"
    """Nobody owned it. Whether it is new or its owner left, this spec does not tell."""
    LOAD = "load"
    """The fuller of the two would carry more if it stayed, and without loads and capacities the
    assignor would not have moved it there."""
    RACK = "rack"
    """It has a replica in the new owner's rack and none in the old one's, and without racks the
    assignor would not have moved it there."""
    BALANCE = "balance"
    """If it stayed, as all that is moved without need could, the counts of the two would lie
    further apart; and the old owner gets nothing instead that the new one could have had."""
    NOT_STICKY = "not-sticky"
    """Not needed for balance: the assignor places it there whoever owned it."""
    FREE_CHOICE = "free-choice"
    """None of the above: the assignor moves it without need."""
    GONE = "gone"
    """It does not exist, or no longer."""
    NO_SUBSCRIBER = "no-subscriber"
    """Nobody subscribes to the topic."""
    LEFT_OUT = "left-out"
    """The assignor gives it to nobody, though it has subscribers."""


class Change(Enum):
    """What becomes of a member."""

    STAYS = "stays"
    JOINS = "joins"
    LEAVES = "leaves"


@attrs.frozen(kw_only=True)
class MemberPlan:
    """One member, before and after."""

    member_id: str
    instance_id: str | None = None
    change: Change = Change.STAYS
    before: tuple[TopicPartition, ...]
    """What it owned by the claims that count, sorted."""
    after: tuple[TopicPartition, ...]
    """What it owns once the group has settled, sorted."""
    load_before: float
    """The loads of `before` added up; a partition without one counts as 1.0."""
    load_after: float
    capacity: float = 1.0


@attrs.frozen(kw_only=True)
class Move:
    """One partition that changes hands."""

    partition: TopicPartition
    before: str | None
    """Member id of its owner; None when nobody owned it."""
    after: str | None
    """None when nobody gets it."""
    round: int | None
    """The round, from 1, in which the new owner takes it up; None when that never happens, or
    when its own claim was among those that do not count and it has it in hand already."""
    why: Reason
    text: str
    """The reason in words, with this partition's facts."""


@attrs.frozen(kw_only=True)
class VoidClaim:
    """What a member says it owns, and does not."""

    member_id: str
    partition: TopicPartition
    why: Reason
    text: str


@attrs.frozen(kw_only=True)
class Round:
    """One rebalance. Members are there only with partitions, which are sorted.

    Eager members let go before they join, cooperative ones when they hear what they lose.
    """

    let_go: Assignment
    """Member id -> what it lets go of."""
    taken_up: Assignment
    """Member id -> what it begins to consume."""


@attrs.frozen
class Spread:
    """How many partitions members have."""

    least: int
    most: int


@attrs.frozen(kw_only=True)
class Plan:
    """What an assignor would do with a group."""

    assignor: str
    """Its name on the wire."""
    cooperative: bool
    """Whether members keep what does not move."""
    members: tuple[MemberPlan, ...]
    """In the order of the spec, then those that leave."""
    moves: tuple[Move, ...]
    """By partition."""
    void_claims: tuple[VoidClaim, ...]
    """By partition and member."""
    rounds: tuple[Round, ...]
    settled: bool
    """False when members would go on letting go and rejoining after `MAX_ROUNDS` rounds."""
    kept: int
    """How many partitions stay with their owner."""
    paused: tuple[TopicPartition, ...]
    """What was owned and is let go of by its owner, so that nobody consumes it for a while: all of
    it when eager."""
    unassigned: tuple[TopicPartition, ...]
    """Partitions of topics with subscribers that nobody gets; none when the assignor is right."""

    @property
    def moved(self) -> int:
        """How many partitions go from one member to another."""
        return sum(m.before is not None and m.after is not None for m in self.moves)

    @property
    def given(self) -> int:
        """How many partitions nobody owned and somebody gets."""
        return sum(m.before is None for m in self.moves)

    @property
    def dropped(self) -> int:
        """How many partitions somebody owned and nobody gets."""
        return sum(m.after is None for m in self.moves)

    @property
    def spread_before(self) -> Spread:
        """Of those that were members."""
        return _spread(len(m.before) for m in self.members if m.change is not Change.JOINS)

    @property
    def spread_after(self) -> Spread:
        """Of those that are members then."""
        return _spread(len(m.after) for m in self.members if m.change is not Change.LEAVES)


def plan(spec: GroupSpec, assignor: Assignor, *, was: GroupSpec | None = None) -> Plan:
    """What the assignor would do with the group, if all members offered it alone.

    A cooperative group is followed from round to round: members let go of what is withheld from
    them and rejoin, until nobody has to. `was` is the group before a change, such as a member that
    leaves: who owned what is read from it, and reasons may then name the change.

    Calls the assignor once for each round, and at most three times as often again for the reasons.
    Raises: ConfigurationError when it assigns to strangers, or a partition twice.
    """
    was = was or spec
    name = protocol_name(assignor)
    claims = _Claims(was)
    before = claims.owner
    rounds, after, settled = _rounds(spec, assignor)
    why = _Why(spec, was, assignor, claims, after)
    taken_up = {
        tp: number
        for number, one in enumerate(rounds, 1)
        for held in one.taken_up.values()
        for tp in held
    }
    changed = sorted(tp for tp in before.keys() | after.keys() if before.get(tp) != after.get(tp))
    moves = []
    for tp in changed:
        reason, text = why.of(tp)
        moves.append(
            Move(
                partition=tp,
                before=before.get(tp),
                after=after.get(tp),
                round=taken_up.get(tp) if tp in after else None,
                why=reason,
                text=text,
            )
        )
    paused = {
        tp
        for one in rounds
        for member, held in one.let_go.items()
        for tp in held
        # Who lets go of a claim that does not count interrupts nobody.
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
        settled=settled,
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
    """The group once a member, named by its id or its instance id, has left it.

    Raises: ConfigurationError when there is no such member.
    """
    gone = {m for m, of in spec.members.items() if member in (m, of.instance_id)}
    if not gone:
        known = ", ".join(sorted(spec.members)[:5]) or "nobody"
        more = ", ..." if len(spec.members) > 5 else ""
        raise ConfigurationError(f"{member!r} is not in the group; members are {known}{more}")
    return attrs.evolve(spec, members={m: of for m, of in spec.members.items() if m not in gone})


def with_newcomers(spec: GroupSpec, count: int) -> GroupSpec:
    """The group with `count` members more, called new-1 and so on, that own nothing and subscribe
    to whatever anybody subscribes to."""
    topics = frozenset[str]().union(*(of.topics for of in spec.members.values()))
    members = dict(spec.members)
    number = 0
    while len(members) < len(spec.members) + count:
        number += 1
        members.setdefault(f"new-{number}", MemberSpec(topics=topics))
    return attrs.evolve(spec, members=members)


class _Claims:
    """Which member owned each partition, by what the members report.

    The claim of the highest generation stands, if one member alone has it (KIP-792), whether or not
    that member still subscribes to the topic.
    """

    def __init__(self, spec: GroupSpec) -> None:
        self.owner: dict[TopicPartition, str] = {}
        self.void: list[VoidClaim] = []
        self.doubled: dict[TopicPartition, str] = {}
        """Partition -> why nobody's claim to it counts."""
        claims: dict[TopicPartition, list[str]] = {}
        for member in spec.order():
            for tp in dict.fromkeys(spec.members[member].owned):
                claims.setdefault(tp, []).append(member)
        for tp, claimants in claims.items():
            self._judge(spec, tp, claimants)

    def _judge(self, spec: GroupSpec, tp: TopicPartition, claimants: list[str]) -> None:
        if not _exists(spec, tp):
            self._void(claimants, tp, Reason.GONE, _gone(spec, tp))
            return
        newest = max(spec.members[m].generation for m in claimants)
        standing = [m for m in claimants if spec.members[m].generation == newest]
        names = " and ".join(_label(spec, m) for m in standing)
        stale = [m for m in claimants if m not in standing]
        text = f"{names} claimed it later, in generation {newest}"
        self._void(stale, tp, Reason.CLAIM_STALE, text)
        if len(standing) == 1:
            self.owner[tp] = standing[0]
        else:
            self.doubled[tp] = text = f"{names} claim it with the same generation, {newest}"
            self._void(standing, tp, Reason.CLAIM_DOUBLED, text)

    def _void(self, members: Iterable[str], tp: TopicPartition, why: Reason, text: str) -> None:
        for member in members:
            self.void.append(VoidClaim(member_id=member, partition=tp, why=why, text=text))


def _rounds(
    spec: GroupSpec, assignor: Assignor
) -> tuple[tuple[Round, ...], dict[TopicPartition, str], bool]:
    """The rounds, who owns what after them, and whether the group has settled."""
    owned = {m: frozenset(of.owned) for m, of in spec.members.items()}
    owner = _answer(spec, assignor)
    if not is_cooperative(assignor):
        return (Round(let_go=_sorted(owned), taken_up=_sorted(_held(owner))),), owner, True
    generation = max((of.generation for of in spec.members.values()), default=-1)
    rounds: list[Round] = []
    while True:
        held = _held(owner)
        let_go = {m: owned[m] - held.get(m, frozenset()) for m in owned}
        taken_up = {m: held.get(m, frozenset()) - owned[m] for m in owned}
        rounds.append(Round(let_go=_sorted(let_go), taken_up=_sorted(taken_up)))
        rejoins = any(let_go.values())
        if not rejoins or len(rounds) == MAX_ROUNDS:
            return tuple(rounds), owner, not rejoins
        owned = {m: frozenset(held.get(m, ())) for m in owned}
        generation += 1
        members = {
            m: attrs.evolve(of, owned=tuple(sorted(owned[m])), generation=generation)
            for m, of in spec.members.items()
        }
        spec = attrs.evolve(spec, members=members)
        owner = _answer(spec, assignor)


def _answer(spec: GroupSpec, assignor: Assignor) -> dict[TopicPartition, str]:
    """Partition -> the member that the assignor gives it to."""
    owner: dict[TopicPartition, str] = {}
    for member, held in assignor(spec).items():
        if member not in spec.members:
            raise ConfigurationError(
                f"assignor {protocol_name(assignor)!r} assigns to {member!r}, who is not a member"
            )
        for tp in held:
            if tp in owner:
                raise ConfigurationError(
                    f"assignor {protocol_name(assignor)!r} assigns {tp} to {owner[tp]!r}"
                    f" and to {member!r}"
                )
            owner[tp] = member
    return owner


class _Why:
    """The reasons of one plan. Each partition is asked for once, in order."""

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
        """As `_counts_after`, without the moves that were found not to be needed for balance."""
        self._loads_before = _loads(was, self._before)
        self._loads_after = _loads(spec, after)
        self._gains: dict[str, Counter[str]] = {}
        """Member id -> topic -> how many partitions it gets that it had not."""
        for tp, taker in after.items():
            if self._before.get(tp) != taker:
                self._gains.setdefault(taker, Counter())[tp.topic] += 1
        self._weighted = bool(spec.loads) or any(m.capacity != 1 for m in spec.members.values())
        self._owned_topics = {tp.topic for tp in self._before}

    def of(self, tp: TopicPartition) -> tuple[Reason, str]:
        """Why a partition changes hands: the reason, and its text."""
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
        if not any(tp.topic in of.topics for of in self._spec.members.values()):
            return Reason.NO_SUBSCRIBER, f"nobody subscribes to {tp.topic}"
        return Reason.LEFT_OUT, f"{protocol_name(self._assignor)} gives it to nobody"

    def _given(self, tp: TopicPartition) -> tuple[Reason, str]:
        if (text := self._claims.doubled.get(tp)) is not None:
            return Reason.CLAIM_DOUBLED, text
        if not (count := self._was.partitions.get(tp.topic, 0)):
            return Reason.TOPIC_NEW, f"topic {tp.topic} is new"
        if tp.partition >= count:
            now = self._spec.partitions[tp.topic]
            return Reason.PARTITION_NEW, f"{tp.topic} grew from {count} to {now} partitions"
        if not self._before:
            return Reason.UNOWNED, "nobody owned anything"
        if tp.topic not in self._owned_topics:
            return Reason.UNOWNED, f"nobody owned any of {tp.topic}"
        return Reason.UNOWNED, "nobody owned it"

    def _moved(self, tp: TopicPartition, giver: str, taker: str) -> tuple[Reason, str]:
        give, take = _label(self._was, giver), _label(self._spec, taker)
        if self._weighted and self._relieves(tp, giver, taker):
            loads = ", ".join(
                f"{name} {self._loads_before[m]:g} -> {self._loads_after[m]:g}"
                for m, name in ((giver, give), (taker, take))
            )
            return Reason.LOAD, f"load: {loads}"
        if self._nearer(tp, giver, taker):
            rack = self._spec.members[taker].rack
            return Reason.RACK, f"a replica is in {take}'s rack {rack}, none in {give}'s"
        if self._evens(tp, giver, taker):
            counts = ", ".join(
                f"{name} {self._counts_before[m]} -> {self._counts_after[m]}"
                for m, name in ((giver, give), (taker, take))
            )
            return Reason.BALANCE, f"balance: {counts}"
        name = protocol_name(self._assignor)
        if self._without_owners.get(tp) == taker:
            return Reason.NOT_STICKY, f"{name} places it there whoever owned it"
        return Reason.FREE_CHOICE, f"{name} moves it without need"

    def _relieves(self, tp: TopicPartition, giver: str, taker: str) -> bool:
        load = self._spec.loads.get(tp, 1.0)

        def fuller(shift: float) -> float:
            return max(
                (self._loads_after[m] + change) / self._spec.members[m].capacity
                for m, change in ((giver, shift), (taker, -shift))
            )

        return fuller(load) > fuller(0.0) and self._without_loads.get(tp) != taker

    def _nearer(self, tp: TopicPartition, giver: str, taker: str) -> bool:
        racks = self._spec.racks.get(tp.topic, ())
        here = racks[tp.partition] if tp.partition < len(racks) else frozenset()
        members = self._spec.members
        return (
            bool(members[taker].rack)  # an empty rack is none
            and members[taker].rack in here
            and members[giver].rack not in here
            and self._without_racks.get(tp) != taker
        )

    def _evens(self, tp: TopicPartition, giver: str, taker: str) -> bool:
        """Whether the move is needed for balance; one that is not counts as undone from here on, so
        that of several moves which do one's work only the others are called unneeded."""
        counts, gains = self._counts_kept, self._gains
        if counts[giver] < counts[taker]:
            counts[giver] += 1
            counts[taker] -= 1
            gains[taker][tp.topic] -= 1
            return False
        # What the giver gets could go to the taker in this one's stead, if that subscribes to it.
        topics = self._spec.members[taker].topics
        instead = gains.get(giver, Counter())
        spare = next((t for t in sorted(instead) if instead[t] > 0 and t in topics), None)
        if spare is None:
            return True
        instead[spare] -= 1
        gains[taker][spare] += 1
        gains[taker][tp.topic] -= 1
        return False

    @cached_property
    def _without_loads(self) -> dict[TopicPartition, str]:
        members = self._spec.members.items()
        return self._settled(
            attrs.evolve(
                self._spec,
                loads={},
                members={m: attrs.evolve(of, capacity=1.0) for m, of in members},
            )
        )

    @cached_property
    def _without_racks(self) -> dict[TopicPartition, str]:
        return self._settled(attrs.evolve(self._spec, racks={}))

    @cached_property
    def _without_owners(self) -> dict[TopicPartition, str]:
        members = self._spec.members.items()
        return self._settled(
            attrs.evolve(
                self._spec,
                members={m: attrs.evolve(of, owned=(), generation=-1) for m, of in members},
            )
        )

    def _settled(self, spec: GroupSpec) -> dict[TopicPartition, str]:
        return _rounds(spec, self._assignor)[1]


def _members(
    spec: GroupSpec,
    was: GroupSpec,
    before: Mapping[TopicPartition, str],
    after: Mapping[TopicPartition, str],
) -> tuple[MemberPlan, ...]:
    held_before, held_after = _sorted(_held(before)), _sorted(_held(after))
    loads_before, loads_after = _loads(was, before), _loads(spec, after)
    found = []
    for member in (*spec.order(), *(m for m in was.order() if m not in spec.members)):
        of = spec.members.get(member) or was.members[member]
        change = Change.STAYS if member in spec.members else Change.LEAVES
        found.append(
            MemberPlan(
                member_id=member,
                instance_id=of.instance_id,
                change=change if member in was.members else Change.JOINS,
                before=held_before.get(member, ()),
                after=held_after.get(member, ()),
                load_before=loads_before.get(member, 0.0),
                load_after=loads_after.get(member, 0.0),
                capacity=of.capacity,
            )
        )
    return tuple(found)


def _loads(spec: GroupSpec, owner: Mapping[TopicPartition, str]) -> dict[str, float]:
    """Member id -> the loads that it carries, added up in the partitions' order: in another order
    the last digit may differ."""
    loads = dict.fromkeys(spec.members, 0.0)
    for tp in sorted(owner):
        loads[owner[tp]] += spec.loads.get(tp, 1.0)
    return loads


def _held(owner: Mapping[TopicPartition, str]) -> dict[str, frozenset[TopicPartition]]:
    held: dict[str, set[TopicPartition]] = {}
    for tp, member in owner.items():
        held.setdefault(member, set()).add(tp)
    return {member: frozenset(tps) for member, tps in held.items()}


def _sorted(held: Mapping[str, Set[TopicPartition]]) -> dict[str, tuple[TopicPartition, ...]]:
    return {member: tuple(sorted(held[member])) for member in sorted(held) if held[member]}


def _spread(counts: Iterable[int]) -> Spread:
    found = tuple(counts)
    return Spread(min(found, default=0), max(found, default=0))


def _exists(spec: GroupSpec, tp: TopicPartition) -> bool:
    return 0 <= tp.partition < spec.partitions.get(tp.topic, 0)


def _gone(spec: GroupSpec, tp: TopicPartition) -> str:
    count = spec.partitions.get(tp.topic, 0)
    return f"{tp.topic} has {count} partitions" if count else f"topic {tp.topic} does not exist"


def _label(spec: GroupSpec, member: str) -> str:
    """What a reader knows a member by."""
    return spec.members[member].instance_id or member
