"""Run long computations in a thread, so that they do not block the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kafkagroup.transport.cluster import Cluster

__all__ = ["run_job"]

T = TypeVar("T")

_LARGE_JOB = 64 * 1024
"""The limit, in bytes, of subscriptions or of an assignment that are processed without a thread:
some milliseconds where nothing is compiled. Those of 900 members would block the loop for two
seconds."""


async def run_job(cluster: Cluster, job: Callable[[], T], size: int) -> T:
    """Run a job on `size` bytes; in a thread if they are many."""
    if size <= _LARGE_JOB:
        return job()
    return await cluster.options.run_in_thread(job)
