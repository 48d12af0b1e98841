"""The rules in their order: each case is one in which two of them differ."""

from __future__ import annotations

import pytest

from kafkagroup.spark.evaluation import Commit, Status, evaluate


def window(*commits: tuple[int, int]) -> list[Commit]:
    """(offset, lag), ten seconds apart."""
    return [Commit(10.0 * n, offset, lag) for n, (offset, lag) in enumerate(commits)]


STEADY = window((10, 5), (20, 5), (30, 5))
"""Its last commit is at 20 s, and its window 20 s long."""


@pytest.mark.parametrize(
    ("commits", "ends", "now", "lag", "status"),
    [
        # No lag, whatever the other values.
        (STEADY, [99], 1000.0, 0, Status.OK),
        ([], [99], 1000.0, 9, Status.OK),
        # Quiet for longer than the window is long, though there was something to read.
        (STEADY, [99], 40.5, 69, Status.STOP),
        (STEADY, [99], 40.0, 69, Status.WARN),
        (STEADY, [30, 99], 40.5, 69, Status.WARN),
        # Stopped is worse news than stalled.
        (window((10, 5), (10, 6), (10, 7)), [17], 41.0, 7, Status.STOP),
        (window((10, 5), (10, 6), (10, 7)), [17], 21.0, 7, Status.STALL),
        # The offset has moved back, or has moved back and returned.
        (window((10, 5), (5, 20), (7, 20)), [27], 21.0, 20, Status.REWIND),
        (window((10, 5), (5, 20), (12, 13)), [25], 21.0, 13, Status.OK),
        # At some time in the window it had caught up.
        (window((10, 5), (20, 0), (30, 9)), [39], 21.0, 9, Status.OK),
        # Falls behind; or gets on.
        (window((10, 5), (20, 5), (30, 9)), [39], 21.0, 9, Status.WARN),
        (window((10, 9), (20, 10), (30, 8)), [38], 21.0, 8, Status.OK),
    ],
)
def test_the_status_of_a_partition(
    commits: list[Commit], ends: list[int], now: float, lag: int, status: Status
) -> None:
    assert evaluate(commits, ends, now, lag=lag) is status


def test_a_lag_within_the_allowed_lag_counts_as_no_lag() -> None:
    commits = window((10, 5), (20, 5), (30, 9))
    assert evaluate(commits, [39], 21.0, lag=9, allowed=9) is Status.OK
    assert evaluate(commits, [39], 21.0, lag=9, allowed=5) is Status.OK
    assert evaluate(commits, [39], 21.0, lag=9, allowed=4) is Status.WARN


def test_the_group_has_the_status_of_its_worst_partition() -> None:
    assert max(Status.WARN, Status.OK, Status.STALL) is Status.STALL
