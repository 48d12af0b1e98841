"""The checker detects violations of S27 and L12 to L17, and reports nothing else.

The stories are built like those of `test_checker`, with the same helpers.
"""

import pytest

from verification.sim.events import (
    Borrowed,
    Closing,
    Committed,
    Committing,
    Connecting,
    Ended,
    Frozen,
    HeldOff,
    LoggingIn,
    LookedUp,
    Missed,
    Raised,
    Sent,
    Silenced,
    StillCounted,
    Thawed,
)
from verification.sim.test_checker import (
    T0,
    broken,
    commits,
    delivers,
    first_join,
    heartbeats,
    leaves,
    of,
    opening,
    request,
    revokes,
    starts,
    works,
)

# ------------------------------------------------------------------ S27: leases


def owner(**options):
    return [opening(**options), starts(1, {T0: 0})]


def test_s27_nothing_is_delivered_after_the_lease_has_expired():
    """The session of 6 s begins when the last heartbeat was issued."""
    assert broken(owner(), 5.5, delivers(0)) == []
    assert broken(owner(), 6.5, delivers(0)) == ["S27"]
    assert broken(owner(), 5.5, heartbeats(connection=2), 5.5, delivers(0)) == []


def test_s27_is_asserted_in_virtual_time_only():
    """Another process may have run between the client's check and the record of the delivery."""
    assert broken(owner(), 6.5, delivers(0), virtual=False) == []


def test_s27_a_suspend_extends_no_lease():
    """The clock of the loop stands still; that of the coordinator does not."""
    suspended = [of(Frozen), 7.0, of(Thawed)]
    assert broken(owner(), suspended, delivers(0)) == ["S27"]
    assert broken(owner(), suspended, heartbeats(), delivers(0)) == []


def test_s27_a_group_member_does_not_work_on_a_shard_after_its_lease():
    member = [opening(shards=True), starts(1, {T0: 0})]
    assert broken(member, 5.5, works()) == []
    assert broken(member, 6.5, works()) == ["S27"]
    assert broken(member, of(Frozen), 6.5, of(Thawed), 0.05, works()) == ["S27"]
    suspended = of(Frozen, suspended=True), 6.5, of(Thawed)
    assert broken(member, suspended, 0.09, works()) == []
    assert broken(member, suspended, 0.11, works()) == ["S27"]


# ------------------------------------------------------------------ L12: leaving


COUNTED = of(StillCounted, ids=("A",))


def closing(seconds, *requests):
    return [of(Closing), revokes(T0), requests, seconds, of(Ended)]


@pytest.mark.parametrize(
    "error", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "REQUEST_TIMED_OUT"]
)
def test_l12_a_member_tries_to_leave_until_its_close_timeout(error):
    refused = request("LeaveGroup", asked={"member_id": "A"}, error=error)
    assert broken(owner(close_timeout=5.0), closing(0.1, leaves())) == []
    assert broken(owner(close_timeout=5.0), closing(0.1, refused), COUNTED) == ["L12"]
    assert broken(owner(close_timeout=5.0), closing(0.1), COUNTED) == ["L12"]
    assert broken(owner(close_timeout=5.0), closing(4.8, refused), COUNTED) == []


def test_l12_the_close_timeout_expires_while_the_process_is_frozen():
    frozen = [of(Closing), revokes(T0), of(Frozen), 4.8, of(Thawed), of(Ended)]
    assert broken(owner(close_timeout=5.0), frozen, COUNTED) == []
    assert broken(owner(close_timeout=5.5), frozen, COUNTED) == ["L12"]


@pytest.mark.parametrize("error", ["GROUP_AUTHORIZATION_FAILED", "UNKNOWN_MEMBER_ID"])
def test_l12_a_final_refusal_ends_it(error):
    refused = request("LeaveGroup", asked={"member_id": "A"}, error=error)
    unknown = request("FindCoordinator", error="GROUP_AUTHORIZATION_FAILED")
    assert broken(owner(), closing(0.1, refused), COUNTED) == []
    assert broken(owner(), closing(0.1, unknown), COUNTED) == []


def test_l12_a_coordinator_that_has_answered_may_count_the_member_again():
    """It failed before it has stored the next generation."""
    assert broken(owner(), closing(0.1, leaves()), COUNTED) == []


def test_l12_another_id_of_the_client_is_of_a_join_whose_response_was_lost():
    other = of(StillCounted, ids=("a-other",))
    assert broken(owner(), closing(0.1, leaves()), other) == []


def test_l12_a_classic_static_member_stays():
    static = owner(instance="i")
    assert broken(static, closing(0.1), COUNTED) == []


def test_l12_a_member_waits_for_the_id_that_its_first_join_asked_for():
    asked = request("JoinGroup", is_answered=False)
    missed, counted = of(Missed, connection=1), of(StillCounted, ids=("a-1",))
    ends = [of(Closing), of(Ended)]
    assert broken(opening(), asked, ends, missed, counted) == ["L12"]
    assert broken(opening(), asked, ends, counted) == []  # the connection had broken
    assert broken(opening(), asked, of(Closing), 2.1, of(Ended), missed, counted) == []
    again = request("JoinGroup", is_answered=False, connection=2)
    assert broken(opening(), asked, again, ends, missed, counted) == []  # it had given it up
    assert broken(opening(), asked, again, ends, of(Missed, connection=2), counted) == ["L12"]
    assert broken(opening(), first_join(), ends, of(StillCounted, ids=("A",))) == ["L12"]


# ------------------------------------------------------------------ L13: its own earlier join


def consumer_join(is_answered=True, error="NONE"):
    return request(
        "ConsumerGroupHeartbeat",
        is_answered=is_answered,
        error=error,
        asked={"member_id": "A", "generation": 0},
        response={"member_id": "A", "generation": 1, "assigned": ()},
    )


def release(error="NONE"):
    asked = {"member_id": "A", "generation": -2, "owned": None}
    return request("ConsumerGroupHeartbeat", error=error, asked=asked)


HELD_OFF = of(HeldOff, member_id="A")


def held_off():
    sent, response = consumer_join(error="UNRELEASED_INSTANCE_ID")
    return [sent, HELD_OFF, response]


def test_l13_a_static_member_releases_its_own_unanswered_join():
    static = [opening(instance="i"), consumer_join(is_answered=False)]
    assert broken(static, 1.0, held_off(), 1.0, release(), 1.0, consumer_join()) == []
    assert broken(static, 1.0, held_off(), 1.0, held_off()) == ["L13"]


def test_l13_a_join_that_was_answered_is_not_the_members_to_release():
    """A coordinator that refuses a heartbeat counts the member no more."""
    refused = request(
        "ConsumerGroupHeartbeat",
        asked={"member_id": "A", "generation": 1},
        error="UNKNOWN_MEMBER_ID",
    )
    static = [opening(instance="i"), consumer_join(), refused]
    assert broken(static, 1.0, held_off(), 1.0, held_off()) == []


def test_a_release_under_a_foreign_id_is_no_fencing_and_not_the_poll_timers():
    """FENCED_INSTANCE_ID only says that another member holds the instance id, as before."""
    static = [opening(instance="i"), consumer_join(is_answered=False)]
    fenced = release("FENCED_INSTANCE_ID")
    assert broken(static, 1.0, fenced, 1.0, consumer_join()) == []
    assert broken(opening(instance="i"), consumer_join(), 1.0, release(), 1.0) == ["L9"]


# ------------------------------------------------------------------ L14: silence


def committing(sent, outcome="RequestTimeoutError"):
    called = of(Committing, token=1, offsets=None)
    return [called, sent, 3.0, of(Committed, token=1, outcome=outcome)]


def test_l14_one_silent_connection_does_not_use_up_a_call():
    first = [opening(auto_commit=False), starts(1, {T0: 0}), delivers(0)]
    sent, silenced = (
        commits(1, is_answered=False)[0],
        of(Silenced, connection=commits(1)[0].connection),
    )
    assert isinstance(sent, Sent)
    assert broken(first, silenced, committing(sent)) == ["L14"]
    assert broken(first, committing([sent, silenced])) == ["L14"]  # by the attempt itself
    assert broken(first, committing(sent)) == []  # the broker has not answered
    assert broken(first, committing([sent, 1.0, heartbeats(), silenced])) == []
    assert broken(first, silenced, committing([sent, of(Connecting, node=1)])) == []
    looks_up = request("FindCoordinator", is_answered=False)
    assert broken(first, silenced, committing([sent, looks_up])) == []
    another = of(Silenced, connection=99)
    assert broken(first, silenced, committing([sent, 1.0, another])) == []
    assert broken(first, silenced, another, committing(sent)) == ["L14"]
    assert broken(first, silenced, committing(commits(1), outcome="ok")) == []
    frozen = [of(Frozen), 1.0, of(Thawed)]
    assert broken(first, silenced, committing([sent, frozen])) == []


def test_l14_a_call_that_has_waited_for_the_one_before_may_have_time_for_one_attempt():
    first = [opening(auto_commit=False), starts(1, {T0: 0}), delivers(0)]
    sent, silenced = (
        commits(1, is_answered=False)[0],
        of(Silenced, connection=commits(1)[0].connection),
    )
    called, failed = (
        of(Committing, token=1, offsets=None),
        of(Committed, token=1, outcome="RequestTimeoutError"),
    )
    assert broken(first, silenced, called, 3.0, sent, 0.9, failed) == []
    assert broken(first, silenced, called, 3.0, sent, 1.1, failed) == ["L14"]
    again = commits(1, is_answered=False)[0]
    assert broken(first, silenced, called, 1.9, sent, 1.0, again, 0.1, failed) == ["L14"]


# ------------------------------------------------------------------ L15: logins


def logs_in(error="NONE"):
    return [of(LoggingIn), request("SaslAuthenticate", error=error)]


def raised(error="AuthenticationError"):
    return of(Raised, error=error)


STARTED = [opening(), starts(1, {T0: 0})]


@pytest.mark.parametrize("error", ["AuthenticationError", "TlsError"])
def test_l15_what_no_broker_has_refused_is_not_raised(error):
    assert broken(STARTED, of(LoggingIn), raised(error)) == ["L15"]
    refused = logs_in("SASL_AUTHENTICATION_FAILED")
    assert broken(STARTED, refused, raised(error)) == []
    assert broken(STARTED, refused, 21.0, of(LoggingIn), raised(error)) == ["L15"]
    assert broken(opening(), of(LoggingIn), raised(error)) == []  # at the start


def test_l15_a_refused_login_is_tried_again():
    refused = logs_in("SASL_AUTHENTICATION_FAILED")
    assert broken(STARTED, refused, raised(), 5.0, raised()) == []
    assert broken(STARTED, refused, raised(), 13.0, raised()) == ["L15"]
    assert broken(STARTED, refused, raised(), 9.0, refused, 9.0, raised()) == []
    # The application has not polled since, and nothing but its polls causes an attempt.
    assert broken(STARTED, refused, 13.0, raised()) == []


def test_l6_logins_are_repeated_with_backoff():
    assert broken(STARTED, [of(LoggingIn)] * 20) == []
    assert broken(STARTED, [of(LoggingIn)] * 21) == ["L6"]


# ------------------------------------------------------------------ L16, L17: threads


def looked_up(seconds, outcome="ok"):
    return [seconds, of(LookedUp, host="kafka-1", seconds=seconds, outcome=outcome)]


def test_l16_a_known_address_is_used_after_a_second():
    known = [opening(), looked_up(5.0)]
    assert broken(known, looked_up(1.0)) == []
    assert broken(known, looked_up(2.0)) == ["L16"]
    assert broken(known, looked_up(0.5, "unresolved")) == ["L16"]
    # Two that began before the address was known, and end together.
    second = of(LookedUp, host="kafka-1", seconds=3.0, outcome="ok")
    assert broken(opening(), looked_up(5.0), second) == []
    assert broken(known, looked_up(2.0, "cancelled")) == []
    assert broken(opening(), looked_up(5.0, "unresolved")) == []
    assert broken(known, [of(Frozen), 2.0, of(Thawed)], looked_up(1.0)) == []


def test_l17_the_client_waits_for_no_thread_of_the_application():
    assert broken(opening(), of(Borrowed, what="a worker thread")) == ["L17"]
