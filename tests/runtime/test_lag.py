"""The measurement and the warnings of event loop lag."""

from __future__ import annotations

import pytest

from kafkagroup.runtime.member.lag import LoopLag


def test_the_largest_loop_lag_of_the_last_minute_is_kept() -> None:
    lag = LoopLag("g", 45.0, threaded=False)
    kept = []
    for now, late in [(0, 0.0), (1, 0.2), (2, 0.7), (20, 0.1), (31, 0.3), (59, 0.0), (62, 0.1)]:
        lag.record(late, 100.0 + now)
        kept.append(lag.longest)
    assert kept == [0.0, 0.2, 0.7, 0.7, 0.7, 0.7, 0.3]


def test_an_early_wakeup_counts_as_no_lag() -> None:
    lag = LoopLag("g", 45.0, threaded=False)
    lag.record(-0.5, 100.0)
    assert lag.longest == 0.0


@pytest.mark.anyio
@pytest.mark.parametrize(("session", "enough"), [(6.0, 2.0), (45.0, 5.0)])
async def test_loop_lag_that_endangers_the_session_is_warned_about_once_a_minute(
    caplog: pytest.LogCaptureFixture, session: float, enough: float
) -> None:
    lag = LoopLag("g", session, threaded=False)
    lag.record(enough - 0.1, 100.0)
    lag.add_delay(enough, 101.0)
    assert caplog.messages == []
    for now in (102.0, 103.0, 161.9, 162.0):
        lag.record(enough + now / 100, now)
    assert caplog.messages == [
        f"group g: the event loop was late by {enough + late:.1f} s, which delayed heartbeats; run"
        " what blocks it in a thread, for example with anyio.to_thread.run_sync, or set"
        " heartbeat_thread=True"
        for late in (1.02, 1.62)
    ]


@pytest.mark.anyio
async def test_all_members_of_a_loop_share_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand members in one process once logged a thousand equal ones."""
    lags = [LoopLag(f"g{n}", 45.0, threaded=n % 2 == 1) for n in range(1_000)]
    for n, lag in enumerate(lags):
        lag.record(6.0, 100.0 + n / 1_000)
    assert [message.partition(":")[0] for message in caplog.messages] == ["group g0"]
    assert {lag.longest for lag in lags} == {6.0}
