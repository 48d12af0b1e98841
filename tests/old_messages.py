"""Messages of formats 0 and 1, written by hand: this library only reads them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import pack

from kafkagroup.wire.compression import Codec, compress
from kafkagroup.wire.xxh32 import xxh32

NO_TIMESTAMP = -1
STAMPED = 0x08
"""The attribute of a message of format 1 whose timestamp the broker set."""


def message(
    magic: int,
    offset: int,
    value: bytes | None = b"v",
    key: bytes | None = None,
    *,
    timestamp: int = 1000,
    attributes: int = 0,
) -> bytes:
    """Return one message."""
    body = pack(">bb", magic, attributes)
    if magic == 1:
        body += pack(">q", timestamp)
    for part in (key, value):
        body += pack(">i", -1) if part is None else pack(">i", len(part)) + part
    return pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def compressed(
    magic: int,
    codec: Codec,
    offset: int,
    messages: bytes,
    *,
    timestamp: int = 1000,
    attributes: int = 0,
) -> bytes:
    """Return a message of other messages, with the offset of the last one."""
    data = compress(codec, messages)
    if magic == 0 and codec is Codec.LZ4:
        data = with_wrong_checksum(data)
    return message(magic, offset, data, timestamp=timestamp, attributes=attributes | codec)


def stored(magic: int, codec: Codec, base: int, values: Sequence[bytes | None]) -> bytes:
    """Return messages with consecutive offsets, as brokers store them: compressed ones inside one
    message, with offsets from 0 on in format 1. Their timestamps are 1000 and their offset."""
    if codec is Codec.NONE:
        return b"".join(
            message(magic, n, value, timestamp=1000 + n) for n, value in enumerate(values, base)
        )
    inside = b"".join(
        message(magic, n if magic == 1 else base + n, value, timestamp=1000 + base + n)
        for n, value in enumerate(values)
    )
    last = base + len(values) - 1
    return compressed(magic, codec, last, inside, timestamp=1000 + last)


def with_wrong_checksum(frame: bytes) -> bytes:
    """Return an LZ4 frame with the header checksum of Kafka before 0.10, which is computed over the
    magic number, too (KAFKA-3160)."""
    return frame[:6] + bytes([xxh32(frame[:6]) >> 8 & 0xFF]) + frame[7:]
