"""`kafkagroup groups`: list the groups of a cluster."""

from __future__ import annotations

import anyio
import click

from kafkagroup.admin import Admin, GroupList, GroupListing, GroupState, GroupType
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._view import (
    add_row,
    broker,
    broker_value,
    console,
    count,
    end_with,
    new_table,
    print_json,
)

__all__ = ["command"]

_STATES = [state.value for state in GroupState if state is not GroupState.UNKNOWN]
_TYPES = [kind.value for kind in GroupType if kind is not GroupType.UNKNOWN]


@click.command("groups", short_help="Which groups are there, and in which states?")
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES, case_sensitive=False),
    multiple=True,
    help="Only those in this state, or one of several.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice(_TYPES, case_sensitive=False),
    multiple=True,
    help="Only those of this type, or one of several.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the values.")
@connected
def command(
    states: tuple[str, ...], types: tuple[str, ...], as_json: bool, connection: Connection
) -> None:
    """List the groups of all brokers.

    A broker that does not answer is named on stderr, and the exit code is 1: its groups are missing
    from the list.
    """
    found = anyio.run(
        _listed, connection, [GroupState(state) for state in states], [GroupType(t) for t in types]
    )
    if as_json:
        print_json(_value(found))
    else:
        _show(found)
    end_with(f"broker {broker(node)}: {error}" for node, error in found.errors.items())


async def _listed(
    connection: Connection, states: list[GroupState], types: list[GroupType]
) -> GroupList:
    async with Admin(**connection.options(Admin)) as admin:
        return await admin.list_groups(states=states, types=types)


def _show(found: GroupList) -> None:
    table = new_table(
        count(len(found.groups), "group"), "group", "type", "state", "protocol", "coordinator"
    )
    for group in found.groups:
        add_row(
            table,
            group.group_id,
            group.type.value,
            group.state.value,
            group.protocol_type,
            broker(group.coordinator),
        )
    console().print(table)


def _value(found: GroupList) -> dict[str, object]:
    return {
        "groups": [_group(group) for group in found.groups],
        "errors": [
            {"broker": broker_value(node), "error": str(error)}
            for node, error in found.errors.items()
        ],
    }


def _group(group: GroupListing) -> dict[str, object]:
    return {
        "group_id": group.group_id,
        "type": group.type.value,
        "state": group.state.value,
        "protocol_type": group.protocol_type,
        "coordinator": broker_value(group.coordinator),
    }
