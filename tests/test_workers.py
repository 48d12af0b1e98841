"""Tests that share a slow fixture run on one worker; all others run on any."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

GROUPS = {
    "tests/spark/test_ranges.py::test_a": "tests/spark/test_ranges.py::test_a",
    "tests/spark/test_streams.py::test_b[x]": "tests/spark",
    "tests/live/test_doctor.py::test_c[asyncio-kafka]": "tests/live/test_doctor.py",
    "tests/live/test_members.py::test_d[trio]": "tests/live/test_members.py::test_d[trio]",
}


@pytest.mark.parametrize("nodeid", GROUPS)
def test_a_group_is_a_module_that_starts_something_or_all_with_a_session_of_spark(
    nodeid: str,
) -> None:
    workers = pytest.importorskip("workers", reason="pytest-xdist is not installed")
    assert workers.group_of(nodeid) == GROUPS[nodeid]


def test_the_longest_groups_start_first() -> None:
    workers = pytest.importorskip("workers", reason="pytest-xdist is not installed")
    groups = ["tests/cli/test_views.py", "tests/test_demo.py::test_a", "tests/spark"]
    assert sorted(groups, key=workers.rank) == [groups[2], groups[1], groups[0]]


def test_the_longest_groups_exist() -> None:
    workers = pytest.importorskip("workers", reason="pytest-xdist is not installed")
    assert [path for path in workers.LONGEST if not (workers.ROOT / path).exists()] == []


def test_a_requested_test_distribution_is_kept() -> None:
    from conftest import pytest_xdist_make_scheduler

    asked = SimpleNamespace(getvalue={"dist": "loadfile"}.__getitem__)
    assert pytest_xdist_make_scheduler(asked, None) is None  # type: ignore[arg-type]
