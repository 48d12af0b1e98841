"""The arithmetic of the benchmarks: with a wrong percentile, a missed target would look met."""

import pytest

from .figures import Figure, Least, Target, percentile, ratios, summary
from .gap import kept_gaps
from .members import Ownership, settled


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 5.0), (90, 9.0), (91, 10.0), (95, 10.0), (100, 10.0), (0, 1.0)]
)
def test_percentile_is_the_nearest_rank(percent, expected):
    assert percentile([10.0, *map(float, range(1, 10))], percent) == expected


@pytest.mark.parametrize(
    ("target", "values", "met"),
    [
        (Target(50, 1.0), (0.5, 1.0, 9.0), True),
        (Target(50, 1.0), (0.5, 1.6), False),
        (Target(95, 1.0), (*[0.5] * 19, 9.0), True),
        (Target(95, 1.0), (*[0.5] * 18, 9.0, 9.0), False),
        (Target(100, 1.0), (0.5, 1.1), False),
    ],
)
def test_a_target_is_met_or_missed(target, values, met):
    assert target.met(values) is met
    assert Figure(what="x", client="kafkagroup", values=values, target=target).missed is not met


@pytest.mark.parametrize(
    ("values", "met"), [((8.0,), True), ((1.0, 8.1, 9.0), True), ((7.9, 7.9, 99.0), False)]
)
def test_a_lower_bound_applies_to_the_median(values, met):
    target = Least(8.0)
    assert target.met(values) is met
    assert Figure(what="x", client="kafkagroup", values=values, target=target).missed is not met


def test_ratios_compare_values_of_the_same_round():
    ours = Figure(what="x", client="kafkagroup", values=(2.0, 9.0, 3.0))
    peer = Figure(what="x", client="aiokafka", values=(1.0, 3.0))
    assert ratios(ours, peer) == (2.0, 3.0)
    assert ratios(ours, Figure(what="x", client="aiokafka", values=(0.0, 3.0))) == (3.0,)


def test_without_rounds_the_promised_percentile_is_compared():
    target = Target(100, 9.0)
    ours = Figure(what="x", client="kafkagroup", values=(1.0, 6.0), paired=False, target=target)
    peer = Figure(what="x", client="aiokafka", values=(2.0, 3.0, 1.0), paired=False)
    assert ratios(ours, peer) == (2.0,)
    assert ratios(peer, ours) == (2.0,)
    assert ratios(ours, Figure(what="x", client="aiokafka", values=(0.0,))) == ()


def test_tell_formats_median_and_range():
    assert summary([1.0, 2.123, 4.0]) == "2.12 (1-4)"
    assert summary([145_000.0]) == "145 k"


def test_only_partitions_that_stayed_have_gaps():
    reads = {
        0: [(0.0, 1), (1.0, 1), (3.0, 1), (4.0, 1), (9.0, 1)],  # the last pair is behind the span
        1: [(0.0, 1), (2.0, 2), (5.0, 2)],  # moved
        2: [(0.5, 2), (6.0, 2)],  # without messages
        3: [(0.0, 2), (0.9, 2)],  # nothing in the span
    }
    assert kept_gaps(reads, (1.0, 4.0)) == [2.0, 5.5]


class _ReportedSaslError:
    def __init__(self, *partitions):
        self.ownership = Ownership(frozenset(partitions), changed_at=float(len(partitions)))


@pytest.mark.asyncio
async def test_a_rebalance_ends_when_the_last_member_was_notified():
    assert await settled([_ReportedSaslError(0, 1), _ReportedSaslError(2)], 3, 0.0) == 2.0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "members",
    [
        [_ReportedSaslError(0, 1), _ReportedSaslError(1, 2)],
        [_ReportedSaslError(0), _ReportedSaslError(2)],
        [_ReportedSaslError(0, 1, 2), _ReportedSaslError()],
    ],
)
async def test_a_rebalance_has_not_ended_without_one_owner_each(members, monkeypatch):
    monkeypatch.setattr("bench.members._TIMEOUT", 0.0)
    with pytest.raises(TimeoutError):
        await settled(members, 3, 0.0)
