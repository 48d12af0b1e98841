"""Output of commands: tables and lines on a terminal, JSON, and messages on stderr.

Names are untrusted: they are never parsed as markup, and control characters are escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kafkagroup import Node
from kafkagroup.admin import MemberDescription
from kafkagroup.errors import printable
from kafkagroup.types import TopicPartition

__all__ = [
    "add_row",
    "broker",
    "broker_value",
    "by_topic",
    "console",
    "count",
    "end_with",
    "member_name",
    "new_table",
    "plain",
    "plain_line",
    "print_json",
    "ranges",
    "say",
    "tell",
]

_PIPE_WIDTH = 120
"""Columns where there is no terminal to ask and COLUMNS is not set."""


def console() -> Console:
    """For stdout, whatever that is."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPE_WIDTH if piped else None, highlight=False)


def plain(text: str) -> Text:
    """As it stands: "[b]" in a name is no markup."""
    return Text(printable(text))


def plain_line(words: str) -> Text:
    """With an empty line after it, as tables have one."""
    return plain(words).append("\n")


def new_table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    """An empty one; the columns `right` are of numbers."""
    made = Table(title=plain(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(
            plain(column), justify="right" if column in right else "left", overflow="fold"
        )
    return made


def add_row(table: Table, *cells: object) -> None:
    """Add one; None is an empty cell."""
    table.add_row(*("" if cell is None else plain(str(cell)) for cell in cells))


def count(number: int, noun: str) -> str:
    """ "1 member", "2 members"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges(partitions: Iterable[TopicPartition]) -> str:
    """Sorted partitions in short: "audit 0, orders 0-3 7"."""
    runs: dict[str, list[list[int]]] = {}
    for topic, number in partitions:
        of = runs.setdefault(topic, [])
        if of and of[-1][1] == number - 1:
            of[-1][1] = number
        else:
            of.append([number, number])
    return ", ".join(
        " ".join([topic, *(f"{a}" if a == b else f"{a}-{b}" for a, b in of)])
        for topic, of in runs.items()
    )


def tell(words: str) -> None:
    """One line on stdout."""
    click.echo(printable(words))


def member_name(member: MemberDescription) -> str:
    """As operators know it."""
    return member.instance_id or member.member_id


def broker(node: Node) -> str:
    """Where it is, and its id."""
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{host}:{node.port} (id {node.node_id})"


# ---------------------------------------------------------------- JSON


def print_json(value: object, *, one_line: bool = False) -> None:
    """A value, indented; or on one line, where others follow."""
    click.echo(json.dumps(value, indent=None if one_line else 2))


def broker_value(node: Node) -> dict[str, object]:
    """As JSON has it."""
    return {"node_id": node.node_id, "host": node.host, "port": node.port}


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Topic -> numbers, as JSON has partitions."""
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


# ---------------------------------------------------------------- stderr


def say(words: str) -> None:
    """One line on stderr."""
    click.echo(f"kafkagroup: {printable(' '.join(words.split()))}", err=True)


def end_with(errors: Iterable[str]) -> None:
    """Say each; if there is one, end the program as one that failed."""
    told = list(errors)
    for error in told:
        say(error)
    if told:
        raise click.exceptions.Exit(1)
