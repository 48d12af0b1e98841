"""The plan of one simulated run: a value derived from a seed, which can be stored and shortened.

During the run, the plan's seed is the only source of randomness: it determines the order of steps,
the latency of bytes and the jitter of back-offs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random
from typing import Any

import attrs

from .codes import CODES, CONSUMER_CODES, HEARTBEATS
from .outside import ENABLED, OUTSIDE_FAULTS, add_outside
from .schedule import NODES, MemberPlan, Plan, PlannedAction

__all__ = ["FAULTS", "PROTOCOLS", "fault_count", "make_plan"]

PROTOCOLS = ("classic", "consumer")
"""The kinds of runs, by membership protocol."""

# ------------------------------------------------------------------ possible faults

_CLASSIC_APIS = frozenset(("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"))
_GROUP_APIS = ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch")
_PRECIOUS = (*_GROUP_APIS, "LeaveGroup", "Fetch", "FindCoordinator", "Metadata")


def _code(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
    api = random.choice(tuple(CODES))
    return {
        "api": api,
        "code": random.choice(CODES[api]),
        "count": random.randint(1, 4),
        "seconds": random.uniform(0.5, 4),
    }


def _lost_response(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
    return {"api": random.choice(_PRECIOUS), "count": random.randint(1, 3), "seconds": 4.0}


def _late_response(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
    return {
        "api": random.choice(_PRECIOUS),
        "count": random.randint(1, 3),
        "seconds": random.choice((0.3, 2.0, 5.0)),
    }


def _throttled(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
    return {
        "api": random.choice(_PRECIOUS),
        "count": random.randint(1, 4),
        "seconds": round(random.uniform(0.3, 3), 2),
    }


def _link(low: float, high: float, *, all_nodes: float = 0.3) -> Any:
    def make(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
        return {
            "member": random.choice(members),
            "node": 0 if random.random() < all_nodes else random.randint(1, NODES),
            "seconds": round(random.uniform(low, high), 2) if high else 0.0,
        }

    return make


def _mangle(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
    return {
        "member": random.choice(members),
        "node": random.randint(1, NODES),
        "count": random.randint(1, 3),
    }


def _node(low: float, high: float) -> Any:
    def make(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
        return {"node": random.randint(1, NODES), "seconds": round(random.uniform(low, high), 2)}

    return make


def _process(*seconds: tuple[float, float]) -> Any:
    def make(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
        low, high = random.choice(seconds)
        return {
            "member": random.choice(members),
            "seconds": round(random.uniform(low, high), 2) if high else 0.0,
        }

    return make


def _cut(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
    return {"node": random.randint(1, NODES), "count": random.randint(1, 12)}


def _wall(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
    return {"seconds": random.choice((3600.0, -3600.0))}


def _misassign(random: Random, members: tuple[str, ...]) -> dict[str, Any]:
    seconds = round(random.uniform(8, 14), 2)
    how = random.choice(("foreign", "foreign", "foreign", "handover"))
    return {"code": how, "member": random.choice(members), "seconds": seconds}


FAULTS: dict[str, tuple[int, Any]] = {
    "error": (14, _code),
    "response_lost": (4, _lost_response),
    "response_swallowed": (2, _lost_response),
    "response_late": (3, _late_response),
    "reset": (3, _link(0, 0)),
    "close": (2, _link(0, 0)),
    "half_open": (2, _link(0, 0)),
    "dark": (2, _link(0.5, 7)),
    "slow": (2, _link(0.5, 5)),
    "throttle": (1, _link(1, 5)),
    "shred": (2, _mangle),
    "garbage": (1, _mangle),
    "truncate": (1, _mangle),
    "duplicate": (1, _mangle),
    "cut": (1, _mangle),
    "kill_node": (2, _node(0.3, 6)),
    "rolling_restart": (1, lambda random, _: {"seconds": round(random.uniform(0.3, 2), 2)}),
    "move_coordinator": (2, _node(0, 0)),
    "move_leaders": (1, _node(0, 0)),
    "freeze": (4, _process((0.2, 4), (6.5, 10), (16, 18))),
    "starve": (2, _process((0.05, 2.0))),
    "kill": (2, _process((0, 0))),
    "cancel_call": (3, _process((0, 0))),
    "cancel": (1, _process((0, 0))),
    "wall_jump": (1, _wall),
    "throttled": (0, _throttled),
    "cut_log": (0, _cut),
    "recreate_topic": (0, lambda random, _: {"seconds": random.choice((0.0, 0.5, 2.0, 6.0))}),
    "misassign": (0, _misassign),
}
"""Name -> relative frequency (0 for faults that only certain runs have), and a function that
creates the fault."""

APPLICATION_ACTIONS: dict[str, tuple[int, Any]] = {
    "seek": (3, _process((0, 0))),
    "pause": (3, _process((0.5, 6))),
    "subscribe": (3, _process((2, 8))),
    "dawdle": (1, _process((16, 20), (3, 5))),
    "commit_position": (2, _process((0, 0))),
    "skip": (0, _process((0, 0))),
    "hold": (0, _process((0.5, 4), (0.5, 4), (9, 14))),
    "be_absent": (0, _process((5, 14), (16, 20))),
    "wait_idle": (0, _process((8, 14))),
    "request_rejoin": (0, _process((0, 0))),
    "add_partitions": (1, lambda random, _: {"count": random.randint(1, 2)}),
}
"""Actions of applications and administrators."""

_KINDS: dict[str, tuple[float, int]] = {
    "throttled": (0.3, 3),
    "skip": (0.3, 4),
}
"""Actions that only some runs have: the share of runs, and the maximum count."""

_ADDED = 0.4
"""Share of the runs that have actions of `_ADDITIONS`."""

_ADDITIONS: dict[str, tuple[float, tuple[float, float], tuple[int, int]]] = {
    "pause": (0.6, (2.0, 12.0), (4, 10)),
    "hold": (0.6, (0.0, 0.0), (4, 10)),
    "be_absent": (0.4, (0.0, 0.0), (1, 3)),
    "wait_idle": (0.3, (0.0, 0.0), (1, 1)),
    "request_rejoin": (0.4, (0.0, 0.0), (2, 8)),
    "recreate_topic": (0.35, (0.0, 0.0), (1, 3)),
    "misassign": (0.35, (0.0, 0.0), (1, 1)),
}
"""Name -> the share of those runs that have it, its duration in seconds if it differs from that in
other runs, and its minimum and maximum count."""

_SHORT_POLL = 6.0
"""Poll interval of members whose applications wait for long."""

_DYING_LATE = 0.1
"""Share of the runs in which a member dies after `heal`."""

_CUTTING = 0.15
"""Share of the runs with truncated logs."""

_STRICT = 0.35
"""Share of those in which the clients must not reset a missing position."""

_SEEKERS = 0.2
"""Share of the runs with members that seek after each assignment."""

_MODES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("cooperative_sticky",),),
    (("range",),),
    (("roundrobin", "range"),),
    (("sticky",),),
    (("range", "cooperative_sticky", "roundrobin"),),
    (("cooperative_sticky", "range"), ("range",)),
)
"""Assignors of a group's members: each member supports one of these tuples."""


_SHARDS_EVERY = 8
"""One run in this many has group members."""

_NAMING = frozenset(("seek", "skip", "commit_position"))
"""Actions that commit or seek to an offset without its leader epoch: after a truncation it is
unknown whether the offset still identifies the same record."""

_IDLE = frozenset(("seek", "pause", "skip", "commit_position", "add_partitions"))
"""Actions that do not apply to group members."""


_PATTERNS = 0.25
"""Share of the KIP-848 runs with members that subscribe by pattern."""

_REMOTE_ASSIGNORS: tuple[tuple[str | None, ...], ...] = (
    (None,),
    ("uniform",),
    ("range",),
    (None, "uniform", "range"),
)
"""Assignors that the members of such a group request: each one of these."""


def make_plan(
    seed: int,
    *,
    backend: str | None = None,
    protocol: str = "classic",
    kinds: Collection[str] = ENABLED,
) -> Plan:
    """Return the plan of a seed, for one of `PROTOCOLS`, with these kinds of `OUTSIDE` faults.
    Without `backend`, every tenth runs on trio. In every eighth classic run the members share
    shards instead of consuming."""
    return add_outside(_inside(seed, backend, protocol), kinds)


def fault_count(plan: Plan) -> int:
    """Return the number of actions that are faults."""
    return sum(action.what in FAULTS or action.what in OUTSIDE_FAULTS for action in plan.actions)


def _inside(seed: int, backend: str | None, protocol: str) -> Plan:
    plan = _consuming(seed, backend)
    late = Random(f"late {seed}")
    if late.random() < _DYING_LATE:
        staying = [member.name for member in plan.members if member.leave is None]
        plan = attrs.evolve(plan, dies_late=late.choice(staying))
    if protocol == "consumer":
        plan = _assigned_to(plan)
    elif seed % _SHARDS_EVERY == _SHARDS_EVERY - 1:
        return _sharing(plan)
    random = Random(f"cut {seed}")
    plan = _cutting(plan, random) if random.random() < _CUTTING else plan
    random = Random(f"additions {seed}")
    return _adding(plan, random) if random.random() < _ADDED else plan


def _adding(plan: Plan, random: Random) -> Plan:
    """Add actions. They have their own random stream, so that the rest of a seed's plan does not
    depend on them."""
    names = tuple(member.name for member in plan.members)
    excluded = set()
    if plan.assigns_every is not None:
        excluded |= {"misassign"}  # no member leads
    if any(action.what == "cut_log" for action in plan.actions):
        excluded |= {"recreate_topic"}
    added: list[PlannedAction] = []
    for what, (share, (low, high), (least, most)) in _ADDITIONS.items():
        if random.random() >= share or what in excluded:
            continue
        for _ in range(random.randint(least, most)):
            fields = (FAULTS | APPLICATION_ACTIONS)[what][1](random, names)
            if high:
                fields["seconds"] = round(random.uniform(low, high), 2)
            added.append(
                PlannedAction(at=round(random.uniform(3, plan.heal), 3), what=what, **fields)
            )
    actions, members = [*plan.actions, *added], plan.members
    if any(action.what == "wait_idle" for action in added):
        # Few applications wait undisturbed for longer than the other runs' poll interval.
        members = tuple(attrs.evolve(member, max_poll=_SHORT_POLL) for member in members)
    if any(action.what == "recreate_topic" for action in added):
        actions, members = _unnamed(actions, members)
    actions.sort(key=lambda action: action.at)
    return attrs.evolve(plan, actions=tuple(actions), members=members)


def _unnamed(
    actions: Iterable[PlannedAction], members: Iterable[MemberPlan]
) -> tuple[list[PlannedAction], tuple[MemberPlan, ...]]:
    """Remove what commits or seeks to bare offsets: an offset does not identify its log."""
    quiet = {"commit": "quick", "seek": "quick"}
    return (
        [action for action in actions if action.what not in _NAMING],
        tuple(attrs.evolve(m, callback=quiet.get(m.callback, m.callback)) for m in members),
    )


def _assigned_to(plan: Plan) -> Plan:
    """Return the plan for members of a KIP-848 group."""
    random = Random(f"consumer {plan.seed}")
    actions = tuple(_translated(random, action) for action in plan.actions)
    asked = random.choice(_REMOTE_ASSIGNORS)
    patterns = 0.5 if random.random() < _PATTERNS else 0.0
    members = tuple(
        attrs.evolve(
            member,
            assignors=(),
            protocol=random.choice(("consumer", "consumer", "auto")),
            remote_assignor=random.choice(asked),
            pattern=random.random() < patterns,
        )
        for member in plan.members
    )
    every = random.choice((0.0, 1.0))
    return attrs.evolve(plan, members=members, actions=actions, assigns_every=every)


def _translated(random: Random, action: PlannedAction) -> PlannedAction:
    """Apply faults of classic group requests to heartbeats, the only group request of KIP-848."""
    api = HEARTBEATS if action.api in _CLASSIC_APIS else action.api
    code = (
        random.choice(CONSUMER_CODES[api]) if action.code and api in CONSUMER_CODES else action.code
    )
    return attrs.evolve(action, api=api, code=code)


def _sharing(plan: Plan) -> Plan:
    shards = Random(f"shards {plan.seed}").randint(1, 16)
    actions = tuple(action for action in plan.actions if action.what not in _IDLE)
    members = tuple(attrs.evolve(m, topics=(), shards=shards) for m in plan.members)
    return attrs.evolve(plan, members=members, actions=actions, topics={}, rate=0.0)


def _cutting(plan: Plan, random: Random) -> Plan:
    cuts = [
        PlannedAction(at=round(random.uniform(3, plan.heal), 3), what="cut_log", **_cut(random, ()))
        for _ in range(random.randint(1, 4))
    ]
    named, members = _unnamed(plan.actions, plan.members)
    actions = [*named, *cuts]
    resets = random.random() >= _STRICT
    members = tuple(attrs.evolve(m, resets=resets) for m in members)
    return attrs.evolve(
        plan, members=members, actions=tuple(sorted(actions, key=lambda action: action.at))
    )


def _consuming(seed: int, backend: str | None) -> Plan:
    random = Random(f"plan {seed}")
    topics = {f"t{i}": random.randint(1, 5) for i in range(random.randint(1, 3))}
    heal = round(random.uniform(20, 30), 2)
    size = random.choices((3, 4, 5, 6, 8, 10, 12), (20, 20, 15, 10, 5, 3, 2))[0]
    mode = random.choice(_MODES)
    static = random.random()
    auto_commit = random.random()
    timings = {
        "session": random.choice((6.0, 8.0)),
        "heartbeat": random.choice((1.0, 2.0)),
        "rebalance": random.choice((8.0, 12.0)),
        "request_timeout": random.choice((3.0, 6.0)),
    }
    members = []
    for number in range(1, size + 1):
        start = 0.0 if number < 3 or random.random() < 0.5 else round(random.uniform(0, 20), 2)
        leave = None
        if number > 2 and random.random() < 0.3:
            leave = round(random.uniform(start + 2, heal), 2)
        wanted = tuple(t for t in topics if random.random() < 0.8) or tuple(topics)
        members.append(
            MemberPlan(
                name=f"m{number}",
                start=start,
                leave=leave,
                topics=tuple(topics) if number < 3 else wanted,
                assignors=random.choice(mode),
                instance=f"i{number}" if static < 0.3 and random.random() < 0.6 else None,
                style=random.choice(("each", "each", "batches", "many")),
                auto_commit=random.random() < auto_commit,
                commit_every=random.choice((1, 5, 20)),
                work=random.choice((0.0, 0.002, 0.02)),
                callback=random.choice(("quick", "quick", "slow", "commit")),
                **timings,
            )
        )
    twins = Random(f"twins {seed}")
    if (static := [m for m in members if m.instance]) and twins.random() < 0.25:
        # A second process with the same instance id: the first one is fenced.
        start = round(twins.uniform(4, heal - 4), 2)
        first = twins.choice(static)
        members.append(attrs.evolve(first, name=f"m{size + 1}", start=start, leave=None))
    names = tuple(m.name for m in members)
    actions = [
        _draw(random, FAULTS, names, round(random.uniform(2.5, heal), 3))
        for _ in range(random.randint(20, 30))
    ]
    actions += [
        _draw(random, APPLICATION_ACTIONS, names, round(random.uniform(1, heal), 3))
        for _ in range(random.randint(2, 8))
    ]
    kinds = Random(f"kinds {seed}")
    for what, (share, most) in _KINDS.items():
        make = (FAULTS | APPLICATION_ACTIONS)[what][1]
        if kinds.random() < share:
            actions += [
                PlannedAction(
                    at=round(kinds.uniform(2.5, heal), 3), what=what, **make(kinds, names)
                )
                for _ in range(kinds.randint(1, most))
            ]
    if kinds.random() < _SEEKERS:
        members = [attrs.evolve(m, callback="seek") if kinds.random() < 0.5 else m for m in members]
    return Plan(
        seed=seed,
        backend=backend or ("trio" if seed % 10 == 9 else "asyncio"),
        topics=topics,
        members=tuple(members),
        actions=tuple(sorted(actions, key=lambda action: action.at)),
        rate=random.choice((3.0, 6.0, 12.0)),
        heal=heal,
    )


def _draw(
    random: Random, table: dict[str, tuple[int, Any]], members: tuple[str, ...], at: float
) -> PlannedAction:
    what = random.choices(tuple(table), [weight for weight, _ in table.values()])[0]
    return PlannedAction(at=at, what=what, **table[what][1](random, members))
