"""Judges the logs of a soak: what was lost, what came twice, and whether it may have.

A tenure is one partition as long as one member has it. The tenures of a partition follow each other
and each leaves a window for where the next may start: exactly where it stopped if it let go in good
order, for then it has committed; anywhere from its last acknowledged commit on if it was killed or
had lost its place, for what it did since nobody knows. So nothing else excuses a repeat: a commit
that was under way when its coordinator died is tried again before the partition is let go of.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby

import attrs
from member_log import Entry, Kind


@attrs.frozen(kw_only=True)
class Verdict:
    """What the logs of all members say together."""

    produced: int
    delivered: int
    """Records delivered at least once."""
    lost: int
    duplicated: int
    """Deliveries beyond the first of a record."""
    unexplained: int
    """Records that came again although they were committed, or had to be."""
    disordered: int
    """Deliveries that are not the successor of the one before in their tenure."""
    trespassing: int
    """Deliveries of what the member did not own, and tenures begun while another delivered."""
    uncommitted: int
    """Partitions whose last commit is not where the last tenure left it."""
    tenures: int
    fenced: int
    """Tenures that ended with the member's place in the group, not with a commit."""

    @property
    def clean(self) -> bool:
        """Whether nothing was lost and everything that came twice may have."""
        wrong = (
            self.lost,
            self.unexplained,
            self.disordered,
            self.trespassing,
            self.uncommitted,
        )
        return not any(wrong)


@attrs.define
class Tenure:
    """One partition as long as one member has it."""

    partition: int
    began: int
    start: int | None = None
    """Offset of the first record; None while there is none."""
    end: int = 0
    """Offset behind the last record."""
    committed: int = 0
    """Offset of the last acknowledged commit that the member knew of."""
    last_delivery: int = 0
    clean: bool = False
    """Let go of after a commit."""
    fenced: bool = False


class _Reading:
    """One member's log, read."""

    def __init__(self) -> None:
        self.tenures: list[Tenure] = []
        self.sequences: list[int] = []
        self.disordered = 0
        self.trespassing = 0

    def read(self, log: Iterable[Entry], *, killed: bool) -> None:
        running: dict[int, Tenure] = {}
        for entry in log:
            match entry.kind:
                case Kind.ASSIGNED:
                    tenure = Tenure(entry.partition, entry.time)
                    running[entry.partition] = tenure
                    self.tenures.append(tenure)
                case Kind.DELIVERED:
                    self._deliver(entry, running.get(entry.partition))
                case Kind.COMMITTED:
                    running[entry.partition].committed = entry.offset
                case Kind.REVOKED:
                    running.pop(entry.partition).clean = True
                case Kind.LOST:
                    running.pop(entry.partition).fenced = True
        for tenure in running.values():
            tenure.clean = not killed

    def _deliver(self, entry: Entry, tenure: Tenure | None) -> None:
        self.sequences.append(entry.sequence)
        if tenure is None:
            self.trespassing += 1
            return
        if tenure.start is None:
            tenure.start = tenure.committed = entry.offset
        else:
            self.disordered += entry.offset != tenure.end
        tenure.end = entry.offset + 1
        tenure.last_delivery = entry.time


def judge(
    produced: int,
    logs: Mapping[str, Iterable[Entry]],
    killed: frozenset[str],
    committed: Mapping[int, int],
) -> Verdict:
    """Judge complete logs: member -> its entries in order; and partition -> the group's offset once
    all have left."""
    reading = _Reading()
    for name, log in logs.items():
        reading.read(log, killed=name in killed)
    distinct = set(reading.sequences)
    unexplained = overlapping = uncommitted = 0
    tenures = sorted(reading.tenures, key=lambda t: (t.partition, t.began))
    for partition, of_partition in groupby(tenures, key=lambda t: t.partition):
        low = high = last_delivery = 0
        for tenure in of_partition:
            overlapping += tenure.began < last_delivery
            last_delivery = max(last_delivery, tenure.last_delivery)
            if tenure.start is not None:
                unexplained += max(0, low - tenure.start)
                low, high = tenure.end if tenure.clean else tenure.committed, tenure.end
        uncommitted += not low <= committed.get(partition, 0) <= high
    return Verdict(
        produced=produced,
        delivered=len(distinct),
        lost=produced - len(distinct & set(range(produced))),
        duplicated=len(reading.sequences) - len(distinct),
        unexplained=unexplained,
        disordered=reading.disordered,
        trespassing=reading.trespassing + overlapping,
        uncommitted=uncommitted,
        tenures=len(tenures),
        fenced=sum(tenure.fenced for tenure in tenures),
    )
