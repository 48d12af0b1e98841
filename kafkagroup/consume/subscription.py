"""Subscriptions: topics by name, or a pattern that topics match."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import TypeAlias

from kafkagroup._topics import LEGAL_NAME_RULE, is_legal_name
from kafkagroup.errors import ConfigurationError

__all__ = ["Topics", "checked_pattern", "checked_topics", "server_pattern"]


Topics: TypeAlias = str | Sequence[str] | Set[str]
"""One topic name, or several. A mapping is refused."""


def checked_topics(topics: Iterable[Topics]) -> frozenset[str]:
    """Return the topic names in several arguments, each of which is a name or a list of names.

    Raises: ConfigurationError.
    """
    names: set[str] = set()
    for given in topics:
        several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
        names.update(map(_checked_topic, given if several else (given,)))
    return frozenset(names)


def _checked_topic(name: object) -> str:
    if not isinstance(name, str) or not name:
        hint = "; give pattern= for topics that match" if isinstance(name, re.Pattern) else ""
        raise ConfigurationError(f"{name!r} is no topic name; expected a string{hint}")
    if not is_legal_name(name):
        advice = (
            "give several topics as arguments, or in a list"
            if "," in name
            else "give pattern= for topics that match"
        )
        raise ConfigurationError(
            f"no topic can have the name {name!r}: names have {LEGAL_NAME_RULE}; {advice}"
        )
    return name


def checked_pattern(
    pattern: str | re.Pattern[str] | None, topics: Collection[Topics]
) -> re.Pattern[str] | None:
    """Return the compiled pattern; None if there is none. A pattern and topics exclude each other.

    Raises: ConfigurationError.
    """
    if pattern is None:
        return None
    if topics:
        raise ConfigurationError("give topics or a pattern, not both")
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str):
        raise ConfigurationError(f"pattern={pattern!r} is neither a string nor compiled from one")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"pattern={pattern!r} is no regular expression: {error}") from None


_FLAGS = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))
"""Python's flags that RE2J has, and their letters there."""


def server_pattern(pattern: re.Pattern[str]) -> str:
    """Return the pattern in the coordinator's syntax (RE2J), where flags are part of the text."""
    letters = "".join(letter for flag, letter in _FLAGS if pattern.flags & flag)
    text = pattern.pattern
    if pattern.flags & re.VERBOSE:
        text = _without_layout(text)
    text = _INLINE_FLAGS.sub("", text)
    return f"(?{letters}){text}" if letters else text


_INLINE_FLAGS = re.compile(r"\A(?:\(\?[aiLmsux]+\))+")
"""Flags at the beginning of a pattern. They are removed: `pattern.flags` has them, too, and RE2J
would reject those that it does not have."""

_LAYOUT = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\s+|#[^\n]*", re.DOTALL)
"""Group 1: what `re.VERBOSE` keeps, an escaped character or a set. Otherwise: what it ignores,
spaces or a comment."""


def _without_layout(text: str) -> str:
    """Return a verbose pattern without spaces and comments, which RE2J would take literally."""
    return _LAYOUT.sub(lambda found: found[1] or "", text)
