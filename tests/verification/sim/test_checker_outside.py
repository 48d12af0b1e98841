"""The checker detects violations of S22 to S24, L10 and L11, and reports nothing else.

The stories are built like those of `test_checker`, with the same helpers.
"""

import pytest

from verification.sim.checker.identity import FOREIGN
from verification.sim.events import (
    Away,
    Committed,
    Committing,
    Computing,
    Connecting,
    Deleted,
    Finished,
    Forgotten,
    Formed,
    Frozen,
    Healed,
    Killed,
    Lost,
    Misdirected,
    Opening,
    Polling,
    Raised,
    Rejoining,
    Revoked,
    Revoking,
    Sought,
    Subscribing,
    Thawed,
    Truncated,
)
from verification.sim.test_checker import (
    T0,
    T1,
    assigned,
    broken,
    closes,
    commits,
    delivers,
    heartbeats,
    of,
    opening,
    request,
    revokes,
    starts,
    written,
)


def metadata(**counts):
    return request("Metadata", response={"counts": counts})


def member():
    return [opening(), metadata(t=2, u=1), starts(1, {T0: 0})]


# ------------------------------------------------------------------ S22: less than is known


@pytest.mark.parametrize("less", [{"t": 1, "u": 1}, {"t": 0}, {"u": 0}])
def test_s22_a_client_does_not_have_its_member_rejoin_for_one_response_with_less(less):
    assert broken(member(), metadata(**less), of(Rejoining)) == ["S22"]
    assert broken(member(), metadata(**less), metadata(**less), of(Rejoining)) == []
    assert broken(member(), metadata(**less), metadata(t=2, u=1), of(Rejoining)) == []
    assert broken(member(), metadata(t=3, u=1), of(Rejoining)) == []
    assert broken(member(), metadata(t=3, u=0), of(Rejoining)) == []
    both = metadata(t=2, u=0), metadata(t=1, u=0)  # the second confirms only that u is gone
    assert broken(member(), both, of(Rejoining)) == []


def test_s22_an_application_may_rejoin_after_any_response():
    assert broken(member(), metadata(t=1), of(Away), of(Rejoining)) == []
    subscribing = of(Subscribing, topics=("t", "v"))
    assert broken(member(), subscribing, metadata(t=1), of(Rejoining)) == []
    again = [metadata(t=1), of(Rejoining)]
    assert broken(member(), subscribing, of(Rejoining), again) == []  # with a pattern
    assert broken(member(), subscribing, of(Rejoining), of(Polling), again) == ["S22"]


def test_s22_a_member_rejoins_after_a_cooperative_revocation():
    less = metadata(t=1), metadata(t=2), metadata(t=1)
    owner = [opening(cooperative=True), metadata(t=2, u=1), starts(1, {T0: 0, T1: 0})]
    assert broken(owner, metadata(t=1), revokes(T1), of(Rejoining)) == []
    assert broken(owner, revokes(T1), of(Rejoining), less, of(Rejoining)) == ["S22"]


def test_s22_a_leader_assigns_the_partitions_that_one_response_lacked():
    less = [member(), metadata(t=1)]
    assert broken(less, 1.0, of(Computing, partitions={"t": 1})) == ["S22"]
    assert broken(less, 1.0, of(Computing, partitions={"t": 2})) == []
    assert broken(less, 1.0, metadata(t=1), of(Computing, partitions={"t": 1})) == []
    deleted = Deleted(time=0.0, topic="t")
    assert broken(less, deleted, of(Computing, partitions={"t": 1})) == []


def formed(*topics, **partitions):
    return Formed(
        time=0.0,
        generation=1,
        protocol="range",
        assignment={},
        subscriptions={"A": topics},
        leader="A",
    )


def test_s22_a_leader_assigns_a_topic_that_one_response_lacked():
    less = [member(), metadata(t=2, u=0), of(Computing, partitions={"t": 2})]
    assert broken(less, formed("t", "u")) == ["S22"]
    assert broken(less, formed("t")) == []


def test_s22_a_subscription_by_pattern_keeps_a_topic_that_one_response_lacked():
    both = [member(), formed("t", "u")]
    assert broken(both, metadata(u=0), formed("t")) == ["S22"]
    assert broken(both, metadata(u=0), metadata(u=0), formed("t")) == []
    subscribing = of(Subscribing, topics=("t",))  # which the coordinator learns late
    assert broken(both, subscribing, formed("t", "u"), metadata(u=0), formed("t")) == []
    assert broken(both, formed("t")) == []


def test_s22_in_kip_848_the_coordinator_matches_the_pattern():
    beat = request("ConsumerGroupHeartbeat", asked={"member_id": "A"}, response={"member_id": "A"})
    joined = [opening(), metadata(t=2, u=1), beat, formed("t", "u")]
    assert "S22" not in broken(joined, metadata(u=0), formed("t"))


def test_s22_only_a_heartbeat_takes_partitions_from_a_member_of_a_consumer_group():
    beat = request(
        "ConsumerGroupHeartbeat",
        asked={"member_id": "A", "generation": 0},
        response={"member_id": "A", "generation": 1, "assigned": (T0, T1)},
    )
    owner = [opening(), metadata(t=2), beat, assigned(1, T0, T1)]
    revoking = of(Revoking, partitions=(T1,)), of(Revoked, partitions=(T1,))
    assert "S22" in broken(owner, metadata(t=1), revoking)
    assert "S22" not in broken(owner, metadata(t=2), revoking)


# ------------------------------------------------------------------ S23: positions


def denied(offset=None):
    """An offset is out of range; None: that of an unchanged partition of a fetch session."""
    return request(
        "Fetch",
        error="OFFSET_OUT_OF_RANGE",
        asked={"offsets": {} if offset is None else {T0: offset}},
        response={"refused": {T0: "OFFSET_OUT_OF_RANGE"}},
    )


def test_s23_one_response_does_not_move_a_position_that_the_log_contains():
    """The client once applied `auto_offset_reset` to one false OFFSET_OUT_OF_RANGE."""
    reader = [written(0, 1, 2, 3), opening(), starts(1, {T0: 0}), delivers(0, 1)]
    assert broken(reader, denied(2), delivers(0)) == ["S23"]
    assert broken(reader, denied(2), delivers(2)) == []
    assert broken(reader, denied(2), delivers(3)) == ["S23"]
    assert broken(reader, denied(), delivers(0)) == ["S23"]
    assert broken(reader, denied(9), delivers(0)) == []
    assert broken(reader, denied(2), delivers(2), delivers(1)) == ["S8"]


def test_s23_nor_does_it_move_the_position_at_which_a_member_starts():
    reader = [written(0, 1, 2, 3), opening(), starts(1, {T0: 2})]
    assert broken(reader, denied(2), delivers(3)) == ["S23"]
    assert broken(reader, denied(2), delivers(2)) == []


def test_s23_a_position_beyond_the_log_may_move():
    reader = [written(0, 1), opening(), starts(1, {T0: 4})]
    assert broken(reader, denied(4), delivers(0)) == []


def test_s23_a_position_in_the_log_is_not_reported_as_out_of_range():
    reader = [written(0, 1, 2), opening(), starts(1, {T0: 0}), delivers(0, 1)]
    raised = of(Raised, error="OffsetOutOfRangeError")
    assert broken(reader, denied(2), raised) == ["S23"]
    cut = Truncated(time=0.0, partition=T0, offset=1)
    assert broken(reader, cut, denied(2), raised) == []


# ------------------------------------------------------------------ S24: another cluster


def test_s24_nothing_of_another_cluster_is_delivered():
    reader = [written(0, 1), opening(), starts(1, {T0: 0})]
    assert broken(reader, delivers(0, shift=FOREIGN)) == ["S8", "S24"]


def test_s24_no_request_of_the_group_is_sent_to_another_cluster():
    assert broken(opening(), of(Misdirected, api="OffsetCommit", node=2)) == ["S24"]


# ------------------------------------------------------------------ L10: forgotten commits


def owner(**options):
    return [written(0, 1), opening(**options), starts(1, {T0: -1}), delivers(0, 1), commits(2)]


FORGOTTEN = Forgotten(time=0.0, partitions=(T0,))


def test_l10_a_forgotten_commit_is_sent_again_before_its_partition_is_released():
    """The client once never sent an acknowledged offset again, even when it closed."""
    assert broken(owner(), FORGOTTEN, closes(T0)) == ["L10"]
    assert broken(owner(), FORGOTTEN, 3.0, commits(2), closes(T0)) == []
    revoking, revoked = revokes(T0)
    assert broken(owner(), FORGOTTEN, revoking, commits(2), revoked) == []
    assert broken(owner(), revoking, FORGOTTEN, revoked) == []


def test_l10_the_time_for_the_last_commit_may_pass_while_the_member_is_frozen():
    frozen = [of(Frozen), 3.0, of(Thawed)]
    assert broken(owner(), FORGOTTEN, frozen, closes(T0)) == []
    assert broken(owner(), FORGOTTEN, frozen, 0.4, closes(T0)) == []
    assert broken(owner(), FORGOTTEN, frozen, 0.5, closes(T0)) == ["L10"]


def test_l10_the_last_commit_needs_a_connection():
    # The commits of `owner` went to node 0.
    connecting, sends = of(Connecting, node=0), request("ApiVersions", connection=3)
    assert broken(owner(), FORGOTTEN, connecting, closes(T0)) == []
    assert broken(owner(), FORGOTTEN, connecting, sends, closes(T0)) == ["L10"]
    assert broken(owner(), FORGOTTEN, of(Connecting, node=1), closes(T0)) == ["L10"]


def test_l10_a_commit_since_then_may_stay_unanswered():
    lost = commits(2, stored=False, is_answered=False)
    assert broken(owner(), FORGOTTEN, lost, closes(T0)) == []
    assert broken(owner(), lost, FORGOTTEN, closes(T0)) == ["L10"]


def test_l2_a_commit_that_is_forgotten_while_no_member_owns_its_partition_stays_forgotten():
    healed, end = Healed(time=0.0), Finished(time=0.0, committed={}, ends={T0: 2}, starts={T0: 0})
    assert broken(owner(), healed, revokes(T0), FORGOTTEN, closes(), end) == []
    lost = heartbeats("UNKNOWN_MEMBER_ID"), of(Lost, partitions=(T0,))
    assert broken(owner(), healed, FORGOTTEN, lost, closes(), end) == []
    assert broken(owner(), healed, FORGOTTEN, of(Killed), end) == []


def test_l2_whether_a_commit_is_answered_while_its_member_closes_does_not_depend_on_that():
    healed, end = Healed(time=0.0), Finished(time=0.0, committed={}, ends={T0: 2}, starts={T0: 0})
    refused, (closing, *rest) = commits(2, error="NOT_COORDINATOR"), closes(T0)
    assert broken(owner(), healed, FORGOTTEN, closing, refused, rest, end) == []
    assert broken(owner(), healed, FORGOTTEN, refused, closing, rest, end) == ["L2"]
    assert broken(owner(), healed, refused, FORGOTTEN, closing, rest, end) == ["L2"]


def test_l2_a_member_may_close_before_it_has_read_a_forgotten_partition_again():
    """Its application was busy with another record since before the commit was forgotten."""
    busy, done = delivers(0, tp=T1, member="b")
    busy = [opening("b"), starts(1, {T1: 0}, member="b"), busy]
    taken = [starts(2, {T0: -1}, member="b"), commits(0, member="b", generation=2)]
    end = Finished(time=0.0, committed={T0: 0}, ends={T0: 2}, starts={T0: 0})
    ends = [closes(T0, T1, member="b"), 0.5, end]
    healed = [owner(auto_commit=False), Healed(time=0.0)]
    assert "L2" not in broken(healed, busy, FORGOTTEN, closes(T0), taken, 6.5, done, ends)
    assert "L2" in broken(healed, busy, done, FORGOTTEN, closes(T0), taken, 6.5, ends)


def test_l10_the_application_itself_commits_without_auto_commit():
    healed, end = Healed(time=0.0), Finished(time=0.0, committed={}, ends={T0: 2}, starts={T0: 0})
    assert broken(owner(auto_commit=False), FORGOTTEN, healed, closes(T0), end) == []
    assert broken(owner(), FORGOTTEN, healed, closes(T0), end) == ["L10", "L2"]


def test_s7_the_next_owner_starts_without_the_forgotten_commit():
    other = [opening("b"), starts(2, {T0: -1}, member="b"), delivers(0, member="b")]
    assert broken(owner(), FORGOTTEN, commits(2), FORGOTTEN, closes(T0), other) == ["L10"]


# ------------------------------------------------------------------ L11: refusals


def refused(error="CORRUPT_MESSAGE", tp=T0):
    return request("Fetch", error=error, response={"refused": {tp: error}})


def raised(error="CORRUPT_MESSAGE", tp=T0):
    return of(Raised, error=f"BrokerError({error})", partition=tp)


def patient():
    """A member whose lease outlasts the test."""
    return of(Opening, "a", session_timeout=90.0, rebalance_timeout=90.0)


def test_l11_a_refusal_is_raised_within_ten_seconds():
    reader = [patient(), starts(1, {T0: 0})]
    assert broken(reader, refused(), 11.0, metadata(t=2)) == ["L11"]
    assert broken(reader, refused(), 9.0, metadata(t=2)) == []
    assert broken(reader, refused(), 9.0, raised(), 5.0, metadata(t=2)) == []
    assert broken(reader, refused("NOT_LEADER_OR_FOLLOWER"), 11.0, metadata(t=2)) == []
    assert broken(reader, refused(), revokes(T0), 11.0, metadata(t=2)) == []
    assert broken(reader, delivers(0, processed=False), refused(), 11.0, metadata(t=2)) == []


def test_l11_what_was_refused_at_another_position_need_not_be_raised():
    reader = [patient(), starts(1, {T0: 0}), refused(), 9.0]
    sought = of(Sought, partition=T0, offset=5)
    assert "L11" not in broken(reader, sought, 9.0, metadata(t=2))
    assert "L11" in broken(reader, delivers(0), 9.0, metadata(t=2))


def test_l11_a_follower_that_refuses_only_sends_the_fetch_to_the_leader():
    reader = [patient(), starts(1, {T0: 0})]
    at_leader = request("Fetch", asked={"offsets": {T0: 0}, "node": 2})
    assert broken(reader, refused(), at_leader, 11.0, metadata(t=2)) == []


def test_l11_a_refusal_is_raised_at_most_once_a_minute_for_each_partition():
    reader = [patient(), starts(1, {T0: 0, T1: 0})]
    assert broken(reader, refused(), raised(), refused(), raised()) == ["L11"]
    assert broken(reader, refused(), raised(), refused(tp=T1), raised(tp=T1)) == []
    assert broken(reader, refused(), raised(), refused(tp=T1), 11.0, metadata(t=2)) == ["L11"]
    assert broken(reader, refused(), raised(), 60.0, refused(), raised()) == []
    assert broken(reader, refused(), raised(), refused(), 11.0, metadata(t=2)) == []
    again = [refused(), raised(), 60.0, refused(), 11.0, metadata(t=2)]
    assert broken(reader, again) == ["L11"]


def test_l11_what_may_not_be_read_and_what_may_not_be_committed_are_two_reports():
    denial = "TOPIC_AUTHORIZATION_FAILED"
    reader = [patient(), starts(1, {T0: 0}), delivers(0)]
    uncommitted = [commits(1, error=denial), raised(denial)]
    assert "L11" not in broken(reader, uncommitted, refused(denial), raised(denial))
    assert "L11" in broken(reader, uncommitted, uncommitted)
    # Also if the application hears of both at once.
    both = [refused(denial), uncommitted, raised(denial)]
    assert "L11" not in broken(reader, both)
    assert "L11" in broken(reader, both, raised(denial))
    assert "L11" in broken(reader, both, refused(denial), raised(denial))


def test_l11_the_application_hears_of_nothing_while_it_waits_for_its_own_commit():
    waits = of(Committing, token=1, offsets=None), 9.0, of(Committed, token=1, outcome="ok")
    reader = [patient(), starts(1, {T0: 0}), refused()]
    assert "L11" not in broken(reader, waits, 9.0, metadata(t=2))
    assert "L11" in broken(reader, waits, 11.0, metadata(t=2))


def test_l11_an_error_follows_the_records_before_it_which_need_a_lease():
    """A member with records of a partition that was then refused, and without a lease while a
    rebalance lasted longer than its rebalance timeout."""
    reader = [opening(), starts(1, {T0: 0}), heartbeats(), refused()]
    renewed = [9.0, heartbeats(), 3.0, metadata(t=2)]
    assert "L11" not in broken(reader, 20.0, metadata(t=2))
    assert "L11" not in broken(reader, 20.0, metadata(t=2), renewed)
    assert "L11" in broken(reader, 20.0, metadata(t=2), renewed, [4.0, heartbeats()] * 2)


def test_l11_an_error_that_names_no_partition_may_be_about_each():
    reader = [patient(), starts(1, {T0: 0, T1: 0})]
    denial = "TOPIC_AUTHORIZATION_FAILED"
    unnamed = raised(denial, tp=None)
    assert "L11" not in broken(reader, refused(denial), unnamed, unnamed, 11.0, metadata(t=2))
