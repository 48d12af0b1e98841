"""Observers of a run: of the wire, of the brokers' state, and the log of all events."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any
from unittest import mock
from uuid import UUID

import anyio
import attrs

from kafkagroup import TopicPartition
from kafkagroup.assign import cooperative_sticky_assignor, protocol_name, sticky_assignor
from kafkagroup.assign.spec import read_user_data
from kafkagroup.errors import ErrorCode, RemoteProtocolError
from kafkagroup.member.vocabulary import RejoinRequested, Replied, Send
from kafkagroup.runtime.consume import leader as leaders
from kafkagroup.runtime.consume.committer import Committer
from kafkagroup.runtime.member import driver as drivers
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets
from kafkagroup.testing.embedded.broker import Incoming, read_request
from kafkagroup.testing.embedded.cluster import Cluster
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.connection import BrokerConnection
from kafkagroup.wire.codec import decode
from kafkagroup.wire.embedded_protocol import decode_assignment, decode_subscription
from kafkagroup.wire.messages.consumer_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kafkagroup.wire.messages.fetch import FetchRequest, FetchResponse
from kafkagroup.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafkagroup.wire.messages.metadata import (
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchResponse,
    OffsetForLeaderEpochResponse,
)

from .events import (
    Computing,
    Event,
    Formed,
    HeldOff,
    Partitions,
    Rejoining,
    Responded,
    Sent,
    Stored,
    Throttled,
)
from .groups import GroupView
from .loop import PROCESS
from .opinions import FOREIGN_ID
from .worker import TOPIC, decode_share

_STICKY = {protocol_name(a): a for a in (cooperative_sticky_assignor, sticky_assignor)}
"""The assignors that use the partitions that members report as owned."""

_Moment = tuple[float, int]
"""A time, and the number of events recorded before it."""

_COMMIT_ISSUED: ContextVar[_Moment | None] = ContextVar("commit_issued", default=None)
"""When the current task issued the commit that it is sending, perhaps not for the first time."""

_COMMIT_CALLED_AT: ContextVar[float | None] = ContextVar("commit_called_at", default=None)
"""When the call began that sends this commit."""

_FETCH_ISSUED: ContextVar[_Moment] = ContextVar("fetch_issued")
"""When the current task issued the fetch request that it is sending."""

_EXPLICIT: ContextVar[bool] = ContextVar("explicit", default=False)
"""Whether the current task commits offsets that the application gave."""

_SEND: ContextVar[Send | None] = ContextVar("send", default=None)
"""The effect of a membership's step that the current task executes."""

_CONFIRMATIONS = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)

_REFUSED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")

__all__ = ["BrokerWatch", "Log", "WireTap"]


class Log:
    """The events as they happen, and the digest of all bytes on the wire."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.muted: set[str] = set()
        """Killed processes: what their remaining tasks do is not recorded."""
        self.hash = hashlib.blake2b(digest_size=16)
        self.clock: Callable[[], float] = anyio.current_time
        """The clock of all events."""
        self.on_event: Callable[[Event], None] | None = None
        """Called with each event, if set."""

    def now(self) -> tuple[float, int]:
        """Return the current time, and the number of events so far."""
        return self.clock(), len(self.events)

    def record_event(self, kind: Callable[..., Event], **fields: Any) -> None:
        """Add an event with the current time."""
        if fields.get("member") not in self.muted:
            event = kind(time=self.clock(), **fields)
            self.events.append(event)
            if self.on_event is not None:
                self.on_event(event)


@attrs.define(eq=False)
class _Tapped:
    """One connection."""

    requests: dict[int, Incoming] = attrs.field(factory=dict)
    outgoing: bytes = b""
    incoming: bytes = b""
    unreadable: bool = False
    node: int = 0
    issued: dict[int, dict[str, Any]] = attrs.field(factory=dict)
    """Correlation id -> how the request was issued, until it leaves: fields of `Sent`."""
    tokens: dict[int, int] = attrs.field(factory=dict)
    """Correlation id -> the token of a request of the membership, until it is answered."""


class WireTap:
    """Decodes both directions of every connection, with the codecs of the broker's side."""

    def __init__(self, log: Log, topic_name: Callable[[UUID], str], *, shards: int = 0) -> None:
        self._log = log
        self._assigned = decode_share if shards else decode_assignment
        self._topic_name = topic_name
        self._tapped: dict[int, _Tapped] = {}
        self._topics_seen: set[str] = set()
        """The topics that metadata has named."""
        self.acquainted: set[str] = set()
        """The processes that know the cluster's identity."""
        self._arrived: dict[tuple[str | None, int], dict[str, Any]] = {}
        """Process and token -> a response of the membership's that its step has not handled."""
        self._issued: dict[tuple[str | None, int], _Moment] = {}
        """Process and token -> when a step issued a request that has not left."""

    def watch_requests(self, stack: ExitStack) -> None:
        """Record how members issue requests, and which responses their steps use."""
        self._watch_requests(stack)
        self._watch_commits(stack)
        self._watch_steps(stack)

    def _watch_requests(self, stack: ExitStack) -> None:
        """Record when members issue requests, which may wait before they leave: for a connection,
        for the end of a throttle, a commit also for the coordinator or for a second attempt."""
        request_from, send = BrokerClient.request, BrokerConnection._send

        def watched_request(broker: Any, request: Any, **options: Any) -> Awaitable[Any]:
            if isinstance(request, FetchRequest):
                _FETCH_ISSUED.set(self._log.now())
            return request_from(broker, request, **options)

        def watched_send(connection: Any, request: Any, version: int) -> int:
            correlation = send(connection, request, version)
            tapped = self._tapped[connection._stream.number]
            now = self._log.now()
            effect = _SEND.get()
            if isinstance(request, OffsetCommitRequest):
                tapped.issued[correlation] = _how_committed(now)
            elif isinstance(request, FetchRequest):
                _, issued_after = _FETCH_ISSUED.get()
                tapped.issued[correlation] = {"issued_after": issued_after}
            elif effect is not None and effect.request is request:
                tapped.tokens[correlation] = effect.token
                issued_at, issued_after = self._issued.pop((PROCESS.get(), effect.token), now)
                tapped.issued[correlation] = {
                    "waited": now[0] - issued_at,
                    "issued_after": issued_after,
                }
            return correlation

        _patch(stack, BrokerClient, "request", watched_request)
        _patch(stack, BrokerConnection, "_send", watched_send)

    def _watch_commits(self, stack: ExitStack) -> None:
        """Record which call sends a commit, and when that began."""
        explicit, processed, commit = (
            Committer.commit,
            Committer.commit_processed,
            GroupOffsets.commit,
        )

        async def watched_explicit(committer: Committer, *args: Any, **options: Any) -> Any:
            _COMMIT_CALLED_AT.set(self._log.clock())
            _EXPLICIT.set(True)
            try:
                return await explicit(committer, *args, **options)
            finally:
                _EXPLICIT.set(False)

        async def watched_processed(committer: Committer, *args: Any, **options: Any) -> Any:
            _COMMIT_CALLED_AT.set(self._log.clock())
            return await processed(committer, *args, **options)

        async def watched_commit(offsets: GroupOffsets, *args: Any, **options: Any) -> Any:
            _COMMIT_ISSUED.set(self._log.now())
            return await commit(offsets, *args, **options)

        _patch(stack, Committer, "commit", watched_explicit)
        _patch(stack, Committer, "commit_processed", watched_processed)
        _patch(stack, GroupOffsets, "commit", watched_commit)

    def _watch_steps(self, stack: ExitStack) -> None:
        """Record when a step issues a request, when it uses the response, when the client has the
        member rejoin, and from what a leader computes."""
        send, on_step, spec = drivers.Driver._send, drivers.Driver._on_step, leaders._spec

        async def watched_send(driver: drivers.Driver, effect: Send) -> None:
            _SEND.set(effect)
            await send(driver, effect)

        def watched_step(driver: drivers.Driver, before: Any, event: Any, effects: Any) -> None:
            if isinstance(event, RejoinRequested):
                self._log.record_event(Rejoining, member=PROCESS.get())
            if isinstance(event, Replied):
                fields = self._arrived.pop((PROCESS.get(), event.token), None)
                if fields is not None and _is_used(before, event, driver.member):
                    self._log.record_event(Responded, **fields)
            for effect in effects:
                if isinstance(effect, Send):
                    self._issued[PROCESS.get(), effect.token] = self._log.now()
            on_step(driver, before, event, effects)

        def watched_spec(*args: Any) -> Any:
            found = spec(*args)
            partitions = dict(sorted(found.partitions.items()))
            self._log.record_event(Computing, member=PROCESS.get(), partitions=partitions)
            return found

        _patch(stack, leaders, "_spec", watched_spec)
        _patch(stack, drivers.Driver, "_send", watched_send)
        _patch(stack, drivers.Driver, "_on_step", watched_step)

    def connected(self, process: str, connection: int, node: int = 0) -> None:
        self._tapped[connection] = _Tapped(node=node)

    def sent(self, process: str, connection: int, data: bytes) -> None:
        self._log.hash.update(b">%d" % connection + data)
        tapped = self._tapped[connection]
        tapped.outgoing, frames = _split(tapped.outgoing + data)
        for frame in frames:
            incoming = read_request(frame)
            tapped.requests[incoming.correlation_id] = incoming
            self._log.record_event(
                Sent,
                member=process,
                api=_api(incoming),
                connection=connection,
                correlation=incoming.correlation_id,
                node=tapped.node,
                **tapped.issued.pop(incoming.correlation_id, {}),
                **self._request_fields(incoming.request),
            )

    def received(self, process: str, connection: int, data: bytes) -> None:
        self._log.hash.update(b"<%d" % connection + data)
        tapped = self._tapped[connection]
        if tapped.unreadable:
            return
        tapped.incoming, frames = _split(tapped.incoming + data)
        for frame in frames:
            incoming = tapped.requests.pop(int.from_bytes(frame[:4], "big", signed=True), None)
            if incoming is None:
                continue
            cls, version = type(incoming.request).response, incoming.version
            # KIP-511: an ApiVersions response has the old header in every version.
            flexible = version in cls.flexible and cls is not ApiVersionsResponse
            if cls is ApiVersionsResponse and frame[4:6] == _REFUSED:
                version = 0  # an UNSUPPORTED_VERSION response is encoded in version 0
            try:
                response = decode(cls, version, frame, 5 if flexible else 4)
                fields = self._response_fields(response, incoming.request)
            except RemoteProtocolError:
                tapped.unreadable = True  # corrupted: the client must not use the connection
                return
            if isinstance(response, MetadataResponse) and not response.error_code:
                self.acquainted.add(process)
            throttle = getattr(response, "throttle_time_ms", 0) / 1000
            if throttle > 0:
                self._log.record_event(
                    Throttled,
                    member=process,
                    connection=connection,
                    node=tapped.node,
                    seconds=throttle,
                )
            fields |= {
                "member": process,
                "api": _api(incoming),
                "connection": connection,
                "correlation": incoming.correlation_id,
            }
            token = tapped.tokens.pop(incoming.correlation_id, None)
            if token is None:
                self._log.record_event(Responded, **fields)
            else:
                self._arrived[process, token] = fields

    # ------------------------------------------------------------ fields of a request

    def _request_fields(self, request: Any) -> dict[str, Any]:
        match request:
            case FetchRequest():
                offsets = {
                    TopicPartition(t.topic or self._topic_name(t.topic_id), p.partition): (
                        p.fetch_offset
                    )
                    for t in request.topics
                    for p in t.partitions
                }
                return {"offsets": offsets}
            case JoinGroupRequest():
                return {"member_id": request.member_id, "owned": _owned(request)}
            case ConsumerGroupHeartbeatRequest():
                return {
                    "member_id": request.member_id,
                    "generation": request.member_epoch,
                    "owned": self._named(request.topic_partitions),
                }
            case LeaveGroupRequest():
                ids = [m.member_id for m in request.members]
                return {"member_id": request.member_id or (ids[0] if ids else "")}
            case OffsetCommitRequest():
                return {
                    "member_id": request.member_id,
                    "generation": request.generation_id_or_member_epoch,
                    "offsets": self._committing(request),
                }
            case HeartbeatRequest() | SyncGroupRequest():
                return {"member_id": request.member_id, "generation": request.generation_id}
        return {}

    def _committing(self, request: OffsetCommitRequest) -> dict[TopicPartition, int]:
        return {
            TopicPartition(t.name or self._topic_name(t.topic_id), p.partition_index): (
                p.committed_offset
            )
            for t in request.topics
            for p in t.partitions
        }

    def _named(self, listed: Sequence[TopicPartitions] | None) -> Partitions | None:
        if listed is None:
            return None
        names = ((self._topic_name(t.topic_id), t.partitions) for t in listed)
        return tuple(sorted(TopicPartition(name, p) for name, numbers in names for p in numbers))

    def _response_fields(self, response: Any, request: Any) -> dict[str, Any]:
        match response:
            case ConsumerGroupHeartbeatResponse():
                given = (
                    None if response.assignment is None else response.assignment.topic_partitions
                )
                return {
                    "error": _first(response.error_code),
                    "member_id": response.member_id or "",
                    "generation": response.member_epoch,
                    "assigned": self._named(given),
                }
            case FetchResponse():
                codes = [p.error_code for t in response.responses for p in t.partitions]
                reach = {
                    TopicPartition(t.topic or self._topic_name(t.topic_id), p.partition_index): (
                        _reach(bytes(p.records))
                    )
                    for t in response.responses
                    for p in t.partitions
                    if p.records
                }
                refused = {
                    TopicPartition(t.topic or self._topic_name(t.topic_id), p.partition_index): (
                        _first(p.error_code)
                    )
                    for t in response.responses
                    for p in t.partitions
                    if p.error_code
                }
                error = _first(response.error_code, *codes)
                return {"error": error, "offsets": reach, "refused": refused}
            case JoinGroupResponse():
                return {
                    "error": _first(response.error_code),
                    "member_id": response.member_id,
                    "generation": response.generation_id,
                }
            case SyncGroupResponse():
                assigned = None
                if not response.error_code:
                    assigned = tuple(sorted(self._assigned(response.assignment)))
                return {"error": _first(response.error_code), "assigned": assigned}
            case LeaveGroupResponse():
                return {
                    "error": _first(response.error_code, *(m.error_code for m in response.members))
                }
            case OffsetCommitResponse():
                codes = [p.error_code for t in response.topics for p in t.partitions]
                good = {
                    TopicPartition(t.name or self._topic_name(t.topic_id), p.partition_index)
                    for t in response.topics
                    for p in t.partitions
                    if not p.error_code
                }
                requested = self._committing(request)
                stored = {tp: offset for tp, offset in requested.items() if tp in good}
                return {"error": _first(*codes), "offsets": stored}
            case OffsetFetchResponse():
                return self._committed(response)
            case MetadataResponse():
                codes = [t.error_code for t in response.topics]
                if response.cluster_id == FOREIGN_ID:
                    return {"error": _first(response.error_code, *codes)}
                counts = {t.name: len(t.partitions) for t in response.topics if _counts(t)}
                if request.topics is None and not response.error_code:
                    counts = dict.fromkeys(self._topics_seen - counts.keys(), 0) | counts
                self._topics_seen |= counts.keys()
                counts = dict(sorted(counts.items()))
                return {"error": _first(response.error_code, *codes), "counts": counts}
            case FindCoordinatorResponse():
                codes = [c.error_code for c in response.coordinators]
                return {"error": _first(response.error_code, *codes)}
            case OffsetForLeaderEpochResponse():
                codes = [p.error_code for t in response.topics for p in t.partitions]
                refused = {
                    TopicPartition(t.topic, p.partition): _first(p.error_code)
                    for t in response.topics
                    for p in t.partitions
                    if p.error_code
                }
                return {"error": _first(*codes), "refused": refused}
            case ListOffsetsResponse():
                codes = [p.error_code for t in response.topics for p in t.partitions]
                return {"error": _first(*codes)}
        return {"error": _first(getattr(response, "error_code", 0))}  # of configs, each has one

    def _committed(self, response: OffsetFetchResponse) -> dict[str, Any]:
        codes = [response.error_code]
        found: dict[TopicPartition, int] = {}
        topics: list[Any] = list(response.topics)
        for group in response.groups:
            codes.append(group.error_code)
            topics += group.topics
        for topic in topics:
            name = topic.name or self._topic_name(topic.topic_id)
            for p in topic.partitions:
                codes.append(p.error_code)
                if not p.error_code:
                    found[TopicPartition(name, p.partition_index)] = p.committed_offset
        return {"error": _first(*codes), "offsets": found}


def _patch(stack: ExitStack, owner: object, name: str, watched: Callable[..., Any]) -> None:
    stack.enter_context(mock.patch.object(owner, name, watched))


def _how_committed(now: _Moment) -> dict[str, Any]:
    """Return the fields of `Sent` that say when and how a commit was issued."""
    issued_at, issued_after = _COMMIT_ISSUED.get() or now
    called_at = _COMMIT_CALLED_AT.get() or issued_at
    return {
        "waited": now[0] - issued_at,
        "issued_after": issued_after,
        "queued": issued_at - called_at,
        "explicit": _EXPLICIT.get(),
    }


def _is_used(before: Any, event: Replied, after: Any) -> bool:
    """Whether a step used a response: it awaited it, and, if that was an error, reacted."""
    code = drivers._error_code(event)
    if code in _CONFIRMATIONS:
        awaited: bool = before.awaits(event.token)
        return awaited
    return any(
        getattr(before, name) != getattr(after, name)
        for name in ("phase", "attempts", "coordinator", "member_id")
    )


def _split(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the incomplete rest, and the complete frames."""
    frames = []
    at = 0
    while len(data) - at >= 4:
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if not 0 <= size <= len(data) - at - 4:
            break
        frames.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return data[at:], frames


def _api(incoming: Incoming) -> str:
    return type(incoming.request).__name__.removesuffix("Request")


def _first(*codes: int) -> str:
    code = next((code for code in codes if code), 0)
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else str(code)


def _reach(records: bytes) -> int:
    """Return the offset after the last complete batch."""
    at, reach = 0, -1
    while at + 27 <= len(records):
        end = at + 12 + int.from_bytes(records[at + 8 : at + 12], "big")
        if end > len(records):
            break
        first = int.from_bytes(records[at : at + 8], "big")
        reach = first + int.from_bytes(records[at + 23 : at + 27], "big") + 1
        at = end
    return reach


_DENIED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)


def _counts(topic: MetadataResponseTopic) -> bool:
    return topic.name is not None and topic.error_code not in _DENIED


def _owned(request: JoinGroupRequest) -> Partitions:
    if request.protocol_type != "consumer" or not request.protocols:
        return ()
    return tuple(sorted(decode_subscription(bytes(request.protocols[0].metadata)).owned))


class BrokerWatch:
    """Records the brokers' state, after each request that they execute."""

    def __init__(self, log: Log, cluster: Cluster, group: GroupView, *, shards: int = 0) -> None:
        self._log = log
        self._cluster = cluster
        self._group = group
        self._formed = 0
        self._counts: dict[str, int] = {}
        """Topic -> partition count, the last one if the topic was deleted."""
        self._target: dict[str, Partitions] = {}
        self._shards = shards

    def watching(self, handle: Callable[..., None]) -> Callable[..., None]:
        """Wrap the function that handles the brokers' requests."""

        def watched(
            cluster: Cluster,
            node_id: int,
            incoming: Incoming,
            now: float,
            host: str,
            reply: Callable[[Any], None],
        ) -> None:
            request = incoming.request
            responses: list[Any] = []

            def keep(response: Any) -> None:
                responses.append(response)
                if isinstance(request, OffsetCommitRequest):
                    self._stored(request, response)
                reply(response)

            handle(cluster, node_id, incoming, now, host, keep)
            if isinstance(request, MetadataRequest):
                self._partition_counts()  # a leader may still assign partitions of a deleted topic
            elif isinstance(request, SyncGroupRequest) and request.assignments:
                if responses and not responses[0].error_code:
                    self._look(request)
            elif isinstance(request, ConsumerGroupHeartbeatRequest):
                self._look_at_target()
                if responses and responses[0].error_code == ErrorCode.UNRELEASED_INSTANCE_ID:
                    self._look_at_holder(request, incoming.client_id)

        return watched

    def _stored(self, request: OffsetCommitRequest, response: OffsetCommitResponse) -> None:
        good = {
            (t.name, t.topic_id, p.partition_index)
            for t in response.topics
            for p in t.partitions
            if not p.error_code
        }
        for t in request.topics:
            for p in t.partitions:
                if (t.name, t.topic_id, p.partition_index) in good:
                    found = None if t.name else self._cluster.topic_by_id(t.topic_id)
                    name = t.name if found is None else found.name
                    self._log.record_event(
                        Stored,
                        partition=TopicPartition(name, p.partition_index),
                        offset=p.committed_offset,
                        member_id=request.member_id,
                        generation=request.generation_id_or_member_epoch,
                    )

    def _partition_counts(self) -> dict[str, int]:
        self._counts |= {t.name: len(t.partitions) for t in self._cluster.topics.values()}
        return dict(self._counts)

    def _look_at_holder(self, request: ConsumerGroupHeartbeatRequest, client: str) -> None:
        """Record that a static member is refused because of its own earlier join."""
        if self._group.holder(request.instance_id or "") == request.member_id:
            self._log.record_event(HeldOff, member=client, member_id=request.member_id)

    def _look_at_target(self) -> None:
        """KIP-848: record each target that the coordinator computes, with the previous one."""
        target = self._group.target()
        if target is None or target.epoch == self._formed:
            return
        before, self._target = self._target, dict(target.assignment)
        self._log.record_event(
            Formed,
            generation=target.epoch,
            protocol=target.assignor,
            assignment=self._target,
            subscriptions=dict(target.subscriptions),
            claims={m: before.get(m, ()) for m in self._target},
            claimed_at=dict.fromkeys(self._target, self._formed),
            partitions=target.partitions,
        )
        self._formed = target.epoch

    def _look(self, request: SyncGroupRequest) -> None:
        group = self._group.stable_group(request)
        if group is None or group.generation == self._formed:
            return
        self._formed = group.generation
        if self._shards:
            self._log.record_event(
                Formed,
                generation=group.generation,
                protocol=group.protocol,
                assignment={
                    member: decode_share(assignment)
                    for member, (_, assignment) in group.members.items()
                },
                subscriptions=dict.fromkeys(group.members, (TOPIC,)),
                partitions={TOPIC: self._shards},
            )
            return
        assignor = _STICKY.get(group.protocol)
        subscribed = {
            member: decode_subscription(metadata) for member, (metadata, _) in group.members.items()
        }
        claims: dict[str, Partitions] = {}
        claimed_at: dict[str, int] = {}
        for member_id, subscription in subscribed.items() if assignor is not None else ():
            owned, generation = subscription.owned, subscription.generation
            if (own := read_user_data(assignor, subscription.user_data)).owned is not None:
                owned, generation = own.owned, own.generation
            claims[member_id], claimed_at[member_id] = tuple(owned), generation
        self._log.record_event(
            Formed,
            generation=group.generation,
            protocol=group.protocol,
            assignment={
                member: tuple(sorted(decode_assignment(assignment)))
                for member, (_, assignment) in group.members.items()
            },
            subscriptions={m: subscription.topics for m, subscription in subscribed.items()},
            claims=claims,
            claimed_at=claimed_at,
            partitions=self._partition_counts(),
            leader=group.leader,
        )
