"""Partitions dealt out to members that are due a number of them each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from kafkagroup.types import TopicPartition

__all__ = ["deal", "deal_near"]


def deal(
    partitions: Sequence[TopicPartition], due: Mapping[int, int]
) -> dict[int, list[TopicPartition]]:
    """Deal in rounds, one each, so that neighbours spread over the members; ascending for each.

    `due` says how many each member gets, above 0; in all as many as there are partitions.
    O(partitions), in slices.
    """
    dealt: dict[int, list[TopicPartition]] = {member: [] for member in due}
    waiting = sorted(due)
    start = done = 0
    while waiting:
        until = min(due[member] for member in waiting)
        width = len(waiting)
        end = start + (until - done) * width
        for offset, member in enumerate(waiting, start):
            dealt[member] += partitions[offset:end:width]
        waiting = [member for member in waiting if due[member] > until]
        start, done = end, until
    return dealt


def deal_near(
    partitions: Sequence[TopicPartition],
    due: Mapping[int, int],
    rack: Mapping[int, str],
    replicas: Mapping[TopicPartition, frozenset[str]],
) -> dict[int, list[TopicPartition]]:
    """As `deal`, but first what has a replica in a member's rack to a member there.

    Partitions with the fewest such racks come first, and each goes to the rack that is due most;
    greedy, so not always as many as could be. `rack` is by member, where known, `replicas`
    by partition, empty where unknown. O(partitions log partitions). Source: KIP-881.
    """
    left = dict(due)
    rows: dict[str, deque[int]] = {}  # rack -> members there that are due more, in turn
    for member in sorted(due):
        if member in rack:
            rows.setdefault(rack[member], deque()).append(member)
    wanted = {name: sum(left[m] for m in row) for name, row in rows.items()}
    near = {racks: sorted(racks & rows.keys()) for racks in set(replicas.values())}
    dealt: dict[int, list[TopicPartition]] = {member: [] for member in due}
    others: list[TopicPartition] = []
    for partition in sorted(partitions, key=lambda p: len(near[replicas[p]])):
        best = max(near[replicas[partition]], key=wanted.__getitem__, default=None)
        if best is None or not wanted[best]:
            others.append(partition)
            continue
        row = rows[best]
        member = row.popleft()
        dealt[member].append(partition)
        wanted[best] -= 1
        left[member] -= 1
        if left[member]:
            row.append(member)
    rest = deal(others, {member: units for member, units in left.items() if units})
    return {member: sorted(dealt[member] + rest.get(member, [])) for member in due}
