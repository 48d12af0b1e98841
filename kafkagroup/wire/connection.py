"""The protocol of one connection, without I/O: bytes in, responses out.

Framing, correlation ids and the choice of versions happen only here. As in h11, the caller owns the
socket: it lets the socket write to the `room`, reports the bytes to `received`, and sends the bytes
that `send` returns. After a `RemoteProtocolError` the connection is unusable: later calls of `send`
and `received` raise.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any

from kafkagroup._values import frozen
from kafkagroup.errors import (
    DecodeError,
    ErrorCode,
    LimitExceededError,
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from kafkagroup.wire.buffers import grown
from kafkagroup.wire.codec import decode, decode_prefix, encode_into
from kafkagroup.wire.limits import (
    MAX_AUTHENTICATION_BYTES,
    MAX_FRAME_BYTES,
    MAX_HANDSHAKE_BYTES,
    MAX_PLAIN_FRAME_BYTES,
)
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.metadata import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kafkagroup.wire.schema import INT32, Request, Versions, field, message

__all__ = [
    "Connection",
    "LargeResponse",
    "Response",
]

_ROOM = 512
"""Size of the first buffer, in bytes: larger than the responses that a member gets regularly. Each
connection keeps it, and an idle consumer has four connections."""

_GROWTH = 16
"""The factor by which a response's buffer grows once it is full. Its claimed size alone must not
make memory grow, and each growth copies the buffer."""

_ELEMENTS_AT_ONCE = 1_000
"""The maximum number of elements in a response that is decoded in the event loop: a few
milliseconds, if nothing is compiled. The number of bytes would be no measure: a fetch response of
50 MiB may have one partition."""

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">ihhih")
"""Size, API key, version, correlation id, and the length of the client id."""


@message(-1, "0", flexible="0")
class _FlexibleHeader:
    """The header of a response of a flexible version (response header v1)."""

    correlation_id: int = field(INT32)


@frozen
class Response:
    """The response to the request with the same correlation id."""

    correlation_id: int
    message: Any


@frozen
class LargeResponse:
    """A response whose decoding would block the event loop for too long."""

    decode: Callable[[], Response]
    """Decodes it, in any thread. Raises: DecodeError, also its subclass LimitExceededError; the
    connection is unusable then."""


@frozen
class _Sent:
    """A request that has no response yet."""

    request: type[Request[Any]]
    version: int


class Connection:
    """Framing and correlation ids of one connection. Mutable: each chunk of bytes changes it."""

    def __init__(self, client_id: str | None, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        """`max_frame_bytes`: the limit of a response to Fetch; no other response may be larger.

        Raises: LocalProtocolError if the client id is too long.
        """
        encoded = b"" if client_id is None else client_id.encode()
        if len(encoded) > 32767:  # its length has 16 bits
            raise LocalProtocolError(f"client_id of {len(encoded)} bytes; the limit is 32767")
        self._client_id = encoded
        self._client_id_length = -1 if client_id is None else len(encoded)
        self._max_frame_bytes = max_frame_bytes
        self._least_limit = min(max_frame_bytes, MAX_AUTHENTICATION_BYTES)
        """The lowest value that `_limit` returns."""
        self._versions: Mapping[int, Versions] | None = None
        """As `broker_versions`; None before the handshake."""
        self._in_flight: dict[int, _Sent] = {}
        """Correlation id -> the request."""
        self._next_id = 0
        """The correlation id of the next request."""
        self._buffer = bytearray(_ROOM)
        """The received bytes, from the first one of a response on. A response that is longer than
        `_ROOM` is alone in it."""
        self._filled = 0
        """How many bytes of the buffer are received."""
        self.failure: RemoteProtocolError | None = None
        """The protocol error that made the connection unusable; None if there was none."""
        self.is_authenticating = False
        """Whether only responses to an authentication are expected, which are short. The caller
        sets it."""

    @property
    def in_flight_count(self) -> int:
        """How many requests have no response yet."""
        return len(self._in_flight)

    @property
    def broker_versions(self) -> Mapping[int, Versions]:
        """API key -> the versions that the broker supports; empty before the handshake."""
        return self._versions or {}

    def set_broker_versions(self, response: ApiVersionsResponse) -> None:
        """Set the versions that the broker supports, by its response to ApiVersions."""
        self._versions = _supported_versions(response.api_keys)

    def choose_version(
        self, request: type[Request[Any]], highest: int | None = None, lowest: int = 0
    ) -> int:
        """Return the highest version that both sides support, from `lowest` to `highest`; None as
        `highest` sets no limit.

        Raises: UnsupportedVersionError.
        """
        ours = request.versions
        theirs = self.broker_versions.get(request.api_key)
        if theirs is None:
            raise UnsupportedVersionError(f"the broker does not know {request.__name__}")
        high = min(ours.high, theirs.high, ours.high if highest is None else highest)
        low = max(ours.low, theirs.low, lowest)
        if high < low:
            raise UnsupportedVersionError(
                f"{request.__name__}: the broker supports versions {theirs.low} to {theirs.high},"
                f" this client {max(ours.low, lowest)} to"
                f" {ours.high if highest is None else highest}"
            )
        return high

    def send(self, request: Request[Any], version: int) -> tuple[int, bytearray]:
        """Register a request; return its correlation id and the bytes to send.

        Raises: LocalProtocolError after a protocol error, and for a request that `codec.encode`
        cannot encode.
        """
        if self.failure is not None:
            raise LocalProtocolError("the connection is closed after a protocol error")
        correlation_id = self._next_id
        header = _HEADER.pack(0, request.api_key, version, correlation_id, self._client_id_length)
        # One buffer from the start: a Produce request is large, and each copy costs.
        frame = bytearray(header)
        frame += self._client_id
        if version in request.flexible:
            frame.append(0)  # request header v2, without tagged fields
        encode_into(frame, request, version)
        _SIZE.pack_into(frame, 0, len(frame) - _SIZE.size)
        self._next_id = (correlation_id + 1) & 0x7FFFFFFF
        self._in_flight[correlation_id] = _Sent(type(request), version)
        return correlation_id, frame

    def expect_no_response(self, correlation_id: int) -> None:
        """Forget a request that gets no response (Produce with acks=0)."""
        del self._in_flight[correlation_id]

    def room(self) -> memoryview:
        """Return the part of the buffer, at least one byte, that the peer's next bytes may be
        written to: this saves a copy. Release it before calling anything but `send`."""
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int) -> list[Response | LargeResponse]:
        """Process `count` bytes from the peer, which were written to the room; return the responses
        that they complete. The caller decodes large ones. After a protocol error the responses
        before it are returned, and `failure` is set: the caller checks it after each call.

        Raises: RemoteProtocolError, also its subclasses DecodeError and LimitExceededError, if no
        response came before it.
        """
        if self.failure is not None:
            raise RemoteProtocolError("the connection is closed after a protocol error")
        self._filled += count
        responses: list[Response | LargeResponse] = []
        try:
            while (frame := self._next_frame()) is not None:
                responses.append(self._response_in(frame))
        except RemoteProtocolError as error:
            self.failure = error
            self._buffer, self._filled = bytearray(_ROOM), 0
            if not responses:
                raise
        return responses

    def _next_frame(self) -> bytes | bytearray | None:
        """Remove the next response from the buffer, and return it without its size; None while it
        is incomplete. Raises: RemoteProtocolError."""
        buffer, filled = self._buffer, self._filled
        if filled < 4:
            return None
        size = int.from_bytes(buffer[:4], "big", signed=True)
        # Checked before the body is buffered: a claimed size alone must not make memory grow. Until
        # the correlation id is received, the response may be to any request in flight.
        if size < 4:
            raise DecodeError(f"response of {size} bytes: too short for a correlation id")
        self._check_size(size, self._in_flight.values())
        if filled < 8:
            return None
        correlation_id = int.from_bytes(buffer[4:8], "big", signed=True)
        sent = self._in_flight.get(correlation_id)
        if sent is None:
            raise RemoteProtocolError(f"response {correlation_id} to a request that was never sent")
        self._check_size(size, (sent,))
        end = 4 + size
        if filled < end:
            if filled == len(buffer):
                self._buffer = grown(buffer, filled, min(end, _GROWTH * filled))
            return None
        if end > _ROOM and sent.request is FetchRequest:
            # The buffer is handed over, not copied: a fetch response is large, and its records are
            # views of it.
            self._buffer, self._filled = bytearray(_ROOM), 0
            del buffer[:4]
            return buffer
        with memoryview(buffer) as view:
            frame = bytes(view[4:end])
        rest = buffer[end:filled]
        if end > _ROOM:
            self._buffer = bytearray(_ROOM)
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)
        return frame

    def _check_size(self, size: int, requests: Collection[_Sent]) -> None:
        """Check the size of a response to one of these requests. Raises: LimitExceededError."""
        # Nearly all responses are this small, and finding the limit would take a fifth of the time
        # that a response takes.
        if size <= self._least_limit:
            return
        limit = self._limit(requests)
        if size > limit:
            option = " (max_frame_bytes)" if limit == self._max_frame_bytes else ""
            raise LimitExceededError(
                f"response of {size} bytes; the limit is {limit}{option}{self._hint()}"
            )

    def _limit(self, requests: Collection[_Sent]) -> int:
        """Return the size limit of a response to one of these requests. Only a response with
        records may be large: decoded to objects, any other takes many times its bytes."""
        if self._versions is None:
            return MAX_HANDSHAKE_BYTES
        if self.is_authenticating:
            return MAX_AUTHENTICATION_BYTES
        if any(sent.request is FetchRequest for sent in requests):
            return self._max_frame_bytes
        return min(self._max_frame_bytes, MAX_PLAIN_FRAME_BYTES)

    def _hint(self) -> str:
        # A listener with TLS responds with a TLS alert to a client without TLS.
        is_tls = self._versions is None and self._buffer[:2] == b"\x15\x03"
        return "; the listener speaks TLS: set security=Security(...)" if is_tls else ""

    def _response_in(self, frame: bytes | bytearray) -> Response | LargeResponse:
        """Return the response in a frame of `_next_frame`. Raises: DecodeError."""
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        sent = self._in_flight.pop(correlation_id)
        response, version = sent.request.response, sent.version
        offset = 4
        if sent.request is ApiVersionsRequest:
            # KIP-511: always header v0; a broker that is too old for the version responds in v0.
            code = int.from_bytes(frame[4:6], "big", signed=True)
            if code == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        elif version in response.flexible:
            if frame[4:5] == b"\0":
                offset = 5  # no tagged fields, as in all versions so far
            else:
                _, offset = decode_prefix(_FlexibleHeader, 0, frame)
        decode_frame = partial(_decode_frame, correlation_id, response, version, frame, offset)
        try:
            return decode_frame(max_elements=_ELEMENTS_AT_ONCE)
        except LimitExceededError:
            # The caller decodes it again, up to the usual limit, in a thread.
            return LargeResponse(decode_frame)


def _decode_frame(
    correlation_id: int,
    response: type,
    version: int,
    frame: bytes | bytearray,
    offset: int,
    max_elements: int | None = None,
) -> Response:
    message: object = decode(response, version, frame, offset, max_elements=max_elements)
    return Response(correlation_id, message)


@lru_cache(maxsize=8)
def _supported_versions(api_keys: tuple[ApiVersion, ...]) -> Mapping[int, Versions]:
    """Return the supported versions by API key. Cached, so that connections to brokers of the same
    version share one table: it is larger than all else that a connection keeps."""
    return {k.api_key: Versions(k.min_version, k.max_version) for k in api_keys}
