"""The example of retries and dead letters: in virtual time, and as a process."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import signature
from typing import Any

import anyio
import pytest
import retry_dead_letter as example
from example_process import end, running
from memory_network import network

from kafkagroup import Consumer, NotWrittenError, Record
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Swallow
from kafkagroup.wire.messages.group import JoinGroupRequest
from kafkagroup.wire.messages.produce import ProduceRequest

__all__ = ["network"]

pytestmark = pytest.mark.anyio

DEAD = "orders.dead"

POLL_INTERVAL = signature(Consumer).parameters["max_poll_interval_ms"].default / 1000


def order(amount: int) -> str:
    return f'{{"amount": {amount}}}'


@asynccontextmanager
async def cluster(network: Any, *values: str) -> AsyncIterator[EmbeddedKafka]:
    async with network, EmbeddedKafka({"orders": 2, DEAD: 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("orders", values, partition=0)
        with anyio.fail_after(5_000):
            yield kafka


@asynccontextmanager
async def working() -> AsyncIterator[example.Worker]:
    worker = example.Worker("kafka-1", "orders", "billing")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        yield worker
        await worker.consumer.stop()


async def letters(count: int) -> list[Record]:
    async with Consumer(DEAD, bootstrap_servers="kafka-1") as consumer:
        return [await consumer.getone() for _ in range(count)]


def headers(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}


async def test_a_failing_record_is_retried_in_order_then_buried_and_only_then_committed(
    network: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(network, order(1), order(0), order(3)) as kafka, working():
        await anyio.sleep(12)  # before the fifth attempt, at 1 + 2 + 4 + 8 seconds
        assert kafka.committed("billing", "orders")[0] == 1
        kafka.produce("orders", [order(8)], partition=1)
        await anyio.sleep(1)
        assert capsys.readouterr().out.splitlines() == [
            "processed 0/0: 1",
            *(f"again in {pause} s: 0/1" for pause in (1, 2, 4, 8)),
            "processed 1/0: 8",  # the other partition does not wait
        ]
        await anyio.sleep(10)
        assert capsys.readouterr().out.splitlines() == [
            "dead: 0/1: ConnectionError: the shop is closed",
            "processed 0/2: 3",
        ]
        assert kafka.committed("billing", "orders") == {0: 3, 1: 1}
        (letter,) = await letters(1)
        assert letter.value == order(0).encode()
        about = headers(letter)
        assert 0 < int(about.pop("dlq.timestamp")) <= letter.timestamp
        assert about == {
            "dlq.topic": "orders",
            "dlq.partition": "0",
            "dlq.offset": "1",
            "dlq.group": "billing",
            "dlq.attempts": "5",
            "dlq.error": "ConnectionError: the shop is closed",
        }


async def test_what_no_retry_can_help_is_buried_at_once(
    network: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also bytes that the deserializer does not accept, and the last record of a partition."""
    async with cluster(network, order(-4), order(2), "not JSON") as kafka, working():
        await anyio.sleep(10)
        assert kafka.committed("billing", "orders")[0] == 3
        hopeless, poison = await letters(2)
    error = (
        "DeserializationError: value_deserializer failed on orders/0 at offset 2:"
        " JSONDecodeError('Expecting value: line 1 column 1 (char 0)')"
    )
    assert (hopeless.value, poison.value) == (order(-4).encode(), b"not JSON")
    assert headers(hopeless)["dlq.error"] == "HopelessError: an order of -4"
    assert (headers(poison)["dlq.offset"], headers(poison)["dlq.error"]) == ("2", error)
    assert capsys.readouterr().out.splitlines() == [
        "dead: 0/0: HopelessError: an order of -4",
        "processed 0/1: 2",
        f"dead: 0/2: {error}",
    ]


async def test_pauses_longer_than_the_poll_interval_lose_no_partition(
    network: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pause = POLL_INTERVAL + 10
    monkeypatch.setattr(example, "ATTEMPTS", 2)
    monkeypatch.setattr(example, "FIRST_PAUSE", pause)
    monkeypatch.setattr(example, "LONGEST_PAUSE", pause)
    async with cluster(network, order(0), order(1)) as kafka, working():
        await anyio.sleep(pause + 10)
        assert len(kafka.requests(JoinGroupRequest)) == 2  # for a member id, and to join
        assert kafka.committed("billing", "orders")[0] == 2
    assert capsys.readouterr().out.splitlines() == [
        f"again in {pause:g} s: 0/0",
        "dead: 0/0: ConnectionError: the shop is closed",
        "processed 0/1: 1",
    ]


def test_a_batch_cannot_take_longer_than_the_poll_interval() -> None:
    longest = example.BATCH * (example.ATTEMPT_TIMEOUT + example.WRITE_TIMEOUT)
    assert longest < POLL_INTERVAL * 0.75


async def test_a_hanging_attempt_is_a_failed_one(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(example, "process", hang)
    async with cluster(network, order(1)) as kafka, working():
        await anyio.sleep(80)
        assert kafka.committed("billing", "orders")[0] == 1
        (letter,) = await letters(1)
    assert headers(letter)["dlq.attempts"] == "5"
    assert headers(letter)["dlq.error"] == "TimeoutError: "


@pytest.mark.parametrize("action", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, Swallow()])
async def test_a_dead_letter_that_is_not_acknowledged_commits_nothing(
    network: Any, action: Any
) -> None:
    async with cluster(network, order(1), order(-1), order(2)) as kafka:
        kafka.fail(ProduceRequest, action, times=None)
        worker = example.Worker("kafka-1", "orders", "billing")
        with pytest.raises(NotWrittenError):
            await worker.run()
        assert kafka.committed("billing", "orders").get(0, 0) <= 1
        assert kafka.group_state("billing") == "Empty"


async def test_the_next_owner_starts_at_the_record_that_waits(
    network: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(network, order(1), order(0), order(2)) as kafka:
        async with working():
            await anyio.sleep(5)
        assert kafka.committed("billing", "orders")[0] == 1
        capsys.readouterr()
        async with working():
            await anyio.sleep(30)
        assert capsys.readouterr().out.splitlines() == [
            *(f"again in {pause} s: 0/1" for pause in (1, 2, 4, 8)),
            "dead: 0/1: ConnectionError: the shop is closed",
            "processed 0/2: 2",
        ]


async def test_a_partition_that_moves_while_it_waits_is_continued_by_its_new_owner(
    network: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(network, order(0), order(1)) as kafka:
        kafka.produce("orders", [order(0), order(5)], partition=1)
        async with working(), working():
            await anyio.sleep(40)
            assert kafka.committed("billing", "orders") == {0: 2, 1: 2}
        assert sorted((r.value, headers(r)["dlq.partition"]) for r in await letters(2)) == [
            (order(0).encode(), "0"),
            (order(0).encode(), "1"),
        ]
    processed = [x for x in capsys.readouterr().out.splitlines() if x.startswith("processed")]
    assert sorted(processed) == ["processed 0/1: 1", "processed 1/1: 5"]


def test_a_signal_ends_the_program_which_has_committed() -> None:
    with EmbeddedKafka({"orders": 1, DEAD: 1}) as kafka:
        kafka.produce("orders", [order(7), "?", order(0)])
        with running(
            "retry_dead_letter.py", kafka.bootstrap_servers, "orders", "billing"
        ) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            _, errors = end(process, signal.SIGTERM)
        assert (errors, process.returncode) == ("", 0)
        assert lines[0] == "processed 0/0: 7\n"
        assert lines[1].startswith("dead: 0/1: DeserializationError: ")
        assert lines[2] == "again in 1 s: 0/2\n"
        assert kafka.committed("billing", "orders") == {0: 2}
        assert kafka.group_state("billing") == "Empty"
