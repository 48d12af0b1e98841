"""Which cluster a connection leads to, on scripted brokers."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from memory_network import Peer, api_versions

from kafkagroup.errors import ClusterChangedError, ConnectionLostError
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.transport.identity import (
    ClusterIdentity,
    ForeignClusterError,
    RebootstrapRequiredError,
    require_cluster,
)
from kafkagroup.transport.options import ClientOptions
from kafkagroup.wire.messages.fetch import FetchRequest, FetchResponse
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from kafkagroup.wire.messages.metadata import MetadataRequest, MetadataResponse
from kafkagroup.wire.schema import Versions

pytestmark = pytest.mark.anyio

HERE = ("a", 9092)
FETCH = FetchRequest(max_wait_ms=500, min_bytes=1, topics=())


def metadata(cluster_id: str | None, error_code: int = 0) -> MetadataResponse:
    return MetadataResponse(brokers=(), topics=(), cluster_id=cluster_id, error_code=error_code)


class Broker:
    """Answers the requests of one connection, in the order that the test gives."""

    def __init__(self, network: Any, identity: ClusterIdentity, **changed: Any) -> None:
        self.network = network
        self.identity = identity
        self.changed = changed
        self.peer: Peer

    async def connect(self, tasks: Any) -> BrokerConnection:
        async def serve(peer: Peer) -> None:
            self.peer = peer
            await peer.handshake(self.changed.get("versions"))
            await anyio.sleep_forever()

        self.network.handlers[HERE] = serve
        return await BrokerConnection.connect(*HERE, ClientOptions(), tasks, identity=self.identity)


async def test_a_fetch_follows_at_once_and_its_response_is_held(network: Any) -> None:
    """A broker that responds out of order delivers nothing before it has named its cluster."""
    broker = Broker(network, ClusterIdentity("ours"))
    done: list[object] = []
    async with network, anyio.create_task_group() as tasks:
        connection = await broker.connect(tasks)

        async def fetch() -> None:
            done.append(await connection.request(FETCH, timeout=9.0))

        tasks.start_soon(fetch)
        asked = [await broker.peer.read(), await broker.peer.read()]
        assert [type(one.request) for one in asked] == [MetadataRequest, FetchRequest]
        assert asked[0].request.topics == ()
        await broker.peer.respond(asked[1], FetchResponse(error_code=0, session_id=0, responses=()))
        await anyio.sleep(1)
        assert (done, connection.is_identified) == ([], False)
        await broker.peer.respond(asked[0], metadata("ours"))
        await anyio.sleep(1)
        assert ([type(one) for one in done], connection.is_identified) == ([FetchResponse], True)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_foreign_response_is_dropped(network: Any, is_late: bool) -> None:
    broker = Broker(network, ClusterIdentity("ours"))
    processed: list[object] = []
    async with network, anyio.create_task_group() as tasks:
        connection = await broker.connect(tasks)

        async def respond() -> None:
            first, second = await broker.peer.read(), await broker.peer.read()
            responses = (
                (first, metadata("theirs")),
                (second, FetchResponse(error_code=0, session_id=0, responses=())),
            )
            for incoming, message in reversed(responses) if is_late else responses:
                await broker.peer.respond(incoming, message)

        tasks.start_soon(respond)
        with pytest.raises(ForeignClusterError) as caught:
            await connection.request(FETCH, timeout=9.0, on_response=processed.append)
        assert str(caught.value) == (
            "a:9092: belongs to cluster 'theirs', and this client works with cluster 'ours': the"
            " connection is closed"
        )
        await anyio.sleep(1)
        assert (processed, connection.is_closed, network.open) == ([], True, 0)
        with pytest.raises(ConnectionLostError):
            await connection.request(FETCH, timeout=9.0)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("found", [None, "", "ours"])
async def test_no_id_is_no_identity(network: Any, found: str | None) -> None:
    broker = Broker(network, ClusterIdentity("ours"))
    async with network, anyio.create_task_group() as tasks:
        connection = await broker.connect(tasks)

        async def respond() -> None:
            await broker.peer.respond(await broker.peer.read(), metadata(found))

        tasks.start_soon(respond)
        await connection.request(MetadataRequest(topics=()), timeout=9.0)
        assert (connection.is_identified, broker.identity.cluster_id) == (True, "ours")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("known", "versions"), [(None, None), ("ours", {MetadataRequest: Versions(0, 1)})]
)
async def test_nothing_is_asked_where_nothing_could_be_compared(
    network: Any, known: str | None, versions: Any
) -> None:
    """Before the first cluster id is known, and with brokers that do not tell theirs."""
    broker = Broker(network, ClusterIdentity(known), versions=versions)
    async with network, anyio.create_task_group() as tasks:
        connection = await broker.connect(tasks)
        tasks.start_soon(lambda: connection.request(FETCH, timeout=9.0))
        assert type((await broker.peer.read()).request) is FetchRequest
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (MetadataRequest(topics=()), metadata(None, 129)),
        (
            HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
            HeartbeatResponse(error_code=129),
        ),
    ],
)
async def test_any_response_may_require_to_bootstrap_again(
    network: Any, request_: Any, response: Any
) -> None:
    broker = Broker(network, ClusterIdentity())
    async with network, anyio.create_task_group() as tasks:
        connection = await broker.connect(tasks)

        async def respond() -> None:
            await broker.peer.respond(await broker.peer.read(), response)

        tasks.start_soon(respond)
        with pytest.raises(RebootstrapRequiredError):
            await connection.request(request_, timeout=9.0)
        assert connection.is_closed
        tasks.cancel_scope.cancel()


async def test_a_handshake_may_require_to_bootstrap_again(network: Any) -> None:
    """KIP-1242: the broker knows from the request that the client looks for another one."""

    async def serve(peer: Peer) -> None:
        await peer.respond(await peer.read(), api_versions(error_code=129))
        await anyio.sleep_forever()

    network.handlers[HERE] = serve
    async with network, anyio.create_task_group() as tasks:
        with pytest.raises(RebootstrapRequiredError):
            await BrokerConnection.connect(
                *HERE, ClientOptions(), tasks, identity=ClusterIdentity("ours")
            )
        tasks.cancel_scope.cancel()


def test_what_belongs_to_another_cluster_is_refused() -> None:
    for expected, found in ((None, "b"), ("a", None), ("a", "a")):
        require_cluster(expected, found, "the offsets")
    with pytest.raises(ClusterChangedError) as caught:
        require_cluster("a", "b", "the offsets")
    assert str(caught.value) == (
        "the offsets belong to cluster 'a', and this is cluster 'b': nothing was changed; use them"
        " with their own cluster"
    )
