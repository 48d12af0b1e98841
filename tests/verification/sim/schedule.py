"""A plan as a value: its members and its actions, which can be stored and shortened."""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs

__all__ = [
    "GROUP",
    "NODES",
    "MemberPlan",
    "Plan",
    "PlannedAction",
    "from_json",
    "to_json",
    "with_actions",
]

GROUP = "g"
NODES = 3


@attrs.frozen(kw_only=True)
class MemberPlan:
    """One consuming process, and how its application behaves."""

    name: str
    start: float
    """Seconds."""
    leave: float | None = None
    """When it leaves; None: at the end of the run."""
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    instance: str | None = None
    style: str = "each"
    """How it takes records: "each", "batches" or "many"."""
    auto_commit: bool = True
    resets: bool = True
    """Whether its client resets a missing position; else its application seeks to the log's
    start."""
    commit_every: int = 10
    """Records between the application's own commits, without auto-commit."""
    work: float = 0.002
    """Processing time of one record, in seconds."""
    callback: str = "quick"
    """What its callbacks do: "quick", "slow", "commit" or "seek"."""
    session: float = 6.0
    heartbeat: float = 1.0
    rebalance: float = 8.0
    max_poll: float = 15.0
    request_timeout: float = 4.0
    shards: int = 0
    """Number of shards that the members share as group members; 0 if they are consumers."""
    protocol: str = "classic"
    """Its `group_protocol`."""
    remote_assignor: str | None = None
    """The server-side assignor that it requests, if any (KIP-848)."""
    pattern: bool = False
    """It subscribes to its topics by a pattern, which the coordinator evaluates (KIP-848), or the
    member itself."""
    persists: bool = False
    """Whether its application continues after a broker's error, which may pass by itself."""
    rack: str = ""
    """Its rack, such as "r2": node 2 is its nearest replica (KIP-392). "" for none."""


@attrs.frozen(kw_only=True)
class PlannedAction:
    """One action on members, network or brokers; some have a duration."""

    at: float
    what: str
    member: str = ""
    """Empty: all members."""
    node: int = 0
    """0: all nodes."""
    api: str = ""
    code: str = ""
    seconds: float = 0.0
    count: int = 0

    def __str__(self) -> str:
        parts = [self.what.replace("_", " ")]
        parts += [f"of {self.member}"] if self.member else []
        parts += [f"at node {self.node}"] if self.node else []
        parts += [self.api] if self.api else []
        parts += [self.code] if self.code else []
        parts += [f"{self.count} times"] if self.count else []
        parts += [f"for {self.seconds:.2f} s"] if self.seconds else []
        return " ".join(parts)


@attrs.frozen(kw_only=True)
class Plan:
    """The plan of one simulated run."""

    seed: int
    backend: str
    topics: dict[str, int]
    """Topic -> partition count."""
    members: tuple[MemberPlan, ...]
    actions: tuple[PlannedAction, ...]
    """Sorted by time."""
    rate: float
    """Records per second, until `heal`."""
    heal: float
    """When the last fault ends."""
    dies_late: str = ""
    """The member that is killed long after `heal`, if any."""
    forgets_late: bool = False
    """Whether the broker forgets all committed offsets right before the members close."""
    parting: str = ""
    """What happens at the end to the requests with which the members leave; "hidden": they do not
    know the coordinator. "" for nothing."""
    uses_threads: bool = False
    """Whether every job of the clients that may run in a thread does so."""
    session_lifetime: float | None = None
    """Seconds after which clients must log in again, 0 for never; None: they do not log in."""
    assigns_every: float | None = None
    """Minimum time between two assignments of the coordinator, in seconds; None if members assign
    (classic protocol)."""

    @property
    def shards(self) -> int:
        """The number of shards; 0 if the members are consumers."""
        return self.members[0].shards


def with_actions(plan: Plan, actions: Iterable[PlannedAction]) -> Plan:
    """Return the plan with more actions."""
    ordered = sorted((*plan.actions, *actions), key=lambda action: action.at)
    return attrs.evolve(plan, actions=tuple(ordered))


# ------------------------------------------------------------------ serialization


def to_json(plan: Plan) -> str:
    """Return the plan as one line of JSON."""
    return json.dumps(attrs.asdict(plan))


def from_json(text: str) -> Plan:
    """Parse a plan from JSON."""
    raw = json.loads(text)
    members = [
        MemberPlan(**{**m, "topics": tuple(m["topics"]), "assignors": tuple(m["assignors"])})
        for m in raw.pop("members")
    ]
    actions = tuple(PlannedAction(**action) for action in raw.pop("actions"))
    return Plan(members=tuple(members), actions=actions, **raw)
