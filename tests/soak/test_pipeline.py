"""The short form of the pipeline. `pipeline.py` runs the long one."""

import pytest
from pipeline import run, short_story

from kafkagroup.testing.local import LocalKafkaUnavailable


def test_nothing_is_lost_on_the_way_from_topic_to_topic():
    try:
        outcome = run(20_000, seed=2, story=short_story, seconds=150.0)
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")
    print(outcome)
    assert outcome.clean, outcome
    assert outcome.cut > 100
    assert {"frozen past its session", "coordinator killed", "member killed"} <= set(outcome.faults)
    assert {"closed", "reset", "truncated", "stalled", "fragmented"} <= set(outcome.faults)
