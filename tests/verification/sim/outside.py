"""Faults of the world outside the group, each kind of which can be switched on and off. Here are
those of brokers and offsets; `surroundings` has those of what surrounds a member.

One broker's response is an opinion: it lags behind, refuses without a reason, or is of another
cluster. What a broker has acknowledged, it may forget. Workers of an application outlive its
assignments.

Each kind has its own random stream, so that a plan does not depend on which others are enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

import attrs

from .codes import legal_codes
from .schedule import NODES, Plan, PlannedAction, with_actions
from .surroundings import SURROUNDING_FAULTS, SURROUNDINGS

__all__ = ["BROKERS_OPINIONS", "ENABLED", "OUTSIDE", "OUTSIDE_FAULTS", "add_outside"]

Actions = list[PlannedAction]

OUTSIDE_FAULTS = SURROUNDING_FAULTS | {
    "lagging",
    "refusal",
    "foreign_cluster",
    "forget_offsets",
    "replica_refuses",
    "commit_late",
}
"""The actions of all kinds."""

_REFUSALS = 4
"""False refusals of each run: the runs of successive seeds pass through all legal ones."""

_RARE = ("ListOffsets", "OffsetFetch", "OffsetForLeaderEpoch")
"""Requests that most members send only when they start."""

_LASTING = 0.3
"""Share of the runs in which a refusal lasts."""

_LASTING_CODES = ("TOPIC_AUTHORIZATION_FAILED", "CORRUPT_MESSAGE", "OFFSET_MOVED_TO_TIERED_STORAGE")

_REPLICA_CODES = (
    *("OFFSET_OUT_OF_RANGE",) * 4,
    "NOT_LEADER_OR_FOLLOWER",
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "KAFKA_STORAGE_ERROR",
    "REPLICA_NOT_AVAILABLE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "UNKNOWN_SERVER_ERROR",
)
"""What a replica may refuse fetches with."""

_RACKS = ("", "r1", "r2", "r3")

_NAMED = ("cut_log", "recreate_topic")
"""After these, a bare offset does not identify a record."""


def _at(plan: Plan, random: Random, low: float = 2.5) -> float:
    return round(random.uniform(low, plan.heal), 3)


def _lagging(*codes: str) -> Callable[[Plan, Random], Plan]:
    """Let brokers lag, each in one way: every client gets one such response from it."""

    def add(plan: Plan, random: Random) -> Plan:
        return with_actions(
            plan,
            [
                PlannedAction(
                    at=_at(plan, random),
                    what="lagging",
                    node=random.randint(0, NODES),
                    code=random.choice(codes),
                    seconds=round(random.uniform(3, 12), 2),
                )
                for _ in range(random.randint(1, 3))
            ],
        )

    return add


def _lagging_topics(plan: Plan, random: Random) -> Plan:
    """Some members subscribe by pattern: only they notice that a topic is absent."""
    if not plan.shards:
        pattern = random.random() < 0.5
        members = (
            attrs.evolve(m, pattern=m.pattern or (pattern and random.random() < 0.5))
            for m in plan.members
        )
        plan = attrs.evolve(plan, members=tuple(members))
    return _lagging("no_topic", "leaderless_topic")(plan, random)


def _lagging_ids(plan: Plan, random: Random) -> Plan:
    """Let brokers answer with the id of a deleted topic, long after it was recreated."""
    recreated = [action.at for action in plan.actions if action.what == "recreate_topic"]
    if not recreated:
        return plan
    lags = [
        PlannedAction(
            at=_at(plan, random, min(min(recreated) + 1, plan.heal)),
            what="lagging",
            code="old_id",
            seconds=12.0,
        )
        for _ in range(2)
    ]
    return with_actions(plan, lags)


def _lagging_nodes(plan: Plan, random: Random) -> Plan:
    plan = _lagging("no_node")(plan, random)
    first = PlannedAction(at=0.0, what="lagging", code="no_brokers", seconds=plan.heal)
    return with_actions(plan, [first] if random.random() < 0.5 else [])


def _refusals(plan: Plan, random: Random) -> Plan:
    """Refuse one request each, with errors that no state of the cluster justifies; and, in some
    runs, all fetches of a node for a while. The applications continue."""
    members = tuple(attrs.evolve(m, persists=True) for m in plan.members)
    plan = attrs.evolve(plan, members=members)
    consumer = plan.assigns_every is not None
    legal = legal_codes("consumer" if consumer else "classic")
    apart = -(-len(legal) // _REFUSALS)
    chosen = [legal[(plan.seed + i * apart) % len(legal)] for i in range(_REFUSALS)]
    refusals = [
        PlannedAction(
            at=0.0 if api in _RARE else round(random.uniform(2.5, plan.heal * 0.7), 3),
            what="refusal",
            api=api,
            code=code,
            count=1,
            seconds=plan.heal,
        )
        for api, code in chosen
    ]
    if any(api == "OffsetForLeaderEpoch" for api, _ in chosen) and not plan.shards:
        # It follows a change of leaders.
        nodes = random.sample(range(1, NODES + 1), NODES)
        refusals += [
            PlannedAction(at=_at(plan, random), what="move_leaders", node=node) for node in nodes
        ]
    if random.random() < _LASTING and not plan.shards:
        lasting = PlannedAction(
            at=_at(plan, random),
            what="refusal",
            api="Fetch",
            code=random.choice(_LASTING_CODES),
            node=random.randint(1, NODES),
            seconds=round(random.uniform(3, 20), 2),
        )
        refusals.append(lasting)
    return with_actions(plan, refusals)


def _foreign_cluster(plan: Plan, random: Random) -> Plan:
    return with_actions(
        plan,
        [
            PlannedAction(
                at=_at(plan, random, 5.0),
                what="foreign_cluster",
                node=random.randint(1, NODES),
                seconds=round(random.uniform(2, 6), 2),
            )
            for _ in range(random.randint(1, 2))
        ],
    )


def _forgotten_offsets(plan: Plan, random: Random) -> Plan:
    forgets = [
        PlannedAction(at=_at(plan, random), what="forget_offsets", count=random.randint(0, 3))
        for _ in range(random.randint(0, 2))
    ]
    return with_actions(
        attrs.evolve(plan, forgets_late=random.random() < 0.5 or not forgets), forgets
    )


def _refusing_replica(plan: Plan, random: Random) -> Plan:
    """Let members read from the nearest replica, which refuses once or, past `heal`, for ever."""
    members = tuple(attrs.evolve(m, rack=random.choice(_RACKS)) for m in plan.members)
    once = random.random() < 0.4
    refusal = PlannedAction(
        at=_at(plan, random),
        what="replica_refuses",
        node=random.randint(1, NODES),
        code=random.choice(_REPLICA_CODES),
        count=int(once),
    )
    return with_actions(attrs.evolve(plan, members=members), [refusal])


def _late_commits(plan: Plan, random: Random) -> Plan:
    """Let tasks of applications commit the offsets of records that they got earlier."""
    if any(action.what in _NAMED for action in plan.actions):
        return plan
    late = [
        PlannedAction(
            at=_at(plan, random),
            what="commit_late",
            member=random.choice(plan.members).name,
            seconds=round(random.uniform(0, 12), 2),
            count=random.randint(1, 2),
        )
        for _ in range(random.randint(3, 8))
    ]
    return with_actions(plan, late)


_WITHOUT_RECORDS = frozenset(
    (
        "refusals",
        "lagging_nodes",
        "partings",
        "guests",
        "suspends",
        "silent_connections",
        "busy_threads",
    )
)
"""Kinds that concern group members without records, too."""

OUTSIDE: dict[str, tuple[float, Callable[[Plan, Random], Plan]]] = {
    "lagging_topics": (0.12, _lagging_topics),
    "lagging_counts": (0.12, _lagging("fewer_partitions")),
    "lagging_ids": (1.0, _lagging_ids),
    "lagging_epochs": (0.12, _lagging("old_epoch", "old_epoch", "high_epoch")),
    "lagging_nodes": (0.12, _lagging_nodes),
    "refusals": (1.0, _refusals),
    "foreign_cluster": (0.08, _foreign_cluster),
    "forgotten_offsets": (0.12, _forgotten_offsets),
    "refusing_replica": (0.1, _refusing_replica),
    "late_commits": (0.15, _late_commits),
    **SURROUNDINGS,
}
"""Name of a kind -> the share of the runs that may have it, and the function that adds it."""

BROKERS_OPINIONS = frozenset(OUTSIDE.keys() - SURROUNDINGS)
"""The kinds of this module. The runs for planted bugs have all of them, and of the others those
that a bug needs."""

ENABLED = frozenset(OUTSIDE)
"""The kinds that plans have by default."""


def add_outside(plan: Plan, kinds: Collection[str]) -> Plan:
    """Add the enabled kinds of faults to a plan."""
    for kind, (share, add) in OUTSIDE.items():
        if plan.shards and kind not in _WITHOUT_RECORDS:
            continue
        random = Random(f"{kind} {plan.seed}")
        if kind in kinds and random.random() < share:
            plan = add(plan, random)
    return plan
