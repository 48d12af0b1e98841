"""The program: it finds commands, and exits with one line on stderr after a failure.

A command is a file in this package with a click command named `command`, and its name in
`COMMANDS`; it is imported on use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

import click

from kafkagroup._text import printable
from kafkagroup.cli._suggestions import SuggestingGroup
from kafkagroup.errors import ConfigurationError, KafkaGroupError

__all__ = ["COMMANDS", "app"]

COMMANDS = (
    "broker",
    "consume",
    "delete-groups",
    "delete-offsets",
    "describe",
    "doctor",
    "elect",
    "export-offsets",
    "groups",
    "lag",
    "pipeline",
    "plan",
    "produce",
    "remove-member",
    "reset-offsets",
    "spark-offsets",
    "topics",
    "transactions",
    "watch",
)
"""The names of the commands. Each is in the file of that name, with "_" for "-"."""


class _Failed(click.ClickException):
    """A failure, which click prints as one line on stderr before the program exits."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        # A server's message, or a name in it, may contain any characters.
        super().__init__(printable(" ".join(message.split())))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kafkagroup: {self.message}", file=file, err=True)


class _WrongUsage(_Failed):
    """Wrong arguments or options, which have an exit code of their own."""

    exit_code = 2


class _Interrupted(click.ClickException):
    """Ctrl-C: no message, and the exit code that shells use for SIGINT."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("")

    def show(self, file: IO[Any] | None = None) -> None: ...


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn errors into click's, which end the program with one line on stderr and an exit code."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # its message is the help text
    except click.UsageError as error:
        if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option):
            # Name the option by its long names only.
            error.param_hint = [name for name in error.param.opts if name.startswith("--")]
        where = f"{error.ctx.info_name}: " if error.ctx and error.ctx.parent else ""
        raise _WrongUsage(where + _explained(error)) from error
    except ConfigurationError as error:
        raise _WrongUsage(_in_shell_words(error)) from error
    except KafkaGroupError as error:
        raise _Failed(_in_shell_words(error)) from error
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does: not a failure. Python would report what is
        # still buffered when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from None
    except (KeyboardInterrupt, click.Abort) as error:
        raise _Interrupted from error


def _in_shell_words(error: KafkaGroupError) -> str:
    # Imported here: it loads all options, which help and completion do without.
    from kafkagroup.cli._words import in_shell_words

    return in_shell_words(str(error))


def _explained(error: click.UsageError) -> str:
    """Return the message, with advice if click's own has none."""
    message, ctx = error.format_message(), error.ctx
    if ctx is None:
        return message
    if isinstance(error, click.NoSuchOption):
        # For `--to`, suggest `--to-earliest` and others: click only suggests similar names.
        options = [name for one in ctx.command.params for name in one.opts]
        longer = [repr(name) for name in options if name.startswith(f"{error.option_name}-")]
        if longer:
            return f"{error.message.rstrip('.')}. Did you mean {' or '.join(longer)}?"
        if error.possibilities:
            return message
    elif not error.message.startswith("Got unexpected extra argument"):
        return message
    return f"{message.rstrip('.')}. See {ctx.command_path} --help."


class _App(SuggestingGroup):
    """The command `kafkagroup`. Subcommands are imported on use."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"kafkagroup.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command


app = _App(
    "kafkagroup",
    help="Inspect and administer the groups and topics of Apache Kafka.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(package_name="kafkagroup", message="%(package)s %(version)s")(app)
