"""Commands as users run them: in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

KAFKAGROUP = (sys.executable, "-m", "kafkagroup")
TIMEOUT = 30.0
"""Seconds that a process may take to do what it should do at once."""

Program = subprocess.Popen[bytes]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", **more}


@contextmanager
def running(*arguments: str, **more: str) -> Iterator[Program]:
    """Run `kafkagroup ARGUMENTS` with pipes for all its streams; kill it afterwards if it still
    runs."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*KAFKAGROUP, *arguments], env=environment(**more), **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run it to its end."""
    return subprocess.run(
        [*KAFKAGROUP, *arguments],
        input=given,
        capture_output=True,
        env=environment(),
        timeout=TIMEOUT,
    )
