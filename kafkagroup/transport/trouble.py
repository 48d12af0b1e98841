"""Trouble that lasts: each place that retries reports its failures and successes here, and what has
made no progress for a while is logged, published as an event, and found by `health()`.

Nothing here waits, asks a clock, or runs between reports: a retry reports often enough to have its
warning in time, and what works reports nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from kafkagroup._values import define, frozen
from kafkagroup.events import GroupEvent, TroubleEnded, TroubleReported

__all__ = ["WARN_AFTER", "Problem", "Troubles"]

logger = logging.getLogger(__name__)

WARN_AFTER = 10.0
"""Seconds without progress that are worth a warning."""

_PAUSE = 60.0
"""Seconds between two warnings of the same trouble."""

_GAP = 30.0
"""Seconds without a report after which a failure counts as new: nothing was tried meanwhile. Longer
than a retry waits, or a request that is not answered goes unreported."""

_MOST = 1_000
"""Troubles that are kept: a broker may name any number of addresses and partitions."""


@frozen(kw_only=True)
class Problem:
    """What makes no progress, and why."""

    subject: str
    """What is tried, such as "broker 1 at localhost:9092"."""
    cause: str
    """Why it fails, as far as this side knows."""
    advice: str
    """What to check."""
    topic: str | None = None
    """The topic, where it is about a topic that cannot be consumed."""
    has_own_finding: bool = False
    """Whether `health()` finds it by itself: a rebalance that takes long, a partition at rest."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.cause}"


@define
class _Trouble:
    problem: Problem
    since: float
    """When the first try began that failed."""
    failed_at: float
    """When the last one was reported."""
    patience: float
    reported_at: float | None = None
    """When it was warned of last."""


class Troubles:
    """The troubles of one client. Times are on the loop's clock."""

    def __init__(self, publish: Callable[[GroupEvent], None] | None = None) -> None:
        """`publish`: takes the events."""
        self.open: dict[Hashable, _Trouble] = {}
        """By key, those that failed last. Empty while all is well: look here before `succeeded`
        where that is called often."""
        self._publish = publish
        self._warned: dict[str, float] = {}
        """Trouble in words -> when it was warned of: several may have one cause."""

    def failed(
        self,
        key: Hashable,
        now: float,
        problem: Problem,
        *,
        since: float | None = None,
        patience: float = WARN_AFTER,
        pause: float = _PAUSE,
    ) -> None:
        """Keep that something has failed, and warn if it has for `patience` seconds: once, then
        every `pause` seconds. `since`: when this try began, if it was not at once."""
        began = now if since is None else since
        trouble = self.open.get(key)
        if trouble is None or began - trouble.failed_at > _GAP:
            if len(self.open) >= _MOST:
                del self.open[next(iter(self.open))]
            trouble = self.open[key] = _Trouble(problem, began, now, patience)
        trouble.problem, trouble.failed_at = problem, now
        if now - trouble.since < patience:
            return
        if trouble.reported_at is None or now - trouble.reported_at >= pause:
            self._report(trouble, now, pause)

    def succeeded(self, key: Hashable, now: float) -> None:
        """Keep that something works, and say so if its trouble was warned of."""
        trouble = self.open.pop(key, None)
        if trouble is None or trouble.reported_at is None:
            return
        if any(str(other.problem) == str(trouble.problem) for other in self.open.values()):
            return  # another still fails for the same reason
        seconds, problem = now - trouble.since, trouble.problem
        logger.info("%s: works again, after %.0f s", problem.subject, seconds)
        if self._publish is not None:
            self._publish(TroubleEnded(at=now, subject=problem.subject, seconds=seconds))

    def forget(self, key: Hashable) -> None:
        """Nobody tries it any more."""
        self.open.pop(key, None)

    def lasting(self, now: float) -> list[tuple[Problem, float]]:
        """What makes no progress for longer than its patience, each cause once, and for how many
        seconds."""
        found: dict[str, tuple[Problem, float]] = {}
        for trouble in self.open.values():
            # A single failure says nothing of what came after it.
            failed_for = trouble.failed_at - trouble.since
            if failed_for >= trouble.patience and now - trouble.failed_at <= _GAP:
                found.setdefault(str(trouble.problem), (trouble.problem, now - trouble.since))
        return list(found.values())

    def _report(self, trouble: _Trouble, now: float, pause: float) -> None:
        again, trouble.reported_at = trouble.reported_at is not None, now
        self._warned = {said: at for said, at in self._warned.items() if now - at < pause}
        problem, seconds = trouble.problem, now - trouble.since
        said = str(problem)
        if said in self._warned:
            return
        self._warned[said] = now
        logger.warning("no progress for %.0f s: %s; %s", seconds, problem, problem.advice)
        if not again and self._publish is not None:
            self._publish(
                TroubleReported(
                    at=now,
                    subject=problem.subject,
                    cause=problem.cause,
                    advice=problem.advice,
                    seconds=seconds,
                )
            )
