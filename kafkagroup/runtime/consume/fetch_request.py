"""Builds fetch requests from the state of a fetch session; finds the topic names in responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from kafkagroup.consume.fetch_session import SessionRequest
from kafkagroup.consume.owned import TopicEvidence
from kafkagroup.options import ConsumerOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

__all__ = ["HIGHEST_BY_NAME", "fetch_request", "partitions_of"]

HIGHEST_BY_NAME = 12
"""The highest version of Fetch that has topic names; later versions have topic ids."""


def fetch_request(
    session_request: SessionRequest,
    options: ConsumerOptions,
    *,
    max_bytes: int,
    wait: float,
    rack: str,
) -> FetchRequest:
    """Return the request that `session_request` describes, which the broker may hold for `wait`
    seconds. `rack`: the client's rack, so that a leader may name a replica there (KIP-392); "" to
    get the records from the leaders themselves."""
    return FetchRequest(
        max_wait_ms=round(wait * 1000),
        min_bytes=options.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=options.isolation_level,
        session_id=session_request.session_id,
        session_epoch=session_request.epoch,
        topics=tuple(
            FetchTopic(
                topic=topic,
                topic_id=session_request.topic_ids[topic],
                partitions=tuple(session_request.partitions[tp] for tp in partitions),
            )
            for topic, partitions in _by_topic(session_request.partitions).items()
        ),
        forgotten_topics_data=tuple(
            ForgottenTopic(
                topic=topic,
                topic_id=session_request.topic_ids[topic],
                partitions=tuple(tp.partition for tp in partitions),
            )
            for topic, partitions in _by_topic(session_request.forgotten).items()
        ),
        rack_id=rack,
    )


def partitions_of(
    response: FetchResponse, topic_ids: Mapping[str, UUID]
) -> Iterator[tuple[TopicPartition, PartitionData, TopicEvidence]]:
    """Yield the partitions of a response, each with what it proves of the topic's id if it has no
    error. `topic_ids`: those in the request, by name; a topic with another id gets the name ""."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    for topic in response.responses:
        name = topic.topic or names.get(topic.topic_id, "")
        evidence = TopicEvidence.READ_BY_NAME if topic.topic else TopicEvidence.READ_BY_ID
        for data in topic.partitions:
            yield TopicPartition(name, data.partition_index), data, evidence


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp)
    return by_topic
