"""Which member owned each partition before the rebalance, and why other claims are ignored.

`kafkagroup.assign.claims` resolves the same claims for the assignors, and identifies members by
index. This module identifies them by member id, which the explanations of a plan name.
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

    `kafkagroup.assign.claims` defines which claim is valid (KIP-792). The member with a valid claim
    need not subscribe to the topic any longer. Unlike for the assignors, a claim also counts if no
    member subscribes to the topic. Claims that are not valid are void: they are ignored.
    """

    def __init__(self, spec: GroupSpec) -> None:
        self.owner: dict[TopicPartition, str] = {}
        """Partition -> the member with the valid claim."""
        self.ignored: list[VoidClaim] = []
        """The ignored claims, each with its reason."""
        self.conflicts: dict[TopicPartition, str] = {}
        """Partition -> why it has no owner: several members claim it with the same generation."""
        claims: dict[TopicPartition, list[str]] = {}
        for member in spec.order():
            for tp in dict.fromkeys(spec.members[member].owned):
                claims.setdefault(tp, []).append(member)
        for tp, claimants in claims.items():
            self._resolve(spec, tp, claimants)

    def _resolve(self, spec: GroupSpec, tp: TopicPartition, claimants: list[str]) -> None:
        if (text := missing(spec, tp)) is not None:
            self._ignore(claimants, tp, Reason.GONE, text)
            return
        newest = max(spec.members[m].generation for m in claimants)
        latest = [m for m in claimants if spec.members[m].generation == newest]
        names = " and ".join(label(spec, m) for m in latest)
        stale = [m for m in claimants if m not in latest]
        text = f"{names} claimed it later, in generation {newest}"
        self._ignore(stale, tp, Reason.CLAIM_STALE, text)
        if len(latest) == 1:
            self.owner[tp] = latest[0]
        else:
            text = f"{names} claim it with the same generation, {newest}"
            if newest < 0:
                text = f"{names} claim it, and none reports a generation"
            self.conflicts[tp] = text
            self._ignore(latest, tp, Reason.CLAIM_DOUBLED, text)

    def _ignore(self, members: Iterable[str], tp: TopicPartition, why: Reason, text: str) -> None:
        for member in members:
            self.ignored.append(VoidClaim(member_id=member, partition=tp, why=why, text=text))
