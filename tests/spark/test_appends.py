"""Batches appended by the sink; no Spark runs here."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup import BrokerError, ErrorCode, TopicPartition
from kafkagroup.spark.appends import Appends
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import SinkOptions, SourceOptions
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import read_batches

TP = TopicPartition("t", 0)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_batch_that_is_too_large_for_the_topic_is_split(codec: Codec) -> None:
    """A topic whose max.message.bytes is lower than our batches refused each of them; with Spark's
    own connector they are split."""
    records = [NewRecord(b"%d" % n, b"%d" % n * 50, n, (("h", None),)) for n in range(45)]
    with EmbeddedKafka({"t": 1}, settings=BrokerSettings(max_message_bytes=400)) as broker:
        servers = broker.bootstrap_servers
        with Appends(SinkOptions(bootstrap_servers=servers)) as appends:
            appends.start_append(TP, encode_batch(records, codec=codec)).result(20)
            too_large = encode_batch([NewRecord(None, b"x" * 500)])
            with pytest.raises(BrokerError) as caught:
                appends.start_append(TP, too_large).result(20)
        with Logs(SourceOptions(bootstrap_servers=servers, subscribe=("t",))) as logs:
            _, ids = logs.partitions()
            data = logs.start_fetch(TP, ids["t"], 0, 1 << 20).result(20).records
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    batches = list(read_batches(data or b"", topic="t", partition=0))
    found = [(r.key, r.value, r.timestamp, r.headers) for b in batches for r in b.records()]
    assert found == [tuple(record) for record in records]
    assert {batch.codec for batch in batches} == {codec}
