"""A few thousand generated groups, and that the run distinguishes a wrong assignor from a correct
one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from assign import fuzz
from assign.fuzz import (
    check_cooperative_sticky,
    check_once,
    check_weighted_sticky,
    failures,
    group_of,
    replay,
    run,
)

from kafkagroup.assign import Assignor, GroupSpec
from kafkagroup.assign.cooperative_sticky import cooperative_sticky_assignor
from kafkagroup.assign.range import range_assignor
from kafkagroup.assign.roundrobin import roundrobin_assignor
from kafkagroup.assign.spec import named
from kafkagroup.assign.spec_json import spec_from_json
from kafkagroup.assign.sticky import sticky_assignor
from kafkagroup.assign.weighted import weighted_sticky

Check = Callable[[Assignor, GroupSpec], Iterator[str]]


@pytest.mark.slow
def test_no_assignor_breaks_its_rules() -> None:
    assert failures(seed=2026, cases=range(2_000)) == {}


def test_no_assignment_depends_on_the_hash_seed() -> None:
    """Every member must compute the same, and hashes differ between processes."""
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from assign.fuzz import CHECKS, group_of\n"
        "for case in range(150):\n"
        "    for assignor, _ in CHECKS:\n"
        "        print([(m, *held) for m, held in assignor(group_of(5, case)).items()])\n"
    )
    tests = Path(__file__).parent.parent
    responses = {
        subprocess.run(
            [sys.executable, "-c", script, str(tests), str(tests.parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(responses) == 1
    assert responses.pop().count(b"\n") == 150 * 6


def called(name: str, assignor: Assignor) -> Assignor:
    """Return the assignor under another's name, so that its rules apply."""
    return named(name)(lambda spec: assignor(spec))


def kinds(lines: Iterable[str]) -> set[str]:
    """Return their kinds, without the rebalance number."""
    return {line.removeprefix("settled: ").split(": ")[-2 if ":" in line else 0] for line in lines}


@pytest.mark.parametrize(
    ("check_with", "name", "impostor", "expected"),
    [
        (check_once, "sticky", roundrobin_assignor, {"unbalanced", "moved-without-need"}),
        (check_once, "sticky", cooperative_sticky_assignor, {"incomplete"}),
        (check_cooperative_sticky, "cooperative-sticky", sticky_assignor, {"handed-over"}),
        (check_cooperative_sticky, "cooperative-sticky", range_assignor, {"unbalanced"}),
        (check_weighted_sticky, "weighted-sticky", sticky_assignor, {"handed-over"}),
    ],
)
def test_a_mislabelled_assignor_is_detected(
    check_with: Check, name: str, impostor: Assignor, expected: set[str]
) -> None:
    lines = [
        line
        for case in range(100)
        for line in check_with(called(name, impostor), group_of(1, case))
    ]
    assert expected <= kinds(lines)


def test_a_weighted_sticky_that_ignores_loads_is_detected() -> None:
    lines = [
        line
        for case in range(100)
        for line in check_weighted_sticky(
            called("weighted-sticky", cooperative_sticky_assignor), group_of(1, case)
        )
    ]
    assert any(" has a level of " in line for line in lines)


def test_a_weighted_sticky_that_moves_all_at_once_is_detected() -> None:
    eager = called("weighted-sticky", weighted_sticky(max_moves=10_000))
    lines = [
        line for case in range(100) for line in check_weighted_sticky(eager, group_of(1, case))
    ]
    assert lines
    assert all(line.startswith("round 1 takes ") for line in lines)


def test_a_case_can_be_replayed_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    # Of racks JSON wants to know all or none.
    case = next(case for case in range(50) if not group_of(3, case).racks)
    assert replay(seed=3, case=case) == 0
    shown = capsys.readouterr().out
    text = shown.removesuffix("nothing is wrong\n")
    assert spec_from_json(text).members == group_of(3, case).members


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_reports_count_and_speed(jobs: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(seed=4, cases=60, jobs=jobs) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == f"60 groups, seed 4, {jobs} at a time"
    assert last.startswith("60 groups in ")
    assert last.endswith(" a second; 0 failed")


def test_a_failure_is_shown_with_the_command_that_replays_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = called("sticky", roundrobin_assignor)
    monkeypatch.setattr(fuzz, "CHECKS", ((wrong, check_once),))
    case, lines = next(iter(failures(seed=4, cases=range(50)).items()))
    assert run(seed=4, cases=case + 1, jobs=1) == 1
    shown = capsys.readouterr().out
    assert f"\ncase {case}:\n  " + "\n  ".join(lines) in shown
    assert f"\nagain: python tests/assign/fuzz.py --seed 4 --case {case}\n" in shown
    assert replay(seed=4, case=case) == 1
    assert capsys.readouterr().out.endswith("\n".join(lines) + "\n")
