"""Texts of the library in the words of the command line.

The library names what a Python program writes: options such as `ssl_ca_location`, and calls such as
`Admin.list_topics()`.
"""

from __future__ import annotations

import re

from kafkagroup.cli._connection import option_words

__all__ = ["in_shell_words"]

_PHRASES = {
    "Admin.create_topics()": "`kafkagroup topics create`",
    "Admin.list_groups()": "`kafkagroup groups`",
    "Admin.list_topics()": "`kafkagroup topics list`",
    "Admin.open_transactions() of __consumer_offsets": (
        "`kafkagroup transactions find-hanging --all --topic __consumer_offsets`"
    ),
    "security=None": "-X security.protocol=PLAINTEXT",
    "a Security with ": "",
    "force=True": "--force",
}
"""A phrase in the library's messages -> that of the command line."""

_ABORT = re.compile(r"Admin\.abort_transaction\(\('([\w.-]+)', (\d+)\), (\d+)\)")


def in_shell_words(text: str) -> str:
    """Return the text with the arguments or environment variables of the command line for options,
    and with commands for calls."""
    for phrase, words in _PHRASES.items():
        text = text.replace(phrase, words)
    abort = r"`kafkagroup transactions abort --topic \1 --partition \2 --start-offset \3`"
    text = _ABORT.sub(abort, text)
    flags = option_words()

    def flag(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if value is None:
            return flags[name]
        value = value.lower() if value in ("True", "False") else value.strip("\"'")
        return f"{flags[name]}={value}"

    # Names without "_" stay as they are: they may be common words.
    names = "|".join(name for name in flags if "_" in name)
    # " in security" after a name is dropped: a command line has no such object. A quoted name is
    # not an option, but for example a topic of the user.
    pattern = rf"""(?<![\w./'"-])({names})(?!\w)(?:=("[^"]*"|'[^']*'|\w+))?(?: in security\b)?"""
    return re.sub(pattern, flag, text)
