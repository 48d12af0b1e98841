"""Lists, describes, creates and deletes topics, and adds partitions to them.

Changes go to the controller, as brokers in ZooKeeper mode (before Kafka 4.0) forward none. If the
response to a change is lost, the controller may have made it: before the change is sent again, its
effect is looked up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kafkagroup._text import escaped
from kafkagroup._values import define
from kafkagroup.admin.values import NewTopic, PartitionDescription, TopicDescription
from kafkagroup.errors import (
    BrokerError,
    ConfigurationError,
    ErrorCode,
    RemoteProtocolError,
    broker_error,
)
from kafkagroup.runtime.client.calls import ChangeAttempts
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node, nodes_of
from kafkagroup.types import MAX_INT16, MAX_INT32
from kafkagroup.wire.error_codes import ABSENT
from kafkagroup.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from kafkagroup.wire.schema import NO_ID

__all__ = ["Attempts", "add_partitions", "create", "delete", "describe", "list_all"]

_NO_CONTROLLER = "the cluster has no controller at the moment"

_UNKNOWN = MetadataResponseTopic(
    name=None, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, partitions=()
)
"""Stands for a topic that a response does not have."""

_DEFAULT = -1
"""KIP-464: use the default of the cluster's configuration."""


class _Result(Protocol):
    """The controller's result for one topic."""

    @property
    def name(self) -> str | None: ...
    @property
    def error_code(self) -> int: ...
    @property
    def error_message(self) -> str | None: ...


async def list_all(cluster: Cluster) -> list[TopicDescription]:
    """Return every topic that the principal may describe, sorted by name."""
    response = await cluster.describe_topics(_metadata_request(None))
    nodes = nodes_of(response)
    topics = [_description(topic, nodes) for topic in response.topics if not topic.error_code]
    return sorted(topics, key=lambda topic: topic.name)


async def describe(cluster: Cluster, name: str) -> TopicDescription:
    """Return the description of one topic. Raises: BrokerError."""
    response = await cluster.describe_topics(_metadata_request([name]))
    for topic in response.topics:
        if topic.name == name:
            _raise_if_error(topic.error_code, None, f"describing topic {name!r}", "DESCRIBE", name)
            return _description(topic, nodes_of(response))
    raise RemoteProtocolError(f"the broker did not answer for topic {name!r}")


@define
class Attempts(ChangeAttempts):
    """The attempts to change one topic."""

    before: MetadataResponseTopic | None = None
    """The topic before the first attempt."""

    @property
    def was_absent(self) -> bool:
        """Whether the topic did not exist before the first attempt."""
        return self.before is not None and self.before.error_code in ABSENT

    async def begin(
        self, cluster: Cluster, name: str
    ) -> tuple[BrokerClient, MetadataResponseTopic]:
        """Return the controller, and the topic as it is before this attempt. The controller is not
        cached: after NOT_CONTROLLER another broker is the controller.

        Raises: BrokerError while there is no controller.
        """
        request = _metadata_request([name])
        # After a lost response another broker is asked if the first one does not know the topic: it
        # may lag behind. One that knows it may lag, too; then the codes `done` tell, see `check`.
        ask = cluster.describe_topics if self.is_lost else cluster.request_any
        response = await ask(request)
        topic = next((t for t in response.topics if t.name == name), _UNKNOWN)
        self.before = self.before or topic
        node = nodes_of(response).get(response.controller_id)
        if node is None:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, _NO_CONTROLLER)
        return cluster.broker(node), topic

    def check(
        self,
        results: Iterable[_Result],
        topic: str,
        doing: str,
        operation: str,
        *,
        done: Collection[int],
    ) -> None:
        """Raise the error of the topic's result, if it has one. After a lost response the codes
        `done` say that the change was made."""
        for result in results:
            if result.name == topic:
                if self.is_lost and result.error_code in done:
                    return
                # The controller may have made the change, and not every broker knows it yet. The
                # next attempt looks it up, as after a lost response.
                self.is_lost |= result.error_code == ErrorCode.REQUEST_TIMED_OUT
                what = f"{doing} {topic!r}"
                _raise_if_error(result.error_code, result.error_message, what, operation, topic)
                return
        raise RemoteProtocolError(f"the controller did not answer for topic {topic!r}")


async def create(
    cluster: Cluster, topic: NewTopic, attempts: Attempts, *, validate_only: bool
) -> None:
    """Create a topic. Raises: BrokerError; ConfigurationError."""
    if topic.partitions is not None:
        _check_count(topic.name, "partitions", topic.partitions, MAX_INT32)
    if topic.replication_factor is not None:
        _check_count(topic.name, "replication_factor", topic.replication_factor, MAX_INT16)
    _check_configs(topic)
    controller, found = await attempts.begin(cluster, topic.name)
    if attempts.is_lost and attempts.was_absent and not found.error_code and not validate_only:
        return
    request = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=topic.name,
                num_partitions=_DEFAULT if topic.partitions is None else topic.partitions,
                replication_factor=(
                    _DEFAULT if topic.replication_factor is None else topic.replication_factor
                ),
                assignments=(),
                configs=tuple(
                    CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ),
            ),
        ),
        timeout_ms=_timeout_ms(cluster),
        validate_only=validate_only,
    )
    response = await attempts.send(controller, request)
    done = (ErrorCode.TOPIC_ALREADY_EXISTS,) if attempts.was_absent and not validate_only else ()
    attempts.check(response.topics, topic.name, "creating topic", "CREATE", done=done)


async def delete(cluster: Cluster, name: str, attempts: Attempts) -> None:
    """Delete a topic. Raises: BrokerError."""
    controller, found = await attempts.begin(cluster, name)
    before = attempts.before
    existed = before is not None and not before.error_code
    # `before` is not None if it existed, but type checkers do not see that.
    if attempts.is_lost and before is not None and existed:
        has_ids = NO_ID not in (found.topic_id, before.topic_id)  # brokers since 2.8
        was_recreated = has_ids and found.topic_id != before.topic_id
        if found.error_code in ABSENT or was_recreated:
            return  # another client's topic of this name must stay
    request = DeleteTopicsRequest(topic_names=(name,), timeout_ms=_timeout_ms(cluster))
    # Version 6 only adds topic ids, in a layout that brokers before 2.8 do not know; all releases
    # up to 4.3 support version 5 or an earlier one.
    response = await attempts.send(controller, request, highest=5)
    done = ABSENT if existed else ()
    attempts.check(response.responses, name, "deleting topic", "DELETE", done=done)


async def add_partitions(
    cluster: Cluster, name: str, count: int, attempts: Attempts, *, validate_only: bool
) -> None:
    """Increase a topic's partitions to a total of `count`. Raises: BrokerError;
    ConfigurationError."""
    _check_count(name, "the total of partitions", count, MAX_INT32)
    controller, found = await attempts.begin(cluster, name)
    had_fewer = attempts.before is not None and 0 < len(attempts.before.partitions) < count
    if attempts.is_lost and had_fewer and len(found.partitions) == count and not validate_only:
        return
    request = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name=name, count=count, assignments=None),),
        timeout_ms=_timeout_ms(cluster),
        validate_only=validate_only,
    )
    response = await attempts.send(controller, request)
    done = (ErrorCode.INVALID_PARTITIONS,) if had_fewer and not validate_only else ()
    attempts.check(response.results, name, "adding partitions to topic", "ALTER", done=done)


def _check_count(topic: str, name: str, value: object, most: int) -> None:
    # bool is a subclass of int.
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigurationError(
            f"topic {topic!r}: {name}={value!r}; expected a whole number from 1 to {most}"
        )


def _check_configs(topic: NewTopic) -> None:
    """Raises: ConfigurationError for what cannot be sent."""
    if not isinstance(topic.configs, Mapping):
        raise ConfigurationError(
            f"topic {topic.name!r}: configs={topic.configs!r}; expected a mapping, such as"
            " {'cleanup.policy': 'compact'}"
        )
    for name, value in topic.configs.items():
        if not isinstance(name, str):
            raise ConfigurationError(
                f"topic {topic.name!r}: the config {name!r} is no string; expected Kafka's name"
            )
        if not isinstance(value, str):
            raise ConfigurationError(
                f"topic {topic.name!r}: {name}={value!r}; expected a string, such as {str(value)!r}"
            )


def _timeout_ms(cluster: Cluster) -> int:
    """Return how long the controller may wait until every broker knows the change."""
    return round(cluster.options.request_timeout * 1000)


def _metadata_request(names: Sequence[str] | None) -> MetadataRequest:
    """Return the request for the metadata of these topics; None: of all."""
    topics = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _description(topic: MetadataResponseTopic, nodes: dict[int, Node]) -> TopicDescription:
    return TopicDescription(
        name=topic.name or "",
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions=tuple(
            PartitionDescription(
                partition=one.partition_index,
                leader=nodes.get(one.leader_id),
                leader_epoch=one.leader_epoch,
                replicas=one.replica_nodes,
                in_sync_replicas=one.isr_nodes,
                offline_replicas=one.offline_replicas,
            )
            for one in sorted(topic.partitions, key=lambda one: one.partition_index)
        ),
    )


def _raise_if_error(code: int, why: str | None, what: str, operation: str, topic: str) -> None:
    if code:
        message = f"{what}: {escaped(why)}" if why else what
        raise broker_error(code, message, operation=operation, topic=topic)
