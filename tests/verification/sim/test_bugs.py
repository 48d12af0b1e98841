"""The checker detects each planted bug, in runs whose seeds `python -m tests.verification.sim
--bugs` found."""

import json
from collections import Counter

import pytest

import kafkagroup
from verification.sim.checker import INVARIANTS
from verification.sim.hunt import BUGS, KEPT, shown

pytestmark = [
    pytest.mark.skipif(
        kafkagroup.__compiled__,
        reason="bugs are planted by replacing methods, which compiled classes refuse",
    ),
    # A run over its time limit is stopped anywhere, even where an exception cannot propagate.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FOUND = json.loads(KEPT.read_text())


def test_every_planted_bug_has_a_recorded_seed():
    assert FOUND.keys() == BUGS.keys()
    kinds = Counter(bug.protocol for bug in BUGS.values())
    assert kinds["classic"] >= 40
    assert kinds["consumer"] >= 12


def test_every_invariant_detects_a_planted_bug():
    assert {
        by for seeds in FOUND.values() for seed in seeds for by in seed["by"]
    } == INVARIANTS.keys()


@pytest.mark.parametrize("name", sorted(FOUND))
def test_the_checker_detects(name):
    bug = BUGS[name]
    for found in FOUND[name]:
        broken = set(shown(found["seed"], bug.plant(), protocol=bug.protocol, kinds=bug.kinds))
        assert broken & bug.breaks >= set(found["by"]), found
