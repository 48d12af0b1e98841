"""Faults of what surrounds a member, each kind of which can be switched on and off.

Its credentials fail for a while. What lies between it and a broker drops idle connections without a
word. Its joins and leaves are not answered. Its threads and name servers are slow. Its machine is
suspended, which stops its clock and no other. Its process stalls while its application works
through a backlog.

Like the kinds of `outside`, each has its own random stream.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from .schedule import NODES, MemberPlan, Plan, PlannedAction, with_actions

__all__ = ["PARTINGS", "STALLS", "SURROUNDINGS", "SURROUNDING_FAULTS"]

Kind = tuple[float, Callable[[Plan, Random], Plan]]

SURROUNDING_FAULTS = frozenset(
    (
        "login_fails",
        "broker_refuses_login",
        "drop_idle",
        "part_badly",
        "lose_join",
        "pass_by",
        "suspend",
        "stall",
        "slow_threads",
        "slow_names",
    )
)
"""The actions of these kinds."""

LOGIN_TROUBLES = ("fails", "fails", "hangs", "refused", "refused", "untrusted")
"""What a login may meet: the source of credentials raises, or takes long; the broker refuses what
it returns; the client does not trust the certificate of the broker."""

PARTINGS = (
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "unread",
    "unanswered",
    "silent",
)
"""What may happen to the request with which a member leaves: an error; the connection breaks before
or after the coordinator has executed it; or there is no response."""

STALLS = ("before", "after")
"""When a stalled process continues: right before its lease expires, or after that."""

_QUICK = 0.0002
"""Seconds for a record: less than for what the client delivers between two looks at its state."""

_LONG_POLL = 2.0
"""Seconds for which a connection may wait for records."""

_GUESTS = ("stop", "cancel")
"""How the application of a guest ends."""


def _at(plan: Plan, random: Random, low: float = 2.5) -> float:
    return round(random.uniform(low, plan.heal), 3)


def _logins(plan: Plan, random: Random) -> Plan:
    """Let the members log in, with sessions of limited time in some runs, and let that fail. The
    applications continue."""
    members = tuple(attrs.evolve(m, persists=True) for m in plan.members)
    plan = attrs.evolve(plan, members=members, session_lifetime=random.choice((0.0, 4.0, 9.0)))
    added = []
    for _ in range(random.randint(1, 4)):
        at, member = _at(plan, random, 4.0), random.choice(plan.members).name
        failing = PlannedAction(
            at=at,
            what="login_fails",
            member=member,
            code=random.choice(LOGIN_TROUBLES),
            seconds=round(random.uniform(0.5, 8), 2),
        )
        reset = PlannedAction(
            at=round(at + random.uniform(0.01, 0.5), 3),
            what="reset",
            member=member,
            node=random.choice((0, 0, *range(1, NODES + 1))),
        )
        added += [failing, reset]
    if random.random() < 0.4:
        at, node = _at(plan, random, 4.0), random.randint(1, NODES)
        seconds = round(random.uniform(2, 8), 2)
        added.append(PlannedAction(at=at, what="broker_refuses_login", node=node, seconds=seconds))
        added += [
            PlannedAction(at=round(at + 0.1, 3), what="reset", member=m.name, node=node)
            for m in plan.members
        ]
    return with_actions(plan, added)


def _silent_connections(plan: Plan, random: Random) -> Plan:
    """Let something between all members and brokers drop connections that were idle for too long,
    but for less than that heartbeats and long polls leave them idle. Most applications commit
    themselves, and rarely."""
    rare = [random.random() < 0.7 for _ in plan.members]
    members = tuple(
        attrs.evolve(m, auto_commit=False, commit_every=60) if is_rare else m
        for m, is_rare in zip(plan.members, rare, strict=True)
    )
    limit = max(_LONG_POLL, plan.members[0].heartbeat) + round(random.uniform(0.2, 2), 2)
    drop = PlannedAction(at=round(random.uniform(1, 6), 3), what="drop_idle", seconds=limit)
    return with_actions(attrs.evolve(plan, members=members), [drop])


def _partings(plan: Plan, random: Random) -> Plan:
    """Let what members send to leave their group fail once or twice: of those that leave during the
    run, and in most runs of all at the end. Or let them not know the coordinator then."""
    left = [
        PlannedAction(
            at=round(member.leave - 0.01, 3),
            what="part_badly",
            member=member.name,
            code=random.choice(PARTINGS),
            count=random.randint(1, 2),
            seconds=4.0,
        )
        for member in plan.members
        if member.leave is not None
    ]
    parting = random.choice((*PARTINGS, "hidden", "hidden", ""))
    return with_actions(attrs.evolve(plan, parting=parting), left)


def _lost_joins(plan: Plan, random: Random) -> Plan:
    """KIP-848: lose responses to joins, of a group in which most members are static."""
    if plan.assigns_every is None:
        return plan
    members = [
        attrs.evolve(m, instance=m.instance or f"i{m.name[1:]}") if random.random() < 0.7 else m
        for m in plan.members
    ]
    losses = [
        PlannedAction(at=0.0, what="lose_join", count=random.randint(1, 2), seconds=plan.heal),
        *(
            PlannedAction(at=_at(plan, random), what="lose_join", count=1, seconds=6.0)
            for _ in range(random.randint(1, 2))
        ),
    ]
    return with_actions(attrs.evolve(plan, members=tuple(members)), losses)


def _guests(plan: Plan, random: Random) -> Plan:
    """Let members join beside the others, whose applications end as soon as they have sent their
    first join, or their second, on slow links."""
    guests = [
        PlannedAction(
            at=_at(plan, random),
            what="pass_by",
            code=random.choice(_GUESTS),
            count=random.choice((1, 1, 2)),
            seconds=round(random.uniform(0.0, 0.4), 3),
        )
        for _ in range(random.randint(1, 3))
    ]
    return with_actions(plan, guests)


def _suspends(plan: Plan, random: Random) -> Plan:
    """Suspend machines, in most cases beyond the session."""
    if plan.backend == "trio":
        return plan  # trio has one clock for all tasks
    suspends = [
        PlannedAction(
            at=_at(plan, random, 4.0),
            what="suspend",
            member=_any(plan.members, random),
            seconds=round(random.choice((random.uniform(1, 5), random.uniform(6.5, 14))), 2),
        )
        for _ in range(random.randint(1, 4))
    ]
    return with_actions(plan, suspends)


def _stalls(plan: Plan, random: Random) -> Plan:
    """Let processes stall between two records of a backlog, until shortly before their lease
    expires or beyond that. Their applications take a part of a millisecond for a record."""
    stalls = [
        PlannedAction(
            at=_at(plan, random, 4.0),
            what="stall",
            member=_any(plan.members, random),
            code=random.choice(STALLS),
            count=random.randint(20, 60),
            seconds=round(random.uniform(0.1, 3.0), 2),
        )
        for _ in range(random.randint(2, 5))
    ]
    stalled = {action.member for action in stalls}
    members = tuple(
        attrs.evolve(m, style="each", work=_QUICK) if m.name in stalled else m for m in plan.members
    )
    return with_actions(attrs.evolve(plan, members=members), stalls)


def _busy_threads(plan: Plan, random: Random) -> Plan:
    """Let every job of the clients run in a thread, let those be slow at times, and look-ups of
    names: then the clients must connect."""
    added = []
    for _ in range(random.randint(1, 3)):
        at, member = _at(plan, random, 4.0), _any(plan.members, random)
        slow = PlannedAction(
            at=at,
            what="slow_threads",
            member=member,
            count=random.randint(1, 3),
            seconds=round(random.uniform(3, 8), 2),
        )
        added.append(slow)
    for _ in range(random.randint(1, 4)):
        at, member = _at(plan, random, 4.0), _any(plan.members, random)
        seconds = round(random.uniform(1.5, 9), 2)
        reset = PlannedAction(at=round(at + 0.01, 3), what="reset", member=member)
        added += [PlannedAction(at=at, what="slow_names", member=member, seconds=seconds), reset]
    return with_actions(attrs.evolve(plan, uses_threads=True), added)


def _any(members: tuple[MemberPlan, ...], random: Random) -> str:
    return random.choice(members).name


SURROUNDINGS: dict[str, Kind] = {
    "logins": (0.12, _logins),
    "silent_connections": (0.12, _silent_connections),
    "partings": (0.2, _partings),
    "lost_joins": (0.2, _lost_joins),
    "guests": (0.15, _guests),
    "suspends": (0.15, _suspends),
    "stalls": (0.12, _stalls),
    "busy_threads": (0.12, _busy_threads),
}
"""Name of a kind -> the share of the runs that may have it, and the function that adds it."""
