"""The page on testing is a file of tests, as its readers run it: with pytest-asyncio."""

from __future__ import annotations

import pytest
from doc_blocks import ROOT, blocks

pytest_plugins = ["pytester"]


def test_its_blocks_pass_under_pytest_asyncio(pytester: pytest.Pytester) -> None:
    page = blocks(ROOT / "docs" / "testing.md")
    shown = [block.text for block in page if block.language == "python" and not block.hidden]
    source = "\n".join(shown)
    pytester.makepyfile(source)
    result = pytester.runpytest_subprocess("-p", "no:anyio", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=source.count("async def test_"))
