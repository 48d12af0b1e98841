"""The lag of groups as tables, as lines, live, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from kafkagroup import TopicPartition
from kafkagroup.admin import PartitionLag
from kafkagroup.cli._view import add_row, count, new_table

__all__ = ["Lags", "lag_line", "lag_table", "lag_value", "live_table", "sparkline", "total"]

Lags = Mapping[TopicPartition, PartitionLag]

_BARS = "▁▂▃▄▅▆▇█"


def total(lags: Lags) -> tuple[int, float | None]:
    """Offsets of all partitions together, and the seconds of the one that is behind most; what is
    not known is left out."""
    seconds = [one.seconds for one in lags.values() if one.seconds is not None]
    return sum(one.lag or 0 for one in lags.values()), max(seconds, default=None)


def lag_table(group: str, lags: Lags) -> Table:
    """Print each partition, and the total."""
    columns = ("committed", "end", "lag", "seconds")
    table = new_table(group, "partition", *columns, "", right=columns)
    for tp, one in lags.items():
        add_row(table, tp, one.committed, one.end, one.lag, exact(one.seconds), one.reason)
    table.add_section()
    lag, seconds = total(lags)
    add_row(table, "total", None, None, lag, exact(seconds), None)
    return table


def lag_line(group: str, lags: Lags) -> str:
    """A sample of one group in few words."""
    lag, seconds = total(lags)
    behind = sum(bool(one.lag) for one in lags.values())
    unknown = sum(one.lag is None for one in lags.values())
    told = f"{group}: lag {lag} in {behind} of {count(len(lags), 'partition')}"
    if seconds is not None:
        told += f", {exact(seconds)} s"
    return f"{told}; {unknown} unknown" if unknown else told


def live_table(
    group: str, lags: Lags, history: Sequence[Mapping[TopicPartition, int | None]], rows: int
) -> Table:
    """The partitions that are behind most, as many as there are rows, each with its last samples;
    and the total. `history` is of the lags, the latest last."""
    columns = ("committed", "end", "lag", "seconds")
    table = new_table(group, "partition", *columns, "last samples", "", right=columns)
    worst = sorted(lags, key=lambda tp: (-(lags[tp].lag or 0), tp))[: max(rows, 0)]
    for tp in worst:
        one = lags[tp]
        add_row(
            table,
            tp,
            one.committed,
            one.end,
            one.lag,
            exact(one.seconds),
            sparkline([sample.get(tp) for sample in history]),
            one.reason,
        )
    if len(worst) < len(lags):
        add_row(table, f"{len(lags) - len(worst)} others", *[None] * 6)
    table.add_section()
    lag, seconds = total(lags)
    sums = [sum(lag or 0 for lag in sample.values()) for sample in history]
    add_row(table, "total", None, None, lag, exact(seconds), sparkline(sums), None)
    return table


def sparkline(samples: Sequence[int | None]) -> str:
    """A bar for each sample, as high as it is beside the highest; a gap for one that is unknown."""
    most = max((one for one in samples if one is not None), default=0) or 1
    return "".join(" " if one is None else _BARS[one * (len(_BARS) - 1) // most] for one in samples)


def exact(seconds: float | None) -> str | None:
    """Round to the millisecond, the unit of record timestamps."""
    return None if seconds is None else f"{seconds:.3f}"


def lag_value(group: str, lags: Lags) -> dict[str, object]:
    """Return the lag as a JSON value."""
    lag, seconds = total(lags)
    return {
        "group_id": group,
        "lag": lag,
        "seconds": seconds,
        "partitions": [partition_value(tp, one) for tp, one in lags.items()],
    }


def partition_value(tp: TopicPartition, one: PartitionLag) -> dict[str, object]:
    """The lag of one partition."""
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "committed": one.committed,
        "start": one.start,
        "end": one.end,
        "lag": one.lag,
        "seconds": one.seconds,
        "reason": one.reason,
    }
