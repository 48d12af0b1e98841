"""Events and effects of members of consumer groups (KIP-848), besides those of all members.

The driver answers each `Reconcile` with `AssignmentApplied` or `AssignFailed`, and a `LookUpNames`
with a `TopicsNamed` each time that it has found more names.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kafkagroup._values import frozen
from kafkagroup.member.vocabulary import (
    AssignFailed,
    AssignmentApplied,
    AssignmentRequested,
    BaseEvent,
    CoordinatorInvalidated,
    Fail,
    FindCoordinator,
    GenerationInfo,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Replied,
    ReportError,
    Revoke,
    Revoked,
    Send,
    SendFailed,
    Started,
    WakeAt,
    Woke,
)

__all__ = [
    "ConsumerEffect",
    "ConsumerEvent",
    "FallBack",
    "LookUpNames",
    "Reconcile",
    "Subscribed",
    "TopicsNamed",
]


@frozen(kw_only=True)
class Subscribed(AssignmentRequested):
    """The application has changed its subscription."""

    topics: tuple[str, ...]
    """The topics subscribed to by name, sorted."""
    pattern: str | None
    """The regular expression subscribed to, in the coordinator's syntax (RE2J); None for none."""


@frozen(kw_only=True)
class TopicsNamed(BaseEvent):
    """Names of topics that a `LookUpNames` requested are known."""

    names: Mapping[UUID, str]
    """Topic id -> name."""


ConsumerEvent = (
    Started
    | Replied
    | SendFailed
    | Revoked
    | AssignmentApplied
    | AssignFailed
    | Woke
    | RejoinRequested
    | CoordinatorInvalidated
    | Leaving
    | Subscribed
    | TopicsNamed
)


@frozen(kw_only=True)
class Reconcile:
    """Have the application own exactly this assignment: process, commit and release what is not in
    it, then add the rest."""

    token: int
    generation: GenerationInfo


@frozen(kw_only=True)
class LookUpNames:
    """Look up the names of these topics, and stop looking up any others."""

    topic_ids: frozenset[UUID]


@frozen(kw_only=True)
class FallBack:
    """End the membership, as this protocol is unavailable; the classic one may be tried."""

    error: Exception


ConsumerEffect = (
    FindCoordinator
    | Send
    | Revoke
    | Lose
    | Reconcile
    | LookUpNames
    | ReportError
    | WakeAt
    | Fail
    | FallBack
    | Leave
)
