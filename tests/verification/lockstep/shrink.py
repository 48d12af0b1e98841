"""Reduce a script to a shortest one that diverges in the same way: no step can be left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tests.verification.delta_debugging import minimize

from .script import Script, Step

__all__ = ["shrink"]


def shrink(script: Script, diverges: Callable[[Script], bool]) -> Script:
    """Leave out steps as long as the rest diverges, as `minimize` does."""

    def fails(steps: Sequence[Step]) -> bool:
        return diverges(attrs.evolve(script, steps=tuple(steps)))

    return attrs.evolve(script, steps=minimize(script.steps, fails))
