"""The process and the loop in which a client was started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import anyio
import pytest

from kafkagroup.errors import IllegalStateError
from kafkagroup.transport import origin as origin_module
from kafkagroup.transport.origin import Origin


async def make() -> Origin:
    made = Origin("the client")
    made.check()
    return made


def in_thread(call: Callable[[], object]) -> None:
    """Run a call in a thread; raise its error."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_without_a_loop_is_at_home_in_its_thread_only(backend: str) -> None:
    made = anyio.run(make, backend=backend)
    made.check()
    with pytest.raises(IllegalStateError, match="the client works only in the event loop that"):
        in_thread(made.check)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_later_run_of_trio_in_the_same_thread_is_another_loop(backend: str) -> None:
    made = anyio.run(make, backend=backend)

    async def check() -> None:
        made.check()

    with pytest.raises(IllegalStateError, match="the client works only in the event loop that"):
        anyio.run(check, backend="trio")


def test_a_closed_loop_is_named() -> None:
    made = asyncio.run(make())

    async def check() -> None:
        made.check()

    closed = (
        r"^the client works only in the event loop that started it, <\w+ running=False closed=True"
        r" debug=False> in thread 'MainThread', which is closed: make and start another one in"
        r" this loop$"
    )
    with pytest.raises(IllegalStateError, match=closed):
        asyncio.run(check())


def test_a_fork_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = asyncio.run(make())
    assert made.fork_message == ""
    monkeypatch.setattr(origin_module, "_forks", origin_module._forks + 1)
    fork = (
        r"^the client works only in process \d+, which started it, and this is process \d+, forked"
    )
    with pytest.raises(IllegalStateError, match=fork):
        made.check()
