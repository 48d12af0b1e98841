"""Records as lines of JSON: `produce --json` reads what `consume --json` prints. Of these lines,
`produce` refuses only those with a timestamp below -1, which no broker should store.

Bytes that are valid UTF-8 are strings, others {"base64": "..."}; a null key or value is null. In
the name of a header, each byte that is not UTF-8 is a code point from U+DC80 to U+DCFF. Pure.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafkagroup import Record
from kafkagroup._timestamps import check_timestamp
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import MAX_INT32, NO_TIMESTAMP, Headers
from kafkagroup.wire.batch_writing import NewRecord

__all__ = ["PlacedRecord", "record_from_json", "record_to_json"]

_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class PlacedRecord(NamedTuple):
    """A record to write, and the partition in its line of input."""

    record: NewRecord
    partition: int | None
    """None if the line has no partition."""


def record_to_json(record: Record) -> str:
    """Return the record as one line, without the line end."""
    line = json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _json_value(record.key),
            "value": _json_value(record.value),
            "headers": [[name, _json_value(content)] for name, content in record.headers],
        },
        ensure_ascii=False,
    )
    # In the name of a header, a byte that is not UTF-8 is a lone surrogate. Python's escape for it,
    # \udcNN, is JSON's as well.
    return line.encode(errors="backslashreplace").decode()


def record_from_json(line: bytes) -> PlacedRecord:
    """Return the record of a line of JSON. Only the field `value` is required; `topic` and `offset`
    are ignored. Raises: ValueError with the reason."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(found, dict) or "value" not in found:
        raise ValueError('expected an object with a "value"')
    for name in found:
        if name not in _FIELDS:
            raise ValueError(f"there is no field {name!r}; expected {', '.join(_FIELDS)}")
    partition = found.get("partition")
    record = NewRecord(
        _bytes("key", found.get("key")),
        _bytes("value", found["value"]),
        _timestamp(found.get("timestamp")),
        _headers(found.get("headers") or []),
    )
    return PlacedRecord(
        record, None if partition is None else _integer("partition", partition, 0, MAX_INT32)
    )


def _json_value(data: object) -> str | Mapping[str, str] | None:
    if data is None:
        return None
    assert isinstance(data, bytes)  # `consume` has no deserializers
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(name: str, value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{name} has half a surrogate pair") from None
        case {"base64": str() as text} if len(value) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                raise ValueError(f"{name} is not base64") from None
        case _:
            raise ValueError(
                f'{name}: expected a string, null, or {{"base64": "..."}};'
                " give a JSON value as a string"
            )


def _headers(value: Any) -> Headers:
    if not isinstance(value, list):
        raise ValueError("headers: expected a list of [name, value]")
    found = []
    for one in value:
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)):
            raise ValueError("headers: expected a list of [name, value]")
        try:
            one[0].encode(errors="surrogateescape")
        except UnicodeEncodeError:
            raise ValueError("the name of a header has half a surrogate pair") from None
        found.append((one[0], _bytes(f"header {one[0]!r}", one[1])))
    return tuple(found)


def _timestamp(value: Any) -> int:
    if value is None:
        return NO_TIMESTAMP
    try:
        check_timestamp(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return int(value)


def _integer(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name}: expected a whole number from {least} to {most}")
    return value
