"""The events, metrics and health of members, on the embedded broker and real Kafka."""

from __future__ import annotations

import anyio
import pytest
from brokers import Worker, until

from kafkagroup.events import (
    CoordinatorFound,
    GroupLeft,
    RebalanceCause,
    Rebalanced,
    RebalanceStarted,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_events_report_members_that_join_and_leave(bootstrap, name, fill, protocol):
    await fill(4, 5)
    first, second = (Worker(bootstrap, name, group_protocol=protocol) for _ in range(2))
    events = first.consumer.events()
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: len(first.owns) == 4)
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 2)
            await until(lambda: second.consumer.metrics().rebalances)
            second_id = second.consumer.group_metadata().member_id
            assert second.consumer.health()
            await second.consumer.stop()
        await until(lambda: len(first.owns) == 4 and len(first.seen) >= 10)
        await until(lambda: [*first.consumer.metrics().lag.values()] == [0] * 4)
        metrics, health = first.consumer.metrics(), first.consumer.health()
        await first.consumer.stop()
    seen = [event async for event in events]
    over = [event for event in seen if isinstance(event, Rebalanced)]
    assert isinstance(seen[0], RebalanceStarted)
    assert isinstance(seen[1], CoordinatorFound)
    assert isinstance(seen[-1], GroupLeft)
    assert over[0].causes == (RebalanceCause.JOINING,)
    assert health.healthy
    assert (metrics.rebalances, metrics.last_rebalance) == (len(over), over[-1])
    assert metrics.last_heartbeat_seconds_ago < 6
    assert metrics.assigned_partitions == 4
    if protocol == "classic":
        causes = [e.causes for e in over[1:]]
        assert causes == [(RebalanceCause.MEMBER_JOINED,), (RebalanceCause.MEMBER_LEFT,)]
        assert [e.joined for e in over] == [(), (second_id,), ()]
        assert [e.left for e in over] == [(), (), (second_id,)]
        assert metrics.sync.rate > 0
    else:
        assert {cause for e in over[1:] for cause in e.causes} == {RebalanceCause.UNKNOWN}
    assert metrics.heartbeat.rate > 0
    assert metrics.join.rate > 0
