"""Malformed input from a broker on a real socket: every default limit, met by the real client.

Each test checks that one typed error names the fault, that memory stays bounded by the bytes
received, and that everything else continues.
"""

from __future__ import annotations

import gc
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute
from crc32c import crc32c
from verification.hostile.records import encode_varint

from kafkagroup import Consumer
from kafkagroup.broker import Broker
from kafkagroup.errors import (
    CorruptRecordError,
    DecodeError,
    LimitExceededError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kafkagroup.transport.options import ClientOptions
from kafkagroup.types import TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch, with_base_offset
from kafkagroup.wire.compression import Codec, compress
from kafkagroup.wire.embedded_protocol import Subscription, encode_subscription
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from kafkagroup.wire.messages.metadata import MetadataRequest

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)
METADATA = MetadataRequest(topics=())
BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
MEBIBYTE = 2**20
OPTIONS = ClientOptions(request_timeout=5.0)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Return a backend with real time, as the sockets are real."""
    name: str = request.param
    return name


@pytest.fixture
def listening(peer_of: Any) -> Any:
    """Open a listener: `async with listening(handler) as port`."""

    @asynccontextmanager
    async def opened(handler: Callable[[Any], Awaitable[object]]) -> AsyncIterator[int]:
        async def serve(stream: Any) -> None:
            try:
                await handler(peer_of(stream))
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                pass
            finally:
                await anyio.aclose_forcefully(stream)

        with anyio.fail_after(30):
            async with (
                await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(listener.serve, serve)
                try:
                    yield listener.extra(SocketAttribute.local_port)
                finally:
                    tasks.cancel_scope.cancel()

    return opened


@contextmanager
def memory(limit: int) -> Iterator[None]:
    """Check that Python allocates less than `limit` bytes in the block."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


# ---------------------------------------------------------------- frames


async def test_a_frame_length_of_two_gibibytes_closes_the_connection(listening: Any) -> None:
    """CVE-2026-10142: a client that trusts the length allocates it until it is killed."""
    sent: list[int] = []

    async def handler(peer: Any) -> None:
        await peer.handshake()
        if isinstance((incoming := await peer.read()).request, HeartbeatRequest):
            await peer.respond(incoming, HeartbeatResponse(error_code=0))
            await peer.serve({HeartbeatRequest: lambda _: HeartbeatResponse(error_code=0)})
        await peer.stream.send((2**31 - 1).to_bytes(4, "big"))
        while True:
            await peer.stream.send(bytes(MEBIBYTE))
            sent.append(MEBIBYTE)

    async with listening(handler) as port, Broker.open("127.0.0.1", port) as broker:
        await broker.request(BEAT, connection_id="other")
        with (
            memory(8 * MEBIBYTE),
            pytest.raises(LimitExceededError, match="response of 2147483647 bytes"),
        ):
            await broker.request(METADATA)
        assert (broker.connected, broker.is_connected("other")) == (False, True)
        assert (await broker.request(BEAT, connection_id="other")).error_code == 0
        await anyio.sleep(0.05)
        before = len(sent)
        await anyio.sleep(0.05)
        assert len(sent) == before


async def test_a_frame_within_the_limit_allocates_only_the_bytes_received(listening: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        asked = await peer.read()
        await peer.stream.send(struct.pack(">ii", 16 * MEBIBYTE, asked.correlation_id))
        for _ in range(20):
            await peer.stream.send(bytes(1000))
            await anyio.sleep(0.01)
        await anyio.sleep_forever()

    async with listening(handler) as port, Broker.open("127.0.0.1", port) as broker:
        with memory(2 * MEBIBYTE), pytest.raises(RequestTimeoutError):
            await broker.request(METADATA, timeout=0.5)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3])
async def test_a_negative_or_too_short_frame_length_is_an_error(listening: Any, size: int) -> None:
    async def handler(peer: Any) -> None:
        await peer.handshake()
        await peer.read()
        await peer.stream.send(struct.pack(">i", size))
        await anyio.sleep_forever()

    async with listening(handler) as port, Broker.open("127.0.0.1", port) as broker:
        with pytest.raises(DecodeError, match=f"response of {size} bytes: too short"):
            await broker.request(METADATA)


async def test_an_api_versions_response_larger_than_a_mebibyte_is_an_error(listening: Any) -> None:
    async def handler(peer: Any) -> None:
        await peer.read()
        await peer.stream.send((MEBIBYTE + 1).to_bytes(4, "big"))
        while True:
            await peer.stream.send(bytes(65536))

    async with listening(handler) as port:
        with (
            memory(4 * MEBIBYTE),
            pytest.raises(
                LimitExceededError, match="response of 1048577 bytes; the limit is 104857"
            ),
        ):
            async with Broker.open("127.0.0.1", port):
                raise AssertionError


@pytest.mark.parametrize("late", [False, True])
async def test_an_unsolicited_response_is_an_error(listening: Any, late: bool) -> None:
    """The same after the requested response: a second response with its correlation id."""

    async def handler(peer: Any) -> None:
        await peer.handshake()
        incoming = await peer.read()
        if late:
            await peer.respond(incoming, HeartbeatResponse(error_code=0))
            await peer.read()
            await peer.respond(incoming, HeartbeatResponse(error_code=0))
        else:
            await peer.stream.send(bytes.fromhex("00000004 00bc614e"))
        await anyio.sleep_forever()

    async with listening(handler) as port, Broker.open("127.0.0.1", port) as broker:
        if late:
            await broker.request(BEAT)
        with pytest.raises(RemoteProtocolError, match="to a request that was never sent"):
            await broker.request(BEAT)
        assert not broker.connected


# ---------------------------------------------------------------- bodies

# MetadataResponse v13 after the throttle time: brokers, cluster id, controller, topics, ...


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("00000000 ffffffff0f", "brokers claims 4294967294, but only 0 bytes are left"),
        ("00000000 ffffffff0f" + "00" * 1000, "brokers claims 4294967294"),
        ("00000000 ffffffffff01", "unsigned varint"),
        ("00000000 ffffffffff7f", "unsigned varint"),
        ("00000000 00", "brokers is null"),
        ("00000000 01 00 00000000 00", "topics is null"),
        ("00000000 02 00000001 00" + "00" * 20, "host is null"),
        ("00000000 02 00000001 02 ff" + "00" * 20, "utf-8"),
        ("00000000 01 ffffffff0f 00", "cluster_id claims 4294967294"),
        ("00000000 01 00 00000000 01 80000000 0000 ffffffff0f", ""),
        ("", "ends early"),
    ],
)
async def test_a_malformed_response_body_is_an_error(
    listening: Any, body: str, message: str
) -> None:
    async def handler(peer: Any) -> None:
        await peer.serve({MetadataRequest: lambda _: bytes.fromhex(body)})

    async with listening(handler) as port, Broker.open("127.0.0.1", port) as broker:
        with (
            memory(2 * MEBIBYTE),
            pytest.raises(DecodeError, match=f"^MetadataResponse v13: .*{message}"),
        ):
            await broker.request(METADATA)
        # The next one is asked on a new connection.
        with pytest.raises(DecodeError):
            await broker.request(METADATA)


async def test_an_invalid_address_in_metadata_counts_as_an_unreachable_broker(
    listening: Any, leader_of: Any
) -> None:
    leader = leader_of(lambda offset: b"")
    leader.address = ("é" * 60, 2**31 - 1)
    async with listening(leader) as port:
        consumer = Consumer(bootstrap_servers=f"127.0.0.1:{port}")
        async with consumer:
            await consumer.assign([TP])
            with anyio.move_on_after(0.3):
                await consumer.getone()
            assert consumer._session.errors.failure is None
            leader.address = ("127.0.0.1", port)
            leader.fetched = whole
            assert (await consumer.getone()).offset == 0


# ---------------------------------------------------------------- record batches


def whole(offset: int) -> bytes:
    return with_base_offset(encode_batch([NewRecord(None, b"v")]), offset, 0)


def batch(
    payload: bytes,
    offset: int = 0,
    *,
    count: int = 1,
    delta: int = 0,
    codec: int = 0,
    length: int | None = None,
    crc: int | None = None,
) -> bytes:
    """Return a batch around any payload, by default with a valid CRC."""
    covered = struct.pack(">hiqqqhii", codec, delta, 0, 0, -1, -1, -1, count) + payload
    head = struct.pack(">qiib", offset, 9 + len(covered) if length is None else length, 0, 2)
    return head + struct.pack(">I", crc32c(covered) if crc is None else crc) + covered


def record(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


CORRUPT = {
    "negative length": (batch(b"", length=-1), "batch length -1 is too small"),
    "least length": (batch(b"", length=-(2**31)), "batch length -2147483648 is too small"),
    "short length": (batch(b"", length=48), "batch length 48 is too small"),
    "old format": (whole(0)[:16] + b"\1" + whole(0)[17:], "CRC-32 mismatch"),
    "future format": (whole(0)[:16] + b"\3" + whole(0)[17:], "message format v3 is not supported"),
    "crc": (batch(record(b"\0" * 6), crc=0), "CRC-32C mismatch"),
    "count beyond the bytes": (
        batch(b"", count=2**31 - 1, delta=2**31 - 2),
        "2147483647 records in 0 bytes",
    ),
    "count beyond the offsets": (batch(b"", count=2), "2 records in 1 offsets"),
    "negative count": (batch(b"", count=-1), "-1 records in 1 offsets"),
    "negative delta": (batch(b"", delta=-1), "last offset delta -1 leads nowhere"),
    "codec": (batch(bytes(10), codec=7), "unknown codec 7"),
    "varint": (batch(b"\xff" * 11 + bytes(9)), "varint"),
    "long varint": (
        batch(record(b"\0" + b"\xff" * 10 + bytes(5))),
        "varint is longer than 10 bytes",
    ),
    "varint of 70 bits": (
        batch(record(b"\0" + b"\xff" * 9 + b"\x7f" + bytes(5))),
        "varint exceeds 64 bits",
    ),
    "record length": (batch(encode_varint(1 << 30) + bytes(9)), "length is beyond the batch"),
    "key length": (
        batch(record(b"\0\0\0" + encode_varint(1 << 30) + b"\0\0")),
        "a key's length is beyond its record",
    ),
    "header count": (
        batch(record(b"\0\0\0\1\1" + encode_varint(1 << 30))),
        "header count is beyond its bytes",
    ),
    "not gzip": (batch(b"garbage!", codec=1), "gzip"),
    "not snappy": (batch(b"garbage!", codec=2), "snappy"),
    "not lz4": (batch(b"garbage!", codec=3), "lz4"),
    "not zstd": (batch(b"garbage!", codec=4), "zstd"),
}


async def met_once(consumer: Consumer, leader: Any, error: type[Exception]) -> Exception:
    """Return the error of a bad batch: raised once, without a hot loop, until the application
    seeks."""
    with anyio.fail_after(20), pytest.raises(error) as caught:
        await consumer.getone()
    assert type(caught.value) is error
    asked = leader.count("fetch")
    with anyio.move_on_after(0.1) as idle:
        await consumer.getone()
    assert idle.cancelled_caught
    # One more may have been on its way.
    assert leader.count("fetch") <= asked + 1
    assert await consumer.position(TP) == 0
    leader.fetched = lambda offset: whole(offset) if offset < 6 else b""
    consumer.seek(TP, 5)
    assert (await consumer.getone()).offset == 5
    return caught.value


@pytest.mark.parametrize("name", CORRUPT)
async def test_a_damaged_batch_is_raised_once(listening: Any, leader_of: Any, name: str) -> None:
    data, reason = CORRUPT[name]
    leader = leader_of(lambda offset: data if offset == 0 else b"")
    async with listening(leader) as port:
        leader.address = ("127.0.0.1", port)
        async with Consumer(bootstrap_servers=f"127.0.0.1:{port}", fetch_max_wait_ms=50) as c:
            await c.assign([TP])
            error = await met_once(c, leader, CorruptRecordError)
    assert isinstance(error, CorruptRecordError)
    assert (error.topic, error.partition, error.offset) == ("t", 0, 0)
    assert reason in str(error)


async def test_batches_before_a_corrupt_one_are_delivered(listening: Any, leader_of: Any) -> None:
    """The CRC is checked for each batch, before its first record is delivered."""
    whole_response = whole(0) + whole(1) + batch(record(b"\0" * 6), 2, crc=0)
    leader = leader_of(lambda offset: whole_response if offset == 0 else whole_response[-68:])
    async with listening(leader) as port:
        leader.address = ("127.0.0.1", port)
        async with Consumer(bootstrap_servers=f"127.0.0.1:{port}") as c:
            await c.assign([TP])
            found: list[int] = []
            with pytest.raises(CorruptRecordError, match="t/0 at offset 2: CRC-32C mismatch"):
                while True:
                    found.append((await c.getone()).offset)
            assert found == [0, 1]


async def test_batches_that_start_below_the_position_or_are_truncated_raise_no_error(
    listening: Any, leader_of: Any
) -> None:
    """Brokers return whole batches, from the one that contains the position, and truncate the
    last."""
    first, second = (
        with_base_offset(
            encode_batch([NewRecord(None, b"%d" % (base + n)) for n in (0, 1)]), base, 0
        )
        for base in (0, 2)
    )
    leader = leader_of(lambda offset: second if offset == 2 else first + second[:-1])
    async with listening(leader) as port:
        leader.address = ("127.0.0.1", port)
        async with Consumer(bootstrap_servers=f"127.0.0.1:{port}") as c:
            await c.assign([TP])
            c.seek(TP, 1)
            found = [await c.getone() for _ in range(3)]
    assert [(r.offset, r.value) for r in found] == [(1, b"1"), (2, b"2"), (3, b"3")]


def bombs() -> dict[str, bytes]:
    """Return batches that inflate beyond 128 MiB. The last two consist of several frames or
    blocks."""
    zeros = bytes(16 * MEBIBYTE)
    frame = compress(Codec.ZSTD, zeros)
    member = compress(Codec.GZIP, zeros)
    block = compress(Codec.SNAPPY, bytes(MEBIBYTE))
    return {
        "gzip": batch(member * 9, codec=Codec.GZIP),
        "zstd": batch(frame * 9, codec=Codec.ZSTD),
        "lz4": batch(compress(Codec.LZ4, bytes(130 * MEBIBYTE)), codec=Codec.LZ4),
        "snappy": batch(block[:16] + block[16:] * 129, codec=Codec.SNAPPY),
    }


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_batch_that_inflates_beyond_the_limit_is_raised_once(
    listening: Any, leader_of: Any
) -> None:
    for name, data in bombs().items():
        leader = leader_of(lambda offset, data=data: data if offset == 0 else b"")
        async with listening(leader) as port:
            leader.address = ("127.0.0.1", port)
            async with Consumer(bootstrap_servers=f"127.0.0.1:{port}", fetch_max_wait_ms=50) as c:
                await c.assign([TP])
                with memory(128 * MEBIBYTE + 8 * len(data) + 4 * MEBIBYTE):
                    error = await met_once(c, leader, LimitExceededError)
        assert "t/0 at offset 0" in str(error), name
        assert "134217728 bytes (max_batch_bytes)" in str(error), name


async def test_malformed_fetch_responses_cause_no_hot_loop(listening: Any, leader_of: Any) -> None:
    """Each costs a connection; the back-off between them grows, and metadata is still refreshed."""
    leader = leader_of(lambda offset: b"")
    honest = leader.fetch

    async def garbage(request: object) -> bytes:
        await honest(request)
        return b"\xff" * 50

    leader.fetch = garbage
    async with listening(leader) as port:
        leader.address = ("127.0.0.1", port)
        async with Consumer(bootstrap_servers=f"127.0.0.1:{port}") as c:
            await c.assign([TP])
            with anyio.move_on_after(1.0):
                await c.getone()
            assert 2 <= leader.count("fetch") <= 20
            assert leader.count("metadata") <= 20
            leader.fetch = honest
            leader.fetched = whole
            assert (await c.getone()).offset == 0


# ---------------------------------------------------------------- group metadata


def assignment(*topics: tuple[bytes, list[int]], version: int = 0) -> bytes:
    out = struct.pack(">hi", version, len(topics))
    for name, partitions in topics:
        out += struct.pack(">h", len(name)) + name + struct.pack(">i", len(partitions))
        out += struct.pack(f">{len(partitions)}i", *partitions)
    return out + struct.pack(">i", -1)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (
            assignment((b"t", list(range(100_001)))),
            LimitExceededError,
            "assignment of 100001 partitions; the limit is 100000",
        ),
        (assignment((b"\xff\xfe", [0])), DecodeError, "utf-8"),
        (assignment((b"t", [0, 0])), DecodeError, "assignment names a partition twice"),
        (assignment((b"t", [0]), (b"t", [0])), DecodeError, "assignment names a partition twice"),
        (assignment((b"t", [-1])), DecodeError, "assignment names a partition below zero"),
        (assignment(version=-1), DecodeError, "assignment of version -1"),
        (b"\0", DecodeError, "assignment of 1 bytes has no version"),
        (b"\0\0\x7f\xff\xff\xff", DecodeError, "assigned_partitions claims 2147483647"),
    ],
    ids=["many", "utf-8", "twice", "topic twice", "negative", "version", "short", "count"],
)
async def test_an_undecodable_assignment_is_an_error(
    listening: Any, leader_of: Any, data: bytes, error: type[Exception], message: str
) -> None:
    leader = leader_of(lambda offset: b"")
    leader.assignment = data
    async with listening(leader) as port:
        leader.address = ("127.0.0.1", port)
        async with Consumer("t", bootstrap_servers=f"127.0.0.1:{port}", group_id="g") as c:
            with memory(32 * MEBIBYTE), pytest.raises(error, match=message) as caught:
                await c.getone()
            assert type(caught.value) is error
            assert leader.count("join") <= 2


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0\0\0\0\0\1\0\1\xff\xff\xff\xff\xff",
        b"\0\0\x7f\xff\xff\xff",
        encode_subscription(Subscription(topics=("t",))).replace(b"\0\1\0\1t", b"\0\2\0\1t\0\1t"),
    ],
    ids=["empty", "utf-8", "count", "twice"],
)
async def test_the_leader_reports_a_member_with_an_undecodable_subscription(
    listening: Any, leader_of: Any, metadata: bytes
) -> None:
    """It comes from another client, not from the broker: the leader decodes it first."""
    leader = leader_of(lambda offset: b"")
    leader.members = leader.member("stranger", metadata)
    async with listening(leader) as port:
        leader.address = ("127.0.0.1", port)
        async with Consumer("t", bootstrap_servers=f"127.0.0.1:{port}", group_id="g") as c:
            with pytest.raises(DecodeError, match="ubscription"):
                await c.getone()
            assert leader.count("join") <= 2
