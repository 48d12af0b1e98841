"""What requests about offsets name: the member that commits, and the ends of a log.

Consumers import this when they are imported, and the requests when they start.
"""

from __future__ import annotations

from kafkagroup._values import frozen

__all__ = ["EARLIEST", "LATEST", "NO_MEMBER", "READ_COMMITTED", "READ_UNCOMMITTED", "Identity"]

EARLIEST = -2
"""The timestamp that requests the log's start."""
LATEST = -1
"""The timestamp that requests the log's end; under read_committed, the last stable offset."""
READ_COMMITTED = 1
"""The isolation level that ends a log at its last stable offset."""
READ_UNCOMMITTED = 0
"""The isolation level that includes records of pending and aborted transactions."""


@frozen
class Identity:
    """The generation and the member that a commit or a look-up names."""

    generation_id: int
    member_id: str
    group_instance_id: str | None = None


NO_MEMBER = Identity(-1, "")
"""The identity of a consumer that is not a member, with partitions assigned by the application."""
