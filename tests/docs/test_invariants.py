"""docs/invariants.md lists the checker's invariants, and the modules that check them."""

from __future__ import annotations

import re

from doc_blocks import ROOT
from verification.sim.checker import INVARIANTS

CHECKER = ROOT / "tests" / "verification" / "sim" / "checker"

ROWS = {
    name: (text, re.findall(r"`(\w+\.py)`", where))
    for name, text, where in re.findall(
        r"^\| ([SL]\d+) \| (.*) \|(.*)\|$",
        (ROOT / "docs" / "invariants.md").read_text("utf-8"),
        re.MULTILINE,
    )
}
"""Name -> what the page says, and the modules that it names."""


def test_the_page_and_the_checker_list_the_same_invariants() -> None:
    unsimulated = ("L8",)
    assert [name for name in ROWS if name not in unsimulated] == list(INVARIANTS)


def test_each_row_begins_with_the_text_of_the_checker() -> None:
    for name, statement in INVARIANTS.items():
        assert ROWS[name][0].startswith(f"{statement[0].upper()}{statement[1:]}. "), name


def test_each_row_names_the_modules_that_report_the_invariant() -> None:
    sources = {
        path.name: path.read_text("utf-8")
        for path in CHECKER.glob("*.py")
        # These name invariants, but report no violation.
        if path.name not in ("invariants.py", "recorder.py", "examine.py")
    }
    for name, (_, modules) in ROWS.items():
        assert modules == sorted(m for m, source in sources.items() if f'"{name}"' in source), name
