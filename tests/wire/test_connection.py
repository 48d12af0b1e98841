"""Framing, correlation and version choice of one connection, without I/O."""

from __future__ import annotations

import random
import struct
import tracemalloc
from uuid import UUID

import pytest

from kafkagroup.errors import (
    DecodeError,
    LimitExceededError,
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from kafkagroup.wire.codec import encode
from kafkagroup.wire.connection import (
    Connection,
    LargeResponse,
    Response,
)
from kafkagroup.wire.limits import MAX_FRAME_BYTES, MAX_HANDSHAKE_BYTES, MAX_PLAIN_FRAME_BYTES
from kafkagroup.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from kafkagroup.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from kafkagroup.wire.schema import Versions

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
METADATA = MetadataRequest(topics=())
FLEXIBLE = 4
"""A version of Heartbeat with tagged fields."""

FETCH = FetchRequest(max_wait_ms=0, min_bytes=1, topics=())


def receive_data(connection: Connection, data: bytes) -> list[Response]:
    """Pass bytes from the peer; return the responses that they complete.

    Raises: RemoteProtocolError, also its subclasses DecodeError and LimitExceededError.
    """
    responses: list[Response] = []
    left = memoryview(data)
    while left:
        with connection.room() as room:
            count = min(len(room), len(left))
            room[:count] = left[:count]
        left = left[count:]
        responses.extend(
            response if isinstance(response, Response) else response.decode()
            for response in connection.received(count)
        )
        if connection.failure is not None:
            raise connection.failure
    return responses


def spoken(*keys: tuple[int, int, int]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=0,
        api_keys=tuple(ApiVersion(api_key=k, min_version=lo, max_version=hi) for k, lo, hi in keys),
    )


ALL = spoken((3, 0, 13), (12, 0, 4), (18, 0, 4))


def frame(correlation_id: int, body: bytes, *, tags: bytes = b"") -> bytes:
    rest = correlation_id.to_bytes(4, "big", signed=True) + tags + body
    return len(rest).to_bytes(4, "big") + rest


def heartbeat(correlation_id: int, error_code: int = 0, *, tags: bytes = b"\0") -> bytes:
    response = HeartbeatResponse(error_code=error_code)
    return frame(correlation_id, encode(response, FLEXIBLE), tags=tags)


def open_connection(**options: int) -> Connection:
    """Return a connection after its handshake."""
    connection = Connection("me", **options)
    connection.set_broker_versions(ALL)
    return connection


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(("client_id", "on_the_wire"), [("me", b"\0\2me"), (None, b"\xff\xff")])
@pytest.mark.parametrize(("version", "tags"), [(3, b""), (FLEXIBLE, b"\0")])
def test_a_request_is_its_length_header_and_body(
    client_id: str | None, on_the_wire: bytes, version: int, tags: bytes
) -> None:
    correlation_id, data = Connection(client_id).send(HEARTBEAT, version)
    body = encode(HEARTBEAT, version)
    header = struct.pack(">hhi", 12, version, 0) + on_the_wire + tags
    assert (correlation_id, data) == (0, struct.pack(">i", len(header + body)) + header + body)


def test_correlation_ids_count_up_and_wrap_before_they_turn_negative() -> None:
    connection = open_connection()
    assert [connection.send(HEARTBEAT, 4)[0] for _ in range(3)] == [0, 1, 2]
    connection._next_id = 0x7FFFFFFF
    assert [connection.send(HEARTBEAT, 4)[0] for _ in range(2)] == [0x7FFFFFFF, 0]


def test_a_client_id_too_long_for_a_header_is_an_error() -> None:
    Connection("é" * 16383)
    with pytest.raises(LocalProtocolError, match="client_id of 32768 bytes; the limit is 32767"):
        Connection("é" * 16384)


def test_a_request_that_cannot_be_encoded_changes_nothing() -> None:
    connection = open_connection()
    with pytest.raises(LocalProtocolError):
        connection.send(HeartbeatRequest(group_id="g", generation_id=2**31, member_id=""), 4)
    assert (connection.in_flight_count, connection.send(HEARTBEAT, 4)[0]) == (0, 0)


# ---------------------------------------------------------------- answers


def test_responses_may_arrive_byte_by_byte() -> None:
    connection = open_connection()
    for _ in range(2):
        connection.send(HEARTBEAT, FLEXIBLE)
    data = heartbeat(0) + heartbeat(1, 27)
    found = [receive_data(connection, data[i : i + 1]) for i in range(len(data))]
    last = len(heartbeat(0)) - 1
    assert found[last] == [Response(0, HeartbeatResponse(error_code=0))]
    assert found[-1] == [Response(1, HeartbeatResponse(error_code=27))]
    assert sum(map(len, found)) == 2


def test_one_chunk_may_contain_several_responses_and_a_fragment() -> None:
    connection = open_connection()
    for _ in range(3):
        connection.send(HEARTBEAT, FLEXIBLE)
    third = heartbeat(2)
    assert receive_data(connection, heartbeat(0) + heartbeat(1) + third[:5]) == [
        Response(0, HeartbeatResponse(error_code=0)),
        Response(1, HeartbeatResponse(error_code=0)),
    ]
    assert connection.in_flight_count == 1
    assert receive_data(connection, third[5:]) == [Response(2, HeartbeatResponse(error_code=0))]


def test_responses_out_of_order_are_matched_by_correlation_id() -> None:
    connection = open_connection()
    connection.send(METADATA, 13)
    connection.send(HEARTBEAT, FLEXIBLE)
    metadata = MetadataResponse(brokers=(), topics=(), cluster_id="c")
    assert receive_data(connection, heartbeat(1) + frame(0, encode(metadata, 13), tags=b"\0")) == [
        Response(1, HeartbeatResponse(error_code=0)),
        Response(0, metadata),
    ]


def test_tagged_fields_in_the_header_are_skipped() -> None:
    connection = open_connection()
    connection.send(HEARTBEAT, FLEXIBLE)
    tags = b"\2\x00\1x\x63\3abc"
    assert receive_data(connection, heartbeat(0, tags=tags)) == [
        Response(0, HeartbeatResponse(error_code=0))
    ]


def test_the_header_of_an_inflexible_version_has_no_tagged_fields() -> None:
    connection = open_connection()
    connection.send(HEARTBEAT, 3)
    body = encode(HeartbeatResponse(error_code=22), 3)
    assert receive_data(connection, frame(0, body)) == [
        Response(0, HeartbeatResponse(error_code=22))
    ]


@pytest.mark.parametrize("version", list(ApiVersionsRequest.versions))
def test_an_api_versions_response_has_the_old_header_in_every_version(version: int) -> None:
    connection = Connection("me")
    connection.send(ApiVersionsRequest(), version)
    assert receive_data(connection, frame(0, encode(ALL, version))) == [Response(0, ALL)]


def test_an_unsupported_version_response_of_api_versions_is_read_as_v0() -> None:
    """KIP-511: a broker that does not support the version responds in version 0."""
    connection = Connection("me")
    connection.send(ApiVersionsRequest(), 4)
    refusal = ApiVersionsResponse(
        error_code=35, api_keys=(ApiVersion(api_key=18, min_version=0, max_version=2),)
    )
    assert receive_data(connection, frame(0, encode(refusal, 0))) == [Response(0, refusal)]


def test_a_request_without_a_response_is_not_awaited() -> None:
    connection = open_connection()
    silent, _ = connection.send(HEARTBEAT, FLEXIBLE)
    connection.expect_no_response(silent)
    connection.send(HEARTBEAT, FLEXIBLE)
    assert connection.in_flight_count == 1
    assert receive_data(connection, heartbeat(1)) == [Response(1, HeartbeatResponse(error_code=0))]
    with pytest.raises(RemoteProtocolError, match="response 0 to a request that was never sent"):
        receive_data(connection, heartbeat(silent))


# ---------------------------------------------------------------- a peer that breaks the protocol


def dead(connection: Connection) -> bool:
    """Whether every call fails, and nothing is stored."""
    with pytest.raises(RemoteProtocolError, match="closed after a protocol error"):
        receive_data(connection, heartbeat(0))
    with pytest.raises(LocalProtocolError, match="closed after a protocol error"):
        connection.send(HEARTBEAT, 4)
    return not connection._filled


def test_an_unexpected_response_closes_the_connection() -> None:
    connection = open_connection()
    connection.send(HEARTBEAT, FLEXIBLE)
    with pytest.raises(RemoteProtocolError, match="response 7 to a request that was never sent"):
        receive_data(connection, heartbeat(7))
    assert dead(connection)


def test_a_duplicate_response_closes_the_connection() -> None:
    connection = open_connection()
    connection.send(HEARTBEAT, FLEXIBLE)
    assert len(receive_data(connection, heartbeat(0))) == 1
    with pytest.raises(RemoteProtocolError, match="response 0 to a request that was never sent"):
        receive_data(connection, heartbeat(0))
    assert dead(connection)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3])
def test_a_frame_too_short_for_a_correlation_id_is_an_error(size: int) -> None:
    connection = open_connection()
    with pytest.raises(DecodeError, match=f"response of {size} bytes: too short"):
        receive_data(connection, size.to_bytes(4, "big", signed=True))
    assert dead(connection)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", r"HeartbeatResponse v4: .*ends early"),
        (encode(HeartbeatResponse(error_code=0), 4) + b"!", r"1 bytes left over"),
    ],
)
def test_a_malformed_response_closes_the_connection(body: bytes, message: str) -> None:
    connection = open_connection()
    connection.send(HEARTBEAT, FLEXIBLE)
    with pytest.raises(DecodeError, match=message):
        receive_data(connection, frame(0, body, tags=b"\0"))
    assert dead(connection)


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0\x23", b"\xff\xff"])
def test_an_api_versions_response_without_an_error_code_is_an_error(rest: bytes) -> None:
    connection = Connection("me")
    connection.send(ApiVersionsRequest(), 4)
    with pytest.raises(DecodeError):
        receive_data(connection, frame(0, rest))
    assert dead(connection)


def test_a_frame_length_beyond_the_limit_is_an_error_at_once() -> None:
    connection = open_connection()
    connection.send(FETCH, 12)
    assert receive_data(connection, (MAX_FRAME_BYTES).to_bytes(4, "big")) == []
    connection = open_connection()
    connection.send(FETCH, 12)
    assert receive_data(connection, (MAX_FRAME_BYTES + 1).to_bytes(4, "big")[:3]) == []
    with pytest.raises(
        LimitExceededError,
        match=r"^response of 104857601 bytes; the limit is 104857600 \(max_frame_bytes\)$",
    ):
        receive_data(connection, (MAX_FRAME_BYTES + 1).to_bytes(4, "big")[3:])
    assert dead(connection)


def test_a_response_without_records_has_a_lower_size_limit() -> None:
    """Its decoded objects take many times its bytes. The error names no option, as a higher
    `max_frame_bytes` would not change this limit."""
    connection = open_connection()
    with pytest.raises(LimitExceededError, match=r"16777217 bytes; the limit is 16777216$"):
        receive_data(connection, (MAX_PLAIN_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_a_frame_length_alone_allocates_no_memory() -> None:
    connection = open_connection()
    asked, _ = connection.send(FETCH, 12)
    tracemalloc.start()
    try:
        receive_data(connection, struct.pack(">ii", MAX_FRAME_BYTES, asked) + b"x" * 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_an_unexpected_response_is_an_error_before_its_body_arrives() -> None:
    connection = open_connection()
    asked, _ = connection.send(FETCH, 12)
    with pytest.raises(RemoteProtocolError, match="to a request that was never sent"):
        receive_data(connection, struct.pack(">ii", MAX_FRAME_BYTES, asked + 1))


def test_only_fetch_responses_may_be_large() -> None:
    connection = open_connection()
    connection.send(FETCH, 12)
    asked, _ = connection.send(METADATA, 12)
    with pytest.raises(LimitExceededError, match=f"the limit is {MAX_PLAIN_FRAME_BYTES}"):
        receive_data(connection, struct.pack(">ii", MAX_PLAIN_FRAME_BYTES + 1, asked))


def fetched(connection: Connection, records: bytes) -> tuple[int, bytes]:
    """Request records; return the correlation id and the frame of the response."""
    data = PartitionData(
        partition_index=0, error_code=0, high_watermark=0, records=records, aborted_transactions=()
    )
    topic = FetchableTopicResponse(topic="t", partitions=(data,))
    body = encode(FetchResponse(responses=(topic,)), 12)
    asked, _ = connection.send(FETCH, 12)
    return asked, frame(asked, b"\0" + body)


@pytest.mark.parametrize("size", [10, 4_000, 5_000, 70_000, 3_000_000])
def test_a_fetch_response_is_not_copied_after_it_was_received(size: int) -> None:
    """At any size, and with any following bytes; no reference to it is left."""
    warm = open_connection()
    receive_data(warm, fetched(warm, b"")[1])  # compiles the codec
    connection = open_connection()
    records = random.Random(1).randbytes(size)
    first, response = fetched(connection, records)
    second, behind = fetched(connection, records)
    left = memoryview(response + behind)
    responses: list[Response | LargeResponse] = []
    tracemalloc.start()
    try:
        while left:
            with connection.room() as room:
                count = min(len(room), len(left))
                room[:count] = left[:count]
            responses += connection.received(count)
            left = left[count:]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [
        response.correlation_id for response in responses if isinstance(response, Response)
    ] == [
        first,
        second,
    ]
    for response in responses:
        assert isinstance(response, Response)
        found = response.message.responses[0].partitions[0].records
        assert (type(found), bytes(found)) == (memoryview, records)
    assert peak < 2 * size * 1.5 + 50_000
    with connection.room() as room:
        assert len(room) == 512


def test_the_buffer_of_a_response_grows_as_it_arrives() -> None:
    """The buffer has at most sixteen times the received bytes."""
    connection = open_connection()
    asked, _ = connection.send(FETCH, 12)
    head = struct.pack(">ii", 50_000_000, asked)
    assert receive_data(connection, head + bytes(512 - len(head))) == []
    with connection.room() as room:
        assert len(room) == 15 * 512
    assert receive_data(connection, bytes(15 * 512)) == []
    with connection.room() as room:
        assert len(room) == 15 * 16 * 512


def test_the_frame_size_limit_is_configurable() -> None:
    connection = open_connection(max_frame_bytes=1000)
    assert receive_data(connection, (1000).to_bytes(4, "big")) == []
    connection = open_connection(max_frame_bytes=1000)
    with pytest.raises(LimitExceededError, match="response of 1001 bytes; the limit is 1000"):
        receive_data(connection, (1001).to_bytes(4, "big"))


def test_before_the_handshake_frames_are_limited_to_a_mebibyte() -> None:
    """The peer is unknown before the handshake, and may not be Kafka at all."""
    assert receive_data(Connection("me"), (MAX_HANDSHAKE_BYTES).to_bytes(4, "big")) == []
    connection = Connection("me")
    # What a web server answers to a request that it does not understand.
    with pytest.raises(LimitExceededError, match="response of 1213486160 bytes"):
        receive_data(connection, b"HTTP/1.1 400 Bad Request")
    assert dead(connection)


# ---------------------------------------------------------------- version choice


@pytest.mark.parametrize(
    ("broker", "highest", "chosen"),
    [
        ((0, 13), None, 13),
        ((0, 32767), None, 13),
        ((0, 9), None, 9),
        ((13, 20), None, 13),
        ((0, 13), 7, 7),
        ((0, 5), 7, 5),
    ],
)
def test_the_highest_common_version_is_used(
    broker: tuple[int, int], highest: int | None, chosen: int
) -> None:
    connection = Connection("me")
    connection.set_broker_versions(spoken((3, *broker)))
    assert connection.choose_version(MetadataRequest, highest) == chosen


@pytest.mark.parametrize(
    ("broker", "highest", "message"),
    [
        ((14, 20), None, "the broker supports versions 14 to 20, this client 0 to 13"),
        ((8, 13), 7, "the broker supports versions 8 to 13, this client 0 to 7"),
        ((5, 4), None, "the broker supports versions 5 to 4, this client 0 to 13"),
    ],
)
def test_no_common_version_is_an_error(
    broker: tuple[int, int], highest: int | None, message: str
) -> None:
    connection = Connection("me")
    connection.set_broker_versions(spoken((3, *broker)))
    with pytest.raises(UnsupportedVersionError, match=f"^MetadataRequest: {message}$"):
        connection.choose_version(MetadataRequest, highest)


def test_a_request_unknown_to_the_broker_is_an_error() -> None:
    connection = Connection("me")
    connection.set_broker_versions(spoken((3, 0, 13), (9999, 0, 1)))
    with pytest.raises(UnsupportedVersionError, match=r"^the broker does not know Heartbeat"):
        connection.choose_version(HeartbeatRequest)
    assert connection.broker_versions == {3: Versions(0, 13), 9999: Versions(0, 1)}


def test_no_versions_are_known_before_the_handshake() -> None:
    connection = Connection("me")
    assert (connection.broker_versions, connection.in_flight_count) == ({}, 0)
    with pytest.raises(UnsupportedVersionError):
        connection.choose_version(MetadataRequest)


def test_topic_ids_round_trip() -> None:
    """The last version identifies topics by id: one whole message, with frame and header."""
    connection = open_connection()
    connection.send(METADATA, 13)
    response = MetadataResponse(brokers=(), topics=(), cluster_id=str(UUID(int=1)))
    (found,) = receive_data(connection, frame(0, encode(response, 13), tags=b"\0"))
    assert found.message == response


def brokers(count: int) -> MetadataResponse:
    node = MetadataResponseBroker(node_id=1, host="h", port=1)
    return MetadataResponse(brokers=(node,) * count, topics=())


def received(connection: Connection, data: bytes) -> list[Response | LargeResponse]:
    responses: list[Response | LargeResponse] = []
    for byte in data:
        with connection.room() as room:
            room[0] = byte
        responses += connection.received(1)
    return responses


def test_a_response_with_many_elements_is_left_undecoded_for_the_caller() -> None:
    """300,000 partitions of metadata blocked the loop for two seconds."""
    connection = open_connection()
    small, large, behind = (connection.send(METADATA, 13)[0] for _ in range(3))
    few, many = brokers(1_000), brokers(1_001)
    data = frame(small, encode(few, 13), tags=b"\0") + frame(large, encode(many, 13), tags=b"\0")
    first, second, third = received(connection, data + frame(behind, encode(few, 13), tags=b"\0"))
    assert isinstance(second, LargeResponse)
    assert [first, second.decode(), third] == [
        Response(small, few),
        Response(large, many),
        Response(behind, few),
    ]


def test_a_malformed_large_response_raises_when_it_is_decoded() -> None:
    connection = open_connection()
    connection.send(METADATA, 13)
    (large,) = received(connection, frame(0, encode(brokers(1_001), 13) + b"x", tags=b"\0"))
    assert isinstance(large, LargeResponse)
    with pytest.raises(DecodeError, match="1 bytes left over"):
        large.decode()
