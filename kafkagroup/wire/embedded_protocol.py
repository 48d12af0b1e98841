"""Subscriptions and assignments: the embedded protocol of classic groups of type "consumer".

The coordinator forwards these bytes unchecked, so they come from other clients, not from the
broker: everything in them is checked here. Source: KIP-429 (v1), KIP-792 (v2), KIP-881 (v3).
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkagroup._values import frozen
from kafkagroup.errors import DecodeError, LimitExceededError
from kafkagroup.types import TopicPartition, by_topic
from kafkagroup.wire.codec import decode_prefix, encode
from kafkagroup.wire.schema import BYTES, INT32, STRING, array, field, message, struct

__all__ = [
    "MAX_PARTITIONS",
    "Subscription",
    "assigned_partitions",
    "assigned_user_data",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

MAX_PARTITIONS = 100_000
"""The maximum number of partitions that one member may own or be assigned, as in the largest groups
that this library is designed for."""

_VERSION = 3
"""The highest known version. Later versions only append fields, so they are decoded as this one."""

_VERSION_BYTES = 2


@struct
class _TopicPartitions:
    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@message(-1, "0-3")
class ConsumerProtocolSubscription:
    topics: tuple[str, ...] = field(array(STRING))
    user_data: bytes | None = field(BYTES, default=None, nullable="0+")
    owned_partitions: tuple[_TopicPartitions, ...] = field(
        array(_TopicPartitions), "1+", default=(), ignorable=True
    )
    generation_id: int = field(INT32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(STRING, "3+", default=None, nullable="3+", ignorable=True)


@message(-1, "0-3")
class ConsumerProtocolAssignment:
    """The assigned partitions. `_UserData` follows as a separate message: pykafka omits it."""

    assigned_partitions: tuple[_TopicPartitions, ...] = field(array(_TopicPartitions))


@message(-1, "0-3")
class _UserData:
    user_data: bytes | None = field(BYTES, default=None, nullable="0+")


@frozen(kw_only=True)
class Subscription:
    """A member's subscribed topics, and the partitions that it owned when it joined."""

    topics: tuple[str, ...]
    """Sorted, without duplicates."""
    user_data: bytes | None = None
    """The bytes that the assignor added; None if it added none."""
    owned: tuple[TopicPartition, ...] = ()
    """Sorted; empty before v1."""
    generation: int = -1
    """The generation in which the member owned `owned`; -1 before v2."""
    rack: str | None = None
    """None also for an empty string, which Java sends if no rack is set."""


def encode_subscription(subscription: Subscription, version: int = _VERSION) -> bytes:
    """Encode a subscription in a version of the protocol, as JoinGroup carries it in a member's
    metadata. Fields that the version does not have are left out."""
    body = ConsumerProtocolSubscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=_grouped(subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return version.to_bytes(_VERSION_BYTES, "big") + encode(body, version)


def decode_subscription(data: bytes) -> Subscription:
    """Decode the subscription in a member's metadata. Raises: DecodeError."""
    version = _version(data, "subscription")
    body, _ = decode_prefix(ConsumerProtocolSubscription, version, data, _VERSION_BYTES)
    if len(set(body.topics)) != len(body.topics):
        raise DecodeError("subscription names a topic twice")
    return Subscription(
        topics=tuple(sorted(body.topics)),
        user_data=body.user_data,
        owned=_flat(
            tuple((topic.topic, topic.partitions) for topic in body.owned_partitions),
            "subscription",
        ),
        generation=body.generation_id,
        rack=body.rack_id or None,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None, version: int = _VERSION
) -> bytes:
    """Encode the assignment of one member in a version of the protocol, as SyncGroup carries it."""
    body = ConsumerProtocolAssignment(assigned_partitions=_grouped(partitions))
    added = _UserData(user_data=user_data)
    return version.to_bytes(_VERSION_BYTES, "big") + encode(body, version) + encode(added, version)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions in an assignment, sorted; none for empty bytes. Raises: DecodeError.

    The coordinator sends empty bytes to a member for which the leader sent no assignment.
    """
    return assigned_partitions((topic.topic, topic.partitions) for topic in _assignment(data)[0])


def assigned_partitions(
    topics: Iterable[tuple[str, tuple[int, ...]]],
) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment, sorted. `topics`: pairs of a topic and its partition
    numbers. Raises: DecodeError."""
    return _flat(tuple(topics), "assignment")


def assigned_user_data(data: bytes) -> bytes | None:
    """Return the user data that the leader added to an assignment; None if it added none. Raises:
    DecodeError."""
    return _assignment(data)[1]


def _assignment(data: bytes) -> tuple[tuple[_TopicPartitions, ...], bytes | None]:
    if not data:
        return (), None
    version = _version(data, "assignment")
    body, end = decode_prefix(ConsumerProtocolAssignment, version, data, _VERSION_BYTES)
    if end == len(data):
        # A pykafka leader writes no user data: if this were an error, no other member of its group
        # would own anything.
        return body.assigned_partitions, None
    return body.assigned_partitions, decode_prefix(_UserData, version, data, end)[0].user_data


def _version(data: bytes, what: str) -> int:
    """Return the version to decode a message in. Raises: DecodeError."""
    if len(data) < _VERSION_BYTES:
        raise DecodeError(f"{what} of {len(data)} bytes has no version")
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if version < 0:
        raise DecodeError(f"{what} of version {version}")
    return min(version, _VERSION)


def _grouped(partitions: Iterable[TopicPartition]) -> tuple[_TopicPartitions, ...]:
    return tuple(
        _TopicPartitions(topic=topic, partitions=tuple(numbers))
        for topic, numbers in by_topic(partitions).items()
    )


def _flat(topics: tuple[tuple[str, tuple[int, ...]], ...], what: str) -> tuple[TopicPartition, ...]:
    """Return the partitions, checked and sorted. `what` names the message in errors. Raises:
    DecodeError, also its subclass LimitExceededError."""
    count = sum(len(partitions) for _, partitions in topics)
    if count > MAX_PARTITIONS:
        raise LimitExceededError(f"{what} of {count} partitions; the limit is {MAX_PARTITIONS}")
    flat = tuple(sorted(TopicPartition(topic, p) for topic, numbers in topics for p in numbers))
    if len(set(flat)) != count:
        raise DecodeError(f"{what} names a partition twice")
    if any(p < 0 for _, p in flat):
        raise DecodeError(f"{what} names a partition below zero")
    return flat
