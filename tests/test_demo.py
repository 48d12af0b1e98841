"""The demo: its accounting as whole values, and one run of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from demo_account import Account, Processed, Window, compare, uncommitted
from demo_view import Board, Member, State, ranges
from doc_blocks import ROOT, blocks
from sessions import assert_same

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_a_complete_run_has_no_findings() -> None:
    records = [Processed(0, 0, 0), Processed(1, 1, 0), Processed(2, 0, 1)]
    assert compare(range(3), records, ()) == Account(
        produced=3, processed=3, uncommitted=0, lost=(), duplicates=(), unexplained=()
    )


def test_unprocessed_records_are_lost() -> None:
    assert compare(range(4), [Processed(1, 0, 1), Processed(2, 0, 2)], ()) == Account(
        produced=4, processed=2, uncommitted=0, lost=(0, 3), duplicates=(), unexplained=()
    )


def test_duplicates_inside_a_window_are_explained_and_others_are_not() -> None:
    """Records 1 and 2 lie in the window of partition 0; record 3 has the same offset as 1, in
    another partition; record 0 lies before the window."""
    records = [Processed(0, 0, 0), Processed(1, 0, 1), Processed(2, 0, 2), Processed(3, 1, 1)]
    assert compare(range(4), records * 2, [Window(0, 1, 3)]) == Account(
        produced=4, processed=4, uncommitted=2, lost=(), duplicates=(1, 2), unexplained=(0, 3)
    )


def test_a_record_delivered_once_in_the_window_is_no_duplicate() -> None:
    records = [Processed(0, 0, 0), Processed(1, 0, 1), Processed(1, 0, 1)]
    assert compare(range(2), records, [Window(0, 0, 2)]) == Account(
        produced=2, processed=2, uncommitted=2, lost=(), duplicates=(1,), unexplained=()
    )


def test_records_that_were_not_produced_are_unexplained() -> None:
    assert compare([0], [Processed(0, 0, 0), Processed(9, 0, 1)], ()) == Account(
        produced=1, processed=2, uncommitted=0, lost=(), duplicates=(), unexplained=(9,)
    )


def test_the_window_reaches_from_the_commit_past_the_last_record() -> None:
    """Partition 1 is committed to its end and has none; partition 2 was never committed."""
    records = [
        *(Processed(n, 0, n) for n in range(5)),
        Processed(5, 1, 7),
        Processed(6, 2, 0),
    ]
    assert uncommitted(records, {0: 3, 1: 8, 2: None}) == (Window(0, 3, 5), Window(2, 0, 1))


def test_ranges_of_partitions() -> None:
    assert [ranges([]), ranges([3]), ranges([5, 0, 2, 1])] == ["nothing", "3", "0-2 5"]


def test_a_rebalance_ends_when_every_partition_has_one_owner_and_every_member_some() -> None:
    board = Board("", 4, plain=False)
    a = board.members["A"] = Member("A", 1, State.OWNING, frozenset((0, 1, 2, 3)))
    b = board.members["B"] = Member("B", 2)
    board.begin("B joins")
    is_stable = []
    for member, state, partitions in (
        (b, State.JOINING, ()),
        (a, State.REBALANCING, ()),
        (b, State.OWNING, (2, 3)),
        (a, State.OWNING, (0, 1, 2)),  # the events of one of two owners have not arrived yet
        (a, State.OWNING, (0, 1)),
    ):
        member.state, member.partitions = state, frozenset(partitions)
        board.update()
        is_stable.append(board.is_stable())
    assert is_stable == [False, False, False, False, True]
    (rebalance,) = board.rebalances
    assert rebalance.cause == "B joins"
    assert rebalance.stopped is not None
    assert rebalance.ended is not None
    assert rebalance.began <= rebalance.stopped <= rebalance.ended


def test_the_demo_loses_nothing_on_the_embedded_broker() -> None:
    run = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", "--plain", "--pause", "0.4"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
    (page,) = (b.text for b in blocks(ROOT / "docs" / "demo.md") if b.language == "text")
    assert_same(without_counts(page), without_counts(run.stdout), "docs/demo.md")
    for shown in (page, run.stdout):
        check_account(shown)


def without_counts(output: str) -> list[str]:
    """Return the lines without what differs from run to run: times, counts, ids, and who has which
    partition or leaves first."""
    output = re.sub(r"demo-\w{8}|(?<=\(A: ).*(?=\))|\d+(\.\d+)?", "N", output)
    return sorted(" ".join(line.split()) for line in output.splitlines())


def check_account(output: str) -> None:
    counts = dict(re.findall(r"(\w+) +(\d+)(?:$|   )", output, re.MULTILINE))
    assert counts["lost"] == counts["unexplained"] == "0"
    assert counts["produced"] == counts["processed"] != "0"
    assert re.findall(r"^(.*?) +[\d.]+ s +[\d.]+ s$", output, re.MULTILINE) == [
        "three members start",
        "D joins",
        "B is killed",
        "C leaves",
    ]
    following = output.partition("What to look at next:")[2]
    paths = re.findall(r"^  (\S+)", following, re.MULTILINE)
    assert len(paths) > 2
    assert all((EXAMPLES.parent / path).exists() for path in paths)
