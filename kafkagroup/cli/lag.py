"""`kafkagroup lag`: the lag of groups, once or live."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

import anyio
import click
from rich.console import Group
from rich.live import Live

from kafkagroup import TopicPartition
from kafkagroup.admin import Admin
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import groups_argument, named, parted
from kafkagroup.cli._lag_view import Lags, lag_line, lag_table, lag_value, live_table
from kafkagroup.cli._live import clock, run_live, stamp
from kafkagroup.cli._view import console, end_with, plain, print_json, say, tell
from kafkagroup.errors import TransportError

__all__ = ["command"]

_SAMPLES = 30
"""That a live view remembers of each partition."""
_TABLE_LINES = 8
"""Of a live table besides partitions: title, head, rule, the others, the total, empty ones."""

_Sample = tuple[dict[str, Lags], dict[str, str]]
"""Group -> its lags, and group -> why they are not told."""


@click.command("lag", short_help="How far is a group behind, in offsets and in seconds?")
@groups_argument
@click.option(
    "--watch",
    "every",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    is_flag=False,
    flag_value=1.0,
    help="Again and again, every second if none are given, until Ctrl-C. On a terminal live, the"
    " partitions first that are behind most; else a line for each group and time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the values; one line a time, live.")
@connected
def command(
    groups: tuple[str, ...], every: float | None, as_json: bool, connection: Connection
) -> None:
    """Show for each partition the offsets that a group is behind, and the seconds: the exact age of
    the first record that it has not processed.

    A group that does not exist, or whose lag cannot be told, is named on stderr, and the exit code
    is 1.
    """
    wanted = named(groups, connection)
    if every is None:
        _once(anyio.run(_measured, wanted, connection), as_json)
    elif as_json or not console().is_terminal:
        run_live(_lines, wanted, connection, every, as_json)
    else:
        run_live(_live, wanted, connection, every)


def _once(sample: _Sample, as_json: bool) -> None:
    lags, errors = sample
    if as_json:
        print_json({"groups": [lag_value(*one) for one in lags.items()], "errors": errors})
    else:
        for group, of in lags.items():
            console().print(lag_table(group, of))
    end_with(f"group {group!r}: {error}" for group, error in errors.items())


async def _measured(groups: list[str], connection: Connection) -> _Sample:
    async with Admin(**connection.options(Admin)) as admin:
        return await _lags(admin, groups)


async def _lags(admin: Admin, groups: list[str]) -> _Sample:
    """The lags of groups; a group that does not exist is an error, as a misspelt name would
    otherwise look like a group that is not behind."""
    lags, errors = parted(await admin.lag(groups))
    uncommitted = [group for group, of in lags.items() if not of]
    _, missing = parted(await admin.describe_groups(uncommitted))
    return {group: of for group, of in lags.items() if group not in missing}, errors | missing


async def _sampled(admin: Admin, groups: list[str]) -> _Sample:
    """Of a live view. A cluster that does not answer now may do so later."""
    try:
        return await _lags(admin, groups)
    except TransportError as error:
        return {}, dict.fromkeys(groups, str(error))


async def _lines(groups: list[str], connection: Connection, every: float, as_json: bool) -> None:
    async with Admin(**connection.options(Admin)) as admin:
        async for _ in clock(every):
            at = stamp()
            lags, errors = await _sampled(admin, groups)
            for group, of in lags.items():
                if as_json:
                    print_json({"time": at, **lag_value(group, of)}, one_line=True)
                else:
                    tell(f"{at}  {lag_line(group, of)}")
            for group, error in errors.items():
                say(f"{at}  group {group!r}: {error}")


async def _live(groups: list[str], connection: Connection, every: float) -> None:
    shown = console()
    history: dict[str, deque[Mapping[TopicPartition, int | None]]] = {
        group: deque(maxlen=_SAMPLES) for group in groups
    }
    async with Admin(**connection.options(Admin)) as admin:
        with Live(console=shown, auto_refresh=False, vertical_overflow="crop") as view:
            async for _ in clock(every):
                lags, errors = await _sampled(admin, groups)
                for group, of in lags.items():
                    history[group].append({tp: one.lag for tp, one in of.items()})
                rows = (shown.height - len(errors) - 1) // len(groups) - _TABLE_LINES
                tables = [live_table(g, of, history[g], rows) for g, of in lags.items()]
                words = [f"group {group!r}: {error}" for group, error in errors.items()]
                words.append(f"{time.strftime('%H:%M:%S')}, every {every:g} s; Ctrl-C ends it")
                view.update(Group(*tables, *map(plain, words)), refresh=True)
