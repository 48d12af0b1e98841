"""Runs one member of any protocol: event -> step -> effects.

One task steps the member. Another calls the application (revoke, assign, compute), one call at a
time, in the order of the effects. How a member reaches its group is the subclass's part: `Driver`
sends requests to Kafka's coordinator, `ZooKeeperDriver` has a session.
"""

from __future__ import annotations

import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from kafkagroup._user_code import USER_ERRORS, user_error
from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.clock import lease_clock
from kafkagroup.concurrency.mailbox import Mailbox
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.concurrency.unrequested_end import unrequested_end
from kafkagroup.member.vocabulary import (
    AssignmentRequested,
    BaseEvent,
    Compute,
    Computed,
    ComputeFailed,
    Leaving,
    Lose,
    MemberMetadata,
    RejoinRequested,
    Revoke,
    Revoked,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.runtime.member.interfaces import Application, RunningMember
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import MembershipProtocol, MemberState
from kafkagroup.transport.os_errors import lacks_descriptors

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["MemberLoop"]

M = TypeVar("M", bound=MemberState)

logger = logging.getLogger(__name__)

_COMPUTE_ATTEMPTS = 10
"""How often an assignment is computed while the process may open no more files."""

_MAX_STEP_INTERVAL = 1 / 3
"""The longest time between two steps of a member, in session timeouts. A suspend of the system
delays the loop's timers: with longer waits the member would notice late that its session has
ended."""


class PollTimer:
    """Detects an application that does not poll in time, and so keeps partitions from others."""

    def __init__(
        self, application: Application, loop_ran_at: Callable[[], float], name: str
    ) -> None:
        """`loop_ran_at`: returns when the application's loop last ran. `name`: the name of the
        client in log lines."""
        self._application = application
        self._name = name
        self._loop_ran_at = loop_ran_at
        self._applied = ChangeSignal()

    def on_assignment_applied(self) -> None:
        """Note that the application has applied an assignment."""
        self._applied.notify()

    async def wait_until_overdue(self) -> str:
        """Wait until the application has failed to poll in time; return the reason to leave."""
        while (due := self._application.poll_due_at(self._loop_ran_at())) > anyio.current_time():
            # Wait no longer than until an assignment is applied: an application without one need
            # not poll, so afterwards a poll is due sooner.
            await self._applied.wait(due)
        overdue = self._application.overdue_poll(self._loop_ran_at(), anyio.current_time())
        logger.warning(
            "%s: leaves the group, because %s; %s", self._name, overdue.detail, overdue.advice
        )
        return overdue.reason


class MemberLoop(RunningMember, ABC, Generic[M]):
    """One member of one group, running."""

    def __init__(
        self,
        protocol: MembershipProtocol[M],
        member: M,
        application: Application,
        log: MembershipLog,
        on_delay: Callable[[float, float], object],
    ) -> None:
        """`on_delay`: called after each wait for an event, with two arguments: by how many seconds
        the timer of the wait was late, negative if an event came before it; and the loop's time."""
        self.member = member
        """The state. Any thread may read it; only `run` replaces it."""
        self.closed = OneShotEvent()
        """Set once the member has left or failed."""
        self.fell_back = False
        """Whether the member ended because the coordinator does not support its protocol, and may
        be replaced by a member of the classic protocol."""
        self.unanswered_id = ""
        """The member id that the coordinator may still count, because leaving the group failed;
        else ""."""
        self._protocol = protocol
        self._application = application
        self._log = log
        self._on_delay = on_delay
        self._has_ended = False
        """Whether the member has ended: later events are dropped."""
        self._rejoins_requested = self._rejoins_stepped = 0
        """How many assignments were requested, counted in the thread of the caller, and how many of
        these requests the member has stepped, counted in the thread of `run`."""
        self._wake_at = math.inf
        """The time of the last `WakeAt`, on the lease clock; inf for none."""
        self._poll_timer: PollTimer
        """Set when `run` starts."""
        self._lease_clock = lease_clock()
        self._now = self._lease_clock.now
        """The member's time: that of its events, and of the deadlines in its effects."""
        self._loop_now = self._lease_clock.loop_now
        """The loop's time. Any thread may call it: the loop of a heartbeat thread has the same
        clock as the application's."""
        # Unbounded on purpose: nearly every event is the result of one effect.
        self._events: Mailbox[BaseEvent] = Mailbox()
        self._work: list[object] = []
        """Effects for the application to execute, in order, once the one that it executes now is
        done."""
        self._work_done: OneShotEvent | None = None
        """Set when all calls to the application have returned; None while no task makes any."""

    # ------------------------------------------------------------ called from outside `run`

    @property
    def lease_left(self) -> float:
        """For how many seconds the lease lasts; 0 or less without one. It runs on while the system
        is suspended."""
        ownership = self.member.ownership
        return ownership.lease_expires_at - self._now() if ownership.is_assigned else 0.0

    @property
    def follows_subscription(self) -> bool:
        """Whether the assignment was computed from the subscription that was requested last."""
        is_stepped = self._rejoins_stepped == self._rejoins_requested
        return is_stepped and self.member.follows_subscription

    @property
    def is_expelled(self) -> bool:
        """Whether the member lost its partitions as it left: the application did not poll in time,
        or the client has adopted another cluster."""
        leaving = self.member.leaving
        return leaving is not None and leaving.lost

    def rejoin(self, reason: str) -> None:
        """Request a new generation; under KIP-848, the full assignment."""
        self._request_assignment(RejoinRequested(now=self._now(), reason=reason))

    def change_metadata(self, reason: str, metadata: MemberMetadata) -> None:
        """Request an assignment that is computed from this metadata."""
        self._request_assignment(self._protocol.change_metadata(self._now(), reason, metadata))

    def leave(
        self,
        reason: str,
        *,
        leave_group: bool | None = None,
        lost: bool = False,
        deadline: float = math.inf,
    ) -> None:
        """Leave the group; `closed` is set when that is done. The arguments are the fields of
        `Leaving`, but `deadline` is on the loop's clock."""
        now, left_by = self._now(), self._lease_clock.from_loop_time(deadline)
        self._post_from_outside(
            Leaving(now=now, reason=reason, leave_group=leave_group, lost=lost, deadline=left_by)
        )

    def _request_assignment(self, event: AssignmentRequested) -> None:
        self._rejoins_requested += 1
        self._post_from_outside(event)

    def _post_from_outside(self, event: BaseEvent) -> None:
        """Post an event from outside `run`; a subclass may post it to another thread."""
        self._post(event)

    def _post(self, event: BaseEvent) -> None:
        if not self._has_ended:
            self._events.put(event)

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Join, and return when the member has left or failed."""
        try:
            await self._run_member()
            self._check_ended()
        finally:
            self.closed.set()

    def _check_ended(self) -> None:
        """Raise IllegalStateError if the member has neither left nor failed: code outside of the
        client has cancelled one of its tasks, which ends the task group without an error."""
        if not self.member.is_closed:
            raise unrequested_end(f"group {self.member.config.group_id}: the membership")

    async def _run_member(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._poll_timer = PollTimer(
                    self._application, self._application_ran_at, self._log.name
                )
                tasks.start_soon(self._watch_polls)
                self._start_tasks(tasks)
                self._step(Started(now=self._now(), jitter=random.random()), tasks)
                while not self.member.is_closed:
                    self._step(await self._next_event(), tasks)
                if self._work_done is not None:
                    await self._work_done.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._has_ended = True

    @abstractmethod
    def _start_tasks(self, tasks: TaskGroup) -> None:
        """Start the subclass's own tasks."""

    async def _next_event(self) -> BaseEvent:
        step_by = self._now() + self.member.config.session_timeout * _MAX_STEP_INTERVAL
        due = self._lease_clock.in_loop_time(min(self._wake_at, step_by))
        event = await self._events.take(due)
        now = self._loop_now()
        self._on_delay(now - due, now)
        if event is None:
            # The step emits the next `WakeAt`, unless it only waits for responses.
            self._wake_at = math.inf
            event = Woke(now=self._now(), jitter=random.random())
        return event

    def _step(self, event: BaseEvent, tasks: TaskGroup) -> None:
        before = self.member
        self.member, effects = self._protocol.step(before, event)
        if isinstance(event, AssignmentRequested):
            self._rejoins_stepped += 1
        self._on_step(before, event, effects)
        self._log.on_step(before, self.member)
        if self.member.ownership.acknowledged_at > before.ownership.acknowledged_at:
            self._application.on_lease_extended()
        for effect in effects:
            match effect:
                case Revoke() | Lose():
                    self._application.on_generation_end(lost=isinstance(effect, Lose))
                    self._add_work(effect, tasks)
                case Compute():
                    self._add_work(effect, tasks)
                case WakeAt(time=time):
                    self._wake_at = time
                case _:
                    self._perform(effect, tasks)

    @abstractmethod
    def _on_step(self, before: M, event: BaseEvent, effects: Sequence[object]) -> None:
        """Report what a step has changed, before its effects are executed."""

    @abstractmethod
    def _perform(self, effect: object, tasks: TaskGroup) -> None:
        """Execute an effect of the subclass's protocols."""

    async def _watch_polls(self) -> None:
        self.leave(await self._poll_timer.wait_until_overdue(), lost=True)

    def _application_ran_at(self) -> float:
        """Return when the application's loop last ran: now, as this runs in it. A subclass that
        runs in another loop overrides this."""
        return self._loop_now()

    # ------------------------------------------------------------ the application

    def _add_work(self, effect: object, tasks: TaskGroup) -> None:
        """Have the application execute an effect after the earlier ones."""
        self._work.append(effect)
        if self._work_done is None:
            self._work_done = OneShotEvent()
            tasks.start_soon(self._run_work, self._work_done)

    async def _run_work(self, done: OneShotEvent) -> None:
        while self._work:
            await self._call(self._work.pop(0))
        self._work_done = None
        done.set()

    async def _call(self, effect: object) -> None:
        """Have the application execute an effect, and post the result. A subclass adds how an
        assignment is applied."""
        application = self._application
        match effect:
            case Revoke(token=token, deadline=deadline):
                protocols = await application.revoke(self._lease_clock.in_loop_time(deadline))
                self._post(Revoked(now=self._now(), token=token, protocols=protocols))
            case Lose(token=token, reason=reason):
                protocols = await application.lose(reason)
                self._post(Revoked(now=self._now(), token=token, protocols=protocols))
            case Compute():
                self._post(await self._compute(effect))

    async def _compute(self, work: Compute) -> Computed | ComputeFailed:
        """Compute the group's assignment by the application's assignor."""
        for attempts_left in reversed(range(_COMPUTE_ATTEMPTS)):
            try:
                assignments = await self._application.compute(work)
                break
            except USER_ERRORS as error:
                if lacks_descriptors(error) and attempts_left:
                    # The assignor may have to import a module. Try again later, as the whole group
                    # waits for this member.
                    logger.warning("the assignment is computed again in 1 s: %s", error)
                    await anyio.sleep(1.0)
                    continue
                # The assignor is the user's code: its error fails this member, not the event loop.
                failure = user_error(error, f"the assignor {work.protocol_name!r}")
                return ComputeFailed(now=self._now(), token=work.token, error=failure)
        return Computed(now=self._now(), token=work.token, assignments=assignments)
