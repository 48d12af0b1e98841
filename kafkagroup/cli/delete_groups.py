"""`kafkagroup delete-groups`: delete groups without members, and their committed offsets."""

from __future__ import annotations

import click

from kafkagroup.cli._confirmation import confirm_or_exit, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import changed, groups_argument
from kafkagroup.cli._view import exit_with, print_json, print_line

__all__ = ["command"]


@click.command("delete-groups", short_help="Delete groups with their committed offsets.")
@groups_argument
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected
def command(groups: tuple[str, ...], yes: bool, as_json: bool, connection: Connection) -> None:
    """Delete groups that have no members, with all their committed offsets.

    A group that is kept is named on stderr, and the exit code is 1.
    """
    if not groups:
        # The profile's group is not used: deleting a group requires its name.
        raise click.UsageError("give the groups to delete")
    confirm_or_exit(f"Delete {', '.join(map(repr, dict.fromkeys(groups)))} permanently?", yes)
    done, errors = changed(lambda: connection.run(lambda admin: admin.delete_groups(groups)))
    if as_json:
        print_json({"deleted": done, "errors": errors})
    else:
        for group in done:
            print_line(f"{group}: deleted")
    exit_with(f"group {group!r} is kept: {error}" for group, error in errors.items())
