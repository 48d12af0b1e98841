"""`attrs.evolve` for messages, which type checkers do not see as attrs classes."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import attrs

__all__ = ["evolve"]

T = TypeVar("T")


def evolve(message: T, **changes: Any) -> T:
    """Return a copy of the message with these fields changed."""
    return cast(T, attrs.evolve(cast(Any, message), **changes))
