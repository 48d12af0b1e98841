"""The closing lines of `make test`: the required stories, and the detection of a missing one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jars
import pytest
from stories import STORIES, Outcome, lines_of, main, read_report, why_embedded

ROOT = Path(__file__).parents[1]
PASSED = {test: Outcome("passed") for tests in STORIES.values() for test in tests}
FIRST = next(iter(STORIES))
ONE = STORIES[FIRST][0]


def test_both_protocols_zookeeper_and_spark_are_stories() -> None:
    met = " / ".join(STORIES)
    for part in ("classic", "KIP-848", "three brokers", "coordinator", "ZooKeeper", "Spark"):
        assert part in met
    assert all(STORIES.values())


@pytest.mark.slow
def test_make_test_runs_every_test_of_the_stories() -> None:
    """A renamed test of a story, or one marked as long, must not leave `make test` unnoticed."""
    files = sorted({test.partition("::")[0] for test in PASSED})
    options = ["--collect-only", "--quiet", "--no-header", "-m", "not (brokers or long)"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files], cwd=ROOT, capture_output=True, text=True
    )
    assert set(PASSED) - set(done.stdout.splitlines()) == set()


def test_a_run_with_every_story() -> None:
    assert lines_of(PASSED) == ([f"met: {story}" for story in STORIES], [])


def test_a_story_that_was_skipped_is_named_with_the_reason() -> None:
    lines, faults = lines_of({**PASSED, ONE: Outcome("skipped", "no Java")})
    assert (lines[0], faults) == (f"NOT MET: {FIRST}: no Java", [])
    assert lines[1:] == [f"met: {story}" for story in list(STORIES)[1:]]


@pytest.mark.parametrize(
    ("outcome", "fault"), [(None, f"{ONE} was not run"), (Outcome("failed"), f"{ONE} failed")]
)
def test_a_story_that_is_missing_or_failed_is_an_error(outcome: Outcome | None, fault: str) -> None:
    changed = {test: found for test, found in PASSED.items() if test != ONE}
    lines, faults = lines_of({**changed, ONE: outcome} if outcome else changed)
    assert (lines[0], faults) == (f"NOT MET: {FIRST}", [fault])


def test_a_story_on_the_embedded_broker_does_not_count() -> None:
    """Without Java the tests of the stories pass on the embedded broker."""
    log = "not address: unset\nnot local: no java\nnot local: no java\ntaken: embedded, at h:1\n"
    reason = why_embedded(log)
    assert reason == "the tests ran on the embedded broker (not local: no java)"
    lines, faults = lines_of(PASSED, reason)
    assert (lines, faults) == ([f"NOT MET: {story}: {reason}" for story in STORIES], [])
    assert why_embedded("not address: unset\ntaken: local, at h:1\n") is None


def test_a_report_of_pytest_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "one.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase file="tests/a.py" name="test_one[x]" />
        <testcase file="tests/a.py" name="test_two"><skipped message="why" /></testcase>
        <testcase file="tests/a.py" name="test_three"><failure /></testcase>
        <testcase file="tests/a.py" name="test_four"><error /></testcase>
        <testcase file="tests/a.py" name="test_four" />
        </testsuite></testsuites>""",
        "utf-8",
    )
    assert read_report(report) == {
        "tests/a.py::test_one[x]": Outcome("passed"),
        "tests/a.py::test_two": Outcome("skipped", "why"),
        "tests/a.py::test_three": Outcome("failed"),
        "tests/a.py::test_four": Outcome("failed"),
    }
    report.with_suffix(".log").write_text("", "utf-8")
    assert main([str(report)]) == 1
    assert f"{ONE} was not run" in capsys.readouterr().err


def test_a_missing_java_is_reported_before_the_first_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    jars.main()
    reason = "JAVA_HOME is /nowhere, which holds no bin/java"
    assert capsys.readouterr().err == f"NO REAL KAFKA: {reason}\n"
