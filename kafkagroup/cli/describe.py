"""`kafkagroup describe`: the state of groups, their members, and the lag of each partition."""

from __future__ import annotations

import anyio
import click

from kafkagroup import KafkaGroupError
from kafkagroup.admin import Admin, GroupDescription, GroupType
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._describe_view import describe_value, print_description
from kafkagroup.cli._groups import groups_argument, named, parted
from kafkagroup.cli._lag_view import Lags
from kafkagroup.cli._view import console, end_with, print_json

__all__ = ["command"]


@click.command("describe", short_help="Who is in a group, who has what, and how far is it?")
@groups_argument
@click.option("--json", "as_json", is_flag=True, help="Print the values.")
@connected
def command(groups: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """Show the state of groups, their members and assignments, offsets and lag; share groups have
    no such offsets.

    A group of which something is not told is named on stderr, and the exit code is 1.
    """
    described, measured = anyio.run(_asked, named(groups, connection), connection)
    told, absent = parted(described)
    lags, unread = parted(measured)
    errors = absent | unread
    if as_json:
        values = [describe_value(one, lags.get(group)) for group, one in told.items()]
        print_json({"groups": values, "errors": errors})
    else:
        for group, one in told.items():
            print_description(console(), one, lags.get(group))
    end_with(f"group {group!r}: {error}" for group, error in errors.items())


async def _asked(
    groups: list[str], connection: Connection
) -> tuple[dict[str, GroupDescription | KafkaGroupError], dict[str, Lags | KafkaGroupError]]:
    async with Admin(**connection.options(Admin)) as admin:
        described = await admin.describe_groups(groups)
        # A share group's acknowledgements are not committed offsets.
        wanted = [
            name for name, one in parted(described)[0].items() if one.type is not GroupType.SHARE
        ]
        lags = await admin.lag(wanted)
    return described, {**lags}
