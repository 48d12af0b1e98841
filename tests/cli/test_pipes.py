"""Stdin and stdout of commands, in threads."""

import sys

import pytest

from kafkagroup.cli import _pipes

pytestmark = pytest.mark.anyio


async def test_a_closed_stdin_is_the_end_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no `sys.stdin` then: the thread failed, and the command waited for ever."""
    monkeypatch.setattr(sys, "stdin", None)
    assert await _pipes.read_stdin(10) == b""


async def test_what_fails_in_the_thread_is_raised() -> None:
    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await _pipes._in_thread(fail)
