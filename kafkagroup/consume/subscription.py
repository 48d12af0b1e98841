"""Subscriptions: topics by name, or a pattern that topics match."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import TypeAlias

from kafkagroup._topics import LEGAL_NAMES, is_legal_name
from kafkagroup.errors import ConfigurationError

__all__ = ["Topics", "checked_pattern", "checked_topics", "server_pattern"]


Topics: TypeAlias = str | Sequence[str] | Set[str]
"""One topic name or several; a mapping, as of options, is refused."""


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
            f"no topic can have the name {name!r}: names have {LEGAL_NAMES}; {advice}"
        )
    return name


def checked_pattern(
    pattern: str | re.Pattern[str] | None, topics: Collection[Topics]
) -> re.Pattern[str] | None:
    """Compile the pattern; None if there is none. A pattern and topics exclude each other.

    Raises: ConfigurationError.
    """
    if pattern is None:
        return None
    if topics:
        raise ConfigurationError("give topics or a pattern, not both")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"pattern={pattern!r} is no regular expression: {error}") from None


_FLAGS = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))


def server_pattern(pattern: re.Pattern[str]) -> str:
    """Return the pattern in the coordinator's syntax (RE2J), where flags are part of the text."""
    letters = "".join(letter for flag, letter in _FLAGS if pattern.flags & flag)
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern
