"""Metadata responses of a broker that lags behind, as faults of the embedded broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded import Change
from kafkagroup.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from kafkagroup.wire.schema import NO_ID

__all__ = ["lagging", "unlisted", "with_count", "without_node", "without_topics"]


def lagging(change: Callable[[MetadataResponseTopic], Any]) -> Change:
    """Return a fault that changes each topic of a response; it lists the brokers, as Kafka does."""

    def changed(response: MetadataResponse) -> MetadataResponse:
        return attrs.evolve(response, topics=tuple(map(change, response.topics)))

    return Change(changed)


def without_topics(code: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> Change:
    """Return the response of a broker that has this error for each topic."""
    return lagging(
        lambda topic: attrs.evolve(topic, error_code=code, topic_id=NO_ID, partitions=())
    )


def with_count(count: int) -> Change:
    """Return the response of a broker that knows only the first `count` partitions."""
    return lagging(lambda topic: attrs.evolve(topic, partitions=tuple(topic.partitions)[:count]))


def unlisted() -> Change:
    """Return the response of a broker that leaves out all topics."""
    return Change(lambda response: attrs.evolve(response, topics=()))


def without_node(node_id: int) -> Change:
    """Return the response of a broker that does not list this one."""
    return Change(
        lambda response: attrs.evolve(
            response, brokers=tuple(b for b in response.brokers if b.node_id != node_id)
        )
    )
