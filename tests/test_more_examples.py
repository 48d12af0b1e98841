"""The examples of embedding and of careful consuming, run as a reader does."""

from __future__ import annotations

import json
import runpy
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from example_process import end, read_until, running

from kafkagroup import Consumer, Producer, TopicPartition
from kafkagroup.testing import EmbeddedKafka


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 2}) as broker:
        yield broker


def health(port: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def wait_for_health(port: str, expected: tuple[int, dict[str, object]]) -> None:
    deadline = time.monotonic() + 20
    while (found := health(port)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "listens", "number", "code"),
    [
        ("aiohttp_worker.py", "stdout", signal.SIGTERM, 0),
        ("aiohttp_worker.py", "stdout", signal.SIGINT, 0),
        # uvicorn closes in good order, and then ends by the signal that it was sent.
        ("fastapi_worker.py", "stderr", signal.SIGTERM, -signal.SIGTERM),
        ("fastapi_worker.py", "stderr", signal.SIGINT, 0),
    ],
)
def test_a_web_application_consumes_while_it_serves_and_commits_at_its_end(
    script: str, listens: str, number: signal.Signals, code: int, kafka: EmbeddedKafka
) -> None:
    kafka.produce("t", ["one", "two", "three"])
    with running(script, kafka.bootstrap_servers, "t", "group", "--port", "0") as process:
        port = read_until(getattr(process, listens), r"http://127\.0\.0\.1:(\d+)")[1]
        owned = ["t/0", "t/1"]
        wait_for_health(
            port, (200, {"ok": True, "reasons": [], "assignment": owned, "processed": 3})
        )
        kafka.produce("t", ["four"])
        wait_for_health(
            port, (200, {"ok": True, "reasons": [], "assignment": owned, "processed": 4})
        )
        _, errors = end(process, number)
    assert "Traceback" not in errors
    assert process.returncode == code
    assert kafka.committed("group", "t") == {0: 2, 1: 2}
    assert kafka.group_state("group") == "Empty"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_batches_are_committed_when_they_are_stored(
    number: signal.Signals, kafka: EmbeddedKafka
) -> None:
    kafka.produce("t", map(str, range(20)))
    with running(
        "manual_commit.py", kafka.bootstrap_servers, "t", "group", "--batch-size", "4"
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        # A batch is committed before the next one is stored: only the last may be on its way.
        assert sum(kafka.committed("group", "t").values()) in (18, 20)
        rest, errors = end(process, number)
    assert (rest, errors, process.returncode) == ("", "", 0)
    assert sorted(lines) == [
        f"stored {p}/{first}-{last}\n" for p in (0, 1) for first, last in ((0, 3), (4, 7), (8, 9))
    ]
    assert kafka.committed("group", "t") == {0: 10, 1: 10}
    assert kafka.group_state("group") == "Empty"


def test_a_full_pool_pauses_consuming_until_it_has_drained(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", map(str, range(200)))
    with running(
        "back_pressure.py", kafka.bootstrap_servers, "t", "group", "--workers", "2", "--most", "10"
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while sum(line.startswith("handled") for line in lines) < 200:
            lines.append(process.stdout.readline().rstrip("\n"))
            assert lines[-1], process.communicate()[1]
        kafka.produce("t", map(str, range(30)))
        rest, errors = end(process, signal.SIGTERM)
    assert (errors, process.returncode) == ("", 0)
    lines += rest.splitlines()
    handled = [tuple(map(int, line[8:].split("/"))) for line in lines if line[:7] == "handled"]
    committed = kafka.committed("group", "t")
    for partition in (0, 1):
        # In order, none twice; work in flight at the end was finished and committed.
        assert [o for p, o in handled if p == partition] == list(range(committed[partition]))
    turns = [line for line in lines if line in ("paused", "resumed")]
    assert len(turns) > 10
    assert turns == ["paused", "resumed"] * (len(turns) // 2) + ["paused"] * (len(turns) % 2)
    assert kafka.group_state("group") == "Empty"


def test_the_pipeline_writes_each_record_once_over_a_restart(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("out", 1)
    arguments = (kafka.bootstrap_servers, "t", "out", "group", "0")
    expected = 0
    for batch in (["a", "b"], ["c", "d", "e"]):
        kafka.produce("t", batch)
        expected += len(batch)
        with running("exactly_once.py", *arguments) as process:
            deadline = time.monotonic() + 60
            while sum(kafka.committed("group", "t").values()) < expected:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            output, _ = end(process, signal.SIGTERM)
            assert process.returncode == 0
            assert output.endswith("records\n")
    records = read_committed(kafka, "out")
    assert sorted(records) == [b"A", b"B", b"C", b"D", b"E"]


@pytest.mark.asyncio
async def test_the_pipeline_forwards_records_that_exceed_the_buffer(kafka: EmbeddedKafka) -> None:
    """BufferFullError ended the program."""
    kafka.create_topic("out", 1)
    kafka.produce("t", [b"x" * 1_000] * 200)
    example = Path(__file__).parents[1] / "examples" / "exactly_once.py"
    work = runpy.run_path(str(example))["work"]
    servers = kafka.bootstrap_servers
    async with (
        Producer(
            bootstrap_servers=servers, transactional_id="group-0", buffer_memory=20_000
        ) as producer,
        Consumer(
            "t",
            bootstrap_servers=servers,
            group_id="group",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(work, consumer, producer, "out")
        with anyio.fail_after(30):
            while sum(kafka.committed("group", "t").values()) < 200:
                await anyio.sleep(0.05)
        await consumer.stop()
    assert kafka.stable_end("out", 0) > 200


def read_committed(kafka: EmbeddedKafka, topic: str) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        async with Consumer(
            bootstrap_servers=kafka.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            tp = TopicPartition(topic, 0)
            await consumer.assign([tp])
            found = []
            while await consumer.position(tp) < kafka.log_end(topic, 0):
                for records in (await consumer.getmany(timeout=0.1)).values():
                    found += [record.value for record in records]
            return found

    return anyio.run(read)
