"""docs/errors.md names the codes that end a membership permanently."""

from __future__ import annotations

from doc_blocks import ROOT

from kafkagroup.errors import error_name
from kafkagroup.wire.error_codes import FINAL


def test_the_page_names_every_final_code() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    table = page.partition("## When a broker refuses the client")[2].partition("```python")[0]
    assert [name for code in FINAL if f"`{(name := error_name(code))}`" not in table] == []
