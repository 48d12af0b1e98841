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
CHECKED = sorted((ROOT / "tests" / "typing").glob("*.py"))


def marked() -> list[tuple[str, int]]:
    """Return the file and number of each line that must fail."""
    return [
        (path.name, number)
        for path in CHECKED
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.endswith("# error")
    ]


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
    return output_of(sys.executable, "-m", "mypy", *options, *map(str, CHECKED), MYPYPATH=str(ROOT))


def pyright() -> str:
    command = which("pyright", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if command is None:
        pytest.skip("NOT TESTED, types under pyright: it is not installed")
    options = ("--pythonpath", sys.executable, "--pythonversion", "3.11")
    return output_of(command, *options, *map(str, CHECKED))


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_find_misspelt_names_and_wrong_types(checker: Callable[[], str]) -> None:
    """Records have the types that the deserializers return, and no class has every name."""
    output = checker()
    found = {(name, int(line)) for name, line in re.findall(r"(\w+\.py):(\d+):.*error:", output)}
    assert sorted(found) == marked(), output
