"""Plans of assignors as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType

from kafkagroup.assign.plan import Change, MemberPlan, Move, Plan, Spread
from kafkagroup.cli._table import Table
from kafkagroup.cli._view import add_row, new_table, plain_line, ranges
from kafkagroup.types import TopicPartition, by_topic

__all__ = ["print_plans", "value_of"]

_NO_MEMBER = "-"

_CHANGES = {Change.STAYS: "", Change.JOINS: "joins", Change.LEAVES: "leaves"}


def print_plans(console: Console, plans: Sequence[Plan]) -> None:
    """Print the members with their counts, each plan's moves with their reasons, and the totals.
    All plans are for the same group."""
    console.print(_members(plans))
    if plans[0].void_claims:
        console.print(_void_claims(plans[0]))
    for plan in plans:
        for part in _moves(plan):
            console.print(part)
    console.print(_totals(plans))


# ---------------------------------------------------------------- tables


def _members(plans: Sequence[Plan]) -> Table:
    is_weighted = any(
        m.load_before != len(m.before) or m.load_after != len(m.after) or m.capacity != 1
        for plan in plans
        for m in plan.members
    )
    numbers = ["capacity", "before", "load before"] if is_weighted else ["before"]
    results = ["after"] if len(plans) == 1 else [plan.assignor for plan in plans]
    for after in results:
        numbers += [after, f"load {after}"] if is_weighted else [after]
    loads = [f"load {name}" for name in ("before", *results)]
    # The order in which columns are left out. The counts of the first plan never are.
    drop = (*loads[::-1], "capacity", *results[:0:-1], "before")
    table = new_table("Partitions of each member", "member", *numbers, "", right=numbers, drop=drop)
    # `versions`: the same member in each plan.
    for versions in zip(*(plan.members for plan in plans), strict=True):
        first: MemberPlan = versions[0]
        cells: list[object] = [len(first.before)]
        if is_weighted:
            cells = [f"{first.capacity:g}", len(first.before), f"{first.load_before:g}"]
        for version in versions:
            cells.append(len(version.after))
            if is_weighted:
                cells.append(f"{version.load_after:g}")
        add_row(table, _name(first), *cells, _CHANGES[first.change])
    return table


def _void_claims(plan: Plan) -> Table:
    """Return a table of the claims that do not count. They are the same for every assignor."""
    names = {m.member_id: _name(m) for m in plan.members}
    table = new_table("Claims that do not count", "partition", "member", "why")
    for claim in plan.void_claims:
        add_row(table, claim.partition, names[claim.member_id], claim.text)
    return table


def _moves(plan: Plan) -> Iterable[RenderableType]:
    names = {m.member_id: _name(m) for m in plan.members}
    if plan.moves:
        columns = ("partitions", "from", "to", "round", "why")
        table = new_table(
            f"What {plan.assignor} moves", *columns, right=("round",), drop=("round",)
        )
        for alike in _group_moves(plan.moves):
            one = alike[0]
            add_row(
                table,
                ranges(move.partition for move in alike),
                names.get(one.before or "", _NO_MEMBER),
                names.get(one.after or "", _NO_MEMBER),
                one.round or "",
                one.text,
            )
        yield table
    else:
        yield plain_line(f"{plan.assignor} moves nothing.")
    if plan.unassigned:
        yield plain_line(f"{plan.assignor} assigns to no member: {ranges(plan.unassigned)}")
    if not plan.settled:
        yield plain_line(
            f"{plan.assignor} does not converge: members still revoke partitions after"
            f" {len(plan.rounds)} rounds."
        )


def _group_moves(moves: Iterable[Move]) -> Iterable[list[Move]]:
    """Group the moves that differ only in the partition, in the order of the first move of each
    group."""
    found: dict[tuple[object, ...], list[Move]] = {}
    for move in moves:
        found.setdefault((move.before, move.after, move.round, move.text), []).append(move)
    return found.values()


def _totals(plans: Sequence[Plan]) -> Table:
    numbers = ("kept", "moved", "given", "dropped", "paused", "rounds", "each before", "each after")
    drop = ("rounds", "each before", "paused", "given", "dropped", "kept", "each after")
    table = new_table("Totals", "assignor", *numbers, right=numbers, drop=drop)
    for plan in plans:
        add_row(
            table,
            plan.assignor,
            plan.kept,
            plan.moved,
            plan.given,
            plan.dropped,
            len(plan.paused),
            len(plan.rounds),
            _range(plan.spread_before),
            _range(plan.spread_after),
        )
    return table


def _range(spread: Spread) -> str:
    least, most = spread.least, spread.most
    return str(least) if least == most else f"{least}-{most}"


def _name(member: MemberPlan) -> str:
    return member.instance_id or member.member_id


# ---------------------------------------------------------------- JSON


def value_of(plan: Plan) -> dict[str, object]:
    """Return a plan as a JSON value: enums by value, sets of partitions as topic -> partition
    numbers."""
    return {
        "assignor": plan.assignor,
        "cooperative": plan.cooperative,
        "settled": plan.settled,
        "members": [
            {
                "member_id": m.member_id,
                "instance_id": m.instance_id,
                "change": m.change.value,
                "before": by_topic(m.before),
                "after": by_topic(m.after),
                "load_before": m.load_before,
                "load_after": m.load_after,
                "capacity": m.capacity,
            }
            for m in plan.members
        ],
        "moves": [
            {
                "topic": m.partition.topic,
                "partition": m.partition.partition,
                "from": m.before,
                "to": m.after,
                "round": m.round,
                "reason": m.why.value,
                "text": m.text,
            }
            for m in plan.moves
        ],
        "void_claims": [
            {
                "member_id": c.member_id,
                "topic": c.partition.topic,
                "partition": c.partition.partition,
                "reason": c.why.value,
                "text": c.text,
            }
            for c in plan.void_claims
        ],
        "rounds": [
            {"revoked": _by_member(one.revoked), "assigned": _by_member(one.assigned)}
            for one in plan.rounds
        ],
        "paused": by_topic(plan.paused),
        "unassigned": by_topic(plan.unassigned),
        "totals": {
            "kept": plan.kept,
            "moved": plan.moved,
            "given": plan.given,
            "dropped": plan.dropped,
            "paused": len(plan.paused),
        },
        "spread": {
            "before": {"least": plan.spread_before.least, "most": plan.spread_before.most},
            "after": {"least": plan.spread_after.least, "most": plan.spread_after.most},
        },
    }


def _by_member(found: Mapping[str, Iterable[TopicPartition]]) -> dict[str, dict[str, list[int]]]:
    return {member: by_topic(partitions) for member, partitions in found.items()}
