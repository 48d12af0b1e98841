"""Each block of the testing page is a file of tests that passes under pytest-asyncio."""

from __future__ import annotations

import pytest
from doc_blocks import ROOT, blocks

pytest_plugins = ["pytester"]


@pytest.mark.long
def test_the_blocks_of_the_page_pass_under_pytest_asyncio(pytester: pytest.Pytester) -> None:
    page = blocks(ROOT / "docs" / "testing.md")
    shown = [block.text for block in page if block.language == "python" and not block.hidden]
    pytester.makepyfile(**{f"test_block_{number}": text for number, text in enumerate(shown)})
    result = pytester.runpytest_subprocess("-p", "no:anyio", "-p", "no:cacheprovider")
    result.assert_outcomes(passed="".join(shown).count("async def test_"))
