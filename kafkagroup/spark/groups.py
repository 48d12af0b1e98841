"""Tables of what groups lived through: rebalances, who had what when, and who is there.

Each is one pass over the events, group by group (`lives`), in as many tasks as Spark likes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kafkagroup.spark.lives import Life, live

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["members", "named", "ownership", "rebalances"]

_REBALANCES = (
    "group_id string, kind string, generation int, cause string, started timestamp,"
    " ended timestamp, seconds double, members int, moved int"
)
_OWNERSHIP = (
    "group_id string, member_id string, client_id string, topic string, topic_id string,"
    " partition int, generation int, started timestamp, ended timestamp"
)
_MEMBERS = (
    "group_id string, member_id string, instance_id string, client_id string, client_host string,"
    " epoch int, state int, partitions int, since timestamp"
)

_OF_A_MEMBER = (
    "m.member_id, m.instance_id, m.client_id, m.client_host, m.epoch, m.state, m.assigned"
)


def rebalances(events: DataFrame) -> DataFrame:
    """How each group came to each of its generations: its cause, and how long it took.

    `ended` is null for one that goes on, or was overtaken by the next. Of a classic group the time
    from when all had joined is known, so `seconds` is the least that it may have been.
    """
    return _told(events, _REBALANCES, _rebalances)


def ownership(events: DataFrame) -> DataFrame:
    """Who had which partition from when to when, in which generation; `ended` is null for who has
    it still. Time between two owners is a pause."""
    return _told(events, _OWNERSHIP, _ownership)


def members(events: DataFrame) -> DataFrame:
    """Who is in the groups now, and how many partitions each has."""
    return _told(events, _MEMBERS, _members)


def named(ownership: DataFrame, topic_names: DataFrame) -> DataFrame:
    """With the names of topics of which records tell the id alone, as far as they are known."""
    names = topic_names.withColumnRenamed("topic", "name").dropDuplicates(["topic_id"])
    columns = ownership.columns
    joined = ownership.join(names, "topic_id", "left")
    return joined.selectExpr(
        *("coalesce(topic, name) AS topic" if name == "topic" else name for name in columns)
    )


def _rebalances(life: Life) -> list[Mapping[str, Any]]:
    return [
        {
            **attrs.asdict(r),
            "seconds": None if r.ended is None else (r.ended - r.started) / 1e6,
        }
        for r in life.rebalances
    ]


def _ownership(life: Life) -> list[Mapping[str, Any]]:
    return [attrs.asdict(tenure) for tenure in life.tenures]


def _members(life: Life) -> list[Mapping[str, Any]]:
    return [attrs.asdict(member) for member in life.members.values()]


def _told(
    events: DataFrame, schema: str, rows: Callable[[Life], Sequence[Mapping[str, Any]]]
) -> DataFrame:
    """What `rows` makes of each group's life."""
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
    made = to_arrow_schema(StructType.fromDDL(schema), timezone="UTC")

    def of_group(table: pyarrow.Table) -> pyarrow.Table:
        import pyarrow as pa

        # All records of a group are in one partition of the log, so offsets are their order.
        records = table.sort_by("log_offset").to_pylist()
        group = records[0]["group_id"]
        told = [{**row, "group_id": group} for row in rows(live(records))]
        columns = [pa.array([row[field.name] for row in told], field.type) for field in made]
        return pa.Table.from_arrays(columns, schema=made)

    return found.groupBy("group_id").applyInArrow(of_group, schema)
