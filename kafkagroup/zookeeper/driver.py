"""Run a membership in ZooKeeper: pass events to `step`, and execute its effects.

As in `runtime.member.driver`, one task steps, each request has a task of its own, and one task
calls the application, in the order of the effects. kazoo's threads keep the session alive: a
blocked event loop does not end the membership, but the ownership lease may expire.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection

import anyio
import attrs
from anyio.abc import TaskGroup

from kafkagroup.concurrency.clock import lease_clock
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.concurrency.unrequested_end import unrequested_end
from kafkagroup.errors import CommitFailedError, KafkaGroupError
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import (
    AssignFailed,
    Compute,
    Fail,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Revoke,
    Revoked,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.member.zookeeper import step
from kafkagroup.member.zookeeper_nodes import Paths, unit_of
from kafkagroup.member.zookeeper_state import LEASE_FRACTION, Member, Phase
from kafkagroup.member.zookeeper_vocabulary import (
    AssignmentApplied,
    AssignUnits,
    Connect,
    Disconnect,
    ZooKeeperEvent,
)
from kafkagroup.runtime.member.driver import PollTimer, run_compute
from kafkagroup.runtime.member.interfaces import Application, Running, SupportedProtocols
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.threaded import running_loop
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition
from kafkagroup.zookeeper.session import Access, Session
from kafkagroup.zookeeper.trouble import TroubleReporter

__all__ = ["ZooKeeperDriver"]

_COMMITTING = frozenset((Phase.MEMBER, Phase.REVOKING))
"""Phases with valid claims."""

_CONNECTING_INTERVAL = 2.0
"""Seconds between two checks whether a session has begun."""

_FOREIGN_INTERVAL = 5.0
"""Seconds between two looks for members of other libraries."""

Work = AssignUnits | Revoke | Lose | Compute


class ZooKeeperDriver(Running):
    """One member of one group, running."""

    def __init__(
        self,
        hosts: str,
        access: Access,
        paths: Paths,
        member: Member,
        application: Application,
        loop_delay: LoopDelay,
        log: MembershipLog,
        troubles: Troubles,
    ) -> None:
        self.member = member
        """The state, readable at any time; only `run` changes it."""
        self.closed = OneShotEvent()
        """Set once the member has left or failed."""
        self._hosts = hosts
        self._access = access
        self._paths = paths
        self._application = application
        self._loop_delay = loop_delay
        self._log = log
        self._lease_clock = lease_clock()
        self._now = self._lease_clock.now
        """The member's time: that of its events, and of the deadlines in its effects."""
        self._trouble = TroubleReporter(
            hosts, member.config.group_id, troubles, self._lease_clock.in_loop_time
        )
        self._session: Session | None = None
        self._polls = PollTimer(application, anyio.current_time, log.name)
        self._wake_at = float("inf")
        self._rejoins_requested = self._rejoins_stepped = 0
        self._has_ended = False
        # Unbounded: each event is the response to an effect, or one of the few from ZooKeeper.
        self._event_sender, self._event_receiver = anyio.create_memory_object_stream[
            ZooKeeperEvent
        ](float("inf"))
        self._work_sender, self._work_receiver = anyio.create_memory_object_stream[Work](
            float("inf")
        )

    # ------------------------------------------------------------ the state, and requests

    @property
    def ownership(self) -> Ownership:
        """What the member owns, and until when."""
        return self.member.ownership

    @property
    def lease_left(self) -> float:
        """For how many seconds the lease lasts; 0 or less without one. Counts suspends."""
        ownership = self.ownership
        return ownership.lease_expires_at - self._now() if ownership.is_assigned else 0.0

    @property
    def member_id(self) -> str:
        """The name of the member's node; "" before it has registered."""
        return self.member.member_id

    @property
    def generation_id(self) -> int:
        """The version of the list of members that the assignment is computed from."""
        return self.member.generation_id

    @property
    def protocols(self) -> SupportedProtocols:
        """The protocols that the member supports."""
        return self.member.protocols

    @property
    def coordinator(self) -> None:
        """None: members coordinate themselves."""
        return None

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two confirmations of the session."""
        return self.member.confirm_interval

    @property
    def last_heartbeat(self) -> float:
        """When a confirmation of the session was last requested, on the loop's clock; -inf before
        the first."""
        sent_at = self.member.confirm_sent_at
        return self._lease_clock.in_loop_time(sent_at) if sent_at else float("-inf")

    def invalidate_coordinator(self, reason: str) -> None:
        """Do nothing: there is no coordinator."""

    def is_current(self, generation_id: int) -> bool:
        """Whether the assignment is fully applied. A list of members that was read since may leave
        it as it is, and is then not reported."""
        return self.member.assigned_units == self.member.target

    @property
    def follows_subscription(self) -> bool:
        """Whether the assignment was computed from the protocols that were requested last."""
        is_stepped = self._rejoins_stepped == self._rejoins_requested
        return is_stepped and self.member.follows_subscription

    @property
    def leads(self) -> bool:
        """Whether the member has computed an assignment: every member does, so each requests a new
        generation when its input has changed."""
        return self.member.phase is Phase.MEMBER and self.member.target is not None

    @property
    def may_commit(self) -> bool:
        """Whether the claims are valid, as far as this member knows."""
        return self.member.phase in _COMMITTING

    @property
    def is_expelled(self) -> bool:
        """Whether the member left because the application did not poll in time."""
        leaving = self.member.leaving
        return leaving is not None and leaving.lost

    async def confirm(self, partitions: Collection[TopicPartition], timeout: float) -> float:
        """Check the claims of these partitions; return until when their offsets may be committed,
        on the lease clock.

        While the connection is lost, wait for the response: a member that must release partitions
        after a reconnection still has to send their last commit. Raises: CommitFailedError if a
        claim is not this member's, or cannot be checked.
        """
        session = self._session
        units = {unit_of(tp): tp for tp in partitions}
        with anyio.move_on_after(timeout):
            while session is not None and session is self._session and self.may_commit:
                sent_at = self._now()
                try:
                    held = await session.holds(units)
                except KafkaGroupError as error:
                    raise CommitFailedError(f"the claims cannot be checked: {error}") from error
                if not held or session is not self._session or not self.may_commit:
                    break
                unclaimed = sorted(str(units[unit]) for unit, ours in held.items() if not ours)
                if unclaimed:
                    raise CommitFailedError(
                        f"not claimed by this member any more: {', '.join(unclaimed)}"
                    )
                # The response also confirms the session: ZooKeeper's leader knows it.
                confirmed_until = sent_at + LEASE_FRACTION * self.member.timeout
                if self._now() < confirmed_until:
                    return confirmed_until
        raise CommitFailedError("the session with ZooKeeper has ended, or may have")

    def rejoin(self, reason: str, protocols: SupportedProtocols | None = None) -> None:
        """Have all members compute the assignment again, perhaps with new metadata of this one."""
        self._rejoins_requested += 1
        now = self._now()
        self._put(RejoinRequested(now=now, reason=reason, protocols=protocols))

    def leave(
        self,
        reason: str,
        *,
        leave_group: bool | None = None,
        lost: bool = False,
        deadline: float = math.inf,
    ) -> None:
        """Leave the group; `closed` is set when that is done."""
        now = self._now()
        self._put(Leaving(now=now, reason=reason, leave_group=leave_group, lost=lost))

    def _put(self, event: ZooKeeperEvent) -> None:
        if not self._has_ended:
            self._event_sender.send_nowait(attrs.evolve(event, jitter=random.random()))

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Join, and stay until the member has left or failed."""
        try:
            async with anyio.create_task_group() as tasks:
                done = OneShotEvent()
                tasks.start_soon(self._serve_application, done)
                tasks.start_soon(self._watch_polls)
                tasks.start_soon(self._watch_connecting)
                if self._paths.foreign:
                    tasks.start_soon(self._watch_foreign_members)
                self._step(Started(now=self._now()), tasks)
                while self.member.phase not in (Phase.LEFT, Phase.FAILED):
                    self._step(await self._next_event(), tasks)
                self._work_sender.close()
                await done.wait()
                tasks.cancel_scope.cancel()
            if self.member.phase not in (Phase.LEFT, Phase.FAILED):
                raise unrequested_end(f"group {self.member.config.group_id}: the membership")
        finally:
            self._has_ended = True
            self._trouble.on_end(self.member)
            if self._session is not None:
                self._session.close()
            for stream in (
                self._event_sender,
                self._event_receiver,
                self._work_sender,
                self._work_receiver,
            ):
                stream.close()
            self.closed.set()

    async def _next_event(self) -> ZooKeeperEvent:
        event: ZooKeeperEvent | None = None
        due = self._lease_clock.in_loop_time(self._wake_at)
        with anyio.move_on_at(due):
            event = await self._event_receiver.receive()
        if event is None:
            now = anyio.current_time()
            self._loop_delay.add_delay(now - due, now)
            self._wake_at = float("inf")
            event = Woke(now=self._now(), jitter=random.random())
        return event

    def _step(self, event: ZooKeeperEvent, tasks: TaskGroup) -> None:
        before = self.member
        self.member, effects = step(before, event)
        if isinstance(event, RejoinRequested):
            self._rejoins_stepped += 1
        self._trouble.on_event(before, event)
        self._log.on_step(before, self.member)
        if self.member.ownership.acknowledged_at > before.ownership.acknowledged_at:
            self._application.on_lease_extended()
        for effect in effects:
            match effect:
                case Connect(session=number):
                    self._connect(number)
                case Disconnect():
                    if self._session is not None:
                        self._session.close()
                case AssignUnits(units=units):
                    if self.member.config.exclusive_generations and not units:
                        self._application.on_generation_end(lost=False)
                    self._work_sender.send_nowait(effect)
                case Revoke() | Lose():
                    self._application.on_generation_end(lost=isinstance(effect, Lose))
                    self._work_sender.send_nowait(effect)
                case Compute():
                    self._work_sender.send_nowait(effect)
                case WakeAt(time=time):
                    self._wake_at = time
                case Fail(error=error):
                    self._application.on_fatal_error(error)
                    self._log.left(str(error))
                case Leave():  # `run` sees the phase
                    leaving = self.member.leaving
                    self._log.left("" if leaving is None else leaving.reason)
                case _:
                    if self._session is not None:
                        tasks.start_soon(self._session.execute, effect)

    def _connect(self, number: int) -> None:
        config = self.member.config
        _, _, post = running_loop()
        self._session = Session(
            number,
            self._hosts,
            config.session_timeout,
            self._paths,
            config.name,
            client=self._log.name,
            access=self._access,
            exclusive_generations=config.exclusive_generations,
            post=post,
            on_event=self._put,
        )
        self._session.open()

    async def _watch_connecting(self) -> None:
        """Report a session that does not begin: kazoo only retries in its thread."""
        since = anyio.current_time()
        while True:
            await anyio.sleep(_CONNECTING_INTERVAL)
            now = anyio.current_time()
            if self.member.phase is not Phase.CONNECTING or self._session is None:
                since = now
            else:
                self._trouble.on_no_session(now, since, self._session.connect_error)

    async def _watch_foreign_members(self) -> None:
        """Report members of other libraries that have started since: no claim keeps them out."""
        while True:
            await anyio.sleep(_FOREIGN_INTERVAL)
            if self._session is not None and self.member.phase is Phase.MEMBER:
                found = await self._session.foreign_members()
                if found is not None:
                    self._trouble.on_foreign_members(anyio.current_time(), found)

    async def _watch_polls(self) -> None:
        self.leave(await self._polls.wait_until_overdue(), lost=True)

    # ------------------------------------------------------------ the application

    async def _serve_application(self, done: OneShotEvent) -> None:
        application = self._application
        async for work in self._work_receiver:
            match work:
                case AssignUnits():
                    self._put(await self._assign(work))
                case Revoke(token=token, deadline=deadline):
                    await application.revoke(self._lease_clock.in_loop_time(deadline))
                    self._put(Revoked(now=self._now(), token=token))
                case Lose(token=token, reason=reason):
                    protocols = await application.lose(reason)
                    self._put(Revoked(now=self._now(), token=token, protocols=protocols))
                case Compute():
                    self._put(await run_compute(application, work, self._now))
        done.set()

    async def _assign(self, assign: AssignUnits) -> ZooKeeperEvent:
        try:
            if self.member.config.exclusive_generations and not assign.units:
                await self._application.revoke(self._lease_clock.in_loop_time(assign.deadline))
            else:
                await self._application.assign(assign.generation)
        except KafkaGroupError as error:
            return AssignFailed(now=self._now(), error=error)
        self._polls.on_assignment_applied()
        return AssignmentApplied(now=self._now(), token=assign.token)
