"""Java's hash of a string, and its bucket in a `HashMap`.

Kafka counts the members' votes for a protocol in a `HashMap`, whose order of iteration decides a
tie. The hash of a group's id chooses its partition of `__consumer_offsets`.
"""

from __future__ import annotations

from functools import cache

__all__ = ["bucket", "java_hash"]


@cache
def java_hash(text: str) -> int:
    """Return `text.hashCode()` of Java, as an unsigned number."""
    value = 0
    encoded = text.encode("utf-16-be")
    # Two bytes are a `char` of Java.
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value


def bucket(key: str, size: int = 16) -> int:
    """Return the index of the key's bucket. `size` is a power of two; a `HashMap` of up to 12
    entries has 16."""
    value = java_hash(key)
    return (value ^ value >> 16) & (size - 1)
