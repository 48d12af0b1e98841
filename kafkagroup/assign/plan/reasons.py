"""Why partitions move.

The reasons come from the spec, and from running the assignor, a pure function, again on the spec
without loads, racks or owners. Nothing is guessed: a move that neither explains is `UNOWNED` or
`FREE_CHOICE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property

import attrs

from kafkagroup.assign.plan.claims import ExplainedClaims
from kafkagroup.assign.plan.owners import loads_by_member
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
        """As `_counts_after`, without the moves that are not needed for balance."""
        self._loads_before = loads_by_member(was, self._before)
        self._loads_after = loads_by_member(spec, after)
        self._gains: dict[str, Counter[str]] = {}
        """Member id -> topic -> how many partitions it gained, without the unneeded moves."""
        for tp, taker in after.items():
            if self._before.get(tp) != taker:
                self._gains.setdefault(taker, Counter())[tp.topic] += 1
        self._is_weighted = bool(spec.loads) or any(m.capacity != 1 for m in spec.members.values())
        self._owned_topics = {tp.topic for tp in self._before}

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
        if tp.topic not in self._spec.members[giver].topics:
            return Reason.OWNER_UNSUBSCRIBED, f"{name} no longer subscribes to {tp.topic}"
        return self._moved(tp, giver, taker)

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

    def _moved(self, tp: TopicPartition, giver: str, taker: str) -> tuple[Reason, str]:
        give, take = label(self._was, giver), label(self._spec, taker)
        if self._is_weighted and self._is_needed_for_load(tp, giver, taker):
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
        return run_rounds(spec, self._assignor).owner
