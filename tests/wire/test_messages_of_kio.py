"""Every message in every version, byte for byte with kio: an independent codec that is generated
from Kafka's schemas."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, reject
from messages import PAIRS, is_record, messages, repeatable

from kafkagroup.wire.codec import decode, encode
from kafkagroup.wire.schema import NO_ID, Request

# It has no wheel for free-threaded Python.
index = pytest.importorskip("kio.index", reason="NOT COMPARED with kio: it is not installed")
errors = pytest.importorskip("kio.schema.errors")
serial = pytest.importorskip("kio.serial")


@cache
def kio_class(cls: Any, version: int) -> Any:
    load = index.load_request_schema if issubclass(cls, Request) else index.load_response_schema
    try:
        return load(cls.api_key, version)
    except (index.UnknownAPIKey, index.UnknownEntity):
        return None


def to_kio(value: Any, target: Any) -> Any:
    """Return the same message in kio's classes, which have types for durations and times."""
    converted = {}
    for field in dataclasses.fields(target):
        kind = field.type
        is_nullable = type(None) in get_args(kind)
        ours = getattr(value, f"{field.name}_ms", None)
        if ours is None:
            ours = getattr(value, field.name)
        if get_origin(kind) is not tuple and type(None) in get_args(kind):
            (kind,) = (arg for arg in get_args(kind) if arg is not type(None))
        if get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        wire = field.metadata.get("kafka_type", "entity")
        if wire == "datetime_i64" and ours == -1 and not is_nullable:
            reject()  # kio's class cannot have it
        elif isinstance(ours, tuple):
            converted[field.name] = tuple(kio_value(item, wire, kind) for item in ours)
        else:
            converted[field.name] = kio_value(ours, wire, kind)
    return target(**converted)


def kio_value(value: Any, wire: str, kind: Any) -> Any:
    if value is None:
        return None
    convert: dict[str, Callable[[Any], Any]] = {
        "entity": lambda v: to_kio(v, kind),
        "error_code": errors.ErrorCode,
        "timedelta_i32": lambda v: timedelta(milliseconds=v),
        "timedelta_i64": lambda v: timedelta(milliseconds=v),
        "datetime_i64": lambda v: None if v == -1 else datetime.fromtimestamp(v // 1000, UTC),
        "uuid": lambda v: None if v == NO_ID else v,
    }
    return convert.get(wire, lambda v: v)(value)


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    serial.entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("cls", "version"), [pair for pair in PAIRS if not is_record(pair.values[0])]
)
def test_same_bytes_as_kio(cls: Any, version: int) -> None:
    target = kio_class(cls, version)
    if target is None:
        pytest.skip(f"NOT COMPARED: kio has no {cls.__name__} v{version}")

    @repeatable(12)
    @given(messages(cls, version))
    def same(message: Any) -> None:
        data = encode(message, version)
        theirs = to_kio(message, target)
        assert kio_bytes(theirs) == data
        assert serial.entity_reader(target)(data, 0) == (theirs, len(data))
        assert decode(cls, version, data) == message

    same()
