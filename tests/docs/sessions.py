"""Outputs that pages show, beside what programs print today."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["assert_same", "environment", "pattern", "run_session"]

_TIMEOUT = 60.0

_VARIES = re.compile(
    r"(?P<moment>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00)"
    r"|(?P<seconds> *\b\d+\.\d{3}\b| *\b\d+\.\d+(?= ?s\b))"  # right-aligned in a table
    r"|(?P<whole>\b\d+(?= m?s\b))"
    r"|(?P<timestamp>\b\d{13}\b)"
)
"""Text that differs from run to run."""

_ANY = {
    "moment": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00",
    "seconds": r" *\d+\.\d+",
    "whole": r"\d+",
    "timestamp": r"\d{13}",
}


def pattern(line: str) -> str:
    """Return a pattern of a shown line: times may differ."""
    parts, end = [], 0
    for found in _VARIES.finditer(line := line.rstrip()):
        assert found.lastgroup
        parts += [re.escape(line[end : found.start()]), _ANY[found.lastgroup]]
        end = found.end()
    return "".join([*parts, re.escape(line[end:])])


def assert_same(shown: Sequence[str], made: Sequence[str], where: str) -> None:
    """Compare lines of a page with those of a run; times and empty lines at the end may differ."""
    shown, made = ("\n".join(lines).rstrip().splitlines() for lines in (shown, made))
    same = len(shown) == len(made) and all(
        re.fullmatch(pattern(one), other.rstrip()) for one, other in zip(shown, made, strict=True)
    )
    assert same, "\n".join([f"{where} shows", *shown, "and a run prints", *made])


def environment(servers: str) -> dict[str, str]:
    """Return the environment of a reader's shell, whose broker has this address."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KAFKAGROUP_BOOTSTRAP_SERVERS": servers,
        "COLUMNS": "120",  # not those of the terminal in which the tests run
        "PYTHONUNBUFFERED": "1",
    }


def run_session(text: str, variables: Mapping[str, str], where: str) -> None:
    """Type the lines after a prompt into one shell; compare what each prints with what follows."""
    before, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not before, f"{where}: a session begins with a command"
    commands = [part.splitlines() for part in parts]
    mark = "== end of the output of a command =="
    # `$?` of the reader's shell is that of the command before.
    script = [f"(exit ${{code:-0}}); {typed}\ncode=$?; echo '{mark}'" for typed, *_ in commands]
    done = subprocess.run(
        ["bash", "-c", "exec 2>&1\n" + "\n".join(script)],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    outputs = done.stdout.split(mark + "\n")
    assert len(outputs) == len(commands) + 1, done.stdout
    for (typed, *shown), made in zip(commands, outputs, strict=False):
        assert_same(shown, made.splitlines(), f"{where}, {typed!r},")
