"""Checks one topic: whether it exists, has leaders and in-sync replicas, may be read, and has no
transaction that nothing ends."""

from __future__ import annotations

from collections.abc import Sequence

from kafkagroup._topics import LEGAL_NAME_RULE
from kafkagroup.admin.doctor.cluster import metadata_of
from kafkagroup.admin.doctor.findings import Finding, denied, failed, ok, warning
from kafkagroup.admin.doctor.requesting import request_from
from kafkagroup.admin.doctor.transactions import examine_transactions
from kafkagroup.errors import (
    AuthorizationError,
    BrokerError,
    ErrorCode,
    KafkaGroupError,
    broker_error,
)
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.metadata import MetadataResponseTopic

__all__ = ["examine_topic"]

_SHOWN = 5
"""The limit of partitions that a finding names."""


async def examine_topic(
    servers: Sequence[Address], options: ClientOptions, name: str
) -> list[Finding]:
    """Check a topic step by step; if it cannot be described, that is the only finding."""
    subject = name

    def failed_or_denied(check: str, error: KafkaGroupError) -> Finding:
        if isinstance(error, AuthorizationError):
            return denied(check, subject, error, f"--topic {name}", options)
        advice = "try again; then look into the brokers' logs"
        if isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_TOPIC_EXCEPTION:
            advice = f"no topic can have this name: names have {LEGAL_NAME_RULE}"
        return failed(check, subject, error, advice)

    try:
        metadata = await metadata_of(servers, options, name)
    except KafkaGroupError as error:
        return [failed_or_denied("topic", error)]
    topic = next((t for t in metadata.topics if t.name == name), None)
    if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        advice = (
            "check its name, which is case-sensitive, and that this is its cluster:"
            " Admin.list_topics() lists its topics, and Admin.create_topics() creates one"
        )
        return [failed("topic", subject, "there is no such topic", advice)]
    # With partitions, the code is that of one of them, such as LEADER_NOT_AVAILABLE, which
    # `_replicas` reports.
    if topic.error_code and not topic.partitions:
        refusal = broker_error(topic.error_code, operation="DESCRIBE", topic=name)
        return [failed_or_denied("topic", refusal)]
    found = [_replicas(subject, topic)]
    led = [one.partition_index for one in topic.partitions if one.leader_id >= 0]
    if led:
        tp = TopicPartition(name, min(led))
        try:
            await request_from(servers, options, lambda cluster: _check_may_read(cluster, tp))
        except KafkaGroupError as error:
            found.append(failed_or_denied("reading", error))
        else:
            found.append(ok("reading", subject, "is allowed"))
            found += await examine_transactions(servers, options, name, led)
    return found


def _replicas(subject: str, topic: MetadataResponseTopic) -> Finding:
    count = len(topic.partitions)
    leaderless = [one.partition_index for one in topic.partitions if one.leader_id < 0]
    if leaderless:
        return failed(
            "topic",
            subject,
            f"without a leader: {_numbers(leaderless, count)}",
            "restart the brokers that have their replicas",
        )
    behind = [
        one.partition_index
        for one in topic.partitions
        if len(one.isr_nodes) < len(one.replica_nodes)
    ]
    if behind:
        return warning(
            "topic",
            subject,
            f"fewer replicas in sync than there should be: {_numbers(behind, count)}",
            "check the brokers that are down or slow; below min.insync.replicas, writes with"
            " acks=all fail",
        )
    return ok("topic", subject, f"{count} partition{'' if count == 1 else 's'}, all in sync")


def _numbers(numbers: Sequence[int], count: int) -> str:
    """Name some partitions of a topic that has `count`: "partition 0, 3 of 6"."""
    named = ", ".join(map(str, sorted(numbers)[:_SHOWN]))
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"partition {named}{more} of {count}"


async def _check_may_read(cluster: Cluster, tp: TopicPartition) -> None:
    """Check whether the topic's records may be read: request those of one partition, and do not
    decode them. Raises: BrokerError, and what `Cluster.refresh` and a request raise."""
    with cluster.topics.during([tp.topic]):
        await cluster.refresh()
    response = await cluster.leader(tp).fetch_messages({tp: 0}, max_wait=0, partition_max_bytes=1)
    for topic in response.responses:
        for data in topic.partitions:
            # Offset 0 may be deleted by now: the client was allowed to request it all the same.
            if data.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                raise broker_error(data.error_code, operation="READ", topic=tp.topic)
