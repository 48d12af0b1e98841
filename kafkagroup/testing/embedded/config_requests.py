"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: options of topics, and of the broker.

The options of a broker can be described, and are read-only; resources of other types have none.
Source: the request handlers of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs

from kafkagroup.errors import BrokerError, ErrorCode
from kafkagroup.testing.embedded.broker_configs import ConfigSource, ConfigValue, broker_values
from kafkagroup.testing.embedded.cluster import Cluster, Topic
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.testing.embedded.topic_configs import (
    TOPIC_OPTIONS,
    ConfigType,
    TopicConfigs,
    split_list,
)
from kafkagroup.wire.messages import alter_configs, incremental_alter_configs
from kafkagroup.wire.messages.admin import CreatableTopicConfigs
from kafkagroup.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kafkagroup.wire.messages.configs import (
    BROKER,
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kafkagroup.wire.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

__all__ = ["alter", "alter_incrementally", "created_configs", "describe"]


# ---------------------------------------------------------------- describing


@attrs.frozen
class _Option:
    """An option, as it is described."""

    type: ConfigType
    values: list[ConfigValue]
    """At each level that has a value; the first one is in effect."""
    default: str
    """In effect if there are no `values`."""
    read_only: bool = False


def _topic_options(configs: TopicConfigs) -> dict[str, _Option]:
    of_broker = broker_values(configs.settings)
    found = {}
    for name, option in TOPIC_OPTIONS.items():
        values = list(of_broker[option.broker_option][1]) if option.broker_option else []
        if name in configs.own:
            values.insert(0, ConfigValue(name, configs.own[name], ConfigSource.TOPIC))
        found[name] = _Option(option.type, values, option.default)
    return found


def _broker_options(settings: BrokerSettings) -> dict[str, _Option]:
    return {
        name: _Option(kind, values, values[-1].value, read_only=True)
        for name, (kind, values) in broker_values(settings).items()
    }


def describe(
    cluster: Cluster, node_id: int, request: DescribeConfigsRequest, caller: Caller
) -> DescribeConfigsResponse:
    """Return the options of topics and brokers, without their documentation."""

    def describe_one(resource: DescribeConfigsResource) -> DescribeConfigsResult:
        options: dict[str, _Option] = {}
        error, message = ErrorCode.NONE, None
        try:
            options = _options(cluster, node_id, resource.resource_type, resource.resource_name)
        except BrokerError as refused:
            error, message = ErrorCode(refused.code), str(refused)
        wanted = resource.configuration_keys or tuple(options)
        return DescribeConfigsResult(
            error_code=error,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(
                _described(name, option, with_synonyms=request.include_synonyms)
                for name, option in options.items()
                if name in wanted
            ),
        )

    return DescribeConfigsResponse(
        throttle_time_ms=0, results=tuple(describe_one(resource) for resource in request.resources)
    )


def _options(cluster: Cluster, node_id: int, kind: int, name: str) -> dict[str, _Option]:
    """Return the options of a resource. Raises: BrokerError."""
    if kind == TOPIC:
        return _topic_options(_topic(cluster, name).configs)
    if kind == BROKER:
        if name == str(node_id):
            return _broker_options(cluster.settings)
        if not name:  # the options that all brokers have in common and that may be changed: none
            return {}
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"this is broker {node_id}, not {name}")
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no options here")


def _described(name: str, option: _Option, *, with_synonyms: bool) -> DescribeConfigsResourceResult:
    values = option.values
    return DescribeConfigsResourceResult(
        name=name,
        value=values[0].value if values else option.default,
        read_only=option.read_only,
        config_source=values[0].source if values else ConfigSource.DEFAULT,
        is_sensitive=False,
        synonyms=tuple(
            DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
            for one in values
            if with_synonyms
        ),
        config_type=option.type,
        documentation=None,
    )


def created_configs(topic: TopicConfigs) -> tuple[CreatableTopicConfigs, ...]:
    """Return the options of a topic for the response to CreateTopics."""
    return tuple(
        CreatableTopicConfigs(
            name=name,
            value=option.values[0].value if option.values else option.default,
            read_only=option.read_only,
            config_source=option.values[0].source if option.values else ConfigSource.DEFAULT,
        )
        for name, option in _topic_options(topic).items()
    )


# ---------------------------------------------------------------- changing


def alter(
    cluster: Cluster, node_id: int, request: AlterConfigsRequest, caller: Caller
) -> AlterConfigsResponse:
    """Replace all options of topics: those that the request omits get their defaults."""

    def changes(
        topic: Topic, resource: alter_configs.AlterConfigsResource
    ) -> dict[str, str | None]:
        # None, from `fromkeys`, sets an option back to its default.
        return {**dict.fromkeys(topic.configs.own), **_new_values(resource.configs)}

    return AlterConfigsResponse(
        throttle_time_ms=0,
        responses=_alter_all(cluster, request, changes, alter_configs.AlterConfigsResourceResponse),
    )


def alter_incrementally(
    cluster: Cluster, node_id: int, request: IncrementalAlterConfigsRequest, caller: Caller
) -> IncrementalAlterConfigsResponse:
    """Change the options of topics that the request names."""
    return IncrementalAlterConfigsResponse(
        throttle_time_ms=0,
        responses=_alter_all(
            cluster,
            request,
            _incremental_changes,
            incremental_alter_configs.AlterConfigsResourceResponse,
        ),
    )


def _alter_all(cluster: Cluster, request: Any, changes: Any, result: Any) -> tuple[Any, ...]:
    """Change the options of each resource; return its entry in the response, of type `result`.

    `changes` returns the changes that a resource of the request asks for, from the topic and the
    resource: option -> its new value, or None for its default. The types are `Any` because the two
    requests have messages of their own.
    """
    counts = Counter((one.resource_type, one.resource_name) for one in request.resources)

    def alter_one(resource: Any) -> Any:
        kind, name = resource.resource_type, resource.resource_name
        error, message = ErrorCode.NONE, None
        try:
            if counts[kind, name] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "a resource may appear only once")
            if kind != TOPIC or not name:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST, "only the options of topics can be changed here"
                )
            _check_names(config.name for config in resource.configs)
            topic = _topic(cluster, name)
            topic.configs.set(changes(topic, resource), validate_only=request.validate_only)
        except BrokerError as refused:
            error, message = ErrorCode(refused.code), str(refused)
        return result(
            error_code=error, error_message=message, resource_type=kind, resource_name=name
        )

    return tuple(alter_one(resource) for resource in request.resources)


def _check_names(names: Iterable[str]) -> None:
    if any(count > 1 for count in Counter(names).values()):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "an option may appear only once")


def _topic(cluster: Cluster, name: str) -> Topic:
    topic = cluster.topics.get(name)
    if topic is None:
        error = cluster.check_topic(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise BrokerError(error, name)
    return topic


def _new_values(configs: Iterable[alter_configs.AlterableConfig]) -> dict[str, str]:
    found = {}
    for config in configs:
        if config.value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{config.name} has no value")
        found[config.name] = config.value
    return found


def _incremental_changes(
    topic: Topic, resource: incremental_alter_configs.AlterConfigsResource
) -> dict[str, str | None]:
    changed: dict[str, str | None] = {}
    for config in resource.configs:
        name, operation, value = config.name, config.config_operation, config.value
        if operation not in tuple(ConfigOperation):
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name}: operation {operation}")
        if operation == ConfigOperation.DELETE:
            changed[name] = None
        elif value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{name} has no value")
        elif operation == ConfigOperation.SET:
            changed[name] = value
        else:
            changed[name] = _changed_list(topic, name, operation, split_list(value))
    return changed


def _changed_list(topic: Topic, name: str, operation: int, elements: list[str]) -> str:
    option = TOPIC_OPTIONS.get(name)
    if option is None or option.type is not ConfigType.LIST:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"{name} is not a list")
    present = split_list(topic.configs.own.get(name, option.default))
    if operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys(present + elements))
    # ConfigOperation.SUBTRACT: `_incremental_changes` has handled the others.
    return ",".join(element for element in present if element not in elements)
