"""The names that topics may have."""

from __future__ import annotations

import re

__all__ = ["LEGAL_NAME_RULE", "is_legal_name"]

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""The names that brokers accept. Other names in a response could forge log lines."""

LEGAL_NAME_RULE = "1 to 249 letters, digits, dots, underscores and hyphens"
"""The rule that `is_legal_name` checks, in words, for messages."""


def is_legal_name(topic: str) -> bool:
    """Return whether a topic may have this name."""
    return topic not in (".", "..") and _LEGAL_NAME.fullmatch(topic) is not None
