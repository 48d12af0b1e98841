"""The simulated runs of producers."""

from __future__ import annotations

import pytest

from .world import run

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", range(6))
def test_no_run_violates_an_invariant(seed: int) -> None:
    figures = run(seed)
    assert figures["faults"] > 0
