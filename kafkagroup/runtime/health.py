"""Whether a member does what it is there for, as a value with reasons: for a health endpoint.

A check compares with the checks before: what stands still is seen by looking twice. Nothing is
asked of a broker, and nothing runs between checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from kafkagroup._public import public
from kafkagroup._values import define, frozen
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.runtime.lag import LoopLag
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from kafkagroup.consume.delivery import Delivery
    from kafkagroup.runtime.interfaces import Running
    from kafkagroup.runtime.session import Session

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
    """What may be wrong."""

    NOT_RUNNING = "not running"
    """It was not started, or it was closed."""
    FAILED = "failed"
    """It ended with an error, which every call raises."""
    AWAY = "away"
    """It is out of the group, as the application stayed away for `max_poll_interval_ms`."""
    NOT_JOINED = "not joined"
    """It has tried to join, or to take part in a rebalance, for too long."""
    SILENCE = "silence"
    """No heartbeat was acknowledged for a whole session: others may have its partitions."""
    LOOP_LAG = "loop lag"
    """The event loop was late, so that heartbeats or rebalances waited."""
    NO_POSITION = "no position"
    """The application must say where to read a partition: it has no offset in the log to go on
    from, and `auto_offset_reset` is "none"."""
    NOT_READ = "not read"
    """An error of a partition was raised, and nothing of it is read until the application seeks."""
    NO_PROGRESS = "no progress"
    """Something is tried again and again and has failed for 10 s: a broker that cannot be reached
    or does not answer, a coordinator that cannot be found, a partition that does not exist. The
    detail says what, why, and what to check."""
    TOPIC = "topic"
    """A topic that is subscribed to does not exist, has an illegal name, or may not be
    described."""
    STALLED = "stalled"
    """A partition makes no progress while its lag grows, or while the application takes nothing
    at all of what waits for it."""


@public
@frozen(kw_only=True)
class HealthFinding:
    """One thing that is wrong."""

    problem: HealthProblem
    detail: str
    """In words."""
    partition: TopicPartition | None = None
    """The one that it is about."""

    def __str__(self) -> str:
        return f"{self.problem.value}: {self.detail}"


@public
@frozen
class Health:
    """All that is wrong; true when nothing is.

    ```python
    health = consumer.health()
    return Response(str(health), status=200 if health else 503)
    ```
    """

    findings: tuple[HealthFinding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong. To have joined and own no partition is healthy."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.healthy

    def __str__(self) -> str:
        return "; ".join(map(str, self.findings)) or "healthy"


@define
class _Mark:
    """What was seen of a partition when it last made progress."""

    processed: int
    lag: int
    since: float


class Checkup:
    """Of one member: what the last check saw."""

    def __init__(self, lag: LoopLag) -> None:
        self._loop = lag
        self._unjoined: tuple[int, float] | None = None
        """The generation that was over when it was found unjoined first, and when."""
        self._marks: dict[OwnedPartition, _Mark] = {}
        self._moved = float("-inf")
        """When any partition was last seen to make progress."""

    def check_loop(self, most: float | None) -> Iterator[HealthFinding]:
        """`most`: seconds that the loop may be late; None: what is worth a warning."""
        late = self._loop.longest
        if late > (self._loop.enough if most is None else most):
            detail = f"the event loop was late by {late:.1f} s"
            yield HealthFinding(problem=HealthProblem.LOOP_LAG, detail=detail)

    def check_membership(
        self, now: float, driver: Running, *, settled: bool, patience: float
    ) -> Iterator[HealthFinding]:
        """`settled`: whether a generation stands and has been taken up; `patience`: for how many
        seconds none need to."""
        if settled:
            self._unjoined = None
            if now >= driver.ownership.lease_expires_at:
                silent = now - driver.last_heartbeat
                detail = f"no heartbeat is acknowledged; the last was sent {silent:.1f} s ago"
                yield HealthFinding(problem=HealthProblem.SILENCE, detail=detail)
            return
        generation = driver.generation_id
        if self._unjoined is None or self._unjoined[0] != generation:
            self._unjoined = (generation, now)
        if (seconds := now - self._unjoined[1]) >= patience:
            detail = f"in no generation for {seconds:.1f} s"
            yield HealthFinding(problem=HealthProblem.NOT_JOINED, detail=detail)

    def check_partitions(
        self, now: float, owned: Iterable[OwnedPartition], *, patience: float
    ) -> Iterator[HealthFinding]:
        """`patience`: for how many seconds one may stand still; not those that are paused."""
        marks = {}
        for one in owned:
            if one.lag is None or one.paused or one.revoked:
                continue
            mark = self._marks.get(one)
            if mark is None or mark.processed != one.processed:
                if mark is not None:
                    self._moved = now
                mark = _Mark(one.processed, one.lag, now)
            marks[one] = mark
        self._marks = marks
        for one, mark in marks.items():
            seconds, lag = now - mark.since, one.lag or 0
            # Once enough is buffered nothing is fetched, and no lag is seen to grow.
            untouched = one.buffered_records > 0 and now - self._moved >= patience
            if seconds >= patience and (lag > mark.lag or untouched):
                yield HealthFinding(
                    problem=HealthProblem.STALLED,
                    detail=f"{one.tp} stands at {one.processed} for {seconds:.1f} s, {lag} behind",
                    partition=one.tp,
                )


def health_of_consumer(
    checkup: Checkup,
    session: Session,
    now: float,
    *,
    joining_after: float | None,
    stalled_after: float | None,
    loop_lag_above: float | None,
) -> Health:
    """A consumer's that runs. As `Consumer.health`."""
    options = session.options
    if session.errors.failure is not None:
        return not_well(HealthProblem.FAILED, str(session.errors.failure))
    findings = [*checkup.check_loop(loop_lag_above)]
    if session.membership.is_expelled:
        away = now - session.polls.last_poll_at
        detail = f"the application has not come for a record for {away:.1f} s"
        findings.append(HealthFinding(problem=HealthProblem.AWAY, detail=detail))
    elif session.membership.driver is not None:
        patience = options.rebalance_timeout if joining_after is None else joining_after
        findings += checkup.check_membership(
            now, session.membership.driver, settled=session.membership.is_stable, patience=patience
        )
    findings += _check_resting(session.delivery)
    patience = options.max_poll_interval if stalled_after is None else stalled_after
    findings += check_troubles(now, session.troubles)
    findings += checkup.check_partitions(now, session.delivery.owned.values(), patience=patience)
    return Health(tuple(findings))


def _check_resting(delivery: Delivery) -> Iterator[HealthFinding]:
    """The partitions of which nothing is read until the application seeks."""
    for one, error in delivery.resting():
        lost = one.is_without_position
        yield HealthFinding(
            problem=HealthProblem.NO_POSITION if lost else HealthProblem.NOT_READ,
            detail=f"nothing of {one.tp} is read until the application seeks: {error}",
            partition=one.tp,
        )


def check_troubles(now: float, troubles: Troubles) -> Iterator[HealthFinding]:
    """What is tried and makes no progress."""
    for problem, seconds in troubles.lasting(now):
        if problem.has_own_finding:
            continue
        yield HealthFinding(
            problem=HealthProblem.NO_PROGRESS if problem.topic is None else HealthProblem.TOPIC,
            detail=f"{problem}, for {seconds:.1f} s; {problem.advice}",
        )


def not_well(problem: HealthProblem, detail: str) -> Health:
    """One finding, beside which no other counts."""
    return Health((HealthFinding(problem=problem, detail=detail),))
