"""pykafka's broker: each request over its connection."""

import socket
import ssl
import weakref
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import pytest
from trustme import CA

import kafkagroup.broker
from kafkagroup import Codec, Security, TopicPartition
from kafkagroup.compat.pykafka import (
    Broker,
    BrokerMetadata,
    MemberAssignment,
    Message,
    OffsetType,
    PartitionFetchRequest,
    PartitionOffsetCommitRequest,
    PartitionOffsetFetchRequest,
    PartitionOffsetRequest,
    ProduceRequest,
    RangeProtocol,
)
from kafkagroup.errors import (
    ClosedError,
    ConnectionLostError,
    IllegalStateError,
    RequestTimeoutError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Swallow
from kafkagroup.wire import (
    NewRecord,
    decode_assignment,
    decode_records,
    decode_subscription,
    encode_batch,
)
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from kafkagroup.wire.messages.offsets import OffsetFetchRequest

pytestmark = pytest.mark.anyio


def broker_at(bootstrap, **options):
    host, port = bootstrap.split(",")[0].split(":")
    return Broker(1, host.encode(), int(port), None, 30_000, 10_000, **options)


def values(response):
    (topic,) = response.responses
    return {
        p.partition_index: [r.value for r in decode_records(p.records, "t", p.partition_index)]
        for p in topic.partitions
    }


async def until_joined(broker, connection_id, group, member_id=b"", **options):
    """Join as current brokers require: with the id from the first attempt."""
    await found_coordinator(broker, group)
    with anyio.fail_after(20):
        response = await broker.join_group(connection_id, group, member_id, **options)
        while response.error_code in (14, 15, 16, 79):
            member_id = response.member_id or member_id
            await anyio.sleep(0.02)
            response = await broker.join_group(connection_id, group, member_id, **options)
    assert response.error_code == 0
    return response


async def found_coordinator(broker, group):
    """Find the coordinator; a new broker creates the offsets topic for its first group."""
    key = group.decode() if isinstance(group, bytes) else group
    code = -1
    while code != 0:
        found = await broker.handler.request(FindCoordinatorRequest(coordinator_keys=(key,)))
        code = found.coordinators[0].error_code
        assert code in (0, 15)


# ---------------------------------------------------------------- connections


async def test_the_attributes_of_a_broker(bootstrap):
    broker = broker_at(bootstrap)
    host, port = bootstrap.split(":")
    assert (broker.id, broker.host, broker.port) == (1, host, int(port))
    assert (broker.connected, broker.offsets_channel_connected) == (False, False)
    assert (broker.handler, broker.offsets_channel_handler) == (None, None)
    assert repr(broker) == f"<Broker (host={host}, port={port}, id=1)>"
    assert weakref.ref(broker)() is broker
    with pytest.raises(ClosedError, match=r"connect\(\)"):
        await broker.request_metadata()
    async with broker:
        await broker.connect()
        assert (broker.connected, broker.offsets_channel_connected) == (True, False)
        await broker.connect_offsets_channel()
        assert broker.offsets_channel_connected
        assert broker.handler is broker.offsets_channel_handler is not None
    assert not broker.connected


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_outside_a_with_block_it_connects_on_request(bootstrap):
    """As in pykafka, where a broker is not a context manager. Any task may connect."""
    broker = broker_at(bootstrap)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(broker.connect)
    assert broker.connected
    assert (await broker.request_metadata([])).brokers
    await broker.close()
    assert not broker.connected
    await broker.connect()
    assert broker.connected
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(broker.close)
    assert not broker.connected
    await broker.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_failed_connect_raises_the_cause_and_leaves_nothing_open():
    broker = Broker(1, "127.0.0.1", 1, None, 30_000, 10_000)
    with pytest.raises(ConnectionLostError):
        await broker.connect()
    assert not broker.connected
    with pytest.raises(ConnectionLostError):
        async with broker:
            pass


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_connecting_outside_a_with_block_needs_asyncio(bootstrap):
    with pytest.raises(IllegalStateError, match="asyncio"):
        await broker_at(bootstrap).connect()


async def test_a_broker_is_created_from_metadata(bootstrap):
    host, port = bootstrap.split(":")
    made = Broker.from_metadata(BrokerMetadata(7, host.encode(), int(port)), None, 30_000, 10_000)
    assert (made.id, made.host, made.port) == (7, host, int(port))
    async with made:
        assert (await made.request_metadata([])).brokers


async def test_each_channel_has_its_own_timeout():
    with EmbeddedKafka({"t": 1}) as near:
        host, port = near.bootstrap_servers.split(":")
        near.fail(MetadataRequest, Swallow())
        near.fail(OffsetFetchRequest, Swallow())
        async with Broker(1, host, int(port), None, 300, 600) as broker:
            for call, seconds in (
                (broker.request_metadata([]), 0.3),
                (broker.fetch_consumer_group_offsets(b"g", []), 0.6),
            ):
                start = anyio.current_time()
                with pytest.raises(RequestTimeoutError):
                    await call
                assert anyio.current_time() - start >= seconds


async def test_a_fetch_honours_the_socket_timeout():
    with EmbeddedKafka({"t": 1}) as near:
        host, port = near.bootstrap_servers.split(":")
        near.fail(FetchRequest, Swallow())
        async with Broker(1, host, int(port), None, 300, 600) as broker:
            with anyio.fail_after(10), pytest.raises(RequestTimeoutError):
                await broker.fetch_messages([PartitionFetchRequest("t", 0, 0)], timeout=30_000)


async def test_a_fetch_of_an_idle_partition_ends_before_the_socket_timeout(bootstrap, monkeypatch):
    """Both timeouts are 30 s by default: each fetch without records would fail."""
    waits = []

    async def fetch(broker, positions, *, max_wait, **options):
        waits.append(max_wait)

    monkeypatch.setattr(kafkagroup.broker.Broker, "fetch_messages", fetch)
    async with broker_at(bootstrap) as broker:
        await broker.fetch_messages([PartitionFetchRequest("t", 0, 0)])
        await broker.fetch_messages([PartitionFetchRequest("t", 0, 0)], timeout=60_000)
        await broker.fetch_messages([PartitionFetchRequest("t", 0, 0)], timeout=100)
    assert waits == [27.0, 27.0, 0.1]


async def test_a_close_during_a_connect_closes_the_connection(monkeypatch):
    released, state = anyio.Event(), []

    @asynccontextmanager
    async def opening(*args, **options):
        await released.wait()
        state.append("open")
        yield SimpleNamespace(connected=True)
        state.append("closed")

    monkeypatch.setattr(kafkagroup.broker.Broker, "open", opening)
    broker = Broker(1, "127.0.0.1", 1, None, 30_000, 10_000)
    await broker._tasks.enter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(broker.connect)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(broker.close)
        await anyio.wait_all_tasks_blocked()
        released.set()
    assert state == ["open", "closed"]
    assert not broker.connected
    await broker._tasks.leave()


async def test_buffer_size_and_source_address_are_used(monkeypatch):
    """As seen by the kernel: the bound address of the socket, and the size of each read."""
    reads = []
    recv_into = socket.socket.recv_into

    def noted(receiving, room, size=0):
        count = recv_into(receiving, room, size)
        reads.append((receiving.getpeername(), receiving.getsockname(), size or len(room), count))
        return count

    topics = [f"one-of-twenty-topics-{n}" for n in range(20)]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()
    with EmbeddedKafka(dict.fromkeys(topics, 1)) as near:
        host, port = near.bootstrap_servers.split(":")
        monkeypatch.setattr(socket.socket, "recv_into", noted)
        options = {"buffer_size": 512, "source_host": free[0], "source_port": free[1]}
        async with broker_at(near.bootstrap_servers, **options) as broker:
            response = await broker.request_metadata(topics)
    assert [t.name for t in response.topics] == topics
    ours = [read[1:] for read in reads if read[0] == (host, int(port))]
    assert {address for address, _, _ in ours} == {free}
    assert max(asked for _, asked, _ in ours) == 512
    assert max(count for _, _, count in ours) == 512


async def test_every_connection_uses_tls():
    """pykafka opens those of group membership without TLS."""
    ca = CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    security = Security(ssl_ca_pem=ca.cert_pem.bytes().decode())
    with EmbeddedKafka({"t": 1}, tls=context) as near:
        async with broker_at(near.bootstrap_servers, security=security) as broker:
            for connection_id in ("one", "two"):
                await until_joined(broker, connection_id, f"g-{connection_id}")
            await broker.connect_offsets_channel()
            assert broker.handler.is_connected("two")


async def test_requests_of_two_members_interleave(bootstrap, name):
    """A pending join delays no request with another connection id."""
    async with broker_at(bootstrap) as broker:
        first = await until_joined(broker, "one", name)
        parked = anyio.Event()

        async def join():
            await until_joined(broker, "two", name)
            parked.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(join)
            with anyio.fail_after(20):
                code = 0
                while code != 27:  # REBALANCE_IN_PROGRESS: the other one has joined, and waits
                    beat = await broker.heartbeat("one", name, first.generation_id, first.member_id)
                    code = beat.error_code
                assert not parked.is_set()
                left = await broker.leave_group("one", name, first.member_id)
                assert left.error_code == 0
                await parked.wait()


# ---------------------------------------------------------------- records


async def test_produce_and_fetch(bootstrap, name, fill):
    await fill(2, {0: [NewRecord(None, b"old")]})
    request = ProduceRequest(compression_type=1, required_acks=-1)
    request.add_message(Message(b"new", b"k"), name.encode(), 0)
    request.add_message(Message("text"), name, 1)
    async with broker_at(bootstrap) as broker:
        response = await broker.produce_messages(request)
        assert {p.error_code for t in response.responses for p in t.partition_responses} == {0}
        silent = ProduceRequest(required_acks=0)
        silent.add_message(Message(b"silent"), name, 1)
        assert await broker.produce_messages(silent) is None
        await broker.request_metadata([])
        fetched = await broker.fetch_messages(
            [PartitionFetchRequest(name.encode(), 0, 0), PartitionFetchRequest(name, 1, 0)],
            timeout=100,
        )
        assert values(fetched) == {0: [b"old", b"new"], 1: [b"text", b"silent"]}
        few = await broker.fetch_messages(
            [PartitionFetchRequest(name, 0, 0, max_bytes=1), PartitionFetchRequest(name, 1, 1, 1)],
            timeout=100,
        )
        assert values(few)[0] == [b"old"]
    assert request.batches[TopicPartition(name, 0)] == encode_batch(
        [NewRecord(b"k", b"new")], codec=Codec.GZIP
    )


async def test_min_bytes_and_timeout_bound_a_fetch(bootstrap, name, fill):
    await fill(1, 1)
    async with broker_at(bootstrap) as broker:
        start = anyio.current_time()
        request = PartitionFetchRequest(name, 0, 0)
        fetched = await broker.fetch_messages([request], timeout=300, min_bytes=100_000)
        assert anyio.current_time() - start > 0.25
        assert values(fetched) == {0: [b"0/0"]}


async def test_metadata_and_offset_limits(bootstrap, name, fill):
    await fill(1, 3)
    async with broker_at(bootstrap) as broker:
        found = await broker.request_metadata([name.encode()])
        assert [(t.name, t.error_code, len(t.partitions)) for t in found.topics] == [(name, 0, 1)]
        assert name in {t.name for t in (await broker.request_metadata()).topics}
        offsets = {}
        for before in (OffsetType.EARLIEST, OffsetType.LATEST, 1_001):
            request = PartitionOffsetRequest(name.encode(), 0, before, 1)
            response = await broker.request_offset_limits([request])
            offsets[before] = response.topics[0].partitions[0].offset
        assert offsets == {-2: 0, -1: 3, 1_001: 1}


async def test_committed_offsets(bootstrap, name, fill):
    await fill(2, 3)
    async with broker_at(bootstrap) as broker:
        await found_coordinator(broker, name)
        commit = PartitionOffsetCommitRequest(name.encode(), 0, 2, 0, b"note")
        code = -1
        while code != 0:  # the group's coordinator is being made
            done = await broker.commit_consumer_group_offsets(name.encode(), -1, b"", [commit])
            code = done.topics[0].partitions[0].error_code
            assert code in (0, 14, 15, 16)
        wanted = [PartitionOffsetFetchRequest(name.encode(), p) for p in (0, 1)]
        found = await broker.fetch_consumer_group_offsets(name.encode(), wanted)
        (topic,) = found.groups[0].topics
        assert [(p.partition_index, p.committed_offset, p.metadata) for p in topic.partitions] == [
            (0, 2, "note"),
            (1, -1, ""),
        ]
        assert broker.offsets_channel_connected


# ---------------------------------------------------------------- membership


async def test_joining_syncing_heartbeats_and_leaving(bootstrap, name, fill):
    await fill(3)
    group = name.encode()
    async with broker_at(bootstrap) as broker:
        joined = await until_joined(
            broker, "c", group, topic_name=name.encode(), membership_protocol=RangeProtocol
        )
        me = joined.member_id.encode()
        assert (joined.leader, joined.protocol_name) == (joined.member_id, "range")
        assert {m.member_id: decode_subscription(m.metadata).topics for m in joined.members} == {
            joined.member_id: (name,)
        }
        share = MemberAssignment([(group, [2, 0, 1])], member_id=me)
        synced = await broker.sync_group("c", group, joined.generation_id, me, [share])
        assert synced.error_code == 0
        assert decode_assignment(synced.assignment) == tuple(
            TopicPartition(name, p) for p in range(3)
        )
        # A follower sends no assignments, and gets the same assignment again.
        again = await broker.sync_group("c", group, joined.generation_id, me, [])
        assert again.assignment == synced.assignment
        beat = await broker.heartbeat("c", group, joined.generation_id, me)
        assert beat.error_code == 0
        commit = PartitionOffsetCommitRequest(name, 0, 0)
        done = await broker.commit_consumer_group_offsets(group, joined.generation_id, me, [commit])
        assert done.topics[0].partitions[0].error_code == 0
        left = await broker.leave_group("c", group, me)
        assert (left.error_code, {m.error_code for m in left.members}) == (0, {0})
        beat = await broker.heartbeat("c", group, joined.generation_id, me)
        assert beat.error_code == 25
