"""One broker: its connections, its throttle, and requests with a deadline.

A connection is opened by the first request that names its connection id. A broker responds to one
connection's requests in order, so requests that may wait at the broker (a JoinGroup, a long poll)
have connections of their own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from kafkagroup._text import escaped
from kafkagroup._values import frozen
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import (
    RETRIED_ERRORS,
    AuthenticationError,
    ConnectionLostError,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from kafkagroup.transport.connection import IDENTITY_REQUEST, BrokerConnection
from kafkagroup.transport.identity import ClusterIdentity, ForeignClusterError, MisdirectedError
from kafkagroup.transport.logins import Logins
from kafkagroup.transport.names import Names, UnresolvedError
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.transport.origin import Origin
from kafkagroup.transport.retry import part_of
from kafkagroup.transport.threads import ThreadTimeoutError
from kafkagroup.transport.throttle import BrokerThrottle
from kafkagroup.transport.trouble import WARN_AFTER, Problem, Troubles
from kafkagroup.types import TopicPartition, by_topic
from kafkagroup.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from kafkagroup.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kafkagroup.wire.schema import LookUp, Request

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.wire.messages.produce import ProduceResponse

__all__ = ["MAIN", "NO_RESPONSE", "BrokerClient", "OverdueReport"]

R = TypeVar("R")

logger = logging.getLogger(__name__)

MAIN = ""
"""Connection id of requests that the broker answers at once, such as Metadata and OffsetCommit."""

_NO_EPOCHS: Mapping[TopicPartition, int] = {}

_CONNECT_ADVICE = (
    "check that a broker listens there, and that names, firewalls and advertised.listeners lead"
    " this client to it"
)
_LOCAL_ADVICE: Mapping[type[Exception], str] = {
    UnresolvedError: "check the name in bootstrap_servers or advertised.listeners, and this"
    " machine's name servers",
    ThreadTimeoutError: "check how much processor time this process gets, and how many threads it"
    " may start",
}
"""The advice for errors on this machine, where no broker was reached, by the type of the error."""

_FOREIGN_CLUSTER_ADVICE = (
    "check where the address leads: another cluster, or a broker of it, may have taken it over"
)
_AUTHENTICATION_ADVICE = (
    "check the source of the credentials, the certificates of both sides, and what the broker knows"
    " of this client"
)
_SENT_BEFORE_IDENTIFIED = (FetchRequest, FindCoordinatorRequest, MetadataRequest)
"""Requests that may be sent before the broker has named its cluster: they change nothing there, and
the connection holds their responses back until the broker has named it."""

_PRODUCE_MARGIN = 1.0
"""Seconds to wait for a response to Produce beyond the timeout that the request names, after which
the broker itself responds with REQUEST_TIMED_OUT."""

_CHECK_TIMEOUT = 1.0
"""Seconds to wait for the response to a check of an idle connection before another connection is
opened."""

_PROTOCOL_ADVICE = (
    "check that a Kafka broker listens there, and that no proxy changes what it sends"
)


@frozen
class OverdueReport:
    """What to report when a request stays in flight for long."""

    advice: str
    """What to check."""
    extra_wait: float | None = None
    """Seconds to wait, in addition to `WARN_AFTER`, before the missing response is reported. None:
    by how much the request's timeout exceeds the `request_timeout` of the options."""
    has_own_finding: bool = False
    """Whether another finding of `health()` reports the cause, such as a long rebalance: then
    `health()` lists none for the missing response."""


NO_RESPONSE = OverdueReport(
    "check that the broker is alive and not overloaded, and the network between"
)
"""For requests that the broker answers at once."""


class BrokerClient:
    """Sends requests to one broker, or to any address that speaks the protocol."""

    def __init__(
        self,
        node_id: int,
        host: str,
        port: int,
        tasks: TaskGroup,
        options: ClientOptions | None = None,
        *,
        throttle: BrokerThrottle | None = None,
        troubles: Troubles | None = None,
        identity: ClusterIdentity | None = None,
        on_misdirected: Callable[[MisdirectedError], None] = lambda _: None,
        names: Names | None = None,
        logins: Logins | None = None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`node_id`: -1 for a bootstrap address, whose node id is unknown. Connections run in
        `tasks`. `throttle` is shared by the clients of this address; None for one of its own.
        Failures and successes are reported to `troubles`, unless it is None. With `identity`,
        connections to brokers of other clusters fail; `on_misdirected` is called with the error,
        also with that of a broker that requires to bootstrap again. `names` looks up the host; None
        for look-ups that no other client shares. `logins` decides when to log in again after a
        failure; with it, `on_refused` is called after each login that the broker refuses."""
        self.node_id = node_id
        self.host = host
        self.port = port
        self._tasks = tasks
        self._options = options or ClientOptions()
        self._connections: dict[str, BrokerConnection] = {}
        """By connection id; some may be closed."""
        self._connecting: dict[str, anyio.Lock] = {}
        """By connection id: the lock of the tasks that open, check or replace the connection."""
        self._throttle = throttle or BrokerThrottle((host, port), {})
        self._throttled_count = 0
        """How many requests wait for the throttle."""
        self._troubles = troubles
        self._identity = identity
        self._on_misdirected = on_misdirected
        self._names = names or Names()
        self._origin: Origin | None = None
        """The process and event loop that opened the first connection. A forked process would mix
        its requests with this one's."""
        self._logins = logins
        self._on_refused = on_refused
        self._close_count = 0
        """How often `aclose` was called: a task that waited compares it."""
        self._stop_closing_idle: OneShotEvent | None = None
        """While a task closes idle connections: the event that ends this task."""
        self.is_slow = False
        """Whether the last `attempt` took longer than its part of the request timeout."""
        self._last_unanswered_at = float("-inf")
        """When the latest request that timed out was sent, on the loop's clock."""

    @property
    def address(self) -> Address:
        """Host and port."""
        return self.host, self.port

    def __repr__(self) -> str:
        return f"Broker({self.node_id}, {escaped(self.host)!r}, {self.port})"

    # ------------------------------------------------------------ connections

    async def connect(self, connection_id: str = MAIN) -> None:
        """Open a connection if it is not open."""
        await self._connection(connection_id)

    def is_connected(self, connection_id: str = MAIN) -> bool:
        """Return whether a connection is open."""
        return self._open_connection(connection_id) is not None

    @property
    def connected(self) -> bool:
        """Whether the main connection is open."""
        return self.is_connected()

    @property
    def is_reached(self) -> bool:
        """Whether any connection is open."""
        return any(not c.is_closed for c in self._connections.values())

    @property
    def is_unresponsive(self) -> bool:
        """Whether a request has timed out, and nothing was received since it was sent."""
        since = self._last_unanswered_at
        return since > -math.inf and not self.has_received_since(since)

    @property
    def has_connections(self) -> bool:
        """Whether a connection is open, or is being opened."""
        return bool(self._connecting) or self.is_reached

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight or waits for the throttle, and no connection is being
        opened."""
        # `idle_since` is infinite while a request is in flight.
        busy = (not c.is_closed and c.idle_since == math.inf for c in self._connections.values())
        return not (self._connecting or self._throttled_count) and not any(busy)

    @property
    def throttled_seconds(self) -> float:
        """For how many more seconds the broker wants no request of this client; 0 if it wants
        some."""
        return self._throttle.seconds_left

    def has_received_since(self, time: float) -> bool:
        """Return whether something was received on an open connection at `time`, on the loop's
        clock, or later."""
        return any(c.has_received_since(time) for c in self._connections.values())

    async def aclose(self) -> None:
        """Close every connection; requests in flight fail with ConnectionLostError."""
        self._close_count += 1
        if self._stop_closing_idle is not None:
            self._stop_closing_idle.set()
            self._stop_closing_idle = None
        for connection in tuple(self._connections.values()):
            await connection.aclose()

    async def disconnect(self, connection_id: str) -> None:
        """Close one connection, if it is open."""
        if connection := self._connections.pop(connection_id, None):
            await connection.aclose()

    async def _connection(self, connection_id: str) -> BrokerConnection:
        """Return an open connection: open it, and check or replace it if it needs that."""
        self._check_origin()
        connection = self._open_connection(connection_id)
        is_busy = connection_id in self._connecting
        if connection is not None and not (is_busy or self._needs_care(connection)):
            return connection
        lock = self._connecting.setdefault(connection_id, anyio.Lock())
        try:
            async with lock:
                return await self._connect_or_check(connection_id)
        finally:
            # Clusters have many idle brokers, and the lock is most of such a client's memory. If
            # another task has stored a new lock meanwhile, keep that one.
            if not lock.locked() and self._connecting.get(connection_id) is lock:
                del self._connecting[connection_id]

    def _check_origin(self) -> None:
        """Raises: IllegalStateError in another process or event loop than the first call."""
        if self._origin is None:
            self._origin = Origin(repr(self))
        self._origin.check()

    def _needs_care(self, connection: BrokerConnection) -> bool:
        """Whether to replace or check the connection before its next request."""
        return self._is_suspect(connection) or self._is_doubtful(connection)

    def _is_doubtful(self, connection: BrokerConnection) -> bool:
        """Whether to check the connection before its next request. False while the broker
        throttles, because a check is a request, too."""
        return connection.is_doubtful and not self._throttle.seconds_left

    def _is_suspect(self, connection: BrokerConnection) -> bool:
        """Whether the path to the broker may be broken: the response to a cancelled request on this
        connection is overdue, or a request on another one, sent after the last one here, has timed
        out. A request on this connection could wait for its whole timeout: minutes for a
        JoinGroup."""
        return connection.is_overdue or connection.is_idle_since(self._last_unanswered_at)

    async def _connect_or_check(self, connection_id: str) -> BrokerConnection:
        """Return an open connection on which the broker responds, or has just responded."""
        connection = self._open_connection(connection_id)  # another task may have connected
        if connection is None:
            return await self._connect(connection_id)
        if self._is_suspect(connection):
            await self.disconnect(connection_id)
            return await self._connect(connection_id)
        if self._is_doubtful(connection):
            return await self._check_or_replace(connection_id, connection)
        return connection

    async def _check_or_replace(
        self, connection_id: str, connection: BrokerConnection
    ) -> BrokerConnection:
        """Return this connection if the broker responds on it, else a new one."""
        sent_at = anyio.current_time()
        await connection.check(_CHECK_TIMEOUT)
        if connection.has_received_since(sent_at):
            return connection
        # The broker may only be slow. Then it may respond here before it does on a new connection,
        # and new connections would be more load.
        self._connections.pop(connection_id, None)  # it may have been closed as idle meanwhile
        try:
            replacement = await self._connect(connection_id)
        except BaseException:
            await connection.aclose()
            raise
        if not connection.has_received_since(sent_at):
            logger.info("%r does not respond on an idle connection; it is replaced", self)
            await connection.aclose()
            return replacement
        self._connections[connection_id] = connection
        await replacement.aclose()
        return connection

    def _open_connection(self, connection_id: str) -> BrokerConnection | None:
        connection = self._connections.get(connection_id)
        return None if connection is None or connection.is_closed else connection

    async def _connect(self, connection_id: str) -> BrokerConnection:
        close_count, started_at = self._close_count, anyio.current_time()
        try:
            connection = await self._log_in(started_at)
        except RETRIED_ERRORS as error:
            advice = _LOCAL_ADVICE.get(type(error), _CONNECT_ADVICE)
            self._report_failure(None, error, advice, since=started_at)
            self._report_misdirected(error)
            raise
        connection.on_renewal = self._report_renewal
        connection.may_renew = self._may_renew
        self._report_success(None)
        if close_count != self._close_count:
            # `aclose` ran meanwhile and did not know this connection.
            await connection.aclose()
            raise ConnectionLostError(f"{escaped(self.host)}:{self.port}: was closed here")
        self._connections[connection_id] = connection
        if self._stop_closing_idle is None:
            self._stop_closing_idle = OneShotEvent()
            self._tasks.start_soon(self._close_idle, self._stop_closing_idle)
        return connection

    async def _close_idle(self, stop: OneShotEvent) -> None:
        """Close idle connections, until `stop` is set or no connection is left. A firewall may
        forget an idle connection, and then drops its packets without telling either side."""
        limit = self._options.connections_max_idle
        while self._connections:
            now = anyio.current_time()
            next_check_at = now + limit
            for connection_id, connection in tuple(self._connections.items()):
                if connection.is_closed or connection.idle_since + limit <= now:
                    await self.disconnect(connection_id)
                else:
                    next_check_at = min(next_check_at, connection.idle_since + limit)
            if await stop.wait(next_check_at):
                return
        self._stop_closing_idle = None

    async def _log_in(self, now: float) -> BrokerConnection:
        """Open a connection. Raises the last failure if `logins` does not allow an attempt yet."""
        logins = self._logins
        if logins is not None:
            logins.check(self.address, now)
        try:
            connection = await BrokerConnection.connect(
                self.host,
                self.port,
                self._options,
                self._tasks,
                self._throttle,
                self._identity,
                self._names,
            )
        except AuthenticationError as error:
            if logins is not None:
                logins.failed(self.address, error, anyio.current_time())
                if error.is_refusal:
                    self._on_refused()
            raise
        except RETRIED_ERRORS:
            raise
        except KafkaGroupError as error:
            # The source of credentials has failed, or the broker has no SASL, which is an
            # UnsupportedVersionError. Once a login has succeeded this is retried, as an
            # AuthenticationError is.
            if logins is None or not logins.has_worked:
                raise
            is_of_source = not isinstance(error, UnsupportedVersionError)
            failure = AuthenticationError(
                f"{escaped(self.host)}:{self.port}: {error}", is_of_source=is_of_source
            )
            logins.failed(self.address, failure, anyio.current_time())
            raise failure from error
        if logins is not None:
            logins.succeeded(self.address, is_known=self.node_id >= 0)
        return connection

    # ------------------------------------------------------------ requests

    async def request(
        self,
        request: Request[R],
        *,
        connection_id: str = MAIN,
        timeout: float | None = None,
        highest: int | None = None,
        lowest: int = 0,
        overdue: OverdueReport = NO_RESPONSE,
        on_response: Callable[[R], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> R:
        """Send any request in a version from `lowest` to `highest`; return its response, with its
        error codes. `timeout`: seconds from the sending on, without the time to connect and the
        throttle; None for the request timeout of the options. With None, a look-up whose response
        is lost is sent once more, over a new connection; `on_sent` is not for look-ups. `overdue`:
        what to report while there is no response. `on_response` and `on_sent` are those of
        `BrokerConnection.request`.

        Raises: TransportError, RemoteProtocolError, AuthenticationError, UnsupportedVersionError;
        LocalProtocolError when the version cannot express the request; IllegalStateError in another
        process or event loop; another KafkaGroupError of the source of credentials, unless `logins`
        knows of a successful login.
        """
        if timeout is None and isinstance(request, LookUp):
            return await self._look_up(
                request,
                connection_id=connection_id,
                lowest=lowest,
                highest=highest,
                overdue=overdue,
                on_response=on_response,
            )
        connection = await self._ready_connection(
            connection_id, identified=not isinstance(request, _SENT_BEFORE_IDENTIFIED)
        )
        return await self._request_on(
            connection,
            connection_id,
            request,
            timeout,
            highest,
            overdue,
            on_response,
            lowest,
            on_sent,
        )

    async def send_only(
        self,
        request: Request[Any],
        *,
        connection_id: str = MAIN,
        highest: int | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a request that has no response: Produce with acks=0. Raises: as `request`."""
        connection = await self._ready_connection(connection_id)
        await connection.send_only(request, highest=highest, on_sent=on_sent)

    async def attempt(self, request: Request[R], **options: Any) -> R:
        """Send a request as `request` does, with a part of the request timeout, because the caller
        makes another attempt if there is no response. After an attempt that took longer than this
        part, the next one gets the whole timeout: the broker may be slow."""
        self._check_origin()
        usual, began_at = self._options.request_timeout, anyio.current_time()
        part = part_of(usual)
        try:
            response = await self.request(
                request, timeout=usual if self.is_slow else part, **options
            )
        except RequestTimeoutError:
            self.is_slow = True
            raise
        self.is_slow = anyio.current_time() - began_at > part
        return response

    async def _look_up(self, request: Request[R], **options: Any) -> R:
        """Send a look-up, and once more in the time that is left if its response is lost."""
        self._check_origin()
        deadline = anyio.current_time() + self._options.request_timeout
        connection_id, close_count = options["connection_id"], self._close_count
        was_connected = self.is_connected(connection_id)
        await self._connection(connection_id)  # a failure to connect is not repeated
        try:
            return await self.attempt(request, **options)
        except (RequestTimeoutError, ConnectionLostError) as error:
            left = deadline - anyio.current_time()
            # Without `was_connected`, a broker that closes each connection would get twice as many
            # requests.
            is_lost = was_connected or isinstance(error, RequestTimeoutError)
            is_closed = close_count != self._close_count or isinstance(error, MisdirectedError)
            if is_closed or not is_lost or left <= 0:
                raise
            logger.info("%s is sent again: %s", type(request).__name__, error)
        return await self.request(request, timeout=left, **options)

    async def _request_on(
        self,
        connection: BrokerConnection,
        connection_id: str,
        request: Request[R],
        timeout: float | None = None,
        highest: int | None = None,
        overdue: OverdueReport = NO_RESPONSE,
        on_response: Callable[[R], None] | None = None,
        lowest: int = 0,
        on_sent: Callable[[], None] | None = None,
    ) -> R:
        """Send a request on an open connection, and report its outcome."""
        usual = self._options.request_timeout
        if timeout is None:
            timeout = usual
        extra_wait = overdue.extra_wait
        if extra_wait is None:
            extra_wait = max(timeout - usual, 0.0)
        report_overdue = partial(self._report_overdue, connection_id, type(request), overdue)
        try:
            response = await connection.request(
                request,
                timeout=timeout,
                highest=highest,
                lowest=lowest,
                overdue_after=WARN_AFTER + extra_wait,
                on_overdue=report_overdue,
                on_response=on_response,
                on_sent=on_sent,
            )
        except RequestTimeoutError as error:
            sent_at = anyio.current_time() - timeout
            self._last_unanswered_at = max(self._last_unanswered_at, sent_at)
            report_overdue(sent_at, error)
            raise
        except ConnectionLostError as error:
            self._report_failure(connection_id, error, _CONNECT_ADVICE)
            self._report_misdirected(error)
            raise
        except (RemoteProtocolError, AuthenticationError) as error:
            self._report_failure(connection_id, error, _PROTOCOL_ADVICE)
            raise
        # Not for the identity request: it may succeed on each new connection while all others fail.
        if request is not IDENTITY_REQUEST:
            self._report_success(connection_id)
        return response

    def is_ready(self, connection_id: str = MAIN) -> bool:
        """Return whether a request would be sent at once."""
        connection = self._open_connection(connection_id)
        return (
            connection is not None
            and connection.is_identified
            and connection_id not in self._connecting
            and not self._needs_care(connection)
            and not self._throttle.seconds_left
        )

    async def ready(self, connection_id: str = MAIN) -> None:
        """Wait until a request would be sent at once. Raises as `request`."""
        await self._ready_connection(connection_id)

    async def _ready_connection(
        self, connection_id: str, *, identified: bool = True
    ) -> BrokerConnection:
        """Return an open connection, once the broker's throttle is over. `identified`: also wait
        until the broker has named its cluster."""
        # A loop: another connection's response may extend the throttle meanwhile.
        while True:
            connection = await self._connection(connection_id)
            if self._throttle.seconds_left:
                self._throttled_count += 1
                try:
                    await self._throttle.wait()
                finally:
                    self._throttled_count -= 1
            elif identified and not connection.is_identified:
                await self._request_on(connection, connection_id, IDENTITY_REQUEST)
            else:
                return connection

    # ------------------------------------------------------------ reports

    def _report_overdue(
        self,
        connection_id: str,
        request_type: type[Request[Any]],
        overdue: OverdueReport,
        sent_at: float,
        error: RequestTimeoutError | None = None,
    ) -> None:
        """Report that a request has no response yet. `error`: that of the caller; None while the
        request is in flight."""
        error = error or RequestTimeoutError(f"no response to {request_type.__name__}")
        self._report_failure(
            connection_id,
            error,
            overdue.advice,
            since=sent_at,
            has_own_finding=overdue.has_own_finding,
        )

    def _report_success(self, connection_id: str | None) -> None:
        """Report a response on a connection; None: a connection was opened."""
        if self._troubles is not None and self._troubles.ongoing:
            self._troubles.succeeded((self.host, self.port, connection_id), anyio.current_time())

    def _may_renew(self) -> bool:
        """Whether a connection may renew its SASL session now."""
        return self._logins is None or self._logins.may_ask_source(anyio.current_time())

    def _report_renewal(self, error: KafkaGroupError | None) -> None:
        """Report an attempt to renew a SASL session. If it failed, the old session continues."""
        if error is None:
            self._report_success(None)
            if self._logins is not None:
                self._logins.succeeded(self.address, is_known=self.node_id >= 0)
            return
        self._report_failure(None, error, _AUTHENTICATION_ADVICE)
        if self._logins is None or not isinstance(error, AuthenticationError):
            return
        if error.is_of_source:
            self._logins.failed(self.address, error, anyio.current_time())

    def _report_misdirected(self, error: Exception) -> None:
        if isinstance(error, MisdirectedError):
            self._on_misdirected(error)

    def _report_failure(
        self,
        connection_id: str | None,
        error: KafkaGroupError,
        advice: str,
        *,
        since: float | None = None,
        has_own_finding: bool = False,
    ) -> None:
        """Report a failure on a connection; None: a connection was not opened, or its session not
        renewed. `since`: when the failed attempt began, on the loop's clock; None: now."""
        if self._troubles is None:
            return
        address = f"{escaped(self.host)}:{self.port}"
        name = address if self.node_id < 0 else f"broker {self.node_id} at {address}"
        is_foreign = isinstance(error, ForeignClusterError)
        if isinstance(error, AuthenticationError):
            advice = _AUTHENTICATION_ADVICE
        problem = Problem(
            subject=name,
            cause=str(error).removeprefix(f"{address}: "),
            advice=_FOREIGN_CLUSTER_ADVICE if is_foreign else advice,
            has_own_finding=has_own_finding,
            is_foreign_cluster=is_foreign,
        )
        key = (self.host, self.port, connection_id)
        self._troubles.failed(key, anyio.current_time(), problem, since=since)

    # ------------------------------------------------------------ records

    async def fetch_messages(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait: float = 0.5,
        min_bytes: int = 1,
        max_bytes: int = 52_428_800,
        partition_max_bytes: int | Mapping[TopicPartition, int] = 1_048_576,
        connection_id: str = "fetch",
        timeout: float | None = None,
    ) -> FetchResponse:
        """Fetch records from each partition's position on. The broker waits up to `max_wait`
        seconds for `min_bytes` bytes. `partition_max_bytes` is one limit for all partitions, or
        one for each. `timeout`: seconds until the response; None: `max_wait` plus the request
        timeout."""
        limits = partition_max_bytes
        if isinstance(limits, int):
            limits = dict.fromkeys(positions, limits)
        request = FetchRequest(
            max_wait_ms=round(max_wait * 1000),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=tuple(
                FetchTopic(
                    topic=topic,
                    partitions=tuple(
                        FetchPartition(
                            partition=partition,
                            fetch_offset=positions[TopicPartition(topic, partition)],
                            partition_max_bytes=limits[TopicPartition(topic, partition)],
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in by_topic(positions).items()
            ),
        )
        # From version 13 requests name topics by id; this caller has names.
        return await self.request(
            request,
            connection_id=connection_id,
            timeout=self._options.request_timeout + max_wait if timeout is None else timeout,
            highest=12,
        )

    async def produce_messages(
        self,
        batches: Mapping[TopicPartition, bytes],
        *,
        acks: int = -1,
        timeout: float | None = None,
    ) -> ProduceResponse | None:
        """Append encoded record batches. Return None with acks=0, which has no response. `timeout`:
        seconds that the broker may take; None for the request timeout."""
        # Imported here: most clients only read.
        from kafkagroup.wire.messages.produce import (
            PartitionProduceData,
            ProduceRequest,
            TopicProduceData,
        )

        if timeout is None:
            timeout = self._options.request_timeout
        request = ProduceRequest(
            acks=acks,
            timeout_ms=round(timeout * 1000),
            topic_data=tuple(
                TopicProduceData(
                    name=topic,
                    partition_data=tuple(
                        PartitionProduceData(
                            index=partition, records=batches[TopicPartition(topic, partition)]
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in by_topic(batches).items()
            ),
        )
        # From version 13 requests name topics by id; this caller has names.
        if acks == 0:
            await self.send_only(request, highest=12)
            return None
        return await self.request(request, timeout=timeout + _PRODUCE_MARGIN, highest=12)

    async def request_offset_limits(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation_level: int = 0,
        leader_epochs: Mapping[TopicPartition, int] = _NO_EPOCHS,
    ) -> ListOffsetsResponse:
        """Request the offset of the first record at or after each timestamp (ms), by ListOffsets;
        -2: the start of the log, -1: its end, with `isolation_level` 1 the last stable offset. A
        broker refuses a partition if it knows another leader epoch than the one in
        `leader_epochs`."""
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=tuple(
                ListOffsetsTopic(
                    name=topic,
                    partitions=tuple(
                        ListOffsetsPartition(
                            partition_index=tp.partition,
                            current_leader_epoch=leader_epochs.get(tp, -1),
                            timestamp=timestamps[tp],
                        )
                        for tp in (TopicPartition(topic, p) for p in partitions)
                    ),
                )
                for topic, partitions in by_topic(timestamps).items()
            ),
            timeout_ms=round(self._options.request_timeout * 1000),
        )
        return await self.request(request)
