"""`kafkagroup delete-offsets`: delete a group's committed offsets of some topics."""

from __future__ import annotations

import click

from kafkagroup import TopicPartition
from kafkagroup.admin import Admin
from kafkagroup.cli._confirmation import confirm_or_exit, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import apply_changes, group_argument
from kafkagroup.cli._members import blocking_members, describe_known, subscribers
from kafkagroup.cli._selection import Selection, selecting
from kafkagroup.cli._view import exit_with, print_json, print_line, ranges
from kafkagroup.types import by_topic

__all__ = ["command"]


@click.command("delete-offsets", short_help="Delete a group's committed offsets of a topic.")
@group_argument
@selecting
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected
def command(
    group: str, selection: Selection, yes: bool, as_json: bool, connection: Connection
) -> None:
    """Delete committed offsets of topics to which no member of the group subscribes.

    An offset that is kept is named on stderr, and the exit code is 1.
    """
    if not selection:
        raise click.UsageError("give --topic; delete-groups deletes all that a group has")
    wanted, kept = connection.run(lambda admin: _split_committed(admin, group, selection))
    done: list[TopicPartition] = []
    errors = kept
    if wanted:
        confirm_or_exit(f"Delete the committed offsets of {group!r} for {ranges(wanted)}?", yes)
        done, refused = apply_changes(
            lambda: connection.run(lambda admin: admin.delete_offsets(group, wanted))
        )
        errors = kept | refused
    if as_json:
        print_json(
            {
                "group_id": group,
                "deleted": by_topic(done),
                "errors": {str(tp): error for tp, error in errors.items()},
            }
        )
    else:
        print_line(f"{group}: {f'deleted {ranges(done)}' if done else 'nothing is deleted'}")
    exit_with(f"{tp} is kept: {error}" for tp, error in errors.items())


async def _split_committed(
    admin: Admin, group: str, selection: Selection
) -> tuple[list[TopicPartition], dict[TopicPartition, str]]:
    """Return the selected partitions whose committed offset can be deleted, also those of deleted
    topics; and partition -> reason, of those that are kept because members subscribe to the
    topic."""
    found = (await admin.committed([group]))[group]
    if isinstance(found, Exception):
        raise found
    selected = sorted(tp for tp in found if tp in selection)
    kept: dict[TopicPartition, str] = {}
    if (one := (await describe_known(admin, [group])).get(group)) is not None:
        for tp in selected:
            if members := subscribers(one, tp.topic):
                kept[tp] = f"group {group!r} subscribes with {blocking_members(members)}"
    return [tp for tp in selected if tp not in kept], kept
