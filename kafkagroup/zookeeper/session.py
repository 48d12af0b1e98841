"""One session with ZooKeeper: executes the requests of a member through kazoo.

Only this module sends requests with kazoo; `access.py` has the arguments of its client. kazoo runs
in threads of its own, and its results are posted to the event loop.

A claim or release is a transaction that fails if the member's own node is missing: when a session
expires, kazoo begins a new one by itself, which must not execute the requests of the old one.
What is claimed is a unit: a partition, or a generation (`member/zookeeper_nodes.py`).

Three methods use private names of kazoo and of its connection (`_connection`), as there are no
public ones. All supported releases, 2.10 and later, have these names:

- `_record_errors` wraps `_connect`, to tell why kazoo does not connect.
- `_wrap_invoke` wraps `_invoke`, whose result has the timeout that the server has granted: the
  ownership lease is computed from this. The wrapper also limits each attempt to connect. Otherwise
  the session would expire while kazoo waits for a server that does not respond.
- `_on_state_change` reads `_state`. A listener gets the same state, LOST, when the session has
  expired and when the credentials were refused; only after an expiry may the member begin another
  session.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
)
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from kafkagroup._text import escaped
from kafkagroup.concurrency.clock import lease_clock
from kafkagroup.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionLostError,
    JoinFailedError,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
    TlsError,
)
from kafkagroup.member.zookeeper_nodes import MemberNode, Paths, generation_claim, generation_of
from kafkagroup.member.zookeeper_vocabulary import (
    Claim,
    Claimed,
    Confirm,
    Confirmed,
    MembersChanged,
    MembersRead,
    ReadMembers,
    Register,
    Registered,
    Release,
    Released,
    RequestFailed,
    SessionClosed,
    SessionEstablished,
    SessionExpired,
    SessionFailed,
    ZooKeeperEvent,
)
from kafkagroup.transport.threads import Post
from kafkagroup.zookeeper.needs import kazoo_needed

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import (
        AuthFailedError,
        InvalidACLError,
        KazooException,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
    )
    from kazoo.protocol.serialization import SASL, Auth
    from kazoo.protocol.serialization import Connect as ConnectRequest
    from kazoo.protocol.states import KeeperState

    from kafkagroup.zookeeper.access import Access
except ImportError as error:
    raise ImportError(kazoo_needed()) from error

__all__ = ["Access", "Session", "SessionRequest"]

logger = logging.getLogger(__name__)

SessionRequest = Register | ReadMembers | Confirm | Claim | Release
"""The effects that a session executes."""

_RETRY = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0}
"""How kazoo retries to connect: without limit, as the member ends a session by its own clock."""

_SERVERS_PER_TIMEOUT = 3
"""Within one session timeout, the client can try at least so many servers that do not respond; all
servers, if there are more."""

_NAMED_MEMBERS = 3
"""The maximum number of members of other libraries that a message names for each path."""

_kazoo_logger = logger.getChild("kazoo")
# kazoo logs each request, and requests for authentication have the password.
_kazoo_logger.addFilter(
    lambda record: not any(isinstance(arg, Auth | SASL) for arg in record.args or ())
)


class _NamedLogger(logging.LoggerAdapter[logging.Logger]):
    """kazoo's logger, with the client's name before each of its messages."""

    def __init__(self, kazoo_logger: logging.Logger, client: str) -> None:
        super().__init__(kazoo_logger)
        self._prefix = client.replace("%", "%%")

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._prefix}: {msg}", kwargs


_REFUSED = (AuthFailedError, NoAuthError, InvalidACLError)
"""kazoo's errors where ZooKeeper refuses the credentials or the ACL."""


class Session:
    """A session, from the first attempt to connect until it is closed or has expired."""

    def __init__(
        self,
        number: int,
        hosts: str,
        timeout: float,
        paths: Paths,
        name: str,
        *,
        client: str,
        access: Access,
        exclusive_generations: bool,
        post: Post,
        on_event: Callable[[ZooKeeperEvent], None],
    ) -> None:
        """`number`: that of the session, as in `Connect`. `name`: the member's, which its claims
        contain. `client`: how log lines name the client. `exclusive_generations`: whether units are
        generations. `post` is called in kazoo's threads, and `on_event` in the event loop."""
        self.connect_error = ""
        """Why the last attempt to connect failed; "" if none has. Set in kazoo's thread."""
        self._number = number
        self._client_name = client
        self._paths = paths
        self._name = name
        self._exclusive_generations = exclusive_generations
        self._post = post
        self._on_event = on_event
        self._now = lease_clock().now
        self._session_id: int | None = None
        """ZooKeeper's id of the session; None before it has begun."""
        self._member_path: str | None = None
        """Path of the member's node."""
        self._member_nodes: dict[str, MemberNode] = {}
        """Name -> the member's node. A node is read once, as its content never changes."""
        self._is_closing = False
        self._in_flight: set[anyio.CancelScope] = set()
        """The scopes of the requests in flight."""
        self._client = KazooClient(
            hosts,
            timeout=timeout,
            connection_retry=_RETRY,
            logger=_NamedLogger(_kazoo_logger, client),
            **access.options(self._on_tls_error),
        )
        self._timeout = timeout
        """The session's timeout in seconds: the requested one until a server grants one. Set in
        kazoo's thread."""
        self._record_errors()
        self._wrap_invoke(timeout / max(len(self._client.hosts), _SERVERS_PER_TIMEOUT))

    def _record_errors(self) -> None:
        """Wrap kazoo's connect method, to store its error."""
        connection = self._client._connection
        connect = connection._connect

        def connect_and_record(*args: Any) -> tuple[float, float]:
            try:
                timeouts: tuple[float, float] = connect(*args)
            except Exception as error:
                why = str(error) or type(error).__name__
                self.connect_error = escaped(f"{args[0]}:{args[-1]}: {why}")
                raise
            return timeouts

        connection._connect = connect_and_record

    def _wrap_invoke(self, seconds: float) -> None:
        """Store the granted timeout, and limit how long kazoo waits for a server to accept a
        connection, and to begin the session.

        The timeout is stored as soon as the server responds: kazoo calls `_on_state_change` next,
        and returns from `_connect` after that.

        By itself kazoo waits for a whole session timeout until the server accepts, and for the
        timeout divided by the number of servers until the session begins. The session would expire
        meanwhile: a host that is down may not refuse the connection, and a server that is starting
        may accept it and never answer (ZooKeeper 3.9.3).
        """
        connection, handler = self._client._connection, self._client.handler
        invoke, create_connection = connection._invoke, handler.create_connection

        def limited_invoke(timeout: float, request: object, *args: Any, **options: Any) -> Any:
            response = invoke(min(timeout, seconds), request, *args, **options)
            if isinstance(request, ConnectRequest):
                granted_ms = response[0].time_out
                if granted_ms > 0:  # 0: the session has expired
                    self._timeout = granted_ms / 1000
            return response

        def limited_create(*, timeout: float, **options: Any) -> Any:
            return create_connection(timeout=min(timeout, seconds), **options)

        connection._invoke = limited_invoke
        handler.create_connection = limited_create

    # ------------------------------------------------------------ opening and closing

    def open(self) -> None:
        """Begin the session. Returns at once; events report the outcome."""
        self._client.add_listener(self._on_state_change)
        self._client.start_async()

    def _on_state_change(self, _state: object) -> None:
        """Post kazoo's new state as an event. Runs in kazoo's thread, before kazoo continues."""
        match self._client._state:
            case KeeperState.CONNECTED:
                identity = self._client.client_id
                assert identity is not None
                self._to_loop(partial(self._on_session, identity[0], self._timeout))
            case KeeperState.EXPIRED_SESSION:
                self._to_loop(partial(self._emit, SessionExpired))
            case KeeperState.AUTH_FAILED:
                error = AuthenticationError("ZooKeeper refuses the credentials", is_refusal=True)
                self._to_loop(partial(self._emit, SessionFailed, error=error))

    def _on_tls_error(self, error: TlsError) -> None:
        """Fail the member's first session, if it has not begun. Later, kazoo connects again: the
        certificate of a server may be wrong for a moment. Runs in kazoo's thread."""
        if self._session_id is None and self._number == 1:
            self._to_loop(partial(self._emit, SessionFailed, error=error))

    def _on_session(self, session_id: int, timeout: float) -> None:
        if self._session_id not in (None, session_id):
            self._emit(SessionExpired)  # kazoo has begun a new session by itself
            return
        self._session_id = session_id
        self._emit(SessionEstablished, timeout=timeout)

    def _emit(self, event_type: Callable[..., ZooKeeperEvent], **fields: Any) -> None:
        if not self._is_closing:
            self._on_event(event_type(now=self._now(), session=self._number, **fields))

    def _to_loop(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the membership has ended
            self._post(call)

    def close(self) -> None:
        """Start to end the session, which deletes its nodes if ZooKeeper can be reached."""
        if self._is_closing:
            return
        self._is_closing = True
        for scope in self._in_flight:
            scope.cancel()
        # In a daemon thread: kazoo waits until an attempt to connect has ended.
        threading.Thread(target=self._stop, name="kafkagroup zookeeper close", daemon=True).start()

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            logger.debug("%s: closing a session: %r", self._client_name, error)
        self._to_loop(self._on_closed)

    def _on_closed(self) -> None:
        # Not by `_emit`, which emits nothing after `close`.
        self._on_event(SessionClosed(now=self._now(), session=self._number))

    # ------------------------------------------------------------ requests

    async def execute(self, request: SessionRequest) -> None:
        """Execute a request and emit its result as an event, unless the session is closed first."""
        event: ZooKeeperEvent
        with anyio.CancelScope() as scope:
            self._in_flight.add(scope)
            try:
                # kazoo may lose a request in a reconnection. Without a timeout the member would
                # wait forever, as its other requests keep the session alive.
                with anyio.fail_after(self._timeout):
                    event = await self._perform(request)
            except TimeoutError:
                error = RequestTimeoutError(f"ZooKeeper did not answer in {self._timeout:g} s")
                event = RequestFailed(now=self._now(), token=request.token, error=error)
            except KafkaGroupError as error:
                what = type(request).__name__
                logger.debug("%s: %s: %s", self._client_name, what, error)
                event = RequestFailed(now=self._now(), token=request.token, error=error)
            finally:
                self._in_flight.discard(scope)
            self._on_event(event)

    async def _perform(self, request: SessionRequest) -> ZooKeeperEvent:
        """Perform a request; return the event that reports its success. Raises: KafkaGroupError."""
        token = request.token
        match request:
            case Register():
                await self._register(request)
                return Registered(now=self._now(), token=token)
            case ReadMembers():
                version, nodes = await self._read()
                return MembersRead(now=self._now(), token=token, version=version, nodes=nodes)
            case Confirm():
                version = await self._confirm()
                return Confirmed(now=self._now(), token=token, version=version)
            case Claim(units=units):
                claim = self._claim_generation if self._exclusive_generations else self._claim
                granted = [unit for unit, done in await _for_each(units, claim) if done]
                return Claimed(now=self._now(), token=token, granted=frozenset(granted))
            case Release(units=units):
                await _for_each(units, self._release)
                return Released(now=self._now(), token=token)

    async def _register(self, request: Register) -> None:
        # At the start only: the driver reports foreign members that appear later.
        if self._number == 1 and request.replaces is None:
            await self._refuse_foreign_members()
        for path in (self._paths.members, self._paths.claims):
            await self._wait(self._client.ensure_path_async(path))
        path = self._paths.member(request.member_id)
        if request.replaces is not None:
            # In one transaction: between two requests, the list would lack this member.
            old = self._paths.member(request.replaces)
            transaction = self._client.transaction()
            transaction.delete(old)
            transaction.create(path, request.data, ephemeral=True)
            error = await self._commit(transaction)
            if error is not None and not await self._sync_and_check_owner(path):
                # Usually the old node was deleted by an operator. If it still exists, it does not
                # conflict with the new one.
                await self._create(path, request.data)
        else:
            await self._create(path, request.data)
        self._member_path = path

    async def _refuse_foreign_members(self) -> None:
        if foreign := await self._foreign_members():
            raise JoinFailedError(
                f"group {self._paths.group_id!r} has members of another library in ZooKeeper:"
                f" {foreign}; both libraries would process every record. Stop them, wait until"
                " their nodes are gone, then start this member"
            )

    async def foreign_members(self) -> str | None:
        """Return the text that names members of other libraries in the group: "" if there are none,
        None if they cannot be read now."""
        with anyio.move_on_after(self._timeout) as scope:
            self._in_flight.add(scope)
            try:
                return await self._foreign_members()
            except KafkaGroupError as error:
                what = "reading the members of other libraries"
                logger.debug("%s: %s: %s", self._client_name, what, error)
            finally:
                self._in_flight.discard(scope)
        return None

    async def _foreign_members(self) -> str:
        found: list[str] = []
        for parent in self._paths.foreign:
            try:
                names = await self._wait(self._client.get_children_async(parent))
            except _Missing:
                continue
            of_path: list[str] = []
            for name in sorted(names):
                if len(of_path) == _NAMED_MEMBERS:
                    break
                path = f"{parent}/{name}"
                try:
                    data, _ = await self._wait(self._client.get_async(path))
                except _Missing:
                    continue  # this one has left since; the others may be alive
                owner = escaped(data.decode("utf-8", "replace")) if data else ""
                of_path.append(path + (f" of {owner}" if owner else ""))
            found += of_path
        return ", ".join(found)

    async def _create(self, path: str, data: bytes) -> None:
        try:
            await self._wait(self._client.create_async(path, data, ephemeral=True))
        except _Exists:
            if not await self._sync_and_check_owner(path):
                raise RemoteProtocolError(f"{path} belongs to another session") from None

    async def _read(self) -> tuple[int, tuple[MemberNode, ...]]:
        """Return the version of the list of members, and the members' nodes; watch for the next
        change of the list."""
        while True:
            names, stat = await self._wait(
                self._client.get_children_async(
                    self._paths.members, watch=self._on_members_changed, include_data=True
                )
            )
            new = [name for name in names if name not in self._member_nodes]
            found = dict(await _for_each(new, self._read_node))
            self._member_nodes = {
                n: self._member_nodes[n] for n in names if n in self._member_nodes
            }
            self._member_nodes |= {name: node for name, node in found.items() if node is not None}
            if len(self._member_nodes) == len(names):
                return stat.cversion, tuple(self._member_nodes[name] for name in sorted(names))
            # A node was deleted since the list was read: read again, for a consistent list.

    async def _read_node(self, name: str) -> MemberNode | None:
        try:
            data, stat = await self._wait(self._client.get_async(self._paths.member(name)))
        except _Missing:
            return None
        return MemberNode(name, stat.czxid, data)

    def _on_members_changed(self, _event: object) -> None:
        self._to_loop(partial(self._emit, MembersChanged))

    async def _confirm(self) -> int:
        """Confirm the session; return the version of the list of members."""
        # The leader responds to a sync only for a session that it has not ended. A follower that
        # has lost the leader would still respond to a read alone.
        sync = self._client.sync_async(self._paths.members)
        stat = self._client.exists_async(self._paths.members)
        await self._wait(sync)
        found = await self._wait(stat)
        if found is None:
            raise ConnectionLostError(f"{self._paths.members} does not exist")
        return int(found.cversion)

    async def _claim(self, unit: str) -> bool:
        path = self._claim_path(unit)
        error = await self._commit(self._claim_transaction(path))
        if error is None:
            return True
        if isinstance(error, NodeExistsError):
            # True if this session has claimed it before the connection broke.
            return await self._sync_and_check_owner(path)
        raise ConnectionLostError(f"claiming {unit}: {error!r}")

    async def _claim_generation(self, generation: str) -> bool:
        """Claim a generation; return False if a member still claims another one.

        Each member writes its claim before it reads all claims, so of two members with different
        generations at least one sees the other's claim.
        """
        path = self._claim_path(generation)
        error = await self._commit(self._claim_transaction(path))
        if error is not None and not isinstance(error, NodeExistsError):
            raise ConnectionLostError(f"claiming generation {generation}: {error!r}")
        claims = await self._wait(self._client.get_children_async(self._paths.claims))
        if all(generation_of(claim) == generation for claim in claims):
            return True
        await self._release(generation)
        return False

    def _claim_path(self, unit: str) -> str:
        if self._exclusive_generations:
            unit = generation_claim(unit, self._name)
        return self._paths.claim(unit)

    def _claim_transaction(self, path: str) -> Any:
        transaction = self._member_transaction()
        transaction.create(path, self._name.encode("utf-8"), ephemeral=True)
        return transaction

    async def _release(self, unit: str) -> None:
        path = self._claim_path(unit)
        if not await self._sync_and_check_owner(path):
            return
        transaction = self._member_transaction()
        transaction.delete(path)
        error = await self._commit(transaction)
        if error is None:
            return
        # The missing node may be the claim, which is released then, or the member's own node, which
        # an operator has deleted: the claim exists until the member has registered again.
        if not isinstance(error, NoNodeError) or await self._sync_and_check_owner(path):
            raise ConnectionLostError(f"releasing {unit}: {error!r}")

    def _member_transaction(self) -> Any:
        """Return a transaction that fails if the member's node is missing."""
        assert self._member_path is not None
        transaction = self._client.transaction()
        transaction.check(self._member_path, -1)  # -1: the node may have any version
        return transaction

    async def holds(self, units: Iterable[str]) -> Mapping[str, bool]:
        """Return unit -> whether this session has claimed it; {} if the session closes meanwhile.

        Raises: KafkaGroupError if the claims cannot be read.
        """
        held: dict[str, bool] = {}
        with anyio.CancelScope() as scope:
            self._in_flight.add(scope)
            try:
                await self._wait(self._client.sync_async(self._paths.claims))
                found = await _for_each(
                    tuple(units), lambda unit: self._owns_node(self._claim_path(unit))
                )
                held = dict(found)
            finally:
                self._in_flight.discard(scope)
        return held

    async def _sync_and_check_owner(self, path: str) -> bool:
        """Return whether a node exists and is of this session, by the latest state."""
        # If the response to a claim was lost, a server that lags behind may not have the claim yet.
        # Without the sync, the member would not know of a claim that lasts as long as the session.
        await self._wait(self._client.sync_async(path))
        return await self._owns_node(path)

    async def _owns_node(self, path: str) -> bool:
        stat = await self._wait(self._client.exists_async(path))
        return stat is not None and stat.ephemeralOwner == self._session_id

    # ------------------------------------------------------------ kazoo's results

    async def _commit(self, transaction: Any) -> Exception | None:
        """Commit a transaction. Return None if it was executed; if not, the error of the operation
        that failed, for the caller to judge.

        Raises: AuthenticationError, ConfigurationError if ZooKeeper refuses the credentials or the
        ACL; ConnectionLostError if the transaction may have been executed.
        """
        results = await self._wait(transaction.commit_async())
        errors = [result for result in results if isinstance(result, Exception)]
        # Operations before the failed one report "rolled back", and those after it "not reached".
        causes = [e for e in errors if isinstance(e, (NodeExistsError, NoNodeError, *_REFUSED))]
        for error in causes:
            if isinstance(error, _REFUSED):
                raise _translate(error)
        return (causes or errors or [None])[0]

    async def _wait(self, pending: Any) -> Any:
        """Wait for a result of kazoo, and return it. Raises: what `_translate` returns for kazoo's
        error, usually a KafkaGroupError."""
        done = anyio.Event()
        pending.rawlink(lambda _: self._to_loop(done.set))
        await done.wait()
        try:
            return pending.get(block=False)
        except Exception as error:
            raise _translate(error) from error


# A caller that expects one of these catches it. Else the nodes have changed since the member read
# them, and the member repeats the request as after a lost connection: so both are
# ConnectionLostErrors.
class _Exists(ConnectionLostError):
    """The node exists already."""


class _Missing(ConnectionLostError):
    """The node does not exist."""


def _translate(error: Exception) -> Exception:
    """Return the library's error for one of kazoo's; any other error as it is."""
    text = escaped(f"{type(error).__name__} {error}".strip())
    match error:
        case NodeExistsError():
            return _Exists(text)
        case NoNodeError():
            return _Missing(text)
        case AuthFailedError():
            return AuthenticationError(f"ZooKeeper: {text}", is_refusal=True)
        case NoAuthError() | InvalidACLError():
            return ConfigurationError(
                f"ZooKeeper does not allow it: {text}; the nodes belong to another user, see"
                " username, password and acl of ZooKeeperMembership"
            )
        case KazooException():
            return ConnectionLostError(f"ZooKeeper: {text}")
    return error


async def _for_each(items: Collection[str], function: Callable[[str], Awaitable[Any]]) -> list[Any]:
    """Call the function for all items concurrently; return (item, result) pairs. Raises: the first
    KafkaGroupError, after all calls have ended."""
    results: dict[str, Any] = {}
    errors: list[KafkaGroupError] = []

    async def one(item: str) -> None:
        try:
            results[item] = await function(item)
        except KafkaGroupError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        for item in items:
            tasks.start_soon(one, item)
    if errors:
        raise errors[0]
    return list(results.items())
