"""Faults of what surrounds a member: what each does in a run."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from .events import (
    Delivered,
    Ended,
    Event,
    Frozen,
    HeldOff,
    LoggingIn,
    LookedUp,
    Lost,
    OfMember,
    Responded,
    Sent,
    Silenced,
    Thawed,
)
from .outside import BROKERS_OPINIONS, ENABLED, OUTSIDE
from .plan import make_plan
from .run import run
from .schedule import Plan, PlannedAction
from .surroundings import LOGIN_TROUBLES, PARTINGS, STALLS, SURROUNDING_FAULTS, SURROUNDINGS


def plans(kind: str, protocol: str = "classic") -> Iterator[Plan]:
    """Yield the first plans that have this kind, without any other fault."""
    for seed in range(300):
        without = make_plan(seed, protocol=protocol, kinds=())
        plan = make_plan(seed, protocol=protocol, kinds=[kind])
        if plan == without or plan.shards:
            continue
        added = [action for action in plan.actions if action not in without.actions]
        quiet = attrs.evolve(plan, actions=tuple(added), dies_late="")
        yield attrs.evolve(quiet, backend="asyncio")


def events(plan: Plan) -> list[Event]:
    return list(run(plan).events)


def during(action: PlannedAction, found: list[Event]) -> list[Event]:
    return [e for e in found if action.at <= e.time < action.at + action.seconds]


def of_slot(event: Event, slot: str) -> bool:
    return isinstance(event, OfMember) and event.member.partition(".")[0] == slot


def test_the_runs_for_planted_bugs_have_these_kinds_only_if_they_need_them() -> None:
    assert not BROKERS_OPINIONS & SURROUNDINGS.keys()
    assert ENABLED == OUTSIDE.keys() == BROKERS_OPINIONS | SURROUNDINGS.keys()
    for seed in range(20):
        plan = make_plan(seed, kinds=BROKERS_OPINIONS)
        assert not {action.what for action in plan.actions} & SURROUNDING_FAULTS
        assert (plan.session_lifetime, plan.parting) == (None, "")


def test_the_runs_of_the_suite_meet_every_trouble() -> None:
    found = [make_plan(seed, kinds=ENABLED) for seed in range(240)]
    actions = [action for plan in found for action in plan.actions]
    assert {a.code for a in actions if a.what == "login_fails"} == set(LOGIN_TROUBLES)
    assert {a.code for a in actions if a.what == "part_badly"} == set(PARTINGS)
    assert {plan.parting for plan in found} == {*PARTINGS, "hidden", ""}
    assert {a.code for a in actions if a.what == "pass_by"} == {"stop", "cancel"}
    assert {a.code for a in actions if a.what == "stall"} == set(STALLS)
    assert {plan.session_lifetime for plan in found} == {None, 0.0, 4.0, 9.0}


def test_a_login_fails_for_a_while() -> None:
    refused = (
        event
        for plan in plans("logins")
        for action in plan.actions
        if (action.what, action.code) == ("login_fails", "refused")
        for event in during(action, events(plan))
        if of_slot(event, action.member) and isinstance(event, Responded)
        if event.api == "SaslAuthenticate" and event.error != "NONE"
    )
    assert next(refused).error == "SASL_AUTHENTICATION_FAILED"


def test_a_session_that_ends_is_renewed() -> None:
    plan = next(plan for plan in plans("logins") if plan.session_lifetime == 4.0)
    found = events(attrs.evolve(plan, actions=()))
    logins = [event.time for event in found if isinstance(event, LoggingIn)]
    assert any(time > plan.heal for time in logins)


def test_idle_connections_go_silent() -> None:
    """What is sent on them is lost; other connections work."""
    found = next(
        found
        for found in map(events, plans("silent_connections"))
        if any(isinstance(event, Silenced) for event in found)
    )
    silenced = next(event for event in found if isinstance(event, Silenced))
    later = found[found.index(silenced) :]
    assert not any(
        isinstance(event, Responded)
        and (event.member, event.connection) == (silenced.member, silenced.connection)
        for event in later
    )
    assert any(isinstance(e, Responded) and e.member == silenced.member for e in later)


def test_a_guest_ends_with_its_join() -> None:
    plan = next(plan for plan in plans("guests") if plan.actions[0].count == 1)
    found = [event for event in events(plan) if of_slot(event, "g1")]
    joins = [event for event in found if isinstance(event, Sent) and event.api == "JoinGroup"]
    assert joins
    assert isinstance(found[-1], Ended) or any(isinstance(event, Ended) for event in found)


def test_a_member_that_leaves_is_refused() -> None:
    plan = next(plan for plan in plans("partings") if plan.parting == "NOT_COORDINATOR")
    responses = [e for e in events(plan) if isinstance(e, Responded) and e.api == "LeaveGroup"]
    assert "NOT_COORDINATOR" in {event.error for event in responses}


def test_static_members_do_not_learn_that_they_have_joined() -> None:
    plan = next(plans("lost_joins", "consumer"))
    found = events(plan)
    answered = {(e.connection, e.correlation) for e in found if isinstance(e, Responded)}
    joins = [
        event
        for event in found
        if isinstance(event, Sent)
        and (event.api, event.generation) == ("ConsumerGroupHeartbeat", 0)
    ]
    assert any((join.connection, join.correlation) not in answered for join in joins)
    assert any(isinstance(event, HeldOff | Sent) for event in found)


def test_a_suspended_process_wakes_with_its_timers_behind() -> None:
    """Its heartbeat is due as long after the suspend as it was before."""
    for plan in plans("suspends"):
        action = plan.actions[0]
        member = next(m for m in plan.members if m.name == action.member)
        if member.start + 2 < action.at and member.leave is None and len(plan.actions) == 1:
            break
    found = [event for event in events(plan) if of_slot(event, action.member)]
    frozen = next(event for event in found if isinstance(event, Frozen))
    thawed = next(event for event in found if isinstance(event, Thawed))
    assert thawed.time - frozen.time == action.seconds
    assert not [e for e in found if frozen.time < e.time < thawed.time and not _is_passive(e)]


def test_a_process_stalls_between_two_records_until_its_lease_expires() -> None:
    """It had waited for records in every freeze, with nothing left to deliver when it resumed."""
    met = set()
    for plan in plans("stalls"):
        found = events(plan)
        for at, event in enumerate(found):
            if isinstance(event, Frozen):
                own = [e for e in found[:at] if of_slot(e, event.member.partition(".")[0])]
                assert isinstance(own[-1], Delivered)
                thawed = next(e for e in found[at:] if isinstance(e, Thawed))
                sent = [e for e in own if isinstance(e, Sent) and e.api == "Heartbeat"][-1]
                session = next(m.session for m in plan.members if of_slot(event, m.name))
                met.add(thawed.time > sent.time + session)
        if met == {False, True}:
            return
    raise AssertionError(met)


def _is_passive(event: Event) -> bool:
    """Whether the process need not run for it."""
    return not isinstance(event, Sent | Lost)


def test_name_servers_hang_for_a_while() -> None:
    looked_up = (
        event
        for plan in plans("busy_threads")
        for event in events(plan)
        if isinstance(event, LookedUp) and event.seconds > 0.5
    )
    assert next(looked_up).outcome == "ok"
