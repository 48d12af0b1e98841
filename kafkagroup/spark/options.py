"""The options of source and sink, from the strings that Spark hands over. Pure.

Spark folds the case of names; those of connecting may be written with dots or underscores. What is
not known here is refused: a misspelt option would be one that silently has no effect.
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
"""Name -> type in Spark's words, in the order of the schema."""

Commit = Literal["source", "listener", "off"]
Isolation = Literal["read_uncommitted", "read_committed"]

_Table = Mapping[str, tuple[str, Callable[[str], object]]]
"""Name in Spark -> field, and what reads it."""

_DAY_ONE = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@attrs.frozen
class Bound:
    """Where reading begins, or where it ends."""

    kind: Literal["group", "earliest", "latest", "timestamp", "offsets"]
    timestamp: int = -1
    """Milliseconds since the epoch: the first offset at or after it."""
    offsets: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    """-2 and -1 stand for the start and the end of the log."""


EARLIEST = Bound("earliest")
LATEST = Bound("latest")


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """How to reach a cluster."""

    bootstrap_servers: str
    client_id: str = "kafkagroup-spark"
    security: Mapping[str, str | bool] = attrs.field(factory=dict, repr=lambda given: str([*given]))
    """Arguments of `kafkagroup.Security`, which is made where it is needed; none for neither TLS
    nor SASL."""
    request_timeout: float = 30.0
    """Seconds."""
    api_timeout: float = 60.0
    """Seconds that a call to the cluster may take with all its retries."""

    @property
    def topics(self) -> tuple[str, ...]:
        """All that are known beforehand, sorted."""
        return ()


@attrs.frozen(kw_only=True)
class SinkOptions(ConnectionOptions):
    """What rows are written to, and how."""

    topic: str | None = None
    """For rows that name none."""
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
    """Topics, of which all partitions are read."""
    pattern: re.Pattern[str] | None = None
    """Or all topics whose whole name matches, but for internal ones; a stream finds new ones."""
    assign: tuple[TopicPartition, ...] = ()
    """Or these partitions alone."""
    group_id: str | None = None
    """The group whose offsets are read and committed."""
    starting_offsets: Bound = EARLIEST
    """Of a stream without a checkpoint, and of a table."""
    ending_offsets: Bound = LATEST
    """Of a table."""
    isolation: Isolation = "read_uncommitted"
    max_rows_per_batch: int | None = None
    """Most offsets in one batch of a stream; None for no limit."""
    min_partitions: int = 1
    """Fewest tasks, where there is enough to read."""
    fail_on_data_loss: bool = True
    """Whether what was to be read and is not there any more ends the query."""
    columns: tuple[str, ...] = tuple(COLUMNS)
    commit: Commit = "source"
    """Who commits a stream's offsets to `group_id`, if there is one."""
    rewind: bool = False
    """Whether the group's offsets may go back to where a new query begins."""
    max_partition_fetch_bytes: int = 8 << 20
    """Most bytes of one fetch, but for a single larger batch."""
    check_crcs: bool = True

    @property
    def topics(self) -> tuple[str, ...]:
        """All that are known beforehand, sorted."""
        return tuple(sorted({*self.subscribe, *(tp.topic for tp in self.assign)}))


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Those of the source. Raises: ConfigurationError that names the one which is wrong."""
    taken = _parse(given, _SOURCE)
    if sum(bool(taken.get(name)) for name in ("subscribe", "pattern", "assign")) != 1:
        raise ConfigurationError("give one of the options subscribe, subscribePattern and assign")
    made = SourceOptions(**taken)
    if made.group_id is None and made.starting_offsets.kind == "group":
        raise ConfigurationError("startingOffsets=group needs the option group.id")
    if made.ending_offsets.kind in ("group", "earliest"):
        raise ConfigurationError(f"endingOffsets={made.ending_offsets.kind} makes no sense")
    return made


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Those of the sink. Raises: ConfigurationError that names the one which is wrong."""
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
            f"unknown options: {', '.join(sorted(options))}; there are {', '.join(known)}, and"
            " those of kafkagroup.Security"
        )
    if "bootstrap_servers" not in taken:
        raise ConfigurationError("option bootstrap.servers is missing")
    return taken


def _security(options: dict[str, str]) -> dict[str, str | bool]:
    """Take the options of `Security` out of `options`."""
    if not options:
        return {}
    from kafkagroup.transport.security import Security  # only here: it brings anyio

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
    if wrong := [name for name in names if name not in COLUMNS]:
        raise ValueError(f"no columns {', '.join(wrong)}; there are {', '.join(COLUMNS)}")
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
    """ "latest" and its like, `{"orders": {"0": 17}}`, milliseconds, or a time in ISO 8601."""
    if text in ("group", "earliest", "latest"):
        return Bound(cast('Literal["group", "earliest", "latest"]', text))
    if text.startswith("{"):
        offsets = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, of in json.loads(text).items()
            for partition, offset in of.items()
        }
        if wrong := [f"{tp}: {offset}" for tp, offset in offsets.items() if offset < -2]:
            raise ValueError(f"no offsets: {', '.join(wrong)}")
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
