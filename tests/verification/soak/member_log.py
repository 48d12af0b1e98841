"""The log of a member of the soak, and its reader.

Each entry is written with one system call, so that a log is correct up to a SIGKILL. The bytes of a
log are entries without anything between them.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

ENTRY = struct.Struct(">BiqqQ")


class Kind(IntEnum):
    """An event of a partition."""

    ASSIGNED = 0
    DELIVERED = 1
    """Offset and sequence number are those of the record."""
    COMMITTED = 2
    """A commit was acknowledged; the offset is at most the one that it committed."""
    REVOKED = 3
    """Revoked after a commit."""
    LOST = 4
    """Taken away: others may own it already."""
    PROCESSED = 5
    """The application is about to poll or commit, which counts this record as processed. Without
    this entry, the log would not show it for the last record of a partition."""


class Entry(NamedTuple):
    """One entry of a log."""

    kind: Kind
    partition: int
    offset: int
    sequence: int
    time: int
    """Nanoseconds on the clock of the machine, which the members share."""


def pack(kind: Kind, partition: int, offset: int, sequence: int, time: int) -> bytes:
    """Return the bytes of an entry."""
    return ENTRY.pack(kind, partition, offset, sequence, time)


def entries(data: bytes) -> Iterator[Entry]:
    """Read the entries of a log lazily."""
    for kind, *rest in ENTRY.iter_unpack(data):
        yield Entry(Kind(kind), *rest)
