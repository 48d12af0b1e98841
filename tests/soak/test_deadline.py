"""A deadline ends whatever the main thread waits for."""

import signal
import time

import pytest
from deadline import TooSlowError, deadline


def test_what_takes_too_long_fails_and_is_named():
    began = time.monotonic()
    with pytest.raises(TooSlowError, match=r"a wait was not over within 0\.01 s"):
        with deadline(0.01, "a wait"):
            signal.pause()
    assert time.monotonic() - began >= 0.01


def test_what_is_over_in_time_hears_no_more_of_it():
    before = signal.getsignal(signal.SIGALRM)
    with deadline(60.0, "nothing"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
