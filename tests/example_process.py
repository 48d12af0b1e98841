"""The examples as child processes, in Python's development mode with warnings as errors: resources
left open are reported on stderr."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

import pytest

__all__ = ["end", "output_of", "read_until", "running", "started"]

_EXAMPLES = Path(__file__).parents[1] / "examples"

_SLOW = re.compile(r"^Executing <.* took \d+\.\d+ seconds\n", re.MULTILINE)
"""asyncio's debug mode, on a slow machine."""


def running(script: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run an example; kill it at the end if it still runs."""
    return started("-X", "dev", "-W", "error", _EXAMPLES / script, *arguments)


@contextmanager
def started(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a Python with these arguments; kill it at the end if it still runs. `environment`: all
    that it has; None: that of the tests."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(stream: IO[str] | None, pattern: str) -> re.Match[str]:
    """Return the first match in a line of the stream. The test fails if the process ends before."""
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line)
        if found := re.search(pattern, line):
            return found
    pytest.fail(f"no {pattern!r} in {lines}")


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[str, str]:
    """Send a signal, and return the rest of stdout and stderr once the process has ended."""
    process.send_signal(number)
    return output_of(process)


def output_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the rest of stdout and stderr once the process has ended by itself."""
    output, errors = process.communicate(timeout=60)
    return output, _SLOW.sub("", errors)
