"""The compression codecs of record batches; decompression stops at a limit.

No memory is allocated only because a header claims a size, and decompression stops at `limit`: an
8 KiB batch can claim gigabytes, and hold 250 MiB. Decompression raises only `DecodeError` and its
subclasses.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from io import BytesIO
from typing import Any

import cramjam

from kafkagroup._public import public
from kafkagroup.errors import DecodeError, LimitExceededError

__all__ = ["LEVELS", "MAX_BATCH_BYTES", "Codec", "compress", "decompress"]

Buffer = bytes | bytearray | memoryview

MAX_BATCH_BYTES = 128 * 1024 * 1024
"""The default limit of a decompressed batch, in bytes: more than the 100 MiB of a frame, so that
all uncompressed batches fit."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2
"""The framing of xerial's snappy-java: magic and two version numbers, then blocks of raw snappy,
each after its size."""
_XERIAL_BLOCK = 32 * 1024
"""The maximum size of a block before compression, in bytes."""

_SNAPPY_MAX_RATIO = 22
"""The output of snappy is at most this many times its input: its densest element has 3 bytes, and
copies 64."""

_FEW_BLOCKS = 256
"""The number of xerial blocks that is always allowed."""

_MIN_BLOCK = 256
"""One more xerial block is allowed for every so many bytes of the size limit: 200,000 empty blocks
would take long, and decompress to nothing. Producers write blocks of 1 KiB or more."""

_SCRATCH = 1024 * 1024
"""Size of the scratch buffer, in bytes: nearly every batch is smaller, so it is decompressed once,
into memory that is mapped already."""

_GROWTH = 4
"""The factor by which the output buffer grows. Each retry decompresses from the start: with 4, the
failed attempts together decompress at most 4/3 as many bytes as the last of them."""

_GZIP = 31  # zlib's `wbits` for a gzip member
_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_HEADER = 10
"""Size of the smallest header of a member, in bytes."""
_GUNZIP_FROM = 16 * 1024
"""Bytes of input that are passed to zlib at a time."""
_GUNZIP_TO = 64 * 1024
"""The maximum number of bytes of output at a time."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_MIN = 11
"""Size of the smallest frame, which is empty, in bytes."""


@public
class Codec(IntEnum):
    """The compression codecs, as bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LEVELS: dict[Codec, tuple[int, int]] = {
    Codec.GZIP: (1, 9),
    Codec.LZ4: (1, 17),
    Codec.ZSTD: (-131_072, 22),
}
"""The lowest and highest level of the codecs that have levels, the same as in the Java client
(KIP-390)."""

_DEFAULT_LEVELS = {Codec.GZIP: -1, Codec.LZ4: 1, Codec.ZSTD: 3}  # -1: zlib's own default


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` as the Java client does, so that every client can read it. `level`: in the
    codec's range in `LEVELS`; None for the default."""
    if level is None:
        level = _DEFAULT_LEVELS.get(codec, 0)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(data, level, wbits=_GZIP)
        case Codec.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Codec.LZ4:
            # Java refuses linked blocks, which are cramjam's default.
            lz4 = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            lz4.compress(bytes(data))
            return bytes(lz4.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: Codec, data: Buffer, limit: int = MAX_BATCH_BYTES) -> bytes:
    """Decompress `data` to at most `limit` bytes.

    The output of concatenated gzip members, zstd frames and xerial streams is joined; snappy may be
    raw or in xerial's framing. As in brokers, bytes after the last gzip member or the first LZ4
    frame are ignored. Decompression takes at most about `limit` bytes of memory (gzip: an eighth
    more) and those of the codec's window, even if the data claims more.

    Raises: LimitExceededError if the output is larger than `limit` bytes; DecodeError for bytes
    that are not of this codec, or end too early.
    """
    try:
        match codec:
            case Codec.NONE:
                if len(data) > limit:
                    raise _over(limit)
                return bytes(data)
            case Codec.GZIP:
                return _gunzip(memoryview(data), limit)
            case Codec.SNAPPY:
                return _decompress_snappy(memoryview(data), limit)
            case Codec.LZ4:
                return _decompress_lz4(memoryview(data), limit)
            case Codec.ZSTD:
                return _inflate(cramjam.zstd.decompress_into, data, limit)
    except (cramjam.DecompressionError, zlib.error) as error:
        name = codec.name.lower()
        reason = str(error).removeprefix(f"{name}: ")
        raise DecodeError(f"{name}: {reason}") from None
    except MemoryError:
        # The machine has less memory than the limit: for callers that is a lower limit.
        raise LimitExceededError(
            f"no memory to inflate a batch below the limit of {limit} bytes (max_batch_bytes)"
        ) from None


def _over(limit: int) -> LimitExceededError:
    return LimitExceededError(f"batch inflates beyond {limit} bytes (max_batch_bytes)")


def _gunzip(data: memoryview, limit: int) -> bytes:
    # Not with cramjam: before 2.14 it decompresses all of the data, and only then checks the size.
    # The input is fed in slices, because zlib copies the input that follows each member's end.
    out = BytesIO()
    member = zlib.decompressobj(_GZIP)
    fed = data[:0]
    pos = 0
    while True:
        if not fed:
            fed = data[pos : pos + _GUNZIP_FROM]
            pos += len(fed)
        # `limit + 1`: one byte more shows that the limit is exceeded, and 0 would mean no maximum.
        piece = member.decompress(fed, min(_GUNZIP_TO, limit + 1))
        if out.tell() + len(piece) > limit:
            raise _over(limit)
        out.write(piece)
        if member.eof:
            pos -= len(member.unused_data)
            # Brokers ignore what follows the last member: padding, for example.
            if len(data) - pos < _GZIP_HEADER or data[pos : pos + 3] != _GZIP_MAGIC:
                return out.getvalue()
            member = zlib.decompressobj(_GZIP)
            fed = data[:0]
            continue
        # Without input, the end is an empty piece: after a full one the decoder may hold more.
        if not fed and not piece:
            raise DecodeError("gzip: input ends inside a member")
        fed = memoryview(member.unconsumed_tail)


if "free-threading" in sys.version:
    import ctypes

    def _writable(room: memoryview) -> Any:
        # In free-threaded Python, cramjam refuses a memoryview: it may be one of immutable bytes.
        return (ctypes.c_char * len(room)).from_buffer(room)

else:

    def _writable(room: memoryview) -> Any:
        return room


_spare = [bytearray(_SCRATCH)]
"""The scratch buffer while no thread uses it; a second thread creates its own."""


def _inflate(into: Callable[[Buffer, Any], int], data: Buffer, limit: int) -> bytes:
    """Decompress `data` by `into`, a cramjam function that writes to a buffer. Larger buffers are
    tried until one has room for the output. Raises: LimitExceededError if the output is larger than
    `limit` bytes."""
    size, inflated = 0, None
    if len(data) < _SCRATCH:
        size = min(limit, _SCRATCH)
        inflated = _inflate_small(into, data, size)
    while inflated is None:
        if size == limit:
            raise _over(limit)
        size = min(limit, _GROWTH * max(size, len(data)))
        inflated = _inflate_into(into, data, size)
    return inflated


def _inflate_small(into: Callable[[Buffer, Any], int], data: Buffer, size: int) -> bytes | None:
    # Returns None if `size` is too small. The output is copied out of the scratch buffer, but no
    # memory has to be cleared first, and nothing is decompressed twice because of a wrong guess.
    try:
        scratch = _spare.pop()
    except IndexError:
        scratch = bytearray(_SCRATCH)
    try:
        with memoryview(scratch) as view, view[:size] as room:
            written = _write(into, data, room)
            return None if written is None else bytes(room[:written])
    finally:
        _spare[:] = [scratch]


def _inflate_into(into: Callable[[Buffer, Any], int], data: Buffer, size: int) -> bytes | None:
    # Returns None if `size` is too small. A separate function, so that the buffer of one attempt is
    # freed before the next. A BytesIO can turn its buffer into bytes without a copy.
    out = BytesIO(bytes(size))
    with out.getbuffer() as view:
        written = _write(into, data, view)
    if written is None:
        return None
    out.truncate(written)
    return out.getvalue()


def _write(into: Callable[[Buffer, Any], int], data: Buffer, room: memoryview) -> int | None:
    """Decompress into `room`; return how many bytes were written, None if it is too small."""
    try:
        return into(data, _writable(room))
    except cramjam.DecompressionError as error:
        if str(error) == _BUFFER_FULL:
            return None
        raise


def _buffer_full() -> str:
    # cramjam has no exception type for a full output, and its message may change: so a failure is
    # provoked to get the message.
    try:
        cramjam.zstd.decompress_into(cramjam.zstd.compress(b"12"), bytearray(1))
    except cramjam.DecompressionError as error:
        return str(error)
    raise AssertionError("cramjam wrote beyond its buffer")


_BUFFER_FULL = _buffer_full()


def _decompress_lz4(data: memoryview, limit: int) -> bytes:
    try:
        return _inflate(cramjam.lz4.decompress_into, data, limit)
    except cramjam.DecompressionError:
        if (frame := _mended_lz4(data)) is None:
            raise
        return _inflate(cramjam.lz4.decompress_into, frame, limit)


def _mended_lz4(data: memoryview) -> bytes | None:
    """Return the first frame of `data`, with the correct header checksum; None if that is `data`
    itself, or if `data` is no LZ4 frame.

    Brokers ignore what follows the frame. In message format 0 they and their clients computed the
    checksum over the magic number, too (KAFKA-3160). It is safe to replace the checksum, as the CRC
    of the batch covers the header.
    """
    from kafkagroup.wire.xxh32 import xxh32  # only here: few batches need it

    if len(data) < _LZ4_MIN or data[:4] != _LZ4_MAGIC:
        return None
    flags = data[4]
    # Magic, flags, block maximum; then, by the flags, the content's size and a dictionary's id.
    header_end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    end = header_end + 1
    # The highest bit of a block's size marks a block that is not compressed; size 0 ends the frame.
    while size := int.from_bytes(data[end : end + 4], "little") & 0x7FFFFFFF:
        end += 4 + size + (4 if flags & 0x10 else 0)  # with a checksum of each block
    end += 4 + (4 if flags & 0x04 else 0)  # with a checksum of the content
    checksum = xxh32(data[4:header_end]) >> 8 & 0xFF
    if end > len(data) or (end == len(data) and data[header_end] == checksum):
        return None
    return b"".join((data[:header_end], bytes((checksum,)), data[header_end + 1 : end]))


def _compress_xerial(data: memoryview) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK])
        out += len(block).to_bytes(4, "big")
        out += memoryview(block)
    return bytes(out)


def _decompress_snappy(data: memoryview, limit: int) -> bytes:
    # The first pass adds up the claimed sizes, the second decompresses into one buffer. The blocks
    # are not kept between them: 100 MiB of five-byte blocks would be gigabytes of views.
    total = 0
    most_blocks = _FEW_BLOCKS + limit // _MIN_BLOCK
    for number, block in enumerate(_snappy_blocks(data)):
        claim = cramjam.snappy.decompress_raw_len(block)
        total += claim
        if total > limit or number >= most_blocks:
            raise _over(limit)
        # Without this check, a few bytes could cause an allocation up to the limit.
        if claim > _SNAPPY_MAX_RATIO * len(block):
            raise DecodeError(f"snappy: {len(block)} bytes cannot inflate to {claim}")
    out = BytesIO(bytes(total))
    pos = 0
    with out.getbuffer() as view:
        for block in _snappy_blocks(data):
            pos += cramjam.snappy.decompress_raw_into(block, _writable(view[pos:]))
    return out.getvalue()


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    # No raw stream begins with the magic: its first element would copy from before the start.
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield data
        return
    # The two version numbers are skipped unchecked: some producers wrote them little-endian.
    pos = len(_XERIAL_HEADER)
    if len(data) < pos:
        raise DecodeError("snappy: input ends inside the xerial header")
    first = pos
    while pos < len(data):
        # Another stream begins. Not at `first`, as each stream has at least one block.
        if pos > first and data[pos : pos + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            first = pos = pos + len(_XERIAL_HEADER)
            continue
        start = pos + 4
        if start > len(data) and pos > first:
            return  # brokers ignore a rest that is too short for a block's size
        pos = start + int.from_bytes(data[pos:start], "big")
        if pos > len(data):
            raise DecodeError("snappy: input ends inside a xerial block")
        yield data[start:pos]
