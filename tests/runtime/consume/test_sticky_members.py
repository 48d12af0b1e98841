"""What an eager sticky member tells the leader when it joins again."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kafkagroup import Consumer
from kafkagroup.assign import sticky_assignor
from kafkagroup.assign.spec import user_data
from kafkagroup.testing.embedded import Delay, EmbeddedKafka
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import decode_subscription
from kafkagroup.wire.messages.group import JoinGroupRequest

pytestmark = pytest.mark.anyio


async def test_it_names_its_last_assignment(network: Any) -> None:
    """It owns nothing any more: without this the leader would move all partitions."""
    sent: list[bytes | None] = []

    def on_join(request: JoinGroupRequest) -> bool:
        sent.append(decode_subscription(request.protocols[0].metadata).user_data)
        return False

    async with network, EmbeddedKafka({"t": 2}, listen=False) as kafka:
        network.serve_embedded(kafka)
        async with Consumer(
            "t", bootstrap_servers="kafka-1", group_id="g", assignors=[sticky_assignor]
        ) as consumer:
            await consumer.wait_assignment()
            generation = consumer.group_metadata().generation_id
            kafka.fail(JoinGroupRequest, Delay(0), when=on_join)
            consumer.rejoin()
            await anyio.sleep(10)
            owned = [TopicPartition("t", 0), TopicPartition("t", 1)]
            assert consumer.group_metadata().generation_id == generation + 1
            assert sent[:1] == [user_data(sticky_assignor, owned, generation)]
