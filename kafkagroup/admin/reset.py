"""Plans to reset a group's offsets: computed as a value first, and applied by `Admin.apply`.

Nothing is changed here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import attrs

from kafkagroup.admin.offsets import require_partitions
from kafkagroup.consume.partitions import offsets_of
from kafkagroup.errors import ConfigurationError
from kafkagroup.runtime.client.calls import RetriedCalls
from kafkagroup.runtime.offsets.log_offsets import LogOffsets
from kafkagroup.runtime.offsets.values import EARLIEST, LATEST, READ_UNCOMMITTED
from kafkagroup.transport.identity import require_cluster
from kafkagroup.types import MAX_INT64, OffsetAndMetadata, TopicPartition

__all__ = [
    "OffsetChange",
    "OffsetPlan",
    "ResetTo",
    "offsets_from_json",
    "offsets_to_json",
    "plan",
    "plan_to_commit",
]

ResetTo = Literal["earliest", "latest"] | int | datetime | timedelta
"""The start or end of each log; an offset; the first record at or after a time, which is given with
a time zone, or as a duration before now."""

_FORMAT = 1
"""The version of the JSON."""


@attrs.frozen
class OffsetChange:
    """The planned change of one partition's committed offset."""

    before: OffsetAndMetadata | None
    """The committed offset when the plan was made; None without one."""
    after: OffsetAndMetadata
    """The offset to commit."""


@attrs.frozen(kw_only=True)
class OffsetPlan:
    """New offsets of a group, to review and then pass to `Admin.apply`."""

    group_id: str
    changes: Mapping[TopicPartition, OffsetChange]
    """By partition, sorted; unchanged partitions included."""
    cluster_id: str | None = None
    """The cluster in which the plan was made: `apply` refuses any other. None if the brokers report
    no cluster id."""


async def plan(
    calls: RetriedCalls,
    group_id: str,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    partitions: Iterable[TopicPartition] | None,
    to: ResetTo | None,
    shift: int | None,
) -> OffsetPlan:
    """Implement `Admin.plan_reset`, for a group with these committed offsets. A target outside a
    log is moved to the log's nearest end."""
    if (to is None) == (shift is None):
        raise ConfigurationError("expected one of to and shift")
    wanted = sorted(set(committed if partitions is None else partitions))
    targets: dict[TopicPartition, int] | None = None
    if shift is not None:
        _check_range("shift", shift, -MAX_INT64)
        if unknown := [tp for tp in wanted if tp not in committed]:
            raise ConfigurationError(
                f"group {group_id!r} has no committed offset of {unknown[0]} to shift"
            )
        targets = {tp: committed[tp].offset + shift for tp in wanted}
    elif type(to) is int:  # not a bool, which `_timestamp` refuses
        _check_range("to", to, 0)
        targets = dict.fromkeys(wanted, to)
    else:
        stamp = _timestamp(to)
    await require_partitions(calls, wanted)
    logs = LogOffsets(calls.opened(), READ_UNCOMMITTED)

    async def at(timestamp: int) -> dict[TopicPartition, int]:
        # `logs` has the cluster that `one` passes.
        found = await calls.one(lambda _: logs.at(dict.fromkeys(wanted, timestamp)))
        return {tp: one.offset for tp, one in found.items()}

    if targets is not None:
        first, end = await at(EARLIEST), await at(LATEST)
        resets = {tp: min(max(target, first[tp]), end[tp]) for tp, target in targets.items()}
    else:
        resets = await at(stamp)
        if any(offset < 0 for offset in resets.values()):
            # No record is at or after that time: start with the next one.
            end = await at(LATEST)
            resets = {tp: end[tp] if offset < 0 else offset for tp, offset in resets.items()}
    offsets = {tp: OffsetAndMetadata(resets[tp]) for tp in wanted}
    return plan_to_commit(calls, group_id, committed, offsets)


def plan_to_commit(
    calls: RetriedCalls,
    group_id: str,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> OffsetPlan:
    """Return a plan to commit these offsets."""
    return OffsetPlan(
        group_id=group_id,
        changes={tp: OffsetChange(committed.get(tp), offsets[tp]) for tp in sorted(offsets)},
        cluster_id=calls.opened().identity.cluster_id,
    )


def _check_range(name: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= MAX_INT64:
        raise ConfigurationError(
            f"{name}={value!r}; expected a whole number from {least} to {MAX_INT64}"
        )


def _timestamp(to: object) -> int:
    """Return milliseconds since the epoch, or EARLIEST or LATEST. Raises: ConfigurationError."""
    match to:
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case datetime() if to.tzinfo is None:
            raise ConfigurationError(f"{to!r} has no time zone")
        case datetime():
            stamp = _milliseconds(to.timestamp())
        case timedelta():
            stamp = _milliseconds(time.time() - to.total_seconds())
        case _:
            raise ConfigurationError(
                f"to={to!r}; expected 'earliest', 'latest', an offset, a datetime or a timedelta"
            )
    if stamp < 0:
        raise ConfigurationError(f"to={to!r} is before 1970")
    return stamp


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


# ---------------------------------------------------------------- JSON


def offsets_to_json(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    cluster_id: str | None = None,
) -> str:
    """Return a group's offsets as JSON: `{"version", "cluster_id", "group_id", "offsets":
    [{"topic", "partition", "offset", "leader_epoch", "metadata"}]}`, by partition. `cluster_id`:
    `Admin.cluster_id` of their cluster; None leaves it out."""
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offsets[tp].offset,
            "leader_epoch": offsets[tp].leader_epoch,
            "metadata": offsets[tp].metadata,
        }
        for tp in sorted(offsets)
    ]
    document = {"version": _FORMAT, "group_id": group_id, "offsets": rows}
    if cluster_id is not None:
        document["cluster_id"] = cluster_id
    return json.dumps(document, indent=2)


def offsets_from_json(
    text: str, cluster_id: str | None = None
) -> tuple[str, dict[TopicPartition, OffsetAndMetadata]]:
    """Parse the JSON of `offsets_to_json`, with or without a cluster id, into group and offsets.
    `cluster_id`: `Admin.cluster_id` of the cluster to use them in; None: any.

    Raises: ConfigurationError, which names the row that is wrong; ClusterChangedError if the
    offsets belong to another cluster.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for thousands of nested brackets
        raise ConfigurationError(f"offsets: {error}") from None
    if not isinstance(document, dict) or document.get("version") != _FORMAT:
        raise ConfigurationError(f'offsets: expected an object with "version": {_FORMAT}')
    if (expected := document.get("cluster_id")) is not None:
        expected = _field(document, "cluster_id", str, "offsets")
        require_cluster(expected, cluster_id, "the exported offsets")
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for number, row in enumerate(_field(document, "offsets", list, "offsets")):
        where = f"offsets[{number}]"
        if not isinstance(row, dict):
            raise ConfigurationError(f"{where}: expected an object")
        tp = TopicPartition(_field(row, "topic", str, where), _field(row, "partition", int, where))
        if tp in offsets:
            raise ConfigurationError(f"{where}: {tp} appears twice")
        # A row may lack the metadata and the leader epoch.
        offset = OffsetAndMetadata(
            _field(row, "offset", int, where),
            _field({"metadata": "", **row}, "metadata", str, where),
            _field({"leader_epoch": -1, **row}, "leader_epoch", int, where),
        )
        try:
            offsets |= offsets_of({tp: offset})  # checks that the numbers are in range
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
    return _field(document, "group_id", str, "offsets"), offsets


def _field(row: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = row.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigurationError(f"{where}: {name} is {value!r}, no {kind.__name__}")
    return value
