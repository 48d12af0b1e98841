"""What the data source needs of PySpark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from pyspark.sql.types import StructType

from kafkagroup import ConfigurationError
from kafkagroup.spark import KafkaGroupSource, source


def test_a_stream_needs_a_pyspark_with_limits_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    topic = KafkaGroupSource({"bootstrap.servers": "k:9092", "subscribe": "a"})
    with pytest.raises(ConfigurationError, match=r"needs PySpark 4\.2 or later; this is 4\."):
        topic.streamReader(StructType())
