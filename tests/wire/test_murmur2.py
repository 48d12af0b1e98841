"""Keys go to the partitions that Kafka's producers choose."""

from __future__ import annotations

import pytest

from kafkagroup.wire.murmur2 import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_equal_those_of_kafkas_java_client(key: bytes, value: int) -> None:
    assert murmur2(key) == value % 2**32


def test_partitions() -> None:
    assert [partition_of(b"%d" % n, 7) for n in range(8)] == [3, 2, 2, 5, 6, 1, 3, 1]
