"""Tables of rebalances, ownership and members of groups.

All come from one pass over the events (the records of `__consumer_offsets`), group by group
(`timeline`), in parallel tasks. A later pass needs only the later events: it continues from the
timelines of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kafkagroup.spark.frames import arrow_schema
from kafkagroup.spark.timeline import Member, OwnershipSpan, Rebalance, State, timeline_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["members", "ownership", "rebalances", "timelines", "with_topic_names"]

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
# `changes`: "joined", "left" and the like -> the owners that did so since the last epoch, as
# `timeline.State` has them. `last_owners`: of partitions that may have no owner now.
_TIMELINE = (
    f"group_id string, generation int, changes map<string, array<string>>,"
    f" rebalances array<struct<{_REBALANCE}>>, ownership array<struct<{_SPAN}>>,"
    f" members array<struct<{_MEMBER}>>, last_owners array<struct<topic: string,"
    " topic_id: string, partition: int, owner: string>>"
)

_OPEN = {
    "rebalances": "slice(rebalances, -1, 1)",
    "ownership": "filter(ownership, s -> s.ended IS NULL)",
}
"""Array of a timeline -> SQL for its elements that later events may change."""
_CLOSED = {
    "rebalances": "slice(rebalances, 1, greatest(size(rebalances) - 1, 0))",
    "ownership": "filter(ownership, s -> s.ended IS NOT NULL)",
}
"""Array of a timeline -> SQL for its elements that later events cannot change."""


def _in_micros(array: str, fields: str) -> str:
    """Return SQL for an array of structs with these fields, in which times are microseconds."""
    found = []
    for field in fields.split(", "):
        name, kind = field.split(": ")
        found.append(f"unix_micros(x.{name}) AS {name}" if kind == "timestamp" else f"x.{name}")
    return f"transform({array}, x -> struct({', '.join(found)}))"


_STATE = (
    f"generation, changes, last_owners, {_in_micros('members', _MEMBER)} AS members,"
    f" {_in_micros(_OPEN['rebalances'], _REBALANCE)} AS rebalances,"
    f" {_in_micros(_OPEN['ownership'], _SPAN)} AS ownership"
)
"""SQL for the state from which a timeline continues, as `_state` reads it."""

_RECORD_MEMBER_FIELDS = (
    "m.member_id, m.instance_id, m.client_id, m.client_host, m.epoch, m.state, m.assigned"
)
_RECORD_FIELDS = (
    "log_offset",  # first, because `timelines` sorts the structs
    "record",
    "kind",
    "removed",
    "unix_micros(log_time) AS time",
    "generation.number AS generation",
    "unix_micros(generation.state_time) AS state_time",
    f"transform(members, m -> struct({_RECORD_MEMBER_FIELDS})) AS members",
)

_MAX_GROUPS_IN_MEMORY = 100
"""The number of groups whose records a task holds as Python objects at a time: they take much
memory."""


def timelines(events: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """Return a row for each group that has records other than commits: its rebalances, ownership
    and members as arrays, empty for streams groups, and the state from which the timelines of later
    events continue. The tables of this module are views of it.

    `before` are the timelines of the earlier events. With them, the arrays have only the rebalances
    and the ownership that the new events have changed or that later ones may change.
    """
    records = (
        events.where("group_id IS NOT NULL AND kind <> 'offsets'")
        .selectExpr("group_id", f"struct({', '.join(_RECORD_FIELDS)}) AS record")
        .groupBy("group_id")
        # All records of a group are in one partition of `__consumer_offsets`, so offsets are their
        # order.
        .agg(F.array_sort(F.collect_list("record")).alias("records"))
    )
    if before is None:
        return _applied(records)
    state = before.selectExpr("group_id", f"struct({_STATE}) AS state")
    unchanged = before.join(records.select("group_id"), "group_id", "leftanti").selectExpr(
        *(f"{_OPEN.get(column, column)} AS {column}" for column in before.columns)
    )
    return unchanged.unionByName(_applied(records.join(state, "group_id", "left")))


def _applied(records: DataFrame) -> DataFrame:
    """Return the timelines of groups. `records` has a row for each group with its `records`, and
    may have its `state` before them."""
    schema = arrow_schema(StructType.fromDDL(_TIMELINE))

    def computed(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for n in range(0, batch.num_rows, _MAX_GROUPS_IN_MEMORY):
                rows = batch.slice(n, _MAX_GROUPS_IN_MEMORY).to_pylist()
                yield pa.RecordBatch.from_pylist(list(map(_timeline, rows)), schema=schema)

    return records.mapInArrow(computed, _TIMELINE)


def rebalances(timelines: DataFrame, *, may_change: bool | None = None) -> DataFrame:
    """Return the rebalances of each group, with their cause and duration. `may_change`: True for
    only the last one of each group, which later events may change, False for only the others, None
    for all.

    `ended` is null if a rebalance has not ended, or if the next one began first. For a classic
    group, only the time after all members had joined is known, so `seconds` is a lower bound.
    """
    return _rows("rebalances", timelines, may_change)


def ownership(timelines: DataFrame, *, may_change: bool | None = None) -> DataFrame:
    """Return which member owned which partition, in which generation and for how long; `ended` is
    null for the current owner. Between two owners, the partition was not consumed. A static member
    that restarts has the same `instance_id` and another `member_id`. `may_change`: True for only
    the current owners, which later events may change, False for only the others, None for all."""
    return _rows("ownership", timelines, may_change)


def _rows(array: str, timelines: DataFrame, may_change: bool | None) -> DataFrame:
    elements = {None: array, True: _OPEN[array], False: _CLOSED[array]}[may_change]
    return timelines.selectExpr("group_id", f"inline({elements})")


def members(timelines: DataFrame) -> DataFrame:
    """Return the current members of the groups, with their partition counts."""
    return timelines.selectExpr("group_id", "inline(members)")


def with_topic_names(ownership: DataFrame, topic_names: DataFrame) -> DataFrame:
    """Return the table of `ownership` in which `topic` is set also where a row has only a topic id:
    its name in `topic_names`, or null if it is not there."""
    names = topic_names.withColumnRenamed("topic", "known_name").dropDuplicates(["topic_id"])
    joined = ownership.join(names, "topic_id", "left")
    topic = "coalesce(topic, known_name) AS topic"
    return joined.selectExpr(
        *(topic if column == "topic" else column for column in ownership.columns)
    )


def _timeline(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the timeline of a group, in the schema `_TIMELINE`; times are microseconds."""
    timeline = timeline_of(row["records"], _state(row.get("state")))
    state = timeline.state
    return {
        "group_id": row["group_id"],
        "generation": state.generation,
        "changes": {word: list(owners) for word, owners in state.changes.items()},
        "rebalances": [
            {
                **attrs.asdict(r),
                "seconds": None if r.ended is None else (r.ended - r.started) / 1e6,
            }
            for r in timeline.rebalances
        ],
        "ownership": [attrs.asdict(span) for span in timeline.ownership],
        "members": [attrs.asdict(member) for member in state.members],
        "last_owners": [
            {"topic": topic, "topic_id": topic_id, "partition": partition, "owner": owner}
            for (topic, topic_id, partition), owner in state.last_owners.items()
        ],
    }


def _state(row: Mapping[str, Any] | None) -> State | None:
    """Return the state in a row; None if there is none."""
    if row is None:
        return None
    rebalances = [
        Rebalance(**{name: value for name, value in found.items() if name != "seconds"})
        for found in row["rebalances"]
    ]
    return State(
        generation=row["generation"],
        changes=dict(row["changes"]),
        members=[Member(**member) for member in row["members"]],
        last_owners={
            (last["topic"], last["topic_id"], last["partition"]): last["owner"]
            for last in row["last_owners"]
        },
        rebalance=rebalances[-1] if rebalances else None,
        ownership=[OwnershipSpan(**span) for span in row["ownership"]],
    )
