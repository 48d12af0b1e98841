"""What requests about offsets name: the member that commits, its commit, and the ends of a log.

Separate from the requests: a consumer's module imports this one, and the requests only when a
consumer starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kafkagroup._values import define, field, frozen
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "NO_MEMBER",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "GroupCommit",
    "Identity",
    "Offsets",
]

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
"""Partition -> the offset that is committed, or to commit, with its metadata."""

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


@define(kw_only=True)
class GroupCommit:
    """A commit until it is acknowledged. Each attempt sends what `newest` returns: here always the
    same offsets; a subclass may return newer ones."""

    identity: Identity
    offsets: Offsets
    """What to send; of a subclass, what `newest` returned last. The partitions never change."""
    topic_ids: Mapping[str, UUID] = field(factory=dict)
    """The ids of the topics that the offsets were read from, where known; other topics have the ids
    in the current metadata."""

    @property
    def generation_id(self) -> int:
        """The generation, or member epoch, to send."""
        return self.identity.generation_id

    def is_current(self) -> bool:
        """Return whether the identity is still a member of its generation; if not, the commit is
        not sent. Raises: CommitFailedError if there is another reason not to send it."""
        return True

    def newest(self) -> Offsets:
        """Return the offsets to send now. Called directly before each attempt."""
        return self.offsets
