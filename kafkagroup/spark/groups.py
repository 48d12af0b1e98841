"""Tables of rebalances, ownership and members of groups.

All come from one pass over the events (the records of `__consumer_offsets`), group by group
(`timeline`), in parallel tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kafkagroup.spark.timeline import timeline_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = [
    "members",
    "ownership",
    "rebalances",
    "timelines",
    "updated_timelines",
    "with_topic_names",
]

_REBALANCE = (
    "kind: string, generation: int, cause: string, started: timestamp, ended: timestamp,"
    " seconds: double, members: int, moved: int"
)
_SPAN = (
    "member_id: string, instance_id: string, client_id: string, topic: string, topic_id: string,"
    " partition: int, generation: int, started: timestamp, ended: timestamp"
)
_MEMBER = (
    "member_id: string, instance_id: string, client_id: string, client_host: string, epoch: int,"
    " state: int, partitions: int, since: timestamp"
)
_TIMELINE = (
    f"group_id string, until bigint, rebalances array<struct<{_REBALANCE}>>,"
    f" ownership array<struct<{_SPAN}>>, members array<struct<{_MEMBER}>>"
)

_MEMBER_FIELDS = (
    "m.member_id, m.instance_id, m.client_id, m.client_host, m.epoch, m.state, m.assigned"
)
_RECORD_FIELDS = (
    "log_offset",
    "record",
    "kind",
    "removed",
    "unix_micros(log_time) AS time",
    "generation.number AS generation",
    "unix_micros(generation.state_time) AS state_time",
    f"transform(members, m -> struct({_MEMBER_FIELDS})) AS members",
)

_MAX_GROUPS_IN_MEMORY = 100
"""The number of groups whose records a task holds as Python objects at a time: they take much
memory."""


def timelines(events: DataFrame) -> DataFrame:
    """Return a row for each group that has records other than commits: its rebalances, ownership
    and members as arrays (empty for streams groups), and `until`, the offset of the last such
    record. The tables of this module are views of it."""
    records = (
        _of_membership(events)
        .selectExpr("group_id", f"struct({', '.join(_RECORD_FIELDS)}) AS record")
        .groupBy("group_id")
        .agg(
            F.max("record.log_offset").alias("until"),
            # All records of a group are in one partition of `__consumer_offsets`, so offsets are
            # their order.
            F.array_sort(F.collect_list("record")).alias("records"),
        )
    )
    arrow_schema = to_arrow_schema(StructType.fromDDL(_TIMELINE), timezone="UTC")

    def computed(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for n in range(0, batch.num_rows, _MAX_GROUPS_IN_MEMORY):
                rows = batch.slice(n, _MAX_GROUPS_IN_MEMORY).to_pylist()
                yield pa.RecordBatch.from_pylist(list(map(_timeline, rows)), schema=arrow_schema)

    return records.mapInArrow(computed, _TIMELINE)


def updated_timelines(known: DataFrame, events: DataFrame) -> DataFrame:
    """Return `timelines(events)`. `known` are the timelines of earlier events: only groups that
    have a new last record are computed again. Raises: ValueError if `known` has other columns."""
    if known.schema != StructType.fromDDL(_TIMELINE):
        raise ValueError(f"not timelines: {known.schema.simpleString()}")
    newest = _of_membership(events).groupBy("group_id").agg(F.max("log_offset").alias("until"))
    unchanged = known.join(newest, ["group_id", "until"], "leftsemi")
    changed = events.join(unchanged, "group_id", "leftanti")
    return unchanged.unionByName(timelines(changed))


def _of_membership(events: DataFrame) -> DataFrame:
    """Return the events other than commits."""
    return events.where("group_id IS NOT NULL AND kind <> 'offsets'")


def rebalances(timelines: DataFrame) -> DataFrame:
    """Return the rebalances of each group, with their cause and duration.

    `ended` is null if a rebalance has not ended, or if the next one began first. For a classic
    group, only the time after all members had joined is known, so `seconds` is a lower bound.
    """
    return timelines.selectExpr("group_id", "inline(rebalances)")


def ownership(timelines: DataFrame) -> DataFrame:
    """Return which member owned which partition, in which generation and for how long; `ended` is
    null for the current owner. Between two owners, the partition was not consumed. A static member
    that restarts has the same `instance_id` and another `member_id`."""
    return timelines.selectExpr("group_id", "inline(ownership)")


def members(timelines: DataFrame) -> DataFrame:
    """Return the current members of the groups, with their partition counts."""
    return timelines.selectExpr("group_id", "inline(members)")


def with_topic_names(ownership: DataFrame, topic_names: DataFrame) -> DataFrame:
    """Return the table; where a row has only a topic id, `topic` is its name in `topic_names`, or
    null if it is not there."""
    names = topic_names.withColumnRenamed("topic", "known_name").dropDuplicates(["topic_id"])
    joined = ownership.join(names, "topic_id", "left")
    topic = "coalesce(topic, known_name) AS topic"
    return joined.selectExpr(
        *(topic if column == "topic" else column for column in ownership.columns)
    )


def _timeline(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of a group; times are microseconds."""
    timeline = timeline_of(row["records"])
    return {
        "group_id": row["group_id"],
        "until": row["until"],
        "rebalances": [
            {
                **attrs.asdict(r),
                "seconds": None if r.ended is None else (r.ended - r.started) / 1e6,
            }
            for r in timeline.rebalances
        ],
        "ownership": [attrs.asdict(span) for span in timeline.ownership],
        "members": [attrs.asdict(member) for member in timeline.members.values()],
    }
