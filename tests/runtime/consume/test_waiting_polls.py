"""An application that waits for records longer than `max_poll_interval_ms`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.anyio

WAITS: dict[str, Callable[[Consumer], Any]] = {
    "getone": lambda consumer: consumer.getone(),
    "iterator": lambda consumer: anext(consumer),
    "getmany": lambda consumer: consumer.getmany(timeout=200),
}


@pytest.mark.parametrize("wait", WAITS)
async def test_an_application_that_waits_for_records_keeps_its_partitions(
    network: Any, kind: dict[str, Any], wait: str
) -> None:
    """It polls as long as it waits."""
    callbacks: list[str] = []
    consumer = Consumer(
        "t",
        bootstrap_servers="kafka-1",
        group_id="g",
        max_poll_interval_ms=20_000,
        on_partitions_assigned=lambda _: callbacks.append("assigned"),
        on_partitions_lost=lambda _: callbacks.append("lost"),
        **kind,
    )
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(300):
            async with consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(WAITS[wait], consumer)
                await anyio.sleep(100)
                assert callbacks == ["assigned"]
                assert len(consumer.assignment()) == 1
                tasks.cancel_scope.cancel()


async def test_the_time_to_poll_begins_with_the_first_partitions(
    network: Any, kind: dict[str, Any]
) -> None:
    """A spare member has nothing to poll for, perhaps for days: it once lost what it was assigned
    at once."""
    callbacks: list[str] = []
    options = {"bootstrap_servers": "kafka-1", "group_id": "g", **kind}
    spare = Consumer(
        "t",
        client_id="b",  # assignors begin with the first member
        max_poll_interval_ms=20_000,
        on_partitions_assigned=lambda partitions: callbacks.extend("assigned" for _ in partitions),
        on_partitions_lost=lambda _: callbacks.append("lost"),
        **options,
    )
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        with anyio.fail_after(300):
            async with Consumer("t", client_id="a", **options) as owner:
                await owner.wait_assignment()
                async with spare:
                    await anyio.sleep(100)
                    assert (callbacks, len(owner.assignment())) == ([], 1)
                    await owner.stop()
                    await anyio.sleep(18)
                    assert callbacks == ["assigned"]
