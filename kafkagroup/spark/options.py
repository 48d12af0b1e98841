"""The options of source and sink, from the strings that Spark passes. Pure.

Names are case-insensitive, and underscores stand for dots. An unknown option is an error: a
misspelt one would otherwise be ignored silently.

The options of Spark's own connector are accepted under its names. If an option begins with
`kafka.`, or `includeHeaders` is given, rows have by default the columns of that connector. Options
of Kafka's clients that have no effect here are collected in `ConnectionOptions.ignored`, for a
warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Literal

import attrs

from kafkagroup._option_kinds import text_types
from kafkagroup.errors import ConfigurationError
from kafkagroup.spark import option_values as values
from kafkagroup.spark.client_options import REFUSED_BY_SINK, REFUSED_BY_SOURCE, WITHOUT_EFFECT
from kafkagroup.spark.option_values import EARLIEST, LATEST, Bound, OnError
from kafkagroup.types import MAX_INT32, TopicPartition
from kafkagroup.wire.compression import LEVELS, Codec

__all__ = [
    "ConnectionOptions",
    "SinkOptions",
    "SourceOptions",
    "parse_options",
    "parse_sink_options",
]


Commit = Literal["source", "listener", "both", "off"]
Format = Literal["json"]
Isolation = Literal["read_uncommitted", "read_committed"]
TimestampStrategy = Literal["error", "latest"]

_Parsers = Mapping[str, tuple[str, Callable[[str], object]]]
"""Name of an option in Spark -> its field, and the function that parses its value."""


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """How to reach a cluster."""

    bootstrap_servers: str
    client_id: str = "kafkagroup-spark"
    security: Mapping[str, str | bool] = attrs.field(factory=dict, repr=lambda given: str([*given]))
    """Arguments of `kafkagroup.Security`, which is created when a connection is made; empty for
    neither TLS nor SASL. The `repr` has only their names, as values may be secrets."""
    request_timeout: float = 30.0
    """Seconds that a request may take."""
    api_timeout: float = 60.0
    """Seconds that a call to the cluster may take, with its retries."""
    connections_max_idle: float = 540.0
    """Seconds without a request after which a connection is closed."""
    ignored: Mapping[str, str] = attrs.field(factory=dict, eq=False)
    """The given options that have no effect, as they were written -> the reason; "" if none is
    known."""

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
    compression_level: int | None = None
    """None for the default of the codec."""
    batch_bytes: int = 512 << 10
    """Most bytes of the records in one batch, before compression."""
    buffer_memory: int = 32 << 20
    """Most bytes of the batches that are not acknowledged yet, before compression."""
    max_request_size: int | None = None
    """Most bytes of a row and of a request, before compression. If it is None, a request has the
    default of `Producer`, and a row has only its topic's limit (`max.message.bytes`)."""
    acks: int = -1
    """0 for none, 1 for the leader, -1 for all replicas in sync."""
    idempotence: bool = True
    """Whether brokers detect batches that are sent again, and write them once."""
    delivery_timeout: float = 120.0
    """Seconds that a batch may take, with its retries."""
    retry_backoff: float = 0.1
    """Seconds before the first retry; each further one waits twice as long as the one before."""
    retry_backoff_max: float = 1.0
    """Most seconds before any retry."""
    metadata_max_age: float = 300.0
    """Seconds after which metadata is requested again."""
    rebootstrap_trigger: float = 300.0
    """Seconds without a known broker after which the bootstrap addresses are resolved again."""

    @property
    def topics(self) -> tuple[str, ...]:
        return () if self.topic is None else (self.topic,)

    @property
    def max_row_bytes(self) -> int:
        """Most bytes of a row, which is a batch of its own if it is larger than `batch_bytes`."""
        return MAX_INT32 if self.max_request_size is None else self.max_request_size

    def producer_arguments(self) -> dict[str, Any]:
        """Return the arguments of a `Producer`, except for its security."""
        # At most half of the delivery timeout, so that a batch has time for a second attempt. A
        # second is the least.
        request_timeout = min(self.request_timeout, max(self.delivery_timeout / 2, 1.0))
        arguments: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "enable_idempotence": self.idempotence,
            "acks": self.acks,
            "compression_type": self.compression.name.lower(),
            "compression_level": self.compression_level,
            "buffer_memory": self.buffer_memory,
            "delivery_timeout_ms": round(self.delivery_timeout * 1000),
            "request_timeout_ms": round(request_timeout * 1000),
            "retry_backoff_ms": round(self.retry_backoff * 1000),
            "retry_backoff_max_ms": round(max(self.retry_backoff_max, self.retry_backoff) * 1000),
            "metadata_max_age_ms": round(self.metadata_max_age * 1000),
            "metadata_recovery_rebootstrap_trigger_ms": round(self.rebootstrap_trigger * 1000),
            "connections_max_idle_ms": round(self.connections_max_idle * 1000),
        }
        if self.max_request_size is not None:
            arguments["max_request_size"] = self.max_request_size
        return arguments


@attrs.frozen(kw_only=True)
class SourceOptions(ConnectionOptions):
    """What is read, from where to where, and how."""

    subscribe: tuple[str, ...] = ()
    """Topics to read with all their partitions."""
    pattern: re.Pattern[str] | None = None
    """Or: all topics with a match anywhere in their name, except internal ones; a stream finds new
    ones."""
    assign: tuple[TopicPartition, ...] = ()
    """Or: only these partitions."""
    group_id: str | None = None
    """The group whose offsets are read and committed."""
    starting_offsets: Bound = EARLIEST
    """Where a table starts, and a stream without a checkpoint."""
    ending_offsets: Bound = LATEST
    """Where a table ends."""
    isolation: Isolation = "read_uncommitted"
    timestamp_strategy: TimestampStrategy = "latest"
    """What happens if a partition has no record at or after a start in time: with "latest" it
    starts at its log's end, with "error" the query fails."""
    max_rows_per_batch: int | None = None
    """Most offsets in one batch of a stream; None for no limit."""
    min_rows_per_batch: int = 0
    """A stream waits for at least this many unread offsets before it plans a batch."""
    max_trigger_delay: float = 900.0
    """Seconds after which a stream plans a batch with fewer offsets than `min_rows_per_batch`."""
    min_partitions: int = 1
    """The approximate number of tasks, if there would be fewer otherwise."""
    max_records_per_partition: int | None = None
    """Most offsets of one task; None for no limit."""
    fail_on_data_loss: bool = True
    """Whether the query fails if records were deleted before they were read."""
    columns: tuple[str, ...] = values.OWN_COLUMNS
    """The columns of a row; with `parse`, those of the query's schema that are the record's own."""
    has_columns_option: bool = False
    """Whether the query gives the option `columns`."""
    parse: Format | None = None
    """How values are parsed into columns; None for values as bytes."""
    on_error: OnError = "fail"
    """What happens with a malformed value: with "fail" the query fails, with "null" the value's
    columns are null, with "skip" its record has no row."""
    has_connector_rows: bool = False
    """Whether rows have the columns of Spark's own connector."""
    commit: Commit = "both"
    """What commits a stream's offsets to `group_id`, if one is given."""
    rewind: bool = False
    """Whether a new query may set the group's offsets back to the query's start."""
    max_partition_fetch_bytes: int = 8 << 20
    """Most bytes of one fetch, except for a single larger batch."""
    check_crcs: bool = True
    client_rack: str = ""
    """Records are fetched from a replica in this rack, if the brokers name one (KIP-392); with "",
    from leaders."""
    push_filters: bool = False
    """Whether a table evaluates filters on topic, partition, offset and timestamp; needs Spark's
    `spark.sql.python.filterPushdown.enabled`."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the options name, sorted."""
        return tuple(sorted({*self.subscribe, *(tp.topic for tp in self.assign)}))

    @property
    def commits(self) -> bool:
        """Whether a stream's offsets are committed to a group."""
        return self.group_id is not None and self.commit != "off"

    @property
    def source_commits(self) -> bool:
        """Whether a stream's source commits."""
        return self.commits and self.commit != "listener"

    @property
    def listener_commits(self) -> bool:
        """Whether the listener that `register` installs commits."""
        return self.commits and self.commit != "source"

    def selects(self, tp: TopicPartition) -> bool:
        """Return whether a partition is read."""
        if self.pattern is not None:
            return self.pattern.search(tp.topic) is not None
        return tp in self.assign if self.assign else tp.topic in self.subscribe


def parse_options(given: Mapping[str, str], *, is_stream: bool = False) -> SourceOptions:
    """Return the options of the source. A stream with the rows of Spark's own connector starts at
    the logs' ends by default, as that connector does. Raises: ConfigurationError that names the
    wrong option."""
    fields = _parse(given, _SOURCE, REFUSED_BY_SOURCE, _SINK)
    if sum(bool(fields.get(name)) for name in ("subscribe", "pattern", "assign")) != 1:
        raise ConfigurationError("give one of the options subscribe, subscribePattern and assign")
    headers = fields.pop("include_headers", None)
    has_connector_rows = headers is not None or any(n.lower().startswith(_PREFIX) for n in given)
    fields["has_connector_rows"] = has_connector_rows
    if has_connector_rows and is_stream:
        fields.setdefault("starting_offsets", LATEST)
    fields["has_columns_option"] = "columns" in fields
    if not _TIMES_OF_THE_CONNECTOR.isdisjoint(map(_key, given)):
        fields.setdefault("timestamp_strategy", "error")
    if "parse" in fields:
        fields.setdefault("columns", ())
    elif "on_error" in fields:
        raise ConfigurationError("on_error needs the option parse")
    elif not fields.get("columns"):
        more = ("headers",) if headers else ()
        connector = (*values.CONNECTOR_COLUMNS, *more)
        fields["columns"] = connector if has_connector_rows else values.OWN_COLUMNS
    options = SourceOptions(**fields)
    if options.group_id is None and options.starting_offsets.kind == "group":
        raise ConfigurationError("startingOffsets=group needs the option group.id")
    if options.ending_offsets.kind in ("group", "earliest"):
        raise ConfigurationError(
            f"endingOffsets={options.ending_offsets.kind}: expected latest, offsets or a time"
        )
    if (
        options.max_rows_per_batch is not None
        and options.max_rows_per_batch < options.min_rows_per_batch
    ):
        raise ConfigurationError(
            f"minOffsetsPerTrigger={options.min_rows_per_batch} exceeds the most of a batch,"
            f" {options.max_rows_per_batch}"
        )
    return options


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of the sink. Raises: ConfigurationError that names the wrong option."""
    fields = _parse(given, _SINK, REFUSED_BY_SINK, _SOURCE)
    levels = {codec: fields.pop(f"{codec.name.lower()}_level", None) for codec in LEVELS}
    fields["compression_level"] = levels.get(fields.get("compression", Codec.NONE))
    is_acknowledged_by_all = fields.get("acks", -1) == -1
    # As in Java's producer, other acks turn idempotence off, unless the query turns it on.
    if fields.setdefault("idempotence", is_acknowledged_by_all) and not is_acknowledged_by_all:
        raise ConfigurationError(
            f"enable.idempotence=true needs acks=all, not {fields['acks']}; turn it off if a row"
            " may be lost or written twice"
        )
    return SinkOptions(**fields)


@attrs.frozen
class _Given:
    """An option as it was written."""

    name: str
    value: str = attrs.field(repr=False)


def _parse(
    given: Mapping[str, str], known: _Parsers, refused: Mapping[str, str], others: _Parsers
) -> dict[str, Any]:
    """Return field -> value. `refused`: an option that is an error -> why. `others`: for a source
    the options of the sink, and for a sink those of the source; they are ignored. Raises:
    ConfigurationError."""
    options = _by_key(given)
    ignored = _pop_refused(options, refused)
    fields: dict[str, Any] = {}
    option_of: dict[str, str] = {}
    for name, (field, parse) in known.items():
        if (option := options.pop(_key(name), None)) is None:
            continue
        if field in fields:
            if field not in _FIRST_WINS:
                raise ConfigurationError(f"give one of the options {option_of[field]} and {name}")
            ignored[option.name] = f"{option_of[field]} is given"
            continue
        try:
            fields[field], option_of[field] = parse(option.value), name
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ConfigurationError(f"option {name}={option.value!r}: {error}") from None
    fields["security"] = _security(options)
    elsewhere = [*others, *REFUSED_BY_SINK, *REFUSED_BY_SOURCE]
    reasons = {**dict.fromkeys(elsewhere, ""), **WITHOUT_EFFECT}
    why = {_key(name): reason for name, reason in reasons.items()}
    for key in [key for key in options if key in why]:
        ignored[options.pop(key).name] = why[key]
    if options:
        names = [*known, *_security_names(), *reasons]
        raise ConfigurationError(_unknown([o.name for o in options.values()], known, names))
    if "bootstrap_servers" not in fields:
        raise ConfigurationError("option bootstrap.servers is missing")
    fields["ignored"] = ignored
    return fields


def _key(name: str) -> str:
    """Return the name by which options are compared: in small letters, with dots in place of
    underscores, and without `kafka.`."""
    return name.lower().replace("_", ".").removeprefix(_PREFIX)


def _by_key(given: Mapping[str, str]) -> dict[str, _Given]:
    """Return `_key` -> option. Raises: ConfigurationError if two options have the same key."""
    options: dict[str, _Given] = {}
    for name, value in given.items():
        if (key := _key(name)) in options:
            written = f"{options[key].name} and {name}"
            raise ConfigurationError(f"option {key} is given twice, as {written}")
        options[key] = _Given(name, value)
    return options


def _pop_refused(options: dict[str, _Given], refused: Mapping[str, str]) -> dict[str, str]:
    """Remove from `options` the refused ones whose value is empty or false, and return them as
    ignored. Key stores are refused unless they are PEM. Raises: ConfigurationError for a refused
    option with any other value."""
    ignored = {}
    for key, option in list(options.items()):
        reason = next((why for name, why in refused.items() if _matches(key, name)), None)
        if reason is None or (key in _PEM_STORES and _is_pem(options, key)):
            continue
        if option.value.strip().lower() not in ("", "false"):
            raise ConfigurationError(f"option {option.name} is not supported: {reason}")
        del options[key]
        ignored[option.name] = ""
    return ignored


def _matches(key: str, name: str) -> bool:
    """Whether a key has this name, or begins with it if the name ends with a dot."""
    return key.startswith(name) if name.endswith(".") else key == name


def _unknown(written: list[str], known: _Parsers, names: list[str]) -> str:
    """Return the error message for the unknown options `written`. `names`: those that a misspelt
    one may mean."""
    guesses = {name: _guess(name, names) for name in sorted(written)}
    if near := [f"{name} (did you mean {guess}?)" for name, guess in guesses.items() if guess]:
        more = sorted(set(written) - {name for name, guess in guesses.items() if guess})
        return f"unknown options: {', '.join([*near, *more])}"
    return (
        f"unknown options: {', '.join(guesses)}; expected {', '.join(known)}, or those of"
        " kafkagroup.Security"
    )


def _guess(written: str, names: list[str]) -> str | None:
    """Return the most similar of the names, with the prefix, underscores and capitals of `written`;
    None if none is similar."""
    # Reversed: of two names with the same key, the first one is returned.
    keys = {_key(name): name for name in reversed(names)}
    if not (near := get_close_matches(_key(written), keys, n=1, cutoff=0.8)):
        return None
    found = keys[near[0]]
    if "_" in written:
        found = found.replace(".", "_")
    if written.lower().startswith(_PREFIX):
        found = _PREFIX + found
    return found.upper() if written.isupper() else found


def _security_names() -> list[str]:
    from kafkagroup.transport.security import Security  # only here: it imports anyio

    return [name.replace("_", ".") for name in text_types(Security)]


def _security(options: dict[str, _Given]) -> dict[str, str | bool]:
    """Remove the options of `Security` from `options`, and return its arguments. Raises:
    ConfigurationError that names the wrong option."""
    if not options:
        return {}
    from kafkagroup.transport.security import Security  # only here: it imports anyio

    arguments: dict[str, str | bool] = {}
    if (jaas := options.pop("sasl.jaas.config", None)) is not None:
        try:
            arguments |= values.login(jaas.value)
        except ValueError as error:
            raise ConfigurationError(f"option sasl.jaas.config: {error}") from None
    for location, kind in _PEM_STORES.items():
        if _is_pem(options, location):
            del options[kind]  # `Security` reads only PEM, and has no argument for the format
    for java, name in _PEM.items():
        if (option := options.pop(java, None)) is not None:
            arguments[name] = option.value
    for name, text_type in text_types(Security).items():
        option = options.pop(name.replace("_", "."), None)
        if option is not None:
            parse = values.boolean if text_type is bool else _SECURITY_WORDS.get(name, str)
            try:
                arguments[name] = parse(option.value)
            except ValueError as error:  # only from `boolean`, whose value is no secret
                raise ConfigurationError(
                    f"option {option.name}={option.value!r}: {error}"
                ) from None
    return arguments


def _is_pem(options: Mapping[str, _Given], location: str) -> bool:
    """Whether the options of Java's clients name a PEM file at `location`, a key of
    `_PEM_STORES`."""
    kind = options.get(_PEM_STORES[location])
    return kind is not None and kind.value.strip().upper() == "PEM"


_PEM_STORES = {
    "ssl.keystore.location": "ssl.keystore.type",
    "ssl.truststore.location": "ssl.truststore.type",
}
"""Option with the path of a key store, in Java's clients -> the option with the store's format."""
_PEM = {
    "ssl.keystore.certificate.chain": "ssl_certificate_pem",
    "ssl.keystore.key": "ssl_key_pem",
    "ssl.keystore.location": "ssl_certificate_location",
    "ssl.truststore.certificates": "ssl_ca_pem",
    "ssl.truststore.location": "ssl_ca_location",
}
"""An option of Java's clients with PEM -> the argument of `Security` (KIP-651)."""
_SECURITY_WORDS: Mapping[str, Callable[[str], str]] = {
    "security_protocol": lambda text: text.strip().upper(),
    # Java's clients do not check names if it is empty.
    "ssl_endpoint_identification_algorithm": lambda text: text.strip().lower() or "none",
}
"""An argument of `Security` whose value is a word in any case -> the function that parses it."""

_CONNECTION: _Parsers = {
    "bootstrap.servers": ("bootstrap_servers", str),
    "client.id": ("client_id", str),
    "request.timeout.ms": ("request_timeout", values.seconds),
    "connections.max.idle.ms": ("connections_max_idle", values.idle_seconds),
}
_SOURCE: _Parsers = {
    **_CONNECTION,
    "subscribe": ("subscribe", values.names),
    "subscribePattern": ("pattern", values.pattern),
    "assign": ("assign", values.partitions),
    "default.api.timeout.ms": ("api_timeout", values.seconds),
    "group.id": ("group_id", lambda text: text or None),
    "startingTimestamp": ("starting_offsets", values.bound_at),
    "startingOffsetsByTimestamp": ("starting_offsets", values.bound_by_timestamps),
    "startingOffsets": ("starting_offsets", values.bound),
    "startingOffsetsByTimestampStrategy": (
        "timestamp_strategy",
        values.one_of(TimestampStrategy),
    ),
    "endingTimestamp": ("ending_offsets", values.bound_at),
    "endingOffsetsByTimestamp": ("ending_offsets", values.bound_by_timestamps),
    "endingOffsets": ("ending_offsets", values.bound),
    "isolation.level": ("isolation", values.one_of(Isolation)),
    "maxRowsPerBatch": ("max_rows_per_batch", values.count),
    "maxOffsetsPerTrigger": ("max_rows_per_batch", values.count),
    "minOffsetsPerTrigger": ("min_rows_per_batch", values.count),
    "maxTriggerDelay": ("max_trigger_delay", values.duration),
    "minPartitions": ("min_partitions", values.count),
    "maxRecordsPerPartition": ("max_records_per_partition", values.count),
    "failOnDataLoss": ("fail_on_data_loss", values.boolean),
    "columns": ("columns", values.columns),
    "parse": ("parse", values.one_of(Format)),
    "on_error": ("on_error", values.one_of(OnError)),
    "includeHeaders": ("include_headers", values.boolean),
    "commit": ("commit", values.one_of(Commit)),
    "rewind": ("rewind", values.boolean),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", values.size),
    "check.crcs": ("check_crcs", values.boolean),
    "client.rack": ("client_rack", str),
    "pushFilters": ("push_filters", values.boolean),
}
_SINK: _Parsers = {
    **_CONNECTION,
    "topic": ("topic", str.strip),
    "compression.type": ("compression", values.codec),
    "compression.gzip.level": ("gzip_level", values.level_of(Codec.GZIP)),
    "compression.lz4.level": ("lz4_level", values.level_of(Codec.LZ4)),
    "compression.zstd.level": ("zstd_level", values.level_of(Codec.ZSTD)),
    "batch.size": ("batch_bytes", values.size),
    "buffer.memory": ("buffer_memory", values.size),
    "max.request.size": ("max_request_size", values.size),
    "acks": ("acks", values.acks),
    "enable.idempotence": ("idempotence", values.boolean),
    "delivery.timeout.ms": ("delivery_timeout", values.seconds),
    "default.api.timeout.ms": ("delivery_timeout", values.seconds),
    "retry.backoff.ms": ("retry_backoff", values.seconds_from_zero),
    "retry.backoff.max.ms": ("retry_backoff_max", values.seconds_from_zero),
    "metadata.max.age.ms": ("metadata_max_age", values.seconds_from_zero),
    "metadata.recovery.rebootstrap.trigger.ms": ("rebootstrap_trigger", values.seconds_from_zero),
}

_FIRST_WINS = frozenset(("starting_offsets", "ending_offsets", "delivery_timeout"))
"""Fields that several options set: of those given, the first one in the order of `_SOURCE` or
`_SINK` applies, as in Spark's own connector. Two options for any other field are an error."""

_PREFIX = "kafka."
"""The prefix of connection options in Spark's own connector."""

_TIMES_OF_THE_CONNECTOR = frozenset(("startingtimestamp", "startingoffsetsbytimestamp"))
"""The options of Spark's own connector for a start in time. With one of them the default of
`timestamp_strategy` is "error", as in that connector."""
