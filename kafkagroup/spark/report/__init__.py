"""The report: the tables of the pipeline as one HTML page that loads nothing else.

`facts` queries the tables, `plots` draws, `page` writes the HTML. The page has only text and SVG,
and its Content-Security-Policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkagroup.spark.pipeline import Tables

__all__ = ["write_report"]


def write_report(
    tables: Tables,
    name: str = "report.html",
    *,
    groups: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> str:
    """Write the page to the file `name` in the folder of the tables, and return its path. `groups`:
    ids of the groups to show, all if empty; `exclude`: ids of groups to leave out. In both `*`
    stands for any text and `?` for any character.

    Raises: ImportError without matplotlib, which is in the extra `pipeline`.
    """
    from kafkagroup.spark.files import write_text
    from kafkagroup.spark.report.facts import gather
    from kafkagroup.spark.report.page import render

    write_text(tables.spark, tables.path(name), render(gather(tables, groups, exclude)))
    return tables.path(name)
