"""When a client's cluster has changed, and when it must bootstrap again."""

from __future__ import annotations

from typing import Any

import pytest

from kafkagroup.errors import ClusterChangedError
from kafkagroup.transport.recovery import Attempts, Recovery, Survey

A, B = ("a", 1), ("b", 2)


def test_one_round_is_an_opinion() -> None:
    survey = Survey()
    assert survey.on_round(0.0, "ours", Attempts(foreign={A: "theirs"})) is None
    error = survey.on_round(1.0, "ours", Attempts(foreign={A: "theirs"}))
    assert isinstance(error, ClusterChangedError)
    assert (error.expected, error.found, error.address) == ("ours", "theirs", "a:1")


def test_an_address_that_led_to_the_clients_cluster_by_then_is_not_the_other_one() -> None:
    """The client adopts a cluster while the bootstrap addresses are asked."""
    survey = Survey()
    for now in (0.0, 1.0):
        error = survey.on_round(now, "ours", Attempts(foreign={A: "ours", B: "theirs"}))
    assert error is not None
    assert (error.found, error.address) == ("theirs", "b:2")


@pytest.mark.parametrize(
    ("rounds", "changed"),
    [
        pytest.param([(0.0, {A: "x"}, 1), (9.9, {A: "x"}, 1)], False, id="a silent address"),
        pytest.param([(0.0, {A: "x"}, 1), (10.0, {A: "x"}, 1)], True, id="silent for long"),
        pytest.param([(0.0, {A: "x"}, 0), (1.0, {A: "y"}, 0)], False, id="another one"),
        pytest.param([(0.0, {A: "x", B: "y"}, 0)] * 2, False, id="different ones"),
        pytest.param([(0.0, {A: "x"}, 0), (31.0, {A: "x"}, 0)], False, id="long ago"),
        pytest.param([(0.0, {A: "x"}, 0), (1.0, {}, 1), (2.0, {A: "x"}, 0)], False, id="a gap"),
        pytest.param([(0.0, {A: "ours"}, 0), (1.0, {A: "ours"}, 0)], False, id="adopted"),
    ],
)
def test_when_the_cluster_has_changed(rounds: Any, changed: bool) -> None:
    survey = Survey()
    found = [
        survey.on_round(now, "ours", Attempts(foreign=ids, silent_count=silent))
        for now, ids, silent in rounds
    ]
    assert (found[-1] is not None) == changed


def test_a_client_bootstraps_again_once_no_known_broker_has_responded_for_long() -> None:
    recovery = Recovery(300.0)
    recovery.on_failure(10.0)
    recovery.on_failure(200.0)
    assert [recovery.is_rebootstrap_due(now) for now in (309.0, 310.0)] == [False, True]
    recovery.on_response()
    assert not recovery.is_rebootstrap_due(1_000.0)
    recovery.on_failure(1_000.0)
    assert [recovery.is_rebootstrap_due(now) for now in (1_299.0, 1_300.0)] == [False, True]
    recovery.on_rebootstrap()
    assert not recovery.is_rebootstrap_due(1_300.0)


def test_a_failure_counts_from_the_zero_of_the_clock_on() -> None:
    recovery = Recovery(300.0)
    recovery.on_failure(0.0)
    recovery.on_failure(200.0)
    assert [recovery.is_rebootstrap_due(now) for now in (299.0, 300.0)] == [False, True]


def test_brokers_may_require_it_every_five_seconds() -> None:
    recovery = Recovery(300.0)
    assert [recovery.may_rebootstrap(now) for now in (0.0, 4.9, 5.0, 9.9)] == [
        True,
        False,
        True,
        False,
    ]
