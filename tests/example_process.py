"""The examples as child processes, in Python's development mode with warnings as errors: resources
left open are reported on stderr."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

__all__ = ["end", "output_of", "read_until", "running"]

_EXAMPLES = Path(__file__).parents[1] / "examples"

_SLOW = re.compile(r"^Executing <.* took \d+\.\d+ seconds\n", re.MULTILINE)
"""asyncio's debug mode, on a slow machine."""


@contextmanager
def running(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run an example; kill it at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", _EXAMPLES / script, *arguments],
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
