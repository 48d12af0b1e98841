"""The lag of groups as a table, a live table, a line, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkagroup import TopicPartition
from kafkagroup.admin import PartitionLag
from kafkagroup.cli._table import Table
from kafkagroup.cli._view import add_row, count, new_table

__all__ = [
    "COLUMNS",
    "DROP",
    "Lags",
    "cells",
    "lag_line",
    "lag_table",
    "lag_value",
    "live_table",
    "partition_value",
    "rounded",
    "sparkline",
    "total",
]

Lags = Mapping[TopicPartition, PartitionLag]

COLUMNS = ("committed", "end", "lag", "seconds")
"""The columns of a partition's lag; `cells` returns their values."""

DROP = ("end", "committed", "seconds")
"""The columns that are left out on a narrow terminal, in this order."""

_BARS = "▁▂▃▄▅▆▇█"


def total(lags: Lags) -> tuple[int, float | None]:
    """Return the sum of the known lags in offsets, and the highest known lag in seconds, or None
    if no lag in seconds is known."""
    seconds = [lag.seconds for lag in lags.values() if lag.seconds is not None]
    return sum(lag.lag or 0 for lag in lags.values()), max(seconds, default=None)


def lag_table(group: str, lags: Lags) -> Table:
    """Return a table with each partition and the total. The last column, without a heading, has
    the reason why a value is unknown."""
    table = new_table(group, "partition", *COLUMNS, "", right=COLUMNS, drop=DROP)
    for tp, partition in lags.items():
        add_row(table, tp, *cells(partition), partition.reason)
    table.add_section()
    lag, seconds = total(lags)
    add_row(table, "total", None, None, lag, rounded(seconds), None)
    return table


def lag_line(group: str, lags: Lags) -> str:
    """Return the lag of a group as one line."""
    lag, seconds = total(lags)
    behind = sum(bool(partition.lag) for partition in lags.values())
    unknown = sum(partition.lag is None for partition in lags.values())
    line = f"{group}: lag {lag} in {behind} of {count(len(lags), 'partition')}"
    if seconds is not None:
        line += f", {rounded(seconds)} s"
    return f"{line}; {unknown} unknown" if unknown else line


def live_table(
    group: str, lags: Lags, history: Sequence[Mapping[TopicPartition, int | None]], rows: int
) -> Table:
    """Return a table of the partitions with the highest lags, at most `rows`, with the total.
    A terminal that is too low makes `rows` negative: then no partition is shown. `history` has the
    lags of the last samples, oldest first, which are shown as bars."""
    columns = (*COLUMNS, "last samples")
    drop = ("end", "committed", "last samples", "seconds")
    table = new_table(group, "partition", *columns, "", right=columns, drop=drop)
    worst = sorted(lags, key=lambda tp: (-(lags[tp].lag or 0), tp))[: max(rows, 0)]
    for tp in worst:
        samples = sparkline([sample.get(tp) for sample in history])
        add_row(table, tp, *cells(lags[tp]), samples, lags[tp].reason)
    if len(worst) < len(lags):
        # Six: `columns`, and the column without a heading.
        add_row(table, f"{len(lags) - len(worst)} others", *[None] * 6)
    table.add_section()
    lag, seconds = total(lags)
    sums = [sum(lag or 0 for lag in sample.values()) for sample in history]
    add_row(table, "total", None, None, lag, rounded(seconds), sparkline(sums), None)
    return table


def sparkline(samples: Sequence[int | None]) -> str:
    """Return a bar for each sample, in proportion to the highest sample; a space for an unknown
    sample."""
    highest = max((lag for lag in samples if lag is not None), default=0) or 1
    top = len(_BARS) - 1
    return "".join(" " if lag is None else _BARS[lag * top // highest] for lag in samples)


def cells(partition: PartitionLag) -> tuple[object, ...]:
    """Return the values of COLUMNS."""
    return partition.committed, partition.end, partition.lag, rounded(partition.seconds)


def rounded(seconds: float | None) -> str | None:
    """Return seconds as text, to the millisecond, which is the unit of record timestamps."""
    return None if seconds is None else f"{seconds:.3f}"


def lag_value(group: str, lags: Lags) -> dict[str, object]:
    """Return the lag as a JSON value."""
    lag, seconds = total(lags)
    return {
        "group_id": group,
        "lag": lag,
        "seconds": seconds,
        "partitions": [partition_value(tp, partition) for tp, partition in lags.items()],
    }


def partition_value(tp: TopicPartition, lag: PartitionLag) -> dict[str, object]:
    """Return the lag of one partition as a JSON value."""
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "committed": lag.committed,
        "start": lag.start,
        "end": lag.end,
        "lag": lag.lag,
        "seconds": lag.seconds,
        "reason": lag.reason,
    }
