"""Which partition a key goes to, as Kafka's own producers decide it. Pure.

Records of one key must meet in one partition, whoever writes them. Source: the hash that Austin
Appleby published as MurmurHash2, with the seed that Kafka's Java client takes.
"""

from __future__ import annotations

__all__ = ["murmur2", "partition_of"]

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash, of 32 bits without a sign. O(bytes)."""
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
    """The number of the partition, of so many, that a key's records go to."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
