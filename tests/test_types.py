"""What is public of a record, compiled or not: frozen, compared, copied, matched, pickled."""

from __future__ import annotations

import copy
import pickle

import pytest

from kafkagroup.types import Record, TimestampType
from kafkagroup.wire.records import NewRecord, encode_batch, read_batches

WRITTEN = NewRecord(b"k", b"v", 1_000, (("h", b"1"), ("é", None)))
VALUES = ("t", 3, 40, 1_000, TimestampType.CREATE_TIME, b"k", b"v", WRITTEN.headers, 5)
RECORD = Record(*VALUES)


def decoded() -> Record:
    data = encode_batch([WRITTEN], base_offset=40, leader_epoch=5)
    (batch,) = read_batches(data, topic="t", partition=3)
    (record,) = batch.records()
    return record


def test_a_record_tells_all_its_values() -> None:
    assert repr(decoded()) == (
        "Record(topic='t', partition=3, offset=40, timestamp=1000,"
        " timestamp_type=<TimestampType.CREATE_TIME: 0>, key=b'k', value=b'v',"
        " headers=(('h', b'1'), ('é', None)), leader_epoch=5)"
    )
    assert tuple(decoded()._asdict().items()) == tuple(zip(Record._fields, VALUES, strict=True))


def test_records_are_equal_by_their_values_and_hash_alike() -> None:
    assert {decoded(), RECORD} == {RECORD}
    others = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "headers": ()}
    for name in Record._fields:
        other = RECORD._replace(**{name: others.get(name, 7)})
        assert getattr(other, name) != getattr(RECORD, name)
        assert (other == RECORD, other != RECORD) == (False, True)
    assert RECORD != VALUES


@pytest.mark.parametrize("name", Record._fields)
def test_a_record_is_frozen(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(RECORD, name, getattr(RECORD, name))
    with pytest.raises(AttributeError):
        RECORD.more = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda r: r._replace()])
def test_a_copy_is_equal(again: object) -> None:
    assert callable(again)
    assert again(decoded()) == RECORD


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_record_can_be_sent_to_another_process(protocol: int) -> None:
    """Its pickle names what compiled and uncompiled processes both have."""
    data = pickle.dumps(decoded(), protocol)
    assert pickle.loads(data) == RECORD
    assert b"pyx" not in data


def test_a_record_can_be_matched() -> None:
    match decoded():
        case Record("t", partition, offset, value=b"v", headers=(("h", first), *_)):
            assert (partition, offset, first) == (3, 40, b"1")
        case _:
            pytest.fail("no match")


def test_headers_are_made_once() -> None:
    record = decoded()
    assert record.headers is record.headers
