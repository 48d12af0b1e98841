"""All brokers of one cluster: its metadata, the client of each broker, and the coordinators.

Only a `Cluster` makes a `BrokerClient` for a node. A request that any broker can answer goes to a
connected broker first, then to the other known brokers, then to the bootstrap addresses: so a
cluster is found again after all its brokers were replaced.

One broker's metadata may be older than what is known (`merging`). If a response contradicts what is
known, the metadata is requested again at once, from another broker if there is one.

Responses of another cluster are errors (`identity`). Once the bootstrap addresses lead to another
cluster (`recovery`), `request_any` raises ClusterChangedError, or the client adopts that cluster
and forgets everything of the earlier one. A client that bootstraps again forgets only its brokers
and coordinators.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import anyio

from kafkagroup._client_name import client_name
from kafkagroup._text import escaped
from kafkagroup._values import evolve
from kafkagroup.errors import (
    RETRIED_ERRORS,
    AuthenticationError,
    BrokerError,
    ClusterChangedError,
    ErrorCode,
    KafkaGroupError,
    NoBrokersAvailableError,
    UnsupportedVersionError,
)
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.coordinators import Coordinators, CoordinatorType
from kafkagroup.transport.identity import (
    ClusterIdentity,
    MisdirectedError,
    RebootstrapRequiredError,
)
from kafkagroup.transport.logins import Logins
from kafkagroup.transport.merging import NOTHING_UNCONFIRMED, Unconfirmed, merge
from kafkagroup.transport.metadata import ClusterMetadata, NamedLeaders, Node
from kafkagroup.transport.names import Names
from kafkagroup.transport.options import Address, ClientOptions
from kafkagroup.transport.recovery import Attempts, Recovery
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.throttle import BrokerThrottle, forget_ended
from kafkagroup.transport.topics_in_use import TopicsInUse
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import ABSENT, COORDINATOR_MOVED
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from kafkagroup.wire.schema import NO_ID, Request

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["Cluster"]

R = TypeVar("R")

logger = logging.getLogger(__name__)

_MAX_MERGED_IN_LOOP = 2_000
"""Responses with more brokers, topics and partitions are merged in a thread: merging this many
takes a few milliseconds."""

_MAX_CANDIDATES = 1_000
"""A request is sent to at most this many known brokers, chosen at random, besides those that have a
client: a response may name 250,000, and to shuffle and sort those takes half a second."""

_MAX_CONFIRMATIONS = 2
"""How many more responses one refresh requests while the last one contradicts what is known.
Callers of `refresh` wait for them; a later refresh requests more."""

_MOVED_AFTER = 10.0
"""Seconds without received bytes after which the client of a broker's earlier address is closed, if
the metadata has the broker at another one. Long polls take at most 5 s, unless `fetch_max_wait_ms`
is larger."""

_NodeAddress = tuple[int, str, int]
"""Node id, host and port."""


class Cluster:
    """The cluster behind some bootstrap addresses. Connections run in `tasks`."""

    def __init__(
        self,
        bootstrap_servers: tuple[Address, ...],
        options: ClientOptions,
        tasks: TaskGroup,
        troubles: Troubles | None = None,
    ) -> None:
        """Lasting failures are reported to `troubles`; with None they are only logged."""
        self.options = options
        self._client_name = options.name or client_name("client", options.client_id)
        self.troubles = Troubles() if troubles is None else troubles
        self.metadata = ClusterMetadata()
        self.topics = TopicsInUse()
        """The topics that a refresh requests."""
        self.requests_all_topics = False
        """Whether a refresh requests all topics."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after a response has changed the metadata."""
        self.on_metadata: Callable[[Collection[str] | None], None] = lambda _: None
        """Called after each metadata response of a refresh, when it has been merged, with the
        topics that the request named; None for all topics."""
        self.identity = ClusterIdentity()
        self.logins = Logins()
        """When to log in again after a broker has refused the credentials."""
        self.bootstrap_servers = bootstrap_servers
        self._tasks = tasks
        self._names = Names()
        self._brokers: dict[_NodeAddress, BrokerClient] = {}
        """One for each address: Metadata and FindCoordinator may name a broker by different ones,
        such as two of its listeners."""
        self._bootstrap: dict[Address, BrokerClient] = {}
        self._throttled_until: dict[Address, float] = {}
        """By address, not in the clients: a throttle remains in force if the broker gets another
        node id, or leaves the metadata and returns, when it has a second client."""
        self._unconfirmed = NOTHING_UNCONFIRMED
        self._described_by: BrokerClient | None = None
        """The broker whose metadata was merged last."""
        self.coordinators = Coordinators(self._request_any)
        self._on_cluster_changed: Callable[[ClusterChangedError], None] = lambda _: None
        self._on_cluster_adopted: Callable[[ClusterChangedError], None] = lambda _: None
        self._recovery = Recovery(options.metadata_recovery_rebootstrap_trigger)
        self._background_refresh: anyio.CancelScope | None = None
        """While a task refreshes the metadata in the background (`refresh_soon`): its scope."""
        self._refreshing = anyio.Lock()
        self._request_number = 0
        """The number of the last metadata request, in the order in which they are sent."""
        self._answered_number = 0
        """The number of the last metadata request that was answered."""

    @property
    def has_unconfirmed_metadata(self) -> bool:
        """Whether the last metadata response contradicts what is known, and no other response has
        confirmed or refuted it yet."""
        return bool(self._unconfirmed)

    @property
    def cluster_change(self) -> ClusterChangedError | None:
        """The error while the bootstrap addresses lead to another cluster; else None."""
        return self._recovery.change

    def watch_identity(
        self,
        *,
        on_changed: Callable[[ClusterChangedError], None],
        on_adopted: Callable[[ClusterChangedError], None],
    ) -> None:
        """Call `on_changed` at most once a minute while the bootstrap addresses lead to another
        cluster; call `on_adopted` when the client adopts the other cluster, before anything is
        requested from it."""
        self._on_cluster_changed, self._on_cluster_adopted = on_changed, on_adopted

    async def refresh(self) -> ClusterMetadata:
        """Request the metadata of the topics in use, or of all topics. Callers that wait while a
        request is in flight share the next one. Raises: what `request_any` raises."""
        # The response to a request that was sent before this call may be too old for the caller.
        wanted = self._request_number + 1
        async with self._refreshing:
            if self._answered_number < wanted:
                await self._request_metadata()
        return self.metadata

    async def refresh_elsewhere(self) -> ClusterMetadata:
        """Refresh the metadata from another broker than the one that responded last, if another one
        responds: the last one may not know a topic or partition yet. Raises: what `request_any`
        raises."""
        async with self._refreshing:
            last = self._described_by
            others = [] if last is None else self._others(last)
            try:
                await self._request_metadata_once(Attempts(), map(self.broker, others))
            except (NoBrokersAvailableError, AuthenticationError):
                await self._request_metadata()
        return self.metadata

    async def _request_metadata(self) -> None:
        """Request the metadata, and request it again at once while a response contradicts what is
        known: from another broker, or from the only one after a pause. With one broker, topics
        that are only reported as absent are not worth the pause."""
        attempts = Attempts()
        broker = await self._request_metadata_once(attempts)
        for _ in range(_MAX_CONFIRMATIONS):
            others = self._others(broker, attempts.unreachable)
            is_contradicted = self._unconfirmed.contradicts(self.metadata)
            if not (is_contradicted or (self._unconfirmed and others)):
                return
            candidates: Iterable[BrokerClient] = map(self.broker, others)
            if not others:
                await anyio.sleep(self.options.retry_backoff_max)
                candidates = (
                    c for c in self._candidates() if c.address not in attempts.unreachable
                )
            try:
                broker = await self._request_metadata_once(attempts, candidates)
            except KafkaGroupError as error:
                logger.info("metadata is not confirmed: %s", error)

    async def _request_metadata_once(
        self, attempts: Attempts, candidates: Iterable[BrokerClient] | None = None
    ) -> BrokerClient:
        """Request and merge the metadata; return the broker that responded. `candidates` as in
        `_request`."""
        self._request_number += 1
        requested = None if self.requests_all_topics else self.topics.current()
        names = None
        if requested is not None:
            names = tuple(MetadataRequestTopic(name=topic) for topic in sorted(requested))
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        # A broker that is still starting lists no brokers.
        broker, response = await self._request(
            request, attempts, candidates, is_usable=lambda r: bool(r.brokers)
        )
        adoption_count = self.identity.adoption_count
        self._answered_number = self._request_number
        self._described_by = broker
        if response.brokers:
            metadata, unconfirmed = await self._merge(response, requested)
            if adoption_count != self.identity.adoption_count:
                # The response was the earlier cluster's.
                return await self._request_metadata_once(Attempts())
            self._unconfirmed = unconfirmed
            await self.replace_metadata(metadata)
            self.on_metadata(requested)
        return broker

    async def _merge(
        self, response: MetadataResponse, requested: Collection[str] | None
    ) -> tuple[ClusterMetadata, Unconfirmed]:
        """Merge a response; return the same object as before if nothing has changed."""
        in_use = self.topics.current()
        size = len(response.brokers) + len(response.topics)
        # The known brokers and topics are compared, too, and may be missing in the response.
        size += len(self.metadata.nodes) + len(self.metadata.topics)
        if size <= _MAX_MERGED_IN_LOOP:  # to count the partitions of many topics takes time, too
            size += sum(len(topic.partitions) for topic in response.topics)
        if size <= _MAX_MERGED_IN_LOOP:
            return _merged(self.metadata, response, self._unconfirmed, requested, in_use)
        while True:
            known = self.metadata
            work = partial(_merged, known, response, self._unconfirmed, requested, in_use)
            merged = await self.options.run_in_thread(work)
            if known is self.metadata:
                return merged
            # Merge again: a fetch response has named a new leader meanwhile.

    async def replace_metadata(self, metadata: ClusterMetadata) -> None:
        """Replace the metadata by newer metadata; close the clients of brokers that have left or
        moved."""
        await self._close_stale_brokers(metadata)
        # Compared by identity: comparing many partitions would block the loop.
        if metadata is not self.metadata:
            self._replace(metadata)

    async def _close_stale_brokers(self, metadata: ClusterMetadata) -> None:
        """Close the clients of brokers that have left or moved. Close those of the bootstrap
        addresses that no request uses: known brokers are tried first from now on."""
        now = anyio.current_time()
        for key, broker in tuple(self._brokers.items()):
            if self._is_stale(broker, metadata, now):
                await self._brokers.pop(key).aclose()
        for address, broker in tuple(self._bootstrap.items()):
            if broker.is_idle:
                await self._bootstrap.pop(address).aclose()
        forget_ended(self._throttled_until)

    def _is_stale(self, broker: BrokerClient, metadata: ClusterMetadata, now: float) -> bool:
        """Whether to close a client. `metadata`: the newer one; `self.metadata` is the earlier."""
        node = metadata.nodes.get(broker.node_id)
        if node is None:
            return True
        if _address(node) == broker.address:
            return False
        before = self.metadata.nodes.get(broker.node_id)
        if before is not None and _address(before) == broker.address:
            # It has moved, or is known by two addresses, of which each may be in use.
            return broker.is_idle or not broker.has_received_since(now - _MOVED_AFTER)
        return not broker.has_connections  # its address is only that of a coordinator

    def apply_leaders(self, named: NamedLeaders) -> None:
        """Apply the new leaders that a fetch response names (KIP-951)."""
        metadata = named.applied_to(self.metadata)
        if metadata is not None:
            self._replace(metadata)

    def _replace(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        self.on_change()

    def broker(self, node: Node) -> BrokerClient:
        """Return the client of a node's broker."""
        key = node.node_id, node.host, node.port
        if (broker := self._brokers.get(key)) is None:
            broker = self._brokers[key] = self._create_client(*key)
        return broker

    def leader(self, tp: TopicPartition) -> BrokerClient:
        """Return the client of a partition's leader, as of the metadata. Raises: BrokerError
        LEADER_NOT_AVAILABLE."""
        node = self.metadata.leader_node(tp)
        if node is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
        return self.broker(node)

    async def request_any(self, request: Request[R]) -> R:
        """Send a request that any broker can answer, to one broker after the other until one does.

        Raises: NoBrokersAvailableError with up to five of the brokers' reasons;
        ClusterChangedError if the bootstrap addresses lead to another cluster; AuthenticationError
        if no broker responds and at least one refuses the credentials, before the first successful
        login already at the first refusal; UnsupportedVersionError if no broker responds and at
        least one is too old.
        """
        _, response = await self._request_any(request)
        return response

    async def _request_any(self, request: Request[R]) -> tuple[BrokerClient, R]:
        """Send a request as `request_any` does; return the broker that responded, and its
        response."""
        return await self._request(request, Attempts())

    async def _request(
        self,
        request: Request[R],
        attempts: Attempts,
        candidates: Iterable[BrokerClient] | None = None,
        *,
        is_usable: Callable[[R], bool] = lambda _: True,
    ) -> tuple[BrokerClient, R]:
        """Send a request to one broker after the other; return the first broker with a usable
        response, and that response. If no response is usable, return the last one. The brokers that
        do not respond are noted in `attempts`. `candidates`: the brokers to ask, None for all.
        Raises: as `request_any`, but ClusterChangedError only if all are asked."""
        unusable: tuple[BrokerClient, R] | None = None
        too_old: UnsupportedVersionError | None = None
        for broker in self._candidates() if candidates is None else candidates:
            try:
                response = await broker.attempt(request)
            except RETRIED_ERRORS as error:
                if broker.node_id >= 0:
                    self._recovery.on_failure(anyio.current_time())
                attempts.failed(broker, error)
                logger.debug("%s: %r did not respond: %s", self._client_name, broker, error)
                if attempts.refusal is not None and not self.logins.has_worked:
                    raise  # most likely the options are wrong: others would refuse them, too
                continue
            except UnsupportedVersionError as error:
                too_old = error
                continue
            self._on_response()
            if is_usable(response):
                return broker, response
            unusable = broker, response
        if unusable is not None:
            return unusable
        if candidates is None:
            now, cluster_id = anyio.current_time(), self.identity.cluster_id
            if (change := self._recovery.survey(now, cluster_id, attempts)) is not None:
                self._follow(change)
                return await self._request(request, Attempts(), is_usable=is_usable)
            if attempts.has_timed_out and not self.metadata.nodes:
                # Nothing else repeats the first request of a client. In the second round a broker
                # that timed out gets the whole request timeout (`BrokerClient.attempt`).
                again = self._candidates()
                return await self._request(request, Attempts(), again, is_usable=is_usable)
            if attempts.refusal is not None:
                self.logins.refused_everywhere(now)
        if too_old is not None:
            raise too_old
        raise attempts.error()

    # ------------------------------------------------------------ another cluster

    def _on_response(self) -> None:
        """Note that a broker of this cluster has responded."""
        self._recovery.on_response()
        self.logins.on_response()
        if self.troubles.ongoing:
            self.troubles.succeeded("cluster", anyio.current_time())

    def _on_refused(self, address: Address) -> None:
        """Suspend logins if no other broker can tell more. Otherwise refresh the metadata: that
        shows whether other brokers accept the credentials that this one has refused, or whether it
        has moved and another cluster listens at its address now."""
        known = chain(self.bootstrap_servers, map(_address, self.metadata.nodes.values()))
        if not self.logins.has_worked or all(other == address for other in known):
            self.logins.refused_everywhere(anyio.current_time())
        else:
            self.refresh_soon()

    def _on_misdirected(self, error: MisdirectedError) -> None:
        """Bootstrap again if a broker requires it. Refresh the metadata: from the other brokers,
        and if none responds, from the bootstrap addresses."""
        is_required = isinstance(error, RebootstrapRequiredError) and self.metadata.nodes
        if is_required and self._recovery.may_rebootstrap(anyio.current_time()):
            self._rebootstrap(str(error))
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Refresh the metadata in the background, until a broker responds or refuses the
        credentials, or an error is not retriable."""
        if self._background_refresh is None:
            self._background_refresh = anyio.CancelScope()
            self._tasks.start_soon(self._refresh_until_answered, self._background_refresh)

    async def _refresh_until_answered(self, scope: anyio.CancelScope) -> None:
        pauses = RetryBackoff(self.options)
        with scope:
            while True:
                try:
                    await self.refresh()
                    break
                except RETRIED_ERRORS as error:
                    logger.info("metadata: %s", error)
                    if isinstance(error, AuthenticationError) and error.is_refusal:
                        break  # `logins` has reported it; the application decides how to continue
                except KafkaGroupError as error:  # not retriable: the next call raises it, too
                    logger.info("metadata: %s", error)
                    break
                await pauses.wait()
        self._background_refresh = None

    def _rebootstrap(self, reason: str) -> None:
        """Forget the known brokers, and close the connections to all addresses: names are resolved
        again. Topics stay known."""
        logger.info("only the bootstrap addresses are asked now: %s", reason)
        self._recovery.on_rebootstrap()
        self._forget_clients()
        self.metadata = evolve(self.metadata, nodes={})
        self._unconfirmed = NOTHING_UNCONFIRMED
        self.coordinators.forget()

    def _follow(self, change: ClusterChangedError) -> None:
        """Adopt the cluster that the bootstrap addresses lead to, if the options allow it. If not,
        report the change and raise it."""
        if not self.options.adopts_cluster_change:
            if self._recovery.report(anyio.current_time(), change, self.troubles):
                self._on_cluster_changed(change)
            raise change
        self._adopt(change)

    def _adopt(self, change: ClusterChangedError) -> None:
        """Forget everything about the earlier cluster, and work with the one that the bootstrap
        addresses lead to."""
        logger.warning(
            "%s leads to cluster %s, and no broker of cluster %s responds: this client goes on with"
            " the other cluster (on_cluster_change='adopt')",
            change.address,
            escaped(change.found),
            escaped(change.expected),
        )
        self._on_cluster_adopted(change)
        self.coordinators.forget()
        self.identity.adopt(change.found)
        self._forget_clients()
        self.metadata, self._unconfirmed = ClusterMetadata(), NOTHING_UNCONFIRMED
        self._recovery.on_response()
        self.refresh_soon()

    def _forget_clients(self) -> None:
        for clients in (self._brokers, self._bootstrap):
            for broker in clients.values():
                self._tasks.start_soon(broker.aclose)
            clients.clear()

    async def describe_topics(self, request: MetadataRequest) -> MetadataResponse:
        """Request metadata without merging it. If a broker does not know a topic, the response of
        another broker counts. Raises: what `request_any` raises."""
        broker, response = await self._request(request, Attempts())
        if not any(topic.error_code in ABSENT for topic in response.topics):
            return response
        try:
            others = map(self.broker, self._others(broker))
            return (await self._request(request, Attempts(), others))[1]
        except (NoBrokersAvailableError, AuthenticationError):
            return response

    async def topic_names(self, topic_ids: Collection[UUID]) -> dict[UUID, str]:
        """Return topic id -> name, for the ids that the metadata or a broker knows. Raises: what
        `request_any` raises."""
        known = self.metadata.topics.items()
        names = {t.topic_id: name for name, t in known if t.topic_id in topic_ids}
        missing = sorted({*topic_ids} - names.keys())
        if not missing:
            return names
        wanted = tuple(MetadataRequestTopic(topic_id=i, name=None) for i in missing)
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        response = await self.describe_topics(request)
        found = {t.topic_id: t.name for t in response.topics if t.name and not t.error_code}
        return names | {i: name for i, name in found.items() if i in topic_ids}

    def topic_ids(self, names: Collection[str]) -> dict[str, UUID]:
        """Return the topics' ids by name, if all are known; else an empty mapping."""
        known = self.metadata.topics  # each refresh updates all known topics: the ids are current
        ids = {name: known[name].topic_id for name in names if name in known}
        return {} if len(ids) < len(names) or NO_ID in ids.values() else ids

    def was_deleted_or_recreated(self, topic: str, topic_id: UUID) -> bool:
        """Return whether a topic was deleted or recreated, as of the metadata; False for a topic
        that is not refreshed. `topic_id`: the topic's id, `NO_ID` if it is unknown."""
        found = self.metadata.topics.get(topic)
        if found is None:
            return self.requests_all_topics
        if found.error_code:
            return found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return NO_ID not in (topic_id, found.topic_id) and topic_id != found.topic_id

    def _candidates(self) -> Iterator[BrokerClient]:
        # Lazy: a response may name a million brokers, and each client is created when it is tried.
        for node in self._known_nodes():
            if self._recovery.is_rebootstrap_due(anyio.current_time()):
                self._rebootstrap("no known broker has responded for a while")
            if node.node_id not in self.metadata.nodes:
                break  # `_rebootstrap` has forgotten the brokers meanwhile
            yield self.broker(node)
        for address in self.bootstrap_servers:
            if address not in self._bootstrap:
                self._bootstrap[address] = self._create_client(-1, *address)
            yield self._bootstrap[address]

    def _others(self, broker: BrokerClient, except_for: Collection[Address] = ()) -> list[Node]:
        """Return the known brokers at other addresses than this one and `except_for`, the connected
        ones first."""
        excluded = {broker.address, *except_for}
        return [n for n in self._known_nodes() if _address(n) not in excluded]

    def _known_nodes(self) -> list[Node]:
        """Return known brokers, as `_MAX_CANDIDATES` limits them: first those whose main connection
        is open, then those with another open connection, then those without one, and last those
        that do not respond or throttle this client; each in random order."""
        nodes = list(self.metadata.nodes.values())
        if len(nodes) > _MAX_CANDIDATES:
            used = [self.metadata.nodes.get(node_id) for node_id, *_ in self._brokers]
            some = random.sample(nodes, _MAX_CANDIDATES)
            nodes = list(dict.fromkeys(n for n in (*used, *some) if n is not None))
        random.shuffle(nodes)
        nodes.sort(key=self._distance)
        # The broker that named no coordinator comes last: it may name none as long as it lags
        # behind.
        nodes.sort(key=lambda node: _address(node) == self.coordinators.unknown_to)
        return nodes

    def _create_client(self, node_id: int, host: str, port: int) -> BrokerClient:
        return BrokerClient(
            node_id,
            host,
            port,
            self._tasks,
            self.options,
            throttle=BrokerThrottle((host, port), self._throttled_until),
            troubles=self.troubles,
            identity=self.identity,
            on_misdirected=self._on_misdirected,
            names=self._names,
            logins=self.logins,
            on_refused=partial(self._on_refused, (host, port)),
        )

    def _distance(self, node: Node) -> int:
        """Return the sort key of a node in `_known_nodes`: 0 if its main connection is open, 1 if
        only another one is, 2 if none is, and 3 if the broker does not respond or throttles this
        client."""
        broker = self._brokers.get((node.node_id, node.host, node.port))
        if broker is None:
            return 2
        if broker.is_unresponsive or broker.throttled_seconds:
            return 3
        return 0 if broker.connected else 1 if broker.is_reached else 2

    @asynccontextmanager
    async def coordinator(
        self, key: str, kind: CoordinatorType = CoordinatorType.GROUP
    ) -> AsyncIterator[BrokerClient]:
        """A context with the client of the coordinator of a group, or of a transactional id. If the
        block raises an error that says that this broker does not respond, or is no longer the
        coordinator, the next call looks the coordinator up again.

        Raises: what `Coordinators.look_up` raises.
        """
        node = await self.coordinators.find(key, kind)
        try:
            yield self.broker(node)
        except (*RETRIED_ERRORS, BrokerError) as error:
            if not isinstance(error, BrokerError) or error.code in COORDINATOR_MOVED:
                self.coordinators.invalidate(key, kind, node=node)
            raise

    async def aclose(self) -> None:
        """Close every connection."""
        if self._background_refresh is not None:
            self._background_refresh.cancel()
        for broker in (*self._brokers.values(), *self._bootstrap.values()):
            await broker.aclose()


def _address(node: Node) -> Address:
    return node.host, node.port


def _merged(
    known: ClusterMetadata,
    response: MetadataResponse,
    unconfirmed: Unconfirmed,
    requested: Collection[str] | None,
    in_use: Collection[str],
) -> tuple[ClusterMetadata, Unconfirmed]:
    """Merge a response as `merge` does; return `known` itself if nothing has changed."""
    merged, unconfirmed = merge(known, response, unconfirmed, requested=requested, in_use=in_use)
    return known if merged == known else merged, unconfirmed
