"""The simulated runs of producers."""

from __future__ import annotations

import pytest

from .world import run

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", range(6))
def test_no_run_violates_an_invariant_and_each_replays_identically(seed: int) -> None:
    assert run(seed) == run(seed)


def test_most_runs_meet_faults_and_carry_records() -> None:
    runs = [run(seed) for seed in range(10, 16)]
    assert sum(figures["faults"] > 0 for figures in runs) > 3
    assert all(figures["records"] + figures["inputs"] > 0 for figures in runs)
