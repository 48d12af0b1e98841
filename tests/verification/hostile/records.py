"""Attacks in the records of a fetch response: decompression bombs, false checksums and lengths.

Each is raised once, with topic, partition and offset; nothing is fetched again until the
application seeks. `tests/runtime/consume/test_bad_input` has the same damage on both event loops.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

from crc32c import crc32c

from kafkagroup.wire.compression import Codec, compress
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.primitives import encode_uvarint

from .honest import fetched, serving
from .server import Conversation
from .trial import MEBIBYTE, Attack

__all__ = ["ATTACKS", "batch", "zeros"]

LIMIT = 128 * MEBIBYTE
"""Bytes that a batch may inflate to."""

BEYOND = (
    f"LimitExceededError: t/0 at offset 0: batch inflates beyond {LIMIT} bytes (max_batch_bytes)"
)


def encode_varint(value: int) -> bytes:
    """Encode a signed integer of at most 64 bits as zigzag LEB128."""
    return encode_uvarint((value << 1) ^ (value >> 63))


def batch(
    payload: bytes,
    *,
    codec: int = 0,
    count: int = 1,
    delta: int = 0,
    length: int | None = None,
    crc: int | None = None,
    magic: int = 2,
) -> bytes:
    """Return a batch around any payload, by default with correct length and CRC."""
    covered = struct.pack(">hiqqqhii", codec, delta, 0, 0, -1, -1, -1, count) + payload
    length = 9 + len(covered) if length is None else length
    head = struct.pack(">qiib", 0, length, 0, magic)
    return head + struct.pack(">I", crc32c(covered) if crc is None else crc) + covered


@cache
def zeros(codec: Codec, mebibytes: int) -> bytes:
    """Return so many zeros, compressed."""
    return compress(codec, bytes(mebibytes * MEBIBYTE))


def _xerial(blocks: int) -> bytes:
    """Return xerial framing: one block of 32 KiB repeated."""
    block = compress(Codec.SNAPPY, bytes(32 * 1024))
    return block[:16] + block[16:] * blocks


def _record(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


def _records(name: str, makes: Callable[[], bytes], ends: str, mebibytes: float = 8) -> Attack:
    def does() -> Conversation:
        data = makes()
        return serving({FetchRequest: lambda _, __: fetched(data)})

    return Attack(
        name=name, family="records", does=does, client="consume", ends=ends, mebibytes=mebibytes
    )


def _bomb(name: str, makes: Callable[[], bytes], codec: Codec, ends: str = BEYOND) -> Attack:
    return _records(name, lambda: batch(makes(), codec=codec), ends, mebibytes=200)


def _corrupt(name: str, data: bytes, reason: str) -> Attack:
    return _records(name, lambda: data, f"CorruptRecordError: t/0 at offset 0: {reason}")


ATTACKS = (
    _bomb("8 KB of zstd, 256 MiB inflated", lambda: zeros(Codec.ZSTD, 256), Codec.ZSTD),
    _bomb("zstd in 64 frames of 16 MiB", lambda: zeros(Codec.ZSTD, 16) * 64, Codec.ZSTD),
    _bomb("gzip of 256 MiB", lambda: zeros(Codec.GZIP, 256), Codec.GZIP),
    _bomb("gzip in 64 members of 16 MiB", lambda: zeros(Codec.GZIP, 16) * 64, Codec.GZIP),
    _bomb("lz4 of 256 MiB", lambda: zeros(Codec.LZ4, 256), Codec.LZ4),
    _bomb("xerial snappy of 256 MiB", lambda: _xerial(8192), Codec.SNAPPY),
    _records(
        "raw snappy that claims 4 GiB",
        lambda: batch(bytes.fromhex("ffffffff0f") + bytes(100), codec=Codec.SNAPPY),
        BEYOND,
    ),
    _records(
        "raw snappy that claims 100 MiB",
        lambda: batch(bytes.fromhex("80808032") + bytes(100), codec=Codec.SNAPPY),
        "CorruptRecordError: t/0 at offset 0: snappy: 104 bytes cannot inflate to 104857600",
    ),
    _records(
        "a batch that claims 2 GiB",
        lambda: batch(b"", length=2**31 - 1),
        "LimitExceededError: t/0 at offset 0: batch of 2147483647 bytes exceeds 134217728"
        " (max_batch_bytes)",
    ),
    _corrupt("a wrong CRC", batch(_record(bytes(6)), crc=0), "CRC-32C mismatch"),
    _corrupt("a batch of -1 bytes", batch(b"", length=-1), "batch length -1 is too small"),
    _corrupt("a batch of 48 bytes", batch(b"", length=48), "batch length 48 is too small"),
    _corrupt("an unknown codec", batch(bytes(10), codec=7), "unknown codec 7"),
    _corrupt(
        "an unknown format",
        batch(b"", magic=3),
        "message format v3 is not supported, only v0 to v2",
    ),
    _corrupt(
        "2^31-1 records in no bytes",
        batch(b"", count=2**31 - 1, delta=2**31 - 2),
        "2147483647 records in 0 bytes",
    ),
    _corrupt("-1 records", batch(b"", count=-1), "-1 records in 1 offsets"),
    _corrupt("a delta of -1", batch(b"", delta=-1), "last offset delta -1 leads nowhere"),
    _corrupt(
        "a varint that never ends", batch(b"\xff" * 20), "unsigned varint is longer than 5 bytes"
    ),
    _corrupt(
        "a record of 1 GiB",
        batch(encode_varint(2**30) + bytes(9)),
        "a record's length is beyond the batch",
    ),
    _corrupt(
        "a key of 1 GiB",
        batch(_record(b"\0\0\0" + encode_varint(2**30) + b"\0\0")),
        "a key's length is beyond its record",
    ),
    _corrupt(
        "2^30 headers",
        batch(_record(b"\0\0\0\1\1" + encode_varint(2**30))),
        "a record's header count is beyond its bytes",
    ),
    *(
        _records(
            f"garbage for {codec.name.lower()}",
            lambda codec=codec: batch(b"garbage!", codec=codec),
            f"CorruptRecordError: t/0 at offset 0: {codec.name.lower()}: ...",
        )
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
    ),
)
