"""Applications that block their event loop, in a group on a real broker."""

import threading
import time

import anyio
import pytest
from brokers import FAST, Worker, until

from kafkagroup import Admin, Consumer
from kafkagroup.admin import GroupState

pytestmark = [pytest.mark.anyio, pytest.mark.long]

SESSION = 6.0
"""Seconds; the least that brokers accept."""


class Group:
    """The only consumer of a group, and its callbacks."""

    def __init__(self, bootstrap, topic, group, **options):
        self.story = []
        self.group = group
        self.consumer = Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            on_partitions_assigned=lambda _: self.story.append("assigned"),
            on_partitions_revoked=lambda _: self.story.append("revoked"),
            on_partitions_lost=lambda _: self.story.append("lost"),
            **{**FAST, **options},
        )

    @property
    def generation(self):
        return self.consumer.group_metadata().generation_id


def states(bootstrap, *groups):
    """Return the states of the groups, requested while this thread's loop is blocked."""
    found = []

    async def ask():
        async with Admin(bootstrap_servers=bootstrap) as admin:
            found.extend([(await admin.describe_group(group)).state for group in groups])

    asking = threading.Thread(target=anyio.run, args=(ask,))
    asking.start()
    asking.join()
    return found


def block(seconds):
    """Block the loop, as a faulty application does."""
    time.sleep(seconds)


def block_until(bootstrap, group, state):
    deadline = time.monotonic() + 20
    while (seen := states(bootstrap, group)) != [state]:
        assert time.monotonic() < deadline, seen
        block(0.01)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
async def test_a_loop_blocked_for_twice_the_session_stays_a_member_only_with_a_thread(
    bootstrap, name, fill
):
    """With a heartbeat thread the member stays, unless `max_poll_interval_ms`
    has passed; without one its session expires."""
    await fill(1, 3)
    steady = Group(bootstrap, name, f"{name}-steady", heartbeat_thread=True)
    plain = Group(bootstrap, name, f"{name}-plain")
    away = Group(bootstrap, name, f"{name}-away", heartbeat_thread=True, max_poll_interval_ms=2_000)
    groups = (steady, plain, away)
    async with steady.consumer, plain.consumer, away.consumer:
        with anyio.fail_after(30):
            for group in groups:
                await group.consumer.getone()
            before = [group.generation for group in groups]
            block(SESSION / 2)
            early = states(bootstrap, *(group.group for group in groups))
            block(1.5 * SESSION)
            late = states(bootstrap, *(group.group for group in groups))
            assert early == [GroupState.STABLE, GroupState.STABLE, GroupState.EMPTY]
            assert late == [GroupState.STABLE, GroupState.EMPTY, GroupState.EMPTY]
            assert [group.story for group in groups] == [["assigned"]] * 3
            for group in groups:
                await group.consumer.getone()
                await group.consumer.commit()
        after = [group.generation for group in groups]
    assert [group.story for group in groups] == [
        ["assigned", "revoked"],
        ["assigned", "lost", "assigned", "revoked"],
        ["assigned", "lost", "assigned", "revoked"],
    ]
    assert after[0] == before[0]
    assert after[1] > before[1]
    assert steady.consumer.loop_delay > SESSION


async def test_a_rebalance_waits_for_a_member_with_a_blocked_loop(bootstrap, name, fill):
    """The member is alive, so the coordinator does not assign its partitions to others."""
    await fill(2, 3)
    first = Worker(bootstrap, name, heartbeat_thread=True)
    workers = [first]
    done = threading.Event()

    async def take_part():
        # Created here, as it belongs to the loop in which it is created.
        second = Worker(bootstrap, name, heartbeat_thread=True)
        workers.append(second)
        async with second.consumer:
            await until(lambda: len(second.owns) == 1)
            await until(done.is_set)

    other = threading.Thread(target=anyio.run, args=(take_part,))
    async with first.consumer, anyio.create_task_group() as tasks:
        with anyio.fail_after(20):
            await first.consumer.getone()
        other.start()
        block_until(bootstrap, name, GroupState.PREPARING_REBALANCE)
        block(0.5)
        assert states(bootstrap, name) == [GroupState.PREPARING_REBALANCE]
        assert [worker.story for worker in workers] == [[("assigned", [0, 1])], []]
        tasks.start_soon(first.run)
        await until(lambda: [len(worker.owns) for worker in workers] == [1, 1])
        done.set()
        await first.consumer.stop()
        await anyio.to_thread.run_sync(other.join)
    assert [what for what, _ in first.story][:3] == ["assigned", "revoked", "assigned"]
    assert "lost" not in [what for what, _ in first.story]
