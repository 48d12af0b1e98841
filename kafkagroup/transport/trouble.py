"""Operations that keep failing: retries report each failure and success here. An operation without
progress for a while is logged, published as an event, and reported by `health()`.

Nothing here waits or reads a clock: warnings are logged when a failure is reported, and retries
report often enough that a warning is in time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator

from kafkagroup._values import define, frozen
from kafkagroup.events import GroupEvent, TroubleEnded, TroubleReported

__all__ = ["WARN_AFTER", "Problem", "Troubles"]

logger = logging.getLogger(__name__)

WARN_AFTER = 10.0
"""Seconds without progress that are worth a warning."""

_WARN_INTERVAL = 60.0
"""Seconds between two warnings of the same trouble."""

_FORGET_AFTER = 30.0
"""Seconds without an attempt after which a failure counts as new, and without a report after which
`Troubles.lasting` leaves a problem out. Longer than the backoff between retries, and, with the
default request timeout, than an attempt."""

_MAX_TROUBLES = 1_000
"""The maximum number of troubles that are kept: a broker may name any number of addresses and
partitions."""


@frozen(kw_only=True)
class Problem:
    """An operation that makes no progress, and why."""

    subject: str
    """What the operation is about, such as "broker 1 at localhost:9092"."""
    cause: str
    """Why the attempts fail, as far as this client knows."""
    advice: str
    """What to check."""
    topic: str | None = None
    """The topic, if the problem is that it cannot be consumed."""
    is_foreign_cluster: bool = False
    """Whether an address leads to another cluster."""
    has_own_finding: bool = False
    """Whether another check of `health()` reports the same: that of a long rebalance, or of a
    partition without a position, for example."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.cause}"


@define
class _Trouble:
    """An operation whose last attempt failed."""

    problem: Problem
    began_at: float
    """When the first failed attempt began."""
    failed_at: float
    """When the last failure was reported."""
    warn_after: float
    """Seconds without progress before the warning."""
    warned_at: float | None = None
    """When the last warning was logged, or left out as a repetition; None before the first."""
    was_warned: bool = False
    """Whether a warning was due since the operation last succeeded, be it before `began_at`, or
    the end of another operation's trouble depends on this one: then the next success is
    reported."""


class Troubles:
    """The troubles of one client. Times are on the loop's clock."""

    def __init__(self, publish: Callable[[GroupEvent], None] | None = None) -> None:
        """`publish` is called with each event."""
        self.ongoing: dict[Hashable, _Trouble] = {}
        """Key of an operation whose last attempt failed -> its trouble. Empty while everything
        works: a caller on a hot path checks that before it calls `succeeded`."""
        self._publish = publish
        self._warned: dict[str, float] = {}
        """Text of a problem -> when it was logged: several operations may fail for one cause."""

    def failed(
        self,
        key: Hashable,
        now: float,
        problem: Problem,
        *,
        since: float | None = None,
        warn_after: float = WARN_AFTER,
        warn_interval: float = _WARN_INTERVAL,
    ) -> None:
        """Record a failed attempt at the operation `key`. Log a warning when there has been no
        progress for `warn_after` seconds, and then every `warn_interval` seconds, unless another
        operation has logged the same text within that interval. `since`: when this attempt began;
        None: now."""
        began = now if since is None else since
        trouble = self.ongoing.get(key)
        if trouble is None or began - trouble.failed_at > _FORGET_AFTER:
            if trouble is None and len(self.ongoing) >= _MAX_TROUBLES:
                del self.ongoing[next(iter(self.ongoing))]  # the oldest
            was_warned = trouble is not None and trouble.was_warned
            trouble = _Trouble(problem, began, now, warn_after, was_warned=was_warned)
            self.ongoing[key] = trouble
        trouble.problem, trouble.failed_at = problem, now
        if now - trouble.began_at < warn_after:
            return
        if trouble.warned_at is None or now - trouble.warned_at >= warn_interval:
            self._warn(trouble, now, warn_interval)

    def succeeded(self, key: Hashable, now: float) -> None:
        """Record a success. Log and publish it if a warning was due before, unless another
        operation still fails with the same text."""
        trouble = self.ongoing.pop(key, None)
        if trouble is None or not trouble.was_warned:
            return
        if (other := next(self._alike(trouble), None)) is not None:
            other.was_warned = True  # the success of that operation ends the problem
            return
        seconds, problem = now - trouble.began_at, trouble.problem
        logger.info("%s: works again, after %.0f s", problem.subject, seconds)
        if self._publish is not None:
            self._publish(TroubleEnded(at=now, subject=problem.subject, seconds=seconds))

    def forget(self, key: Hashable) -> None:
        """Drop an operation that is not attempted any more."""
        self.ongoing.pop(key, None)

    def lasting(self, now: float) -> list[tuple[Problem, float]]:
        """Return the problems whose attempts have failed for at least `warn_after` seconds, and
        last at most `_FORGET_AFTER` ago, with the seconds that each has lasted. Of problems with
        the same text, only the first is returned. May be called from any thread."""
        found: dict[str, tuple[Problem, float]] = {}
        for trouble in self.ongoing.copy().values():
            # A single failure does not tell whether later attempts would fail.
            failed_for = trouble.failed_at - trouble.began_at
            if failed_for >= trouble.warn_after and now - trouble.failed_at <= _FORGET_AFTER:
                found.setdefault(str(trouble.problem), (trouble.problem, now - trouble.began_at))
        return list(found.values())

    def _alike(self, trouble: _Trouble) -> Iterator[_Trouble]:
        """Yield the troubles of other operations with the same text."""
        text = str(trouble.problem)
        for other in self.ongoing.values():
            if other is not trouble and str(other.problem) == text:
                yield other

    def _warn(self, trouble: _Trouble, now: float, warn_interval: float) -> None:
        is_published = trouble.was_warned or any(o.was_warned for o in self._alike(trouble))
        trouble.warned_at, trouble.was_warned = now, True
        problem, seconds = trouble.problem, now - trouble.began_at
        if not is_published and self._publish is not None:
            self._publish(
                TroubleReported(
                    at=now,
                    subject=problem.subject,
                    cause=problem.cause,
                    advice=problem.advice,
                    seconds=seconds,
                )
            )
        self._warned = {text: at for text, at in self._warned.items() if now - at < warn_interval}
        text = str(problem)
        if text not in self._warned:
            self._warned[text] = now
            logger.warning("no progress for %.0f s: %s; %s", seconds, problem, problem.advice)
