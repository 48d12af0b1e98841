"""Stdin and stdout of commands, in threads."""

import sys

import anyio
import pytest

from kafkagroup.cli import _pipes
from kafkagroup.cli._first import first

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


async def test_a_closed_stdout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await _pipes.write_stdout(b"lost")


async def test_the_first_function_that_ends_has_the_result() -> None:
    """Another one failed while it was being cancelled, and its error was raised instead."""

    async def ends() -> str:
        return "done"

    async def fails_at_the_end() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("in the clean-up")

    assert await first(fails_at_the_end, ends) == "done"


async def test_the_error_of_the_first_function_that_ends_is_raised() -> None:
    async def fails() -> str:
        raise OSError("at once")

    async def waits() -> str:
        await anyio.sleep_forever()
        return "never"

    with pytest.raises(OSError, match="at once"):
        await first(waits, fails)
