"""Threads that the loop runs, for tests in virtual time, which would not wait for real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kafkagroup.transport import threads as worker_threads
from kafkagroup.transport.threads import Job, post_to_loop


class LoopThreads:
    """Runs the jobs of all clients in the loop, one after the other."""

    def __init__(self) -> None:
        self.jobs: list[Job[Any]] = []
        """All jobs that have begun."""
        self.held: list[Callable[[], object]] | None = None
        """With a list, each job is put here, and begins when the test calls it."""
        self.refused_count = 0
        """How many more threads the system refuses to start."""

    def start(self, job: Job[Any], finish: Callable[[Job[Any]], Job[Any] | None]) -> None:
        if self.refused_count:
            self.refused_count -= 1
            raise RuntimeError("can't start new thread")

        def run() -> None:
            job.run()
            if (following := finish(job)) is not None:
                self.start(following, finish)

        self.jobs.append(job)
        if self.held is None:
            post_to_loop()(run)
        else:
            self.held.append(run)


class _LoopTime:
    """Replaces the module `time`: threads then run on the loop's clock."""

    monotonic = staticmethod(anyio.current_time)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> LoopThreads:
    """Replace the threads of all clients."""
    made = LoopThreads()
    monkeypatch.setattr(worker_threads, "start_thread", made.start)
    monkeypatch.setattr(worker_threads, "time", _LoopTime)
    return made
