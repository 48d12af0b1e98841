"""`kafkagroup delete-groups`: delete groups without members, and their committed offsets."""

from __future__ import annotations

import click

from kafkagroup.admin import Admin, GroupDescription
from kafkagroup.cli._confirmation import confirm_or_exit, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import apply_changes, complete_groups
from kafkagroup.cli._members import blocking_members
from kafkagroup.cli._view import exit_with, print_json, print_line
from kafkagroup.errors import ErrorCode

__all__ = ["command"]


@click.command("delete-groups", short_help="Delete groups with their committed offsets.")
@click.argument("groups", metavar="GROUP...", nargs=-1, shell_complete=complete_groups)
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
    kept = connection.run(lambda admin: _kept(admin, groups))
    wanted = [group for group in dict.fromkeys(groups) if group not in kept]
    done: list[str] = []
    errors = kept
    if wanted:
        confirm_or_exit(f"Delete {', '.join(map(repr, wanted))} permanently?", yes)
        done, refused = apply_changes(
            lambda: connection.run(lambda admin: admin.delete_groups(wanted))
        )
        errors = kept | refused
    if as_json:
        print_json({"deleted": done, "errors": errors})
    else:
        for group in done:
            print_line(f"{group}: deleted")
    exit_with(f"group {group!r} is kept: {error}" for group, error in errors.items())


async def _kept(admin: Admin, groups: tuple[str, ...]) -> dict[str, str]:
    """Return group -> reason, of the groups that do not exist or have members. For groups that
    cannot be described, the coordinator accepts or refuses the deletion."""
    kept = {}
    for group, result in (await admin.describe_groups(groups)).items():
        if isinstance(result, GroupDescription):
            if result.members:
                kept[group] = f"it has {blocking_members(result.members)}"
        # Of the errors, only a BrokerError has a code.
        elif getattr(result, "code", None) == ErrorCode.GROUP_ID_NOT_FOUND:
            kept[group] = str(result)
    return kept
