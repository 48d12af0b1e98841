"""Records as Arrow columns: equal to the single records, for any contents of the batches."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from old_messages import stored

from kafkagroup.errors import ConfigurationError, CorruptRecordError, LimitExceededError
from kafkagroup.types import Record
from kafkagroup.wire import arrow as arrow_module
from kafkagroup.wire.arrow import ColumnBuilder, arrow_batches, columns_of, schema
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.records import COMPILED, read_batches

pa = pytest.importorskip("pyarrow")

repeatable = settings(max_examples=100)
any_bytes = st.none() | st.binary(max_size=200)
any_headers = st.lists(st.tuples(st.text(max_size=5), any_bytes), max_size=3).map(tuple)
any_records = st.lists(
    st.builds(NewRecord, any_bytes, any_bytes, st.integers(-1, 2**42), any_headers),
    min_size=1,
    max_size=20,
)


def arrow(data: bytes, **options: Any) -> list[Any]:
    found = list(arrow_batches(data, topic="t", partition=3, **options))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(schema("t", 3), check_metadata=True)
    return found


def rows(data: bytes, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in arrow(data, **options) for row in batch.to_pylist()]


def expected(records: list[Record]) -> list[dict[str, Any]]:
    """Return the rows of records that were read one by one."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return [
        {
            "offset": r.offset,
            "timestamp": None if r.timestamp < 0 else epoch + timedelta(milliseconds=r.timestamp),
            "key": r.key,
            "value": r.value,
            "headers": [{"name": name, "value": value} for name, value in r.headers],
        }
        for r in records
    ]


def test_bytes_of_header_names_that_are_not_utf8_are_replaced() -> None:
    """Another client wrote the name: the columns once raised an error instead."""
    names = ("h\xe9", "\udcc3(id", "\udcff\udcff")
    data = encode_batch([NewRecord(None, b"v", 1, tuple((name, b"7") for name in names))])
    shown = [{"name": name, "value": b"7"} for name in ("h\xe9", "\ufffd(id", "\ufffd\ufffd")]
    (row,) = rows(data)
    assert row["headers"] == shown
    (batch,) = read_batches(data, topic="t", partition=3)
    assert columns_of(list(batch.records()), "t", 3).to_pylist() == [row]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4], ids=lambda c: c.name)
@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_as_columns(magic: int, codec: Codec) -> None:
    values: list[bytes | None] = [b"%d" % n if n % 3 else None for n in range(700)]
    data = stored(magic, codec, 40, values) + encode_batch([NewRecord(b"k", b"v")], base_offset=800)
    found = rows(data)
    assert found == expected(one_by_one(data))
    assert [row["value"] for row in found] == [*values, b"v"]
    assert [row["offset"] for row in rows(data, start_offset=739)] == [739, 800]


def one_by_one(data: bytes, start_offset: int = 0) -> list[Record]:
    batches = read_batches(data, topic="t", partition=3)
    return [record for batch in batches for record in batch.records(start_offset)]


@pytest.mark.parametrize("codec", list(Codec), ids=lambda c: c.name)
@repeatable
@given(written=any_records, base=st.integers(0, 2**62), skipped=st.integers(0, 5))
def test_arrow_rows_equal_the_records(
    codec: Codec, written: list[NewRecord], base: int, skipped: int
) -> None:
    data = encode_batch(written, codec=codec, base_offset=base)
    data += encode_batch([NewRecord(b"end", None, 5)], base_offset=base + len(written))
    start = base + skipped
    assert rows(data, start_offset=start) == expected(one_by_one(data, start))


@repeatable
@given(written=any_records)
def test_columns_built_from_record_objects_are_equal(written: list[NewRecord]) -> None:
    data = encode_batch(written)
    (from_bytes,) = arrow(data)
    from_records = columns_of(one_by_one(data), "t", 3)
    from_records.validate(full=True)
    assert from_records.equals(from_bytes, check_metadata=True)


def test_columns_without_nulls_have_no_bitmap() -> None:
    (batch,) = arrow(encode_batch([NewRecord(b"k", b"v", 1)] * 9))
    assert [column.null_count for column in batch.columns] == [0] * 5
    assert [column.buffers()[0] for column in batch.columns] == [None] * 5


def test_each_batch_is_one_record_batch_and_control_batches_are_none() -> None:
    data = (
        encode_batch([NewRecord(None, b"a"), NewRecord(None, b"b")])
        + encode_batch([NewRecord(b"\0\0\0\1", b"")], base_offset=2, control=True)
        + encode_batch([NewRecord(None, b"c")], base_offset=3)
    )
    assert [batch.column("value").to_pylist() for batch in arrow(data)] == [[b"a", b"b"], [b"c"]]


@repeatable
@given(written=any_records, copies=st.integers(1, 6), first=st.integers(1, 20))
def test_batches_appended_one_after_another_equal_their_records(
    written: list[NewRecord], copies: int, first: int
) -> None:
    """The columns grow, and a batch may be appended in parts."""
    codecs = (*Codec, Codec.NONE)
    data = b"".join(
        encode_batch(written, codec=codecs[n], base_offset=n * len(written)) for n in range(copies)
    )
    builder = ColumnBuilder()
    for batch in read_batches(data, topic="t", partition=3):
        records = batch.records()
        parts = builder.append(records, most=first), builder.append(records)
        assert parts == (min(first, len(written)), max(0, len(written) - first))
    made = builder.finish("t", 3)
    made.validate(full=True)
    assert made.to_pylist() == expected(one_by_one(data))
    assert builder.count == made.num_rows


def test_records_from_the_end_offset_on_are_not_appended() -> None:
    (batch,) = read_batches(encode_batch([NewRecord(b"k", b"v")] * 5), topic="t", partition=3)
    builder = ColumnBuilder()
    assert builder.append(batch.records(1), 3) == 2
    assert builder.finish("t", 3).column("offset").to_pylist() == [1, 2]


def test_batches_are_appended_while_they_fit() -> None:
    """Control batches and hidden ones always fit: none of their records is appended."""
    written = [NewRecord(b"k", b"v" * 100)] * 2
    data = b"".join(
        encode_batch(
            written, base_offset=2 * n, transactional=n == 1, control=n == 1, producer_id=7
        )
        for n in range(5)
    )
    first, control, aborted, last, later = read_batches(data, topic="t", partition=3)
    aborted.hide()
    builder = ColumnBuilder()
    assert builder.append_batch(first.records(1), max_bytes=1)  # there are no records before it
    assert builder.append_batch(control.records(), max_bytes=1)
    assert builder.append_batch(aborted.records(), max_bytes=1)
    assert builder.append_batch(later.records(10))  # it has no records from there on
    records = last.records()
    assert not builder.append_batch(records, max_bytes=400)
    assert builder.append_batch(records, max_bytes=1_000)
    assert builder.append_batch(later.records(), end_offset=9, max_bytes=1_000)
    assert list(builder.batches) == [(first, 1), (last, 2), (later, 1)]
    assert builder.finish("t", 3).column("offset").to_pylist() == [1, 6, 7, 8]


def test_a_column_of_more_than_2_gib_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is lowered here, which only the uncompiled module can notice."""
    if COMPILED:
        pytest.skip("the limit is a constant in C; uncompiled, `make test-wire` tests it")
    monkeypatch.setattr(arrow_module, "_MAX_COLUMN_BYTES", 100)
    found = arrow_batches(encode_batch([NewRecord(None, b"v" * 40)] * 3), topic="t", partition=3)
    assert len(next(found)) == 2
    with pytest.raises(LimitExceededError, match=r"^120 bytes in one column"):
        next(found)


def test_rows_before_a_corrupt_record_are_returned_first() -> None:
    data = bytearray(encode_batch([NewRecord(None, b"a"), NewRecord(None, b"b")]))
    data[-(1 + 2 + 5)] += 2  # the last record says that it is longer than it is
    found = arrow_batches(bytes(data), topic="t", partition=3, check_crcs=False)
    assert next(found).column("value").to_pylist() == [b"a"]
    with pytest.raises(CorruptRecordError):
        next(found)


def test_columns_are_of_bytes() -> None:
    (record,) = one_by_one(encode_batch([NewRecord(None, b"a")]))
    with pytest.raises(ConfigurationError, match=r"^Arrow has columns of bytes; leave out the de"):
        columns_of([record._replace(value={"a": 1})], "t", 3)


def test_a_missing_pyarrow_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"^pyarrow is not installed; install kafkagroup"):
        schema("another", 3)
