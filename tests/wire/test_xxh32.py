"""XXH32 of short inputs, by the values of its reference implementation."""

from __future__ import annotations

import pytest

from kafkagroup.wire.xxh32 import xxh32


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcd", 0xA3643705)],
)
def test_reference_values(data: bytes, value: int) -> None:
    assert xxh32(data) == value == xxh32(memoryview(data))
