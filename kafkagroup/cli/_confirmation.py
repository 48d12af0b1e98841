"""Confirmation before a command changes something."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

__all__ = ["confirm_or_exit", "yes_option"]


def yes_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--yes` to a command; Kafka's own tools call it `--execute`."""
    return click.option("--yes", "--execute", "yes", is_flag=True, help="Do it without asking.")(
        command
    )


def confirm_or_exit(question: str, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is set.

    Raises: UsageError without a terminal; Exit when the answer is no.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():  # None: stdin is closed
        raise click.UsageError("there is no terminal to ask on; nothing is changed without --yes")
    if not click.confirm(question, err=True):
        click.echo("Nothing is changed.", err=True)
        raise click.exceptions.Exit(1)
