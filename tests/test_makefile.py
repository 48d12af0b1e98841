"""What the Makefile starts: the search for a usable Python, the environments, and the parts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import environments
import parts
import pytest
import try_pythons

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
WORKS = f'exec {sys.executable} "$@"'
WITHOUT_ENSUREPIP = f"exec {sys.executable} -c \"import sys; sys.modules['ensurepip'] = None; $2\""
OLD = f'exec {sys.executable} -c "import sys; sys.version_info = (3, 10, 9); $2"'
SWITCHED_OFF = "echo 'pyenv: the command exists in these Python versions: 3.12.1'; exit 127"


def find(home: Path, *named: str, **pythons: str) -> subprocess.CompletedProcess[str]:
    """Find a Python where PATH has only these, each a shell script."""
    path = home / "bin"
    path.mkdir(exist_ok=True)
    for name, script in pythons.items():
        (path / name).write_text(f"#!/bin/sh\n{script}\n")
        (path / name).chmod(0o755)
    return subprocess.run(
        [shutil.which("sh") or "sh", ROOT / "tests" / "usable_python.sh", *named],
        env={"PATH": str(path), "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("unusable", [WITHOUT_ENSUREPIP, OLD, SWITCHED_OFF])
def test_a_python_that_makes_no_environments_is_passed_over(tmp_path: Path, unusable: str) -> None:
    pythons = {"python3.11": unusable, "python3.13": unusable, "python3": WORKS}
    found = find(tmp_path, "3.11", "3.12", "3.13", "python3", **pythons)
    assert (found.stdout, found.stderr, found.returncode) == ("python3\n", "", 0)


def test_the_first_usable_python_is_taken_also_one_of_pyenv(tmp_path: Path) -> None:
    pyenv = tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python"
    pyenv.parent.mkdir(parents=True)
    pyenv.symlink_to(sys.executable)
    pythons = {"python3.11": SWITCHED_OFF, "python3.12": SWITCHED_OFF, "python3.13": WORKS}
    assert find(tmp_path, "3.11", "3.12", "3.13", **pythons).stdout == f"{pyenv}\n"


def test_without_a_usable_python_the_message_says_what_is_missing(tmp_path: Path) -> None:
    found = find(tmp_path, "3.11", "python3", python3=WITHOUT_ENSUREPIP)
    assert (found.stdout, found.returncode) == ("", 1)
    assert found.stderr == (
        "kafkagroup needs Python 3.11 or newer with venv and ensurepip (Debian: python3-venv);"
        " looked for 3.11 python3, on PATH and in ~/.pyenv. PYTHON=/path/to/python names another.\n"
    )


def dry_run(home: Path, *words: str) -> list[str]:
    """Return the commands that a target would run where nothing is made yet."""
    shutil.copy(ROOT / "Makefile", home)
    for name in ("pyproject.toml", "constraints.txt", "setup.py"):
        (home / name).touch()
    done = subprocess.run(
        ["make", "--dry-run", *words],
        cwd=home,
        env={name: value for name, value in os.environ.items() if "MAKE" not in name},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_target_makes_what_it_needs_from_nothing(tmp_path: Path) -> None:
    commands = dry_run(tmp_path, "bench", "PYTHON=python9")
    assert [line for line in commands if "tests" in line or "setup" in line] == [
        'python=$(sh tests/usable_python.sh python9) && "$python" -m venv .venv',
        ".venv/bin/python tests/environments.py check",
        ".venv/bin/python setup.py --quiet build_ext --inplace",
        ".venv/bin/python tests/environments.py bench",
        ".venv/bin/python -m tests.bench --preset small",
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_soak_has_three_parts_of_which_one_needs_no_cluster(tmp_path: Path) -> None:
    folder = ".venv/bin/python tests/verification/soak"
    whole = [line for line in dry_run(tmp_path, "soak", "SEED=7") if folder in line]
    assert [line.removeprefix(f"{folder}/").strip() for line in whole] == [
        "run.py",
        "pipeline.py --seed 7",
        "exactly_once.py --seed 7",
    ]
    first = [line for line in dry_run(tmp_path, "soak", "BROKER=kafka:9092") if folder in line]
    assert first == [f"{folder}/run.py kafka:9092"]
    assert all((ROOT / line.split()[1]).exists() for line in whole)


def test_every_environment_of_the_makefile_is_in_the_table() -> None:
    named = set(re.findall(r"\.venv/([a-z]+)\.stamp|\.venv-([a-z]+[\d.-]*)/stamp", MAKEFILE))
    assert {one or other for one, other in named} == {*environments.ENVIRONMENTS, "compiled"}


@pytest.mark.parametrize("name", environments.ENVIRONMENTS)
def test_an_environment_has_a_stamp_and_existing_extras(name: str) -> None:
    environment = environments.ENVIRONMENTS[name]
    stamps = [f"{environment.folder}/{stamp}" for stamp in environment.stamps]
    assert stamps[0] in (f".venv/{name}.stamp", f".venv-{name}/stamp")
    named = re.findall(r"(?<='\.\[)[a-z,]+", str(environment.packages))
    assert set(",".join(named).split(",")) <= {*EXTRAS, ""}


def test_lakes_are_tried_with_their_release_of_pyspark() -> None:
    pins = environments.CONSTRAINTS.read_text("utf-8")
    (pinned,) = re.findall("^pyspark==.*$", pins, re.MULTILINE)
    constraints = environments.ENVIRONMENTS["lakes-4.1"].constraints
    assert constraints is not None
    assert constraints() == pins.replace(pinned, "pyspark==4.1.*")


@pytest.mark.parametrize("name", parts.PARTS)
def test_every_path_of_a_part_exists(name: str) -> None:
    paths = [path.removeprefix("--ignore=") for path in parts.PARTS[name].paths]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_part_is_of_a_target() -> None:
    named = " ".join(re.findall(r"tests/parts\.py (.*)", MAKEFILE)).split()
    tried = re.findall(r'parts\.run\("(\w+)"', Path(try_pythons.__file__).read_text("utf-8"))
    assert {*named, *tried} == set(parts.PARTS)


def test_a_part_is_printed_as_the_command_that_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert parts.main(["--print", "wire", "serial"]) == 0
    wire, serial = capsys.readouterr().out.splitlines()
    assert wire == (
        f"KAFKAGROUP_PURE=1 {sys.executable} -m pytest -n auto --maxprocesses 8"
        " tests/wire tests/consume"
    )
    assert serial == (
        f"{sys.executable} -m pytest --junitxml .venv/tests-serial.xml"
        f" -m 'serial and not (brokers or long)' {' '.join(parts.SERIAL)}"
    )


def test_the_parts_end_with_the_first_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(name: str) -> int:
        ran.append(name)
        return 1 if name == "waiting" else 0

    monkeypatch.setattr(parts, "run", run)
    assert parts.main(["virtual", "waiting", "serial"]) == 1
    assert ran == ["virtual", "waiting"]


def test_a_python_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, ...]] = []

    def run(*part: str) -> int:
        ran.append(part)
        return 0

    monkeypatch.setattr(parts, "run", run)
    monkeypatch.setattr(environments, "make", lambda environment, python: f"{python} in its own")
    monkeypatch.setattr(try_pythons, "find_python", {"3.8": "", "3.9": "/python3.9"}.__getitem__)
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert try_pythons.main(["3.8", "3.9", own]) == 0
    assert ran == [("wire", "/python3.9 in its own"), ("wire",), ("bugs",)]
    assert capsys.readouterr().out == (
        "== tests/wire and tests/consume, uncompiled:\n"
        "     3.8: SKIPPED, no such Python here\n"
        "     3.9: passed\n"
        f"     {own}: passed\n"
    )
