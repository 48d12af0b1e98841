"""Signals as an async iterator, also where the loop and the `signal` module lack what POSIX has."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import anyio
import pytest

from kafkagroup import open_signal_receiver
from kafkagroup._signals import signals_of

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)  # in real time: signals come from the system


@pytest.fixture(params=["POSIX", "Windows"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Windows":
        for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGSTOP", "SIGCONT"):
            monkeypatch.delattr(signal, name)

        def refuse(*_: Any) -> None:
            raise NotImplementedError

        monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", refuse)
        monkeypatch.setattr(asyncio.SelectorEventLoop, "remove_signal_handler", refuse)
    return str(request.param)


async def test_receives_what_asks_a_program_to_end(platform: str) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with anyio.fail_after(20), open_signal_receiver() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        received = {await anext(signals), await anext(signals)}
    assert received == {signal.SIGINT, signal.SIGTERM}
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_the_handler_of_another_library_is_put_back(platform: str) -> None:
    """PySpark has one for SIGINT."""

    def handle(*_: object) -> None: ...

    before = signal.signal(signal.SIGINT, handle)
    try:
        with open_signal_receiver():
            assert signal.getsignal(signal.SIGINT) is not handle
        assert signal.getsignal(signal.SIGINT) is handle
    finally:
        signal.signal(signal.SIGINT, before)


async def test_an_ignored_signal_is_ignored_again(platform: str) -> None:
    """A shell ignores SIGINT in the background jobs of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with open_signal_receiver():
            assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_signal_wakes_a_task_that_waits_for_it(platform: str) -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(20), open_signal_receiver("SIGTERM") as signals:
            tasks.start_soon(raise_later)
            async for number in signals:
                assert number is signal.SIGTERM
                break


async def raise_later() -> None:
    await anyio.sleep(0.05)
    signal.raise_signal(signal.SIGTERM)


async def test_names_that_the_platform_lacks_are_left_out(platform: str) -> None:
    names = ("SIGTERM", "SIGHUP", "SIGBREAK")
    expected = [signal.SIGTERM] if platform == "Windows" else [signal.SIGTERM, signal.SIGHUP]
    assert list(signals_of(*names)) == expected
    with open_signal_receiver(*names):
        pass


async def test_an_error_of_the_caller_leaves_bare(platform: str) -> None:
    """Also one that the receiver itself catches when it opens."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(NotImplementedError, match="of the caller"), open_signal_receiver():
        raise NotImplementedError("of the caller")
    assert signal.getsignal(signal.SIGTERM) == before
