"""A deadline interrupts any wait of the main thread."""

import signal
import time

import pytest
from deadline import TooSlowError, deadline


def test_an_overdue_step_fails_by_name():
    began = time.monotonic()
    with pytest.raises(TooSlowError, match=r"a wait was not over within 0\.01 s"):
        with deadline(0.01, "a wait"):
            signal.pause()
    assert time.monotonic() - began >= 0.01


def test_a_step_in_time_is_not_interrupted():
    before = signal.getsignal(signal.SIGALRM)
    with deadline(60.0, "nothing"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
