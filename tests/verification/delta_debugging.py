"""Reduce a failing input to a minimal one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["minimize"]

T = TypeVar("T")


def minimize(parts: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Return the parts, in their order, that still fail together, and of which none can be left
    out.

    Leaves out ever smaller pieces. O(n log n) calls if few parts matter, O(n^2) at worst.
    """
    kept, pieces = tuple(parts), 2
    while kept:
        size = max(1, -(-len(kept) // pieces))
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept, pieces = rest, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(kept), pieces * 2)
    return kept
