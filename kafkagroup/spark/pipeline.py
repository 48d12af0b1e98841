"""The pipeline from `__consumer_offsets` to tables of the health of groups; run it repeatedly.

Each run appends events and samples, drops the duplicates that an interrupted run leaves, and
computes all other tables again. The tables are folders under `out`, or in a catalog; Spark keeps
the position of the next run in `out`/checkpoint.
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
"""The group that the job commits to. The tables leave it out: the job's commits are records that it
has not read yet, so it always has a lag."""

_ROWS = 1_000_000
"""The maximum of events in one batch."""


@attrs.frozen
class Tables:
    """Tables by name: in a folder, or in a catalog."""

    spark: SparkSession
    root: str
    """A path or URL that Spark can write to."""
    format: str = "parquet"
    """Also "delta" or "iceberg", if the session has it."""
    namespace: str | None = None
    """A namespace of a catalog of the session, such as "lake.kafka", which then has the tables
    instead of `root`."""

    def path(self, name: str) -> str:
        """Return the path of a table below `root`."""
        return f"{self.root.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Whether the table exists."""
        if self.namespace is not None:
            return bool(self.spark.catalog.tableExists(self._named(name)))
        files, path = file_system(self.spark, self.path(name))
        return bool(files.exists(path))

    def read(self, name: str) -> DataFrame:
        """Return the table."""
        if self.namespace is not None:
            return self.spark.read.table(self._named(name))
        return self.spark.read.format(self.format).load(self.path(name))

    def append(self, name: str, rows: DataFrame) -> None:
        """Append rows to the table."""
        self._write(name, rows, "append")

    def replace(self, name: str, rows: DataFrame) -> None:
        """Replace the whole table. `rows` must not be read from it."""
        self._write(name, rows, "overwrite")

    def _write(self, name: str, rows: DataFrame, mode: str) -> None:
        # A later release may have other columns: without this option, Delta refuses them.
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
    """Read new records, sample the lag, and write the tables.

    `options` are the connection options; `out`, `format` and `namespace` are as in `Tables`: the
    checkpoint is always under `out`. The job commits its offsets to `group`; each run commits them
    again, so that they do not expire. `allowed` and `horizon` are as in `evaluation` and `weights`.
    `told` is called with the name of each step. Do not run two jobs with the same `out`.

    Raises: ConfigurationError; IllegalStateError if the group has members; BrokerError;
    TransportError; Spark's exception if a query failed.
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
    """Append the events since the last run, and commit their end to the group.

    Without its checkpoint, a run starts at the log's start again: events are then duplicated, and
    `run` drops the duplicates when it reads them.
    """
    source = {
        **options,
        "group.id": group,
        "maxRowsPerBatch": str(_ROWS),
        "rewind": "true",
        # Compaction and the deletion of groups remove records regularly, without data loss.
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
    """Yield the name and rows of each table that a run replaces. Some rows are computed from tables
    that must be written before."""
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
