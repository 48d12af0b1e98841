"""The public interface of a record, compiled or not: frozen, compared, copied, matched, pickled."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from kafkagroup import Batch, Consumer
from kafkagroup.types import Record, TimestampType
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.records import read_batches

WRITTEN = NewRecord(b"k", b"v", 1_000, (("h", b"1"), ("é", None)))
VALUES = ("t", 3, 40, 1_000, TimestampType.CREATE_TIME, b"k", b"v", WRITTEN.headers, 5)
RECORD = Record(*VALUES)


def decoded() -> Record:
    data = encode_batch([WRITTEN], base_offset=40, leader_epoch=5)
    (batch,) = read_batches(data, topic="t", partition=3)
    (record,) = batch.records()
    return record


def test_the_repr_of_a_record_has_all_its_values() -> None:
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
    """Its pickle refers to a name that exists compiled and uncompiled."""
    data = pickle.dumps(decoded(), protocol)
    assert pickle.loads(data) == RECORD
    assert b"pyx" not in data


def test_a_record_can_be_matched() -> None:
    match decoded():
        case Record("t", partition, offset, value=b"v", headers=(("h", first), *_)):
            assert (partition, offset, first) == (3, 40, b"1")
        case _:
            pytest.fail("no match")


def test_headers_are_decoded_once() -> None:
    record = decoded()
    assert record.headers is record.headers


# ---------------------------------------------------------------- types of keys and values


@dataclass
class Order:
    total: int


@pytest.mark.parametrize("generic", [Record, Batch, Consumer], ids=lambda cls: cls.__name__)
def test_records_can_be_subscripted_with_types_at_run_time(generic: Any) -> None:
    """Frameworks evaluate annotations; one type is enough, as for type checkers."""
    for given in (generic[str, Order], generic[str], generic[str, "Order"]):
        assert get_origin(given) is generic
    assert get_args(generic[str, Order]) == (str, Order)

    def handle(one: generic[str, Order], other: generic | None = None) -> generic[str, Order]:
        raise NotImplementedError

    globals_ = {"generic": generic, "Order": Order}
    hints = get_type_hints(handle, globals_)
    assert hints == {"one": generic[str, Order], "other": generic | None, "return": hints["one"]}


def test_a_consumer_can_be_subscripted_and_subclassed_with_types() -> None:
    class Orders(Consumer[str, Order]):
        """A consumer class of one application."""

    assert isinstance(Orders("orders"), Consumer)
    assert type(Consumer[str, Order]("orders")) is Consumer
    assert type(Record[bytes, bytes](*VALUES)) is Record


def test_pydantic_accepts_a_record() -> None:
    pydantic = pytest.importorskip("pydantic", reason="NOT TESTED, pydantic: it is not installed")

    class Handled(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        record: Record[str, Order]

    assert Handled(record=RECORD).record is RECORD  # the class is checked, its types are not
    with pytest.raises(pydantic.ValidationError):
        Handled(record=b"x")
