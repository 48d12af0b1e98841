"""The packages and their arrows as a picture, drawn from the imports of the source.

Which part imports which is read as `tests/test_layers.py` reads it; only where a part stands on the
paper is written here. A part without a place, or an import that does not point down, fails.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from pathlib import Path

from svg import GREY, INK, Svg

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from test_layers import MAY_IMPORT, PACKAGE, PURE, imports, part_of

__all__ = ["arrows", "draw", "parts"]

_WIDTH, _HEIGHT = 130, 44
_COLUMN, _ROW = 150, 92
_TOP = 74

_PURE, _IO = "#d6efdc", "#dfe9f7"

_PLACES: Mapping[str, tuple[float, int]] = {
    "cli": (0, 0),
    "admin": (2, 2),
    "coordination": (1, 2),
    "exporters": (4, 2),
    "compat": (5, 2),
    "spark": (1, 1),
    "clients": (3, 3),
    "zookeeper": (4.5, 3),
    "runtime": (3, 4),
    "testing": (0, 5),
    "options": (1, 5),
    "member": (2, 5),
    "consume": (3, 5),
    "produce": (4, 5),
    "transport": (5, 5),
    "assign": (1, 6),
    "wire": (3, 6),
    "concurrency": (4, 6),
    "events": (5, 6),
    "types, errors": (2, 7),
}
"""Part -> column and row. Each imports only what stands below it."""

_ONE = {
    "": "clients",  # a public name
    "consumer": "clients",
    "group": "clients",
    "producer": "clients",
    "transaction": "clients",
    "consuming_transactions": "clients",
    "broker": "clients",
    "callbacks": "types, errors",
    "types": "types, errors",
    "errors": "types, errors",
    "_option_kinds": "options",
    "runtime.client": "runtime",
    "runtime.member": "runtime",
    "runtime.offsets": "runtime",
    "runtime.consume": "runtime",
    "runtime.produce": "runtime",
}
"""Parts that are drawn as one."""

_NOTES = {"clients": "consumer, group, producer, broker"}


def parts() -> Set[str]:
    """The parts that have a box."""
    return _PLACES.keys()


def arrows() -> dict[str, set[str]]:
    """Part -> the parts that it imports, without those that these import themselves."""
    found: dict[str, set[str]] = {part: set() for part in _PLACES}
    for path in sorted(PACKAGE.rglob("*.py")):
        part = _box(part_of(path.relative_to(PACKAGE).with_suffix("").parts))
        for module in imports(path, PACKAGE):
            top, *rest = module.split(".")
            target = _box(part_of(tuple(rest))) if top == PACKAGE.name else None
            if part is not None and target is not None and target != part:
                if _PLACES[part][1] >= _PLACES[target][1]:
                    raise ValueError(f"{part} imports {target}, which does not stand below it")
                found[part].add(target)
    below: dict[str, set[str]] = {}
    for part in sorted(found, key=lambda part: -_PLACES[part][1]):
        below[part] = found[part].union(*(below[target] for target in found[part]))
    return {
        part: {t for t in targets if not any(t in below[other] for other in targets)}
        for part, targets in found.items()
    }


def _box(part: str) -> str | None:
    """The box of a part; None for private helpers that everything may import."""
    box = _ONE.get(part, part)
    if box in _PLACES:
        return box
    if part.startswith("_") and part in MAY_IMPORT:
        return None
    raise ValueError(f"{part} has no place in the picture of the packages")


def draw() -> str:
    """What imports what: an arrow leads to what is imported."""
    picture = Svg(920, 772, "The packages: an arrow leads to what is imported")
    for part, targets in arrows().items():
        for target in sorted(targets):
            (x0, y0), (x1, y1) = _at(part), _at(target)
            lean = (x1 - x0) * 0.12
            picture.path(
                f"M{x0 + lean:g},{y0 + _HEIGHT / 2:g} L{x1 - lean:g},{y1 - _HEIGHT / 2 - 2:g}",
                GREY,
                arrow=True,
            )
    for part in _PLACES:
        x, y = _at(part)
        is_pure = part.split(",")[0] in PURE
        picture.box(
            x - _WIDTH / 2,
            y - _HEIGHT / 2,
            _WIDTH,
            _HEIGHT,
            fill=_PURE if is_pure else _IO,
            stroke=INK,
        )
        note = _NOTES.get(part)
        picture.text(x, y + (-2 if note else 5), part, size=15, bold=True)
        if note:
            picture.text(x, y + 14, note, size=10)
    x = 240.0
    for fill, words in ((_PURE, "no clock, no randomness, no I/O"), (_IO, "may wait and send")):
        picture.box(x, 14, 22, 16, fill=fill, stroke=GREY)
        picture.text(x + 30, 27, words, size=13, anchor="start")
        x += 60 + 6.6 * len(words)
    return picture.render()


def _at(part: str) -> tuple[float, float]:
    column, row = _PLACES[part]
    return 84 + _COLUMN * column, _TOP + _ROW * row
