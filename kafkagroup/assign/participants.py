"""Range and round robin with pykafka's signature: the partitions of one participant.

Each participant decides for itself; they agree as long as all see the same participants and
partitions. The assignors compute the result: they get the sorted partitions as those of one topic,
to which all participants subscribe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from kafkagroup.assign.range import range_assignor
from kafkagroup.assign.roundrobin import roundrobin_assignor
from kafkagroup.assign.spec import Assignor, GroupSpec, MemberSpec
from kafkagroup.errors import ConfigurationError

__all__ = ["decide_partitions_range", "decide_partitions_roundrobin"]

Id = TypeVar("Id", str, bytes)
P = TypeVar("P")


def decide_partitions_range(
    participants: Iterable[Id], partitions: Iterable[P] | Mapping[Any, P], consumer_id: Id
) -> set[P]:
    """Return a run of the sorted partitions; if they do not divide evenly, the runs of the first
    participants, in sorted order, are longer by one.

    `participants` are the ids of all consumers, in any order. If `partitions` is a mapping, its
    values are used. Partitions are sorted by their own order, `TopicPartition` by topic and then
    number; those of pykafka, with a `topic.name`, a `leader.id` and an `id`, by these three joined
    with "-", as in pykafka: 10 comes before 2.
    O(participants log participants + partitions log partitions).
    Raises: ConfigurationError if `consumer_id` is not among the participants.
    """
    return _decide(range_assignor, participants, partitions, consumer_id)


def decide_partitions_roundrobin(
    participants: Iterable[Id], partitions: Iterable[P] | Mapping[Any, P], consumer_id: Id
) -> set[P]:
    """Return every n-th of the sorted partitions, with n participants. Arguments, order, cost and
    errors are those of `decide_partitions_range`."""
    return _decide(roundrobin_assignor, participants, partitions, consumer_id)


def _decide(
    assignor: Assignor,
    participants: Iterable[Id],
    partitions: Iterable[P] | Mapping[Any, P],
    consumer_id: Id,
) -> set[P]:
    ids = sorted(set(participants))
    if consumer_id not in ids:
        raise ConfigurationError(
            f"{consumer_id!r} is not among the participants: "
            f"{', '.join(map(repr, ids)) or 'there are none'}"
        )
    every = partitions.values() if isinstance(partitions, Mapping) else partitions
    row = sorted(every, key=_sort_key)
    member = MemberSpec(topics=frozenset(("row",)))
    spec = GroupSpec(members={_member_id(id_): member for id_ in ids}, partitions={"row": len(row)})
    return {row[index] for _, index in assignor(spec)[_member_id(consumer_id)]}


def _member_id(id_: str | bytes) -> str:
    """Return a member id that sorts as the participant's id does: Latin-1 decodes any bytes, and
    keeps their order."""
    return id_ if isinstance(id_, str) else id_.decode("latin-1")


def _sort_key(partition: Any) -> Any:
    if hasattr(partition, "leader"):  # a `Partition` of pykafka
        return f"{partition.topic.name}-{partition.leader.id}-{partition.id}"
    return partition
