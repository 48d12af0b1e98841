"""Records as lines of JSON: `produce --json` reads what `consume --json` prints.

Bytes that are valid UTF-8 are strings, others {"base64": "..."}; null is null. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafkagroup import NewRecord, Record
from kafkagroup.types import Headers

__all__ = ["Placed", "record_from_json", "record_to_json"]

_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1

_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class Placed(NamedTuple):
    """A record to write, and where it was."""

    record: NewRecord
    partition: int | None
    """None where the line does not say."""


def record_to_json(record: Record) -> str:
    """One line, without its end."""
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _told(record.key),
            "value": _told(record.value),
            "headers": [[name, _told(content)] for name, content in record.headers],
        },
        ensure_ascii=False,
    )


def record_from_json(line: bytes) -> Placed:
    """What such a line says; only `value` has to be there. Raises: ValueError that says what is
    wrong."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(said, dict) or "value" not in said:
        raise ValueError('expected an object with a "value"')
    for name in said:
        if name not in _FIELDS:
            raise ValueError(f"there is no field {name!r}; expected {', '.join(_FIELDS)}")
    timestamp = said.get("timestamp")
    partition = said.get("partition")
    record = NewRecord(
        _bytes("key", said.get("key")),
        _bytes("value", said["value"]),
        -1 if timestamp is None else _whole("timestamp", timestamp, _MAX_INT64, least=-1),
        _headers(said.get("headers") or []),
    )
    return Placed(record, None if partition is None else _whole("partition", partition, _MAX_INT32))


def _told(data: object) -> str | Mapping[str, str] | None:
    if data is None:
        return None
    assert isinstance(data, bytes)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(name: str, told: Any) -> bytes | None:
    match told:
        case None:
            return None
        case str():
            try:
                return told.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{name} has half a character") from None
        case {"base64": str() as text} if len(told) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError(f"{name} is no base64") from None
        case _:
            raise ValueError(
                f'{name}: expected a string, null, or {{"base64": "..."}};'
                " JSON goes there as a string"
            )


def _headers(told: Any) -> Headers:
    if not isinstance(told, list):
        raise ValueError("headers: expected a list of [name, value]")
    found = []
    for one in told:
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)):
            raise ValueError("headers: expected a list of [name, value]")
        name = _bytes("the name of a header", one[0])
        assert name is not None
        found.append((name.decode(), _bytes(f"header {one[0]!r}", one[1])))
    return tuple(found)


def _whole(name: str, told: Any, most: int, least: int = 0) -> int:
    if not isinstance(told, int) or isinstance(told, bool) or not least <= told <= most:
        raise ValueError(f"{name}: expected a whole number of {least} or more")
    return told
