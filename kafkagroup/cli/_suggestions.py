"""Groups of click commands that suggest a name for an unknown one."""

from __future__ import annotations

from difflib import get_close_matches

import click

__all__ = ["SuggestingGroup"]

_OTHER_NAMES = {
    "cat": ("consume",),
    "create": ("topics create",),
    "list": ("groups", "topics list"),
    "ls": ("groups", "topics list"),
    "members": ("describe",),
    "offsets": ("lag", "describe"),
    "read": ("consume",),
    "reset": ("reset-offsets",),
    "seek": ("reset-offsets",),
    "status": ("describe", "doctor"),
    "tail": ("consume",),
    "write": ("produce",),
}
"""A word of other tools -> the commands that it may mean."""


class SuggestingGroup(click.Group):
    """A group of commands that suggests others for a name that it does not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = self._near(ctx, name.lower())
            path = ctx.command_path
            hint = f"Did you mean {' or '.join(near)}?" if near else f"See {path} --help."
            raise click.UsageError(f"No such command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def _near(self, ctx: click.Context, name: str) -> list[str]:
        if name in _OTHER_NAMES and ctx.parent is None:  # the program, not a group in it
            return [*_OTHER_NAMES[name]]
        known = self.list_commands(ctx)
        # "delete" matches `delete-groups`; "list-groups" matches `groups`.
        parts = [one for one in known if name in one.split("-") or one in name.split("-")]
        # Two names only if both are close; else the closest one, by difflib's cutoff of 0.6.
        close = get_close_matches(name, known, n=2, cutoff=0.7)
        return parts or close or get_close_matches(name, known, n=1)
