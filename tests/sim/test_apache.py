"""Simulated groups at Apache's own coordinator: no violations, and each run is repeatable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kafkagroup.testing._jars import LocalKafkaUnavailable

from .checker import examine
from .events import Finished, Formed, Killed
from .plan import PROTOCOLS, make_plan
from .run import SimulatedRun, run

ROOT = Path(__file__).parents[2]
RUNS = 5
"""Of each protocol, for `make test`."""


def _run(seed: int, protocol: str) -> SimulatedRun:
    try:
        return run(make_plan(seed, protocol=protocol), "apache")
    except LocalKafkaUnavailable as error:
        pytest.skip(f"the simulation is NOT RUN on Apache's coordinator: {error}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_run_violates_an_invariant(protocol: str) -> None:
    runs = [_run(seed, protocol) for seed in range(RUNS)]
    assert [examine(simulated.events).violations for simulated in runs] == [()] * RUNS
    # What the checker learns from the coordinator.
    for simulated in runs:
        *_, finished = simulated.events
        assert isinstance(finished, Finished)
        assert finished.committed.keys() == finished.ends.keys()
    kinds = {type(event) for simulated in runs for event in simulated.events}
    assert {Formed, Killed} <= kinds


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_seed_replays_identically_in_another_jvm(protocol: str) -> None:
    asked = [sys.executable, "-m", "tests.sim", "--seed", "3", "--digest"]
    asked += ["--protocol", protocol, "--broker", "apache"]
    here = _run(3, protocol).digest()
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here
