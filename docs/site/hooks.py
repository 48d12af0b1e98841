"""What mkdocs does to each page before it is rendered.

- `<!-- made: NAME -->` becomes what the function of that name in `made.py` says, read from the code
  at each build.
- `<!-- run ... -->` are the lines that only the tests need to run a page's code: they go.
- Links out of docs/, to the examples and the like, lead to no page: they become the bare names.

And after it is rendered: long code in tables may break, and the cells of wide tables get the
heads of their columns, with which `site.css` sets them one below the other on a phone.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import made

_RUN = re.compile(r"^<!-- run\b.*?-->\n", re.DOTALL | re.MULTILINE)
_MADE = re.compile(r"<!-- made: (\w+) -->")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_FITS = 2
"""Columns that are side by side on a phone too."""
_LONG = 24
"""Characters of code that may break anywhere."""
_LINK = r"\[([^\]]+)\]\((?:\.\./){%d}[^).][^)]*\)"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with each page's text."""
    shown = _RUN.sub("", markdown)
    outside = _LINK % len(Path(page.file.src_path).parts)
    shown = re.sub(outside, r"`\1`", shown)
    return _MADE.sub(lambda found: getattr(made, found[1])(), shown)


def on_page_content(content: str, **_: Any) -> str:
    """Called by mkdocs with each page's HTML."""
    return _TABLE.sub(lambda found: _with_labels(_with_breaks(found[0])), content)


def _with_breaks(table: str) -> str:
    """Let long code, such as the type of a struct, break: after a comma, else anywhere."""

    def broken(code: re.Match[str]) -> str:
        text = code[1].replace(",", ",<wbr>")
        return f"<code{' data-long' * (len(code[1]) > _LONG)}>{text}</code>"

    return re.sub(r"<code>(.*?)</code>", broken, table)


def _with_labels(table: str) -> str:
    heads = [
        html.escape(html.unescape(re.sub(r"<[^>]+>", "", head)).strip())
        for head in re.findall(r"<th\b[^>]*>(.*?)</th>", table, re.DOTALL)
    ]
    if len(heads) <= _FITS:
        return table
    labels = iter(heads * table.count("<tr>"))
    labelled = re.sub(r"<td\b", lambda _: f'<td data-label="{next(labels)}"', table)
    return labelled.replace("<table>", "<table data-stacks>", 1)
