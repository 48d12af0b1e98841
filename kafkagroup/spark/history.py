"""The history of groups as tables, from the records of `__consumer_offsets`.

`events` reads the topic, as a table or as a stream; the other functions are views of its result,
and work on both. The topic is compacted: the first read shows the last state, and not how often it
changed before.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.evaluation import WINDOW
from kafkagroup.spark.events import READ_COLUMNS, schema, to_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "assignments",
    "commits",
    "compacted",
    "events",
    "generations",
    "topic_names",
    "undecoded",
]

TOPIC = "__consumer_offsets"


def events(
    spark: SparkSession, options: Mapping[str, str], *, streaming: bool = False
) -> DataFrame:
    """Return every record of the topic as one event, without commits of aborted transactions unless
    the option `isolation.level` is `read_uncommitted`.

    `options` are the connection options, and the source's options for where to start and end.
    Raises: ConfigurationError.
    """
    if given := {"subscribe", "assign", "columns"} & {name.lower() for name in options}:
        raise ConfigurationError(f"options {', '.join(sorted(given))}: the topic is {TOPIC}")
    reader: Any = spark.readStream if streaming else spark.read
    records = (
        reader.format("kafkagroup")
        .options(**{"isolation.level": "read_committed", **options})
        .option("subscribe", TOPIC)
        .option("columns", READ_COLUMNS)
        .load()
    )
    return records.mapInArrow(to_events, from_arrow_schema(schema()))


def compacted(events: DataFrame, before: datetime) -> DataFrame:
    """Return the events without those that are older than `before` and that no table needs.

    Of the older events, it keeps the last one of each key, unless that is a tombstone, as the
    compaction of the topic does: they are the state of all groups at `before`. Of each committed
    partition it keeps the last `WINDOW` commits, which `evaluation` uses.
    """
    is_old = F.coalesce(F.col("log_time") < F.lit(before), F.lit(False))
    # A record of a classic group has all its members; each other record has at most one.
    member = "IF(kind = 'classic', NULL, members[0].member_id)"
    latest = (
        f"OVER (PARTITION BY group_id, record, commit.topic, commit.partition, {member}"
        " ORDER BY log_offset DESC)"
    )
    kept = (
        events.where(is_old & F.col("record").isNotNull())
        .selectExpr(
            "*",
            f"row_number() {latest} AS nth",
            f"first_value(removed) {latest} AS is_removed",
        )
        .where(f"NOT is_removed AND nth <= IF(commit IS NULL, 1, {WINDOW})")
        .drop("nth", "is_removed")
    )
    return events.where(~is_old).union(kept)


def commits(events: DataFrame) -> DataFrame:
    """Return a row for each commit of a partition; `removed`: the offset expired or was deleted."""
    return events.where("commit IS NOT NULL").select(
        "group_id", "commit.*", "removed", "log_time", "log_partition", "log_offset"
    )


def generations(events: DataFrame) -> DataFrame:
    """Return a row for each record of a classic group's generation or of another group's epoch. The
    column `generation` has the number of either."""
    return events.where("generation IS NOT NULL").selectExpr(
        "group_id",
        "kind",
        "generation.number AS generation",
        "generation.protocol_type",
        "generation.protocol",
        "generation.leader",
        "generation.members",
        "coalesce(generation.state_time, log_time) AS time",
        "log_partition",
        "log_offset",
    )


def assignments(events: DataFrame) -> DataFrame:
    """Return a row for each member and partition of each recorded assignment. A member without
    partitions has one row with nulls. If a member of a consumer group of KIP-848 or of a share
    group has left, it has a row with `removed`. Members of streams groups have no rows: they are
    assigned tasks, not partitions.

    `topic` is null if a record has only the topic's id: join with `topic_names`.
    """
    recorded = events.where(
        "record IN ('GroupMetadata', 'ConsumerGroupCurrentMemberAssignment',"
        " 'ShareGroupCurrentMemberAssignment')"
    ).selectExpr(
        "group_id",
        "kind",
        "removed",
        "coalesce(generation.state_time, log_time) AS time",
        "log_partition",
        "log_offset",
        "inline(members)",
    )
    return recorded.selectExpr(
        "group_id",
        "kind",
        "epoch AS generation",
        "member_id",
        "instance_id",
        "client_id",
        "client_host",
        "state",
        "removed",
        "time",
        "log_partition",
        "log_offset",
        "inline_outer(assigned)",
    )


def topic_names(events: DataFrame) -> DataFrame:
    """Return topic ids and names, from the records that have both."""
    committed = events.selectExpr("commit.topic_id", "commit.topic").where("topic_id IS NOT NULL")
    listed = events.selectExpr("inline(names)")
    return committed.union(listed).distinct()


def undecoded(events: DataFrame) -> DataFrame:
    """Return the records that cannot be decoded, with the reason."""
    return events.where("undecoded IS NOT NULL").select(
        "undecoded.*", "log_time", "log_partition", "log_offset"
    )
