"""`kafkagroup remove-member`: remove a member from a group, for example one whose host is lost."""

from __future__ import annotations

import click

from kafkagroup.admin import Admin
from kafkagroup.cli._confirmation import confirm_or_exit, yes_option
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import group_argument
from kafkagroup.cli._view import member_name, print_json, print_line
from kafkagroup.errors import BrokerError, ErrorCode

__all__ = ["command"]


@click.command("remove-member", short_help="Remove a member from a group.")
@group_argument
@click.option("--instance", metavar="ID", help="A static member, by its group.instance.id.")
@click.option("--member", metavar="ID", help="A member by its member id.")
@click.option("--reason", metavar="TEXT", help="For the coordinator's log.")
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected
def command(
    group: str,
    instance: str | None,
    member: str | None,
    reason: str | None,
    yes: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Remove a member from a group: other members get its partitions at once, not when its session
    times out. A member that is still running joins again."""
    instance, member = instance or None, member or None  # no id is ""
    if (instance is None) == (member is None):
        raise click.UsageError("give either --instance ID or --member ID, not both")
    name = instance or member
    connection.run(lambda admin: _require_member(admin, group, member, instance))
    confirm_or_exit(f"Remove {name!r} from group {group!r}?", yes)
    connection.run(
        lambda admin: admin.remove_member(
            group, member_id=member, instance_id=instance, reason=reason
        )
    )
    if as_json:
        print_json({"group_id": group, "member_id": member, "instance_id": instance})
    else:
        print_line(f"{group}: {name} is removed")


async def _require_member(
    admin: Admin, group: str, member: str | None, instance: str | None
) -> None:
    """Check that the group has the member. Raises: BrokerError."""
    members = (await admin.describe_group(group)).members
    if any((instance or member) == (m.instance_id if instance else m.member_id) for m in members):
        return
    kind = f"--instance {instance}" if instance else f"--member {member}"
    listed = ", ".join(member_name(m) for m in members) or "none"
    raise BrokerError(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"group {group!r} has no member of {kind}; its members: {listed}",
    )
