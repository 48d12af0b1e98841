"""Build the packages, and try each in an empty environment.

    python tests/try_packages.py

Builds the sdist, the wheel for all platforms, and a compiled wheel for each of `VERSIONS` that is
present; Debian's own repository supplies Python 3.14 if the machine has none. `TESTS` run on each
wheel, and `make test-fast` in the unpacked sdist. Ends with a table that also names what was not
tried, and with status 1 if something failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from glob import glob
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import debian_python
from parts import FAST, QUICK

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "packages"
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.14t")
TESTS = (*FAST, "tests/test_threads.py")
CONSTRAINED = dict.fromkeys(
    ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(ROOT / "constraints.txt")
)
"""Pins setuptools and Cython too, as in a release: `build` hands the first to pip, and pip uses the
second for the environments in which it builds itself."""

LARGEST = 2_500_000
"""Bytes. A wheel with debug information has four times as many."""

USABLE = (
    "import sys, sysconfig; t = bool(sysconfig.get_config_var('Py_GIL_DISABLED'));"
    "print('%d.%d' % sys.version_info[:2] + 't' * t)"
)
LOADED = (
    "import kafkagroup, kafkagroup.consumer, kafkagroup.wire.arrow, sys;"
    "has_gil = getattr(sys, '_is_gil_enabled', bool)() and 't' in sys.abiflags;"
    "print(kafkagroup.__compiled__, has_gil, kafkagroup.__file__)"
)


class Tried(NamedTuple):
    """A row of the table."""

    package: str
    python: str
    result: str


class Failed(Exception):
    """A command failed; has the end of what it printed."""


def main() -> int:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    pythons = {version: find_python(version) for version in VERSIONS}
    if pythons["3.14"] is None:
        pythons["3.14"] = debian_python.install("3.14", ROOT / "build" / "debian-python")
    found = {version: python for version, python in pythons.items() if python is not None}
    rows = []
    for row in try_all(found):
        print(f"== {row.package} on {row.python}: {row.result}", flush=True)
        rows.append(row)
    rows += [
        Tried("compiled wheel", version, "NOT TRIED: no such Python here")
        for version in VERSIONS
        if version not in found
    ]
    print("\n".join(f"{row.package:75} {row.python:6} {row.result}" for row in rows))
    return any(row.result.startswith("FAILED") for row in rows)


def try_all(pythons: Mapping[str, str]) -> Iterator[Tried]:
    """Build and try everything. Raises: Failed if the sdist cannot be built."""
    dist = PLACE / "dist"
    run(sys.executable, "-m", "build", "--sdist", "--outdir", dist, ROOT, variables=CONSTRAINED)
    (sdist,) = dist.iterdir()
    unpacked = PLACE / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(PLACE, filter="data")
    (PLACE / sdist.name.removesuffix(".tar.gz")).rename(unpacked)
    pure = build_wheel(sdist, dist, next(iter(pythons.values())), KAFKAGROUP_PURE="1")
    for version, python in pythons.items():
        try:
            wheel = repair(build_wheel(sdist, PLACE / "raw", python), dist)
        except Failed as error:
            yield Tried("compiled wheel", version, f"FAILED to build: {error}")
            continue
        yield try_wheel(wheel, version, python, unpacked)
    for version in (next(iter(pythons)), list(pythons)[-1]):
        yield try_wheel(pure, version, pythons[version], unpacked)
    version, python = next(iter(pythons.items()))
    yield Tried(sdist.name, version, outcome("make", "test-fast", f"PYTHON={python}", at=unpacked))
    checked = outcome(sys.executable, "-m", "twine", "check", "--strict", *sorted(dist.iterdir()))
    yield Tried("twine check --strict", "", checked)


def build_wheel(sdist: Path, place: Path, python: str, **environment: str) -> Path:
    """Build a wheel from the sdist; return its path. Raises: Failed."""
    before = set(place.glob("*.whl"))
    command = ("wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", place, sdist)
    # Debian's headers include each other by paths below Python's include path.
    include = f"-I{Path(python).parents[1] / 'include'}"
    pip(make_environment(python), *command, CFLAGS=include, **CONSTRAINED, **environment)
    (wheel,) = set(place.glob("*.whl")) - before
    return wheel


def repair(wheel: Path, dist: Path) -> Path:
    """Tag a wheel as manylinux; return its path. Raises: Failed."""
    before = set(dist.iterdir())
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", dist, wheel)
    (repaired,) = set(dist.iterdir()) - before
    return repaired


def try_wheel(wheel: Path, version: str, python: str, unpacked: Path) -> Tried:
    """Install a wheel into an empty environment, and run the tests away from the sources."""
    size = wheel.stat().st_size
    if size > LARGEST:
        return Tried(wheel.name, version, f"FAILED: {size:,} bytes, more than {LARGEST:,}")
    place = PLACE / "tried"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copytree(unpacked / "tests", place / "tests")
    shutil.copy(unpacked / "pyproject.toml", place)
    try:
        environment = make_environment(python)
        pip(environment, "install", "--constraint", ROOT / "constraints.txt", f"{wheel}[fast]")
        compiled, gil, file = run(environment, "-c", LOADED, at=PLACE).split()
    except Failed as error:
        return Tried(wheel.name, version, f"FAILED to install: {error}")
    if (compiled, gil) != (str("none-any" not in wheel.name), "False"):
        return Tried(wheel.name, version, f"FAILED: compiled {compiled}, GIL turned on {gil}")
    if Path(environment).parents[1] not in Path(file).parents:
        return Tried(wheel.name, version, f"FAILED: the tests would run {file}")
    result = outcome(environment, "-m", "pytest", "-n", "auto", "-m", QUICK, *TESTS, at=place)
    return Tried(wheel.name, version, f"{result}; {size:,} bytes")


def find_python(version: str) -> str | None:
    """Return the first Python of this version that runs; pyenv's shims may name others."""
    minor, threads = version.removesuffix("t"), "t" if version.endswith("t") else ""
    of_pyenv = glob(os.path.expanduser(f"~/.pyenv/versions/{minor}.*{threads}/bin/python"))
    for command in (f"python{version}", *of_pyenv):
        try:
            if run(command, "-c", USABLE).strip() == version:
                return run(command, "-c", "import sys; print(sys.executable)").strip()
        except (Failed, OSError):
            continue
    return None


def make_environment(python: str) -> str:
    """Return the Python of a new, empty environment."""
    place = PLACE / "environment"
    # Without pip of its own, which Debian's Python may lack: `pip` below brings its own.
    run(python, "-m", "venv", "--clear", "--without-pip", place)
    return str(place / "bin" / "python")


def pip(environment: str, *command: str | Path, **variables: str) -> None:
    """Run this Python's pip for an environment. Raises: Failed."""
    options = ("--disable-pip-version-check", "--quiet", "--python", environment)
    run(sys.executable, "-m", "pip", *options, *command, variables=variables)


def outcome(*command: str | Path, at: Path = ROOT) -> str:
    """Run a command; return how it ended, with pytest's counts, and how long it took."""
    began_at = time.monotonic()
    try:
        printed = run(*command, at=at)
    except Failed as error:
        return f"FAILED: {error}"
    counts = re.findall(r"\d+ passed(?:, \d+ skipped)?", printed)
    return f"{counts[-1] if counts else 'passed'} in {time.monotonic() - began_at:.0f} s"


def run(
    *command: str | Path, at: Path = ROOT, variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run a command; return what it printed. Raises: Failed."""
    inherited = {name: value for name, value in os.environ.items() if name != "KAFKAGROUP_PURE"}
    path = os.pathsep.join((str(Path(sys.executable).parent), inherited.get("PATH", "")))
    done = subprocess.run(
        [str(word) for word in command],
        cwd=at,
        env={**inherited, "PATH": path, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{Path(command[0]).name} ended with {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
