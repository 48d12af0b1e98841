"""Runs a membership protocol: event -> step -> effects, over a cluster.

One task steps; each request has a task of its own, so that a JoinGroup in the coordinator's
purgatory delays nothing. One task calls the application (revoke, assign, compute), one call at a
time, in the order of the effects. Cancelling `run` leaves nothing behind.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import anyio

from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
)
from kafkagroup.member import classic
from kafkagroup.member.consumer_vocabulary import (
    ConsumerEffect,
    ConsumerEvent,
    FallBack,
    LookUpNames,
    Reconcile,
    ReportError,
    Subscribed,
    TopicsNamed,
)
from kafkagroup.member.ownership import Ownership
from kafkagroup.member.state import Member
from kafkagroup.member.vocabulary import (
    Assign,
    AssignFailed,
    AssignmentApplied,
    Compute,
    Computed,
    ComputeFailed,
    Coordinator,
    CoordinatorInvalidated,
    Effect,
    Event,
    Fail,
    GenerationInfo,
    Leave,
    Leaving,
    Lose,
    RejoinRequested,
    Replied,
    Revoke,
    Revoked,
    Route,
    Send,
    SendFailed,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.runtime.change_signal import ChangeSignal
from kafkagroup.runtime.history import History, Step
from kafkagroup.runtime.interfaces import Application, Assignee, SupportedProtocols
from kafkagroup.runtime.lag import LoopLag
from kafkagroup.runtime.mailbox import Mailbox
from kafkagroup.transport.broker import MAIN, NO_RESPONSE, Overdue
from kafkagroup.transport.clock import loop_clock
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.one_shot_event import OneShotEvent
from kafkagroup.transport.retry import Pauses
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorResponse

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.member.consumer_state import Member as ConsumerMember

__all__ = ["Driver", "DriverEvent", "PollTimer", "computed"]

DriverEvent = Event | Subscribed | AssignmentApplied | TopicsNamed
Work = Revoke | Lose | Assign | Reconcile | Compute

logger = logging.getLogger(__name__)

_PULSE = 1 / 3
"""How often, in sessions, the driver steps even if nothing happens."""

_Rebalancing = JoinGroupRequest | SyncGroupRequest
"""Requests that wait at the coordinator for the other members."""

_OVERDUE = Overdue(NO_RESPONSE.advice, allowed=0.0)
_OVERDUE_REBALANCE = Overdue(
    "either the coordinator hangs, or another member of the group does not rejoin: the coordinator"
    " waits for it as long as its rebalance timeout",
    allowed=20.0,
    has_own_finding=True,
)

_CONNECTION = {Route.COORDINATOR: "group", Route.ASIDE: MAIN}


async def computed(application: Application, work: Compute) -> Computed | ComputeFailed:
    """Have the application carry out a `Compute`."""
    try:
        assignments = await application.compute(work)
    except Exception as error:
        # The assignor is the user's code: what it raises ends this member, not the loop.
        return ComputeFailed(now=anyio.current_time(), token=work.token, error=error)
    return Computed(now=anyio.current_time(), token=work.token, assignments=assignments)


class PollTimer:
    """Detects an application that does not poll in time, and so keeps partitions from others."""

    def __init__(self, application: Application, ran: Callable[[], float]) -> None:
        """`ran` tells when the application's loop last ran."""
        self._application = application
        self._ran = ran
        self._applied = ChangeSignal()

    def on_assignment_applied(self) -> None:
        """Note that the application has applied an assignment."""
        self._applied.notify()

    async def run_out(self, group_id: str) -> None:
        """Return when the application has not polled in time."""
        while (due := self._application.poll_due_at(self._ran())) > anyio.current_time():
            # An application without an assignment need not poll; with one, it may be due sooner.
            await self._applied.wait(due)
        logger.warning(
            "group %s: leaving, as the application has stood still for max_poll_interval_ms"
            " (rebalance_timeout_ms, of a GroupMember)",
            group_id,
        )


class Driver:
    """One member of one group, running."""

    def __init__(
        self,
        cluster: Cluster,
        member: Member | ConsumerMember,
        application: Application,
        lag: LoopLag,
        history: History | None = None,
    ) -> None:
        self.member = member
        """The state, readable at any time; only `run` changes it."""
        self.closed = OneShotEvent()
        """Set once the member has left or failed."""
        self.fell_back = False
        """Whether it ended because its protocol is unavailable, and another one may be tried."""
        self._history = history or History()
        self._cluster = cluster
        self._application = application
        self._lag = lag
        self._over = False
        """Events are ignored."""
        self._wake_at = float("inf")
        self._polls: PollTimer
        self._clock: Callable[[], float]
        """Of the loop that `run` runs in."""
        self._unnamed: frozenset[UUID] = frozenset()
        """Topics whose names are to be looked up."""
        self._names_wanted: OneShotEvent
        """Set when there are others of these."""
        # Unbounded on purpose: each event answers an effect, so there are never more than those.
        self._events: Mailbox[DriverEvent] = Mailbox()
        self._work: list[Work] = []
        """For the application, in order."""
        self._served: OneShotEvent | None = None
        """While the application is at it: set when it has done all."""

    # ------------------------------------------------------------ what others ask

    @property
    def coordinator(self) -> Node | None:
        """The coordinator, while it is known."""
        found = self.member.coordinator
        return None if found is None else _node(found)

    @property
    def ownership(self) -> Ownership:
        """What it owns, and until when."""
        return self.member.ownership

    @property
    def last_heartbeat(self) -> float:
        """When the last heartbeat was sent, on the loop's clock; -inf before the first."""
        return self.member.heartbeat_sent_at or float("-inf")

    @property
    def member_id(self) -> str:
        """This member, as the coordinator calls it; "" before it has joined."""
        return self.member.member_id

    @property
    def generation_id(self) -> int:
        """The generation it is in, or is joining."""
        return self.member.generation_id

    @property
    def protocols(self) -> SupportedProtocols:
        """What it offers."""
        return self.member.protocols

    @property
    def leads(self) -> bool:
        """Whether this member computed the current assignment."""
        return self.member.leads

    def is_current(self, generation_id: int) -> bool:
        """Whether the generation is the one that it is in, with what was assigned in it."""
        return self.member.is_current(generation_id)

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator takes commits."""
        return self.member.may_commit

    @property
    def is_expelled(self) -> bool:
        """Whether it left because the application did not come back in time."""
        leaving = self.member.leaving
        return leaving is not None and leaving.lost

    async def confirm(self, partitions: Collection[TopicPartition], timeout: float) -> float:
        """Until when commits may be sent: the coordinator refuses those that come too late."""
        return float("inf")

    def rejoin(self, reason: str, protocols: SupportedProtocols | None = None) -> None:
        """Ask for a new generation, perhaps with other metadata."""
        self._ask(RejoinRequested(now=anyio.current_time(), reason=reason, protocols=protocols))

    def subscribe(self, topics: frozenset[str], pattern: str | None) -> None:
        """Have the coordinator assign of other topics; only of members that it assigns to."""
        names = tuple(sorted(topics))
        self._ask(Subscribed(now=anyio.current_time(), topics=names, pattern=pattern))

    def invalidate_coordinator(self, reason: str) -> None:
        """Look for the coordinator again: the one that is known is not to be trusted."""
        self._ask(CoordinatorInvalidated(now=anyio.current_time(), reason=reason))

    def leave(self, reason: str, *, leave_group: bool | None = None, lost: bool = False) -> None:
        """Leave the group, as `Leaving` has it; `closed` is set when that is done."""
        now = anyio.current_time()
        self._ask(Leaving(now=now, reason=reason, leave_group=leave_group, lost=lost))

    def _ask(self, event: DriverEvent) -> None:
        """Take an event from outside of `run`."""
        self._post(event)

    def _post(self, event: DriverEvent) -> None:
        if not self._over:
            self._events.put(event)

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Join, and stay until the member has left or failed."""
        self._clock = loop_clock()
        try:
            await self._be_member()
        finally:
            self.closed.set()

    async def _be_member(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._polls = PollTimer(self._application, self._ran)
                tasks.start_soon(self._watch_polls)
                if not isinstance(self.member, Member):
                    self._names_wanted = OneShotEvent()
                    tasks.start_soon(self._look_up_names)
                self._step(Started(now=self._clock(), jitter=random.random()), tasks)
                while not self.member.is_closed:
                    self._step(await self._next_event(), tasks)
                if self._served is not None:
                    await self._served.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._over = True

    async def _next_event(self) -> DriverEvent:
        pulse = self._clock() + self.member.config.session_timeout * _PULSE
        due = min(self._wake_at, pulse)
        event = await self._events.take(due)
        now = self._clock()
        self._lag.saw(now - due, now)
        if event is None:
            self._wake_at = float("inf")
            event = Woke(now=now, jitter=random.random())
        return event

    def _step(self, event: DriverEvent, tasks: TaskGroup) -> None:
        before = self.member
        self.member, effects = _advance(before, event)
        if self.member.attempts != before.attempts:
            self._note_attempts(before, event)
        self._observe(partial(self._history.stepped, Step(before, event, self.member, effects)))
        if self.member.phase is not before.phase:
            logger.debug(
                "group %s: %s -> %s", before.config.group_id, before.phase, self.member.phase
            )
        if self.member.ownership.acknowledged_at > before.ownership.acknowledged_at:
            self._application.on_lease_extended()
        for effect in effects:
            match effect:
                case Send():
                    tasks.start_soon(self._send, effect)
                case Revoke() | Lose():
                    self._application.on_generation_end(lost=isinstance(effect, Lose))
                    self._give(effect, tasks)
                case Assign() | Reconcile() | Compute():
                    self._give(effect, tasks)
                case LookUpNames(topic_ids=topic_ids):
                    self._unnamed = topic_ids
                    self._names_wanted.set()
                case ReportError(error=error):
                    cast(Assignee, self._application).on_error(error)
                case WakeAt(time=time):
                    self._wake_at = time
                case Fail(error=error):
                    self._application.on_fatal_error(error)
                case FallBack(error=error):
                    logger.info("group %s: %s", before.config.group_id, error)
                    self.fell_back = True
                case Leave():
                    pass  # the phase says so

    def _note_attempts(self, before: Member | ConsumerMember, event: DriverEvent) -> None:
        """Report an error code of the coordinator, and its recovery. A coordinator that does not
        answer is reported by the connection."""
        troubles, now, group_id = self._cluster.troubles, event.now, before.config.group_id
        if not self.member.attempts:
            troubles.succeeded((group_id, "membership"), now)
        elif isinstance(event, Replied) and (code := _refusal(event.message)):
            problem = Problem(
                subject=f"membership of group {group_id}",
                cause=str(BrokerError(code)),
                advice="check that the coordinator's broker is well, and __consumer_offsets with"
                " its leaders and replicas",
            )
            troubles.failed((group_id, "membership"), now, problem)

    async def _send(self, send: Send) -> None:
        event: DriverEvent
        sent = self._clock()
        try:
            if send.coordinator is None:
                with anyio.fail_after(send.timeout):
                    answer = await self._cluster.request_any(send.request)
            else:
                broker = self._cluster.broker(_node(send.coordinator))
                connection_id = _CONNECTION[send.route]
                await broker.ready(connection_id)
                if not self.member.awaits(send.token):
                    # The request may be outdated: it would report a partition that was added since
                    # as released, and the coordinator would assign it to another member.
                    return
                answer = await broker.request(
                    send.request,
                    connection_id=connection_id,
                    timeout=send.timeout,
                    overdue=_OVERDUE_REBALANCE
                    if isinstance(send.request, _Rebalancing)
                    else _OVERDUE,
                )
        except TimeoutError:
            error = RequestTimeoutError(f"no broker answered within {send.timeout:g} s")
            event = SendFailed(
                now=self._clock(), jitter=random.random(), token=send.token, error=error
            )
        except KafkaGroupError as error:
            logger.debug("group %s: %s", self.member.config.group_id, error)
            event = SendFailed(
                now=self._clock(), jitter=random.random(), token=send.token, error=error
            )
        else:
            self._measure(send.request, answer, sent)
            event = Replied(
                now=self._clock(), jitter=random.random(), token=send.token, message=answer
            )
        self._post(event)

    async def _watch_polls(self) -> None:
        await self._polls.run_out(self.member.config.group_id)
        self.leave("the application stopped polling", lost=True)

    def _observe(self, look: Callable[[], object]) -> None:
        """Show the history something."""
        look()

    def _ran(self) -> float:
        """When the application's loop last ran."""
        return self._clock()

    def _measure(self, request: object, answer: Any, sent: float) -> None:
        meters = self._history.meters
        match request:
            case HeartbeatRequest():
                meter = meters.heartbeat
            case JoinGroupRequest() if not answer.error_code:
                meter = meters.join
            case SyncGroupRequest() if not answer.error_code:
                meter = meters.sync
            case _:
                epoch = getattr(request, "member_epoch", -1)
                if epoch < 0 or (epoch == 0 and answer.error_code):
                    return
                # KIP-848: a heartbeat of epoch 0 joins.
                meter = meters.heartbeat if epoch else meters.join
        now = self._clock()
        meter.record(now, now - sent)

    def _give(self, work: Work, tasks: TaskGroup) -> None:
        self._work.append(work)
        if self._served is None:
            self._served = OneShotEvent()
            tasks.start_soon(self._serve_application, self._served)

    async def _serve_application(self, served: OneShotEvent) -> None:
        application = self._application
        while self._work:
            match work := self._work.pop(0):
                case Revoke(token=token, deadline=deadline):
                    offer = await application.revoke(deadline)
                    self._post(Revoked(now=anyio.current_time(), token=token, protocols=offer))
                case Lose(token=token, reason=reason):
                    offer = await application.lose(reason)
                    self._post(Revoked(now=anyio.current_time(), token=token, protocols=offer))
                case Assign(generation=generation):
                    await self._assign(generation)
                case Reconcile(token=token, generation=generation):
                    if await self._assign(generation):
                        self._post(AssignmentApplied(now=anyio.current_time(), token=token))
                case Compute():
                    self._post(await computed(application, work))
        self._served = None
        served.set()

    async def _assign(self, generation: GenerationInfo) -> bool:
        """Have the application apply an assignment; return whether it did."""
        failure: Exception | None = None
        try:
            await self._application.assign(generation)
        except KafkaGroupError as error:
            # Usually the leader's bytes are no assignment.
            failure = error
            self._post(AssignFailed(now=anyio.current_time(), error=error))
        self._polls.on_assignment_applied()
        if failure is None and (member := self.member).is_current(generation.generation_id):
            now = anyio.current_time()
            self._observe(partial(self._history.on_assignment_applied, now, member, generation))
        return failure is None

    async def _look_up_names(self) -> None:
        """Name the topics that are assigned by ids which the step cannot name."""
        pauses = Pauses(self._cluster.options)
        troubles, group_id = self._cluster.troubles, self.member.config.group_id
        while True:
            self._names_wanted = OneShotEvent()
            if not self._unnamed:
                pauses.reset()
                troubles.succeeded((group_id, "names"), self._clock())
                await self._names_wanted.wait()
                continue
            try:
                names = await self._cluster.names(self._unnamed)
            except (TransportError, RemoteProtocolError) as error:
                logger.info("group %s: names of topics: %s", self.member.config.group_id, error)
                names = {}
            if names:
                self._unnamed -= names.keys()
                self._post(TopicsNamed(now=anyio.current_time(), names=names))
            else:
                # A broker may not know a new topic yet.
                problem = Problem(
                    subject=f"assignment of group {group_id}",
                    cause=f"no broker knows topic {min(self._unnamed)}, of which it has partitions",
                    advice="check whether the topic was deleted, and that the brokers agree on it",
                )
                troubles.failed((group_id, "names"), self._clock(), problem)
                await self._names_wanted.wait(anyio.current_time() + pauses.next())


def _advance(
    member: Member | ConsumerMember, event: DriverEvent
) -> tuple[Member | ConsumerMember, Sequence[Effect | ConsumerEffect]]:
    """Step the member by its own protocol."""
    if isinstance(member, Member):
        return classic.step(member, cast(Event, event))
    # On use: most members are classic, and importing a consumer must not wait for this.
    from kafkagroup.member import consumer_protocol

    return consumer_protocol.step(member, cast(ConsumerEvent, event))


def _refusal(answer: Any) -> int:
    """The error code of an answer to a member; 0 for none."""
    if isinstance(answer, FindCoordinatorResponse):
        if not answer.coordinators:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = answer.coordinators[0]
    code: int = getattr(answer, "error_code", 0)
    return code


def _node(coordinator: Coordinator) -> Node:
    return Node(coordinator.node_id, coordinator.host, coordinator.port)
