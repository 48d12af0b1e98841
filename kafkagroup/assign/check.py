"""A checker of assignments: those of users' functions and assignors before they are used, and those
of tests, the simulation and the analysis of a group's history.

It shares no code with this library's assignors, because it checks them. The caller chooses the
rules, which depend on the assignor; `RULES` has those of this library's assignors, by their names
on the wire.

A claim is an existing partition that a member reports as owned (`MemberSpec.owned`), whether or not
the member still subscribes to its topic: until it has revoked the partition, it may be processing
its records. Of the claims to one partition, those of the highest generation are the newest. A
newest claim is valid if it is the only one. Its member is then the owner, if it still subscribes to
the topic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby

from kafkagroup._values import frozen
from kafkagroup.assign.spec import GroupSpec
from kafkagroup.types import Assignment, TopicPartition

__all__ = [
    "COOPERATIVE",
    "EVEN",
    "RULES",
    "STICKY",
    "VALID",
    "Kind",
    "Violation",
    "newest_claims",
    "violations",
]


class Kind(Enum):
    """The ways in which an assignment can be wrong; `violations` reports them in this order."""

    NOT_A_MEMBER = "not-a-member"
    """Partitions are assigned to an id that belongs to no member."""
    NO_SUCH_PARTITION = "no-such-partition"
    """A member gets a partition that does not exist."""
    NOT_SUBSCRIBED = "not-subscribed"
    """A member gets a partition of a topic that it does not subscribe to."""
    DOUBLED = "doubled"
    """A partition is assigned twice. Entries of the three kinds above do not count."""
    INCOMPLETE = "incomplete"
    """A partition of a subscribed topic is assigned to no member that may have it. If HANDED_OVER
    is a rule too, a partition may stay unassigned as long as the newest claim of one member keeps
    it from a subscriber of its topic that is another member."""
    HANDED_OVER = "handed-over"
    """A partition is assigned to a member while another member has a newest claim to it: both would
    process its records (KIP-429). The claim counts even if that member no longer subscribes to the
    topic. If there are several newest claims, none of their members may get the partition."""
    UNBALANCED = "unbalanced"
    """The counts could be more even: along a chain of members, each could pass one partition to the
    next, and the last member has at least two fewer than the first. Without such a chain, the
    counts are as even as the subscriptions allow. Reported once, for the widest gap and the
    shortest chain across it."""
    MOVED_WITHOUT_NEED = "moved-without-need"
    """A member gets a partition of another owner, and could return it without loss of balance:
    because the owner has fewer partitions than this member, or in exchange for a partition that the
    owner gets and did not own."""


VALID = frozenset(
    (
        Kind.NOT_A_MEMBER,
        Kind.NO_SUCH_PARTITION,
        Kind.NOT_SUBSCRIBED,
        Kind.DOUBLED,
        Kind.INCOMPLETE,
    )
)
"""Each partition of a subscribed topic is assigned to one member that subscribes to the topic."""

EVEN = VALID | {Kind.UNBALANCED}
"""VALID, and as even as the subscriptions allow. Round robin obeys it if all members subscribe to
the same topics."""

STICKY = EVEN | {Kind.MOVED_WITHOUT_NEED}
"""EVEN, and with no unneeded move. The assignor sticky obeys it; cooperative-sticky too, if the
group's final assignment is compared to the claims before its first round."""

COOPERATIVE = EVEN | {Kind.HANDED_OVER}
"""The rules for each round of a cooperative rebalance."""

RULES: Mapping[str, frozenset[Kind]] = {
    "range": VALID,
    "roundrobin": VALID,
    "naive": VALID,
    "sticky": STICKY,
    "cooperative-sticky": COOPERATIVE,
    "weighted-sticky": VALID | {Kind.HANDED_OVER},
}
"""Name on the wire -> the rules that each assignment of the assignor obeys."""


@frozen
class Violation:
    """One violation of a rule by an assignment."""

    kind: Kind
    members: tuple[str, ...]
    """The members concerned. UNBALANCED: the chain, from the fullest to the emptiest;
    MOVED_WITHOUT_NEED: the owner, then the member that has it; HANDED_OVER: the member that gets
    it, then those with newest claims; DOUBLED: all members that get it."""
    partitions: tuple[TopicPartition, ...]
    """The partitions concerned. UNBALANCED: the one to move along each link of the chain;
    MOVED_WITHOUT_NEED: the partition, then the one to return in exchange, if one is needed."""
    text: str
    """The violation in words, with its facts."""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


def violations(
    spec: GroupSpec, assignment: Assignment, rules: frozenset[Kind] = VALID
) -> tuple[Violation, ...]:
    """Return the violations of `rules` by `assignment`, sorted by kind, then by partition.

    UNBALANCED and MOVED_WITHOUT_NEED are checked only if every partition is assigned to one member
    that may have it: not for a cooperative round that withholds a partition, only for the next one.
    A member without an entry has no partitions.
    O(partitions log partitions + pairs of member and topic, subscribed or held).
    """
    checker = _Checker(spec, assignment, cooperative=Kind.HANDED_OVER in rules)
    found = [*checker.entries(), *checker.doubled(), *checker.incomplete()]
    if Kind.HANDED_OVER in rules:
        found += checker.handed_over()
    if Kind.UNBALANCED in rules and checker.is_complete:
        found += checker.unbalanced()
    if Kind.MOVED_WITHOUT_NEED in rules and checker.is_complete:
        found += checker.moved_without_need()
    # By value: a string is hashed faster than a member of an enum.
    rank = {kind.value: index for index, kind in enumerate(Kind)} if found else {}
    return tuple(
        sorted(
            (violation for violation in found if violation.kind in rules),
            key=lambda v: (rank[v.kind.value], v.partitions, v.members),
        )
    )


class _Checker:
    """The checks of one assignment, which share what they read of it and of the spec."""

    def __init__(self, spec: GroupSpec, assignment: Assignment, *, cooperative: bool) -> None:
        self._spec = spec
        self._assignment = assignment
        self._newest_claims = newest_claims(spec)
        self._subscribers = _subscribers(spec)
        self._new_owners: dict[TopicPartition, list[str]] = {}
        """Partition -> the members that get it and may have it, in `order`."""
        for member in spec.order():
            topics = spec.members[member].topics
            for tp in assignment.get(member, ()):
                if tp.topic in topics and _exists(spec, tp):
                    self._new_owners.setdefault(tp, []).append(member)
        missing = [
            TopicPartition(topic, number)
            for topic in spec.topics()
            for number in range(spec.partitions[topic])
            if (topic, number) not in self._new_owners
        ]
        # The partitions that count as INCOMPLETE.
        self._missing = [tp for tp in missing if not (cooperative and self._must_wait(tp))]
        self.is_complete = not missing and all(
            len(new_owners) == 1 for new_owners in self._new_owners.values()
        )
        """Whether every partition is assigned to one member that may have it."""
        self._held: dict[str, list[TopicPartition]] = {member: [] for member in spec.order()}
        """Member -> the partitions that it gets, sorted; used only if `is_complete`."""
        for tp, new_owners in sorted(self._new_owners.items()):
            self._held[new_owners[0]].append(tp)

    def entries(self) -> Iterator[Violation]:
        """Yield the violations NOT_A_MEMBER, NO_SUCH_PARTITION and NOT_SUBSCRIBED."""
        for member, partitions in self._assignment.items():
            member_spec = self._spec.members.get(member)
            if member_spec is None:
                if partitions:
                    text = f"{member} is not a member and gets {_listed(partitions)}"
                    yield Violation(Kind.NOT_A_MEMBER, (member,), tuple(sorted(partitions)), text)
                continue
            for tp in partitions:
                if not _exists(self._spec, tp):
                    text = f"{member} gets {tp}, which does not exist"
                    yield Violation(Kind.NO_SUCH_PARTITION, (member,), (tp,), text)
                elif tp.topic not in member_spec.topics:
                    text = f"{member} gets {tp} and does not subscribe to {tp.topic}"
                    yield Violation(Kind.NOT_SUBSCRIBED, (member,), (tp,), text)

    def doubled(self) -> Iterator[Violation]:
        for tp, new_owners in self._new_owners.items():
            if len(new_owners) > 1:
                text = f"{tp} is assigned to {_listed(new_owners)}"
                yield Violation(Kind.DOUBLED, tuple(new_owners), (tp,), text)

    def incomplete(self) -> Iterator[Violation]:
        for tp in self._missing:
            yield Violation(
                Kind.INCOMPLETE, (), (tp,), f"{tp} is assigned to no member that may have it"
            )

    def handed_over(self) -> Iterator[Violation]:
        for tp, new_owners in self._new_owners.items():
            for new_owner in new_owners:
                if others := [m for m in self._newest_claims.get(tp, ()) if m != new_owner]:
                    text = f"{new_owner} gets {tp} while {_listed(others)} may still process it"
                    yield Violation(Kind.HANDED_OVER, (new_owner, *others), (tp,), text)

    def _must_wait(self, tp: TopicPartition) -> bool:
        """Return whether a claim keeps the partition from a subscriber. It does so from every one
        but the owner, if there is one."""
        if tp not in self._newest_claims:
            return False
        owner_count = 0 if self._owner(tp) is None else 1
        return self._subscribers[tp.topic] > owner_count

    def _owner(self, tp: TopicPartition) -> str | None:
        """Return the owner of a partition, as the module defines it; None without one."""
        claimants = self._newest_claims.get(tp, ())
        if len(claimants) != 1 or tp.topic not in self._spec.members[claimants[0]].topics:
            return None
        return claimants[0]

    # ------------------------------------------------------------ rules for complete assignments

    def unbalanced(self) -> Iterator[Violation]:
        """Yield UNBALANCED for the widest gap, if there is one.

        From the members with the fewest partitions, all at once, search for the members that could
        pass them a partition, directly or along a chain; then from those with the next higher
        count. A member that was found from emptier ones is not visited again: that gap was wider.
        So the search visits each member and topic once, and finds the shortest chains first.
        """
        count = {member: len(held) for member, held in self._held.items()}
        if max(count.values(), default=0) - min(count.values(), default=0) < 2:
            return
        # Topic -> member -> the last partition of the topic that the member has.
        holders: dict[str, dict[str, TopicPartition]] = {}
        for member, partitions in self._held.items():
            for tp in partitions:
                holders.setdefault(tp.topic, {})[member] = tp
        # The gap of the widest chain so far, and minus its length: a gap of 1 is balanced.
        best = (1, 0)
        fullest: str | None = None
        # Giver -> what it would pass on, to whom.
        passes: dict[str, tuple[TopicPartition, str]] = {}
        length: dict[str, int] = {}  # member that was reached -> the number of links of its chain
        topics_reached: set[str] = set()
        for least, members in groupby(sorted(count, key=count.__getitem__), count.__getitem__):
            queue = deque(member for member in members if member not in length)
            length.update(dict.fromkeys(queue, 0))
            while queue:
                taker = queue.popleft()
                for topic in sorted(self._spec.members[taker].topics & holders.keys()):
                    if topic in topics_reached:
                        continue
                    topics_reached.add(topic)
                    for giver, tp in holders[topic].items():
                        if giver in length:
                            continue
                        length[giver] = length[taker] + 1
                        passes[giver] = (tp, taker)
                        queue.append(giver)
                        if (found := (count[giver] - least, -length[giver])) > best:
                            best, fullest = found, giver
        if fullest is None:
            return
        chain, moves = [fullest], []
        while chain[-1] in passes:
            tp, taker = passes[chain[-1]]
            moves.append(tp)
            chain.append(taker)
        emptiest = chain[-1]
        steps = ", ".join(f"{tp} to {taker}" for tp, taker in zip(moves, chain[1:], strict=True))
        text = (
            f"{fullest} has {count[fullest]}, {emptiest} {count[emptiest]}; evened out by {steps}"
        )
        yield Violation(Kind.UNBALANCED, tuple(chain), tuple(moves), text)

    def moved_without_need(self) -> Iterator[Violation]:
        owners = {
            tp: member for tp in self._newest_claims if (member := self._owner(tp)) is not None
        }
        # Member -> topic -> the first partition of it that the member has and did not own.
        gained: dict[str, dict[str, TopicPartition]] = {}
        for member, held in self._held.items():
            for tp in held:
                if owners.get(tp) != member:
                    gained.setdefault(member, {}).setdefault(tp.topic, tp)
        for tp, (new_owner, *_) in self._new_owners.items():
            owner = owners.get(tp, new_owner)
            if owner == new_owner:
                continue
            owner_has, new_owner_has = len(self._held[owner]), len(self._held[new_owner])
            facts = f"{new_owner} has {tp}, which {owner} owned and could get back"
            if owner_has < new_owner_has:
                text = f"{facts}: {owner} has {owner_has}, {new_owner} {new_owner_has}"
                yield Violation(Kind.MOVED_WITHOUT_NEED, (owner, new_owner), (tp,), text)
                continue
            topics = self._spec.members[new_owner].topics
            swaps = (one for topic, one in gained.get(owner, {}).items() if topic in topics)
            if (swap := next(swaps, None)) is not None:
                text = f"{facts} in exchange for {swap}"
                yield Violation(Kind.MOVED_WITHOUT_NEED, (owner, new_owner), (tp, swap), text)


def newest_claims(spec: GroupSpec) -> dict[TopicPartition, list[str]]:
    """Return partition -> the members with its newest claims, in `order`. O(claims)."""
    generations: dict[TopicPartition, int] = {}
    claimants: dict[TopicPartition, list[str]] = {}
    for member in spec.order():
        member_spec = spec.members[member]
        for tp in set(member_spec.owned):
            if not _exists(spec, tp):
                continue
            before = generations.get(tp)
            if before is None or member_spec.generation > before:
                generations[tp] = member_spec.generation
                claimants[tp] = [member]
            elif member_spec.generation == before:
                claimants[tp].append(member)
    return claimants


def _subscribers(spec: GroupSpec) -> Counter[str]:
    """Return topic -> the number of its subscribers."""
    return Counter(topic for member_spec in spec.members.values() for topic in member_spec.topics)


def _exists(spec: GroupSpec, tp: TopicPartition) -> bool:
    return 0 <= tp.partition < spec.partitions.get(tp.topic, 0)


def _listed(things: Sequence[object]) -> str:
    """Return "a, b and c"; of more than five, the first four and the number of the others."""
    words = [str(thing) for thing in things]
    if len(words) > 5:
        words[4:] = [f"{len(words) - 4} more"]
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]
