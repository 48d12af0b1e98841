"""Attacks on framing and correlation, before any byte of a body is decoded."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count

from kafkagroup.testing.embedded.broker import write_response
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import HeartbeatRequest, HeartbeatResponse
from kafkagroup.wire.messages.metadata import MetadataRequest

from .honest import Raw, at_first, honest, serving, versions
from .server import SPOKEN, Conversation, Wire
from .trial import MEBIBYTE, Attack

__all__ = ["ATTACKS", "claim", "first", "frame_size", "pouring"]

PLAIN = 16 * MEBIBYTE
"""Limit of a response without records."""

FRAME = 100 * MEBIBYTE
"""Limit of a response with records."""


def frame_size(size: int) -> bytes:
    """Return the four bytes at the start of a frame."""
    return struct.pack(">i", size)


def first(data: bytes) -> Conversation:
    """Send this to every client, whatever it requests."""

    def conversation(wire: Wire) -> None:
        wire.receive(1)
        wire.send(data)
        wire.wait_until_left()

    return conversation


def pouring(head: bytes, piece: bytes, pause: float = 0.0) -> Callable[[object, Wire], None]:
    """Send an endless response: `head` byte by byte, then `piece` repeatedly."""

    def respond(_: object, wire: Wire) -> None:
        for byte in head:
            wire.send(bytes((byte,)))
            time.sleep(pause)
        while True:
            wire.send(piece)
            time.sleep(pause)

    return respond


def _api_versions_response(wire: Wire) -> bytes:
    return write_response(wire.request(), versions())


def cut_everywhere(after: Callable[[Wire], None]) -> Conversation:
    """Send the first n bytes of a correct ApiVersions response on the n-th connection."""
    numbers: Iterator[int] = count()
    lock = threading.Lock()

    def conversation(wire: Wire) -> None:
        with lock:
            number = next(numbers)
        wire.send(_api_versions_response(wire)[:number])
        after(wire)

    return conversation


HANDSHAKE_BYTES = 4 + 4 + 2 + 1 + 7 * len(SPOKEN) + 4 + 1
"""Of that response: length, id, error, count, APIs, throttle time, tags."""


def doubled() -> Conversation:
    """Answer each heartbeat twice."""

    def conversation(wire: Wire) -> None:
        wire.respond(wire.request(), versions())
        while True:
            incoming = wire.request()
            response = write_response(incoming, HeartbeatResponse(error_code=0))
            wire.send(response + response)

    return conversation


def _beat(correlation_id: int) -> Raw:
    """Return a whole heartbeat response with this correlation id."""
    return Raw(frame_size(11) + frame_size(correlation_id) + bytes(7))


def endless() -> Conversation:
    """Send complete, valid, unsolicited responses as fast as the socket accepts them."""
    numbers = range(1_000, 2_000)
    return serving({HeartbeatRequest: pouring(b"", b"".join(_beat(n).data for n in numbers))})


def crawling(limit: int) -> Conversation:
    """Send a frame within the limit, at 100 bytes every 5 ms."""

    def respond(request: object, wire: Wire) -> None:
        pouring(frame_size(limit) + wire.correlation_id, bytes(100), 0.005)(request, wire)

    return serving({MetadataRequest: respond})


def whole(size: int, times: int = 10**9) -> Conversation:
    """Send fetch responses of exactly the frame limit, zeros except for length and id; then correct
    ones."""

    def respond(_: object, wire: Wire) -> None:
        wire.send(frame_size(size) + wire.correlation_id)
        for _ in range(size // MEBIBYTE):
            wire.send(bytes(MEBIBYTE))
        wire.wait_until_left()

    return serving({FetchRequest: at_first(times, respond, honest(FetchRequest))})


def _frame(name: str, does: Callable[[], Conversation], ends: str, **more: object) -> Attack:
    return Attack(
        name=name, family="frames", does=does, ends=ends, **{"client": "ask_metadata", **more}
    )


def claim(size: int, limit: int) -> str:
    """Return the client's error about that frame length."""
    option = " (max_frame_bytes)" if limit == FRAME else ""
    return f"LimitExceededError: response of {size} bytes; the limit is {limit}{option}"


def _short(size: int) -> str:
    return f"DecodeError: response of {size} bytes: too short for a correlation id"


def _claiming(size: int) -> Callable[[], Conversation]:
    return lambda: serving({MetadataRequest: lambda _, __: Raw(frame_size(size))})


ATTACKS = (
    _frame(
        "2 GiB claimed, poured",
        lambda: serving({MetadataRequest: pouring(frame_size(2**31 - 1), bytes(MEBIBYTE))}),
        claim(2**31 - 1, PLAIN),
    ),
    _frame(
        "2 GiB claimed, trickled",
        lambda: serving({MetadataRequest: pouring(frame_size(2**31 - 1), b"\0", 0.001)}),
        claim(2**31 - 1, PLAIN),
    ),
    _frame("a byte above 16 MiB", _claiming(PLAIN + 1), claim(PLAIN + 1, PLAIN)),
    _frame(
        "16 MiB claimed, trickled",
        lambda: crawling(PLAIN),
        "RequestTimeoutError: HOSTILE: no response to MetadataRequest within 0.3 s",
        job={"request_timeout": 0.3},
    ),
    *(_frame(f"a frame of {n} bytes", _claiming(n), _short(n)) for n in (-1, -(2**31), 0, 3)),
    _frame(
        "a frame of an id alone",
        lambda: serving({HeartbeatRequest: lambda _, __: Raw(frame_size(4) + frame_size(1))}),
        "DecodeError: _FlexibleHeader v0: the input ends early, after 4 bytes",
        client="beat_twice",
    ),
    _frame(
        "a wrong correlation id",
        lambda: serving({HeartbeatRequest: lambda _, __: _beat(77)}),
        "RemoteProtocolError: response 77 to a request that was never sent",
        client="beat_twice",
    ),
    _frame(
        "wrong correlation ids for 12 s",
        lambda: serving({FetchRequest: lambda _, __: _beat(77)}),
        "no end within 12 s",
        client="consume",
        job={"patience": 12.0},
        warns="response 77 to a request that was never sent; check",
        long=True,
    ),
    _frame(
        "a negative correlation id",
        lambda: serving({HeartbeatRequest: lambda _, __: _beat(-1)}),
        "RemoteProtocolError: response -1 to a request that was never sent",
        client="beat_twice",
    ),
    _frame(
        "every answer twice",
        doubled,
        "heartbeats [0, 0]",  # each over a connection of its own
        client="beat_twice",
    ),
    _frame(
        "endless tiny frames",
        endless,
        "RemoteProtocolError: response 1000 to a request that was never sent",
        client="beat_twice",
    ),
    _frame(
        "1 MiB and a byte before ApiVersions",
        lambda: first(frame_size(MEBIBYTE + 1) + bytes(MEBIBYTE)),
        claim(MEBIBYTE + 1, MEBIBYTE),
        client="open_it",
    ),
    _frame(
        "HTTP",
        lambda: first(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        claim(int.from_bytes(b"HTTP", "big"), MEBIBYTE),
        client="open_it",
    ),
    _frame(
        "SSH",
        lambda: first(b"SSH-2.0-OpenSSH_9.6\r\n"),
        claim(int.from_bytes(b"SSH-", "big"), MEBIBYTE),
        client="open_it",
    ),
    _frame(
        "a TLS alert",
        lambda: first(bytes.fromhex("15030300020246")),
        claim(0x15030300, MEBIBYTE) + "; the listener speaks TLS: set security=Security(...)",
        client="open_it",
    ),
    _frame(
        "silence",
        lambda: lambda wire: wire.wait_until_left(),
        "RequestTimeoutError: HOSTILE: no response to ApiVersionsRequest within 0.3 s",
        client="open_it",
        job={"connect_timeout": 0.3},
    ),
    _frame(
        "closed at once",
        lambda: lambda wire: None,
        "ConnectionLostError: HOSTILE: ...",
        client="open_it",
    ),
    _frame(
        "the handshake cut at every byte",
        lambda: cut_everywhere(lambda wire: None),
        f"{HANDSHAKE_BYTES} x ConnectionLostError: HOSTILE: closed by the broker; 1 x opened",
        client="open_many",
        job={"count": HANDSHAKE_BYTES + 1},
    ),
    _frame(
        "the handshake stuck at every byte",
        lambda: cut_everywhere(lambda wire: wire.wait_until_left()),
        f"{HANDSHAKE_BYTES} x RequestTimeoutError: HOSTILE: no response to ApiVersionsRequest"
        " within 3 s; 1 x opened",
        client="open_many",
        job={"count": HANDSHAKE_BYTES + 1, "connect_timeout": 3.0},
        long=True,
    ),
    _frame(
        "a fetch a byte above 100 MiB",
        lambda: serving({FetchRequest: lambda _, __: Raw(frame_size(FRAME + 1))}),
        claim(FRAME + 1, FRAME),
        client="fetch",
    ),
    _frame(
        "a fetch of 100 MiB of zeros",
        lambda: whole(FRAME),
        "DecodeError: ...",
        client="fetch",
        mebibytes=250,
    ),
    _frame(
        "three fetches of 100 MiB of zeros",
        lambda: whole(FRAME, 3),
        "t/0 at 0",
        client="consume",
        mebibytes=250,
        long=True,
    ),
)
