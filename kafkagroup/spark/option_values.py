"""The values of options, parsed from strings. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, cast, get_args

import attrs

from kafkagroup.types import MAX_INT32, MAX_INT64, TopicPartition
from kafkagroup.wire.compression import LEVELS, Codec

__all__ = [
    "COLUMNS",
    "CONNECTOR_COLUMNS",
    "CONNECTOR_HEADERS",
    "EARLIEST",
    "LATEST",
    "OWN_COLUMNS",
    "Bound",
    "OnError",
    "acks",
    "boolean",
    "bound",
    "bound_at",
    "bound_by_timestamps",
    "codec",
    "columns",
    "count",
    "duration",
    "idle_seconds",
    "level_of",
    "login",
    "milliseconds_of",
    "names",
    "one_of",
    "partitions",
    "pattern",
    "record_types",
    "seconds",
    "seconds_from_zero",
    "size",
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
    "timestampType": "int",
}
"""The columns that a row can have: name -> type in Spark's DDL. `timestampType` is the column
`timestamp_type` by its name in Spark's own connector."""

OWN_COLUMNS = tuple(name for name in COLUMNS if name != "timestampType")
"""The default columns of a row, in their order."""

CONNECTOR_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of a row of Spark's own connector, in their order, without `headers`."""

CONNECTOR_HEADERS = "array<struct<key: string, value: binary>>"
"""The type of the column `headers` in a row of Spark's own connector. The column is null if the
record has no headers."""

OnError = Literal["fail", "null", "skip"]

_LOG_START = -2
"""The start of the log, in place of an offset; -1 is its end."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@attrs.frozen
class Bound:
    """Where reading begins, or where it ends."""

    kind: Literal["group", "earliest", "latest", "timestamp", "timestamps", "offsets"]
    """`group` stands for the offsets that the group has committed. The last three kinds have the
    field of their name."""
    timestamp: int = -1
    """Milliseconds since the epoch: the bound is the first offset with this or a later time."""
    timestamps: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    """Partition -> its `timestamp`."""
    offsets: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    """Partition -> offset; -2 is the start and -1 the end of the log."""


EARLIEST = Bound("earliest")
LATEST = Bound("latest")


def boolean(text: str) -> bool:
    return _word(text, ("true", "false")) == "true"


def count(text: str) -> int:
    return _whole(text, 1, MAX_INT64)


def size(text: str) -> int:
    """Parse a number of bytes. 0, which Kafka's clients accept, becomes 1: a batch then has one
    record, and a fetch returns one batch."""
    return max(1, _whole(text, 0, MAX_INT64))


def seconds(text: str) -> float:
    """Parse milliseconds; return seconds."""
    return _whole(text, 1, MAX_INT32) / 1000


def idle_seconds(text: str) -> float:
    """Parse milliseconds as `seconds` does; -1, by which Kafka's clients set no limit, becomes the
    highest value."""
    return seconds(str(MAX_INT32)) if text.strip() == "-1" else seconds(text)


def seconds_from_zero(text: str) -> float:
    """Parse milliseconds that may be 0, which is replaced by 1; return seconds."""
    return max(1, _whole(text, 0, MAX_INT32)) / 1000


def acks(text: str) -> int:
    word = _word(text, ("all", "-1", "0", "1"))
    return -1 if word == "all" else int(word)


def level_of(codec: Codec) -> Callable[[str], int | None]:
    """Return a function that parses a level of compression; it returns None for the default, which
    is -1 for gzip in Java's clients."""
    least, most = LEVELS[codec]

    def level(text: str) -> int | None:
        is_default = codec is Codec.GZIP and text.strip() == "-1"
        return None if is_default else _whole(text, least, most)

    return level


def one_of(kind: object) -> Callable[[str], str]:
    """Return a function that parses a value of `kind`, which is a `Literal` of lower-case words."""
    return lambda text: _word(text, get_args(kind))


def codec(text: str) -> Codec:
    return Codec[_word(text, [one.name.lower() for one in Codec]).upper()]


def _word(text: str, words: Collection[str]) -> str:
    """Parse a word in any case, as Spark and Kafka's clients do."""
    if (word := text.strip().lower()) not in words:
        raise ValueError(f"expected one of {', '.join(words)}")
    return word


def names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def columns(text: str) -> tuple[str, ...]:
    known = {name.lower(): name for name in COLUMNS}
    requested = names(text)
    if unknown := [name for name in requested if name.lower() not in known]:
        raise ValueError(f"no columns {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys(known[name.lower()] for name in requested))


def record_types(has_connector_rows: bool) -> Mapping[str, str]:
    """Return column -> type; with `has_connector_rows` headers have the type of Spark's own
    connector."""
    return {**COLUMNS, "headers": CONNECTOR_HEADERS} if has_connector_rows else COLUMNS


def pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """Parse `{"orders": [0, 1]}`."""
    found = json.loads(text)
    if any(not isinstance(numbers, list) for numbers in found.values()):
        raise ValueError('expected topics with lists of partitions, such as {"orders": [0, 1]}')
    return tuple(
        sorted(
            {
                TopicPartition(topic, _whole(number, 0, MAX_INT32))
                for topic, numbers in found.items()
                for number in numbers
            }
        )
    )


def bound(text: str) -> Bound:
    """Parse "group", "earliest", "latest", `{"orders": {"0": 17}}`, milliseconds, or ISO 8601."""
    text = text.strip()
    if (word := text.lower()) in ("group", "earliest", "latest"):
        return Bound(cast('Literal["group", "earliest", "latest"]', word))
    if text.startswith("{"):
        return Bound("offsets", offsets=_by_partition(text, least=_LOG_START))
    if text.isdecimal():
        return bound_at(text)
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time needs its zone, as in 2026-01-01T00:00:00Z")
    if time < _EPOCH:
        raise ValueError("expected a time since 1970")
    return Bound("timestamp", timestamp=milliseconds_of(time))


def milliseconds_of(time: datetime) -> int:
    """Return the milliseconds since the epoch of a time with a zone."""
    return (time - _EPOCH) // _MILLISECOND


def bound_at(text: str) -> Bound:
    """Parse milliseconds since the epoch."""
    # In ListOffsets negative timestamps have other meanings, such as the end of the log.
    return Bound("timestamp", timestamp=_whole(text, 0, MAX_INT64))


def bound_by_timestamps(text: str) -> Bound:
    """Parse `{"orders": {"0": 1700000000000}}`."""
    return Bound("timestamps", timestamps=_by_partition(text, least=0))


def _by_partition(text: str, *, least: int) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, _whole(partition, 0, MAX_INT32)): _whole(value, least, MAX_INT64)
        for topic, by_partition in json.loads(text).items()
        for partition, value in by_partition.items()
    }


def _whole(value: object, least: int, most: int) -> int:
    """Return the whole number that a text, or a value from JSON, has. Raises: ValueError."""
    if isinstance(value, str):
        value = int(value)
    # Not `isinstance`: true and false of JSON are integers in Python.
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"found {value!r}; expected a whole number from {least} to {most}")
    return value


_UNITS = {"us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
"""Unit of a duration -> seconds."""


def duration(text: str) -> float:
    """Parse a duration as Spark writes them, such as "15m", or in milliseconds without a unit;
    return seconds."""
    if (found := re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())) is None:
        raise ValueError("expected a number and its unit, as in 15m")
    number, unit = found[1], found[2] or "ms"
    if unit not in _UNITS:
        raise ValueError(f"expected one of the units {', '.join(_UNITS)}")
    return int(number) * _UNITS[unit]


_VALUE = r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))"""
_ARGUMENT = re.compile(rf"(\w+)\s*=\s*{_VALUE}")
_LOGIN = re.compile(
    rf"[\w.]*\.(?:Plain|Scram)LoginModule\s+required(?P<arguments>(?:\s+\w+\s*=\s*{_VALUE})*)\s*;?"
)


def login(jaas: str) -> dict[str, str]:
    """Return `sasl_username` and `sasl_password` of `jaas`, the value of Java's `sasl.jaas.config`.

    Raises: ValueError, without the text: it has a password.
    """
    found = _LOGIN.fullmatch(jaas.strip())
    arguments = {
        name: re.sub(r"\\(.)", r"\1", double or single or bare)
        for name, double, single, bare in _ARGUMENT.findall(found["arguments"] if found else "")
    }
    if not {"username", "password"} <= arguments.keys():
        raise ValueError("expected PlainLoginModule or ScramLoginModule with username and password")
    return {"sasl_username": arguments["username"], "sasl_password": arguments["password"]}
