"""The phases of a member as a picture, drawn from the tables that the code goes by.

What moves where, which phases have heartbeats and which take commits is read from
`kafkagroup.member`; only where a phase stands on the paper is written here. A phase that is new
there has no place here, and drawing fails.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import TypeVar

from svg import GREY, INK, PAPER, Svg

from kafkagroup.member import classic_state as state
from kafkagroup.member import consumer_state

__all__ = ["classic", "consumer"]

P = TypeVar("P", bound=Enum)

_WIDTH, _HEIGHT = 96, 40
_COLUMN, _ROW = 118, 140
_TOP, _BOTTOM = 134, 384

_PURGATORY = "#fde8c4"
_HEARTBEATING = "#d6efdc"
_QUIET = "#eef1f5"
_LOSS = "#c0392b"

_CLASSIC = {
    "idle": (0, 0),
    "unjoined": (1, 0),
    "joining": (2, 0),
    "computing": (3, 0),
    "syncing": (4, 0),
    "synced": (5, 0),
    "stable": (6, 0),
    "revoking": (7, 0),
    "losing": (3, 1),
}
_CONSUMER = {
    "idle": (0, 0),
    "unjoined": (1, 0),
    "releasing": (2, 0),
    "joining": (3, 0),
    "member": (4, 0),
    "revoking": (5, 0),
    "losing": (3, 1),
}
_WAYS_OUT = ("departing", "left", "failed")
_END = ("leaving", *_WAYS_OUT)


def classic() -> str:
    """Of a classic group."""
    return _draw(
        "A member of a classic group",
        state.MOVES,
        _CLASSIC,
        heartbeating=state.HEARTBEATING,
        purgatory=state.PURGATORY,
        committing=state.COMMITTING,
    )


def consumer() -> str:
    """Of a group of KIP-848."""
    return _draw(
        "A member of a group of KIP-848",
        consumer_state.MOVES,
        _CONSUMER,
        heartbeating=consumer_state.HEARTBEATING,
        purgatory=frozenset(),
        committing=consumer_state.HEARTBEATING,
    )


def _draw(
    title: str,
    moves: Mapping[P, Collection[P]],
    places: Mapping[str, tuple[int, int]],
    *,
    heartbeating: Collection[P],
    purgatory: Collection[P],
    committing: Collection[P],
) -> str:
    columns = 1 + max(column for column, _ in places.values())
    picture = Svg(columns * _COLUMN + 20, 462, title)

    def centre(name: str) -> tuple[float, float]:
        column, row = places[name]
        return 20 + _WIDTH / 2 + column * _COLUMN, _TOP + row * _ROW

    for start, ends in moves.items():
        if start.value in _END:
            continue
        for end in sorted(ends, key=lambda phase: phase.value):
            if end.value not in _END:
                _arrow(picture, centre(start.value), centre(end.value), end.value == "losing")
        _way_out(
            picture, centre(start.value), [n for n in _WAYS_OUT if n in {e.value for e in ends}]
        )
    for phase in moves:
        if phase.value in _END:
            continue
        x, y = centre(phase.value)
        fill = (
            _HEARTBEATING if phase in heartbeating else _PURGATORY if phase in purgatory else _QUIET
        )
        picture.box(
            x - _WIDTH / 2,
            y - _HEIGHT / 2,
            _WIDTH,
            _HEIGHT,
            fill=fill,
            stroke=INK if phase in committing else GREY,
            weight=2.5 if phase in committing else 1,
        )
        picture.text(x, y + 5, phase.value, size=15)
    picture.box(20, _BOTTOM, columns * _COLUMN - 22, 32, fill=PAPER, stroke=GREY)
    (last,) = (e for e in moves if e.value == "leaving")
    whereto = " or ".join(sorted(e.value for e in moves[last] if e.value != "departing"))
    picture.text(
        20 + (columns * _COLUMN - 22) / 2,
        _BOTTOM + 21,
        f"the end: departing, leaving, again if need be, then {whereto}; left at once; failed",
        size=14,
    )
    _legend(picture, has_purgatory=bool(purgatory))
    return picture.render()


def _arrow(picture: Svg, start: tuple[float, float], end: tuple[float, float], loss: bool) -> None:
    (x0, y0), (x1, y1) = start, end
    half = _HEIGHT / 2
    if start == end:
        picture.path(
            f"M{x0 + 14:g},{y0 - half:g} c6,-34 34,-34 26,1", GREY, arrow=True
        )  # once more, to itself
    elif loss:
        lean = (x0 - x1) / _COLUMN
        picture.path(
            f"M{x0 - 12:g},{y0 + half:g} L{x1 + lean * 12:g},{y1 - half - 2:g}", _LOSS, arrow=True
        )
    elif y0 != y1:  # back from the loss
        picture.path(
            f"M{x0 - _WIDTH / 2:g},{y0:g} Q{x1 - 22:g},{y0:g} {x1 - 30:g},{y1 + half + 2:g}",
            GREY,
            arrow=True,
        )
    elif x1 - x0 == _COLUMN:
        picture.path(
            f"M{x0 + _WIDTH / 2:g},{y0:g} L{x1 - _WIDTH / 2 - 2:g},{y1:g}",
            INK,
            arrow=True,
            weight=2,
        )
    else:
        far = abs(x1 - x0) / _COLUMN
        forward = x1 > x0
        lift = 22 + 21 * far
        colour = INK if forward else GREY
        x0, x1 = (x0 + 18, x1 - 26) if forward else (x0 - 14, x1 + 8 + 6 * far)
        picture.path(
            f"M{x0:g},{y0 - half:g} C{x0:g},{y0 - half - lift:g}"
            f" {x1:g},{y1 - half - lift:g} {x1:g},{y1 - half - 2:g}",
            colour,
            arrow=True,
            weight=2 if forward else 1,
        )


def _way_out(picture: Svg, start: tuple[float, float], ends: list[str]) -> None:
    """Dotted, down to the bar; what is on it where not all of the ends are open to it."""
    if not ends:
        return
    x, y = start
    x += 30 if y == _TOP else -30
    picture.path(f"M{x:g},{y + _HEIGHT / 2:g} L{x:g},{_BOTTOM - 2:g}", GREY, dots=True, arrow=True)
    if len(ends) < len(_WAYS_OUT):
        picture.text(x - 6, _BOTTOM - 12, ", ".join(ends), size=12, anchor="end", colour=GREY)


def _legend(picture: Svg, *, has_purgatory: bool) -> None:
    x, y = 20.0, 432
    for fill, weight, words in (
        (_HEARTBEATING, 1.0, "heartbeats"),
        *([(_PURGATORY, 1.0, "request held by the coordinator")] if has_purgatory else []),
        (PAPER, 2.5, "commits are accepted"),
    ):
        picture.box(x, y, 22, 16, fill=fill, stroke=INK if weight > 1 else GREY, weight=weight)
        picture.text(x + 30, y + 13, words, size=13, anchor="start")
        x += 52 + 6.6 * len(words)
    for colour, words in ((_LOSS, "partitions lost"), (GREY, "rejoins")):
        picture.path(f"M{x:g},{y + 8:g} L{x + 24:g},{y + 8:g}", colour, arrow=True)
        picture.text(x + 32, y + 13, words, size=13, anchor="start")
        x += 54 + 6.6 * len(words)
