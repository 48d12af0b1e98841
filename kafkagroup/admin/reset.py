"""Where a group is to go on: computed first, as a value to look at; then applied.

Nothing is changed here. Offsets that lie outside a log are moved to its nearest end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import attrs

from kafkagroup.admin.asking import Asking
from kafkagroup.admin.offsets import require_partitions
from kafkagroup.errors import ConfigurationError
from kafkagroup.runtime.log_offsets import EARLIEST, LATEST, READ_UNCOMMITTED, LogOffsets
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = ["OffsetChange", "OffsetPlan", "ResetTo", "offsets_from_json", "offsets_to_json", "plan"]

ResetTo = Literal["earliest", "latest"] | int | datetime | timedelta
"""The start or the end of each log; an offset; the first record at or after a moment (with a time
zone); or that of so long ago."""

_FORMAT = 1
"""The version of the JSON."""


@attrs.frozen
class OffsetChange:
    """What is to become of one partition's committed offset."""

    before: OffsetAndMetadata | None
    """What was committed when the plan was made; None where there was nothing."""
    after: OffsetAndMetadata
    """What is to be committed."""


@attrs.frozen(kw_only=True)
class OffsetPlan:
    """New offsets of a group, to be looked at and then given to `Admin.apply`."""

    group_id: str
    changes: Mapping[TopicPartition, OffsetChange]
    """By partition, sorted; those that stay as they are, too."""


async def plan(
    asking: Asking,
    group_id: str,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    partitions: Iterable[TopicPartition] | None,
    to: ResetTo | None,
    shift: int | None,
) -> OffsetPlan:
    """What `Admin.plan_reset` answers, of a group that has committed these."""
    if (to is None) == (shift is None):
        raise ConfigurationError("expected one of to and shift")
    wanted = sorted(set(committed if partitions is None else partitions))
    wishes: dict[TopicPartition, int] | None = None
    if shift is not None:
        if nothing := [tp for tp in wanted if tp not in committed]:
            raise ConfigurationError(
                f"group {group_id!r} has committed nothing for {nothing[0]} that could be shifted"
            )
        wishes = {tp: committed[tp].offset + shift for tp in wanted}
    elif type(to) is int:
        if to < 0:
            raise ConfigurationError(f"to={to!r} is negative")
        wishes = dict.fromkeys(wanted, to)
    else:
        stamp = _timestamp(to)
    await require_partitions(asking, wanted)
    logs = LogOffsets(asking.opened(), READ_UNCOMMITTED)

    async def at(timestamp: int) -> dict[TopicPartition, int]:
        found = await asking.once(lambda _: logs.at(dict.fromkeys(wanted, timestamp)))
        return {tp: one.offset for tp, one in found.items()}

    if wishes is not None:
        first, end = await at(EARLIEST), await at(LATEST)
        goals = {tp: min(max(wish, first[tp]), end[tp]) for tp, wish in wishes.items()}
    else:
        goals = await at(stamp)
        if any(offset < 0 for offset in goals.values()):
            # No record is that young: the next one will be.
            end = await at(LATEST)
            goals = {tp: end[tp] if offset < 0 else offset for tp, offset in goals.items()}
    return planned(group_id, committed, {tp: OffsetAndMetadata(goals[tp]) for tp in wanted})


def planned(
    group_id: str,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> OffsetPlan:
    """A plan to commit these offsets."""
    return OffsetPlan(
        group_id=group_id,
        changes={tp: OffsetChange(committed.get(tp), offsets[tp]) for tp in sorted(offsets)},
    )


def _timestamp(to: object) -> int:
    """In milliseconds since the epoch, or what asks for an end of the log."""
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


def offsets_to_json(group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> str:
    """A group's offsets as JSON: `{"version", "group_id", "offsets": [{"topic", "partition",
    "offset", "leader_epoch", "metadata"}]}`, by partition."""
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
    return json.dumps({"version": _FORMAT, "group_id": group_id, "offsets": rows}, indent=2)


def offsets_from_json(text: str) -> tuple[str, dict[TopicPartition, OffsetAndMetadata]]:
    """The group and the offsets that `offsets_to_json` wrote. Raises: ConfigurationError that says
    what is wrong, and with which row."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"offsets: {error}") from None
    if not isinstance(document, dict) or document.get("version") != _FORMAT:
        raise ConfigurationError(f'offsets: expected an object with "version": {_FORMAT}')
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for number, row in enumerate(_field(document, "offsets", list, "offsets")):
        where = f"offsets[{number}]"
        if not isinstance(row, dict):
            raise ConfigurationError(f"{where}: expected an object")
        tp = TopicPartition(_field(row, "topic", str, where), _field(row, "partition", int, where))
        if tp in offsets:
            raise ConfigurationError(f"{where}: {tp} is there twice")
        offset = _field(row, "offset", int, where)
        if offset < 0 or tp.partition < 0:
            raise ConfigurationError(f"{where}: a negative number")
        offsets[tp] = OffsetAndMetadata(
            offset,
            _field({"metadata": "", **row}, "metadata", str, where),
            _field({"leader_epoch": -1, **row}, "leader_epoch", int, where),
        )
    return _field(document, "group_id", str, "offsets"), offsets


def _field(row: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = row.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigurationError(f"{where}: {name} is {value!r}, no {kind.__name__}")
    return value
