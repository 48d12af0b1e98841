"""The pipeline from `__consumer_offsets` to tables of the health of groups; run it repeatedly.

The cost of a run depends on the new records. A run appends them to `events` in batches, one part
for each, and writes the end of each batch to `positions`. Then it adds a part to each table that
grows, and replaces the small ones. Four tables of state have what a run needs of earlier
events: the timelines, the latest commits, the facts of groups, and the coverage. A run writes a new
part of each.

A run is recorded in `runs`, with the number of its last batch, after all tables are written. If it
is interrupted, the next run takes the same number, continues from the same state, and writes the
same parts again. The tables are folders under `out`, or in a catalog; `positions`, `runs` and
`pruned`, the cutoff of the last removal of old rows, are always under `out`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING

import attrs
from pyspark.sql import functions as F

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark import groups, history
from kafkagroup.spark.commits import commit
from kafkagroup.spark.ends import lag_history, log_ends
from kafkagroup.spark.files import (
    check_has_jvm,
    delete,
    last_number,
    read_text,
    write_numbered,
)
from kafkagroup.spark.health import (
    coverage,
    evaluation,
    group_facts,
    group_health,
    without_removed_groups,
)
from kafkagroup.spark.lag import lag
from kafkagroup.spark.latest_commits import latest_commits, measured_commits
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import parse_options
from kafkagroup.spark.ranges import Positions, capped
from kafkagroup.spark.source import register
from kafkagroup.spark.stored_tables import Tables
from kafkagroup.spark.turns import election_of, election_prefix, turn
from kafkagroup.spark.weights import weights
from kafkagroup.transport.identity import require_cluster
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["GROUP", "Tables", "run"]

GROUP = "kafkagroup-pipeline"
"""The group that the pipeline commits to. The tables leave this group out: its commits are
themselves records that the pipeline has not read yet, so it always has a lag."""

_MAX_BATCH_OFFSETS = 1_000_000
"""The maximum of offsets in one batch of events."""

_LAYOUT = 1
"""The version of the columns of all tables. After a change, a run computes all tables but the
events again."""

_UNFINISHED = -1
"""The value of the column `run` of rows that the next run may change."""

_RATE_WINDOW = timedelta(minutes=10)
"""The time over which the rate of new records is measured."""

_PRUNE_INTERVAL = 0.1
"""The interval between two removals of expired rows, as a fraction of the retention: a removal
writes all other rows again."""

_MAX_PARTS = 100
"""A table with more parts than this has them merged into one: each has a file, which costs time to
list and to open."""

_GROWING = {
    "events": "log_time",
    "commits": "log_time",
    "generations": "time",
    "assignments": "time",
    "undecoded": "log_time",
    "log_ends": "time",
    "lag": "sampled_at",
    "lag_history": "time",
    "rebalances": "started",
    "ownership": "ended",
    "topic_names": None,
}
"""The tables that grow with each run -> the column by which retention applies; None if it does not
apply."""

_STATES = ("timelines", "latest_commits", "group_facts", "log_coverage")
"""The tables of state, of which only the part of the last run is kept."""


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
    on_step: Callable[[str], object] = lambda step: None,
) -> Tables:
    """Read new records, sample the lag, and write the tables.

    `options` are the connection options; `out`, `format` and `namespace` are the root, the format
    and the namespace of the `Tables`. The positions are always under `out`. The pipeline commits
    its offsets to `group`; each run commits them again, so that they do not expire. `allowed`, in
    records of lag, and `horizon`, in seconds, are as in `evaluation` and `weights`. `retention`:
    how long the rows of growing tables are kept at least, None for ever; older events are kept if
    the state of a group depends on them. `on_step` is called with the name of each step. A run
    waits up to `patience` seconds for another with the same `group` and `out`.

    Raises: ConfigurationError in a session of Spark Connect, if `out` has tables of an earlier
    version, or if `retention` is given and the tables cannot be replaced safely; IllegalStateError
    if the group has members, if another run does not end in time, or if this run has lost its turn
    to another one; ClusterChangedError if `out` has tables of another cluster; BrokerError;
    TransportError; Spark's exception if a query failed.
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
    on_step("turn")
    with turn(parsed, name, patience) as check_turn:
        locked = attrs.evolve(tables, before_write=check_turn)
        _run(locked, options, group, allowed, horizon, retention, on_step)
    return tables


def _run(
    tables: Tables,
    options: Mapping[str, str],
    group: str,
    allowed: int,
    horizon: float,
    retention: timedelta | None,
    on_step: Callable[[str], object],
) -> None:
    """Do what `run` does, while no other run can write the tables."""
    on_step("events")
    batch = _append_events(tables, options, group)
    now = datetime.now(UTC)
    this = _Run.next(tables)
    events = tables.read("events").where(F.col("batch") > this.batch_before).drop("batch")
    others = _without_own_events(events, group)
    cutoff = None if retention is None else now - retention
    for name, rows in chain(
        _grown(this, others, options), _states_of_groups(this, events, others, cutoff)
    ):
        on_step(name)
        this.add(name, rows)
    for name, rows, unfinished in _timeline_tables(this):
        on_step(name)
        this.add(name, rows)
        tables.replace_part(name, unfinished, "run", _UNFINISHED)
    for name, rows in _replaced(this, now, allowed, horizon):
        on_step(name)
        tables.replace(name, rows)
    this.finish(batch)
    on_step("cleanup")
    if tables.is_safe:  # else a run that is killed here would lose a table
        if retention is not None:
            _prune(this, batch, now, retention)
        _merge(this, batch)


def _without_own_events(events: DataFrame, group: str) -> DataFrame:
    """Return the events without those of `group`, to which the pipeline commits, and of its
    elections."""
    own = F.col("group_id").eqNullSafe(group) | F.col("group_id").startswith(election_prefix(group))
    return events.where(~F.coalesce(own, F.lit(False)))


@attrs.frozen
class _Run:
    """One run, and what it continues from."""

    tables: Tables
    number: int
    """0 if all tables are computed from all events."""
    batch_before: int
    """The last batch of events that the previous run has used; -1 for number 0."""

    @classmethod
    def next(cls, tables: Tables) -> _Run:
        """Return the run after the last one that has finished: number 0 if there is none, or if it
        wrote tables of another `_LAYOUT`."""
        folder = tables.path("runs")
        last = last_number(tables.spark, folder)
        if last is not None:
            found = json.loads(read_text(tables.spark, f"{folder}/{last}"))
            if found["layout"] == _LAYOUT:
                return cls(tables, last + 1, found["batch"])
            delete(tables.spark, folder)
        return cls(tables, 0, -1)

    def add(self, name: str, rows: DataFrame) -> None:
        """Write this run's part of a table. Run 0 deletes all other parts."""
        if self.number == 0 and self.tables.exists(name):
            self.tables.delete_parts(name, "run", keep=self.number)
        self.tables.replace_part(name, rows, "run", self.number)

    def added(self, name: str) -> DataFrame:
        """Return what this run has added to a table."""
        return self._part(name, self.number)

    def earlier(self, name: str) -> DataFrame | None:
        """Return what all earlier runs have added to a table; None in run 0."""
        if self.number == 0:
            return None
        return self.tables.read(name).where(F.col("run") < self.number).drop("run")

    def before(self, name: str) -> DataFrame | None:
        """Return a table of state as the previous run has left it; None in run 0."""
        return None if self.number == 0 else self._part(name, self.number - 1)

    def _part(self, name: str, number: int) -> DataFrame:
        return self.tables.read(name).where(F.col("run") == number).drop("run")

    def finish(self, batch: int) -> None:
        """Record this run, so that the next one continues from it, and delete the state of earlier
        runs."""
        # The record is written first: without it, the next run needs the earlier state.
        text = json.dumps({"layout": _LAYOUT, "batch": batch})
        write_numbered(self.tables.spark, self.tables.path("runs"), self.number, text)
        for name in _STATES:
            self.tables.delete_parts(name, "run", keep=self.number)


def _append_events(tables: Tables, options: Mapping[str, str], group: str) -> int:
    """Append the events since the last run, batch by batch, and commit their end to the group.
    Return the number of the last batch.

    A batch that was interrupted is written again, by the next run. Raises: ConfigurationError for
    tables of an earlier version; ClusterChangedError; the errors of `commit`.
    """
    if tables.exists("events") and "batch" not in tables.read("events").columns:
        raise ConfigurationError(
            f"{tables.root} has tables of an earlier version of kafkagroup; give another folder and"
            " namespace, or delete these"
        )
    source = {
        **options,
        # Compaction and the deletion of groups remove records regularly, without data loss.
        "failOnDataLoss": "false",
        "isolation.level": "read_committed",
    }
    with Logs(parse_options({**source, "subscribe": history.TOPIC, "group.id": group})) as session:
        partitions, ids = session.partitions()
        starts, ends = session.log_bounds(partitions)
        batch, done = _last_positions(tables, starts, ends, ids, group, session.cluster_id)
        if batch < 0:  # the first run, or the positions were deleted: earlier runs are not used
            delete(tables.spark, tables.path("runs"))
            if tables.exists("events"):
                tables.delete_parts("events", "batch", keep=0)  # the loop replaces part 0
        while done.offsets != ends or batch < 0:  # at least one batch, so that the table exists
            until = attrs.evolve(done, offsets=capped(done.offsets, ends, _MAX_BATCH_OFFSETS))
            bounds = {
                "startingOffsets": json.dumps(done.by_topic()),
                "endingOffsets": json.dumps(until.by_topic()),
            }
            batch, done = batch + 1, until
            rows = history.events(tables.spark, {**source, **bounds})
            tables.replace_part("events", rows, "batch", batch)
            text = json.dumps(done.to_json())
            write_numbered(tables.spark, tables.path("positions"), batch, text)
        commit(session, group, done, renew=True)
    return batch


def _last_positions(
    tables: Tables,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    ids: Mapping[str, str],
    group: str,
    cluster_id: str | None,
) -> tuple[int, Positions]:
    """Return the number of the last batch, -1 if there is none, and where the next batch begins: at
    the end of the last one, or at the log's start if there is none or the topic was recreated. If
    that offset is outside of the log, it begins at the nearest one inside. Raises:
    ClusterChangedError."""
    folder = tables.path("positions")
    last = last_number(tables.spark, folder)
    before: Mapping[TopicPartition, int] = {}
    if last is not None:
        found = Positions.from_json(json.loads(read_text(tables.spark, f"{folder}/{last}")))
        require_cluster(found.cluster_id, cluster_id, f"the tables in {tables.root}")
        if found.topic_ids == ids:
            before = found.offsets
    begin = {tp: min(max(before.get(tp, 0), starts[tp]), ends[tp]) for tp in starts}
    return -1 if last is None else last, Positions(begin, ids, group, cluster_id)


def _grown(
    this: _Run, events: DataFrame, options: Mapping[str, str]
) -> Iterator[tuple[str, DataFrame]]:
    """Yield the name and the new rows of each growing table, except `events` and the tables of
    timelines, and of the state `latest_commits`. The caller writes each table before it takes the
    next one, which may be computed from it."""
    yield "commits", history.commits(events)
    yield "generations", history.generations(events)
    yield "assignments", history.assignments(events)
    yield "undecoded", history.undecoded(events)
    names, known = history.topic_names(events), this.earlier("topic_names")
    yield (
        "topic_names",
        names if known is None else names.join(known, ["topic_id", "topic"], "leftanti"),
    )
    spark, commits, before = this.tables.spark, this.added("commits"), this.before("latest_commits")
    yield "log_ends", log_ends(spark, options, commits, before)
    measured = measured_commits(commits, this.added("log_ends")).persist()
    try:
        yield "latest_commits", latest_commits(commits, measured, before)
        yield "lag", lag(spark, options, this.added("latest_commits"))
        yield "lag_history", lag_history(measured, this.added("lag"))
    finally:
        measured.unpersist()


def _states_of_groups(
    this: _Run, events: DataFrame, others: DataFrame, cutoff: datetime | None
) -> Iterator[tuple[str, DataFrame]]:
    """Yield the name and rows of each table of the state of groups, without groups that were
    deleted or expired before `cutoff`. `events` has also those of the pipeline itself, `others` has
    not."""
    facts = group_facts(others, this.before("group_facts"))
    if cutoff is not None:
        facts = without_removed_groups(facts, this.added("latest_commits"), cutoff)
    yield "group_facts", facts
    timelines = groups.timelines(others, this.before("timelines"))
    if cutoff is not None:
        timelines = timelines.join(this.added("group_facts"), "group_id", "leftsemi")
    yield "timelines", timelines
    yield "log_coverage", coverage(events, this.before("log_coverage"))


def _timeline_tables(this: _Run) -> Iterator[tuple[str, DataFrame, DataFrame]]:
    """Yield the name of each table of timelines, its new rows, and the rows that the next run may
    change."""
    timelines, names = this.added("timelines"), this.tables.read("topic_names").drop("run")

    def spans(may_change: bool) -> DataFrame:
        return groups.with_topic_names(groups.ownership(timelines, may_change=may_change), names)

    closed = groups.rebalances(timelines, may_change=False)
    yield "rebalances", closed, groups.rebalances(timelines, may_change=True)
    yield "ownership", spans(may_change=False), spans(may_change=True)


def _replaced(
    this: _Run, now: datetime, allowed: int, horizon: float
) -> Iterator[tuple[str, DataFrame]]:
    """Yield the name and rows of each table that a run replaces. The caller writes each table
    before it takes the next one, which may be computed from it."""
    tables, latest = this.tables, this.added("latest_commits")
    recent_ends = tables.read("log_ends").where(F.col("time") >= F.lit(now - _RATE_WINDOW))
    yield "members", groups.members(this.added("timelines"))
    yield "evaluation", evaluation(this.added("lag"), latest, recent_ends, allowed=allowed)
    yield (
        "group_health",
        group_health(
            this.added("group_facts"),
            this.added("log_coverage"),
            latest,
            tables.read("evaluation"),
            tables.read("rebalances"),
            tables.read("members"),
            now,
        ),
    )
    yield "weights", weights(tables.read("evaluation"), recent_ends, horizon=horizon)


def _prune(this: _Run, batch: int, now: datetime, retention: timedelta) -> None:
    """Remove the rows of growing tables that are older than the retention, unless the last removal
    was more recent than `_PRUNE_INTERVAL` of the retention."""
    tables, cutoff = this.tables, now - retention
    folder = tables.path("pruned")
    last = last_number(tables.spark, folder)
    # The number of the file is the cutoff of the last removal, in seconds.
    if last is not None and cutoff.timestamp() < last + _PRUNE_INTERVAL * retention.total_seconds():
        return
    for name, time in _GROWING.items():
        if time is None:
            continue
        column, number = _part_of(this, batch, name)
        kept = _kept(name, tables.read(name), time, cutoff)
        _replace_by_one_part(tables, name, kept, column, number)
    write_numbered(tables.spark, folder, int(cutoff.timestamp()), "")


def _merge(this: _Run, batch: int) -> None:
    """Merge the parts of each table that has more than `_MAX_PARTS`."""
    tables = this.tables
    if not tables.is_folder:
        return  # formats such as Delta merge their files themselves
    for name in _GROWING:
        column, number = _part_of(this, batch, name)
        if len(tables.parts(name, column)) > _MAX_PARTS:
            _replace_by_one_part(tables, name, tables.read(name), column, number)


def _part_of(this: _Run, batch: int, name: str) -> tuple[str, int]:
    """Return the column that numbers the parts of a table, and the number of the last part."""
    return ("batch", batch) if name == "events" else ("run", this.number)


def _replace_by_one_part(
    tables: Tables, name: str, rows: DataFrame, column: str, number: int
) -> None:
    """Replace a table's content by `rows`, as one part with this number. Rows that the next run may
    change keep a part of their own."""
    is_final = F.col(column) > _UNFINISHED
    merged = rows.withColumn(column, F.when(is_final, number).otherwise(_UNFINISHED))
    tables.replace(name, merged, part_by=column)


def _kept(name: str, rows: DataFrame, time: str, cutoff: datetime) -> DataFrame:
    """Return those of a table's `rows` that retention keeps. `time`: the column of their times."""
    if name == "events":
        return history.compacted(rows, cutoff)
    is_old = F.coalesce(F.col(time) < F.lit(cutoff), F.lit(False))
    return rows.where(~is_old | (F.col("run") == _UNFINISHED))
