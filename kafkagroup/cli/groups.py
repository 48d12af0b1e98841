"""`kafkagroup groups`: list the groups of a cluster."""

from __future__ import annotations

import attrs
import click

from kafkagroup.admin import GroupList, GroupListing, GroupState, GroupType
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import complete_groups, matches
from kafkagroup.cli._view import (
    add_row,
    broker,
    broker_errors,
    broker_value,
    console,
    count,
    exit_with,
    new_table,
    print_json,
)

__all__ = ["command"]

_STATES = [state.value for state in GroupState if state is not GroupState.UNKNOWN]
_TYPES = [kind.value for kind in GroupType if kind is not GroupType.UNKNOWN]


@click.command("groups", short_help="List groups with their types and states.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=complete_groups)
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state; repeatable.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice(_TYPES, case_sensitive=False),
    multiple=True,
    help="Only groups of this type; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected
def command(
    patterns: tuple[str, ...],
    states: tuple[str, ...],
    types: tuple[str, ...],
    as_json: bool,
    connection: Connection,
) -> None:
    """List the groups of all brokers, or those whose id matches a PATTERN, such as 'orders-*'; a
    PATTERN without * ? [ is a part of the id.

    If a broker does not answer, its groups are missing: it is named on stderr, and the exit code is
    1.
    """
    found = connection.run(
        lambda admin: admin.list_groups(
            states=[GroupState(state) for state in states],
            types=[GroupType(kind) for kind in types],
        )
    )
    if patterns:
        chosen = [group for group in found.groups if matches(group.group_id, patterns)]
        found = attrs.evolve(found, groups=tuple(chosen))
    if as_json:
        print_json(_value(found))
    else:
        _show(found)
    exit_with(f"broker {broker(node)}: {error}" for node, error in found.errors.items())


def _show(found: GroupList) -> None:
    table = new_table(
        count(len(found.groups), "group"),
        *("group", "type", "state", "protocol", "coordinator"),
        drop=("protocol", "coordinator", "type"),
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
        "errors": broker_errors(found.errors),
    }


def _group(group: GroupListing) -> dict[str, object]:
    return {
        "group_id": group.group_id,
        "type": group.type.value,
        "state": group.state.value,
        "protocol_type": group.protocol_type,
        "coordinator": broker_value(group.coordinator),
    }
