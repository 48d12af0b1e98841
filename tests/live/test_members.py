"""`GroupMember`: groups of any type, one generation at a time."""

import anyio
import pytest

from kafkagroup import (
    BrokerError,
    ClosedError,
    ConfigurationError,
    Consumer,
    GroupMember,
    GroupProtocol,
)
from kafkagroup.errors import NotStartedError

pytestmark = pytest.mark.anyio

FAST = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}


def split(members):
    """Return each member's index and the number of members."""
    return {m: b"%d/%d" % (i, len(members)) for i, m in enumerate(sorted(members))}


def protocol(metadata=b"", name="split", assign=split):
    return GroupProtocol("workers", name, metadata, assign)


class RunningMember:
    """A member in a task; records its generations."""

    def __init__(self, bootstrap, name, *protocols, **options):
        self.generations = []
        self.member = GroupMember(
            name, protocols or protocol(), bootstrap_servers=bootstrap, **{**FAST, **options}
        )

    async def run(self, *, task_status=anyio.TASK_STATUS_IGNORED):
        async with self.member:
            task_status.started()
            async for generation in self.member:
                self.generations.append(generation)
                with generation.scope():
                    await anyio.sleep_forever()

    @property
    def assignment(self):
        return self.generations[-1].assignment if self.generations else None


async def until(condition, seconds=20.0):
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.005)


async def test_a_member_alone_leads_and_assigns_itself(bootstrap, name):
    async with GroupMember(
        name, protocol(b"host-1"), bootstrap_servers=bootstrap, **FAST
    ) as member:
        with anyio.fail_after(20):
            generation = await anext(aiter(member))
        assert generation.is_leader
        assert generation.leader_id == generation.member_id == member.member_id
        assert generation.generation_id >= 1
        assert generation.protocol_name == "split"
        assert generation.members == {member.member_id: b"host-1"}
        assert generation.assignment == b"0/1"
        assert not generation.over.is_set()
    assert generation.over.is_set()


async def test_an_update_before_the_start_changes_nothing(bootstrap, name):
    member = GroupMember(name, protocol(b"old"), bootstrap_servers=bootstrap, **FAST)
    with pytest.raises(NotStartedError):
        member.update(protocol(b"new", "another"))
    async with member:
        with anyio.fail_after(20):
            generation = await anext(aiter(member))
        assert (generation.protocol_name, generation.assignment) == ("split", b"0/1")


async def test_members_join_and_leave(bootstrap, name):
    first, second = RunningMember(bootstrap, name), RunningMember(bootstrap, name)
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        await until(lambda: first.assignment == b"0/1")
        await tasks.start(second.run)
        await until(
            lambda: second.assignment and {first.assignment, second.assignment} == {b"0/2", b"1/2"}
        )
        assert [g.is_leader for g in (first.generations[-1], second.generations[-1])].count(
            True
        ) == 1
        assert first.generations[0].over.is_set()
        await second.member.stop()
        await until(lambda: first.assignment == b"0/1")
        await first.member.stop()
    assert all(g.over.is_set() for g in first.generations + second.generations)


async def test_only_the_leader_knows_all_members(bootstrap, name):
    first = RunningMember(bootstrap, name, protocol(b"one"))
    second = RunningMember(bootstrap, name, protocol(b"two"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        await tasks.start(second.run)
        await until(lambda: (first.assignment or b"").endswith(b"/2") and second.assignment)
        leader, other = sorted((first, second), key=lambda c: not c.generations[-1].is_leader)
        assert sorted(leader.generations[-1].members.values()) == [b"one", b"two"]
        assert other.generations[-1].members == {}
        await first.member.stop()
        await second.member.stop()


async def test_metadata_can_change(bootstrap, name):
    passed = []

    def listen(members):
        passed.append(sorted(members.values()))
        return split(members)

    running = RunningMember(bootstrap, name, protocol(b"old", assign=listen))
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await until(lambda: passed == [[b"old"]] and running.generations)
        running.member.update(protocol(b"new", assign=listen))
        await until(lambda: passed == [[b"old"], [b"new"]])
        with pytest.raises(ConfigurationError, match="cannot become 'others'"):
            running.member.update(GroupProtocol("others", "split", b"", split))
        await running.member.stop()


async def test_a_rejoin_begins_a_new_generation(bootstrap, name):
    running = RunningMember(bootstrap, name)
    async with anyio.create_task_group() as tasks:
        await tasks.start(running.run)
        await until(lambda: len(running.generations) == 1)
        running.member.rejoin("the workload changed")
        await until(lambda: len(running.generations) == 2)
        before, after = (g.generation_id for g in running.generations)
        assert after == before + 1
        await running.member.stop()


async def test_the_group_uses_a_protocol_that_all_members_support(bootstrap, name):
    first = RunningMember(bootstrap, name, protocol(name="new"), protocol(name="old"))
    second = RunningMember(bootstrap, name, protocol(name="old"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        await until(lambda: first.generations)
        assert first.generations[0].protocol_name == "new"
        await tasks.start(second.run)
        await until(lambda: second.generations)
        assert second.generations[0].protocol_name == "old"
        await first.member.stop()
        await second.member.stop()


async def test_a_member_without_a_common_protocol_is_rejected(bootstrap, name):
    first = RunningMember(bootstrap, name)
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        await until(lambda: first.generations)
        async with GroupMember(
            name, protocol(name="else"), bootstrap_servers=bootstrap, **FAST
        ) as stranger:
            with anyio.fail_after(20), pytest.raises(BrokerError) as caught:
                await anext(stranger)
        assert caught.value.name == "INCONSISTENT_GROUP_PROTOCOL"
        await first.member.stop()


async def test_a_consumer_cannot_join_a_group_of_another_type(bootstrap, name):
    first = RunningMember(bootstrap, name)
    async with anyio.create_task_group() as tasks:
        await tasks.start(first.run)
        await until(lambda: first.generations)
        async with Consumer("t", bootstrap_servers=bootstrap, group_id=name, **FAST) as consumer:
            for _ in range(2):  # a fatal error is raised by every call
                with anyio.fail_after(20), pytest.raises(BrokerError) as caught:
                    await consumer.getone()
                assert caught.value.name == "INCONSISTENT_GROUP_PROTOCOL"
        await first.member.stop()


async def test_an_assignor_that_raises_ends_its_member_and_frees_the_others(bootstrap, name):
    def broken(members):
        raise ZeroDivisionError

    async with GroupMember(
        name, protocol(assign=broken), bootstrap_servers=bootstrap, **FAST
    ) as member:
        with anyio.fail_after(20), pytest.raises(ZeroDivisionError):
            await anext(member)
        healthy = RunningMember(bootstrap, name)
        async with anyio.create_task_group() as tasks:
            await tasks.start(healthy.run)
            await until(lambda: healthy.assignment == b"0/1", seconds=3.0)
            await healthy.member.stop()


async def test_an_assignment_to_an_unknown_member_is_an_error_of_the_assignor(bootstrap, name):
    def strange(members):
        return {"nobody": b""}

    async with GroupMember(
        name, protocol(assign=strange), bootstrap_servers=bootstrap, **FAST
    ) as member:
        with (
            anyio.fail_after(20),
            pytest.raises(ConfigurationError, match=r"unknown .*nobody"),
        ):
            await anext(member)


async def test_the_member_waits_for_work_outside_a_scope(bootstrap, name):
    """The group waits until a member asks for its next generation."""
    first, second = RunningMember(bootstrap, name), RunningMember(bootstrap, name)
    order = []
    async with anyio.create_task_group() as tasks:

        async def careful():
            async with first.member:
                async for generation in first.member:
                    order.append(("begin", generation.assignment))
                    await generation.over.wait()
                    await anyio.sleep(0.3)
                    order.append(("end", generation.assignment, second.assignment))

        tasks.start_soon(careful)
        await until(lambda: order)
        await tasks.start(second.run)
        await until(lambda: second.assignment)
        assert order[:2] == [("begin", b"0/1"), ("end", b"0/1", None)]
        await second.member.stop()
        await first.member.stop()


async def test_after_stop_iteration_ends(bootstrap, name):
    member = GroupMember(name, protocol(), bootstrap_servers=bootstrap, **FAST)
    with pytest.raises(ClosedError, match="not started"):
        member.rejoin()
    async with member:
        await member.stop()
        assert [g async for g in member] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", protocol()), "group_id is empty"),
        (("g", ()), "at least one GroupProtocol"),
        (("g", (protocol(), protocol())), "two protocols have the same name"),
        (("g", (protocol(), GroupProtocol("x", "y", b"", split))), "of several types"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        GroupMember(*arguments)


def test_the_heartbeat_must_be_shorter_than_the_session():
    with pytest.raises(ConfigurationError, match="heartbeat_interval_ms=10 must be less than"):
        GroupMember("g", protocol(), session_timeout_ms=10, heartbeat_interval_ms=10)
