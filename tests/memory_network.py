"""A network in memory, and scripted brokers.

`network` replaces TCP at the byte boundary, so whole conversations run in virtual time; `Peer` is
the broker's side of a connection, over this network or over a real socket.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from kafkagroup.testing.embedded.broker import Incoming, read_request, write_response
from kafkagroup.wire.messages import fetch, group, metadata, offsets, produce
from kafkagroup.wire.schema import Request, Versions

SPOKEN: tuple[type[Request[Any]], ...] = (
    metadata.ApiVersionsRequest,
    metadata.MetadataRequest,
    metadata.FindCoordinatorRequest,
    fetch.FetchRequest,
    produce.ProduceRequest,
    offsets.ListOffsetsRequest,
    offsets.OffsetCommitRequest,
    offsets.OffsetFetchRequest,
    group.JoinGroupRequest,
    group.SyncGroupRequest,
    group.HeartbeatRequest,
    group.LeaveGroupRequest,
)

LEFT = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError)
"""Errors of a read or write after the client has disconnected."""

TOPIC_ID = UUID(int=7)
"""Id of the topic that a `Leader` leads."""

Responder = Callable[[Any], Any]
"""Request -> response. None: no response. bytes: the body of the response, unchanged."""


def api_versions(
    changed: Mapping[type[Request[Any]], Versions] | None = None, **fields: Any
) -> metadata.ApiVersionsResponse:
    """Return an ApiVersions response with all versions that the client supports, or `changed`."""
    spoken = {cls: cls.versions for cls in SPOKEN} | dict(changed or {})
    keys = tuple(
        metadata.ApiVersion(api_key=cls.api_key, min_version=v.low, max_version=v.high)
        for cls, v in spoken.items()
    )
    return metadata.ApiVersionsResponse(**{"error_code": 0, "api_keys": keys, **fields})


class Peer:
    """The broker's side of one connection."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._reader = BufferedByteReceiveStream(stream)

    async def read(self) -> Incoming:
        """Return the next request."""
        size = int.from_bytes(await self._reader.receive_exactly(4), "big")
        return read_request(await self._reader.receive_exactly(size))

    async def respond(self, incoming: Incoming, message: object) -> None:
        await self.stream.send(write_response(incoming, message))

    async def response_bytes(self, incoming: Incoming, body: bytes) -> None:
        """Send a frame with a valid header and this body."""
        flexible = incoming.version in type(incoming.request).response.flexible
        tags = b"\0" if flexible and incoming.request.api_key != 18 else b""
        frame = incoming.correlation_id.to_bytes(4, "big") + tags + body
        await self.stream.send(len(frame).to_bytes(4, "big") + frame)

    async def handshake(self, *args: Any, **fields: Any) -> None:
        """Answer ApiVersions, the first request on every connection."""
        await self.respond(await self.read(), api_versions(*args, **fields))

    async def serve(self, responses: Mapping[type[Request[Any]], Responder]) -> None:
        """Answer requests until the client disconnects."""
        responses = {
            metadata.ApiVersionsRequest: lambda _: api_versions(),
            # Which cluster is this? One without an id.
            metadata.MetadataRequest: lambda _: metadata.MetadataResponse(brokers=(), topics=()),
            **responses,
        }
        while True:
            incoming = await self.read()
            message = responses[type(incoming.request)](incoming.request)
            if inspect.isawaitable(message):
                message = await message
            if isinstance(message, bytes):
                await self.response_bytes(incoming, message)
            elif message is not None:
                await self.respond(incoming, message)


_MANY = 5_000
"""More messages than any test sends over one connection."""


class _Pipe:
    """Bytes in transit in one direction."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.data = bytearray()
        self.ended = False
        self.changed = anyio.Event()

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def end(self) -> None:
        self.ended = True
        self.notify()


class MemoryStream(ByteStream):
    """One end of a connection in memory; a sender waits while `room` bytes are in transit."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._sends = 0
        self.closed = False

    @classmethod
    def pair(cls, room: int = 2**20) -> tuple[MemoryStream, MemoryStream]:
        one, other = _Pipe(room), _Pipe(room)
        return cls(one, other), cls(other, one)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        pipe = self._incoming
        while not pipe.data:
            if self.closed:
                raise anyio.ClosedResourceError
            if pipe.ended:
                raise anyio.EndOfStream
            await pipe.changed.wait()
        data = bytes(pipe.data[:max_bytes])
        del pipe.data[:max_bytes]
        pipe.notify()
        return data

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self._sends += 1
        if self._sends > _MANY:
            # Virtual time does not advance in a hot loop: without this the test would never end.
            raise RuntimeError("hot loop")
        pipe = self._outgoing
        rest = memoryview(item)
        while rest:
            if self.closed or pipe.ended:
                raise anyio.BrokenResourceError
            count = pipe.room - len(pipe.data)
            if count <= 0:
                await pipe.changed.wait()
                continue
            pipe.data += rest[:count]
            rest = rest[count:]
            pipe.notify()

    async def send_eof(self) -> None:
        self._outgoing.end()

    async def aclose(self) -> None:
        self.closed = True
        self._incoming.end()
        self._outgoing.end()
        await anyio.lowlevel.checkpoint()


class Forgotten(ByteStream):
    """The client's end of a connection behind a load balancer, which drops the connection, without
    telling either side, once it has carried nothing for `limit` seconds."""

    def __init__(self, stream: MemoryStream, limit: float) -> None:
        self._stream = stream
        self._limit = limit
        self._used_at = anyio.current_time()
        self.is_dropped = False

    def _note_use(self) -> bool:
        now = anyio.current_time()
        self.is_dropped |= now - self._used_at > self._limit
        self._used_at = now
        return self.is_dropped

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        if self._note_use():
            await anyio.sleep_forever()
        return data

    async def send(self, item: bytes) -> None:
        if not self._note_use():
            await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


Handler = Callable[[Peer], Awaitable[object]]


class Network:
    """A network in memory: a handler for each address. An address without an entry refuses
    connections; the handler None never accepts them."""

    def __init__(self) -> None:
        self.handlers: dict[tuple[str, int], Handler | None] = {}
        self.dialled: list[tuple[str, int]] = []
        self.local: list[tuple[str | None, int | None]] = []
        self.streams: list[MemoryStream] = []
        """The client's ends of all connections."""
        self.idle_limit = math.inf
        """Seconds without traffic after which a load balancer drops a connection silently."""
        self.forgotten: list[Forgotten] = []
        """The client's ends of all connections, as the load balancer has them."""
        self.room = 2**20
        self.tasks: anyio.abc.TaskGroup

    @property
    def open(self) -> int:
        """Number of connections that the client has not closed."""
        return sum(not stream.closed for stream in self.streams)

    async def connect_tcp(
        self, host: str, port: int, *, local_host: str | None = None, local_port: int | None = None
    ) -> ByteStream:
        self.dialled.append((host, port))
        self.local.append((local_host, local_port))
        await anyio.lowlevel.checkpoint()
        try:
            handler = self.handlers[host, port]
        except KeyError:
            raise ConnectionRefusedError("refused") from None
        if handler is None:
            await anyio.sleep_forever()
        ours, theirs = MemoryStream.pair(self.room)
        self.streams.append(ours)
        self.tasks.start_soon(self._serve, handler, theirs)
        if self.idle_limit == math.inf:
            return ours
        self.forgotten.append(Forgotten(ours, self.idle_limit))
        return self.forgotten[-1]

    async def _serve(self, handler: Handler, stream: MemoryStream) -> None:
        try:
            await handler(Peer(stream))
        except LEFT:
            pass
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    def serve_embedded(self, kafka: Any, nodes: int = 1) -> None:
        """Serve the nodes of an `EmbeddedKafka(listen=False)` at kafka-<id>:9092."""
        for node_id in range(1, nodes + 1):

            async def handler(peer: Peer, node_id: int = node_id) -> None:
                await kafka.handle_stream(peer.stream, node_id)

            self.handlers[f"kafka-{node_id}", 9092] = handler

    async def __aenter__(self) -> Network:
        self.tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.tasks.cancel_scope.cancel()
        await self.tasks.__aexit__(None, None, None)


class Leader:
    """A scripted broker that leads t/0 and answers fetches."""

    def __init__(self, fetched: Callable[[int], bytes | int], offset: int = 0) -> None:
        self.fetched = fetched
        self.offset = offset
        self.leaders: list[int] = [1]
        """The leader in each Metadata response; the last one repeats."""
        self.leader: int | None = None
        self.elections = -1
        """How often the leader has changed: the leader epoch."""
        self.asked: list[tuple[str, float]] = []
        self.address = ("b", 9092)
        self.assignment = b""
        """The assignment in SyncGroup responses."""
        self.members: tuple[group.JoinGroupResponseMember, ...] = ()
        """The other members, if this member becomes the leader."""

    async def __call__(self, peer: Any) -> None:
        await peer.serve(
            {
                metadata.MetadataRequest: self.metadata,
                offsets.ListOffsetsRequest: self.list_offsets,
                fetch.FetchRequest: self.fetch,
                metadata.FindCoordinatorRequest: self.find_coordinator,
                group.JoinGroupRequest: self.join,
                group.SyncGroupRequest: self.sync,
                group.HeartbeatRequest: lambda _: group.HeartbeatResponse(error_code=0),
                group.LeaveGroupRequest: lambda _: group.LeaveGroupResponse(error_code=0),
            }
        )

    def count(self, what: str) -> int:
        return sum(name == what for name, _ in self.asked)

    def find_coordinator(self, _: object) -> object:
        host, port = self.address
        found = metadata.Coordinator(key="g", node_id=1, host=host, port=port)
        return metadata.FindCoordinatorResponse(coordinators=(found,))

    def member(self, member_id: str, data: bytes) -> tuple[group.JoinGroupResponseMember, ...]:
        return (group.JoinGroupResponseMember(member_id=member_id, metadata=data),)

    def join(self, request: group.JoinGroupRequest) -> object:
        self.asked.append(("join", anyio.current_time()))
        return group.JoinGroupResponse(
            error_code=0,
            generation_id=1,
            protocol_type=request.protocol_type,
            protocol_name=request.protocols[0].name,
            leader="me" if self.members else "other",
            member_id="me",
            members=self.members,
        )

    def sync(self, request: group.SyncGroupRequest) -> object:
        return group.SyncGroupResponse(
            error_code=0,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=self.assignment,
        )

    def metadata(self, _: object) -> object:
        self.asked.append(("metadata", anyio.current_time()))
        leader = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        self.elections += leader != self.leader
        self.leader = leader
        partition = metadata.MetadataResponsePartition(
            error_code=0 if leader > 0 else 5,
            partition_index=0,
            leader_id=leader,
            leader_epoch=self.elections,
            replica_nodes=(1,),
            isr_nodes=(1,),
        )
        topic = metadata.MetadataResponseTopic(
            error_code=0, name="t", topic_id=TOPIC_ID, partitions=(partition,)
        )
        broker = metadata.MetadataResponseBroker(
            node_id=1, host=self.address[0], port=self.address[1]
        )
        return metadata.MetadataResponse(brokers=(broker,), topics=(topic,))

    def list_offsets(self, _: object) -> object:
        self.asked.append(("list", anyio.current_time()))
        part = offsets.ListOffsetsPartitionResponse(
            partition_index=0, error_code=0, offset=self.offset
        )
        topic = offsets.ListOffsetsTopicResponse(name="t", partitions=(part,))
        return offsets.ListOffsetsResponse(topics=(topic,))

    async def fetch(self, request: fetch.FetchRequest) -> fetch.FetchResponse:
        self.asked.append(("fetch", anyio.current_time()))
        offset = request.topics[0].partitions[0].fetch_offset
        found = self.fetched(offset)
        code, records = (found, b"") if isinstance(found, int) else (0, found)
        if not records and not code:
            await anyio.sleep(request.max_wait_ms / 1000)
        data = fetch.PartitionData(
            partition_index=0, error_code=code, high_watermark=9, records=records
        )
        topic = fetch.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,))
        return fetch.FetchResponse(responses=(topic,))


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    """Use as `async with network:`; the client then has no other network."""
    made = Network()
    monkeypatch.setattr(anyio, "connect_tcp", made.connect_tcp)
    return made


@pytest.fixture
def leader_of() -> type[Leader]:
    return Leader


@pytest.fixture
def peer_of() -> type[Peer]:
    return Peer
