"""examples/manual_commit.py loses a partition while it stores: it reports this, and loses no
record."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import anyio
import pytest

from kafkagroup import Batch
from kafkagroup.testing import EmbeddedKafka

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[3] / "examples" / "manual_commit.py"
AWAY = 400
"""Seconds: longer than `max_poll_interval_ms`, which is 300 by default."""


def example() -> Any:
    spec = importlib.util.spec_from_file_location("manual_commit", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_records_that_could_not_be_committed_are_stored_again(
    network: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script = example()
    stored: list[tuple[int, ...]] = []

    async def store(batch: Batch) -> None:
        if len(stored) == 1:
            await anyio.sleep(AWAY)
        stored.append(tuple(record.offset for record in batch))

    script.store = store
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", map(str, range(9)), partition=0)
        with anyio.fail_after(2 * AWAY):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(script.main, "kafka-1", "t", "g", 3)
                while kafka.committed("g", "t") != {0: 9}:
                    await anyio.sleep(1)
                tasks.cancel_scope.cancel()
    assert stored == [(0, 1, 2), (3, 4, 5), (3, 4, 5), (6, 7, 8)]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("not committed: ")
    assert "commit of t/0 failed" in line
    assert "the application stopped polling" in line
