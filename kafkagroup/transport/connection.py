"""One socket to one broker: pipelined requests, each with its own deadline.

Cancelling a request never leaves half a frame on the socket: only the reader (its task, or on
asyncio the loop's callback) reads, and only the writer task writes what the kernel did not take at
once. The writer task ends when there is nothing left to write, so that most idle connections cost
one task. After several quick writes in a row it stays.

A request that is cancelled is abandoned: its correlation id stays registered until the response
arrives and is dropped. A request that times out closes the connection, because a broker responds in
order and all later requests would wait too. An abandoned request past its deadline also closes the
connection, when the next request is sent: without that, callers that always cancel before the
timeout would keep a dead connection open.

With a `ClusterIdentity` whose cluster id is known, the first response to Metadata tells whether the
broker belongs to that cluster. If the caller sends another request first, a Metadata request
without topics precedes it. Responses that arrive before that of Metadata are held back. If the
broker belongs to another cluster, the connection is closed.

A firewall may have dropped a connection without telling either side. So a connection from which
nothing was received for a while is doubtful: `check` sends ApiVersions, which a broker answers at
once.

Where the broker limits SASL sessions, the connection re-authenticates in time: once it has its
credentials, new requests wait, and requests in flight are answered first (KIP-368).
"""

from __future__ import annotations

import logging
import math
import random
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from kafkagroup._backoff import backoff
from kafkagroup._text import escaped
from kafkagroup._values import define, field
from kafkagroup._version import SOFTWARE_VERSION
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import (
    RETRIED_ERRORS,
    AuthenticationError,
    BrokerError,
    ConnectionLostError,
    ErrorCode,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from kafkagroup.transport import dialing
from kafkagroup.transport.channel import Channel
from kafkagroup.transport.identity import ClusterIdentity, MisdirectedError
from kafkagroup.transport.keepalive import keep_alive
from kafkagroup.transport.names import Names
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.os_errors import reason
from kafkagroup.transport.threads import ThreadTimeoutError, ThreadWait
from kafkagroup.transport.throttle import BrokerThrottle
from kafkagroup.wire.connection import Connection, LargeResponse, Response
from kafkagroup.wire.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafkagroup.wire.schema import Request
from kafkagroup.wire.shapes import fold, unfold

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import ByteStream, TaskGroup

    from kafkagroup.transport.sasl import Mechanism

__all__ = ["IDENTITY_REQUEST", "BrokerConnection"]

R = TypeVar("R")

logger = logging.getLogger(__name__)

_STREAM_ERRORS = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.BusyResourceError,  # a TLS key update from the broker makes the reader write
    OSError,
)
"""What a broken stream raises."""

_REAUTHENTICATE_AFTER = (0.85, 0.95)
"""The fraction of a session's lifetime after which the connection re-authenticates: a random one in
this range, because otherwise all connections would do it at the same time. The Java client uses the
same range."""

_RENEWAL_PAUSES = (0.5, 5.0)
"""Seconds between two attempts to re-authenticate, at least and at most. Each connection makes its
own attempts, and the old session serves meanwhile."""

_MIN_RENEWAL_PAUSE = 0.2
"""Seconds between two attempts when the old session is about to end, and between two calls of
`may_renew`."""

_QUICK_WRITE_INTERVAL = 1.5
"""Seconds between two writes that count as quick. Longer than a fetch without records takes, and
than the default interval of heartbeats: a new task for each of these would cost more than a writer
that stays."""

_QUICK_WRITES_TO_KEEP_WRITER = 4
"""The writer task stays after more quick writes in a row than this."""

_DOUBTFUL_AFTER = 4.0
"""Seconds without received bytes after which an unused connection must be checked. Longer than the
usual intervals of heartbeats: each heartbeat is a check itself."""

_ERROR_READ_TIMEOUT = 1.0
"""Seconds to read the broker's reason after a write has failed."""

IDENTITY_REQUEST = MetadataRequest(topics=(), allow_auto_topic_creation=False)
"""The response has the cluster id, and no topics."""

_MIN_IDENTITY_VERSION = 2
"""The first version whose response has the cluster id. In version 0 no topics means all topics."""

_MIN_SESSION_LIFETIME = 1.0
"""Seconds. Brokers refuse to re-authenticate a younger session; a shorter lifetime would leave no
time for requests."""

_MAX_SESSION_LIFETIME = 7 * 86400.0
"""Seconds. A longer lifetime counts as unlimited."""


@define(eq=False)
class _InFlightRequest:
    """A request whose caller waits for the response."""

    on_response: Callable[[Any], None] | None = None
    done: OneShotEvent = field(factory=OneShotEvent)
    response: object = None
    error: Exception | None = None


class BrokerConnection:
    """A connection that is open from `connect` until `aclose` or the first failure. Moments are on
    the loop's clock, durations in seconds."""

    def __init__(
        self,
        stream: ByteStream,
        host: str,
        name: str,
        options: ClientOptions,
        identity: ClusterIdentity | None = None,
    ) -> None:
        self.on_renewal: Callable[[KafkaGroupError | None], None] = lambda _: None
        """Called after each attempt to renew the session, with the error if it failed and the
        session continues."""
        self.may_renew: Callable[[], bool] = lambda: True
        """Returns whether to try to renew the session now: other connections may have just failed
        to get credentials."""
        self._stream = stream
        self._channel = Channel(stream, options.receive_bytes)
        self._host = host.removesuffix(".")
        """The name for mechanisms: a final dot is only for the look-up."""
        self._name = name
        """Host and port, for errors."""
        self._options = options
        self._protocol = Connection(options.client_id, max_frame_bytes=options.max_frame_bytes)
        self._throttle: BrokerThrottle | None = None
        """Set by `connect` after the authentication."""
        self._handshake_version = 0
        """The version of ApiVersions in which the broker has answered."""
        self._in_flight: dict[int, _InFlightRequest] = {}
        """By correlation id."""
        self._abandoned: dict[int, float] = {}
        """Correlation id -> deadline of cancelled requests that have no response yet."""
        self._outgoing: list[memoryview] = []
        """What the kernel has not taken at once, for the writer task."""
        self._is_writing = False
        """Whether bytes wait to be written, or are being written: later requests are added to
        `_outgoing`."""
        self._written: OneShotEvent | None = None
        """While a task waits in `_wait_written`: set when nothing is left to write, or the
        connection has failed."""
        self._wake_writer: OneShotEvent | None = None
        """While there is a writer task: set when there is something to write."""
        self._used_at = float("-inf")
        """When the last request was sent."""
        self._received_at = float("-inf")
        """When bytes were last received."""
        self._wrote_at = float("-inf")
        """When the writer task last wrote."""
        self._quick_write_count = 0
        """Quick writes in a row."""
        self._error: KafkaGroupError | None = None
        """Why the connection is closed."""
        self._has_received_response = False
        """Whether anything was received after the broker's versions."""
        self._identity = identity
        self._is_identified = True
        """False from the end of `connect` until the broker has named its cluster; always True if
        its cluster cannot be compared."""
        self._has_requested_identity = False
        """Whether a Metadata request was sent, whose response has the cluster id."""
        self._held: list[Response] = []
        """Responses that arrived before the broker has named its cluster."""
        self._clock = loop_clock()
        self._tasks: TaskGroup | None = None
        """Set while the connection runs."""
        self._reauthenticated: OneShotEvent | None = None
        """While the connection re-authenticates: set when requests may be sent again."""
        self._drained: OneShotEvent | None = None
        """Before the connection re-authenticates: set when no request is in flight."""

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        options: ClientOptions,
        tasks: TaskGroup,
        throttle: BrokerThrottle | None = None,
        identity: ClusterIdentity | None = None,
        names: Names | None = None,
    ) -> BrokerConnection:
        """Connect, request the broker's versions, and authenticate as the options say. The
        connection's tasks run in `tasks`. Each response after the authentication is reported to
        `throttle`. With `identity`, only responses of its cluster are accepted. `names` looks up
        the host, and knows the addresses of earlier look-ups.

        Raises: ConnectionLostError, RequestTimeoutError, RemoteProtocolError, AuthenticationError;
        UnsupportedVersionError for a broker without SASL; ConfigurationError for certificate files
        that cannot be used; another KafkaGroupError of the source of credentials.
        """
        name = f"{escaped(host)}:{port}"
        security = options.security
        if not 0 < port < 65536:
            # Metadata may name any port, and the socket module raises OverflowError for this one.
            raise ConnectionLostError(f"{name}: no such port")
        if not (host.isprintable() and 0 < len(host) < 256):
            # Metadata may name any host, too; OpenSSL's error for these would look like a refused
            # handshake.
            raise ConnectionLostError(f"{name}: no such host")
        deadline = anyio.current_time() + options.connect_timeout
        try:
            stream: ByteStream = await dialing.open_stream(
                host, port, options, names or Names(), deadline
            )
        except ConnectionLostError as error:
            raise type(error)(f"{name}: {error}") from error.__cause__
        run_in_thread = ThreadWait(options.run_in_thread)
        try:
            keep_alive(stream)
            if security is not None:
                with anyio.fail_after(deadline - anyio.current_time()):
                    stream = await security.wrap(stream, host, name, run_in_thread)
            connection = cls(stream, host, name, options, identity)
            try:
                tasks.start_soon(connection._run, name=f"kafkagroup connection to {name}")
            except RuntimeError:  # the task group has ended: the client was closed meanwhile
                raise ConnectionLostError(f"{name}: the client is closed") from None
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)
            if isinstance(error, TimeoutError):
                within = f"within {options.connect_timeout} s"
                if run_in_thread.is_waiting:
                    raise ThreadTimeoutError(
                        f"{name}: no thread of this client has read the certificates {within}"
                    ) from None
                raise ConnectionLostError(f"{name}: no connection {within}") from None
            if isinstance(error, OSError):
                raise ConnectionLostError(f"{name}: {reason(error)}") from error
            raise
        try:
            await connection._handshake(options.connect_timeout)
            if security is not None and security.mechanism is not None:
                await connection._start_session(security.mechanism)
        except BaseException:
            await connection.aclose()
            raise
        connection._throttle = throttle
        connection._is_identified = not connection._can_identify()
        return connection

    @property
    def is_identified(self) -> bool:
        """Whether the broker belongs to the client's cluster, as far as that can be compared."""
        return self._is_identified

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed or has failed: it takes no more requests."""
        return self._error is not None

    def is_idle_since(self, time: float) -> bool:
        """Whether no request is in flight, and none was sent at `time` or later."""
        return not self._in_flight and self._used_at < time

    @property
    def idle_since(self) -> float:
        """When the connection was last used, on the loop's clock; infinity while a request is in
        flight, also one that was cancelled."""
        return math.inf if self._protocol.in_flight_count else max(self._used_at, self._received_at)

    @property
    def is_overdue(self) -> bool:
        """Whether the response to a cancelled request has not arrived in time."""
        return bool(self._abandoned) and min(self._abandoned.values()) <= self._clock()

    @property
    def is_doubtful(self) -> bool:
        """Whether nothing was received for a while, and no request is in flight that would tell
        whether the broker still responds."""
        return (
            self._clock() - self._received_at >= _DOUBTFUL_AFTER
            and not self._protocol.in_flight_count
            and self._reauthenticated is None
        )

    async def check(self, timeout: float) -> None:
        """Ask the broker for its versions, and wait `timeout` seconds for the response. Afterwards
        `has_received_since` tells whether it arrived; a connection without a response stays
        open."""
        with anyio.move_on_after(timeout), suppress(KafkaGroupError):
            # Without a response after twice the timeout, the next request replaces the connection
            # (`is_overdue`).
            await self._api_versions(self._handshake_version, 2 * timeout)

    def has_received_since(self, time: float) -> bool:
        """Return whether the connection is open, and something was received at `time` or later."""
        return self._error is None and self._received_at >= time

    async def request(
        self,
        request: Request[R],
        *,
        timeout: float,
        highest: int | None = None,
        lowest: int = 0,
        overdue_after: float = math.inf,
        on_overdue: Callable[[float], None] | None = None,
        on_response: Callable[[R], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> R:
        """Send a request in the best common version, from `lowest` to `highest`; return its
        response.

        `on_overdue` is called after each `overdue_after` seconds without a response, with the time
        at which the request was sent. `on_response` is called with the response, in the shape of
        its version, as soon as it is read and before any task runs. `on_sent` is called when the
        request was passed to the kernel or queued behind earlier ones: until then, the broker
        cannot have executed it.

        Raises: RequestTimeoutError, ConnectionLostError, UnsupportedVersionError;
        LocalProtocolError when the version cannot express the request; RemoteProtocolError when the
        broker breaks the protocol meanwhile; AuthenticationError when the session cannot be
        renewed; what `on_response` raises.
        """
        version = self._protocol.choose_version(type(request), highest, lowest)
        while self._reauthenticated is not None and self._error is None:
            timeout = await self._wait_reauthenticated(timeout)
        folded = fold(request, version)
        response = await self._request(
            folded, version, timeout, overdue_after, on_overdue, on_response, on_sent
        )
        return unfold(request, response, version)

    async def send_only(
        self,
        request: Request[Any],
        *,
        highest: int | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a request that has no response: Produce with acks=0. Returns when it is written: a
        connection that is closed before would lose it. `on_sent` as of `request`. Call it only
        after the broker has named its cluster.

        Raises: as `request`.
        """
        timeout = self._options.request_timeout
        while self._reauthenticated is not None and self._error is None:
            timeout = await self._wait_reauthenticated(timeout)
        self._raise_if_closed()
        self._used_at = self._clock()
        version = self._protocol.choose_version(type(request), highest)
        correlation_id, data = self._protocol.send(request, version)
        self._protocol.expect_no_response(correlation_id)
        self._write(data)
        if on_sent is not None:
            on_sent()
        # Without this checkpoint a caller that sends in a loop would block the event loop, and the
        # writer task. Not anyio.lowlevel.checkpoint: that module would have to be imported.
        await anyio.sleep(0)  # noqa: ASYNC115
        if self._is_writing:
            await self._wait_written(type(request).__name__)

    async def _wait_written(self, what: str) -> None:
        """Wait until nothing is left to write. `what` was written last, for the error."""
        self._raise_if_closed()
        self._written = self._written or OneShotEvent()
        timeout = self._options.request_timeout
        if not await self._written.wait(self._clock() + timeout):
            error = RequestTimeoutError(f"{self._name}: {what} was not written in {timeout:g} s")
            self._end(error)
            raise error
        self._raise_if_closed()

    async def aclose(self) -> None:
        """Close at once. Requests in flight fail with ConnectionLostError."""
        self._end(ConnectionLostError(f"{self._name}: the connection was closed here"))

    async def _handshake(self, timeout: float) -> None:
        version = ApiVersionsRequest.versions.high
        response = await self._api_versions(version, timeout)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # KIP-511: the refusal is encoded in v0 and names the versions that the broker speaks.
            ranges = [k for k in response.api_keys if k.api_key == ApiVersionsRequest.api_key]
            highest = min(ranges[0].max_version, version - 1) if ranges else 0
            version = max(0, highest)
            response = await self._api_versions(version, timeout)
        if response.error_code:
            raise ConnectionLostError(f"{self._name}: {BrokerError(response.error_code)}")
        self._protocol.set_broker_versions(response)
        self._handshake_version = version

    async def _api_versions(self, version: int, timeout: float) -> ApiVersionsResponse:
        request = (
            ApiVersionsRequest(
                client_software_name="kafkagroup", client_software_version=SOFTWARE_VERSION
            )
            if version >= 3
            else ApiVersionsRequest()
        )
        return await self._request(request, version, timeout)

    # ------------------------------------------------------------ authentication

    async def _start_session(self, mechanism: Mechanism) -> None:
        lifetime = await self._authenticate(mechanism, is_renewal=False)
        if lifetime and self._tasks is not None:
            self._tasks.start_soon(self._keep_authenticated, mechanism, lifetime)

    async def _keep_authenticated(self, mechanism: Mechanism, lifetime: float) -> None:
        """Renew each session before it ends. `lifetime`: that of the first session, in seconds."""
        current: float | None = lifetime
        while current is not None and 0 < current < _MAX_SESSION_LIFETIME:
            ends_at = self._clock() + current
            pause = current * random.uniform(*_REAUTHENTICATE_AFTER)
            await anyio.sleep(max(pause, _MIN_SESSION_LIFETIME))
            current = await self._renew_session(mechanism, ends_at)

    async def _renew_session(self, mechanism: Mechanism, ends_at: float) -> float | None:
        """Re-authenticate; return the lifetime of the new session, None if the connection ends.
        Until `ends_at` the old session serves while the mechanism cannot get its credentials."""
        attempts = 0
        while True:
            if ends_at - self._clock() > _MIN_RENEWAL_PAUSE and not self.may_renew():
                await anyio.sleep(_MIN_RENEWAL_PAUSE)
                continue
            try:
                lifetime = await self._authenticate(mechanism, is_renewal=True)
            except KafkaGroupError as failure:
                error = failure
                if not isinstance(failure, RETRIED_ERRORS):
                    # Such as a ConfigurationError of the source of credentials: as it is, it would
                    # end the clients whose requests are in flight.
                    error = AuthenticationError(f"{self._name}: {failure}", is_of_source=True)
                    error.__cause__ = failure
                left = ends_at - self._clock()
                # Once requests are held back, SaslHandshake may have been sent, after which the
                # broker takes no requests of the old session.
                if self._reauthenticated is not None or left <= 0:
                    self._end(error)
                    return None
                self.on_renewal(error)
                attempts += 1
                pause = backoff(attempts, *_RENEWAL_PAUSES, random.random())
                # More than one attempt in the time that is left, however long the last one took.
                await anyio.sleep(min(pause, max(left / 2, _MIN_RENEWAL_PAUSE), left))
            else:
                if self._reauthenticated is not None:
                    self._reauthenticated.set()
                    self._reauthenticated = None
                self.on_renewal(None)
                return lifetime

    async def _hold_back_requests(self) -> None:
        """Let new requests wait, and wait for the responses to those in flight. KIP-368: from
        SaslHandshake until the authentication is complete, the broker takes no other request."""
        self._reauthenticated = OneShotEvent()
        if self._protocol.in_flight_count:
            self._drained = OneShotEvent()
            await self._drained.wait()
            self._drained = None

    async def _authenticate(self, mechanism: Mechanism, *, is_renewal: bool) -> float:
        """Authenticate; return the session's lifetime in seconds, 0.0 if it has no limit."""
        # Imported here: most connections have no SASL.
        from kafkagroup.transport.sasl.conversation import authenticate

        timeout = self._options.connect_timeout
        run_in_thread = ThreadWait(self._options.run_in_thread)

        async def send(request: Request[R]) -> R:
            return await self._request(
                request, self._protocol.choose_version(type(request)), timeout
            )

        async def begin() -> None:
            if is_renewal:
                # Requests in flight, such as a pending JoinGroup, must not use up our deadline.
                scope.deadline = math.inf
                await self._hold_back_requests()
                scope.deadline = self._clock() + timeout
            self._protocol.is_authenticating = True

        try:
            with anyio.fail_after(timeout) as scope:
                return await authenticate(mechanism, self._host, send, run_in_thread, begin)
        except TimeoutError:
            late = f"{self._name}: not authenticated within {timeout:g} s"
            if run_in_thread.is_waiting:
                raise ThreadTimeoutError(
                    f"{late}: no thread of this client has computed the response to the broker"
                ) from None
            raise RequestTimeoutError(late) from None
        except AuthenticationError as error:
            raise AuthenticationError(
                f"{self._name}: {error}",
                is_refusal=error.is_refusal,
                is_of_source=error.is_of_source,
            ) from error.__cause__
        finally:
            self._protocol.is_authenticating = False

    async def _wait_reauthenticated(self, timeout: float) -> float:
        """Wait until the session is renewed, and then for a throttle that began meanwhile, on any
        connection. Return how many seconds of `timeout` are left; the throttle takes none of them.

        Like a response that does not arrive, a timeout closes the connection.
        """
        deadline = self._clock() + timeout
        while self._reauthenticated is not None and self._error is None:
            if not await self._reauthenticated.wait(deadline):
                error = RequestTimeoutError(
                    f"{self._name}: the session was not renewed within {timeout:g} s"
                )
                self._end(error)
                raise error
        left = deadline - self._clock()
        if self._throttle is not None:
            await self._throttle.wait()
        return left

    # ------------------------------------------------------------ the stream

    async def _request(
        self,
        request: Request[R],
        version: int,
        timeout: float,
        overdue_after: float = math.inf,
        on_overdue: Callable[[float], None] | None = None,
        on_response: Callable[[R], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> R:
        now = self._used_at = self._clock()
        if self._abandoned and min(self._abandoned.values()) <= now:
            self._time_out("a cancelled request")  # closes; the next line raises
        self._raise_if_closed()
        if self._awaits_identity():
            self._request_identity(request)
        correlation_id = self._send(request, version)
        in_flight = self._in_flight[correlation_id] = _InFlightRequest(on_response)
        if on_sent is not None:
            on_sent()
        try:
            deadline, overdue_at = now + timeout, now + overdue_after
            while overdue_at < deadline and not await in_flight.done.wait(overdue_at):
                if on_overdue is not None:
                    on_overdue(now)
                overdue_at += overdue_after
            if not in_flight.done.is_set():
                await in_flight.done.wait(deadline)
        except BaseException:
            if not in_flight.done.is_set():
                self._abandoned[correlation_id] = now + timeout
            raise
        finally:
            self._in_flight.pop(correlation_id, None)
        if not in_flight.done.is_set():
            raise self._time_out(f"{type(request).__name__} within {timeout:g} s")
        if in_flight.error is not None:
            raise in_flight.error
        return cast(R, in_flight.response)

    def _can_identify(self) -> bool:
        """Whether the broker's responses to Metadata have a cluster id to compare with one that is
        known."""
        if self._identity is None or self._identity.cluster_id is None:
            return False
        try:
            return self._protocol.choose_version(MetadataRequest) >= _MIN_IDENTITY_VERSION
        except UnsupportedVersionError:
            return False

    def _awaits_identity(self) -> bool:
        """Whether responses are held back until the broker has named its cluster. The renewal of a
        session neither waits for that nor requests it: it takes place even while the broker
        throttles."""
        return not (self._is_identified or self._protocol.is_authenticating)

    def _request_identity(self, following: Request[Any]) -> None:
        """Request the cluster id before the request `following`, unless that request or an earlier
        one does."""
        if not (self._has_requested_identity or isinstance(following, MetadataRequest)):
            self._send(IDENTITY_REQUEST, self._protocol.choose_version(MetadataRequest))
        self._has_requested_identity = True

    def _time_out(self, what: str) -> RequestTimeoutError:
        """Close, because there is no response to `what`; return the error."""
        error = RequestTimeoutError(f"{self._name}: no response to {what}")
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

    def _write(self, data: bytearray) -> None:
        left = memoryview(data)
        if not self._is_writing:
            left = left[self._channel.send_now(left) :]
            if not left:
                return
        self._is_writing = True
        self._outgoing.append(left)
        if self._wake_writer is not None:
            self._wake_writer.set()
        elif self._tasks is not None:
            self._start_writer(self._tasks)

    def _start_writer(self, tasks: TaskGroup) -> None:
        self._wake_writer = OneShotEvent()
        tasks.start_soon(self._write_all)

    def _fail(self, error: KafkaGroupError) -> None:
        """Close with this error, and raise it in the callers of the requests in flight."""
        if self._error is not None:
            return
        self._error = error
        for in_flight in self._in_flight.values():
            in_flight.error = error
            in_flight.done.set()
        # Responses that were received may yet be read: their callers get the error, not both.
        self._in_flight.clear()
        if self._reauthenticated is not None:
            self._reauthenticated.set()
        if self._written is not None:
            self._written.set()

    def _end(self, error: KafkaGroupError) -> None:
        """Fail as `_fail` does, and cancel the connection's tasks. `_run`, if it has not started,
        ends as soon as it starts."""
        self._fail(error)
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                try:
                    if self._outgoing:  # sent before this task ran
                        self._start_writer(tasks)
                    if self._error is None:
                        await self._read_all()
                finally:
                    self._tasks = None  # a task group that ends can start no writer
                    tasks.cancel_scope.cancel()
        finally:
            self._fail(ConnectionLostError(f"{self._name}: the connection was closed here"))
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)

    async def _read_all(self) -> None:
        while True:
            try:
                # Responses stay in order: nothing is read while a large one is decoded.
                await self._deliver_large(
                    await self._channel.receive(self._protocol.room, self._take)
                )
                self._raise_protocol_failure()
            except anyio.EndOfStream:
                hint = "" if self._has_received_response else self._sasl_hint()
                self._fail(ConnectionLostError(f"{self._name}: closed by the broker{hint}"))
                return
            except _STREAM_ERRORS as error:
                self._fail(self._connection_error(error))
                return
            except MisdirectedError:
                return  # the requests have failed already
            except RemoteProtocolError as error:
                # Not a warning: each retry would log one. `Troubles` warns when it lasts.
                logger.info("%s broke the protocol: %s", self._name, error)
                # Its traceback and context would keep the whole response in memory.
                error.__context__ = None
                self._fail(error.with_traceback(None))
                return

    def _take(self, count: int) -> list[Response | LargeResponse] | None:
        """Deliver the responses that `count` more bytes complete, up to the first large one; return
        that one and those after it; None without one. Raises: RemoteProtocolError,
        MisdirectedError."""
        self._received_at = self._clock()
        self._has_received_response |= bool(self._protocol.broker_versions)
        responses = self._protocol.received(count)
        for n, response in enumerate(responses):
            if isinstance(response, LargeResponse):
                return responses[n:]
            self._deliver(response)
        self._raise_protocol_failure()
        return None

    def _raise_protocol_failure(self) -> None:
        """Raise the error of the bytes that follow the delivered responses, if there is one."""
        if isinstance(self._error, MisdirectedError):
            raise self._error
        if (failure := self._protocol.failure) is not None:
            # `_fail` at once, not when the reader ends: before that, the callers that these
            # responses wake may send the next request.
            self._fail(failure)
            raise failure

    async def _deliver_large(self, responses: list[Response | LargeResponse]) -> None:
        # A function, so that its variable does not keep the last response and its records in memory
        # until the next response arrives.
        for response in responses:
            if isinstance(response, LargeResponse):
                self._deliver(await self._options.run_in_thread(response.decode))
            else:
                self._deliver(response)

    def _deliver(self, response: Response) -> None:
        if self._throttle is not None:
            # Also for a response that is refused below: the broker throttles the next connection to
            # this address, too, and the client would not know.
            self._throttle.on_response(response.message)
        if self._identity is not None:
            if isinstance(self._error, MisdirectedError):
                return
            refusal = self._identity.refusal(response.message, self._name)
            if refusal is not None:
                self._fail(refusal)
                return
            if self._awaits_identity():
                self._held.append(response)
                if type(response.message) is MetadataResponse:
                    self._is_identified = True
                    self._deliver_held()
                return
        self._pass_on(response)

    def _deliver_held(self) -> None:
        held, self._held = self._held, []
        for response in held:
            self._pass_on(response)

    def _pass_on(self, response: Response) -> None:
        """Pass a response on to the caller of its request."""
        self._abandoned.pop(response.correlation_id, None)
        # An abandoned request has no entry: its response is dropped. The entry is removed here, and
        # not only by the caller: a failure before the caller runs must not overwrite the response.
        if in_flight := self._in_flight.pop(response.correlation_id, None):
            in_flight.response = response.message
            if in_flight.on_response is not None:
                try:
                    in_flight.on_response(response.message)
                except Exception as error:
                    in_flight.error = error
            in_flight.done.set()
        if self._drained is not None and not self._protocol.in_flight_count:
            self._drained.set()

    async def _write_all(self) -> None:
        while self._outgoing:
            self._wake_writer = wake = OneShotEvent()
            data = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
            self._outgoing.clear()
            try:
                await self._channel.send(data)
            except _STREAM_ERRORS as error:
                if not self._protocol.broker_versions:
                    # The broker's reason may still arrive: TLS 1.3 refuses a client's certificate
                    # after this side's handshake is complete. The reader then cancels this task.
                    await anyio.sleep(_ERROR_READ_TIMEOUT)
                self._end(self._connection_error(error))
                return
            before, self._wrote_at = self._wrote_at, self._clock()
            is_quick = self._wrote_at - before < _QUICK_WRITE_INTERVAL
            self._quick_write_count = self._quick_write_count + 1 if is_quick else 0
            self._is_writing = bool(self._outgoing)
            if self._written is not None and not self._is_writing:
                self._written.set()
                self._written = None
            if self._quick_write_count > _QUICK_WRITES_TO_KEEP_WRITER:
                await wake.wait()
        self._wake_writer = None

    def _sasl_hint(self) -> str:
        """Return why a broker may close the connection right after it sent its versions; "" if it
        has not sent them, or this client uses SASL."""
        security = self._options.security
        if not self._protocol.broker_versions or (security and security.mechanism):
            return ""
        return "; a listener that requires SASL does this: set sasl_mechanism in security"

    def _connection_error(self, error: Exception) -> KafkaGroupError:
        if isinstance(error, ssl.SSLError) and not self._protocol.broker_versions:
            # Imported here: only connections with TLS need it.
            from kafkagroup.transport.tls import tls_error

            # TLS 1.3: the broker checks this client's certificate after our side of the handshake.
            return tls_error(self._name, error)
        return ConnectionLostError(f"{self._name}: {escaped(str(error)) or 'broken'}")
