"""`kafkagroup watch`: show the rebalances of a group as they happen."""

from __future__ import annotations

import click

from kafkagroup import BrokerError
from kafkagroup.admin import Admin, GroupDescription
from kafkagroup.cli._changes import changes_between, with_known_assignments
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import group_argument
from kafkagroup.cli._live import run_live, stamp, ticks
from kafkagroup.cli._view import print_json, print_line, print_message
from kafkagroup.errors import RETRIED_ERRORS, AuthenticationError, ErrorCode

__all__ = ["command"]


@click.command("watch", short_help="Show the rebalances of a group as they happen.")
@group_argument
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="The interval between two descriptions.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line for each change.")
@connected
def command(group: str, every: float, as_json: bool, connection: Connection) -> None:
    """Describe a group repeatedly, and print its changes until Ctrl-C: the state, members that
    joined or left, and partitions that moved.

    Of several changes between two descriptions, only the result is printed. The coordinator does
    not report whether a member left or timed out.
    """
    run_live(_watch, group, every, as_json, connection)


async def _watch(group: str, every: float, as_json: bool, connection: Connection) -> None:
    async with Admin(**connection.options(Admin)) as admin:
        known = await _describe(admin, group)
        _print(group, known, known, as_json)  # two equal descriptions: prints the state
        async for _ in ticks(every):
            try:
                now = await _describe(admin, group)
            except RETRIED_ERRORS as error:
                if isinstance(error, AuthenticationError) and error.is_refusal:
                    raise
                print_message(f"{stamp()}  {error}")
                continue
            if changes_between(known, now):
                _print(group, known, now, as_json)
            # During a rebalance, `now` may have no assignments: keep the last known ones.
            known = with_known_assignments(known, now)


async def _describe(admin: Admin, group: str) -> GroupDescription | None:
    """Return the group's description; None if it does not exist."""
    try:
        return await admin.describe_group(group)
    except BrokerError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return None


def _print(
    group: str, known: GroupDescription | None, now: GroupDescription | None, as_json: bool
) -> None:
    change = changes_between(known, now)
    if as_json:
        print_json({"time": stamp(), "group_id": group, **change.value()}, one_line=True)
    else:
        print_line(f"{stamp()}  {change.as_line()}")
