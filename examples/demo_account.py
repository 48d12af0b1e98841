"""The demo's book-keeping: from what was produced and processed to what was lost or came twice.

Pure functions over sequence numbers; nothing here knows of brokers, processes or time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

__all__ = ["Account", "Processed", "Window", "settle", "uncommitted"]


@attrs.frozen
class Processed:
    """One record that a member has worked on."""

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
    """What became of the sequence numbers. Each tuple is sorted."""

    produced: int
    processed: int
    """Distinct records."""
    uncommitted: int
    """Records in the windows of killed members: the most that may come twice."""
    lost: tuple[int, ...]
    """Produced and never processed."""
    duplicates: tuple[int, ...]
    """Processed more than once, inside a window: at-least-once delivery allows these."""
    unexplained: tuple[int, ...]
    """Processed more than once outside every window, or never produced: faults."""


def uncommitted(
    processed: Iterable[Processed], committed: Mapping[int, int | None]
) -> tuple[Window, ...]:
    """The windows that a member leaves when it is killed, of those partitions that have one.

    `processed` is all that the member processed, `committed` maps partitions to the offsets that
    the group had committed when it died; None: nothing yet, so the next owner starts at 0.
    """
    ends: dict[int, int] = {}
    for record in processed:
        ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)
    windows = (Window(p, committed.get(p) or 0, end) for p, end in sorted(ends.items()))
    return tuple(window for window in windows if window.first < window.end)


def settle(
    produced: Iterable[int], processed: Iterable[Processed], windows: Iterable[Window]
) -> Account:
    """Compare what was produced (acknowledged sequence numbers) with what was processed."""
    sent, windows, records = set(produced), tuple(windows), tuple(processed)
    times = Counter(record.sequence for record in records)
    excused = {r.sequence for r in records if any(r in window for window in windows)}
    repeated = {sequence for sequence, count in times.items() if count > 1}
    return Account(
        produced=len(sent),
        processed=len(times),
        uncommitted=sum(map(len, windows)),
        lost=tuple(sorted(sent - times.keys())),
        duplicates=tuple(sorted(repeated & excused)),
        unexplained=tuple(sorted((repeated - excused) | (times.keys() - sent))),
    )
