"""The history of groups as tables, from the records of `__consumer_offsets`.

`events` reads the topic, as a table or as a stream; the others are views of what it answers, and
work on both. The topic is compacted: a first read is a snapshot, and says nothing of how often
something happened before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema

from kafkagroup.errors import ConfigurationError
from kafkagroup.spark.events import READ_COLUMNS, schema, to_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["assignments", "commits", "events", "generations", "topic_names", "undecoded"]

TOPIC = "__consumer_offsets"


def events(
    spark: SparkSession, options: Mapping[str, str], *, streaming: bool = False
) -> DataFrame:
    """Every record of the topic as an event, each once.

    `options` are those of connecting, and of the source: where to begin and to end. Commits of
    transactions that were aborted are not there.
    """
    if given := {"subscribe", "assign", "columns"} & {name.lower() for name in options}:
        raise ConfigurationError(f"options {', '.join(sorted(given))}: the topic is {TOPIC}")
    reader: Any = spark.readStream if streaming else spark.read
    read = (
        reader.format("kafkagroup")
        .options(**{"isolation.level": "read_committed", **options})
        .option("subscribe", TOPIC)
        .option("columns", READ_COLUMNS)
        .load()
    )
    return read.mapInArrow(to_events, from_arrow_schema(schema()))


def commits(events: DataFrame) -> DataFrame:
    """What was committed: a row a partition and commit. Where `removed`, the offset expired or was
    deleted."""
    return events.where("commit IS NOT NULL").select(
        "group_id", "commit.*", "removed", "log_time", "log_partition", "log_offset"
    )


def generations(events: DataFrame) -> DataFrame:
    """The generations of classic groups, and the epochs of the others, with the time of each."""
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
    """Who had what: a row a member and partition, each time that it was told; one with null for a
    member that has nothing, and `removed` for one that has left. Groups of Streams have tasks.

    `topic` is null where a record tells of a topic by its id: join with `topic_names`.
    """
    told = events.where(
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
    return told.selectExpr(
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
    """Ids of topics and their names, as far as commits and share groups tell of both."""
    committed = events.selectExpr("commit.topic_id", "commit.topic").where("topic_id IS NOT NULL")
    told = events.selectExpr("inline(names)")
    return committed.union(told).distinct()


def undecoded(events: DataFrame) -> DataFrame:
    """Records that nobody here can read, and why."""
    return events.where("undecoded IS NOT NULL").select(
        "undecoded.*", "log_time", "log_partition", "log_offset"
    )
