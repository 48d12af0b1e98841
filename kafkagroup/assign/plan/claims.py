"""Which member owned each partition before the rebalance, and why other claims are ignored.

`kafkagroup.assign.claims` resolves the claims for the assignors, in terms of numbers. This module
keeps the names of the members, for the texts.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkagroup.assign.plan.values import Reason, VoidClaim
from kafkagroup.assign.plan.wording import label, missing
from kafkagroup.assign.spec import GroupSpec
from kafkagroup.types import TopicPartition

__all__ = ["ExplainedClaims"]


class ExplainedClaims:
    """The claims of all members of a group.

    The claim with the highest generation is valid, if only one member has it (KIP-792), even if
    that member no longer subscribes to the topic.
    """

    def __init__(self, spec: GroupSpec) -> None:
        self.owner: dict[TopicPartition, str] = {}
        """Partition -> the member with the valid claim."""
        self.void: list[VoidClaim] = []
        self.doubled: dict[TopicPartition, str] = {}
        """Partition -> why all claims to it are ignored."""
        claims: dict[TopicPartition, list[str]] = {}
        for member in spec.order():
            for tp in dict.fromkeys(spec.members[member].owned):
                claims.setdefault(tp, []).append(member)
        for tp, claimants in claims.items():
            self._resolve(spec, tp, claimants)

    def _resolve(self, spec: GroupSpec, tp: TopicPartition, claimants: list[str]) -> None:
        if (text := missing(spec, tp)) is not None:
            self._void(claimants, tp, Reason.GONE, text)
            return
        newest = max(spec.members[m].generation for m in claimants)
        latest = [m for m in claimants if spec.members[m].generation == newest]
        names = " and ".join(label(spec, m) for m in latest)
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
