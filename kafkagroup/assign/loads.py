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

import attrs

from kafkagroup.assign import json_values as js
from kafkagroup.types import TopicPartition

__all__ = ["MAX_BYTES", "MeasuredLoads", "decode_loads", "encode_loads", "fresh"]

MAX_BYTES = 64 * 1024 * 1024
"""Longest document: a million partitions, ten times the largest groups planned for, take half."""

_VERSION = 1

_MOST = 1e300
"""Largest load: a million of them can still be added."""

_LATEST = 253_402_300_799
"""The last second of the year 9999, where calendars end."""


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
    root = js.parse(document, "the loads", MAX_BYTES)
    # First, as all else may be different in another version.
    if (version := js.mapping(root, "$").get("version")) != _VERSION or isinstance(version, bool):
        js.refuse("$.version", js.shown(version), f"{_VERSION}, the one that is known")
    of = js.fields(root, "$", required=("version", "made_at", "loads"), optional=())
    return MeasuredLoads(
        made_at=_time(of["made_at"], "$.made_at"),
        loads={
            TopicPartition(topic, js.partition_key(number, path)): _load(load, path)
            for topic, by_partition, topic_path in js.entries(of["loads"], "$.loads")
            for number, load, path in js.entries(by_partition, topic_path)
        },
    )


def encode_loads(measured: MeasuredLoads) -> str:
    """The document, a line per topic; `decode_loads` reads it back.

    Raises: ConfigurationError for what it would refuse.
    """
    topics: dict[str, dict[str, float]] = {}
    for (topic, number), load in sorted(measured.loads.items()):
        path = js.at("$.loads", js.name_at(topic, "$.loads"))
        js.partition_key(str(number), js.at(path, str(number)))
        topics.setdefault(topic, {})[str(number)] = _load(load, js.at(path, str(number)))
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


def _load(value: object, path: str) -> float:
    return js.number(value, path, most=_MOST)


def _time(value: object, path: str) -> float:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            js.refuse(path, js.shown(value), "a time as in ISO 8601")
        if moment.tzinfo is None:
            js.refuse(path, js.shown(value), "a time with an offset from UTC")
        return moment.timestamp()
    # 1e12 would be milliseconds.
    return js.number(value, path, most=_LATEST)
