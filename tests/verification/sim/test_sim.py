"""Simulated runs with at least twenty faults each: no violations, and each run is repeatable."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import pytest

from kafkagroup.testing.embedded import server
from kafkagroup.transport import dialing
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.transport.names import Names

from .events import (
    Assigned,
    Delivered,
    Formed,
    Frozen,
    Healed,
    Joined,
    Killed,
    Lost,
    Revoked,
    Sent,
    Worked,
)
from .loop import _Loop
from .many import Outcome, run_one
from .plan import FAULTS, PROTOCOLS, make_plan
from .replay import command
from .run import run
from .schedule import from_json, to_json
from .shrink import names, shrink, without

ROOT = Path(__file__).parents[3]
RUNS = 120
"""Classic runs; every tenth is on trio."""
FEW = 10
"""Runs of each protocol for `make test`."""
ASSIGNED = 30
"""Additional runs of KIP-848 groups."""


def quiet() -> None:
    logging.disable(logging.CRITICAL)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=quiet) as processes:
        yield processes


@pytest.fixture(scope="module")
def outcomes(pool: ProcessPoolExecutor) -> list[Outcome]:
    """Run the first seeds in two processes, and return their outcomes."""
    return list(pool.map(run_one, range(RUNS), chunksize=4))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_few_runs_break_no_invariant(protocol: str) -> None:
    outcomes = [run_one(seed, protocol=protocol) for seed in range(FEW)]
    assert {command(o.seed, protocol=protocol): o.wrong for o in outcomes if o.wrong} == {}
    assert len(outcomes) == FEW


@pytest.mark.long
def test_a_hundred_runs_break_no_invariant(outcomes: list[Outcome]) -> None:
    wrong = {command(o.seed): o.wrong for o in outcomes if o.wrong}
    assert wrong == {}
    assert len(outcomes) == RUNS
    assert min(o.members for o in outcomes) == 3
    assert max(o.members for o in outcomes) == 12
    assert min(o.faults for o in outcomes) >= 20


def test_a_hundred_runs_meet_every_kind_of_fault() -> None:
    plans = [make_plan(seed) for seed in range(RUNS)]
    met = {action.what for plan in plans for action in plan.actions}
    assert set(FAULTS) <= met
    assert {plan.backend for plan in plans} == {"asyncio", "trio"}


def test_the_faults_of_members_are_recorded() -> None:
    """A simulation without events would have no violations either."""
    seen = {type(event) for seed in range(12) for event in run(make_plan(seed)).events}
    assert {Assigned, Delivered, Frozen, Healed, Joined, Killed, Lost, Revoked} <= seen


def test_every_eighth_run_has_group_members_with_shards() -> None:
    plans = [make_plan(seed) for seed in range(RUNS)]
    assert sum(plan.shards > 0 for plan in plans) == RUNS / 8
    assert {plan.backend for plan in plans if plan.shards} == {"asyncio", "trio"}
    seen = {type(event) for seed in (7, 15, 23, 39) for event in run(make_plan(seed)).events}
    assert {Assigned, Frozen, Healed, Joined, Killed, Revoked, Worked} <= seen
    assert Delivered not in seen


@pytest.mark.long
def test_runs_of_the_consumer_protocol_break_no_invariant(
    pool: ProcessPoolExecutor,
) -> None:
    one = partial(run_one, protocol="consumer")
    outcomes = list(pool.map(one, range(ASSIGNED), chunksize=2))
    wrong = {command(o.seed, protocol="consumer"): o.wrong for o in outcomes if o.wrong}
    assert wrong == {}
    assert len(outcomes) == ASSIGNED


def test_runs_of_the_consumer_protocol_have_every_option_and_fault() -> None:
    plans = [make_plan(seed, protocol="consumer") for seed in range(ASSIGNED)]
    members = [member for plan in plans for member in plan.members]
    assert {m.protocol for m in members} == {"consumer", "auto"}
    assert {m.remote_assignor for m in members} == {None, "uniform", "range"}
    assert {m.pattern for m in members} == {True, False}
    assert {m.instance is None for m in members} == {True, False}
    assert {plan.assigns_every for plan in plans} == {0.0, 1.0}
    assert {plan.backend for plan in plans} == {"asyncio", "trio"}
    codes = {
        action.code
        for plan in plans
        for action in plan.actions
        if action.api == "ConsumerGroupHeartbeat"
    }
    assert codes > {"FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "NOT_COORDINATOR"}
    apis = {action.api for plan in plans for action in plan.actions}
    assert not apis & {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"}
    events = [e for seed in range(6) for e in run(make_plan(seed, protocol="consumer")).events]
    seen = {type(event) for event in events}
    assert {Assigned, Delivered, Formed, Frozen, Healed, Joined, Killed, Lost, Revoked} <= seen
    asked = {event.api for event in events if isinstance(event, Sent)}
    assert "ConsumerGroupHeartbeat" in asked
    assert not asked & {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (7, 9))]
)
def test_a_seed_replays_identically_with_any_hash_seed(seed: int, protocol: str) -> None:
    def digest(hash_seed: str) -> str:
        asked = [sys.executable, "-m", "tests.verification.sim", "--seed", str(seed), "--digest"]
        asked += ["--protocol", protocol]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    here = run(make_plan(seed, protocol=protocol)).digest()
    assert {digest(hash_seed) for hash_seed in ("0", "1", "77")} == {here}


def test_a_member_rejoins_after_its_coordinator_was_unreachable_during_a_rebalance() -> None:
    assert run_one(21752).wrong == ()


@pytest.mark.parametrize(
    ("seed", "protocol"),
    [(20015, "classic"), (20841, "classic"), (213, "consumer"), (2746, "consumer")],
)
def test_a_group_has_time_to_catch_up_after_its_committed_offset_moved_back(
    seed: int, protocol: str
) -> None:
    """If a member closed after it had sought back, or past its last commit, the group's commit
    stayed there; likewise where a truncated log had grown to exactly the group's commit."""
    assert run_one(seed, protocol).wrong == ()


def test_different_seeds_give_different_runs() -> None:
    plan = make_plan(3)
    other = from_json(to_json(plan).replace('"seed": 3', '"seed": 4', 1))
    assert run(plan).digest() != run(other).digest()


def test_a_plan_survives_a_round_trip_through_json() -> None:
    plan = make_plan(5)
    assert from_json(to_json(plan)) == plan


def test_a_shrunk_plan_keeps_only_what_the_failure_needs() -> None:
    plan = make_plan(3)
    cause = plan.actions[4]

    def fails(tried: object) -> bool:
        return cause in tried.actions and len(tried.members) > 1  # type: ignore[attr-defined]

    left_out = shrink(plan, fails)
    least = without(plan, left_out)
    assert least.actions == (cause,)
    assert len(least.members) == 2
    assert set(left_out) < set(names(plan))


def test_leaving_out_an_unknown_part_of_a_plan_is_an_error() -> None:
    with pytest.raises(ValueError, match="the plan of seed 3 has no d999, m99"):
        without(make_plan(3), ["d999", "m99"])


class Stopped(BaseException):
    """Ends a run from within the event loop, as an alarm does."""


def test_a_run_that_is_stopped_anywhere_leaves_no_patch(monkeypatch):
    """The loop stops for good, so that the run's coroutines are abandoned where they wait."""
    steps = itertools.count()
    run_once = _Loop._run_once

    def stop(loop: _Loop) -> None:
        if next(steps) > 500:
            raise Stopped
        run_once(loop)

    monkeypatch.setattr(_Loop, "_run_once", stop)
    watched = (
        lambda: BrokerConnection._send,
        lambda: anyio.current_time,
        lambda: dialing.connect,
        lambda: Names.resolve,
        lambda: server.handle,
    )
    before = [read() for read in watched]
    with pytest.raises(Stopped) as abandoned:
        run(make_plan(1))
    assert abandoned
    assert [read() for read in watched] == before
