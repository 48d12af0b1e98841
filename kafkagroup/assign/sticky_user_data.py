"""User data of sticky members: their last assignment, in Java's format, which all clients use.

The bytes come from other members: lengths are checked, and nothing is raised. The partitions need
not exist.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kafkagroup.errors import DecodeError
from kafkagroup.types import TopicPartition, by_topic

__all__ = ["MAX_PARTITIONS", "decode_user_data", "encode_user_data"]

MAX_PARTITIONS = 100_000
"""Most partitions that one member may report: those of the largest group that is supported."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

_NO_ASSIGNMENT: tuple[tuple[TopicPartition, ...], int] = ((), -1)


def encode_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode a member's last assignment, and its generation, as user data of its subscription.

    Java's version 1: an array of (topic, array of partitions), then the generation.
    """
    topics = by_topic(owned)
    data = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        data += (
            _INT16.pack(len(name)),
            name,
            struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers),
        )
    data.append(_INT32.pack(generation))
    return b"".join(data)


def decode_user_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """Return a member's last assignment and its generation; () and -1 if there is none.

    Reads Java's version 1 and its version 0, which ends before the generation. Bytes that a later
    version may append are ignored, as in Java. Raises nothing: malformed data counts as none, and
    costs one member its stickiness, not the group its assignment. More than MAX_PARTITIONS count as
    malformed.
    """
    try:
        return _decode(data or b"")
    except (struct.error, UnicodeDecodeError, DecodeError):
        return _NO_ASSIGNMENT


def _decode(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    if not data:
        return _NO_ASSIGNMENT
    owned: list[TopicPartition] = []
    topics, at = _read_count(data, 0)
    for _ in range(topics):
        size: int = _INT16.unpack_from(data, at)[0]
        at += _INT16.size
        if not 0 <= size <= len(data) - at:
            raise DecodeError(f"a name of {size} bytes where {len(data) - at} are left")
        topic = data[at : at + size].decode()
        partitions, at = _read_count(data, at + size)
        if len(owned) + partitions > MAX_PARTITIONS:
            raise DecodeError(f"more than {MAX_PARTITIONS} partitions")
        numbers = struct.unpack_from(f">{partitions}i", data, at)
        owned += (TopicPartition(topic, number) for number in numbers)
        at += partitions * _INT32.size
    generation: int = _INT32.unpack_from(data, at)[0] if at + _INT32.size <= len(data) else -1
    return tuple(owned), max(generation, -1)


def _read_count(data: bytes, at: int) -> tuple[int, int]:
    """Return the length of an array, and the offset of its first element. Each element has at least
    4 bytes."""
    count: int = _INT32.unpack_from(data, at)[0]
    at += _INT32.size
    if not 0 <= count * _INT32.size <= len(data) - at:
        raise DecodeError(f"an array of {count} where {len(data) - at} bytes are left")
    return count, at
