"""One socket to one broker: pipelined requests, each with a deadline of its own.

Only the reader task reads, or on asyncio the loop while that task waits, and what the kernel does
not take at once only the writer task writes, so cancelling a request can never leave half a frame
on the wire. There is a writer while there is something to write, and for good where that comes
often: a connection that is hardly used costs one task. A request that is given up on (cancelled)
keeps its correlation id until its answer has come and been dropped; one that times out closes the
connection, as a broker answers in order and whatever is behind it would wait too. So does one that
was given up on, as soon as something else is asked after its deadline: callers that always give up
first would keep a dead connection for ever. Where the broker's sessions end, the connection renews
its own in time: new requests wait meanwhile, those in flight are answered first (KIP-368).
"""

from __future__ import annotations

import logging
import math
import random
import ssl
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from kafkagroup._values import define, field
from kafkagroup.errors import (
    AuthenticationError,
    BrokerError,
    ConnectionLostError,
    ErrorCode,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
    escaped,
)
from kafkagroup.transport.channel import Channel
from kafkagroup.transport.clock import loop_clock
from kafkagroup.transport.one_shot_event import OneShotEvent
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.os_errors import reason
from kafkagroup.wire.connection import Connection, LargeResponse, Response
from kafkagroup.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafkagroup.wire.schema import Request
from kafkagroup.wire.shapes import fold, unfold

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import ByteStream, TaskGroup

    from kafkagroup.transport.sasl import Mechanism

__all__ = ["BrokerConnection"]

R = TypeVar("R")

logger = logging.getLogger(__name__)

_BROKEN = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.BusyResourceError,  # a broker that changes the keys of TLS has the reader write an answer
    OSError,
)
"""What a stream raises that is no use any more."""

_RENEW_AFTER = (0.85, 0.95)
"""How much of a session passes before it is renewed: at random, or all connections would do it at
the same time. The same as Java's client."""

_QUICK = 1.5
"""Seconds from one write to the next: more than a fetch without records takes, or members wait
between heartbeats by default. For these a task each would cost more than one that stays."""

_MANY = 4
"""How many quick writes in a row it takes to keep a writer waiting for the next."""

_LAST_WORDS = 1.0
"""Seconds that a broker's reason may take to be read, once nothing more can be written."""

_SHORTEST_SESSION = 1.0
"""Seconds. Brokers refuse to renew a session that is younger, and one that ends sooner would have
us do nothing else."""

_LONGEST_SESSION = 7 * 86400.0
"""Seconds; whatever the broker claims, what is longer never ends."""


def _ignore(_: object) -> None:
    pass


def _ignore_late(_: type[Request[Any]], sent: float) -> None:
    pass


@define(eq=False)
class _Waiting:
    """One request that somebody waits for."""

    on_answer: Callable[[Any], None] | None = None
    done: OneShotEvent = field(factory=OneShotEvent)
    answer: object = None
    error: Exception | None = None


class BrokerConnection:
    """A connection that is open from `connect` until `aclose` or the first failure."""

    def __init__(self, stream: ByteStream, host: str, name: str, options: ClientOptions) -> None:
        self._stream = stream
        self._channel = Channel(stream, options.receive_bytes)
        self._host = host
        self._name = name
        self._options = options
        self._protocol = Connection(options.client_id, max_frame_bytes=options.max_frame_bytes)
        self.heard: Callable[[object], None] = _ignore
        """Called with each answer as it comes, also where nobody waits for it any more."""
        self.late: Callable[[type[Request[Any]], float], None] = _ignore_late
        """Called while a request has no answer for long: what it is, and when it was sent."""
        self._waiting: dict[int, _Waiting] = {}
        self._given_up: dict[int, float] = {}
        """Correlation id -> deadline, of requests that nobody waits for and that have no answer."""
        self._outgoing: list[bytes] = []
        self._writing = False
        """Whether something waits to be written, or is being written: the next comes behind it."""
        self._wake_writer: OneShotEvent | None = None
        """While there is a writer: set when there is something to write."""
        self._wrote_at = float("-inf")
        self._quick = 0
        """Writes in a row that came soon after the one before."""
        self._error: KafkaGroupError | None = None
        self._heard = False
        """Whether anything came behind the broker's versions."""
        self._clock = loop_clock()
        self._tasks: TaskGroup | None = None
        """Set while it runs."""
        self._renewed: OneShotEvent | None = None
        """While the session is being renewed: set once requests may go out again."""
        self._answered: OneShotEvent | None = None
        """While the session is being renewed: set when nothing is in flight any more."""

    @classmethod
    async def connect(
        cls, host: str, port: int, options: ClientOptions, tasks: TaskGroup
    ) -> BrokerConnection:
        """Connect, ask for the broker's versions, and authenticate as the options say. Its tasks
        run in `tasks`.

        Raises: ConnectionLostError, RequestTimeoutError, RemoteProtocolError, AuthenticationError.
        """
        name = f"{escaped(host)}:{port}"
        security = options.security
        if not 0 < port < 65536:
            # Ports come from brokers too, and the socket module raises OverflowError for such.
            raise ConnectionLostError(f"{name}: no such port")
        if not (host.isprintable() and 0 < len(host) < 256):
            # So do host names; what OpenSSL says to these would count as a refused handshake.
            raise ConnectionLostError(f"{name}: no such host")
        try:
            with anyio.fail_after(options.connect_timeout):
                stream: ByteStream = await anyio.connect_tcp(
                    host, port, local_host=options.source_host, local_port=options.source_port
                )
                if security is not None:
                    stream = await security.wrap(stream, host, name, options.run_in_thread)
        except TimeoutError:
            raise ConnectionLostError(
                f"{name}: no connection within {options.connect_timeout} s"
            ) from None
        except (OSError, ValueError) as error:  # the latter from a name that cannot be one
            raise ConnectionLostError(f"{name}: {reason(error)}") from error
        connection = cls(stream, host, name, options)
        tasks.start_soon(connection._run, name=f"kafkagroup connection to {name}")
        try:
            await connection._handshake(options.connect_timeout)
            if security is not None and security.mechanism is not None:
                await connection._log_in(security.mechanism)
        except BaseException:
            await connection.aclose()
            raise
        return connection

    @property
    def closed(self) -> bool:
        """Whether no request can be sent any more."""
        return self._error is not None

    async def request(
        self,
        request: Request[R],
        *,
        timeout: float,
        highest: int | None = None,
        late_after: float = math.inf,
        on_answer: Callable[[R], None] | None = None,
    ) -> R:
        """Send a request in the best common version, at most `highest`; answer its answer. After
        each `late_after` seconds without one `late` is called. `on_answer` is called with the
        answer, in the shape of its version, when it has come and before any task runs.

        Raises: RequestTimeoutError, ConnectionLostError, UnsupportedVersionError,
        RemoteProtocolError when the broker breaks the protocol while it waits; what `on_answer`
        raises.
        """
        version = self._protocol.choose_version(type(request), highest)
        if self._renewed is not None:
            timeout = await self._wait_renewed(timeout)
        folded = fold(request, version)
        answer = await self._request(folded, version, timeout, late_after, on_answer)
        return unfold(request, answer, version)

    async def send_only(self, request: Request[Any], *, highest: int | None = None) -> None:
        """Send a request that has no answer: Produce with acks=0."""
        if self._renewed is not None:
            await self._wait_renewed(self._options.request_timeout)
        self._raise_if_closed()
        version = self._protocol.choose_version(type(request), highest)
        correlation_id, data = self._protocol.send(request, version)
        self._protocol.expect_no_answer(correlation_id)
        self._write(data)
        # Nothing else waits: who sends these in a row would keep the loop, and the writer from
        # running. anyio.lowlevel takes an import of its own.
        await anyio.sleep(0)  # noqa: ASYNC115

    async def aclose(self) -> None:
        """Close at once. What waits fails with ConnectionLostError."""
        self._end(ConnectionLostError(f"{self._name}: the connection was closed here"))

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

    # ------------------------------------------------------------ authentication

    async def _log_in(self, mechanism: Mechanism) -> None:
        lifetime = await self._authenticate(mechanism)
        if lifetime and self._tasks is not None:
            self._tasks.start_soon(self._keep_logged_in, mechanism, lifetime)

    async def _keep_logged_in(self, mechanism: Mechanism, lifetime: float) -> None:
        while 0 < lifetime < _LONGEST_SESSION:
            pause = lifetime * random.uniform(*_RENEW_AFTER)
            await anyio.sleep(max(pause, _SHORTEST_SESSION))
            # KIP-368: between SaslHandshake and the end the broker takes nothing else; and what is
            # parked there, such as a JoinGroup, must not count against our deadline.
            renewed = self._renewed = OneShotEvent()
            self._answered = OneShotEvent()
            if self._protocol.in_flight:
                await self._answered.wait()
            self._answered = None
            try:
                lifetime = await self._authenticate(mechanism)
            except KafkaGroupError as error:
                self._end(error)
                return
            self._renewed = None
            renewed.set()

    async def _authenticate(self, mechanism: Mechanism) -> float:
        # Only here: most connections have no SASL.
        from kafkagroup.transport.sasl.conversation import authenticate

        timeout = self._options.connect_timeout

        async def ask(request: Request[R]) -> R:
            return await self._request(
                request, self._protocol.choose_version(type(request)), timeout
            )

        self._protocol.authenticating = True
        try:
            with anyio.fail_after(timeout):
                return await authenticate(mechanism, self._host, ask, self._options.run_in_thread)
        except TimeoutError:
            raise RequestTimeoutError(
                f"{self._name}: not authenticated within {timeout:g} s"
            ) from None
        except AuthenticationError as error:
            raise AuthenticationError(f"{self._name}: {error}") from error.__cause__
        finally:
            self._protocol.authenticating = False

    async def _wait_renewed(self, timeout: float) -> float:
        """Wait until requests may go out again; answer how many seconds are left.

        Like an answer, this is waited for until the deadline, which closes the connection.
        """
        deadline = self._clock() + timeout
        while self._renewed is not None and self._error is None:
            if not await self._renewed.wait(deadline):
                error = RequestTimeoutError(
                    f"{self._name}: the session was not renewed within {timeout:g} s"
                )
                self._end(error)
                raise error
        return deadline - self._clock()

    # ------------------------------------------------------------ the stream

    async def _request(
        self,
        request: Request[R],
        version: int,
        timeout: float,
        late_after: float = math.inf,
        on_answer: Callable[[R], None] | None = None,
    ) -> R:
        now = self._clock()
        if self._given_up and min(self._given_up.values()) <= now:
            self._time_out("a request that was given up on")
        self._raise_if_closed()
        correlation_id = self._send(request, version)
        waiting = self._waiting[correlation_id] = _Waiting(on_answer)
        try:
            deadline, late_at = now + timeout, now + late_after
            while late_at < deadline and not await waiting.done.wait(late_at):
                self.late(type(request), now)
                late_at += late_after
            if not waiting.done.is_set():
                await waiting.done.wait(deadline)
        except BaseException:
            if not waiting.done.is_set():
                self._given_up[correlation_id] = now + timeout
            raise
        finally:
            self._waiting.pop(correlation_id, None)
        if not waiting.done.is_set():
            raise self._time_out(f"{type(request).__name__} within {timeout:g} s")
        if waiting.error is not None:
            raise waiting.error
        return cast(R, waiting.answer)

    def _time_out(self, what: str) -> RequestTimeoutError:
        error = RequestTimeoutError(f"{self._name}: no answer to {what}")
        self._end(error)
        return error

    def _send(self, request: Request[Any], version: int) -> int:
        correlation_id, data = self._protocol.send(request, version)
        self._write(data)
        return correlation_id

    def _raise_if_closed(self) -> None:
        if isinstance(self._error, AuthenticationError):
            raise self._error
        if self._error is not None:
            raise ConnectionLostError(f"{self._name}: the connection is closed: {self._error}")

    def _write(self, data: bytes) -> None:
        if not self._writing:
            data = data[self._channel.send_now(data) :]
            if not data:
                return
        self._writing = True
        self._outgoing.append(data)
        if self._wake_writer is not None:
            self._wake_writer.set()
        elif self._tasks is not None:
            self._start_writer(self._tasks)

    def _start_writer(self, tasks: TaskGroup) -> None:
        self._wake_writer = OneShotEvent()
        tasks.start_soon(self._write_all)

    def _fail(self, error: KafkaGroupError) -> None:
        if self._error is not None:
            return
        self._error = error
        for waiting in self._waiting.values():
            waiting.error = error
            waiting.done.set()
        if self._renewed is not None:
            self._renewed.set()

    def _end(self, error: KafkaGroupError) -> None:
        """Fail, and stop what runs. If nothing does yet, it ends as it begins."""
        self._fail(error)
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                if self._outgoing:
                    self._start_writer(tasks)
                if self._error is None:
                    await self._read_all()
                tasks.cancel_scope.cancel()
        finally:
            self._fail(ConnectionLostError(f"{self._name}: the connection was closed here"))
            self._channel.close()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)

    async def _read_all(self) -> None:
        while True:
            try:
                # Nothing is read while these are decoded: what is behind them is delivered after.
                await self._deliver_large(
                    await self._channel.receive(self._protocol.room, self._take)
                )
            except anyio.EndOfStream:
                hint = "" if self._heard else self._hint()
                self._fail(ConnectionLostError(f"{self._name}: closed by the broker{hint}"))
                return
            except _BROKEN as error:
                self._fail(self._broken(error))
                return
            except RemoteProtocolError as error:
                # Not a warning: each retry would log one. What lasts is warned of by `Troubles`.
                logger.info("%s broke the protocol: %s", self._name, error)
                # Its traceback, and that of what it came from, would keep the whole answer alive.
                error.__context__ = None
                self._fail(error.with_traceback(None))
                return

    def _take(self, count: int) -> list[Response | LargeResponse] | None:
        """Deliver the answers that `count` more bytes complete; return the first that is large and
        those behind it. Raises: RemoteProtocolError."""
        self._heard = self._heard or bool(self._protocol.broker_versions)
        answers = self._protocol.received(count)
        for n, answer in enumerate(answers):
            if isinstance(answer, LargeResponse):
                return answers[n:]
            self._deliver(answer)
        return None

    async def _deliver_large(self, answers: list[Response | LargeResponse]) -> None:
        # In a function of its own, or the last answer stayed, with its records, until the next.
        for answer in answers:
            if isinstance(answer, LargeResponse):
                self._deliver(await self._options.run_in_thread(answer.decode))
            else:
                self._deliver(answer)

    def _deliver(self, answer: Response) -> None:
        self._given_up.pop(answer.correlation_id, None)
        self.heard(answer.message)
        # An answer that nobody waits for any more belongs to a cancelled request. Taken out here: a
        # failure before the waiter runs must not overwrite an answer that came.
        if waiting := self._waiting.pop(answer.correlation_id, None):
            waiting.answer = answer.message
            if waiting.on_answer is not None:
                try:
                    waiting.on_answer(answer.message)
                except Exception as error:
                    waiting.error = error
            waiting.done.set()
        if self._answered is not None and not self._protocol.in_flight:
            self._answered.set()

    async def _write_all(self) -> None:
        while self._outgoing:
            self._wake_writer = wake = OneShotEvent()
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            try:
                await self._channel.send(data)
            except _BROKEN as error:
                if not self._protocol.broker_versions:
                    # What there is to read may say why: TLS 1.3 refuses a client's certificate
                    # when this side takes the handshake for done. Reading ends this task.
                    await anyio.sleep(_LAST_WORDS)
                self._end(self._broken(error))
                return
            before, self._wrote_at = self._wrote_at, self._clock()
            self._quick = self._quick + 1 if self._wrote_at - before < _QUICK else 0
            self._writing = bool(self._outgoing)
            if self._quick > _MANY:
                await wake.wait()
        self._wake_writer = None

    def _hint(self) -> str:
        """Why a broker may have closed the connection after nothing but its versions."""
        security = self._options.security
        if not self._protocol.broker_versions or (security and security.mechanism):
            return ""
        return "; as a listener does that wants SASL: set sasl_mechanism in security"

    def _broken(self, error: Exception) -> KafkaGroupError:
        if isinstance(error, ssl.SSLError) and not self._protocol.broker_versions:
            # Only here: what TLS takes is imported where there is TLS.
            from kafkagroup.transport.tls import tls_error

            # TLS 1.3: the broker judges this client's certificate after our side of the handshake.
            return tls_error(self._name, error)
        return ConnectionLostError(f"{self._name}: {escaped(str(error)) or 'broken'}")
