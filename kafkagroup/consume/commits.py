"""Offsets to commit, each with the assignment that it belongs to.

The coordinator refuses the commit of an earlier generation. But a client that reads its generation
only when it sends would commit, in the new generation, offsets that an application determined in an
earlier one: it would undo the commits of the members in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from kafkagroup._values import evolve, frozen
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import CommitFailedError
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.schema import NO_ID

__all__ = [
    "Commit",
    "by_topic_id",
    "check_assigned",
    "check_floors",
    "of_assignment",
    "of_processed",
    "topic_ids",
]


@frozen
class Commit:
    """The offset to commit of one partition."""

    owned: OwnedPartition
    """The partition, in the assignment in which the commit was requested."""
    offset: OffsetAndMetadata
    topic_id: UUID
    """The topic that it was requested for; NO_ID if the id was not known."""
    is_automatic: bool = False
    """Whether it commits what is processed, in a consumer with auto-commit: a retry then sends
    `newest`, not `offset`."""

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.owned.tp

    @property
    def newest(self) -> OffsetAndMetadata:
        """The offset to send now: of an automatic commit, what is processed by now."""
        processed = self.owned.to_commit() if self.is_automatic else None
        if processed is None or processed.offset <= self.offset.offset:
            return self.offset
        return evolve(processed, metadata=self.offset.metadata)

    def is_assigned(self, owned: Mapping[TopicPartition, OwnedPartition]) -> bool:
        """Return whether `owned` still has the partition in the same assignment, and the offset is
        not of a topic that was deleted and recreated."""
        return owned.get(self.tp) is self.owned and not self.owned.is_of_other_topic(self.topic_id)

    @property
    def is_below_floor(self) -> bool:
        """Whether every position that this assignment has had is above the offset."""
        return self.offset.offset < self.owned.floor


def of_assignment(
    owned: Mapping[TopicPartition, OwnedPartition],
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> list[Commit]:
    """Return the commits of these offsets in the present assignment, as `owned` has it."""
    return [Commit(owned[tp], offset, owned[tp].topic_id) for tp, offset in offsets.items()]


def of_processed(
    owned: Mapping[TopicPartition, OwnedPartition],
    among: Iterable[OwnedPartition],
    *,
    is_automatic: bool = False,
) -> list[Commit]:
    """Return the commits of what is processed and not committed, for those partitions of `among`
    that `owned` still has in the same assignment."""
    return [
        Commit(one, offset, one.topic_id, is_automatic)
        for one in among
        if owned.get(one.tp) is one and (offset := one.to_commit()) is not None
    ]


def check_assigned(
    commits: Iterable[Commit], owned: Mapping[TopicPartition, OwnedPartition]
) -> None:
    """Check that `is_assigned` is true for all commits. Raises: CommitFailedError."""
    released = sorted(commit.tp for commit in commits if not commit.is_assigned(owned))
    if released:
        raise CommitFailedError(
            f"commit of {', '.join(map(str, released))} failed: since it was requested, this"
            " consumer has released the partition, or its topic was recreated; the next owner"
            " continues from the last commit that succeeded",
            tuple(released),
        )


def check_floors(commits: Iterable[Commit]) -> None:
    """Check that no offset is below the floor of its assignment. Raises: CommitFailedError."""
    below = sorted((c for c in commits if c.is_below_floor), key=lambda c: c.tp)
    if below:
        names = ", ".join(str(c.tp) for c in below)
        what = ", ".join(f"{c.offset.offset} is below {c.owned.floor}" for c in below)
        raise CommitFailedError(
            f"commit of {names} failed: {what}, where this assignment began, so the offset is of an"
            " earlier one, and other members may have committed since. Drop it; to rewind the"
            " group, seek() to it, then commit",
            tuple(c.tp for c in below),
        )


def topic_ids(commits: Iterable[Commit]) -> dict[str, UUID]:
    """Return the ids of the commits' topics, by name, where known."""
    return {c.tp.topic: found for c in commits if (found := _topic_id(c)) != NO_ID}


def by_topic_id(commits: Iterable[Commit]) -> list[Sequence[Commit]]:
    """Split commits into parts that have one topic id for each topic name.

    There is one part, unless partitions of one topic have different ids: some are in a deleted
    topic and others in the topic that has replaced it, or the id of some is not known yet.
    """
    parts: list[tuple[dict[str, UUID], list[Commit]]] = []
    for commit in commits:
        topic, topic_id = commit.tp.topic, _topic_id(commit)
        for ids, part in parts:
            if ids.setdefault(topic, topic_id) == topic_id:
                part.append(commit)
                break
        else:
            parts.append(({topic: topic_id}, [commit]))
    return [part for _, part in parts]


def _topic_id(commit: Commit) -> UUID:
    # A fetch since the commit was requested may have returned the id.
    return commit.owned.topic_id if commit.topic_id == NO_ID else commit.topic_id
