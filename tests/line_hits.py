"""Which lines of a module each test runs: recorded once, and kept until the module or the file of
the test changes.

A run records all modules of a folder, so that the next one of them is known already.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest

_KEPT = Path(sys.prefix, "lines")


@attrs.frozen
class Run:
    """A test's run of a module that is not changed."""

    key: str
    """Of the texts of the module and of the test's file."""
    seconds: float
    has_failed: bool
    lines: list[int]


def runs(module: Path, items: Sequence[pytest.Item]) -> dict[pytest.Item, Run]:
    """Return the run of each test; run those that are not known in another process."""
    known = _read(module)

    def is_known(item: pytest.Item) -> bool:
        return item.nodeid in known and known[item.nodeid].key == _key(module, item.path)

    if unknown := [item for item in items if not is_known(item)]:
        print(f"running {len(unknown)} tests to record their lines", flush=True)
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            try:
                _record(module.parent, unknown)
            finally:
                os._exit(0)
        known = _read(module)
    return {item: known[item.nodeid] for item in items}


def silently(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, Callable[[], bool]]]:
    """Silence this process; return each test, and a function that runs it and returns whether it
    fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    for item, following in zip(items, [*items[1:], None], strict=False):
        yield item, partial(_fails, item, following)


def _fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    before = item.session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return item.session.testsfailed > before


def _record(folder: Path, items: Sequence[pytest.Item]) -> None:
    modules = {str(path.resolve()): path for path in folder.glob("*.py")}
    found: dict[str, dict[str, Run]] = {path: {} for path in modules}
    with traced(modules) as hits:
        for item, fails in silently(items):
            begun = time.monotonic()
            has_failed = fails()
            seconds = round(time.monotonic() - begun, 4)
            for path, module in modules.items():
                key = _key(module, item.path)
                found[path][item.nodeid] = Run(key, seconds, has_failed, sorted(hits[path]))
                hits[path].clear()
    for path, module in modules.items():
        _write(module, _read(module) | found[path])


@contextmanager
def traced(files: Iterable[str]) -> Iterator[dict[str, set[int]]]:
    """Yield the lines of these files that run in this thread, and in those that start meanwhile."""
    hits: dict[str, set[int]] = {file: set() for file in files}
    tracers = {file: _tracer(lines) for file, lines in hits.items()}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return tracers.get(frame.f_code.co_filename)

    before = sys.gettrace(), threading.gettrace()
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield hits
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])


def _tracer(lines: set[int]) -> Any:
    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    return trace


@cache
def _key(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _kept(module: Path) -> Path:
    return _KEPT / ".".join([*module.parts[:-1], module.stem, "json"])


def _read(module: Path) -> dict[str, Run]:
    path = _kept(module)
    rows = json.loads(path.read_text()) if path.exists() else {}
    return {name: Run(*row) for name, row in rows.items()}


def _write(module: Path, found: dict[str, Run]) -> None:
    _KEPT.mkdir(exist_ok=True)
    rows = {name: attrs.astuple(run) for name, run in found.items()}
    _kept(module).write_text(json.dumps(rows))
