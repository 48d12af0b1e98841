"""The demo's account: which of the produced records were lost or duplicated.

Pure functions of sequence numbers and offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

__all__ = ["Account", "Processed", "Window", "compare", "uncommitted"]


@attrs.frozen
class Processed:
    """One record that a member has processed."""

    sequence: int
    partition: int
    offset: int


@attrs.frozen
class Window:
    """Offsets of one partition that a killed member had processed and not committed."""

    partition: int
    first: int
    """The committed offset: where the next owner starts."""
    end: int
    """One past the last record that the killed member processed."""

    def __contains__(self, record: Processed) -> bool:
        return record.partition == self.partition and self.first <= record.offset < self.end

    def __len__(self) -> int:
        return self.end - self.first


@attrs.frozen
class Account:
    """What was produced and processed. The tuples contain sequence numbers, sorted."""

    produced: int
    processed: int
    """Distinct records."""
    uncommitted: int
    """Records in the windows of killed members: the most duplicates that are explained."""
    lost: tuple[int, ...]
    """Produced and never processed."""
    duplicates: tuple[int, ...]
    """Processed more than once, inside a window: at-least-once delivery allows these."""
    unexplained: tuple[int, ...]
    """Processed more than once outside of all windows, or never produced: faults."""


def uncommitted(
    processed: Iterable[Processed], committed: Mapping[int, int | None]
) -> tuple[Window, ...]:
    """Return the windows of a killed member, of the partitions that have one.

    `processed`: all that the member processed. `committed`: partition -> the group's committed
    offset when the member was killed; None if there is none, so that the next owner starts at 0.
    """
    ends: dict[int, int] = {}
    for record in processed:
        ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)
    windows = (Window(p, committed.get(p) or 0, end) for p, end in sorted(ends.items()))
    return tuple(window for window in windows if window.first < window.end)


def compare(
    produced: Iterable[int], processed: Iterable[Processed], windows: Iterable[Window]
) -> Account:
    """Compare the sequence numbers of the acknowledged records with the processed records."""
    sent, windows, records = set(produced), tuple(windows), tuple(processed)
    counts = Counter(record.sequence for record in records)
    explained = {r.sequence for r in records if any(r in window for window in windows)}
    repeated = {sequence for sequence, count in counts.items() if count > 1}
    return Account(
        produced=len(sent),
        processed=len(counts),
        uncommitted=sum(map(len, windows)),
        lost=tuple(sorted(sent - counts.keys())),
        duplicates=tuple(sorted(repeated & explained)),
        unexplained=tuple(sorted((repeated - explained) | (counts.keys() - sent))),
    )
