"""What both protocols with a coordinator share: finding it, giving up on it, pausing between tries,
and waking for what is due. Each protocol's own step derives from `CoordinatedStep`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from kafkagroup._backoff import backoff
from kafkagroup._values import evolve, frozen
from kafkagroup.errors import ErrorCode, JoinFailedError, LocalProtocolError, broker_error
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import Coordinator, Leaving, Route, Send, WakeAt
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafkagroup.wire.schema import Request

__all__ = ["DRAIN_SHARE", "CoordinatedConfig", "CoordinatedMember", "CoordinatedStep"]

DRAIN_SHARE = 0.75
"""How much of the rebalance timeout the application gets; the rest is for commit and join."""


@frozen(kw_only=True)
class CoordinatedConfig:
    """Configuration that both protocols share. Times in seconds."""

    group_id: str
    group_instance_id: str | None = None
    """Set for a static member (KIP-345): it keeps its place while it is away for one session."""
    session_timeout: float = 45.0
    """With KIP-848 the broker configures it, and this is the member's guess."""
    rebalance_timeout: float = 300.0
    heartbeat_interval: float = 1.0
    """Seconds between heartbeats of a stable member."""
    settling_interval: float = 0.1
    """Seconds between heartbeats around a change, when more changes follow soon."""
    request_timeout: float = 30.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    max_retries: int | None = None
    """How often in a row joining may fail and be tried again; None: for ever."""


@frozen(kw_only=True)
class CoordinatedMember:
    """State that both protocols share."""

    config: CoordinatedConfig
    phase: Enum
    coordinator: Coordinator | None = None
    ownership: Ownership = Ownership()
    pending: int | None = None
    """Token of the phase's own effect: a join or leave in flight, a revocation, a compute."""
    lookup_in_flight: int | None = None
    """Token of the FindCoordinator in flight."""
    heartbeat_in_flight: int | None = None
    """Token of the heartbeat in flight."""
    heartbeat_sent_at: float = 0.0
    """When the last heartbeat was sent."""
    next_heartbeat_at: float = 0.0
    session_ends_at: float = 0.0
    """Without an answer until then, the coordinator counts as unknown."""
    retry_at: float = 0.0
    """Neither find nor join before this."""
    attempts: int = 0
    """Failures in a row, for back-off."""
    failures: int = 0
    """How often joining has failed since it last succeeded; counted where there is a limit."""
    trouble: str = ""
    """The last failure, in words."""
    reason: str = ""
    """Why it rejoins or revokes."""
    leaving: Leaving | None = None
    last_token: int = 0

    def awaits(self, token: int) -> bool:
        """Whether the answer to the request with this token is still awaited."""
        return token in (self.pending, self.lookup_in_flight, self.heartbeat_in_flight)


M = TypeVar("M", bound=CoordinatedMember)
E = TypeVar("E")
F = TypeVar("F")


class CoordinatedStep(ABC, Generic[M, E, F]):
    """One step of a member that has a coordinator: its state so far, and the effects so far.

    A base class and not functions: both protocols look up the coordinator, back off, watch the
    session and choose the next wake-up by the same code, which calls the protocol's own moves in
    between (`_fail`, `_lose_coordinator`, `_join_when_due`, `_heartbeat_when_due`), in an order
    that both must keep. As functions, all of these would take and return member and effects.
    It is no interface: nothing but `classic.step` and `consumer_protocol.step` uses it, for one
    step. It is generic so that each of them sees its own member, events and effects.
    """

    MOVES: ClassVar[Mapping[Any, Mapping[Any, str]]]
    """Phase -> the phases that may follow -> the event that causes the move."""
    UNJOINED: ClassVar[Enum]
    """The phase in which to join is what is due."""
    PASSIVE: ClassVar[frozenset[Any]]
    """Phases in which nothing is due."""
    HEARTBEATING: ClassVar[frozenset[Any]]
    """Phases with heartbeats, and with a session that may end."""
    COMMITTING: ClassVar[frozenset[Any]]
    """Phases of a member: what fails there is not a failure to join."""

    def __init__(self, member: M, now: float, jitter: float) -> None:
        self.member = member
        self.now = now
        self.jitter = jitter
        self.effects: list[F | Send | WakeAt] = []

    @abstractmethod
    def take(self, event: E) -> None:
        """Change the member by an event."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """End the membership with an error that no retry can fix."""

    @abstractmethod
    def _lose_coordinator(self) -> None:
        """Invalidate the coordinator, so that it is looked up again."""

    @abstractmethod
    def _join_when_due(self) -> None:
        """The coordinator is known."""

    @abstractmethod
    def _heartbeat_when_due(self) -> None:
        """The coordinator is known."""

    def _reconcile(self) -> None:
        """What is due with the application; nothing, where assignments come whole."""

    @property
    def _heartbeats(self) -> bool:
        """Whether heartbeats are due now."""
        return self.member.phase in self.HEARTBEATING

    # ------------------------------------------------------------ what is due

    def advance(self) -> None:
        """Do and send what is due; ask to be woken for what is not yet."""
        self._fail_after_max_retries()
        member = self.member
        if member.phase in self.PASSIVE:
            return
        if member.phase in self.HEARTBEATING and self.now >= member.session_ends_at:
            # No answer for a whole session: look for the coordinator again, and give it one more.
            self._lose_coordinator()
            self._set(session_ends_at=self.now + member.config.session_timeout)
        self._reconcile()
        if self.member.coordinator is None and self.member.lookup_in_flight is None:
            self._find_when_due()
        if self.member.coordinator is not None:
            self._join_when_due()
            self._heartbeat_when_due()
        self._wake()

    def _fail_after_max_retries(self) -> None:
        member, most = self.member, self.member.config.max_retries
        if most is not None and member.phase is self.UNJOINED and member.failures > most:
            self._fail(
                JoinFailedError(
                    f"joining group {member.config.group_id!r} failed {member.failures} times in a"
                    f" row: {member.trouble or member.reason}"
                )
            )

    def _find_when_due(self) -> None:
        if self.now < self.member.retry_at:
            return
        config = self.member.config
        request = FindCoordinatorRequest(coordinator_keys=(config.group_id,))
        token = self._send(request, timeout=config.request_timeout, route=Route.ANY)
        self._set(lookup_in_flight=token)

    def _on_coordinator_response(self, answer: FindCoordinatorResponse) -> None:
        if not answer.coordinators:
            return self._back_off()
        found = answer.coordinators[0]
        if found.error_code == ErrorCode.NONE:
            coordinator = Coordinator(found.node_id, found.host, found.port)
            return self._set(coordinator=coordinator, next_heartbeat_at=self.now)
        error = broker_error(
            found.error_code,
            found.error_message,
            operation="DESCRIBE",
            group=self.member.config.group_id,
        )
        return self._back_off(error) if error.retriable else self._fail(error)

    def _back_off(self, error: Exception | None = None) -> None:
        config, attempts = self.member.config, self.member.attempts + 1
        pause = backoff(attempts, config.retry_backoff, config.retry_backoff_max, self.jitter)
        self._set(attempts=attempts, retry_at=self.now + pause, next_heartbeat_at=self.now + pause)
        if config.max_retries is not None and self.member.phase not in self.COMMITTING:
            trouble = self.member.trouble if error is None else str(error)
            self._set(failures=self.member.failures + 1, trouble=trouble)

    def _wake(self) -> None:
        member = self.member
        times: list[float] = []
        if member.phase in self.HEARTBEATING:
            times.append(member.session_ends_at)
        if (
            self._heartbeats
            and member.coordinator is not None
            and member.heartbeat_in_flight is None
        ):
            times.append(member.next_heartbeat_at)
        waits = member.coordinator is None and member.lookup_in_flight is None
        if waits or (member.phase is self.UNJOINED and member.coordinator is not None):
            times.append(member.retry_at)
        if times:
            self.effects.append(WakeAt(time=min(times)))

    # ------------------------------------------------------------ ownership

    def _acknowledged(self, sent_at: float) -> Ownership:
        """The ownership, now that a request which was sent then is acknowledged."""
        member = self.member
        return member.ownership.acknowledge(sent_at, member.config.session_timeout)

    # ------------------------------------------------------------ small change

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
        self, request: Request[Any], *, timeout: float, route: Route = Route.COORDINATOR
    ) -> int:
        token = self._token()
        self.effects.append(
            Send(
                token=token,
                request=request,
                route=route,
                coordinator=None if route is Route.ANY else self.member.coordinator,
                timeout=timeout,
            )
        )
        return token
