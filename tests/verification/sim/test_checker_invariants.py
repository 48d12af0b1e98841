"""The checker detects violations of S15 to S21, S25, S26, L7 and L9, and reports nothing else.

The stories are built like those of `test_checker`, with the same helpers.
"""

import attrs
import pytest

from kafkagroup import TopicPartition
from verification.sim.checker import INVARIANTS, examine
from verification.sim.events import (
    Absent,
    Away,
    Closing,
    Committed,
    Committing,
    Computing,
    Created,
    Deleted,
    Formed,
    Frozen,
    Healed,
    Lost,
    Misassigning,
    Paused,
    Polling,
    Processed,
    Recreated,
    Rejoining,
    Revoked,
    Revoking,
    Sought,
    Stored,
    Subscribing,
    Thawed,
    Truncated,
    Unlisted,
)
from verification.sim.test_checker import (
    T0,
    T1,
    assigned,
    broken,
    closes,
    commits,
    delivers,
    finished,
    first_join,
    heartbeats,
    joins,
    leaves,
    of,
    opening,
    request,
    revokes,
    starts,
    timeline,
    written,
)


def test_every_invariant_has_a_text():
    assert all(text and not text.endswith(".") for text in INVARIANTS.values())
    assert {f"S{n}" for n in range(1, 28)} < INVARIANTS.keys()


# ------------------------------------------------------------------ S15, S16: paused partitions


def paused(*partitions):
    return of(Paused, partitions=partitions)


def consuming(**options):
    return [opening(**options), starts(1, {T0: 0, T1: 0})]


def test_s15_nothing_is_delivered_between_pause_and_resume():
    assert broken(consuming(), paused(T0), delivers(0, tp=T1)) == []
    assert broken(consuming(), paused(T0), delivers(0)) == ["S15"]
    assert broken(consuming(), paused(T0), paused(), delivers(0)) == []
    assert broken(consuming(), paused(T0), paused(T0, T1), delivers(0)) == ["S15"]


def test_s15_a_pause_ends_when_the_partition_is_revoked():
    again = [paused(T0), revokes(T0), assigned(2, T0)]
    assert "S15" not in broken(consuming(), again, delivers(0))


def test_s16_a_paused_partition_stays_paused_through_a_rebalance():
    kept = [consuming(cooperative=True), paused(T0), joins(2, T0, T1, owned=(T0, T1)), assigned(2)]
    assert broken(kept, delivers(0, tp=T1)) == []
    assert broken(kept, delivers(0)) == ["S16"]
    assert broken(kept, paused(), delivers(0)) == []


# ------------------------------------------------------------------ S17, S18: the revocation


def holding():
    """A record of T0 is in flight when the group begins to rebalance."""
    return [consuming(), delivers(0, processed=False), heartbeats("REBALANCE_IN_PROGRESS")]


def test_s17_the_record_in_flight_is_processed_before_the_callback():
    done = of_processed(0)
    assert broken(holding(), done, commits(1), revokes(T0, T1)) == []
    assert broken(holding(), revokes(T0, T1)) == ["S17"]


def of_processed(offset):
    _, processed = delivers(offset)
    return processed


def test_s17_each_record_in_flight_is_processed_before_the_callback():
    first = [consuming(), delivers(0, 1, processed=False), heartbeats("REBALANCE_IN_PROGRESS")]
    assert broken(first, of_processed(1), revokes(T0, T1)) == ["S17"]
    assert broken(first, of_processed(1), of_processed(0), commits(2), revokes(T0, T1)) == []


def test_s17_the_callback_runs_without_the_record_in_flight_once_the_deadline_has_passed():
    assert "S17" in broken(holding(), 5.9, revokes(T0, T1))
    assert "S17" not in broken(holding(), 6.0, revokes(T0, T1))


@pytest.mark.parametrize(
    "why",
    [
        of(Closing),
        of(Sought, partition=T0, offset=0),
        [of(Frozen), 0.1, of(Thawed)],
        of(Lost, partitions=(T0, T1)),
    ],
)
def test_s17_the_callback_need_not_wait_after_a_close_seek_freeze_or_loss(why):
    assert "S17" not in broken(holding(), why, revokes(T0, T1))


def rejoining_at_once(client=Rejoining):
    """A member must rejoin as soon as it is assigned something. A record is delivered while its
    listener's callback runs. The group is stable."""
    *joined, answered, heartbeat, acknowledged = joins(1, T0)
    joined = [opening(), first_join(), joined, of(client), 2.0, answered, heartbeat, acknowledged]
    return [joined, assigned(1, T0), 0.5, delivers(0, processed=False), 1.0, heartbeats()]


def test_s17_the_deadline_starts_with_the_assignment_if_the_client_rejoins_at_once():
    assert "S17" in broken(rejoining_at_once(), 4.3, revokes(T0))
    assert "S17" not in broken(rejoining_at_once(), 4.5, revokes(T0))
    assert "S17" in broken(rejoining_at_once(client=Away), 4.5, revokes(T0))


def test_s17_a_join_answers_earlier_requests_to_rejoin():
    joined = [opening(), first_join(), of(Rejoining), joins(1, T0), assigned(1, T0)]
    delivered = [0.5, delivers(0, processed=False), 1.0, heartbeats()]
    assert "S17" in broken(joined, delivered, 4.5, revokes(T0))


def test_s17_a_revocation_for_the_client_waits_for_records_delivered_before():
    first = [consuming(), delivers(0, processed=False), of(Rejoining)]
    assert "S17" in broken(first, 5.9, revokes(T0, T1))
    assert "S17" not in broken(first, 6.0, revokes(T0, T1))


def test_s18_a_revocation_starts_its_callback_by_its_deadline():
    late = [holding(), 6.9]
    assert "S18" not in broken(late, revokes(T0, T1))
    assert "S18" in broken(late, 0.2, revokes(T0, T1))
    assert "S18" in broken(late, 0.2, of(Lost, partitions=(T0, T1)))
    assert "S18" not in broken(holding(), 2.0, revokes(T0, T1), 9.0, heartbeats())


def test_s18_the_deadline_of_a_cooperative_revocation_starts_at_the_assignment():
    kept = [consuming(cooperative=True), delivers(0, processed=False)]
    taken = [kept, joins(2, T1, owned=(T0, T1))]
    assert "S18" in broken(taken, 7.2, revokes(T0))
    assert "S18" not in broken(taken, 6.5, revokes(T0))
    assert "S18" not in broken(kept, heartbeats("REBALANCE_IN_PROGRESS"), 7.2, revokes(T0))


def test_s18_a_rejected_assignment_starts_no_revocation():
    """It contains a topic that the member does not subscribe to, so the member rejoins instead."""
    other = TopicPartition("other", 0)
    kept = [consuming(cooperative=True), delivers(0, processed=False)]
    bad, good = ({"A": (T1, *more)} for more in ((other,), ()))
    for assignment, expected in ((bad, False), (good, True)):
        answered = joins(2, *assignment["A"], owned=(T0, T1))
        found = broken(kept, formed(assignment), answered, 7.2, revokes(T0))
        assert ("S18" in found) is expected


def test_s18_an_assignment_for_an_earlier_subscription_starts_no_revocation():
    """The member rejoins with what it owns, as Kafka's own clients do."""
    kept = [consuming(cooperative=True), delivers(0, processed=False)]
    other = TopicPartition("other", 0)
    assigned = joins(2, other, owned=(T0, T1))
    for topics, expected in ((("t",), False), (("t", "other"), True)):
        found = broken(kept, of(Subscribing, topics=topics), assigned, 7.2, revokes(T0))
        assert ("S18" in found) is expected


def test_s18_an_assignment_without_a_lease_starts_no_revocation_until_a_heartbeat_begins_one():
    """The member then knows whether the assignment is still the group's."""
    kept = [consuming(cooperative=True), delivers(0, processed=False)]
    for partitions in ((T1,), ()):
        *joined, beat, answered = joins(2, *partitions, owned=(T0, T1))
        for error, expected in (("NONE", True), ("REBALANCE_IN_PROGRESS", False)):
            late = attrs.evolve(answered, error=error)
            assert ("S18" in broken(kept, 6.5, joined, beat, late, 7.2, revokes(T0))) is expected
    # An error of the coordinator leaves the question open; another join makes it moot.
    got = [kept, 6.5, joined]
    later = [heartbeats("NOT_COORDINATOR"), heartbeats(generation=2), 7.2, revokes(T0)]
    assert "S18" in broken(got, later)
    lost = [of(Lost, partitions=(T0, T1)), first_join(), joins(3, T0, T1), assigned(3, T0, T1)]
    assert "S18" not in broken(got, lost, heartbeats(generation=3), 7.2, revokes(T0, T1))


def test_s18_the_deadline_excludes_time_in_which_the_process_was_frozen():
    assert "S18" not in broken(holding(), of(Frozen), 12.0, of(Thawed), 3.0, revokes(T0, T1))


# ------------------------------------------------------------------ S21: revoked or lost


def test_s21_partitions_are_lost_and_not_revoked_after_the_membership_has_ended():
    ended = [consuming(), heartbeats("UNKNOWN_MEMBER_ID")]
    assert "S21" in broken(ended, revokes(T0, T1))
    assert "S21" not in broken(ended, of(Lost, partitions=(T0, T1)))
    assert "S21" not in broken(ended, of(Closing), revokes(T0, T1))
    assert "S21" not in broken(consuming(), heartbeats("REBALANCE_IN_PROGRESS"), revokes(T0, T1))


def test_s21_a_revocation_that_began_before_the_membership_ended_may_finish():
    revoking = of(Revoking, partitions=(T0, T1))
    revoked = of(Revoked, partitions=(T0, T1))
    assert "S21" not in broken(consuming(), revoking, heartbeats("UNKNOWN_MEMBER_ID"), revoked)


def test_s21_partitions_of_a_new_membership_may_be_revoked():
    again = [of(Lost, partitions=(T0, T1)), first_join(), joins(2, T0), assigned(2, T0)]
    assert "S21" not in broken(consuming(), heartbeats("UNKNOWN_MEMBER_ID"), again, revokes(T0))


# ------------------------------------------------------------------ S25: assignments


def gives(offset, generation=2, stored=True, **fields):
    """The application commits an offset that it chose."""
    sent, *rest = commits(offset, generation=generation, stored=stored)
    return [attrs.evolve(sent, explicit=True, **fields), rest]


def comes_back():
    """The partition was another member's, which has committed 200, and comes back."""
    return [
        opening(auto_commit=False),
        starts(1, {T0: 0}),
        heartbeats("UNKNOWN_MEMBER_ID"),
        of(Lost, partitions=(T0,)),
        starts(2, {T0: 200}),
    ]


def test_s25_a_commit_is_not_below_where_its_assignment_began():
    assert broken(comes_back(), gives(200, stored=False)) == []
    assert broken(comes_back(), gives(100, stored=False)) == ["S25"]


def test_s25_a_seek_a_truncation_and_a_reset_lower_the_floor():
    for lowered in (
        of(Sought, partition=T0, offset=100),
        Truncated(time=0.0, partition=T0, offset=100),
        request("Fetch", response={"refused": {T0: "OFFSET_OUT_OF_RANGE"}}),
    ):
        assert "S25" not in broken(comes_back(), lowered, gives(100, stored=False))
    sought = [of(Sought, partition=T0, offset=offset) for offset in (100, 300)]
    assert "S25" not in broken(comes_back(), sought, gives(100, stored=False))
    assert "S25" in broken(comes_back(), sought, gives(99, stored=False))


def test_s25_the_member_must_know_where_its_assignment_began():
    """A commit that it issued before the response to its request for offsets, or in the earlier
    generation, which the coordinator refuses."""
    early = gives(100, stored=False, waited=5.0)
    assert "S25" not in broken(comes_back(), early)
    assert "S25" not in broken(comes_back(), gives(100, generation=1, stored=False))
    unknown = [opening(auto_commit=False), starts(1, {T0: -1})]
    assert "S25" not in broken(unknown, gives(0, generation=1))


# ------------------------------------------------------------------ S19: recreated topics


def deleted():
    return Deleted(time=0.0, topic="t")


def recreated(*sequences):
    return [Recreated(time=0.0, topic="t"), written(*sequences)]


def old_topic():
    """Three records of a topic are processed, and the topic is deleted."""
    return [opening(), written(0, 1, 2), starts(1, {T0: -1}), delivers(0, 1, 2), deleted()]


def stored(offset):
    return Stored(time=0.0, partition=T0, offset=offset, member_id="A", generation=1)


def test_s19_offsets_of_a_deleted_topic_are_not_committed_to_the_recreated_topic():
    new = [old_topic(), recreated(10, 11, 12, 13)]
    assert broken(new, delivers(0, 1, shift=10), commits(2)) == []
    assert "S19" in broken(new, stored(3))
    assert "S19" in broken(new, delivers(0, 1, shift=10), stored(3))
    assert broken(old_topic(), commits(3, error="UNKNOWN_TOPIC_ID")) == []


def test_s4_what_was_processed_of_a_deleted_topic_may_be_committed():
    """By the topic's id: the broker refuses it. The fetch was refused as out of range meanwhile."""
    refused = {"refused": {T0: "OFFSET_OUT_OF_RANGE"}}
    out = request(
        "Fetch", error="OFFSET_OUT_OF_RANGE", asked={"offsets": {T0: 3}}, response=refused
    )
    assert broken(old_topic(), out, commits(3, error="UNKNOWN_TOPIC_ID")) == []
    assert broken(old_topic(), out, commits(4, error="UNKNOWN_TOPIC_ID")) == ["S4"]


def test_s19_a_recreated_topic_is_delivered_from_its_start():
    new = [old_topic(), recreated(10, 11, 12, 13)]
    assert broken(new, delivers(0, 1, shift=10)) == []
    assert broken(new, delivers(3, shift=10)) == ["S19"]


def test_s19_records_fetched_before_the_deletion_may_still_be_delivered():
    fetched = [opening(), written(0, 1, 2), starts(1, {T0: -1}), delivers(0), deleted()]
    assert broken(fetched, recreated(10), delivers(1, 2), delivers(0, shift=10)) == []


def test_s6_a_late_record_of_the_deleted_topic_does_not_count_for_the_recreated_topic():
    """The checker counted the next records of the new topic as ones that no reader may see."""
    fetched = [opening(), written(0, 1, 2), starts(1, {T0: -1}), delivers(0, 1), deleted()]
    late = delivers(2, processed=False), recreated(10), of(Processed, partition=T0, offset=2)
    grown = [attrs.evolve(event, offset=1) for event in written(11)]
    new = [delivers(0, 1, shift=10), commits(2), closes(T0), finished(2, 2)]
    result = examine(timeline(fetched, late, grown, new))
    assert (result.violations, result.figures.records, result.figures.lost) == ((), 2, 0)


def test_s6_records_of_the_recreated_topic_are_processed_before_a_commit():
    new = [old_topic(), recreated(10, 11), delivers(0, shift=10, processed=False)]
    assert "S6" in broken(new, commits(1))


# ------------------------------------------------------------------ S26: new partitions


def created():
    return Created(time=0.0, partitions=(T0,))


def test_s26_a_partition_created_during_the_subscription_is_read_from_its_start():
    new = [opening(), created(), written(0, 1, 2), starts(1, {T0: -1})]
    assert broken(new, delivers(0, 1)) == []
    assert broken(new, delivers(2)) == ["S26"]
    committed = [opening(), created(), written(0, 1, 2), starts(1, {T0: 1})]
    assert broken(committed, delivers(1)) == []
    assert broken(committed, delivers(2)) == ["S8"]
    assert broken(new, of(Sought, partition=T0, offset=2), delivers(2)) == []


def test_s26_a_partition_that_was_there_before_is_not_new():
    old = [created(), opening(), written(0, 1, 2), starts(1, {T0: -1})]
    assert broken(old, delivers(2)) == ["S8"]


def test_s26_without_a_reset_policy_only_new_partitions_are_read_without_a_seek():
    strict = opening(resets=False)
    assert broken(strict, created(), written(0, 1), starts(1, {T0: -1}), delivers(0)) == []
    assert broken(strict, created(), written(0, 1), starts(1, {T0: -1}), delivers(1)) == ["S26"]
    old = [created(), strict, written(0, 1), starts(1, {T0: -1})]
    assert broken(old, delivers(0)) == ["S12"]
    # The metadata of a broker lagged behind: for the client the partition is new.
    assert broken(of(Unlisted, partitions=(T1,)), old, delivers(0)) == ["S12"]
    unlisted = [*old[:2], of(Unlisted, partitions=(T0,)), *old[2:]]
    assert broken(unlisted, delivers(0)) == []
    assert broken(unlisted, delivers(1)) == ["S26"]


# ------------------------------------------------------------------ S20, L7: the leader


def formed(assignment, claims=(), *, protocol="cooperative-sticky", generation=2, leader=""):
    """`claims`: member -> the partitions it reports as owned, and their generation."""
    reported = dict(claims)
    return Formed(
        time=0.0,
        generation=generation,
        protocol=protocol,
        assignment=assignment,
        subscriptions=dict.fromkeys(assignment, ("t",)),
        claims={member: tps for member, (tps, _) in reported.items()},
        claimed_at={member: at for member, (_, at) in reported.items()},
        leader=leader,
    )


def test_s20_a_partition_reported_as_owned_is_not_assigned_to_another_member():
    assert broken(formed({"A": (T0,), "B": ()}, {"A": ((T0,), 1)})) == []
    assert broken(formed({"A": (), "B": ()}, {"A": ((T0,), 1)})) == []
    assert broken(formed({"A": (), "B": (T0,)}, {"A": ((T0,), 1)})) == ["S20"]
    assert broken(formed({"A": (), "B": (T0,)}, {"A": ((T0,), 1)}, protocol="sticky")) == []


def test_s20_a_partition_of_an_unsubscribed_topic_is_protected_too():
    other = TopicPartition("u", 0)
    assert broken(formed({"A": (), "B": (other,)}, {"A": ((other,), 1)})) == ["S20"]


def test_s20_the_claim_with_the_later_generation_wins():
    claims = {"A": ((T0,), 1), "B": ((T0,), 2)}
    assert broken(formed({"A": (), "B": (T0,)}, claims)) == []
    assert broken(formed({"A": (T0,), "B": ()}, claims)) == ["S20"]


def misassigned(pause, times):
    """A member gets a topic that it does not subscribe to each time it joins."""
    unsubscribed = TopicPartition("u", 0)
    bad = formed({"A": (unsubscribed,)}, protocol="range", generation=1)
    return [opening(), first_join(), joins(1, unsubscribed), bad, [[joins(1), pause]] * times]


def test_l7_a_bad_assignment_is_not_repeated_in_a_loop():
    assert "L7" not in broken(misassigned(0.5, 60))
    assert "L7" in broken(misassigned(0.3, 60))
    good = formed({"A": (T0,)}, protocol="range", generation=2)
    assert "L7" not in broken(misassigned(0.3, 10), good, [[joins(2, T0), 0.3]] * 25)


def test_s14_a_leader_assigns_the_partitions_that_its_metadata_has():
    """A round that hands over a partition looks unbalanced to a leader that does not know it."""
    known = [opening(), starts(1, {T0: 0})]
    grown = attrs.evolve(
        formed({"A": (T0,)}, protocol="range", leader="A"), partitions={"t": 1, "u": 2}
    )
    grown = attrs.evolve(grown, subscriptions={"A": ("t", "u")})
    assert broken(known, of(Computing, partitions={"t": 1}), grown) == []
    assert broken(known, of(Computing, partitions={"t": 1, "u": 1}), grown) == ["S14"]
    assert broken(known, grown) == ["S14", "S14"]


def test_s14_an_assignment_by_a_deliberately_misassigning_leader_is_not_checked():
    bad = Formed(
        time=0.0,
        generation=1,
        protocol="range",
        assignment={"A": ()},
        subscriptions={"A": ("t",)},
        partitions={"t": 1},
        leader="A",
    )
    known = [opening(), starts(1, {T0: 0})]
    assert broken(known, bad) == ["S14"]
    assert broken(known, of(Misassigning, active=True), bad) == []
    ended = [of(Misassigning, active=True), of(Misassigning, active=False)]
    assert broken(known, ended, 9.0, bad) == []
    assert broken(known, ended, 10.0, bad) == ["S14"]


# ------------------------------------------------------------------ L9, L2, S10: the poll timer


def test_l9_a_member_does_not_leave_while_its_application_polls():
    waits = [consuming(max_poll_interval=5.0), of(Polling), 6.0]
    lost = of(Lost, partitions=(T0, T1))
    assert "L9" in broken(waits, lost, leaves())
    assert "L9" not in broken(waits, of(Away), lost, leaves())
    assert "L9" not in broken(waits, of(Closing), leaves())
    # The application polled too late, while the member was still revoking its partitions.
    late = [consuming(max_poll_interval=5.0), of(Away), 5.1, of(Polling), 1.0]
    assert "L9" not in broken(late, lost, leaves())
    early = [consuming(max_poll_interval=5.0), of(Away), 4.9, of(Polling), 1.0]
    assert "L9" in broken(early, lost, leaves())
    assert "L9" not in broken(waits, request("Metadata", error="UNKNOWN_SERVER_ERROR"), leaves())


def test_l9_a_member_without_partitions_does_not_leave_for_a_missing_poll():
    idle = [opening(), first_join(), joins(1), assigned(1), of(Absent), 6.0]
    assert "L9" in broken(idle, leaves())
    assert "L9" not in broken(consuming(), of(Absent), 6.0, revokes(T0, T1), leaves())


def test_s10_a_polling_application_loses_no_partitions_to_the_poll_timer():
    waits = [consuming(max_poll_interval=5.0), of(Polling), 6.0]
    assert "S10" in broken(waits, of(Lost, partitions=(T0, T1)))


def test_l2_an_absent_application_loses_its_partitions_after_max_poll_interval():
    away = [consuming(max_poll_interval=5.0), of(Absent), 6.9]
    assert "L2" not in broken(away, heartbeats())
    assert "L2" in broken(away, 0.2, heartbeats())
    assert "L2" not in broken(away, 0.2, of(Polling), heartbeats())


def test_l2_a_member_that_left_for_a_missed_poll_returns_with_the_next_one():
    """Not before: an application that did other work for longer was reported."""
    left = [consuming(max_poll_interval=5.0), Healed(time=0.0), of(Absent), 5.1]
    left = [left, of(Lost, partitions=(T0, T1)), request("LeaveGroup", is_answered=False), 30.0]
    assert "L2" not in broken(left, of(Closing))
    assert "L2" not in broken(left, of(Polling), 3.0, of(Closing))
    assert "L2" in broken(left, of(Polling), 30.0, of(Closing))


def returned():
    """A member that left for a missed poll gets partitions 3 s after its application polled."""
    left = [of(Absent), 5.1, of(Lost, partitions=(T0, T1)), leaves()]
    polled = [of(Polling), first_join(), of(Absent), 3.0]
    return [consuming(max_poll_interval=5.0), left, polled, joins(2, T0, T1), assigned(2, T0, T1)]


def test_s10_the_poll_timer_starts_with_the_first_partitions_of_a_membership():
    lost = of(Lost, partitions=(T0, T1))
    assert "S10" in broken(returned(), 4.9, lost)
    assert "S10" not in broken(returned(), 5.0, lost)


def test_s10_a_commit_may_end_too_late_for_the_poll_interval():
    def commits_for(seconds):
        began = of(Committing, token=1, offsets=None)
        return [began, seconds, of(Committed, token=1, outcome="RequestTimeoutError")]

    begun = [consuming(max_poll_interval=5.0), delivers(1)]
    lost = of(Lost, partitions=(T0, T1))
    assert "S10" not in broken(begun, commits_for(5.0), lost)
    assert "S10" in broken(begun, commits_for(4.9), lost)


def test_l2_a_member_that_rejoins_for_a_poll_has_the_whole_interval_again():
    assert "L2" not in broken(returned(), 6.9, heartbeats(generation=2))
    assert "L2" in broken(returned(), 7.1, heartbeats(generation=2))


def test_l2_an_absent_application_does_not_keep_its_partitions_by_rejoining():
    fenced = [heartbeats("UNKNOWN_MEMBER_ID"), of(Lost, partitions=(T0, T1)), first_join()]
    away = [consuming(max_poll_interval=5.0), of(Absent), 3.0, fenced]
    again = [away, joins(2, T0, T1), assigned(2, T0, T1)]
    assert "L2" not in broken(again, 3.8, heartbeats(generation=2))
    assert "L2" in broken(again, 4.2, heartbeats(generation=2))


# ------------------------------------------------------------------ L6: rejoining


def refused(api="JoinGroup", error="UNKNOWN_SERVER_ERROR"):
    return request(api, error=error, asked={"member_id": "A"}, response={"member_id": "A"})


def test_l6_a_failed_join_is_repeated_after_a_backoff():
    assert "L6" not in broken(opening(), [[refused(), 0.1 + 0.01 * n] for n in range(5)])
    assert "L6" in broken(opening(), [refused() for _ in range(5)])
    assert "L6" not in broken(opening(), [refused("SyncGroup", "REBALANCE_IN_PROGRESS")] * 5)


def test_l6_a_join_may_follow_member_id_required_at_once():
    assert "L6" not in broken(opening(), [first_join() for _ in range(5)])
