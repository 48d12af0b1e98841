"""The partition counts that a static leader assigned by, stored in its own assignment. Pure.

When a static leader comes back, the coordinator keeps the assignment, and no member computes a new
one (KIP-814). Without these counts, the leader would not notice partitions that were added while it
was away, and no member would consume them.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup.errors import DecodeError
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import (
    assigned_user_data,
    decode_assignment,
    encode_assignment,
)

__all__ = ["encode_partition_counts", "partition_counts_in"]

_PREFIX = b"kafkagroup: partitions\0"
"""Marks the user data as this library's: leaders of other clients may store something else."""


def encode_partition_counts(counts: Mapping[str, int]) -> bytes:
    """Encode topic -> partition count as the user data of an assignment."""
    # A count n is written as partition n, the first that the topic does not have.
    return _PREFIX + encode_assignment(TopicPartition(t, n) for t, n in counts.items())


def partition_counts_in(assignment: bytes) -> dict[str, int] | None:
    """Return the partition counts in an assignment; None if it has none, or they are malformed.

    Raises: DecodeError if the assignment itself is malformed.
    """
    data = assigned_user_data(assignment)
    if data is None or not data.startswith(_PREFIX):
        return None
    try:
        # Each decoded "partition" is a tuple of topic and count: see `encode_partition_counts`.
        return dict(decode_assignment(data[len(_PREFIX) :]))
    except DecodeError:
        return None
