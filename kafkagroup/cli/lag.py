"""`kafkagroup lag`: the lag of groups, once or live."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import click
from rich.console import Console, Group
from rich.live import Live

from kafkagroup import TopicPartition
from kafkagroup.admin import Admin
from kafkagroup.cli._connection import Connection, connected
from kafkagroup.cli._groups import Groups, failures, groups_argument, split_results
from kafkagroup.cli._lag_view import Lags, lag_line, lag_table, lag_value, live_table
from kafkagroup.cli._live import run_live, stamp, ticks
from kafkagroup.cli._view import console, exit_with, plain, print_json, print_line, print_message
from kafkagroup.errors import AuthenticationError, TransportError

__all__ = ["command"]

_SAMPLES = 30
"""The number of samples of each partition that a live view shows."""
_TABLE_LINES = 8
"""The lines of a live table besides those of partitions, if all columns fit: the title, the
heading, a rule, the line for the partitions that are left out, the total, and empty lines."""

_History = Mapping[str, Sequence[Mapping[TopicPartition, int | None]]]
"""Group -> the lags of each sample, oldest first."""

_Sample = tuple[dict[str, Lags], list[str], dict[str, str]]
"""Three values: group -> its lags; the errors as lines; group or broker -> its error."""


@click.command("lag", short_help="Show the lag of a group in offsets and in seconds.")
@groups_argument
@click.option(
    "--watch",
    "every",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    is_flag=False,
    flag_value=1.0,
    help="Repeat until Ctrl-C, every second by default. A terminal shows a live table, with the"
    " highest lags first; otherwise each sample of a group is one line.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON; with --watch, one line for each sample of a group.",
)
@connected
def command(groups: Groups, every: float | None, as_json: bool, connection: Connection) -> None:
    """Show the lag of each partition in offsets, and in seconds: the age of the first record that
    the group has not processed.

    A group that does not exist, or whose lag cannot be read, is named on stderr, and the exit code
    is 1.
    """
    wanted = groups.or_default(connection)
    if every is None:
        _print_once(connection.run(lambda admin: _lags(admin, wanted)), as_json)
    elif as_json or not console().is_terminal:
        run_live(_print_lines, wanted, connection, every, as_json)
    else:
        run_live(_show_live, wanted, connection, every)


def _print_once(sample: _Sample, as_json: bool) -> None:
    lags, lines, errors = sample
    if as_json:
        print_json({"groups": [lag_value(*one) for one in lags.items()], "errors": errors})
    else:
        for group, group_lags in lags.items():
            console().print(lag_table(group, group_lags))
    exit_with(lines)


async def _lags(admin: Admin, groups: Groups) -> _Sample:
    """Return the lags of the groups, and the errors. A named group that does not exist is an error:
    a misspelt name would otherwise look like a group without lag. With --all-groups, groups without
    committed offsets are left out."""
    names, unlisted = await groups.resolve(admin)
    lags, errors = split_results(await admin.lag(names))
    uncommitted = [group for group, group_lags in lags.items() if not group_lags]
    if groups.is_all:
        left_out = set(uncommitted)
    else:
        _, missing = split_results(await admin.describe_groups(uncommitted))
        left_out, errors = {*missing}, errors | missing
    shown: dict[str, Lags] = {group: lags[group] for group in lags if group not in left_out}
    return shown, [*failures(errors, unlisted)], errors | unlisted


async def _sampled(admin: Admin, groups: Groups) -> _Sample:
    """Return what `_lags` returns; if the cluster does not answer, no lags and the error, because a
    later sample may succeed. Raises: AuthenticationError if the cluster refuses the client."""
    try:
        return await _lags(admin, groups)
    except (TransportError, AuthenticationError) as error:
        if isinstance(error, AuthenticationError) and error.is_refusal:
            raise
        errors = dict.fromkeys(groups.named, str(error))
        # With --all-groups no group is named: the error is then a line of its own.
        return {}, [*failures(errors, {})] or [str(error)], errors


async def _print_lines(groups: Groups, connection: Connection, every: float, as_json: bool) -> None:
    async with Admin(**connection.options(Admin)) as admin:
        async for _ in ticks(every):
            at = stamp()
            lags, lines, _errors = await _sampled(admin, groups)
            for group, group_lags in lags.items():
                if as_json:
                    print_json({"time": at, **lag_value(group, group_lags)}, one_line=True)
                else:
                    print_line(f"{at}  {lag_line(group, group_lags)}")
            for line in lines:
                print_message(f"{at}  {line}")


async def _show_live(groups: Groups, connection: Connection, every: float) -> None:
    shown = console()
    history: dict[str, deque[Mapping[TopicPartition, int | None]]] = {}
    async with Admin(**connection.options(Admin)) as admin:
        with Live(console=shown, auto_refresh=False, vertical_overflow="crop") as view:
            async for _ in ticks(every):
                lags, error_lines, _errors = await _sampled(admin, groups)
                for group, group_lags in lags.items():
                    samples = history.setdefault(group, deque(maxlen=_SAMPLES))
                    samples.append({tp: one.lag for tp, one in group_lags.items()})
                footer = f"{time.strftime('%H:%M:%S')}, every {every:g} s; Ctrl-C ends it"
                lines = [*error_lines, footer]
                view.update(_fitting(shown, lags, history, lines), refresh=True)


def _fitting(
    shown: Console, lags: Mapping[str, Lags], history: _History, lines: Sequence[str]
) -> Group:
    """Return the tables of groups, with as many partitions as fit the terminal's height, above the
    lines."""
    count = max(len(lags), 1)
    rows = (shown.height - len(lines)) // count - _TABLE_LINES
    while True:
        tables = [live_table(group, lags[group], history[group], rows) for group in lags]
        view = Group(*tables, *map(plain, lines))
        excess = len(shown.render_lines(view)) - shown.height
        if excess <= 0 or rows <= 0:
            return view
        # A folded row takes up to four lines, so this removes too few rows rather than too many.
        rows -= max(1, excess // (4 * count))
