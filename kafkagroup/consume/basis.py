"""What a static leader leaves to itself, in its own assignment: what that was computed from. Pure.

When it comes back, the group's assignment stands, and nobody computes another (KIP-814). Without
this, partitions that were added while it was away would be read by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkagroup.errors import DecodeError
from kafkagroup.types import TopicPartition
from kafkagroup.wire.group_log import assigned_user_data, decode_assignment, encode_assignment

__all__ = ["basis_in", "encode_basis"]

_MARK = b"kafkagroup: partitions\0"
"""Other clients' leaders may leave something else."""


def encode_basis(counts: Mapping[str, int]) -> bytes:
    """Partition counts by topic, as user data of an assignment."""
    # Each is written as the partition that the topic does not have any more.
    return _MARK + encode_assignment(TopicPartition(t, n) for t, n in counts.items())


def basis_in(assignment: bytes) -> dict[str, int] | None:
    """The partition counts in an assignment; None if there are none that can be read."""
    data = assigned_user_data(assignment)
    if data is None or not data.startswith(_MARK):
        return None
    try:
        return dict(decode_assignment(data[len(_MARK) :]))
    except DecodeError:
        return None
