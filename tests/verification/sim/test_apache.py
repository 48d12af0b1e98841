"""Simulated groups at Apache's own coordinator: no violations, and each run is repeatable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from kafkagroup.testing._jars import LocalKafkaUnavailable
from kafkagroup.wire.messages.consumer_describe import (
    Assignment,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from tests.verification.lockstep.apache_groups import ApacheGroups

from .apache import ApacheView
from .checker import examine
from .events import Finished, Formed, Killed
from .plan import PROTOCOLS, make_plan
from .run import SimulatedRun, run

ROOT = Path(__file__).parents[3]
RUNS = 5
"""Of each protocol, for `make test`."""


def _run(seed: int, protocol: str) -> SimulatedRun:
    try:
        return run(make_plan(seed, protocol=protocol), "apache")
    except LocalKafkaUnavailable as error:
        pytest.skip(f"the simulation is NOT RUN on Apache's coordinator: {error}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_run_violates_an_invariant(protocol: str) -> None:
    runs = [_run(seed, protocol) for seed in range(RUNS)]
    assert [examine(simulated.events).violations for simulated in runs] == [()] * RUNS
    # What the checker learns from the coordinator.
    for simulated in runs:
        *_, finished = simulated.events
        assert isinstance(finished, Finished)
        # The coordinator may have forgotten some commits.
        assert set() < finished.committed.keys() <= finished.ends.keys()
    kinds = {type(event) for simulated in runs for event in simulated.events}
    assert {Formed, Killed} <= kinds


class _Described:
    """Describes a group of these members, which are assigned nothing."""

    def __init__(self, *members: Member) -> None:
        self._group = DescribedGroup(
            error_code=0,
            group_id="g",
            group_state="Stable",
            group_epoch=2,
            assignment_epoch=2,
            assignor_name="uniform",
            members=members,
        )

    def ask(self, request: object, version: int) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=(self._group,))

    def partition_counts(self) -> dict[str, int]:
        return {"t0": 1}


def _member(name: str, *topics: str, pattern: str | None = None) -> Member:
    return Member(
        member_id=name,
        member_epoch=1,
        client_id=name,
        client_host="/127.0.0.1",
        subscribed_topic_names=topics,
        subscribed_topic_regex=pattern,
        assignment=Assignment(topic_partitions=()),
        target_assignment=Assignment(topic_partitions=()),
    )


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (_member("b", "t0"), {"a": ("t0",), "b": ("t0",)}),
        (_member("b", pattern="t.*"), {"a": (), "b": ()}),
    ],
    ids=["names", "pattern"],
)
def test_a_group_with_patterns_may_be_assigned_nothing(
    other: Member, expected: dict[str, tuple[str, ...]]
) -> None:
    """Kafka 4.3.1 does that when a member with a pattern comes back."""
    described = cast(ApacheGroups, _Described(_member("a", "t0"), other))
    target = ApacheView(described, "g").target()
    assert target is not None
    assert target.subscriptions == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_seed_replays_identically_in_another_jvm(protocol: str) -> None:
    asked = [sys.executable, "-m", "tests.verification.sim", "--seed", "3", "--digest"]
    asked += ["--protocol", protocol, "--broker", "apache"]
    here = _run(3, protocol).digest()
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here
