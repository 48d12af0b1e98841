"""The partition of a key, as the Java client's producers choose it. Pure.

All producers must write the records of a key to the same partition. This file is compiled, with the
types in `murmur2.pxd`, where a compiler is available. Source: MurmurHash2, as Austin Appleby
published it, with the seed of Kafka's Java client.
"""

from __future__ import annotations

__all__ = ["murmur2", "partition_in", "partition_of"]

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash of `data` as an unsigned 32-bit integer. O(bytes)."""
    return _hash(data, 0, len(data))


def partition_of(key: bytes, partitions: int) -> int:
    """Return the number of the key's partition, in a topic of `partitions` partitions."""
    return partition_in(key, 0, len(key), partitions)


def partition_in(buf: bytes | memoryview, start: int, end: int, partitions: int) -> int:
    """Return the partition of the key `buf[start:end]`, in a topic of `partitions` partitions. Like
    the Java client, clear the sign bit of the hash."""
    return (_hash(buf, start, end) & 0x7FFFFFFF) % partitions


def _hash(buf: bytes | memoryview, start: int, end: int) -> int:
    size = end - start
    mixed = _SEED ^ size
    at = start
    while at + 4 <= end:
        part = buf[at] | buf[at + 1] << 8 | buf[at + 2] << 16 | buf[at + 3] << 24
        part = part * _FACTOR & _MASK
        part = (part ^ part >> 24) * _FACTOR & _MASK
        mixed = mixed * _FACTOR & _MASK ^ part
        at += 4
    if at < end:
        shift = 0
        while at < end:
            mixed ^= buf[at] << shift
            shift += 8
            at += 1
        mixed = mixed * _FACTOR & _MASK
    mixed = (mixed ^ mixed >> 13) * _FACTOR & _MASK
    return mixed ^ mixed >> 15
