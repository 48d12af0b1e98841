"""The rebalances until a group is stable, if all its members support only one assignor."""

from __future__ import annotations

import attrs

from kafkagroup.assign.plan.owners import partitions_by_member, sorted_partitions
from kafkagroup.assign.plan.values import Round
from kafkagroup.assign.spec import Assignor, GroupSpec, is_cooperative, protocol_name
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition

__all__ = ["MAX_ROUNDS", "Outcome", "run_rounds"]

MAX_ROUNDS = 10
"""Most rebalances of a cooperative group that a plan follows. The assignors here need two,
`weighted_sticky` sometimes a few more; one that needs ten does not converge."""


@attrs.frozen
class Outcome:
    """What the rebalances lead to."""

    rounds: tuple[Round, ...]
    owner: dict[TopicPartition, str]
    """Partition -> member id, after the last round."""
    is_stable: bool
    """False when members would still revoke and rejoin."""


def run_rounds(spec: GroupSpec, assignor: Assignor) -> Outcome:
    """Run the assignor for each rebalance, until no member has to revoke a partition, or until
    there were `MAX_ROUNDS`.

    Raises: ConfigurationError when the assignor assigns to an unknown member, or a partition twice.
    """
    owned = {m: frozenset(member_spec.owned) for m, member_spec in spec.members.items()}
    owner = _run_assignor(spec, assignor)
    if not is_cooperative(assignor):
        # Eager members revoke all partitions, and then start to consume all that they get.
        assigned = sorted_partitions(partitions_by_member(owner))
        rebalance = Round(revoked=sorted_partitions(owned), assigned=assigned)
        return Outcome((rebalance,), owner, is_stable=True)
    generation = max((member_spec.generation for member_spec in spec.members.values()), default=-1)
    rounds: list[Round] = []
    while True:
        held = partitions_by_member(owner)
        revoked = {m: owned[m] - held.get(m, frozenset()) for m in owned}
        gained = {m: held.get(m, frozenset()) - owned[m] for m in owned}
        rounds.append(Round(revoked=sorted_partitions(revoked), assigned=sorted_partitions(gained)))
        rejoins = any(revoked.values())
        if not rejoins or len(rounds) == MAX_ROUNDS:
            return Outcome(tuple(rounds), owner, is_stable=not rejoins)
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
