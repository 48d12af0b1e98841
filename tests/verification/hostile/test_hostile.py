"""Each attack ends in its error, within its memory limit, and affects nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from .catalogue import ATTACKS
from .honest import serving
from .trial import PASSWORD, Attack, Result, trials

pytestmark = [
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux's /proc"
    ),
    pytest.mark.long,
    # How late a task is, and how much memory grows.
    pytest.mark.serial,
]

Run = Callable[[Attack], Result]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with trials() as running:
        yield running


@pytest.mark.parametrize(
    "attack",
    [attack for attack in ATTACKS if not attack.long],
    ids=lambda attack: f"{attack.family}: {attack.name}",
)
def test_an_attack_ends_as_expected(run: Run, attack: Attack) -> None:
    assert run(attack).faults(attack) == []


def test_attack_names_are_unique() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


HARMLESS = Attack(
    name="none", family="none", does=serving, client="open_it", ends="opened", mebibytes=1
)
GOOD = Result(
    end="opened",
    seconds=0.1,
    mebibytes=0.5,
    stall=0.1,
    late=0.01,
    delivered=3,
    redialled=0,
    requests=2,
    log=("a line",),
)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"end": "ValueError: x"}, "ended otherwise: 'ValueError: x', expected 'opened'"),
        ({"mebibytes": 1.5}, "memory grew by 1.5 MiB; allowed 1"),
        ({"late": 1.5}, "another task was 1.500 s late; allowed 1"),
        (
            {"delivered": 0},
            "the other consumer got 0 records, and 0 connections of its were lost",
        ),
        (
            {"redialled": 1},
            "the other consumer got 3 records, and 1 connections of its were lost",
        ),
        ({"requests": 1_001}, "1001 requests; allowed 1000"),
        ({"log": ("a\nforged line",)}, r"text that is not escaped: 'a\nforged line'"),
        ({"log": ("\x1b[31mred",)}, r"text that is not escaped: '\x1b[31mred'"),
        ({"log": ("x" * 3000,)}, f"3000 characters of text: {'x' * 120!r}"),
        ({"log": (f"p={PASSWORD}",)}, f"the password is shown: 'p={PASSWORD}'"),
    ],
)
def test_a_failed_trial_is_reported(changed: dict[str, object], fault: str | None) -> None:
    result = attrs.evolve(GOOD, **changed)
    assert result.faults(HARMLESS) == ([] if fault is None else [fault])


def test_a_correct_broker_causes_no_error(run: Run) -> None:
    assert run(HARMLESS).faults(HARMLESS) == []


def test_growing_memory_is_reported(run: Run) -> None:
    """Without a working measurement, every attack would pass."""
    grabbing = attrs.evolve(HARMLESS, client="grab_memory", job={"mebibytes": 64}, ends="64 MiB")
    assert 60 < run(grabbing).mebibytes < 72


def test_a_missing_warning_is_reported() -> None:
    attack = attrs.evolve(HARMLESS, warns="answer 77")
    fault = "there was no warning of 'answer 77'"
    assert attrs.evolve(GOOD, log=("WARNING answer 77",)).faults(attack) == []
    assert attrs.evolve(GOOD, log=("INFO answer 77",)).faults(attack) == [fault]
