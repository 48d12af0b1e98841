"""Meters: their values over the last minute. Only the test advances the time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from kafkagroup.runtime.member.metrics import GroupMeters, GroupMetrics, Meter, RequestMetrics


def test_a_meter_without_measurements() -> None:
    found = Meter().read(100.0)
    assert found.rate == 0.0
    assert math.isnan(found.average)
    assert math.isnan(found.maximum)


def test_rate_average_and_maximum() -> None:
    meter = Meter()
    for now, seconds in ((101.0, 1.0), (105.0, 0.25), (110.0, 0.25)):
        meter.record(now, seconds)
    assert meter.read(120.0) == RequestMetrics(rate=3 / 20, average=0.5, maximum=1.0)


def test_values_older_than_a_minute_are_dropped() -> None:
    meter = Meter()
    meter.record(105.0, 9.0)
    meter.record(115.0, 1.0)
    assert meter.read(159.0).maximum == 9.0
    # The window moves by ten seconds at a time: from 110 on.
    assert meter.read(160.0) == RequestMetrics(rate=1 / 50, average=1.0, maximum=1.0)
    assert meter.read(400.0).rate == 0.0


def test_a_new_meter_does_not_extrapolate_its_rate() -> None:
    meter = Meter()
    meter.record(100.0, 0.0)
    assert meter.read(100.0).rate == 1.0


def test_a_meter_can_be_read_by_another_thread() -> None:
    """It divided by zero between the first record of a slot and its count."""
    meter, read = Meter(), []

    def on_line(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        read.append(meter.read(105.0))
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        meter.record(101.0, 0.5)
        meter.record(102.0, 0.5)
    finally:
        sys.settrace(before)
    assert len(read) > 5
    assert {(one.average, one.maximum) for one in read if one.rate} == {(0.5, 0.5)}


def test_a_meter_keeps_sums_only() -> None:
    meter = Meter()
    for n in range(100_000):
        meter.record(n * 0.125, 0.5)
    assert len(meter._sums) == 6
    now = 99_999 * 0.125
    assert meter.read(now) == RequestMetrics(rate=480 / 59.875, average=0.5, maximum=0.5)


def test_the_metrics_of_a_member_have_all_meters() -> None:
    meters = GroupMeters()
    for meter in (meters.heartbeat, meters.join, meters.sync, meters.commit, meters.rebalance):
        meter.record(10.0, 1.0)
    measured = RequestMetrics(rate=1.0, average=1.0, maximum=1.0)
    assert meters.read(10.0) == GroupMetrics(
        heartbeat=measured, join=measured, sync=measured, commit=measured, rebalance=measured
    )
