"""The options of source and sink, from the strings that Spark passes. Pure.

Names are case-insensitive; the connection options may have dots or underscores. An unknown option
is an error: a misspelt one would otherwise be ignored silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any, Literal, cast, get_args

import attrs

from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition
from kafkagroup.wire.compression import Codec

__all__ = [
    "COLUMNS",
    "Bound",
    "ConnectionOptions",
    "SinkOptions",
    "SourceOptions",
    "parse_options",
    "parse_sink_options",
]


COLUMNS = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<name: string, value: binary>>",
    "leader_epoch": "int",
    "producer_id": "bigint",
    "transactional": "boolean",
}
"""Name -> type in Spark's DDL, in the order of the schema."""

Commit = Literal["source", "listener", "off"]
Isolation = Literal["read_uncommitted", "read_committed"]

_Table = Mapping[str, tuple[str, Callable[[str], object]]]
"""Name in Spark -> field, and the function that parses it."""

_DAY_ONE = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@attrs.frozen
class Bound:
    """Where reading begins, or where it ends."""

    kind: Literal["group", "earliest", "latest", "timestamp", "offsets"]
    timestamp: int = -1
    """Milliseconds since the epoch: the first offset at or after it."""
    offsets: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    """-2 is the start and -1 the end of the log."""


EARLIEST = Bound("earliest")
LATEST = Bound("latest")


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """How to reach a cluster."""

    bootstrap_servers: str
    client_id: str = "kafkagroup-spark"
    security: Mapping[str, str | bool] = attrs.field(factory=dict, repr=lambda given: str([*given]))
    """Arguments of `kafkagroup.Security`, which is created when a connection is made; empty for
    neither TLS nor SASL."""
    request_timeout: float = 30.0
    """Seconds."""
    api_timeout: float = 60.0
    """Seconds that a call to the cluster may take, with its retries."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the options name, sorted."""
        return ()


@attrs.frozen(kw_only=True)
class SinkOptions(ConnectionOptions):
    """Where rows are written, and how."""

    topic: str | None = None
    """The topic of rows without one."""
    compression: Codec = Codec.NONE
    batch_bytes: int = 512 << 10
    """Bytes of keys and values in one batch, before compression."""

    @property
    def topics(self) -> tuple[str, ...]:
        return () if self.topic is None else (self.topic,)


@attrs.frozen(kw_only=True)
class SourceOptions(ConnectionOptions):
    """What is read, from where to where, and how."""

    subscribe: tuple[str, ...] = ()
    """Topics to read with all their partitions."""
    pattern: re.Pattern[str] | None = None
    """Or: all topics whose whole name matches, except internal ones; a stream finds new ones."""
    assign: tuple[TopicPartition, ...] = ()
    """Or: only these partitions."""
    group_id: str | None = None
    """The group whose offsets are read and committed."""
    starting_offsets: Bound = EARLIEST
    """Where a table starts, and a stream without a checkpoint."""
    ending_offsets: Bound = LATEST
    """Where a table ends."""
    isolation: Isolation = "read_uncommitted"
    max_rows_per_batch: int | None = None
    """Most offsets in one batch of a stream; None for no limit."""
    min_partitions: int = 1
    """Fewest tasks, if there are enough records."""
    fail_on_data_loss: bool = True
    """Whether the query fails if records were deleted before they were read."""
    columns: tuple[str, ...] = tuple(COLUMNS)
    commit: Commit = "source"
    """What commits a stream's offsets to `group_id`, if one is given."""
    rewind: bool = False
    """Whether a new query may set the group's offsets back to its start."""
    max_partition_fetch_bytes: int = 8 << 20
    """Most bytes of one fetch, except for a single larger batch."""
    check_crcs: bool = True

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the options name, sorted."""
        return tuple(sorted({*self.subscribe, *(tp.topic for tp in self.assign)}))


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options of the source. Raises: ConfigurationError that names the wrong one."""
    taken = _parse(given, _SOURCE)
    if sum(bool(taken.get(name)) for name in ("subscribe", "pattern", "assign")) != 1:
        raise ConfigurationError("give one of the options subscribe, subscribePattern and assign")
    options = SourceOptions(**taken)
    if options.group_id is None and options.starting_offsets.kind == "group":
        raise ConfigurationError("startingOffsets=group needs the option group.id")
    if options.ending_offsets.kind in ("group", "earliest"):
        raise ConfigurationError(
            f"endingOffsets={options.ending_offsets.kind}: expected latest, offsets or a time"
        )
    return options


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of the sink. Raises: ConfigurationError that names the wrong one."""
    return SinkOptions(**_parse(given, _SINK))


def _parse(given: Mapping[str, str], known: _Table) -> dict[str, Any]:
    options = {name.lower().replace("_", "."): value for name, value in given.items()}
    taken: dict[str, Any] = {}
    for name, (field, parse) in known.items():
        if (value := options.pop(name.lower(), None)) is not None:
            try:
                taken[field] = parse(value)
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise ConfigurationError(f"option {name}={value!r}: {error}") from None
    taken["security"] = _security(options)
    if options:
        raise ConfigurationError(
            f"unknown options: {', '.join(sorted(options))}; expected {', '.join(known)}, or those"
            " of kafkagroup.Security"
        )
    if "bootstrap_servers" not in taken:
        raise ConfigurationError("option bootstrap.servers is missing")
    return taken


def _security(options: dict[str, str]) -> dict[str, str | bool]:
    """Take the options of `Security` out of `options`."""
    if not options:
        return {}
    from kafkagroup.transport.security import Security  # only here: it imports anyio

    taken: dict[str, str | bool] = {}
    for name, parameter in signature(Security).parameters.items():
        value = options.pop(name.replace("_", "."), None)
        if value is not None:
            taken[name] = _boolean(value) if isinstance(parameter.default, bool) else value
    return taken


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError("expected 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    return _count(text) / 1000


def _one_of(kind: object) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in get_args(kind):
            raise ValueError(f"expected one of {', '.join(get_args(kind))}")
        return text

    return parse


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _columns(text: str) -> tuple[str, ...]:
    names = _names(text)
    if unknown := [name for name in names if name not in COLUMNS]:
        raise ValueError(f"no columns {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    return names or tuple(COLUMNS)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None


def _partitions(text: str) -> tuple[TopicPartition, ...]:
    """`{"orders": [0, 1]}`."""
    return tuple(
        sorted(
            {TopicPartition(topic, int(p)) for topic, ps in json.loads(text).items() for p in ps}
        )
    )


def _bound(text: str) -> Bound:
    """Parse "group", "earliest", "latest", `{"orders": {"0": 17}}`, milliseconds, or ISO 8601."""
    if text in ("group", "earliest", "latest"):
        return Bound(cast('Literal["group", "earliest", "latest"]', text))
    if text.startswith("{"):
        offsets = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, by_partition in json.loads(text).items()
            for partition, offset in by_partition.items()
        }
        if invalid := [f"{tp}: {offset}" for tp, offset in offsets.items() if offset < -2]:
            raise ValueError(f"no offsets: {', '.join(invalid)}")
        return Bound("offsets", offsets=offsets)
    if text.isdecimal():
        return Bound("timestamp", timestamp=int(text))
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time needs its zone, as in 2026-01-01T00:00:00Z")
    return Bound("timestamp", timestamp=(time - _DAY_ONE) // _MILLISECOND)


_CONNECTION: _Table = {
    "bootstrap.servers": ("bootstrap_servers", str),
    "client.id": ("client_id", str),
    "request.timeout.ms": ("request_timeout", _seconds),
    "default.api.timeout.ms": ("api_timeout", _seconds),
}
_SOURCE: _Table = {
    **_CONNECTION,
    "subscribe": ("subscribe", _names),
    "subscribePattern": ("pattern", _pattern),
    "assign": ("assign", _partitions),
    "group.id": ("group_id", str),
    "startingOffsets": ("starting_offsets", _bound),
    "endingOffsets": ("ending_offsets", _bound),
    "isolation.level": ("isolation", _one_of(Isolation)),
    "maxRowsPerBatch": ("max_rows_per_batch", _count),
    "minPartitions": ("min_partitions", _count),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "columns": ("columns", _columns),
    "commit": ("commit", _one_of(Commit)),
    "rewind": ("rewind", _boolean),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", _count),
    "check.crcs": ("check_crcs", _boolean),
}
_SINK: _Table = {
    **_CONNECTION,
    "topic": ("topic", str),
    "compression.type": ("compression", lambda name: Codec[name.upper()]),
    "batch.size": ("batch_bytes", _count),
}
