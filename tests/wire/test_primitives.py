"""Unsigned varints: round trips, the limit of 32 bits, and the message of each error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkagroup.errors import DecodeError
from kafkagroup.wire.primitives import UVARINT_1, encode_uvarint, read_uvarint

repeatable = settings(max_examples=200)

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


@pytest.mark.parametrize(("value", "text"), UNSIGNED.items())
def test_known_unsigned(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_uvarint(value) == data
    assert read_uvarint(data, 0) == (value, len(data))


@repeatable
@given(st.integers(0, 2**32 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_unsigned_round_trip(value: int, before: bytes, after: bytes) -> None:
    data = encode_uvarint(value)
    assert len(data) <= 5
    for kind in (bytes, bytearray, memoryview):
        read = read_uvarint(kind(before + data + after), len(before))
        assert read == (value, len(before) + len(data))


@repeatable
@given(st.binary(max_size=12))
def test_any_bytes_give_a_value_in_range_or_a_decode_error(data: bytes) -> None:
    try:
        value, end = read_uvarint(data, 0)
    except DecodeError:
        return
    assert 0 <= value < 2**32
    assert 0 < end <= min(5, len(data))


def test_a_longer_encoding_than_needed_is_read_as_java_does() -> None:
    """Java's writer never pads, but its reader accepts padding up to the full width."""
    assert read_uvarint(b"\x81\x80\x80\x80\x00", 0) == (1, 5)


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
def test_malformed_unsigned_varints_are_an_error(text: str, message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read_uvarint(bytes.fromhex(text), 0)
    assert str(caught.value) == message


def test_an_offset_at_the_end_or_beyond_is_the_end_of_the_input() -> None:
    for offset in (1, 2, 99):
        with pytest.raises(DecodeError):
            read_uvarint(b"\x01", offset)


def test_one_byte_table() -> None:
    assert tuple(bytes([n]) for n in range(128)) == UVARINT_1
