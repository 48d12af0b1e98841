"""The health of a client, as a value with reasons, for a health endpoint.

A check compares positions with those of earlier checks to see that they move. It sends no request,
and nothing runs between checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from kafkagroup._public import public
from kafkagroup._values import define, field, frozen
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.runtime.client import uncompiled
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.transport.trouble import Problem, Troubles
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from kafkagroup.consume.delivery import Delivery
    from kafkagroup.runtime.consume.session import Session
    from kafkagroup.runtime.member.interfaces import RunningMember

__all__ = [
    "Checkup",
    "Health",
    "HealthFinding",
    "HealthProblem",
    "check_troubles",
    "health_of_consumer",
    "not_well",
]


@public
class HealthProblem(Enum):
    """The kinds of health problems."""

    NOT_RUNNING = "not running"
    """The client was not started, or was closed."""
    FAILED = "failed"
    """The client ended with an error, which every later call reports."""
    AWAY = "away"
    """The member left the group because the application did not poll for `max_poll_interval_ms`."""
    NOT_JOINED = "not joined"
    """The member is not in a stable generation for longer than a rebalance may take."""
    SILENCE = "silence"
    """No heartbeat was acknowledged for a session timeout: other members may own the partitions."""
    LOOP_DELAY = "loop delay"
    """The event loop was late, which delays heartbeats and rebalances."""
    NO_POSITION = "no position"
    """A partition has no valid position, and `auto_offset_reset` is "none": the application must
    seek."""
    NOT_READ = "not read"
    """An error of a partition was raised; the partition is not read until the application seeks."""
    REFUSED = "refused"
    """A broker refused the last request about a partition, such as for a missing ACL. The error was
    raised, and the client repeats the request until it succeeds."""
    REPLICA = "replica"
    """The nearest replica of a partition does not serve it: it is read from its leader for
    `metadata_max_age_ms`."""
    NO_PROGRESS = "no progress"
    """A retried operation has failed for 10 s: a broker cannot be reached or does not respond, a
    coordinator cannot be found, a partition does not exist. The detail has the operation, the
    cause, and what to check."""
    CLUSTER = "cluster"
    """An address leads to another cluster than the one that the client works with: one broker's, or
    the bootstrap addresses too. Nothing is read from the other cluster or committed to it."""
    TOPIC = "topic"
    """A subscribed topic does not exist, has an illegal name, or may not be described."""
    STALLED = "stalled"
    """A partition's position does not move while its lag grows, or while the application processes
    none of the records that are buffered."""


@public
@frozen(kw_only=True)
class HealthFinding:
    """One problem."""

    problem: HealthProblem
    detail: str
    """What is wrong, for people to read."""
    partition: TopicPartition | None = None
    """The partition with the problem; None for any other problem, and for NO_PROGRESS, whose detail
    names a partition where there is one."""

    def __str__(self) -> str:
        return f"{self.problem.value}: {self.detail}"


@public
@frozen
class Health:
    """The problems of a client; true if there are none.

    ```python
    health = consumer.health()
    return Response(str(health), status=200 if health else 503)
    ```
    """

    findings: tuple[HealthFinding, ...] = ()
    notes: tuple[str, ...] = field(factory=uncompiled.notes)
    """What an operator should know, although it is no problem: that kafkagroup is not compiled."""

    @property
    def healthy(self) -> bool:
        """Whether there are no problems. A member without partitions is healthy."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.healthy

    def __str__(self) -> str:
        text = "; ".join(map(str, self.findings)) or "healthy"
        return text + "".join(f" (note: {note})" for note in self.notes)


@define
class _Mark:
    """A partition's state when a check last saw progress."""

    processed: int
    """The offset after the last processed record."""
    lag: int
    seen_at: float
    """The time of that check."""


class Checkup:
    """The state of one client at the last check, to compare the next one with."""

    def __init__(self, loop_delay: LoopDelay) -> None:
        self._loop_delay = loop_delay
        self._unjoined: tuple[int, float] | None = None
        """The member's generation, if the last check found it not stable, and the time of the first
        check that did; None if it was stable."""
        self._marks: dict[OwnedPartition, _Mark] = {}
        self._progress_at = float("-inf")
        """The time of the last check that saw progress of any partition."""

    def check_loop(self, most: float | None) -> Iterator[HealthFinding]:
        """Find an event loop that was late by more than `most` seconds; None: by more than the
        limit of the logged warning."""
        late = self._loop_delay.longest
        if late > (self._loop_delay.warn_after if most is None else most):
            detail = f"the event loop was late by {late:.1f} s"
            yield HealthFinding(problem=HealthProblem.LOOP_DELAY, detail=detail)

    def check_membership(
        self, now: float, driver: RunningMember, *, is_stable: bool, joining_after: float
    ) -> Iterator[HealthFinding]:
        """Find missing heartbeats, and rebalances that take `joining_after` seconds or longer.
        `is_stable`: whether the generation is stable and its assignment is applied."""
        if is_stable:
            self._unjoined = None
            if driver.lease_left <= 0.0:
                elapsed = now - driver.last_heartbeat
                detail = f"no heartbeat is acknowledged; the last was sent {elapsed:.1f} s ago"
                yield HealthFinding(problem=HealthProblem.SILENCE, detail=detail)
            return
        generation = driver.member.generation_id
        unjoined = self._unjoined  # read once: another thread may check, too
        if unjoined is None or unjoined[0] != generation:
            unjoined = self._unjoined = (generation, now)
        if (seconds := now - unjoined[1]) >= joining_after:
            detail = f"in no stable generation for {seconds:.1f} s"
            yield HealthFinding(problem=HealthProblem.NOT_JOINED, detail=detail)

    def check_partitions(
        self, now: float, owned: Iterable[OwnedPartition], *, stalled_after: float
    ) -> Iterator[HealthFinding]:
        """Find partitions that are stalled for `stalled_after` seconds, except paused ones."""
        marks = {}
        for one in owned:
            lag = one.lag  # read once: another thread may change it
            if lag is None or one.paused or one.revoked:
                continue
            mark = self._marks.get(one)
            if mark is None or mark.processed != one.processed:
                if mark is not None:
                    self._progress_at = now
                mark = _Mark(one.processed, lag, now)
            marks[one] = mark
        self._marks = marks
        for one, mark in marks.items():
            seconds, lag = now - mark.seen_at, one.lag or 0
            # While the buffer is full nothing is fetched, and the known lag does not grow.
            is_unprocessed = one.buffered_records > 0 and now - self._progress_at >= stalled_after
            if seconds >= stalled_after and (lag > mark.lag or is_unprocessed):
                yield HealthFinding(
                    problem=HealthProblem.STALLED,
                    detail=f"{one.tp}: position {one.processed} for {seconds:.1f} s, lag {lag}",
                    partition=one.tp,
                )


def health_of_consumer(
    checkup: Checkup,
    session: Session,
    now: float,
    *,
    joining_after: float | None,
    stalled_after: float | None,
    loop_delay_above: float | None,
) -> Health:
    """Return the health of a running consumer, as `Consumer.health` does."""
    options = session.options
    if session.errors.failure is not None:
        return not_well(HealthProblem.FAILED, str(session.errors.failure))
    findings = [*checkup.check_loop(loop_delay_above)]
    if session.member.is_expelled:
        away = now - session.polls.last_poll_at
        detail = f"the application has not polled for {away:.1f} s"
        findings.append(HealthFinding(problem=HealthProblem.AWAY, detail=detail))
    elif (driver := session.member.driver) is not None:
        findings += checkup.check_membership(
            now,
            driver,
            is_stable=session.member.is_stable,
            joining_after=options.rebalance_timeout if joining_after is None else joining_after,
        )
    findings += _check_awaiting_seek(session.delivery)
    # A copy: this may be another thread than that of the loop, which changes `owned`. Without a GIL
    # only `copy` is atomic.
    owned = tuple(session.delivery.owned.copy().values())
    findings += _check_brokers(now, owned)
    if stalled_after is None:
        stalled_after = options.max_poll_interval
    findings += check_troubles(now, session.troubles)
    findings += checkup.check_partitions(now, owned, stalled_after=stalled_after)
    return Health(tuple(findings))


def _check_awaiting_seek(delivery: Delivery) -> Iterator[HealthFinding]:
    """Find the partitions that are not read until the application seeks."""
    for one, error in delivery.awaiting_seek():
        lacks_position = one.is_without_position
        yield HealthFinding(
            problem=HealthProblem.NO_POSITION if lacks_position else HealthProblem.NOT_READ,
            detail=f"{one.tp} is not read until the application seeks: {error}",
            partition=one.tp,
        )


def _check_brokers(now: float, owned: Iterable[OwnedPartition]) -> Iterator[HealthFinding]:
    """Find the partitions that a broker refuses, or that their nearest replica does not serve."""
    for one in owned:
        if one.is_refused:
            yield HealthFinding(
                problem=HealthProblem.REFUSED,
                detail=f"{one.tp} is refused, and asked for again: {one.refusal}",
                partition=one.tp,
            )
        replica = one.replica
        if replica is not None and now < replica.leader_until and not one.revoked:
            yield HealthFinding(
                problem=HealthProblem.REPLICA,
                detail=f"{one.tp} is read from its leader: {replica.trouble}",
                partition=one.tp,
            )


def check_troubles(now: float, troubles: Troubles) -> Iterator[HealthFinding]:
    """Find the operations that are retried without success."""
    for problem, seconds in troubles.lasting(now):
        if problem.has_own_finding:
            continue
        yield HealthFinding(
            problem=_kind(problem),
            detail=f"{problem}, for {seconds:.1f} s; {problem.advice}",
        )


def _kind(problem: Problem) -> HealthProblem:
    if problem.is_foreign_cluster:
        return HealthProblem.CLUSTER
    return HealthProblem.NO_PROGRESS if problem.topic is None else HealthProblem.TOPIC


def not_well(problem: HealthProblem, detail: str) -> Health:
    """Return a health with this problem alone."""
    return Health((HealthFinding(problem=problem, detail=detail),))
