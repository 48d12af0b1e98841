"""`kafkagroup reset-offsets`: change a group's committed offsets, after a preview and a prompt."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TextIO

import click

from kafkagroup.admin import Admin, OffsetPlan, offsets_from_json
from kafkagroup.cli._confirmation import confirm_or_exit, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import group_argument
from kafkagroup.cli._members import blocking_members, describe_known
from kafkagroup.cli._selection import Selection, selecting
from kafkagroup.cli._table import Table
from kafkagroup.cli._view import add_row, console, new_table, print_json, print_line, print_message
from kafkagroup.cli._when import duration, moment
from kafkagroup.errors import BrokerError, ErrorCode

__all__ = ["command"]

_MAX_CHARACTERS = 64 << 20
"""Most characters of a file with offsets."""


@click.command("reset-offsets", short_help="Change where a group continues.")
@group_argument
@click.option("--to-earliest", is_flag=True, help="To the start of each log.")
@click.option("--to-latest", is_flag=True, help="To the end of each log.")
@click.option(
    "--to-datetime",
    callback=moment,
    metavar="TIME",
    help="To the first record at or after a time, such as 2026-01-31T12:00:00Z.",
)
@click.option(
    "--by-duration",
    callback=duration,
    metavar="DURATION",
    help="To the first record of the last 90s, 15m, 2h, 7d or P1DT12H.",
)
@click.option(
    "--shift-by", type=int, metavar="N", help="Forward by N offsets; back if N is negative."
)
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To this offset.")
@click.option(
    "--from-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="To the offsets that export-offsets has written, of any group of this cluster; - for"
    " stdin.",
)
@selecting
@click.option("--dry-run", is_flag=True, help="Only show the result.")
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected
def command(
    group: str,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: datetime | None,
    by_duration: timedelta | None,
    shift_by: int | None,
    to_offset: int | None,
    from_file: TextIO | None,
    selection: Selection,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Change the committed offsets of a group, where it then continues. The group must have no
    members.

    Without --topic, this applies to all partitions with a committed offset, or with --from-file, to
    all in the file. The result is shown first, and nothing is changed before you confirm. An offset
    outside of the log is replaced by the log's nearest end, but not one from a file.
    """
    # None: not given. A flag is True.
    goals = {
        "earliest": to_earliest or None,
        "latest": to_latest or None,
        "datetime": to_datetime,
        "duration": by_duration,
        "shift": shift_by,
        "offset": to_offset,
        "file": from_file,
    }
    (goal, *others) = [name for name, value in goals.items() if value is not None] or [""]
    if not goal or others:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by,"
            " --to-offset and --from-file"
        )
    if dry_run and yes:
        raise click.UsageError("--dry-run and --yes exclude each other; give one")
    if from_file is not None:
        text = _read_text(from_file)
        offsets_from_json(text)  # reports an invalid file before the cluster is asked
        plan = connection.run(lambda admin: _plan_from_export(admin, group, text, selection))
    else:
        # The goals earliest and latest have no value of their own.
        to = goal if goals[goal] is True else goals[goal]
        arguments = {"shift" if goal == "shift" else "to": to}
        plan = connection.run(lambda admin: _plan_reset(admin, group, arguments, selection))
    has_changes = any(change.after != change.before for change in plan.changes.values())
    if not as_json:
        console().print(_table(plan))
    if has_changes:
        _require_no_members(connection, group, dry_run)
    if has_changes and not dry_run:
        confirm_or_exit(f"Commit this for group {group!r}?", yes)
        connection.run(lambda admin: admin.apply(plan))
    is_applied = has_changes and not dry_run
    if as_json:
        print_json(_value(plan, is_applied))
    else:
        print_line("Committed." if is_applied else "Nothing is changed.")


def _require_no_members(connection: Connection, group: str, dry_run: bool) -> None:
    """Check that the group has no members. Raises: BrokerError; a dry run prints the message
    instead."""
    found = connection.run(lambda admin: describe_known(admin, [group])).get(group)
    if found is None or not found.members:
        return
    message = f"group {group!r} has {blocking_members(found.members)}"
    if not dry_run:
        raise BrokerError(ErrorCode.NON_EMPTY_GROUP, message)
    print_message(message)


def _read_text(file: TextIO) -> str:
    try:
        text = file.read(_MAX_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file.name} is not UTF-8: {error}") from error
    if len(text) > _MAX_CHARACTERS:
        raise click.UsageError(f"{file.name} is longer than {_MAX_CHARACTERS} characters")
    return text


async def _plan_reset(
    admin: Admin, group: str, arguments: dict[str, Any], selection: Selection
) -> OffsetPlan:
    partitions = await selection.resolve(admin) if selection else None
    return await admin.plan_reset(group, partitions, **arguments)


async def _plan_from_export(
    admin: Admin, group: str, text: str, selection: Selection
) -> OffsetPlan:
    _, offsets = offsets_from_json(text, admin.cluster_id)
    chosen = {tp: offset for tp, offset in offsets.items() if tp in selection}
    return await admin.plan_offsets(group, chosen)


# ---------------------------------------------------------------- output


def _table(plan: OffsetPlan) -> Table:
    numbers = ("before", "after", "change")
    table = new_table(
        f"Offsets of {plan.group_id}",
        "partition",
        *numbers,
        right=numbers,
        drop=("change", "before"),
    )
    for tp, change in plan.changes.items():
        before = None if change.before is None else change.before.offset
        moved = None if before is None else f"{change.after.offset - before:+}"
        add_row(table, tp, "-" if before is None else before, change.after.offset, moved)
    return table


def _value(plan: OffsetPlan, is_applied: bool) -> dict[str, object]:
    return {
        "group_id": plan.group_id,
        "applied": is_applied,
        "changes": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "before": None if change.before is None else change.before.offset,
                "after": change.after.offset,
            }
            for tp, change in plan.changes.items()
        ],
    }
