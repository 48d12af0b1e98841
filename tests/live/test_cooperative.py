"""Cooperative rebalancing and static membership, on whole consumers."""

import anyio
import pytest
from brokers import FAST, Worker, until

from kafkagroup import Admin, FencedError, GroupMember, GroupProtocol, TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor, range_assignor
from kafkagroup.wire.embedded_protocol import Subscription, encode_subscription

pytestmark = pytest.mark.anyio

COOPERATIVE = {"assignors": [cooperative_sticky_assignor]}


async def test_only_moving_partitions_are_revoked(bootstrap, name, fill):
    await fill(4)
    first = Worker(bootstrap, name, **COOPERATIVE)
    second = Worker(bootstrap, name, **COOPERATIVE)
    async with first.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: first.owns == [0, 1, 2, 3])
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: len(first.owns) == len(second.owns) == 2)
            kept, moved = first.owns, second.owns
            await second.consumer.stop()
        await until(lambda: len(first.owns) == 4)
        await first.consumer.stop()
    assert first.story == [
        ("assigned", [0, 1, 2, 3]),
        ("revoked", moved),
        ("assigned", []),
        ("assigned", []),
        ("assigned", moved),
        ("revoked", [0, 1, 2, 3]),
    ]
    # Its first assignment is empty. It gets that only if the second round begins after its first
    # heartbeat is acknowledged.
    *empty, gained, released = second.story
    assert empty in ([], [("assigned", [])])
    assert (gained, released) == (("assigned", moved), ("revoked", moved))
    assert sorted(kept + moved) == [0, 1, 2, 3]


async def test_retained_partitions_are_not_interrupted(bootstrap, name, fill):
    """L1: a joining member takes some of the partitions; for the others there is no
    callback, no offset fetch, and no record is delivered twice."""
    await fill(3, 2_000)
    first = Worker(bootstrap, name, **COOPERATIVE)
    second = Worker(bootstrap, name, **COOPERATIVE)
    async with first.consumer, anyio.create_task_group() as tasks:
        first.pause = second.pause = 0.001
        tasks.start_soon(first.run)
        await until(lambda: len(first.seen) > 100)
        async with second.consumer:
            tasks.start_soon(second.run)
            await until(lambda: second.owns)
            before = len(first.seen)
            await until(lambda: len(first.seen) > before + 100)
            await second.consumer.stop()
        await first.consumer.stop()
    (moved,) = [partitions for what, partitions in first.story[:-1] if what == "revoked"]
    assert len(moved) == 1
    assert len(set(first.seen)) == len(first.seen)


async def test_s20_owned_partitions_are_withheld_even_without_a_subscription(bootstrap, name, fill):
    """KIP-429: a client that unsubscribes from a topic, and rejoins before it has revoked the
    partitions, processes them until its new assignment. This library's leader assigned them to
    another member at once."""
    wanted, other = f"{name}-wanted", f"{name}-other"
    await fill(1)
    await fill(2, topic=wanted)
    await fill(1, topic=other)
    owned = (TopicPartition(wanted, 0), TopicPartition(wanted, 1))

    def follower(topics, owned=()):
        subscription = Subscription(topics=topics, owned=owned, generation=1_000)
        metadata = encode_subscription(subscription)
        return GroupProtocol("consumer", "cooperative-sticky", metadata, dict)

    async def assigned_when(subscriptions):
        """What our consumer owns once the group is stable with these topics and claims."""
        with anyio.fail_after(20):
            while True:
                group = await admin.describe_group(name)
                found = [m.subscription for m in group.members if m.subscription is not None]
                if sorted((s.topics, bool(s.owned)) for s in found) == sorted(subscriptions):
                    await worker.consumer.wait_assignment()
                    return worker.consumer.assignment()
                await anyio.sleep(0.01)

    worker = Worker(bootstrap, name, **COOPERATIVE)
    async with worker.consumer, Admin(bootstrap_servers=bootstrap) as admin:
        await until(lambda: worker.owns == [0])  # it joined first, so it leads
        async with GroupMember(
            name, follower((wanted, other), owned), bootstrap_servers=bootstrap, **FAST
        ) as member:
            await worker.consumer.subscribe(name, wanted)
            member.update(follower((other,), owned))
            ours = ((name, wanted), True)
            assert await assigned_when([ours, ((other,), True)]) == {TopicPartition(name, 0)}
            member.update(follower((other,)))  # it has revoked them
            await until(lambda: worker.consumer.assignment() == {TopicPartition(name, 0), *owned})


async def test_unsubscribing_revokes_everything(bootstrap, name, fill):
    await fill(2, 5)
    worker = Worker(bootstrap, name, **COOPERATIVE)
    async with worker.consumer:
        await until(lambda: worker.owns == [0, 1])
        await worker.consumer.unsubscribe()
        assert worker.owns == []
        await worker.consumer.subscribe(name)
        await until(lambda: worker.owns == [0, 1])
    assert worker.story == [("assigned", [0, 1]), ("revoked", [0, 1])] * 2


async def test_nothing_is_lost_while_members_join_and_leave(bootstrap, name, fill):
    await fill(4, 500)
    workers = [Worker(bootstrap, name, **COOPERATIVE) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            worker.pause = 0.001
            await tasks.start(worker.consumer.run)
            tasks.start_soon(worker.run)
            await until(lambda worker=worker: worker.owns)
        # A member stopped during a rebalance loses its partitions, and others read them again.
        await until(lambda: len({w.consumer.group_metadata().generation_id for w in workers}) == 1)
        await workers[0].consumer.stop()
        await until(lambda: sum(len(w.owns) for w in workers[1:]) == 4)
        await until(lambda: len({r for w in workers for r in w.seen}) == 2_000)
        for worker in workers[1:]:
            await worker.consumer.stop()
    assert sorted(r for w in workers for r in w.seen) == [
        (p, o) for p in range(4) for o in range(500)
    ]


async def test_an_eager_and_a_cooperative_member_share_the_partitions(bootstrap, name, fill):
    """Members use the protocol that all of them support during an upgrade."""
    await fill(4, 100)
    old = Worker(bootstrap, name, assignors=[range_assignor, cooperative_sticky_assignor])
    new = Worker(bootstrap, name, **COOPERATIVE)
    async with old.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(old.run)
        await until(lambda: len(old.owns) == 4)
        async with new.consumer:
            tasks.start_soon(new.run)
            await until(lambda: len(old.owns) == len(new.owns) == 2)
            await until(lambda: len(old.seen) + len(new.seen) >= 400)
            await new.consumer.stop()
        await old.consumer.stop()
    assert sorted(old.seen + new.seen) == [(p, o) for p in range(4) for o in range(100)]


async def test_a_static_member_restarts_without_a_rebalance(bootstrap, name, fill):
    await fill(4)
    stays = Worker(bootstrap, name)
    async with stays.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(stays.run)
        await until(lambda: len(stays.owns) == 4)
        owned = []
        for _ in range(2):
            static = Worker(bootstrap, name, group_instance_id="worker-1")
            async with static.consumer:
                tasks.start_soon(static.run)
                await until(lambda static=static: len(static.owns) == 2)
                owned.append(static.owns)
        assert owned[0] == owned[1]
        assert len(stays.owns) == 2
        stays_story = list(stays.story)
        await stays.consumer.stop()
    assert [what for what, _ in stays_story] == ["assigned", "revoked", "assigned"]


async def test_a_restarted_static_member_with_another_subscription_gets_its_topics(
    bootstrap, name, fill
):
    """The coordinator returns its old assignment, and again for an identical rejoin."""
    await fill(2)
    await fill(2, topic=f"{name}-other")
    stays = Worker(bootstrap, name, group_instance_id="leader")
    async with stays.consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(stays.run)
        await until(lambda: len(stays.owns) == 2)
        before = Worker(bootstrap, name, group_instance_id="worker-1")
        async with before.consumer:
            await until(lambda: len(before.owns) == 1)
        after = Worker(bootstrap, name, group_instance_id="worker-1")
        await after.consumer.subscribe(f"{name}-other")
        async with after.consumer:
            await until(lambda: len(after.owns) == len(stays.owns) == 2)
            assert {tp.topic for tp in after.consumer.assignment()} == {f"{name}-other"}
        await stays.consumer.stop()


async def test_a_static_member_is_fenced_when_another_uses_its_instance_id(bootstrap, name, fill):
    await fill(2)
    first = Worker(bootstrap, name, group_instance_id="worker-1")
    second = Worker(bootstrap, name, group_instance_id="worker-1")
    async with first.consumer:
        await until(lambda: len(first.owns) == 2)
        async with second.consumer:
            for _ in range(2):
                with anyio.fail_after(20), pytest.raises(FencedError, match="worker-1"):
                    await first.consumer.getone()
            await until(lambda: len(second.owns) == 2)
    assert first.story[-1] == ("lost", [0, 1])
