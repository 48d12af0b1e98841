"""Group ids as command arguments, with completion from the cluster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any, TypeVar, cast

import anyio
import click

from kafkagroup import Admin
from kafkagroup.cli._connection import Connection, connection_of
from kafkagroup.errors import ChangesRefusedError, KafkaGroupError

__all__ = ["changed", "group_argument", "groups_argument", "groups_or_default", "split_results"]

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_TIMEOUT_MS = 2_000
"""How long a completion waits for the cluster."""


def groups_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument `groups` to a command, any number of them; see `groups_or_default`."""
    add = click.argument("groups", metavar="GROUP...", nargs=-1, shell_complete=_complete)
    return add(command)


def group_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument `group` to a command."""
    return click.argument("group", metavar="GROUP", shell_complete=_complete)(command)


def groups_or_default(groups: Sequence[str], connection: Connection) -> list[str]:
    """Return the given groups without duplicates, or the profile's. Raises: UsageError."""
    found = list(dict.fromkeys(groups)) or [connection.group_id or ""]
    if not all(found):
        raise click.UsageError("give a group, or group.id in the profile")
    return found


def split_results(
    answers: Mapping[str, T | KafkaGroupError],
) -> tuple[dict[str, T], dict[str, str]]:
    """Split results by group into values and errors."""
    values: dict[str, T] = {}
    errors: dict[str, str] = {}
    for group, answer in answers.items():
        if isinstance(answer, KafkaGroupError):
            errors[group] = str(answer)
        else:
            values[group] = answer
    return values, errors


def changed(change: Callable[[], Iterable[K]]) -> tuple[list[K], dict[K, str]]:
    """Make changes; return what was changed, and the errors of the rest."""
    try:
        return list(change()), {}
    except ChangesRefusedError as refused:
        errors = {cast(K, key): str(error) for key, error in refused.errors.items()}
        return [cast(K, key) for key in refused.done], errors


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with redirect_stderr(StringIO()):
            return anyio.run(_ids, connection_of(ctx.params), incomplete)
    except (KafkaGroupError, OSError):
        return []  # completion cannot report an error


async def _ids(connection: Connection, beginning: str) -> list[str]:
    options = connection.options(Admin) | {
        "request_timeout_ms": _TIMEOUT_MS,
        "default_api_timeout_ms": _TIMEOUT_MS,
    }
    with anyio.move_on_after(_TIMEOUT_MS / 1000):
        async with Admin(**options) as admin:
            found = await admin.list_groups()
        return [one.group_id for one in found.groups if one.group_id.startswith(beginning)]
    return []
