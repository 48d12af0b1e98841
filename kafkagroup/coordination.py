"""`Election` and `Shards`: who leads, and who does which part. Both are groups like any other.

The member that the coordinator lets assign (not the one that an `Election` elects) decides in a
pure function, and each member learns the outcome from its assignment. What a member did last is in
its metadata, so that whoever decides next disturbs as little as possible.

What is promised, and what is not: two members never hold the same leadership or shard in their
scopes, as a new generation begins only when every member has finished with the old one, was away
for a session timeout, or overran the rebalance timeout; a scope is cancelled before either passes.
Code that shields itself from cancellation, or a process that was frozen and has just woken up, may
go on for longer. Against those there is the token: pass it to what you write to, and let that
refuse a token lower than one it has seen.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

import anyio
import attrs
from anyio.abc import TaskStatus

from kafkagroup._public import public
from kafkagroup.errors import (
    BrokerError,
    ConfigurationError,
    ConsumerClosedError,
    DecodeError,
    ErrorCode,
    TransportError,
    escaped,
)
from kafkagroup.group import Generation, GroupMember, GroupProtocol
from kafkagroup.runtime.interfaces import Membership
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
"""Most bytes of a member's value. With `Shards` every member is told the values of all, and the
broker keeps all of that in one record, of 1 MB by default: enough for 200 members with a host name
each."""

MAX_SHARDS = 65_536
"""Most shards of a group: metadata and assignments that name each one once fit that record, too."""


class MemberOptions(TypedDict, total=False):
    """The options of `GroupMember` that the recipes pass on to it."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    security: Security | None
    group_instance_id: str | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    heartbeat_thread: bool
    membership: Membership | None
    rebalance_timeout_ms: int
    rebalance_max_retries: int | None
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    leave_group_on_close: bool | None
    close_timeout: float


public(MemberOptions)  # type checkers know no decorator of a TypedDict


# ---------------------------------------------------------------- on the wire
#
# A version of two bytes, then a message of `wire.schema`: its decoders are bounded and raise one
# error, and values are bytes, which JSON has no type for. Newer versions may only append fields.

_VERSION = 0
_VERSION_BYTES = 2

_NEVER = -1
_RESIGNED = -2

T = TypeVar("T")


@message(-1, "0")
class _Candidate:
    """Metadata of a member of an `Election`."""

    value: bytes = field(BYTES)
    led: int = field(INT32)
    """The generation in which it led, if that was its last one; else one of the two above."""


@message(-1, "0")
class _Elected:
    """Assignment of a member of an `Election`."""

    leader_id: str = field(STRING)
    value: bytes = field(BYTES)


@message(-1, "0")
class _Worker:
    """Metadata of a member of `Shards`."""

    value: bytes = field(BYTES)
    generation: int = field(INT32)
    owned: tuple[int, ...] = field(array(INT32))
    """Its shards in that generation, its last one."""


@struct
class _Present:
    member_id: str = field(STRING)
    value: bytes = field(BYTES)


@message(-1, "0")
class _Roster:
    """Assignment of a member of `Shards`."""

    mine: tuple[int, ...] = field(array(INT32))
    members: tuple[_Present, ...] = field(array(_Present))


def _write(what: Any) -> bytes:
    return _VERSION.to_bytes(_VERSION_BYTES, "big") + encode(what, _VERSION)


def _read(kind: type[T], data: bytes) -> T:
    """Raises: DecodeError."""
    if int.from_bytes(data[:_VERSION_BYTES], "big", signed=True) < 0:
        raise DecodeError(f"{kind.__name__} of a version below zero")
    found, _ = decode_prefix(kind, _VERSION, data, _VERSION_BYTES)
    return found


def _read_all(kind: type[T], members: Mapping[str, bytes]) -> dict[str, T]:
    """What the members say, without those that cannot be understood: their metadata is another
    program's, and must not end the membership of everybody else. They are assigned nothing, and
    raise."""
    said = {}
    for member_id, metadata in sorted(members.items()):
        try:
            said[member_id] = _read(kind, metadata)
        except DecodeError as error:
            logger.warning("member %s is left out: %s", escaped(member_id), error)
    return said


# ---------------------------------------------------------------- what the group leader decides


def elect(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Each member's assignment: who leads, and its value.

    Whoever led last stays; of several, the one of the highest generation. Whoever resigned comes
    after all others. Deterministic, O(members).
    """
    said = _read_all(_Candidate, members)
    if not said:
        return {}
    leader_id = max(said, key=lambda member_id: (said[member_id].led, member_id))
    outcome = _write(_Elected(leader_id=leader_id, value=said[leader_id].value))
    return dict.fromkeys(said, outcome)


def share_out(shards: int, members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Each member's assignment: its shards, and who is there.

    Every shard has one owner; counts differ by at most one; no assignment with these two properties
    moves fewer shards. Of two that claim a shard, the claim of the higher generation holds.
    Deterministic, O(shards x log(shards) + members^2 for telling everybody of everybody).
    """
    said = _read_all(_Worker, members)
    everybody = tuple(_Present(member_id=m, value=w.value) for m, w in said.items())
    return {
        member_id: _write(_Roster(mine=tuple(mine), members=everybody))
        for member_id, mine in _balance(shards, said).items()
    }


def _balance(shards: int, said: Mapping[str, _Worker]) -> dict[str, list[int]]:
    owners: dict[int, str] = {}
    for member_id in sorted(said, key=lambda m: (said[m].generation, m)):
        owners.update(dict.fromkeys(said[member_id].owned, member_id))
    kept: dict[str, list[int]] = {member_id: [] for member_id in said}
    for shard in range(shards):
        if shard in owners:
            kept[owners[shard]].append(shard)
    # The shares that are larger by one go to those that have the most: others could not use them
    # without a move.
    ranked = sorted(kept, key=lambda m: (-len(kept[m]), m))
    sizes = {
        member_id: shards // len(ranked) + (rank < shards % len(ranked))
        for rank, member_id in enumerate(ranked)
    }
    for member_id, size in sizes.items():
        del kept[member_id][size:]
    taken = {shard for mine in kept.values() for shard in mine}
    free = (shard for shard in range(shards) if shard not in taken)
    return {
        member_id: sorted((*kept[member_id], *islice(free, size - len(kept[member_id]))))
        for member_id, size in sizes.items()
    }


# ---------------------------------------------------------------- what the recipes share

_NAMED = 5
"""How many members an error names."""


class _Recipe(ABC):
    """A member with a value, whose metadata says what it did in its last generation."""

    def __init__(self, group_id: str, protocol: GroupProtocol, options: MemberOptions) -> None:
        self._group_id = group_id
        self._offered = protocol
        self._member = GroupMember(group_id, protocol, **options)
        self._last: Generation | None = None
        """The generation in hand."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop`, as `GroupMember.run` does."""
        await self._member.run(task_status=task_status)

    async def start(self) -> None:
        """Start outside `async with`, on asyncio."""
        await self._member.start()

    async def stop(self) -> None:
        """Leave the group and close. Stopping twice does nothing more."""
        await self._member.stop()

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
    def member_id(self) -> str:
        """This member, as the coordinator calls it; "" before it has joined."""
        return self._member.member_id

    @abstractmethod
    def _metadata(self) -> bytes:
        """What this member says of itself, as of the generation in hand."""

    async def _next(self) -> Generation:
        """Wait until the generation in hand is over, and for the next one."""
        if self._last is not None:
            # Told earlier, it would cost the group a rebalance of its own; later, nobody hears it.
            await self._last.over.wait()
            self._offer(self._metadata())
            self._last = None
        try:
            self._last = await anext(self._member)
        except BrokerError as error:
            if error.code != ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                raise
            raise ConfigurationError(await self._disagreement()) from error
        return self._last

    def _offer(self, metadata: bytes, *, rejoin: bool = False) -> None:
        if rejoin or metadata != self._offered.metadata:
            self._offered = attrs.evolve(self._offered, metadata=metadata)
            self._member.update(self._offered)

    async def _disagreement(self) -> str:
        mine = f"{self._offered.type}/{self._offered.name}"
        try:
            group = await self._member.describe()
        except (BrokerError, TransportError) as error:
            return f"group {self._group_id!r} does something else than {mine} ({error})"
        names = [escaped(f"{m.member_id} at {m.client_host}") for m in group.members[:_NAMED]]
        left = len(group.members) - len(names)
        more = f" and {left} more" if left else ""
        does = escaped(f"{group.protocol_type}/{group.protocol_data or '?'}")
        return (
            f"group {self._group_id!r} does {does}, say"
            f" {', '.join(names) or 'members that have left since'}{more};"
            f" this member says {mine}"
        )


def _check_value(value: bytes) -> None:
    if not isinstance(value, bytes):
        raise ConfigurationError(f"value is a {type(value).__name__}; it must be bytes")
    if len(value) > MAX_VALUE_BYTES:
        raise ConfigurationError(f"value has {len(value)} bytes; the limit is {MAX_VALUE_BYTES}")


def _understand(kind: type[T], generation: Generation) -> T:
    """The assignment of this member. Raises: DecodeError."""
    if not generation.assignment:
        raise DecodeError(
            f"{generation.leader_id}, who assigns for the group, has left this member out: it"
            " cannot read the metadata; do all members run the same program?"
        )
    return _read(kind, generation.assignment)


# ---------------------------------------------------------------- Election


@public
@attrs.frozen
class Leader:
    """Who leads."""

    member_id: str
    """The member, as the coordinator calls it."""
    value: bytes
    """What it gave as its value."""
    token: int
    """Its fencing token, as in `Leadership.token`."""


@public
class Leadership:
    """This member leads, for one generation of the group."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __repr__(self) -> str:
        return f"<Leadership of {self._generation.member_id}, token {self.token}>"

    @property
    def token(self) -> int:
        """Fencing token: higher than that of every leadership before, this member's own included.

        It is the group's generation id, and monotonic as long as the group exists: Kafka forgets a
        group without committed offsets some minutes after its last member has left
        (`offsets.retention.check.interval.ms`), and counts from 1 again.
        """
        return self._generation.generation_id

    @property
    def lease_expires_at(self) -> float:
        """Until when nobody else can have been elected, on the loop's clock: one session timeout
        after the last acknowledged heartbeat was sent. Each one moves it on."""
        return self._generation.lease_expires_at

    @property
    def over(self) -> anyio.Event:
        """Set when this leadership ends, or cannot be known to stand any more."""
        return self._generation.over

    def scope(self) -> AbstractContextManager[anyio.CancelScope]:
        """Lead in here: cancelled when the leadership ends, and at the latest one session timeout
        after the last acknowledged heartbeat was sent."""
        return self._generation.scope()


@public
class Election(_Recipe):
    """One leader among the members of a group.

    ```python
    async with Election("billing", b"host-1", bootstrap_servers="localhost:9092") as election:
        async for leadership in election:
            with leadership.scope():
                await lead(fencing_token=leadership.token)
    ```

    A leader stays while it lives: members that come and go interrupt it for a rebalance, after
    which it goes on with a higher token. Asking for the next leadership while one stands resigns:
    others are elected first, and this member again if it is alone.
    """

    def __init__(self, group_id: str, value: bytes = b"", **options: Unpack[MemberOptions]) -> None:
        """Prepare a candidate; by `value`, such as an address, the others know it when it leads.

        The options are those of `GroupMember`. Raises: ConfigurationError.
        """
        _check_value(value)
        self._value = value
        self._led = _NEVER
        protocol = GroupProtocol("kafkagroup-election", "incumbent", self._metadata(), elect)
        super().__init__(group_id, protocol, options)

    def _metadata(self) -> bytes:
        return _write(_Candidate(value=self._value, led=self._led))

    def __aiter__(self) -> Election:
        return self

    async def __anext__(self) -> Leadership:
        """Wait until this member is elected.

        Raises: ConfigurationError for a group of another kind; DecodeError for one of another
        program; else as `GroupMember`. Iteration ends after `stop`.
        """
        if self._leads():
            self._led = _RESIGNED
            self._offer(self._metadata(), rejoin=True)
        while True:
            generation = await self._next()
            self._led = _NEVER
            if _leader_in(generation).member_id == generation.member_id:
                self._led = generation.generation_id
                return Leadership(generation)

    def _leads(self) -> bool:
        last = self._last
        return (
            self._led >= 0
            and last is not None
            and not last.over.is_set()
            and anyio.current_time() < last.lease_expires_at
        )

    @property
    def leader(self) -> Leader | None:
        """Who leads, known to every member; None while nobody does, or this member cannot be sure.
        Raises: DecodeError."""
        generation = self._member.generation
        return None if generation is None else _leader_in(generation)

    def leaders(self) -> Leaders:
        """Iterate over who leads, beginning with who does now: `async for leader in ...`. For any
        number of other tasks, while one iterates over the election itself."""
        return Leaders(self._member)


@public
class Leaders:
    """Who leads, one after the other; the same member again when it goes on with another token."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._seen: Generation | None = None

    def __aiter__(self) -> Leaders:
        return self

    async def __anext__(self) -> Leader:
        """Wait for the next leader. Those who led in between, for a moment only, are left out.

        Raises: DecodeError; the error that ended the membership. Iteration ends after `stop`.
        """
        try:
            self._seen = await self._member.wait_generation(after=self._seen)
        except ConsumerClosedError:
            raise StopAsyncIteration from None
        return _leader_in(self._seen)


def _leader_in(generation: Generation) -> Leader:
    elected = _understand(_Elected, generation)
    return Leader(elected.leader_id, elected.value, generation.generation_id)


# ---------------------------------------------------------------- Shards


@public
@attrs.frozen(eq=False, kw_only=True)
class ShardAssignment:
    """This member's part of the shards, for one generation of the group."""

    member_id: str
    """This member, as the coordinator calls it."""
    token: int
    """Fencing token, as in `Leadership.token`: a shard's owners have ever higher ones."""
    mine: tuple[int, ...]
    """The shards of this member, sorted; none for some if there are more members than shards."""
    members: Mapping[str, bytes]
    """Who is here, this member included: member id -> value."""
    joined: Mapping[str, bytes]
    """Those who were not in the share before this one; in the first share all."""
    left: Mapping[str, bytes]
    """Those who were, and are not any more."""
    _generation: Generation

    @property
    def over(self) -> anyio.Event:
        """Set when this share ends, or cannot be known to stand any more."""
        return self._generation.over

    def scope(self) -> AbstractContextManager[anyio.CancelScope]:
        """Work on the shards in here: cancelled when the share ends, and at the latest one session
        timeout after the last acknowledged heartbeat was sent."""
        return self._generation.scope()


@public
class Shards(_Recipe):
    """A fixed number of shards, each owned by one member of a group.

    ```python
    async with Shards("workers", 64, b"host-1", bootstrap_servers="localhost:9092") as shards:
        async for share in shards:
            with share.scope():
                await work_on(share.mine)
    ```

    Members that come and go move as few shards as possible, but interrupt all of them: every member
    gets a new share. All members must give the same number of shards; whoever gives another one
    than those who are there is refused, and disturbs nobody.
    """

    def __init__(
        self, group_id: str, shards: int, value: bytes = b"", **options: Unpack[MemberOptions]
    ) -> None:
        """Prepare a worker; by `value`, such as an address, the others know it.

        The options are those of `GroupMember`. Raises: ConfigurationError.
        """
        if not 1 <= shards <= MAX_SHARDS:
            raise ConfigurationError(f"shards={shards} must lie between 1 and {MAX_SHARDS}")
        _check_value(value)
        self._shards = shards
        self._value = value
        self._share: ShardAssignment | None = None
        # The number is in the name: the coordinator itself refuses members that do not share one.
        protocol = GroupProtocol(
            "kafkagroup-shards", f"{shards}-shards", self._metadata(), partial(share_out, shards)
        )
        super().__init__(group_id, protocol, options)

    def _metadata(self) -> bytes:
        share = self._share
        generation, owned = (_NEVER, ()) if share is None else (share.token, share.mine)
        return _write(_Worker(value=self._value, generation=generation, owned=owned))

    def __aiter__(self) -> Shards:
        return self

    async def __anext__(self) -> ShardAssignment:
        """Wait until the share in hand is over, and for the next one.

        Raises: ConfigurationError for a group of another kind or number of shards, saying who says
        so; DecodeError for one of another program; else as `GroupMember`. Iteration ends after
        `stop`.
        """
        generation = await self._next()
        roster = _understand(_Roster, generation)
        mine = tuple(sorted(set(roster.mine)))
        if len(mine) < len(roster.mine) or (mine and not 0 <= mine[0] <= mine[-1] < self._shards):
            raise DecodeError(f"assigned a shard twice, or one beyond {self._shards}")
        members = {m.member_id: m.value for m in roster.members}
        before = {} if self._share is None else self._share.members
        self._share = ShardAssignment(
            member_id=generation.member_id,
            token=generation.generation_id,
            mine=mine,
            members=MappingProxyType(members),
            joined=_without(members, before),
            left=_without(before, members),
            generation=generation,
        )
        return self._share


def _without(some: Mapping[str, bytes], others: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return MappingProxyType({m: value for m, value in some.items() if m not in others})
