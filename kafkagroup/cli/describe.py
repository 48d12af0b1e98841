"""`kafkagroup describe`: the state of groups, their members, and the lag of each partition."""

from __future__ import annotations

import click

from kafkagroup import KafkaGroupError
from kafkagroup.admin import Admin, GroupDescription, GroupType
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._describe_view import describe_value, print_description
from kafkagroup.cli._groups import Groups, failures, groups_argument, split_results
from kafkagroup.cli._lag_view import Lags
from kafkagroup.cli._view import console, exit_with, print_json

__all__ = ["command"]


@click.command("describe", short_help="Show a group's members, assignments and lag.")
@groups_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected
def command(groups: Groups, as_json: bool, connection: Connection) -> None:
    """Show the state of groups, their members and assignments, their offsets and lag. Share groups
    have no committed offsets.

    A group that could not be read completely is named on stderr, and the exit code is 1.
    """
    wanted = groups.or_default(connection)
    described, measured, unlisted = connection.run(lambda admin: _read(admin, wanted))
    found, absent = split_results(described)
    lags, unread = split_results(measured)
    errors = absent | unread
    if as_json:
        values = [describe_value(one, lags.get(group)) for group, one in found.items()]
        print_json({"groups": values, "errors": errors | unlisted})
    else:
        for group, one in found.items():
            print_description(console(), one, lags.get(group))
    exit_with(failures(errors, unlisted))


async def _read(
    admin: Admin, groups: Groups
) -> tuple[
    dict[str, GroupDescription | KafkaGroupError],
    dict[str, Lags | KafkaGroupError],
    dict[str, str],
]:
    """Return the description and the lags of each group, or the errors; and the errors of brokers
    that did not list their groups."""
    names, unlisted = await groups.resolve(admin)
    described = await admin.describe_groups(names)
    # A share group's acknowledgements are not committed offsets.
    with_offsets = [
        name for name, one in split_results(described)[0].items() if one.type is not GroupType.SHARE
    ]
    lags = await admin.lag(with_offsets)
    return described, {**lags}, unlisted  # a copy: dict is invariant in its values
