"""Format a response as text that is equal for brokers with equal behaviour.

Every field of the version is printed unless it has its default. Values that differ between runs are
printed by their name in the trace; values that no client may rely on are listed in `_LEFT_OUT` and
omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import attrs
from verification.model.words import Names

from kafkagroup.errors import error_name
from kafkagroup.wire.records import read_batches
from kafkagroup.wire.rows import Rows
from kafkagroup.wire.schema import NO_ID, fields_of

__all__ = ["response_lines"]

_LEFT_OUT = frozenset(
    {
        "throttle_time_ms",
        "cluster_id",
        "controller_id",  # with several nodes it is the quorum's choice
        "brokers",  # of Metadata: what they must be, the clients of `net` test
        "host",
        "port",
        "error_message",  # for people
        "batch_index_error_message",
    }
)

_LONG_AGO = 1_000_000_000_000
"""Milliseconds since the epoch: above all timestamps in traces, below the time of a run."""

_LEFT_OUT_OF = {("CreatableTopicResult", "configs")}
"""The same for one kind of element: DescribeConfigs shows the options of a topic."""

_TIMES = ("last_timestamp", "log_append_time_ms", "transaction_start_time_ms")

_UNORDERED = {
    "active_producers": ("producer_id",),
    "configs": ("name",),
    "groups": ("group_id",),
    "members": ("member_id",),
    "partition_responses": ("index",),
    "partitions": ("partition_index", "partition"),
    "responses": ("topic", "name", "topic_id", "resource_type", "resource_name"),
    "results": ("group_id", "name", "resource_type", "resource_name"),
    "results_by_partition": ("partition_index",),
    "results_by_topic_v3_and_below": ("name",),
    "topic_results": ("name",),
    "topics": ("name", "topic", "topic_id"),
    "transaction_states": ("transactional_id",),
}
"""Lists whose order Kafka leaves to a hash table, or to what it looks at first -> what to sort them
by, where they have it."""


def response_lines(response: Any, version: int, names: Names) -> list[str]:
    """Return one line for the response itself, and one, indented, for each element of its lists."""
    return list(_lines(response, version, names, ""))


def _lines(part: Any, version: int, names: Names, indent: str) -> Iterator[str]:
    scalars: list[str] = []
    lists: list[tuple[str, Any]] = []
    if hasattr(part, "member_id"):
        # Whom a response is for is met before those that it names.
        names.met(part.member_id)
    defaults = {a.name: a.default for a in attrs.fields(type(part))}
    for name, spec in fields_of(type(part)).items():
        value = getattr(part, name)
        is_left_out = name in _LEFT_OUT or (type(part).__name__, name) in _LEFT_OUT_OF
        if is_left_out or not (version in spec.versions or version in spec.tagged):
            continue
        if name == "groups":
            # A broker is shared: who else has a group on this node is no part of the response.
            value = tuple(i for i in value if i.group_id.startswith(names.prefix) or not i.group_id)
        if name == "partitions" and getattr(part, "topic", "") == "__consumer_offsets":
            continue  # how many there are is an option of the broker
        if name == "producer_id" and getattr(part, "transaction_state", None) == "":
            continue  # of a transactional id that is not described
        if name == "transaction_states":
            named = (i for i in value if i.transactional_id.startswith(names.prefix))
            value = tuple(named) or tuple(i for i in value if not i.transactional_id)
        if name == "partitions" and value and isinstance(value[0], int):
            value = tuple(sorted(value))  # a set in Kafka
        if name == "error_code":
            scalars.insert(0, error_name(value) if value else "OK")
        elif isinstance(value, tuple | Rows) and value and attrs.has(type(value[0])):
            lists.append((name, value))
        elif attrs.has(type(value)):
            if value != defaults[name]:
                lists.append((name, (value,)))
        elif value != defaults[name]:
            scalars.append(f"{name}={_plain(name, value, names)}")
    yield " ".join(scalars) or "-"
    for name, items in lists:
        for item in _in_order(name, items, names):
            first, *rest = _lines(item, version, names, "")
            yield f"{indent}  {name}: {first}"
            yield from (f"{indent}  {line}" for line in rest)


def _in_order(name: str, items: Any, names: Names) -> list[Any]:
    def key(item: Any) -> list[Any]:
        values = ((k, getattr(item, k, None)) for k in _UNORDERED.get(name, ()))
        return [v if isinstance(v, int) else _plain(k, v, names) for k, v in values]

    return sorted(items, key=key)


def _plain(name: str, value: Any, names: Names) -> str:
    match value:
        case UUID():
            known = [ours for ours, theirs in names.ids.items() if theirs == value and "#" in ours]
            return known[0] if known else "none" if value == NO_ID else "unknown"
        case bytes() | memoryview():
            if name == "records":
                return _records(value)
            return repr(bytes(value))[1:]
        case tuple() | Rows():
            return "[" + " ".join(_plain(name, item, names) for item in value) + "]"
        case str():
            if name in ("member_id", "leader"):
                return names.met(value) or "''"
            return re.sub(re.escape(names.prefix), "", value) or "''"
        case None:
            return "null"
        case _ if name in _TIMES and value > _LONG_AGO:
            return "now"
        case _ if name == "session_id":
            return names.session(value)
        case _ if name == "producer_id":
            return names.producer(value)
        case _ if name.endswith("error_code"):
            return error_name(value) if value else "OK"
        case _:
            return str(value)


def _records(data: bytes | memoryview) -> str:
    """Return the values by offset, and the number of bytes of a truncated batch. The values of
    control batches are what they do."""
    batches = list(read_batches(data, topic="", partition=-1))
    found = [
        f"{batch.base_offset}:{kind.name}"
        if (kind := batch.control_type()) is not None
        else f"{record.offset}:{bytes(record.value or b'').decode()}"
        for batch in batches
        for record in batch.records(0)
    ]
    over = len(data) - sum(batch.size for batch in batches)
    return "[" + " ".join(found) + "]" + (f"+{over}B" if over else "")
