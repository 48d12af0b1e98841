"""Draws the pictures of the guides into docs/pictures: `python docs/site/pictures.py`.

They are committed, so that the pages can be read where they lie; a test compares them with what is
drawn now.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import measured
import packages
import phases
import timeline

FOLDER = Path(__file__).parent.parent / "pictures"

PICTURES: Mapping[str, Callable[[], str]] = {
    "packages.svg": packages.draw,
    "phases-classic.svg": phases.classic,
    "phases-consumer.svg": phases.consumer,
    "ratios.svg": measured.draw,
    "rebalance.svg": timeline.draw,
    "rebalance-cooperative.svg": timeline.draw_cooperative,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), "utf-8")
