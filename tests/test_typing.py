"""The types that users see, checked with mypy --strict and pyright."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).parent.parent
CHECKED = ROOT / "tests" / "typing" / "deserializers.py"


def marked() -> list[int]:
    """Return the lines that must fail."""
    lines = CHECKED.read_text("utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# error")]


def output_of(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )
    return done.stdout + done.stderr


def mypy() -> str:
    pytest.importorskip("mypy", reason="NOT TESTED, types under mypy: it is not installed")
    options = ("--strict", "--config-file=", "--follow-imports=silent", "--python-version=3.11")
    return output_of(sys.executable, "-m", "mypy", *options, str(CHECKED), MYPYPATH=str(ROOT))


def pyright() -> str:
    command = which("pyright", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if command is None:
        pytest.skip("NOT TESTED, types under pyright: it is not installed")
    options = ("--pythonpath", sys.executable, "--pythonversion", "3.11")
    return output_of(command, *options, str(CHECKED))


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_record_types_are_inferred_from_the_deserializers(checker: Callable[[], str]) -> None:
    """Misspelled names and wrong types are errors."""
    output = checker()
    assert "deserializers.py" in output, output
    found = {int(line) for line in re.findall(r"deserializers\.py:(\d+):.* error:", output)} | {
        int(line) for line in re.findall(r"deserializers\.py:(\d+): error:", output)
    }
    assert sorted(found) == marked(), output
