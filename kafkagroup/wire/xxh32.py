"""The checksum of an LZ4 frame's header: XXH32, of fewer than 16 bytes only.

Source: the specification of xxHash.
"""

from __future__ import annotations

__all__ = ["xxh32"]

_PRIMES = (2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263, 374_761_393)
_MASK = 0xFFFFFFFF


def xxh32(data: bytes | memoryview) -> int:
    """Return the XXH32, with seed 0, of fewer than 16 bytes: such input has no stripes."""
    value = _PRIMES[4] + len(data)
    words = len(data) & ~3
    for pos in range(0, words, 4):
        value += int.from_bytes(data[pos : pos + 4], "little") * _PRIMES[2]
        value = _rotated(value, 17) * _PRIMES[3]
    for byte in data[words:]:
        value = _rotated(value + byte * _PRIMES[4], 11) * _PRIMES[0]
    value &= _MASK
    value = (value ^ value >> 15) * _PRIMES[1] & _MASK
    value = (value ^ value >> 13) * _PRIMES[2] & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
