"""The checker detects violations, and reports nothing else.

A story is a sequence of parts; without an explicit time, each event follows the previous one after
10 ms. Each invariant has a story that satisfies it, and the same story with a single change that
violates it.
"""

from collections.abc import Iterable
from functools import wraps
from itertools import count

import attrs
import pytest

from kafkagroup import TopicPartition
from verification.sim.checker import examine, find_violations
from verification.sim.events import (
    Absent,
    Appended,
    Assigned,
    Away,
    Cancelled,
    Cancelling,
    Closing,
    Committed,
    Committing,
    Delivered,
    Ended,
    Event,
    Finished,
    Formed,
    Frozen,
    Healed,
    Killed,
    Lost,
    Opening,
    Paused,
    Polling,
    Processed,
    Raised,
    Rejoining,
    Responded,
    Revoked,
    Revoking,
    Sent,
    Sought,
    Stored,
    Subscribing,
    Thawed,
    Throttled,
    Truncated,
    Worked,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

NO_LEASE = ["S27"]
"""What a delivery after the end of the lease violates, and not L1: it should not have come."""

_number = count()


def timeline(*parts):
    """Return the events of the parts, in order. A number is a pause in seconds."""
    events: list[Event] = []
    now = 0.0
    for part in _flat(parts):
        if isinstance(part, float):
            now += part
            continue
        now += 0.01
        events.append(attrs.evolve(part, time=now))
    return events


def _flat(parts):
    for part in parts:
        if isinstance(part, Iterable):
            yield from _flat(part)
        else:
            yield part


def _listed(generate):
    """Make a generator of events return a list, as a part may be used more than once."""
    return wraps(generate)(
        lambda *arguments, **options: list(_flat(generate(*arguments, **options)))
    )


def broken(*parts, **options):
    """Return the invariants that a story violates, in order, one entry per violation."""
    return [violation.invariant for violation in find_violations(timeline(*parts), **options)]


def of(kind, member="a", **fields):
    return kind(time=0.0, member=member, **fields)


def opening(member="a", **fields):
    return of(Opening, member, session_timeout=6.0, rebalance_timeout=8.0, **fields)


@_listed
def request(
    api, member="a", *, error="NONE", connection=1, is_answered=True, asked=None, response=None
):
    """A request and its response."""
    number = next(_number)
    wire = {"api": api, "connection": connection, "correlation": number}
    yield of(Sent, member, **wire, **(asked or {}))
    if is_answered:
        yield of(Responded, member, **wire, error=error, **(response or {}))


def waited(seconds, *parts):
    """The requests among the parts waited for so long before they left."""
    return [
        attrs.evolve(part, waited=seconds) if isinstance(part, Sent) else part
        for part in _flat(parts)
    ]


@_listed
def joins(generation, *partitions, member="a", owned=(), member_id=None):
    """JoinGroup, SyncGroup and the first heartbeat, with their responses."""
    known = member.upper() if member_id is None else member_id
    ids = {"member_id": member.upper()}
    yield request(
        "JoinGroup",
        member,
        asked={"member_id": known, "owned": owned},
        response={**ids, "generation": generation},
    )
    yield request(
        "SyncGroup",
        member,
        asked={**ids, "generation": generation},
        response={"assigned": partitions},
    )
    yield heartbeats(generation=generation, member=member)


def first_join(member="a"):
    """The first join, whose response assigns a member id."""
    return request(
        "JoinGroup", member, error="MEMBER_ID_REQUIRED", response={"member_id": member.upper()}
    )


def assigned(generation, *partitions, member="a"):
    return of(Assigned, member, partitions=partitions, generation=generation)


def fetches_offsets(member="a", error="NONE"):
    def at(offsets):
        return request("OffsetFetch", member, error=error, response={"offsets": offsets})

    return at


def starts(generation, offsets, member="a", owned=()):
    """A member joins (for the first time, unless it owns something) and fetches its offsets."""
    return [
        [] if owned else first_join(member),
        joins(generation, *offsets, *owned, member=member, owned=owned),
        assigned(generation, *offsets, member=member),
        fetches_offsets(member)(offsets),
    ]


@_listed
def delivers(*offsets, tp=T0, member="a", processed=True, shift=0):
    for offset in offsets:
        yield of(Delivered, member, partition=tp, offset=offset, sequence=offset + shift)
        if processed:
            yield of(Processed, member, partition=tp, offset=offset)


@_listed
def commits(
    offset, *, tp=T0, member="a", generation=1, is_answered=True, stored=True, error="NONE"
):
    asked = {"offsets": {tp: offset}, "member_id": member.upper(), "generation": generation}
    sent, *answered = request(
        "OffsetCommit",
        member,
        connection=2,
        error=error,
        is_answered=is_answered,
        asked=asked,
        response={"offsets": {} if error != "NONE" else {tp: offset}},
    )
    yield sent
    if stored and error == "NONE":
        yield Stored(
            time=0.0, partition=tp, offset=offset, member_id=member.upper(), generation=generation
        )
    yield answered


def revokes(*partitions, member="a"):
    return [
        of(Revoking, member, partitions=partitions),
        of(Revoked, member, partitions=partitions),
    ]


def heartbeats(error="NONE", *, generation=1, member="a", connection=1):
    return request(
        "Heartbeat",
        member,
        error=error,
        connection=connection,
        asked={"member_id": member.upper(), "generation": generation},
    )


def leaves(member="a"):
    return request("LeaveGroup", member, asked={"member_id": member.upper()})


def closes(*partitions, member="a"):
    return [
        of(Closing, member),
        revokes(*partitions, member=member),
        leaves(member),
        of(Ended, member),
    ]


def written(*sequences, tp=T0):
    return [
        Appended(time=0.0, partition=tp, offset=offset, sequence=sequence)
        for offset, sequence in enumerate(sequences)
    ]


def truncation(offset, *rewritten):
    """The log is truncated, and these records are written at its end."""
    appended = [
        Appended(time=0.0, partition=T0, offset=at, sequence=sequence)
        for at, sequence in enumerate(rewritten, offset)
    ]
    return [Truncated(time=0.0, partition=T0, offset=offset), appended]


def finished(committed=0, end=0):
    return Finished(time=0.0, committed={T0: committed}, ends={T0: end}, starts={T0: 0})


# ------------------------------------------------------------------ a whole run


def handover():
    """One member processes four records and revokes; another takes over, and both close."""
    return [
        written(0, 1, 2, 3, 4, 5),
        opening("a"),
        starts(1, {T0: -1}),
        delivers(0, 1),
        commits(2),
        delivers(2, 3),
        heartbeats("REBALANCE_IN_PROGRESS"),
        commits(4),
        revokes(T0),
        joins(2),
        opening("b"),
        starts(2, {T0: 4}, member="b"),
        assigned(2),
        delivers(4, 5, member="b"),
        commits(6, member="b", generation=2),
        closes(),
        closes(T0, member="b"),
        finished(6, 6),
    ]


def test_a_run_without_faults_has_no_violations():
    result = examine(timeline(handover()))
    assert result.violations == ()
    figures = result.figures
    assert (figures.records, figures.delivered, figures.lost) == (6, 6, 0)
    assert (figures.duplicated, figures.periods, figures.fenced) == (0, 2, 0)
    assert result.clean


def test_undelivered_records_are_counted_as_lost_without_another_violation():
    result = examine(timeline(written(0, 1), opening(), starts(1, {T0: -1}), finished(0, 2)))
    assert result.figures.lost == 2
    assert not result.clean


def test_a_violation_names_its_member_its_time_and_the_events_that_prove_it():
    story = timeline(opening(), starts(1, {T0: 0}), revokes(T0), delivers(0))
    (violation,) = find_violations(story)
    assert (violation.invariant, violation.member) == ("S9", "a")
    assert [type(story[number]) for number in violation.events] == [Revoked, Delivered]
    assert violation.time == story[violation.events[-1]].time


# ------------------------------------------------------------------ S1: one owner


def test_s1_a_partition_has_one_owner_in_each_generation():
    both = [starts(1, {T0: 0}), starts(1, {T0: 0}, member="b")]
    assert broken(both) == ["S1"]
    assert broken(starts(1, {T0: 0}), starts(1, {T1: 0}, member="b")) == []


def test_s1_a_restarted_static_member_may_own_the_same_partitions():
    instances = [opening(m, instance="i") for m in "ab"]
    assert broken(instances, starts(1, {T0: 0}), starts(1, {T0: 0}, member="b")) == []


def test_s1_an_expired_member_delivers_nothing_once_another_owns_the_partition():
    expired = [opening(), starts(1, {T0: 0}), opening("b"), starts(2, {T0: 0}, member="b")]
    assert broken(expired, delivers(0, member="b")) == []
    assert broken(expired, delivers(0)) == ["S1"]


def shared(generation, member="a"):
    """A group member, and its assignment of one shard."""
    return [
        opening(member, shards=True),
        first_join(member),
        joins(generation, T0, member=member),
        assigned(generation, T0, member=member),
    ]


def works(member="a"):
    return of(Worked, member, partition=T0)


def test_s1_two_members_do_not_process_a_shard_at_the_same_time():
    expired = [shared(1), works(), shared(2, "b"), works("b")]
    assert broken(expired) == []
    assert broken(expired, works()) == ["S1"]
    *before, thawed, late = timeline(expired, of(Frozen), 9.0, of(Thawed), works())
    assert find_violations([*before, thawed, attrs.evolve(late, time=thawed.time)]) == []


def test_s2_a_group_member_rejoins_after_its_work_has_ended_or_its_membership_is_lost():
    assert broken(shared(1), revokes(T0), joins(2)) == []
    assert broken(shared(1), joins(2)) == ["S2"]
    assert broken(shared(1), of(Revoking, partitions=(T0,)), joins(2)) == ["S2"]
    assert broken(shared(1), heartbeats("UNKNOWN_MEMBER_ID"), first_join(), revokes(T0)) == []
    revoking = of(Revoking, partitions=(T0,))
    lost = [shared(1), heartbeats("ILLEGAL_GENERATION"), revoking]
    assert broken(lost, joins(2), joins(3), of(Revoked, partitions=(T0,))) == []
    assert broken(shared(1), request("FindCoordinator"), 6.0, joins(2), revokes(T0)) == []
    assert broken(shared(1), request("FindCoordinator"), 5.0, joins(2), revokes(T0)) == ["S2"]


def test_s9_a_group_member_does_not_process_a_shard_that_it_revokes():
    assert broken(shared(1), of(Revoking, partitions=(T0,)), works()) == ["S9"]
    assert broken(shared(1), revokes(T0), works()) == ["S9"]


def test_s1_an_outdated_assignment_gives_no_ownership():
    asks, *applied = starts(1, {T0: 0})[1:]
    frozen = [opening(), first_join(), asks, opening("b"), starts(2, {T0: 0}, member="b")]
    assert broken(frozen, applied, delivers(0, member="b")) == []
    assert broken(frozen, applied, delivers(0)) == ["S1"]


def test_s1_a_replaced_static_member_may_deliver_until_it_receives_the_error():
    static = {"instance": "i"}
    first = [opening(**static), starts(1, {T0: 0}), opening("b"), first_join("b")]
    replaced = [opening("c", **static), request("JoinGroup", "c", is_answered=False)]
    assignment = [assigned(2, T0, member="b"), delivers(0)]
    assert broken(first, assignment) == ["S10", "S1"]
    assert broken(first, replaced, assignment) == ["S10"]


def test_s1_a_fenced_member_delivers_nothing_and_does_not_rejoin():
    fenced = [opening(instance="i"), starts(1, {T0: 0}), heartbeats("FENCED_INSTANCE_ID")]
    assert broken(fenced, of(Lost, partitions=(T0,)), of(Ended)) == []
    assert broken(fenced, delivers(0, processed=False)) == ["S1"]
    assert broken(fenced, of(Lost, partitions=(T0,)), first_join()) == ["S1"]


def test_s10_a_member_fenced_while_it_rejoins_loses_its_partitions():
    heartbeat, late = heartbeats("FENCED_INSTANCE_ID")
    asked = request("JoinGroup", asked={"member_id": "A", "owned": (T0,)}, is_answered=False)
    first = [opening(instance="i", cooperative=True), starts(1, {T0: 0}), heartbeat, asked]
    lost = [of(Lost, partitions=(T0,)), of(Ended)]
    assert broken(first, late, lost) == []
    assert broken(first, lost) == ["S10"]


def test_s1_a_rejoined_static_member_ignores_a_late_fencing_error():
    lost = of(Lost, partitions=(T0,))
    heartbeat, late = heartbeats("FENCED_INSTANCE_ID")
    first = [opening(instance="i"), starts(1, {T0: 0}), heartbeat]
    assert broken(first, heartbeats("UNKNOWN_MEMBER_ID"), lost, first_join(), late, joins(2)) == []
    assert broken(first, heartbeats("ILLEGAL_GENERATION"), lost, late, joins(2)) == [
        "S1",
        "S11",
        "S1",
        "S1",
    ]


# ------------------------------------------------------------------ S2: revoked, then rejoined


def test_s2_a_member_rejoins_after_its_revocation_is_complete():
    start = [opening(), starts(1, {T0: 0})]
    assert broken(start, revokes(T0), joins(2)) == []
    assert broken(start, of(Revoking, partitions=(T0,)), joins(2)) == ["S2"]
    assert broken(start, joins(2)) == ["S2"]


def test_s2_a_member_leaves_after_its_revocation_is_complete():
    start = [opening(), starts(1, {T0: 0}), of(Closing), of(Revoking, partitions=(T0,))]
    assert broken(start, of(Revoked, partitions=(T0,)), leaves(), of(Ended)) == []
    assert broken(start, leaves(), of(Revoked, partitions=(T0,)), of(Ended)) == ["S2"]


def test_s2_a_cooperative_join_request_lists_the_owned_partitions():
    start = [opening(cooperative=True), starts(1, {T0: 0, T1: 0}), revokes(T1)]
    assert broken(start, joins(2, T0, owned=(T0,))) == []
    assert broken(start, joins(2, T0)) == ["S2"]
    assert broken(start, joins(2, T0, owned=(T0, T1))) == ["S2"]


def test_s2_a_join_request_may_list_partitions_lost_at_the_moment_it_is_sent():
    claims = request("JoinGroup", asked={"member_id": "A", "owned": (T0,)}, is_answered=False)
    first = [opening(cooperative=True), starts(1, {T0: 0}), of(Closing)]

    def later(seconds):
        *before, lost, sent = timeline(first, of(Lost, partitions=(T0,)), claims)
        sent = attrs.evolve(sent, time=lost.time + seconds)
        return [v.invariant for v in find_violations([*before, lost, sent])]

    assert later(0.0) == []
    assert later(0.1) == ["S2"]


def test_s2_a_join_request_may_list_partitions_lost_while_it_waited_for_a_connection():
    start = [opening(cooperative=True), starts(1, {T0: 0}), heartbeats("UNKNOWN_MEMBER_ID")]
    lost = [of(Lost, partitions=(T0,)), 0.4]

    claims = request("JoinGroup", asked={"member_id": "A", "owned": (T0,)}, is_answered=False)
    assert broken(start, lost, claims) == ["S2", "S11"]
    assert broken(start, lost, waited(0.5, claims)) == []


def test_s2_a_closing_member_revokes_its_partitions_within_the_close_timeout():
    start = [opening(), starts(1, {T0: 0}), of(Closing)]
    assert broken(start, revokes(T0), of(Ended)) == []
    assert broken(start, of(Ended)) == ["S2"]
    assert broken(start, 10.0, of(Ended)) == []  # closed without a callback after its timeout


# ------------------------------------------------------------------ S3: the last commit


def test_s3_processed_records_are_committed_before_the_partition_is_revoked():
    assert broken(handover()) == []
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1, 2)]
    # The record in flight is not required: the client may not know that it is processed.
    assert broken(first, commits(2), revokes(T0)) == []
    assert broken(first, commits(1), revokes(T0)) == ["S3"]
    assert broken(first, revokes(T0)) == ["S3"]


def test_s3_a_revocation_needs_no_commit_without_auto_commit():
    first = [opening(auto_commit=False), starts(1, {T0: 0}), delivers(0, 1, 2)]
    assert broken(first, revokes(T0)) == []


def test_s3_a_member_leaves_once_its_last_commit_is_answered_or_its_deadline_has_passed():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    under_way = [first, commits(2, is_answered=False), revokes(T0)]
    assert broken(under_way) == []  # no other member can get the partition yet
    assert broken(under_way, leaves()) == ["S3"]
    assert broken(first, commits(2, is_answered=False), 0.5, revokes(T0), leaves()) == []


def test_s3_the_record_in_flight_does_not_extend_the_deadline_of_the_last_commit():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1), delivers(2, processed=False)]
    late = of(Processed, partition=T0, offset=2)
    assert broken(first, late, revokes(T0)) == ["S3"]
    assert broken(first, 0.5, late, revokes(T0)) == []


@pytest.mark.parametrize(("queued", "expected"), [(0.5, []), (0.1, ["S3"])])
def test_s3_the_deadline_of_the_last_commit_includes_its_wait_for_the_commit_before(
    queued, expected
):
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    last = attrs.evolve(commits(2)[0], queued=queued)
    assert broken(first, commits(1), last, revokes(T0), leaves()) == expected


@pytest.mark.parametrize("outcome", ["cancelled", "RequestTimeoutError"])
def test_s3_a_member_need_not_wait_for_a_commit_cancelled_when_it_was_sent(outcome):
    log = written(0, 1, -1)
    first = [log, opening(auto_commit=False), starts(1, {T0: 0}), delivers(0, 1)]
    called = [
        of(Committing, token=1, offsets=None),
        of(Committed, token=1, outcome=outcome),
    ]

    def leaves_after(seconds, offset=2):
        *before, cancelled, sent = timeline(
            first, called, next(iter(commits(offset, stored=False)))
        )
        after = timeline(revokes(T0), leaves())
        at = cancelled.time + seconds
        after = [attrs.evolve(event, time=at + event.time) for event in after]
        story = [*before, cancelled, attrs.evolve(sent, time=at), *after]
        return [violation.invariant for violation in find_violations(story)]

    assert leaves_after(0.0) == []
    assert leaves_after(0.0, 3) == []  # after a control record
    assert leaves_after(0.1) == ["S3"]


@pytest.mark.parametrize("outcome", ["cancelled", "RequestTimeoutError"])
def test_s3_a_cancelled_commit_also_ends_for_partitions_without_processed_records(outcome):
    """A commit of everything contains the start of a partition whose log is empty."""
    first = [opening(auto_commit=False), starts(1, {T0: 0, T1: -1}), delivers(0)]
    sent = attrs.evolve(commits(1)[0], offsets={T0: 1, T1: 0})
    called = [of(Committing, token=1, offsets=None), sent]
    ended = of(Committed, token=1, outcome=outcome)
    released = [revokes(T0, T1), leaves()]
    assert broken(first, called, ended, released) == []
    assert broken(first, called, released) == ["S3", "S3"]
    # The next commit is awaited again.
    assert broken(first, called, ended, commits(0, tp=T1, is_answered=False), released) == ["S3"]


def test_s3_a_missing_last_commit_is_allowed_after_a_coordinator_error():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1, 2)]
    assert broken(first, heartbeats("NOT_COORDINATOR"), revokes(T0)) == []


def test_s3_a_released_partition_is_not_committed():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    assert broken(first, commits(1), revokes(T0), leaves(), commits(2)) == ["S3"]
    # Before it sends LeaveGroup, no other member can get the partition.
    assert broken(first, commits(1), revokes(T0), commits(2), leaves()) == []
    # A commit that was in flight may be retried.
    again = [commits(2, is_answered=False, stored=False), 1.0, revokes(T0), commits(2)]
    assert broken(first, again) == []


# ------------------------------------------------------------------ S4 and S5: commits


def test_s4_a_commit_does_not_exceed_the_processed_records():
    first = [opening(), starts(1, {T0: 0}), delivers(0), delivers(1, processed=False)]
    assert broken(first, commits(1)) == []
    assert broken(first, commits(2)) == ["S4", "S6"]


def test_s4_a_commit_may_pass_control_records():
    first = [written(0, -1, 2), opening(), starts(1, {T0: 0}), delivers(0)]
    assert broken(first, commits(2)) == []
    assert broken(first, commits(3)) == ["S4", "S6"]


def test_s4_a_commit_stops_at_the_lowest_record_in_flight():
    """Records may be processed in any order."""
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1, 2, processed=False)]
    zero, one, two = [of(Processed, partition=T0, offset=offset) for offset in range(3)]
    assert broken(first, two, commits(0)) == []
    assert broken(first, two, zero, commits(1)) == []
    assert broken(first, two, zero, commits(3)) == ["S4", "S6"]
    assert broken(first, two, zero, one, commits(3)) == []


def test_s4_a_seek_leaves_no_record_in_flight():
    first = [opening(), starts(1, {T0: 0}), delivers(0), delivers(1, processed=False)]
    assert broken(first, of(Sought, partition=T0, offset=5), commits(5, stored=False)) == []


def test_s4_the_application_may_commit_any_offset_explicitly():
    first = [opening(), starts(1, {T0: 0}), delivers(0), commits(1), delivers(1)]
    sought = of(Sought, partition=T0, offset=0)
    sent, *stored = commits(2)
    assert broken(first, sought, attrs.evolve(sent, explicit=True), stored) == []
    assert broken(first, sought, sent, stored) == ["S4"]


def test_s4_a_commit_issued_before_a_seek_may_have_waited_for_its_connection():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1), of(Sought, partition=T0, offset=0)]
    assert broken(first, waited(0.05, commits(2))) == []
    assert broken(first, commits(2)) == ["S4"]


def test_s4_a_commit_sent_at_the_moment_of_a_seek_was_issued_before_it():
    """A member that commits, is cancelled and seeks at once may do so before its request leaves."""
    *first, sought, late = timeline(
        opening(),
        starts(1, {T0: 0}),
        delivers(0),
        commits(1),
        delivers(1),
        of(Sought, partition=T0, offset=0),
        commits(2, is_answered=False, stored=False),
    )
    at_once = attrs.evolve(late, time=sought.time)
    assert find_violations([*first, sought, at_once]) == []
    assert [v.invariant for v in find_violations([*first, sought, late])] == ["S4"]


def test_s5_a_commit_moves_back_only_after_a_seek():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1), commits(2)]
    assert broken(first, commits(2)) == []
    assert broken(first, commits(1)) == ["S5"]
    assert broken(first, of(Sought, partition=T0, offset=1), commits(1)) == []
    assert broken(first, of(Sought, partition=T0, offset=1), commits(0)) == []
    sent, *stored = commits(1)
    assert broken(first, attrs.evolve(sent, explicit=True), stored) == []


def test_s5_an_explicit_commit_above_the_position_does_not_move_the_position():
    """The application seeks back and commits what it had read before; then its position."""
    first = [opening(auto_commit=False), starts(1, {T0: 0}), delivers(0, 1), commits(2)]
    sent, *stored = commits(2)
    explicit = [attrs.evolve(sent, explicit=True), stored]
    sought = of(Sought, partition=T0, offset=1)
    assert broken(first, sought, explicit, commits(1)) == []
    assert broken(first, sought, explicit, commits(0)) == ["S5"]
    assert broken(first, explicit, commits(1)) == ["S5"]
    # Nor does a record that it has processed since then, and has not reported to the client.
    again = [of(Sought, partition=T0, offset=0), delivers(0), explicit]
    assert broken(first, again, commits(0)) == []


def test_s5_the_first_commit_is_not_below_the_starting_offset():
    first = [opening(), starts(1, {T0: 2})]
    assert broken(first, commits(2, stored=False)) == []
    assert broken(first, commits(1, stored=False)) == ["S5"]


def test_s5_commits_of_the_next_owner_do_not_move_back():
    story = timeline(handover())
    assert broken(story) == []
    back = Stored(time=0.0, partition=T0, offset=3, member_id="Z", generation=2)
    assert broken(story[:-1], back) == ["S5"]


def test_s5_the_committed_offset_at_the_end_is_that_of_the_last_commit():
    story = handover()[:-1]
    assert broken(story, finished(6, 6)) == []
    assert broken(story, finished(5, 6)) == ["S5"]


# ------------------------------------------------------------------ S6 and S7: at least once


def test_s6_every_record_below_a_commit_was_processed():
    first = [written(0, 1, 2), opening(), starts(1, {T0: 0})]
    commit = Stored(time=0.0, partition=T0, offset=2, member_id="A", generation=1)
    assert broken(first, delivers(0, 1), commit) == []
    assert broken(first, delivers(0), delivers(1, processed=False), commit) == ["S6"]


def test_s6_records_skipped_by_a_seek_need_not_be_processed():
    first = [written(0, 1, 2), opening(), starts(1, {T0: 0}), delivers(0)]
    assert broken(first, of(Sought, partition=T0, offset=2), delivers(2), commits(3)) == []


def test_s6_a_successful_commit_is_stored_by_the_coordinator():
    first = [opening(), starts(1, {T0: 0}), delivers(0)]
    asked = of(Committing, token=1, offsets=None)
    succeeded = of(Committed, token=1, outcome="ok")
    assert broken(first, asked, commits(1), succeeded) == []
    assert broken(first, asked, commits(1, error="NOT_COORDINATOR"), succeeded) == ["S6"]
    failed = of(Committed, token=1, outcome="cancelled")
    assert broken(first, asked, commits(1, error="NOT_COORDINATOR"), failed) == []


def test_s6_a_late_commit_that_timed_out_may_overwrite_an_acknowledged_one():
    first = [opening(auto_commit=False), starts(1, {T0: 0}), delivers(0)]
    call = [of(Committing, token=2, offsets=None), of(Committed, token=2, outcome="ok")]
    late = Stored(time=0.0, partition=T0, offset=1, member_id="A", generation=1)
    unanswered = commits(1, is_answered=False, stored=False)
    assert broken(first, unanswered, delivers(1), commits(2), late, call) == []
    assert broken(first, unanswered, delivers(1), late, call) == ["S6"]


def test_s7_committed_records_are_not_delivered_again():
    killed = [opening(), starts(1, {T0: 0}), delivers(0, 1, 2), commits(2), of(Killed)]
    assert broken(killed, starts(2, {T0: 2}, member="b"), delivers(2, member="b")) == []
    assert broken(killed, starts(2, {T0: 1}, member="b"), delivers(1, member="b")) == ["S7"]


def test_s7_a_replaced_static_member_may_deliver_committed_records_until_it_is_fenced():
    def twice(instance):
        first = [opening(instance=instance), starts(1, {T0: 0})]
        successor = [starts(2, {T0: 0}, member="b"), delivers(0, member="b")]
        stored = commits(1, member="b", generation=2)
        return [first, opening("b", instance="i"), successor, stored, delivers(0, processed=False)]

    assert broken(twice("i")) == []
    assert broken(twice("j")) == ["S1", "S7"]


def test_s7_a_commit_of_a_lost_ownership_may_be_stored_after_the_member_has_rejoined():
    """The coordinator gave it the same generation again, so it accepted the late commit."""

    def rejoined(*late):
        sent, stored, _ = commits(1)
        lost = [opening(), starts(1, {T0: 0}), delivers(0), sent, of(Lost, partitions=(T0,))]
        again = [joins(1, T0), assigned(1, T0)]
        asked, found = fetches_offsets()({T0: 0})
        story = {"stored": stored, "again": again, "asked": asked, "found": found}
        return lost, [story[part] for part in late], delivers(0, processed=False)

    assert "S7" not in broken(rejoined("again", "asked", "stored", "found"))
    assert "S7" not in broken(rejoined("again", "asked", "found", "stored"))
    assert "S7" in broken(rejoined("again", "stored", "asked", "found"))


def test_s7_records_processed_before_a_revocation_are_not_delivered_again():
    """Without events of the wire and the broker, a revocation counts as a commit."""
    first = [of(Assigned, partitions=(T0,), generation=-1), delivers(0, 1)]
    successor = of(Assigned, "b", partitions=(T0,), generation=-1)
    assert broken(first, revokes(T0), successor, delivers(2, member="b")) == []
    assert broken(first, revokes(T0), successor, delivers(1, member="b")) == ["S7"]
    assert broken(first, of(Lost, partitions=(T0,)), successor, delivers(0, member="b")) == []


# ------------------------------------------------------------------ S8 and S9: delivery


def test_s8_delivered_offsets_increase_by_one():
    first = [opening(), starts(1, {T0: 0})]
    assert broken(first, delivers(0, 1, 2)) == []
    assert broken(first, delivers(0, 2)) == ["S8"]
    assert broken(first, delivers(0, 1, 1)) == ["S8"]


def test_s8_control_records_and_compacted_records_are_skipped():
    first = [written(0, -1, 2), opening(), starts(1, {T0: 0})]
    assert broken(first, delivers(0, 2)) == []
    marker = of(Delivered, partition=T0, offset=1, sequence=-1)
    assert broken(first, delivers(0), marker) == ["S8"]
    compacted = [first[0][0], first[0][2], *first[1:]]
    assert broken(compacted, delivers(0, 2)) == []


def test_s8_a_delivered_record_equals_the_one_written_at_its_offset():
    first = [written(0, 1), opening(), starts(1, {T0: 0})]
    assert broken(first, delivers(0), of(Delivered, partition=T0, offset=1, sequence=7)) == ["S8"]
    assert broken(first, delivers(0, 1, 2)) == ["S8"]


def test_s8_delivery_starts_at_the_committed_offset():
    first = [written(0, 1, -1, 3), opening()]
    assert broken(first, starts(1, {T0: 2}), delivers(3)) == []
    assert broken(first, starts(1, {T0: 1}), delivers(3)) == ["S8"]
    assert broken(first, starts(1, {T0: -1}), delivers(1)) == ["S8"]


def test_s8_delivery_may_continue_anywhere_after_offset_out_of_range():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    denied = {"refused": {T0: "OFFSET_OUT_OF_RANGE"}}
    out = request("Fetch", error="OFFSET_OUT_OF_RANGE", asked={"offsets": {T0: 2}}, response=denied)
    other = request("Fetch", error="NOT_LEADER_OR_FOLLOWER", asked={"offsets": {T0: 2}})
    assert broken(first, out, delivers(0)) == []
    assert broken(first, other, delivers(0)) == ["S8"]


def read_and_truncated(**options):
    """Four of six records are read, and the last two of these are lost in a truncation; the next
    owner may still find the commit of all four."""
    read = [opening(**options), starts(1, {T0: 0}), delivers(0, 1, 2, 3), commits(4)]
    return [written(0, 1, 2, 3, 4, 5), read, truncation(2, 12, 13, 14, 15)]


def test_s8_a_member_that_read_past_a_truncation_continues_at_the_truncation_offset():
    rewritten = delivers(2, 3, 4, 5, shift=10)
    ends = [commits(6), closes(T0), finished(6, 6)]
    assert broken(read_and_truncated(), rewritten, ends) == []
    buffered = delivers(4, 5)
    assert broken(read_and_truncated(), buffered, commits(6), rewritten, ends) == []
    assert broken(read_and_truncated(), delivers(5)) == ["S8"]
    assert broken(read_and_truncated(), delivers(4, 5, shift=10)) == ["S8"]
    assert broken(read_and_truncated(), delivers(3, shift=10)) == ["S8"]
    assert broken(read_and_truncated(), delivers(0)) == ["S8"]
    assert broken(read_and_truncated(), delivers(2, shift=10), delivers(2, shift=10)) == ["S8"]
    assert broken(read_and_truncated(), delivers(2, shift=10), delivers(3)) == ["S8"]
    twice = [truncation(3, 23, 24, 25), truncation(4, 34, 35)]
    last = [delivers(3, shift=20), delivers(4, 5, shift=30)]
    assert broken(read_and_truncated(), twice, delivers(2, shift=10), last, ends) == []
    assert broken(read_and_truncated(), twice, last) == ["S8"]


def test_s4_a_commit_issued_before_a_truncation_may_have_waited_for_the_coordinator():
    """It was sent before the member learned of the truncation, for records processed before."""
    story = [read_and_truncated(), delivers(4, 5), delivers(2, shift=10)]
    assert broken(story, waited(0.05, commits(6)), commits(3)) == []
    assert broken(story, commits(6)) == ["S4"]


def test_s4_a_commit_of_a_position_that_was_reset_at_a_cut_may_be_the_cut():
    """The fetch beyond the cut was refused as out of range: the records below it were processed."""
    refused = {"refused": {T0: "OFFSET_OUT_OF_RANGE"}}
    out = request(
        "Fetch", error="OFFSET_OUT_OF_RANGE", asked={"offsets": {T0: 4}}, response=refused
    )
    assert broken(read_and_truncated(), out, commits(2)) == []
    assert broken(read_and_truncated(), out, commits(3)) == ["S4"]
    *read, done = delivers(0, 1)
    story = [written(0, 1, 2, 3, 4, 5), opening(), starts(1, {T0: 0}), read]
    story += [truncation(2, 12, 13, 14, 15), out]
    assert broken(story, commits(2)) == ["S4", "S6"]  # a record is in flight
    assert broken(story, done, commits(2)) == []


def test_s8_a_member_with_a_commit_past_a_truncation_starts_at_the_truncation_offset():
    successor = [revokes(T0), joins(2), opening("b"), starts(2, {T0: 4}, member="b")]
    ends = [commits(6, member="b", generation=2), closes(T0, member="b"), finished(6, 6)]
    rewritten = delivers(2, 3, 4, 5, member="b", shift=10)
    assert broken(read_and_truncated(), successor, rewritten, ends) == []
    assert broken(read_and_truncated(), successor, delivers(4, 5, member="b", shift=10), ends) == [
        "S6"
    ]
    assert broken(read_and_truncated(), successor, delivers(3, member="b", shift=10)) == ["S8"]


def test_s8_without_auto_offset_reset_only_a_seek_continues_after_a_truncation():
    story, strict = read_and_truncated(resets=False), opening(resets=False)
    sought = of(Sought, partition=T0, offset=0)
    rewritten = [delivers(0, 1), delivers(2, 3, shift=10)]
    assert broken(story, sought, rewritten) == []
    assert broken(story, delivers(2, shift=10)) == ["S8"]
    successor = [opening("b", resets=False), starts(2, {T0: 4}, member="b")]
    assert broken(story, revokes(T0), joins(2), successor, delivers(2, member="b", shift=10)) == [
        "S8"
    ]
    assert broken(written(0), strict, starts(1, {T0: -1}), sought, delivers(0)) == []
    assert broken(written(0), strict, starts(1, {T0: -1}), delivers(0)) == ["S12"]


def test_s6_records_written_after_a_truncation_are_processed_too():
    ends = [closes(T0), finished(4, 6)]
    assert broken(read_and_truncated(), delivers(2, 3, shift=10), ends) == []
    assert broken(read_and_truncated(), ends) == ["S6"]
    first = [written(0, 1, 2), opening(), starts(1, {T0: 0}), delivers(0, 1)]
    in_flight = [
        delivers(2, processed=False),
        truncation(2, 12),
        of(Processed, partition=T0, offset=2),
    ]
    assert broken(first, in_flight, commits(3), closes(T0), finished(3, 3)) == ["S6"]
    ends = [delivers(2, shift=10), closes(T0), finished(3, 3)]
    assert broken(first, in_flight, commits(3), ends) == []


def test_l1_fetched_records_that_a_truncation_may_have_removed_do_not_count_as_waiting():
    assert broken(rejoining(truncation(1), 0.5)) == []
    fetched = request("Fetch", asked={"offsets": {T0: 1}}, response={"offsets": {T0: 3}})
    assert broken(rejoining(truncation(1, 11, 12), fetched, 0.5, delivers(1, shift=10))) == ["L1"]


def test_s8_the_last_commit_passes_control_records_at_the_end_of_the_log():
    first = [written(0, -1), opening(), starts(1, {T0: 0}), delivers(0)]
    assert broken(first, commits(2), 9.0, closes(T0), finished(2, 2)) == []
    assert broken(first, commits(1), 9.0, closes(T0), finished(1, 2)) == ["S8"]
    # Unless there was no time to commit.
    assert broken(first, commits(1), closes(T0), finished(1, 2)) == []


def test_s8_control_records_are_passed_by_an_application_that_polls():
    """It processed a record of another partition all the time, and then it closed."""
    first = [written(0, -1), opening(), starts(1, {T0: 0, T1: 0}), delivers(0), commits(1)]
    got, processed = delivers(0, tp=T1)
    ends = [commits(1, tp=T1), closes(T0, T1), finished(1, 2)]
    assert broken(first, got, 9.0, processed, ends) == []
    assert broken(first, got, processed, 9.0, ends) == ["S8"]
    assert broken(first, 9.0, heartbeats(connection=2), got, processed, ends) == ["S8"]


@pytest.mark.parametrize(
    "end", [of(Revoking, partitions=(T0,)), revokes(T0), of(Lost, partitions=(T0,))]
)
def test_s9_nothing_is_delivered_once_a_revoked_or_lost_callback_has_begun(end):
    first = [opening(), starts(1, {T0: 0, T1: 0}), of(Closing)]
    assert broken(first, end, delivers(0, tp=T1)) == []
    assert broken(first, end, delivers(0)) == ["S9"]


def test_s9_nothing_is_delivered_from_a_partition_that_was_never_assigned():
    assert broken(opening(), starts(1, {T0: 0}), delivers(0, tp=T1)) == ["S9"]


# ------------------------------------------------------------------ S10 and S11: responses, ids


def test_s10_an_assignment_has_the_generation_of_the_last_join():
    first = [opening(), first_join(), joins(1, T0)]
    assert broken(first, assigned(1, T0)) == []
    assert broken(first, assigned(0, T0)) == ["S10"]
    assert broken(first, joins(2, T0), assigned(1, T0)) == ["S10"]
    pending = request("JoinGroup", is_answered=False, asked={"member_id": "A"})
    assert broken(first, pending, assigned(1, T0)) == ["S10"]


def test_s10_an_assignment_has_the_partitions_of_the_last_sync():
    first = [opening(cooperative=True), starts(1, {T0: 0, T1: 0})]
    assert broken(first, joins(2, T0, owned=(T0, T1)), revokes(T1), assigned(2)) == []
    assert broken(first, joins(2, T0, owned=(T0, T1)), assigned(2)) == ["S10"]


def test_s10_a_heartbeat_has_the_current_generation():
    assert broken(opening(), starts(1, {T0: 0}), heartbeats(generation=1)) == []
    assert broken(opening(), starts(2, {T0: 0}), heartbeats(generation=1)) == ["S10"]


def test_s10_a_heartbeat_sent_after_a_join_may_have_waited_for_its_connection():
    again = [opening(), starts(1, {T0: 0}), revokes(T0), joins(2, T0), assigned(2, T0)]
    heartbeat = request("Heartbeat", connection=2, asked={"member_id": "A", "generation": 1})
    assert broken(again, waited(0.07, heartbeat)) == []
    assert broken(again, revokes(T0), joins(3, T0), assigned(3, T0), waited(0.19, heartbeat)) == []
    assert broken(again, heartbeat) == ["S10"]


def test_s10_partitions_are_lost_only_after_a_fencing_error_or_max_poll_interval():
    first = [opening(), starts(1, {T0: 0})]
    lost = of(Lost, partitions=(T0,))
    assert broken(first, heartbeats("UNKNOWN_MEMBER_ID"), lost) == []
    assert broken(first, heartbeats("NOT_COORDINATOR"), lost) == ["S10"]
    assert broken(first, 300.0, lost) == []  # max_poll_interval


def test_s10_the_poll_timer_runs_from_the_delivery_while_the_application_commits():
    first = [opening(max_poll_interval=15.0), starts(1, {T0: 0})]
    delivered, work, lost = of(Delivered, partition=T0, offset=0, sequence=0), 1.0, 13.99
    *before, done, commit_begins, ended, away, loses = timeline(
        first,
        delivered,
        work,
        of(Processed, partition=T0, offset=0),
        of(Committing, token=1, offsets=None),
        of(Committed, token=1, outcome="cancelled"),
        of(Away),
        lost,
        of(Lost, partitions=(T0,)),
    )
    commit_begins, ended, away = (
        attrs.evolve(event, time=done.time) for event in (commit_begins, ended, away)
    )

    def violations(*events):
        return [violation.invariant for violation in find_violations([*before, done, *events])]

    assert violations(loses) == ["S10"]
    assert violations(commit_begins, loses) == []
    assert violations(commit_begins, ended, loses) == ["S10"]
    assert violations(commit_begins, ended, away, loses) == []
    assert broken(first, of(Closing), lost) == []


def test_s10_the_poll_timer_runs_until_all_records_of_a_poll_are_processed():
    first = [opening(max_poll_interval=15.0), starts(1, {T0: 0}), delivers(0, 1, processed=False)]
    rejoins = [revokes(T0), joins(2, T0)]  # the timer runs on, though nothing is assigned
    done = [of(Processed, partition=T0, offset=offset) for offset in (0, 1)]
    lost = of(Lost, partitions=(T0,))
    again = [joins(3, T0), assigned(3, T0)]
    assert "S10" not in broken(first, rejoins, 15.1, done[0], again, lost)
    assert "S10" in broken(first, rejoins, 15.1, done, again, lost)


def test_s10_a_static_member_that_missed_a_generation_has_lost_its_partitions():
    lost = of(Lost, partitions=(T0,))

    def rejoins(generation, **options):
        return [
            opening(cooperative=True, **options),
            starts(1, {T0: 0}),
            request(
                "JoinGroup", asked={"member_id": "A", "owned": (T0,)}, response=ids(generation)
            ),
            lost,
        ]

    def ids(generation):
        return {"member_id": "A", "generation": generation}

    assert broken(rejoins(3, instance="i")) == []
    assert broken(rejoins(2, instance="i")) == ["S10"]
    assert broken(rejoins(3)) == ["S10"]


def test_s10_a_stale_error_response_loses_no_partitions():
    sent, response = heartbeats("ILLEGAL_GENERATION")
    again = [opening(), starts(1, {T0: 0}), sent, revokes(T0), joins(2, T0), assigned(2, T0)]
    assert broken(again, response, of(Lost, partitions=(T0,))) == ["S10"]


def test_s11_a_member_keeps_its_id_until_it_leaves():
    first = [opening(), starts(1, {T0: 0}), revokes(T0)]
    assert broken(first, joins(2)) == []
    assert broken(first, first_join()) == ["S11"]
    assert broken(first, joins(2, member_id="Z")) == ["S11"]
    assert broken(first, leaves(), first_join()) == []


def test_s11_a_member_joins_without_an_id_after_unknown_member_id():
    first = [opening(), starts(1, {T0: 0})]
    lost = of(Lost, partitions=(T0,))
    assert broken(first, heartbeats("UNKNOWN_MEMBER_ID"), lost, first_join()) == []
    assert broken(first, heartbeats("UNKNOWN_MEMBER_ID"), lost, joins(2)) == ["S11"]
    assert broken(first, heartbeats("ILLEGAL_GENERATION"), lost, first_join()) == ["S11"]
    assert broken(first, heartbeats("ILLEGAL_GENERATION"), lost, joins(2)) == []


def test_s11_a_member_joins_without_an_id_if_the_poll_timer_expired_while_it_revoked():
    def slow(seconds):
        return [
            opening(max_poll_interval=15.0, cooperative=True),
            starts(1, {T0: 0}),
            delivers(0, processed=False),
            14.9,
            of(Revoking, partitions=(T0,)),
            seconds,
            of(Revoked, partitions=(T0,)),
            request("FindCoordinator"),
            first_join(),
        ]

    assert broken(slow(0.3)) == []
    assert broken(slow(0.01)) == ["S11"]


def test_s11_a_member_joins_without_an_id_if_the_poll_timer_expired_while_its_join_was_pending():
    """The result of that join is discarded: a static member rejoins instead of leaving."""
    asked, answered = request(
        "JoinGroup",
        asked={"member_id": "A", "owned": (T0,)},
        response={"member_id": "A", "generation": 2},
    )

    def parked(seconds):
        return [
            opening(
                instance="i", cooperative=True, max_poll_interval=15.0, heartbeat_interval=20.0
            ),
            starts(1, {T0: 0}),
            delivers(0, processed=False),
            10.0,
            asked,
            seconds,
            of(Lost, partitions=(T0,)),
            answered,
            first_join(),
        ]

    assert broken(parked(5.0)) == []
    assert broken(parked(4.0)) == ["S10", "S11"]


# ------------------------------------------------------------------ S12 to S14


def test_s12_delivery_starts_after_the_committed_offset_was_fetched():
    first = [opening(), first_join(), joins(1, T0), assigned(1, T0)]
    assert broken(first, fetches_offsets()({T0: -1}), delivers(0)) == []
    assert broken(first, delivers(0)) == ["S12"]
    assert broken(first, fetches_offsets(error="NOT_COORDINATOR")({}), delivers(0)) == ["S12"]


def test_s12_an_offset_fetch_of_an_earlier_ownership_is_not_used():
    sent, response = fetches_offsets()({T0: 0})
    again = [
        opening(),
        first_join(),
        joins(1, T0),
        assigned(1, T0),
        sent,
        revokes(T0),
        joins(2, T0),
    ]
    assert broken(again, assigned(2, T0), response, delivers(0)) == ["S12"]


def test_s12_a_negative_offset_is_never_fetched():
    first = [opening(), starts(1, {T0: -1})]
    assert broken(first, request("Fetch", asked={"offsets": {T0: 0}})) == []
    assert broken(first, request("Fetch", asked={"offsets": {T0: -1}})) == ["S12"]


def test_s13_nothing_is_committed_for_a_lost_membership():
    unknown = heartbeats("UNKNOWN_MEMBER_ID")
    first = [opening(), starts(1, {T0: 0}), delivers(0), commits(1), delivers(1)]
    lost = of(Lost, partitions=(T0,))
    assert broken(first, unknown, lost) == []
    assert broken(first, unknown, lost, commits(2)) == ["S13"]
    assert broken(first, unknown, commits(2), lost) == ["S13"]


def test_s13_a_commit_sent_after_the_loss_may_have_waited_for_its_connection():
    over = [heartbeats("UNKNOWN_MEMBER_ID"), of(Lost, partitions=(T0,))]
    late = commits(1, stored=False, error="UNKNOWN_MEMBER_ID")
    first = [opening(), starts(1, {T0: 0}), delivers(0), over]
    assert broken(first, waited(0.05, late)) == []
    assert broken(first, late) == ["S13"]


def test_s13_a_commit_sent_after_unknown_member_id_may_have_waited_for_its_connection():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    over = heartbeats("UNKNOWN_MEMBER_ID")
    late = commits(2, error="UNKNOWN_MEMBER_ID")
    assert broken(first, over, waited(0.05, late)) == []
    assert broken(first, over, late) == ["S13"]


def test_s13_a_commit_may_be_sent_as_a_frozen_process_resumes_and_loses_its_partitions():
    """Both happen as the process resumes: the commit was requested before the loss."""
    begun = [opening(max_poll_interval=5.0), starts(1, {T0: 0}), delivers(0), commits(1)]
    first = [begun, delivers(1), of(Frozen), 9.0]
    late = [of(Lost, partitions=(T0,)), commits(2, is_answered=False, stored=False)]
    *before, thawed, lost, sent = timeline(first, of(Thawed), late)
    at_once = [attrs.evolve(event, time=thawed.time) for event in (lost, sent)]
    assert find_violations([*before, thawed, *at_once]) == []
    later = find_violations([*before, thawed, lost, sent])
    assert [violation.invariant for violation in later] == ["S13"]


def test_s13_a_retry_issued_before_the_loss_may_have_waited():
    first = [
        opening(),
        starts(1, {T0: 0}),
        delivers(0),
        commits(1, is_answered=False, stored=False),
    ]
    over = [heartbeats("UNKNOWN_MEMBER_ID"), of(Lost, partitions=(T0,))]
    again = commits(1, is_answered=False, stored=False)
    assert broken(first, over, waited(0.1, again)) == []
    assert broken(first, over, again) == ["S13"]


def formed(assignment, protocol="range", **fields):
    return Formed(
        time=0.0,
        generation=1,
        protocol=protocol,
        assignment=assignment,
        subscriptions=dict.fromkeys(assignment, ("t",)),
        partitions={"t": 2},
        **fields,
    )


def test_s14_an_assignment_follows_the_rules_of_its_assignor():
    assert broken(formed({"A": (T0,), "B": (T1,)})) == []
    assert broken(formed({"A": (T0,), "B": ()})) == ["S14"]
    assert broken(formed({"A": (T0, T1), "B": (T1,)})) == ["S14"]
    assert broken(formed({"A": (T0, T1), "B": ()})) == []
    assert broken(formed({"A": (T0, T1), "B": ()}, "sticky")) == ["S14"]


def test_s14_a_cooperative_rebalance_assigns_no_partition_that_another_member_owns():
    had = {"claims": {"A": (T0, T1), "B": ()}, "claimed_at": {"A": 1, "B": -1}}
    assert broken(formed({"A": (T0,), "B": ()}, "cooperative-sticky", **had)) == []
    assert broken(formed({"A": (T0,), "B": (T1,)}, "cooperative-sticky", **had)) == [
        "S20",
        "S14",
    ]


# ------------------------------------------------------------------ L1 to L6


def rejoining(*meanwhile):
    """A cooperative member with buffered records rejoins; something happens in the meantime."""
    fetched = request("Fetch", asked={"offsets": {T0: 0}}, response={"offsets": {T0: 3}})
    sent, response, *sync = joins(2, T0, owned=(T0,))
    return [
        written(0, 1, 2),
        opening(cooperative=True),
        starts(1, {T0: 0}),
        fetched,
        delivers(0),
        sent,
        meanwhile,
        response,
        sync,
        assigned(2),
    ]


def test_l1_kept_partitions_are_delivered_during_a_cooperative_rebalance():
    assert broken(rejoining(0.05, delivers(1), 0.05, delivers(2), 0.5)) == []
    assert broken(rejoining(0.5, delivers(1, 2))) == ["L1"]
    assert broken(rejoining(0.5)) == ["L1"]
    assert find_violations(timeline(rejoining(0.5)), virtual=False) == []
    assert examine(timeline(rejoining(0.5)), virtual=False).figures.delivery_gap > 0.5


def test_l1_partitions_about_to_be_revoked_may_have_a_delivery_gap():
    """The last commit of that partition may take its time before the revocation callback."""

    def one_of_two(stays):
        come = [request("Fetch", response={"offsets": {T1: 1}}), delivers(0, tp=T1)]
        return [
            [written(0, 1, 2), written(0, tp=T1)],
            [opening(cooperative=True), starts(1, {T0: 0, T1: 0})],
            [request("Fetch", response={"offsets": {T0: 3}}), delivers(0)],
            [joins(2, *stays, owned=(T0, T1)), 0.5, come],
        ]

    assert broken(one_of_two((T1,)), revokes(T0), assigned(2)) == []
    assert broken(one_of_two((T0, T1)), delivers(1), assigned(2)) == ["L1"]


def test_l1_no_delivery_is_expected_while_the_application_is_away_paused_or_frozen():
    assert broken(rejoining(of(Away), 0.5, delivers(1))) == []
    assert broken(rejoining(of(Paused, partitions=(T0,)), 0.5)) == []
    assert broken(rejoining(of(Frozen), 0.5, of(Thawed), delivers(1))) == []


def test_l1_no_delivery_is_expected_between_an_error_and_the_next_poll():
    """An application waits for a second after a refused login. A record that arrived meanwhile was
    counted as waiting, though it was delivered as soon as the application polled."""
    refused = request("SaslAuthenticate", connection=2, error="SASL_AUTHENTICATION_FAILED")
    raised = [refused, of(Raised, error="AuthenticationError")]
    assert broken(rejoining(raised, 0.5, delivers(1))) == []
    assert broken(rejoining(raised, 0.5, of(Polling), delivers(1))) == []
    assert broken(rejoining(raised, 0.5, of(Polling), 0.5, delivers(1))) == ["L1"]
    assert broken(rejoining(0.5, raised)) == ["L1"]


def test_l1_no_delivery_is_expected_of_a_topic_that_the_application_has_unsubscribed():
    assert broken(rejoining(of(Subscribing, topics=("other",)), 0.5, delivers(1))) == []
    assert broken(rejoining(of(Subscribing, topics=(T0.topic,)), 0.5, delivers(1))) == ["L1"]


def test_l1_no_delivery_is_expected_once_the_application_closes_the_client():
    """A rebalance that had begun before ends while the client closes, and its last long poll is
    answered: the checker counted these records as waiting."""
    assert broken(rejoining(of(Closing), 0.5)) == []
    assert broken(rejoining(0.5, of(Closing))) == ["L1"]


def test_l1_records_fetched_for_another_position_do_not_count_as_waiting():
    assert broken(rejoining(delivers(1, 2), 0.5)) == []
    assert broken(rejoining(delivers(1, 2), of(Sought, partition=T0, offset=0), 0.5)) == []
    asked, response = request("Fetch", asked={"offsets": {T0: 1}}, response={"offsets": {T0: 3}})
    sought = of(Sought, partition=T0, offset=1)
    assert broken(rejoining(asked, sought, response, 0.5, delivers(1))) == []
    assert broken(rejoining(sought, asked, response, 0.5, delivers(1))) == ["L1"]
    # The application sought before the request left, and perhaps before the member issued it.
    story = timeline(rejoining(sought, asked, response, 0.5, delivers(1)))
    at = next(n for n, event in enumerate(story) if isinstance(event, Sought))

    def issued(after):
        known = attrs.evolve(asked, issued_after=after)
        return rejoining(sought, known, response, 0.5, delivers(1))

    assert broken(issued(at)) == []
    assert broken(issued(at + 1)) == ["L1"]


def test_l1_records_requested_before_a_leader_refused_the_position_do_not_count_as_waiting():
    """The metadata had an epoch that the leader does not know. A long poll returned records before
    the leader had confirmed the position, which the client fetched again then."""
    error = {T0: "UNKNOWN_LEADER_EPOCH"}
    validated = {"connection": 2, "error": "UNKNOWN_LEADER_EPOCH", "response": {"refused": error}}
    refused = request("OffsetForLeaderEpoch", **validated)
    asked, response = request("Fetch", asked={"offsets": {T0: 3}}, response={"offsets": {T0: 4}})
    delivered = [Appended(time=0.0, partition=T0, offset=3, sequence=3), delivers(1, 2), asked]
    assert broken(rejoining(delivered, refused, response, 0.5, delivers(3))) == []
    assert broken(rejoining(refused, asked, response, 0.5, delivers(1))) == ["L1"]
    assert broken(rejoining(refused, 0.5, delivers(1))) == ["L1"]  # received before
    others = request("OffsetForLeaderEpoch", **(validated | {"response": {"refused": {T1: "X"}}}))
    assert broken(rejoining(delivered, others, response, 0.5, delivers(3))) == ["L1"]


def test_l1_after_a_session_without_responses_delivery_waits_for_a_heartbeat_response():
    def without_responses(seconds):
        polls = of(Processed, partition=T0, offset=0)
        heartbeat = heartbeats(connection=2)
        return rejoining(of(Away), seconds, polls, 0.5, heartbeat, delivers(1))

    assert broken(without_responses(7.0)) == []
    assert broken(without_responses(3.0)) == ["L1"]


def test_l1_a_rebalance_before_sync_group_is_answered_extends_no_lease():
    """Brokers before 2.7 answer so without beginning a session (KAFKA-10134)."""

    assert broken(_syncing("NONE", 4.0)) == ["L1"]
    assert broken(_syncing("REBALANCE_IN_PROGRESS", 4.0)) == NO_LEASE


def test_l1_delivery_may_stop_once_the_rebalance_timeout_has_passed_without_sync_group():
    """The coordinator removes the member then, though it has answered its heartbeats."""
    assert broken(_syncing("NONE", 4.4)) == ["L1"]
    assert broken(_syncing("NONE", 5.4)) == NO_LEASE


def _syncing(error, seconds):
    """A heartbeat so long after JoinGroup, without one to SyncGroup; 3.5 s later, records."""
    sent, response, *rest = joins(2, T0, owned=(T0,))
    polls = of(Processed, partition=T0, offset=0)
    begun = rejoining()[:5]
    heartbeat = heartbeats(error, generation=2, connection=2)
    waits = [of(Away), sent, response, rest[:1], seconds, heartbeat, 3.0, polls, 0.5, delivers(1)]
    return [begun, waits]


def test_l1_the_session_of_a_delayed_heartbeat_starts_when_it_was_issued():
    def late(seconds):
        heartbeat = waited(seconds, heartbeats())
        polls = of(Processed, partition=T0, offset=0)
        return rejoining(of(Away), 4.0, heartbeat, 3.0, polls, 0.5, delivers(1))

    assert broken(late(0.0)) == ["L1"]
    assert broken(late(4.0)) == NO_LEASE


def test_l1_delivery_may_stop_once_the_rebalance_timeout_has_passed_without_a_rejoin():
    rebalance = heartbeats("REBALANCE_IN_PROGRESS", connection=2)

    def late(seconds):
        polls = of(Processed, partition=T0, offset=0)
        return rejoining(of(Away), 4.0, rebalance, seconds, rebalance, polls, 0.5, delivers(1))

    assert broken(late(2.0)) == ["L1"]
    assert broken(late(5.0)) == NO_LEASE


def test_l2_a_member_rejoins_after_rebalance_in_progress():
    first = [opening(), starts(1, {T0: 0}), delivers(0), commits(1)]
    notified = [heartbeats("REBALANCE_IN_PROGRESS"), [[0.9, heartbeats()] for _ in range(5)]]
    assert broken(first, notified, revokes(T0), joins(2)) == []
    assert broken(first, notified, 0.9, heartbeats()) == ["L2"]


def test_l2_a_revocation_may_wait_while_its_last_commit_backs_off():
    """Its topic was deleted: the last commit is refused and repeated, also after the callback."""
    first = [opening(), starts(1, {T0: 0}), delivers(0)]
    refused = [0.9, heartbeats(), commits(1, error="UNKNOWN_TOPIC_OR_PARTITION")]
    revoked = [heartbeats("REBALANCE_IN_PROGRESS"), [refused for _ in range(5)]]
    assert broken(first, revoked, revokes(T0), joins(2)) == []


def test_l2_a_cooperative_member_rejoins_after_revoking_partitions():
    first = [opening(cooperative=True), starts(1, {T0: 0, T1: 0})]
    round_one = [joins(2, T0, owned=(T0, T1)), revokes(T1), assigned(2)]
    later = [[0.9, heartbeats(generation=2)] for _ in range(3)]
    assert broken(first, round_one, joins(3, T0, owned=(T0,)), assigned(3)) == []
    assert broken(first, round_one, later) == ["L2"]
    under_way = commits(0, generation=2, is_answered=False, stored=False)
    assert broken(first, round_one, under_way, later) == []
    assert broken(first, round_one, under_way, later, later) == ["L2"]


def test_l2_the_second_round_begins_with_a_commit_of_its_own():
    """The commit after the callback took its time, and so did the one before the rejoin."""
    first = [opening(cooperative=True), starts(1, {T0: 0, T1: 0})]
    round_one = [joins(2, T0, owned=(T0, T1)), revokes(T1)]
    unanswered = commits(0, generation=2, is_answered=False, stored=False)
    begun = [first, round_one, unanswered, 1.5, assigned(2)]
    late = [[0.7, heartbeats(generation=2)] for _ in range(4)]
    assert "L2" not in broken(begun, of(Rejoining), late)
    assert "L2" in broken(begun, late)
    assert "L2" in broken(begun, of(Rejoining), late, of(Rejoining), late)


def test_l2_a_member_releases_its_partitions_after_max_poll_interval():
    first = [opening(max_poll_interval=5.0), starts(1, {T0: 0}), delivers(0, processed=False)]
    alive = [[0.9, heartbeats()] for _ in range(7)]
    assert broken(first, alive) == []
    assert broken(first, alive, 0.9, heartbeats()) == ["L2"]


def test_l1_a_commit_by_a_callback_does_not_mean_that_the_application_polls():
    commit = [of(Committing, token=1, offsets={}), of(Committed, token=1, outcome="ok")]
    assert broken(rejoining(of(Away), commit, 0.5, delivers(1))) == []


def test_l1_the_end_of_a_callbacks_commit_does_not_end_the_applications_commit():
    """The application called commit while a commit of a callback was in flight; when the latter
    ended, the checker assumed that the application waited for records again."""
    begun = [of(Committing, token=1, offsets={}), delivers(1), of(Committing, token=2, offsets={})]
    ended = of(Committed, token=1, outcome="cancelled")
    after = [0.5, of(Committed, token=2, outcome="ok")]
    assert broken(rejoining(begun, ended, after, delivers(2))) == []
    assert broken(rejoining(begun, ended, after, 0.5, delivers(2))) == ["L1"]
    assert broken(rejoining(begun[:1], ended, 0.5, delivers(1))) == ["L1"]


def test_l2_all_records_are_processed_once_all_faults_are_healed():
    first = [written(0, 1), opening(), starts(1, {T0: 0}), delivers(0)]
    healed = Healed(time=0.0)
    assert broken(first, healed, delivers(1), commits(2), closes(T0), finished(2, 2)) == []
    assert broken(first, healed, commits(1), closes(T0), finished(1, 2)) == ["L2"]


def test_l2_an_offset_overwritten_by_a_late_commit_is_not_committed_again():
    """Nor where an earlier truncation permits it to go back."""
    late = Stored(time=0.0, partition=T0, offset=1, member_id="A", generation=1)
    begun = [written(0, 1), opening(), starts(1, {T0: 0}), delivers(0)]
    unanswered = commits(1, is_answered=False, stored=False)
    overtaken = [unanswered, delivers(1), commits(2), late, Healed(time=0.0), closes(T0)]
    assert broken(begun, overtaken, finished(1, 2)) == []
    assert (
        broken(begun, truncation(1, 2), [overtaken[0], delivers(1, shift=1)], overtaken[2:]) == []
    )
    again = [begun, truncation(1, 2), unanswered, delivers(1, shift=1), overtaken[2:]]
    assert broken(again, finished(1, 2)) == []
    assert broken(again, truncation(1, 3), finished(1, 2)) == ["L2"]


def test_l2_partitions_of_a_dead_member_are_reassigned_in_time():
    dead = [opening(), starts(1, {T0: 0}), Healed(time=0.0), of(Killed), opening("b")]
    successor = starts(2, {T0: 0}, member="b")
    assert broken(dead, 8.0, successor) == []
    assert broken(dead, 30.0, successor) == ["L2"]
    assert 8.0 < examine(timeline(dead, 8.0, successor)).figures.takeover < 9.0


def test_l2_partitions_reassigned_before_the_owner_died_need_no_new_owner():
    """It was frozen, and did not learn that its partition was reassigned before it died."""
    both = [opening(), starts(1, {T0: 0}), opening("b"), starts(2, {T0: 0}, member="b")]
    continues = [[0.9, heartbeats(member="b", generation=2)] for _ in range(30)]
    assert broken(both, Healed(time=0.0), of(Killed), continues, closes(T0, member="b")) == []


def test_l2_without_other_faults_a_takeover_ends_two_seconds_after_the_session_timeout():
    def dead_after(heartbeat_count, **options):
        alive = [
            Healed(time=0.0),
            starts(1, {T0: 0}),
            [[0.9, heartbeats()] for _ in range(heartbeat_count)],
        ]
        return [opening(**options), alive, of(Killed), opening("b")]

    successor = starts(2, {T0: 0}, member="b")
    assert broken(dead_after(25), 7.8, successor) == []
    assert broken(dead_after(25), 8.2, successor) == ["L2"]
    assert broken(dead_after(25), 8.2, closes(member="b")) == ["L2"]
    assert broken(dead_after(20), 8.2, successor) == []
    assert broken(dead_after(25, heartbeat_interval=2.0), 8.2, successor) == []
    assert broken(dead_after(25, heartbeat_interval=2.0), 8.7, successor) == ["L2"]


def test_l2_a_takeover_may_wait_for_callbacks_of_other_members():
    def passes(heartbeat_count):
        return [[0.9, heartbeats(member="b")] for _ in range(heartbeat_count)]

    def taken_over(before, callback):
        return [
            [opening(), opening("b"), Healed(time=0.0)],
            [starts(1, {T0: 0}), starts(1, {T1: 0}, member="b")],
            [[0.4, heartbeats(), 0.4, heartbeats(member="b")] for _ in range(30)],
            [of(Killed), passes(before), of(Revoking, "b", partitions=(T1,))],
            [passes(callback), of(Revoked, "b", partitions=(T1,)), joins(2, T0, T1, member="b")],
            [assigned(2, T0, T1, member="b"), fetches_offsets("b")({T0: 0, T1: 0})],
        ]

    assert broken(taken_over(8, 3)) == []
    assert broken(taken_over(10, 1)) == ["L2"]


def test_l2_a_member_does_not_stay_outside_its_group():
    first = [opening(), starts(1, {T0: 0}), Healed(time=0.0)]
    heartbeating = [[0.9, heartbeats()] for _ in range(40)]
    assert broken(first, heartbeating, closes(T0)) == []
    assert broken(first, 36.0, closes(T0)) == ["L2"]


def test_l2_an_application_may_notice_late_that_its_membership_has_failed():
    """It did other work while the coordinator answered with an error that no retry can fix, or
    ignored that calls of the client raised that error."""
    fails = [heartbeats("INVALID_REQUEST"), of(Lost, partitions=(T0,)), leaves()]
    fails += [request("Metadata")]
    first = [opening(), starts(1, {T0: 0}), Healed(time=0.0)]
    busy = [first, of(Absent), fails]
    assert broken(busy, 30.0, closes()) == []
    assert broken(busy, 30.0, of(Polling), closes()) == []
    assert broken(busy, of(Polling), 30.0, closes()) == ["L2"]
    assert broken(first, of(Polling), fails, 30.0, closes()) == ["L2"]

    def ignores(error):
        raised = of(Raised, error=f"BrokerError({error})")
        return [busy, of(Polling), raised, of(Absent), 30.0, of(Polling), closes()]

    assert broken(ignores("INVALID_REQUEST")) == []
    assert broken(ignores("NOT_LEADER_OR_FOLLOWER")) == ["L2"]
    assert broken(busy, request("FindCoordinator"), 30.0, closes()) == ["L2"]


def test_l2_a_group_member_that_released_its_shards_rejoins():
    ready = [shared(1), Healed(time=0.0), request("FindCoordinator"), revokes(T0), 22.0]
    again = [joins(2, T0), assigned(2, T0)]
    assert broken(ready, again, closes(T0)) == []
    assert broken(ready, heartbeats(generation=-1), of(Closing))[-1:] == ["L2"]


def test_l3_heartbeats_are_sent_at_their_interval():
    first = [opening(heartbeat_interval=1.0), starts(1, {T0: 0}), heartbeats()]
    assert broken(first, 1.0, heartbeats()) == []
    assert broken(first, 3.0, heartbeats()) == ["L3"]
    assert find_violations(timeline(first, 3.0, heartbeats()), virtual=False) == []
    assert examine(timeline(first, 3.0, heartbeats())).figures.heartbeat_gap > 3.0


def test_l3_a_pending_join_counts_as_a_heartbeat():
    *join, sent, response = joins(1)
    again = request("JoinGroup", asked={"member_id": "A"}, is_answered=False)
    first = [opening(heartbeat_interval=1.0), first_join(), join, sent]
    assert broken(first, response, 3.0, again) == ["L3"]
    assert broken(first, response, again, 3.0, again) == []


def test_l3_no_heartbeat_is_expected_while_the_process_is_frozen_or_disconnected():
    first = [opening(heartbeat_interval=1.0), starts(1, {T0: 0}), heartbeats()]
    assert broken(first, of(Frozen), 3.0, of(Thawed), heartbeats()) == []
    assert broken(first, 3.0, heartbeats(connection=3)) == []


def test_l3_a_renewal_of_the_session_holds_the_heartbeat_back():
    first = [opening(heartbeat_interval=1.0), starts(1, {T0: 0}), heartbeats()]
    assert broken(first, request("SaslHandshake"), 3.0, heartbeats()) == []
    assert broken(first, request("SaslHandshake", connection=3), 3.0, heartbeats()) == ["L3"]


def test_l4_closing_ends_within_its_timeout():
    first = [opening(close_timeout=5.0), starts(1, {T0: 0}), of(Closing), revokes(T0)]
    assert broken(first, 5.0, of(Ended)) == []
    assert broken(first, 7.0, of(Ended)) == ["L4"]
    assert broken(first, finished()) == ["L4"]


def test_l4_closing_leaks_no_connection():
    first = [opening(), of(Closing)]
    assert broken(first, of(Ended)) == []
    assert broken(first, of(Ended, leaked=("connection 3",))) == ["L4"]


def test_l5_a_cancelled_call_ends_at_once():
    assert broken(opening(), of(Cancelling), of(Cancelled)) == []
    assert broken(opening(), of(Cancelling), 0.5, of(Cancelled)) == ["L5"]
    assert broken(opening(), of(Cancelling), of(Frozen), 0.5, of(Thawed), of(Cancelled)) == []
    assert broken(opening(), of(Cancelling), 0.5, finished()) == ["L5"]


def refused(times, pause, api="OffsetFetch"):
    return [[pause, request(api, error="NOT_COORDINATOR")] for _ in range(times)]


def test_l6_failed_requests_are_not_repeated_in_a_hot_loop():
    paused = [refused(1, 0.05 + 0.001 * n) for n in range(30)]
    assert broken(opening(), paused) == []
    assert broken(opening(), refused(25, 0.0)) == ["L6", "L6"]  # once for requests, once for errors


def test_l6_a_failed_commit_is_repeated_after_a_backoff():
    at_once = [commits(1, error="NOT_COORDINATOR", stored=False) for _ in range(4)]
    first = [opening(), starts(1, {T0: 0}), delivers(0)]
    assert broken(first, at_once[:2]) == []
    assert broken(first, at_once) == ["L6"]
    assert broken(first, [[0.1 + 0.01 * n, again] for n, again in enumerate(at_once)]) == []


def test_l6_successful_metadata_requests_are_not_repeated_in_a_hot_loop():
    assert broken(opening(), [request("Metadata") for _ in range(25)]) == ["L6"]
    assert broken(opening(), [[0.05, request("Metadata")] for _ in range(25)]) == []
    assert broken(opening(), [request("Fetch") for _ in range(25)]) == []
    # One on each new connection: what belongs to another cluster is closed at once.
    new = [request("Metadata", connection=n) for n in range(25)]
    assert broken(opening(), new) == []
    assert broken(opening(), new, new[:21]) == ["L6"]


def test_l2_a_member_looks_up_its_coordinator_again_once_faults_are_healed():
    redirected = [opening(), starts(1, {T0: 0}), heartbeats("NOT_COORDINATOR"), Healed(time=0.0)]
    assert broken(redirected, 2.0, request("FindCoordinator")) == []
    assert broken(redirected, 4.0, request("FindCoordinator")) == ["L2"]
    assert broken(redirected[:-1], 4.0, request("FindCoordinator")) == []


def test_l2_a_coordinator_lookup_in_flight_may_time_out_before_it_is_repeated():
    """A connection that a fault has killed without a reset stays so after `Healed`: the request has
    to time out first."""
    looks, again = (request("FindCoordinator", is_answered=False, connection=n) for n in (2, 3))
    begin, well = [opening(), starts(1, {T0: 0})], Healed(time=0.0)
    refused = heartbeats("UNKNOWN_MEMBER_ID")
    assert broken(begin, looks, well, refused, 4.0, again) == []
    used = request("Metadata", is_answered=False, connection=2)
    assert broken(begin, used, well, looks, refused, 4.0, again) == []
    assert broken(begin, well, looks, refused, 4.0, again) == ["L2"]
    assert broken(begin, request("FindCoordinator"), well, refused, 4.0, again) == ["L2"]
    assert broken(begin, looks, well, again, refused, 4.0, request("Metadata")) == ["L2"]


def test_l6_nothing_is_sent_to_a_broker_while_it_throttles_the_client():
    def ask(node, connection):
        return request("Metadata", connection=connection, asked={"node": node})

    def throttles(node):
        return of(Throttled, connection=1, node=node, seconds=0.5)

    throttled = [opening(), ask(1, 1), throttles(1)]
    assert broken(throttled, ask(2, 2), 0.5, ask(1, 1)) == []
    assert broken(throttled, ask(1, 3)) == ["L6"]
    assert broken(throttled, request("ApiVersions", connection=3, asked={"node": 1})) == []
    unknown = [opening(), ask(0, 1), throttles(0)]
    assert broken(unknown, ask(0, 2)) == []
    assert broken(unknown, ask(0, 1)) == ["L6"]


def test_l6_backoff_has_jitter():
    assert broken(opening(), refused(6, 0.09)) == ["L6"]
    assert broken(opening(), [refused(1, 0.09 + 0.01 * n) for n in range(6)]) == []
    assert find_violations(timeline(opening(), refused(6, 0.09)), virtual=False) == []


def test_l6_a_rejoin_after_a_rejection_has_jitter():
    """A rejection that names no coordinator is followed by the next join alone: these pauses were
    not compared, and the members of a group could rejoin all at once."""

    def rejected(pauses, error="UNKNOWN_SERVER_ERROR"):
        return [[request("JoinGroup", error=error), pause] for pause in pauses]

    assert broken(opening(), rejected([0.1, 0.2, 0.1, 0.2, 0.1, 0.2])) == ["L6"]
    assert broken(opening(), rejected([0.1 + 0.01 * n for n in range(6)])) == []


def test_l6_a_retry_at_the_end_of_a_throttle_needs_no_jitter():
    """The broker sets the length of a throttle, for all its clients."""
    sent, answered = request("JoinGroup", connection=1, asked={"node": 1}, error="NOT_COORDINATOR")

    def retries(throttle):
        throttled = of(Throttled, connection=1, node=1, seconds=throttle)
        return [[sent, throttled, answered, 0.38] for _ in range(4)]

    assert broken(opening(), retries(0.4)) == []  # it ends when the next request is sent
    assert broken(opening(), retries(0.2)) == ["L6"]
