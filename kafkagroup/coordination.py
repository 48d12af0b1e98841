"""`Election` and `Shards`: leader election and sharded workers, built on `GroupMember`.

The group leader (not the member that an `Election` elects) computes the result in a pure function;
each member receives it as its assignment. A member's metadata has the last result that it
received, so that the next result differs as little as possible.

Guarantee: two members never hold the same leadership or shard in their scopes. A new generation
begins only when every member has released the old one, has sent no heartbeat for a session timeout,
or has taken three quarters of the rebalance timeout to release it; a scope is cancelled before.

Not guaranteed: code that shields itself from cancellation or does not await, or a process that was
frozen, may run for longer; after a suspend of the system, any code for 0.1 s. Against that, pass
the fencing token to the system that you write to, and have that system refuse a token lower than
the highest it has seen.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack

import anyio
import attrs
from anyio.abc import TaskStatus

from kafkagroup._explained import Explained
from kafkagroup._foreign_options import explains_unknown_options
from kafkagroup._public import public
from kafkagroup._text import escaped
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ClosedError,
    ConfigurationError,
    DecodeError,
    ErrorCode,
)
from kafkagroup.group import Generation, GroupMember, GroupProtocol
from kafkagroup.member.vocabulary import GenerationInfo
from kafkagroup.runtime.consume.health import Health
from kafkagroup.runtime.member.event_feed import GroupEvents
from kafkagroup.runtime.member.interfaces import MemberFactory
from kafkagroup.runtime.member.membership_log import counted, first_few
from kafkagroup.runtime.member.metrics import GroupMetrics
from kafkagroup.transport.security import Security
from kafkagroup.wire.codec import decode_prefix, encode
from kafkagroup.wire.schema import BYTES, INT32, STRING, array, field, message, struct

__all__ = [
    "MAX_SHARDS",
    "MAX_VALUE_BYTES",
    "Election",
    "Leader",
    "Leaders",
    "Leadership",
    "MemberOptions",
    "ShardAssignment",
    "Shards",
]

logger = logging.getLogger(__name__)

MAX_VALUE_BYTES = 1024
"""The limit of a member's value, in bytes. With `Shards` every assignment has the values of all
members, and the broker stores all assignments in one record of up to 1 MB by default: enough for
100 members with a host name each."""

MAX_SHARDS = 65_536
"""The limit of a group's shards. The metadata of all members together has each shard once, and so
have their assignments together: each of the two fits into the broker's record of up to 1 MB."""


class MemberOptions(TypedDict, total=False):
    """The options of `GroupMember` that `Election` and `Shards` take."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    security: Security | None
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    heartbeat_thread: bool
    membership: MemberFactory | None
    rebalance_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_recovery_rebootstrap_trigger_ms: int
    connections_max_idle_ms: int
    on_cluster_change: Literal["raise", "adopt"]
    leave_group_on_close: bool | None
    close_timeout: float


# ---------------------------------------------------------------- on the wire
#
# A version of two bytes, then a message of `wire.schema`, whose decoders are bounded and raise only
# DecodeError. Not JSON, which has no bytes. Newer versions may only append fields.
# `@message(-1, "0")`: not a request of Kafka, so without an API key; version 0.

_VERSION = 0
_VERSION_BYTES = 2

_NEVER = -1
"""Instead of a generation id: the member had no generation, or did not lead in it."""
_RESIGNED = -2
"""Instead of the id of the generation in which the member led: it resigned."""

T = TypeVar("T")


@message(-1, "0")
class _ElectionMetadata:
    """Metadata of a member of an `Election`."""

    value: bytes = field(BYTES)
    led: int = field(INT32)
    """The member's last generation, if it led in it; else `_NEVER` or `_RESIGNED`."""


@message(-1, "0")
class _ElectionAssignment:
    """Assignment of a member of an `Election`."""

    leader_id: str = field(STRING)
    value: bytes = field(BYTES)


@message(-1, "0")
class _ShardsMetadata:
    """Metadata of a member of `Shards`."""

    value: bytes = field(BYTES)
    generation: int = field(INT32)
    """The member's last generation; `_NEVER` if it has had none."""
    owned: tuple[int, ...] = field(array(INT32))
    """The member's shards in `generation`."""


@struct
class _MemberValue:
    member_id: str = field(STRING)
    value: bytes = field(BYTES)


@message(-1, "0")
class _ShardsAssignment:
    """Assignment of a member of `Shards`."""

    mine: tuple[int, ...] = field(array(INT32))
    members: tuple[_MemberValue, ...] = field(array(_MemberValue))


def _write(what: Any) -> bytes:
    return _VERSION.to_bytes(_VERSION_BYTES, "big") + encode(what, _VERSION)


def _read(kind: type[T], data: bytes) -> T:
    """Decode the fields of this version; ignore those that a newer one has appended. Raises:
    DecodeError."""
    if int.from_bytes(data[:_VERSION_BYTES], "big", signed=True) < 0:
        raise DecodeError(f"{kind.__name__} of a version below zero")
    found, _ = decode_prefix(kind, _VERSION, data, _VERSION_BYTES)
    return found


def _read_all(kind: type[T], members: Mapping[str, bytes]) -> dict[str, T]:
    """Decode the members' metadata. Leave out members whose metadata cannot be decoded: they run
    another program, and must not end the other members' memberships. They get an empty assignment,
    for which they raise DecodeError."""
    decoded = {}
    for member_id, metadata in sorted(members.items()):
        try:
            decoded[member_id] = _read(kind, metadata)
        except DecodeError as error:
            logger.warning("member %s is left out: %s", escaped(member_id), error)
    return decoded


# ---------------------------------------------------------------- computed by the group leader


def elect(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return each member's assignment: the elected leader, and its value.

    The last leader is elected again; of several members that led in their last generation, the one
    with the highest generation. A member that resigned ranks last. Deterministic, O(members).
    """
    candidates = _read_all(_ElectionMetadata, members)
    if not candidates:
        return {}
    leader_id = max(candidates, key=lambda member_id: (candidates[member_id].led, member_id))
    elected = _write(_ElectionAssignment(leader_id=leader_id, value=candidates[leader_id].value))
    return dict.fromkeys(candidates, elected)


def assign_shards(shards: int, members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return each member's assignment: its shards, and all members with their values.

    Every shard has one owner; counts differ by at most one; no assignment with these two properties
    moves fewer shards. If two members claim a shard, the higher generation wins. Deterministic,
    O(shards x log(shards) + members^2), as every assignment has all members.
    """
    workers = _read_all(_ShardsMetadata, members)
    present = tuple(_MemberValue(member_id=m, value=w.value) for m, w in workers.items())
    return {
        member_id: _write(_ShardsAssignment(mine=tuple(mine), members=present))
        for member_id, mine in _balance(shards, workers).items()
    }


def _balance(shards: int, workers: Mapping[str, _ShardsMetadata]) -> dict[str, list[int]]:
    """Return member id -> its shards, as `assign_shards` describes."""
    owners: dict[int, str] = {}
    for member_id in sorted(workers, key=lambda m: (workers[m].generation, m)):
        owners.update(dict.fromkeys(workers[member_id].owned, member_id))
    kept: dict[str, list[int]] = {member_id: [] for member_id in workers}
    for shard in range(shards):
        if shard in owners:
            kept[owners[shard]].append(shard)
    # The counts that are larger by one go to the members that keep the most shards: with any other
    # member, one more shard would move.
    ranked = sorted(kept, key=lambda m: (-len(kept[m]), m))
    sizes = {
        member_id: shards // len(ranked) + (rank < shards % len(ranked))
        for rank, member_id in enumerate(ranked)
    }
    for member_id, size in sizes.items():
        del kept[member_id][size:]
    taken = {shard for mine in kept.values() for shard in mine}
    # A generator: each member below takes the next free shards.
    free = (shard for shard in range(shards) if shard not in taken)
    return {
        member_id: sorted((*kept[member_id], *islice(free, size - len(kept[member_id]))))
        for member_id, size in sizes.items()
    }


# ---------------------------------------------------------------- shared by Election and Shards

_MAX_NAMED = 5
"""The limit of members that an error names."""


class _CoordinatedMember(Explained, ABC):
    """A member with a value, whose metadata has its result in the last generation."""

    _kind: str
    """What log lines call this client."""

    def __init__(self, group_id: str, protocol: GroupProtocol, options: MemberOptions) -> None:
        self._group_id = group_id
        self._protocol = protocol
        self._member = GroupMember(group_id, protocol, **options)
        self._member._log_as(self._kind, self._describe)
        self._last: Generation | None = None
        """The last generation that was returned, until it is released."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop`: `nursery.start(election.run)` on trio."""
        await self._member.run(task_status=task_status)

    async def start(self) -> None:
        """Start outside `async with`, on asyncio."""
        await self._member.start()

    async def stop(self) -> None:
        """Leave the group and close. A second call does nothing."""
        await self._member.stop()

    async def aclose(self) -> None:
        """The same as `stop()`, for `contextlib.aclosing` and other code that closes what it is
        given."""
        await self.stop()

    async def __aenter__(self) -> Self:
        await self._member.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._member.__aexit__(exc_type, exc_value, traceback)

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or closes now. False before the start."""
        return self._member.closed

    @property
    def member_id(self) -> str:
        """The member id that the coordinator gave to this member; "" before it has joined. Raises:
        NotStartedError."""
        return self._member.member_id

    def metrics(self) -> GroupMetrics:
        """Return the heartbeats, joins and syncs of the last minute, the rebalances with their
        causes, and the delay of the loop. May be called from any thread.

        Raises: NotStartedError before the start, and in a process that was forked from the one that
        started it."""
        return self._member.metrics()

    def health(
        self, *, joining_after: float | None = None, loop_delay_above: float | None = None
    ) -> Health:
        """Return whether the membership works: true, or false with the reasons. A member that was
        elected or assigned nothing is healthy. A rebalance may take `joining_after` seconds (None:
        `rebalance_timeout_ms`), and the event loop may be late by `loop_delay_above` seconds (None:
        the limit of the logged warning). Never raises. May be called from any thread; in a process
        that was forked from the one that started the client, the client does not run."""
        return self._member.health(joining_after=joining_after, loop_delay_above=loop_delay_above)

    def events(self, buffer: int = 256) -> GroupEvents:
        """Return an async iterator over the membership's events from now on, as
        `GroupMember.events` does. Iterate in a task of its own.

        Raises: ConfigurationError with `membership=`, where Kafka does not coordinate the group.
        """
        return self._member.events(buffer)

    @abstractmethod
    def _metadata(self) -> bytes:
        """Return this member's metadata for the next generation."""

    def _describe(self, generation: GenerationInfo) -> tuple[str, bool]:
        """Return an assignment in words, and whether it is not empty, for the log."""
        try:
            return self._describe_decoded(generation)
        except DecodeError as error:
            return f"what cannot be read ({error})", False

    @abstractmethod
    def _describe_decoded(self, generation: GenerationInfo) -> tuple[str, bool]:
        """Return what `_describe` returns. Raises: DecodeError if the assignment cannot be read."""

    async def _next(self) -> Generation:
        """Wait until the last generation is over, release it, and wait for the next one."""
        self._member._check_origin()
        if self._last is not None:
            # New metadata before the generation is over would cause another rebalance; after the
            # next generation is requested it would come too late.
            await self._last.over.wait()
            self._update(self._metadata())
            self._last = None
        try:
            self._last = await anext(self._member)
        except BrokerError as error:
            if error.code != ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                raise
            raise ConfigurationError(await self._protocol_conflict()) from error
        return self._last

    def _update(self, metadata: bytes, *, rejoin: bool = False) -> None:
        """Replace the metadata if it has changed; with `rejoin`, request a rebalance anyway."""
        if rejoin or metadata != self._protocol.metadata:
            self._protocol = attrs.evolve(self._protocol, metadata=metadata)
            self._member.update(self._protocol)

    async def _protocol_conflict(self) -> str:
        """Return why the coordinator has refused this member's protocol, for an error message."""
        mine = f"{self._protocol.type}/{self._protocol.name}"
        try:
            group = await self._member.describe()
        except (BrokerError, *RETRIED_ERRORS) as error:
            return f"group {self._group_id!r} does not run {mine} ({error})"
        names = [escaped(f"{m.member_id} at {m.client_host}") for m in group.members[:_MAX_NAMED]]
        left = len(group.members) - len(names)
        more = f" and {left} more" if left else ""
        theirs = escaped(f"{group.protocol_type}/{group.protocol_data or '?'}")
        return (
            f"group {self._group_id!r} runs {theirs}, with the members"
            f" {', '.join(names) or 'that have left since'}{more};"
            f" this member runs {mine}: give all members the same program and settings"
        )


def _check_value(value: bytes) -> None:
    if not isinstance(value, bytes):
        raise ConfigurationError(f"value is a {type(value).__name__}; it must be bytes")
    if len(value) > MAX_VALUE_BYTES:
        raise ConfigurationError(f"value has {len(value)} bytes; the limit is {MAX_VALUE_BYTES}")


def _assignment_of(kind: type[T], generation: Generation | GenerationInfo) -> T:
    """Decode this member's assignment. Raises: DecodeError."""
    if not generation.assignment:
        raise DecodeError(
            f"the group leader {generation.leader_id} assigned nothing to this member: it cannot"
            " read the member's metadata; check that all members run the same program"
        )
    return _read(kind, generation.assignment)


# ---------------------------------------------------------------- Election


@attrs.frozen
class Leader:
    """The elected leader."""

    member_id: str
    """The leader's member id."""
    value: bytes
    """The leader's value."""
    token: int
    """The leader's fencing token, as in `Leadership.token`."""


@public
class Leadership:
    """This member's leadership, for one generation of the group."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __repr__(self) -> str:
        return f"<Leadership of {self._generation.member_id}, token {self.token}>"

    @property
    def token(self) -> int:
        """The fencing token, which is higher than that of every leadership before.

        It is the group's generation id, which grows as long as the group exists. Kafka deletes a
        group without committed offsets some minutes after its last member has left
        (`offsets.retention.check.interval.ms`); a new group of that name counts from 1 again.
        """
        return self._generation.generation_id

    @property
    def lease_expires_at(self) -> float:
        """Until when no other member can be elected, on the loop's clock, unless this one releases
        the leadership: one session timeout after the last acknowledged heartbeat was sent. Each
        acknowledged heartbeat extends it."""
        return self._generation.lease_expires_at

    @property
    def over(self) -> anyio.Event:
        """Set when this leadership has ended, or may have ended."""
        return self._generation.over

    def scope(self) -> AbstractContextManager[anyio.CancelScope]:
        """Run work that is cancelled when the leadership ends, and at `lease_expires_at` at the
        latest."""
        return self._generation.scope()


@public
class Election(_CoordinatedMember):
    """One leader among the members of a group.

    ```python
    async with Election("billing", b"host-1", bootstrap_servers="localhost:9092") as election:
        async for leadership in election:
            with leadership.scope():
                await lead(fencing_token=leadership.token)
    ```

    A leader stays elected while it is a member. When other members join or leave, a rebalance
    interrupts it, and it continues with a higher token. Requesting the next leadership while the
    current one is not over resigns: other members are elected first, this member only if it is
    alone.
    """

    _kind = "election"

    @partial(explains_unknown_options, more=MemberOptions.__annotations__)
    def __init__(self, group_id: str, value: bytes = b"", **options: Unpack[MemberOptions]) -> None:
        """Other members see `value`, such as an address, while this member leads.

        The options are those of `GroupMember`. Raises: ConfigurationError.

        Args:
            group_id: The group. Kafka's `group.id`.
            value: Up to `MAX_VALUE_BYTES` bytes, which other members see.
            bootstrap_servers: `host:port`, comma-separated or a sequence: the addresses of some
                brokers, through which the client finds the others. Default `'localhost:9092'`;
                Kafka's `bootstrap.servers`.
            client_id: The client's name in the brokers' logs and quotas. Default `'kafkagroup'`;
                Kafka's `client.id`.
            security: A `Security`: TLS, SASL or both; `None` is plain TCP.
            request_timeout_ms: How long a response may take. In milliseconds; default 30,000;
                Kafka's `request.timeout.ms`.
            retry_backoff_ms: Backoff before the first retry; it doubles, with jitter. In
                milliseconds; default 100; Kafka's `retry.backoff.ms`.
            retry_backoff_max_ms: Upper limit of that backoff, before its jitter of a fifth. In
                milliseconds; default 1,000; Kafka's `retry.backoff.max.ms`.
            metadata_recovery_rebootstrap_trigger_ms: How long all known brokers may fail before the
                client forgets their addresses and asks only the bootstrap addresses, whose names it
                resolves again (KIP-1102). It also asks those whenever no known broker responds. In
                milliseconds; default 300,000; Kafka's `metadata.recovery.rebootstrap.trigger.ms`.
            connections_max_idle_ms: Close a connection after this time without a request, before a
                load balancer or firewall forgets it; the next request opens another one. In
                milliseconds; default 540,000; Kafka's `connections.max.idle.ms`.
            close_timeout: Seconds that closing may take, with all that it waits for. Default
                `10.0`.
            group_instance_id: Static membership: a name that this member keeps across restarts, so
                that a restart within the session timeout causes no rebalance. Default `None`;
                Kafka's `group.instance.id`.
            session_timeout_ms: How long the coordinator waits for a heartbeat before it removes the
                member. In milliseconds; default 45,000; Kafka's `session.timeout.ms`.
            heartbeat_interval_ms: Time between two heartbeats; less than the session timeout. In
                milliseconds; default 1,000; Kafka's `heartbeat.interval.ms`.
            heartbeat_thread: Run the membership in a thread with its own event loop, so that
                heartbeats continue while the application blocks its loop; records, commits and
                callbacks stay in the application's loop. Code that holds the interpreter lock stops
                the thread too; a token callback of `security` is called in both threads. Default
                `False`.
            membership: The group coordination, if not Kafka's: a `ZooKeeperMembership`. Default
                `None`.
            on_cluster_change: What to do when no broker of the client's cluster responds and the
                bootstrap addresses lead to another cluster: `"raise"`: raise `ClusterChangedError`
                once a minute, until the cluster responds again; or, for a failover behind one name,
                `"adopt"` the other cluster and forget what was known of the earlier one: a member
                rejoins, and positions are looked up anew. Default `'raise'`.
            rebalance_timeout_ms: How long members may take to finish their work and rejoin in a
                rebalance. In milliseconds; default 300,000.
            leave_group_on_close: Leave the group on close, so that it does not wait for the session
                timeout; `None`: static members stay, the others leave. `True` removes a static
                member, too (KIP-1092).
        """
        _check_value(value)
        self._value = value
        self._led = _NEVER
        """As `_ElectionMetadata.led`."""
        protocol = GroupProtocol("kafkagroup-election", "incumbent", self._metadata(), elect)
        super().__init__(group_id, protocol, options)

    def _metadata(self) -> bytes:
        return _write(_ElectionMetadata(value=self._value, led=self._led))

    def _describe_decoded(self, generation: GenerationInfo) -> tuple[str, bool]:
        leader_id = _assignment_of(_ElectionAssignment, generation).leader_id
        if leader_id == generation.member_id:
            return "the leadership", True
        return f"no leadership: {escaped(leader_id)} leads", False

    def __aiter__(self) -> Election:
        return self

    async def __anext__(self) -> Leadership:
        """Wait until this member is elected.

        Raises: ConfigurationError if the group is not an election; DecodeError if another program
        uses the group; the errors of `GroupMember`. Iteration ends after `stop`.
        """
        self._member._check_origin()
        if self._is_leading():  # to request the next leadership is to resign
            self._led = _RESIGNED
            self._update(self._metadata(), rejoin=True)
        while True:
            generation = await self._next()
            self._led = _NEVER
            if _leader_in(generation).member_id == generation.member_id:
                self._led = generation.generation_id
                return Leadership(generation)

    def _is_leading(self) -> bool:
        last = self._last
        return self._led >= 0 and last is not None and last is self._member.generation

    @property
    def leader(self) -> Leader | None:
        """The elected leader, known to every member; None during a rebalance, or after this
        member's lease has expired. Raises: DecodeError."""
        generation = self._member.generation
        return None if generation is None else _leader_in(generation)

    def leaders(self) -> Leaders:
        """Return an async iterator over the elected leaders, beginning with the current one. Any
        number of tasks may use one each, beside the task that iterates over the election."""
        return Leaders(self._member)


class Leaders:
    """An async iterator over a group's leaders. A leader that continues with another token is
    returned again."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._seen: Generation | None = None

    def __aiter__(self) -> Leaders:
        return self

    async def __anext__(self) -> Leader:
        """Wait for the next leader. Leaders that were replaced since the last call are left out.

        Raises: DecodeError; the error that ended the membership. Iteration ends after `stop`.
        """
        try:
            self._seen = await self._member.wait_generation(after=self._seen)
        except ClosedError:
            raise StopAsyncIteration from None
        return _leader_in(self._seen)


def _leader_in(generation: Generation) -> Leader:
    elected = _assignment_of(_ElectionAssignment, generation)
    return Leader(elected.leader_id, elected.value, generation.generation_id)


# ---------------------------------------------------------------- Shards


@public
@attrs.frozen(eq=False, kw_only=True)
class ShardAssignment:
    """This member's shards, for one generation of the group."""

    member_id: str
    """The member id that the coordinator gave to this member."""
    token: int
    """The fencing token, as in `Leadership.token`: each new owner of a shard has a higher one."""
    mine: tuple[int, ...]
    """This member's shards, sorted; empty if there are more members than shards."""
    members: Mapping[str, bytes]
    """Member id -> value of all members, this one included."""
    joined: Mapping[str, bytes]
    """The members that were not in the previous assignment; in the first one, all."""
    left: Mapping[str, bytes]
    """The members of the previous assignment that are not in this one."""
    _generation: Generation

    @property
    def over(self) -> anyio.Event:
        """Set when this assignment has ended, or may have ended."""
        return self._generation.over

    def scope(self) -> AbstractContextManager[anyio.CancelScope]:
        """Run work that is cancelled when this assignment ends, and at the latest one session
        timeout after the last acknowledged heartbeat was sent."""
        return self._generation.scope()


@public
class Shards(_CoordinatedMember):
    """A fixed number of shards, each owned by one member of a group.

    ```python
    async with Shards("workers", 64, b"host-1", bootstrap_servers="localhost:9092") as shards:
        async for assignment in shards:
            with assignment.scope():
                await work_on(assignment.mine)
    ```

    When members join or leave, as few shards as possible move, but every member is interrupted and
    gets a new assignment. All members must have the same number of shards: the coordinator refuses
    a member with another number, and the others continue.
    """

    _kind = "shards"

    @partial(explains_unknown_options, more=MemberOptions.__annotations__)
    def __init__(
        self, group_id: str, shards: int, value: bytes = b"", **options: Unpack[MemberOptions]
    ) -> None:
        """Other members see `value`, such as an address.

        The options are those of `GroupMember`. Raises: ConfigurationError.

        Args:
            group_id: The group. Kafka's `group.id`.
            shards: How many there are, the same for all members, up to `MAX_SHARDS`.
            value: Up to `MAX_VALUE_BYTES` bytes, which other members see.
            bootstrap_servers: `host:port`, comma-separated or a sequence: the addresses of some
                brokers, through which the client finds the others. Default `'localhost:9092'`;
                Kafka's `bootstrap.servers`.
            client_id: The client's name in the brokers' logs and quotas. Default `'kafkagroup'`;
                Kafka's `client.id`.
            security: A `Security`: TLS, SASL or both; `None` is plain TCP.
            request_timeout_ms: How long a response may take. In milliseconds; default 30,000;
                Kafka's `request.timeout.ms`.
            retry_backoff_ms: Backoff before the first retry; it doubles, with jitter. In
                milliseconds; default 100; Kafka's `retry.backoff.ms`.
            retry_backoff_max_ms: Upper limit of that backoff, before its jitter of a fifth. In
                milliseconds; default 1,000; Kafka's `retry.backoff.max.ms`.
            metadata_recovery_rebootstrap_trigger_ms: How long all known brokers may fail before the
                client forgets their addresses and asks only the bootstrap addresses, whose names it
                resolves again (KIP-1102). It also asks those whenever no known broker responds. In
                milliseconds; default 300,000; Kafka's `metadata.recovery.rebootstrap.trigger.ms`.
            connections_max_idle_ms: Close a connection after this time without a request, before a
                load balancer or firewall forgets it; the next request opens another one. In
                milliseconds; default 540,000; Kafka's `connections.max.idle.ms`.
            close_timeout: Seconds that closing may take, with all that it waits for. Default
                `10.0`.
            group_instance_id: Static membership: a name that this member keeps across restarts, so
                that a restart within the session timeout causes no rebalance. Default `None`;
                Kafka's `group.instance.id`.
            session_timeout_ms: How long the coordinator waits for a heartbeat before it removes the
                member. In milliseconds; default 45,000; Kafka's `session.timeout.ms`.
            heartbeat_interval_ms: Time between two heartbeats; less than the session timeout. In
                milliseconds; default 1,000; Kafka's `heartbeat.interval.ms`.
            heartbeat_thread: Run the membership in a thread with its own event loop, so that
                heartbeats continue while the application blocks its loop; records, commits and
                callbacks stay in the application's loop. Code that holds the interpreter lock stops
                the thread too; a token callback of `security` is called in both threads. Default
                `False`.
            membership: The group coordination, if not Kafka's: a `ZooKeeperMembership`. Default
                `None`.
            on_cluster_change: What to do when no broker of the client's cluster responds and the
                bootstrap addresses lead to another cluster: `"raise"`: raise `ClusterChangedError`
                once a minute, until the cluster responds again; or, for a failover behind one name,
                `"adopt"` the other cluster and forget what was known of the earlier one: a member
                rejoins, and positions are looked up anew. Default `'raise'`.
            rebalance_timeout_ms: How long members may take to finish their work and rejoin in a
                rebalance. In milliseconds; default 300,000.
            leave_group_on_close: Leave the group on close, so that it does not wait for the session
                timeout; `None`: static members stay, the others leave. `True` removes a static
                member, too (KIP-1092).
        """
        is_whole = isinstance(shards, int) and not isinstance(shards, bool)
        if not is_whole or not 1 <= shards <= MAX_SHARDS:
            raise ConfigurationError(
                f"shards={shards!r} must be a whole number between 1 and {MAX_SHARDS}"
            )
        _check_value(value)
        self._shards = shards
        self._value = value
        self._current: ShardAssignment | None = None
        """The last assignment; None before the first."""
        # The name has the number of shards, so that the coordinator refuses another number.
        protocol = GroupProtocol(
            "kafkagroup-shards",
            f"{shards}-shards",
            self._metadata(),
            partial(assign_shards, shards),
        )
        super().__init__(group_id, protocol, options)

    def _metadata(self) -> bytes:
        current = self._current
        generation, owned = (_NEVER, ()) if current is None else (current.token, current.mine)
        return _write(_ShardsMetadata(value=self._value, generation=generation, owned=owned))

    def _describe_decoded(self, generation: GenerationInfo) -> tuple[str, bool]:
        mine = _assignment_of(_ShardsAssignment, generation).mine
        count = f"{len(mine):,} of {counted(self._shards, 'shard')}"
        return (f"{count}: {first_few(mine, len(mine))}" if mine else count), bool(mine)

    def __aiter__(self) -> Shards:
        return self

    async def __anext__(self) -> ShardAssignment:
        """Wait until the last assignment is over, and for the next one.

        Raises: ConfigurationError if the group has another number of shards or is not a group of
        `Shards`, naming its members; DecodeError if another program uses the group; the errors of
        `GroupMember`. Iteration ends after `stop`.
        """
        generation = await self._next()
        received = _assignment_of(_ShardsAssignment, generation)
        mine = tuple(sorted(set(received.mine)))
        if len(mine) < len(received.mine) or (mine and not 0 <= mine[0] <= mine[-1] < self._shards):
            raise DecodeError(f"assigned a shard twice, or one beyond {self._shards}")
        members = {m.member_id: m.value for m in received.members}
        before = {} if self._current is None else self._current.members
        self._current = ShardAssignment(
            member_id=generation.member_id,
            token=generation.generation_id,
            mine=mine,
            members=MappingProxyType(members),
            joined=_without(members, before),
            left=_without(before, members),
            generation=generation,
        )
        return self._current


def _without(some: Mapping[str, bytes], others: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the members of `some` that are not in `others`."""
    return MappingProxyType({m: value for m, value in some.items() if m not in others})
