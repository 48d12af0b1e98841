"""The pipeline from `__consumer_offsets` to tables of the health of groups; run it repeatedly.

Each run appends events and samples, drops the duplicates that an interrupted run leaves, and
computes all other tables again. The tables are folders under `out`, or in a catalog; the position
of the next run is in `out`/positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
from pyspark.sql import functions as F

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark import groups, history
from kafkagroup.spark.commits import commit
from kafkagroup.spark.ends import kept_ends, lag_history, log_ends
from kafkagroup.spark.files import (
    can_exchange,
    check_has_jvm,
    exists,
    last_number,
    read_text,
    replace_folder,
    write_text,
)
from kafkagroup.spark.health import coverage, evaluation, group_health
from kafkagroup.spark.lag import lag
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import parse_options
from kafkagroup.spark.ranges import Positions, capped
from kafkagroup.spark.source import register
from kafkagroup.spark.turns import election_of, elections_of, turn
from kafkagroup.spark.weights import weights
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GROUP", "Tables", "run"]

GROUP = "kafkagroup-pipeline"
"""The group that the job commits to. The tables leave it out: the job's commits are records that it
has not read yet, so it always has a lag."""

_ROWS = 1_000_000
"""The maximum of offsets in one batch."""

_PRUNED_SHARE = 0.1
"""The least share of the events that retention removes at once: it writes all others again."""

_FILES = ("parquet", "orc", "json", "csv", "text", "avro")
"""Formats of plain files. While they are overwritten there is no table; other formats have versions
of a table."""


def _nothing() -> None:
    pass


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
    before_write: Callable[[], None] = attrs.field(default=_nothing, kw_only=True, repr=False)
    """Called before each write. May raise: then nothing is written."""

    def path(self, name: str) -> str:
        """Return the path of a table below `root`."""
        return f"{self.root.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        """Whether the table exists."""
        if self.namespace is not None:
            return bool(self.spark.catalog.tableExists(self._named(name)))
        return exists(self.spark, self.path(name))

    def read(self, name: str) -> DataFrame:
        """Return the table."""
        if self.namespace is not None:
            return self.spark.read.table(self._named(name))
        return self.spark.read.format(self.format).load(self.path(name))

    @property
    def is_safe(self) -> bool:
        """Whether a table is replaced in one step: interrupted, there is the old or the new one."""
        if self.format not in _FILES:
            return True
        return self.namespace is None and can_exchange(self.spark, self.root)

    def append(self, name: str, rows: DataFrame) -> None:
        """Append rows to the table."""
        self._write(name, rows, "append")

    def replace(self, name: str, rows: DataFrame) -> None:
        """Replace the whole table. `rows` may be read from it only if `is_safe`.

        A table of files is written beside it, and then takes its place.
        """
        if self.namespace is not None or self.format not in _FILES:
            self._write(name, rows, "overwrite")
            return
        draft = f".{name}.draft"
        self._write(draft, rows, "overwrite")
        self.before_write()
        replace_folder(self.spark, self.path(draft), self.path(name))

    def _write(self, name: str, rows: DataFrame, mode: str) -> None:
        self.before_write()
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
    patience: float = 300.0,
    retention: timedelta | None = None,
    told: Callable[[str], object] = lambda step: None,
) -> Tables:
    """Read new records, sample the lag, and write the tables.

    `options` are the connection options; `out`, `format` and `namespace` are as in `Tables`: the
    positions are always under `out`. The job commits its offsets to `group`; each run commits them
    again, so that they do not expire. `allowed` and `horizon` are as in `evaluation` and `weights`.
    `retention`: how long events and samples are kept at least; of older ones remain those that the
    health of groups needs. `told` is called with the name of each step. Of two runs with the same
    `out` the second waits for `patience` seconds.

    Raises: ConfigurationError, also in a session of Spark Connect, and if `retention` is given and
    the tables cannot be replaced safely; IllegalStateError if the group has members, or another
    run does not end; BrokerError; TransportError; Spark's exception if a query failed.
    """
    check_has_jvm(spark, f"the pipeline to {out}")
    tables = Tables(spark, out, format, namespace)
    if retention is not None and not tables.is_safe:
        raise ConfigurationError(
            "retention needs tables that are replaced in one step: in the formats delta or"
            f" iceberg, or in a folder on a local disk of Linux; got {format} in"
            f" {out if namespace is None else namespace}"
        )
    register(spark)
    parsed, name = parse_options({**options, "subscribe": history.TOPIC}), election_of(group, out)
    told("turn")
    with turn(parsed, name, patience) as check_turn:
        locked = attrs.evolve(tables, before_write=check_turn)
        _run(locked, options, group, allowed, horizon, retention, told)
    return tables


def _run(
    tables: Tables,
    options: Mapping[str, str],
    group: str,
    allowed: int,
    horizon: float,
    retention: timedelta | None,
    told: Callable[[str], object],
) -> None:
    told("events")
    _read(tables, options, group)
    now = datetime.now(UTC)
    if retention is not None:
        told("retention")
        _prune(tables, now - retention)
    events = tables.read("events").dropDuplicates(["log_partition", "log_offset"]).persist()
    try:
        commits = history.commits(_others(events, group))
        told("log_ends")
        known = tables.read("log_ends") if tables.exists("log_ends") else None
        tables.append("log_ends", log_ends(tables.spark, options, commits, known))
        told("lag")
        tables.append("lag", lag(tables.spark, options, commits))
        for name, rows in _derived(tables, events, group, now, allowed, horizon):
            told(name)
            tables.replace(name, rows)
    finally:
        events.unpersist()


def _others(events: DataFrame, group: str) -> DataFrame:
    """Return the events without those of the pipeline itself."""
    own = F.col("group_id").eqNullSafe(group) | F.col("group_id").startswith(elections_of(group))
    return events.where(~F.coalesce(own, F.lit(False)))


def _read(tables: Tables, options: Mapping[str, str], group: str) -> None:
    """Append the events since the last run, batch by batch, and commit their end to the group.

    A run that is interrupted, or without its positions, reads events again: they are then
    duplicated, and `run` drops the duplicates when it reads them.
    """
    source = {
        **options,
        # Compaction and the deletion of groups remove records regularly, without data loss.
        "failOnDataLoss": "false",
        "isolation.level": "read_committed",
    }
    with Logs(parse_options({**source, "subscribe": history.TOPIC, "group.id": group})) as session:
        partitions, ids = session.partitions()
        starts, ends = session.log_bounds(partitions)
        done = _next_positions(tables, starts, ends, ids, group)
        while done.offsets != ends:
            until = Positions(capped(done.offsets, ends, _ROWS), ids, group)
            bounds = {
                "startingOffsets": json.dumps(done.by_topic()),
                "endingOffsets": json.dumps(until.by_topic()),
            }
            tables.append("events", history.events(tables.spark, {**source, **bounds}))
            done = until
            _keep_positions(tables, done)
        if not tables.exists("events"):
            tables.append("events", history.events(tables.spark, {**source, **_NO_EVENTS}))
        commit(session, group, done, renew=True)


_NO_EVENTS = {"startingOffsets": "latest", "endingOffsets": "latest"}


def _next_positions(
    tables: Tables,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    ids: Mapping[str, str],
    group: str,
) -> Positions:
    """Return where this run begins: where the last one ended, if its records still exist."""
    folder = tables.path("positions")
    last = last_number(tables.spark, folder)
    before: Mapping[TopicPartition, int] = {}
    if last is not None:
        found = Positions.from_json(json.loads(read_text(tables.spark, f"{folder}/{last}")))
        if found.topic_ids == ids:
            before = found.offsets
    begin = {tp: min(max(before.get(tp, 0), starts[tp]), ends[tp]) for tp in starts}
    return Positions(begin, ids, group)


def _keep_positions(tables: Tables, done: Positions) -> None:
    folder = tables.path("positions")
    last = last_number(tables.spark, folder)
    text = json.dumps(done.to_json())
    write_text(tables.spark, f"{folder}/{0 if last is None else last + 1}", text)


def _prune(tables: Tables, before: datetime) -> None:
    """Remove older events and samples, if they are a considerable share.

    The positions stay: they are those of the topic, wherever the events before them are.
    """
    events = tables.read("events")
    kept = history.compacted(events.dropDuplicates(["log_partition", "log_offset"]), before)
    if kept.count() > (1 - _PRUNED_SHARE) * events.count():
        return
    tables.replace("events", kept)
    if tables.exists("log_ends"):
        commits = history.commits(tables.read("events"))
        tables.replace("log_ends", kept_ends(tables.read("log_ends"), commits, before))
    if tables.exists("lag"):
        tables.replace("lag", tables.read("lag").where(F.col("sampled_at") >= F.lit(before)))


def _derived(
    tables: Tables, events: DataFrame, group: str, now: datetime, allowed: int, horizon: float
) -> Iterator[tuple[str, DataFrame]]:
    """Yield the name and rows of each table that a run replaces. Some rows are computed from tables
    that must be written before."""
    read, others = tables.read, _others(events, group)
    yield "commits", history.commits(others)
    yield "generations", history.generations(others)
    yield "assignments", history.assignments(others)
    yield "topic_names", history.topic_names(others)
    yield "undecoded", history.undecoded(others)
    yield "timelines", _timelines(tables, others)
    yield "rebalances", groups.rebalances(read("timelines"))
    yield (
        "ownership",
        groups.with_topic_names(groups.ownership(read("timelines")), read("topic_names")),
    )
    yield "members", groups.members(read("timelines"))
    yield "lag_history", lag_history(read("commits"), read("log_ends"))
    yield (
        "evaluation",
        evaluation(read("lag"), read("lag_history"), read("commits"), allowed=allowed),
    )
    yield (
        "group_health",
        group_health(
            others,
            coverage(events),
            read("evaluation"),
            read("rebalances"),
            read("members"),
            now,
        ),
    )
    yield "weights", weights(read("evaluation"), read("log_ends"), horizon=horizon)


def _timelines(tables: Tables, events: DataFrame) -> DataFrame:
    """Return the timelines; of groups without new records, those that the last run has written."""
    if tables.is_safe and tables.exists("timelines"):
        # Another release may have written another table.
        with suppress(ValueError):
            return groups.updated_timelines(tables.read("timelines"), events)
    return groups.timelines(events)
