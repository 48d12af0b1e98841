"""Fixtures for all tests: each async test runs on asyncio and on trio, both in virtual time.

A test with real sockets or threads overrides `anyio_backend` in its own module.
"""

from __future__ import annotations

import asyncio
import math
import os
import selectors
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import anyio
import pytest
import trio.testing
from hypothesis import settings

from kafkagroup.concurrency import clock
from kafkagroup.runtime.client import late_modules
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.transport import dialing
from kafkagroup.transport.names import Names, Resolved

_TIMEOUT = 5.0
"""Real seconds that a loop without timers waits for a thread before the test counts as
deadlocked."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background jobs with SIGINT ignored, and every process
    # they start inherits that: no test of Ctrl-C could end.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples in every run, so that a failure comes from a change of the code; and no time
# limit, which a busy machine would exceed.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")

# Before any test: in virtual time a thread that imports would make the first one differ.
for _names in [value for value in vars(late_modules).values() if isinstance(value, tuple)]:
    for _name in _names:
        import_module(_name)

# The fixture `kafka`: real Kafka where there is one.
os.environ.setdefault("KAFKAGROUP_KAFKA", "any")


_CONNECT_TCP, _CONNECT, _RESOLVE = anyio.connect_tcp, dialing.connect, Names.resolve
"""What `connect` and `resolve` below call, unless a test has replaced `anyio.connect_tcp`: with a
network that has names of its own, which no thread looks up."""


async def connect(family: int, address: Any, source: Any) -> Any:
    if anyio.connect_tcp is _CONNECT_TCP:
        return await _CONNECT(family, address, source)
    local = {} if source is None else {"local_host": source[0], "local_port": source[1] or None}
    return await anyio.connect_tcp(*address[:2], **local)


async def resolve(self: Names, host: str, until: float = math.inf) -> Resolved:
    if anyio.connect_tcp is _CONNECT_TCP:
        return await _RESOLVE(self, host, until)
    return Resolved([(0, (host, 0))])


dialing.connect = connect
Names.resolve = resolve  # type: ignore[method-assign]


class _VirtualSelector(selectors.DefaultSelector):
    """Advances the clock where the loop would sleep."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if ready := super().select(0):
            return ready
        if timeout is None:
            if ready := super().select(_TIMEOUT):
                return ready
            raise RuntimeError("deadlock: every task waits, and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time advances only when nothing is ready to run."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Choose the xdist worker of each test; keep any `--dist` other than `load`."""
    if config.getvalue("dist") != "load":
        return None
    # Imported here: runs without workers, and Pythons without pytest-xdist, must not import it.
    from workers import Schedule

    return Schedule(config, log)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param == "asyncio":
        return "asyncio", {"loop_factory": VirtualLoop}
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


@pytest.fixture
def suspend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Suspend the system for some seconds, which the loop's clock does not count: only the clock
    of leases that start under this fixture does."""
    suspended = 0.0

    def sleep(seconds: float) -> None:
        nonlocal suspended
        suspended += seconds

    def counting() -> float:
        return anyio.current_time() + suspended

    monkeypatch.setattr(clock, "_counting_clock", lambda: counting)
    monkeypatch.setattr(clock, "_is_real_time", lambda: True)
    return sleep


@pytest.fixture(scope="session")
def embedded() -> Iterator[str]:
    """Return the address of an embedded broker that all tests share."""
    with EmbeddedKafka() as broker:
        yield broker.bootstrap_servers
