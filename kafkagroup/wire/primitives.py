"""Unsigned varints: the lengths, counts and tags of flexible versions.

Fields of fixed width have no function here: the compiled codecs unpack several of them at once. The
signed varints of records are read in `records`.
"""

from __future__ import annotations

from kafkagroup.errors import DecodeError

__all__ = ["UVARINT_1", "encode_uvarint", "read_uvarint"]

Buffer = bytes | bytearray | memoryview

UVARINT_1: tuple[bytes, ...] = tuple(bytes((n,)) for n in range(128))
"""Number -> its encoding, for the numbers whose encoding is one byte: nearly every length is."""


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned LEB128 integer of at most 32 bits; return it and the offset after it.

    Raises: DecodeError.
    """
    value = shift = 0
    end = len(buf)
    while pos < end:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise DecodeError("unsigned varint exceeds 32 bits")
            return value, pos
        shift += 7
        if shift > 28:
            raise DecodeError("unsigned varint is longer than 5 bytes")
    raise DecodeError("input ends inside an unsigned varint")


def encode_uvarint(value: int) -> bytes:
    """Encode 0 <= value < 2^32 as unsigned LEB128."""
    if value < 128:
        return UVARINT_1[value]
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
