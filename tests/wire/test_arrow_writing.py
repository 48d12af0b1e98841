"""Rows to batches: the bytes are those of `encode_batch`, for any columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.errors import ConfigurationError
from kafkagroup.produce.batch import ProduceBatch
from kafkagroup.types import TopicPartition
from kafkagroup.wire.arrow_writing import RowBatcher, RowColumns
from kafkagroup.wire.batch_writing import EncodedRecords, NewRecord, encode_batch
from kafkagroup.wire.compression import Codec
from kafkagroup.wire.murmur2 import partition_of
from kafkagroup.wire.record_decoding import decode_records
from kafkagroup.wire.records import read_batches

pa = pytest.importorskip("pyarrow")

NOW = 1_700_000_000_000
ANY = -1
"""In place of the partition of rows without partition and key."""

COUNTS = {"t": 3, "u": 1}
"""The topics, and how many partitions each has."""

BYTES = (
    *(pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.string(), pa.large_string(), pa.string_view()),
)
any_bytes = st.none() | st.binary(max_size=150)
any_headers = st.lists(st.tuples(st.binary(max_size=5), any_bytes), max_size=3)
any_row = st.fixed_dictionaries(
    {
        "key": any_bytes,
        "value": any_bytes,
        "topic": st.sampled_from([None, "t", "u"]),
        "partition": st.none() | st.just(0),
        "timestamp": st.none() | st.integers(-1, 2**42),
        "headers": st.none() | any_headers,
    }
)

Sent = list[tuple[TopicPartition, bytes]]


def batches(
    *tables: Any,
    max_bytes: int = 1 << 20,
    codec: Codec = Codec.NONE,
    topic: str | None = "t",
    max_record: int = 1 << 20,
    count_partitions: Callable[[str, int], int] = lambda topic, known: COUNTS[topic],
) -> Sent:
    """Return the batches of some Arrow record batches, in the order in which they are sent."""
    sent: Sent = []

    def send(topic: str, partition: int, encoded: EncodedRecords) -> None:
        batch = ProduceBatch(TopicPartition(topic, partition), 0, 0, 0)
        batch.fill(encoded)
        sent.append((batch.tp, bytes(batch.encode(codec, None, False))))

    batcher = RowBatcher(
        topic=topic,
        max_bytes=max_bytes,
        max_record=max_record,
        count_partitions=count_partitions,
        send=send,
    )
    for table in tables:
        batcher.add(RowColumns(table, NOW))
    batcher.flush()
    return sent


def as_arrow(of: list[bytes | None], kind: Any, is_dictionary: bool) -> Any:
    """Return an array of strings or bytes; strings may have bytes that are not UTF-8, as Spark's
    may."""
    plain = pa.array(of, pa.binary())
    if kind in (pa.string(), pa.string_view()):
        plain = plain.view(pa.string())
    elif kind == pa.large_string():
        plain = plain.cast(pa.large_binary()).view(pa.large_string())
    if is_dictionary:
        return plain.dictionary_encode()
    return plain if plain.type == kind else plain.cast(kind)


def table(rows: list[dict[str, Any]], kind: Any, is_dictionary: bool, columns: list[str]) -> Any:
    name = pa.field("name", pa.string())
    flat = [header for row in rows for header in row["headers"] or ()]
    names = pa.array([n for n, _ in flat], pa.binary()).view(pa.string())
    values = pa.array([value for _, value in flat], pa.binary())
    pairs = pa.StructArray.from_arrays(
        [names, values], fields=[name, pa.field("value", pa.binary())]
    )
    ends: list[int | None] = [0]
    for row in rows:
        ends.append((ends[-1] or 0) + len(row["headers"] or ()))
    nulls = pa.array([row["headers"] is None for row in rows], pa.bool_())
    made = {
        "key": as_arrow([row["key"] for row in rows], kind, is_dictionary),
        "value": as_arrow([row["value"] for row in rows], kind, is_dictionary),
        "topic": pa.array([row["topic"] for row in rows], pa.string()),
        "partition": pa.array([row["partition"] for row in rows], pa.int32()),
        "timestamp": pa.array(
            [None if row["timestamp"] is None else row["timestamp"] * 1000 for row in rows],
            pa.timestamp("us", "UTC"),
        ),
        "headers": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, mask=nulls),
    }
    return pa.record_batch({name: made[name] for name in columns})


def encoded(rows: list[dict[str, Any]], columns: list[str], max_bytes: int, codec: Codec) -> Sent:
    """Return the same batches, made record by record."""
    pending: dict[TopicPartition, list[NewRecord]] = {}
    sent: Sent = []

    def flush(tp: TopicPartition) -> None:
        sent.append((tp, encode_batch(pending.pop(tp), codec=codec)))

    for row in rows:
        given = {name: row[name] if name in columns else None for name in row}
        headers = tuple(
            (name.decode(errors="surrogateescape"), value) for name, value in given["headers"] or ()
        )
        stamp = NOW if given["timestamp"] is None else given["timestamp"]
        record = NewRecord(given["key"], given["value"], stamp, headers)
        topic = given["topic"] or "t"
        while True:
            partition = given["partition"]
            if partition is None:
                key = given["key"]
                partition = ANY if key is None else partition_of(key, COUNTS[topic])
            tp = TopicPartition(topic, partition)
            before = pending.get(tp, [])
            size = len(encode_batch([*before, record])) - 61
            if not before or size <= max_bytes:
                break
            flush(tp)
        pending[tp] = [*before, record]
    order = {topic: n for n, topic in enumerate(dict.fromkeys(topics_met(rows, columns)))}
    for tp in sorted(pending, key=lambda tp: (order[tp.topic], tp.partition)):
        flush(tp)
    return sent


def topics_met(rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
    named = [row["topic"] for row in rows if row["topic"]] if "topic" in columns else []
    return [*named, "t"]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(any_row, min_size=1, max_size=20),
    kind=st.sampled_from(BYTES),
    is_dictionary=st.booleans(),
    columns=st.sets(st.sampled_from(["key", "topic", "partition", "timestamp", "headers"])),
    max_bytes=st.sampled_from([1, 60, 200, 1 << 20]),
    codec=st.sampled_from(Codec),
    cut=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_batches_equal_those_of_single_records(
    rows: list[dict[str, Any]],
    kind: Any,
    is_dictionary: bool,
    columns: set[str],
    max_bytes: int,
    codec: Codec,
    cut: tuple[int, int],
) -> None:
    named = [*sorted(columns), "value"]
    start, end = cut[0], max(cut[0], len(rows) - cut[1])
    whole = table(rows, kind, is_dictionary, named)
    sent = batches(whole.slice(start, end - start), max_bytes=max_bytes, codec=codec)
    assert sent == encoded(rows[start:end], named, max_bytes, codec)


def test_batches_go_on_over_arrow_batches_and_are_full_at_their_limit() -> None:
    rows = pa.record_batch({"value": pa.array([b"x" * 10] * 5)})
    one = len(encode_batch([NewRecord(None, b"x" * 10, NOW)])) - 61
    sent = batches(rows, rows, max_bytes=4 * one, topic="u")
    assert [next(read_batches(b, topic="u", partition=0)).count for _, b in sent] == [4, 4, 2]


def test_headers_and_overhead_count_as_bytes_of_a_batch() -> None:
    """Only keys and values were counted: a batch of headers, or of tombstones, grew until the
    broker refused it."""
    pairs = [[("trace", b"x" * 100)]] * 50
    kind = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch({"value": pa.nulls(50, pa.binary()), "headers": pa.array(pairs, kind)})
    sent = batches(rows, max_bytes=1000, topic="u")
    assert max(len(batch) for _, batch in sent) <= 1061
    assert sum(next(read_batches(b, topic="u", partition=0)).count for _, b in sent) == 50


def test_many_partitions_are_sent_before_their_batches_are_full() -> None:
    """Each partition's batch was kept until it was full: gigabytes, for thousands of partitions."""
    value = pa.array([b"x" * (1 << 20)] * 20)
    rows = pa.record_batch({"value": value, "partition": pa.array(range(20), pa.int32())})
    sent: Sent = []
    batcher = RowBatcher(
        topic="t",
        max_bytes=16 << 20,
        count_partitions=lambda topic, known: 20,
        send=lambda topic, partition, _: sent.append((TopicPartition(topic, partition), b"")),
    )
    found = []
    for _ in range(4):
        batcher.add(RowColumns(rows, NOW))
        found.append(len(sent))
    assert found == [0, 0, 0, 20]


def test_rows_without_partition_and_key_are_batches_of_their_own() -> None:
    """The producer draws the partition of each."""
    columns = {"key": [None, b"k", None, None], "partition": [None, None, 1, None]}
    rows = pa.record_batch(
        {
            "value": pa.array([b"0", b"1", b"2", b"3"]),
            "key": pa.array(columns["key"], pa.binary()),
            "partition": pa.array(columns["partition"], pa.int32()),
        }
    )
    found = {
        tp.partition: [record.value for record in decode_records(batch, topic="t", partition=0)]
        for tp, batch in batches(rows)
    }
    assert found == {ANY: [b"0", b"3"], partition_of(b"k", 3): [b"1"], 1: [b"2"]}


def test_a_row_that_is_too_large_is_an_error() -> None:
    rows = pa.record_batch({"value": pa.array([b"small", b"x" * 100])})
    with pytest.raises(ConfigurationError, match=r"a row of 168 bytes, .* max\.request\.size=167"):
        batches(rows, max_record=167)
    # The limit is that of a batch, too.
    sent = [batch for _, batch in batches(rows, max_record=168)]
    assert [len(list(decode_records(one, topic="t", partition=0))) for one in sent] == [1, 1]


@pytest.mark.parametrize("key", ["name", "key"])
def test_header_names_that_are_not_utf8_are_written_unchanged(key: str) -> None:
    """Spark does not check the bytes of a string, and Python's conversion raised an error."""
    names = pa.array([b"\xc3(id", "hé".encode()], pa.binary()).view(pa.string())
    fields = [pa.field(key, pa.string()), pa.field("value", pa.binary())]
    pairs = pa.StructArray.from_arrays([names, pa.array([b"7", None])], fields=fields)
    headers = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), pairs)
    ((_, sent),) = batches(pa.record_batch({"value": pa.array([b"a"]), "headers": headers}))
    expected = (("\udcc3(id", b"7"), ("hé", None))
    assert sent == encode_batch([NewRecord(None, b"a", NOW, expected)])


def test_values_of_a_null_list_are_no_headers() -> None:
    kind = pa.struct([("name", pa.string()), ("value", pa.binary())])
    pairs = pa.array([("a", b"1"), ("b", b"2")], kind)
    mask = pa.array([True, False])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs, mask=mask)
    rows = pa.record_batch({"value": pa.array([b"v", b"w"]), "headers": headers})
    ((_, sent),) = batches(rows, topic="u")
    assert sent == encode_batch(
        [NewRecord(None, b"v", NOW), NewRecord(None, b"w", NOW, (("b", b"2"),))]
    )


@pytest.mark.parametrize("partition", [3, 99, -1, 2**31 - 1])
def test_a_partition_that_does_not_exist_is_an_error_with_the_count(partition: int) -> None:
    """The append was retried until it timed out."""
    rows = pa.record_batch(
        {"value": pa.array([b"v"]), "partition": pa.array([partition], pa.int32())}
    )
    message = f"partition {partition} of topic 't', which has 3 partitions, 0 to 2"
    with pytest.raises(ConfigurationError, match=message):
        batches(rows)


def test_a_partition_that_was_added_meanwhile_is_written() -> None:
    counts = iter([3, 5])
    rows = pa.record_batch({"value": pa.array([b"v"]), "partition": pa.array([4], pa.int32())})
    known = []
    sent = batches(rows, count_partitions=lambda topic, n: known.append(n) or next(counts))
    assert known == [0, 3]
    assert [tp for tp, _ in sent] == [TopicPartition("t", 4)]


def test_wrong_rows_are_errors() -> None:
    with pytest.raises(ConfigurationError, match="names no topic"):
        batches(pa.record_batch({"value": pa.array([b"v"])}), topic=None)
    kind = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    for header in ((None, b"v"), None):
        rows = {"value": pa.array([b"v"]), "headers": pa.array([[header]], kind)}
        with pytest.raises(ConfigurationError, match="a header without a name"):
            batches(pa.record_batch(rows))


def test_the_least_timestamp_is_known() -> None:
    def least(times: list[int | None]) -> int | None:
        column = pa.array(times, pa.timestamp("us", "UTC"))
        values = pa.nulls(len(times), pa.binary())
        return RowColumns(
            pa.record_batch({"value": values, "timestamp": column}), NOW
        ).least_timestamp

    assert [least([5_000, None, 3_999]), least([None]), least([])] == [3, None, None]
    assert least([-2_000_000]) == -2000
