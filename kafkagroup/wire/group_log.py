"""Decode the records of `__consumer_offsets`.

A reader of the topic meets records of brokers that are newer than this library, and of any other
program that may write there: so no record raises an error, and an unknown one is returned as
`Undecoded`. The package `coordinator` declares the record types, with one class for the key and one
for the value of each. Source: the schemas in Apache Kafka's group-coordinator jar.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import attrs

from kafkagroup.errors import DecodeError
from kafkagroup.wire.codec import decode
from kafkagroup.wire.coordinator import classic, consumer, offsets, share, streams

__all__ = ["GroupRecord", "Undecoded", "decode_group_record"]

_NUMBER_BYTES = 2
"""Size of the type number before a key, and of the version before a value."""


@attrs.frozen
class GroupRecord:
    """One decoded record."""

    key: Any
    """An instance of a class of `coordinator` whose name ends in `Key`."""
    value: Any
    """An instance of the class with the same name, except that it ends in `Value`; None if the
    record is a tombstone, which deletes what the key names."""


@attrs.frozen
class Undecoded:
    """A record of an unknown type or version, or a malformed one."""

    reason: str
    """Why it is not decoded."""


def decode_group_record(key: bytes | None, value: bytes | None) -> GroupRecord | Undecoded:
    """Decode a record by its key and value. Raises nothing. O(bytes)."""
    if key is None:
        return Undecoded("a record without a key")
    kind = _number(key)
    known = None if kind is None else _types().get(kind)
    if known is None:
        return Undecoded("a key without a type" if kind is None else f"a key of type {kind}")
    key_class, value_class = known
    try:
        found = decode(key_class, 0, key, _NUMBER_BYTES)
        if value is None:
            return GroupRecord(found, None)
        version = _number(value)
        if version is None:
            return Undecoded(f"{value_class.__name__} without a version")
        if version not in value_class.versions:
            return Undecoded(f"{value_class.__name__} of version {version}")
        return GroupRecord(found, decode(value_class, version, value, _NUMBER_BYTES))
    except DecodeError as error:
        return Undecoded(str(error))


def _number(data: bytes) -> int | None:
    """Return the number that a key or value begins with; None if it is too short."""
    if len(data) < _NUMBER_BYTES:
        return None
    return int.from_bytes(data[:_NUMBER_BYTES], "big", signed=True)


@cache
def _types() -> dict[int, tuple[Any, Any]]:
    """Return type number -> the classes of the key and the value."""
    return {
        key.api_key: (key, value)
        for key, value in _pairs(classic, consumer, offsets, share, streams)
    }


def _pairs(*families: ModuleType) -> Iterator[tuple[Any, Any]]:
    for family in families:
        for name, cls in vars(family).items():
            if name.endswith("Key") and hasattr(cls, "api_key"):
                yield cls, getattr(family, name.removesuffix("Key") + "Value")
