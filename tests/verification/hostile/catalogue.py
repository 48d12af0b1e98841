"""All attacks, by family."""

from __future__ import annotations

from . import authentication, bodies, frames, groups, neighbours, records, sizes
from .trial import Attack

__all__ = ["ATTACKS"]

ATTACKS: tuple[Attack, ...] = (
    *frames.ATTACKS,
    *bodies.ATTACKS,
    *records.ATTACKS,
    *groups.ATTACKS,
    *authentication.ATTACKS,
    *neighbours.ATTACKS,
    *sizes.ATTACKS,
)
