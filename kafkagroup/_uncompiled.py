"""Stands in for Cython's module `cython` where that is not installed: nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["address", "cast", "cclass", "compiled", "freelist", "p_char"]

T = TypeVar("T")

compiled = False

# Named below `if cython.compiled`, so never reached.
address: Any = None
cast: Any = None
p_char: Any = None


def cclass(cls: type[T]) -> type[T]:
    """A class whose fields are those of C: none, here."""
    return cls


def freelist(size: int) -> Callable[[type[T]], type[T]]:
    """How many objects of a class are kept to be used again: none, here."""
    return lambda cls: cls
