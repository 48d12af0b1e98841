"""Every request of a group client as a coroutine of `Broker`, against a broker in this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from kafkagroup.broker import Broker
from kafkagroup.errors import ConnectionLostError, ErrorCode, RequestTimeoutError
from kafkagroup.testing.embedded import EmbeddedKafka, Seen, Swallow
from kafkagroup.transport.options import ClientOptions, parse_servers
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataResponseBroker,
)
from kafkagroup.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kafkagroup.wire.records import read_batches
from kafkagroup.wire.schema import NO_ID

pytestmark = pytest.mark.anyio

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
BY_ID = (OffsetCommitRequest, OffsetFetchRequest)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Return a backend with real time, as the broker runs in a thread."""
    name: str = request.param
    return name


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 2}) as running:
        yield running


def address(kafka: EmbeddedKafka) -> tuple[str, int]:
    (found,) = parse_servers(kafka.bootstrap_servers)
    return found


def batch(*values: bytes) -> bytes:
    return encode_batch([NewRecord(None, value, 1000) for value in values])


def values(records: bytes | memoryview | None) -> list[object]:
    batches = read_batches(records or b"", topic="t", partition=0)
    return [record.value for b in batches for record in b.records()]


async def test_produce_and_fetch(kafka: EmbeddedKafka) -> None:
    async with Broker.open(*address(kafka)) as broker:
        response = await broker.produce_messages({ONE: batch(b"a", b"b"), ZERO: batch(b"c")})
        assert response is not None
        (topic,) = response.responses
        assert [(p.index, p.error_code, p.base_offset) for p in topic.partition_responses] == [
            (0, 0, 0),
            (1, 0, 0),
        ]
        fetched = await broker.fetch_messages({ZERO: 0, ONE: 1}, max_wait=0.1)
        (found,) = fetched.responses
        assert [(p.partition_index, values(p.records)) for p in found.partitions] == [
            (0, [b"c"]),
            (1, [b"a", b"b"]),
        ]
        assert broker.is_connected("fetch")


async def test_a_fetch_waits_for_the_given_time(kafka: EmbeddedKafka) -> None:
    async with Broker.open(*address(kafka)) as broker:
        start = anyio.current_time()
        fetched = await broker.fetch_messages({ZERO: 0}, max_wait=0.2)
        assert 0.15 < anyio.current_time() - start < 2
        assert values(fetched.responses[0].partitions[0].records) == []
        async with anyio.create_task_group() as tasks:

            async def produce() -> None:
                await anyio.sleep(0.05)
                await broker.produce_messages({ZERO: batch(b"late")})

            tasks.start_soon(produce)
            fetched = await broker.fetch_messages({ZERO: 0}, max_wait=20)
        assert values(fetched.responses[0].partitions[0].records) == [b"late"]


async def test_produce_without_acknowledgement(kafka: EmbeddedKafka) -> None:
    async with Broker.open(*address(kafka)) as broker:
        assert await broker.produce_messages({ZERO: batch(b"a")}, acks=0) is None
        # Answered in order, on the same connection: by now the records are stored.
        await broker.request_metadata([])
        assert kafka.log_end("t", 0) == 1


async def test_metadata_and_log_offsets(kafka: EmbeddedKafka) -> None:
    kafka.produce("t", ["a", "b", "c"], partition=0)
    kafka.delete_records("t", 0, 1)
    async with Broker.open(*address(kafka)) as broker:
        host, port = address(kafka)
        metadata = await broker.request_metadata(["t", "unknown"])
        assert metadata.brokers == (MetadataResponseBroker(node_id=1, host=host, port=port),)
        assert [(t.name, t.error_code, len(t.partitions)) for t in metadata.topics] == [
            ("t", 0, 2),
            ("unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
        ]
        assert [t.name for t in (await broker.request_metadata()).topics] == ["t"]
        assert (await broker.request_metadata([])).topics == ()
        found = {}
        for timestamp in (-2, -1):
            response = await broker.request_offset_limits({ZERO: timestamp, ONE: timestamp})
            found[timestamp] = [p.offset for p in response.topics[0].partitions]
        assert found == {-2: [1, 0], -1: [3, 0]}


async def test_committed_offsets_are_requested_over_their_own_channel(kafka: EmbeddedKafka) -> None:
    async with Broker.open(*address(kafka), offsets_channel_timeout=9) as broker:
        assert not broker.offsets_channel_connected
        response = await broker.commit_consumer_group_offsets(
            "g", -1, "", {ONE: OffsetAndMetadata(7, "note", 2), ZERO: OffsetAndMetadata(5)}
        )
        assert broker.offsets_channel_connected
        assert [(p.partition_index, p.error_code) for p in response.topics[0].partitions] == [
            (0, 0),
            (1, 0),
        ]
        one = await broker.fetch_consumer_group_offsets("g", [ONE], require_stable=True)
        (part,) = one.groups[0].topics[0].partitions
        assert (part.committed_offset, part.metadata, part.committed_leader_epoch) == (7, "note", 2)
        every = await broker.fetch_consumer_group_offsets("g")
        assert [p.committed_offset for p in every.groups[0].topics[0].partitions] == [5, 7]
    assert kafka.committed("g", "t") == {0: 5, 1: 7}


@pytest.mark.parametrize("by_id", [False, True])
async def test_committed_offsets_are_requested_by_name_or_id_and_returned_by_name(
    kafka: EmbeddedKafka, by_id: bool
) -> None:
    t = kafka._cluster.topics["t"].topic_id
    known, sent = ({"t": t}, t) if by_id else ({}, NO_ID)
    async with Broker.open(*address(kafka)) as broker:
        committed = await broker.commit_consumer_group_offsets(
            "g", -1, "", {ONE: OffsetAndMetadata(7, "note", 2)}, topic_ids=known
        )
        partition = OffsetCommitResponsePartition(partition_index=1, error_code=0)
        assert committed.topics == (
            OffsetCommitResponseTopic(name="t", topic_id=sent, partitions=(partition,)),
        )
        response = await broker.fetch_consumer_group_offsets("g", [ONE], topic_ids=known)
        found = OffsetFetchResponsePartitions(
            partition_index=1, committed_offset=7, committed_leader_epoch=2, metadata="note"
        )
        topic = OffsetFetchResponseTopics(name="t", topic_id=sent, partitions=(found,))
        assert response.groups == (OffsetFetchResponseGroup(group_id="g", topics=(topic,)),)
    versions = [seen.version for seen in kafka.requests() if seen.api in BY_ID]
    assert versions == ([10, 10] if by_id else [9, 9])


async def test_an_offset_fetch_of_a_member_has_its_epoch(kafka: EmbeddedKafka) -> None:
    asked: list[OffsetFetchRequest] = []
    kafka.fail(OffsetFetchRequest, Swallow(), when=lambda request: bool(asked.append(request)))
    async with Broker.open(*address(kafka)) as broker:
        await broker.fetch_consumer_group_offsets("g", [ONE], member=("me", 3))
        await broker.fetch_consumer_group_offsets("g", [ONE])
    topics = (OffsetFetchRequestTopics(name="t", partition_indexes=(1,)),)
    assert [request.groups for request in asked] == [
        (OffsetFetchRequestGroup(group_id="g", member_id=me, member_epoch=epoch, topics=topics),)
        for me, epoch in (("me", 3), (None, -1))
    ]


async def test_a_member_joins_syncs_sends_heartbeats_and_leaves(kafka: EmbeddedKafka) -> None:
    async with Broker.open(*address(kafka)) as broker:
        first = await broker.join_group(
            "g", "", protocol_type="work", protocols=[("even", b"me")], rebalance_timeout=5
        )
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = await broker.join_group(
            "g",
            first.member_id,
            protocol_type="work",
            protocols=[("even", b"me")],
            rebalance_timeout=5,
        )
        me, generation = joined.member_id, joined.generation_id
        assert (joined.error_code, joined.leader, joined.protocol_name) == (0, me, "even")
        assert [(m.member_id, m.metadata) for m in joined.members] == [(me, b"me")]
        synced = await broker.sync_group(
            "g", generation, me, {me: b"share"}, protocol_type="work", protocol_name="even"
        )
        assert (synced.error_code, synced.assignment) == (0, b"share")
        assert (await broker.heartbeat("g", generation, me)).error_code == 0
        assert (
            await broker.heartbeat("g", generation + 1, me)
        ).error_code == ErrorCode.ILLEGAL_GENERATION
        left = await broker.leave_group("g", me, reason="done")
        assert (left.error_code, [m.error_code for m in left.members]) == (0, [0])
        assert (
            await broker.heartbeat("g", generation, me)
        ).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert broker.is_connected("group")
    assert kafka.group_state("g") == "Empty"


async def test_a_pending_join_does_not_block_other_connections(kafka: EmbeddedKafka) -> None:
    join: dict[str, Any] = {
        "protocol_type": "work",
        "protocols": [("p", b"")],
        "rebalance_timeout": 60,
    }
    async with Broker.open(*address(kafka)) as broker:
        first = await broker.join_group("g", "", connection_id="1", **join)
        me = first.member_id
        await broker.join_group("g", me, connection_id="1", **join)
        async with anyio.create_task_group() as tasks:

            async def second() -> None:
                other = await broker.join_group("g", "", connection_id="2", **join)
                await broker.join_group("g", other.member_id, connection_id="2", **join)

            tasks.start_soon(second)
            with anyio.fail_after(5):
                while (await broker.heartbeat("g", 1, me, connection_id="1")).error_code != 27:
                    await anyio.sleep(0.01)
                await broker.request_metadata()
                await broker.fetch_consumer_group_offsets("g")
            tasks.cancel_scope.cancel()


async def test_a_broker_created_from_metadata_connects_on_request(kafka: EmbeddedKafka) -> None:
    host, port = address(kafka)
    entry = MetadataResponseBroker(node_id=1, host=host, port=port)
    async with anyio.create_task_group() as tasks:
        broker = Broker.from_metadata(entry, tasks)
        assert (broker.node_id, broker.host, broker.port) == (1, host, port)
        assert repr(broker) == f"Broker(1, {host!r}, {port})"
        assert not broker.connected
        await broker.connect()
        await broker.connect_offsets_channel()
        assert (broker.connected, broker.offsets_channel_connected) == (True, True)
        await broker.aclose()
        assert (broker.connected, broker.offsets_channel_connected) == (False, False)


async def test_a_broker_created_from_metadata_has_the_given_timeouts(
    kafka: EmbeddedKafka,
) -> None:
    host, port = address(kafka)
    entry = MetadataResponseBroker(node_id=1, host=host, port=port)
    options = ClientOptions(request_timeout=0.2)
    kafka.fail(MetadataRequest, Swallow())
    kafka.fail(OffsetFetchRequest, Swallow())
    async with anyio.create_task_group() as tasks:
        broker = Broker.from_metadata(entry, tasks, options, offsets_channel_timeout=0.1)
        with pytest.raises(RequestTimeoutError, match=r"MetadataRequest within 0.2 s"):
            await broker.request_metadata()
        with pytest.raises(RequestTimeoutError, match=r"OffsetFetchRequest within 0.1 s"):
            await broker.fetch_consumer_group_offsets("g")
        await broker.aclose()


async def test_the_broker_sees_the_configured_source_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        source = free.getsockname()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    seen: list[object] = []
    options = ClientOptions(source_host=source[0], source_port=source[1], connect_timeout=1)
    async with listener, anyio.create_task_group() as tasks:

        async def look(stream: anyio.abc.SocketStream) -> None:
            seen.append(stream.extra(anyio.abc.SocketAttribute.remote_address))
            await stream.aclose()

        tasks.start_soon(listener.serve, look)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(ConnectionLostError):
            async with Broker.open("127.0.0.1", port, options=options):
                raise AssertionError
        tasks.cancel_scope.cancel()
    assert seen == [source]


async def test_a_restarted_broker_is_reconnected(kafka: EmbeddedKafka) -> None:
    async with Broker.open(*address(kafka)) as broker:
        kafka.kill(1)
        with pytest.raises(ConnectionLostError):
            await broker.request_metadata()
        with pytest.raises(ConnectionLostError):
            await broker.request_metadata()
        kafka.restart(1)
        assert len((await broker.request_metadata()).topics) == 1


async def test_an_unresponsive_broker_times_out(kafka: EmbeddedKafka) -> None:
    kafka.fail(OffsetFetchRequest, Swallow())
    async with Broker.open(*address(kafka), offsets_channel_timeout=0.1) as broker:
        with pytest.raises(RequestTimeoutError, match=r"OffsetFetchRequest within 0.1 s"):
            await broker.fetch_consumer_group_offsets("g")
        assert (broker.connected, broker.offsets_channel_connected) == (True, False)
        await broker.fetch_consumer_group_offsets("g")


async def test_an_idle_connection_is_replaced_after_a_timeout_on_another(
    kafka: EmbeddedKafka,
) -> None:
    """A firewall that forgets connections, or a host that vanishes, affects all of them."""
    kafka.fail(OffsetFetchRequest, Swallow())
    async with Broker.open(*address(kafka), offsets_channel_timeout=0.1) as broker:
        with pytest.raises(RequestTimeoutError):
            await broker.fetch_consumer_group_offsets("g")
        opened = len(kafka.requests(ApiVersionsRequest))
        for _ in range(2):
            await broker.request_metadata()
        assert len(kafka.requests(ApiVersionsRequest)) == opened + 1


async def test_requests_contain_the_client_id(kafka: EmbeddedKafka) -> None:
    async with Broker.open(*address(kafka), options=ClientOptions(client_id="me")) as broker:
        await broker.request_metadata()
    assert kafka.requests(MetadataRequest) == [Seen(1, "me", MetadataRequest, 13)]


async def test_a_fetch_has_a_byte_limit_for_each_partition(kafka: EmbeddedKafka) -> None:
    for partition in (0, 1):
        for value in (b"a", b"b"):
            kafka.append("t", partition, batch(value))
    one = len(batch(b"a"))
    async with Broker.open(*address(kafka)) as broker:
        fetched = await broker.fetch_messages(
            {ZERO: 0, ONE: 0}, max_wait=0.1, partition_max_bytes={ZERO: one, ONE: 2 * one}
        )
        found = [values(p.records) for p in fetched.responses[0].partitions]
        assert found == [[b"a"], [b"a", b"b"]]


async def test_requests_larger_than_the_socket_buffer_keep_their_order(
    kafka: EmbeddedKafka,
) -> None:
    large = batch(bytes(16 * 1024 * 1024))
    codes: list[int] = []

    async def append(broker: Broker, data: bytes) -> None:
        response = await broker.produce_messages({ZERO: data})
        assert response is not None
        codes.append(response.responses[0].partition_responses[0].error_code)

    async with Broker.open(*address(kafka)) as broker:
        async with anyio.create_task_group() as tasks:
            for data in (large, batch(b"a"), large, batch(b"b")):
                tasks.start_soon(append, broker, data)
        assert await broker.request_metadata(["t"])
    too_large = ErrorCode.MESSAGE_TOO_LARGE
    assert sorted(codes) == [0, 0, too_large, too_large]


async def test_the_socket_is_read_in_chunks_of_the_configured_size(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[int] = set()
    recv_into = socket.socket.recv_into

    def noted(self: socket.socket, room: memoryview, most: int) -> int:
        asked.add(most)
        return recv_into(self, room, most)

    monkeypatch.setattr(socket.socket, "recv_into", noted)
    async with Broker.open(*address(kafka), options=ClientOptions(receive_bytes=100)) as broker:
        assert len((await broker.request_metadata()).topics) == 1
    assert asked == {100}
