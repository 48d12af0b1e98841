"""The whole way from `__consumer_offsets` to tables of how groups do, once or again and again.

Events and samples are appended, each run its own; all else is made of them anew, so that what a run
that was cut short had written twice is there once. Under `out` there is a folder for each table,
unless a catalog has them, and `checkpoint`, which is Spark's: where the next run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql import functions as F

from kafkagroup.spark import groups, history
from kafkagroup.spark.commits import file_system, reconcile
from kafkagroup.spark.ends import lag_history, log_ends
from kafkagroup.spark.health import evaluation, group_health
from kafkagroup.spark.lag import lag
from kafkagroup.spark.source import register
from kafkagroup.spark.weights import weights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GROUP", "Tables", "run"]

GROUP = "kafkagroup-pipeline"
"""The group that the job commits to. It is left out of the tables: its commits are what it reads,
so it is never level."""

_ROWS = 1_000_000
"""Events of one batch, when there is much to read."""


@attrs.frozen
class Tables:
    """Tables by name: in a folder, or in a catalog."""

    spark: SparkSession
    root: str
    """A path, or the URL of anything that Spark writes to."""
    format: str = "parquet"
    """Or delta, or iceberg, where the session has it."""
    namespace: str | None = None
    """Of a catalog of the session, as "lake.kafka": the tables are there, not under `root`."""

    def path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        if self.namespace is not None:
            return bool(self.spark.catalog.tableExists(self._named(name)))
        files, path = file_system(self.spark, self.path(name))
        return bool(files.exists(path))

    def read(self, name: str) -> DataFrame:
        if self.namespace is not None:
            return self.spark.read.table(self._named(name))
        return self.spark.read.format(self.format).load(self.path(name))

    def append(self, name: str, rows: DataFrame) -> None:
        self._write(name, rows, "append")

    def replace(self, name: str, rows: DataFrame) -> None:
        """All of it. `rows` must not come from the table itself."""
        self._write(name, rows, "overwrite")

    def _write(self, name: str, rows: DataFrame, mode: str) -> None:
        # What replaces a table may have other columns, of a later release: Delta wants to be told.
        writer = rows.write.format(self.format).mode(mode)
        writer = writer.option("overwriteSchema", mode == "overwrite")
        if self.namespace is not None:
            writer.saveAsTable(self._named(name))
        else:
            writer.save(self.path(name))

    def _named(self, name: str) -> str:
        return f"{self.namespace}.{name}"


def run(
    spark: SparkSession,
    options: Mapping[str, str],
    out: str,
    *,
    group: str = GROUP,
    format: str = "parquet",
    namespace: str | None = None,
    allowed: int = 0,
    horizon: float = 300.0,
    told: Callable[[str], object] = lambda step: None,
) -> Tables:
    """Read what is new, sample the lag, and make the tables.

    `options` are those of connecting; `out`, `format` and `namespace` as in `Tables`: the
    checkpoint is under `out` wherever the tables are. `group`: whose offsets follow the job,
    committed again by each run, so that they never expire. `allowed` and `horizon` as in
    `evaluation` and `weights`. `told` hears of each step. One at a time under one `out`.

    Raises: ConfigurationError; IllegalStateError where the group has members; BrokerError;
    TransportError; what Spark raises of a query that failed.
    """
    register(spark)
    tables = Tables(spark, out, format, namespace)
    told("events")
    _read(tables, options, group)
    events = tables.read("events").dropDuplicates(["log_partition", "log_offset"])
    others = events.where(~F.col("group_id").eqNullSafe(group)).persist()
    try:
        commits = history.commits(others)
        told("log_ends")
        known = tables.read("log_ends") if tables.exists("log_ends") else None
        tables.append("log_ends", log_ends(spark, options, commits, known))
        told("lag")
        tables.append("lag", lag(spark, options, commits))
        for name, rows in _derived(tables, others, allowed, horizon):
            told(name)
            tables.replace(name, rows)
    finally:
        others.unpersist()
    return tables


def _read(tables: Tables, options: Mapping[str, str], group: str) -> None:
    """Append the events since the last run, and bring the group to where that ends.

    Without its checkpoint a run begins at the start of the log again: what it has by then is
    doubled, and the doubles are left out when events are read.
    """
    source = {
        **options,
        "group.id": group,
        "maxRowsPerBatch": str(_ROWS),
        "rewind": "true",
        # A group's records are compacted, and old ones deleted with the group: no loss to the job.
        "failOnDataLoss": "false",
    }
    checkpoint = tables.path("checkpoint")
    query: Any = (
        history.events(tables.spark, source, streaming=True)
        .writeStream.foreachBatch(lambda rows, _: tables.append("events", rows))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    reconcile(tables.spark, checkpoint, {**source, "subscribe": history.TOPIC}, renew=True)


def _derived(
    tables: Tables, events: DataFrame, allowed: int, horizon: float
) -> Iterator[tuple[str, DataFrame]]:
    """Compute the tables that each run replaces; some read tables that were yielded before."""
    read = tables.read
    yield "commits", history.commits(events)
    yield "generations", history.generations(events)
    yield "assignments", history.assignments(events)
    yield "topic_names", history.topic_names(events)
    yield "undecoded", history.undecoded(events)
    yield "rebalances", groups.rebalances(events)
    yield "ownership", groups.named(groups.ownership(events), read("topic_names"))
    yield "members", groups.members(events)
    yield "lag_history", lag_history(read("commits"), read("log_ends"))
    yield (
        "evaluation",
        evaluation(read("lag"), read("lag_history"), read("commits"), allowed=allowed),
    )
    yield (
        "group_health",
        group_health(events, read("evaluation"), read("rebalances"), read("members")),
    )
    yield "weights", weights(read("evaluation"), read("log_ends"), horizon=horizon)
