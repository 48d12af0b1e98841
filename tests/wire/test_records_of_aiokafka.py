"""Record batches compared with aiokafka's: the same bytes, and each reads what the other wrote."""

from __future__ import annotations

from struct import pack_into

import pytest
from generated_records import any_records, codecs, repeatable
from hypothesis import given
from hypothesis import strategies as st

from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import read_batches

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


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_message_sets_of_aiokafka_are_read(magic: int, codec: Codec) -> None:
    """It wrote these formats for brokers before 0.11, with offsets from 0 on."""
    if (magic, codec) == (0, Codec.LZ4):
        pytest.skip("aiokafka cannot write it")
    legacy = pytest.importorskip("aiokafka.record.legacy_records")
    peer = legacy.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    written = [(b"k", b"v" * 300), (None, b""), (b"", None), (None, None)]
    for n, (key, value) in enumerate(written):
        assert peer.append(n, 1_000 + n, key, value) is not None
    data = bytearray(peer.build())
    if codec is not Codec.NONE:
        pack_into(">q", data, 0, 3)  # the broker writes the offset of the last one
    found = [
        (r.offset, r.key, r.value, r.timestamp)
        for batch in read_batches(bytes(data), topic="t", partition=0)
        for r in batch.records()
    ]
    assert found == [
        (n, key, value, 1_000 + n if magic else -1) for n, (key, value) in enumerate(written)
    ]
