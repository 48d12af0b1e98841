"""Reduce a script to a shortest one that diverges in the same way: no step can be left out."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from .script import Script, Step

__all__ = ["shrink"]


def shrink(script: Script, diverges: Callable[[Script], bool]) -> Script:
    """Leave out ever smaller parts as long as the rest diverges.

    By delta debugging: O(n log n) runs if few steps matter, O(n^2) at worst.
    """

    def fails(steps: tuple[Step, ...]) -> bool:
        return diverges(attrs.evolve(script, steps=steps))

    kept, parts = script.steps, 2
    while kept:
        size = max(1, -(-len(kept) // parts))
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), parts * 2)
    return attrs.evolve(script, steps=kept)
