"""The codecs: interoperation with Java, the limit for inflated data, and errors for malformed
data."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tracemalloc

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.errors import DecodeError, LimitExceededError
from kafkagroup.wire.compression import MAX_BATCH_BYTES, Codec, compress, decompress

repeatable = settings(max_examples=200)
codecs = pytest.mark.parametrize("codec", list(Codec), ids=lambda c: c.name)
inflating = pytest.mark.parametrize("codec", list(Codec)[1:], ids=lambda c: c.name)

XERIAL = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
MIB = 1024 * 1024


def xerial(*blocks: bytes, header: bytes = XERIAL) -> bytes:
    return header + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def uvarint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes((n,))


# Each inflates to 32 MiB of zeros.
ZEROS = bytes(MIB)
BOMBS = {
    "gzip": (Codec.GZIP, bytes(cramjam.gzip.compress(ZEROS * 32))),
    "gzip members": (Codec.GZIP, bytes(cramjam.gzip.compress(ZEROS)) * 32),
    "snappy raw": (Codec.SNAPPY, snappy(ZEROS * 32)),
    "snappy blocks": (Codec.SNAPPY, xerial(*[snappy(ZEROS)] * 32)),
    "lz4": (Codec.LZ4, bytes(cramjam.lz4.compress(ZEROS * 32))),
    "zstd": (Codec.ZSTD, bytes(cramjam.zstd.compress(ZEROS * 32))),
    "zstd frames": (Codec.ZSTD, bytes(cramjam.zstd.compress(ZEROS)) * 32),
}
bombs = pytest.mark.parametrize(("codec", "bomb"), BOMBS.values(), ids=BOMBS)


def over(limit: int) -> str:
    return f"batch inflates beyond {limit} bytes (max_batch_bytes)"


@codecs
@pytest.mark.parametrize("size", [0, 1, 4095, 4097, 100_000, MIB])
@pytest.mark.parametrize("filler", ["zeros", "noise"])
def test_round_trip(codec: Codec, size: int, filler: str) -> None:
    data = bytes(size) if filler == "zeros" else random.Random(size).randbytes(size)
    assert decompress(codec, compress(codec, data)) == data


@codecs
@repeatable
@given(data=st.binary(max_size=300), times=st.integers(1, 300))
def test_round_trip_of_any_bytes(codec: Codec, data: bytes, times: int) -> None:
    assert decompress(codec, compress(codec, data * times)) == data * times


@codecs
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_codecs_accept_any_buffer_and_return_bytes(codec: Codec, kind: type) -> None:
    packed = compress(codec, kind(b"abc" * 100))
    inflated = decompress(codec, kind(packed))
    assert (type(packed), type(inflated), inflated) == (bytes, bytes, b"abc" * 100)


def test_the_default_limit_holds_a_whole_frame() -> None:
    assert MAX_BATCH_BYTES == 134_217_728


def test_codec_numbers_match_the_batch_attributes() -> None:
    assert {codec.name: codec.value for codec in Codec} == {
        "NONE": 0,
        "GZIP": 1,
        "SNAPPY": 2,
        "LZ4": 3,
        "ZSTD": 4,
    }


# Snappy's two framings.


def test_xerial_is_written_as_java_does() -> None:
    data = b"kafka" * 16_384  # 80 KiB: two and a half blocks of 32 KiB
    blocks = [snappy(data[start : start + 32_768]) for start in (0, 32_768, 65_536)]
    assert compress(Codec.SNAPPY, data) == xerial(*blocks)
    assert compress(Codec.SNAPPY, b"") == XERIAL


def test_xerial_of_many_blocks_is_joined() -> None:
    data = xerial(snappy(b"one "), snappy(b""), snappy(b"two " * 20_000), snappy(b"three"))
    assert decompress(Codec.SNAPPY, data) == b"one " + b"two " * 20_000 + b"three"


def test_xerial_versions_are_ignored() -> None:
    """Some producers wrote the two version numbers little-endian; librdkafka reads those too."""
    little = b"\x82SNAPPY\x00" + b"\x01\x00\x00\x00" * 2
    assert decompress(Codec.SNAPPY, xerial(snappy(b"abc"), header=little)) == b"abc"


def test_raw_snappy_is_read() -> None:
    """librdkafka and franz-go write no frames."""
    assert decompress(Codec.SNAPPY, snappy(b"abc" * 50_000)) == b"abc" * 50_000


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "snappy: corrupt input (empty)"),
        (XERIAL[:-1], "snappy: input ends inside the xerial header"),
        (XERIAL + b"\x00\x00\x00", "snappy: input ends inside a xerial block"),
        (xerial(snappy(b"abc"))[:-1], "snappy: input ends inside a xerial block"),
        (XERIAL + b"\xff\xff\xff\xffabc", "snappy: input ends inside a xerial block"),
        (xerial(b""), "snappy: corrupt input (empty)"),
        (uvarint(1000) + b"abc", "snappy: 5 bytes cannot inflate to 1000"),
        (xerial(uvarint(MIB) + b"a"), "snappy: 4 bytes cannot inflate to 1048576"),
    ],
)
def test_malformed_snappy_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decompress(Codec.SNAPPY, data)
    assert (type(caught.value), str(caught.value)) == (DecodeError, reason)


def test_the_highest_snappy_ratio_is_accepted() -> None:
    """A literal, then copies of 64 bytes for 3 each: a ratio that the check must accept."""
    copies = 10_000
    data = uvarint(1 + 64 * copies) + b"\x00A" + b"\xfe\x01\x00" * copies
    assert decompress(Codec.SNAPPY, data) == b"A" * (1 + 64 * copies)


# What Java cannot read.


def test_lz4_blocks_are_independent() -> None:
    """Java rejects linked blocks, which are cramjam's default; other clients accept them."""
    flags = compress(Codec.LZ4, b"abc" * 100_000)[4]
    assert flags >> 5 == 0b011  # version 1, blocks independent


# More frames than one.


def test_gzip_members_are_joined() -> None:
    data = compress(Codec.GZIP, b"one ") + compress(Codec.GZIP, b"two")
    assert decompress(Codec.GZIP, data) == b"one two"


def test_zstd_frames_are_joined_and_skippable_ones_skipped() -> None:
    skippable = b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello"
    data = compress(Codec.ZSTD, b"one ") + skippable + compress(Codec.ZSTD, b"two")
    assert decompress(Codec.ZSTD, data) == b"one two"


# The limit.


@codecs
@pytest.mark.parametrize("size", [1, 4096, 4097, 16_384, 70_000])
def test_exactly_the_limit_is_accepted_and_one_byte_more_is_an_error(
    codec: Codec, size: int
) -> None:
    data = compress(codec, b"a" * size)
    assert decompress(codec, data, size) == b"a" * size
    with pytest.raises(LimitExceededError) as caught:
        decompress(codec, data, size - 1)
    assert str(caught.value) == over(size - 1)


@bombs
def test_a_decompression_bomb_allocates_no_more_than_the_limit(codec: Codec, bomb: bytes) -> None:
    limit = 2 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceededError) as caught:
            decompress(codec, bomb, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(caught.value) == over(limit)
    # An eighth is what a growing BytesIO takes ahead, of gzip.
    assert peak <= limit * 9 // 8 + 256 * 1024


@bombs
def test_highly_compressed_data_below_the_limit_is_inflated(codec: Codec, bomb: bytes) -> None:
    assert decompress(codec, bomb, 32 * MIB) == ZEROS * 32


@inflating
def test_a_small_batch_allocates_little_under_a_large_limit(codec: Codec) -> None:
    data = compress(codec, b"abc" * 1000)
    tracemalloc.start()
    try:
        decompress(codec, data, MAX_BATCH_BYTES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 64 * 1024


def test_the_result_is_not_copied() -> None:
    data = compress(Codec.ZSTD, ZEROS * 4)
    tracemalloc.start()
    try:
        inflated = decompress(Codec.ZSTD, data, 4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(inflated) == 4 * MIB
    assert peak <= 4 * MIB + 64 * 1024


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_dense_data_is_inflated_once(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of JSON took twice as long: they exceeded the initial estimate of four times their
    size."""
    attempts = []
    name = codec.name.lower()
    into = getattr(cramjam, name).decompress_into

    def counted(data: bytes, room: memoryview) -> int:
        attempts.append(len(data))
        return int(into(data, room))

    data = compress(codec, b"abc" * 100_000)
    monkeypatch.setattr(f"cramjam.{name}.decompress_into", counted)
    assert decompress(codec, data) == b"abc" * 100_000
    assert attempts == [len(data)]


@pytest.mark.parametrize(
    ("codec", "data", "expected"),
    [
        # A raw block of 4 GiB, and blocks whose claims only together pass the limit.
        (Codec.SNAPPY, uvarint(2**32 - 1) + b"A", LimitExceededError),
        (Codec.SNAPPY, xerial(*[snappy(bytes(1000))] * 1100), LimitExceededError),
        (Codec.SNAPPY, xerial(uvarint(MIB - 1) + b"A"), DecodeError),
        # Frame content size 2^40, then a block of one byte.
        (Codec.ZSTD, bytes.fromhex("28b52ffde0 0000000000010000 090000 41"), DecodeError),
        # A window of 128 MiB (2^27) around one byte: within what zstd grants, and never touched.
        (Codec.ZSTD, bytes.fromhex("28b52ffd00 88 0b0000 41"), b"A"),
        # A window of 2^41.
        (Codec.ZSTD, bytes.fromhex("28b52ffd00 f8 0b0000 41"), DecodeError),
        # Content size 2^40 in an lz4 header (its checksum is wrong too, or it would inflate).
        (Codec.LZ4, bytes.fromhex("04224d18 68 40 0000000000010000 00 00000000"), DecodeError),
    ],
)
def test_nothing_is_allocated_for_a_claimed_size(
    codec: Codec, data: bytes, expected: bytes | type[DecodeError]
) -> None:
    tracemalloc.start()
    try:
        try:
            outcome: object = decompress(codec, data, MIB)
        except DecodeError as error:
            outcome = type(error)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcome == expected
    assert peak <= 128 * 1024


def test_many_tiny_blocks_allocate_little_memory() -> None:
    """A view kept for each five-byte block used gigabytes for 100 MiB of input."""
    data = xerial(*[snappy(b"")] * 20_000)
    tracemalloc.start()
    try:
        assert decompress(Codec.SNAPPY, data) == b""
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 64 * 1024


MEMORY_OF_A_PROCESS = """
import json, resource, sys
from kafkagroup.errors import LimitExceededError
from kafkagroup.wire.compression import Codec, compress, decompress
mib = 1024 * 1024
bombs = {codec: compress(codec, bytes(mib)) * 256 for codec in (Codec.GZIP, Codec.ZSTD)}
small = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
errors = []
def attempt(codec, data, limit):
    try:
        decompress(codec, data, limit)
    except LimitExceededError as error:
        errors.append(str(error))
for codec in bombs:
    attempt(codec, bombs[codec], 8 * mib)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - small
big = bytes(64 * mib)  # the first guess is four times this
with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 64 * mib, -1))
attempt(Codec.LZ4, big, 1 << 40)
attempt(Codec.GZIP, bombs[Codec.GZIP], 1 << 40)
json.dump([errors, grown], sys.stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures by /proc and RLIMIT_AS")
@pytest.mark.skipif(
    "free-threading" in sys.version, reason="its allocator reserves a gigabyte: no limit is met"
)
def test_the_memory_of_the_whole_process_is_bounded() -> None:
    """Tracing sees only Python's memory; a decoder's own must be bounded too, and its error
    typed."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_OF_A_PROCESS],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    errors, grown_kib = json.loads(done.stdout)
    no_memory = f"no memory to inflate a batch below the limit of {1 << 40} bytes (max_batch_bytes)"
    assert errors == [over(8 * MIB)] * 2 + [no_memory] * 2
    assert grown_kib < 32 * 1024


# Garbage.


@inflating
def test_truncated_data_is_an_error(codec: Codec) -> None:
    data = compress(codec, random.Random(7).randbytes(500))
    for end in range(len(data)):
        if codec is Codec.SNAPPY and end == len(XERIAL):
            continue  # no block at all is what Java writes for no data
        with pytest.raises(DecodeError) as caught:
            decompress(codec, data[:end])
        assert type(caught.value) is DecodeError
        assert str(caught.value).startswith(f"{codec.name.lower()}: ")


@inflating
@repeatable
@given(data=st.binary(max_size=200))
def test_any_bytes_inflate_or_raise_one_error(codec: Codec, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, 10_000)) <= 10_000
    except DecodeError:
        pass


@inflating
@repeatable
@given(st.data())
def test_damaged_data_inflates_or_raises_one_error(codec: Codec, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, data.draw(st.binary(max_size=60)) * 40))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, packed, 10_000)) <= 10_000
    except DecodeError:
        pass


def test_many_empty_xerial_blocks_are_an_error() -> None:
    """They inflate to nothing, and 200,000 of them took 0.2 s."""
    empty = xerial(*[uvarint(0)] * 256)
    assert decompress(Codec.SNAPPY, empty, 100) == b""
    with pytest.raises(LimitExceededError):
        decompress(Codec.SNAPPY, xerial(*[uvarint(0)] * 257), 100)
    assert decompress(Codec.SNAPPY, xerial(*[uvarint(0)] * 260), 1024) == b""


# What follows: brokers and Java's consumer accept it.


@pytest.mark.parametrize("rest", [b"\0" * 20, b"junk", b"\x1f", b"\x1f\x8b\x08", b"\x1f" * 40_000])
@pytest.mark.parametrize("size", [5, 20_000, 300_000])
def test_bytes_behind_the_last_gzip_member_are_ignored(rest: bytes, size: int) -> None:
    """A producer padded its batches: the partition must not stop."""
    data = random.Random(size).randbytes(size)
    members = compress(Codec.GZIP, data) + compress(Codec.GZIP, b"more")
    assert decompress(Codec.GZIP, members + rest) == data + b"more"


def test_several_xerial_streams_are_joined() -> None:
    streams = compress(Codec.SNAPPY, b"one ") + compress(Codec.SNAPPY, b"two")
    assert decompress(Codec.SNAPPY, streams) == b"one two"
    assert decompress(Codec.SNAPPY, streams + b"\0\0\0") == b"one two"


def test_a_xerial_stream_without_a_block_is_followed_by_none() -> None:
    """Streams without blocks would count nowhere: a million of them would take a second."""
    with pytest.raises(DecodeError, match="input ends inside a xerial block"):
        decompress(Codec.SNAPPY, XERIAL * 3 + xerial(snappy(b"a")))


LZ4_OPTIONS = [
    {"content_checksum": checksum, "block_linked": linked}
    for checksum in (False, True)
    for linked in (False, True)
]


@pytest.mark.parametrize("options", LZ4_OPTIONS, ids=str)
@pytest.mark.parametrize("size", [0, 1, 100_000, 5 * MIB])
def test_the_first_lz4_frame_is_read_whatever_its_header_checksum(
    options: dict[str, bool], size: int
) -> None:
    data = random.Random(size).randbytes(size)
    compressor = cramjam.lz4.Compressor(**options)
    compressor.compress(data)
    frame = bytes(compressor.finish())
    wrong = frame[:6] + bytes([frame[6] ^ 0x5A]) + frame[7:]
    for stored in (frame, wrong, frame + b"junk", wrong + b"\0" * 9, wrong + frame):
        assert decompress(Codec.LZ4, stored) == data


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 7, 10, 11, 12, -1, -4, -5])
def test_a_cut_lz4_frame_with_a_wrong_checksum_is_an_error(cut: int) -> None:
    frame = compress(Codec.LZ4, b"data" * 100)
    wrong = frame[:6] + bytes([frame[6] ^ 0x5A]) + frame[7:]
    with pytest.raises(DecodeError, match="lz4: "):
        decompress(Codec.LZ4, wrong[:cut])


def test_a_damaged_lz4_block_stays_an_error() -> None:
    frame = bytearray(compress(Codec.LZ4, b"data" * 100))
    frame[15:20] = b"\xff" * 5
    with pytest.raises(DecodeError, match="lz4: "):
        decompress(Codec.LZ4, bytes(frame))
