"""The worker of pytest-xdist for each test: tests that share a slow fixture run on the same one.

A module fixture starts brokers or simulations, and each worker that runs a test of the module would
start its own. pytest-xdist has groups (`xdist_group`), but those of release 3.8.0 have no effect
with pytest 9: it writes an attribute of tests that pytest no longer reads.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]
SPARK = "tests/spark"
"""The tests in this folder that use a session of Spark, which takes long to start, and is one in a
process."""

LONGEST = (
    SPARK,
    "tests/live/test_trouble.py",
    "tests/live/test_zookeeper.py",
    "tests/live/test_security.py",
    "tests/testing/test_embedded_security.py",
    "tests/live/test_mixed.py",
    "tests/live/test_group_history.py",
    "tests/live/test_replicas.py",
    "tests/live/test_blocking.py",
    "tests/verification/lockstep/test_agreement.py",
    "tests/docs/test_getting_started.py",
    "tests/testing/test_local.py",
    "tests/test_coming_from_examples.py",
    "tests/test_demo.py",
    "tests/cli/test_elect_command.py",
)
"""Files and folders with tests that take 10 s or more. One that began last would hold up the end of
the run, with all other workers idle."""


class Schedule(LoadScopeScheduling):
    """Starts the longest groups first, then the largest, then tests one by one, each on the worker
    that has least to do."""

    _is_sorted = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self._is_sorted:
            self._is_sorted = True
            for group in sorted(self.workqueue, key=rank):
                self.workqueue.move_to_end(group)
        super()._assign_work_unit(node)


def rank(group: str) -> int:
    """Return the position of a group among `LONGEST`; groups of equal rank keep xdist's order."""
    places = (place for place, path in enumerate(LONGEST) if group.startswith(path))
    return next(places, len(LONGEST))


def group_of(nodeid: str) -> str:
    """Return the name of the group that shares a worker with `nodeid`; its own id if it is
    independent."""
    file = nodeid.partition("::")[0]
    if file.startswith(f"{SPARK}/") and "spark: Any" in _text(file):
        return SPARK
    return file if 'scope="module"' in _text(file) else nodeid


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text("utf-8")
