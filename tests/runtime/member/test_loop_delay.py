"""The measurement and the warnings of event loop delay."""

from __future__ import annotations

import pytest

from kafkagroup.runtime.member.loop_delay import LoopDelay


def test_the_largest_loop_delay_of_the_last_minute_is_kept() -> None:
    delay = LoopDelay("g", 45.0, threaded=False)
    kept = []
    for now, late in [(0, 0.0), (1, 0.2), (2, 0.7), (20, 0.1), (31, 0.3), (59, 0.0), (62, 0.1)]:
        delay.record(late, 100.0 + now)
        kept.append(delay.longest)
    assert kept == [0.0, 0.2, 0.7, 0.7, 0.7, 0.7, 0.3]


def test_a_loop_delay_before_a_pause_of_a_minute_is_not_kept() -> None:
    """It counted as one of the last minute for 30 seconds after the next report."""
    delay = LoopDelay("g", 450.0, threaded=False)
    kept = []
    for now, late in [(0, 0.7), (61, 0.1), (90, 0.0), (92, 0.0), (122, 0.0)]:
        delay.record(late, 100.0 + now)
        kept.append(delay.longest)
    assert kept == [0.7, 0.1, 0.1, 0.1, 0.0]


def test_an_early_wakeup_counts_as_no_delay() -> None:
    delay = LoopDelay("g", 45.0, threaded=False)
    delay.record(-0.5, 100.0)
    assert delay.longest == 0.0


@pytest.mark.anyio
@pytest.mark.parametrize(("session", "enough"), [(6.0, 2.0), (45.0, 5.0)])
async def test_loop_delay_that_endangers_the_session_is_warned_about_once_a_minute(
    caplog: pytest.LogCaptureFixture, session: float, enough: float
) -> None:
    delay = LoopDelay("g", session, threaded=False)
    delay.record(enough - 0.1, 100.0)
    delay.add_delay(enough, 101.0)
    assert caplog.messages == []
    for now in (102.0, 103.0, 161.9, 162.0):
        delay.record(enough + now / 100, now)
    assert caplog.messages == [
        f"group g: the event loop was late by {enough + late:.1f} s, which delayed heartbeats; run"
        " what blocks it in a thread, for example with anyio.to_thread.run_sync, or set"
        " heartbeat_thread=True"
        for late in (1.02, 1.62)
    ]


@pytest.mark.anyio
async def test_all_members_of_a_loop_share_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand members in one process once logged a thousand equal ones."""
    delays = [LoopDelay(f"g{n}", 45.0, threaded=n % 2 == 1) for n in range(1_000)]
    for n, delay in enumerate(delays):
        delay.record(6.0, 100.0 + n / 1_000)
    assert [message.partition(":")[0] for message in caplog.messages] == ["group g0"]
    assert {delay.longest for delay in delays} == {6.0}
