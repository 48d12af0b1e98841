"""What the coordinator assigns to a member of a consumer group (KIP-848), by topic id.

A response may assign 200,000 topics, and a step that did something for each of them would block the
event loop. So a thread prepares a large response, and the step does only what has changed since. A
`Target` keeps apart its topics with and without a name, and a `TargetChange` has the result of
comparing a target with the previous one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kafkagroup._values import frozen
from kafkagroup.wire.messages.consumer_heartbeat import Assignment

__all__ = ["PartitionsByTopicId", "Target", "TargetChange", "is_large", "is_missing", "prepare"]

PartitionsByTopicId = Mapping[UUID, tuple[int, ...]]
"""Topic id -> partitions, sorted; no topic without any."""

_LARGE = 2_000
"""The limit of topics and partitions that a step takes by itself: a millisecond's work."""

_NO_NAMES: Mapping[UUID, str] = {}


@frozen
class _Split:
    """The topics of a target with and without a name in `names`."""

    names: Mapping[UUID, str]
    named: PartitionsByTopicId
    unnamed: frozenset[UUID]


class Target(dict[UUID, tuple[int, ...]]):
    """The partitions that the coordinator assigns: never changed, and equal to a dict with the same
    items."""

    __slots__ = ("_split",)

    def __init__(self, partitions: PartitionsByTopicId) -> None:
        super().__init__(partitions)
        self._split = _Split(_NO_NAMES, {}, frozenset(self))
        """A cache: the split by the names that were used last."""

    def named(self, names: Mapping[UUID, str]) -> PartitionsByTopicId:
        """Return the partitions of the topics whose names are known."""
        return self._split_by(names).named

    def unnamed(self, names: Mapping[UUID, str]) -> frozenset[UUID]:
        """Return the topics whose names are unknown."""
        return self._split_by(names).unnamed

    def note_named(
        self, before: Mapping[UUID, str], names: Mapping[UUID, str], added: Iterable[UUID]
    ) -> None:
        """Note that `names` has, of the topics of this target, those that `before` had, and those
        in `added`."""
        if self._split.names is before:
            self._split = self._with_names(self._split, names, added)

    def _split_by(self, names: Mapping[UUID, str]) -> _Split:
        # A local: while a target is compared in a thread, the step may replace the cache.
        split = self._split
        # Compared by identity: names are replaced, never changed.
        if split.names is not names:
            nothing = _Split(_NO_NAMES, {}, frozenset(self))
            split = self._with_names(nothing, names, (t for t in self if t in names))
            self._split = split
        return split

    def _with_names(
        self, split: _Split, names: Mapping[UUID, str], added: Iterable[UUID]
    ) -> _Split:
        found = {topic: self[topic] for topic in added if topic in split.unnamed}
        return _Split(names, {**split.named, **found}, split.unnamed.difference(found))


@frozen
class TargetChange:
    """The target of a response, compared with the one before."""

    before: Target | None
    target: Target
    """The same object as `before` if they are equal."""
    takes_away: bool
    """Whether the target lacks any partition of `before`."""

    @classmethod
    def of(cls, assignment: Assignment, before: Target | None) -> TargetChange:
        """Compare what a response assigns with the target before."""
        found = _by_topic(assignment)
        if before is None:
            return cls(None, Target(found), takes_away=False)
        if found == before:
            return cls(before, before, takes_away=False)
        return cls(before, Target(found), takes_away=is_missing(found, before))


def is_missing(partitions: PartitionsByTopicId, other: PartitionsByTopicId) -> bool:
    """Return whether `partitions` lacks any partition of `other`."""
    return any(
        (found := partitions.get(topic, ())) is not wanted and not {*found}.issuperset(wanted)
        for topic, wanted in other.items()
    )


def is_large(assignment: Assignment) -> bool:
    """Return whether a thread prepares the step with this assignment."""
    topics = assignment.topic_partitions
    return len(topics) + sum(len(topic.partitions) for topic in topics) > _LARGE


def prepare(
    assignment: Assignment, before: Target | None, names: Mapping[UUID, str]
) -> TargetChange:
    """Return the change of a member's target, in a thread. A step can use it as long as the member
    has the same target and the same names; else it compares again by itself."""
    change = TargetChange.of(assignment, before)
    change.target.named(names)  # splits the topics by name here, and not in the step
    return change


def _by_topic(assignment: Assignment) -> PartitionsByTopicId:
    """Return the assigned partitions of each topic, also if the response lists a topic twice."""
    found: dict[UUID, tuple[int, ...]] = {}
    for topic in assignment.topic_partitions:
        partitions = {*found.get(topic.topic_id, ()), *topic.partitions}
        if partitions:
            found[topic.topic_id] = tuple(sorted(partitions))
    return found
