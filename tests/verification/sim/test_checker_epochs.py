"""The checker detects violations by KIP-848 members, and reports nothing else.

The stories are built like those of `test_checker`, with the same helpers.
"""

import attrs
import pytest

from kafkagroup import TopicPartition
from verification.sim.checker import find_violations
from verification.sim.events import (
    Away,
    Closing,
    Committed,
    Committing,
    Ended,
    Formed,
    Frozen,
    Healed,
    Lost,
    Polling,
    Revoked,
    Revoking,
    Sought,
    Stored,
    Thawed,
)
from verification.sim.test_checker import (
    T0,
    T1,
    assigned,
    broken,
    commits,
    delivers,
    fetches_offsets,
    finished,
    of,
    opening,
    request,
    revokes,
    timeline,
    waited,
    written,
)

U0 = TopicPartition("u", 0)


def heartbeats(epoch, *, gets=None, owned=None, now=None, error="NONE", member="a", **options):
    """A heartbeat with an epoch and owned partitions; the response has an epoch and assignment."""
    return request(
        "ConsumerGroupHeartbeat",
        member,
        error=error,
        asked={"member_id": member.upper(), "generation": epoch, "owned": owned},
        response={"generation": epoch if now is None else now, "assigned": gets},
        **options,
    )


def joins(epoch, *partitions, member="a"):
    return heartbeats(0, owned=(), now=epoch, gets=partitions, member=member)


def owns(epoch, *partitions, member="a"):
    """The member joins, is assigned these partitions, applies them and reports them as owned."""
    return [
        joins(epoch, *partitions, member=member),
        assigned(epoch, *partitions, member=member),
        heartbeats(epoch, owned=partitions, member=member),
    ]


def opened(**fields):
    return opening(cooperative=True, **fields)


HAS_BOTH = [opened(), owns(2, T0, T1)]


def test_a_run_without_faults_has_no_violations():
    """One member revokes a partition, another gets it with its commit; both close."""
    story = [
        written(0, 1, 2),
        HAS_BOTH,
        fetches_offsets()({T0: -1, T1: -1}),
        delivers(0, 1),
        heartbeats(2, gets=(T1,)),
        commits(2, generation=2),
        revokes(T0),
        assigned(2),
        heartbeats(2, owned=(T1,), now=3),
        opening("b", cooperative=True),
        owns(3, T0, member="b"),
        fetches_offsets("b")({T0: 2}),
        delivers(2, member="b"),
        commits(3, generation=3, member="b"),
        [of(Closing), revokes(T1), heartbeats(-1), of(Ended)],
        [of(Closing, "b"), revokes(T0, member="b"), heartbeats(-1, member="b"), of(Ended, "b")],
        finished(3, 3),
    ]
    assert broken(story) == []


def test_s1_a_partition_has_one_owner_in_each_epoch():
    other = [opening("b", cooperative=True), joins(2, T1, member="b")]
    assert broken(HAS_BOTH, other, assigned(2, T1, member="b")) == ["S1"]


def test_s2_a_partition_is_reported_as_owned_until_its_revocation_is_complete():
    revoking = [HAS_BOTH, heartbeats(2, gets=(T1,)), of(Revoking, partitions=(T0,))]
    assert broken(revoking, heartbeats(2)) == []
    assert broken(revoking, heartbeats(2, owned=(T0, T1))) == []
    assert broken(revoking, heartbeats(2, owned=(T1,))) == ["S2"]
    done = [of(Revoked, partitions=(T0,)), assigned(2), heartbeats(2, owned=(T1,), now=3)]
    assert broken(revoking, done) == []


def test_s2_a_heartbeat_does_not_omit_an_owned_partition_reported_before():
    assert broken(HAS_BOTH, heartbeats(2, owned=(T0,))) == ["S2"]
    # It need not have reported partitions that were just assigned.
    assert broken(opened(), joins(2, T0), assigned(2, T0), heartbeats(2, owned=())) == []
    # Nor partitions assigned again: its earlier report was about the former period.
    again = [
        heartbeats(2, owned=(T0, T1)),
        revokes(T0),
        assigned(2, T0),
        heartbeats(2, owned=(T1,)),
    ]
    assert broken(HAS_BOTH, again) == []
    assert broken(HAS_BOTH, again, heartbeats(2, owned=(T0, T1)), heartbeats(2, owned=(T1,))) == [
        "S2"
    ]


def test_s2_a_heartbeat_reports_only_partitions_assigned_since_the_join():
    assert broken(HAS_BOTH, heartbeats(2, owned=(T0, T1, U0))) == ["S2"]


def test_s2_a_join_reports_no_owned_partitions():
    fenced = [HAS_BOTH, heartbeats(2, error="FENCED_MEMBER_EPOCH", now=0)]
    lost = [fenced, of(Lost, partitions=(T0, T1))]
    assert broken(lost, joins(3)) == []
    assert broken(lost, heartbeats(0, owned=(T0, T1), now=3)) == ["S2"]
    assert broken(fenced, joins(3)) == ["S2", "S2"]


def test_s2_a_member_leaves_after_its_revocation():
    assert (
        broken(HAS_BOTH, of(Closing), of(Revoking, partitions=(T0, T1)), heartbeats(-1))
        == ["S2"] * 2
    )


def test_s3_a_revoked_partition_may_be_committed_until_the_heartbeat_that_omits_it():
    """The callback has run, but other members get the partition only after the next heartbeat."""
    story = [opened(), owns(2, T0, T1), fetches_offsets()({T0: -1, T1: -1}), delivers(0, 1)]
    story += [commits(1, generation=2), heartbeats(2, gets=(T1,)), revokes(T0)]
    late = commits(2, generation=2)
    assert broken(story, heartbeats(2, owned=(T0, T1)), late) == []
    assert broken(story, assigned(2), heartbeats(2, owned=(T1,)), late) == ["S3"]


def test_s5_a_commit_of_a_seek_before_fencing_may_be_stored_after_the_member_rejoined():
    """It rejoins in the same epoch, as no other member has joined or left: the coordinator still
    accepts a commit that was in transit."""
    first = [
        opened(),
        owns(2, T0),
        fetches_offsets()({T0: 0}),
        delivers(0, 1),
        commits(2, generation=2),
    ]
    sought = of(Sought, partition=T0, offset=1)
    sent = commits(1, generation=2, is_answered=False, stored=False)
    again = [
        heartbeats(2, error="FENCED_MEMBER_EPOCH", now=0),
        of(Lost, partitions=(T0,)),
        owns(2, T0),
    ]
    stored = Stored(time=0.0, partition=T0, offset=1, member_id="A", generation=2)
    assert broken(first, sought, sent, again, stored) == []
    assert broken(first, sought, again, stored) == ["S5"]
    assert broken(first, sent, again, stored) == ["S5"]


def test_s3_the_commit_is_answered_before_a_heartbeat_acknowledges_the_revocation():
    commit, stored, response = commits(2, generation=2)
    story = [written(0, 1), HAS_BOTH, fetches_offsets()({T0: -1, T1: -1}), delivers(0, 1)]
    story += [heartbeats(2, gets=(T1,)), commit, stored, revokes(T0), assigned(2)]
    assert broken(story, response, heartbeats(2, owned=(T1,), now=3)) == []
    assert (
        broken(story, heartbeats(2, owned=(T0, T1)), response, heartbeats(2, owned=(T1,), now=3))
        == []
    )
    assert broken(story, heartbeats(2, owned=(T1,), now=3)) == ["S3"]


def test_s5_a_commit_may_be_retried_in_a_later_epoch():
    """STALE_MEMBER_EPOCH: the next heartbeat returns a new epoch, which the retry carries."""
    story = [written(0, 1), HAS_BOTH, fetches_offsets()({T0: -1, T1: -1}), delivers(0, 1)]
    stale = commits(2, generation=2, error="STALE_MEMBER_EPOCH")
    later = [heartbeats(2, now=3), commits(2, generation=3)]
    assert broken(story, stale, later) == []


def test_s10_a_heartbeat_has_the_epoch_of_the_last_response():
    moved = [HAS_BOTH, heartbeats(2, now=3)]
    assert broken(moved, heartbeats(3)) == []
    assert broken(moved, heartbeats(2, now=3)) == ["S10"]


@pytest.mark.parametrize("error", ["FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"])
def test_s10_a_fenced_epoch_is_not_used_again(error):
    fenced = [HAS_BOTH, heartbeats(2, error=error, now=0)]
    assert broken(fenced, heartbeats(2, owned=(T0, T1))) == ["S10"]


def test_s10_a_timed_out_heartbeat_that_waited_for_its_connection_may_have_an_old_epoch():
    """The next heartbeat went to another coordinator, and was answered."""
    late = heartbeats(2, owned=(T0, T1), error="NOT_COORDINATOR", now=0, connection=2)
    moved = [HAS_BOTH, heartbeats(2, now=3), heartbeats(3)]
    assert broken(moved, waited(0.05, late), heartbeats(3)) == []
    assert broken(moved, late, heartbeats(3)) == ["S10", "S10"]


def test_s10_a_delayed_heartbeat_may_be_sent_after_the_partitions_are_lost():
    """It waited for the end of a throttle, or while its process was frozen."""
    loses = [opened(max_poll_interval=15.0), owns(2, T0, T1), 14.5]
    lost, late = of(Lost, partitions=(T0, T1)), heartbeats(2)
    assert "S10" not in broken(loses, heartbeats(2), 0.9, lost, waited(0.5, late), heartbeats(-1))
    assert "S10" in broken(loses, heartbeats(2), 0.9, lost, late, heartbeats(-1))
    *before, thawed, gone, beat, response = timeline(loses, 6.0, of(Thawed), lost, late)
    at_once = [attrs.evolve(event, time=thawed.time) for event in (gone, beat)]
    assert "S10" not in [
        v.invariant for v in find_violations([*before, thawed, *at_once, response])
    ]
    assert "S10" in [v.invariant for v in find_violations([*before, thawed, gone, beat, response])]


def test_s10_a_joined_member_does_not_join_again():
    assert broken(opened(), joins(2), assigned(2), joins(2)) == ["S10"]
    # A member that loses its partitions by itself may be unable to notify the coordinator.
    stuck = [opened(max_poll_interval=15.0), owns(2, T0, T1), 20.0]
    assert "S10" not in broken(stuck, of(Lost, partitions=(T0, T1)), joins(2))


def test_s10_the_heartbeat_after_an_unanswered_or_failed_one_reports_all_partitions():
    unanswered = [HAS_BOTH, heartbeats(2, is_answered=False)]
    assert broken(unanswered, heartbeats(2, owned=(T0, T1))) == []
    assert broken(unanswered, heartbeats(2)) == ["S10"]
    refused = [HAS_BOTH, heartbeats(2, error="COORDINATOR_LOAD_IN_PROGRESS", now=0), 0.2]
    assert broken(refused, heartbeats(2, owned=(T0, T1))) == []
    assert broken(refused, heartbeats(2)) == ["S10"]


def test_s10_a_delayed_failed_heartbeat_does_not_require_a_full_one():
    """It had to wait for its connection to the previous coordinator."""
    late = heartbeats(2, owned=(T0, T1), error="NOT_COORDINATOR", now=0, connection=2)

    def around(late, error="NONE"):
        full = heartbeats(2, owned=(T0, T1), error=error)
        return broken(HAS_BOTH, full[0], late[0], full[1], late[1], heartbeats(2))

    assert around(waited(0.05, late)) == []
    assert around(late) == ["S10"]
    assert around(waited(0.05, late), "NOT_COORDINATOR") == ["S10"]


def test_s10_an_applied_assignment_is_the_one_received():
    assert broken(opened(), joins(2, T0), assigned(2, T0, T1)) == ["S10"]
    assert broken(opened(), joins(2, T0), assigned(3, T0)) == ["S10"]
    # The second assignment is applied after the first.
    waits = [joins(2, T0), heartbeats(2, now=3, gets=(T0, T1)), assigned(3, T0), assigned(3, T1)]
    assert broken(opened(), waits) == []
    # Line 35: the name of a topic may be unknown at first.
    assert broken(opened(), joins(2, T0, U0), assigned(2, T0), assigned(2, U0)) == []


def test_s10_partitions_are_not_lost_without_an_error():
    assert broken(HAS_BOTH, of(Lost, partitions=(T0, T1))) == ["S10"]


def test_s11_a_member_keeps_its_id_after_unknown_member_id():
    other = request(
        "ConsumerGroupHeartbeat",
        asked={"member_id": "X", "generation": 0, "owned": ()},
        response={"generation": 3, "assigned": ()},
    )
    fenced = [opened(), joins(2), assigned(2), heartbeats(2, error="UNKNOWN_MEMBER_ID", now=0)]
    assert broken(fenced, other) == ["S11"]


def test_s13_nothing_is_committed_for_a_fenced_epoch():
    story = [written(0, 1), HAS_BOTH, fetches_offsets()({T0: -1, T1: -1}), delivers(0)]
    story += [commits(1, generation=2), delivers(1), heartbeats(2, now=3)]
    fenced = [story, heartbeats(3, error="FENCED_MEMBER_EPOCH", now=0)]
    assert broken(fenced, commits(2, generation=3, error="UNKNOWN_MEMBER_ID")) == ["S13"]
    # With any epoch.
    assert broken(fenced, commits(2, generation=2, error="UNKNOWN_MEMBER_ID")) == ["S13"]


def test_s14_a_target_assignment_contains_all_partitions():
    target = {
        "generation": 3,
        "protocol": "uniform",
        "subscriptions": {"A": ("t",)},
        "partitions": {"t": 2},
    }
    assert broken(Formed(time=0.0, assignment={"A": (T0, T1)}, **target)) == []
    assert broken(Formed(time=0.0, assignment={"A": (T0,)}, **target)) == ["S14"]


def test_l1_kept_partitions_are_delivered_while_others_are_revoked():
    fetched = request("Fetch", connection=3, response={"offsets": {T1: 3}})
    begun = [written(0, 1, 2, tp=T1), HAS_BOTH, fetches_offsets()({T0: 0, T1: 0}), fetched]
    begun += [delivers(0, tp=T1)]
    revoking = [heartbeats(2, gets=(T1,)), of(Revoking, partitions=(T0,))]
    done = [of(Revoked, partitions=(T0,)), assigned(2)]
    assert broken(begun, revoking, 0.3, done) == ["L1"]
    assert broken(begun, revoking, delivers(1, 2, tp=T1), 0.3, done) == []
    # Unless the group may have expired the member in the meantime.
    assert "L1" not in broken(begun, of(Frozen), 7.9, of(Thawed), revoking, 0.3, done)


def test_l2_a_revocation_is_acknowledged_in_time():
    quiet = [HAS_BOTH, heartbeats(2, gets=()), revokes(T0, T1), assigned(2)]
    assert broken(quiet, heartbeats(2), heartbeats(2, owned=())) == []
    assert broken(quiet, heartbeats(2), 1.2, heartbeats(2), 1.2, heartbeats(2)) == ["L2"]


def test_l2_a_revocation_is_acknowledged_before_the_next_one_begins():
    """A newer assignment arrives while partitions of an older one are revoked."""
    begun = [written(0, tp=T1), opened(), owns(2, T0, T1, U0), fetches_offsets()({T1: 0})]
    begun += [
        delivers(0, tp=T1, processed=False),
        heartbeats(2, gets=(T1, U0)),
        of(Revoking, partitions=(T0,)),
    ]
    begun += [heartbeats(2, gets=(U0,)), of(Revoked, partitions=(T0,)), assigned(2)]
    later = [[1.2, heartbeats(2)] for _ in range(2)]
    assert broken(begun, heartbeats(2, owned=(T1, U0)), later) == []
    assert broken(begun, heartbeats(2, owned=(T0, T1, U0)), later) == ["L2"]
    assert broken(begun, later) == ["L2"]


def test_l2_after_a_revocation_the_callback_of_an_assignment_may_follow_a_commit():
    notified = [HAS_BOTH, heartbeats(2, gets=())]
    begun = of(Committing, token=1, offsets=None)
    lasts = [[1.0, heartbeats(2)] for _ in range(3)]
    failed = of(Committed, token=1, outcome="ConnectionLostError")
    callback = [0.5, heartbeats(2)]
    waited_for = [notified, begun, revokes(T0, T1), lasts, failed]
    assert broken(waited_for, callback, heartbeats(2, owned=())) == []
    assert broken(waited_for, [callback] * 8) == ["L2"]
    assert broken(notified, revokes(T0, T1), begun, lasts, failed, callback) == ["L2"]


def test_l2_an_assignment_is_applied_in_time():
    ignoring = [HAS_BOTH, Healed(time=0.0), heartbeats(2, now=3, gets=(T0, T1, U0)), 22.0]
    assert "L2" in broken(ignoring, of(Closing))
    assert "L2" not in broken(HAS_BOTH, 22.0, of(Closing))


def test_l3_heartbeats_are_sent_at_their_interval():
    assert broken(HAS_BOTH, 1.4, heartbeats(2)) == []
    assert broken(HAS_BOTH, 1.6, heartbeats(2)) == ["L3"]


def test_l4_a_closing_member_leaves_its_group():
    well = [HAS_BOTH, Healed(time=0.0), [(1.0, heartbeats(2)) for _ in range(12)]]
    end = [of(Closing), revokes(T0, T1)]
    assert broken(well, end, heartbeats(-1), of(Ended)) == []
    assert broken(well, end, of(Ended)) == ["L4"]
    # Before `Healed` it may not know the coordinator.
    assert broken(HAS_BOTH, end, of(Ended)) == []


def test_l6_a_failed_heartbeat_is_repeated_after_a_backoff():
    def refused(pause):
        parts = [[heartbeats(2, owned=(T0, T1), error="NOT_COORDINATOR", now=0), pause]] * 4
        return [HAS_BOTH, parts, heartbeats(2, owned=(T0, T1))]

    assert "L6" in broken(refused(0.01))
    assert "L6" not in broken(opened(), owns(2, T0, T1), 0.3)


def test_s1_l9_a_static_member_may_release_its_instance_id_before_it_joins():
    """An earlier join may hold it. Another process that has the id refuses that."""
    unanswered = heartbeats(0, owned=(), is_answered=False)
    for error in ("NONE", "FENCED_INSTANCE_ID"):
        released = [opened(), of(Polling), unanswered, heartbeats(-2, error=error, now=0)]
        assert broken(released, owns(2, T0, T1)) == []
    late = [opened(max_poll_interval=5.0), owns(2, T0, T1), of(Away), 5.1, revokes(T0, T1)]
    fenced = heartbeats(-2, error="FENCED_INSTANCE_ID", now=0)
    assert "S1" in broken(late, fenced, joins(3, T0, T1))


def test_s1_a_fenced_member_sends_no_heartbeat():
    fenced = [HAS_BOTH, heartbeats(2, error="FENCED_INSTANCE_ID", now=0)]
    assert broken(fenced) == []
    assert broken(fenced, heartbeats(2)) == ["S1", "S10"]


def test_s27_a_reported_revocation_ends_its_part_of_the_lease():
    """Another revocation that the response demands has a rebalance timeout of its own."""
    first = [HAS_BOTH, fetches_offsets()({T0: -1, T1: -1}), heartbeats(2, gets=(T1,))]
    beats = [[2.6, heartbeats(2)] for _ in range(3)]
    reported = [*beats[:2], revokes(T0), 2.6, heartbeats(2, owned=(T1,), gets=())]
    kept = [*beats, heartbeats(2, gets=())]
    assert "S27" not in broken(first, reported, 0.3, delivers(0, tp=T1))
    assert "S27" in broken(first, kept, 0.3, delivers(0, tp=T1))
