"""What processes use: without its workers, a Spark session would look small and idle."""

import subprocess
import sys

import pytest

from .processes import cpu_time, memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures by /proc")

_BUSY = """
kept = b"x" * 50_000_000
while __import__("time").process_time() < 0.3:
    pass
print("ready", flush=True)
input()
"""
_WITH_CHILD = f"__import__('subprocess').run(['{sys.executable}', '-c', {_BUSY!r}])"


def test_children_count():
    command = [sys.executable, "-c", _WITH_CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        assert memory(parent.pid) >= 50_000_000
        assert cpu_time(parent.pid) >= 0.3
        parent.stdin.close()
    assert memory(parent.pid) == cpu_time(parent.pid) == 0
