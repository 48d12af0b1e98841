"""Measured loads as a JSON document: other programs write it, the leader of a group reads it.

```json
{"version": 1, "made_at": 1763715600.0, "loads": {"orders": {"0": 120.5, "1": 3}}}
```

`made_at` is when the loads were measured: seconds since the epoch, or ISO 8601 with an offset from
UTC. A load is a rate, a lag, or any other number of 0 or more that can be added. Everything in a
document is checked, because other programs write it. The caller reads the file, and passes the
time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

import attrs

from kafkagroup.assign import json_values as js
from kafkagroup.types import TopicPartition

__all__ = ["MAX_BYTES", "MeasuredLoads", "decode_loads", "encode_loads", "recent_loads"]

MAX_BYTES = 64 * 1024 * 1024
"""Longest document, in bytes: twice the length for a million partitions, ten times as many as the
largest group that is supported has."""

_VERSION = 1

_MAX_LOAD = 1e300
"""Largest load: the sum of a million of them is still finite."""

_LATEST = 253_402_300_799
"""The last second of the year 9999, in seconds since the epoch: `datetime` has no later year."""


@attrs.frozen(kw_only=True)
class MeasuredLoads:
    """Loads, and when they were measured."""

    made_at: float
    """Seconds since the epoch."""
    loads: Mapping[TopicPartition, float]
    """Partition -> its load, 0 or more."""


def decode_loads(document: str | bytes) -> MeasuredLoads:
    """Read a document.

    Raises: ConfigurationError with the path of a wrong value, what was found and what was expected;
    also for a later version, whose fields might have another meaning.
    """
    root = js.parse(document, "the loads", MAX_BYTES)
    # The version is checked first, because another version may have other fields.
    if (version := js.mapping(root, "$").get("version")) != _VERSION or isinstance(version, bool):
        js.refuse("$.version", js.shown(version), f"{_VERSION}, the one that is known")
    found = js.fields(root, "$", required=("version", "made_at", "loads"), optional=())
    return MeasuredLoads(
        made_at=_time(found["made_at"], "$.made_at"),
        loads={
            TopicPartition(topic, js.partition_key(number, path)): _load(load, path)
            for topic, by_partition, topic_path in js.entries(found["loads"], "$.loads")
            for number, load, path in js.entries(by_partition, topic_path)
        },
    )


def encode_loads(measured: MeasuredLoads) -> str:
    """Return the document, with a line for each topic.

    Raises: ConfigurationError for values that `decode_loads` would refuse.
    """
    topics: dict[str, dict[str, float]] = {}
    for (topic, number), load in sorted(measured.loads.items()):
        path = js.child_path("$.loads", js.non_empty(topic, "$.loads"))
        js.partition_key(str(number), js.child_path(path, str(number)))
        topics.setdefault(topic, {})[str(number)] = _load(load, js.child_path(path, str(number)))
    made_at = json.dumps(_time(measured.made_at, "$.made_at"))
    lines = [f"    {json.dumps(topic)}: {json.dumps(loads)}" for topic, loads in topics.items()]
    rows = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    return f'{{\n  "version": {_VERSION},\n  "made_at": {made_at},\n  "loads": {rows}\n}}\n'


def recent_loads(
    measured: MeasuredLoads, *, now: float, max_age: float
) -> Mapping[TopicPartition, float]:
    """Return the loads to use. If they are older than `max_age` seconds, return none: each load
    then counts as 1.0.

    `now` is in seconds since the epoch. Clocks differ, so loads that were measured up to `max_age`
    seconds in the future are fresh; beyond that their age is unknown, and they are not used.
    """
    return measured.loads if abs(now - measured.made_at) <= max_age else {}


def _load(value: object, path: str) -> float:
    return js.number(value, path, most=_MAX_LOAD)


def _time(value: object, path: str) -> float:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            js.refuse(path, js.shown(value), "a time as in ISO 8601")
        if moment.tzinfo is None:
            js.refuse(path, js.shown(value), "a time with an offset from UTC")
        value = moment.timestamp()
    # The limit refuses milliseconds, which are above 1e12.
    return js.number(value, path, most=_LATEST)
