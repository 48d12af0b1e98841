"""Values as JSON, parsed many at once; no Spark runs here."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkagroup import TopicPartition

pa = pytest.importorskip("pyarrow", reason="NOT TESTED, values as JSON: pyarrow is not installed")

from kafkagroup.spark.json_values import (  # noqa: E402 - which is made of it
    JsonParser,
    JsonValues,
    MalformedValueError,
)

Value = bytes | None

ORDER = {"id": pa.int64(), "name": pa.string(), "lines": pa.list_(pa.int32())}
TP = TopicPartition("orders", 3)


def parse(values: list[Value], **fields: Any) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """Return the rows, and the malformed ones with the reason."""
    malformed: list[tuple[int, str]] = []
    parser = JsonParser(pa.schema(fields or ORDER))
    columns = parser.parse(
        pa.array(values, pa.binary()), lambda row, why: malformed.append((row, why))
    )
    rows = [column.to_pylist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*rows, strict=True)], malformed


NOTHING = dict.fromkeys(ORDER)


def row(**fields: Any) -> dict[str, Any]:
    return {**NOTHING, **fields}


def test_fields_are_columns() -> None:
    values = [
        b'{"id": 1, "name": "a", "lines": [1, null]}',
        b'{"name": "\\u00e9\\n", "other": {"id": 7}}',
        b"{}",
        b'{"id": null, "lines": []}',
    ]
    assert parse(values) == (
        [row(id=1, name="a", lines=[1, None]), row(name="é\n"), NOTHING, row(lines=[])],
        [],
    )


@pytest.mark.parametrize("value", [None, b"", b" \r\n\t "])
def test_a_record_without_a_value_has_nulls(value: Value) -> None:
    """As `from_json` has it: a tombstone is no error."""
    values = [b'{"id": 1}', value, b'{"id": 2}']
    assert parse(values) == ([row(id=1), NOTHING, row(id=2)], [])


@pytest.mark.parametrize(
    "value",
    [
        b'{\n  "id": 5\n}',
        b'\r\n{"id":\r\n5}\n',
        b' {"id":\r5}\t',
    ],
)
def test_a_value_may_have_several_lines(value: bytes) -> None:
    for values in ([value], [value, value], [b'{"id": 5}', value], [value, b'{"id": 5}']):
        assert parse(values) == ([row(id=5)] * len(values), [])


MALFORMED = [
    b"null",
    b"5",
    b"[]",
    b'[{"id": 1}]',
    b"x",
    b"{",
    b"}",
    b"{}}",
    b'{"id": 1',
    b'"id": 1}',
    b', "name": "a"}',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1}\n{"id": 2}',
    b'{"id": 1} x',
    b'{"id": 1}null{}',
    b"{}5{}",
    b'{"id": 1}\0{}',
    b'{"id": 1}\0}',
    b'\xef\xbb\xbf{"id": 1}',
    b'{"name": "\xff"}',
    b'{"name": "a\nb"}',
    b'{"name": "a\rb"}',
    b'{"name": "a\tb"}',
    b'{"name": "}\n{"}',
    b'{"name": "\\ud83d"}',
    b"{'id': 1}",
    b'{"id": 1, "id": 2}',
    b'{"id": 1.5}',
    b'{"id": "1"}',
    b'{"id": 9223372036854775808}',
    b'{"id": {}}',
    b'{"name": 1}',
    b'{"lines": [[1]]}',
    b'{"lines": [3000000000]}',
    b'{"other": tr}',
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_value_does_not_touch_its_neighbours(value: bytes) -> None:
    good = [b'{"id": %d}' % n for n in range(5)]
    for at in range(6):
        rows, malformed = parse([*good[:at], value, *good[at:]])
        assert [number for number, _ in malformed] == [at]
        assert rows.pop(at) == NOTHING
        assert rows == [row(id=n) for n in range(5)]


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.sampled_from([b"", b"\n", b'{"id": 1}', b'{\r\n"name": "}{"}', *MALFORMED]),
            st.lists(
                st.sampled_from([b"{", b"}", b'"', b":", b",", b"id", b"1", b"\n", b"\r", b"\\"])
            ).map(b"".join),
            st.binary(max_size=6),
        ),
        min_size=1,
        max_size=40,
    )
)
@example([b'{"id": 1}{"id": 2}', b'{"id": 3', b"}"])
@example([b'{"id": 1', b', "name": "a"}', b'{"id": 2}{"id": 3}'])
def test_a_row_is_the_same_alone_and_among_others(values: list[Value]) -> None:
    rows, malformed = parse(values)
    reasons = dict(malformed)
    assert list(reasons) == sorted(reasons)
    for number, value in enumerate(values):
        (alone,), why = parse([value])
        assert rows[number] == alone
        assert [reason for _, reason in why] == ([reasons[number]] if number in reasons else [])


def test_a_value_is_malformed_exactly_if_json_says_so() -> None:
    texts = st.text(alphabet='{}[]":,\\1e-. \n\rtrufalsn\x00', max_size=12)

    @given(texts.map(lambda text: b'{"other":' + text.encode() + b"}"))
    def same(value: bytes) -> None:
        try:
            expected = isinstance(json.loads(value), dict)
        except ValueError:
            expected = False
        _, malformed = parse([b'{"id": 1}', value, b'{"id": 2}'])
        assert (malformed == []) is expected

    same()


def test_the_depth_of_a_value_is_no_limit() -> None:
    deep = b'{"other":' * 100_000 + b"1" + b"}" * 100_000
    assert parse([deep, b'{"id": 1}']) == ([NOTHING, row(id=1)], [])


def test_long_values() -> None:
    name = "x" * (3 << 20)
    value = json.dumps({"name": name}).encode()
    assert parse([b'{"id": 1}', value, value])[0] == [row(id=1), *[row(name=name)] * 2]


UTC = datetime.UTC


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.date32(), '"2026-01-31"', datetime.date(2026, 1, 31)),
        (pa.date32(), "20484", None),
        (pa.date32(), '"2026-02-30"', None),
        (pa.timestamp("us", "UTC"), '"2026-01-31T10:00:00Z"', datetime.datetime(2026, 1, 31, 10)),
        (pa.timestamp("us", "UTC"), '"2026-01-31 10:00:00.5+01:00"', 9.5),
        (pa.timestamp("us", "UTC"), '"2026-01-31T10:00:00.123456789Z"', 10.123456),
        (pa.timestamp("us", "UTC"), '"2026-01-31T10:00:00"', None),
        (pa.timestamp("us", "UTC"), "1700000000", None),
        (pa.timestamp("us"), '"2026-01-31T10:00:00"', datetime.datetime(2026, 1, 31, 10)),
        (pa.timestamp("us"), '"2026-01-31T10:00:00Z"', None),
        (pa.decimal128(5, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(5, 2), '"1.5"', Decimal("1.50")),
        (pa.decimal128(5, 2), "1.555", None),
        (pa.decimal128(5, 2), "12345", None),
        (pa.float32(), "0.1", 0.10000000149011612),
        (pa.float64(), "1e400", None),
        (pa.int8(), "300", None),
        (pa.bool_(), "true", True),
        (pa.bool_(), '"true"', None),
    ],
)
def test_types_that_fit_and_types_that_do_not(kind: Any, value: str, expected: Any) -> None:
    """None for those that do not: no value is rounded, moved to another zone or cut off."""
    rows, malformed = parse([f'{{"x": {value}}}'.encode()], x=kind)
    found = rows[0]["x"]
    if isinstance(found, datetime.datetime) and not isinstance(expected, datetime.datetime):
        found = found.hour + found.minute / 60 + (found.second * 10**6 + found.microsecond) / 10**6
    elif isinstance(found, datetime.datetime):
        found = found.replace(tzinfo=None)
    assert found == expected
    assert bool(malformed) is (expected is None)


def test_dates_and_times_inside_structs_and_lists() -> None:
    moment = pa.timestamp("us", "UTC")
    kind = pa.struct({"days": pa.list_(pa.date32()), "s": pa.struct({"at": moment})})
    values: list[Value] = [
        b'{"x": {"days": ["2026-01-31", null], "s": {"at": "2026-01-31T00:00:00.1234567Z"}}}',
        b'{"x": {"days": null, "s": null}}',
        b'{"x": null}',
        b'{"x": {"days": ["x"]}}',
        b'{"x": {"s": {}}}',
    ]
    rows, malformed = parse(values, x=kind)
    at = datetime.datetime(2026, 1, 31, 0, 0, 0, 123456, UTC)
    assert [found["x"] for found in rows] == [
        {"days": [datetime.date(2026, 1, 31), None], "s": {"at": at}},
        {"days": None, "s": None},
        None,
        None,
        {"days": None, "s": {"at": None}},
    ]
    assert [number for number, _ in malformed] == [3]


def with_on_error(on_error: Any) -> tuple[dict[str, Any], Any]:
    values = pa.array([b'{"id": 1}', b"x", None, b'{"id": "2"}'], pa.binary())
    fields = pa.schema({"id": pa.int64()})
    return JsonValues(fields, on_error, TP).parse(values, pa.array([7, 9, 10, 11]))


def test_fail_names_the_first_record_and_what_to_do() -> None:
    with pytest.raises(
        MalformedValueError,
        match="the value of orders/3 at offset 9 does not match the schema: it is not a JSON"
        " object; on_error=null would set its columns to null, on_error=skip would leave",
    ):
        with_on_error("fail")


def test_null_keeps_all_rows() -> None:
    columns, remains = with_on_error("null")
    assert columns["id"].to_pylist() == [1, None, None, None]
    assert remains is None


def test_skip_leaves_malformed_values_out_and_keeps_tombstones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    columns, remains = with_on_error("skip")
    assert columns["id"].filter(remains).to_pylist() == [1, None]
    assert "orders/3: left out 2 records whose values do not match" in caplog.text
    assert "the first at offset 9" in caplog.text


def test_bytes_that_are_not_utf8_are_named_and_follow_on_error() -> None:
    values = pa.array(
        [b'{"s": "a"}', b'{"s": "\xff"}', b"\xc3", b'{"\xed\xa0\x80": 1}'], pa.binary()
    )
    offsets = pa.array([7, 9, 10, 11])

    def parsed(on_error: Any) -> tuple[list[str | None], Any]:
        columns, remains = JsonValues(pa.schema({"s": pa.string()}), on_error, TP).parse(
            values, offsets
        )
        return columns["s"].to_pylist(), remains and remains.to_pylist()

    assert parsed("null") == (["a", None, None, None], None)
    assert parsed("skip") == (["a", None, None, None], [True, False, False, False])
    with pytest.raises(
        MalformedValueError,
        match="value of orders/3 at offset 9 does not match the schema: its bytes are not UTF-8;",
    ):
        parsed("fail")
