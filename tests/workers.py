"""Which tests of `pytest -n` go to the same worker of pytest-xdist: those that share what is slow.

A fixture of a module starts brokers or simulations, and each worker that runs a test of the module
would start its own. pytest-xdist has groups (`xdist_group`), but those of its release 3.8.0 have no
effect with pytest 9: it writes an attribute of tests that pytest no longer reads.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
SPARK = "tests/spark"
"""A session of Spark takes long to start, and is one in a process."""


class Schedule(LoadScopeScheduling):
    """The largest groups first, then tests one by one, each to the worker that has least to do."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """The name of what `nodeid` must share a worker with; its own if it can go anywhere."""
    file = nodeid.partition("::")[0]
    if file.startswith(f"{SPARK}/"):
        return SPARK
    return file if _starts_something(file) else nodeid


@cache
def _starts_something(file: str) -> bool:
    return 'scope="module"' in (ROOT / file).read_text("utf-8")
