"""The coordinators of groups and of transactional ids: only this module looks them up, caches and
invalidates them.

All requests of a client to a coordinator share its look-up. If one of them notices that the broker
does not respond, or is no longer the coordinator, it invalidates the coordinator for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum

from kafkagroup._values import define, field
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import BrokerError, ErrorCode, KafkaGroupError, broker_error
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.options import Address
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse

__all__ = ["CoordinatorType", "Coordinators", "RequestCoordinator"]

_MAX_KNOWN = 10_000
"""The limit of coordinators that are kept: a client may describe any number of groups."""


class CoordinatorType(IntEnum):
    """What a coordinator coordinates, as FindCoordinator numbers it."""

    GROUP = 0
    """The members and offsets of a group; the key is its id."""
    TRANSACTION = 1
    """The transactions of a producer; the key is its transactional id."""


RequestCoordinator = Callable[
    [FindCoordinatorRequest], Awaitable[tuple[BrokerClient, FindCoordinatorResponse]]
]
"""Sends the request to any broker; returns the broker that responded, and its response."""


@define(eq=False)
class _LookUp:
    """A look-up in flight. It ends without node and error if its caller was cancelled."""

    done: OneShotEvent = field(factory=OneShotEvent)
    node: Node | None = None
    error: KafkaGroupError | None = None


class Coordinators:
    """The coordinators that one client uses. Without `kind` the key is a group id."""

    def __init__(self, request: RequestCoordinator) -> None:
        self.unknown_to: Address | None = None
        """The address of the last broker that was asked for a coordinator, if it named none: others
        are asked before it."""
        self._request = request
        self._known: dict[tuple[CoordinatorType, str], Node] = {}
        self._in_flight: dict[tuple[CoordinatorType, str], _LookUp] = {}
        self._watchers: dict[str, Callable[[Node | None], None]] = {}

    def known(self, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> Node | None:
        """Return the coordinator if it is known."""
        return self._known.get((kind, key))

    async def find(self, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> Node:
        """Return the coordinator, looked up unless it is known. Raises: what `look_up` raises."""
        return self.known(key, kind) or await self.look_up(key, kind)

    async def look_up(self, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> Node:
        """Look up the coordinator, even if one is known. Callers that wait while a look-up is in
        flight share its outcome.

        Raises: BrokerError, often a retriable one; what `Cluster.request_any` raises.
        """
        wanted = kind, key
        while (other := self._in_flight.get(wanted)) is not None:
            await other.done.wait()
            if other.error is not None:
                raise other.error
            if other.node is not None:
                return other.node
        look_up = self._in_flight[wanted] = _LookUp()
        try:
            look_up.node = node = await self._look_up(key, kind)
        except KafkaGroupError as error:
            look_up.error = error
            raise
        finally:
            del self._in_flight[wanted]
            look_up.done.set()
        self.store(node, key, kind)
        if kind is CoordinatorType.GROUP:
            self._notify(key, node)
        return node

    async def _look_up(self, key: str, kind: CoordinatorType) -> Node:
        # Of version 4 on; `wire.shapes` converts it for earlier ones.
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
        broker, response = await self._request(request)
        found = next((c for c in response.coordinators if c.key == key), None)
        is_named = found is not None and not found.error_code
        self.unknown_to = None if is_named else broker.address
        if found is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise BrokerError(code, "the response names no coordinator")
        if found.error_code:
            named = "group" if kind is CoordinatorType.GROUP else "transactional_id"
            raise broker_error(
                found.error_code, found.error_message, operation="DESCRIBE", **{named: key}
            )
        return Node(found.node_id, found.host, found.port)

    def store(self, node: Node, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> None:
        """Note the coordinator that was found. Watchers are not called. Also called for what the
        thread of a member has found."""
        self._known.pop((kind, key), None)  # put at the end: those found last are kept
        if len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[kind, key] = node

    def invalidate(
        self,
        key: str,
        kind: CoordinatorType = CoordinatorType.GROUP,
        *,
        node: Node | None = None,
    ) -> None:
        """Forget a coordinator: it is looked up again before the next request to it. `node`: the
        broker that is not the coordinator any more; nothing changes if another one has been found
        meanwhile. None: forget the coordinator in any case."""
        if node in (None, self.known(key, kind)):
            self._known.pop((kind, key), None)

    def forget(self) -> None:
        """Invalidate all coordinators: the client bootstraps again, or adopts another cluster."""
        self._known.clear()
        for group in self._watchers:
            self._notify(group, None)

    def watch(self, group: str, on_found: Callable[[Node | None], None]) -> None:
        """Call `on_found` with the group's coordinator after each look-up, and with None when all
        coordinators are forgotten. A group has one watcher, as a client has one member in it: a
        later call replaces the earlier function."""
        self._watchers[group] = on_found

    def _notify(self, group: str, node: Node | None) -> None:
        if (on_found := self._watchers.get(group)) is not None:
            on_found(node)
