"""Reports the partitions that are not read until the application seeks."""

from __future__ import annotations

import anyio

from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.coalescing_task import CoalescingTask, Spawn
from kafkagroup.consume.delivery import Delivery
from kafkagroup.transport.trouble import Problem, Troubles

__all__ = ["AwaitingSeek"]

_REPORT_INTERVAL = 5.0
"""Seconds between two reports: a trouble that is not reported for long counts as ended."""


class AwaitingSeek:
    """The reports about one consumer's partitions that wait for a seek."""

    def __init__(self, delivery: Delivery, troubles: Troubles, spawn: Spawn) -> None:
        self._delivery = delivery
        self._troubles = troubles
        self._clock = loop_clock()
        self._reporting = CoalescingTask(spawn, self._report_all, "partitions awaiting a seek")

    def report(self) -> None:
        """Report the partitions that are not read, repeatedly until there are none."""
        self._reporting.ensure_running()

    async def _report_all(self) -> None:
        """Report all partitions as one problem: without a reset policy, each partition of a new
        group waits for a seek."""
        while found := self._delivery.awaiting_seek():
            first, error = min(found, key=lambda item: item[0].tp)
            others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            problem = Problem(
                subject=f"reading {first.tp}{others}",
                cause=str(error),
                advice="remove the cause, then seek() to the offset to continue at",
                has_own_finding=True,  # `health()` has one for each partition
            )
            self._troubles.failed("awaiting seek", self._clock(), problem)
            await anyio.sleep(_REPORT_INTERVAL)
        self._troubles.succeeded("awaiting seek", self._clock())
