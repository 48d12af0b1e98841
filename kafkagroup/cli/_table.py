"""A table that fits the terminal: text is folded, and the least important columns are left out.
Numbers stay whole, unless the terminal is too narrow for them alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

__all__ = ["Table", "fold"]

_MIN_TEXT_WIDTH = 24
"""As long as a column can be left out, text is not folded to less than this many cells."""

_GAP, _EDGES = 3, 2
"""The number of cells between two columns, and that at both ends of a line together."""

_BREAKS = (r"(?<= )", r"(?<=[^\w.,])|(?<=_)|(?<=[.,])(?!\d)", "")
"""Where text may be broken: after words; in a word that is longer than a line, after punctuation
(but not in 1.5); and in a part that is longer than a line, anywhere."""


def fold(text: str, width: int) -> str:
    """Return the text in lines of at most `width` cells."""
    return "\n".join(line.rstrip() for line in _lines(text, width, _BREAKS) if line)


def _lines(text: str, width: int, breaks: Sequence[str]) -> list[str]:
    """Break text at the first of `breaks`, and a part that is too long at the following ones."""
    lines = [""]
    for part in re.split(breaks[0], text):
        if cell_len((lines[-1] + part).rstrip()) <= width:
            lines[-1] += part
        elif len(breaks) == 1 or cell_len(part.rstrip()) <= width:
            lines.append(part)
        else:
            lines += _lines(part, width, breaks[1:])
    return lines


class _Column:
    def __init__(self, name: str, is_number: bool) -> None:
        self.name = name
        self.is_number = is_number
        self.widest_cell = 0

    @property
    def full_width(self) -> int:
        """The width in which no text is folded."""
        return max(self.widest_cell, cell_len(self.name))

    def min_width(self, min_text_width: int) -> int:
        """Return the least width: text is folded to no less than `min_text_width` cells. In a
        column of numbers only the heading is folded, between words."""
        if self.is_number:
            return max(self.widest_cell, *map(cell_len, self.name.split(" ")))
        return min(self.full_width, min_text_width)


class Table:
    """Rows of cells below a title, as wide as they need, or as the terminal is.

    The columns named in `numbers` are right-aligned and never folded. Before text is folded, empty
    columns are left out. If the others do not fit, those named in `drop` are left out, in its
    order, until the rest fits. A line below the table names all columns that are left out.
    """

    def __init__(
        self, title: str, columns: Sequence[str], numbers: Collection[str], drop: Sequence[str]
    ) -> None:
        self._title = title
        self._columns = [_Column(name, name in numbers) for name in columns]
        self._drop = drop
        self._rows: list[Sequence[str]] = []
        self._sections: list[int] = []
        """For each section, the number of rows before its end."""

    def add_row(self, *cells: str) -> None:
        """Add a row, with a cell for each column."""
        self._rows.append(cells)
        for column, cell in zip(self._columns, cells, strict=True):
            column.widest_cell = max(column.widest_cell, cell_len(cell))

    def add_section(self) -> None:
        """Set the next rows apart from those before."""
        self._sections.append(len(self._rows))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        shown = self._fitting(options.max_width)
        yield Text(fold(self._title, options.max_width), style="table.title")
        yield self._drawn(shown, _widths(shown, options.max_width))
        left_out = [one.name for one in self._columns if one.name and one not in shown]
        if left_out:
            note = f"A wider terminal or --json adds: {', '.join(left_out)}"
            yield Text(fold(note, options.max_width) + "\n", style="dim")

    def _fitting(self, width: int) -> list[_Column]:
        """Return the columns to show."""
        shown = self._columns
        # Empty columns are left out first. Without rows, all are empty.
        if self._rows and sum(one.full_width for one in shown) > _room(shown, width):
            shown = [one for one in shown if one.widest_cell]
        for name in self._drop:
            if sum(one.min_width(_MIN_TEXT_WIDTH) for one in shown) <= _room(shown, width):
                break
            shown = [one for one in shown if one.name != name]
        return shown

    def _drawn(self, shown: Sequence[_Column], widths: Sequence[int]) -> RichTable:
        table = RichTable(box=SIMPLE_HEAD, pad_edge=False)
        for one, width in zip(shown, widths, strict=True):
            table.add_column(
                Text(fold(one.name, width)),
                justify="right" if one.is_number else "left",
                no_wrap=True,
                width=width,
            )
        indexes = [self._columns.index(one) for one in shown]
        for row_index, row in enumerate(self._rows):
            if row_index in self._sections:
                table.add_section()
            cells = zip(indexes, widths, strict=True)
            table.add_row(*(Text(fold(row[index], width)) for index, width in cells))
        return table


def _room(columns: Sequence[_Column], width: int) -> int:
    """Return the cells that a terminal of this width has for the columns' text."""
    return width - _EDGES - _GAP * (len(columns) - 1)


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Return the widths of columns: the widest texts are folded until all columns fit. If even the
    numbers do not fit, the widths exceed the terminal's, and rich cuts cells off with "…"."""
    room = _room(columns, width)
    least = [one.min_width(_MIN_TEXT_WIDTH) for one in columns]
    if sum(least) > room:
        least = [one.min_width(1) for one in columns]
    widths = least
    for most in range(room, 0, -1):
        widths = [
            max(low, min(one.full_width, most)) for one, low in zip(columns, least, strict=True)
        ]
        if sum(widths) <= room:
            break
    return widths
