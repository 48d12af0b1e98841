"""The modules that a client imports on first use, in a thread and not in its event loop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from loop_threads import LoopThreads

from kafkagroup import Consumer, TopicPartition
from kafkagroup.runtime.client import late_modules
from kafkagroup.testing import EmbeddedKafka

PROGRAM = Path(__file__).parents[2] / "first_use.py"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedKafka({"t": 1, "other": 1}) as kafka:
        kafka.produce("t", ["0"])
        yield kafka.bootstrap_servers


KINDS = ("classic", "consumer", "thread", "alone", "admin", "producer", "broker")
KINDS += ("member", "member in a thread")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kind"), [*(("asyncio", kind) for kind in KINDS), ("trio", "classic")]
)
def test_the_loop_imports_nothing(address: str, backend: str, kind: str) -> None:
    """Imports blocked the loop for 20 ms when a consumer was constructed, and as long for the first
    request, the first batch and the first assignment."""
    command = [sys.executable, str(PROGRAM), backend, kind, address]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.stderr, json.loads(found.stdout or "null")) == ("", {})


@pytest.mark.anyio
async def test_a_client_starts_where_no_thread_can(
    network: Any, threads: LoopThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has as many threads as it may have: the first use imports the modules."""
    threads.refused_count = 10
    monkeypatch.delitem(sys.modules, "kafkagroup.transport.plain_stream")
    monkeypatch.delitem(sys.modules, "kafkagroup.runtime.consume.renewal")
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(60):
            consumer = Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g")
            async with consumer:
                assert await consumer.wait_assignment() == {TopicPartition("t", 0)}
    assert (threads.refused_count < 10, threads.jobs) == (True, [])


@pytest.mark.anyio
async def test_a_second_client_waits_for_what_the_first_one_imports(
    threads: LoopThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that a thread imports is in `sys.modules` already: its use would block the loop
    until that thread is done."""
    threads.held = []
    monkeypatch.setattr(late_modules, "_being_imported", {"crc32c"})
    modules = late_modules.LateModules(afterwards=["crc32c"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(modules.import_others)
        await anyio.wait_all_tasks_blocked()
        assert len(threads.held) == 1
        threads.held[0]()
    assert late_modules._being_imported == set()
