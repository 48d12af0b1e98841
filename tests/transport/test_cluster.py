"""The brokers that a cluster asks, how often, and the state that it keeps of their responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import Any

import anyio
import attrs
import pytest

from kafkagroup.errors import (
    ConnectionLostError,
    ErrorCode,
    NoBrokersAvailableError,
    RequestTimeoutError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Throttle
from kafkagroup.transport.broker import MAIN
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import ClusterMetadata, NamedLeaders, Node, PartitionMetadata
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import LeaderIdAndEpoch
from kafkagroup.wire.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

pytestmark = pytest.mark.anyio

OPTIONS = ClientOptions(request_timeout=4.0, connect_timeout=3.0)
METADATA = MetadataRequest(topics=())
A, B, C = ("a", 9092), ("b", 9092), ("c", 9092)


@asynccontextmanager
async def open_cluster(*servers: Address) -> AsyncIterator[Cluster]:
    async with anyio.create_task_group() as tasks:
        cluster = Cluster(servers, OPTIONS, tasks)
        yield cluster
        await cluster.aclose()


def metadata_of(**nodes: Address) -> Callable[[MetadataRequest], MetadataResponse]:
    """Return a handler that responds with these brokers (n1=...) and the requested topics."""

    def respond(request: MetadataRequest) -> MetadataResponse:
        return MetadataResponse(
            brokers=tuple(
                MetadataResponseBroker(node_id=int(name[1:]), host=host, port=port)
                for name, (host, port) in nodes.items()
            ),
            topics=tuple(
                MetadataResponseTopic(error_code=0, name=topic.name, partitions=())
                for topic in request.topics or ()
            ),
        )

    return respond


def serving(response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda peer: peer.serve({MetadataRequest: response})


# ---------------------------------------------------------------- bootstrap


async def test_unreachable_bootstrap_addresses_are_skipped(network: Any) -> None:
    """A refuses connections, and B accepts none in time."""
    network.handlers |= {B: None, C: serving(metadata_of(n1=C))}
    async with network, open_cluster(A, B, C) as cluster:
        start = anyio.current_time()
        assert (await cluster.refresh()).nodes == {1: Node(1, *C)}
        assert anyio.current_time() - start == pytest.approx(OPTIONS.connect_timeout)
        assert network.dialled == [A, B, C]


async def test_the_error_names_the_reason_of_each_unreachable_address(network: Any) -> None:
    async def web_server(peer: Any) -> None:
        await peer.read()
        await peer.stream.send(b"HTTP/1.1 400 Bad Request\r\n")

    network.handlers |= {B: None, C: web_server}
    async with network, open_cluster(A, B, C) as cluster:
        with pytest.raises(NoBrokersAvailableError) as caught:
            await cluster.refresh()
    assert str(caught.value) == (
        "no broker answered: a:9092: refused; b:9092: no connection within 3.0 s;"
        " c:9092: response of 1213486160 bytes; the limit is 1048576"
    )


async def test_the_connection_to_a_bootstrap_address_is_closed_once_brokers_are_known(
    network: Any,
) -> None:
    network.handlers |= {A: serving(metadata_of(n1=B)), B: serving(metadata_of(n1=B))}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        await anyio.sleep(1)
        assert (network.dialled, network.open) == ([A], 0)
        await cluster.refresh()
        assert (network.dialled, network.open) == ([A, B], 1)
        await cluster.refresh()
        assert (network.dialled, network.open) == ([A, B], 1)


async def test_a_throttle_at_the_bootstrap_address_applies_to_the_broker(
    network: Any,
) -> None:
    """KIP-219: the broker that the Metadata response names may be the one that has sent it."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.fail(MetadataRequest, Throttle(2.0))
        async with open_cluster(("kafka-1", 9092)) as cluster:
            await cluster.refresh()
            start = anyio.current_time()
            await cluster.refresh()
            assert anyio.current_time() - start == pytest.approx(2.0)


def throttling(seconds: float) -> Callable[[MetadataRequest], MetadataResponse]:
    """Return a handler whose first response throttles the client."""
    throttles = chain([round(seconds * 1000)], repeat(0))
    return lambda request: attrs.evolve(
        metadata_of(n1=A)(request), throttle_time_ms=next(throttles)
    )


async def test_a_throttle_of_a_broker_applies_to_its_bootstrap_address(
    network: Any,
) -> None:
    """KIP-219: FindCoordinator may name a broker before any Metadata response does. The next
    refresh goes to the same address, as a bootstrap server."""
    network.handlers[A] = serving(throttling(2.0))
    async with network, open_cluster(A) as cluster:
        await cluster.broker(Node(1, *A)).request(MetadataRequest(topics=()))
        start = anyio.current_time()
        await cluster.refresh()
        assert anyio.current_time() - start == pytest.approx(2.0)


async def test_a_throttle_in_a_response_that_requires_to_bootstrap_again_applies(
    network: Any,
) -> None:
    """The client once dropped such a response with its throttle time, and sent requests to the same
    address at once (KIP-219)."""
    usual = metadata_of(n1=A)(MetadataRequest(topics=()))
    refusal = attrs.evolve(usual, error_code=129, throttle_time_ms=2000)
    responses = chain([usual, refusal], repeat(usual))
    network.handlers[A] = serving(lambda _: next(responses))
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        start = anyio.current_time()
        await cluster.refresh()
        assert anyio.current_time() - start == pytest.approx(2.0)


async def test_a_throttle_survives_the_brokers_absence_from_metadata(network: Any) -> None:
    """KIP-219. Metadata may lack a running broker for a moment."""
    network.handlers[A] = serving(throttling(2.0))
    async with network, open_cluster(A) as cluster:
        await cluster.replace_metadata(ClusterMetadata(nodes={1: Node(1, *A)}))
        await cluster.broker(Node(1, *A)).request(MetadataRequest(topics=()))
        start = anyio.current_time()
        await cluster.replace_metadata(ClusterMetadata(nodes={2: Node(2, *B)}))
        await cluster.replace_metadata(ClusterMetadata(nodes={1: Node(1, *A)}))
        await cluster.broker(Node(1, *A)).request(MetadataRequest(topics=()))
        assert anyio.current_time() - start == pytest.approx(2.0)


async def test_a_throttle_applies_to_both_clients_of_a_broker_that_has_returned(
    network: Any,
) -> None:
    """A group may still use the first one, and its heartbeats were sent at once."""
    network.handlers[A] = serving(throttling(2.0))
    async with network, open_cluster(A) as cluster:
        first = cluster.broker(Node(1, *A))
        await cluster.replace_metadata(ClusterMetadata(nodes={2: Node(2, *B)}))
        await cluster.replace_metadata(ClusterMetadata(nodes={1: Node(1, *A)}))
        second = cluster.broker(Node(1, *A))
        assert first is not second
        await second.request(MetadataRequest(topics=()))
        start = anyio.current_time()
        await first.request(MetadataRequest(topics=()))
        assert anyio.current_time() - start == pytest.approx(2.0)
        await first.aclose()


async def test_a_starting_cluster_may_report_no_brokers(network: Any) -> None:
    responses = iter([metadata_of(), metadata_of(n1=A)])
    network.handlers[A] = serving(lambda request: next(responses)(request))
    async with network, open_cluster(A) as cluster:
        assert (await cluster.refresh()).nodes == {}
        assert (await cluster.refresh()).nodes == {1: Node(1, *A)}


async def test_a_cluster_with_all_brokers_replaced_is_found_through_bootstrap_addresses(
    network: Any,
) -> None:
    network.handlers |= {A: serving(metadata_of(n1=B, n2=C)), B: serving(metadata_of(n1=B, n2=C))}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        network.handlers = dict.fromkeys([A, ("new", 1)], serving(metadata_of(n7=("new", 1))))
        for stream in network.streams:
            await stream.aclose()
        assert (await cluster.refresh()).nodes == {7: Node(7, "new", 1)}
        # Both known ones were tried before the bootstrap address was, and then the new one, which
        # the bootstrap address names, to confirm that they are gone.
        assert sorted(network.dialled[1:4]) == [A, B, C]
        assert network.dialled[4:] == [("new", 1)]


async def test_a_cluster_recreated_at_the_bootstrap_address(network: Any) -> None:
    async with network:
        async with EmbeddedKafka({"t": 1}, listen=False, seed=1) as kafka:
            network.serve_embedded(kafka)
            async with open_cluster(("kafka-1", 9092)) as cluster:
                cluster.topics.follow(lambda: {"t"})
                first = await cluster.refresh()
                kafka.kill(1)
                with pytest.raises(NoBrokersAvailableError):
                    await cluster.refresh()
                assert cluster.metadata is first
                async with EmbeddedKafka({"t": 3}, listen=False, seed=2) as other:
                    network.serve_embedded(other)
                    again = await cluster.refresh()
                assert first.topics["t"].topic_id != again.topics["t"].topic_id
                assert again.partition_counts(["t"]) == {"t": 3}


async def test_an_invalid_address_in_metadata_counts_as_an_unreachable_broker(network: Any) -> None:
    """An invalid response must not fail the next request."""
    network.handlers[A] = serving(metadata_of(n1=("x", -1), n2=("x", 2**31 - 1), n3=A))
    async with network, open_cluster(A) as cluster:
        for _ in range(5):
            await cluster.refresh()
        assert cluster.metadata.nodes[3] == Node(3, *A)


# ---------------------------------------------------------------- refreshing


async def test_concurrent_callers_share_one_metadata_request(network: Any) -> None:
    request_count = 0

    async def handler(peer: Any) -> None:
        nonlocal request_count
        await peer.handshake()
        while True:
            incoming = await peer.read()
            request_count += 1
            await anyio.sleep(1)
            await peer.respond(incoming, metadata_of(n1=A)(incoming.request))

    network.handlers[A] = handler
    async with network, open_cluster(A) as cluster:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(cluster.refresh)
            await anyio.sleep(0.5)
            assert request_count == 1
            # These come too late for the request in flight, and share the next.
            for _ in range(3):
                tasks.start_soon(cluster.refresh)
        assert request_count == 2


async def test_a_topic_added_during_a_metadata_request_causes_another_request(network: Any) -> None:
    """The response to an earlier request may lack the topic."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        while True:
            incoming = await peer.read()
            await anyio.sleep(1)
            await peer.respond(incoming, metadata_of(n1=A)(incoming.request))

    network.handlers[A] = handler
    found: list[object] = []
    async with network, open_cluster(A) as cluster:

        async def want(topic: str, delay: float) -> None:
            await anyio.sleep(delay)
            cluster.topics.follow(lambda: {topic})
            found.append((topic, topic in (await cluster.refresh()).topics))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(want, "one", 0)
            tasks.start_soon(want, "two", 0.5)
            tasks.start_soon(want, "three", 0.6)
    assert sorted(found) == [("one", True), ("three", True), ("two", True)]


async def test_a_failed_refresh_is_not_shared(network: Any) -> None:
    async with network, open_cluster(A) as cluster:
        with pytest.raises(NoBrokersAvailableError):
            await cluster.refresh()
        network.handlers[A] = serving(metadata_of(n1=A))
        assert (await cluster.refresh()).nodes == {1: Node(1, *A)}


async def test_on_change_is_called_for_changes_only(network: Any) -> None:
    network.handlers[A] = serving(metadata_of(n1=A))
    async with network, open_cluster(A) as cluster:
        topic_counts: list[int] = []
        cluster.on_change = lambda: topic_counts.append(len(cluster.metadata.topics))
        await cluster.refresh()
        await cluster.refresh()
        assert topic_counts == [0]
        cluster.topics.follow(lambda: {"t"})
        await cluster.refresh()
        assert len(topic_counts) == 2


def large(*, moved: int = -1) -> MetadataResponse:
    """Return a Metadata response with more partitions than are merged in the event loop; partition
    `moved` has leader 2 in epoch 9."""
    partitions = tuple(
        MetadataResponsePartition(
            error_code=0,
            partition_index=index,
            leader_id=2 if index == moved else 1,
            leader_epoch=9 if index == moved else 0,
            replica_nodes=(1, 2),
            isr_nodes=(1, 2),
        )
        for index in range(2_001)
    )
    topic = MetadataResponseTopic(error_code=0, name="t", partitions=partitions)
    return attrs.evolve(metadata_of(n1=A, n2=B)(MetadataRequest(topics=())), topics=(topic,))


async def test_a_large_metadata_response_is_merged_in_a_thread(network: Any) -> None:
    """A leader named by a fetch response in the meantime is kept."""
    job_count = 0
    tp = TopicPartition("t", 7)

    async def run_in_thread(job: Callable[[], Any]) -> Any:
        nonlocal job_count
        done = job()
        job_count += 1
        if job_count == 4:
            named = LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
            leaders = NamedLeaders(())
            assert leaders.add(cluster.metadata, tp, named)
            cluster.apply_leaders(leaders)
        return done

    responses = iter([large(), large(), large(moved=7)])
    network.handlers |= dict.fromkeys([A, B], serving(lambda _: next(responses)))
    options = attrs.evolve(OPTIONS, run_in_thread=run_in_thread)
    async with network, anyio.create_task_group() as tasks:
        cluster = Cluster((A,), options, tasks)
        cluster.topics.follow(lambda: {"t"})
        await cluster.refresh()
        # Decoded and merged.
        assert job_count == 2
        assert cluster.metadata.partition_counts(["t"]) == {"t": 2_001}
        await cluster.refresh()
        # Decoded and merged; meanwhile a fetch response named a new leader: merged again. The
        # response contradicts that, so another broker's is decoded and merged.
        assert job_count == 7
        assert cluster.metadata.leader(tp) == PartitionMetadata(2, 9, (1, 2))
        await cluster.aclose()


# ---------------------------------------------------------------- second opinions


def scripted(*topics: int | None, nodes: dict[str, Address]) -> Callable[[Any], Any]:
    """Return a broker that reports topic t with so many partitions in each response, None if it
    does not know the topic; the last one repeats."""
    script = list(topics)

    def respond(request: MetadataRequest) -> MetadataResponse:
        count = script.pop(0) if len(script) > 1 else script[0]
        found = metadata_of(**nodes)(request)
        partitions = tuple(
            MetadataResponsePartition(
                error_code=0,
                partition_index=index,
                leader_id=1,
                leader_epoch=0,
                replica_nodes=(1,),
                isr_nodes=(1,),
            )
            for index in range(count or 0)
        )
        topic = MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if count is None else 0,
            name="t",
            partitions=partitions,
        )
        return attrs.evolve(found, topics=(topic,))

    return serving(respond)


async def refreshed(cluster: Cluster) -> tuple[dict[str, int], float]:
    """Return the partition counts after a refresh, and the seconds that it took."""
    start = anyio.current_time()
    return (await cluster.refresh()).partition_counts(["t"]), anyio.current_time() - start


async def test_another_broker_is_asked_at_once_for_what_one_contradicts(network: Any) -> None:
    nodes = {"n1": A, "n2": B}
    network.handlers |= {A: scripted(3, None, nodes=nodes), B: scripted(3, nodes=nodes)}
    async with network, open_cluster(A) as cluster:
        cluster.topics.follow(lambda: {"t"})
        for _ in range(3):
            assert await refreshed(cluster) == ({"t": 3}, pytest.approx(0, abs=0.1))
        assert B in network.dialled
        assert not cluster.has_unconfirmed_metadata


async def test_the_only_broker_is_asked_again_after_a_pause(network: Any) -> None:
    network.handlers[A] = scripted(3, None, 3, None, nodes={"n1": A})
    async with network, open_cluster(A) as cluster:
        cluster.topics.follow(lambda: {"t"})
        assert await refreshed(cluster) == ({"t": 3}, pytest.approx(0, abs=0.1))
        pause = OPTIONS.retry_backoff_max
        assert await refreshed(cluster) == ({"t": 3}, pytest.approx(pause, abs=0.1))
        assert await refreshed(cluster) == ({}, pytest.approx(pause, abs=0.1))
        assert await refreshed(cluster) == ({}, pytest.approx(0, abs=0.1))


async def test_brokers_that_did_not_respond_are_not_asked_for_a_second_opinion(
    network: Any,
) -> None:
    """Each would take the connect timeout again, while all callers of `refresh` wait."""
    nodes = {"n1": A, "n2": B, "n3": C}
    network.handlers |= dict.fromkeys([A, B, C], scripted(3, nodes=nodes))
    async with network, open_cluster(A) as cluster:
        cluster.topics.follow(lambda: {"t"})
        await cluster.refresh()
        network.handlers |= {A: scripted(None, 3, nodes=nodes), B: None, C: None}
        for stream in network.streams:
            await stream.aclose()
        counts, seconds = await refreshed(cluster)
        assert counts == {"t": 3}
        assert seconds <= 2 * OPTIONS.connect_timeout + OPTIONS.retry_backoff_max + 0.1


async def test_a_topic_that_no_broker_knows_causes_no_pause(network: Any) -> None:
    network.handlers[A] = scripted(None, nodes={"n1": A})
    async with network, open_cluster(A) as cluster:
        cluster.topics.follow(lambda: {"t"})
        assert await refreshed(cluster) == ({}, pytest.approx(0, abs=0.1))


async def test_a_bootstrap_address_that_lists_no_brokers_is_skipped(network: Any) -> None:
    """A first response without brokers once blocked the start, although the second address
    worked."""
    network.handlers |= {A: serving(metadata_of()), B: serving(metadata_of(n2=B))}
    async with network, open_cluster(A, B) as cluster:
        assert (await cluster.refresh()).nodes == {2: Node(2, *B)}


async def test_connections_to_a_broker_that_one_response_lacks_stay_open(network: Any) -> None:
    """A JoinGroup in flight at the coordinator once failed for one list of nodes without it."""
    lists = [{"n1": A, "n2": B}, {"n1": A}, {"n1": A, "n2": B}]
    current = iter([*lists[:2], *[lists[2]] * 9])
    handler = serving(lambda request: metadata_of(**next(current))(request))
    network.handlers |= {A: handler, B: handler}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        two = cluster.broker(Node(2, *B))
        await two.connect("coordinator")
        await cluster.refresh()
        assert two.is_connected("coordinator")


async def test_topics_are_described_by_another_broker_if_one_does_not_know_them(
    network: Any,
) -> None:
    nodes = {"n1": A, "n2": B}
    lagging = scripted(3, None, nodes=nodes)
    network.handlers |= {A: lagging, B: scripted(3, nodes=nodes)}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        request = MetadataRequest(topics=())
        for _ in range(3):
            response = await cluster.describe_topics(request)
            assert [len(topic.partitions) for topic in response.topics] == [3]


async def test_the_first_broker_may_need_most_of_the_request_timeout(network: Any) -> None:
    """One of several attempts gets a part of the timeout only, but a client that starts has no
    other attempt."""

    async def slow(request: MetadataRequest) -> MetadataResponse:
        await anyio.sleep(3.5)
        return metadata_of(n1=A)(request)

    network.handlers[A] = serving(slow)
    async with network, open_cluster(A) as cluster:
        assert (await cluster.refresh()).nodes == {1: Node(1, *A)}


async def test_a_silent_broker_leaves_time_for_the_others(network: Any) -> None:
    """It took the whole timeout of a look-up of the coordinator."""
    nodes = {"n1": A, "n2": B}

    async def silent(peer: Any) -> None:
        await peer.handshake()
        await anyio.sleep_forever()

    network.handlers |= {A: silent, B: serving(metadata_of(**nodes))}
    async with network, open_cluster(A, B) as cluster:
        start = anyio.current_time()
        await cluster.refresh()
        assert anyio.current_time() - start == pytest.approx(OPTIONS.request_timeout / 3)


@pytest.mark.parametrize("used", [{"fetch"}, {"fetch", MAIN}])
async def test_a_request_for_any_broker_goes_to_one_that_is_reached(
    network: Any, used: set[str]
) -> None:
    """A member that committed before it joined again looked the coordinator up at a broker that was
    slow to reach, while its heartbeats were answered by another."""
    nodes = {f"n{n}": (f"node-{n}", 9092) for n in range(1, 9)}
    network.handlers |= {address: serving(metadata_of(**nodes)) for address in (A, *nodes.values())}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        for node_id, connection_id in {3: "fetch", 5: MAIN}.items():
            if connection_id in used:
                await cluster.broker(cluster.metadata.nodes[node_id]).connect(connection_id)
        before = len(network.dialled)
        await cluster.request_any(METADATA)
        expected = [] if MAIN in used else [nodes["n3"]]
        assert network.dialled[before:] == expected


async def test_a_request_for_any_broker_goes_to_an_unresponsive_one_last(network: Any) -> None:
    """Records whose leader did not respond waited longer for its successor: that leader was the
    first to be asked for it."""
    respond, is_unresponsive = metadata_of(n1=A, n2=B), False

    async def respond_or_not(request: MetadataRequest) -> MetadataResponse:
        if is_unresponsive:
            await anyio.sleep_forever()
        return respond(request)

    network.handlers |= {A: serving(respond_or_not), B: serving(respond)}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        broker = cluster.broker(cluster.metadata.nodes[1])
        await broker.connect(MAIN)
        await anyio.sleep(1.0)
        is_unresponsive = True
        with pytest.raises(RequestTimeoutError):
            await broker.request(METADATA, connection_id="produce", timeout=1.0)
        start = anyio.current_time()
        await cluster.request_any(METADATA)
        assert anyio.current_time() == start


async def test_a_request_for_any_broker_goes_to_one_that_throttles_last(network: Any) -> None:
    """It waited for the throttle while another broker would have responded."""
    nodes = {"n1": A, "n2": B}
    throttled = attrs.evolve(metadata_of(**nodes)(METADATA), throttle_time_ms=2000)
    network.handlers |= {A: serving(lambda _: throttled), B: serving(metadata_of(**nodes))}
    async with network, open_cluster(B) as cluster:
        await cluster.refresh()
        await cluster.broker(cluster.metadata.nodes[1]).request(METADATA)
        start = anyio.current_time()
        await cluster.request_any(METADATA)
        assert anyio.current_time() == start


# ---------------------------------------------------------------- brokers that move


async def test_a_moved_broker_is_connected_at_its_new_address(network: Any) -> None:
    where = [A]
    network.handlers |= {
        A: serving(lambda request: metadata_of(n1=where[0])(request)),
        B: serving(lambda request: metadata_of(n1=B)(request)),
    }
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        old = cluster.broker(cluster.metadata.nodes[1])
        await old.connect()
        where[0] = B
        await cluster.refresh()
        await anyio.sleep(1)
        assert not old.connected
        new = cluster.broker(cluster.metadata.nodes[1])
        assert (new.node_id, new.host, new is old) == (1, "b", False)
        await new.connect()
        assert network.dialled[-1] == B


async def test_connections_to_a_removed_broker_are_closed(network: Any) -> None:
    nodes: list[dict[str, Address]] = [{"n1": A, "n2": B}]
    handler = serving(lambda request: metadata_of(**nodes[0])(request))
    network.handlers |= {A: handler, B: handler}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        two = cluster.broker(Node(2, *B))
        await two.connect("fetch")
        nodes[0] = {"n1": A}
        await cluster.refresh()
        assert (two.is_connected("fetch"), cluster.metadata.nodes) == (False, {1: Node(1, *A)})


async def test_two_addresses_of_a_broker_do_not_close_each_others_connections(
    network: Any,
) -> None:
    """Metadata names localhost and FindCoordinator 127.0.0.1. The fetches, which go to the first,
    and the heartbeats, which go to the second, closed each other's connection at each request."""
    network.handlers |= {A: serving(metadata_of(n1=A)), B: serving(metadata_of(n1=A))}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        for _ in range(3):
            for address in (A, B):
                await cluster.broker(Node(1, *address)).connect("group")
            await cluster.refresh()
            await anyio.sleep(1)
        assert [cluster.broker(Node(1, *each)).is_connected("group") for each in (A, B)] == [
            True,
            True,
        ]
    assert network.dialled == [A, A, B, A]  # for metadata, for the two, for metadata


async def test_a_broker_that_still_responds_at_its_former_address_keeps_its_requests(
    network: Any,
) -> None:
    """Brokers that name each other by the listener of the request let the address change with each
    metadata response, and a fetch in flight failed each time."""
    where = [A]

    async def handler(peer: Any) -> None:
        await peer.serve(
            {
                MetadataRequest: lambda request: metadata_of(n1=where[0])(request),
                FindCoordinatorRequest: find_slowly,
            }
        )

    async def find_slowly(_: object) -> FindCoordinatorResponse:
        await anyio.sleep(3)
        return FindCoordinatorResponse(coordinators=())

    network.handlers |= {A: handler, B: handler}
    async with network, open_cluster(A) as cluster:
        await cluster.refresh()
        old = cluster.broker(Node(1, *A))
        await old.connect()
        async with anyio.create_task_group() as tasks:

            async def look_up() -> None:
                request = FindCoordinatorRequest(coordinator_keys=("g",))
                response = await old.request(request, connection_id="slow", timeout=4.0)
                assert response == FindCoordinatorResponse(coordinators=())

            tasks.start_soon(look_up)
            await anyio.sleep(1)
            where[0] = B
            await cluster.refresh()
            assert cluster.metadata.nodes[1] == Node(1, *B)
        assert old.is_connected("slow")


async def test_requests_to_a_silent_broker_that_has_moved_fail_at_once(network: Any) -> None:
    """A pod has moved, and nothing answers at its former address: a JoinGroup there must not wait
    for its whole timeout."""
    nodes = {"n1": A, "n2": C}

    async def silent(peer: Any) -> None:
        if nodes["n1"] == A:
            await peer.handshake()
            await peer.respond(await peer.read(), metadata_of(**nodes)(METADATA))
        await anyio.sleep_forever()

    network.handlers |= {A: silent, C: serving(lambda r: metadata_of(**nodes)(r))}
    async with network, open_cluster(C) as cluster:
        await cluster.refresh()
        old = cluster.broker(Node(1, *A))
        await old.request(METADATA, connection_id="group")
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(ConnectionLostError):
                    await old.request(METADATA, connection_id="group", timeout=300)
                assert anyio.current_time() - start < 20

            tasks.start_soon(ask)
            await anyio.sleep(11)
            nodes["n1"] = B
            await cluster.refresh()
