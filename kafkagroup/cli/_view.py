"""Output of commands: tables and lines on a terminal, JSON, and messages on stderr.

Names are untrusted: they are never parsed as markup, and control characters are escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping

import click
from rich.console import Console
from rich.text import Text

from kafkagroup import KafkaGroupError, Node
from kafkagroup._text import printable
from kafkagroup.admin import MemberDescription
from kafkagroup.cli._table import Table
from kafkagroup.types import TopicPartition

__all__ = [
    "add_row",
    "broker",
    "broker_errors",
    "broker_value",
    "console",
    "count",
    "exit_with",
    "member_name",
    "new_table",
    "plain",
    "plain_line",
    "print_json",
    "print_line",
    "print_message",
    "ranges",
]

_PIPE_WIDTH = 120
"""The width of tables if stdout is no terminal and COLUMNS is not set."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: the program then ends without a failure. Rich would exit with code
        1."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console for stdout, a terminal or not."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: stdout is closed
    has_width = is_terminal or "COLUMNS" in os.environ
    return _Console(width=None if has_width else _PIPE_WIDTH, highlight=False)


def plain(text: str) -> Text:
    """Return the text for rich, with control characters escaped: "[b]" in a name is no markup."""
    return Text(printable(text))


def plain_line(text: str) -> Text:
    """Return the text with an empty line after it, as after a table."""
    return plain(text).append("\n")


def new_table(
    title: str, *columns: str, right: Collection[str] = (), drop: Iterable[str] = ()
) -> Table:
    """Return an empty table. The columns in `right` are right-aligned and never folded. Those in
    `drop` are left out on a narrow terminal, in this order."""
    names = [printable(column) for column in columns]
    return Table(printable(title), names, [*map(printable, right)], [*map(printable, drop)])


def add_row(table: Table, *cells: object) -> None:
    """Add a row; None is an empty cell."""
    table.add_row(*("" if cell is None else printable(str(cell)) for cell in cells))


def count(number: int, noun: str) -> str:
    """Return the number with its noun: "1 member", "2 members"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions, which must be sorted, as ranges: "audit 0, orders 0-3 7"."""
    runs_of: dict[str, list[list[int]]] = {}
    for topic, number in partitions:
        runs = runs_of.setdefault(topic, [])
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(
        " ".join([topic, *(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)])
        for topic, runs in runs_of.items()
    )


def print_line(text: str) -> None:
    """Print one line on stdout."""
    click.echo(printable(text))


def member_name(member: MemberDescription) -> str:
    """Return the name that operators know: the instance id, if there is one."""
    return member.instance_id or member.member_id


def broker(node: Node) -> str:
    """Return a broker's address and id."""
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{host}:{node.port} (id {node.node_id})"


# ---------------------------------------------------------------- JSON


def print_json(value: object, *, one_line: bool = False) -> None:
    """Print a JSON value, indented, or on one line."""
    click.echo(json.dumps(value, indent=None if one_line else 2))


def broker_value(node: Node) -> dict[str, object]:
    """Return a broker as a JSON value."""
    return {"node_id": node.node_id, "host": node.host, "port": node.port}


def broker_errors(errors: Mapping[Node, KafkaGroupError]) -> list[dict[str, object]]:
    """Return the errors of brokers that could not list their groups or transactional ids, as a JSON
    value."""
    return [{"broker": broker_value(node), "error": str(error)} for node, error in errors.items()]


# ---------------------------------------------------------------- stderr


def print_message(text: str) -> None:
    """Print one line on stderr."""
    click.echo(f"kafkagroup: {printable(' '.join(text.split()))}", err=True)


def exit_with(errors: Iterable[str]) -> None:
    """Print the errors on stderr; if there are any, exit with code 1."""
    found = list(errors)
    for error in found:
        print_message(error)
    if found:
        raise click.exceptions.Exit(1)
