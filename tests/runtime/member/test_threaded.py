"""Heartbeats in a thread of their own, while the application's loop is blocked. Threads, sockets
and time are real: sessions are as short as the machine allows."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kafkagroup import (
    AuthenticationError,
    BrokerError,
    CommitFailedError,
    Consumer,
    GroupMember,
    GroupProtocol,
    Security,
    TopicPartition,
)
from kafkagroup.assign import GroupSpec
from kafkagroup.assign.spec import named
from kafkagroup.errors import ErrorCode, IllegalStateError
from kafkagroup.events import CoordinatorFound, GroupLeft, Rebalanced, RebalanceStarted
from kafkagroup.member.classic_state import Member
from kafkagroup.member.config import MemberConfig
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.runtime.client import service
from kafkagroup.runtime.member import membership_log
from kafkagroup.runtime.member import threaded as threaded_driver
from kafkagroup.runtime.member.classic_protocol import CLASSIC
from kafkagroup.runtime.member.history import History
from kafkagroup.runtime.member.interfaces import OverduePoll
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import SupportedProtocols
from kafkagroup.runtime.member.threaded import ThreadedDriver
from kafkagroup.testing.embedded import BrokerSettings, Delay, EmbeddedKafka, Swallow
from kafkagroup.transport import plain_stream
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.coordinators import Coordinators
from kafkagroup.transport.logins import Logins
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.trouble import Problem, Troubles
from kafkagroup.types import Assignment
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.messages.offsets import OffsetCommitRequest
from kafkagroup.wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

pytestmark = pytest.mark.anyio

SESSION = 1.0
NAME = "kafkagroup heartbeats"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    settings = BrokerSettings(
        group_min_session_timeout=0.1,
        group_consumer_session_timeout=SESSION,
        group_consumer_heartbeat_interval=0.05,
    )
    with EmbeddedKafka({"t": 2}, settings=settings) as broker:
        for partition in range(2):
            broker.produce("t", [f"{n}" for n in range(100)], partition=partition)
        yield broker


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert threads() == 0


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


class RecordingConsumer:
    """A consumer, and the rebalance callbacks that it received."""

    def __init__(self, kafka: EmbeddedKafka, **options: Any) -> None:
        self.callbacks: list[str] = []
        self.consumer = Consumer(
            "t",
            group_id="g",
            **{
                "bootstrap_servers": kafka.bootstrap_servers,
                "on_partitions_assigned": lambda _: self.callbacks.append("assigned"),
                "on_partitions_revoked": lambda _: self.callbacks.append("revoked"),
                "on_partitions_lost": lambda _: self.callbacks.append("lost"),
                "heartbeat_thread": True,
                "session_timeout_ms": int(SESSION * 1000),
                "heartbeat_interval_ms": 50,
                **options,
            },
        )

    def generation(self) -> int:
        return self.consumer.group_metadata().generation_id


def block(seconds: float) -> None:
    """Block the loop, as a faulty application does."""
    time.sleep(seconds)


async def until(condition: Any) -> None:
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.005)


def until_blocking(condition: Any) -> None:
    """Like `until`, with the loop blocked."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("threaded", [True, False])
async def test_a_blocked_loop_does_not_lose_the_membership(
    kafka: EmbeddedKafka, threaded: bool
) -> None:
    recorder = RecordingConsumer(kafka, heartbeat_thread=threaded)
    async with recorder.consumer as consumer:
        first = await consumer.getone()
        before = recorder.generation()
        block(2 * SESSION)
        second = await consumer.getone()
        await consumer.commit()
        joins = len(kafka.requests(JoinGroupRequest))
        if threaded:
            assert (recorder.callbacks, recorder.generation()) == (["assigned"], before)
            assert (second.partition, second.offset) == (first.partition, 1)
        else:
            await until(lambda: recorder.generation() > before)
            assert recorder.callbacks == ["assigned", "lost", "assigned"]
    assert joins == len(kafka.requests(JoinGroupRequest)) or not threaded
    assert recorder.callbacks[-1] == "revoked"
    assert len(kafka.requests(LeaveGroupRequest)) == 1


async def test_the_thread_logs_each_event_once(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, membership_log.__name__)
    async with RecordingConsumer(kafka).consumer as consumer:
        await consumer.getone()
        member_id = consumer.group_metadata().member_id
        broker = f"broker 1 at {kafka.bootstrap_servers}"
    who = "consumer kafkagroup of group g"
    assert caplog.messages == [
        f"{who}: joined generation 1 as {member_id}, the leader of 1 member; coordinator: {broker}",
        f"{who}: assigned 2 partitions: t/0, t/1 (generation 1)",
        f"{who}: revoked 2 partitions: t/0, t/1",
        f"{who}: left the group: the consumer was closed",
    ]


async def test_a_loop_blocked_beyond_max_poll_interval_leaves_and_rejoins(
    kafka: EmbeddedKafka,
) -> None:
    recorder = RecordingConsumer(kafka, max_poll_interval_ms=300, session_timeout_ms=30_000)
    async with recorder.consumer as consumer:
        await consumer.getone()
        until_blocking(lambda: kafka.group_state("g") == "Empty")
        assert len(kafka.requests(LeaveGroupRequest)) == 1
        assert recorder.callbacks == ["assigned"]
        with anyio.fail_after(20):
            await consumer.getone()
        assert recorder.callbacks == ["assigned", "lost", "assigned"]
    assert len(kafka.requests(LeaveGroupRequest)) == 2


async def test_a_blocked_loop_does_not_count_as_polling(kafka: EmbeddedKafka) -> None:
    recorder = RecordingConsumer(kafka, max_poll_interval_ms=1_500, auto_offset_reset="latest")

    async def read() -> None:
        async for record in recorder.consumer:
            raise AssertionError(record)

    async with recorder.consumer as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await until(lambda: recorder.callbacks == ["assigned"])
        await consumer.seek_to_end()
        # Longer than max_poll_interval_ms: waiting in the client counts as polling.
        await anyio.sleep(2)
        assert (recorder.callbacks, len(kafka.requests(LeaveGroupRequest))) == (["assigned"], 0)
        until_blocking(lambda: kafka.group_state("g") == "Empty")
        await until(lambda: recorder.callbacks == ["assigned", "lost", "assigned"])
        await consumer.stop()


async def test_a_revocation_waits_for_a_blocked_loop_while_heartbeats_continue(
    kafka: EmbeddedKafka,
) -> None:
    recorder = RecordingConsumer(kafka)
    async with recorder.consumer as consumer:
        await consumer.getone()
        await consumer.getone()
        kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        sent_before = len(kafka.requests(HeartbeatRequest))
        joins = len(kafka.requests(JoinGroupRequest))
        until_blocking(lambda: len(kafka.requests(HeartbeatRequest)) > sent_before + 10)
        assert (recorder.callbacks, len(kafka.requests(JoinGroupRequest))) == (["assigned"], joins)
        assert sum(kafka.committed("g", "t").values()) == 0
        await until(lambda: not consumer.assignment())
        assert recorder.callbacks == ["assigned"]
        with anyio.fail_after(20):
            await consumer.getone()
        assert recorder.callbacks == ["assigned", "revoked", "assigned"]
        assert sum(kafka.committed("g", "t").values()) == 2


async def test_partitions_lost_while_the_loop_is_blocked_are_not_revoked(
    kafka: EmbeddedKafka,
) -> None:
    """The commit would be rejected, and delay the rejoin."""
    recorder = RecordingConsumer(kafka)
    async with recorder.consumer as consumer:
        await consumer.getone()
        sent_before = len(kafka.requests(HeartbeatRequest))
        kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        until_blocking(lambda: len(kafka.requests(HeartbeatRequest)) > sent_before + 3)
        kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        until_blocking(lambda: not consumer_owns(consumer))
        assert recorder.callbacks == ["assigned"]
        await until(lambda: len(recorder.callbacks) == 3)
        assert recorder.callbacks == ["assigned", "lost", "assigned"]


def consumer_owns(consumer: Consumer) -> bool:
    """Whether it would deliver a record if its loop ran."""
    driver = consumer._session.member.driver
    return driver is not None and driver.member.ownership.lease_expires_at > 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("how", ["away", "unknown"])
@pytest.mark.parametrize("threaded", [True, False])
async def test_a_commit_after_a_blocked_loop_reports_lost_partitions(
    kafka: EmbeddedKafka, protocol: str, how: str, threaded: bool
) -> None:
    """The thread knows of the loss, and the application's loop has not run since. Without a thread,
    only the coordinator knows of it."""
    options: dict[str, Any] = {"heartbeat_thread": threaded, "group_protocol": protocol}
    if how == "away" and threaded:
        options["max_poll_interval_ms"] = 300
    recorder = RecordingConsumer(kafka, **options)
    async with recorder.consumer as consumer:
        record = await consumer.getone()
        if how == "unknown":
            kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
            kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
            if threaded:
                until_blocking(lambda: not consumer_owns(consumer))
            else:
                kafka.fail(OffsetCommitRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            until_blocking(lambda: kafka.group_state("g") == "Empty")
        assert recorder.callbacks == ["assigned"]
        with anyio.fail_after(20), pytest.raises(CommitFailedError) as caught:
            await consumer.commit()
        assert recorder.callbacks[:2] == ["assigned", "lost"]
        assert caught.value.partitions == (TopicPartition("t", record.partition),)
        with anyio.fail_after(20):
            await consumer.getone()
            await consumer.commit()
        assert 1 in kafka.committed("g", "t").values()


async def test_a_callback_that_blocks_the_loop_while_closing_loses_nothing(
    kafka: EmbeddedKafka,
) -> None:
    recorder = RecordingConsumer(kafka, on_partitions_revoked=lambda _: block(2 * SESSION))
    async with recorder.consumer as consumer:
        await consumer.getone()
        await consumer.getone()
    assert sum(kafka.committed("g", "t").values()) == 1
    assert len(kafka.requests(LeaveGroupRequest)) == 1


async def test_partitions_released_while_the_loop_is_blocked_are_not_delivered(
    kafka: EmbeddedKafka,
) -> None:
    recorder = RecordingConsumer(kafka)
    async with recorder.consumer as consumer:
        await consumer.getone()
        kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        kafka.fail(JoinGroupRequest, Delay(0.5))
        until_blocking(lambda: not consumer_owns(consumer))
        with anyio.move_on_after(0.2) as scope:
            await consumer.getone()
        assert scope.cancelled_caught
        assert recorder.callbacks == ["assigned", "lost"]


async def test_a_cancelled_consumer_leaves_and_its_thread_ends(kafka: EmbeddedKafka) -> None:
    with anyio.CancelScope() as scope:
        async with RecordingConsumer(kafka).consumer as consumer:
            await consumer.getone()
            assert threads() == 1
            scope.cancel()
            await consumer.getone()
    assert threads() == 0
    assert len(kafka.requests(LeaveGroupRequest)) == 1


async def test_a_member_leaves_in_its_thread_until_the_coordinator_has_answered(
    kafka: EmbeddedKafka,
) -> None:
    async with RecordingConsumer(kafka).consumer as consumer:
        await consumer.getone()
        kafka.fail(LeaveGroupRequest, ErrorCode.NOT_COORDINATOR)
    assert threads() == 0
    assert len(kafka.requests(LeaveGroupRequest)) == 2
    assert kafka.describe_group("g").members == ()


async def test_closing_ends_within_its_timeout_without_a_coordinator_response(
    kafka: EmbeddedKafka,
) -> None:
    async with RecordingConsumer(kafka, close_timeout=0.3).consumer as consumer:
        await consumer.getone()
        kafka.fail(LeaveGroupRequest, Swallow(), times=None)
        began = anyio.current_time()
    assert threads() == 0
    assert anyio.current_time() - began < 10  # the request itself waits for 30 s


async def test_a_consumer_can_be_stopped_before_its_thread_has_started(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.fail(FindCoordinatorRequest, Swallow(), times=None)
    async with RecordingConsumer(kafka).consumer as consumer:
        await consumer.stop()
    assert threads() == 0
    assert "closed by force" not in caplog.text


async def test_a_rejected_member_fails_and_its_thread_ends(kafka: EmbeddedKafka) -> None:
    kafka.fail(SyncGroupRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    async with RecordingConsumer(kafka).consumer as consumer:
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"), anyio.fail_after(20):
            await consumer.getone()
        await until(lambda: threads() == 0)


async def test_refused_credentials_of_the_thread_are_raised_and_tried_again() -> None:
    """The thread has connections, and so logins, of its own."""
    users, security = (
        {"ann": "secret"},
        Security(
            sasl_mechanism="SCRAM-SHA-256",
            sasl_username="ann",
            sasl_password="secret",
            security_protocol="SASL_PLAINTEXT",
        ),
    )
    with EmbeddedKafka({"t": 1}, users=users) as kafka:
        kafka.produce("t", ["1"])
        options: Any = {"security": security, "session_timeout_ms": 6_000}
        async with RecordingConsumer(kafka, **options).consumer as consumer:
            with anyio.fail_after(20):
                assert (await consumer.getone()).value == b"1"
            for refused in (SaslAuthenticateRequest, SaslHandshakeRequest):
                fault = kafka.fail(refused, ErrorCode.SASL_AUTHENTICATION_FAILED, times=None)
                kafka.kill(1)
                kafka.restart(1)
                with pytest.raises(AuthenticationError), anyio.fail_after(20):
                    await consumer.getone()
                fault.stop()
                kafka.produce("t", ["2"])
                with anyio.fail_after(60):
                    while True:
                        with suppress(AuthenticationError):
                            if (await consumer.getone()).value == b"2":
                                break
            assert threads() == 1


async def test_an_assignor_that_raises_fails_the_member(kafka: EmbeddedKafka) -> None:
    @named("broken")
    def broken(spec: GroupSpec) -> Assignment:
        raise LookupError("no such thing")

    async with RecordingConsumer(kafka, assignors=[broken]).consumer as consumer:
        with pytest.raises(LookupError, match="no such thing"), anyio.fail_after(20):
            await consumer.getone()
        await until(lambda: threads() == 0)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("which", ["assigned", "revoked"])
async def test_a_cancellation_out_of_a_listener_is_the_listeners_error(
    kafka: EmbeddedKafka, protocol: str, which: str
) -> None:
    """The loop ended as if the application had stopped the consumer."""

    async def let_out(_: object) -> None:
        raise asyncio.CancelledError  # as a task that was cancelled and is awaited

    given = {f"on_partitions_{which}": let_out, "group_protocol": protocol}
    async with RecordingConsumer(kafka, **given).consumer as consumer:
        if which == "revoked":
            kafka.create_topic("u")
            await consumer.getone()
            await consumer.subscribe("u")
            kafka.produce("u", ["0"])
        with pytest.raises(RuntimeError, match=r"^a rebalance callback let CancelledError out"):
            while True:
                await consumer.getone()
        await consumer.getone()
        assert consumer.health().healthy


async def test_a_cancellation_out_of_an_assignor_fails_the_member(kafka: EmbeddedKafka) -> None:
    @named("mine")
    def let_out(_: GroupSpec) -> Assignment:
        raise asyncio.CancelledError

    async with RecordingConsumer(kafka, assignors=[let_out]).consumer as consumer:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"^the assignor 'mine' let CancelledError out"):
                await consumer.getone()


@pytest.mark.parametrize("ends", [False, True])
async def test_a_thread_without_file_descriptors_waits_for_some(
    kafka: EmbeddedKafka, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop needs some, too: the consumer failed at every later call."""
    attempts: list[int] = []
    run = anyio.run

    def limited(*args: Any, **options: Any) -> Any:
        attempts.append(1)
        if ends or len(attempts) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return run(*args, **options)

    monkeypatch.setattr(threaded_driver.anyio, "run", limited)
    monkeypatch.setattr(threaded_driver, "_LOOP_PAUSE", 0.05)
    async with RecordingConsumer(kafka, close_timeout=0.5).consumer as consumer:
        if not ends:
            assert (await consumer.getone()).offset == 0
            assert len(attempts) == 3
        else:
            began = time.monotonic()
            await until(lambda: len(attempts) > 4)
            assert time.monotonic() - began > 2 * 0.05  # there is a pause after each


async def test_unsubscribing_and_subscribing_again_starts_a_new_thread(
    kafka: EmbeddedKafka,
) -> None:
    recorder = RecordingConsumer(kafka)
    async with recorder.consumer as consumer:
        await consumer.getone()
        await consumer.unsubscribe()
        assert (threads(), recorder.callbacks) == (0, ["assigned", "revoked"])
        await consumer.subscribe("t")
        await consumer.getone()
        assert (threads(), recorder.callbacks) == (1, ["assigned", "revoked", "assigned"])


class FaultyApplication:
    """An application with a bug."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise ZeroDivisionError(where)

    def on_generation_end(self, *, lost: bool) -> None:
        self._fail("on_generation_end")

    def on_lease_extended(self) -> None:
        self._fail("on_lease_extended")

    def on_fatal_error(self, error: Exception) -> None:
        pass

    def poll_due_at(self, loop_ran_at: float) -> float:
        self._fail("poll_due_at")
        return float("inf")

    def overdue_poll(self, loop_ran_at: float, now: float) -> OverduePoll:
        raise AssertionError("no poll is ever due")

    async def revoke(self, deadline: float) -> SupportedProtocols | None:
        self._fail("revoke")
        return None

    async def lose(self, reason: str) -> SupportedProtocols | None:
        return None

    async def assign(self, generation: GenerationInfo) -> None:
        self._fail("assign")

    async def compute(self, work: Compute) -> dict[str, bytes]:
        return dict.fromkeys(work.members, b"")


@asynccontextmanager
async def driving(kafka: EmbeddedKafka, where: str = "") -> AsyncIterator[ThreadedDriver[Member]]:
    """Provide the driver of a member, whose application fails in the function `where`."""
    config = MemberConfig(
        group_id="g", protocol_type="x", heartbeat_interval=0.05, session_timeout=6
    )
    host, port = kafka.bootstrap_servers.split(":")
    async with anyio.create_task_group() as tasks:
        cluster = Cluster(((host, int(port)),), ClientOptions(), tasks)
        yield ThreadedDriver(
            cluster,
            CLASSIC,
            Member(config=config, protocols=(("p", b""),)),
            FaultyApplication(where),
            LoopDelay("g", 6.0, threaded=True),
            MembershipLog("member", "c", "g"),
            History(),
        )
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "where", ["on_generation_end", "on_lease_extended", "poll_due_at", "revoke", "assign"]
)
async def test_an_unexpected_error_in_the_thread_or_the_loop_ends_the_membership(
    kafka: EmbeddedKafka, where: str
) -> None:
    """asyncio would only log an error raised in a callback of the loop, and trio would end."""
    async with driving(kafka, where) as driver:
        # Not only once: a slow leader heartbeats before it has an assignment to revoke.
        kafka.fail(HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS, times=None)
        with pytest.raises((ZeroDivisionError, ExceptionGroup)) as raised, anyio.fail_after(20):
            await driver.run()
        error: BaseException = raised.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert repr(error) == f"ZeroDivisionError('{where}')"
        assert (driver.closed.is_set(), threads()) == (True, 0)


async def test_a_cancelled_driver_stops_its_thread_and_waits_for_its_end(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the thread waits for a response."""
    monkeypatch.setattr(threaded_driver, "_STOP_TIMEOUT", 25.0)
    swallowed = kafka.fail(JoinGroupRequest, Swallow(), times=None)
    with anyio.fail_after(20):
        async with driving(kafka) as driver, anyio.create_task_group() as tasks:
            tasks.start_soon(driver.run)
            await until(lambda: swallowed.hits)
            assert threads() == 1
            tasks.cancel_scope.cancel()
    assert (driver.closed.is_set(), threads()) == (True, 0)


async def test_a_thread_that_ends_without_a_request_to_is_a_failure(kafka: EmbeddedKafka) -> None:
    """The consumer waited for records for ever, and its health was good."""
    async with driving(kafka) as driver:

        async def stop() -> None:
            await until(lambda: driver.member.member_id)
            driver._post_to_thread(driver._stop)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            with pytest.raises(IllegalStateError, match="group g: the membership"):
                await driver.run()


async def test_a_thread_that_cannot_make_its_loop_is_a_failure(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only for file descriptors it waits: others close theirs."""

    def fail(*args: Any, **options: Any) -> Any:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(threaded_driver.anyio, "run", fail)
    async with driving(kafka) as driver:
        with pytest.raises(OSError, match="Permission denied"), anyio.fail_after(20):
            await driver.run()
        assert threads() == 0


# ---------------------------------------------------------------- what loop and thread share

ADDRESS = ("kafka-1", 9092)


def at_once(call: Callable[[], object]) -> None:
    """Run a call of the thread, in place of the application's loop."""
    call()


def test_troubles_of_the_thread_are_those_of_the_client() -> None:
    troubles = Troubles()
    proxy = threaded_driver._TroublesProxy(troubles, at_once)
    problem = Problem(subject="broker 1", cause="refused", advice="check it")
    assert not proxy.ongoing
    for end in (proxy.succeeded, lambda key, _: proxy.forget(key)):
        proxy.failed("key", 1.0, problem, since=0.5)
        assert proxy.ongoing  # else no success would be reported: most callers look first
        assert [one.began_at for one in troubles.ongoing.values()] == [0.5]
        end("key", 2.0)
        assert not troubles.ongoing


def test_logins_of_the_thread_are_those_of_the_client() -> None:
    """Each broker gets one login at a time, whoever tries it."""
    raised: list[AuthenticationError] = []
    logins = Logins()
    logins.watch(raised.append)
    proxy = threaded_driver._LoginsProxy(logins, at_once)
    proxy.check(ADDRESS, 0.0)
    refused = AuthenticationError("refused", is_refusal=True)
    logins.failed(ADDRESS, refused, 1.0)
    with pytest.raises(AuthenticationError):
        proxy.check(ADDRESS, 1.1)
    proxy.succeeded(ADDRESS, is_known=True)
    assert logins.has_worked
    assert proxy.has_worked
    logins.check(ADDRESS, 1.2)
    proxy.failed(ADDRESS, refused, 2.0)
    with pytest.raises(AuthenticationError):
        logins.check(ADDRESS, 2.1)
    proxy.refused_everywhere(2.2)
    assert raised == [refused]
    with pytest.raises(AuthenticationError):
        proxy.raise_suspended()
    assert threaded_driver._LoginsProxy(logins, at_once).has_worked


def test_the_source_of_credentials_is_asked_by_one_of_both_loops() -> None:
    logins = Logins()
    logins.watch(lambda _: None)
    proxy = threaded_driver._LoginsProxy(logins, at_once)
    assert proxy.may_ask_source(0.0)
    logins.failed(ADDRESS, AuthenticationError("no token", is_of_source=True), 0.0)
    assert not proxy.may_ask_source(0.0)
    assert [one.may_ask_source(100.0) for one in (proxy, logins)] == [True, False]


async def test_the_thread_compares_brokers_with_the_cluster_of_the_client(
    kafka: EmbeddedKafka,
) -> None:
    """Otherwise it joined a group of another cluster that responds at a known address."""
    async with driving(kafka) as driver, anyio.create_task_group() as tasks:
        identity = driver._cluster.identity
        tasks.start_soon(driver.run)
        await until(lambda: driver.member.member_id)
        assert driver._cluster.identity is identity
        tasks.cancel_scope.cancel()


async def test_a_coordinator_that_the_thread_finds_or_invalidates_is_that_of_the_client() -> None:
    """Commits are sent by the application's loop."""

    async def request(_: object) -> Any:
        raise AssertionError("nothing is looked up")

    ours = Coordinators(request)
    proxy = threaded_driver._CoordinatorsProxy(request, ours, at_once)
    one, other = Node(1, *ADDRESS), Node(2, *ADDRESS)
    proxy.store(one, "g")
    assert (ours.known("g"), proxy.known("g")) == (one, one)
    ours.store(other, "g")
    proxy.invalidate("g", node=one)
    assert (ours.known("g"), proxy.known("g")) == (other, None)
    proxy.invalidate("g")
    assert ours.known("g") is None


def split(members: Mapping[str, bytes]) -> dict[str, bytes]:
    return dict.fromkeys(members, b"work")


def worker(kafka: EmbeddedKafka, **options: Any) -> GroupMember:
    """Return a member with a heartbeat thread."""
    return GroupMember(
        "g",
        GroupProtocol("workers", "split", b"", split),
        bootstrap_servers=kafka.bootstrap_servers,
        heartbeat_interval_ms=50,
        heartbeat_thread=True,
        **options,
    )


async def test_the_work_of_a_group_member_continues_after_a_blocked_loop(
    kafka: EmbeddedKafka,
) -> None:
    async with worker(kafka, session_timeout_ms=int(SESSION * 1000)) as member:
        generation = await anext(member)
        with generation.scope() as scope:
            block(2 * SESSION)
            await anyio.sleep(0.2)
        assert not scope.cancel_called
        assert not generation.over.is_set()
        assert 0 < generation.lease_expires_at - anyio.current_time() <= SESSION
        assert member.loop_delay > SESSION
    assert len(kafka.requests(LeaveGroupRequest)) == 1


async def test_a_group_waits_for_a_blocked_loop_only_up_to_the_rebalance_timeout(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(kafka, rebalance_timeout_ms=300) as member:
        first = await anext(member)
        await anyio.sleep(0.5)
        assert not first.over.is_set()
        until_blocking(lambda: kafka.group_state("g") == "Empty")
        with anyio.fail_after(20):
            second = await anext(member)
        assert first.over.is_set()
        assert second.assignment == b"work"
    (warning,) = [message for message in caplog.messages if "rebalance_timeout_ms" in message]
    assert re.sub(r"blocked for 0\.[3-9] s", "blocked for N s", warning) == (
        "member kafkagroup of group g: leaves the group, because its event loop has been blocked"
        " for N s; rebalance_timeout_ms is 300; run what blocks it in a thread, for example with"
        " anyio.to_thread.run_sync, or raise rebalance_timeout_ms"
    )


async def test_metadata_that_changes_while_a_member_is_expelled_is_that_of_the_next_one(
    kafka: EmbeddedKafka,
) -> None:
    """The change went to the thread, which had ended: the next member joined with the old
    metadata."""
    async with worker(kafka, rebalance_timeout_ms=300) as member:
        first = await anext(member)
        await anyio.sleep(0.5)
        until_blocking(lambda: kafka.group_state("g") == "Empty")
        # The thread ends now.
        until_blocking(lambda: threads() == 0)
        with anyio.fail_after(20):
            await first.over.wait()
            member.update(GroupProtocol("workers", "split", b"new", split))
            second = await anext(member)
        assert second.members == {second.member_id: b"new"}


async def test_a_member_that_could_not_leave_rejoins_with_its_id(kafka: EmbeddedKafka) -> None:
    """It rejoined as another member, and the group waited for the one that it had been."""
    async with worker(kafka, rebalance_timeout_ms=300) as member:
        first = await anext(member)
        await anyio.sleep(0.5)
        refused = kafka.fail(LeaveGroupRequest, ErrorCode.UNKNOWN_SERVER_ERROR)
        until_blocking(lambda: refused.hits)
        with anyio.fail_after(20):
            second = await anext(member)
        assert second.member_id == first.member_id
        assert [m.member_id for m in kafka.describe_group("g").members] == [first.member_id]


async def test_work_is_cancelled_when_the_lease_at_an_unreachable_coordinator_expires(
    kafka: EmbeddedKafka,
) -> None:
    """With a heartbeat thread, scopes have no deadline."""
    async with worker(kafka, session_timeout_ms=int(SESSION * 1000)) as member:
        generation = await anext(member)
        kafka.fail(HeartbeatRequest, Swallow(), times=None)
        with anyio.fail_after(20), generation.scope() as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert anyio.current_time() >= generation.lease_expires_at


async def test_loop_delay_is_measured_and_reported(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = RecordingConsumer(kafka)
    async with recorder.consumer as consumer:
        await consumer.getone()
        await anyio.lowlevel.checkpoint()
        with caplog.at_level(logging.WARNING, "kafkagroup"):
            until_blocking(lambda: consumer.loop_delay > SESSION)
            assert caplog.messages == []
            await until(lambda: caplog.messages)
            block(SESSION)
            await anyio.sleep(0.1)
        (message,) = caplog.messages
        assert message.startswith("group g: the event loop was late by ")
        assert message.endswith(
            " s, which delayed rebalances; run what blocks it in a thread, for example with"
            " anyio.to_thread.run_sync"
        )


async def test_without_a_thread_loop_delay_is_measured_by_heartbeats(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = RecordingConsumer(kafka, heartbeat_thread=False)
    async with recorder.consumer as consumer:
        await consumer.getone()
        with caplog.at_level(logging.WARNING, "kafkagroup.runtime.member.loop_delay"):
            block(SESSION)
            await until(lambda: caplog.messages)
        assert SESSION / 2 < consumer.loop_delay < 20
        assert caplog.messages[0].endswith(
            " s, which delayed heartbeats; run what blocks it in a thread, for example with"
            " anyio.to_thread.run_sync, or set heartbeat_thread=True"
        )


async def test_a_coordinator_change_while_the_loop_is_blocked_is_followed(
    anyio_backend: str,
) -> None:
    """It is found through addresses from metadata: the bootstrap address no longer works."""
    settings = BrokerSettings(group_min_session_timeout=0.1)
    with EmbeddedKafka({"t": 2}, nodes=2, settings=settings) as kafka:
        kafka.move_coordinator("g", 1)
        for partition in range(2):
            kafka.move_leader("t", partition, 2)
            kafka.produce("t", ["0", "1", "2"], partition=partition)
        recorder = RecordingConsumer(kafka, bootstrap_servers=kafka.address(1))
        async with recorder.consumer as consumer:
            await consumer.getone()
            before = recorder.generation()
            kafka.move_coordinator("g", 2)
            kafka.kill(1)
            until_blocking(
                lambda: sum(seen.node_id == 2 for seen in kafka.requests(HeartbeatRequest)) > 5
            )
            await consumer.getone()
            assert (recorder.callbacks, recorder.generation()) == (["assigned"], before)


def test_the_thread_ends_with_the_loop_that_it_serves(kafka: EmbeddedKafka) -> None:
    """An application may close the loop without stopping the member, which then sends no heartbeats
    and expires."""
    loop, opened_before = asyncio.new_event_loop(), set(plain_stream._open_streams)
    consumer = RecordingConsumer(kafka).consumer
    loop.run_until_complete(consumer.start())
    loop.run_until_complete(consumer.getone())
    assert threads() == 1
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    until_blocking(lambda: threads() == 0)
    # Or a later test collects its sockets, and gets the warning.
    for stream in set(plain_stream._open_streams) - opened_before:
        stream.socket.close()
    service._hosted_services.discard(consumer)  # it would be warned about when the tests end


async def test_events_of_the_thread_are_delivered_in_the_loop(kafka: EmbeddedKafka) -> None:
    """Readers wait on objects of their loop."""
    one = RecordingConsumer(kafka, heartbeat_thread=True).consumer
    events = one.events()
    with anyio.fail_after(20):
        async with one:
            found = [await anext(events) for _ in range(3)]
            metrics = one.metrics()
        found += [event async for event in events]
    kinds = [type(event) for event in found]
    assert kinds == [RebalanceStarted, CoordinatorFound, Rebalanced, GroupLeft]
    assert metrics.last_rebalance == found[2]


async def test_a_revocation_in_a_thread_repeats_and_loses_no_record(
    kafka: EmbeddedKafka, kind: dict[str, Any]
) -> None:
    """The last commit is of the loop, and the rejoin or the acknowledgement of the thread, which
    must come after it: the next owner starts there."""
    first, second = RecordingConsumer(kafka, **kind), RecordingConsumer(kafka, **kind)
    delivered: dict[RecordingConsumer, list[tuple[int, int]]] = {first: [], second: []}

    async def work(recorder: RecordingConsumer) -> None:
        async with recorder.consumer as consumer:
            async for record in consumer:
                delivered[recorder].append((record.partition, record.offset))
                await anyio.sleep(0.005)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, first)
        await until(lambda: delivered[first])
        commits = kafka.fail(OffsetCommitRequest, Delay(0.2))
        tasks.start_soon(work, second)
        await until(lambda: len(delivered[second]) > 3)
        assert (first.callbacks[:2], commits.hits) == (["assigned", "revoked"], 1)
        tasks.cancel_scope.cancel()
    (moved,) = {partition for partition, _ in delivered[second]}
    by_partition: dict[int, list[int]] = {0: [], 1: []}
    for partition, offset in delivered[first] + delivered[second]:
        by_partition[partition].append(offset)
    assert by_partition == {n: list(range(len(found))) for n, found in by_partition.items()}
    assert by_partition[moved][-1] > delivered[second][0][1]
