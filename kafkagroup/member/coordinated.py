"""What the classic protocol and KIP-848 share: finding and invalidating the coordinator, back-off,
the session, leaving, and the next wake-up. Each protocol's own step derives from `CoordinatedStep`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from kafkagroup._backoff import backoff, backoff_within
from kafkagroup._values import evolve, frozen
from kafkagroup.errors import (
    RETRIED_ERRORS,
    AuthenticationError,
    BrokerError,
    FencedError,
    JoinFailedError,
    LocalProtocolError,
    RequestTimeoutError,
)
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import (
    BaseEvent,
    Coordinator,
    FindCoordinator,
    Leaving,
    ReportError,
    Route,
    Send,
    WakeAt,
)
from kafkagroup.wire.error_codes import COORDINATOR_MOVED, FINAL, NOT_A_MEMBER
from kafkagroup.wire.schema import Request

__all__ = ["DRAIN_FRACTION", "CoordinatedMember", "CoordinatedStep"]

DRAIN_FRACTION = 0.75
"""The part of the rebalance timeout in which the application processes the records in flight; the
rest is for the commit and the join."""

_LEAVE_FRACTION = 0.5
"""How much of the time left for leaving one attempt may take: a coordinator that does not respond
must not use up all of it."""

_MIN_ATTEMPT = 1.0
"""The least seconds for an attempt to leave. `leave_by` may end it sooner."""

_ATTEMPT_FRACTION = 1 / 3
"""The part of the time for a heartbeat that an attempt may take: its connection may be dead, and
another attempt needs time, too. After an attempt without a response the next one has the rest, as
the coordinator may be slow."""

_REPORT_INTERVAL = 60.0
"""Seconds between two reports of the same refusal: the request is repeated each second."""


@frozen(kw_only=True)
class CoordinatedMember:
    """State that both protocols share. All moments are on the lease clock."""

    config: MemberConfig
    phase: Enum
    coordinator: Coordinator | None = None
    ownership: Ownership = Ownership()
    pending: int | None = None
    """Token of the phase's own effect: a join or leave in flight, a revocation, a compute."""
    lookup_in_flight: int | None = None
    """Token of the `FindCoordinator` in flight."""
    heartbeat_in_flight: int | None = None
    """Token of the heartbeat in flight."""
    heartbeat_sent_at: float = 0.0
    """When the last heartbeat was sent."""
    next_heartbeat_at: float = 0.0
    session_ends_at: float = 0.0
    """When the member invalidates the coordinator, unless it answers before."""
    retry_at: float = 0.0
    """When back-off ends: no FindCoordinator, join or leave before."""
    attempts: int = 0
    """Failures in a row, for back-off."""
    timed_out: bool = False
    """Whether the last failure was a missing response: the coordinator may be slow."""
    join_failures: int = 0
    """How often joining has failed since it last succeeded; counted only with `max_retries`."""
    trouble: str = ""
    """The text of the last failure to join or to leave."""
    reported_refusal: tuple[int, float] = (0, float("-inf"))
    """The code that was last reported to the application as a refusal, and when."""
    reason: str = ""
    """Why the member rejoins, revokes, or has lost its partitions."""
    leaving: Leaving | None = None
    """Why and how the member leaves, because of the application or an error; None if it stays."""
    leave_by: float = math.inf
    """When the last attempt to leave ends; inf before the member has released its partitions."""
    last_token: int = 0
    """The token of the last effect. Tokens grow, so they tell which effect was earlier."""

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a stable member."""
        return self.config.heartbeat_interval

    @property
    def is_closed(self) -> bool:
        """Whether the membership has ended."""
        # By value: each protocol has an enum of its own.
        return self.phase.value in ("left", "failed")

    @property
    def leaves_group(self) -> bool:
        """Whether a member that ends leaves the group. A static member keeps its place until its
        session times out (KIP-345), unless the application decides otherwise (KIP-1092)."""
        if self.leaving is None or self.leaving.leave_group is None:
            return self.config.group_instance_id is None
        return self.leaving.leave_group

    @property
    def was_accepted(self) -> bool:
        """Whether the coordinator has acknowledged a heartbeat of this member, or an earlier member
        of this client had an assignment."""
        return self.config.was_member or self.ownership.acknowledged_at > float("-inf")

    def awaits(self, token: int) -> bool:
        """Return whether the response to the request with this token is still awaited."""
        return token in (self.pending, self.lookup_in_flight, self.heartbeat_in_flight)


M = TypeVar("M", bound=CoordinatedMember)
E = TypeVar("E", bound=BaseEvent)
F = TypeVar("F")

_SharedEffect = FindCoordinator | ReportError | Send | WakeAt


class CoordinatedStep(ABC, Generic[M, E, F]):
    """One step of a member that has a coordinator: the member and the effects so far.

    A base class and not functions: both protocols look up the coordinator, back off, watch the
    session, repeat their leave and choose the next wake-up by the same code, which calls the
    protocol's own moves in between (`_fail`, `_lose_coordinator`, `_join_when_due`, `_send_leave`,
    `_heartbeat_when_due`), in an order that both must keep. As functions, all of these would take
    and return member and effects. Only `classic.step` and `consumer_protocol.step` use it. It is
    generic so that each of them sees its own member, events and effects.
    """

    MOVES: ClassVar[Mapping[Any, Mapping[Any, str]]]
    """Phase -> the phases that may follow -> the event that causes the move."""
    UNJOINED: ClassVar[Enum]
    """The phase of a member that is about to join."""
    DEPARTING: ClassVar[Enum]
    """The phase of a member that is about to leave."""
    ENDING: ClassVar[frozenset[Any]]
    """Phases of a membership that ends or has ended."""
    PASSIVE: ClassVar[frozenset[Any]]
    """Phases in which nothing is due."""
    HEARTBEATING: ClassVar[frozenset[Any]]
    """Phases with heartbeats, and with a session that may end."""
    COMMITTING: ClassVar[frozenset[Any]]
    """Phases of a member that has joined and may commit: a failure there is no failure to join."""

    def __init__(self, member: M, event: E) -> None:
        self.member = member
        self.now = event.now
        self.jitter = event.jitter
        self.effects: list[F | _SharedEffect] = []

    @classmethod
    def run(cls, member: M, event: E) -> tuple[M, tuple[F | _SharedEffect, ...]]:
        """Return the member after an event, and the effects to execute."""
        if member.is_closed:
            return member, ()
        step = cls(member, event)
        step.take(event)
        step.advance()
        return step.member, tuple(step.effects)

    @abstractmethod
    def take(self, event: E) -> None:
        """Change the member by an event; a stale event changes nothing."""

    @abstractmethod
    def _fail(self, error: Exception, *, can_leave: bool = True) -> None:
        """End the membership with an error that no retry can fix. `can_leave`: whether the member
        can still find the coordinator, to leave."""

    @abstractmethod
    def _left(self, doubt: str = "") -> None:
        """End the membership; `doubt` as in `Leave`."""

    @abstractmethod
    def _send_leave(self) -> None:
        """Send the request to leave. The coordinator is known."""

    @abstractmethod
    def _lose_coordinator(self) -> None:
        """Invalidate the coordinator, so that it is looked up again."""

    @abstractmethod
    def _join_when_due(self) -> None:
        """Join, if that is due. The coordinator is known."""

    @abstractmethod
    def _heartbeat_when_due(self) -> None:
        """Send a heartbeat, if one is due. The coordinator is known."""

    def _reconcile(self) -> None:
        """Have the application apply its assignment step by step, where the protocol does so."""

    @property
    def _sends_heartbeats(self) -> bool:
        """Whether a member in its phase sends heartbeats."""
        return self.member.phase in self.HEARTBEATING

    # ------------------------------------------------------------ what is due

    def advance(self) -> None:
        """Do and send what is due now, and request a wake-up for what is due next."""
        self._fail_after_max_retries()
        member = self.member
        if member.phase in self.PASSIVE:
            return
        if self.now >= member.leave_by:
            self._left(self._doubt())
            return
        if member.phase in self.HEARTBEATING and self.now >= member.session_ends_at:
            # No response for a whole session: find the coordinator again, and start a new session.
            self._lose_coordinator()
            self._set(session_ends_at=self.now + member.config.session_timeout)
        self._reconcile()
        if self.member.coordinator is None and self.member.lookup_in_flight is None:
            self._find_when_due()
        if self.member.coordinator is not None:
            self._join_when_due()
            self._heartbeat_when_due()
            if self.member.phase is self.DEPARTING and self.now >= self.member.retry_at:
                self._send_leave()
        self._wake()

    def _fail_after_max_retries(self) -> None:
        member, limit = self.member, self.member.config.max_retries
        if limit is not None and member.phase is self.UNJOINED and member.join_failures > limit:
            self._fail(
                JoinFailedError(
                    f"joining group {member.config.group_id!r} failed {member.join_failures} times"
                    f" in a row: {member.trouble or member.reason}"
                )
            )

    def _find_when_due(self) -> None:
        if self.now < self.member.retry_at:
            return
        token = self._token()
        self.effects.append(FindCoordinator(token=token, timeout=self._leave_timeout()))
        self._set(lookup_in_flight=token)

    def _on_coordinator_found(self, coordinator: Coordinator) -> None:
        """Store the coordinator. A joined member sends it a heartbeat at once."""
        self._set(lookup_in_flight=None, coordinator=coordinator, next_heartbeat_at=self.now)

    def _on_lookup_failed(self, error: Exception) -> None:
        self._set(lookup_in_flight=None)
        if isinstance(error, BrokerError):
            # Leaving has a deadline: a refusal may outlast it, and is not waited out.
            is_departing = self.member.phase is self.DEPARTING
            if self._is_final(error) or (is_departing and not error.retriable):
                return self._fail(error, can_leave=False)
            self._report_refusal(error)
        elif not isinstance(error, RETRIED_ERRORS):
            return self._fail(error, can_leave=False)
        return self._back_off(error)

    def _back_off(self, error: Exception | None = None) -> None:
        config, attempts = self.member.config, self.member.attempts + 1
        pause = backoff(attempts, config.retry_backoff, config.retry_backoff_max, self.jitter)
        pause = backoff_within(pause, config.retry_backoff, self.member.leave_by - self.now)
        self._set(
            attempts=attempts,
            timed_out=isinstance(error, RequestTimeoutError),
            retry_at=self.now + pause,
            next_heartbeat_at=self.now + pause,
        )
        # After a refused login, requests fail unsent until the application polls again. These
        # failures would use up `max_retries` meanwhile.
        is_join_failure = self.member.phase not in self.COMMITTING
        is_join_failure = is_join_failure and not isinstance(error, AuthenticationError)
        if self.member.phase is self.DEPARTING:
            self._set(trouble=self.member.trouble if error is None else str(error))
        elif config.max_retries is not None and is_join_failure:
            trouble = self.member.trouble if error is None else str(error)
            self._set(join_failures=self.member.join_failures + 1, trouble=trouble)

    def _is_final(self, error: BrokerError) -> bool:
        """Return whether an error code ends the membership. If the group has accepted the member
        before, a refusal that may pass does not: it is reported, and the request is repeated."""
        if error.code in FINAL:
            return True
        return not (error.retriable or self.member.was_accepted)

    def _report_refusal(self, error: BrokerError) -> None:
        """Report an error code to the application, unless it passes by itself or was reported in
        the last `_REPORT_INTERVAL`."""
        code, at = self.member.reported_refusal
        if self.member.phase in self.ENDING:
            return  # a member that cannot leave is reported with a warning
        if error.retriable or (code == error.code and self.now - at < _REPORT_INTERVAL):
            return
        self._set(reported_refusal=(error.code, self.now))
        self.effects.append(ReportError(error=error))

    def _wake(self) -> None:
        member = self.member
        times: list[float] = []
        if member.phase in self.HEARTBEATING:
            times.append(member.session_ends_at)
        if (
            self._sends_heartbeats
            and member.coordinator is not None
            and member.heartbeat_in_flight is None
        ):
            times.append(member.next_heartbeat_at)
        must_look_up = member.coordinator is None and member.lookup_in_flight is None
        must_send = member.phase in (self.UNJOINED, self.DEPARTING)
        if must_look_up or (must_send and member.coordinator is not None):
            times.append(member.retry_at)
        if member.leave_by < math.inf:
            times.append(member.leave_by)
        if times:
            self.effects.append(WakeAt(time=min(times)))

    # ------------------------------------------------------------ leaving

    def _depart(self) -> None:
        """Request to leave as soon as the coordinator is known, and again until the coordinator has
        answered. After one session timeout it has removed the member anyway, so the last attempt
        ends then."""
        member, leaving = self.member, self.member.leaving
        deadline = self.now + member.config.session_timeout
        if leaving is not None:  # one attempt gets its time, even after the application's deadline
            deadline = min(deadline, max(leaving.deadline, self.now + _MIN_ATTEMPT))
        self._move(
            self.DEPARTING,
            pending=None,
            heartbeat_in_flight=None,
            retry_at=min(member.retry_at, self.now),  # the first attempt waits for no back-off
            leave_by=deadline,
            trouble="",
        )

    def _leave_earlier(self, deadline: float) -> None:
        """Leave by this deadline if it is the earlier one: the application may close a member that
        is already leaving."""
        leaving = self.member.leaving
        if leaving is None or leaving.deadline <= deadline:
            return
        self._set(leaving=evolve(leaving, deadline=deadline))
        if self.member.leave_by < math.inf:
            self._set(leave_by=min(self.member.leave_by, deadline))

    def _end_or_leave_again(self, error: BrokerError) -> None:
        """End the membership, or leave again if the coordinator could not handle the request.
        `error`: that of the response, which may have the code NONE."""
        if error.code in NOT_A_MEMBER:
            return self._left()
        if not error.retriable:
            return self._left(str(error))
        if error.code in COORDINATOR_MOVED:
            self._lose_coordinator()
        return self._leave_again(error)

    def _leave_again(self, error: Exception) -> None:
        self._move(self.DEPARTING, pending=None)
        self._back_off(error)

    def _on_leave_failed(self, error: Exception) -> None:
        """Leave again if the coordinator may not have received the request."""
        if isinstance(error, RETRIED_ERRORS):
            self._lose_coordinator()
            self._leave_again(error)
        else:
            self._left(str(error))

    def _leave_timeout(self) -> float:
        """Return the timeout of a request to leave, or of a look-up of the coordinator: a part of
        the time until `leave_by`, if there is such a limit."""
        left = self.member.leave_by - self.now
        return min(max(left * _LEAVE_FRACTION, _MIN_ATTEMPT), self.member.config.request_timeout)

    def _doubt(self) -> str:
        """Return why the coordinator may still count a member that could not leave."""
        trouble = self.member.trouble if self.member.phase in self.ENDING else ""
        return trouble or "the coordinator did not answer in time"

    # ------------------------------------------------------------ ownership

    def _extended_ownership(self, sent_at: float) -> Ownership:
        """Return the ownership after the acknowledgement of a request sent at `sent_at`."""
        member = self.member
        return member.ownership.acknowledge(sent_at, member.config.session_timeout)

    def _attempt_timeout(self, timeout: float) -> float:
        """Return how many seconds of a heartbeat's timeout this attempt may take."""
        may_be_slow = self.member.attempts and self.member.timed_out
        return timeout if may_be_slow else timeout * _ATTEMPT_FRACTION

    def _drain_deadline(self) -> float:
        """Return when the application must have processed the records in flight."""
        return self.now + self.member.config.rebalance_timeout * DRAIN_FRACTION

    def _fenced(self) -> FencedError:
        instance = self.member.config.group_instance_id
        if instance is None:
            return FencedError("the coordinator fences this member, which has no group_instance_id")
        return FencedError(f"another member now has group_instance_id {instance!r}")

    # ------------------------------------------------------------ helpers

    def _set(self, **changes: Any) -> None:
        self.member = evolve(self.member, **changes)

    def _move(self, phase: Enum, **changes: Any) -> None:
        if phase not in self.MOVES[self.member.phase]:
            raise LocalProtocolError(f"no move from {self.member.phase} to {phase}")
        self._set(phase=phase, **changes)

    def _token(self) -> int:
        self._set(last_token=self.member.last_token + 1)
        token: int = self.member.last_token
        return token

    def _send(
        self,
        request: Request[Any],
        *,
        timeout: float,
        route: Route = Route.COORDINATOR,
        lowest: int = 0,
    ) -> int:
        """Send a request to the coordinator, which is known; return the token."""
        coordinator = self.member.coordinator
        assert coordinator is not None
        token = self._token()
        self.effects.append(
            Send(
                token=token,
                request=request,
                route=route,
                coordinator=coordinator,
                timeout=timeout,
                lowest=lowest,
            )
        )
        return token
