"""Why a topic or partition cannot be used: it does not exist, has an illegal name, or this client
is not authorized to describe it. Reads the metadata; sends no request."""

from __future__ import annotations

from kafkagroup._text import escaped
from kafkagroup._topics import LEGAL_NAME_RULE, is_legal_name
from kafkagroup.errors import BrokerError, ErrorCode, broker_error
from kafkagroup.transport.metadata import ClusterMetadata
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition

__all__ = ["partition_error", "topic_problem"]


def topic_problem(metadata: ClusterMetadata, name: str) -> Problem | None:
    """Return why a topic cannot be consumed, and what to do; None if it can be consumed, or if the
    metadata does not show yet whether it can."""
    code = _code(metadata, name)
    match code:
        case ErrorCode.NONE:
            return None
        case ErrorCode.INVALID_TOPIC_EXCEPTION:
            cause, advice = "its name is illegal", f"names of topics have {LEGAL_NAME_RULE}"
        case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            cause = "it may not be described"
            advice = "this client's principal needs an ACL that allows it READ (or DESCRIBE)"
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            cause = "it does not exist"
            advice = "create it, or correct the name; once it exists it is consumed"
        case _:
            cause, advice = "its partitions are not known", "check the brokers' logs"
    subject = f"topic '{escaped(name)}'"
    return Problem(
        subject=subject, cause=f"{cause}: {BrokerError(code)}", advice=advice, topic=name
    )


def partition_error(metadata: ClusterMetadata, tp: TopicPartition, what: str) -> BrokerError | None:
    """Return the error of a partition that cannot be used; None if it can be used, or if the
    metadata does not show yet whether it can. `what` begins the error's text."""
    code = _code(metadata, tp.topic)
    topic = metadata.topics.get(tp.topic)
    if topic is not None and topic.partitions and tp.partition not in topic.partitions:
        message = f"{what}: topic {tp.topic} has {len(topic.partitions)} partitions"
        return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        what = f"{what}: the topic does not exist"
    return broker_error(code, what, operation="DESCRIBE", topic=tp.topic) if code else None


def _code(metadata: ClusterMetadata, name: str) -> int:
    """Return a topic's error code; 0 if its partitions are known, or may be soon: the metadata does
    not have the topic yet, or it is being created."""
    if not is_legal_name(name):
        # The metadata cannot tell: `merging.merge` drops illegal names.
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    topic = metadata.topics.get(name)
    if topic is None or topic.partitions or topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE:
        return ErrorCode.NONE
    return topic.error_code
