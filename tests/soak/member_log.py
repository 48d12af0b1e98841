"""What a member of the soak writes down, and how it is read: one entry after the other, each
written with one system call, so that what a SIGKILL leaves behind is what has happened.

The bytes of a log are entries without anything between them.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

ENTRY = struct.Struct(">BiqqQ")


class Kind(IntEnum):
    """What happened to a partition."""

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
    """One line of a log."""

    kind: Kind
    partition: int
    offset: int
    sequence: int
    time: int
    """Nanoseconds on the clock of the machine, which the members share."""


def pack(kind: Kind, partition: int, offset: int, sequence: int, time: int) -> bytes:
    """The bytes of an entry."""
    return ENTRY.pack(kind, partition, offset, sequence, time)


def entries(data: bytes) -> Iterator[Entry]:
    """The entries of a log, read as they are asked for."""
    for kind, *rest in ENTRY.iter_unpack(data):
        yield Entry(Kind(kind), *rest)
