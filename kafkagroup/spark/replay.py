"""Replay the recorded memberships of groups with other assignors.

A history is the sequence of a group's memberships: the members of each generation. The assignor
runs on each, and the members own its assignment when it runs on the next. Histories are
independent, so Spark's tasks replay them in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kafkagroup.assign import Assignor, GroupSpec, MemberSpec, protocol_name
from kafkagroup.assign.check import RULES, VALID, Violation, violations
from kafkagroup.assign.spec import is_cooperative
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["Step", "histories", "replay", "replay_one"]

_REPLAY = (
    "group_id string, assignor string, generation int, members int, partitions int, rounds int,"
    " moved int, revoked int, least int, most int, violations int, violation string"
)
"""The columns of the result of `replay`, in Spark's DDL."""

_MAX_ROUNDS = 10
"""Most rounds of one cooperative rebalance: this library's assignors need at most three."""


@attrs.frozen(kw_only=True)
class Step:
    """The assignor's result for the members of one generation."""

    generation: int
    members: int
    """The number of members."""
    partitions: int
    """The number of assigned partitions."""
    rounds: int
    """The rebalances until no partition moves, at most 10; 1 if the assignor is eager."""
    moved: int
    """Partitions that another member owned before."""
    revoked: int
    """Partitions that members of this generation owned before and that were revoked: with a
    cooperative assignor those that they do not own any more, with an eager one all."""
    least: int
    """The fewest partitions of a member."""
    most: int
    """The most partitions of a member."""
    violations: int
    """The number of violations of the assignor's rules, in all rounds."""
    violation: str | None
    """The text of the first violation; None if there is none."""


def replay_one(
    memberships: Iterable[tuple[int, Mapping[str, Iterable[str]]]],
    topics: Mapping[str, int],
    assignor: Assignor,
) -> Iterator[Step]:
    """Yield the assignor's result for each of a group's memberships. Pure.

    `memberships` has, for each generation, its number and member id -> subscribed topics; `topics`
    is topic -> partition count. The members of each generation own what they were assigned in the
    one before. Raises: what the assignor raises.
    """
    rules = RULES.get(protocol_name(assignor), VALID)  # VALID for an assignor of the application
    owned: dict[str, tuple[TopicPartition, ...]] = {}
    for generation, members in memberships:
        before = {tp: member for member, partitions in owned.items() for tp in partitions}
        found: list[Violation] = []
        rounds, is_stable = 0, False
        while not is_stable and rounds < _MAX_ROUNDS:
            rounds += 1
            spec = GroupSpec(
                members={
                    member: MemberSpec(
                        topics=frozenset(wanted), owned=owned.get(member, ()), generation=generation
                    )
                    for member, wanted in members.items()
                },
                partitions=topics,
            )
            assignment = assignor(spec)
            found += violations(spec, assignment, rules)
            now = {member: tuple(sorted(assignment.get(member, ()))) for member in members}
            is_stable = not is_cooperative(assignor) or now == {
                m: owned.get(m, ()) for m in members
            }
            owned = now
        after = {tp: member for member, partitions in owned.items() for tp in partitions}
        moved = sum(before.get(tp, member) != member for tp, member in after.items())
        counts = [len(partitions) for partitions in owned.values()]
        kept = after if is_cooperative(assignor) else {}
        revoked = sum(m in members and kept.get(tp) != m for tp, m in before.items())
        yield Step(
            generation=generation,
            members=len(members),
            partitions=len(after),
            # The last round of a cooperative rebalance moves nothing, unless it is cut off.
            rounds=max(1, rounds - (is_cooperative(assignor) and is_stable)),
            moved=moved,
            revoked=revoked,
            least=min(counts, default=0),
            most=max(counts, default=0),
            violations=len(found),
            violation=str(found[0]) if found else None,
        )


def replay(
    histories: DataFrame, assignors: Mapping[str, Assignor] | Sequence[Assignor]
) -> DataFrame:
    """Replay every history with every assignor: a row for each group, assignor and generation, with
    the fields of `Step`.

    The assignors are pickled: the executors must have the modules of your own ones.
    """
    named = (
        assignors if isinstance(assignors, Mapping) else {protocol_name(a): a for a in assignors}
    )
    return histories.mapInArrow(_replaying(dict(named)), _REPLAY)


def _replaying(
    assignors: Mapping[str, Assignor],
) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    # Not in `run`: only the driver can parse Spark's DDL.
    arrow_schema = to_arrow_schema(StructType.fromDDL(_REPLAY))

    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for history in batch.to_pylist():
                rows = [
                    {"group_id": history["group_id"], "assignor": name, **attrs.asdict(step)}
                    for name, assignor in assignors.items()
                    for step in replay_one(
                        [(m["generation"], dict(m["members"])) for m in history["memberships"]],
                        dict(history["topics"]),
                        assignor,
                    )
                ]
                yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema)

    return run


def histories(events: DataFrame) -> DataFrame:
    """Return the memberships by generation of the recorded classic consumer groups.

    The records do not have the partition counts of topics: the highest partition that the group was
    assigned or committed counts as the last one. Generations without members are left out, and
    groups of which no partition is known.
    """
    recorded = events.where("record = 'GroupMetadata' AND generation.protocol_type = 'consumer'")
    memberships = recorded.where("size(members) > 0").selectExpr(
        "group_id",
        "log_offset",
        "struct(generation.number AS generation, map_from_entries(transform(members,"
        " m -> struct(m.member_id, coalesce(m.topics, array())))) AS members) AS membership",
    )
    # A generation may have several records; the last one is complete.
    last = (
        memberships.groupBy("group_id", "membership.generation")
        .agg({"log_offset": "max"})
        .withColumnRenamed("max(log_offset)", "log_offset")
    )
    complete = memberships.join(last.drop("generation"), ["group_id", "log_offset"])
    assigned = recorded.selectExpr("group_id", "inline(flatten(members.assigned))").select(
        "group_id", "topic", "partition"
    )
    committed = events.where("commit IS NOT NULL").select(
        "group_id", "commit.topic", "commit.partition"
    )
    counts = assigned.union(committed).groupBy("group_id", "topic").agg({"partition": "max"})
    topics = (
        counts.selectExpr("group_id", "struct(topic, `max(partition)` + 1 AS partitions) AS entry")
        .groupBy("group_id")
        .agg({"entry": "collect_list"})
    )
    row = complete.groupBy("group_id").agg({"membership": "collect_list"})
    return row.join(topics, "group_id").selectExpr(
        "group_id",
        "map_from_entries(`collect_list(entry)`) AS topics",
        "array_sort(`collect_list(membership)`, (a, b) -> a.generation - b.generation)"
        " AS memberships",
    )
