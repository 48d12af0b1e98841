"""The library in other programs: which tasks may start and stop it, how exceptions leave it, how
long closing takes without responses, and how few requests it sends when idle or failing.

Time is virtual and the network in memory, unless a test says otherwise.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from conftest import anyio_backend
from memory_network import Network, network

from kafkagroup import (
    ClosedError,
    Consumer,
    FencedError,
    GroupMember,
    GroupProtocol,
    KafkaGroupError,
    TopicPartition,
)
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Close, Swallow
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

__all__ = ["anyio_backend", "network"]

pytestmark = pytest.mark.anyio
ASYNCIO_ONLY = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)

CLOSE_TIMEOUT = 4.0
MARGIN = 0.1
"""Seconds beyond the close timeout that releasing the other resources may take."""


@asynccontextmanager
async def broker(network: Network, nodes: int = 1) -> AsyncIterator[EmbeddedKafka]:
    """Provide a broker with 6 records in t; check at the end that no connection is left."""
    before = running()
    kafka = EmbeddedKafka({"t": 1}, nodes=nodes, listen=False)
    kafka.produce("t", [b""] * 6)
    async with network, kafka:
        network.serve_embedded(kafka, nodes)
        with anyio.fail_after(600):
            yield kafka
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert network.open == 0
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    assert running() == before


def running() -> set[int]:
    return {task.id for task in anyio.get_running_tasks()}


def consumer(group: str = "g", **options: Any) -> Consumer:
    options = {"close_timeout": CLOSE_TIMEOUT, "session_timeout_ms": 6_000, **options}
    return Consumer("t", bootstrap_servers="kafka-1:9092", group_id=group, **options)


def member(**options: Any) -> GroupMember:
    protocol = GroupProtocol("workers", "all", b"", lambda members: dict.fromkeys(members, b"x"))
    options = {"close_timeout": CLOSE_TIMEOUT, **options}
    return GroupMember("g", protocol, bootstrap_servers="kafka-1:9092", **options)


# ---------------------------------------------------------------- who starts and stops it


@ASYNCIO_ONLY
async def test_a_consumer_can_be_started_used_and_stopped_by_three_tasks(network: Network) -> None:
    """As in a web application: one task starts, another uses, a third stops it."""
    async with broker(network) as kafka:
        c = consumer()
        seen: list[int] = []

        async def work() -> None:
            seen.extend([record.offset async for record in c])

        await asyncio.create_task(c.start())
        worker = asyncio.create_task(work())
        await asyncio.sleep(1)
        await asyncio.create_task(c.stop())
        await worker
        assert seen == list(range(6))
        assert kafka.committed("g", "t") == {0: 6}
        assert kafka.group_state("g") == "Empty"


@ASYNCIO_ONLY
async def test_a_consumer_in_an_async_generator_can_be_closed_by_another_task(
    network: Network,
) -> None:
    """As in a pytest-asyncio fixture, whose two halves run in different tasks."""

    async def fixture() -> AsyncIterator[Consumer]:
        c = consumer()
        await c.start()
        yield c
        await c.stop()

    async with broker(network) as kafka:
        halves = fixture()

        async def half() -> Consumer | None:
            return await anext(halves, None)

        c = await asyncio.create_task(half())
        assert c is not None
        assert (await c.getone()).offset == 0
        assert await asyncio.create_task(half()) is None
        assert kafka.group_state("g") == "Empty"


@ASYNCIO_ONLY
async def test_a_consumer_runs_in_a_task_group_of_asyncio(network: Network) -> None:
    async with broker(network) as kafka:
        c = consumer()
        async with asyncio.TaskGroup() as tasks:
            running_ = tasks.create_task(c.run())
            await asyncio.sleep(1)
            assert (await c.getone()).offset == 0
            await c.stop()
            assert running_.done()
        assert kafka.group_state("g") == "Empty"


async def test_a_consumer_in_a_cancelled_task_group_closes(network: Network) -> None:
    async with broker(network) as kafka:
        c = consumer()
        async with anyio.create_task_group() as tasks:
            await tasks.start(c.run)
            for offset in range(3):
                assert (await c.getone()).offset == offset
            tasks.cancel_scope.cancel()
        assert kafka.committed("g", "t")[0] in (2, 3)
        assert kafka.group_state("g") == "Empty"
        with pytest.raises(ClosedError):
            await c.getone()


async def test_two_consumers_run_in_one_program(network: Network) -> None:
    async with broker(network) as kafka:
        kafka.create_topic("u", 4)
        kafka.produce("u", [b""] * 8)
        seen: list[tuple[str, int, int]] = []

        async def work(c: Consumer) -> None:
            async with c:
                seen.extend([(r.topic, r.partition, r.offset) async for r in c])

        one, other = consumer(), consumer()
        apart = Consumer("u", bootstrap_servers="kafka-1:9092", group_id="apart")
        async with anyio.create_task_group() as tasks:
            for c in (one, other, apart):
                tasks.start_soon(work, c)
            await anyio.sleep(10)
            owned = [len(c.assignment()) for c in (one, other)]
            assert sorted(owned) == [0, 1]
            assert len(apart.assignment()) == 4
            for c in (one, other, apart):
                await c.stop()
        assert sorted(seen) == sorted(
            [("t", 0, n) for n in range(6)] + [("u", p, n) for p in range(4) for n in range(2)]
        )
        assert kafka.committed("g", "t") == {0: 6}
        assert kafka.committed("apart", "u") == dict.fromkeys(range(4), 2)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_closes_the_consumer(backend: str) -> None:
    """In real time, on sockets: the interrupt is raised unwrapped, after the member has left its
    group."""
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.produce("t", [b""] * 3)

        async def main() -> None:
            servers = kafka.bootstrap_servers
            async with Consumer("t", bootstrap_servers=servers, group_id="g") as c:
                async for record in c:
                    if record.offset == 2:
                        signal.raise_signal(signal.SIGINT)
                        # asyncio cancels the main task, which notices where it waits.
                        await anyio.sleep(60)

        with pytest.raises(KeyboardInterrupt):
            anyio.run(main, backend=backend)
        assert kafka.committed("g", "t") == {0: 2}
        assert kafka.group_state("g") == "Empty"


# ---------------------------------------------------------------- whose exceptions leave how


class Mine(Exception):
    """The user's exception."""


@pytest.mark.parametrize("what", ["consumer", "member"])
async def test_the_users_exception_is_raised_unwrapped(what: str, network: Network) -> None:
    async with broker(network) as kafka:
        with pytest.raises(Mine):
            if what == "consumer":
                async with consumer() as c:
                    async for _ in c:
                        raise Mine
            else:
                async with member() as m:
                    async for _ in m:
                        raise Mine
        assert kafka.group_state("g") == "Empty"


@ASYNCIO_ONLY
async def test_the_users_exception_between_start_and_stop_is_raised_unwrapped(
    network: Network,
) -> None:
    async with broker(network) as kafka:
        c = consumer()
        await c.start()
        with pytest.raises(Mine):
            try:
                await c.getone()
                raise Mine
            finally:
                await c.stop()
        assert kafka.group_state("g") == "Empty"


async def test_only_the_users_task_group_wraps_the_users_exception(network: Network) -> None:
    """`tasks.start(consumer.run)` cannot prevent that; the consumer closes gracefully."""
    async with broker(network) as kafka:
        c = consumer()
        with pytest.raises(ExceptionGroup) as caught:
            async with anyio.create_task_group() as tasks:
                await tasks.start(c.run)
                await c.getone()
                raise Mine
        assert [type(error) for error in caught.value.exceptions] == [Mine]
        assert kafka.group_state("g") == "Empty"


# ---------------------------------------------------------------- closing


def die(kafka: EmbeddedKafka, network: Network) -> None:
    kafka.kill(1)


def vanish(kafka: EmbeddedKafka, network: Network) -> None:
    """Refuse connections, too."""
    kafka.kill(1)
    network.handlers.clear()


def fall_silent(kafka: EmbeddedKafka, network: Network) -> None:
    """Accept connections and requests, and never respond."""
    for api in EVERY_API:
        kafka.fail(api, Swallow(), times=None)


EVERY_API = (
    ApiVersionsRequest,
    MetadataRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetFetchRequest,
    OffsetCommitRequest,
    ListOffsetsRequest,
    FetchRequest,
)


@pytest.mark.parametrize("later", [0.0, 20.0])
@pytest.mark.parametrize("fate", [die, vanish, fall_silent])
@pytest.mark.parametrize("what", ["consumer", "member"])
async def test_closing_ends_within_its_timeout_without_a_broker_response(
    what: str, fate: Any, later: float, network: Network
) -> None:
    async with broker(network) as kafka:
        thing = consumer() if what == "consumer" else member()
        async with thing:
            for _ in range(3 if what == "consumer" else 1):
                await anext(thing)
            fate(kafka, network)
            await anyio.sleep(later)
            start = anyio.current_time()
            await thing.stop()
            took = anyio.current_time() - start
            assert took <= CLOSE_TIMEOUT + MARGIN
            assert network.open == 0
            await thing.stop()
            assert anyio.current_time() - start == took


async def test_a_stop_by_another_task_waits_for_the_record_in_flight(network: Network) -> None:
    async with broker(network) as kafka:
        seen: list[int] = []

        async def work(c: Consumer) -> None:
            async for record in c:
                await anyio.sleep(1)
                seen.append(record.offset)

        async with anyio.create_task_group() as tasks, consumer() as c:
            tasks.start_soon(work, c)
            await anyio.sleep(2.5)
            assert seen == [0, 1]
            start = anyio.current_time()
            await c.stop()
            assert anyio.current_time() - start == pytest.approx(0.5)
            assert seen == [0, 1, 2]
            assert kafka.committed("g", "t") == {0: 3}


async def test_a_stop_by_another_task_waits_no_longer_than_the_close_timeout(
    network: Network,
) -> None:
    async with broker(network) as kafka:

        async def work(c: Consumer) -> None:
            async for record in c:
                if record.offset == 2:
                    await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks, consumer() as c:
            tasks.start_soon(work, c)
            await anyio.sleep(1)
            start = anyio.current_time()
            await c.stop()
            assert anyio.current_time() - start <= CLOSE_TIMEOUT + MARGIN
            assert kafka.committed("g", "t") == {0: 2}
            tasks.cancel_scope.cancel()


async def test_a_stop_by_the_task_that_iterates_does_not_wait(network: Network) -> None:
    async with broker(network) as kafka:
        async with consumer() as c:
            start = anyio.current_time()
            async for record in c:
                if record.offset == 2:
                    await c.stop()
            assert anyio.current_time() == pytest.approx(start, abs=MARGIN)
            assert kafka.committed("g", "t") == {0: 2}


def calls_of(c: Consumer, tp: TopicPartition) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return every call that must raise for a closed consumer."""
    return {
        "getone": c.getone,
        "getmany": c.getmany,
        "commit": c.commit,
        "commit given": partial(c.commit, {tp: 1}),
        "committed": partial(c.committed, [tp]),
        "position": partial(c.position, tp),
        "beginning_offsets": partial(c.beginning_offsets, [tp]),
        "end_offsets": partial(c.end_offsets, [tp]),
        "offsets_for_times": partial(c.offsets_for_times, {tp: 0}),
        "lag": c.lag,
        "seek_to_beginning": partial(c.seek_to_beginning, tp),
        "seek_to_end": partial(c.seek_to_end, tp),
        "subscribe": partial(c.subscribe, "t"),
    }


async def raised_by(calls: Mapping[str, Callable[[], Awaitable[object]]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, call in calls.items():
        try:
            found[name] = await call()
        except KafkaGroupError as error:
            found[name] = type(error)
    return found


async def test_after_a_fatal_error_every_call_raises_it(network: Network) -> None:
    async with broker(network) as kafka:
        async with consumer(group_instance_id="me") as c:
            await c.getone()
            kafka.fail(HeartbeatRequest, ErrorCode.FENCED_INSTANCE_ID)
            await anyio.sleep(5)
            calls = calls_of(c, TopicPartition("t", 0))
            calls |= {"anext": c.__anext__, "batches": c.batches().__anext__}
            for _ in range(2):
                assert await raised_by(calls) == dict.fromkeys(calls, FencedError)


async def test_after_stop_every_call_raises_and_iteration_ends(network: Network) -> None:
    async with broker(network):
        async with consumer() as c:
            await c.getone()
            await c.stop()
            calls = calls_of(c, TopicPartition("t", 0))
            assert await raised_by(calls) == dict.fromkeys(calls, ClosedError)
            await c.unsubscribe()
            with pytest.raises(ClosedError):
                await c.assign([TopicPartition("t", 0)])
            assert [record async for record in c] == []
            assert [batch async for batch in c.batches()] == []


async def test_after_a_fatal_error_every_call_of_a_member_raises_it(network: Network) -> None:
    async with broker(network) as kafka:
        async with member(group_instance_id="me") as m:
            generation = await anext(m)
            kafka.fail(HeartbeatRequest, ErrorCode.FENCED_INSTANCE_ID)
            await generation.over.wait()
            for call in (partial(anext, m), m.wait_generation) * 2:
                with pytest.raises(FencedError):
                    await call()


# ---------------------------------------------------------------- how little it asks


def asked(kafka: EmbeddedKafka) -> Counter[type[Any]]:
    return Counter(seen.api for seen in kafka.requests())


async def test_an_idle_member_sends_one_heartbeat_per_interval_and_nothing_else(
    network: Network,
) -> None:
    async with broker(network) as kafka:
        async with member(heartbeat_interval_ms=3_000) as m:
            await anext(m)
            await anyio.sleep(60)  # after a rebalance it sends heartbeats more often for a while
            before = asked(kafka)
            await anyio.sleep(300)
            found = asked(kafka) - before
            assert found.keys() == {HeartbeatRequest}
            assert found[HeartbeatRequest] == pytest.approx(100, abs=1)


async def test_an_idle_consumer_sends_only_heartbeats_and_long_polls(
    network: Network,
) -> None:
    async with broker(network) as kafka:
        async with consumer(heartbeat_interval_ms=2_000, fetch_max_wait_ms=1_000) as c:
            for _ in range(6):
                await c.getone()
            with anyio.move_on_after(6):  # the last one is processed, and committed
                await c.getone()
            before = asked(kafka)
            with anyio.move_on_after(100):
                await c.getone()
            found = asked(kafka) - before
            assert found.keys() == {HeartbeatRequest, FetchRequest}
            assert found[HeartbeatRequest] == pytest.approx(50, abs=1)
            # Where nothing comes a broker may keep a question for 5 s.
            assert found[FetchRequest] == pytest.approx(20, abs=1)


MOST = 20
"""Requests a second that a member may make under a permanent error."""

WRONGS = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    Close(before=True),
)


@ASYNCIO_ONLY
@pytest.mark.parametrize("from_the_start", [True, False])
@pytest.mark.parametrize("api", EVERY_API)
async def test_no_permanent_error_causes_a_hot_loop(
    api: Any, from_the_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error that a request always gets, from the start or after it once succeeded."""
    hot: dict[object, list[int]] = {}
    for wrong in WRONGS:
        network = Network()
        monkeypatch.setattr(anyio, "connect_tcp", network.connect_tcp)
        async with broker(network) as kafka, anyio.create_task_group() as tasks:
            if from_the_start:
                kafka.fail(api, wrong, times=None)
            c = consumer(auto_commit_interval_ms=200, heartbeat_interval_ms=500)
            tasks.start_soon(use, c)
            await anyio.sleep(2)
            kafka.fail(api, wrong, times=None)
            counts = []
            for _ in range(8):
                before = len(kafka.requests())
                kafka.produce("t", [b""])
                await anyio.sleep(1)
                counts.append(len(kafka.requests()) - before)
            if max(counts) > MOST:
                hot[wrong] = counts
            tasks.cancel_scope.cancel()
    assert hot == {}


async def use(c: Consumer) -> None:
    """An application that continues after each error."""
    try:
        async with c:
            while True:
                try:
                    await c.getone()
                except KafkaGroupError:
                    await anyio.sleep(0.1)
    except KafkaGroupError:
        pass  # it did not even start
