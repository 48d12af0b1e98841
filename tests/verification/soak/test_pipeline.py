"""The short form of the pipeline. `pipeline.py` runs the long one."""

import pytest
from pipeline import run, short_story

from kafkagroup.testing.local import LocalKafkaUnavailable


@pytest.mark.long
@pytest.mark.serial  # stages are frozen for times that are compared with the session timeout
def test_the_pipeline_loses_nothing_from_topic_to_topic():
    try:
        outcome = run(12_000, seed=2, rate=600, story=short_story, seconds=150.0)
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")
    assert outcome.clean, outcome
    befell = {"frozen", "frozen past its session", "coordinator killed", "member killed"}
    assert befell <= outcome.faults.keys()
    assert {"closed", "reset", "truncated", "stalled", "fragmented"} <= outcome.faults.keys()
    assert outcome.cut > 100
    # Every record was written, delivered and processed, in each of the three topics.
    assert all(stage.events > 3 * outcome.records for stage in outcome.stages)
