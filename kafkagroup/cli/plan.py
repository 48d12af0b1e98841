"""`kafkagroup plan`: what assignors would assign in a group, from a file or live. Read-only."""

from __future__ import annotations

from typing import TextIO

import click

from kafkagroup.admin import Admin
from kafkagroup.assign import GroupSpec
from kafkagroup.assign.plan import with_newcomers, without
from kafkagroup.assign.spec_json import MAX_CHARACTERS, spec_from_json
from kafkagroup.cli._assignors import ASSIGNORS, find_assignor, try_plan
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._plan_view import print_plans, value_of
from kafkagroup.cli._view import console, print_json

__all__ = ["command"]

_MAX_NEWCOMERS = 10_000
"""Far more members than a group has; an assignor takes longer with each."""


@click.command("plan", short_help="Show what an assignor would assign in a group.")
@click.option(
    "--spec",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="A group as JSON; - for stdin.",
)
@click.option("--group", metavar="GROUP", help="A consumer group of the cluster.")
@click.option(
    "--assignor",
    "names",
    metavar="NAME",
    multiple=True,
    help=f"{', '.join(sorted(ASSIGNORS))}, or your own as module:function; repeat it to compare."
    " With --group, the default is the assignor that the group uses.",
)
@click.option(
    "--remove",
    "removed",
    metavar="MEMBER",
    multiple=True,
    help="Assume that this member left.",
)
@click.option(
    "--add",
    "newcomer_count",
    type=click.IntRange(0, _MAX_NEWCOMERS),
    metavar="N",
    default=0,
    help="Assume that N members joined, subscribed to all topics of the group.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connected
def command(
    spec: TextIO | None,
    group: str | None,
    names: tuple[str, ...],
    removed: tuple[str, ...],
    newcomer_count: int,
    as_json: bool,
    connection: Connection,
) -> None:
    """Show the assignment before and after, and each partition that moves, with the reason.

    The command changes nothing: it does not join the group, and commits nothing.
    """
    if (spec is None) == (group is None):
        raise click.UsageError("give either --spec FILE or --group GROUP")
    if spec is not None and not names:
        raise click.UsageError(f"give --assignor: {', '.join(sorted(ASSIGNORS))}")
    if len(set(names)) < len(names):
        raise click.UsageError("an --assignor is given twice")
    assignors = [find_assignor(name) for name in names]
    cluster_id = None
    if group is None:
        assert spec is not None  # checked above
        current = spec_from_json(_text(spec))
    else:
        current, used, cluster_id = connection.run(lambda admin: _live(admin, group))
        assignors = assignors or [find_assignor(used)]
    # Newcomers are added first: they also subscribe to the topics of the members that are removed.
    changed = _without(with_newcomers(current, newcomer_count), removed)
    plans = [try_plan(changed, assignor, current) for assignor in assignors]
    if as_json:
        value: dict[str, object] = {"plans": [value_of(plan) for plan in plans]}
        print_json(value if cluster_id is None else {"cluster_id": cluster_id, **value})
    else:
        print_plans(console(), plans)


def _text(file: TextIO) -> str:
    try:
        return file.read(MAX_CHARACTERS + 1)  # `spec_from_json` refuses one character too many
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file.name} is not UTF-8: {error}") from error


async def _live(admin: Admin, group: str) -> tuple[GroupSpec, str, str | None]:
    """Return the group, the name of the assignor that it uses, and the cluster's id."""
    description = await admin.describe_group(group)
    spec = await admin.group_spec(description)
    return spec, description.protocol_name, admin.cluster_id


def _without(spec: GroupSpec, members: tuple[str, ...]) -> GroupSpec:
    for member in members:
        spec = without(spec, member)
    return spec
