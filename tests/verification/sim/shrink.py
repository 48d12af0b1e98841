"""Reduce a failing plan to a minimal one that fails in the same way.

By delta debugging: leave out parts, as long as the same invariant is still violated.
Every part that can be left out has a name, so that a command can list them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from tests.verification.delta_debugging import minimize

from .schedule import Plan

__all__ = ["names", "shrink", "without"]


def names(plan: Plan) -> tuple[str, ...]:
    """Return the names of the parts: each action ("d3", by index), and all members but one."""
    actions = [f"d{index}" for index in range(len(plan.actions))]
    return (*actions, *(member.name for member in plan.members[1:]))


def without(plan: Plan, left_out: Collection[str]) -> Plan:
    """Return the plan without these parts, and without actions on the members left out.

    Raises: ValueError for a name that is not among `names`.
    """
    if unknown := sorted(set(left_out) - set(names(plan))):
        raise ValueError(f"the plan of seed {plan.seed} has no {', '.join(unknown)}")
    members = tuple(m for m in plan.members if m.name not in left_out)
    there = {"", *(m.name for m in members)}
    actions = tuple(
        action
        for index, action in enumerate(plan.actions)
        if f"d{index}" not in left_out and action.member in there
    )
    return attrs.evolve(plan, members=members, actions=actions)


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> tuple[str, ...]:
    """Return the parts to leave out so that the plan still fails and no other part can be left out,
    as `minimize` does."""
    everything = names(plan)

    def left_out(kept: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in everything if name not in kept)

    return left_out(minimize(everything, lambda kept: fails(without(plan, left_out(kept)))))
