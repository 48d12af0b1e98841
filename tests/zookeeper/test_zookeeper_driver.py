"""The driver of groups in ZooKeeper, over sessions that response at once, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import pytest
from zookeeper.fake_sessions import SESSION, FakeSession, fake_sessions

from kafkagroup.errors import CommitFailedError, ConnectionLostError, IllegalStateError
from kafkagroup.events import GroupEvent, TroubleEnded, TroubleReported
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.member.zookeeper_nodes import Paths
from kafkagroup.member.zookeeper_state import Member
from kafkagroup.runtime.member.interfaces import OverduePoll
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import SupportedProtocols
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition
from kafkagroup.wire.embedded_protocol import encode_assignment
from kafkagroup.zookeeper.access import Access
from kafkagroup.zookeeper.driver import ZooKeeperDriver

pytestmark = pytest.mark.anyio

EVERYTHING = encode_assignment([TopicPartition("t", 0)])


class Stuck:
    """An application that was assigned partitions, and never polled again."""

    def __init__(self) -> None:
        self.left = anyio.current_time()
        self.owns = False
        self.story: list[tuple[str, float]] = []

    def on_generation_end(self, *, lost: bool) -> None:
        self.owns = False

    def on_lease_extended(self) -> None:
        pass

    def on_fatal_error(self, error: Exception) -> None:
        raise error

    def poll_due_at(self, loop_ran_at: float) -> float:
        return (self.left if self.owns else loop_ran_at) + 20.0

    def overdue_poll(self, loop_ran_at: float, now: float) -> OverduePoll:
        return OverduePoll(reason="stuck", detail="it is stuck", advice="poll")

    async def revoke(self, deadline: float) -> SupportedProtocols | None:
        return None

    async def lose(self, reason: str) -> SupportedProtocols | None:
        self.story.append(("lost", anyio.current_time()))
        return None

    async def assign(self, generation: GenerationInfo) -> None:
        self.owns = True
        self.story.append(("assigned", anyio.current_time()))

    async def compute(self, work: Compute) -> Mapping[str, bytes]:
        return dict.fromkeys(work.members, EVERYTHING)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
    return fake_sessions(monkeypatch)


def member(application: Stuck, troubles: Troubles | None = None) -> ZooKeeperDriver:
    config = MemberConfig(group_id="g", session_timeout=SESSION)
    member = Member(config=config, name="me", protocols=(("range", b""),))
    lag = LoopDelay("g", SESSION, threaded=False)
    watchers = lag, MembershipLog("consumer", "me", "g"), troubles or Troubles()
    return ZooKeeperDriver("zk:2181", Access(), Paths("/r", "g"), member, application, *watchers)


async def test_a_stalled_member_leaves_as_soon_as_it_owns_partitions_again(
    sessions: list[FakeSession],
) -> None:
    """It owned nothing when its poll timer expired; it kept the partitions assigned then for
    another interval."""
    application = Stuck()
    driver = member(application)
    with anyio.fail_after(90):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.run)
            await anyio.sleep(1)
            sessions[0].begin()
            await anyio.sleep(15)
            sessions[0].expire()
            await anyio.sleep(10)
            sessions[1].begin()
            await driver.closed.wait()
    assert [(what, round(at)) for what, at in application.story] == [
        ("assigned", 1),
        ("lost", 16),
        ("assigned", 26),
        ("lost", 26),
    ]
    assert driver.is_expelled


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_end_that_nothing_has_requested_is_an_error(sessions: list[FakeSession]) -> None:
    """A callback of the application cancelled its own task, and the membership ended as if the
    application had left."""

    class Cancelled(Stuck):
        async def assign(self, generation: GenerationInfo) -> None:
            raise asyncio.CancelledError

    async def begin_session() -> None:
        await anyio.sleep(1)
        sessions[0].begin()

    driver = member(Cancelled())
    beginning = asyncio.create_task(begin_session())
    with (
        anyio.fail_after(90),
        pytest.raises(IllegalStateError, match="group g: the membership has"),
    ):
        await driver.run()
    await beginning
    assert driver.closed.is_set()


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines since the last call, without their durations."""
    found = [r.getMessage() for r in caplog.records if r.name == "kafkagroup.transport.trouble"]
    caplog.clear()
    return [line.partition(" s: ")[2].partition(";")[0] or line for line in found]


CONNECTING = "connecting for group g (ZooKeeper at zk:2181)"


async def test_a_session_that_cannot_be_opened_is_warned_about(
    sessions: list[FakeSession], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafkagroup.transport.trouble")
    events: list[GroupEvent] = []
    troubles = Troubles(events.append)
    driver = member(Stuck(), troubles)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.run)
        await anyio.sleep(9)
        assert (warned(caplog), troubles.lasting(anyio.current_time())) == ([], [])
        sessions[0].connect_error = "zk:2181: connection refused"
        await anyio.sleep(4)
        cause = f"{CONNECTING}: zk:2181: connection refused"
        assert warned(caplog) == [cause]
        assert [str(problem) for problem, _ in troubles.lasting(anyio.current_time())] == [cause]
        await anyio.sleep(55)
        assert warned(caplog) == []
        await anyio.sleep(5)
        assert warned(caplog) == [cause]
        sessions[0].begin()
        await anyio.sleep(1)
        assert [line.split(", after")[0] for line in warned(caplog)] == [
            f"{CONNECTING}: works again"
        ]
        assert [type(event) for event in events] == [TroubleReported, TroubleEnded]
        tasks.cancel_scope.cancel()


async def test_requests_without_a_response_are_warned_about(
    sessions: list[FakeSession], caplog: pytest.LogCaptureFixture
) -> None:
    """The same over several sessions: each of them opens, and its requests get no response."""
    caplog.set_level(logging.INFO, "kafkagroup.transport.trouble")
    driver = member(Stuck())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.run)
        begun = 0
        for second in range(16):
            await anyio.sleep(1)
            for session in sessions[begun:]:
                session.refusal = ConnectionLostError("ZooKeeper: ConnectionLoss")
                session.begin()
            begun = len(sessions)
            if second == 9:
                assert warned(caplog) == []
        registering = "registering for group g (ZooKeeper at zk:2181)"
        assert warned(caplog) == [f"{registering}: ZooKeeper: ConnectionLoss"]
        sessions[-1].refusal = None
        await anyio.sleep(2)
        assert [line.split(", after")[0] for line in warned(caplog)] == [
            f"{registering}: works again"
        ]
        tasks.cancel_scope.cancel()


async def test_a_lost_session_that_is_not_replaced_is_warned_about(
    sessions: list[FakeSession], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafkagroup.transport.trouble")
    async with owning(member(Stuck()), sessions) as session:
        session.away_until = float("inf")
        await anyio.sleep(SESSION + 5)
        assert warned(caplog) == []
        await anyio.sleep(10)
        assert warned(caplog) == [f"{CONNECTING}: no server answers"]


async def test_trouble_ends_with_the_membership(sessions: list[FakeSession]) -> None:
    troubles = Troubles()
    driver = member(Stuck(), troubles)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.run)
        await anyio.sleep(20)
        assert troubles.ongoing
        driver.leave("done")
    assert not troubles.ongoing


@asynccontextmanager
async def owning(
    driver: ZooKeeperDriver, sessions: list[FakeSession]
) -> AsyncIterator[FakeSession]:
    """Run a member that owns all partitions, over the given session."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.run)
        await anyio.sleep(1)
        sessions[0].begin()
        await anyio.sleep(1)
        yield sessions[0]
        tasks.cancel_scope.cancel()


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_a_commit_may_be_sent_up_to_half_a_session_after_the_claim_check(
    sessions: list[FakeSession],
) -> None:
    driver = member(Stuck())
    async with owning(driver, sessions) as session:
        now = anyio.current_time()
        session.away_until = now + 2
        assert await driver.confirm([T0], anyio.current_time() + 9) == now + SESSION / 2
        with pytest.raises(CommitFailedError, match="not claimed by this member any more: t/1"):
            await driver.confirm([T0, T1], anyio.current_time() + 9)


async def test_a_commit_waits_while_disconnected(sessions: list[FakeSession]) -> None:
    """A member whose lease had expired once revoked without its last commit when the connection
    came back. A response that arrives after its validity is requested again."""
    driver = member(Stuck())
    async with owning(driver, sessions) as session:
        session.away_until = anyio.current_time() + 7
        until = await driver.confirm([T0], anyio.current_time() + 9)
        assert anyio.current_time() == session.away_until
        assert until == session.away_until + SESSION / 2


async def test_a_commit_waits_until_its_timeout(sessions: list[FakeSession]) -> None:
    driver = member(Stuck())
    async with owning(driver, sessions) as session:
        now = anyio.current_time()
        session.away_until = now + 7
        with pytest.raises(CommitFailedError, match="has ended, or may have"):
            await driver.confirm([T0], anyio.current_time() + 3)
        assert anyio.current_time() == now + 3


async def test_a_commit_fails_with_the_session(sessions: list[FakeSession]) -> None:
    driver = member(Stuck())
    async with owning(driver, sessions) as session, anyio.create_task_group() as tasks:
        session.away_until = anyio.current_time() + 2

        async def expire() -> None:
            await anyio.sleep(1)
            session.expire()

        tasks.start_soon(expire)
        with pytest.raises(CommitFailedError, match="has ended, or may have"):
            await driver.confirm([T0], anyio.current_time() + 9)
        with pytest.raises(CommitFailedError, match="has ended, or may have"):
            await driver.confirm([T0], anyio.current_time() + 9)
