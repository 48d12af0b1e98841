"""Records as lines of JSON, written and read."""

from __future__ import annotations

import json
import re

import pytest

from kafkagroup import Record
from kafkagroup.cli._record_json import PlacedRecord, record_from_json, record_to_json
from kafkagroup.types import TimestampType
from kafkagroup.wire import NewRecord


def record(key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None]) -> Record:
    return Record("t", 3, 7, 1_000, TimestampType.CREATE_TIME, key, value, headers, 0)


def test_a_record_is_one_line_of_json() -> None:
    line = record_to_json(record("é".encode(), b"\xff\n", ("h", None), ("h", b"x")))
    assert line == (
        '{"topic": "t", "partition": 3, "offset": 7, "timestamp": 1000, "key": "é",'
        ' "value": {"base64": "/wo="}, "headers": [["h", null], ["h", "x"]]}'
    )


@pytest.mark.parametrize(
    "data", [None, b"", b"text", b"\0\r\n\x1b", b"\xff\x00", bytes(range(256))]
)
def test_a_record_round_trips(data: bytes | None) -> None:
    line = record_to_json(record(data, data, ("h", data)))
    assert "\n" not in line
    assert record_from_json(line.encode()) == PlacedRecord(
        NewRecord(data, data, 1_000, (("h", data),)), 3
    )


@pytest.mark.parametrize("name", [b"\xc3(id", bytes(range(1, 256)), "h\xe9".encode() + b"\xff"])
def test_a_header_name_that_is_not_utf8_round_trips(name: bytes) -> None:
    text = name.decode("utf-8", "surrogateescape")
    line = record_to_json(record(b"k", b"v", (text, b"7"))).encode()
    assert json.loads(line)["headers"] == [[text, "7"]]
    assert record_from_json(line).record.headers == ((text, b"7"),)


@pytest.mark.parametrize("timestamp", [-1, 0, 2**63 - 1])
def test_any_timestamp_round_trips(timestamp: int) -> None:
    line = record_to_json(record(b"k", b"v")._replace(timestamp=timestamp))
    assert record_from_json(line.encode()).record.timestamp == timestamp


@pytest.mark.parametrize("timestamp", [-2, -5_000, -(2**63)])
def test_a_timestamp_that_stops_compaction_is_printed_and_refused(timestamp: int) -> None:
    """Brokers store it, and their log cleaner fails at it from then on."""
    line = record_to_json(record(b"k", b"v")._replace(timestamp=timestamp))
    assert f'"timestamp": {timestamp},' in line
    with pytest.raises(ValueError, match="can then not compact the partition") as caught:
        record_from_json(line.encode())
    assert str(caught.value).startswith(f"the timestamp {timestamp} is not valid; expected")


def test_the_shortest_record_is_accepted() -> None:
    assert record_from_json(b'{"value": "v"}') == PlacedRecord(NewRecord(None, b"v"), None)
    given = {"value": None, "key": None, "headers": None, "timestamp": None, "partition": None}
    assert record_from_json(json.dumps(given).encode()) == PlacedRecord(NewRecord(None, None), None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "not valid JSON: Expecting value"),
        (b"\xff", "not valid JSON: 'utf-8' codec"),
        (b"[" * 100_000, "not valid JSON: "),
        (b"[]", 'expected an object with a "value"'),
        (b'{"key": "k"}', 'expected an object with a "value"'),
        (b'{"value": "v", "keys": 1}', "there is no field 'keys'; expected topic, partition, o"),
        (b'{"value": {"a": 1}}', 'value: expected a string, null, or {"base64": "..."}; give a'),
        (b'{"value": "", "key": 1}', "key: expected a string"),
        (b'{"value": {"base64": "?"}}', "value is not base64"),
        (b'{"value": "\\ud800"}', "value has half a sur"),
        (b'{"value": "", "headers": {"a": "b"}}', "headers: expected a list of [name, value]"),
        (b'{"value": "", "headers": [["a"]]}', "headers: expected a list of [name, value]"),
        (b'{"value": "", "headers": [["a", 1]]}', "header 'a': expected a string"),
        (b'{"value": "", "headers": [["\\ud800", ""]]}', "the name of a header has half a sur"),
        (b'{"value": "", "timestamp": 1.5}', "the timestamp 1.5 is not valid"),
        (
            b'{"value": "", "timestamp": 9223372036854775808}',
            "the timestamp 9223372036854775808 is not valid",
        ),
        (b'{"value": "", "partition": true}', "partition: expected a whole number from 0 to 2"),
    ],
)
def test_errors_name_the_field(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        record_from_json(line)
