"""What the API pages show beside the sources' docstrings; an extension of griffe, which reads them.

The items of `MemberOptions` get the text of their declaration. Of the bases of a class those stay
that users can name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from option_list import sentence, type_and_default

from kafkagroup._option_kinds import Option, declared
from kafkagroup.options import GroupMemberOptions

__all__ = ["Shown"]

_DOCUMENTED = re.compile(r"^::: kafkagroup\.([\w.]+)$", re.MULTILINE)


class Shown(griffe.Extension):
    """Changes the package once it is read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        public = _public_names(pkg)
        for cls in _classes(pkg):
            cls.bases = [_plain(base) for base in cls.bases if _is_shown(base, public)]
        options = declared(GroupMemberOptions)
        for name, member in pkg["coordination.MemberOptions"].attributes.items():
            member.docstring = griffe.Docstring(_described(options[name]), parent=member)


def _public_names(pkg: griffe.Module) -> set[str]:
    """Return what the pages document, by name or with the module that exports it."""
    names = set()
    for page in Path(__file__).parent.parent.joinpath("api").glob("*.md"):
        for path in _DOCUMENTED.findall(page.read_text("utf-8")):
            names |= {path.rpartition(".")[2], *map(str, pkg[path].exports or ())}
    return names


def _classes(parent: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    for member in parent.members.values():
        if isinstance(member, griffe.Class):
            yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from _classes(member)


def _is_shown(base: str | griffe.Expr, public: set[str]) -> bool:
    path = base if isinstance(base, str) else base.canonical_path
    package, _, _ = path.partition(".")
    name = path.rpartition(".")[2]
    return name in public if package == "kafkagroup" else name != "Generic"


def _plain(base: str | griffe.Expr) -> str | griffe.Expr:
    """Return a base of this package without its type arguments."""
    is_own = not isinstance(base, str) and base.canonical_path.startswith("kafkagroup.")
    return base.left if is_own and isinstance(base, griffe.ExprSubscript) else base


def _described(option: Option) -> str:
    # Links in the text begin in docs/.
    text = re.sub(r"\]\((?=\w)", "](../", sentence(option.text))
    return f"({type_and_default(option)}): {text}"
