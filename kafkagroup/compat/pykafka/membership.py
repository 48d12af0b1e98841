"""pykafka's group membership protocols: values, shared by any number of consumers.

In pykafka `RangeProtocol` is one object whose metadata each consumer overwrites with its own topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kafkagroup import ConfigurationError, Subscription, TopicPartition, encode_subscription
from kafkagroup.assign import (
    Assignor,
    decide_partitions_range,
    decide_partitions_roundrobin,
    deciding,
)
from kafkagroup.compat.pykafka.protocol import text

__all__ = [
    "GroupMembershipProtocol",
    "RangeProtocol",
    "RoundRobinProtocol",
    "assignor_of",
    "decide_partitions_range",
    "decide_partitions_roundrobin",
    "metadata_of",
]

DecidePartitions = Callable[[list[bytes], Mapping[int, Any], bytes], Iterable[Any]]


class GroupMembershipProtocol(NamedTuple):
    """How the members of a group agree on who consumes what."""

    protocol_type: bytes
    """b"consumer", for consumers."""
    protocol_name: bytes
    """What members agree on."""
    metadata: bytes
    """What a member tells the leader; b"" for the subscription to its topic."""
    decide_partitions: DecidePartitions
    """Called with the ids of all participants, partitions by their ids, and one participant's id;
    answers with that one's partitions."""


RangeProtocol = GroupMembershipProtocol(b"consumer", b"range", b"", decide_partitions_range)
RoundRobinProtocol = GroupMembershipProtocol(
    b"consumer", b"roundrobin", b"", decide_partitions_roundrobin
)


def metadata_of(protocol: GroupMembershipProtocol, topic: str | bytes | None) -> bytes:
    """What a member that consumes the topic tells the leader."""
    if protocol.metadata or topic is None:
        return bytes(protocol.metadata)
    return encode_subscription(Subscription(topics=(text(topic),)))


def assignor_of(protocol: GroupMembershipProtocol) -> Assignor:
    """The protocol as an assignor. Raises: ConfigurationError when it is not for consumers."""
    if protocol.protocol_type != b"consumer":
        raise ConfigurationError(
            f"protocol_type={protocol.protocol_type!r}; a consumer's is b'consumer', and for other"
            " groups there is kafkagroup.GroupMember"
        )

    def decide(
        members: list[str], partitions: list[TopicPartition], member: str
    ) -> Iterable[TopicPartition]:
        participants = [other.encode() for other in members]
        by_id = {tp.partition: tp for tp in partitions}
        return protocol.decide_partitions(participants, by_id, member.encode())

    return deciding(protocol.protocol_name.decode(), decide)
