"""A substitute for Cython's module `cython` where that is not installed: nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["NULL", "address", "cast", "cclass", "compiled", "freelist", "p_char"]

T = TypeVar("T")

compiled = False

# Used only under `if cython.compiled`, so never reached.
NULL: Any = None
address: Any = None
cast: Any = None
p_char: Any = None


def cclass(cls: type[T]) -> type[T]:
    """Return the class unchanged; compiled, its fields are C fields."""
    return cls


def freelist(size: int) -> Callable[[type[T]], type[T]]:
    """Return a decorator without effect; compiled, up to `size` freed objects are reused."""
    return lambda cls: cls
