"""A member's log is read as the events of one run, and these are checked."""

from history import events
from member_log import Entry, Kind, entries, pack
from topic import written
from verification.sim.checker import examine
from verification.sim.events import (
    Appended,
    Assigned,
    Committed,
    Committing,
    Delivered,
    Ended,
    Finished,
    Killed,
    Lost,
    Processed,
    Revoked,
    Revoking,
)

from kafkagroup import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)

LOG = [
    Entry(Kind.ASSIGNED, 0, 0, 0, 1_000_000_000),
    Entry(Kind.ASSIGNED, 1, 0, 0, 1_000_000_000),
    Entry(Kind.DELIVERED, 0, 5, 50, 2_000_000_000),
    Entry(Kind.COMMITTED, 0, 6, 0, 2_500_000_000),
    Entry(Kind.PROCESSED, 0, 5, 0, 3_000_000_000),
    Entry(Kind.DELIVERED, 1, 1 << 40, 1 << 41, 3_000_000_000),
    Entry(Kind.PROCESSED, 1, 1 << 40, 0, 3_500_000_000),
    Entry(Kind.REVOKED, 0, 0, 0, 4_000_000_000),
    Entry(Kind.REVOKED, 1, 0, 0, 4_000_000_000),
]


def packed(log):
    return b"".join(pack(*entry) for entry in log)


def events_of(log, *, killed=False):
    return list(events(packed(log), "t", "m", killed=killed))


def test_a_log_reads_as_it_was_written():
    assert list(entries(packed(LOG))) == LOG


def test_a_log_without_violations():
    m = {"member": "m"}
    assert events_of(LOG) == [
        Assigned(time=1.0, **m, partitions=(P0,), generation=-1),
        Assigned(time=1.0, **m, partitions=(P1,), generation=-1),
        Delivered(time=2.0, **m, partition=P0, offset=5, sequence=50),
        Committing(time=2.5, **m, token=1, offsets={P0: 6}),
        Committed(time=2.5, **m, token=1, outcome="ok"),
        Processed(time=3.0, **m, partition=P0, offset=5),
        Delivered(time=3.0, **m, partition=P1, offset=1 << 40, sequence=1 << 41),
        Processed(time=3.5, **m, partition=P1, offset=1 << 40),
        Revoking(time=4.0, **m, partitions=(P0,)),
        Revoked(time=4.0, **m, partitions=(P0,)),
        Revoking(time=4.0, **m, partitions=(P1,)),
        Revoked(time=4.0, **m, partitions=(P1,)),
        Ended(time=4.0, **m),
    ]


def test_a_member_may_be_killed():
    assert events_of(LOG[:3], killed=True)[3:] == [Killed(time=2.0, member="m")]


def test_a_partition_may_be_lost():
    assert events_of([*LOG[:3], Entry(Kind.LOST, 0, 0, 0, 3_000_000_000)])[3:] == [
        Lost(time=3.0, member="m", partitions=(P0,)),
        Ended(time=3.0, member="m"),
    ]


def owns(start, end, *, at):
    return [
        Entry(Kind.ASSIGNED, 0, 0, 0, at),
        *(
            Entry(kind, 0, offset, offset, at + 1 + offset - start)
            for offset in range(start, end)
            for kind in (Kind.DELIVERED, Kind.PROCESSED)
        ),
    ]


def result(*logs, killed=frozenset(), records=4, at=4):
    recorded = [
        event
        for number, log in enumerate(logs)
        for event in events(
            packed(e for part in log for e in part), "t", str(number), killed=number in killed
        )
    ]
    return examine(
        [*recorded, Finished(time=1e9, committed={P0: at}, ends={P0: records}, starts={})],
        virtual=False,
    )


def releases(at):
    return [Entry(Kind.REVOKED, 0, 0, 0, at)]


def invariants(result):
    return [violation.invariant for violation in result.violations]


def test_uncommitted_records_of_a_killed_member_may_be_delivered_again():
    killed = [owns(0, 3, at=0), [Entry(Kind.COMMITTED, 0, 1, 0, 4)]]
    found = result(killed, [owns(1, 4, at=9), releases(20)], killed={0})
    assert found.clean
    assert (found.figures.duplicated, found.figures.periods) == (2, 2)


def test_committed_records_may_not_be_delivered_again():
    killed = [owns(0, 3, at=0), [Entry(Kind.COMMITTED, 0, 2, 0, 4)]]
    assert invariants(result(killed, [owns(1, 4, at=9), releases(20)], killed={0})) == ["S7"]


def test_a_member_commits_before_it_releases():
    first = [owns(0, 2, at=0), releases(5)]
    assert result(first, [owns(2, 4, at=9), releases(20)]).clean
    assert invariants(result(first, [owns(1, 4, at=9), releases(20)])) == ["S7"]


def test_a_member_that_ends_without_releasing_its_partitions_is_a_violation():
    assert invariants(result([owns(0, 4, at=0)], at=3)) == ["S2"]


def test_the_committed_offset_is_that_of_the_last_member():
    assert invariants(result([owns(0, 4, at=0), releases(5)], at=3)) == ["S5"]


def test_a_record_that_was_never_processed_is_lost():
    found = result([owns(0, 4, at=0), releases(5)], records=5)
    assert (found.violations, found.figures.lost, found.clean) == ((), 1, False)


def test_a_skipped_record_is_lost_and_the_commit_above_it_is_a_violation():
    found = result([owns(0, 2, at=0), releases(3)], [owns(3, 4, at=9), releases(20)])
    assert invariants(found) == ["S6"]
    assert found.figures.lost == 1


def test_the_last_record_of_a_partition_was_processed_before_the_partition_was_lost():
    lost = [Entry(Kind.LOST, 0, 0, 0, 9)]
    assert result([owns(0, 4, at=0), lost]).clean
    in_hand = [e for e in owns(0, 4, at=0) if e[:3] != (Kind.PROCESSED, 0, 3)]
    assert invariants(result([in_hand, lost])) == ["S6"]


def test_written_records_are_derived_from_their_number():
    found = list(written("t", 2, 2_002))
    assert [(e.partition.partition, e.offset, e.sequence) for e in found[998:1002]] == [
        (0, 998, 998), (0, 999, 999), (1, 0, 1_000), (1, 1, 1_001)
    ]  # fmt: skip
    last = Appended(time=0.0, partition=P0, offset=1_001, sequence=2_001)
    assert (len(found), found[-1]) == (2_002, last)
