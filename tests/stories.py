"""The stories that a run of `make test` must contain, and the closing lines that report them.

    python tests/stories.py REPORT.xml ...

reads the JUnit reports of all parts of the run, and pytest's output of each, REPORT.log. Each story
names its tests. The lines give the reason why a story was skipped: without Java its tests are
skipped, or run on the embedded broker. A failed or missing test of a story is an error.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import attrs

import kafkagroup

_MEMBERS = "tests/live/test_rebalancing.py::test_members_share_partitions_and_take_over"
_PEERS = "test_each_client_leads_a_cooperative_group_with_clean_handovers"
_NEW = "tests/live/test_consumer_protocol.py::"
_KEEPER = "tests/live/test_zookeeper.py::"

STORIES: Mapping[str, tuple[str, ...]] = {
    "Apache Kafka 4.3.1, classic group protocol": (
        f"{_MEMBERS}[asyncio-kafka]",
        f"{_MEMBERS}[trio-kafka]",
        f"tests/live/test_mixed.py::{_PEERS}[ours-java-librdkafka]",
    ),
    "Apache Kafka 4.3.1, consumer group protocol (KIP-848)": (
        f"{_NEW}test_nothing_is_lost_while_members_join_and_leave[asyncio-kafka]",
        f"{_NEW}test_nothing_is_lost_while_members_join_and_leave[trio-kafka]",
        f"{_NEW}test_a_group_migrates_to_the_consumer_protocol_and_back[eager-asyncio-kafka]",
    ),
    "Apache Kafka 4.3.1, three brokers": (
        "tests/live/test_replicas.py::test_a_consumer_fetches_from_the_nearest_replica_and_then_from_a_new_leader",
    ),
    "Apache ZooKeeper 3.9.3 beside Kafka 4.3.1": (
        f"{_KEEPER}test_members_share_the_partitions_and_hand_them_over[asyncio-kafka]",
        f"{_KEEPER}test_a_member_whose_session_expired_loses_its_partitions_and_rejoins[asyncio-kafka]",
    ),
    "Apache Kafka 4.3.1, its group coordinator in virtual time": (
        "tests/verification/lockstep/test_agreement.py::test_the_responses_to_random_requests_are_equal[0]",
        "tests/verification/sim/test_apache.py::test_no_run_violates_an_invariant[classic]",
        "tests/verification/sim/test_apache.py::test_no_run_violates_an_invariant[consumer]",
    ),
    "Apache Spark, from topic to topic": (
        "tests/spark/test_sink.py::test_a_stream_from_topic_to_topic",
        "tests/spark/test_streams.py::test_a_new_query_resumes_at_the_groups_offsets",
    ),
}
"""What is met -> the tests that stand for it, as pytest names them. All need real Kafka."""


@attrs.frozen
class Outcome:
    """The outcome of one test."""

    status: str
    """passed, skipped or failed."""
    reason: str = ""
    """Of a test that was skipped."""


def read_report(report: Path) -> dict[str, Outcome]:
    """Return the outcome of each test by its id."""
    outcomes: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        test = f"{case.get('file')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            outcomes[test] = Outcome("failed")
        elif (skipped := case.find("skipped")) is not None:
            outcomes[test] = Outcome("skipped", skipped.get("message", ""))
        else:
            # A test whose teardown failed has two entries.
            outcomes.setdefault(test, Outcome("passed"))
    return outcomes


def why_embedded(log: str) -> str | None:
    """Return why tests for real Kafka ran on the embedded broker; None if none did."""
    if not re.search("^taken: embedded", log, re.MULTILINE):
        return None
    reasons = re.findall("^not (?:container|local): .*", log, re.MULTILINE)
    return f"the tests ran on the embedded broker ({'; '.join(dict.fromkeys(reasons))})"


def lines_of(
    outcomes: Mapping[str, Outcome], embedded: str | None = None
) -> tuple[list[str], list[str]]:
    """Return a line for each story, and the errors of the run."""
    lines, faults = [], []
    for story, tests in STORIES.items():
        found = {test: outcomes.get(test) for test in tests}
        faults += [f"{test} was not run" for test, outcome in found.items() if outcome is None]
        faults += [f"{test} failed" for test, o in found.items() if o and o.status == "failed"]
        reasons = {o.reason for o in found.values() if o and o.status == "skipped"}
        if embedded is not None:
            reasons = {embedded}
        if reasons:
            lines.append(f"NOT MET: {story}: {'; '.join(sorted(reasons))}")
        elif all(o and o.status == "passed" for o in found.values()):
            lines.append(f"met: {story}")
        else:
            lines.append(f"NOT MET: {story}")
    return lines, faults


def main(names: Sequence[str]) -> int:
    reports = [Path(name) for name in names]
    outcomes: dict[str, Outcome] = {}
    for report in reports:
        outcomes |= read_report(report)
    log = "\n".join(report.with_suffix(".log").read_text("utf-8") for report in reports)
    compiled = "compiled" if kafkagroup.__compiled__ else "not compiled"
    print(
        f"== make test passed on Python {platform.python_version()}; kafkagroup is {compiled};"
        " the Kafka of those that share one:"
    )
    for choice in sorted(set(re.findall("^(?:not|taken)[ :].*", log, re.MULTILINE))):
        print(f"     {choice}")
    print("== what was met:")
    lines, faults = lines_of(outcomes, why_embedded(log))
    for line in lines:
        print(f"     {line}")
    for fault in faults:
        print(f"a story of tests/stories.py: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
