"""`kafkagroup delete-groups`: delete groups without members, and their committed offsets."""

from __future__ import annotations

import anyio
import click

from kafkagroup import KafkaGroupError
from kafkagroup.admin import Admin
from kafkagroup.cli._asking import confirmed, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import groups_argument, parted
from kafkagroup.cli._view import end_with, print_json, tell

__all__ = ["command"]


@click.command("delete-groups", short_help="Delete groups, with all that they have committed.")
@groups_argument
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print the values.")
@connected
def command(groups: tuple[str, ...], yes: bool, as_json: bool, connection: Connection) -> None:
    """Delete groups that have no members, with all their committed offsets.

    A group that is kept is named on stderr, and the exit code is 1.
    """
    if not groups:
        # The profile's group is not used: deleting a group requires its name.
        raise click.UsageError("give the groups to delete")
    confirmed(f"Delete {', '.join(map(repr, dict.fromkeys(groups)))} for good?", yes)
    done, errors = parted(anyio.run(_delete, groups, connection))
    if as_json:
        print_json({"deleted": list(done), "errors": errors})
    else:
        for group in done:
            tell(f"{group}: deleted")
    end_with(f"group {group!r} is kept: {error}" for group, error in errors.items())


async def _delete(
    groups: tuple[str, ...], connection: Connection
) -> dict[str, KafkaGroupError | None]:
    async with Admin(**connection.options(Admin)) as admin:
        return await admin.delete_groups(groups)
