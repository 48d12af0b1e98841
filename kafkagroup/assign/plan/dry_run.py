"""`plan`: run an assignor on a group, without a broker, and explain the result."""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup.assign.plan.claims import ExplainedClaims
from kafkagroup.assign.plan.owners import (
    loads_by_member,
    partitions_by_member,
    sorted_partitions,
)
from kafkagroup.assign.plan.reasons import MoveReasons
from kafkagroup.assign.plan.rounds import run_rounds
from kafkagroup.assign.plan.values import Change, MemberPlan, Move, Plan
from kafkagroup.assign.spec import Assignor, GroupSpec, is_cooperative, protocol_name
from kafkagroup.types import TopicPartition

__all__ = ["plan"]


def plan(spec: GroupSpec, assignor: Assignor, *, was: GroupSpec | None = None) -> Plan:
    """Return the plan of a rebalance in which all members support only this assignor.

    For a cooperative assignor the plan has all rounds: members revoke the partitions that move, and
    rejoin, until no member has to revoke any, or until there were `MAX_ROUNDS`. `was` is the group
    before a change, such as a member that leaves: the owners are read from it, and reasons may then
    name the change.

    Calls the assignor once for each round. For the reasons, runs the rounds at most four times
    more: without loads, without racks, and twice with other owners.
    Raises: ConfigurationError when the assignor has no name, or assigns to an unknown member, or a
    partition twice.
    """
    was = was or spec
    name = protocol_name(assignor)  # raises before the assignor runs
    claims = ExplainedClaims(was)
    before = claims.owner
    outcome = run_rounds(spec, assignor)
    after = outcome.owner
    reasons = MoveReasons(spec, was, assignor, claims, after)
    round_of = {
        tp: number
        for number, rebalance in enumerate(outcome.rounds, 1)
        for partitions in rebalance.assigned.values()
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
        for rebalance in outcome.rounds
        for member, partitions in rebalance.revoked.items()
        for tp in partitions
        # A member that drops a partition of another owner interrupts no consumption.
        if before.get(tp, member) == member
    }
    paused |= {tp for tp, owner in before.items() if owner not in spec.members}
    return Plan(
        assignor=name,
        cooperative=is_cooperative(assignor),
        members=_members(spec, was, before, after),
        moves=tuple(moves),
        void_claims=tuple(sorted(claims.ignored, key=lambda c: (c.partition, c.member_id))),
        rounds=outcome.rounds,
        settled=outcome.is_stable,
        kept=sum(after.get(tp) == owner for tp, owner in before.items()),
        paused=tuple(sorted(paused)),
        unassigned=tuple(
            tp
            for topic in spec.topics()
            for p in range(spec.partitions[topic])
            if (tp := TopicPartition(topic, p)) not in after
        ),
    )


def _members(
    spec: GroupSpec,
    was: GroupSpec,
    before: Mapping[TopicPartition, str],
    after: Mapping[TopicPartition, str],
) -> tuple[MemberPlan, ...]:
    held_before = sorted_partitions(partitions_by_member(before))
    held_after = sorted_partitions(partitions_by_member(after))
    loads_before = loads_by_member(was, before)
    loads_after = loads_by_member(spec, after)
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
