"""Stands in for Cython's module `cython` where that is not installed: nothing is compiled."""

from __future__ import annotations

from typing import Any

__all__ = ["address", "cast", "compiled", "p_char"]

compiled = False

# Named below `if cython.compiled`, so never reached.
address: Any = None
cast: Any = None
p_char: Any = None
