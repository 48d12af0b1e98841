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
from sim.checker import examine, find_violations
from sim.events import (
    Answered,
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
    Processed,
    Revoked,
    Revoking,
    Sent,
    Sought,
    Stored,
    Thawed,
    Throttled,
    Truncated,
    Worked,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

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


def _listed(tell):
    """Make a generator of events return a list, as a part may be used more than once."""
    return wraps(tell)(lambda *arguments, **options: list(_flat(tell(*arguments, **options))))


def broken(*parts, **options):
    """Return the invariants that a story violates, in order, one entry per violation."""
    return [violation.invariant for violation in find_violations(timeline(*parts), **options)]


def of(kind, member="a", **fields):
    return kind(time=0.0, member=member, **fields)


def opening(member="a", **fields):
    return of(Opening, member, session_timeout=6.0, rebalance_timeout=8.0, **fields)


@_listed
def request(api, member="a", *, error="NONE", connection=1, answer=True, asked=None, response=None):
    """A request and its response."""
    number = next(_number)
    wire = {"api": api, "connection": connection, "correlation": number}
    yield of(Sent, member, **wire, **(asked or {}))
    if answer:
        yield of(Answered, member, **wire, error=error, **(response or {}))


def waited(seconds, *parts):
    """The requests among the parts waited for so long before they left."""
    return [
        attrs.evolve(part, waited=seconds) if isinstance(part, Sent) else part
        for part in _flat(parts)
    ]


@_listed
def joins(generation, *partitions, member="a", owned=(), member_id=None):
    """JoinGroup and SyncGroup, with their responses."""
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


def is_new(member="a"):
    """The first join, whose response assigns a member id."""
    return request(
        "JoinGroup", member, error="MEMBER_ID_REQUIRED", response={"member_id": member.upper()}
    )


def assigned(generation, *partitions, member="a"):
    return of(Assigned, member, partitions=partitions, generation=generation)


def looks_up(member="a", error="NONE"):
    def at(offsets):
        return request("OffsetFetch", member, error=error, response={"offsets": offsets})

    return at


def starts(generation, offsets, member="a", owned=()):
    """A member joins (for the first time, unless it owns something) and fetches its offsets."""
    return [
        [] if owned else is_new(member),
        joins(generation, *offsets, *owned, member=member, owned=owned),
        assigned(generation, *offsets, member=member),
        looks_up(member)(offsets),
    ]


@_listed
def delivers(*offsets, tp=T0, member="a", processed=True, anew=0):
    for offset in offsets:
        yield of(Delivered, member, partition=tp, offset=offset, sequence=offset + anew)
        if processed:
            yield of(Processed, member, partition=tp, offset=offset)


@_listed
def commits(offset, *, tp=T0, member="a", generation=1, answer=True, stored=True, error="NONE"):
    asked = {"offsets": {tp: offset}, "member_id": member.upper(), "generation": generation}
    sent, *answered = request(
        "OffsetCommit",
        member,
        connection=2,
        error=error,
        answer=answer,
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


def beats(error="NONE", *, generation=1, member="a", connection=1):
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


def cut(offset, *rewritten):
    """The log is truncated, and these records are written at its end."""
    anew = [
        Appended(time=0.0, partition=T0, offset=at, sequence=sequence)
        for at, sequence in enumerate(rewritten, offset)
    ]
    return [Truncated(time=0.0, partition=T0, offset=offset), anew]


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
        beats("REBALANCE_IN_PROGRESS"),
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


def test_a_life_without_fault_is_clean():
    result = examine(timeline(handover()))
    assert result.violations == ()
    figures = result.figures
    assert (figures.records, figures.delivered, figures.lost) == (6, 6, 0)
    assert (figures.duplicated, figures.periods, figures.fenced) == (0, 2, 0)
    assert result.clean


def test_what_nobody_had_is_counted_even_where_nothing_else_is_wrong():
    result = examine(timeline(written(0, 1), opening(), starts(1, {T0: -1}), finished(0, 2)))
    assert result.figures.lost == 2
    assert not result.clean


def test_a_violation_names_the_member_the_time_and_the_events_that_prove_it():
    story = timeline(opening(), starts(1, {T0: 0}), revokes(T0), delivers(0))
    (violation,) = find_violations(story)
    assert (violation.invariant, violation.member) == ("S9", "a")
    assert [type(story[number]) for number in violation.events] == [Revoked, Delivered]
    assert violation.time == story[violation.events[-1]].time


# ------------------------------------------------------------------ S1: one owner


def test_s1_two_owners_in_one_generation():
    both = [starts(1, {T0: 0}), starts(1, {T0: 0}, member="b")]
    assert broken(both) == ["S1"]
    assert broken(starts(1, {T0: 0}), starts(1, {T1: 0}, member="b")) == []


def test_s1_a_static_member_that_comes_back_has_what_it_had():
    twins = [opening(m, instance="i") for m in "ab"]
    assert broken(twins, starts(1, {T0: 0}), starts(1, {T0: 0}, member="b")) == []


def test_s1_who_was_given_up_must_not_deliver():
    given_up = [opening(), starts(1, {T0: 0}), opening("b"), starts(2, {T0: 0}, member="b")]
    assert broken(given_up, delivers(0, member="b")) == []
    assert broken(given_up, delivers(0)) == ["S1"]


def shared(generation, member="a"):
    """A group member, and its assignment of one shard."""
    return [
        opening(member, shards=True),
        is_new(member),
        joins(generation, T0, member=member),
        assigned(generation, T0, member=member),
    ]


def works(member="a"):
    return of(Worked, member, partition=T0)


def test_s1_two_members_do_not_work_on_a_shard_at_once():
    given_up = [shared(1), works(), shared(2, "b"), works("b")]
    assert broken(given_up) == []
    assert broken(given_up, works()) == ["S1"]
    *before, thawed, late = timeline(given_up, of(Frozen), 9.0, of(Thawed), works())
    assert find_violations([*before, thawed, attrs.evolve(late, time=thawed.time)]) == []


def test_s2_a_group_member_joins_when_its_work_has_ended_or_it_has_lost_its_place():
    assert broken(shared(1), revokes(T0), joins(2)) == []
    assert broken(shared(1), joins(2)) == ["S2"]
    assert broken(shared(1), of(Revoking, partitions=(T0,)), joins(2)) == ["S2"]
    assert broken(shared(1), beats("UNKNOWN_MEMBER_ID"), is_new(), revokes(T0)) == []
    going = of(Revoking, partitions=(T0,))
    lost = [shared(1), beats("ILLEGAL_GENERATION"), going]
    assert broken(lost, joins(2), joins(3), of(Revoked, partitions=(T0,))) == []
    assert broken(shared(1), request("FindCoordinator"), 6.0, joins(2), revokes(T0)) == []
    assert broken(shared(1), request("FindCoordinator"), 5.0, joins(2), revokes(T0)) == ["S2"]


def test_s9_nobody_works_on_what_it_has_let_go_of():
    assert broken(shared(1), of(Revoking, partitions=(T0,)), works()) == ["S9"]
    assert broken(shared(1), revokes(T0), works()) == ["S9"]


def test_s1_who_takes_up_what_is_over_does_not_own_it():
    asks, *taken_up = starts(1, {T0: 0})[1:]
    stood_still = [opening(), is_new(), asks, opening("b"), starts(2, {T0: 0}, member="b")]
    assert broken(stood_still, taken_up, delivers(0, member="b")) == []
    assert broken(stood_still, taken_up, delivers(0)) == ["S1"]


def test_s1_whose_place_another_has_taken_does_not_know_before_it_hears():
    static = {"instance": "i"}
    first = [opening(**static), starts(1, {T0: 0}), opening("b"), is_new("b")]
    replaced = [opening("c", **static), request("JoinGroup", "c", answer=False)]
    given = [assigned(2, T0, member="b"), delivers(0)]
    assert broken(first, given) == ["S10", "S1"]
    assert broken(first, replaced, given) == ["S10"]


def test_s1_who_is_fenced_does_nothing_more():
    fenced = [opening(instance="i"), starts(1, {T0: 0}), beats("FENCED_INSTANCE_ID")]
    assert broken(fenced, of(Lost, partitions=(T0,)), of(Ended)) == []
    assert broken(fenced, delivers(0, processed=False)) == ["S1"]
    assert broken(fenced, of(Lost, partitions=(T0,)), is_new()) == ["S1"]


def test_s10_who_is_fenced_past_its_join_loses_what_it_holds():
    beat, late = beats("FENCED_INSTANCE_ID")
    asked = request("JoinGroup", asked={"member_id": "A", "owned": (T0,)}, answer=False)
    first = [opening(instance="i", cooperative=True), starts(1, {T0: 0}), beat, asked]
    lost = [of(Lost, partitions=(T0,)), of(Ended)]
    assert broken(first, late, lost) == []
    assert broken(first, lost) == ["S10"]


def test_s1_but_not_who_has_taken_its_own_place():
    lost = of(Lost, partitions=(T0,))
    beat, late = beats("FENCED_INSTANCE_ID")
    first = [opening(instance="i"), starts(1, {T0: 0}), beat]
    assert broken(first, beats("UNKNOWN_MEMBER_ID"), lost, is_new(), late, joins(2)) == []
    assert broken(first, beats("ILLEGAL_GENERATION"), lost, late, joins(2)) == ["S1", "S11", "S1"]


# ------------------------------------------------------------------ S2: revoked, then rejoined


def test_s2_a_join_comes_after_the_revocation():
    start = [opening(), starts(1, {T0: 0})]
    assert broken(start, revokes(T0), joins(2)) == []
    assert broken(start, of(Revoking, partitions=(T0,)), joins(2)) == ["S2"]
    assert broken(start, joins(2)) == ["S2"]


def test_s2_a_member_does_not_leave_while_it_revokes():
    start = [opening(), starts(1, {T0: 0}), of(Closing), of(Revoking, partitions=(T0,))]
    assert broken(start, of(Revoked, partitions=(T0,)), leaves(), of(Ended)) == []
    assert broken(start, leaves(), of(Revoked, partitions=(T0,)), of(Ended)) == ["S2"]


def test_s2_a_cooperative_join_claims_what_the_member_has():
    start = [opening(cooperative=True), starts(1, {T0: 0, T1: 0}), revokes(T1)]
    assert broken(start, joins(2, T0, owned=(T0,))) == []
    assert broken(start, joins(2, T0)) == ["S2"]
    assert broken(start, joins(2, T0, owned=(T0, T1))) == ["S2"]


def test_s2_a_join_on_its_way_out_may_claim_what_is_lost_at_that_moment():
    claims = request("JoinGroup", asked={"member_id": "A", "owned": (T0,)}, answer=False)
    first = [opening(cooperative=True), starts(1, {T0: 0}), of(Closing)]

    def later(seconds):
        *before, lost, sent = timeline(first, of(Lost, partitions=(T0,)), claims)
        sent = attrs.evolve(sent, time=lost.time + seconds)
        return [v.invariant for v in find_violations([*before, lost, sent])]

    assert later(0.0) == []
    assert later(0.1) == ["S2"]


def test_s2_a_join_may_have_waited_for_its_connection_while_what_it_claims_was_lost():
    start = [opening(cooperative=True), starts(1, {T0: 0}), beats("UNKNOWN_MEMBER_ID")]
    lost = [of(Lost, partitions=(T0,)), 0.4]

    claims = request("JoinGroup", asked={"member_id": "A", "owned": (T0,)}, answer=False)
    assert broken(start, lost, claims) == ["S2", "S11"]
    assert broken(start, lost, waited(0.5, claims)) == []


def test_s2_nobody_ends_without_a_word():
    start = [opening(), starts(1, {T0: 0}), of(Closing)]
    assert broken(start, revokes(T0), of(Ended)) == []
    assert broken(start, of(Ended)) == ["S2"]
    assert broken(start, 10.0, of(Ended)) == []  # closed without a callback after its timeout


# ------------------------------------------------------------------ S3: the last commit


def test_s3_what_is_processed_is_committed_before_it_is_let_go_of():
    assert broken(handover()) == []
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1, 2)]
    # The record in flight is not required: the client may not know that it is processed.
    assert broken(first, commits(2), revokes(T0)) == []
    assert broken(first, commits(1), revokes(T0)) == ["S3"]
    assert broken(first, revokes(T0)) == ["S3"]


def test_s3_not_where_the_application_commits_itself():
    first = [opening(auto_commit=False), starts(1, {T0: 0}), delivers(0, 1, 2)]
    assert broken(first, revokes(T0)) == []


def test_s3_the_last_commit_is_answered_or_its_time_is_over():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    under_way = [first, commits(2, answer=False), revokes(T0)]
    assert broken(under_way) == []  # no other member can get the partition yet
    assert broken(under_way, leaves()) == ["S3"]
    assert broken(first, commits(2, answer=False), 0.5, revokes(T0), leaves()) == []


@pytest.mark.parametrize(("queued", "expected"), [(0.5, []), (0.1, ["S3"])])
def test_s3_the_last_commit_may_have_waited_for_the_one_before(queued, expected):
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    last = attrs.evolve(commits(2)[0], queued=queued)
    assert broken(first, commits(1), last, revokes(T0), leaves()) == expected


@pytest.mark.parametrize("outcome", ["cancelled", "RequestTimeoutError"])
def test_s3_a_commit_that_was_given_up_on_its_way_out_is_not_waited_for(outcome):
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


def test_s3_an_error_of_the_coordinator_excuses():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1, 2)]
    assert broken(first, beats("NOT_COORDINATOR"), revokes(T0)) == []


def test_s3_nothing_is_committed_after_it_was_let_go_of():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    assert broken(first, commits(1), revokes(T0), leaves(), commits(2)) == ["S3"]
    # Before it sends LeaveGroup, no other member can get the partition.
    assert broken(first, commits(1), revokes(T0), commits(2), leaves()) == []
    # A commit that was in flight may be retried.
    again = [commits(2, answer=False, stored=False), 1.0, revokes(T0), commits(2)]
    assert broken(first, again) == []


# ------------------------------------------------------------------ S4 and S5: commits


def test_s4_a_commit_is_of_what_was_processed():
    first = [opening(), starts(1, {T0: 0}), delivers(0), delivers(1, processed=False)]
    assert broken(first, commits(1)) == []
    assert broken(first, commits(2)) == ["S4", "S6"]


def test_s4_markers_are_passed_without_being_processed():
    first = [written(0, -1, 2), opening(), starts(1, {T0: 0}), delivers(0)]
    assert broken(first, commits(2)) == []
    assert broken(first, commits(3)) == ["S4", "S6"]


def test_s4_the_application_may_name_any_offset():
    first = [opening(), starts(1, {T0: 0}), delivers(0), commits(1), delivers(1)]
    sought = of(Sought, partition=T0, offset=0)
    sent, *stored = commits(2)
    assert broken(first, sought, attrs.evolve(sent, explicit=True), stored) == []
    assert broken(first, sought, sent, stored) == ["S4"]


def test_s4_a_commit_may_have_waited_for_its_connection_while_the_application_sought():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1), of(Sought, partition=T0, offset=0)]
    assert broken(first, waited(0.05, commits(2))) == []
    assert broken(first, commits(2)) == ["S4"]


def test_s4_a_commit_that_leaves_in_the_moment_of_a_seek_was_asked_for_before():
    """A member that commits, is cancelled and seeks at once may do so before its request leaves."""
    *first, sought, late = timeline(
        opening(),
        starts(1, {T0: 0}),
        delivers(0),
        commits(1),
        delivers(1),
        of(Sought, partition=T0, offset=0),
        commits(2, answer=False, stored=False),
    )
    at_once = attrs.evolve(late, time=sought.time)
    assert find_violations([*first, sought, at_once]) == []
    assert [v.invariant for v in find_violations([*first, sought, late])] == ["S4"]


def test_s5_commits_do_not_go_back():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1), commits(2)]
    assert broken(first, commits(2)) == []
    assert broken(first, commits(1)) == ["S5"]
    assert broken(first, of(Sought, partition=T0, offset=1), commits(1)) == []
    assert broken(first, of(Sought, partition=T0, offset=1), commits(0)) == []
    sent, *stored = commits(1)
    assert broken(first, attrs.evolve(sent, explicit=True), stored) == []


def test_s5_nor_does_the_first_go_back_behind_the_start():
    first = [opening(), starts(1, {T0: 2})]
    assert broken(first, commits(2, stored=False)) == []
    assert broken(first, commits(1, stored=False)) == ["S5"]


def test_s5_nor_those_of_the_next_owner():
    story = timeline(handover())
    assert broken(story) == []
    back = Stored(time=0.0, partition=T0, offset=3, member_id="Z", generation=2)
    assert broken(story[:-1], back) == ["S5"]


def test_s5_the_group_is_left_at_its_last_commit():
    story = handover()[:-1]
    assert broken(story, finished(6, 6)) == []
    assert broken(story, finished(5, 6)) == ["S5"]


# ------------------------------------------------------------------ S6 and S7: at least once


def test_s6_all_below_a_commit_was_processed():
    first = [written(0, 1, 2), opening(), starts(1, {T0: 0})]
    commit = Stored(time=0.0, partition=T0, offset=2, member_id="A", generation=1)
    assert broken(first, delivers(0, 1), commit) == []
    assert broken(first, delivers(0), delivers(1, processed=False), commit) == ["S6"]


def test_s6_what_the_application_passes_over_is_its_own_affair():
    first = [written(0, 1, 2), opening(), starts(1, {T0: 0}), delivers(0)]
    assert broken(first, of(Sought, partition=T0, offset=2), delivers(2), commits(3)) == []


def test_s6_a_commit_that_went_well_has_happened():
    first = [opening(), starts(1, {T0: 0}), delivers(0)]
    asked = of(Committing, token=1, offsets=None)
    well = of(Committed, token=1, outcome="ok")
    assert broken(first, asked, commits(1), well) == []
    assert broken(first, asked, commits(1, error="NOT_COORDINATOR"), well) == ["S6"]
    failed = of(Committed, token=1, outcome="cancelled")
    assert broken(first, asked, commits(1, error="NOT_COORDINATOR"), failed) == []


def test_s6_what_was_acknowledged_may_be_overtaken_by_what_was_given_up():
    first = [opening(auto_commit=False), starts(1, {T0: 0}), delivers(0)]
    call = [of(Committing, token=2, offsets=None), of(Committed, token=2, outcome="ok")]
    late = Stored(time=0.0, partition=T0, offset=1, member_id="A", generation=1)
    given_up = commits(1, answer=False, stored=False)
    assert broken(first, given_up, delivers(1), commits(2), late, call) == []
    assert broken(first, given_up, delivers(1), late, call) == ["S6"]


def test_s7_what_was_committed_does_not_come_again():
    killed = [opening(), starts(1, {T0: 0}), delivers(0, 1, 2), commits(2), of(Killed)]
    assert broken(killed, starts(2, {T0: 2}, member="b"), delivers(2, member="b")) == []
    assert broken(killed, starts(2, {T0: 1}, member="b"), delivers(1, member="b")) == ["S7"]


def test_s7_but_to_a_static_member_that_does_not_know_yet_that_it_was_replaced():
    def twice(instance):
        first = [opening(instance=instance), starts(1, {T0: 0})]
        heir = [starts(2, {T0: 0}, member="b"), delivers(0, member="b")]
        stored = commits(1, member="b", generation=2)
        return [first, opening("b", instance="i"), heir, stored, delivers(0, processed=False)]

    assert broken(twice("i")) == []
    assert broken(twice("j")) == ["S1", "S7"]


def test_s7_nor_what_was_processed_by_whoever_let_go_in_good_order():
    """Without events of the wire and the broker, a revocation counts as a commit."""
    first = [of(Assigned, partitions=(T0,), generation=-1), delivers(0, 1)]
    heir = of(Assigned, "b", partitions=(T0,), generation=-1)
    assert broken(first, revokes(T0), heir, delivers(2, member="b")) == []
    assert broken(first, revokes(T0), heir, delivers(1, member="b")) == ["S7"]
    assert broken(first, of(Lost, partitions=(T0,)), heir, delivers(0, member="b")) == []


# ------------------------------------------------------------------ S8 and S9: delivery


def test_s8_offsets_grow_one_by_one():
    first = [opening(), starts(1, {T0: 0})]
    assert broken(first, delivers(0, 1, 2)) == []
    assert broken(first, delivers(0, 2)) == ["S8"]
    assert broken(first, delivers(0, 1, 1)) == ["S8"]


def test_s8_what_no_reader_sees_is_passed_over_and_not_delivered():
    first = [written(0, -1, 2), opening(), starts(1, {T0: 0})]
    assert broken(first, delivers(0, 2)) == []
    marker = of(Delivered, partition=T0, offset=1, sequence=-1)
    assert broken(first, delivers(0), marker) == ["S8"]
    compacted = [first[0][0], first[0][2], *first[1:]]
    assert broken(compacted, delivers(0, 2)) == []


def test_s8_a_record_is_the_one_that_was_written():
    first = [written(0, 1), opening(), starts(1, {T0: 0})]
    assert broken(first, delivers(0), of(Delivered, partition=T0, offset=1, sequence=7)) == ["S8"]
    assert broken(first, delivers(0, 1, 2)) == ["S8"]


def test_s8_a_partition_starts_where_the_commit_says():
    first = [written(0, 1, -1, 3), opening()]
    assert broken(first, starts(1, {T0: 2}), delivers(3)) == []
    assert broken(first, starts(1, {T0: 1}), delivers(3)) == ["S8"]
    assert broken(first, starts(1, {T0: -1}), delivers(1)) == ["S8"]


def test_s8_an_offset_out_of_range_may_lead_anywhere():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    out = request("Fetch", error="OFFSET_OUT_OF_RANGE", asked={"offsets": {T0: 2}})
    other = request("Fetch", error="NOT_LEADER_OR_FOLLOWER", asked={"offsets": {T0: 2}})
    assert broken(first, out, delivers(0)) == []
    assert broken(first, other, delivers(0)) == ["S8"]


def read_and_cut(**options):
    """Four of six records are read, and the last two of these are lost in a truncation; the next
    owner may still find the commit of all four."""
    read = [opening(**options), starts(1, {T0: 0}), delivers(0, 1, 2, 3), commits(4)]
    return [written(0, 1, 2, 3, 4, 5), read, cut(2, 12, 13, 14, 15)]


def test_s8_who_has_read_beyond_a_cut_goes_back_to_it():
    anew = delivers(2, 3, 4, 5, anew=10)
    ends = [commits(6), closes(T0), finished(6, 6)]
    assert broken(read_and_cut(), anew, ends) == []
    buffered = delivers(4, 5)
    assert broken(read_and_cut(), buffered, commits(6), anew, ends) == []
    assert broken(read_and_cut(), delivers(5)) == ["S8"]
    assert broken(read_and_cut(), delivers(4, 5, anew=10)) == ["S8"]
    assert broken(read_and_cut(), delivers(3, anew=10)) == ["S8"]
    assert broken(read_and_cut(), delivers(0)) == ["S8"]
    assert broken(read_and_cut(), delivers(2, anew=10), delivers(2, anew=10)) == ["S8"]
    assert broken(read_and_cut(), delivers(2, anew=10), delivers(3)) == ["S8"]
    twice = [cut(3, 23, 24, 25), cut(4, 34, 35)]
    last = [delivers(3, anew=20), delivers(4, 5, anew=30)]
    assert broken(read_and_cut(), twice, delivers(2, anew=10), last, ends) == []
    assert broken(read_and_cut(), twice, last) == ["S8"]


def test_s4_a_commit_may_have_waited_for_its_coordinator_while_the_log_was_cut():
    """It was issued before the member learned of the truncation, for what was processed by then."""
    story = [read_and_cut(), delivers(4, 5), delivers(2, anew=10)]
    assert broken(story, waited(0.05, commits(6)), commits(3)) == []
    assert broken(story, commits(6)) == ["S4"]


def test_s8_whose_commit_is_beyond_a_cut_starts_there():
    heir = [revokes(T0), joins(2), opening("b"), starts(2, {T0: 4}, member="b")]
    ends = [commits(6, member="b", generation=2), closes(T0, member="b"), finished(6, 6)]
    anew = delivers(2, 3, 4, 5, member="b", anew=10)
    assert broken(read_and_cut(), heir, anew, ends) == []
    assert broken(read_and_cut(), heir, delivers(4, 5, member="b", anew=10), ends) == ["S6"]
    assert broken(read_and_cut(), heir, delivers(3, member="b", anew=10)) == ["S8"]


def test_s8_whose_application_wants_to_be_told_of_a_cut_does_not_go_back_by_itself():
    story, strict = read_and_cut(resets=False), opening(resets=False)
    sought = of(Sought, partition=T0, offset=0)
    anew = [delivers(0, 1), delivers(2, 3, anew=10)]
    assert broken(story, sought, anew) == []
    assert broken(story, delivers(2, anew=10)) == ["S8"]
    heir = [opening("b", resets=False), starts(2, {T0: 4}, member="b")]
    assert broken(story, revokes(T0), joins(2), heir, delivers(2, member="b", anew=10)) == ["S8"]
    assert broken(written(0), strict, starts(1, {T0: -1}), sought, delivers(0)) == []
    assert broken(written(0), strict, starts(1, {T0: -1}), delivers(0)) == ["S12"]


def test_s6_what_took_the_place_of_the_lost_is_processed_too():
    ends = [closes(T0), finished(4, 6)]
    assert broken(read_and_cut(), delivers(2, 3, anew=10), ends) == []
    assert broken(read_and_cut(), ends) == ["S6"]
    first = [written(0, 1, 2), opening(), starts(1, {T0: 0}), delivers(0, 1)]
    in_hand = [delivers(2, processed=False), cut(2, 12), of(Processed, partition=T0, offset=2)]
    assert broken(first, in_hand, commits(3), closes(T0), finished(3, 3)) == ["S6"]
    ends = [delivers(2, anew=10), closes(T0), finished(3, 3)]
    assert broken(first, in_hand, commits(3), ends) == []


def test_l1_what_a_cut_may_have_taken_is_not_there_to_deliver():
    assert broken(rejoining(cut(1), 0.5)) == []
    fetched = request("Fetch", asked={"offsets": {T0: 1}}, response={"offsets": {T0: 3}})
    assert broken(rejoining(cut(1, 11, 12), fetched, 0.5, delivers(1, anew=10))) == ["L1"]


def test_s8_the_commit_passes_the_markers_at_the_end_of_a_log():
    first = [written(0, -1), opening(), starts(1, {T0: 0}), delivers(0)]
    assert broken(first, commits(2), 9.0, closes(T0), finished(2, 2)) == []
    assert broken(first, commits(1), 9.0, closes(T0), finished(1, 2)) == ["S8"]
    # Unless there was no time to commit.
    assert broken(first, commits(1), closes(T0), finished(1, 2)) == []


@pytest.mark.parametrize(
    "end", [of(Revoking, partitions=(T0,)), revokes(T0), of(Lost, partitions=(T0,))]
)
def test_s9_nothing_is_delivered_once_revoked_or_lost_is_called(end):
    first = [opening(), starts(1, {T0: 0, T1: 0}), of(Closing)]
    assert broken(first, end, delivers(0, tp=T1)) == []
    assert broken(first, end, delivers(0)) == ["S9"]


def test_s9_nor_what_was_never_assigned():
    assert broken(opening(), starts(1, {T0: 0}), delivers(0, tp=T1)) == ["S9"]


# ------------------------------------------------------------------ S10 and S11: responses, ids


def test_s10_the_generation_is_that_of_the_last_join():
    first = [opening(), is_new(), joins(1, T0)]
    assert broken(first, assigned(1, T0)) == []
    assert broken(first, assigned(0, T0)) == ["S10"]
    assert broken(first, joins(2, T0), assigned(1, T0)) == ["S10"]
    pending = request("JoinGroup", answer=False, asked={"member_id": "A"})
    assert broken(first, pending, assigned(1, T0)) == ["S10"]


def test_s10_the_partitions_are_those_of_the_last_sync():
    first = [opening(cooperative=True), starts(1, {T0: 0, T1: 0})]
    assert broken(first, joins(2, T0, owned=(T0, T1)), revokes(T1), assigned(2)) == []
    assert broken(first, joins(2, T0, owned=(T0, T1)), assigned(2)) == ["S10"]


def test_s10_heartbeats_are_of_the_generation_that_stands():
    assert broken(opening(), starts(1, {T0: 0}), beats(generation=1)) == []
    assert broken(opening(), starts(2, {T0: 0}), beats(generation=1)) == ["S10"]


def test_s10_a_heartbeat_past_a_join_may_have_waited_for_its_connection():
    again = [opening(), starts(1, {T0: 0}), revokes(T0), joins(2, T0), assigned(2, T0)]
    beat = request("Heartbeat", connection=2, asked={"member_id": "A", "generation": 1})
    assert broken(again, waited(0.05, beat)) == []
    assert broken(again, revokes(T0), joins(3, T0), assigned(3, T0), waited(0.15, beat)) == []
    assert broken(again, beat) == ["S10"]


def test_s10_what_is_lost_was_taken():
    first = [opening(), starts(1, {T0: 0})]
    lost = of(Lost, partitions=(T0,))
    assert broken(first, beats("UNKNOWN_MEMBER_ID"), lost) == []
    assert broken(first, beats("NOT_COORDINATOR"), lost) == ["S10"]
    assert broken(first, 300.0, lost) == []  # max_poll_interval


def test_s10_an_application_that_works_and_commits_has_not_come_for_more_since_it_was_given():
    first = [opening(max_poll_interval=15.0), starts(1, {T0: 0})]
    given, work, lost = of(Delivered, partition=T0, offset=0, sequence=0), 1.0, 13.99
    *before, done, asks, ended, away, loses = timeline(
        first,
        given,
        work,
        of(Processed, partition=T0, offset=0),
        of(Committing, token=1, offsets=None),
        of(Committed, token=1, outcome="cancelled"),
        of(Away),
        lost,
        of(Lost, partitions=(T0,)),
    )
    asks, ended, away = (attrs.evolve(event, time=done.time) for event in (asks, ended, away))

    def wrong(*events):
        return [violation.invariant for violation in find_violations([*before, done, *events])]

    assert wrong(loses) == ["S10"]
    assert wrong(asks, loses) == []
    assert wrong(asks, ended, loses) == ["S10"]
    assert wrong(asks, ended, away, loses) == []
    assert broken(first, of(Closing), lost) == []


def test_s10_a_static_member_that_missed_a_generation_has_lost_what_it_had():
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


def test_s10_a_stale_error_is_no_reason():
    sent, answer = beats("ILLEGAL_GENERATION")
    again = [opening(), starts(1, {T0: 0}), sent, revokes(T0), joins(2, T0), assigned(2, T0)]
    assert broken(again, answer, of(Lost, partitions=(T0,))) == ["S10"]


def test_s11_the_member_id_stays():
    first = [opening(), starts(1, {T0: 0}), revokes(T0)]
    assert broken(first, joins(2)) == []
    assert broken(first, is_new()) == ["S11"]
    assert broken(first, joins(2, member_id="Z")) == ["S11"]
    assert broken(first, leaves(), is_new()) == []


def test_s11_unless_the_coordinator_does_not_know_it():
    first = [opening(), starts(1, {T0: 0})]
    lost = of(Lost, partitions=(T0,))
    assert broken(first, beats("UNKNOWN_MEMBER_ID"), lost, is_new()) == []
    assert broken(first, beats("UNKNOWN_MEMBER_ID"), lost, joins(2)) == ["S11"]
    assert broken(first, beats("ILLEGAL_GENERATION"), lost, is_new()) == ["S11"]
    assert broken(first, beats("ILLEGAL_GENERATION"), lost, joins(2)) == []


def test_s11_unless_the_application_was_away_for_too_long_while_it_let_go():
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
            is_new(),
        ]

    assert broken(slow(0.3)) == []
    assert broken(slow(0.01)) == ["S11"]


def test_s11_unless_it_was_away_for_too_long_while_its_join_was_parked():
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
            is_new(),
        ]

    assert broken(parked(5.0)) == []
    assert broken(parked(4.0)) == ["S10", "S11"]


# ------------------------------------------------------------------ S12 to S14


def test_s12_where_to_start_is_told_by_the_coordinator():
    first = [opening(), is_new(), joins(1, T0), assigned(1, T0)]
    assert broken(first, looks_up()({T0: -1}), delivers(0)) == []
    assert broken(first, delivers(0)) == ["S12"]
    assert broken(first, looks_up(error="NOT_COORDINATOR")({}), delivers(0)) == ["S12"]


def test_s12_a_response_to_the_previous_owner_tells_nothing():
    sent, answer = looks_up()({T0: 0})
    again = [opening(), is_new(), joins(1, T0), assigned(1, T0), sent, revokes(T0), joins(2, T0)]
    assert broken(again, assigned(2, T0), answer, delivers(0)) == ["S12"]


def test_s12_a_negative_offset_is_none():
    first = [opening(), starts(1, {T0: -1})]
    assert broken(first, request("Fetch", asked={"offsets": {T0: 0}})) == []
    assert broken(first, request("Fetch", asked={"offsets": {T0: -1}})) == ["S12"]


def test_s13_what_is_lost_is_not_committed():
    unknown = beats("UNKNOWN_MEMBER_ID")
    first = [opening(), starts(1, {T0: 0}), delivers(0), commits(1), delivers(1)]
    lost = of(Lost, partitions=(T0,))
    assert broken(first, unknown, lost) == []
    assert broken(first, unknown, lost, commits(2)) == ["S13"]
    assert broken(first, unknown, commits(2), lost) == ["S13"]


def test_s13_a_commit_may_have_waited_for_its_connection_while_it_was_lost():
    over = [beats("UNKNOWN_MEMBER_ID"), of(Lost, partitions=(T0,))]
    late = commits(1, stored=False, error="UNKNOWN_MEMBER_ID")
    first = [opening(), starts(1, {T0: 0}), delivers(0), over]
    assert broken(first, waited(0.05, late)) == []
    assert broken(first, late) == ["S13"]


def test_s13_a_commit_may_have_waited_for_its_connection_while_the_membership_ended():
    first = [opening(), starts(1, {T0: 0}), delivers(0, 1)]
    over = beats("UNKNOWN_MEMBER_ID")
    late = commits(2, error="UNKNOWN_MEMBER_ID")
    assert broken(first, over, waited(0.05, late)) == []
    assert broken(first, over, late) == ["S13"]


def test_s13_a_commit_may_be_on_its_way_when_a_process_that_stood_still_loses_all():
    """Both happen as the process resumes: the commit was requested before the loss."""
    begun = [opening(max_poll_interval=5.0), starts(1, {T0: 0}), delivers(0), commits(1)]
    first = [begun, delivers(1), of(Frozen), 9.0]
    late = [of(Lost, partitions=(T0,)), commits(2, answer=False, stored=False)]
    *before, thawed, lost, sent = timeline(first, of(Thawed), late)
    at_once = [attrs.evolve(event, time=thawed.time) for event in (lost, sent)]
    assert find_violations([*before, thawed, *at_once]) == []
    later = find_violations([*before, thawed, lost, sent])
    assert [violation.invariant for violation in later] == ["S13"]


def test_s13_a_commit_that_was_under_way_may_be_tried_again():
    first = [opening(), starts(1, {T0: 0}), delivers(0), commits(1, answer=False, stored=False)]
    over = [beats("UNKNOWN_MEMBER_ID"), of(Lost, partitions=(T0,))]
    again = commits(1, answer=False, stored=False)
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


def test_s14_an_assignment_keeps_the_rules_of_its_assignor():
    assert broken(formed({"A": (T0,), "B": (T1,)})) == []
    assert broken(formed({"A": (T0,), "B": ()})) == ["S14"]
    assert broken(formed({"A": (T0, T1), "B": (T1,)})) == ["S14"]
    assert broken(formed({"A": (T0, T1), "B": ()})) == []
    assert broken(formed({"A": (T0, T1), "B": ()}, "sticky")) == ["S14"]


def test_s14_a_cooperative_round_hands_nothing_over():
    had = {"claims": {"A": (T0, T1), "B": ()}, "claimed_at": {"A": 1, "B": -1}}
    assert broken(formed({"A": (T0,), "B": ()}, "cooperative-sticky", **had)) == []
    assert broken(formed({"A": (T0,), "B": (T1,)}, "cooperative-sticky", **had)) == [
        "S20",
        "S14",
    ]


def test_s14_partitions_that_were_added_may_not_be_known_yet():
    grown = attrs.evolve(formed({"A": (T0,), "B": (T1,)}), partitions={"t": 5}, generation=2)
    assert broken(formed({"A": (T0,), "B": (T1,)}), grown) == []
    assert broken(grown) == ["S14", "S14", "S14"]
    written_first = [Appended(time=0.0, partition=tp, offset=0, sequence=0) for tp in (T0, T1)]
    told_of = request("Metadata")
    assert broken(written_first, told_of, grown) == []
    assert broken(told_of, written_first, grown) == ["S14", "S14", "S14"]


def test_s14_a_topic_that_the_leader_may_have_been_told_is_gone_may_be_there_or_not():
    """A round that hands over a partition looks unbalanced to a leader that does not know it."""
    misled = [opening(), request("Metadata", error="UNKNOWN_TOPIC_OR_PARTITION")]
    of_u = TopicPartition("u", 0)
    had = {"A": (T0, T1), "B": (of_u,), "C": ()}
    at = dict.fromkeys(had, 1)
    share = formed(had | {"B": ()}, "cooperative-sticky", claims=had, claimed_at=at)
    topics = dict.fromkeys(had, ("t", "u"))

    def round_of(share):
        return attrs.evolve(share, subscriptions=topics, partitions={"t": 2, "u": 1})

    handing_over = round_of(share)
    assert broken(handing_over) == []
    assert broken(misled, handing_over) == []
    without_u = attrs.evolve(share, assignment={"A": (T0,), "B": (T1,), "C": ()}, claims={})
    assert broken(misled, round_of(without_u)) == []
    assert broken(misled, 11.0, round_of(without_u)) == ["S14"]
    assert broken(misled, round_of(attrs.evolve(without_u, assignment={"A": (T0,)}))) == ["S14"] * 2


# ------------------------------------------------------------------ L1 to L6


def rejoining(*meanwhile):
    """A cooperative member with buffered records rejoins; something happens in the meantime."""
    fetched = request("Fetch", asked={"offsets": {T0: 0}}, response={"offsets": {T0: 3}})
    sent, answer, *sync = joins(2, T0, owned=(T0,))
    return [
        written(0, 1, 2),
        opening(cooperative=True),
        starts(1, {T0: 0}),
        fetched,
        delivers(0),
        sent,
        meanwhile,
        answer,
        sync,
        assigned(2),
    ]


def test_l1_what_stays_is_delivered_in_a_cooperative_rebalance():
    assert broken(rejoining(0.05, delivers(1), 0.05, delivers(2), 0.5)) == []
    assert broken(rejoining(0.5, delivers(1, 2))) == ["L1"]
    assert broken(rejoining(0.5)) == ["L1"]
    assert find_violations(timeline(rejoining(0.5)), virtual=False) == []
    assert examine(timeline(rejoining(0.5)), virtual=False).figures.delivery_gap > 0.5


def test_l1_what_goes_waits_for_nobody():
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


def test_l1_an_application_that_is_away_or_has_paused_waits_for_nothing():
    assert broken(rejoining(of(Away), 0.5, delivers(1))) == []
    assert broken(rejoining(of(Paused, partitions=(T0,)), 0.5)) == []
    assert broken(rejoining(of(Frozen), 0.5, of(Thawed), delivers(1))) == []


def test_l1_what_was_fetched_for_another_place_is_not_there_to_deliver():
    assert broken(rejoining(delivers(1, 2), 0.5)) == []
    assert broken(rejoining(delivers(1, 2), of(Sought, partition=T0, offset=0), 0.5)) == []
    asked, answer = request("Fetch", asked={"offsets": {T0: 1}}, response={"offsets": {T0: 3}})
    sought = of(Sought, partition=T0, offset=1)
    assert broken(rejoining(asked, sought, answer, 0.5, delivers(1))) == []
    assert broken(rejoining(sought, asked, answer, 0.5, delivers(1))) == ["L1"]


def test_l1_who_has_not_heard_for_a_session_delivers_nothing_before_it_hears():
    def silent(seconds):
        comes_back = of(Processed, partition=T0, offset=0)
        heard = beats(connection=2)
        return rejoining(of(Away), seconds, comes_back, 0.5, heard, delivers(1))

    assert broken(silent(7.0)) == []
    assert broken(silent(3.0)) == ["L1"]


def test_l1_what_waited_for_its_connection_counts_from_before_it_left():
    def late(seconds):
        heard = waited(seconds, beats())
        comes_back = of(Processed, partition=T0, offset=0)
        return rejoining(of(Away), 4.0, heard, 3.0, comes_back, 0.5, delivers(1))

    assert broken(late(0.0)) == ["L1"]
    assert broken(late(4.0)) == []


def test_l1_nor_longer_than_the_group_waits_for_who_is_to_rejoin():
    rebalance = beats("REBALANCE_IN_PROGRESS", connection=2)

    def late(seconds):
        comes_back = of(Processed, partition=T0, offset=0)
        return rejoining(of(Away), 4.0, rebalance, seconds, rebalance, comes_back, 0.5, delivers(1))

    assert broken(late(2.0)) == ["L1"]
    assert broken(late(5.0)) == []


def test_l2_who_is_told_to_rejoin_does():
    first = [opening(), starts(1, {T0: 0}), delivers(0), commits(1)]
    told_to = [beats("REBALANCE_IN_PROGRESS"), [[0.9, beats()] for _ in range(5)]]
    assert broken(first, told_to, revokes(T0), joins(2)) == []
    assert broken(first, told_to, 0.9, beats()) == ["L2"]


def test_l2_a_revocation_may_wait_for_a_commit_that_is_between_two_attempts():
    """Its topic was deleted: the last commit is refused and repeated, also after the callback."""
    first = [opening(), starts(1, {T0: 0}), delivers(0)]
    refused = [0.9, beats(), commits(1, error="UNKNOWN_TOPIC_OR_PARTITION")]
    revoked = [beats("REBALANCE_IN_PROGRESS"), [refused for _ in range(5)]]
    assert broken(first, revoked, revokes(T0), joins(2)) == []


def test_l2_who_has_let_go_of_something_rejoins():
    first = [opening(cooperative=True), starts(1, {T0: 0, T1: 0})]
    round_one = [joins(2, T0, owned=(T0, T1)), revokes(T1), assigned(2)]
    later = [[0.9, beats(generation=2)] for _ in range(3)]
    assert broken(first, round_one, joins(3, T0, owned=(T0,)), assigned(3)) == []
    assert broken(first, round_one, later) == ["L2"]
    under_way = commits(0, generation=2, answer=False, stored=False)
    assert broken(first, round_one, under_way, later) == []
    assert broken(first, round_one, under_way, later, later) == ["L2"]


def test_l2_who_has_no_application_gives_its_partitions_up():
    first = [opening(max_poll_interval=5.0), starts(1, {T0: 0}), delivers(0, processed=False)]
    alive = [[0.9, beats()] for _ in range(7)]
    assert broken(first, alive) == []
    assert broken(first, alive, 0.9, beats()) == ["L2"]


def test_l1_what_a_callback_commits_does_not_make_the_application_wait():
    commit = [of(Committing, token=1, offsets={}), of(Committed, token=1, outcome="ok")]
    assert broken(rejoining(of(Away), commit, 0.5, delivers(1))) == []


def test_l1_nor_does_the_end_of_a_callbacks_commit_end_the_wait_for_its_own():
    """The application called commit while a commit of a callback was in flight; when the latter
    ended, the checker assumed that the application waited for records again."""
    begun = [of(Committing, token=1, offsets={}), delivers(1), of(Committing, token=2, offsets={})]
    ended = of(Committed, token=1, outcome="cancelled")
    after = [0.5, of(Committed, token=2, outcome="ok")]
    assert broken(rejoining(begun, ended, after, delivers(2))) == []
    assert broken(rejoining(begun, ended, after, 0.5, delivers(2))) == ["L1"]
    assert broken(rejoining(begun[:1], ended, 0.5, delivers(1))) == ["L1"]


def test_l2_when_all_is_well_the_records_are_processed():
    first = [written(0, 1), opening(), starts(1, {T0: 0}), delivers(0)]
    healed = Healed(time=0.0)
    assert broken(first, healed, delivers(1), commits(2), closes(T0), finished(2, 2)) == []
    assert broken(first, healed, commits(1), closes(T0), finished(1, 2)) == ["L2"]


def test_l2_nobody_commits_again_what_a_commit_that_comes_late_takes_back():
    """Nor where an earlier truncation permits it to go back."""
    late = Stored(time=0.0, partition=T0, offset=1, member_id="A", generation=1)
    begun = [written(0, 1), opening(), starts(1, {T0: 0}), delivers(0)]
    given_up = commits(1, answer=False, stored=False)
    overtaken = [given_up, delivers(1), commits(2), late, Healed(time=0.0), closes(T0)]
    assert broken(begun, overtaken, finished(1, 2)) == []
    assert broken(begun, cut(1, 2), [overtaken[0], delivers(1, anew=1)], overtaken[2:]) == []
    again = [begun, cut(1, 2), given_up, delivers(1, anew=1), overtaken[2:]]
    assert broken(again, finished(1, 2)) == []
    assert broken(again, cut(1, 3), finished(1, 2)) == ["L2"]


def test_l2_what_a_dead_member_had_is_taken_over():
    dead = [opening(), starts(1, {T0: 0}), Healed(time=0.0), of(Killed), opening("b")]
    heir = starts(2, {T0: 0}, member="b")
    assert broken(dead, 8.0, heir) == []
    assert broken(dead, 30.0, heir) == ["L2"]
    assert 8.0 < examine(timeline(dead, 8.0, heir)).figures.takeover < 9.0


def test_l2_but_not_what_another_has_by_then():
    """It was frozen, and did not learn that its partition was reassigned before it died."""
    both = [opening(), starts(1, {T0: 0}), opening("b"), starts(2, {T0: 0}, member="b")]
    goes_on = [[0.9, beats(member="b", generation=2)] for _ in range(30)]
    assert broken(both, Healed(time=0.0), of(Killed), goes_on, closes(T0, member="b")) == []


def test_l2_when_nothing_else_is_in_the_way_it_is_within_the_session_and_two_seconds():
    def dead_after(beaten, **options):
        alive = [Healed(time=0.0), starts(1, {T0: 0}), [[0.9, beats()] for _ in range(beaten)]]
        return [opening(**options), alive, of(Killed), opening("b")]

    heir = starts(2, {T0: 0}, member="b")
    assert broken(dead_after(25), 7.8, heir) == []
    assert broken(dead_after(25), 8.2, heir) == ["L2"]
    assert broken(dead_after(25), 8.2, closes(member="b")) == ["L2"]
    assert broken(dead_after(20), 8.2, heir) == []
    assert broken(dead_after(25, heartbeat_interval=2.0), 8.2, heir) == []
    assert broken(dead_after(25, heartbeat_interval=2.0), 8.7, heir) == ["L2"]


def test_l2_a_takeover_waits_for_the_callbacks_of_others():
    def passes(beaten):
        return [[0.9, beats(member="b")] for _ in range(beaten)]

    def taken_over(before, callback):
        return [
            [opening(), opening("b"), Healed(time=0.0)],
            [starts(1, {T0: 0}), starts(1, {T1: 0}, member="b")],
            [[0.4, beats(), 0.4, beats(member="b")] for _ in range(30)],
            [of(Killed), passes(before), of(Revoking, "b", partitions=(T1,))],
            [passes(callback), of(Revoked, "b", partitions=(T1,)), joins(2, T0, T1, member="b")],
            [assigned(2, T0, T1, member="b"), looks_up("b")({T0: 0, T1: 0})],
        ]

    assert broken(taken_over(8, 3)) == []
    assert broken(taken_over(10, 1)) == ["L2"]


def test_l2_a_member_does_not_stay_out_of_its_group():
    first = [opening(), starts(1, {T0: 0}), Healed(time=0.0)]
    in_it = [[0.9, beats()] for _ in range(40)]
    assert broken(first, in_it, closes(T0)) == []
    assert broken(first, 36.0, closes(T0)) == ["L2"]


def test_l2_a_group_member_is_given_a_generation():
    ready = [shared(1), Healed(time=0.0), request("FindCoordinator"), revokes(T0), 22.0]
    again = [joins(2, T0), assigned(2, T0)]
    assert broken(ready, again, closes(T0)) == []
    assert broken(ready, beats(generation=-1), of(Closing))[-1:] == ["L2"]


def test_l3_heartbeats_go_on():
    first = [opening(heartbeat_interval=1.0), starts(1, {T0: 0}), beats()]
    assert broken(first, 1.0, beats()) == []
    assert broken(first, 3.0, beats()) == ["L3"]
    assert find_violations(timeline(first, 3.0, beats()), virtual=False) == []
    assert examine(timeline(first, 3.0, beats())).figures.heartbeat_gap > 3.0


def test_l3_a_pending_join_is_a_heartbeat():
    *join, sent, answer = joins(1)
    again = request("JoinGroup", asked={"member_id": "A"}, answer=False)
    first = [opening(heartbeat_interval=1.0), is_new(), join, sent]
    assert broken(first, answer, 3.0, again) == ["L3"]
    assert broken(first, answer, again, 3.0, again) == []


def test_l3_not_while_the_process_stands_still_or_the_connection_is_gone():
    first = [opening(heartbeat_interval=1.0), starts(1, {T0: 0}), beats()]
    assert broken(first, of(Frozen), 3.0, of(Thawed), beats()) == []
    assert broken(first, 3.0, beats(connection=3)) == []


def test_l4_closing_keeps_its_deadline():
    first = [opening(close_timeout=5.0), starts(1, {T0: 0}), of(Closing), revokes(T0)]
    assert broken(first, 5.0, of(Ended)) == []
    assert broken(first, 7.0, of(Ended)) == ["L4"]
    assert broken(first, finished()) == ["L4"]


def test_l4_closing_leaves_nothing():
    first = [opening(), of(Closing)]
    assert broken(first, of(Ended)) == []
    assert broken(first, of(Ended, leaked=("connection 3",))) == ["L4"]


def test_l5_a_call_that_is_cancelled_ends():
    assert broken(opening(), of(Cancelling), of(Cancelled)) == []
    assert broken(opening(), of(Cancelling), 0.5, of(Cancelled)) == ["L5"]
    assert broken(opening(), of(Cancelling), of(Frozen), 0.5, of(Thawed), of(Cancelled)) == []
    assert broken(opening(), of(Cancelling), 0.5, finished()) == ["L5"]


def refused(times, pause, api="OffsetFetch"):
    return [[pause, request(api, error="NOT_COORDINATOR")] for _ in range(times)]


def test_l6_what_is_refused_is_not_asked_for_in_a_hot_loop():
    paused = [refused(1, 0.05 + 0.001 * n) for n in range(30)]
    assert broken(opening(), paused) == []
    assert broken(opening(), refused(25, 0.0)) == ["L6", "L6"]  # once for requests, once for errors


def test_l6_a_refusal_is_followed_by_a_pause():
    at_once = [commits(1, error="NOT_COORDINATOR", stored=False) for _ in range(4)]
    first = [opening(), starts(1, {T0: 0}), delivers(0)]
    assert broken(first, at_once[:2]) == []
    assert broken(first, at_once) == ["L6"]
    assert broken(first, [[0.1 + 0.01 * n, again] for n, again in enumerate(at_once)]) == []


def test_l6_nor_what_is_answered():
    assert broken(opening(), [request("Metadata") for _ in range(25)]) == ["L6"]
    assert broken(opening(), [[0.05, request("Metadata")] for _ in range(25)]) == []
    assert broken(opening(), [request("Fetch") for _ in range(25)]) == []


def test_l2_who_was_turned_away_comes_again_once_all_is_well():
    turned_away = [opening(), starts(1, {T0: 0}), beats("NOT_COORDINATOR"), Healed(time=0.0)]
    assert broken(turned_away, 2.0, request("FindCoordinator")) == []
    assert broken(turned_away, 4.0, request("FindCoordinator")) == ["L2"]
    assert broken(turned_away[:-1], 4.0, request("FindCoordinator")) == []


def test_l2_who_had_begun_to_look_for_its_coordinator_waits_for_the_answer():
    """The request was lost before `Healed`, and has to time out first."""
    looks, again = (request("FindCoordinator", answer=False, connection=n) for n in (2, 3))
    begin, well = [opening(), starts(1, {T0: 0})], Healed(time=0.0)
    refused = beats("UNKNOWN_MEMBER_ID")
    assert broken(begin, looks, well, refused, 4.0, again) == []
    assert broken(begin, request("FindCoordinator"), well, refused, 4.0, again) == ["L2"]
    assert broken(begin, looks, well, again, refused, 4.0, request("Metadata")) == ["L2"]


def test_l6_a_broker_that_wants_silence_is_given_it():
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


def test_l6_pauses_have_jitter():
    assert broken(opening(), refused(6, 0.09)) == ["L6"]
    assert broken(opening(), [refused(1, 0.09 + 0.01 * n) for n in range(6)]) == []
    assert find_violations(timeline(opening(), refused(6, 0.09)), virtual=False) == []
