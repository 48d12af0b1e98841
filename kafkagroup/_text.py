"""Texts of peers, as errors, logs and terminals may show them."""

from __future__ import annotations

__all__ = ["escaped", "printable"]

_MAX_SHOWN = 500
"""The most characters of a peer's text in an error or a log."""


def escaped(text: str, limit: int = _MAX_SHOWN) -> str:
    """Return a peer's text for a log or a terminal: one line, no control characters, at most
    `limit` characters. Escaping twice changes nothing."""
    shown = printable(text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def printable(text: str) -> str:
    """Escape what does not print, so that the text cannot control a terminal or forge a line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
