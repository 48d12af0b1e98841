"""The checksum of record batches: CRC-32C (Castagnoli)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

__all__ = ["crc32c"]


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of some bytes."""
    return _function()(data)


@cache
def _function() -> Callable[[bytes | memoryview], int]:
    # Imported with the first batch: for its command line the package `crc32c` imports `argparse`
    # and `importlib.metadata`, with all of `email`, which takes as long as importing this library.
    from crc32c import crc32c

    return crc32c
