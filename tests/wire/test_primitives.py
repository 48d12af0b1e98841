"""Variable-length integers: round trips, the limits of 32 and 64 bits, what each refusal says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.errors import DecodeError
from kafkagroup.wire.primitives import (
    UVARINT_1,
    encode_uvarint,
    encode_varint,
    read_uvarint,
    read_varint,
)

repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=200)

UNSIGNED = {
    0: "00",
    1: "01",
    127: "7f",
    128: "8001",
    300: "ac02",
    16383: "ff7f",
    16384: "808001",
    2**21 - 1: "ffff7f",
    2**28: "8080808001",
    2**31 - 1: "ffffffff07",
    2**32 - 1: "ffffffff0f",
}
SIGNED = {
    0: "00",
    -1: "01",
    1: "02",
    -2: "03",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    2**31 - 1: "feffffff0f",
    -(2**31): "ffffffff0f",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}


@pytest.mark.parametrize(("value", "text"), UNSIGNED.items())
def test_known_unsigned(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_uvarint(value) == data
    assert read_uvarint(data, 0) == (value, len(data))


@pytest.mark.parametrize(("value", "text"), SIGNED.items())
def test_known_signed(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_varint(value) == data
    assert read_varint(data, 0) == (value, len(data))
    if -(2**31) <= value < 2**31:
        assert read_varint(data, 0, bits=32) == (value, len(data))


@repeatable
@given(st.integers(0, 2**32 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_unsigned_round_trip(value: int, before: bytes, after: bytes) -> None:
    data = encode_uvarint(value)
    assert len(data) <= 5
    for kind in (bytes, bytearray, memoryview):
        read = read_uvarint(kind(before + data + after), len(before))
        assert read == (value, len(before) + len(data))


@repeatable
@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_signed_round_trip(value: int, before: bytes, after: bytes) -> None:
    data = encode_varint(value)
    assert len(data) <= 10
    for kind in (bytes, bytearray, memoryview):
        read = read_varint(kind(before + data + after), len(before))
        assert read == (value, len(before) + len(data))


@repeatable
@given(st.integers(-(2**31), 2**31 - 1))
def test_signed_round_trip_of_32_bits(value: int) -> None:
    data = encode_varint(value)
    assert len(data) <= 5
    assert read_varint(data, 0, bits=32) == (value, len(data))


@repeatable
@given(st.binary(max_size=12))
def test_any_bytes_give_a_value_in_range_or_a_decode_error(data: bytes) -> None:
    for read, low, high, longest in (
        (read_uvarint, 0, 2**32, 5),
        (read_varint, -(2**63), 2**63, 10),
        (lambda buf, pos: read_varint(buf, pos, bits=32), -(2**31), 2**31, 5),
    ):
        try:
            value, end = read(data, 0)
        except DecodeError:
            continue
        assert low <= value < high
        assert 0 < end <= min(longest, len(data))


def test_a_longer_encoding_than_needed_is_read_as_java_does() -> None:
    """Java's writer never pads, but its reader takes padding up to the full width."""
    assert read_uvarint(b"\x81\x80\x80\x80\x00", 0) == (1, 5)
    assert read_varint(b"\x82" + b"\x80" * 8 + b"\x00", 0) == (1, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "input ends inside an unsigned varint"),
        ("80", "input ends inside an unsigned varint"),
        ("ffffffff", "input ends inside an unsigned varint"),
        ("8080808080", "unsigned varint is longer than 5 bytes"),
        ("808080808001", "unsigned varint is longer than 5 bytes"),
        ("ffffffffffffffffff01", "unsigned varint is longer than 5 bytes"),
        ("8080808010", "unsigned varint exceeds 32 bits"),
        ("ffffffff7f", "unsigned varint exceeds 32 bits"),
    ],
)
def test_unsigned_refused(text: str, message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read_uvarint(bytes.fromhex(text), 0)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "bits", "message"),
    [
        ("", 32, "input ends inside a varint"),
        ("80", 64, "input ends inside a varint"),
        ("ffffffff", 32, "input ends inside a varint"),
        ("80" * 9, 64, "input ends inside a varint"),
        ("80" * 5, 32, "varint is longer than 5 bytes"),
        ("80" * 5 + "01", 32, "varint is longer than 5 bytes"),
        ("80" * 10, 64, "varint is longer than 10 bytes"),
        ("80" * 10 + "01", 64, "varint is longer than 10 bytes"),
        ("8080808010", 32, "varint exceeds 32 bits"),
        ("80" * 9 + "02", 64, "varint exceeds 64 bits"),
    ],
)
def test_signed_refused(text: str, bits: int, message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read_varint(bytes.fromhex(text), 0, bits=bits)
    assert str(caught.value) == message


def test_an_offset_at_the_end_or_beyond_is_the_end_of_the_input() -> None:
    for offset in (1, 2, 99):
        with pytest.raises(DecodeError):
            read_uvarint(b"\x01", offset)
        with pytest.raises(DecodeError):
            read_varint(b"\x01", offset)


def test_one_byte_table() -> None:
    assert tuple(bytes([n]) for n in range(128)) == UVARINT_1
