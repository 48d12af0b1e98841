"""Group ids as command arguments, with completion from the cluster."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr
from fnmatch import fnmatchcase
from io import StringIO
from typing import Any, TypeVar, cast

import anyio
import attrs
import click

from kafkagroup import Admin
from kafkagroup.cli._connection import Connection, connection_of
from kafkagroup.cli._view import broker
from kafkagroup.errors import ChangesRefusedError, KafkaGroupError

__all__ = [
    "Groups",
    "apply_changes",
    "complete_groups",
    "failures",
    "group_argument",
    "groups_argument",
    "matches",
    "split_results",
]

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_TIMEOUT_MS = 2_000
"""Milliseconds for which a completion waits for the cluster."""


def groups_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument GROUP, any number of times, and `--all-groups` to a command, which gets a
    `Groups` as `groups`. `--group` does the same as the argument."""

    @click.argument("groups", metavar="GROUP...", nargs=-1, shell_complete=complete_groups)
    @click.option(
        "-g",
        "--group",
        "more_groups",
        metavar="GROUP",
        multiple=True,
        hidden=True,
        shell_complete=complete_groups,
    )
    @click.option(
        "-a", "--all-groups", "all_groups", is_flag=True, help="All groups of the cluster."
    )
    @functools.wraps(command)
    def with_groups(
        *args: Any,
        groups: tuple[str, ...],
        more_groups: tuple[str, ...],
        all_groups: bool,
        **rest: Any,
    ) -> Any:
        named = tuple(dict.fromkeys((*groups, *more_groups)))
        if all_groups and named:
            raise click.UsageError("give either groups or --all-groups")
        return command(*args, groups=Groups(named, all_groups), **rest)

    return with_groups


def group_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument GROUP to a command, which gets it as `group`. `--group` does the same as the
    argument."""

    @click.argument("group", metavar="GROUP", required=False, shell_complete=complete_groups)
    @click.option(
        "-g",
        "--group",
        "group_option",
        metavar="GROUP",
        hidden=True,
        shell_complete=complete_groups,
    )
    @functools.wraps(command)
    def with_group(*args: Any, group: str | None, group_option: str | None, **rest: Any) -> Any:
        if group is None and group_option is None:
            raise click.UsageError("Missing argument 'GROUP'.")
        if group is not None and group_option is not None:
            raise click.UsageError("the group is given twice")
        return command(*args, group=group if group_option is None else group_option, **rest)

    return with_group


@attrs.frozen
class Groups:
    """The groups that a command is about."""

    named: tuple[str, ...]
    """Group ids; empty if `is_all`, or if none was given."""
    is_all: bool
    """Whether all groups of the cluster are meant."""

    def or_default(self, connection: Connection) -> Groups:
        """Return these groups; if none is given, the connection's group, such as that of a profile.
        Raises: UsageError."""
        if self.named or self.is_all:
            return self
        if not connection.group_id:
            raise click.UsageError("give a group, or group.id in the profile, or --all-groups")
        return Groups((connection.group_id,), is_all=False)

    async def resolve(self, admin: Admin) -> tuple[list[str], dict[str, str]]:
        """Return the ids of the groups; and, by broker, the errors of brokers that could not list
        their groups."""
        if not self.is_all:
            return [*self.named], {}
        found = await admin.list_groups()
        errors = {broker(node): str(error) for node, error in found.errors.items()}
        return sorted(group.group_id for group in found.groups), errors


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns matches the name. A pattern with *, ? or [ must match the
    whole name, as in a shell; any other must be a part of it."""
    return any(
        fnmatchcase(name, pattern) if re.search(r"[*?[]", pattern) else pattern in name
        for pattern in patterns
    )


def split_results(
    results: Mapping[str, T | KafkaGroupError],
) -> tuple[dict[str, T], dict[str, str]]:
    """Split results by name, such as a group's id, into values and errors."""
    values: dict[str, T] = {}
    errors: dict[str, str] = {}
    for name, result in results.items():
        if isinstance(result, KafkaGroupError):
            errors[name] = str(result)
        else:
            values[name] = result
    return values, errors


def apply_changes(change: Callable[[], Iterable[K]]) -> tuple[list[K], dict[K, str]]:
    """Call `change`, which changes several things; return those that were changed, and the errors
    of the others."""
    try:
        return list(change()), {}
    except ChangesRefusedError as refused:
        # The error is not generic: its keys are what `change` changes.
        errors = {cast(K, key): str(error) for key, error in refused.errors.items()}
        return [cast(K, key) for key in refused.done], errors


def failures(errors: Mapping[str, str], unlisted: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each group's error, and for each broker that did not list its groups."""
    yield from (f"group {group!r}: {error}" for group, error in errors.items())
    yield from (f"broker {name}: {error}" for name, error in unlisted.items())


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of groups that begin with `incomplete`; a callback of click."""
    try:
        with redirect_stderr(StringIO()):  # a warning would garble the line that is completed
            return anyio.run(_ids, connection_of(ctx.params), incomplete)
    except (KafkaGroupError, OSError):
        return []  # completion cannot report an error


async def _ids(connection: Connection, prefix: str) -> list[str]:
    options = connection.options(Admin) | {
        "request_timeout_ms": _TIMEOUT_MS,
        "default_api_timeout_ms": _TIMEOUT_MS,
    }
    with anyio.move_on_after(_TIMEOUT_MS / 1000):
        async with Admin(**options) as admin:
            found = await admin.list_groups()
        return [one.group_id for one in found.groups if one.group_id.startswith(prefix)]
    return []
