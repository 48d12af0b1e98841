"""One socket to one broker: pipelined requests, each with a deadline of its own.

Only the writer task writes and only the reader task reads, so cancelling a request can never leave
half a frame on the wire. A request that is given up on (cancelled) keeps its correlation id until
its answer has come and been dropped; one that times out closes the connection, as a broker answers
in order and whatever is behind it would wait too.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar, cast

import anyio
import attrs
from anyio.abc import ByteStream, TaskGroup

from kafkagroup.errors import (
    BrokerError,
    ConnectionLostError,
    ErrorCode,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kafkagroup.net.options import ClientOptions
from kafkagroup.wire.connection import Connection
from kafkagroup.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafkagroup.wire.schema import Request
from kafkagroup.wire.shapes import fold, unfold

__all__ = ["BrokerConnection"]

R = TypeVar("R")

logger = logging.getLogger(__name__)

_CHUNK = 256 * 1024
"""Bytes asked of the socket at a time; a fetch answer takes few system calls."""


@attrs.define(eq=False)
class _Waiting:
    """One request that somebody waits for."""

    done: anyio.Event = attrs.field(factory=anyio.Event)
    answer: object = None
    error: KafkaGroupError | None = None


class BrokerConnection:
    """A connection that is open from `connect` until `aclose` or the first failure."""

    def __init__(self, stream: ByteStream, name: str, options: ClientOptions) -> None:
        self._stream = stream
        self._name = name
        self._protocol = Connection(options.client_id, max_frame_bytes=options.max_frame_bytes)
        self._waiting: dict[int, _Waiting] = {}
        self._outgoing: list[bytes] = []
        self._wake_writer = anyio.Event()
        self._error: KafkaGroupError | None = None
        self._scope = anyio.CancelScope()

    @classmethod
    async def connect(
        cls, host: str, port: int, options: ClientOptions, tasks: TaskGroup
    ) -> BrokerConnection:
        """Connect and ask for the broker's versions. Its two tasks run in `tasks`.

        Raises: ConnectionLostError, RequestTimeoutError, RemoteProtocolError.
        """
        name = f"{host}:{port}"
        if not 0 < port < 65536:
            # Ports come from brokers too, and the socket module raises OverflowError for such.
            raise ConnectionLostError(f"{name}: no such port")
        try:
            with anyio.fail_after(options.connect_timeout):
                stream = await anyio.connect_tcp(
                    host, port, local_host=options.source_host, local_port=options.source_port
                )
        except TimeoutError:
            raise ConnectionLostError(
                f"{name}: no connection within {options.connect_timeout} s"
            ) from None
        except (OSError, UnicodeError) as error:  # the latter from a name that IDNA cannot encode
            raise ConnectionLostError(f"{name}: {error}") from error
        connection = cls(stream, name, options)
        tasks.start_soon(connection._run, name=f"kafkagroup connection to {name}")
        try:
            await connection._handshake(options.connect_timeout)
        except BaseException:
            connection._scope.cancel()
            raise
        return connection

    @property
    def closed(self) -> bool:
        """Whether no request can be sent any more."""
        return self._error is not None

    async def request(
        self, request: Request[R], *, timeout: float, highest: int | None = None
    ) -> R:
        """Send a request in the best common version, at most `highest`; answer its answer.

        Raises: RequestTimeoutError, ConnectionLostError, UnsupportedVersionError,
        RemoteProtocolError when the broker breaks the protocol while it waits.
        """
        version = self._protocol.choose_version(type(request), highest)
        answer = await self._request(fold(request, version), version, timeout)
        return unfold(request, answer, version)

    async def send_only(self, request: Request[Any], *, highest: int | None = None) -> None:
        """Send a request that has no answer: Produce with acks=0."""
        self._raise_if_closed()
        version = self._protocol.choose_version(type(request), highest)
        correlation_id, data = self._protocol.send(request, version)
        self._protocol.expect_no_answer(correlation_id)
        self._write(data)

    async def aclose(self) -> None:
        """Close at once. What waits fails with ConnectionLostError."""
        self._fail(ConnectionLostError(f"{self._name}: the connection was closed here"))
        self._scope.cancel()

    async def _handshake(self, timeout: float) -> None:
        version = ApiVersionsRequest.versions.high
        answer = await self._api_versions(version, timeout)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # KIP-511: the refusal is written in v0 and names what the broker does speak.
            ranges = [k for k in answer.api_keys if k.api_key == ApiVersionsRequest.api_key]
            highest = min(ranges[0].max_version, version - 1) if ranges else 0
            answer = await self._api_versions(max(0, highest), timeout)
        if answer.error_code:
            raise ConnectionLostError(f"{self._name}: {BrokerError(answer.error_code)}")
        self._protocol.set_broker_versions(answer)

    async def _api_versions(self, version: int, timeout: float) -> ApiVersionsResponse:
        request = (
            ApiVersionsRequest(client_software_name="kafkagroup", client_software_version="0.1")
            if version >= 3
            else ApiVersionsRequest()
        )
        return await self._request(request, version, timeout)

    async def _request(self, request: Request[R], version: int, timeout: float) -> R:
        self._raise_if_closed()
        correlation_id, data = self._protocol.send(request, version)
        waiting = self._waiting[correlation_id] = _Waiting()
        self._write(data)
        try:
            with anyio.fail_after(timeout):
                await waiting.done.wait()
        except TimeoutError:
            error = RequestTimeoutError(
                f"{self._name}: no answer to {type(request).__name__} within {timeout:g} s"
            )
            self._fail(error)
            self._scope.cancel()
            raise error from None
        finally:
            self._waiting.pop(correlation_id, None)
        if waiting.error is not None:
            raise waiting.error
        return cast(R, waiting.answer)

    def _raise_if_closed(self) -> None:
        if self._error is not None:
            raise ConnectionLostError(f"{self._name}: the connection is closed: {self._error}")

    def _write(self, data: bytes) -> None:
        self._outgoing.append(data)
        self._wake_writer.set()

    def _fail(self, error: KafkaGroupError) -> None:
        if self._error is not None:
            return
        self._error = error
        for waiting in self._waiting.values():
            waiting.error = error
            waiting.done.set()

    async def _run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write_all)
                    await self._read_all()
                    tasks.cancel_scope.cancel()
        finally:
            self._fail(ConnectionLostError(f"{self._name}: the connection was closed here"))
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)

    async def _read_all(self) -> None:
        while True:
            try:
                data = await self._stream.receive(_CHUNK)
                answers = self._protocol.receive_data(data)
            except anyio.EndOfStream:
                self._fail(ConnectionLostError(f"{self._name}: closed by the broker"))
                return
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                self._fail(ConnectionLostError(f"{self._name}: {error or 'broken'}"))
                return
            except RemoteProtocolError as error:
                logger.warning("%s broke the protocol: %s", self._name, error)
                self._fail(error)
                return
            for answer in answers:
                # An answer that nobody waits for any more belongs to a cancelled request. Taken out
                # here: a failure before the waiter runs must not overwrite an answer that came.
                if waiting := self._waiting.pop(answer.correlation_id, None):
                    waiting.answer = answer.message
                    waiting.done.set()

    async def _write_all(self) -> None:
        while True:
            await self._wake_writer.wait()
            self._wake_writer = anyio.Event()
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            try:
                await self._stream.send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
                self._fail(ConnectionLostError(f"{self._name}: {error or 'broken'}"))
                self._scope.cancel()
                return
