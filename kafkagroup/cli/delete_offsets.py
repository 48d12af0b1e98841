"""`kafkagroup delete-offsets`: delete a group's committed offsets of some topics."""

from __future__ import annotations

import anyio
import click

from kafkagroup import BrokerError, TopicPartition
from kafkagroup.admin import Admin
from kafkagroup.cli._asking import confirmed, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import group_argument
from kafkagroup.cli._selection import Selection, selecting
from kafkagroup.cli._view import by_topic, end_with, print_json, ranges, tell

__all__ = ["command"]


@click.command("delete-offsets", short_help="Forget what a group has committed for a topic.")
@group_argument
@selecting
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print the values.")
@connected
def command(
    group: str, selection: Selection, yes: bool, as_json: bool, connection: Connection
) -> None:
    """Delete committed offsets of topics to which no member of the group subscribes.

    An offset that is kept is named on stderr, and the exit code is 1.
    """
    if not selection:
        raise click.UsageError("give --topic; delete-groups deletes all that a group has")
    wanted = anyio.run(_committed, group, selection, connection)
    if wanted:
        confirmed(f"Delete what {group!r} has committed for {ranges(wanted)}?", yes)
    answers = anyio.run(_delete, group, wanted, connection) if wanted else {}
    done = [tp for tp, error in answers.items() if error is None]
    errors = {tp: str(error) for tp, error in answers.items() if error is not None}
    if as_json:
        print_json(
            {
                "group_id": group,
                "deleted": by_topic(done),
                "errors": {str(tp): error for tp, error in errors.items()},
            }
        )
    else:
        tell(f"{group}: {f'deleted {ranges(done)}' if done else 'nothing is deleted'}")
    end_with(f"{tp} is kept: {error}" for tp, error in errors.items())


async def _committed(
    group: str, selection: Selection, connection: Connection
) -> list[TopicPartition]:
    """Of a topic that was deleted, too: that is when offsets are in the way."""
    async with Admin(**connection.options(Admin)) as admin:
        found = (await admin.committed([group]))[group]
    if isinstance(found, Exception):
        raise found
    return sorted(tp for tp in found if tp in selection)


async def _delete(
    group: str, wanted: list[TopicPartition], connection: Connection
) -> dict[TopicPartition, BrokerError | None]:
    async with Admin(**connection.options(Admin)) as admin:
        return await admin.delete_offsets(group, wanted)
