"""Finding coordinators: one look-up for all that wait, what is kept, and what invalidates it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kafkagroup.errors import (
    BrokerError,
    ConnectionLostError,
    ErrorCode,
    LocalProtocolError,
    broker_error,
)
from kafkagroup.transport import coordinators
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.coordinators import CoordinatorType
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.wire.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafkagroup.wire.schema import Versions

pytestmark = pytest.mark.anyio

A = "a", 9092
ONE, TWO = Node(1, "one", 9092), Node(2, "two", 9092)
TRANSACTION = CoordinatorType.TRANSACTION


class Asked:
    """A broker that names these coordinators, one after the other; the last one again and again.
    Each response takes a second."""

    def __init__(self, *named: Node | ErrorCode) -> None:
        self._named = list(named)
        self.requests: list[FindCoordinatorRequest] = []

    async def __call__(self, peer: Any) -> None:
        await peer.serve({FindCoordinatorRequest: self.respond})

    async def respond(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        self.requests.append(request)
        await anyio.sleep(1)
        (key,) = request.coordinator_keys
        named = self._named.pop(0) if len(self._named) > 1 else self._named[0]
        found = (
            Coordinator(key=key, node_id=named.node_id, host=named.host, port=named.port)
            if isinstance(named, Node)
            else Coordinator(key=key, node_id=-1, port=-1, error_code=named, error_message="later")
        )
        return FindCoordinatorResponse(coordinators=(found,))


@asynccontextmanager
async def open_cluster(network: Any, handler: Callable[[Any], Any]) -> AsyncIterator[Cluster]:
    servers: tuple[Address, ...] = (A,)
    network.handlers[A] = handler
    async with network, anyio.create_task_group() as tasks:
        cluster = Cluster(servers, ClientOptions(), tasks)
        yield cluster
        await cluster.aclose()


# ---------------------------------------------------------------- a look-up


@pytest.mark.parametrize("versions", [Versions(0, 0), Versions(1, 3), Versions(0, 6)], ids=str)
async def test_the_coordinator_is_looked_up_in_every_version(
    network: Any, versions: Versions
) -> None:
    """Before version 4 the request has one group, in another field."""
    asked: list[object] = []

    async def handler(peer: Any) -> None:
        await peer.handshake({FindCoordinatorRequest: versions})
        incoming = await peer.read()
        asked.append((incoming.version, incoming.request.key, incoming.request.coordinator_keys))
        found = Coordinator(key="g", node_id=3, host="h", port=9)
        await peer.respond(
            incoming,
            FindCoordinatorResponse(node_id=3, host="h", port=9)
            if versions.high < 4
            else FindCoordinatorResponse(coordinators=(found,)),
        )
        await anyio.sleep_forever()

    async with open_cluster(network, handler) as cluster:
        assert await cluster.coordinators.find("g") == Node(3, "h", 9)
    high = versions.high
    assert asked == [(high, "g", ()) if high < 4 else (high, "", ("g",))]


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.GROUP_AUTHORIZATION_FAILED]
)
async def test_a_refusal_is_raised(network: Any, code: ErrorCode) -> None:
    asked = Asked(code)
    async with open_cluster(network, asked) as cluster:
        with pytest.raises(BrokerError) as caught:
            await cluster.coordinators.find("g")
    assert caught.value == broker_error(code, "later", operation="DESCRIBE", group="g")
    assert cluster.coordinators.known("g") is None


@pytest.mark.parametrize("other", [(), (Coordinator(key="other", node_id=1, host="one"),)])
async def test_a_response_without_the_coordinator_is_an_error(network: Any, other: Any) -> None:
    response = FindCoordinatorResponse(coordinators=other)

    async def handler(peer: Any) -> None:
        await peer.serve({FindCoordinatorRequest: lambda _: response})

    async with open_cluster(network, handler) as cluster:
        with pytest.raises(BrokerError, match="the response names no coordinator") as caught:
            await cluster.coordinators.find("g")
    assert caught.value.retriable


async def test_a_transactional_id_has_a_coordinator_of_its_own(network: Any) -> None:
    asked = Asked(ONE, TWO)
    async with open_cluster(network, asked) as cluster:
        assert await cluster.coordinators.find("x") == ONE
        assert await cluster.coordinators.find("x", TRANSACTION) == TWO
        assert await cluster.coordinators.find("x") == ONE
        cluster.coordinators.invalidate("x", TRANSACTION)
        assert cluster.coordinators.known("x", TRANSACTION) is None
        assert cluster.coordinators.known("x") == ONE
    assert asked.requests == [
        FindCoordinatorRequest(key_type=0, coordinator_keys=("x",)),
        FindCoordinatorRequest(key_type=1, coordinator_keys=("x",)),
    ]


async def test_a_broker_without_transactions_is_not_asked_for_a_group_instead(
    network: Any,
) -> None:
    """In version 0 the request has no type, and every key is a group's."""

    async def handler(peer: Any) -> None:
        await peer.handshake({FindCoordinatorRequest: Versions(0, 0)})
        await anyio.sleep_forever()

    async with open_cluster(network, handler) as cluster:
        with pytest.raises(LocalProtocolError, match="key_type"):
            await cluster.coordinators.find("x", TRANSACTION)


# ---------------------------------------------------------------- one look-up for all


async def test_concurrent_look_ups_of_a_key_are_one_request(network: Any) -> None:
    found: list[Node] = []
    asked = Asked(ONE)
    async with open_cluster(network, asked) as cluster, anyio.create_task_group() as tasks:

        async def find(key: str) -> None:
            found.append(await cluster.coordinators.find(key))

        for key in ("g", "g", "h", "g"):
            tasks.start_soon(find, key)
    assert found == [ONE] * 4
    assert sorted(r.coordinator_keys for r in asked.requests) == [("g",), ("h",)]


async def test_concurrent_look_ups_share_a_refusal(network: Any) -> None:
    errors: list[BrokerError] = []
    asked = Asked(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    async with open_cluster(network, asked) as cluster:

        async def find() -> None:
            with pytest.raises(BrokerError) as caught:
                await cluster.coordinators.find("g")
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(find)
        await find()  # a later one is a request of its own
    assert [error.code for error in errors] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 4
    assert len(asked.requests) == 2


async def test_a_cancelled_look_up_fails_none_that_share_it(network: Any) -> None:
    found: list[Node] = []
    asked = Asked(ONE)
    async with open_cluster(network, asked) as cluster:
        async with anyio.create_task_group() as tasks:

            async def find() -> None:
                found.append(await cluster.coordinators.find("g"))

            async def find_briefly() -> None:
                with anyio.move_on_after(0.5):
                    await find()

            tasks.start_soon(find_briefly)
            await anyio.sleep(0.1)
            tasks.start_soon(find)
            tasks.start_soon(find)
    assert found == [ONE, ONE]
    assert len(asked.requests) == 2


# ---------------------------------------------------------------- what is kept


async def test_a_known_coordinator_is_not_looked_up_again(network: Any) -> None:
    asked = Asked(ONE, TWO)
    async with open_cluster(network, asked) as cluster:
        assert [await cluster.coordinators.find("g") for _ in range(3)] == [ONE] * 3
        assert await cluster.coordinators.look_up("g") == TWO
        assert await cluster.coordinators.find("g") == TWO
    assert len(asked.requests) == 2


async def test_only_the_coordinator_that_was_used_is_invalidated(network: Any) -> None:
    """The response of the former coordinator may arrive after the next one was found."""
    async with open_cluster(network, Asked(ONE, TWO)) as cluster:
        await cluster.coordinators.find("g")
        await cluster.coordinators.look_up("g")
        cluster.coordinators.invalidate("g", node=ONE)
        assert cluster.coordinators.known("g") == TWO
        cluster.coordinators.invalidate("g", node=TWO)
        assert cluster.coordinators.known("g") is None


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (BrokerError(ErrorCode.NOT_COORDINATOR), False),
        (BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), True),
        (BrokerError(ErrorCode.GROUP_ID_NOT_FOUND), True),
        (ConnectionLostError("closed"), False),
        (ValueError("of the caller"), True),
    ],
    ids=repr,
)
async def test_an_error_of_a_request_invalidates_its_coordinator(
    network: Any, error: Exception, is_kept: bool
) -> None:
    async with open_cluster(network, Asked(ONE)) as cluster:
        with pytest.raises(type(error)):
            async with cluster.coordinator("g") as broker:
                assert (broker.node_id, broker.address) == (1, ("one", 9092))
                raise error
        assert cluster.coordinators.known("g") == (ONE if is_kept else None)


async def test_the_number_of_known_coordinators_is_bounded(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "_MAX_KNOWN", 2)
    async with open_cluster(network, Asked(ONE)) as cluster:
        for key in ("g1", "g2", "g1", "g3"):
            await cluster.coordinators.look_up(key)
        known = cluster.coordinators.known
        assert [known(key) for key in ("g1", "g2", "g3")] == [ONE, None, ONE]


async def test_who_watches_a_group_learns_what_others_find(network: Any) -> None:
    seen: list[Node | None] = []
    async with open_cluster(network, Asked(ONE, TWO)) as cluster:
        cluster.coordinators.watch("g", seen.append)
        await cluster.coordinators.find("g")
        await cluster.coordinators.find("h")
        await cluster.coordinators.find("g", TRANSACTION)
        cluster.coordinators.forget()
        assert await cluster.coordinators.find("g") == TWO
    assert seen == [ONE, None, TWO]
