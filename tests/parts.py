"""The runs of pytest that the Makefile's targets consist of: `make test` is three parts.

    python tests/parts.py [--print] PART ...

runs the parts one after another, up to the first that fails; `--print` only prints the commands.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORTS = ".venv"


def files(pattern: str, text: str = "") -> tuple[str, ...]:
    """Return the paths of files of tests that match, and contain the text."""
    return tuple(
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.glob(pattern))
        if re.search(text, path.read_text("utf-8"))
    )


FAST = (
    "tests/assign",
    "tests/consume",
    "tests/member",
    "tests/wire",
    *files("tests/verification/sim/test_checker*.py"),
    "tests/test_errors.py",
    "tests/test_layers.py",
    "tests/test_options.py",
    "tests/test_stories.py",
    "tests/test_types.py",
    "tests/test_values.py",
    "tests/test_workers.py",
)
"""Tests that neither wait nor need a broker: the CPU is what limits them."""

VIRTUAL = (
    *FAST,
    "tests/concurrency",
    "tests/verification/model",
    "tests/runtime",
    "tests/verification/sim",
    "tests/transport",
    "tests/zookeeper",
)
"""Those that let virtual time pass, too."""

LOWEST = (
    *FAST,
    "tests/runtime/client/test_guest_mode.py",
    "tests/runtime/member/test_leaving.py",
    "tests/runtime/client/test_service.py",
    "tests/runtime/client/test_user_code.py",
    "tests/exporters",
    "tests/test_threads.py",
    "tests/transport/test_connection.py",
)
"""Those of `FAST`, some that wait, and some that use an extra."""

# Pytest takes longer to find the tests of all other files than to read them here.
SERIAL = files("tests/**/test_*.py", r"mark\.serial")
LONG = (
    "tests/live",  # all: on uvloop, too
    *(path for path in files("tests/**/test_*.py", r"mark\.long|_IS_LONG") if "/live/" not in path),
)

LAKES = (
    "tests/spark/test_json.py",
    "tests/spark/test_pipeline.py",
    "tests/spark/test_recipes.py",
    "tests/spark/test_retention.py",
    "tests/spark/test_tables.py",
)

QUICK = "not (brokers or long or serial or slow)"
EACH_CPU = ("-n", "auto", "--maxprocesses", "8")
# PySpark 4.1 leaves its sockets to the garbage collector.
IGNORING_SOCKETS = ("-W", "ignore::pytest.PytestUnraisableExceptionWarning")


def one_more_than_cpus() -> int:
    there = getattr(os, "sched_getaffinity", None)
    return (len(there(0)) if there else os.cpu_count() or 2) + 1


@dataclass(frozen=True)
class Part:
    paths: tuple[str, ...]
    markers: str = ""
    """Which of the tests; all but those marked `brokers` if empty."""
    options: tuple[str, ...] = ()
    is_pure: bool = False
    """Whether kafkagroup runs uncompiled."""
    is_reported: bool = False
    """Whether pytest's output and report are kept for the closing lines of `make test`."""


PARTS = {
    "fast": Part(FAST, QUICK, EACH_CPU, is_pure=True),
    "lowest": Part(LOWEST, QUICK, EACH_CPU, is_pure=True),
    "virtual": Part(
        VIRTUAL,
        "not (brokers or long or serial)",
        # One more: some of these tests block their thread for seconds.
        ("-n", f"{one_more_than_cpus()}", "--maxprocesses", "8"),
        is_reported=True,
    ),
    "waiting": Part(
        tuple(f"--ignore={path}" for path in VIRTUAL),
        "not (brokers or long or serial)",
        # Brokers are waited for: more workers than CPUs, each with a Kafka of its own.
        ("-n", "6"),
        is_reported=True,
    ),
    "serial": Part(SERIAL, "serial and not (brokers or long)", is_reported=True),
    "long": Part(LONG, "long and not (brokers or serial)", EACH_CPU),
    "long-serial": Part(LONG, "long and serial and not brokers"),
    "wire": Part(("tests/wire", "tests/consume"), options=EACH_CPU, is_pure=True),
    "bugs": Part(
        (
            "tests/verification/sim/test_bugs.py",
            "tests/verification/producing/test_planted_bugs.py",
        ),
        options=EACH_CPU,
        is_pure=True,
    ),
    "brokers": Part(("tests/old_brokers", "tests/testing/test_local.py"), "brokers"),
    # Tests of tables, which do without streams: PySpark 4.1 has none for sources in Python.
    "lakes-4.1": Part(LAKES, options=("-k", "not stream", *IGNORING_SOCKETS)),
    "lakes-4.2": Part(("tests/spark/test_recipes.py",), options=IGNORING_SOCKETS),
}


def command(name: str, python: str) -> list[str]:
    part = PARTS[name]
    report = ["--junitxml", f"{REPORTS}/tests-{name}.xml"] if part.is_reported else []
    markers = ["-m", part.markers] if part.markers else []
    return [python, "-m", "pytest", *report, *part.options, *markers, *part.paths]


def run(name: str, python: str = sys.executable) -> int:
    """Run a part with this Python; return pytest's exit code."""
    words = command(name, python)
    variables = os.environ | ({"KAFKAGROUP_PURE": "1"} if PARTS[name].is_pure else {})
    if not PARTS[name].is_reported:
        return subprocess.run(words, cwd=ROOT, env=variables, check=False).returncode
    with subprocess.Popen(
        ["tee", f"{REPORTS}/tests-{name}.log"], cwd=ROOT, stdin=subprocess.PIPE
    ) as tee:
        return subprocess.run(
            words, cwd=ROOT, env=variables, stdout=tee.stdin, check=False
        ).returncode


def main(words: Sequence[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="tests/parts.py", description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", help="only print the commands")
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args(words)
    for name in asked.parts:
        if asked.print:
            pure = "KAFKAGROUP_PURE=1 " * PARTS[name].is_pure
            print(pure + shlex.join(command(name, sys.executable)))
        elif code := run(name):
            return code
    return 0


if __name__ == "__main__":
    # Ctrl-C is for pytest, which then reports what it has. A handler: its processes would inherit
    # that the signal is ignored.
    signal.signal(signal.SIGINT, lambda *_: None)
    sys.exit(main(sys.argv[1:]))
