"""What a consumer subscribes to: topics by name, or those that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kafkagroup.errors import ConfigurationError

__all__ = ["checked_pattern", "checked_topics", "server_pattern"]


def checked_topics(topics: Iterable[str]) -> frozenset[str]:
    """The names of topics. Raises: ConfigurationError."""
    names = frozenset(topics)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{name!r} is no topic name; expected a string")
    return names


def checked_pattern(
    pattern: str | re.Pattern[str] | None, topics: Sequence[str]
) -> re.Pattern[str] | None:
    """The pattern, if there is one, in whose place there must be no topics.

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
    """A pattern as the coordinator takes it (RE2J), which knows no flags but those within it."""
    letters = "".join(letter for flag, letter in _FLAGS if pattern.flags & flag)
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern
