"""A page to look at: the tables of the pipeline as one HTML file that needs nothing else.

`facts` asks the tables, `plots` draws, `page` writes. No network, no script: what is in it is text
and SVG, and a policy in the page forbids browsers anything more.
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
    """Write the page beside the tables; answer its path. `groups` and `exclude`: ids of groups to
    show, all if empty, and to leave out; in both `*` and `?` stand for other text.

    Raises: ImportError without matplotlib, which is in the extra `pipeline`.
    """
    from kafkagroup.spark.files import write_text
    from kafkagroup.spark.report.facts import gather
    from kafkagroup.spark.report.page import render

    write_text(tables.spark, tables.path(name), render(gather(tables, groups, exclude)))
    return tables.path(name)
