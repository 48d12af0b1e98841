"""Loads from a file: any damage is logged once, and the group still rebalances."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kafkagroup.assign.loads import MeasuredLoads, encode_loads
from kafkagroup.errors import ConfigurationError
from kafkagroup.runtime.consume import loads_file
from kafkagroup.runtime.consume.loads_file import LoadsFile
from kafkagroup.types import TopicPartition

pytestmark = pytest.mark.anyio

LOADS = {TopicPartition("a", 0): 5.0}
MADE_AT = 1763715600.0


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Return a backend with real time: virtual time would advance while a thread reads."""
    backend: str = request.param
    return backend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "loads.json"


def write(path: Path, loads: Mapping[TopicPartition, float] = LOADS) -> None:
    path.write_text(encode_loads(MeasuredLoads(made_at=MADE_AT, loads=loads)))


def spoil(path: Path) -> None:
    path.write_text("{")


def log_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the lines logged since the last call."""
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


async def test_each_call_reads_the_current_file(path: Path) -> None:
    source = LoadsFile(path, max_age=60, clock=lambda: MADE_AT)
    write(path)
    assert await source() == LOADS
    write(path, {})
    assert await source() == {}


async def test_each_new_problem_with_the_file_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = MADE_AT
    source = LoadsFile(path, max_age=60, clock=lambda: now)
    count_as_one = f"the loads in {path} count as 1.0: "

    assert [await source(), await source()] == [{}, {}]
    missing = f"{count_as_one}[Errno 2] No such file or directory: '{path}'"
    assert log_lines(caplog) == [("WARNING", missing)]

    spoil(path)
    assert [await source(), await source()] == [{}, {}]
    ((level, text),) = log_lines(caplog)
    assert level == "WARNING"
    assert text.startswith(f"{count_as_one}the loads: not valid JSON: ")

    write(path)
    assert [await source(), await source()] == [LOADS, LOADS]
    assert log_lines(caplog) == [("INFO", f"the loads in {path} count again")]

    now += 61
    assert await source() == {}
    now += 61
    assert await source() == {}
    stale = f"{count_as_one}they were measured at 2025-11-21T09:00:00+00:00, and count for 60 s"
    assert log_lines(caplog) == [("WARNING", stale)]


async def test_a_valid_file_is_not_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = LoadsFile(path, max_age=60, clock=lambda: MADE_AT)
    write(path)
    assert await source() == LOADS
    write(path, {})
    assert await source() == {}
    assert log_lines(caplog) == []


async def test_reading_the_file_has_a_timeout(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a writer blocks its reader, like a file on a hanging file system."""
    monkeypatch.setattr(loads_file, "_READ_TIMEOUT", 0.05)
    os.mkfifo(path)
    try:
        assert await LoadsFile(path, max_age=60)() == {}
    finally:
        # The thread waits for a writer, forever.
        os.close(os.open(path, os.O_WRONLY))
    assert log_lines(caplog) == [
        ("WARNING", f"the loads in {path} count as 1.0: reading it takes more than 0.05 s")
    ]


async def test_the_file_is_read_outside_the_loop(path: Path) -> None:
    threads = []

    def clock() -> float:
        threads.append(threading.current_thread())
        return MADE_AT

    write(path)
    await LoadsFile(path, max_age=60, clock=clock)()
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("max_age", [0, -1, float("nan"), "60", None])
def test_an_invalid_maximum_age_is_an_error(path: Path, max_age: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected seconds, more than 0"):
        LoadsFile(path, max_age=max_age)
