"""Measured loads as a document: what a weighted assignor's leader reads, and others write.

```json
{"version": 1, "made_at": 1763715600.0, "loads": {"orders": {"0": 120.5, "1": 3}}}
```

`made_at` is when they were measured: seconds since the epoch, or ISO 8601 with an offset from UTC.
A load is a rate, a lag, any number of 0 or more that adds up. Documents come from elsewhere:
everything in them is checked. The time comes in as an argument; reading files is for others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import NoReturn

import attrs

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition

__all__ = ["MAX_BYTES", "MeasuredLoads", "decode_loads", "encode_loads", "fresh"]

MAX_BYTES = 64 * 1024 * 1024
"""Longest document: a million partitions, ten times the largest groups planned for, take half."""

_VERSION = 1

_MOST = 1e300
"""Largest load: a million of them can still be added."""

_LATEST = 253_402_300_799
"""The last second of the year 9999, where calendars end."""

_INT32 = 2**31 - 1


@attrs.frozen(kw_only=True)
class MeasuredLoads:
    """Loads, and when they were so."""

    made_at: float
    """Seconds since the epoch."""
    loads: Mapping[TopicPartition, float]
    """Partition -> its load, 0 or more."""


def decode_loads(document: str | bytes) -> MeasuredLoads:
    """What a document says. Raises: ConfigurationError with the path of what is wrong, what was
    found and what was expected: whoever wrote the document has to mend it.

    A later version is refused: what it says might mean something else.
    """
    if len(document) > MAX_BYTES:
        raise ConfigurationError(
            f"the loads are {len(document)} long; expected at most {MAX_BYTES}"
        )
    try:
        root = json.loads(document, object_pairs_hook=_once, parse_constant=_no_constant)
    except ConfigurationError:
        raise
    except (ValueError, RecursionError) as error:
        # ValueError: also bytes that are no UTF-8. RecursionError: thousands of brackets.
        raise ConfigurationError(f"the loads are no JSON: {error}") from None
    fields = _object(root, "$")
    # First, as all else may be different in another version.
    if (version := fields.get("version")) != _VERSION or isinstance(version, bool):
        _refuse("$.version", version, f"{_VERSION}, the one that is known")
    for name in fields:
        if name not in ("version", "made_at", "loads"):
            _refuse("$", name, "version, made_at and loads alone")
    loads: dict[TopicPartition, float] = {}
    for topic, by_partition in _object(fields.get("loads"), "$.loads").items():
        path = f"$.loads[{json.dumps(topic)}]"
        for number, load in _object(by_partition, path).items():
            loads[TopicPartition(topic, _partition(number, path))] = _load(
                load, f"{path}[{number}]"
            )
    return MeasuredLoads(made_at=_time(fields.get("made_at"), "$.made_at"), loads=loads)


def encode_loads(measured: MeasuredLoads) -> str:
    """The document, a line per topic; `decode_loads` reads it back.

    Raises: ConfigurationError for what it would refuse.
    """
    topics: dict[str, dict[str, float]] = {}
    for (topic, number), load in sorted(measured.loads.items()):
        path = f"$.loads[{json.dumps(topic)}]"
        _partition(str(number), path)
        topics.setdefault(topic, {})[str(number)] = _load(load, f"{path}[{number}]")
    made_at = json.dumps(_time(measured.made_at, "$.made_at"))
    lines = [f"    {json.dumps(topic)}: {json.dumps(loads)}" for topic, loads in topics.items()]
    rows = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    return f'{{\n  "version": {_VERSION},\n  "made_at": {made_at},\n  "loads": {rows}\n}}\n'


def fresh(measured: MeasuredLoads, *, now: float, max_age: float) -> Mapping[TopicPartition, float]:
    """The loads to count with: none, so 1.0 each, if they are older than `max_age` seconds.

    `now` is in seconds since the epoch. Clocks differ: what was measured up to `max_age` in the
    future is fresh, and beyond that nobody knows how old it is.
    """
    return measured.loads if abs(now - measured.made_at) <= max_age else {}


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ConfigurationError("the loads have an object with a name twice; expected each once")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ConfigurationError(f"the loads have {name}; expected finite numbers")


def _object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        _refuse(path, value, "an object")
    return value


def _partition(text: str, path: str) -> int:
    # "00" or "1_0" would be other names for what is there already.
    if not (text.isascii() and text.isdecimal()) or (len(text) > 1 and text[0] == "0"):
        _refuse(path, text, "a partition's number")
    if len(text) > 10 or int(text) > _INT32:
        _refuse(path, text, f"a partition's number, up to {_INT32}")
    return int(text)


def _load(value: object, path: str) -> float:
    # True is an int to Python, and is none here.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST:
        _refuse(path, value, "a number of 0 or more")
    return float(value)


def _time(value: object, path: str) -> float:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            _refuse(path, value, "a time as in ISO 8601")
        if moment.tzinfo is None:
            _refuse(path, value, "a time with an offset from UTC")
        return moment.timestamp()
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _LATEST:
        _refuse(path, value, "seconds since the epoch, or a time as in ISO 8601")
    return float(value)


def _refuse(path: str, found: object, expected: str) -> NoReturn:
    # Of an object not its content: it may be large, and deeper than `repr` can go.
    names = {dict: "an object", list: "a list", type(None): "nothing"}
    shown = names.get(type(found)) or ascii(found)[:60]
    raise ConfigurationError(f"{path}: found {shown}; expected {expected}")
