"""Tables of rebalances, ownership and members of groups.

Each is one pass over the events, group by group (`timeline`), in parallel tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kafkagroup.spark.timeline import Timeline, timeline_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["members", "named", "ownership", "rebalances"]

_REBALANCES = (
    "group_id string, kind string, generation int, cause string, started timestamp,"
    " ended timestamp, seconds double, members int, moved int"
)
_OWNERSHIP = (
    "group_id string, member_id string, instance_id string, client_id string, topic string,"
    " topic_id string, partition int, generation int, started timestamp, ended timestamp"
)
_MEMBERS = (
    "group_id string, member_id string, instance_id string, client_id string, client_host string,"
    " epoch int, state int, partitions int, since timestamp"
)

_OF_A_MEMBER = (
    "m.member_id, m.instance_id, m.client_id, m.client_host, m.epoch, m.state, m.assigned"
)


def rebalances(events: DataFrame) -> DataFrame:
    """Return the rebalances of each group, with their cause and duration.

    `ended` is null if a rebalance has not ended, or if the next began before. For a classic group,
    only the time after all members had joined is known, so `seconds` is a lower bound.
    """
    return _table(events, _REBALANCES, _rebalances)


def ownership(events: DataFrame) -> DataFrame:
    """Return which member owned which partition, in which generation and for how long; `ended` is
    null for the current owner. Between two owners, the partition was not consumed. A static member
    that restarts has the same `instance_id` and another `member_id`."""
    return _table(events, _OWNERSHIP, _ownership)


def members(events: DataFrame) -> DataFrame:
    """Return the current members of the groups, with their partition counts."""
    return _table(events, _MEMBERS, _members)


def named(ownership: DataFrame, topic_names: DataFrame) -> DataFrame:
    """Return the table with topic names where records have only the id, if the name is known."""
    names = topic_names.withColumnRenamed("topic", "name").dropDuplicates(["topic_id"])
    columns = ownership.columns
    joined = ownership.join(names, "topic_id", "left")
    return joined.selectExpr(
        *("coalesce(topic, name) AS topic" if name == "topic" else name for name in columns)
    )


def _rebalances(timeline: Timeline) -> list[Mapping[str, Any]]:
    return [
        {
            **attrs.asdict(r),
            "seconds": None if r.ended is None else (r.ended - r.started) / 1e6,
        }
        for r in timeline.rebalances
    ]


def _ownership(timeline: Timeline) -> list[Mapping[str, Any]]:
    return [attrs.asdict(span) for span in timeline.ownership]


def _members(timeline: Timeline) -> list[Mapping[str, Any]]:
    return [attrs.asdict(member) for member in timeline.members.values()]


def _table(
    events: DataFrame, schema: str, rows: Callable[[Timeline], Sequence[Mapping[str, Any]]]
) -> DataFrame:
    """Return the table of the rows that `rows` returns for each group's timeline."""
    chosen = (
        "record",
        "kind",
        "group_id",
        "removed",
        "log_offset",
        "unix_micros(log_time) AS time",
        "generation.number AS generation",
        "unix_micros(generation.state_time) AS state_time",
        f"transform(members, m -> struct({_OF_A_MEMBER})) AS members",
    )
    found = events.where("group_id IS NOT NULL AND kind <> 'offsets'").selectExpr(*chosen)
    arrow_schema = to_arrow_schema(StructType.fromDDL(schema), timezone="UTC")

    def of_group(table: pyarrow.Table) -> pyarrow.Table:
        import pyarrow as pa

        # All records of a group are in one partition of the log, so offsets are their order.
        records = table.sort_by("log_offset").to_pylist()
        group = records[0]["group_id"]
        found = [{**row, "group_id": group} for row in rows(timeline_of(records))]
        return pa.Table.from_pylist(found, schema=arrow_schema)

    return found.groupBy("group_id").applyInArrow(of_group, schema)
