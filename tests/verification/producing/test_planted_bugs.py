"""Bugs that the simulated runs of producers must find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import kafkagroup
from kafkagroup.consuming_transactions import ConsumingTransaction
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.produce.identity import Identities
from kafkagroup.produce.partition_queue import PartitionQueue
from kafkagroup.runtime.produce.transactions import TransactionManager

from .world import Violation, run

pytestmark = [
    pytest.mark.skipif(
        kafkagroup.__compiled__,
        reason="bugs are planted by replacing methods, which compiled classes refuse",
    ),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def restamps(patch: pytest.MonkeyPatch) -> None:
    """What may have been written gets another number."""
    retry = PartitionQueue.retry

    def forgetful(self: PartitionQueue, batch: ProduceBatch, at: float) -> None:
        batch.is_maybe_written = False
        self._is_new_epoch_needed = True
        retry(self, batch, at)

    patch.setattr(PartitionQueue, "retry", forgetful)


def is_not_idempotent(patch: pytest.MonkeyPatch) -> None:
    """Batches have no numbers."""
    patch.setattr(Identities, "is_known", True)
    patch.setattr(ProduceBatch, "stamp", lambda self, *_: None)


def forgets_failures(patch: pytest.MonkeyPatch) -> None:
    """A transaction commits although a record of it has failed."""
    patch.setattr(TransactionManager, "record_failed", lambda self, *_: None)


def does_not_rewind(patch: pytest.MonkeyPatch) -> None:
    """An aborted transaction does not return to its first records."""
    patch.setattr(ConsumingTransaction, "_rewind", lambda self, *_: self._release())


BUGS: Mapping[Callable[[pytest.MonkeyPatch], None], int] = {
    restamps: 0,
    is_not_idempotent: 0,
    forgets_failures: 0,
    does_not_rewind: 0,
}
"""Bug -> the first of the seeds that are tried."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    for seed in range(BUGS[bug], BUGS[bug] + 20):
        try:
            run(seed)
        except Violation:
            return
        except TimeoutError:
            return  # it did not recover
    pytest.fail("no run has found it")
