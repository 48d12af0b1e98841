"""Loads as a document: valid input, the errors for invalid input, and their age limit."""

from __future__ import annotations

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkagroup.assign.loads import (
    MAX_BYTES,
    MeasuredLoads,
    decode_loads,
    encode_loads,
    recent_loads,
)
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

DOCUMENT = """\
{
  "version": 1,
  "made_at": 1763715600.5,
  "loads": {
    "a": {"0": 120.5, "1": 3.0},
    "b": {"0": 0.0}
  }
}
"""
MEASURED = MeasuredLoads(made_at=1763715600.5, loads={A0: 120.5, A1: 3.0, B0: 0.0})


def test_a_document_is_read_and_written() -> None:
    assert decode_loads(DOCUMENT) == MEASURED
    assert decode_loads(DOCUMENT.encode()) == MEASURED
    assert encode_loads(MEASURED) == DOCUMENT


def test_a_document_without_loads() -> None:
    empty = MeasuredLoads(made_at=0.0, loads={})
    text = '{\n  "version": 1,\n  "made_at": 0.0,\n  "loads": {}\n}\n'
    assert encode_loads(empty) == text
    assert decode_loads(text) == empty


def test_a_million_loads_fit() -> None:
    """As many loads as the limit allows, with names and numbers of ordinary length."""
    topic = "orders-with-an-ordinary-name"
    loads = {TopicPartition(topic, p): p * 1234.56789 for p in range(10_000)}
    assert len(encode_loads(MeasuredLoads(made_at=0, loads=loads))) * 100 < MAX_BYTES / 1.5


@pytest.mark.parametrize(
    "text",
    ["2025-11-21T09:00:00.5Z", "2025-11-21T09:00:00.500+00:00", "2025-11-21T10:00:00.5+01:00"],
)
def test_times_may_be_written_as_iso_8601(text: str) -> None:
    document = json.dumps({"version": 1, "made_at": text, "loads": {}})
    assert decode_loads(document).made_at == 1763715600.5


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "the loads: not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        (
            b"\xff",
            "the loads: not valid JSON: 'utf-8' codec can't decode byte 0xff in position 0",
        ),
        ("[" * 100_000, "the loads: not valid JSON: "),  # each Python has its own text
        ('{"a": 1, "a": 2}', "the loads: found an object with 'a' twice; expected once"),
        ('{"version": NaN}', "the loads: found NaN; expected finite numbers"),
        ("[]", "$: found a list; expected an object"),
        ("{}", "$.version: found nothing; expected 1, the one that is known"),
        ('{"version": 2}', "$.version: found 2; expected 1, the one that is known"),
        ('{"version": true}', "$.version: found true; expected 1, the one that is known"),
        (
            '{"version": 1, "madeAt": 1}',
            "$.madeAt: found a field that is not known; expected one of version, made_at, loads",
        ),
    ],
)
def test_invalid_documents_are_an_error(document: str | bytes, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        decode_loads(document)
    assert str(refused.value).startswith(message)


NUMBER = "a number from 0 to 1e+300"
KEY = "expected a partition's number"
TIME = "a number from 0 to 2.53402e+11"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loads": None}, "$.loads: found nothing; expected an object"),
        ({"loads": [1]}, "$.loads: found a list; expected an object"),
        ({"loads": {"a": 1}}, "$.loads.a: found 1; expected an object"),
        ({"loads": {"a": {"0": -1}}}, f'$.loads.a["0"]: found -1; expected {NUMBER}'),
        ({"loads": {"a": {"0": "1"}}}, f'$.loads.a["0"]: found "1"; expected {NUMBER}'),
        ({"loads": {"a": {"0": True}}}, f'$.loads.a["0"]: found true; expected {NUMBER}'),
        ({"loads": {"a": {"0": None}}}, f'$.loads.a["0"]: found nothing; expected {NUMBER}'),
        ({"loads": {"a": {"0": {}}}}, f'$.loads.a["0"]: found an object; expected {NUMBER}'),
        ({"loads": {"a": {"0": 1e301}}}, f'$.loads.a["0"]: found 1e+301; expected {NUMBER}'),
        ({"loads": {"a": {"x": 1}}}, f"$.loads.a.x: found that key; {KEY}"),
        ({"loads": {"a": {"01": 1}}}, f'$.loads.a["01"]: found that key; {KEY}'),
        (
            {"loads": {"a": {"\u0661": 1}}},
            f'$.loads.a["\\u0661"]: found that key; {KEY}',
        ),
        ({"loads": {"a": {"-1": 1}}}, f'$.loads.a["-1"]: found that key; {KEY}'),
        (
            {"loads": {"a": {"2147483648": 1}}},
            '$.loads.a["2147483648"]: found 2147483648; expected an integer from 0 to 2147483647',
        ),
        ({"made_at": None}, f"$.made_at: found nothing; expected {TIME}"),
        ({"made_at": -1}, f"$.made_at: found -1; expected {TIME}"),
        ({"made_at": 1e12}, f"$.made_at: found 1000000000000.0; expected {TIME}"),
        ({"made_at": "noon"}, '$.made_at: found "noon"; expected a time as in ISO 8601'),
        (
            {"made_at": "2025-11-21T09:00:00"},
            '$.made_at: found "2025-11-21T09:00:00"; expected a time with an offset from UTC',
        ),
    ],
)
def test_invalid_fields_are_an_error(fields: dict[str, object], message: str) -> None:
    """1e12 looks like a time in milliseconds."""
    document = json.dumps({"version": 1, "made_at": 0, "loads": {}} | fields)
    with pytest.raises(ConfigurationError) as refused:
        decode_loads(document)
    assert str(refused.value) == message


def test_documents_beyond_the_limit_are_not_parsed() -> None:
    with pytest.raises(ConfigurationError, match="found 67108865 bytes; expected at most"):
        decode_loads(b" " * (MAX_BYTES + 1))


@pytest.mark.parametrize("load", [-1.0, math.nan, math.inf])
def test_values_that_cannot_be_read_cannot_be_written(load: float) -> None:
    with pytest.raises(ConfigurationError, match="expected a number from 0"):
        encode_loads(MeasuredLoads(made_at=0.0, loads={A0: load}))
    with pytest.raises(ConfigurationError, match="expected a partition's number"):
        encode_loads(MeasuredLoads(made_at=0.0, loads={TopicPartition("a", -1): 1.0}))
    with pytest.raises(ConfigurationError, match=r"made_at: found .*; expected a number"):
        encode_loads(MeasuredLoads(made_at=load, loads={}))


partitions = st.builds(
    TopicPartition,
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.integers(0, 2**31 - 1),
)


@given(
    st.floats(0, 253_402_300_799),
    st.dictionaries(partitions, st.floats(0, 1e300), max_size=5),
)
def test_encoded_loads_decode_to_the_same_value(
    made_at: float, loads: dict[TopicPartition, float]
) -> None:
    measured = MeasuredLoads(made_at=made_at, loads=loads)
    assert decode_loads(encode_loads(measured)) == measured


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {"version": st.just(1)},
        optional={
            "made_at": json_values,
            "loads": json_values | st.dictionaries(st.text(max_size=2), json_values, max_size=3),
        },
    )
    | json_values
)
def test_any_other_input_is_a_typed_error(value: object) -> None:
    with suppress(ConfigurationError):
        assert decode_loads(json.dumps(value)).made_at >= 0


@pytest.mark.parametrize(
    ("now", "counts"), [(1000, True), (1060, True), (1061, False), (940, True), (939, False)]
)
def test_loads_are_used_until_they_are_too_old(now: float, counts: bool) -> None:
    """Clocks differ, so a future time is accepted like a past one."""
    measured = MeasuredLoads(made_at=1000.0, loads={A0: 5.0})
    assert recent_loads(measured, now=now, max_age=60) == ({A0: 5.0} if counts else {})
