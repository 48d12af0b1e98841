"""The comparison finds each planted fault, and shrinks the script. Needs no Java."""

import itertools

import pytest
from verification.lockstep.embedded import EmbeddedCoordinator
from verification.lockstep.many import HUNG, run_one
from verification.lockstep.planted import FAULTS
from verification.lockstep.requests import make_script
from verification.lockstep.run import run
from verification.lockstep.script import Script
from verification.lockstep.shrink import shrink

SEEDS = range(1000)


def first_divergence(pair):
    """Return the first script that shows the fault, and the divergence."""
    for seed in SEEDS:
        script = make_script(seed)
        found = run(script, *pair)
        if found is not None:
            return script, found
    raise AssertionError(f"not seen in {len(SEEDS)} scripts")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_its_script_shrinks_to_a_minimum(fault):
    pair = EmbeddedCoordinator(), FAULTS[fault]()
    script, found = first_divergence(pair)

    def diverges(shorter: Script) -> bool:
        again = run(shorter, *pair)
        return again is not None and again.kind == found.kind

    shortest = shrink(script, diverges)
    assert diverges(shortest)
    assert len(shortest.steps) < len(script.steps)
    for rest in itertools.combinations(shortest.steps, len(shortest.steps) - 1):
        assert not diverges(Script(script.seed, rest))


def test_equal_coordinators_agree():
    pair = EmbeddedCoordinator(), EmbeddedCoordinator()
    assert [result for seed in range(200) if (result := run_one(seed, pair)).kind] == []


def test_a_divergence_is_reported_with_the_steps_that_lead_to_it():
    pair = EmbeddedCoordinator(), FAULTS["old generations pass"]()
    script, _ = first_divergence(pair)
    result = run_one(script.seed, pair)
    assert result.kind == ("HeartbeatRequest", "error_code")
    assert "error_code: 22 and 0" in result.divergence
    assert "HeartbeatRequest(" in result.divergence


def test_a_script_during_which_a_coordinator_hangs_is_reported():
    """A timer that the embedded coordinator set anew for the same moment once blocked the run."""

    class Hanging(EmbeddedCoordinator):
        def advance(self, milliseconds):
            while milliseconds > 100:
                pass
            super().advance(milliseconds)

    pair = EmbeddedCoordinator(), Hanging()
    results = [run_one(seed, pair, limit=0.2) for seed in range(5)]
    assert HUNG in {result.kind for result in results}
    assert {result.divergence for result in results if result.kind} == {"  not done after 0.2 s"}


def test_a_divergence_whose_shorter_script_hangs_is_reported():
    """The limit held only for the whole script: the search for the shortest one blocked the run."""

    class HangsWhenShorter(EmbeddedCoordinator):
        """Hangs if the script is run again."""

        resets = 0

        def reset(self, seed):
            self.resets += 1
            super().reset(seed)

        def advance(self, milliseconds):
            while self.resets > 2:  # the constructor's and the first run's
                pass
            super().advance(milliseconds)

    script, _ = first_divergence((EmbeddedCoordinator(), FAULTS["old generations pass"]()))
    faulty = FAULTS["old generations pass"]()
    result = run_one(script.seed, (HangsWhenShorter(), faulty), limit=0.5)
    assert result.kind == HUNG
    assert "error_code: 22 and 0" in result.divergence
    assert result.divergence.endswith("a shorter script is not done after 0.5 s")
