"""Subclasses of kafka-python's `ConsumerCoordinator`: the hooks that its document describes."""

import anyio
import pytest
from brokers import until

from kafkagroup import TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor
from kafkagroup.compat.kafka_python import (
    ConsumerCoordinator,
    KafkaClient,
    Metrics,
    SubscriptionState,
)
from kafkagroup.errors import BrokerError, ConfigurationError, ErrorCode, IllegalStateError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.wire import Subscription, decode_subscription, encode_subscription
from kafkagroup.wire.embedded_protocol import decode_assignment, encode_assignment
from kafkagroup.wire.messages.group import JoinGroupRequest

pytestmark = pytest.mark.anyio

FAST = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}


class Listener:
    def __init__(self, story):
        self.story = story

    def on_partitions_revoked(self, revoked):
        self.story.append(("revoked", sorted(tp.partition for tp in revoked)))

    def on_partitions_assigned(self, assigned):
        self.story.append(("assigned", sorted(tp.partition for tp in assigned)))


class Extended(ConsumerCoordinator):
    """Rejoins on request, and records the calls of its hooks."""

    def __init__(self, *args, **configs):
        self.story = []
        self.rejoins = 0
        super().__init__(*args, **configs)

    def need_rejoin(self):
        return super().need_rejoin() or self.rejoins > 0

    def _on_join_prepare(self, generation, member_id):
        self.story.append(("prepare", generation, bool(member_id)))
        return super()._on_join_prepare(generation, member_id)

    def _on_join_complete(self, generation, member_id, protocol, member_assignment_bytes):
        super()._on_join_complete(generation, member_id, protocol, member_assignment_bytes)
        self.rejoins -= self.rejoins > 0
        numbers = [tp.partition for tp in decode_assignment(member_assignment_bytes)]
        self.story.append(("complete", generation, member_id == self.member_id, protocol, numbers))


def made(kind, bootstrap, name, *topics, pattern=None, **configs):
    subscription = SubscriptionState()
    client = KafkaClient(bootstrap_servers=bootstrap)
    options = {"group_id": name, "enable_auto_commit": False, **FAST, **configs}
    one = kind(client, subscription, Metrics(), **options)
    story = getattr(one, "story", [])
    subscription.subscribe(topics or [name], pattern=pattern, listener=Listener(story))
    return one


async def active(*coordinators):
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for coordinator in coordinators:
                tasks.start_soon(coordinator.ensure_active_group)


async def test_a_subclass_that_asks_to_rejoin_does(bootstrap, name, fill):
    """`need_rejoin` of a subclass froze the event loop: the assignment was current, so that no
    round of `ensure_active_group` waited for anything."""
    await fill(2)
    async with made(Extended, bootstrap, name) as one:
        await active(one)
        first = one.generation
        one.rejoins = 2
        await active(one)
        assert one.generation == first + 2
        assert one.story == [
            ("prepare", -1, False),
            ("revoked", []),
            ("complete", first, True, "range", [0, 1]),
            ("assigned", [0, 1]),
            *(
                event
                for n in range(2)
                for event in (
                    ("prepare", first + n, True),
                    ("revoked", [0, 1]),
                    ("complete", first + n + 1, True, "range", [0, 1]),
                    ("assigned", [0, 1]),
                )
            ),
        ]


async def test_a_subclass_that_always_asks_to_rejoin_does_not_block_the_loop():
    with EmbeddedKafka({"t": 1}) as near:
        async with made(Extended, near.bootstrap_servers, "t") as one:
            one.rejoins = 1_000_000
            with anyio.move_on_after(0.5) as scope:
                await one.ensure_active_group()
            assert scope.cancelled_caught
            assert one.generation > 1


async def test_a_cooperative_group_that_keeps_its_partitions_is_active():
    """A cooperative assignment that adds nothing calls no listener."""
    with EmbeddedKafka({"t": 2}) as near:
        options = {"assignors": (cooperative_sticky_assignor,)}
        async with made(Extended, near.bootstrap_servers, "t", **options) as one:
            await active(one)
            async with made(Extended, near.bootstrap_servers, "t", **options) as other:
                await active(one, other)
                await until(lambda: all(len(c.consumer.assignment()) == 1 for c in (one, other)))
                await active(one, other)
            await until(lambda: len(one.consumer.assignment()) == 2)
            await active(one)
            assert not one.need_rejoin()


async def test_a_changed_subscription_is_joined_with(bootstrap, name, fill):
    """`subscription.subscribe` after the first join was ignored."""
    await fill(2)
    other = f"{name}-other"
    await fill(1, topic=other)
    async with made(ConsumerCoordinator, bootstrap, name) as one:
        await active(one)
        assert not one.need_rejoin()
        one._subscription.subscribe([other])
        assert one.need_rejoin()
        await active(one)
        assert one._subscription.assigned_partitions() == {TopicPartition(other, 0)}
        one._subscription.subscribe(pattern=f"{name}.*")
        await active(one)
        assert {tp.topic for tp in one._subscription.assigned_partitions()} == {name, other}
        # The leader receives the topics that match, as in kafka-python.
        (_, metadata), _ = one.group_protocols()
        assert set(decode_subscription(metadata).topics) == {name, other}
        assert one._subscription.subscription == {name, other}


async def test_a_changed_manual_assignment_is_followed():
    with EmbeddedKafka({"t": 3}) as near:
        subscription = SubscriptionState()
        subscription.assign_from_user([TopicPartition("t", 0)])
        client = KafkaClient(bootstrap_servers=near.bootstrap_servers)
        async with ConsumerCoordinator(client, subscription, Metrics(), group_id="t") as one:
            await one.fetch_committed_offsets([TopicPartition("t", 0)])  # starts the consumer
            subscription.assign_from_user([TopicPartition("t", 2)])
            await one.ensure_active_group()
            assert one.consumer.assignment() == {TopicPartition("t", 2)}


class Weighted(Extended):
    """Has a protocol of its own: the subscription with a weight, and the heaviest gets all."""

    def __init__(self, *args, weight, **configs):
        self.weight = weight
        self.seen = []
        super().__init__(*args, **configs)

    def protocol_type(self):
        return "weighted"

    def group_protocols(self):
        topics = tuple(self._subscription.subscription)
        own = encode_subscription(Subscription(topics=topics, user_data=b"%d" % self.weight))
        return [("heaviest", own), *super().group_protocols()]

    def _perform_assignment(self, leader_id, protocol, members):
        self.seen.append(
            (leader_id == self.consumer._engine._session.member.driver.member.member_id, protocol)
        )
        if protocol != "heaviest":
            return super()._perform_assignment(leader_id, protocol, members)
        weights = {m: int(decode_subscription(data).user_data) for m, data in members}
        heaviest = max(weights, key=weights.__getitem__)
        shared = [TopicPartition("t", 0), TopicPartition("t", 1)]
        return {m: encode_assignment(shared if m == heaviest else ()) for m in weights}


async def test_a_subclass_defines_its_group():
    """Overrides of `protocol_type`, `group_protocols` and `_perform_assignment` were not called."""
    with EmbeddedKafka({"t": 2}) as near:
        light = made(Weighted, near.bootstrap_servers, "t", weight=1)
        heavy = made(Weighted, near.bootstrap_servers, "t", weight=2)
        async with light, heavy:
            await active(light)
            await active(light, heavy)
            await until(lambda: len(heavy.consumer.assignment()) == 2)
            assert light.consumer.assignment() == frozenset()
            group = near.describe_group("t")
            assert (group.protocol_type, group.protocol_data) == ("weighted", "heaviest")
            assert {one for seen in (light.seen, heavy.seen) for one in seen} == {
                (True, "heaviest")
            }


class Reversed(ConsumerCoordinator):
    """Changes what the assignor returns; its hooks are coroutine functions."""

    def __init__(self, *args, **configs):
        self.story = []
        super().__init__(*args, **configs)

    def _perform_assignment(self, leader_id, protocol, members):
        given = super()._perform_assignment(leader_id, protocol, members)
        self.story.append(("alone", super()._perform_assignment(leader_id, protocol, members[:1])))
        names = sorted(given)
        return dict(zip(names, (given[name] for name in reversed(names)), strict=True))

    async def _on_join_complete(self, generation, member_id, protocol, member_assignment_bytes):
        await super()._on_join_complete(generation, member_id, protocol, member_assignment_bytes)
        self.story.append("after the listener")

    async def _on_join_prepare(self, generation, member_id):
        self.story.append("before the listener")


async def test_a_subclass_changes_what_the_assignor_returns():
    with EmbeddedKafka({"t": 3}) as near:
        one, other = (made(Reversed, near.bootstrap_servers, "t") for _ in range(2))
        async with one, other:
            await active(one)
            # The listener is called where `super()` is awaited, and not without that.
            assert one.story == [
                "before the listener",
                ("alone", {one.member_id: encode_assignment(_all_of("t", 3))}),
                ("assigned", [0, 1, 2]),
                "after the listener",
            ]
            await active(one, other)
            await until(lambda: other.consumer.assignment() and one.consumer.assignment())
            by_name = sorted((one, other), key=lambda c: c.member_id)
            # The range assignor gives the first member two partitions.
            assert [len(c.consumer.assignment()) for c in by_name] == [1, 2]


def _all_of(topic, count):
    return [TopicPartition(topic, n) for n in range(count)]


class Failing(ConsumerCoordinator):
    fails = "_on_join_complete"

    def _perform_assignment(self, leader_id, protocol, members):
        if self.fails == "_perform_assignment":
            raise ZeroDivisionError("mine")
        return super()._perform_assignment(leader_id, protocol, members)

    def _on_join_complete(self, *args):
        if self.fails == "_on_join_complete":
            raise ZeroDivisionError("mine")
        return super()._on_join_complete(*args)

    def _on_join_prepare(self, *args):
        if self.fails == "_on_join_prepare":
            raise ZeroDivisionError("mine")
        return super()._on_join_prepare(*args)


@pytest.mark.parametrize("hook", ["_on_join_prepare", "_perform_assignment", "_on_join_complete"])
async def test_the_error_of_a_hook_is_raised_and_the_next_call_tries_again(hook):
    with EmbeddedKafka({"t": 1}) as near:
        async with made(Failing, near.bootstrap_servers, "t") as one:
            one.fails = hook
            with anyio.fail_after(20), pytest.raises(Exception, match="mine"):
                await one.ensure_active_group()
            one.fails = None
            await active(one)
            assert one.consumer.assignment() == {TopicPartition("t", 0)}


async def test_a_refused_join_is_tried_again_by_the_next_call():
    """One authorization error was raised by each call until `close()`."""
    with EmbeddedKafka({"t": 1}) as near:
        near.fail(JoinGroupRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=2)
        async with made(ConsumerCoordinator, near.bootstrap_servers, "t") as one:
            for _ in range(2):
                with anyio.fail_after(20), pytest.raises(BrokerError, match="GROUP_AUTHORIZATION"):
                    await one.ensure_active_group()
            await active(one)
            assert one.consumer.assignment() == {TopicPartition("t", 0)}


async def test_assigning_outside_of_a_group_is_an_error():
    with EmbeddedKafka({"t": 1}) as near:
        async with made(ConsumerCoordinator, near.bootstrap_servers, "t") as one:
            with pytest.raises(IllegalStateError, match="leads no group"):
                one._perform_assignment("", "range", [])
            await active(one)
            with pytest.raises(ConfigurationError, match="'range' was asked to assign"):
                one._perform_assignment("", "range", [])
