"""kafka-python's `BaseCoordinator`: a custom group by subclassing."""

from typing import ClassVar

import anyio
import anyio.lowlevel
import pytest
from brokers import TRIO_IS_LONG, until

from kafkagroup import Admin
from kafkagroup.compat.kafka_python import BaseCoordinator, KafkaClient, Metrics
from kafkagroup.errors import BrokerError, ConfigurationError, ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.settings import BrokerSettings
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest

pytestmark = pytest.mark.anyio

FAST = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}


class Workers(BaseCoordinator):
    """Distributes three jobs; records the calls of its hooks."""

    DEFAULT_CONFIG: ClassVar = {**BaseCoordinator.DEFAULT_CONFIG, "host": "me"}

    def __init__(self, client, metrics, **configs):
        super().__init__(client, metrics, **configs)
        self.story = []
        self.jobs = b""
        self.rejoins = False
        self.performed_as = (-1, "")
        self.protocols = [("spread", self.config["host"].encode()), ("old", self.config["host"])]

    def protocol_type(self):
        return "workers"

    def group_protocols(self):
        return self.protocols

    def need_rejoin(self):
        return self.rejoins or super().need_rejoin()

    def _on_join_prepare(self, generation, member_id):
        self.story.append(("prepare", generation, member_id))

    def _perform_assignment(self, leader_id, protocol, members):
        self.story.append(("perform", leader_id, protocol, members))
        self.performed_as = (self.generation, self.member_id)
        names = sorted(member for member, _ in members)
        return {name: "".join("abc"[i :: len(names)]) for i, name in enumerate(names)}

    async def _on_join_complete(self, generation, member_id, protocol, member_assignment_bytes):
        await anyio.lowlevel.checkpoint()
        self.rejoins = False
        self.jobs = member_assignment_bytes
        self.story.append(("complete", generation, member_id, protocol, member_assignment_bytes))


def workers(bootstrap, name, **configs):
    client = KafkaClient(bootstrap_servers=bootstrap)
    return Workers(client, Metrics(), group_id=name, **{**FAST, **configs})


async def active(*coordinators):
    """As applications do: a coordinator that has lost its generation joins again."""
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for coordinator in coordinators:
                tasks.start_soon(coordinator.ensure_active_group)


async def test_a_group_forms_through_the_hooks_of_a_subclass(bootstrap, name):
    """Metadata is bytes or has `encode()`, and so is an assignment."""
    async with workers(bootstrap, name) as one:
        assert (one.generation, one.member_id, one.need_rejoin()) == (-1, "", True)
        await active(one)
        me, generation = one.member_id, one.generation
        assert one.story == [
            ("prepare", -1, ""),
            ("perform", me, "spread", [(me, b"me")]),
            ("complete", generation, me, "spread", b"abc"),
        ]
        assert one.performed_as == (generation, me)  # those of the join, already
        assert not one.need_rejoin()
        await one.ensure_active_group()
        assert len(one.story) == 3


async def test_members_share_partitions_and_take_over(bootstrap, name):
    one, other = workers(bootstrap, name), workers(bootstrap, name)
    async with one:
        await active(one)
        before = (one.generation, one.member_id)
        async with other:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.ensure_active_group)
                await until(one.need_rejoin)
                await active(one)
            while one.generation != other.generation:
                await active(one, other)
            assert sorted(one.jobs + other.jobs) == sorted(b"abc")
            assert ("prepare", *before) in one.story
            assert {one.coordinator_id} == {other.coordinator_id} != {None}
            performed = [call for call in one.story + other.story if call[0] == "perform"]
            assert {len(call[3]) for call in performed} == {1, 2}
        await until(one.need_rejoin)
        await active(one)
        assert one.jobs == b"abc"


async def test_a_generation_counts_once_its_assignment_is_applied():
    """A member whose application does not return still joins by itself, and assigns as leader."""
    settings = BrokerSettings(group_min_session_timeout=0.1)
    with EmbeddedKafka(settings=settings) as near:
        options = {"session_timeout_ms": 1_000}
        one = workers(near.bootstrap_servers, "g", **options)
        other = workers(near.bootstrap_servers, "g", **options)
        async with one, other:
            await active(one)
            first = one.generation
            await active(other)
            await until(lambda: len([call for call in one.story if call[0] == "perform"]) == 2)
            assert one.performed_as == (first + 1, one.member_id)
            assert one.generation == first
            await active(one)
            assert one.generation > first


@TRIO_IS_LONG
async def test_the_preferred_protocol_that_all_members_support_is_used(bootstrap, name):
    one, other = workers(bootstrap, name), workers(bootstrap, name)
    other.protocols = [("old", b"other"), ("new", b"other")]
    async with one, other:
        with anyio.fail_after(20):
            while one.generation != other.generation or one.generation < 0:
                await active(one, other)
        # The leader may already compute a later generation, which neither member has applied.
        completed = [[call for call in w.story if call[0] == "complete"] for w in (one, other)]
        assert {story[-1][3] for story in completed} == {"old"}


async def test_supported_protocols_are_read_before_each_join(bootstrap, name):
    async with workers(bootstrap, name) as one:
        await active(one)
        one.protocols = [("spread", b"changed")]
        one.rejoins = True
        await active(one)
        assert [call for call in one.story if call[0] == "perform"][-1][3] == [
            (one.member_id, b"changed")
        ]
        one.rejoins = True
        before = one.generation
        await active(one)
        assert one.generation > before


async def test_close_leaves_the_group_which_can_be_joined_again(bootstrap, name):
    async with workers(bootstrap, name) as one, Admin(bootstrap_servers=bootstrap) as admin:
        await active(one)
        await one.close()
        assert (one.generation, one.member_id, one.need_rejoin()) == (-1, "", True)
        assert (await admin.describe_group(name)).members == ()
        await active(one)
        assert one.jobs == b"abc"
        await one.close()
        await one.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_outside_a_with_block_it_starts_on_first_use(bootstrap, name):
    one = workers(bootstrap, name)
    await active(one)
    assert one.jobs == b"abc"
    await one.close()


async def test_on_join_prepare_runs_when_the_generation_ends(bootstrap, name):
    async with workers(bootstrap, name) as one:
        await active(one)
        async with anyio.create_task_group() as tasks:

            async def come_too():
                async with workers(bootstrap, name) as other:
                    await other.ensure_active_group()

            tasks.start_soon(come_too)
            with anyio.fail_after(20), one.current.scope():
                await anyio.sleep_forever()
            assert one.need_rejoin()
            await active(one)


# ---------------------------------------------------------------- the coordinator


async def test_coordinator_unknown_and_coordinator_dead(bootstrap, name):
    async with workers(bootstrap, name) as one, Admin(bootstrap_servers=bootstrap) as admin:
        assert (one.coordinator_unknown(), one.coordinator_id) == (True, None)
        await one.ensure_coordinator_known()
        node = await admin.find_coordinator(name)
        assert (one.coordinator_unknown(), one.coordinator_id) == (False, node.node_id)
        one.coordinator_dead("tired")
        assert (one.coordinator_unknown(), one.coordinator_id) == (True, None)
        await active(one)
        assert one.coordinator_id == node.node_id
        one.coordinator_dead(ValueError())
        assert one.coordinator_unknown()
        await one.ensure_coordinator_known()
        assert one.coordinator_id == node.node_id
        assert not one.need_rejoin()


async def test_a_failed_coordinator_is_unknown_until_it_is_found_again():
    with EmbeddedKafka(nodes=3) as near:
        async with workers(near.bootstrap_servers, "g") as one:
            await active(one)
            near.kill(before := near.coordinator("g"))
            await until(lambda: one.coordinator_unknown() or one.coordinator_id != before)
            with anyio.fail_after(20):
                while one.coordinator_id in (None, before):
                    await one.ensure_coordinator_known()
                    await active(one)
            assert one.coordinator_id == near.coordinator("g")


async def test_the_coordinator_is_looked_up_until_one_is_available():
    with EmbeddedKafka() as near:
        near.fail(FindCoordinatorRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=2)
        async with workers(near.bootstrap_servers, "g") as one:
            await one.ensure_coordinator_known()
            assert one.coordinator_id == 1
        near.fail(FindCoordinatorRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        async with workers(near.bootstrap_servers, "g") as one:
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                await one.ensure_coordinator_known()


async def test_the_error_that_ended_the_membership_is_raised():
    with EmbeddedKafka() as near:
        near.fail(JoinGroupRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=2)
        async with workers(near.bootstrap_servers, "g") as one:
            # Each call tries again: an ACL may have been granted meanwhile.
            for _ in range(2):
                with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                    await one.ensure_active_group()
            await active(one)
            assert one.jobs == b"abc"


# ---------------------------------------------------------------- heartbeats


async def test_no_heartbeat_is_due_at_first():
    with EmbeddedKafka() as near:
        async with workers(near.bootstrap_servers, "g", heartbeat_interval_ms=3_000) as one:
            assert not one.heartbeat.should_heartbeat()
            assert not one.heartbeat.session_expired()


async def test_heartbeats_are_sent_in_the_background():
    with EmbeddedKafka() as near:
        async with workers(near.bootstrap_servers, "g") as one:
            await active(one)
            before = len(near.requests(HeartbeatRequest))
            await until(lambda: len(near.requests(HeartbeatRequest)) > before + 5)
            assert 0 <= one.heartbeat.ttl() <= 0.05
            assert one.heartbeat.last_send > one.heartbeat.last_reset - 6
            assert not one.heartbeat.session_expired()
            assert -6 < one.heartbeat.last_receive - one.heartbeat.last_send <= 0.5


async def test_disabling_heartbeats_leaves_and_the_next_use_rejoins():
    with EmbeddedKafka() as near:
        async with workers(near.bootstrap_servers, "g") as one:
            await active(one)
            me = one.member_id
            await one.heartbeat_task.disable()
            sent = len(near.requests(HeartbeatRequest))
            await anyio.sleep(0.3)
            assert len(near.requests(HeartbeatRequest)) == sent
            # Without a leave, the membership lasts until the session times out.
            assert [m.member_id for m in near.describe_group("g").members] == [me]
            one.heartbeat_task.reset()
            assert one.need_rejoin()


# ---------------------------------------------------------------- configuration


def test_the_defaults_are_those_of_the_original():
    assert BaseCoordinator.DEFAULT_CONFIG == {
        "group_id": "kafka-python-default-group",
        "session_timeout_ms": 30000,
        "heartbeat_interval_ms": 3000,
        "retry_backoff_ms": 100,
        "api_version": (0, 9),
        "metric_group_prefix": "",
    }
    one = Workers(KafkaClient(), Metrics())
    assert one.group_id == "kafka-python-default-group"
    assert (one.heartbeat.interval, one.heartbeat.timeout) == (3.0, 30.0)


async def test_the_configuration_reaches_the_member():
    with EmbeddedKafka() as near:
        configs = {"session_timeout_ms": 7_000, "retry_backoff_ms": 50, "api_version": (0, 10)}
        near.fail(JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        async with workers(near.bootstrap_servers, "mine", **configs) as one:
            await active(one)
            assert near.group_state("mine") == "Stable"
            assert one._member._config.session_timeout == 7.0
            assert one._member._config.rebalance_timeout == 7.0
            assert one._member._config.retry_backoff == 0.05
            assert one._member._config.heartbeat_interval == 0.05


def test_an_unknown_configuration_is_an_error():
    with pytest.raises(ConfigurationError, match="no such config: sesion_timeout_ms"):
        Workers(KafkaClient(), Metrics(), sesion_timeout_ms=1)


def test_a_subclass_must_implement_the_hooks():
    base = BaseCoordinator(KafkaClient(), Metrics())
    for call in (
        base.protocol_type,
        base.group_protocols,
        lambda: base._perform_assignment("", "", []),
        lambda: base._on_join_complete(1, "", "", b""),
    ):
        with pytest.raises(NotImplementedError):
            call()
    assert base._on_join_prepare(-1, "") is None
