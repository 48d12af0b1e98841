"""Fetch responses as rows: the end of a task, hidden records, and the fields of batches."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from brokers import numbered
from old_messages import stored

from kafkagroup import TopicPartition
from kafkagroup.errors import CorruptRecordError
from kafkagroup.spark import ranges
from kafkagroup.spark.options import SourceOptions
from kafkagroup.wire import records as records_module
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec, decompress
from kafkagroup.wire.messages.fetch import AbortedTransaction, PartitionData

pa = pytest.importorskip("pyarrow")

from kafkagroup.spark import rows as rows_module  # noqa: E402 - which is made of it

SCHEMA = pa.schema(
    {
        "value": pa.binary(),
        "offset": pa.int64(),
        "topic_id": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "leader_epoch": pa.int32(),
        "producer_id": pa.int64(),
        "transactional": pa.bool_(),
    }
)
READ = SourceOptions(bootstrap_servers="nowhere", subscribe=("t",))
COMMITTED = SourceOptions(bootstrap_servers="nowhere", subscribe=("t",), isolation="read_committed")
ABORT = NewRecord(b"\0\0\0\0", b"")


def batch(offset: int, count: int, **more: Any) -> bytes:
    return encode_batch(numbered(0, offset + count, offset), base_offset=offset, **more)


def range_of(start: int, end: int) -> ranges.Range:
    return ranges.Range(TopicPartition("t", 0), "an id", start, end)


def response(*batches: bytes, aborted: Any = None) -> PartitionData:
    return PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=99,
        records=b"".join(batches),
        aborted_transactions=aborted,
    )


def read(
    options: SourceOptions, start: int, end: int, *batches: bytes, aborted: Any = None
) -> tuple[int, list[Any]]:
    rows = rows_module.Rows(options, range_of(start, end), SCHEMA)
    position, made = rows.convert(response(*batches, aborted=aborted), start)
    return position, list(made)


def offsets(made: list[Any]) -> list[int]:
    return [offset for part in made for offset in part.column("offset").to_pylist()]


def test_a_task_begins_and_ends_inside_batches() -> None:
    batches = [batch(0, 5), batch(5, 5), batch(10, 5)]
    for start in range(15):
        for end in range(start + 1, 16):
            position, made = read(READ, start, end, *batches)
            assert offsets(made) == list(range(start, end))
            assert position == 15


def test_columns_may_differ_between_batches() -> None:
    _, (made,) = read(
        READ,
        0,
        9,
        batch(0, 2, leader_epoch=3),
        batch(2, 1, leader_epoch=4, producer_id=7, transactional=True),
        batch(3, 1, leader_epoch=4),
    )
    assert made.to_pydict() | {"timestamp": None} == {
        "value": [b"0/0", b"0/1", b"0/2", b"0/3"],
        "offset": [0, 1, 2, 3],
        "topic_id": ["an id"] * 4,
        "timestamp": None,
        "leader_epoch": [3, 3, 4, 4],
        "producer_id": [None, None, 7, None],
        "transactional": [False, False, True, False],
    }
    assert made.schema == SCHEMA
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [
        1_000_000 + 1000 * n for n in range(4)
    ]


def test_aborted_records_and_markers_are_skipped() -> None:
    batches = [
        batch(0, 2, producer_id=7, producer_epoch=0, transactional=True),
        encode_batch([ABORT], base_offset=2, producer_id=7, transactional=True, control=True),
    ]
    aborted = (AbortedTransaction(producer_id=7, first_offset=0),)
    assert read(COMMITTED, 0, 3, *batches, aborted=aborted) == (3, [])
    position, made = read(READ, 0, 3, *batches, aborted=aborted)
    assert (position, offsets(made)) == (3, [0, 1])


def test_the_rows_before_a_damaged_record_are_returned_before_the_error() -> None:
    """The checksum is valid, or is not checked: `checkCrcs=false`."""
    lax = attrs.evolve(READ, check_crcs=False)
    batches = (batch(0, 5), batch(5, 5)[:-1] + b"\7", batch(10, 5))
    _, made = rows_module.Rows(lax, range_of(0, 15), SCHEMA).convert(response(*batches), 0)
    assert next(made).column("offset").to_pylist() == list(range(9))
    with pytest.raises(CorruptRecordError, match="t/0 at offset 5"):
        next(made)


def test_an_empty_range_has_no_rows() -> None:
    assert read(READ, 4, 9) == (4, [])


def test_large_responses_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_MAX_BYTES", 300)
    position, made = read(READ, 0, 50, *(batch(n, 5) for n in range(0, 50, 5)))
    assert (position, offsets(made)) == (50, list(range(50)))
    assert len(made) > 3
    assert all(part.num_rows >= 5 for part in made)


def test_a_batch_that_begins_another_part_is_decompressed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decompressed: list[Codec] = []

    def counted(codec: Codec, *arguments: Any) -> bytes:
        decompressed.append(codec)
        return decompress(codec, *arguments)

    monkeypatch.setattr(records_module, "decompress", counted)
    monkeypatch.setattr(rows_module, "_MAX_BYTES", 300)
    batches = [batch(n, 5, codec=Codec.GZIP) for n in range(0, 50, 5)]
    _, made = read(READ, 0, 50, *batches)
    assert len(made) > 3
    assert offsets(made) == list(range(50))
    assert decompressed == [Codec.GZIP] * len(batches)


@pytest.mark.parametrize(
    ("on_error", "ids"), [("null", [0, None, None, 3, 4]), ("skip", [0, None, 3, 4])]
)
def test_values_are_parsed_beside_the_records_own_columns(
    monkeypatch: pytest.MonkeyPatch, on_error: Any, ids: list[int | None]
) -> None:
    """In each Arrow batch, and in the order of the query's schema."""
    values = [b'{"id": 0}', b"{", None, b'{"id": 3}', b'{"id": 4}']
    data = b"".join(
        encode_batch([NewRecord(b"k", value, 0)], base_offset=n) for n, value in enumerate(values)
    )
    schema = pa.schema({"offset": pa.int64(), "id": pa.int64(), "value": pa.binary()})
    options = attrs.evolve(READ, columns=("offset", "value"), parse="json", on_error=on_error)
    monkeypatch.setattr(rows_module, "_MAX_BYTES", 80)
    of = ranges.Range(TopicPartition("t", 0), "", 0, 5)
    response = PartitionData(partition_index=0, error_code=0, high_watermark=99, records=data)
    _, made = rows_module.Rows(options, of, schema).convert(response, 0)
    parts = list(made)
    assert len(parts) > 1
    assert {part.schema for part in parts} == {schema}
    table = pa.Table.from_batches(parts).to_pydict()
    assert list(table) == ["offset", "id", "value"]
    assert table["id"] == ids
    kept = [0, 1, 2, 3, 4] if on_error == "null" else [0, 2, 3, 4]
    assert (table["offset"], table["value"]) == (kept, [values[n] for n in kept])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4], ids=lambda c: c.name)
@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_rows(magic: int, codec: Codec) -> None:
    old = stored(magic, codec, 0, [b"%d" % n for n in range(10)])
    for start, end in ((0, 12), (3, 7), (9, 11), (10, 12)):
        position, made = read(READ, start, end, old, batch(10, 5, leader_epoch=4))
        assert (position, offsets(made)) == (15, list(range(start, end)))
    (rows,) = made
    assert rows.column("leader_epoch").to_pylist() == [4, 4]
    _, (rows,) = read(COMMITTED, 9, 11, old, batch(10, 5, leader_epoch=4))
    assert rows.column("leader_epoch").to_pylist() == [None, 4]
    assert rows.column("transactional").to_pylist() == [False, False]
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [1_009_000 if magic else None, 1_010_000]


@pytest.mark.parametrize("of_64_bits", [2**63 - 1, -(2**63), 1_700_000_000_000_000_000])
def test_a_timestamp_beyond_sparks_is_null(of_64_bits: int) -> None:
    """A producer that wrote nanoseconds: the task failed at each attempt."""
    most = (2**63 - 1) // 1000
    stamps = [5, of_64_bits, -1, most, -most]
    data = b"".join(
        encode_batch([NewRecord(None, b"v", stamp)], base_offset=n)
        for n, stamp in enumerate(stamps)
    )
    _, (rows,) = read(READ, 0, 9, data)
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [5_000, None, None, most * 1000, -most * 1000]


@pytest.mark.parametrize("key", ["name", "key"])
def test_header_names_that_are_not_utf8_are_rows(key: str) -> None:
    header = pa.struct([pa.field(key, pa.string(), nullable=False), ("value", pa.binary())])
    fields = pa.schema({"headers": pa.list_(header)})
    data = encode_batch([NewRecord(None, b"v", 1, (("\udcc3(id", b"7"),))])
    made = rows_module.Rows(READ, range_of(0, 9), fields).convert(response(data), 0)[1]
    assert [row for part in made for row in part.to_pylist()] == [
        {"headers": [{key: "\ufffd(id", "value": b"7"}]}
    ]
