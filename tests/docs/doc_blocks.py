"""The blocks of a page of the guides, and how the tests run them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import anyio
import attrs
import pytest
import trio
from sessions import assert_same, environment, run_session

from kafkagroup.testing import EmbeddedKafka

__all__ = ["OWN_TESTS", "ROOT", "Block", "blocks", "prose", "run_page"]

ROOT = Path(__file__).parent.parent.parent

OWN_TESTS = {
    "docs/avro.md": "tests/docs/test_recipes.py",
    "docs/cloud.md": "tests/docs/test_recipes.py",
    "docs/demo.md": "tests/test_demo.py",
    "docs/getting-started.md": "tests/docs/test_getting_started.py",
    "docs/kubernetes.md": "tests/docs/test_recipes.py",
    "docs/retry.md": "tests/test_retry_example.py",
    "docs/shutdown.md": "tests/docs/test_recipes.py",
    "docs/web-servers.md": "tests/docs/test_recipes.py",
}
"""Page -> the test that runs its programs in processes of their own, and compares the outputs."""

_TIMEOUT = 30.0
"""Seconds that a block may take."""

_PARTS = re.compile(
    r"^<!-- run (?P<how>until|output): (?P<expression>.*?) -->$"
    r"|^<!-- run\n(?P<hidden>.*?)^-->$"
    r"|^(?P<indent> *)```(?P<language>[^ \n]*)(?: title=\"(?P<title>[^\"\n]*)\")?\n(?P<shown>.*?)"
    r"^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@attrs.frozen
class Block:
    """One block of a page."""

    page: str
    line: int
    language: str
    """As the page has it; "python" for what is hidden."""
    text: str
    title: str = ""
    until: str = ""
    """When to end it, for what does not end by itself: an expression."""
    output: str = ""
    """What the run has printed: an expression, for a list of lines."""
    hidden: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def held(self) -> str:
        """How the tests compare this output with a run; "" if they do not, or if it is none."""
        if self.language != "text":
            return ""
        if self.page in OWN_TESTS:
            return OWN_TESTS[self.page]
        if self.output:
            return "output"
        return "session" if self.text.startswith("$ ") else ""


def blocks(page: Path) -> list[Block]:
    """Return all blocks of a page, including hidden ones, in order."""
    text = page.read_text("utf-8")
    found = []
    said: dict[str, str] = {}
    for part in _PARTS.finditer(text):
        if part["how"] is not None:
            said[part["how"]] = part["expression"]
            continue
        hidden = part["hidden"] is not None
        line = text.count("\n", 0, part.start()) + 2
        code = part["hidden"] if hidden else inspect.cleandoc("\n" + part["shown"]) + "\n"
        language = "python" if hidden else part["language"]
        name = str(page.relative_to(ROOT))
        found.append(Block(name, line, language, code, part["title"] or "", hidden=hidden, **said))
        said = {}
    assert not said, f"{page}: `run {next(iter(said))}` without a block"
    assert text.count("<!-- run") == len(re.findall(r"<!-- run(?: (?:until|output):|\n)", text)), (
        page
    )
    return found


def prose(page: Path) -> str:
    """Return what a page has beside its blocks."""
    return _PARTS.sub("", page.read_text("utf-8"))


def run_page(page: Path) -> None:
    """Run the Python blocks and the sessions in order, in one namespace, and compare the outputs;
    everything that the blocks define must be called."""
    written: set[CodeType] = set()
    called: set[CodeType] = set()
    printed: list[str] = []

    def show(*words: object, **_: Any) -> None:
        printed.append(" ".join(map(str, words)))

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    with EmbeddedKafka({"orders": 4, "payments": 4}) as kafka, ExitStack() as closing:
        servers = kafka.bootstrap_servers
        addresses = {"localhost:9092": servers, "127.0.0.1:9092": servers}
        variables = environment(servers)
        names = {
            "__name__": page.stem,
            "kafka": kafka,
            "servers": servers,
            "addresses": addresses,
            "variables": variables,
            "closing": closing,
            "printed": printed,
            "print": show,
        }
        for block in blocks(page):
            text = block.text
            for shown, real in addresses.items():
                text = text.replace(shown, real)
            if block.held == "session":
                run_session(text, variables, block.where)
            elif block.held == "output":
                assert_same(text.splitlines(), eval(block.output, names), block.where)
            if block.language != "python":
                continue
            code = compile(
                text,
                block.where,
                "exec",
                ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                dont_inherit=True,
            )
            if not block.hidden:
                written.update(_functions(code))
            ends = _until(block, names)
            try:
                with _bounded(ends):
                    sys.setprofile(note)
                    threading.setprofile(note)
                    if code.co_flags & inspect.CO_COROUTINE:
                        asyncio.run(eval(code, names))
                    else:
                        exec(code, names)
            except pytest.skip.Exception:
                raise
            except BaseException as error:
                error.add_note(f"in the block at {block.where}; printed: {printed}")
                raise
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    never = sorted(f"{c.co_filename}: {c.co_name}" for c in written - called)
    assert not never, f"shown, and never called: {never}"


def _functions(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if not constant.co_name.startswith("<"):
                yield constant
            yield from _functions(constant)


def _until(block: Block, names: dict[str, Any]) -> Callable[[], bool] | None:
    if not block.until:
        return None
    condition = compile(block.until, f"{block.where} (until)", "eval")
    return lambda: bool(eval(condition, names))


@contextmanager
def _bounded(ends: Callable[[], bool] | None) -> Iterator[None]:
    """Bound every loop: it ends by itself, or when its condition is true."""
    run_asyncio, run_trio = asyncio.run, trio.run

    def asyncio_run(main: Awaitable[Any], **_: Any) -> Any:
        return run_asyncio(_limited(main, ends))

    def anyio_run(function: Callable[..., Awaitable[Any]], *arguments: Any, **_: Any) -> Any:
        return run_asyncio(_limited(function(*arguments), ends))

    def trio_run(function: Callable[..., Awaitable[Any]], *arguments: Any, **_: Any) -> Any:
        async def main() -> Any:
            return await _limited(function(*arguments), ends)

        return run_trio(main)

    with (
        mock.patch.object(asyncio, "run", asyncio_run),
        mock.patch.object(anyio, "run", anyio_run),
        mock.patch.object(trio, "run", trio_run),
    ):
        yield


async def _limited(main: Awaitable[Any], ends: Callable[[], bool] | None) -> Any:
    answer = None
    over = False
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            nonlocal over
            while ends is not None and not ends():
                await anyio.sleep(0.005)
            over = ends is not None
            if over:
                tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        with anyio.fail_after(_TIMEOUT):
            answer = await main
        assert ends is None, "it ended by itself, and not as the page says that it does"
        tasks.cancel_scope.cancel()
    return answer
