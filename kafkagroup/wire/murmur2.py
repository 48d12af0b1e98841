"""The partition of a key, as Kafka's own producers choose it. Pure.

All producers must write the records of a key to the same partition. Source: MurmurHash2, as Austin
Appleby published it, with the seed of Kafka's Java client.
"""

from __future__ import annotations

__all__ = ["murmur2", "partition_of"]

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash of `data` as an unsigned 32-bit integer. O(bytes)."""
    size = len(data)
    mixed = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _MASK
        part = (part ^ part >> 24) * _FACTOR & _MASK
        mixed = mixed * _FACTOR & _MASK ^ part
    if size > whole:
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    mixed = (mixed ^ mixed >> 13) * _FACTOR & _MASK
    return mixed ^ mixed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the number of the key's partition, in a topic of `partitions` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
