"""A classic leader that assigns topics to which the member is not subscribed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup._values import evolve
from kafkagroup.testing.embedded import Change, Delay, EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import encode_assignment
from kafkagroup.wire.messages.group import JoinGroupRequest, SyncGroupRequest

pytestmark = pytest.mark.anyio

T, U = TopicPartition("t", 0), TopicPartition("u", 0)


async def test_only_a_leader_that_repeats_them_delays_the_next_join(network: Any) -> None:
    """Without pauses the group would rebalance in a loop. A first pause would delay the group for
    each change of a subscription during a rebalance."""
    joined_at: list[float] = []

    def on_join(_: JoinGroupRequest) -> bool:
        joined_at.append(anyio.current_time())
        return False

    def assign_wrongly(times: int) -> None:
        joined_at.clear()
        wrong = Change(lambda response: evolve(response, assignment=encode_assignment([U])))
        kafka.fail(SyncGroupRequest, wrong, times=times)

    def pauses() -> list[float]:
        return [after - before for before, after in pairwise(joined_at)]

    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.fail(JoinGroupRequest, Delay(0), times=None, when=on_join)
        assign_wrongly(times=4)
        options = {"retry_backoff_ms": 1_000, "retry_backoff_max_ms": 10_000}
        consumer = Consumer(
            "t", bootstrap_servers="kafka-1", group_id="g", group_instance_id="a", **options
        )
        with anyio.fail_after(60):
            async with consumer:
                assert await consumer.wait_assignment() == {T}
                assert pauses() == pytest.approx([0, 1, 2, 4], rel=0.25)
                assign_wrongly(times=2)
                consumer.rejoin()
                await anyio.sleep(30)
                assert consumer.assignment() == {T}
                assert pauses() == pytest.approx([0, 1], rel=0.25)
