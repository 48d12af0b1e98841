"""Why partitions move.

The reasons come from the spec, and from running the assignor, a pure function, again on the spec
without loads or racks, and with other owners. Nothing is guessed: a move that neither explains is
`UNOWNED` or `FREE_CHOICE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from functools import cached_property

import attrs

from kafkagroup.assign.plan.claims import ExplainedClaims
from kafkagroup.assign.plan.owners import loads_by_member, partitions_by_member
from kafkagroup.assign.plan.rounds import run_rounds
from kafkagroup.assign.plan.values import Reason
from kafkagroup.assign.plan.wording import label, missing
from kafkagroup.assign.spec import Assignor, GroupSpec, protocol_name
from kafkagroup.types import TopicPartition

__all__ = ["MoveReasons"]


class MoveReasons:
    """The reasons of one plan's moves. Call `of` once for each moved partition, in order: which of
    several moves counts as unneeded depends on those before it."""

    def __init__(
        self,
        spec: GroupSpec,
        was: GroupSpec,
        assignor: Assignor,
        claims: ExplainedClaims,
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
        """The counts after the rebalance, without the moves that were found to be unneeded so
        far."""
        self._loads_before = loads_by_member(was, self._before)
        self._loads_after = loads_by_member(spec, after)
        self._is_weighted = bool(spec.loads) or any(m.capacity != 1 for m in spec.members.values())
        self._owned_topics = {tp.topic for tp in self._before}
        self._gains: dict[str, Counter[str]] = {m: Counter() for m in spec.members}
        """Member id -> topic -> how many partitions it gained, without those that moved for load or
        rack."""
        self._gifts: dict[str, Counter[str]] = {m: Counter() for m in spec.members}
        """Member id -> new owner -> how many partitions it gave that it could have kept, without
        those that moved for load or rack."""
        # `_undo` and `_replace` remove the moves that are found to be unneeded from `_gains` and
        # `_gifts`.
        for tp, taker in after.items():
            giver = self._before.get(tp)
            if giver == taker:
                continue
            if giver is None or not self._may_keep(tp, giver):
                self._gains[taker][tp.topic] += 1
            elif self._load_or_rack(tp, giver, taker) is None:
                self._gains[taker][tp.topic] += 1
                self._gifts[giver][taker] += 1

    def of(self, tp: TopicPartition) -> tuple[Reason, str]:
        """Return why a partition moves, and the reason as text."""
        giver, taker = self._before.get(tp), self._after.get(tp)
        if taker is None:
            return self._dropped(tp)
        if giver is None:
            return self._given(tp)
        name = label(self._was, giver)
        if giver not in self._spec.members:
            return Reason.OWNER_LEFT, f"{name} left"
        if not self._may_keep(tp, giver):
            return Reason.OWNER_UNSUBSCRIBED, f"{name} no longer subscribes to {tp.topic}"
        return self._load_or_rack(tp, giver, taker) or self._balance(tp, giver, taker)

    def _dropped(self, tp: TopicPartition) -> tuple[Reason, str]:
        if (text := missing(self._spec, tp)) is not None:
            return Reason.GONE, text
        if not any(tp.topic in member_spec.topics for member_spec in self._spec.members.values()):
            return Reason.NO_SUBSCRIBER, f"no member subscribes to {tp.topic}"
        return Reason.LEFT_OUT, f"{protocol_name(self._assignor)} assigns it to no member"

    def _given(self, tp: TopicPartition) -> tuple[Reason, str]:
        if (text := self._claims.conflicts.get(tp)) is not None:
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

    def _may_keep(self, tp: TopicPartition, giver: str) -> bool:
        """Whether the owner is still a member that subscribes to the topic."""
        return giver in self._spec.members and tp.topic in self._spec.members[giver].topics

    def _load_or_rack(
        self, tp: TopicPartition, giver: str, taker: str
    ) -> tuple[Reason, str] | None:
        if self._relieves(tp, giver, taker) and self._without_loads.get(tp) != taker:
            return self._load(tp, giver, taker)
        if self._is_needed_for_rack(tp, giver, taker):
            giver_name, taker_name = label(self._was, giver), label(self._spec, taker)
            rack = self._spec.members[taker].rack
            return (
                Reason.RACK,
                f"a replica is in {taker_name}'s rack {rack}, none in {giver_name}'s",
            )
        return None

    def _load(self, tp: TopicPartition, giver: str, taker: str) -> tuple[Reason, str]:
        load = self._spec.loads.get(tp, 1.0)
        totals = self._loads_before, self._loads_after
        return Reason.LOAD, f"load: {self._difference(giver, taker, *totals, load)}"

    def _balance(self, tp: TopicPartition, giver: str, taker: str) -> tuple[Reason, str]:
        """Return the reason of a move that `_load_or_rack` does not explain. If balance does not
        need the move, record that."""
        totals = self._counts_before, self._counts_after
        alternative = self._alternative_topic(giver, taker)
        if self._counts_kept[giver] < self._counts_kept[taker]:
            # Without the move, the two counts would not differ more.
            self._undo(tp, giver, taker)
        elif alternative is not None:
            self._replace(tp, alternative, giver, taker)
        # The counts do not show the move, and the giver ends with fewer partitions than the taker,
        # or the taker gave others away.
        elif not _is_visible(giver, taker, *totals) and (
            self._counts_after[giver] < self._counts_after[taker]
            or self._is_passed_on(tp, giver, taker)
        ):
            self._undo(tp, giver, taker)
        else:
            return Reason.BALANCE, f"balance: {self._difference(giver, taker, *totals, 1)}"
        if self._relieves(tp, giver, taker) and self._without_loads != self._after:
            # The assignor balances loads, not counts.
            return self._load(tp, giver, taker)
        name = protocol_name(self._assignor)
        if self._ignores_owners:
            return Reason.NOT_STICKY, f"{name} ignores who owned it"
        return Reason.FREE_CHOICE, f"{name} moves it without need"

    def _difference(
        self,
        giver: str,
        taker: str,
        before: Mapping[str, float],
        after: Mapping[str, float],
        moved: float,
    ) -> str:
        """Return what the move changes. If the two totals do not show that, as one of the members
        also gains or gives other partitions, return the totals without the move."""
        giver_name, taker_name = label(self._was, giver), label(self._spec, taker)
        if _is_visible(giver, taker, before, after):
            return (
                f"{giver_name} {before[giver]:.10g} -> {after.get(giver, 0):.10g},"
                f" {taker_name} {before.get(taker, 0):.10g} -> {after[taker]:.10g}"
            )
        return (
            f"without it {giver_name} would have {after.get(giver, 0) + moved:.10g},"
            f" {taker_name} {after[taker] - moved:.10g}"
        )

    def _relieves(self, tp: TopicPartition, giver: str, taker: str) -> bool:
        """Whether the higher load of the two, relative to capacity, would be higher without the
        move."""
        load = self._spec.loads.get(tp, 1.0)

        def higher_load(shift: float) -> float:
            return max(
                (self._loads_after[m] + change) / self._spec.members[m].capacity
                for m, change in ((giver, shift), (taker, -shift))
            )

        return self._is_weighted and higher_load(load) > higher_load(0.0)

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
        topics, gains = self._spec.members[taker].topics, self._gains[giver]
        return next((t for t in sorted(gains) if gains[t] > 0 and t in topics), None)

    def _is_passed_on(self, tp: TopicPartition, giver: str, taker: str) -> bool:
        """Whether the taker has no more partitions than before, as it gave others to members that
        could have got this one instead."""
        if self._counts_before[taker] < self._counts_after[taker]:
            return False
        gifts = self._gifts[taker]
        return any(
            gifts[m] > 0 and m != giver and tp.topic in self._spec.members[m].topics for m in gifts
        )

    # A move that is not needed for balance is ignored when the moves after it are examined. So if
    # any one of several moves would restore the balance, exactly one is reported as needed.

    def _undo(self, tp: TopicPartition, giver: str, taker: str) -> None:
        """Count the partition as still the giver's."""
        self._counts_kept[giver] += 1
        self._counts_kept[taker] -= 1
        self._gains[taker][tp.topic] -= 1
        self._gifts[giver][taker] -= 1

    def _replace(self, tp: TopicPartition, topic: str, giver: str, taker: str) -> None:
        """Count the partition as still the giver's, and one of `topic` that it gained as the
        taker's: the counts stay the same."""
        self._gains[giver][topic] -= 1
        self._gains[taker][topic] += 1
        self._gains[taker][tp.topic] -= 1
        self._gifts[giver][taker] -= 1

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
    def _ignores_owners(self) -> bool:
        """Whether the assignor assigns the same if no member owns anything, and if for each
        partition the next subscriber of its topic is the owner."""
        order = self._spec.order()
        subscribers = {
            topic: [m for m in order if topic in self._spec.members[m].topics]
            for topic in self._spec.topics()
        }
        shifted: dict[TopicPartition, str] = {}
        for tp, owner in self._after.items():
            candidates = subscribers[tp.topic]
            shifted[tp] = candidates[(candidates.index(owner) + 1) % len(candidates)]
        return all(
            self._final_owners(self._with_owned(partitions_by_member(owners))) == self._after
            for owners in ({}, shifted)
        )

    def _with_owned(self, owned: Mapping[str, Set[TopicPartition]]) -> GroupSpec:
        """Return the group with other claims, all of one generation."""
        members = {
            m: attrs.evolve(member_spec, owned=tuple(sorted(owned.get(m, ()))), generation=0)
            for m, member_spec in self._spec.members.items()
        }
        return attrs.evolve(self._spec, members=members)

    def _final_owners(self, spec: GroupSpec) -> dict[TopicPartition, str]:
        return run_rounds(spec, self._assignor).owner


def _is_visible(
    giver: str, taker: str, before: Mapping[str, float], after: Mapping[str, float]
) -> bool:
    """Whether the totals of partitions or loads show the move: the giver's falls, and the taker's
    rises."""
    return before.get(giver, 0) > after.get(giver, 0) and before.get(taker, 0) < after.get(taker, 0)
