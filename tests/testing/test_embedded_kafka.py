"""The embedded broker on the wire: in the caller's loop, in a thread, on several nodes, with
faults.

Connections are in memory if virtual time is needed, otherwise TCP; no test sleeps in real time.
"""

import socket
import struct
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from testing.peers import LOOPS, VIRTUAL, connected, frame, in_memory

from kafkagroup.errors import (
    BrokerError,
    ConfigurationError,
    ErrorCode,
    IllegalStateError,
)
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import BrokerSettings, Close, Delay, Seen, Swallow, Throttle
from kafkagroup.testing.embedded.broker import _HANDLERS, Incoming, write_response
from kafkagroup.testing.embedded.refusals import refuse
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.codec import decode
from kafkagroup.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
)
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Coordinator,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from kafkagroup.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkagroup.wire.messages.transactions import EndTxnRequest
from kafkagroup.wire.records import read_batches
from kafkagroup.wire.schema import (
    BYTES,
    NO_ID,
    RECORDS,
    STRING,
    UUID_,
    Array,
    Request,
    Scalar,
    fields_of,
)

pytestmark = pytest.mark.anyio
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def fetch_request(
    *offsets: int, max_wait_ms: int = 0, version_16: Any = None, epoch: int = -1
) -> FetchRequest:
    """Fetch partition n of topic t from the n-th offset."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        topics=(
            FetchTopic(
                topic="" if version_16 else "t",
                **({"topic_id": version_16} if version_16 else {}),
                partitions=tuple(
                    FetchPartition(
                        partition=n,
                        fetch_offset=offset,
                        current_leader_epoch=epoch,
                        partition_max_bytes=10**6,
                    )
                    for n, offset in enumerate(offsets)
                ),
            ),
        ),
    )


def join_request(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b"m"),),
    )


def commit_request(offset: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        topics=(
            OffsetCommitRequestTopic(
                name="t",
                partitions=(
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=offset, committed_metadata=None
                    ),
                ),
            ),
        ),
    )


def values(response: Any, partition: int = 0) -> list[object]:
    records = response.responses[0].partitions[partition].records
    found = read_batches(records, topic="t", partition=partition)
    return [record.value for batch in found for record in batch.records()]


def errors(response: Any) -> list[int]:
    return [partition.error_code for partition in response.responses[0].partitions]


# ---------------------------------------------------------------- in the caller's loop


@LOOPS
async def test_records_are_served_over_tcp_in_the_callers_loop() -> None:
    async with EmbeddedKafka({"t": 1}, wall=lambda: 12.0) as kafka, connected(kafka) as peer:
        assert kafka.produce("t", ["a", b"b"]) == (TopicPartition("t", 0),) * 2
        response = await peer.ask(fetch_request(0), 12)
        assert values(response) == [b"a", b"b"]
        assert response.responses[0].partitions[0].high_watermark == 2
        versions = await peer.ask(ApiVersionsRequest(), 0)
        assert (versions.error_code, len(versions.api_keys)) == (0, len(_HANDLERS))
        assert kafka.requests() == [
            Seen(1, "test", FetchRequest, 12),
            Seen(1, "test", ApiVersionsRequest, 0),
        ]
        assert kafka.requests(FetchRequest) == kafka.requests()[:1]


@LOOPS
async def test_serve_runs_until_cancelled() -> None:
    kafka = EmbeddedKafka({"t": 1})
    async with anyio.create_task_group() as group:
        assert await group.start(kafka.serve) is kafka
        async with connected(kafka) as peer:
            assert values(await peer.ask(fetch_request(0), 12)) == []
            group.cancel_scope.cancel()
    with pytest.raises(OSError, match="connection"):
        await anyio.connect_tcp("127.0.0.1", int(kafka.bootstrap_servers.partition(":")[2]))


@LOOPS
async def test_the_callers_exception_is_raised_unwrapped() -> None:
    with pytest.raises(LookupError):
        async with EmbeddedKafka():
            raise LookupError
    async with EmbeddedKafka() as kafka:
        with pytest.raises(IllegalStateError):
            await kafka.__aenter__()


@VIRTUAL
async def test_a_fetch_waits_for_records_up_to_its_timeout() -> None:
    kafka = EmbeddedKafka({"t": 2}, listen=False)
    async with in_memory(kafka) as (peer,):
        began = anyio.current_time()
        assert values(await peer.ask(fetch_request(0, 0, max_wait_ms=5000), 12)) == []
        assert anyio.current_time() - began == 5.0
        await peer.send(fetch_request(0, 0, max_wait_ms=5000), 12)
        await anyio.sleep(2)
        kafka.produce("t", ["new"], partition=1)
        assert values(await peer.receive(), 1) == [b"new"]
        assert anyio.current_time() - began == 7.0


@VIRTUAL
async def test_a_pending_join_blocks_its_connection_until_its_deadline() -> None:
    """A LeaveGroup on the connection of a pending JoinGroup would wait behind it: brokers keep the
    order."""
    kafka = EmbeddedKafka(listen=False)
    async with in_memory(kafka, 2) as (first, second):
        member = (await first.ask(join_request(), 9)).member_id
        assert (await first.ask(join_request(member), 9)).error_code == ErrorCode.NONE
        other = (await second.ask(join_request(), 9)).member_id
        await second.send(join_request(other), 9)
        await second.send(HEARTBEAT, 4)
        began = anyio.current_time()
        with anyio.move_on_after(9.9) as waited:
            await second.receive()
        assert waited.cancelled_caught
        assert kafka.group_state("g") == "PreparingRebalance"
        second.answered -= 1
        response = await second.receive()
        assert (response.generation_id, response.leader) == (2, other)
        assert anyio.current_time() - began == 10.0
        assert (await second.receive()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@VIRTUAL
async def test_a_response_can_be_delayed() -> None:
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    async with in_memory(kafka) as (peer,):
        kafka.fail(HeartbeatRequest, Delay(30.0))
        began = anyio.current_time()
        await peer.ask(HEARTBEAT, 4)
        assert anyio.current_time() - began == 30.0


@VIRTUAL
async def test_requests_of_a_throttled_client_are_delayed() -> None:
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    async with in_memory(kafka) as (peer,):
        kafka.fail(HeartbeatRequest, Throttle(2.5))
        began = anyio.current_time()
        responses = [await peer.ask(HEARTBEAT, 4) for _ in range(2)]
        assert anyio.current_time() - began == 2.5
    assert [response.throttle_time_ms for response in responses] == [2500, 0]


@VIRTUAL
async def test_a_response_can_be_dropped() -> None:
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    async with in_memory(kafka) as (peer,):
        kafka.fail(OffsetCommitRequest, Swallow())
        await peer.send(commit_request(7), 8)
        await peer.send(HEARTBEAT, 4)
        with anyio.move_on_after(1e6) as waited:
            await peer.receive()
        assert waited.cancelled_caught
        assert kafka.committed("g", "t") == {0: 7}, "the commit was made, its answer lost"


# ---------------------------------------------------------------- versions and bad input


@LOOPS
async def test_unknown_api_versions_requests_are_answered_in_version_0() -> None:
    async with EmbeddedKafka() as kafka, connected(kafka) as peer:
        await peer.stream.send(struct.pack(">ihhih", 10, 18, 99, 1, -1))
        (size,) = struct.unpack(">i", await peer.reader.receive_exactly(4))
        data = await peer.reader.receive_exactly(size)
        response = decode(ApiVersionsResponse, 0, data, 4)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [
            (18, 0, 4)
        ]


@LOOPS
@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">ih", 2, 11),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, 11, 99, 1, -1),
        struct.pack(">ihhihB", 11, 12, 4, 1, -1, 255),
        struct.pack(">ihhih", 10, 3, 1, 1, 500),
    ],
    ids=["negative", "huge", "short", "api", "version", "tags", "client id"],
)
async def test_an_invalid_request_closes_the_connection(garbage: bytes) -> None:
    async with EmbeddedKafka() as kafka:
        async with connected(kafka) as peer:
            await peer.stream.send(garbage)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await peer.stream.receive()
        async with connected(kafka) as peer:
            assert (await peer.ask(HEARTBEAT, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("api", _HANDLERS, ids=lambda api: api.__name__)
def test_every_api_can_return_an_error_in_every_version(api: type[Request[Any]]) -> None:
    for version in api.versions:
        incoming = Incoming(_filled(api, version), version, 1, "")
        response = refuse(incoming.request, ErrorCode.UNKNOWN_SERVER_ERROR, version)
        assert write_response(incoming, response)


def _filled(kind: Any, version: int) -> Any:
    """Return a value of this type: zeros, empty strings, arrays of one."""
    if isinstance(kind, Array):
        return (_filled(kind.element, version),)
    if isinstance(kind, Scalar):
        return {STRING: "", BYTES: b"", RECORDS: b"", UUID_: NO_ID}.get(kind, 0)
    fields = fields_of(kind).items()
    return kind(**{n: _filled(f.kind, version) for n, f in fields if version in f.versions})


# ---------------------------------------------------------------- reading and writing


@LOOPS
async def test_fetch_errors_can_be_set_for_a_partition() -> None:
    async with EmbeddedKafka({"t": 2}) as kafka, connected(kafka) as peer:
        kafka.produce("t", ["x"], partition=0)
        assert errors(await peer.ask(fetch_request(0, 5, 0), 12)) == [0, 1, 3]
        kafka.delete_records("t", 0, 1)
        assert errors(await peer.ask(fetch_request(0, 0), 12)) == [1, 0]
        kafka.fail(FetchRequest, ErrorCode.KAFKA_STORAGE_ERROR, when=lambda f: len(f.topics) == 1)
        assert errors(await peer.ask(fetch_request(1, 0), 12)) == [56, 56]
        assert errors(await peer.ask(fetch_request(1, 0), 12)) == [0, 0]


@LOOPS
async def test_a_truncated_log_begins_a_leader_epoch() -> None:
    async with EmbeddedKafka({"t": 1}) as kafka, connected(kafka) as peer:
        kafka.produce("t", ["a"])
        kafka.produce("t", ["b"])
        kafka.truncate("t", 0, 1)
        asked = ListOffsetsRequest(
            replica_id=-1,
            topics=(
                ListOffsetsTopic(
                    name="t", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),)
                ),
            ),
        )
        (found,) = (await peer.ask(asked, 7)).topics[0].partitions
        assert (found.offset, found.leader_epoch) == (1, 1)
        assert kafka.log_end("t", 0) == 1


@LOOPS
async def test_produce_appends_checked_batches() -> None:
    settings = BrokerSettings(max_message_bytes=200)
    async with EmbeddedKafka({"t": 1}, settings=settings) as kafka, connected(kafka) as peer:
        batch = encode_batch([NewRecord(None, b"a"), NewRecord(None, b"b")])

        async def produce(records: bytes, index: int = 0, acks: int = -1) -> tuple[int, int]:
            asked = PartitionProduceData(index=index, records=records)
            topic = TopicProduceData(name="t", partition_data=(asked,))
            request = ProduceRequest(acks=acks, timeout_ms=1, topic_data=(topic,))
            (response,) = (await peer.ask(request, 9)).responses[0].partition_responses
            return response.error_code, response.base_offset

        assert await produce(batch) == (0, 0)
        assert await produce(batch, acks=1) == (0, 2)
        assert await produce(batch, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await produce(batch, acks=2) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
        assert await produce(batch + batch) == (ErrorCode.INVALID_RECORD, -1)
        assert await produce(batch[:-1] + b"\xff") == (ErrorCode.CORRUPT_MESSAGE, -1)
        assert await produce(encode_batch([NewRecord(None, b"x" * 200)])) == (10, -1)
        topic = TopicProduceData(
            name="t", partition_data=(PartitionProduceData(index=0, records=batch),)
        )
        await peer.send(ProduceRequest(acks=0, timeout_ms=1, topic_data=(topic,)), 9)
        peer.answered += 1  # acks=0 has no response: the next one is that of the next request
        assert values(await peer.ask(fetch_request(0), 12)) == [b"a", b"b"] * 3


# ---------------------------------------------------------------- several nodes


@LOOPS
async def test_leaders_and_coordinators_are_spread_over_nodes() -> None:
    async with EmbeddedKafka({"t": 3}, nodes=3) as kafka, connected(kafka) as peer:
        topics = (MetadataRequestTopic(name="t"),)
        metadata = await peer.ask(MetadataRequest(topics=topics), 12)
        assert [f"{b.host}:{b.port}" for b in metadata.brokers] == [
            kafka.address(n) for n in (1, 2, 3)
        ]
        assert [p.leader_id for p in metadata.topics[0].partitions] == [1, 2, 3]
        assert errors(await peer.ask(fetch_request(0, 0, 0), 10)) == [0, 6, 6]
        assert errors(await peer.ask(fetch_request(0, 0, 0), 12)) == [0, 0, 0]  # KIP-392
        groups = ("a", "b", "c", "d")
        response = await peer.ask(FindCoordinatorRequest(coordinator_keys=groups), 4)
        host, _, _ = kafka.address(1).partition(":")
        assert response.coordinators == tuple(
            Coordinator(
                key=group,
                node_id=kafka.coordinator(group),
                host=host,
                port=int(kafka.address(kafka.coordinator(group)).partition(":")[2]),
            )
            for group in groups
        )
        assert len({c.node_id for c in response.coordinators}) > 1


@LOOPS
async def test_a_moved_leader_is_named_with_its_address() -> None:
    async with EmbeddedKafka({"t": 1}, nodes=2) as kafka, connected(kafka) as peer:
        topics = (MetadataRequestTopic(name="t"),)
        topic_id = (await peer.ask(MetadataRequest(topics=topics), 12)).topics[0].topic_id
        await peer.send(fetch_request(0, max_wait_ms=60_000, version_16=topic_id, epoch=0), 17)
        while not kafka.requests(FetchRequest):
            await anyio.lowlevel.checkpoint()
        kafka.move_leader("t", 0, 2)
        response = await peer.receive()
        (partition,) = response.responses[0].partitions
        assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert partition.current_leader == LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
        host, _, port = kafka.address(2).partition(":")
        assert response.node_endpoints == (NodeEndpoint(node_id=2, host=host, port=int(port)),)


def test_a_killed_node_is_disconnected_and_restarts_on_its_port() -> None:
    with EmbeddedKafka({"t": 2}, nodes=2) as kafka:
        kafka.produce("t", ["a", "b"])
        group = next(g for g in "abcdefgh" if kafka.coordinator(g) == 1)
        host, _, port = kafka.address(1).partition(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(frame(HEARTBEAT, 4, 1))
            assert connection.recv(100)
            kafka.kill(1)
            assert connection.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 10)
        assert ([kafka.leader("t", n) for n in (0, 1)], kafka.coordinator(group)) == ([2, 2], 2)
        kafka.restart(1)
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(frame(HEARTBEAT, 4, 1))
            assert connection.recv(100)
        assert ([kafka.leader("t", n) for n in (0, 1)], kafka.coordinator(group)) == ([2, 2], 1)
        assert [kafka.log_end("t", n) for n in (0, 1)] == [1, 1]


@LOOPS
async def test_the_next_coordinator_loads_the_groups_of_the_killed_one() -> None:
    async with EmbeddedKafka(nodes=2) as kafka:
        async with connected(kafka, kafka.coordinator("g")) as peer:
            member = (await peer.ask(join_request(), 9)).member_id
            await peer.ask(join_request(member), 9)
            assert kafka.group_state("g") == "CompletingRebalance"
            kafka.kill(kafka.coordinator("g"))
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await peer.stream.receive()
        assert kafka.describe_group("g").members == ()
        assert kafka.group_state("g") == "Empty"


def test_only_a_killed_node_is_restarted() -> None:
    """The restart of a live node raised KeyError, and made the next kill restart the listener."""
    with EmbeddedKafka() as kafka:
        for _ in range(2):
            with pytest.raises(IllegalStateError, match="node 1 is alive; kill it first"):
                kafka.restart(1)
            kafka.kill(1)
            host, _, port = kafka.address(1).partition(":")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)), 10)
            kafka.restart(1)


def test_without_a_live_node_there_are_no_leaders() -> None:
    with EmbeddedKafka({"t": 1}) as kafka:
        kafka.kill(1)
        assert (kafka.leader("t", 0), kafka.coordinator("g")) == (-1, -1)
        kafka.restart(1)
        assert (kafka.leader("t", 0), kafka.coordinator("g")) == (1, 1)
        with pytest.raises(ValueError, match="node 2 is not alive"):
            kafka.move_leader("t", 0, 2)


@LOOPS
async def test_a_moved_coordinator_is_found_elsewhere() -> None:
    async with EmbeddedKafka({"t": 1}, nodes=2) as kafka:
        old = kafka.coordinator("g")
        async with connected(kafka, old) as peer:
            await peer.ask(commit_request(3), 8)
            kafka.move_coordinator("g", 3 - old)
            response = await peer.ask(commit_request(4), 8)
            assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
            assert await peer.ask(HEARTBEAT, 4) == HeartbeatResponse(error_code=16)
            assert (await peer.ask(ListGroupsRequest(), 4)).groups == ()
        assert (kafka.coordinator("g"), kafka.committed("g", "t")) == (3 - old, {0: 3})


# ---------------------------------------------------------------- faults


@LOOPS
async def test_planned_errors_occur_as_often_and_where_requested() -> None:
    async with EmbeddedKafka(nodes=2) as kafka, connected(kafka) as peer:
        kafka.fail(HeartbeatRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=2)
        kafka.fail(HeartbeatRequest, ErrorCode.NOT_COORDINATOR, node_id=2)
        for_ever = kafka.fail(
            HeartbeatRequest,
            ErrorCode.REBALANCE_IN_PROGRESS,
            times=None,
            when=lambda request: request.group_id == "g",
        )
        responses = [(await peer.ask(HEARTBEAT, 4)).error_code for _ in range(4)]
        assert responses == [14, 14, 27, 27]
        assert for_ever.hits == 2
        for_ever.stop()
        assert (await peer.ask(HEARTBEAT, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@LOOPS
@pytest.mark.parametrize(("close", "committed"), [(Close(), {0: 7}), (Close(before=True), {})])
async def test_a_commit_with_a_lost_acknowledgement_may_be_stored(
    close: Close, committed: dict[int, int]
) -> None:
    async with EmbeddedKafka({"t": 1}) as kafka, connected(kafka) as peer:
        kafka.fail(OffsetCommitRequest, close)
        await peer.send(commit_request(7), 8)
        with pytest.raises((anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError)):
            await peer.receive()
        assert kafka.committed("g", "t") == committed


# ---------------------------------------------------------------- conveniences


def test_topics_and_groups_can_be_changed_from_a_thread() -> None:
    kafka = EmbeddedKafka({"t": 2})
    kafka.start()
    with pytest.raises(IllegalStateError):
        kafka.start()
    kafka.create_topic("u")
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        kafka.create_topic("u")
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        kafka.create_topic("no good")
    kafka.add_partitions("u", 3)
    with pytest.raises(ValueError, match="never get fewer"):
        kafka.add_partitions("u", 2)
    kafka.produce("u", ["a", "b", "c", "d"])
    kafka.append("u", 2, encode_batch([NewRecord(None, b"e")]))
    assert [kafka.log_end("u", n) for n in range(3)] == [2, 1, 2]
    kafka.delete_records("u", 0, 1)
    assert kafka.log_start("u", 0) == 1
    with pytest.raises(ConfigurationError, match="u/3"):
        kafka.log_end("u", 3)
    assert (kafka.committed("g", "t"), kafka.group_state("g")) == ({}, "Dead")
    kafka.delete_topic("u")
    kafka.stop()
    kafka.stop()
    assert kafka.log_end("t", 0) == 0
    with pytest.raises(ConfigurationError, match="3 nodes with 1 ports"):
        EmbeddedKafka(nodes=3, ports=[9092])
    with pytest.raises(ConfigurationError, match="nodes=0; expected at least 1"):
        EmbeddedKafka(nodes=0)


@LOOPS
async def test_deleted_topics_lose_their_offsets_and_are_recreated_with_new_ids() -> None:
    async with EmbeddedKafka({"t": 1}) as kafka, connected(kafka) as peer:

        async def topic_id() -> object:
            topics = (MetadataRequestTopic(name="t"),)
            (topic,) = (await peer.ask(MetadataRequest(topics=topics), 12)).topics
            return topic.topic_id

        await peer.ask(commit_request(1), 8)
        before = await topic_id()
        kafka.delete_topic("t")
        assert kafka.committed("g", "t") == {}
        kafka.create_topic("t")
        assert await topic_id() != before
        await peer.ask(commit_request(1), 8)
        kafka.expire_offsets("g")
        assert kafka.committed("g", "t") == {}


@LOOPS
async def test_a_partitions_error_is_also_in_the_offsets_of_all_partitions() -> None:
    """An injected error was ignored where the request names no partitions."""
    async with EmbeddedKafka({"t": 1}) as kafka, connected(kafka) as peer:
        await peer.ask(commit_request(1), 8)
        for topics in (None, (OffsetFetchRequestTopic(name="t", partition_indexes=(0,)),)):
            tp = TopicPartition("t", 0)
            kafka.fail(OffsetFetchRequest, ErrorCode.UNSTABLE_OFFSET_COMMIT, partition=tp)
            request = OffsetFetchRequest(group_id="g", topics=topics)
            codes = [
                partition.error_code
                for _ in range(2)
                for topic in (await peer.ask(request, 5)).topics
                for partition in topic.partitions
            ]
            assert codes == [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE]


def test_what_does_not_exist_is_named() -> None:
    kafka = EmbeddedKafka({"t": 1}, listen=False)
    with pytest.raises(ConfigurationError, match="there is no topic typo"):
        kafka.produce("typo", ["lost"])
    with pytest.raises(ConfigurationError, match="expected several records, not 'one' alone"):
        kafka.produce("t", "one")  # it wrote a record for each letter
    with pytest.raises(ConfigurationError, match="expected an error code for a partition"):
        kafka.fail(OffsetFetchRequest, Close(), partition=TopicPartition("t", 0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"api": "ProduceRequest"}, "expected a class of requests"),
        ({"action": "NOT_COORDINATOR"}, "expected an error code, Change"),
        ({"partition": 0}, "expected a TopicPartition"),
        (
            {"api": EndTxnRequest, "partition": TopicPartition("t", 0)},
            "EndTxnRequest cannot fail for a partition",
        ),
        ({"executed": True}, "executed=True needs a partition"),
        ({"times": 0}, "times=0; expected a whole number, at least 1, or None"),
        ({"node_id": 0}, r"there is no node 0; the nodes are \[1\]"),
        ({"when": "always"}, "when='always'; expected a function of a request"),
        ({"action": Delay("1 s")}, "seconds='1 s'; expected a number, at least 0"),  # type: ignore[arg-type]
        (
            {"api": FetchRequest, "partition": TopicPartition("t", 0), "executed": True},
            "FetchRequest cannot fail for executed=True; only ProduceRequest",
        ),
    ],
)
def test_a_fault_that_could_hit_no_request_is_refused(given: Any, message: str) -> None:
    """A test with it would pass without testing anything."""
    arguments = {"api": ProduceRequest, "action": ErrorCode.NOT_LEADER_OR_FOLLOWER} | given
    with EmbeddedKafka({"t": 1}, listen=False) as kafka:
        with pytest.raises(ConfigurationError, match=message):
            kafka.fail(**arguments)


def test_configs_and_settings_of_wrong_types_are_refused() -> None:
    """The next DescribeConfigs ended the broker."""
    wrong: Any = {"max.message.bytes": 2048}
    with EmbeddedKafka({"t": 1}, listen=False) as kafka:
        with pytest.raises(ConfigurationError, match="expected a string, such as '2048'"):
            kafka.create_topic("new", configs=wrong)
        with pytest.raises(ConfigurationError, match="expected a string, such as '2048'"):
            kafka.set_topic_configs("t", wrong)
    with pytest.raises(ConfigurationError, match=r"transaction.version is 0, 1 or 2, not 7"):
        BrokerSettings(transaction_version=7)


def test_a_cluster_that_does_not_run_kills_no_node() -> None:
    """The error was of anyio, and named no EmbeddedKafka: a thread outlives the cluster."""
    kafka = EmbeddedKafka({"t": 1}, nodes=2, listen=False)
    for _ in range(2):  # before the start, and after the stop
        with pytest.raises(IllegalStateError, match="this EmbeddedKafka does not run"):
            kafka.kill(1)
        with pytest.raises(IllegalStateError, match="between its start and its stop"):
            kafka.move_coordinator("g", 2)
        with kafka:
            kafka.kill(1)
            kafka.restart(1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topics": "t"}, "topics='t'; expected names with their numbers of partitions"),
        ({"topics": {"t": "3"}}, "topic 't': partitions='3'; expected a whole number, at least 1"),
        ({"nodes": "3"}, "nodes='3'; expected at least 1"),
        ({"ports": 9092}, "ports=9092; expected whole numbers, one per node"),
        ({"settings": {}}, r"settings={}; expected BrokerSettings\(...\)"),
        ({"tls": True}, "tls=True; expected an ssl.SSLContext of a server"),
        ({"users": ["ann"]}, "users is of type list; expected names with their passwords"),
        ({"token_user": "ann"}, "token_user='ann'; expected a function"),
    ],
)
def test_arguments_of_wrong_types_are_refused(given: Any, message: str) -> None:
    """The error was an AttributeError or TypeError of internals, or came with the first client."""
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        EmbeddedKafka(listen=False, **given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda kafka: kafka.kill(0), r"there is no node 0; the nodes are \[1, 2\]"),
        (lambda kafka: kafka.restart(9), "there is no node 9"),
        (lambda kafka: kafka.address("1"), "there is no node '1'"),
        (lambda kafka: kafka.coordinator(None), "key=None; expected the id of a group"),
        (lambda kafka: kafka.move_leader("typo", 0, 1), "there is no partition typo/0"),
        (lambda kafka: kafka.log_end("t", "0"), "there is no partition t/0"),
        (lambda kafka: kafka.delete_topic("typo"), "there is no topic typo"),
        (lambda kafka: kafka.add_partitions("typo", 3), "there is no topic typo"),
        (lambda kafka: kafka.create_topic(None), "topic=None; expected the name of a topic"),
        (lambda kafka: kafka.create_topic("new", "3"), "topic 'new': partitions='3'; expected"),
        (lambda kafka: kafka.set_topic_configs("t", None), "configs=None; expected a mapping"),
        (lambda kafka: kafka.produce("t", None), "expected several records, not None alone"),
        (lambda kafka: kafka.produce("t", [5]), "a record is of type int; expected str or bytes"),
        (lambda kafka: kafka.produce("t", ["one"], partition="0"), "there is no partition t/0"),
        (lambda kafka: kafka.requests("FetchRequest"), "api='FetchRequest'; expected a class"),
    ],
)
def test_calls_with_wrong_arguments_are_refused(call: Any, message: str) -> None:
    """The error was a KeyError, AttributeError or TypeError of internals."""
    with (
        EmbeddedKafka({"t": 1}, nodes=2, listen=False) as kafka,
        pytest.raises(ConfigurationError, match=f"^{message}"),
    ):
        call(kafka)


def test_the_address_of_a_cluster_that_was_not_started_is_refused() -> None:
    """It had port 0, which clients refuse without naming the missing `with`."""
    kafka = EmbeddedKafka({"t": 1})
    with pytest.raises(IllegalStateError, match="was not started and has no port: use `with`"):
        str(kafka.bootstrap_servers)
    with kafka:
        servers = kafka.bootstrap_servers
    assert kafka.bootstrap_servers == servers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group_max_size": "2"}, "group_max_size='2'; expected a whole number, at least 0"),
        ({"group_max_size": True}, "group_max_size=True; expected a whole number"),
        ({"auto_create_topics": 1}, "auto_create_topics=1; expected True or False"),
        ({"connections_max_reauth": -1}, "connections_max_reauth=-1; expected a number of seconds"),
    ],
)
def test_settings_of_wrong_types_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        BrokerSettings(**given)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_port_in_use_leaves_nothing_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        before = {task.id for task in anyio.get_running_tasks()}
        kafka = EmbeddedKafka(nodes=2, ports=[0, other.getsockname()[1]])
        with pytest.raises(OSError, match="in use"):
            await kafka.__aenter__()
        assert {task.id for task in anyio.get_running_tasks()} == before
