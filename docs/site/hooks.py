"""What mkdocs does to each page before it is rendered.

- `<!-- made: NAME -->` becomes what the function of that name in `made.py` says, read from the code
  at each build.
- `<!-- run ... -->` are the lines that only the tests need to run a page's code: they go.
- Links out of docs/, to the examples and the like, lead to no page: they become the bare names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import made

_RUN = re.compile(r"^<!-- run\b.*?-->\n", re.DOTALL | re.MULTILINE)
_MADE = re.compile(r"<!-- made: (\w+) -->")
_LINK = r"\[([^\]]+)\]\((?:\.\./){%d}[^).][^)]*\)"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with each page's text."""
    shown = _RUN.sub("", markdown)
    outside = _LINK % len(Path(page.file.src_path).parts)
    shown = re.sub(outside, r"`\1`", shown)
    return _MADE.sub(lambda found: getattr(made, found[1])(), shown)
