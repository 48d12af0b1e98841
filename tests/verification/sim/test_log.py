"""Events survive a round trip through a file."""

import io

import pytest

from kafkagroup import TopicPartition
from verification.sim.events import (
    Committing,
    Delivered,
    Ended,
    Finished,
    Formed,
    Frozen,
    Opening,
    Responded,
    Sent,
    Thawed,
    Worked,
)
from verification.sim.log import from_line, merged, read, to_line, write

A, B = TopicPartition("t", 0), TopicPartition("a.b-c", 12)

STORY = [
    Opening(time=0.0, member="m1", instance="i1", cooperative=True),
    Sent(
        time=0.25, member="m1", api="OffsetCommit", connection=1, correlation=7,
        offsets={A: 1, B: 2},
    ),
    Responded(
        time=0.5, member="m1", api="SyncGroup", connection=1, correlation=8, error="NONE",
        assigned=(A, B),
    ),
    Responded(time=0.5, member="m1", api="Fetch", connection=1, correlation=9, error="NONE"),
    Formed(
        time=1.0, generation=3, protocol="range", assignment={"x": (A,), "y": ()},
        subscriptions={"x": ("t", "u"), "y": ()}, claims={"x": (B,)}, claimed_at={"x": 2},
        partitions={"t": 4},
    ),
    Delivered(time=2.0, member="m1", partition=A, offset=1 << 40, sequence=-1),
    Worked(time=2.5, member="m1", partition=B),
    Committing(time=3.0, member="m1", token=1, offsets=None),
    Committing(time=3.0, member="m1", token=2, offsets={A: 0}),
    Ended(time=4.0, member="m1", leaked=("connection 3",)),
    Finished(time=5.0, committed={A: 1}, ends={A: 1, B: 0}, starts={}),
]  # fmt: skip


@pytest.mark.parametrize("event", STORY, ids=lambda event: type(event).__name__)
def test_an_event_survives_a_round_trip(event):
    assert from_line(to_line(event)) == event


def test_fields_with_default_values_are_omitted():
    line = to_line(Sent(time=1.0, member="m", api="Heartbeat", connection=1, correlation=2))
    assert line == (
        '{"event": "Sent", "time": 1.0, "member": "m", "api": "Heartbeat", "connection": 1,'
        ' "correlation": 2}'
    )


def test_a_file_of_a_killed_process_is_read_up_to_its_incomplete_line(tmp_path):
    out = io.StringIO()
    write(STORY, out)
    path = tmp_path / "m1.jsonl"
    path.write_text(out.getvalue() + to_line(STORY[0])[:20])
    assert list(read(path)) == STORY


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "Guessed", "time": 1.0}',
        '{"time": 1.0}',
        '{"event": "Frozen", "time": 1.0}',
        '{"event": "Frozen", "time": 1.0, "member": "m", "mood": "bad"}',
        "7",
        "{",
    ],
)
def test_a_line_that_is_not_an_event_is_an_error(line):
    with pytest.raises(ValueError, match=r"no event|argument|Expecting"):
        from_line(line)


def test_logs_are_merged_by_time_and_then_by_the_order_of_the_logs():
    one = [Frozen(time=1.0, member="a"), Thawed(time=3.0, member="a")]
    two = [Frozen(time=1.0, member="b"), Thawed(time=2.0, member="b")]
    assert list(merged([one, two])) == [one[0], two[0], two[1], one[1]]
