"""The judge of the soak sees what it is there to see."""

import attrs
import pytest
from judge import Verdict, judge
from member_log import Entry, Kind, entries, pack

CLEAN = Verdict(
    produced=4,
    delivered=4,
    lost=0,
    duplicated=0,
    unexplained=0,
    disordered=0,
    trespassing=0,
    uncommitted=0,
    tenures=1,
    fenced=0,
)


def gets(start, end, *, at=0):
    """Partition 0 is assigned at a time, and its records come, whose numbers are their offsets."""
    yield Entry(Kind.ASSIGNED, 0, 0, 0, at)
    for offset in range(start, end):
        yield Entry(Kind.DELIVERED, 0, offset, offset, at + 1 + offset - start)


def commits(offset):
    yield Entry(Kind.COMMITTED, 0, offset, 0, 0)


def lets_go():
    yield Entry(Kind.REVOKED, 0, 0, 0, 0)


def loses():
    yield Entry(Kind.LOST, 0, 0, 0, 0)


def verdict(produced=4, killed=(), at=4, **logs):
    return judge(
        produced,
        {name: [entry for part in log for entry in part] for name, log in logs.items()},
        frozenset(killed),
        {0: at},
    )


def test_a_log_reads_as_it_was_written():
    log = [Entry(Kind.ASSIGNED, 3, 0, 0, 5), Entry(Kind.DELIVERED, 3, 1 << 40, 1 << 41, 1 << 62)]
    assert list(entries(b"".join(pack(*entry) for entry in log))) == log


def test_every_record_once_is_clean():
    assert verdict(a=[gets(0, 4), lets_go()]) == CLEAN
    assert verdict(a=[gets(0, 2), lets_go()], b=[gets(2, 4, at=9), lets_go()]) == attrs.evolve(
        CLEAN, tenures=2
    )
    assert CLEAN.clean


def test_a_record_that_nobody_had_is_lost():
    assert verdict(5, a=[gets(0, 4), lets_go()]) == attrs.evolve(CLEAN, produced=5, lost=1)
    # Its heir starts behind the end.
    skipped = verdict(a=[gets(0, 2), lets_go()], b=[gets(3, 4, at=9), lets_go()])
    assert skipped == attrs.evolve(CLEAN, delivered=3, lost=1, tenures=2)


def test_what_a_killed_member_had_not_committed_may_come_again():
    killed = [gets(0, 3), commits(1)]
    heir = [gets(1, 4, at=9), lets_go()]
    assert verdict(killed={"k"}, k=killed, heir=heir) == attrs.evolve(
        CLEAN, duplicated=2, tenures=2
    )


def test_what_was_committed_may_not():
    killed = [gets(0, 3), commits(2)]
    heir = [gets(1, 4, at=9), lets_go()]
    assert verdict(killed={"k"}, k=killed, heir=heir) == attrs.evolve(
        CLEAN, duplicated=2, unexplained=1, tenures=2
    )


def test_where_a_tenure_starts_was_committed_by_the_one_before():
    killed = [gets(0, 2), lets_go(), gets(2, 3, at=9)]
    heir = [gets(1, 4, at=19), lets_go()]
    assert verdict(killed={"k"}, k=killed, heir=heir) == attrs.evolve(
        CLEAN, duplicated=2, unexplained=1, tenures=3
    )


def test_what_a_fenced_member_had_not_committed_may_come_again():
    fenced = [gets(0, 3), commits(1), loses()]
    heir = [gets(1, 4, at=9), lets_go()]
    assert verdict(f=fenced, heir=heir) == attrs.evolve(CLEAN, duplicated=2, tenures=2, fenced=1)


def test_a_tenure_without_records_leaves_the_window_as_it_is():
    killed = [gets(0, 3), commits(1)]
    heir = [gets(1, 4, at=19), lets_go()]
    between = [gets(0, 0, at=9), lets_go()]
    assert verdict(killed={"k"}, k=killed, b=between, heir=heir) == attrs.evolve(
        CLEAN, duplicated=2, tenures=3
    )


@pytest.mark.parametrize("end", [lets_go, list], ids=["revoked", "left in silence"])
def test_whoever_lets_go_has_committed(end):
    """A member that was not killed is held to all it did, whether it says that it let go or not."""
    heir = [gets(1, 4, at=9), lets_go()]
    assert verdict(a=[gets(0, 2), end()], heir=heir) == attrs.evolve(
        CLEAN, duplicated=1, unexplained=1, tenures=2
    )


def test_a_gap_or_a_step_back_in_a_tenure_is_disorder():
    back = [gets(0, 4), [Entry(Kind.DELIVERED, 0, 3, 3, 6)], lets_go()]
    assert verdict(a=back) == attrs.evolve(CLEAN, duplicated=1, disordered=1)
    gap = [gets(0, 2), [Entry(Kind.DELIVERED, 0, 3, 3, 6)], lets_go()]
    assert verdict(a=gap) == attrs.evolve(CLEAN, delivered=3, lost=1, disordered=1)


def test_a_record_after_the_partition_was_let_go_of_is_trespassing():
    after = [gets(0, 3), lets_go(), [Entry(Kind.DELIVERED, 0, 3, 3, 6)]]
    assert verdict(a=after, at=3) == attrs.evolve(CLEAN, trespassing=1)


def test_two_owners_at_a_time_are_trespassing():
    """The first does not know yet that it has lost the partition."""
    first = [gets(0, 3), commits(2), loses()]
    second = [gets(2, 4, at=2), lets_go()]
    assert verdict(f=first, s=second) == attrs.evolve(
        CLEAN, duplicated=1, trespassing=1, tenures=2, fenced=1
    )


def test_the_group_must_be_left_where_the_last_tenure_ended():
    assert verdict(a=[gets(0, 4), lets_go()], at=3) == attrs.evolve(CLEAN, uncommitted=1)
    killed = [gets(0, 4), commits(2)]
    assert verdict(killed={"k"}, k=killed, at=3).clean
    assert not verdict(killed={"k"}, k=killed, at=1).clean


@pytest.mark.parametrize(
    "wrong", ["lost", "unexplained", "disordered", "trespassing", "uncommitted"]
)
def test_any_of_these_is_not_clean(wrong):
    assert not attrs.evolve(CLEAN, **{wrong: 1}).clean
