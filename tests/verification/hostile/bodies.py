"""Attacks in the bodies of responses: false counts and lengths, and unexpected values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.codec import encode
from kafkagroup.wire.messages import metadata
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafkagroup.wire.messages.offsets import ListOffsetsRequest, OffsetFetchRequest
from kafkagroup.wire.primitives import encode_uvarint

from .honest import at_first, cluster_of, committed, honest, listed, serving, topic_of, versions
from .server import Conversation
from .trial import Attack

__all__ = ["ATTACKS"]

MOST = 250_000
"""Elements of one response."""


def _body(name: str, does: Callable[[], Conversation], ends: str, **more: Any) -> Attack:
    return Attack(
        name=name, family="bodies", does=does, ends=ends, **{"client": "ask_metadata", **more}
    )


def _metadata(data: bytes) -> Callable[[], Conversation]:
    return lambda: serving({MetadataRequest: lambda _, __: data})


def _broken(name: str, hexed: str, reason: str) -> Attack:
    """Return a response to Metadata v13: throttle time, brokers, cluster id, controller, topics,
    tags."""
    ends = f"DecodeError: MetadataResponse v13: {reason}"
    return _body(name, _metadata(bytes.fromhex(hexed)), ends)


def _brokers(count: int, host: bytes = b"h", port: int = 9092) -> bytes:
    """Return metadata of many brokers of minimal size."""
    broker = b"%s" + bytes((len(host) + 1,)) + host + port.to_bytes(4, "big") + b"\0\0"
    many = b"".join(broker % n.to_bytes(4, "big") for n in range(count))
    tail = b"\0" + bytes(4) + b"\x01" + bytes(3)
    return bytes(4) + encode_uvarint(count + 1) + many + tail


def _tags(count: int) -> bytes:
    """Return a heartbeat response with that many empty tagged fields."""
    return bytes(6) + encode_uvarint(count) + b"\x64\0" * count


def _saying(code: ErrorCode, message: str, times: int = 10**9) -> Callable[[], Conversation]:
    """Return a handmade FindCoordinator v6 response: the library's encoder rejects such a
    string."""
    text = message.encode()
    refusal = b"\x02g" + bytes(4) + b"\x01" + bytes(4) + code.to_bytes(2, "big")
    body = bytes(4) + b"\x02" + refusal + encode_uvarint(len(text) + 1) + text + b"\0\0"
    return lambda: serving(
        {
            FindCoordinatorRequest: at_first(
                times, lambda _, __: body, honest(FindCoordinatorRequest)
            )
        }
    )


def _versions_response(**fields: Any) -> Callable[[], Conversation]:
    return lambda: serving({ApiVersionsRequest: lambda _, __: versions(**fields)})


def _throttled(milliseconds: int) -> Callable[[], Conversation]:
    return lambda: serving(
        {
            HeartbeatRequest: lambda _, __: HeartbeatResponse(
                error_code=0, throttle_time_ms=milliseconds
            )
        }
    )


def _refused_versions() -> Conversation:
    """Reject every version of ApiVersions, v0 too."""
    refusal = encode(versions(error_code=ErrorCode.UNSUPPORTED_VERSION), 0)
    return serving({ApiVersionsRequest: lambda _, __: refusal})


def advertising(host: str, port: int) -> Callable[[], Conversation]:
    """Advertise node 1 at an unreachable address; after two responses at this one."""
    return lambda: serving(
        {
            MetadataRequest: at_first(
                2, lambda _, wire: cluster_of(wire, (host, port)), honest(MetadataRequest)
            )
        }
    )


def _address(name: str, host: str, port: int) -> Attack:
    return Attack(
        name=name,
        family="addresses",
        does=advertising(host, port),
        client="consume",
        job={"consumer": {"metadata_max_age_ms": 200, "request_timeout_ms": 1_000}},
        ends="t/0 at 0",
    )


def _many_nodes() -> Conversation:
    """Advertise 250,000 brokers at unreachable addresses, and disappear."""
    many = _brokers(MOST)
    return serving({MetadataRequest: lambda _, __: many})


def _gone_among_many() -> Conversation:
    """Advertise a thousand brokers that refuse connections, and then refuse them, too."""
    many = _brokers(1_000, b"127.0.0.1", 1)
    return serving({MetadataRequest: at_first(1, lambda _, __: many, lambda _, wire: wire.close())})


ATTACKS = (
    _broken(
        "an array of 2^32-2",
        "00000000 ffffffff0f",
        "brokers claims 4294967294, but only 0 bytes are left",
    ),
    _broken("a varint of 33 bits", "00000000 ffffffff1f", "unsigned varint exceeds 32 bits"),
    _broken(
        "a varint of 6 bytes", "00000000 ffffffffff01", "unsigned varint is longer than 5 bytes"
    ),
    _broken("null brokers", "00000000 00", "brokers is null, which this version does not allow"),
    _broken(
        "null topics",
        "00000000 01 00 00000000 00",
        "topics is null, which this version does not allow",
    ),
    _broken(
        "a null host",
        "00000000 02 00000001 00" + "00" * 20,
        "host is null, which this version does not allow",
    ),
    _broken(
        "a host that is not UTF-8", "00000000 02 00000001 02 ff" + "00" * 20, "'utf-8' codec ..."
    ),
    _broken("an empty body", "", "the input ends early, after 5 bytes"),
    _broken("bytes left over", "00000000 01 00 00000000 01 00000000 00 00 ff", "4 bytes left over"),
    _body(
        "an array of 2^31-1 in an old version",
        lambda: serving(
            {
                ApiVersionsRequest: lambda _, __: versions(
                    api_keys=(metadata.ApiVersion(api_key=3, min_version=0, max_version=5),)
                ),
                MetadataRequest: lambda _, __: bytes.fromhex("00000000 7fffffff"),
            }
        ),
        "DecodeError: MetadataResponse v5: brokers claims 2147483647, but only 0 bytes are left",
    ),
    _body(
        "an array of -2 in an old version",
        lambda: serving(
            {
                ApiVersionsRequest: lambda _, __: versions(
                    api_keys=(metadata.ApiVersion(api_key=3, min_version=0, max_version=5),)
                ),
                MetadataRequest: lambda _, __: bytes.fromhex("00000000 fffffffe"),
            }
        ),
        "DecodeError: MetadataResponse v5: brokers claims -2, but only 0 bytes are left",
    ),
    _body(
        "250,000 brokers",
        _metadata(_brokers(MOST)),
        "250000 brokers, 0 topics",
        mebibytes=100,
        long=True,
    ),
    _body(
        "250,001 brokers",
        _metadata(_brokers(MOST + 1)),
        "LimitExceededError: MetadataResponse v13: more than 250000 elements, 250001 of them in"
        " brokers",
        mebibytes=16,
    ),
    _body(
        "a cluster of 250,000 dead brokers",
        _many_nodes,
        "no end within 3 s",
        client="consume",
        job={"patience": 3.0},
        mebibytes=200,
        long=True,
    ),
    _body(
        "a thousand dead brokers",
        _gone_among_many,
        "no end within 3 s",  # the assignment waits for them
        client="consume",
        job={"patience": 3.0},
        mebibytes=16,
    ),
    _body(
        "eight million tagged fields",
        lambda: serving({HeartbeatRequest: lambda _, __: _tags(8_000_000)}),
        "LimitExceededError: HeartbeatResponse v4: more than 250000 elements, 8000000 of them in"
        " tagged fields",
        client="beat_twice",
        mebibytes=64,
    ),
    _body(
        "250,000 tagged fields",
        lambda: serving({HeartbeatRequest: lambda _, __: _tags(MOST)}),
        "heartbeats [0, 0]",
        client="beat_twice",
    ),
    _body(
        "a throttle time of 2^31-1",
        lambda: _throttled(2**31 - 1)(),
        "no end within 0.3 s",
        client="beat_twice",
        job={"patience": 0.3},
    ),
    _body("a throttle time of -1", _throttled(-1), "heartbeats [0, 0]", client="beat_twice"),
    _body(
        "a throttle time of -2^31", _throttled(-(2**31)), "heartbeats [0, 0]", client="beat_twice"
    ),
    _body(
        "ApiVersions refused in every version",
        _refused_versions,
        "ConnectionLostError: HOSTILE: UNSUPPORTED_VERSION (35)",
        client="open_it",
    ),
    _body(
        "no API spoken",
        _versions_response(api_keys=()),
        "UnsupportedVersionError: the broker does not know MetadataRequest",
    ),
    _body(
        "versions that are upside down",
        _versions_response(
            api_keys=(metadata.ApiVersion(api_key=3, min_version=32767, max_version=-32768),)
        ),
        "UnsupportedVersionError: MetadataRequest: the broker supports versions 32767 to -32768,"
        " this client 0 to 13",
    ),
    _body(
        "an unknown error code",
        _versions_response(error_code=-32768),
        "ConnectionLostError: HOSTILE: UNKNOWN_CODE_-32768 (-32768)",
        client="open_it",
    ),
    _body(
        "an error message of 1 MiB",
        _saying(ErrorCode.GROUP_AUTHORIZATION_FAILED, "A" * 2**20),
        f"...: GROUP_AUTHORIZATION_FAILED (30): ...{'A' * 400}...…",
        client="join",
    ),
    _body(
        "an error message that paints and forges",
        _saying(
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            "\x1b[2J\x1b[31mred\x07\r\nCRITICAL forged line\u2028\x9b31m",
        ),
        r"...: GROUP_AUTHORIZATION_FAILED (30): ...\x1b[2J\x1b[31mred\x07\r\nCRITICAL forged...",
        client="join",
    ),
    _body(
        "a retried error message that forges",
        _saying(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "x\nCRITICAL forged" * 1000, 3),
        "t/0 at 0",
        client="join",
    ),
    _body(
        "a topic with a name that forges",
        lambda: serving(
            {
                MetadataRequest: lambda _, wire: cluster_of(
                    wire, topics=(topic_of(name="t\nCRITICAL forged\x1b[31m"),)
                )
            }
        ),
        "no end within 0.3 s",
        client="match",
        job={"patience": 0.3},
    ),
    _body(
        "a topic with a name of 30,000 characters",
        lambda: serving(
            {
                MetadataRequest: lambda _, wire: cluster_of(
                    wire, topics=(topic_of(name="t" * 30_000),)
                )
            }
        ),
        "no end within 0.3 s",
        client="match",
        job={"patience": 0.3},
    ),
    _body(
        "a committed offset of -2^63",
        lambda: serving({OffsetFetchRequest: lambda _, __: committed(-(2**63))}),
        "t/0 at 0",
        client="join",
    ),
    _body(
        "a committed offset of 2^63-1",
        lambda: serving({OffsetFetchRequest: lambda _, __: committed(2**63 - 1)}),
        "CorruptRecordError: t/0 at offset 9223372036854775807: last offset delta 0 leads nowhere",
        client="join",
    ),
    _body(
        "a log that begins at -7",
        lambda: serving(
            {
                ListOffsetsRequest: at_first(
                    2, lambda request, _: listed(request, -7), lambda request, _: listed(request, 0)
                )
            }
        ),
        "t/0 at 0",
        client="consume",
    ),
    _body(
        "garbage for three fetches",
        lambda: serving(
            {FetchRequest: at_first(3, lambda _, __: b"\xff" * 50, honest(FetchRequest))}
        ),
        "t/0 at 0",
        client="consume",
    ),
    _address("port 0", "127.0.0.1", 0),
    _address("port 70000", "127.0.0.1", 70_000),
    _address("port -1", "127.0.0.1", -1),
    _address("an empty host", "", 9092),
    _address("a host of 300 characters", "h" * 300, 9092),
    _address("a host of 30,000 characters", "h." * 15_000, 9092),
    _address("a host that is not a name", "\u00e9" * 70, 9092),
    _address("a host with a NUL", "local\0host", 9092),
    _address("a host that forges a log line", "localhost\nINFO fake log line", 9092),
    _address("a host that paints", "\x1b[31mred\x1b[0m", 9092),
)
