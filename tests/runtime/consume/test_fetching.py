"""Fetch requests on the wire: sessions, transactions, preferred replicas, new leaders."""

from __future__ import annotations

import inspect
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import anyio
import attrs
import pytest

from kafkagroup import Consumer, HealthProblem
from kafkagroup.errors import ErrorCode
from kafkagroup.events import TroubleEnded, TroubleReported
from kafkagroup.runtime.consume.fetcher import Fetcher
from kafkagroup.runtime.consume.session import Session
from kafkagroup.testing.embedded import Close, Delay, EmbeddedKafka
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.transport.metadata import ClusterMetadata
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset
from kafkagroup.wire.messages import metadata, offsets
from kafkagroup.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kafkagroup.wire.schema import NO_ID, Versions

pytestmark = pytest.mark.anyio

E = ErrorCode
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_ID = UUID(int=7)


@attrs.frozen
class Fetch:
    """A received fetch request."""

    at: float
    node: int
    version: int
    request: FetchRequest

    @property
    def session(self) -> tuple[int, int]:
        return self.request.session_id, self.request.session_epoch

    @property
    def offsets(self) -> dict[int, int]:
        """Partition -> offset in the response."""
        return {p.partition: p.fetch_offset for t in self.request.topics for p in t.partitions}

    @property
    def forgotten(self) -> list[int]:
        return [p for t in self.request.forgotten_topics_data for p in t.partitions]


class Script:
    """Brokers 1 and 2, which have t/0 and t/1; a script answers their fetches."""

    def __init__(self) -> None:
        self.leader = 1
        self.leader_epoch = 0
        self.topic_id = TOPIC_ID
        self.topic_error = 0
        """The error of the topic in the metadata."""
        self.nodes = (1, 2)
        self.versions = FetchRequest.versions
        self.fetches: list[Fetch] = []
        self.lists: list[offsets.ListOffsetsRequest] = []
        self.looks = 0
        """How often metadata was asked for."""
        self.respond: Callable[[Fetch], Any] = lambda _: FetchResponse(responses=())

    async def serve(self, peer: Any, node: int) -> None:
        while True:
            incoming = await peer.read()
            message = self._answer(incoming, node)
            if inspect.isawaitable(message):
                message = await message
            if message is None:
                return
            await peer.respond(incoming, message)

    def _answer(self, incoming: Any, node: int) -> Any:
        match incoming.request:
            case metadata.ApiVersionsRequest():
                spoken = {
                    FetchRequest: self.versions,
                    metadata.MetadataRequest: metadata.MetadataRequest.versions,
                    offsets.ListOffsetsRequest: offsets.ListOffsetsRequest.versions,
                }
                keys = tuple(
                    metadata.ApiVersion(api_key=k.api_key, min_version=v.low, max_version=v.high)
                    for k, v in spoken.items()
                )
                return metadata.ApiVersionsResponse(error_code=0, api_keys=keys)
            case metadata.MetadataRequest():
                self.looks += 1
                return self._metadata()
            case offsets.ListOffsetsRequest() as request:
                self.lists.append(request)
                topic = request.topics[0]
                return offsets.ListOffsetsResponse(
                    topics=(
                        offsets.ListOffsetsTopicResponse(
                            name="t",
                            partitions=tuple(
                                offsets.ListOffsetsPartitionResponse(
                                    partition_index=p.partition_index, error_code=0, offset=0
                                )
                                for p in topic.partitions
                            ),
                        ),
                    )
                )
            case FetchRequest() as request:
                found = Fetch(anyio.current_time(), node, incoming.version, request)
                self.fetches.append(found)
                return self.respond(found)
            case other:
                raise AssertionError(other)

    def _metadata(self) -> metadata.MetadataResponse:
        partitions = tuple(
            metadata.MetadataResponsePartition(
                error_code=0,
                partition_index=index,
                leader_id=self.leader,
                leader_epoch=self.leader_epoch,
                replica_nodes=(1, 2),
                isr_nodes=(1, 2),
            )
            for index in (0, 1)
        )
        topic = metadata.MetadataResponseTopic(
            error_code=self.topic_error,
            name="t",
            topic_id=self.topic_id,
            partitions=() if self.topic_error else partitions,
        )
        brokers = tuple(
            metadata.MetadataResponseBroker(node_id=n, host=f"b{n}", port=9092) for n in self.nodes
        )
        return metadata.MetadataResponse(brokers=brokers, topics=(topic,))


@pytest.fixture
def script(network: Any) -> Script:
    made = Script()
    for node in (1, 2, 3):

        async def handler(peer: Any, node: int = node) -> None:
            await made.serve(peer, node)

        network.handlers[f"b{node}", 9092] = handler
    return made


def client(**options: Any) -> Consumer:
    return Consumer(bootstrap_servers="b1:9092", **options)


def batch(offset: int, count: int = 1, **options: Any) -> bytes:
    return with_base_offset(encode_batch([NewRecord(None, b"v")] * count, **options), offset, 0)


def data(partition: int, records: bytes | None = b"", **fields: Any) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        **{"error_code": 0, "high_watermark": 99, "records": records, **fields},
    )


def fetch_response(*partitions: PartitionData, **fields: Any) -> FetchResponse:
    topics = ()
    if partitions:
        topics = (FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=partitions),)
    return FetchResponse(responses=topics, **fields)


async def after_long_poll(found: Fetch, response: FetchResponse) -> FetchResponse:
    await anyio.sleep(found.request.max_wait_ms / 1000)
    return response


async def offsets_of(consumer: Consumer, count: int) -> list[int]:
    with anyio.fail_after(100):
        return [(await consumer.getone()).offset for _ in range(count)]


# ---------------------------------------------------------------- sessions


class Sessions:
    """A broker with fetch sessions: each partition has records up to `end`."""

    def __init__(self, end: int = 0) -> None:
        self.end = end
        self.epoch = 0
        self.at: dict[int, int] = {}
        self.refuse = 0
        """The error that the next fetch in a session gets."""

    async def __call__(self, found: Fetch) -> FetchResponse:
        session_id, epoch = found.session
        if epoch == -1:
            return fetch_response(
                *(data(p, batch(at)) for p, at in found.offsets.items() if at < self.end)
            )
        if epoch == 0:
            self.at, self.epoch = {}, 0
        elif self.refuse:
            code, self.refuse = self.refuse, 0
            return FetchResponse(error_code=code, responses=())
        else:
            self.epoch += 1
            assert (session_id, epoch) == (77, self.epoch)
        self.at |= found.offsets
        for partition in found.forgotten:
            del self.at[partition]
        new = [data(p, batch(at)) for p, at in self.at.items() if at < self.end]
        response = fetch_response(*new, session_id=77)
        return response if new else await after_long_poll(found, response)


async def test_an_idle_consumer_sends_empty_session_requests(network: Any, script: Script) -> None:
    """A thousand idle partitions cost the broker an empty request, not a thousand entries."""
    script.respond = Sessions()
    async with network, client() as c:
        await c.assign([T0, T1])
        await anyio.sleep(15)
    first, second, *rest = script.fetches
    # The positions may be found one after the other.
    assert first.session == (0, 0)
    assert first.offsets | second.offsets == {0: 0, 1: 0}
    assert [f.request.max_wait_ms for f in rest[-4:]] == [2_000, 4_000, 5_000, 5_000]
    for number, found in enumerate(rest, second.session[1] + 1):
        assert found.request == FetchRequest(
            max_wait_ms=found.request.max_wait_ms,
            min_bytes=1,
            max_bytes=1_048_576,
            session_id=77,
            session_epoch=number,
            topics=(),
        )


async def test_a_session_request_lists_only_changed_partitions(
    network: Any, script: Script
) -> None:
    script.respond = sessions = Sessions(end=2)
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 2) == [0, 1]
        await anyio.sleep(2)
        sessions.end = 3
        assert await offsets_of(c, 1) == [2]
        await anyio.sleep(0.1)
        c.pause(T0)
        await c.assign([T0, T1])
        await anyio.sleep(2)
    in_session = [found for found in script.fetches if found.session[1] >= 0]
    moved = [found for found in in_session if found.offsets or found.forgotten]
    assert [(f.offsets, f.forgotten) for f in moved[:4]] == [
        ({0: 0}, []),
        ({0: 1}, []),
        ({0: 2}, []),
        ({0: 3}, []),
    ]
    assert (moved[4].offsets.keys() <= {1}, moved[4].forgotten) == (True, [0])
    assert moved[3].request.topics == (
        FetchTopic(
            topic_id=TOPIC_ID,
            partitions=(
                FetchPartition(
                    partition=0,
                    current_leader_epoch=0,
                    fetch_offset=3,
                    partition_max_bytes=1_048_576,
                ),
            ),
        ),
    )
    assert moved[4].request.forgotten_topics_data == (
        ForgottenTopic(topic_id=TOPIC_ID, partitions=(0,)),
    )


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (E.FETCH_SESSION_ID_NOT_FOUND, 0),
        (E.INVALID_FETCH_SESSION_EPOCH, 77),
        (E.FETCH_SESSION_TOPIC_ID_ERROR, 77),
    ],
)
async def test_a_session_error_is_followed_by_a_full_request_at_once(
    network: Any, script: Script, code: ErrorCode, session_id: int
) -> None:
    script.respond = sessions = Sessions(end=1)
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 1) == [0]
        await anyio.sleep(1)
        sessions.refuse, sessions.end = code, 2
        assert await offsets_of(c, 1) == [1]
    refused = next(i for i, f in enumerate(script.fetches) if i and f.session[1] == 0)
    before, after = script.fetches[refused - 1 : refused + 1]
    assert (after.session, after.offsets, after.at - before.at) == ((session_id, 0), {0: 1}, 0.0)


@pytest.mark.parametrize("code", [E.FETCH_SESSION_ID_NOT_FOUND, E.INVALID_FETCH_SESSION_EPOCH])
async def test_a_permanent_session_error_causes_no_hot_loop(
    network: Any, script: Script, code: ErrorCode
) -> None:
    script.respond = lambda _: FetchResponse(error_code=code, responses=())
    async with network, client() as c:
        await c.assign([T0])
        await anyio.sleep(10)
    assert 8 < len(script.fetches) < 40


async def test_after_a_lost_response_all_partitions_are_listed_again(
    network: Any, script: Script
) -> None:
    sessions = Sessions(end=1)
    script.respond = lambda found: None if found.session[1] == 3 else sessions(found)
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 1) == [0]
        await anyio.sleep(3)
        lost = next(i for i, f in enumerate(script.fetches) if f.session[1] == 3)
        after = script.fetches[lost + 1]
        assert (after.session, after.offsets) == ((77, 0), {0: 1})
        sessions.end = 2
        assert await offsets_of(c, 1) == [1]


@pytest.mark.parametrize("versions", [Versions(4, 18), Versions(4, 11)])
async def test_without_topic_ids_every_request_of_a_session_uses_names(
    network: Any, script: Script, versions: Versions
) -> None:
    """An empty request has no topic: in a later version it would end the session."""
    script.respond = Sessions(end=1)
    script.topic_id = NO_ID
    script.versions = versions
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 1) == [0]
        await anyio.sleep(3)
    assert {f.version for f in script.fetches} == {min(12, versions.high)}
    assert [f.session for f in script.fetches] == [
        (77 if epoch else 0, epoch) for epoch in range(len(script.fetches))
    ]
    assert script.fetches[-1].request.topics == ()


# ---------------------------------------------------------------- an impatient broker


async def test_a_broker_that_ignores_max_wait_causes_no_hot_loop(
    network: Any, script: Script
) -> None:
    async with network, client() as c:
        await c.assign([T0])
        await anyio.sleep(10)
        assert 8 < len(script.fetches) < 20
        script.respond = lambda f: (
            fetch_response(data(0, batch(0))) if f.offsets == {0: 0} else fetch_response()
        )
        start = anyio.current_time()
        assert await offsets_of(c, 1) == [0]
        assert anyio.current_time() - start <= 1.2  # the longest back-off, and its jitter


async def test_a_partition_after_its_backoff_does_not_wait_for_the_long_poll(
    network: Any, script: Script
) -> None:
    """The long poll does not include it, and lasts `fetch_max_wait_ms`."""

    async def respond(found: Fetch) -> FetchResponse:
        if len(script.fetches) == 1:
            return fetch_response(data(0, error_code=E.OFFSET_NOT_AVAILABLE))
        if 0 in found.offsets:
            return fetch_response(data(0, batch(found.offsets[0])))
        return await after_long_poll(found, fetch_response())

    script.respond = respond
    async with network, client(fetch_max_wait_ms=4_000) as c:
        await c.assign([T0, T1])
        with anyio.fail_after(0.5):
            assert await offsets_of(c, 3) == [0, 1, 2]


async def test_an_error_of_one_partition_does_not_delay_the_next_long_poll(
    network: Any, script: Script
) -> None:
    """A response without records that comes early is followed by a pause, but not an error: new
    records of the other partitions would arrive later."""

    async def respond(found: Fetch) -> FetchResponse:
        if 0 in found.offsets:
            return fetch_response(data(0, error_code=E.KAFKA_STORAGE_ERROR))
        return await after_long_poll(found, fetch_response())

    script.respond = respond
    async with network, client(retry_backoff_ms=1_000) as c:
        await c.assign([T0, T1])
        for tp in (T0, T1):
            c.seek(tp, 0)  # so that both are in the first request
        await anyio.sleep(0.2)
    assert [(set(f.offsets), f.at - script.fetches[0].at) for f in script.fetches[:2]] == [
        ({0, 1}, 0.0),
        ({1}, 0.0),
    ]


async def test_a_response_with_null_for_no_records_is_empty(network: Any, script: Script) -> None:
    """The field is nullable."""

    async def respond(found: Fetch) -> FetchResponse:
        if len(script.fetches) > 1:
            return fetch_response(data(0, batch(0)))
        return fetch_response(data(0, None))

    script.respond = respond
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 1) == [0]
        assert len(script.fetches) == 2


async def test_a_partition_that_moves_back_to_its_leader_does_not_wait_for_its_long_poll(
    network: Any, script: Script
) -> None:
    """KIP-392: the leader holds a long poll of another partition when the replica refuses."""

    async def respond(found: Fetch) -> FetchResponse:
        if found.node == 1 and 0 in found.offsets:
            if found.request.rack_id and len(script.fetches) < 3:
                return fetch_response(data(0, preferred_read_replica=2))
            return fetch_response(data(0, batch(found.offsets[0])))
        if found.node == 2:
            await anyio.sleep(1.0)
            return fetch_response(data(0, error_code=E.OFFSET_NOT_AVAILABLE))
        return await after_long_poll(found, fetch_response())

    script.respond = respond
    async with network, client(client_rack="here", fetch_max_wait_ms=4_000) as c:
        await c.assign([T0, T1])
        for tp in (T0, T1):
            c.seek(tp, 0)
        began = anyio.current_time()
        assert await offsets_of(c, 1) == [0]
        assert anyio.current_time() - began < 1.5


async def test_a_partition_that_moves_to_a_follower_does_not_wait_for_its_long_poll(
    network: Any, script: Script
) -> None:
    """KIP-392: the follower already holds a long poll of another partition."""
    moved = False

    async def respond(found: Fetch) -> FetchResponse:
        if found.node == 1 and 1 in found.offsets:
            return fetch_response(data(1, preferred_read_replica=2))
        if found.node == 1 and moved:
            return fetch_response(data(0, preferred_read_replica=2))
        if found.node == 2 and 0 in found.offsets:
            return fetch_response(data(0, batch(found.offsets[0])))
        if not moved or found.node == 2:
            return await after_long_poll(found, fetch_response())
        return fetch_response()

    script.respond = respond
    async with network, client(client_rack="here", fetch_max_wait_ms=4_000) as c:
        await c.assign([T0, T1])
        await anyio.sleep(4.1)
        moved = True
        c.seek(T0, 5)
        began = anyio.current_time()
        assert await offsets_of(c, 2) == [5, 6]
        assert anyio.current_time() == began


@contextmanager
def requests_noted() -> Iterator[list[str]]:
    """A list that gets "request" whenever the fetcher sends one."""
    story: list[str] = []
    send = Fetcher._send

    async def noted(*arguments: Any) -> Any:
        story.append("request")
        return await send(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fetcher, "_send", noted)
        yield story


async def test_a_topic_that_leaves_the_metadata_meanwhile_is_not_requested(
    network: Any, script: Script
) -> None:
    """Other tasks run while more than a thousand partitions are checked, and one may refresh."""
    async with network, client() as c:
        await c.assign([T0])
        assert c._engine is not None
        fetcher = c._engine._fetcher
        owned = [c._delivery.owned[T0]]
        assert fetcher._add_entries(owned, {}, {}) == owned
        fetcher._cluster.metadata = ClusterMetadata()
        assert fetcher._add_entries(owned, {}, {}) == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_records_are_delivered_before_the_next_request_is_sent(
    network: Any, script: Script
) -> None:
    """Building and sending a request takes longer than everything else between socket and
    application. trio runs ready tasks in any order, so there this holds half of the time."""

    async def respond(found: Fetch) -> FetchResponse:
        if found.offsets.get(0, 9) < 3:
            return fetch_response(data(0, batch(found.offsets[0])))
        return await after_long_poll(found, fetch_response())

    script.respond = respond
    with requests_noted() as story:
        async with network, client() as c:
            await c.assign([T0])
            for n in range(3):
                record = await c.getone()
                assert record.offset == n
                story.append(f"record {n}")
    assert story[:5] == ["request", "record 0", "request", "record 1", "request"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_next_fetch_is_sent_before_the_records_of_a_large_response_are_delivered(
    network: Any, script: Script
) -> None:
    """The broker reads ahead while the application processes these records."""
    many = encode_batch([NewRecord(None, bytes(70_000))])

    async def respond(found: Fetch) -> FetchResponse:
        offset = found.offsets.get(0, 9)
        if offset < 3:
            return fetch_response(data(0, with_base_offset(many, offset, 0)))
        return await after_long_poll(found, fetch_response())

    script.respond = respond
    with requests_noted() as story:
        async with network, client() as c:
            await c.assign([T0])
            for n in range(2):
                record = await c.getone()
                assert record.offset == n
                story.append(f"record {n}")
                await anyio.sleep(0.1)
    assert story[:3] == ["request", "request", "record 0"]


async def test_the_application_is_woken_as_the_response_is_delivered(
    network: Any, script: Script
) -> None:
    """The fetching task woke it, which took another turn of the loop."""

    async def respond(found: Fetch) -> FetchResponse:
        if found.offsets.get(0, 9) < 1:
            return fetch_response(data(0, batch(0)))
        return await after_long_poll(found, fetch_response())

    script.respond = respond
    story: list[str] = []
    deliver, notify = BrokerConnection._deliver, Session.notify

    def woken(session: Session) -> None:
        story.append("woken")
        notify(session)

    def delivered(connection: BrokerConnection, respond: Any) -> None:
        is_fetch = isinstance(respond.message, FetchResponse)
        if is_fetch:
            story.append("response")
        deliver(connection, respond)
        if is_fetch:
            story.append("delivered")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerConnection, "_deliver", delivered)
        patch.setattr(Session, "notify", woken)
        async with network, client() as c:
            await c.assign([T0])
            assert (await c.getone()).offset == 0
    assert "response woken delivered" in " ".join(story)


async def test_records_end_the_backoff(network: Any, script: Script) -> None:
    """Otherwise records of a topic with little traffic would always arrive a second late."""
    seen = {"empty": 0}

    def respond(found: Fetch) -> FetchResponse:
        if seen["empty"] < 20:
            seen["empty"] += 1
            return fetch_response()
        seen["empty"] = 0
        return fetch_response(data(0, batch(found.offsets[0])))

    script.respond = respond
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 2) == [0, 1]
    pauses = [b.at - a.at for a, b in zip(script.fetches, script.fetches[1:], strict=False)]
    assert pauses[0] <= 0.12
    assert pauses[19] >= 0.8
    assert pauses[20] == 0.0
    assert pauses[21] <= 0.12


@pytest.mark.parametrize("code", [E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID])
async def test_a_fetch_error_of_a_topic_that_the_metadata_has_lost_is_retried(
    network: Any, script: Script, code: ErrorCode
) -> None:
    """The topic was deleted during a long poll: nobody leads the partition."""

    async def respond(found: Fetch) -> FetchResponse:
        if len(script.fetches) == 1:
            script.topic_error = E.UNKNOWN_TOPIC_OR_PARTITION
            await anyio.sleep(10)
            return fetch_response(data(0, error_code=code))
        if 0 in found.offsets:
            return fetch_response(data(0, batch(found.offsets[0])))
        return await after_long_poll(found, fetch_response())

    script.respond = respond
    async with network, client(metadata_max_age_ms=1_000) as c:
        await c.assign([T0])
        await anyio.sleep(12)
        assert len(script.fetches) == 1
        script.topic_error = 0
        assert await offsets_of(c, 2) == [0, 1]


async def test_batches_before_the_position_are_skipped(network: Any, script: Script) -> None:
    """A broker may return them with the one that was asked for."""

    async def respond(found: Fetch) -> FetchResponse:
        if (offset := found.offsets.get(0)) is None:
            return await after_long_poll(found, fetch_response())
        return fetch_response(data(0, b"".join(map(batch, range(offset - 2, offset + 1)))))

    script.respond = respond
    async with network, client() as c:
        await c.assign([T0])
        c.seek(T0, 5)
        assert await offsets_of(c, 3) == [5, 6, 7]


# ---------------------------------------------------------------- read_committed


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    record = NewRecord(struct.pack(">hh", 0, kind), b"")
    raw = encode_batch([record], producer_id=producer_id, transactional=True, control=True)
    return with_base_offset(raw, offset, 0)


def transactional(offset: int, producer_id: int, count: int = 1) -> bytes:
    return batch(offset, count, producer_id=producer_id, transactional=True)


LOG = (
    transactional(0, 1, 2),  # committed
    transactional(2, 2, 2),  # aborted
    marker(4, 1, 1),
    batch(5),
    transactional(6, 2),  # aborted
    marker(7, 2, 0),
    transactional(8, 2),  # committed
    marker(9, 2, 1),
)


def log_from(starts: Iterable[int], aborted: tuple[tuple[int, int], ...]) -> Any:
    """A broker with `LOG`, which returns the batches from the requested offset."""
    at = dict(zip(starts, range(len(LOG)), strict=True))

    async def respond(found: Fetch) -> FetchResponse:
        (offset,) = found.offsets.values()
        if offset == 10:
            return await after_long_poll(found, fetch_response())
        transactions = tuple(
            AbortedTransaction(producer_id=p, first_offset=first) for p, first in aborted
        )
        records = b"".join(LOG[at[offset] :])
        return fetch_response(
            data(0, records, last_stable_offset=10, aborted_transactions=transactions)
        )

    return respond


STARTS = (0, 2, 4, 5, 6, 7, 8, 9)


async def test_read_committed_delivers_no_aborted_records(network: Any, script: Script) -> None:
    script.respond = log_from(STARTS, ((2, 2),))
    async with network, client(isolation_level="read_committed") as c:
        await c.assign([T0])
        assert await offsets_of(c, 4) == [0, 1, 5, 8]
        with anyio.move_on_after(5):
            await c.getone()
        # Past the last marker: otherwise the lag would stay at 1.
        assert await c.position(T0) == 10
    assert {f.request.isolation_level for f in script.fetches} == {1}
    assert [request.isolation_level for request in script.lists] == [1]


async def test_read_committed_from_the_middle_of_an_aborted_transaction(
    network: Any, script: Script
) -> None:
    script.respond = log_from(STARTS, ((2, 2),))
    async with network, client(isolation_level="read_committed") as c:
        await c.assign([T0])
        c.seek(T0, 6)
        assert await offsets_of(c, 1) == [8]


async def test_read_uncommitted_delivers_everything_but_control_records(
    network: Any, script: Script
) -> None:
    script.respond = log_from(STARTS, ())
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 7) == [0, 1, 2, 3, 5, 6, 8]
        with anyio.move_on_after(5):
            await c.getone()
        assert await c.position(T0) == 10
    assert {f.request.isolation_level for f in script.fetches} == {0}


@pytest.mark.parametrize(("level", "lag"), [("read_uncommitted", 8), ("read_committed", 4)])
async def test_under_read_committed_the_lag_ends_at_the_last_stable_offset(
    network: Any, script: Script, level: str, lag: int
) -> None:
    """What a transaction is still writing is not delivered before it is committed."""

    async def respond(found: Fetch) -> FetchResponse:
        ends = {"high_watermark": 9, "last_stable_offset": 5}
        if found.offsets.get(0) == 0:
            return fetch_response(data(0, batch(0), **ends))
        return await after_long_poll(found, fetch_response())

    script.respond = respond
    async with network, client(isolation_level=level) as c:
        await c.assign([T0])
        assert await offsets_of(c, 1) == [0]
        assert c.metrics().lag == {T0: lag}


async def test_control_records_and_aborted_records_count_as_processed(network: Any) -> None:
    """On the embedded broker, which stores any batch."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        for raw in LOG:
            kafka.append("t", 0, raw)
        async with Consumer(bootstrap_servers="kafka-1:9092", group_id="g") as c:
            await c.assign([T0])
            assert await offsets_of(c, 7) == [0, 1, 2, 3, 5, 6, 8]
            with anyio.move_on_after(10):
                await c.getone()
            assert await c.lag() == {T0: 0}
            assert kafka.committed("g", "t") == {0: 10}


# ---------------------------------------------------------------- nearer replicas (KIP-392)


class Replicas:
    """Broker 1 is the leader and names broker 2 as preferred replica, which has the records."""

    def __init__(self, end: int = 10) -> None:
        self.end = end
        self.error = 0
        """What broker 2 answers."""
        self.preferred = 2
        self.needs_rack = False
        """Whether broker 1 names it to those only that name their rack, as Kafka does."""

    async def __call__(self, found: Fetch) -> FetchResponse | None:
        offset = found.offsets.get(0)
        if offset is None:
            return await after_long_poll(found, fetch_response())
        names = found.request.rack_id or not self.needs_rack
        if found.node == 1 and self.preferred and names:
            return fetch_response(data(0, preferred_read_replica=self.preferred))
        if found.node == 2 and self.error:
            return None if self.error < 0 else fetch_response(data(0, error_code=self.error))
        if offset >= self.end:
            return await after_long_poll(found, fetch_response())
        return fetch_response(data(0, batch(offset)))


def nodes_of(fetches: Iterable[Fetch]) -> list[int]:
    """Return the brokers that received fetches, in order."""
    nodes: list[int] = []
    for found in fetches:
        if nodes[-1:] != [found.node]:
            nodes.append(found.node)
    return nodes


async def test_the_preferred_replica_is_fetched_from(network: Any, script: Script) -> None:
    script.respond = Replicas()
    async with network, client(client_rack="here") as c:
        await c.assign([T0])
        assert await offsets_of(c, 10) == list(range(10))
        await anyio.sleep(5)
    assert [f.node for f in script.fetches[:3]] == [1, 2, 2]
    assert nodes_of(script.fetches) == [1, 2]
    assert {f.request.rack_id for f in script.fetches} == {"here"}
    # Not all followers answer a held fetch when a record arrives.
    assert {f.request.max_wait_ms for f in script.fetches} == {500}


async def test_without_a_client_rack_no_rack_is_sent(network: Any, script: Script) -> None:
    async with network, client() as c:
        await c.assign([T0])
        await anyio.sleep(1)
    assert {f.request.rack_id for f in script.fetches} == {""}


async def test_the_leader_is_fetched_from_again_after_a_while(network: Any, script: Script) -> None:
    """Meanwhile another follower may be the nearest one, or none."""
    script.respond = replicas = Replicas(end=1)
    async with network, client(client_rack="here", metadata_max_age_ms=60_000) as c:
        await c.assign([T0])
        assert await offsets_of(c, 1) == [0]
        await anyio.sleep(50)
        assert nodes_of(script.fetches) == [1, 2]
        replicas.preferred = 0
        await anyio.sleep(20)
        assert nodes_of(script.fetches) == [1, 2, 1]
        replicas.end = 2
        assert await offsets_of(c, 1) == [1]


@pytest.mark.parametrize(
    "error",
    [
        E.OFFSET_OUT_OF_RANGE,
        E.NOT_LEADER_OR_FOLLOWER,
        E.OFFSET_NOT_AVAILABLE,
        E.CORRUPT_MESSAGE,
        -1,
    ],
    ids=str,
)
async def test_after_an_error_of_a_follower_the_leader_is_fetched_from(
    network: Any, script: Script, error: int
) -> None:
    """The error of a lagging follower causes no reset, and none for the application. The last case
    closes the connection."""
    script.respond = replicas = Replicas()
    replicas.error = error
    async with network, client(client_rack="here") as c:
        await c.assign([T0])
        while len(script.fetches) < 2:
            await anyio.sleep(0.01)
        replicas.preferred = 0
        start = anyio.current_time()
        assert await offsets_of(c, 3) == [0, 1, 2]
        assert anyio.current_time() - start < 1
    assert nodes_of(script.fetches) == [1, 2, 1]
    assert len(script.lists) == 1


@pytest.mark.parametrize(
    "error",
    [
        E.OFFSET_OUT_OF_RANGE,
        E.NOT_LEADER_OR_FOLLOWER,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.CORRUPT_MESSAGE,
        E.KAFKA_STORAGE_ERROR,
        999,
        -1,
    ],
)
async def test_a_replica_that_does_not_serve_is_replaced_by_the_leader_for_a_while(
    network: Any, script: Script, error: int
) -> None:
    """The leader named it again and again: no record came, and `health()` found nothing. The last
    case closes the connection."""
    script.respond = replicas = Replicas()
    replicas.error, replicas.needs_rack = error, True
    async with network, client(client_rack="here", metadata_max_age_ms=60_000) as c:
        events = c.events()
        await c.assign([T0])
        start = anyio.current_time()
        assert await offsets_of(c, 10) == list(range(10))
        assert anyio.current_time() - start < 2
        assert nodes_of(script.fetches) == [1, 2, 1, 2, 1]
        assert [f.request.rack_id for f in script.fetches if f.node == 2] == ["here"] * 2
        assert len(script.lists) == 1

        (finding,) = c.health().findings
        assert (finding.problem, finding.partition) == (HealthProblem.REPLICA, T0)
        assert "t/0 is read from its leader: broker 2 does not serve it: " in finding.detail
        reported = await anext(events)
        assert isinstance(reported, TroubleReported)
        assert reported.subject == "fetching topic t from broker 2, the nearest replica"
        assert reported.cause in finding.detail
        await anyio.sleep(30)
        assert nodes_of(script.fetches) == [1, 2, 1, 2, 1]
        assert not c.health()

        # The replica still does not serve: one more refusal is enough.
        await anyio.sleep(60)
        assert nodes_of(script.fetches) == [1, 2, 1, 2, 1, 2, 1]
        replicas.error = 0
        await anyio.sleep(60)
        assert nodes_of(script.fetches) == [1, 2, 1, 2, 1, 2, 1, 2]
        replicas.end = 12
        assert await offsets_of(c, 2) == [10, 11]
        assert c.health().healthy
        while not isinstance(await anext(events), TroubleEnded):
            pass


async def test_a_replica_that_does_not_answer_is_replaced_after_one_timeout(
    network: Any, script: Script
) -> None:
    """Two of them would keep the application without records for more than a minute."""

    async def respond(found: Fetch) -> FetchResponse | None:
        if found.node == 2:
            await anyio.sleep(1_000)
        return await replicas(found)

    script.respond, replicas = respond, Replicas()
    replicas.needs_rack = True
    async with network, client(client_rack="here", request_timeout_ms=10_000) as c:
        await c.assign([T0])
        start = anyio.current_time()
        assert await offsets_of(c, 10) == list(range(10))
        assert anyio.current_time() - start < 12
        assert nodes_of(script.fetches) == [1, 2, 1]
        assert HealthProblem.REPLICA in {f.problem for f in c.health().findings}


async def test_one_refusal_of_a_replica_does_not_end_its_use(network: Any, script: Script) -> None:
    """Refusals in a row count, not those between which the replica returned records."""
    replicas, refused = Replicas(), set()

    async def respond(found: Fetch) -> FetchResponse | None:
        offset = found.offsets.get(0)
        if found.node == 2 and offset is not None and offset not in refused:
            refused.add(offset)
            return fetch_response(data(0, error_code=E.OFFSET_NOT_AVAILABLE))
        return await replicas(found)

    script.respond, replicas.needs_rack = respond, True
    async with network, client(client_rack="here") as c:
        await c.assign([T0])
        assert await offsets_of(c, 10) == list(range(10))
        assert {f.request.rack_id for f in script.fetches} == {"here"}
        assert c.health().healthy


async def test_the_rack_is_named_again_for_other_partitions_only_after_the_while(
    network: Any, script: Script
) -> None:
    """A request without a rack has no replica for any of its partitions: they are read from the
    leader, and nothing is lost."""

    async def respond(found: Fetch) -> FetchResponse:
        if found.node == 2:
            refused = [data(n, error_code=E.OFFSET_OUT_OF_RANGE) for n in found.offsets if n == 0]
            parts = [data(n, batch(o)) for n, o in found.offsets.items() if n == 1 and o < 3]
            if refused or parts:
                return fetch_response(*refused, *parts)
            return await after_long_poll(found, fetch_response())
        if found.request.rack_id:
            return fetch_response(*(data(n, preferred_read_replica=2) for n in found.offsets))
        parts = [data(n, batch(o)) for n, o in found.offsets.items() if o < 3]
        return fetch_response(*parts) if parts else await after_long_poll(found, fetch_response())

    script.respond = respond
    async with network, client(client_rack="here") as c:
        await c.assign([T0, T1])
        found = [await c.getone() for _ in range(6)]
        assert sorted((r.partition, r.offset) for r in found) == [
            (p, o) for p in (0, 1) for o in range(3)
        ]
        assert len(script.lists) == 1


@pytest.mark.parametrize("preferred", [9, 1])
async def test_a_replica_that_is_no_other_broker_is_replaced_by_the_leader(
    network: Any, script: Script, preferred: int
) -> None:
    """A broker that the metadata does not have, or the leader itself: no record came."""
    script.respond = replicas = Replicas()
    replicas.preferred, replicas.needs_rack = preferred, True
    async with network, client(client_rack="here") as c:
        await c.assign([T0])
        looks = script.looks
        assert await offsets_of(c, 10) == list(range(10))
        assert nodes_of(script.fetches) == [1]
        assert script.looks > looks
        (finding,) = c.health().findings
        assert finding.detail == (
            f"t/0 is read from its leader: broker {preferred} does not serve it: broker 1 names it,"
            " and it cannot be fetched from"
        )


@pytest.mark.parametrize("error", [E.OFFSET_OUT_OF_RANGE, -1])
async def test_a_leader_that_keeps_naming_a_failing_replica_causes_no_hot_loop(
    network: Any, script: Script, error: int
) -> None:
    script.respond = replicas = Replicas()
    replicas.error = error
    async with network, client(client_rack="here") as c:
        await c.assign([T0])
        await anyio.sleep(2)
        before = len(script.fetches)
        await anyio.sleep(10)
        assert 8 < len(script.fetches) - before < 40
        replicas.error = 0
        assert await offsets_of(c, 2) == [0, 1]


async def test_a_failing_replica_beside_a_busy_partition_causes_no_hot_loop(
    network: Any, script: Script
) -> None:
    """Records of the other partition at the leader must not count as success of this one."""

    async def respond(found: Fetch) -> FetchResponse:
        if found.node == 2:
            return fetch_response(data(0, error_code=E.OFFSET_NOT_AVAILABLE))
        await anyio.sleep(0.01)
        parts = [data(1, batch(found.offsets[1]))] if 1 in found.offsets else []
        if 0 in found.offsets:
            parts.append(data(0, preferred_read_replica=2))
        return fetch_response(*parts)

    script.respond = respond
    async with network, client(client_rack="here") as c:
        await c.assign([T0, T1])
        await anyio.sleep(10)
    assert 8 < sum(f.node == 2 for f in script.fetches) < 25


async def test_an_unknown_replica_causes_no_hot_loop(network: Any, script: Script) -> None:
    script.respond = replicas = Replicas()
    replicas.preferred = 9
    async with network, client(client_rack="here") as c:
        await c.assign([T0])
        await anyio.sleep(10)
        assert nodes_of(script.fetches) == [1]
        assert 8 < len(script.fetches) < 40
        replicas.preferred = 0
        assert await offsets_of(c, 2) == [0, 1]


async def test_a_replica_that_leaves_the_cluster_is_not_fetched_from(
    network: Any, script: Script
) -> None:
    script.respond = replicas = Replicas(end=2)
    async with network, client(client_rack="here", metadata_max_age_ms=1000) as c:
        await c.assign([T0])
        assert await offsets_of(c, 2) == [0, 1]
        script.nodes, replicas.preferred, replicas.end = (1,), 0, 4
        assert await offsets_of(c, 2) == [2, 3]


# ---------------------------------------------------------------- new leaders (KIP-951)


async def test_a_new_leader_named_in_a_fetch_response_needs_no_metadata(
    network: Any, script: Script
) -> None:
    """Broker 3 is not in the metadata yet: the response contains its address."""

    async def respond(found: Fetch) -> FetchResponse:
        if found.node == 3:
            (offset,) = found.offsets.values()
            return fetch_response(data(0, batch(offset)))
        named = LeaderIdAndEpoch(leader_id=3, leader_epoch=1)
        moved = data(0, error_code=E.NOT_LEADER_OR_FOLLOWER, current_leader=named)
        return fetch_response(
            moved, node_endpoints=(NodeEndpoint(node_id=3, host="b3", port=9092),)
        )

    script.respond = respond
    async with network, client() as c:
        await c.assign([T0])
        looks, start = script.looks, anyio.current_time()
        assert await offsets_of(c, 2) == [0, 1]
        assert (script.looks, anyio.current_time()) == (looks, start)
    assert [
        (f.node, f.request.topics[0].partitions[0].current_leader_epoch) for f in script.fetches
    ][:3] == [(1, 0), (3, 1), (3, 1)]


async def test_leaders_that_name_each_other_are_asked_after_pauses(
    network: Any, script: Script
) -> None:
    epochs = itertools.count(1)

    async def respond(found: Fetch) -> FetchResponse:
        named = LeaderIdAndEpoch(leader_id=3 - found.node, leader_epoch=next(epochs))
        return fetch_response(data(0, error_code=E.NOT_LEADER_OR_FOLLOWER, current_leader=named))

    script.respond = respond
    async with network, client() as c:
        await c.assign([T0])
        assert await c.getmany(timeout=5.0) == {}
        assert 5 <= len(script.fetches) < 20
        script.respond = lambda found: fetch_response(data(0, batch(*found.offsets.values())))
        script.leader, script.leader_epoch = 1, next(epochs)
        assert await offsets_of(c, 2) == [0, 1]


async def test_all_new_leaders_named_in_a_response_are_one_change_of_the_metadata(
    network: Any, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 10,000 partitions copied the metadata of all, when a broker was restarted."""
    changes: list[ClusterMetadata] = []
    replace = Cluster._replace

    def recorded(self: Cluster, found: ClusterMetadata) -> None:
        changes.append(found)
        replace(self, found)

    async def respond(found: Fetch) -> FetchResponse:
        if found.node == 2:
            return fetch_response(*(data(p, batch(o)) for p, o in found.offsets.items()))
        named = LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
        moved = {"error_code": E.NOT_LEADER_OR_FOLLOWER, "current_leader": named}
        return fetch_response(*(data(p, **moved) for p in found.offsets))

    script.respond = respond
    async with network, client() as c:
        await c.assign([T0, T1])
        for tp in (T0, T1):
            c.seek(tp, 0)  # so that both are in the first request
        monkeypatch.setattr(Cluster, "_replace", recorded)
        assert await offsets_of(c, 4) == [0, 0, 1, 1]
        assert [len(f.offsets) for f in script.fetches][:2] == [2, 2]
    assert [[found.leader(tp).leader for tp in (T0, T1)] for found in changes] == [[2, 2]]


@pytest.mark.parametrize(
    ("named", "endpoints"),
    [
        (LeaderIdAndEpoch(), ()),
        # What is known already, or older.
        (LeaderIdAndEpoch(leader_id=2, leader_epoch=4), ()),
        # No broker reports its leader.
        (LeaderIdAndEpoch(leader_id=3, leader_epoch=5), ()),
    ],
    ids=["none", "old", "nowhere"],
)
async def test_metadata_is_refreshed_if_a_fetch_error_names_no_newer_leader(
    network: Any, script: Script, named: LeaderIdAndEpoch, endpoints: tuple[NodeEndpoint, ...]
) -> None:
    def respond(found: Fetch) -> FetchResponse:
        if found.node == 2:
            (offset,) = found.offsets.values()
            return fetch_response(data(0, batch(offset)))
        script.leader, script.leader_epoch = 2, 5
        error = data(0, error_code=E.NOT_LEADER_OR_FOLLOWER, current_leader=named)
        return fetch_response(error, node_endpoints=endpoints)

    script.leader_epoch = 4
    script.respond = respond
    async with network, client() as c:
        await c.assign([T0])
        looks = script.looks
        assert await offsets_of(c, 2) == [0, 1]
        assert script.looks > looks
    assert nodes_of(script.fetches) == [1, 2]


@pytest.mark.parametrize("failure", [Close(), E.NOT_LEADER_OR_FOLLOWER])
async def test_fetching_does_not_wait_for_metadata_after_a_failure(
    network: Any, failure: object
) -> None:
    """The broker that was asked for the metadata held the request back. The fetching broker was
    well, but was not asked for records before that."""
    async with network, EmbeddedKafka({"t": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0"])
        async with Consumer(bootstrap_servers="kafka-1", fetch_max_wait_ms=500) as consumer:
            await consumer.assign([T0])
            assert await offsets_of(consumer, 1) == [0]
            kafka.fail(
                metadata.MetadataRequest,
                Delay(20.0),
                times=None,
                when=lambda asked: bool(asked.topics),
            )
            kafka.fail(FetchRequest, failure, times=1)
            await anyio.sleep(1.0)  # the long poll ends, and the next one fails
            began = anyio.current_time()
            kafka.produce("t", ["1"])
            assert await offsets_of(consumer, 1) == [1]
            assert anyio.current_time() - began < 0.1


async def test_a_leader_named_beside_records_is_ignored(network: Any, script: Script) -> None:
    def respond(found: Fetch) -> FetchResponse:
        (offset,) = found.offsets.values()
        return fetch_response(
            data(0, batch(offset), current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=1))
        )

    script.respond = respond
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 3) == [0, 1, 2]
    assert nodes_of(script.fetches) == [1]


@pytest.mark.parametrize("epoch", [-1, 1])
async def test_a_leader_without_offset_for_leader_epoch_is_fetched_from(
    network: Any, script: Script, epoch: int
) -> None:
    """Brokers before 2.1 return no epochs; those before 2.0 lack OffsetForLeaderEpoch."""

    async def respond(found: Fetch) -> FetchResponse:
        offset = found.offsets.get(0)
        if offset is None or (offset == 2 and found.node == 1):
            script.leader, script.leader_epoch = 2, epoch
            return fetch_response(data(0, error_code=E.NOT_LEADER_OR_FOLLOWER))
        return fetch_response(data(0, batch(offset)))

    script.leader_epoch = min(epoch, 0)
    script.respond = respond
    async with network, client() as c:
        await c.assign([T0])
        assert await offsets_of(c, 4) == [0, 1, 2, 3]
    assert nodes_of(script.fetches) == [1, 2]


async def test_lag_of_a_reassigned_partition_is_known_without_a_new_end_offset(
    network: Any,
) -> None:
    """Within a fetch session, a broker sends a log's end only if it has changed. The metrics once
    had no lag for reassigned partitions until the next record was produced."""
    async with network, EmbeddedKafka({"t": 1, "u": 1}, listen=False) as kafka:
        network.serve_embedded(kafka)
        kafka.produce("t", ["0", "1", "2"])
        lags = []
        with anyio.fail_after(60):
            async with Consumer("t", bootstrap_servers="kafka-1", group_id="g") as consumer:
                assert await offsets_of(consumer, 3) == [0, 1, 2]
                await consumer.commit()
                for topics in (("t",), ("t", "u"), ("u",)):
                    await consumer.subscribe(*topics)
                    await anyio.sleep(5)
                    lags.append(consumer.metrics().lag)
                consumer.seek(TopicPartition("u", 0), 0)
                kafka.produce("u", ["0", "1"])
                await consumer.getone()
                lags.append(consumer.metrics().lag)
    t, u = T0, TopicPartition("u", 0)
    assert lags == [{t: 0}, {t: 0, u: 0}, {u: 0}, {u: 1}]
