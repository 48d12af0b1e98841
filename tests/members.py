"""Members of each protocol in any state, and the legal states: checked after every step.

A member has dozens of fields. `INVARIANTS` lists which combinations are legal: by protocol, the
name of a rule and a condition on a member after a step at `now`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import attrs

__all__ = ["INVARIANTS", "checked", "evolve", "violated"]

M = TypeVar("M")
Step = TypeVar("Step", bound=Callable[..., Any])
Rule = Callable[[Any, float], bool]


def evolve(
    value: M,
    *,
    is_assigned: bool | None = None,
    acknowledged_at: float | None = None,
    **changes: Any,
) -> M:
    """Like `attrs.evolve`, but a member's ownership follows its phase, and parts of it can be
    given. A lease lasts for the session timeout of the member."""
    before: Any = value
    if (ownership := getattr(before, "ownership", None)) is None:
        return attrs.evolve(before, **changes)
    if is_assigned is not None:
        ownership = attrs.evolve(ownership, is_assigned=is_assigned)
    if acknowledged_at is not None:
        timeout = before.config.session_timeout
        ownership = attrs.evolve(ownership, acknowledged_at=acknowledged_at, lease_timeout=timeout)
    if "phase" in changes:
        is_revoking = changes["phase"].value == "revoking"
        ownership = attrs.evolve(ownership, is_revoking=is_revoking)
    return attrs.evolve(before, **{"ownership": ownership, **changes})


def _in(member: Any, *phases: str) -> bool:
    return member.phase.value in phases


_AWAITS = ("joining", "releasing", "computing", "syncing", "revoking", "losing", "leaving")
"""Phases of an effect that must be answered: its token is `pending`."""

_OUTSIDE = ("idle", "losing", "departing", "leaving", "left", "failed")
"""Phases in which a member owns nothing, whatever its protocol."""


def _tokens(member: Any, *names: str) -> bool:
    tokens = [token for name in names if (token := getattr(member, name)) is not None]
    return len(tokens) == len({*tokens}) and all(t <= member.last_token for t in tokens)


_ALL: Mapping[str, Rule] = {
    "revokes in the phase `revoking`": lambda m, _: m.ownership.is_revoking == _in(m, "revoking"),
    "owns nothing outside of the group": lambda m, _: (
        not (_in(m, *_OUTSIDE) and m.ownership.is_assigned)
    ),
    # So a loop that stalls for a whole lease finds it expired, without a rule of its own.
    "the lease runs from the past": lambda m, now: m.ownership.acknowledged_at <= now,
}

_COORDINATED: Mapping[str, Rule] = {
    **_ALL,
    "revokes what is assigned": lambda m, _: m.ownership.is_assigned or not m.ownership.is_revoking,
    "awaits one answer for its phase": lambda m, _: (m.pending is not None) == _in(m, *_AWAITS),
    "has nothing in flight once it has left or failed": lambda m, _: (
        not _in(m, "left", "failed") or (m.lookup_in_flight, m.heartbeat_in_flight) == (None, None)
    ),
    "gives up leaving at some time": lambda m, _: (
        (m.leave_by < math.inf) or not _in(m, "departing", "leaving")
    ),
    "looks up only an unknown coordinator": lambda m, _: (
        m.lookup_in_flight is None or m.coordinator is None
    ),
}

INVARIANTS: Mapping[str, Mapping[str, Rule]] = {
    "classic": {
        **_COORDINATED,
        "awaits its own tokens, each of them once": lambda m, _: _tokens(
            m, "pending", "lookup_in_flight", "heartbeat_in_flight"
        ),
        "has an assignment in a generation": lambda m, _: (
            m.ownership.is_assigned or not _in(m, "stable", "revoking")
        ),
        "owns outside of a generation only if cooperative": lambda m, _: (
            not m.ownership.is_assigned or m.config.cooperative or _in(m, "stable", "revoking")
        ),
        "has a generation once it has joined": lambda m, _: (
            m.generation_id >= 0
            or not _in(m, "computing", "syncing", "synced", "stable", "revoking")
        ),
        "computes only as the leader": lambda m, _: m.is_leader or not _in(m, "computing"),
        "revokes all only to leave": lambda m, _: m.leaving is not None or not m.revokes_all,
    },
    "consumer": {
        **_COORDINATED,
        "awaits its own tokens, each of them once": lambda m, _: _tokens(
            m, "pending", "lookup_in_flight", "heartbeat_in_flight", "reconciling"
        ),
        "owns only as a member": lambda m, _: (
            not m.ownership.is_assigned or _in(m, "member", "revoking")
        ),
        "has an epoch as a member": lambda m, _: (m.epoch > 0) == _in(m, "member", "revoking"),
        "lists no partitions without an assignment": lambda m, _: (
            m.ownership.is_assigned or not m.owned
        ),
        "reconciles only with an assignment": lambda m, _: (
            m.reconciling is None or m.ownership.is_assigned
        ),
        "has next partitions only while it reconciles": lambda m, _: (
            m.reconciling is not None or not m.next_owned
        ),
        "sends its state only in a heartbeat or a join": lambda m, _: (
            m.state_in_flight is None or m.heartbeat_in_flight is not None or _in(m, "joining")
        ),
    },
    "zookeeper": {
        **_ALL,
        "awaits its own tokens, each of them once": lambda m, _: _tokens(
            m, "registering", "reading", "computing", "write_in_flight", "reconciling", "confirming"
        ),
        "owns exactly its assigned units": lambda m, _: (
            m.ownership.is_assigned == bool(m.assigned_units)
        ),
        "is assigned only units that it holds": lambda m, _: m.assigned_units <= m.held,
        "holds no uncertain unit": lambda m, _: not m.held & m.uncertain,
        "claims units only in a session": lambda m, _: (
            not (m.held or m.uncertain) or _in(m, "member", "revoking")
        ),
    },
}
"""Protocol -> name of a rule -> whether a member keeps it after a step at `now`."""


def violated(protocol: str, member: object, now: float) -> list[str]:
    """Return the names of the rules that a member violates."""
    return [name for name, holds in INVARIANTS[protocol].items() if not holds(member, now)]


def checked(protocol: str, step: Step) -> Step:
    """Wrap a step so that the test fails if the step leaves its member in an illegal state."""

    @wraps(step)
    def check(member: Any, event: Any) -> Any:
        after, effects = step(member, event)
        broken = violated(protocol, after, event.now)
        assert not broken or violated(protocol, member, event.now), (broken, after)
        return after, effects

    return check  # type: ignore[return-value]
