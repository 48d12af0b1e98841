"""What a consumer does while its group rebalances, on an embedded broker in virtual time."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from kafkagroup import CommitFailedError, Consumer
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.testing.embedded import Delay, EmbeddedKafka
from kafkagroup.wire.messages.group import SyncGroupRequest

pytestmark = pytest.mark.anyio


async def test_auto_commit_waits_in_silence_while_the_group_rebalances(
    network: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A cooperative member goes on reading meanwhile. It once warned with each interval that what
    it owned was owned no longer."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1", "2"], partition=0)
        consumer = Consumer(
            "t",
            bootstrap_servers="kafka-1",
            group_id="g",
            assignors=[cooperative_sticky_assignor],
            auto_commit_interval_ms=100,
        )
        with anyio.fail_after(60), caplog.at_level(logging.WARNING):
            async with consumer:
                assert (await consumer.getone()).offset == 0
                kafka.fail(SyncGroupRequest, Delay(5))
                await consumer.subscribe("t")
                await anyio.sleep(1)
                assert [(await consumer.getone()).offset for _ in range(2)] == [1, 2]
                with pytest.raises(CommitFailedError, match="is rebalancing"):
                    await consumer.commit()
                before = kafka.committed("g", "t")
                await anyio.sleep(6)
                after = kafka.committed("g", "t")
    assert before[0] < 3
    assert after == {0: 3}
    assert caplog.messages == []
