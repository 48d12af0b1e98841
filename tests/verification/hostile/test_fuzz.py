"""Some damage through every decoder, and that the run distinguishes a broken decoder from a correct
one."""

from __future__ import annotations

import random
import struct

import pytest

from kafkagroup.errors import DecodeError

from .fuzz import (
    Target,
    corpus,
    declared,
    failures_of,
    mutated,
    run,
    targets,
    trouble,
)


def test_every_decoder_returns_or_raises_its_own_error() -> None:
    assert [line for case in range(len(targets())) for line in failures_of(2026, case)] == []


def test_every_message_in_every_version_is_a_target() -> None:
    names = {target.name for target in targets()}
    assert names >= {f"{name} v{v}" for name, cls in declared().items() for v in cls.versions}


def test_inputs_that_once_broke_a_decoder_are_handled() -> None:
    found = list(corpus())
    assert found
    assert [(t.name, wrong) for t, data in found if (wrong := trouble(t, data))] == []


def _careless(data: bytes) -> int:
    """Decode four bytes without checking that they exist."""
    length: int = struct.unpack(">i", data)[0]
    if length < 0:
        raise DecodeError("negative")
    return length


def test_an_unexpected_error_of_a_decoder_is_reported() -> None:
    careless = Target("careless", lambda _: b"\0\0\0\1", _careless)
    lines = list(failures_of(1, 0, (careless,)))
    assert lines
    assert all(line.startswith("error: unpack requires a buffer") for line in lines)
    assert "for the corpus:\n  careless: " in lines[0]


def test_a_decoder_that_trusts_a_length_is_reported() -> None:
    greedy = Target("greedy", lambda _: b"\x7f\xff\xff", lambda data: bytearray(3 * 2**20))
    lines = list(failures_of(1, 0, (greedy,)))
    assert len(lines) == 101
    # Threads of other tests may take some memory meanwhile.
    took = int(lines[0].split(" bytes of memory")[0].replace(",", ""))
    assert 3 * 2**20 <= took < 4 * 2**20
    assert list(failures_of(1, 1, (greedy,))) == []  # not one of those that are measured


def test_a_case_is_the_same_each_time() -> None:
    seen: list[bytes] = []
    target = Target("all", lambda rng: rng.randbytes(9), seen.append)
    for _ in range(2):
        assert list(failures_of(7, 3, (target,))) == []
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    assert len(set(seen)) > 80


def test_a_run_counts_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(seed=1, cases=3, jobs=1) == 0
    assert "300 mutations" in capsys.readouterr().out


def test_mutations_reach_every_byte() -> None:
    rng = random.Random(1)
    assert sum(mutated(rng, b"valid bytes") != b"valid bytes" for _ in range(1_000)) > 900
