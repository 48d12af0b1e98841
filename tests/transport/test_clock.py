"""The clock of leases: that it counts a suspend, and where it is the loop's."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kafkagroup.concurrency.clock import LeaseClock, lease_clock, loop_clock

BACKENDS: list[tuple[str, dict[str, Any]]] = [("asyncio", {}), ("trio", {})]
if sys.platform != "win32":
    BACKENDS.append(("asyncio", {"use_uvloop": True}))


async def current() -> LeaseClock:
    return lease_clock()


def under(backend: str, options: dict[str, Any]) -> LeaseClock:
    """Return the lease clock of a loop in real time."""
    if options:
        pytest.importorskip("uvloop", reason="NOT TESTED on uvloop: it is not installed")
    return anyio.run(current, backend=backend, backend_options=options)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The system's clocks by their id, to be set; others raise, as in a sandbox."""
    times: dict[int, float] = {}

    def gettime(clock_id: int) -> float:
        if clock_id not in times:
            raise OSError(22, "Invalid argument")
        return times[clock_id]

    monkeypatch.setattr(time, "clock_gettime", gettime, raising=False)
    return times


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_linux_has_a_clock_that_counts_suspends(
    clocks: dict[int, float],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    clocks[7] = 1000.0
    clock = under(backend, options)
    began_at = clock.now()
    clocks[7] += 3600.0  # the loop's clock has not moved
    assert clock.now() - began_at == 3600.0
    assert clock.system_id == 7


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_macos_counts_suspends_on_its_clock_monotonic(
    clocks: dict[int, float],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    options: dict[str, Any],
) -> None:
    """Python's `time.monotonic` is another clock there, which stands still."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "CLOCK_MONOTONIC", 6, raising=False)
    clocks[6] = 1000.0
    clock = under(backend, options)
    clocks[6] += 3600.0
    assert clock.now() == 4600.0
    assert clock.system_id == 6
    assert clock.system_id == 6


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
@pytest.mark.parametrize("lacks", ["the constant", "the clock"])
def test_elsewhere_leases_run_on_the_loops_clock(
    clocks: dict[int, float],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    options: dict[str, Any],
    lacks: str,
) -> None:
    """Windows counts suspends there, too. The BSDs do not say; a sandbox may know no other."""
    monkeypatch.setattr(sys, "platform", "freebsd14" if lacks == "the constant" else "linux")
    if lacks == "the constant":
        monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    clock = under(backend, options)
    assert clock.now == clock.loop_now
    assert clock.system_id is None


def test_the_wall_clock_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> float:
        raise AssertionError("the wall clock jumps")

    monkeypatch.setattr(time, "time", fail)
    monkeypatch.setattr(time, "time_ns", fail)
    clock = under("asyncio", {})
    assert clock.now() <= clock.now()


@pytest.mark.anyio
async def test_virtual_time_is_never_suspended() -> None:
    clock = lease_clock()
    assert (clock.now, clock.now()) == (loop_clock(), anyio.current_time())
    assert clock.in_loop_time(12.5) == 12.5


@pytest.mark.anyio
async def test_a_moment_comes_sooner_on_the_loops_clock_after_a_suspend(
    suspend: Callable[[float], None],
) -> None:
    clock = lease_clock()
    expires_at = clock.now() + 45.0
    assert clock.in_loop_time(expires_at) == anyio.current_time() + 45.0
    suspend(40.0)
    assert clock.in_loop_time(expires_at) == anyio.current_time() + 5.0
    suspend(3600.0)
    assert clock.in_loop_time(expires_at) == anyio.current_time() - 3595.0


@pytest.mark.anyio
async def test_a_wait_for_the_end_of_a_lease_notices_a_suspend(
    suspend: Callable[[float], None],
) -> None:
    """A timer of the loop would wait for the rest of the lease after the suspend."""
    clock, began_at = lease_clock(), anyio.current_time()

    async def close_the_lid() -> None:
        await anyio.sleep(1.0)
        suspend(60.0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close_the_lid)
        await clock.sleep_out(lambda: began_at + 45.0 - clock.now())
        assert anyio.current_time() - began_at == pytest.approx(1.0, abs=0.11)


@pytest.mark.anyio
async def test_without_a_suspend_a_lease_is_waited_for_exactly(
    suspend: Callable[[float], None],
) -> None:
    clock, began_at = lease_clock(), anyio.current_time()
    await clock.sleep_out(lambda: began_at + 45.0 - clock.now())
    assert anyio.current_time() - began_at == pytest.approx(45.0)
