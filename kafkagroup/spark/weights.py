"""The loads of partitions, which `kafkagroup.assign.weighted_sticky` balances.

A load is the rate in records per second that the partition's owner must process to reach the log's
end within `horizon`: the rate of new records, and the lag divided by the horizon.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kafkagroup.assign.loads import MeasuredLoads, encode_loads
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["weights", "write_loads"]


def weights(
    evaluation: DataFrame, log_ends: DataFrame, *, horizon: float = 300.0, window: float = 600.0
) -> DataFrame:
    """Return `rate` and `load` in records per second, and the time of the sample, `made_at`, of
    each group and partition.

    `evaluation`: the table of `health.evaluation`; `log_ends`: that of `ends.log_ends`. `rate` is
    the rate of new records in the `window` seconds before the last known log end; 0 if fewer than
    two ends are known. `horizon`: the seconds within which a lag should be processed. Raises:
    ConfigurationError.
    """
    if not (horizon > 0 and window > 0):
        raise ConfigurationError(f"horizon={horizon}, window={window}; expected seconds above 0")
    newest = log_ends.groupBy("topic", "partition").agg(F.max("time").alias("latest"))
    span = "(unix_micros(max(time)) - unix_micros(min(time))) / 1e6"
    # A topic that was recreated meanwhile has smaller ends: the rate must not be negative.
    grown = "greatest(0, max_by(log_end, time) - min_by(log_end, time))"
    rates = (
        log_ends.join(newest, ["topic", "partition"])
        .where(f"unix_micros(time) >= unix_micros(latest) - {round(window * 1e6)}")
        .groupBy("topic", "partition")
        .agg(F.expr(f"coalesce({grown} / nullif({span}, 0), 0) AS rate"))
    )
    return evaluation.join(rates, ["topic", "partition"], "left").selectExpr(
        "group_id",
        "topic",
        "partition",
        "coalesce(rate, 0) AS rate",
        "lag",
        # "D" makes the horizon a double in SQL; without it, it would be a decimal.
        f"coalesce(rate, 0) + coalesce(lag, 0) / {float(horizon)!r}D AS load",
        "evaluated_at AS made_at",
    )


def write_loads(weights: DataFrame, group: str, path: str | os.PathLike[str]) -> int:
    """Write a group's loads to the file that a `LoadsFile` of its members reads; return their
    count.

    The file is written under another name and renamed, so that no reader sees a part of it.
    """
    rows = (
        weights.where(F.col("group_id") == group)
        .selectExpr("topic", "partition", "load", "unix_millis(made_at) AS made_at")
        .collect()
    )
    made_at = max((row.made_at for row in rows), default=0) / 1000
    loads = {TopicPartition(row.topic, row.partition): row.load for row in rows}
    target = Path(path)
    draft = target.with_name(f".{target.name}.new")
    draft.write_text(encode_loads(MeasuredLoads(made_at=made_at, loads=loads)), "utf-8")
    draft.replace(target)
    return len(loads)
