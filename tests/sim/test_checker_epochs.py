"""The checker detects violations by KIP-848 members, and reports nothing else.

The stories are built like those of `test_checker`, with the same helpers.
"""

import attrs
import pytest

from kafkagroup import TopicPartition
from sim.checker import find_violations
from sim.events import (
    Closing,
    Ended,
    Formed,
    Frozen,
    Healed,
    Lost,
    Revoked,
    Revoking,
    Sought,
    Stored,
    Thawed,
)
from sim.test_checker import (
    T0,
    T1,
    assigned,
    broken,
    commits,
    delivers,
    finished,
    looks_up,
    of,
    opening,
    request,
    revokes,
    timeline,
    waited,
    written,
)

U0 = TopicPartition("u", 0)


def beats(epoch, *, gets=None, owned=None, now=None, error="NONE", member="a", **options):
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
    return beats(0, owned=(), now=epoch, gets=partitions, member=member)


def owns(epoch, *partitions, member="a"):
    """The member joins, is assigned these partitions, applies them and reports them as owned."""
    return [
        joins(epoch, *partitions, member=member),
        assigned(epoch, *partitions, member=member),
        beats(epoch, owned=partitions, member=member),
    ]


def is_well(**fields):
    return opening(cooperative=True, **fields)


HAS_BOTH = [is_well(), owns(2, T0, T1)]


def test_a_life_without_fault_is_clean():
    """One member revokes a partition, another gets it with its commit; both close."""
    story = [
        written(0, 1, 2),
        HAS_BOTH,
        looks_up()({T0: -1, T1: -1}),
        delivers(0, 1),
        beats(2, gets=(T1,)),
        commits(2, generation=2),
        revokes(T0),
        assigned(2),
        beats(2, owned=(T1,), now=3),
        opening("b", cooperative=True),
        owns(3, T0, member="b"),
        looks_up("b")({T0: 2}),
        delivers(2, member="b"),
        commits(3, generation=3, member="b"),
        [of(Closing), revokes(T1), beats(-1), of(Ended)],
        [of(Closing, "b"), revokes(T0, member="b"), beats(-1, member="b"), of(Ended, "b")],
        finished(3, 3),
    ]
    assert broken(story) == []


def test_s1_two_owners_in_one_epoch():
    other = [opening("b", cooperative=True), joins(2, T1, member="b")]
    assert broken(HAS_BOTH, other, assigned(2, T1, member="b")) == ["S1"]


def test_s2_what_is_being_revoked_is_still_said_to_be_owned():
    letting_go = [HAS_BOTH, beats(2, gets=(T1,)), of(Revoking, partitions=(T0,))]
    assert broken(letting_go, beats(2)) == []
    assert broken(letting_go, beats(2, owned=(T0, T1))) == []
    assert broken(letting_go, beats(2, owned=(T1,))) == ["S2"]
    done = [of(Revoked, partitions=(T0,)), assigned(2), beats(2, owned=(T1,), now=3)]
    assert broken(letting_go, done) == []


def test_s2_what_is_owned_is_not_said_to_be_let_go_of():
    assert broken(HAS_BOTH, beats(2, owned=(T0,))) == ["S2"]
    # It need not have reported partitions that were just assigned.
    assert broken(is_well(), joins(2, T0), assigned(2, T0), beats(2, owned=())) == []
    # Nor those that it was assigned again: what it reported before was the former period.
    again = [beats(2, owned=(T0, T1)), revokes(T0), assigned(2, T0), beats(2, owned=(T1,))]
    assert broken(HAS_BOTH, again) == []
    assert broken(HAS_BOTH, again, beats(2, owned=(T0, T1)), beats(2, owned=(T1,))) == ["S2"]


def test_s2_a_member_claims_only_what_it_was_given_since_it_joined():
    assert broken(HAS_BOTH, beats(2, owned=(T0, T1, U0))) == ["S2"]


def test_s2_a_join_begins_with_nothing():
    fenced = [HAS_BOTH, beats(2, error="FENCED_MEMBER_EPOCH", now=0)]
    lost = [fenced, of(Lost, partitions=(T0, T1))]
    assert broken(lost, joins(3)) == []
    assert broken(lost, beats(0, owned=(T0, T1), now=3)) == ["S2"]
    assert broken(fenced, joins(3)) == ["S2", "S2"]


def test_s2_nobody_leaves_while_it_revokes():
    assert broken(HAS_BOTH, of(Closing), of(Revoking, partitions=(T0, T1)), beats(-1)) == ["S2"] * 2


def test_s3_what_is_still_said_to_be_owned_may_be_committed():
    """The callback has run, but other members get the partition only after the next heartbeat."""
    story = [is_well(), owns(2, T0, T1), looks_up()({T0: -1, T1: -1}), delivers(0, 1)]
    story += [commits(1, generation=2), beats(2, gets=(T1,)), revokes(T0)]
    late = commits(2, generation=2)
    assert broken(story, beats(2, owned=(T0, T1)), late) == []
    assert broken(story, assigned(2), beats(2, owned=(T1,)), late) == ["S3"]


def test_s5_what_was_sought_before_it_was_fenced_may_be_stored_once_it_is_back():
    """It rejoins in the same epoch, as no other member has joined or left: the coordinator still
    accepts a commit that was in transit."""
    first = [is_well(), owns(2, T0), looks_up()({T0: 0}), delivers(0, 1), commits(2, generation=2)]
    sought = of(Sought, partition=T0, offset=1)
    sent = commits(1, generation=2, answer=False, stored=False)
    again = [beats(2, error="FENCED_MEMBER_EPOCH", now=0), of(Lost, partitions=(T0,)), owns(2, T0)]
    stored = Stored(time=0.0, partition=T0, offset=1, member_id="A", generation=2)
    assert broken(first, sought, sent, again, stored) == []
    assert broken(first, sought, again, stored) == ["S5"]
    assert broken(first, sent, again, stored) == ["S5"]


def test_s3_the_commit_is_answered_before_others_hear_that_it_let_go():
    commit, stored, answer = commits(2, generation=2)
    story = [written(0, 1), HAS_BOTH, looks_up()({T0: -1, T1: -1}), delivers(0, 1)]
    story += [beats(2, gets=(T1,)), commit, stored, revokes(T0), assigned(2)]
    assert broken(story, answer, beats(2, owned=(T1,), now=3)) == []
    assert broken(story, beats(2, owned=(T0, T1)), answer, beats(2, owned=(T1,), now=3)) == []
    assert broken(story, beats(2, owned=(T1,), now=3)) == ["S3"]


def test_s5_a_commit_that_is_tried_again_in_a_later_epoch_is_the_same():
    """STALE_MEMBER_EPOCH: the next heartbeat returns a new epoch, which the retry carries."""
    story = [written(0, 1), HAS_BOTH, looks_up()({T0: -1, T1: -1}), delivers(0, 1)]
    stale = commits(2, generation=2, error="STALE_MEMBER_EPOCH")
    moves_on = [beats(2, now=3), commits(2, generation=3)]
    assert broken(story, stale, moves_on) == []


def test_s10_heartbeats_name_the_epoch_of_the_last_answer():
    moved = [HAS_BOTH, beats(2, now=3)]
    assert broken(moved, beats(3)) == []
    assert broken(moved, beats(2, now=3)) == ["S10"]


@pytest.mark.parametrize("error", ["FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"])
def test_s10_an_epoch_that_is_fenced_is_over(error):
    fenced = [HAS_BOTH, beats(2, error=error, now=0)]
    assert broken(fenced, beats(2, owned=(T0, T1))) == ["S10"]


def test_s10_nor_for_one_that_was_given_up_and_had_to_wait_for_its_connection():
    """The next heartbeat went to another coordinator, and was answered."""
    late = beats(2, owned=(T0, T1), error="NOT_COORDINATOR", now=0, connection=2)
    moved = [HAS_BOTH, beats(2, now=3), beats(3)]
    assert broken(moved, waited(0.05, late), beats(3)) == []
    assert broken(moved, late, beats(3)) == ["S10", "S10"]


def test_s10_a_heartbeat_that_waited_may_leave_when_the_place_is_lost():
    """It waited for the end of a throttle, or while its process was frozen."""
    loses = [is_well(max_poll_interval=15.0), owns(2, T0, T1), 14.5]
    lost, late = of(Lost, partitions=(T0, T1)), beats(2)
    assert "S10" not in broken(loses, beats(2), 0.9, lost, waited(0.5, late), beats(-1))
    assert "S10" in broken(loses, beats(2), 0.9, lost, late, beats(-1))
    *before, thawed, gone, beat, answer = timeline(loses, 6.0, of(Thawed), lost, late)
    at_once = [attrs.evolve(event, time=thawed.time) for event in (gone, beat)]
    assert "S10" not in [v.invariant for v in find_violations([*before, thawed, *at_once, answer])]
    assert "S10" in [v.invariant for v in find_violations([*before, thawed, gone, beat, answer])]


def test_s10_who_is_in_does_not_join_again():
    assert broken(is_well(), joins(2), assigned(2), joins(2)) == ["S10"]
    # A member that loses its partitions by itself may be unable to notify the coordinator.
    stuck = [is_well(max_poll_interval=15.0), owns(2, T0, T1), 20.0]
    assert "S10" not in broken(stuck, of(Lost, partitions=(T0, T1)), joins(2))


def test_s10_after_what_may_not_be_known_all_is_said_again():
    unanswered = [HAS_BOTH, beats(2, answer=False)]
    assert broken(unanswered, beats(2, owned=(T0, T1))) == []
    assert broken(unanswered, beats(2)) == ["S10"]
    refused = [HAS_BOTH, beats(2, error="COORDINATOR_LOAD_IN_PROGRESS", now=0), 0.2]
    assert broken(refused, beats(2, owned=(T0, T1))) == []
    assert broken(refused, beats(2)) == ["S10"]


def test_s10_unless_what_was_given_up_before_left_in_between():
    """It had to wait for its connection to the previous coordinator."""
    late = beats(2, owned=(T0, T1), error="NOT_COORDINATOR", now=0, connection=2)

    def around(late, error="NONE"):
        full = beats(2, owned=(T0, T1), error=error)
        return broken(HAS_BOTH, full[0], late[0], full[1], late[1], beats(2))

    assert around(waited(0.05, late)) == []
    assert around(late) == ["S10"]
    assert around(waited(0.05, late), "NOT_COORDINATOR") == ["S10"]


def test_s10_what_is_taken_up_is_what_was_assigned():
    assert broken(is_well(), joins(2, T0), assigned(2, T0, T1)) == ["S10"]
    assert broken(is_well(), joins(2, T0), assigned(3, T0)) == ["S10"]
    # The second assignment is applied after the first.
    waits = [joins(2, T0), beats(2, now=3, gets=(T0, T1)), assigned(3, T0), assigned(3, T1)]
    assert broken(is_well(), waits) == []
    # Line 35: the name of a topic may be unknown at first.
    assert broken(is_well(), joins(2, T0, U0), assigned(2, T0), assigned(2, U0)) == []


def test_s10_a_place_is_lost_only_for_a_reason():
    assert broken(HAS_BOTH, of(Lost, partitions=(T0, T1))) == ["S10"]


def test_s11_the_id_is_kept_for_life():
    other = request(
        "ConsumerGroupHeartbeat",
        asked={"member_id": "X", "generation": 0, "owned": ()},
        response={"generation": 3, "assigned": ()},
    )
    fenced = [is_well(), joins(2), assigned(2), beats(2, error="UNKNOWN_MEMBER_ID", now=0)]
    assert broken(fenced, other) == ["S11"]


def test_s13_nothing_is_committed_for_an_epoch_that_is_over():
    story = [written(0, 1), HAS_BOTH, looks_up()({T0: -1, T1: -1}), delivers(0)]
    story += [commits(1, generation=2), delivers(1), beats(2, now=3)]
    fenced = [story, beats(3, error="FENCED_MEMBER_EPOCH", now=0)]
    assert broken(fenced, commits(2, generation=3, error="UNKNOWN_MEMBER_ID")) == ["S13"]
    # With any epoch.
    assert broken(fenced, commits(2, generation=2, error="UNKNOWN_MEMBER_ID")) == ["S13"]


def test_s14_a_target_is_complete():
    target = {
        "generation": 3,
        "protocol": "uniform",
        "subscriptions": {"A": ("t",)},
        "partitions": {"t": 2},
    }
    assert broken(Formed(time=0.0, assignment={"A": (T0, T1)}, **target)) == []
    assert broken(Formed(time=0.0, assignment={"A": (T0,)}, **target)) == ["S14"]


def test_l1_what_stays_is_delivered_while_the_rest_goes():
    fetched = request("Fetch", connection=3, response={"offsets": {T1: 3}})
    begun = [written(0, 1, 2, tp=T1), HAS_BOTH, looks_up()({T0: 0, T1: 0}), fetched]
    begun += [delivers(0, tp=T1)]
    goes = [beats(2, gets=(T1,)), of(Revoking, partitions=(T0,))]
    done = [of(Revoked, partitions=(T0,)), assigned(2)]
    assert broken(begun, goes, 0.3, done) == ["L1"]
    assert broken(begun, goes, delivers(1, 2, tp=T1), 0.3, done) == []
    # Unless the group may have expired the member in the meantime.
    assert "L1" not in broken(begun, of(Frozen), 7.9, of(Thawed), goes, 0.3, done)


def test_l2_what_was_let_go_of_is_said():
    quiet = [HAS_BOTH, beats(2, gets=()), revokes(T0, T1), assigned(2)]
    assert broken(quiet, beats(2), beats(2, owned=())) == []
    assert broken(quiet, beats(2), 1.2, beats(2), 1.2, beats(2)) == ["L2"]


def test_l2_what_is_assigned_is_taken_up():
    deaf = [HAS_BOTH, Healed(time=0.0), beats(2, now=3, gets=(T0, T1, U0)), 22.0]
    assert "L2" in broken(deaf, of(Closing))
    assert "L2" not in broken(HAS_BOTH, 22.0, of(Closing))


def test_l3_heartbeats_go_on():
    assert broken(HAS_BOTH, 1.4, beats(2)) == []
    assert broken(HAS_BOTH, 1.6, beats(2)) == ["L3"]


def test_l4_who_closes_tells_its_group():
    well = [HAS_BOTH, Healed(time=0.0), [(1.0, beats(2)) for _ in range(12)]]
    end = [of(Closing), revokes(T0, T1)]
    assert broken(well, end, beats(-1), of(Ended)) == []
    assert broken(well, end, of(Ended)) == ["L4"]
    # Before `Healed` it may not know the coordinator.
    assert broken(HAS_BOTH, end, of(Ended)) == []


def test_l6_what_is_refused_is_asked_again_after_a_pause():
    def refused(pause):
        parts = [[beats(2, owned=(T0, T1), error="NOT_COORDINATOR", now=0), pause]] * 4
        return [HAS_BOTH, parts, beats(2, owned=(T0, T1))]

    assert "L6" in broken(refused(0.01))
    assert "L6" not in broken(is_well(), owns(2, T0, T1), 0.3)


def test_s1_a_fenced_member_sends_no_heartbeat():
    fenced = [HAS_BOTH, beats(2, error="FENCED_INSTANCE_ID", now=0)]
    assert broken(fenced) == []
    assert broken(fenced, beats(2)) == ["S1", "S10"]
