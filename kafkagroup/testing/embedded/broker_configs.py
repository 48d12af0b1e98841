"""The options of brokers that can be described: those of `BrokerSettings` by Kafka's names, and the
defaults of topics. None of them changes while the broker runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

import attrs

from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.topic_configs import TOPIC_OPTIONS, ConfigType

__all__ = ["ConfigSource", "ConfigValue", "broker_values"]


class ConfigSource(IntEnum):
    """Where the value of an option is from, as DescribeConfigs numbers it."""

    TOPIC = 1
    DYNAMIC_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5


@attrs.frozen
class ConfigValue:
    """The value of an option at one level; the values of several levels are its synonyms."""

    name: str
    value: str
    source: ConfigSource


@attrs.frozen
class _BrokerOption:
    """An option of brokers that `BrokerSettings` has."""

    type: ConfigType
    default: str
    value: Callable[[BrokerSettings], object]
    """Returns the value that the settings give; its `str` is the option's value."""


def _number(default: int, value: Callable[[BrokerSettings], int]) -> _BrokerOption:
    return _BrokerOption(ConfigType.INT, str(default), value)


def _ms(default: int, value: Callable[[BrokerSettings], float]) -> _BrokerOption:
    """Return an option in milliseconds. `value` returns seconds."""
    return _BrokerOption(ConfigType.INT, str(default), lambda s: round(value(s) * 1000))


# The defaults are Kafka's. If `BrokerSettings` has another value, even as its own default, the
# option is described as set statically.
_SETTINGS: Mapping[str, _BrokerOption] = {
    "auto.create.topics.enable": _BrokerOption(
        ConfigType.BOOLEAN, "true", lambda s: str(s.auto_create_topics).lower()
    ),
    "group.consumer.assignment.interval.ms": _ms(
        1000, lambda s: s.group_consumer_assignment_interval
    ),
    "group.consumer.heartbeat.interval.ms": _ms(
        5000, lambda s: s.group_consumer_heartbeat_interval
    ),
    "group.consumer.session.timeout.ms": _ms(45_000, lambda s: s.group_consumer_session_timeout),
    "group.initial.rebalance.delay.ms": _ms(3000, lambda s: s.group_initial_rebalance_delay),
    "group.max.session.timeout.ms": _ms(1_800_000, lambda s: s.group_max_session_timeout),
    "group.max.size": _number(2**31 - 1, lambda s: s.group_max_size),
    "group.min.session.timeout.ms": _ms(6000, lambda s: s.group_min_session_timeout),
    "max.incremental.fetch.session.cache.slots": _number(
        1000, lambda s: s.max_incremental_fetch_session_cache_slots
    ),
    "message.max.bytes": _number(1_048_588, lambda s: s.max_message_bytes),
    "num.partitions": _number(1, lambda s: s.default_partitions),
    "offset.metadata.max.bytes": _number(4096, lambda s: s.offset_metadata_max_bytes),
    "producer.id.expiration.ms": _ms(86_400_000, lambda s: s.producer_id_expiration),
    "socket.request.max.bytes": _number(104_857_600, lambda s: s.max_request_bytes),
    "transaction.max.timeout.ms": _ms(900_000, lambda s: s.transaction_max_timeout),
    "transactional.id.expiration.ms": _ms(604_800_000, lambda s: s.transactional_id_expiration),
}

_OTHERS: Mapping[str, tuple[ConfigValue, ...]] = {
    # Records do not expire here.
    "log.retention.ms": (
        ConfigValue("log.retention.ms", "-1", ConfigSource.STATIC),
        ConfigValue("log.retention.hours", "168", ConfigSource.DEFAULT),
    ),
    # New clusters have eligible leader replicas, with which Kafka sets this option.
    "min.insync.replicas": (
        ConfigValue("min.insync.replicas", "1", ConfigSource.DYNAMIC_DEFAULT),
        ConfigValue("min.insync.replicas", "1", ConfigSource.DEFAULT),
    ),
}
"""Name -> values, the one in effect first: of the options of brokers that are defaults of topics,
those with another value than the topic's own default, or with a synonym."""


def broker_values(settings: BrokerSettings) -> dict[str, tuple[ConfigType, list[ConfigValue]]]:
    """Return the options of a broker: name -> the type, and the values, the one in effect first."""
    found: dict[str, tuple[ConfigType, list[ConfigValue]]] = {}
    for option in TOPIC_OPTIONS.values():
        if name := option.broker_option:
            default = ConfigValue(name, option.default, ConfigSource.DEFAULT)
            found[name] = option.type, list(_OTHERS.get(name, [default]))
    for name, setting in _SETTINGS.items():
        values = [ConfigValue(name, setting.default, ConfigSource.DEFAULT)]
        if (value := str(setting.value(settings))) != setting.default:
            values.insert(0, ConfigValue(name, value, ConfigSource.STATIC))
        found[name] = setting.type, values
    return found
