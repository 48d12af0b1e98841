"""One run of one process: an application that consumes, and records what it observes.

The consumer is the product's, unmodified. Everything here runs in the tasks of the process, so it
is frozen and killed together with it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any

import anyio

from kafkagroup import Consumer, Record, Security, TopicPartition
from kafkagroup.assign import (
    GroupSpec,
    cooperative_sticky_assignor,
    range_assignor,
    roundrobin_assignor,
    sticky_assignor,
)
from kafkagroup.errors import (
    AuthenticationError,
    BrokerError,
    FencedError,
    KafkaGroupError,
    NoOffsetError,
    OffsetOutOfRangeError,
)
from kafkagroup.types import Assignment

from .events import (
    Absent,
    Assigned,
    Away,
    Cancelled,
    Cancelling,
    Closing,
    Committed,
    Committing,
    Delivered,
    Ended,
    Event,
    Joined,
    Lost,
    Misassigning,
    Opening,
    Paused,
    Polling,
    Processed,
    Raised,
    Revoked,
    Revoking,
    Sought,
    Subscribing,
)
from .loop import PROCESS
from .misassign import MISASSIGNMENTS
from .schedule import GROUP, MemberPlan, PlannedAction

__all__ = ["CLOSE_TIMEOUT", "Process"]

_ASSIGNORS = {
    "cooperative_sticky": cooperative_sticky_assignor,
    "range": range_assignor,
    "roundrobin": roundrobin_assignor,
    "sticky": sticky_assignor,
}

CLOSE_TIMEOUT = 5.0

_MAX_FAILURES = 3
"""Errors of brokers in a row with which an application continues; a consumer that has failed raises
more."""

_MAX_REFUSED_LOGINS = 20
"""The same for refused logins."""

_LOGIN_PAUSE = 1.0
"""Seconds until an application polls again after a refused login."""

_PARTITION = re.compile(r"(\w+)/(\d+)\b")
"""A partition in the text of an error."""

_IDLE = 1.0
"""Seconds without a record after which an application commits what it has processed."""


class Process:
    """A process that runs until it is stopped, fails, or is cancelled."""

    def __init__(
        self,
        name: str,
        plan: MemberPlan,
        servers: str,
        seed: str,
        record_event: Callable[..., None],
        leaked: Callable[[str], tuple[str, ...]],
        security: Security | None = None,
    ) -> None:
        self.name = name
        self.plan = plan
        self._scope = anyio.CancelScope()
        self._context = copy_context()
        self._context.run(PROCESS.set, name)
        self._random = Random(seed)
        self._record_in_log = record_event
        self._leaked = leaked
        self._orders: list[PlannedAction] = []
        self._stopping = False
        self._call: anyio.CancelScope | None = None
        self._cancelling = False
        self.fenced = False
        """Another process has its instance id: it must not be restarted."""
        self._generation: tuple[str, int] | None = None
        self._last: dict[TopicPartition, int] = {}
        self._done: dict[TopicPartition, int] = {}
        """Partition -> the offset after the last processed record."""
        self._reached: dict[TopicPartition, int] = {}
        """The same, for all partitions that it ever owned."""
        self._sought: dict[TopicPartition, int] = {}
        """Partition in which it has sought -> the offset from which it continues."""
        self._commits = 0
        self._uncommitted = 0
        self._dawdle = 0.0
        self._paused: set[TopicPartition] = set()
        """The partitions that the application has paused, whatever the client reports."""
        self._absent = False
        self._has_raised = False
        """Whether a call has raised since the application last asked for records."""
        self._is_open = False
        self._idle = 0.0
        """How long the next call for records waits, if it is to be a long wait."""
        self._misassigns = ""
        """The fault of this member's assignments as leader; "" for none."""
        self.on_delivered: Callable[[TopicPartition, int], None] | None = None
        """Called with the partition and the offset of each delivery; None for nothing."""
        self._security = security
        self._client = self._make_client(servers)

    def _make_client(self, servers: str) -> AbstractAsyncContextManager[object]:
        plan = self.plan
        theirs: dict[str, Any] = {
            "assignors": [self._spoilt(_ASSIGNORS[a]) for a in plan.assignors]
        }
        if plan.protocol != "classic":
            theirs = {
                "group_protocol": plan.protocol,
                "group_remote_assignor": plan.remote_assignor,
            }
        self.consumer = Consumer(
            *(() if plan.pattern else plan.topics),
            pattern=_pattern(plan.topics) if plan.pattern else None,
            bootstrap_servers=servers,
            security=self._security,
            group_id=GROUP,
            group_instance_id=plan.instance,
            client_id=self.name,
            auto_offset_reset="earliest" if plan.resets else "none",
            client_rack=plan.rack or None,
            enable_auto_commit=plan.auto_commit,
            auto_commit_interval_ms=2_000,
            session_timeout_ms=int(plan.session * 1000),
            heartbeat_interval_ms=int(plan.heartbeat * 1000),
            rebalance_timeout_ms=int(plan.rebalance * 1000),
            max_poll_interval_ms=int(plan.max_poll * 1000),
            request_timeout_ms=int(plan.request_timeout * 1000),
            fetch_max_wait_ms=2_000,
            metadata_max_age_ms=5_000,
            close_timeout=CLOSE_TIMEOUT,
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=self._revoked,
            on_partitions_lost=self._lost,
            **theirs,
        )
        return self.consumer

    def _spoilt(self, assignor: Any) -> Any:
        """Wrap an assignor, which is spoiled while this member misassigns."""

        def assign(spec: GroupSpec) -> Assignment:
            assignment = assignor(spec)
            spoil = MISASSIGNMENTS.get(self._misassigns)
            return assignment if spoil is None else spoil(spec, assignment)

        vars(assign).update(vars(assignor))
        return assign

    def misassign(self, how: str) -> None:
        """Spoil this member's assignments as leader; stop if `how` is empty."""
        if how != self._misassigns:
            self._misassigns = how
            self._record_event(Misassigning, active=bool(how))

    # ------------------------------------------------------------ called by the simulation

    def within(self, action: Callable[..., object], *arguments: Any) -> None:
        """Call from the simulation in the context of the process.

        Otherwise callbacks that the call schedules, such as repeated delivery of a cancellation,
        would run while the process is frozen.
        """
        self._context.run(action, *arguments)

    def order(self, action: PlannedAction) -> None:
        """Have the application do this between two calls of the client."""
        self._orders.append(action)
        self.cancel_call()

    def cancel_call(self) -> None:
        """Cancel the call of the client in which the application waits, if any."""
        if self._call is not None:
            if not self._call.cancel_called:
                self._record_event(Cancelling)
                self._cancelling = True
            self.within(self._call.cancel)

    def cancel(self) -> None:
        """Cancel the whole process, wherever it is."""
        if not self._is_open:
            self._record_event(Closing)
        self.within(self._scope.cancel)

    def stop(self) -> None:
        """Close at the next opportunity."""
        self._stopping = True
        self.cancel_call()

    def is_behind(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether it has sought back and has not yet reached the ends of the logs again."""
        return any(at < ends.get(tp, 0) for tp, at in self._sought.items())

    @property
    def lease_left(self) -> float:
        """For how many seconds the client's lease lasts; 0 while a heartbeat is in flight, which
        may extend it."""
        driver = self.consumer._session.member.driver
        if driver is None or driver.member.heartbeat_in_flight is not None:
            return 0.0
        return max(driver.lease_left, 0.0)

    def processed_end(self, tp: TopicPartition) -> int:
        """Return the offset after the last record of the partition that it has processed, or 0."""
        return self._reached.get(tp, 0)

    # ------------------------------------------------------------ from start to close

    async def run(self) -> None:
        """Run from start to close. Errors are recorded, not raised."""
        with self._scope:
            self._open()
            try:
                async with self._client:
                    self._is_open = True
                    try:
                        await self._consume()
                    finally:
                        self._record_event(Closing)
            except Exception as error:
                self.fenced = isinstance(error, FencedError)
                self._record_event(Raised, error=_name(error))
        self._record_event(Ended, leaked=self._leaked(self.name))

    def _open(self) -> None:
        plan = self.plan
        self._record_event(
            Opening,
            cooperative=plan.assignors in ((), ("cooperative_sticky",)),
            auto_commit=plan.auto_commit,
            resets=plan.resets,
            instance=plan.instance,
            session_timeout=plan.session,
            rebalance_timeout=plan.rebalance,
            heartbeat_interval=plan.heartbeat,
            max_poll_interval=plan.max_poll,
            close_timeout=CLOSE_TIMEOUT,
        )

    def _record_event(self, kind: Callable[..., Event], **fields: Any) -> None:
        self._record_in_log(kind, member=self.name, **fields)

    async def _consume(self) -> None:
        take = {"each": self._take_each, "batches": self._take_batch, "many": self._take_many}
        failures = refused_logins = 0
        while not self._stopping:
            if self._orders:
                await self._obey(self._orders.pop(0))
                continue
            try:
                if self._idle or self._absent or self._has_raised:
                    self._absent = self._has_raised = False
                    if self._idle and (more := self.consumer.assignment() - self._paused):
                        self._pause(*sorted(more))  # assigned by a rebalance in the meantime
                    self._record_event(Polling)
                records = await self._within(take[self.plan.style], self._idle or _IDLE)
            except NoOffsetError as error:
                self._start_over(error, error.partitions)
                continue
            except OffsetOutOfRangeError as error:
                self._start_over(error, error.offsets)
                continue
            except BrokerError as error:
                failures += 1
                if not self.plan.persists or failures > _MAX_FAILURES:
                    raise
                self._raised(error)
                continue
            except AuthenticationError as error:
                refused_logins += 1
                if not self.plan.persists or refused_logins > _MAX_REFUSED_LOGINS:
                    raise
                self._raised(error)
                await anyio.sleep(_LOGIN_PAUSE)
                continue
            failures = refused_logins = 0
            for record in records or ():
                tp = TopicPartition(record.topic, record.partition)
                self._last[tp] = record.offset
                sequence = int(record.value)
                self._record_event(Delivered, partition=tp, offset=record.offset, sequence=sequence)
                if self.on_delivered is not None:
                    self.on_delivered(tp, record.offset)
            for record in records or ():
                await anyio.sleep(self.plan.work + self._dawdle)
                self._dawdle = 0.0
                tp = TopicPartition(record.topic, record.partition)
                self._record_event(Processed, partition=tp, offset=record.offset)
                if tp in self._last:  # else it was revoked while this record was in flight
                    self._done[tp] = self._reached[tp] = record.offset + 1
                    if tp in self._sought:
                        self._sought[tp] = record.offset + 1
                self._uncommitted += 1
            due = self.plan.commit_every if records else 1
            if not self.plan.auto_commit and self._uncommitted >= due:
                await self._commit()
        if not self.plan.auto_commit and self._uncommitted:
            await self._commit()

    async def _within(self, call: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        """Return the result of a client call; None if it was cancelled or timed out."""
        with anyio.move_on_after(seconds) as self._call:
            try:
                return await call()
            finally:
                self._call_ended()
        return None

    def _call_ended(self) -> None:
        self._call = None
        if self._cancelling:
            self._cancelling = False
            self._record_event(Cancelled)

    async def _take_each(self) -> Sequence[Record] | None:
        return [await anext(self.consumer)]

    async def _take_batch(self) -> Sequence[Record] | None:
        return (await anext(self.consumer.batches(7))).records

    async def _take_many(self) -> Sequence[Record] | None:
        found = await self.consumer.getmany(9, timeout=_IDLE)
        return [record for records in found.values() for record in records]

    async def _commit(self, offsets: dict[TopicPartition, int] | None = None) -> None:
        self._commits += 1
        token = self._commits
        uncommitted = self._uncommitted if offsets is None else 0
        self._uncommitted -= uncommitted
        self._record_event(Committing, token=token, offsets=offsets)
        outcome = "cancelled"
        try:
            with anyio.CancelScope() as call:
                self._call = call
                await self.consumer.commit(offsets)
                outcome = "ok"
        except FencedError as error:
            outcome = _name(error)
            raise
        except KafkaGroupError as error:
            outcome = _name(error)
        finally:
            self._call_ended()
            if outcome != "ok":
                self._uncommitted += uncommitted
            self._record_event(Committed, token=token, outcome=outcome)

    # ------------------------------------------------------------ tasks of the application

    def offsets_to_commit(self) -> dict[TopicPartition, int]:
        """Return the offsets after what it has processed, in its present assignment."""
        return dict(self._done)

    async def commit_in_task(self, offsets: dict[TopicPartition, int]) -> None:
        """Commit these offsets while the application does something else."""
        if self._stopping:
            return
        self._commits += 1
        token = self._commits
        self._record_event(Committing, token=token, offsets=offsets)
        outcome = "cancelled"
        try:
            await self.consumer.commit(offsets)
            outcome = "ok"
        except KafkaGroupError as error:
            outcome = _name(error)
        finally:
            self._record_event(Committed, token=token, outcome=outcome)

    # ------------------------------------------------------------ actions

    async def _obey(self, action: PlannedAction) -> None:
        doing = getattr(self, f"_do_{action.what}")
        self._record_event(Away)
        try:
            await self._within(partial(doing, action), 30.0)
        except FencedError:
            raise
        except KafkaGroupError as error:
            self._raised(error)

    def _raised(self, error: KafkaGroupError) -> None:
        named = _PARTITION.search(str(error)) if isinstance(error, BrokerError) else None
        tp = None if named is None else TopicPartition(named[1], int(named[2]))
        self._record_event(Raised, error=_name(error), partition=tp)
        self._has_raised = True

    async def _do_subscribe(self, action: PlannedAction) -> None:
        topics = action.code.split(",")
        self._record_event(Subscribing, topics=tuple(topics))
        if self.plan.pattern:
            await self.consumer.subscribe(pattern=_pattern(topics))
        else:
            await self.consumer.subscribe(*topics)

    async def _do_seek(self, action: PlannedAction) -> None:
        """Seek back by a few records."""
        known = sorted(self._last.keys() & self.consumer.assignment())
        if known:
            tp = self._random.choice(known)
            self._seek(tp, max(0, self._last[tp] - self._random.randint(0, 10)))

    async def _do_skip(self, action: PlannedAction) -> None:
        """Seek forward by a few records, as far as there are any."""
        known = sorted(self._last.keys() & self.consumer.assignment())
        if known:
            tp = self._random.choice(known)
            ends = await self.consumer.end_offsets([tp])
            last = self._last.get(tp, -1)
            offset = min(last + 2 + self._random.randint(0, 5), ends[tp])
            if offset > last + 1 and tp in self._last:
                self._seek(tp, offset)
                self._uncommitted += 1  # commits the new position even without further records

    def _start_over(self, error: KafkaGroupError, partitions: Iterable[TopicPartition]) -> None:
        """Seek to the log's start, which no log loses here: processed records come again."""
        self._raised(error)
        for tp in sorted(self.consumer.assignment().intersection(partitions)):
            self._seek(tp, 0)
            self._uncommitted += 1

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        # First: a seek raises, and moves nothing, if a revocation of the partition has begun.
        self.consumer.seek(tp, offset)
        self._record_event(Sought, partition=tp, offset=offset)
        self._done.pop(tp, None)
        self._sought[tp] = offset

    async def _do_pause(self, action: PlannedAction) -> None:
        assigned = sorted(self.consumer.assignment())
        if assigned:
            self._pause(self._random.choice(assigned))

    def _pause(self, *partitions: TopicPartition) -> None:
        self.consumer.pause(*partitions)
        self._paused.update(partitions)
        self._record_event(Paused, partitions=tuple(sorted(self._paused)))

    async def _do_resume(self, action: PlannedAction) -> None:
        self.consumer.resume(*sorted(self._paused & self.consumer.assignment()))
        self._paused.clear()
        self._idle = 0.0
        self._record_event(Paused, partitions=())

    async def _do_hold(self, action: PlannedAction) -> None:
        """Delay the processing of the next record."""
        self._dawdle = action.seconds

    async def _do_be_absent(self, action: PlannedAction) -> None:
        """Do other work instead of polling."""
        if not self._absent:
            self._absent = True
            self._record_event(Absent)
        await anyio.sleep(action.seconds)

    async def _do_wait_idle(self, action: PlannedAction) -> None:
        """Wait in the client with all partitions paused, so that no record comes."""
        self._pause(*sorted(self.consumer.assignment()))
        self._idle = action.seconds

    async def _do_request_rejoin(self, action: PlannedAction) -> None:
        self.consumer.rejoin()

    async def _do_dawdle(self, action: PlannedAction) -> None:
        """Delay the processing of the next record."""
        self._dawdle = action.seconds

    async def _do_commit_position(self, action: PlannedAction) -> None:
        """Commit one partition by its offset."""
        known = sorted(self._last.keys() & self.consumer.assignment())
        if known and not self.plan.auto_commit:
            tp = self._random.choice(known)
            await self._commit({tp: self._last[tp] + 1})

    # ------------------------------------------------------------ callbacks

    def _look(self) -> int:
        """Record a new generation, and return its number."""
        found = self.consumer.group_metadata()
        if (found.member_id, found.generation_id) != self._generation:
            self._generation = (found.member_id, found.generation_id)
            self._record_event(Joined, member_id=found.member_id, generation=found.generation_id)
        return found.generation_id

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        generation = self._look()
        self._record_event(Assigned, partitions=tuple(partitions), generation=generation)
        # A process about to close would leave the group's commit at the offset it goes back to.
        if self.plan.callback == "seek" and not self._stopping:
            for tp in partitions:
                # Models an application that stores its offsets elsewhere.
                if (reached := self._reached.get(tp)) is not None:
                    self._seek(tp, max(0, reached - self._random.randint(0, 3)))
                    self._uncommitted += 1  # commits the position even without further records
        await self._dwell()

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._look()
        self._record_event(Revoking, partitions=tuple(partitions))
        try:
            if self.plan.callback == "commit" and not self.plan.auto_commit:
                # By offset: without one, the client counts the record in flight as processed.
                done = {tp: self._done[tp] for tp in partitions if tp in self._done}
                if done:
                    await self._commit(done)
            await self._dwell()
        finally:
            self._record_event(Revoked, partitions=tuple(partitions))
            self._forget(partitions)

    async def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._record_event(Lost, partitions=tuple(partitions))
        self._forget(partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._last.pop(tp, None)
            self._done.pop(tp, None)
            self._sought.pop(tp, None)
            self._paused.discard(tp)

    async def _dwell(self) -> None:
        if self.plan.callback == "slow":
            await anyio.sleep(0.3)


def _pattern(topics: Iterable[str]) -> str:
    return "|".join(topics)


def _name(error: BaseException) -> str:
    name = getattr(error, "name", None)
    return f"{type(error).__name__}({name})" if isinstance(name, str) else type(error).__name__
