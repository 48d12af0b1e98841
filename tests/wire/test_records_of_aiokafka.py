"""Record batches compared with aiokafka's: the same bytes, and aiokafka reads every codec."""

from __future__ import annotations

import pytest
from generated_records import any_records, codecs, repeatable
from hypothesis import given
from hypothesis import strategies as st

from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec

records = pytest.importorskip("aiokafka.record.default_records", reason="aiokafka is not installed")


@repeatable
@given(written=any_records, transactional=st.booleans())
def test_encoded_batches_equal_those_of_aiokafka(
    written: list[NewRecord], transactional: bool
) -> None:
    peer = records.DefaultRecordBatchBuilder(2, 0, int(transactional), 123, 4, 56, 10_000_000)
    for offset, (key, value, timestamp, headers) in enumerate(written):
        peer.append(offset, timestamp, key, value, list(headers))
    ours = encode_batch(
        written,
        producer_id=123,
        producer_epoch=4,
        base_sequence=56,
        transactional=transactional,
    )
    assert ours == bytes(peer.build())


@codecs
@repeatable
@given(written=any_records)
def test_aiokafka_reads_every_codec(codec: Codec, written: list[NewRecord]) -> None:
    peer = records.DefaultRecordBatch(bytes(encode_batch(written, codec=codec, base_offset=70)))
    assert peer.validate_crc()
    assert [
        (r.offset, NewRecord(r.key, r.value, r.timestamp, tuple(r.headers))) for r in peer
    ] == list(enumerate(written, 70))
