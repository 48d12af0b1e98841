"""What members of a "consumer" group tell each other: subscriptions and assignments.

The coordinator passes these bytes on unread, so they come from other clients, not from the broker:
everything in them is checked. Source: KIP-429 (v1), KIP-792 (v2), KIP-881 (v3).
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkagroup._public import public
from kafkagroup._values import frozen
from kafkagroup.errors import DecodeError, LimitExceededError
from kafkagroup.types import TopicPartition
from kafkagroup.wire.codec import decode_prefix, encode
from kafkagroup.wire.schema import BYTES, INT32, STRING, array, field, message, struct

__all__ = [
    "MAX_PARTITIONS",
    "Subscription",
    "assigned_user_data",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

MAX_PARTITIONS = 100_000
"""Most partitions that one member may own or be assigned: the largest groups planned for."""

_VERSION = 3
"""Highest version known. Newer ones only append fields, so they parse as this one."""

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
    """Its partitions; `_UserData` follows, in a message of its own as pykafka leaves it out."""

    assigned_partitions: tuple[_TopicPartitions, ...] = field(array(_TopicPartitions))


@message(-1, "0-3")
class _UserData:
    user_data: bytes | None = field(BYTES, default=None, nullable="0+")


@public
@frozen(kw_only=True)
class Subscription:
    """What one member subscribes to, and what it owned when it joined."""

    topics: tuple[str, ...]
    """Sorted, without duplicates."""
    user_data: bytes | None = None
    """The assignor's own bytes."""
    owned: tuple[TopicPartition, ...] = ()
    """Sorted; empty before v1."""
    generation: int = -1
    """The generation in which `owned` was owned; -1 before v2."""
    rack: str | None = None
    """None also for an empty string, as Java sends one where no rack is set."""


def encode_subscription(subscription: Subscription, version: int = _VERSION) -> bytes:
    """The metadata of one member, as JoinGroup carries it."""
    body = ConsumerProtocolSubscription(
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=_grouped(subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return version.to_bytes(_VERSION_BYTES, "big") + encode(body, version)


def decode_subscription(data: bytes) -> Subscription:
    """The subscription in a member's metadata. Raises: DecodeError."""
    version = _version(data, "subscription")
    body, _ = decode_prefix(ConsumerProtocolSubscription, version, data, _VERSION_BYTES)
    if len(set(body.topics)) != len(body.topics):
        raise DecodeError("subscription names a topic twice")
    return Subscription(
        topics=tuple(sorted(body.topics)),
        user_data=body.user_data,
        owned=_flat(body.owned_partitions, "subscription"),
        generation=body.generation_id,
        rack=body.rack_id or None,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None, version: int = _VERSION
) -> bytes:
    """The assignment of one member, as SyncGroup carries it."""
    body = ConsumerProtocolAssignment(assigned_partitions=_grouped(partitions))
    added = _UserData(user_data=user_data)
    return version.to_bytes(_VERSION_BYTES, "big") + encode(body, version) + encode(added, version)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in an assignment, sorted; none for empty bytes. Raises: DecodeError.

    A coordinator answers empty bytes to a member that the leader left out.
    """
    return _flat(_assignment(data)[0], "assignment")


def assigned_user_data(data: bytes) -> bytes | None:
    """What the leader added to an assignment. Raises: DecodeError."""
    return _assignment(data)[1]


def _assignment(data: bytes) -> tuple[tuple[_TopicPartitions, ...], bytes | None]:
    if not data:
        return (), None
    version = _version(data, "assignment")
    body, end = decode_prefix(ConsumerProtocolAssignment, version, data, _VERSION_BYTES)
    if end == len(data):
        # pykafka's leaders write no user data. Refused, a member beside one would own nothing.
        return body.assigned_partitions, None
    return body.assigned_partitions, decode_prefix(_UserData, version, data, end)[0].user_data


def _version(data: bytes, what: str) -> int:
    if len(data) < _VERSION_BYTES:
        raise DecodeError(f"{what} of {len(data)} bytes has no version")
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if version < 0:
        raise DecodeError(f"{what} of version {version}")
    return min(version, _VERSION)


def _grouped(partitions: Iterable[TopicPartition]) -> tuple[_TopicPartitions, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return tuple(
        _TopicPartitions(topic=topic, partitions=tuple(numbers))
        for topic, numbers in by_topic.items()
    )


def _flat(topics: tuple[_TopicPartitions, ...], what: str) -> tuple[TopicPartition, ...]:
    count = sum(len(t.partitions) for t in topics)
    if count > MAX_PARTITIONS:
        raise LimitExceededError(f"{what} of {count} partitions; the limit is {MAX_PARTITIONS}")
    flat = tuple(sorted(TopicPartition(t.topic, p) for t in topics for p in t.partitions))
    if len(set(flat)) != count:
        raise DecodeError(f"{what} names a partition twice")
    if any(p < 0 for _, p in flat):
        raise DecodeError(f"{what} names a partition below zero")
    return flat
