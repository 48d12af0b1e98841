"""The variable-length integers of the protocol, bounded before use.

Each reader takes (buffer, offset) and returns (value, next offset), or raises `DecodeError`. Fields
of fixed width have no function here: the compiled codecs unpack several of them at once.
"""

from __future__ import annotations

from kafkagroup.errors import DecodeError

__all__ = ["UVARINT_1", "encode_uvarint", "encode_varint", "read_uvarint", "read_varint"]

Buffer = bytes | bytearray | memoryview

UVARINT_1: tuple[bytes, ...] = tuple(bytes((n,)) for n in range(128))
"""The encodings of one byte; nearly every length has one of them."""


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned LEB128 integer of at most 32 bits: 1 to 5 bytes."""
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


def read_varint(buf: Buffer, pos: int, *, bits: int = 64) -> tuple[int, int]:
    """Read a zigzag LEB128 integer of at most `bits` (32 or 64) bits: up to 5 or 10 bytes."""
    value = shift = 0
    end = len(buf)
    while pos < end:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                raise DecodeError(f"varint exceeds {bits} bits")
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
        if shift >= bits:
            raise DecodeError(f"varint is longer than {5 if bits == 32 else 10} bytes")
    raise DecodeError("input ends inside a varint")


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


def encode_varint(value: int) -> bytes:
    """Encode a signed integer of at most 64 bits as zigzag LEB128."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
