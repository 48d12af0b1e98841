"""Connections that were dropped while idle, slow brokers, and what is closed after a while."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from memory_network import api_versions

from kafkagroup.broker import Broker
from kafkagroup.errors import ConnectionLostError, RequestTimeoutError
from kafkagroup.transport.broker import MAIN
from kafkagroup.transport.options import ClientOptions
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
)
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafkagroup.wire.messages.offsets import OffsetCommitRequest, OffsetCommitResponse

pytestmark = pytest.mark.anyio

HERE = ("broker", 9092)
OPTIONS = ClientOptions(request_timeout=30.0, connect_timeout=10.0, connections_max_idle=540.0)
LOOK_UP = FindCoordinatorRequest(coordinator_keys=("g",))
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
JOIN = JoinGroupRequest(
    group_id="g", session_timeout_ms=10_000, member_id="m", protocol_type="p", protocols=()
)
ANSWERS: dict[type[Any], object] = {
    ApiVersionsRequest: api_versions(),
    MetadataRequest: MetadataResponse(brokers=(), topics=()),
    FindCoordinatorRequest: FindCoordinatorResponse(coordinators=()),
    HeartbeatRequest: HeartbeatResponse(error_code=0),
    OffsetCommitRequest: OffsetCommitResponse(topics=()),
}


class Scripted:
    """A broker that responds after a while, and records each request with its time and the number
    of its connection."""

    def __init__(
        self, delay: Callable[[int, Any], float] = lambda connection, request: 0.0
    ) -> None:
        self.delay = delay
        self.seen: list[tuple[int, type[Any]]] = []
        self.connections = 0

    async def __call__(self, peer: Any) -> None:
        self.connections += 1
        number = self.connections
        while True:
            incoming = await peer.read()
            self.seen.append((number, type(incoming.request)))
            await anyio.sleep(self.delay(number, incoming.request))
            if isinstance(incoming.request, JoinGroupRequest):
                await anyio.sleep(1200)
                response: object = JoinGroupResponse(
                    error_code=0,
                    generation_id=1,
                    protocol_name="",
                    leader="",
                    member_id="m",
                    members=(),
                )
            else:
                response = ANSWERS[type(incoming.request)]
            await peer.respond(incoming, response)

    def count(self, request: type[Any]) -> int:
        return sum(kind is request for _, kind in self.seen)


@asynccontextmanager
async def open_broker(
    network: Any, scripted: Scripted | None = None, **options: Any
) -> AsyncIterator[Broker]:
    network.handlers[HERE] = scripted or Scripted()
    chosen = ClientOptions(**{"request_timeout": 30.0, **options})
    async with network, Broker.open(*HERE, options=chosen) as broker:
        yield broker


# ---------------------------------------------------------------- dropped while idle


@pytest.mark.parametrize(
    "request_",
    [HEARTBEAT, LOOK_UP, MetadataRequest(topics=()), OffsetCommitRequest(group_id="g", topics=())],
    ids=lambda request: type(request).__name__,
)
async def test_a_connection_that_was_dropped_while_idle_costs_a_second(
    network: Any, request_: Any
) -> None:
    """A load balancer forgets idle connections: every second commit failed after 30 s."""
    network.idle_limit = 5.0
    scripted = Scripted()
    async with open_broker(network, scripted) as broker:
        for _ in range(3):
            start = anyio.current_time()
            assert await broker.request(request_) == ANSWERS[type(request_)]
            assert anyio.current_time() - start <= 1.1
            await anyio.sleep(10)
    # Each request has reached the broker once, and none was sent into a dropped connection.
    assert [number for number, kind in scripted.seen if kind is type(request_)] == [1, 2, 3]
    assert len(network.forgotten) == 3
    assert network.open == 0


async def test_a_connection_in_use_is_not_checked(network: Any) -> None:
    scripted = Scripted()
    async with open_broker(network, scripted) as broker:
        for _ in range(5):
            await broker.request(HEARTBEAT)
            await anyio.sleep(3)  # Kafka's interval of heartbeats
    assert scripted.seen == [(1, ApiVersionsRequest), *[(1, HeartbeatRequest)] * 5]


async def test_an_idle_connection_that_works_is_kept(network: Any) -> None:
    scripted = Scripted()
    async with open_broker(network, scripted) as broker:
        await anyio.sleep(60)
        await broker.request(HEARTBEAT)
    checked = [(1, ApiVersionsRequest)] * 2
    assert (scripted.seen, network.dialled) == ([*checked, (1, HeartbeatRequest)], [HERE])


async def test_requests_at_the_same_time_share_a_check(network: Any) -> None:
    """None of them may be sent behind a check that is not answered: it could be lost."""
    network.idle_limit = 5.0
    scripted = Scripted()
    async with open_broker(network, scripted) as broker:
        await anyio.sleep(10)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(broker.request, HEARTBEAT)
                await anyio.sleep(0.1)
    assert scripted.seen == [
        (1, ApiVersionsRequest),
        (2, ApiVersionsRequest),
        *[(2, HeartbeatRequest)] * 3,
    ]


async def test_a_connection_may_be_closed_while_it_is_checked(network: Any) -> None:
    """It had left the client's table, and KeyError ended the request."""
    network.idle_limit = 5.0
    scripted = Scripted()
    async with open_broker(network, scripted) as broker:
        await anyio.sleep(10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(broker.request, HEARTBEAT)
            await anyio.sleep(0.1)
            await broker.disconnect(MAIN)
    assert scripted.seen[-1] == (2, HeartbeatRequest)


async def test_the_connection_to_a_slow_broker_is_kept(network: Any) -> None:
    """An overloaded broker needs seconds for any response. If each idle connection were replaced,
    its clients would all shake hands again."""
    scripted = Scripted(
        lambda number, request: 0.0 if number == 1 and len(scripted.seen) < 2 else 2.0
    )
    async with open_broker(network, scripted) as broker:
        await anyio.sleep(10)
        assert await broker.request(HEARTBEAT) == ANSWERS[HeartbeatRequest]
        assert [stream.closed for stream in network.streams] == [False, True]
    assert scripted.seen[-1] == (1, HeartbeatRequest)


async def test_a_dropped_connection_to_a_dead_broker_is_closed(network: Any) -> None:
    network.idle_limit = 5.0
    async with open_broker(network) as broker:
        await anyio.sleep(10)
        del network.handlers[HERE]
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match="refused"):
                await broker.request(HEARTBEAT)
        await anyio.sleep(0.1)
        assert network.open == 0


async def test_a_cancelled_request_does_not_keep_a_dropped_connection(network: Any) -> None:
    """An application that gives each commit half a second has none that waits for the check."""
    network.idle_limit = 5.0
    async with open_broker(network) as broker:
        await anyio.sleep(10)
        with anyio.move_on_after(0.5) as scope:
            await broker.request(HEARTBEAT)
        assert scope.cancelled_caught
        await anyio.sleep(10)
        with anyio.fail_after(0.5):
            assert await broker.request(HEARTBEAT) == ANSWERS[HeartbeatRequest]
        assert network.open == 1


async def test_a_broker_that_does_not_list_api_versions_is_checked_too(network: Any) -> None:
    versions = api_versions()
    keys = tuple(k for k in versions.api_keys if k.api_key != ApiVersionsRequest.api_key)

    async def handler(peer: Any) -> None:
        await peer.serve(
            {
                ApiVersionsRequest: lambda _: api_versions(api_keys=keys),
                HeartbeatRequest: lambda _: HeartbeatResponse(error_code=0),
            }
        )

    network.handlers[HERE] = handler
    async with network, Broker.open(*HERE, options=OPTIONS) as broker:
        await anyio.sleep(10)
        assert await broker.request(HEARTBEAT) == ANSWERS[HeartbeatRequest]
    assert network.dialled == [HERE]


# ---------------------------------------------------------------- closed while idle


async def test_an_idle_connection_is_closed(network: Any) -> None:
    """The client closes it before what lies between forgets it."""
    async with open_broker(network, connections_max_idle=60.0) as broker:
        await broker.request(HEARTBEAT)
        await broker.request(HEARTBEAT, connection_id="other")
        await anyio.sleep(40)
        await broker.request(HEARTBEAT, connection_id="other")
        await anyio.sleep(30)
        assert (broker.connected, broker.is_connected("other"), network.open) == (False, True, 1)
        await anyio.sleep(40)
        assert network.open == 0
        assert await broker.request(HEARTBEAT) == ANSWERS[HeartbeatRequest]
        await anyio.sleep(100)
        assert network.open == 0


async def test_a_connection_with_a_request_in_flight_is_not_idle(network: Any) -> None:
    """A JoinGroup in the coordinator's purgatory, also after its caller was cancelled."""
    async with open_broker(network, connections_max_idle=60.0) as broker:
        with anyio.move_on_after(600):
            await broker.request(JOIN, connection_id="group", timeout=3600)
        assert (network.open, broker.connected) == (1, False)
        await anyio.sleep(599)
        assert network.open == 1
        await anyio.sleep(62)
        assert network.open == 0


async def test_closing_does_not_wait_for_idle_connections(network: Any) -> None:
    """A task group that waits for its tasks waited nine minutes."""
    network.handlers[HERE] = Scripted()
    async with network:
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            broker = Broker(1, *HERE, tasks, OPTIONS)
            await broker.connect()
            await broker.aclose()
        assert anyio.current_time() == start


# ---------------------------------------------------------------- a lost response


async def test_a_look_up_is_repeated_over_a_new_connection_in_its_time(network: Any) -> None:
    """One attempt used the whole timeout, and the call failed."""
    scripted = Scripted(lambda number, request: 9e9 if number == 1 and request == LOOK_UP else 0.0)
    async with open_broker(network, scripted) as broker:
        start = anyio.current_time()
        assert await broker.request(LOOK_UP) == ANSWERS[FindCoordinatorRequest]
        assert anyio.current_time() - start == pytest.approx(10)
        assert [stream.closed for stream in network.streams] == [True, False]
    assert [number for number, kind in scripted.seen if kind is FindCoordinatorRequest] == [1, 2]


async def test_a_look_up_without_a_response_fails_in_its_time(network: Any) -> None:
    scripted = Scripted(lambda number, request: 9e9 if request == LOOK_UP else 0.0)
    async with open_broker(network, scripted) as broker:
        start = anyio.current_time()
        with pytest.raises(RequestTimeoutError):
            await broker.request(LOOK_UP)
        assert anyio.current_time() - start == pytest.approx(30)
    assert scripted.count(FindCoordinatorRequest) == 2


async def test_a_broker_that_needs_longer_than_a_part_of_the_timeout_is_waited_for(
    network: Any,
) -> None:
    scripted = Scripted(lambda number, request: 15.0 if request == LOOK_UP else 0.0)
    async with open_broker(network, scripted) as broker:
        for _ in range(3):
            assert await broker.request(LOOK_UP) == ANSWERS[FindCoordinatorRequest]
    # Only the first call has needed a second attempt.
    assert scripted.count(FindCoordinatorRequest) == 4


async def test_a_look_up_on_a_connection_that_was_reset_is_repeated(network: Any) -> None:
    """Some load balancers answer the first bytes on a connection that they have forgotten so."""
    scripted = Scripted()
    async with open_broker(network, scripted) as broker:
        resetting = True

        def delay(number: int, request: object) -> float:
            if resetting and request == LOOK_UP and number == 1:
                raise anyio.EndOfStream
            return 0.0

        scripted.delay = delay
        assert await broker.request(LOOK_UP) == ANSWERS[FindCoordinatorRequest]
    assert [number for number, kind in scripted.seen if kind is FindCoordinatorRequest] == [1, 2]


async def test_a_look_up_is_not_repeated_without_end(network: Any) -> None:
    """A broker that closes each connection at this request."""

    def delay(number: int, request: object) -> float:
        if request == LOOK_UP:
            raise anyio.EndOfStream
        return 0.0

    scripted = Scripted(delay)
    async with open_broker(network, scripted) as broker:
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                await broker.request(LOOK_UP)
    assert scripted.count(FindCoordinatorRequest) == 3  # only the first connection was not new


async def test_a_look_up_is_not_repeated_after_the_close(network: Any) -> None:
    scripted = Scripted(lambda number, request: 9e9 if request == LOOK_UP else 0.0)
    async with open_broker(network, scripted) as broker:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(ConnectionLostError):
                    await broker.request(LOOK_UP)

            tasks.start_soon(ask)
            await anyio.sleep(1)
            await broker.aclose()
    assert scripted.count(FindCoordinatorRequest) == 1


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_request_that_may_have_been_executed_is_not_repeated(
    network: Any, is_reset: bool
) -> None:
    def delay(number: int, request: object) -> float:
        if request == HEARTBEAT and is_reset:
            raise anyio.EndOfStream
        return 9e9 if request == HEARTBEAT else 0.0

    scripted = Scripted(delay)
    async with open_broker(network, scripted) as broker:
        with pytest.raises((RequestTimeoutError, ConnectionLostError)):
            await broker.request(HEARTBEAT)
    assert scripted.count(HeartbeatRequest) == 1
