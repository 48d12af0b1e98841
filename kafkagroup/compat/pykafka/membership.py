"""pykafka's group membership protocols, as immutable values that consumers can share.

In pykafka, `RangeProtocol` is a single object, and each consumer overwrites its metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kafkagroup import ConfigurationError, TopicPartition
from kafkagroup.assign import (
    Assignor,
    decide_partitions_range,
    decide_partitions_roundrobin,
    deciding,
)
from kafkagroup.compat.pykafka.protocol import text
from kafkagroup.wire import Subscription, encode_subscription

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
    """How the members of a group agree on the assignment."""

    protocol_type: bytes
    """b"consumer" for consumers."""
    protocol_name: bytes
    """The name by which members agree on the protocol."""
    metadata: bytes
    """The metadata that `Broker.join_group` sends to the leader; b"" sends the subscription to the
    topic. A consumer ignores this, and always sends its subscription."""
    decide_partitions: DecidePartitions
    """Called with the ids of all participants, the partitions by id, and the id of one participant;
    returns that participant's partitions."""


RangeProtocol = GroupMembershipProtocol(b"consumer", b"range", b"", decide_partitions_range)
RoundRobinProtocol = GroupMembershipProtocol(
    b"consumer", b"roundrobin", b"", decide_partitions_roundrobin
)


def metadata_of(protocol: GroupMembershipProtocol, topic: str | bytes | None) -> bytes:
    """Return the metadata that a member sends to the leader. `topic`: the topic that it consumes;
    None if the caller has named none."""
    if protocol.metadata or topic is None:
        return bytes(protocol.metadata)
    return encode_subscription(Subscription(topics=(text(topic),)))


def assignor_of(protocol: GroupMembershipProtocol) -> Assignor:
    """Return the protocol as an assignor. Raises: ConfigurationError if it is not for consumers."""
    if protocol.protocol_type != b"consumer":
        raise ConfigurationError(
            f"protocol_type={protocol.protocol_type!r}; a consumer's is b'consumer', and for other"
            " groups there is kafkagroup.GroupMember"
        )

    def decide(
        members: list[str], partitions: list[TopicPartition], member: str
    ) -> Iterable[TopicPartition]:
        # The partitions are those of one topic, so that their numbers are their ids.
        participants = [other.encode() for other in members]
        by_id = {tp.partition: tp for tp in partitions}
        return protocol.decide_partitions(participants, by_id, member.encode())

    return deciding(protocol.protocol_name.decode(), decide)
