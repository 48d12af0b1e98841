"""The options of topics: Kafka's names, types, defaults and checks, and the values of a topic.

The table has every option that Apache Kafka 4.3 lists for a topic, so that tools can set and
describe all of them. The properties of `TopicConfigs` are the options that have an effect here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum

import attrs

from kafkagroup.errors import BrokerError, ErrorCode
from kafkagroup.testing.embedded.settings import BrokerSettings

__all__ = ["TOPIC_OPTIONS", "ConfigType", "TopicConfigs", "TopicOption", "problem_of", "split_list"]


class ConfigType(IntEnum):
    """The type of an option, as DescribeConfigs numbers it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@attrs.frozen
class TopicOption:
    """One option of topics."""

    type: ConfigType
    default: str
    broker_option: str = ""
    """The broker's option that sets the default of all topics; "" if there is none."""
    is_valid: Callable[[str], bool] = lambda _: True
    """Returns whether the option may have this value. False or a ValueError: it may not."""


_REPLICA = re.compile(r"[0-9]+:[0-9]+")
"""A partition and the broker of one of its replicas."""
_HIGHEST_INT, _HIGHEST_LONG = 2**31 - 1, 2**63 - 1


def _flag(default: str, broker_option: str = "") -> TopicOption:
    return TopicOption(
        ConfigType.BOOLEAN,
        default,
        broker_option,
        lambda value: value.strip().lower() in ("true", "false"),
    )


def _int(
    default: int, lowest: int, broker_option: str = "", highest: int = _HIGHEST_INT
) -> TopicOption:
    return TopicOption(
        ConfigType.INT, str(default), broker_option, lambda value: lowest <= int(value) <= highest
    )


def _long(default: int, lowest: int, broker_option: str = "") -> TopicOption:
    return TopicOption(
        ConfigType.LONG,
        str(default),
        broker_option,
        lambda value: lowest <= int(value) <= _HIGHEST_LONG,
    )


def _choice(broker_option: str, default: str, *others: str) -> TopicOption:
    return TopicOption(
        ConfigType.STRING, default, broker_option, lambda value: value in (default, *others)
    )


def _are_policies(value: str) -> bool:
    return all(policy in ("compact", "delete") for policy in split_list(value))


def _are_replicas(value: str) -> bool:
    return value.strip() == "*" or all(
        _REPLICA.fullmatch(replica) is not None for replica in split_list(value)
    )


def split_list(value: str) -> list[str]:
    """Return the elements of a value of type LIST."""
    return [element.strip() for element in value.split(",")] if value.strip() else []


TOPIC_OPTIONS: Mapping[str, TopicOption] = {
    "cleanup.policy": TopicOption(ConfigType.LIST, "delete", "log.cleanup.policy", _are_policies),
    "compression.gzip.level": TopicOption(
        ConfigType.INT,
        "-1",
        "compression.gzip.level",
        lambda value: int(value) == -1 or 1 <= int(value) <= 9,
    ),
    "compression.lz4.level": _int(9, 1, "compression.lz4.level", 17),
    "compression.type": _choice(
        "compression.type", "producer", "uncompressed", "zstd", "lz4", "snappy", "gzip"
    ),
    "compression.zstd.level": _int(3, -131_072, "compression.zstd.level", 22),
    "delete.retention.ms": _long(86_400_000, 0, "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": _long(60_000, 0, "log.segment.delete.delay.ms"),
    "flush.messages": _long(_HIGHEST_LONG, 1, "log.flush.interval.messages"),
    "flush.ms": _long(_HIGHEST_LONG, 0),
    "follower.replication.throttled.replicas": TopicOption(
        ConfigType.LIST, "", is_valid=_are_replicas
    ),
    "index.interval.bytes": _int(4096, 0, "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": TopicOption(
        ConfigType.LIST, "", is_valid=_are_replicas
    ),
    "local.retention.bytes": _long(-2, -2, "log.local.retention.bytes"),
    "local.retention.ms": _long(-2, -2, "log.local.retention.ms"),
    "max.compaction.lag.ms": _long(_HIGHEST_LONG, 1, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": _int(1_048_588, 0, "message.max.bytes"),
    "message.timestamp.after.max.ms": _long(3_600_000, 0, "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": _long(
        _HIGHEST_LONG, 0, "log.message.timestamp.before.max.ms"
    ),
    "message.timestamp.type": _choice("log.message.timestamp.type", "CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": TopicOption(
        ConfigType.DOUBLE,
        "0.5",
        "log.cleaner.min.cleanable.ratio",
        lambda value: 0 <= float(value) <= 1,
    ),
    "min.compaction.lag.ms": _long(0, 0, "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": _int(1, 1, "min.insync.replicas"),
    "preallocate": _flag("false", "log.preallocate"),
    "remote.log.copy.disable": _flag("false"),
    "remote.log.delete.on.disable": _flag("false"),
    # There is no tiered storage here.
    "remote.storage.enable": TopicOption(
        ConfigType.BOOLEAN, "false", is_valid=lambda value: value.strip().lower() == "false"
    ),
    "retention.bytes": _long(-1, -(2**63), "log.retention.bytes"),
    "retention.ms": _long(604_800_000, -1, "log.retention.ms"),
    "segment.bytes": _int(1_073_741_824, 1_048_576, "log.segment.bytes"),
    "segment.index.bytes": _int(10_485_760, 4, "log.index.size.max.bytes"),
    "segment.jitter.ms": _long(0, 0),
    "segment.ms": _long(604_800_000, 1),
    "unclean.leader.election.enable": _flag("false", "unclean.leader.election.enable"),
}
"""All options of topics, sorted by name."""


def problem_of(configs: Mapping[str, str | None]) -> str | None:
    """Return what is wrong with these options of a topic; None if they may be set."""
    for name, value in configs.items():
        option = TOPIC_OPTIONS.get(name)
        if option is None:
            return f"Unknown topic config name: {name}"
        if value is None:
            return f"Null value not supported for topic configs: {name}"
        try:
            is_valid = option.is_valid(value)
        except ValueError:
            is_valid = False
        if not is_valid:
            return f"Invalid value {value} for configuration {name}"
    shortest, longest = (
        int(configs.get(name) or TOPIC_OPTIONS[name].default)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if shortest > longest:
        return f"min.compaction.lag.ms={shortest} is above max.compaction.lag.ms={longest}"
    return None


@attrs.define(eq=False)
class TopicConfigs:
    """The options of one topic."""

    settings: BrokerSettings
    """Of the brokers: `max_message_bytes` is the default of `max.message.bytes`."""
    own: dict[str, str] = attrs.field(factory=dict)
    """Name -> value of the options that were set for this topic."""

    def set(self, changes: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Set options, or only check them. None resets an option to its default, and is ignored for
        an option that does not exist.

        Raises: BrokerError for an option that does not exist or has an invalid value, or if the
        shortest compaction lag would be above the longest.
        """
        values = {name: value for name, value in changes.items() if value is not None}
        kept = {name: value for name, value in self.own.items() if name not in changes}
        problem = problem_of(kept | values)
        if problem is not None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, problem)
        if not validate_only:
            self.own = kept | values

    def _value(self, name: str) -> str:
        return self.own.get(name, TOPIC_OPTIONS[name].default)

    @property
    def max_message_bytes(self) -> int:
        """The largest record batch, in bytes, with its header."""
        value = self.own.get("max.message.bytes")
        return self.settings.max_message_bytes if value is None else int(value)

    @property
    def min_insync_replicas(self) -> int:
        """How many replicas must be in sync for a Produce with acks=all."""
        return int(self._value("min.insync.replicas"))

    @property
    def is_compacted(self) -> bool:
        """Whether `cleanup.policy` contains `compact`: then every record must have a key."""
        return "compact" in split_list(self._value("cleanup.policy"))

    @property
    def may_delete_records(self) -> bool:
        """Whether DeleteRecords is allowed: `cleanup.policy` contains `delete`."""
        return "delete" in split_list(self._value("cleanup.policy"))

    @property
    def has_append_time(self) -> bool:
        """Whether records get the time of the append as their timestamp."""
        return self._value("message.timestamp.type") == "LogAppendTime"

    def timestamp_range(self, now_ms: int) -> tuple[int | None, int | None]:
        """Return the earliest and latest timestamp (ms) that a record may have; None without a
        limit. `now_ms`: the time of the append.

        Unlike Kafka, a topic that has no limit of its own has none, so that tests may write records
        with any timestamps.
        """
        before = self.own.get("message.timestamp.before.max.ms")
        after = self.own.get("message.timestamp.after.max.ms")
        if self.has_append_time:
            return None, None
        return (
            None if before is None else now_ms - int(before),
            None if after is None else now_ms + int(after),
        )
