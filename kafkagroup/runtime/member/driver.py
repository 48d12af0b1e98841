"""Runs a membership protocol: event -> step -> effects, over a cluster.

One task steps; each request has a task of its own, so that a JoinGroup in the coordinator's
purgatory delays nothing. One task calls the application (revoke, assign, compute), one call at a
time, in the order of the effects. Cancelling `run` leaves nothing behind.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import anyio

from kafkagroup._user_code import USER_ERRORS, user_error
from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.clock import lease_clock
from kafkagroup.concurrency.mailbox import Mailbox
from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.concurrency.unrequested_end import unrequested_end
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ErrorCode,
    KafkaGroupError,
    RequestTimeoutError,
)
from kafkagroup.member import classic
from kafkagroup.member.classic_state import Member
from kafkagroup.member.consumer_vocabulary import (
    ConsumerEffect,
    ConsumerEvent,
    FallBack,
    LookUpNames,
    Reconcile,
    Subscribed,
    TopicsNamed,
)
from kafkagroup.member.ownership import Ownership
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
    ReportError,
    Revoke,
    Revoked,
    Route,
    Send,
    SendFailed,
    Started,
    WakeAt,
    Woke,
)
from kafkagroup.runtime.member.history import History, Step
from kafkagroup.runtime.member.interfaces import Application, Running, SupportedProtocols
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.transport.broker import MAIN, NO_RESPONSE, OverdueReport
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.os_errors import lacks_descriptors
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorResponse

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.member.consumer_state import Member as ConsumerMember
    from kafkagroup.member.consumer_target import TargetChange

__all__ = ["Driver", "DriverEvent", "PollTimer", "run_compute"]

DriverEvent = Event | Subscribed | AssignmentApplied | TopicsNamed
Work = Revoke | Lose | Assign | Reconcile | Compute

logger = logging.getLogger(__name__)

_MAX_STEP_INTERVAL = 1 / 3
"""The driver steps at least this often, in session timeouts."""

_MAX_LOOKED_UP = 2_000
"""The limit of topics whose names one request asks for: a coordinator may assign 200,000."""

_RebalanceRequest = JoinGroupRequest | SyncGroupRequest
"""Requests that the coordinator holds until the other members have sent theirs."""

_OVERDUE = OverdueReport(NO_RESPONSE.advice, extra_wait=0.0)
_OVERDUE_REBALANCE = OverdueReport(
    "either the coordinator hangs, or another member of the group does not rejoin: the coordinator"
    " waits for it as long as its rebalance timeout",
    extra_wait=20.0,
    has_own_finding=True,
)

_INSTANCE_HELD = (
    "another member has this group_instance_id: give each member its own, or stop the other one;"
    " a member that crashed, or that got no answer to its join from a broker before Kafka 4.0,"
    " keeps it until its session ends"
)

_EXPLAINED = frozenset(
    (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
    )
)
"""The codes of a refused join that say too little."""

_COMPUTE_ATTEMPTS = 10
"""How often an assignment is computed while the process may open no more files."""

_CONNECTION = {Route.COORDINATOR: "group", Route.SEPARATE_CONNECTION: MAIN}


async def run_compute(
    application: Application, work: Compute, now: Callable[[], float]
) -> Computed | ComputeFailed:
    """Compute the group's assignment by the application's assignor. `now`: the member's clock."""
    for attempts_left in reversed(range(_COMPUTE_ATTEMPTS)):
        try:
            assignments = await application.compute(work)
            break
        except USER_ERRORS as error:
            if lacks_descriptors(error) and attempts_left:
                # Perhaps a module could not be imported: the whole group waits for this member.
                logger.warning("the assignment is computed again in 1 s: %s", error)
                await anyio.sleep(1.0)
                continue
            # The assignor is the user's code: its error fails this member, not the event loop.
            failure = user_error(error, f"the assignor {work.protocol_name!r}")
            return ComputeFailed(now=now(), token=work.token, error=failure)
    return Computed(now=now(), token=work.token, assignments=assignments)


class PollTimer:
    """Detects an application that does not poll in time, and so keeps partitions from others."""

    def __init__(
        self, application: Application, loop_ran_at: Callable[[], float], name: str
    ) -> None:
        """`loop_ran_at` returns when the application's loop last ran; `name`: the client's in
        log lines."""
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
            # An application without an assignment need not poll; with one, a poll is due sooner.
            await self._applied.wait(due)
        overdue = self._application.overdue_poll(self._loop_ran_at(), anyio.current_time())
        logger.warning(
            "%s: leaves the group, because %s; %s", self._name, overdue.detail, overdue.advice
        )
        return overdue.reason


class Driver(Running):
    """One member of one group, running."""

    def __init__(
        self,
        cluster: Cluster,
        member: Member | ConsumerMember,
        application: Application,
        loop_delay: LoopDelay,
        log: MembershipLog,
        history: History,
    ) -> None:
        self.member = member
        """The state. Any thread may read it; only `run` replaces it."""
        self.closed = OneShotEvent()
        """Set once the member has left or failed."""
        self.fell_back = False
        """Whether the member ended because the coordinator does not support its protocol, and may
        be replaced by a member of the classic protocol."""
        self.unanswered_id = ""
        """The id that the coordinator may still count, as leaving the group failed; else ""."""
        self._log = log
        self._history = history
        self._cluster = cluster
        self._application = application
        self._loop_delay = loop_delay
        self._is_over = False
        """Whether the member has ended: later events are dropped."""
        self._explained: BrokerError | None = None
        """The error of a refused join, with what the broker was asked about it."""
        self._rejoins_requested = self._rejoins_stepped = 0
        """The requests of a new generation; each is counted in the thread of its caller, and again
        in that of `run`."""
        self._wake_at = float("inf")
        self._poll_timer: PollTimer
        self._lease_clock = lease_clock()
        self._now = self._lease_clock.now
        """The member's time: that of its events, and of the deadlines in its effects."""
        self._clock = self._lease_clock.loop_now
        """The loop's clock. If a thread executes `run`, its loop has the same one."""
        self._unnamed_topics: frozenset[UUID] = frozenset()
        """Ids of assigned topics whose names must be looked up."""
        self._unnamed_changed: OneShotEvent
        """Set when `_unnamed_topics` has changed."""
        # Unbounded on purpose: nearly every event is the result of one effect.
        self._events: Mailbox[DriverEvent] = Mailbox()
        self._work: list[Work] = []
        """Calls of the application that wait for earlier ones."""
        self._work_done: OneShotEvent | None = None
        """While a task calls the application: set when all calls have returned."""

    # ------------------------------------------------------------ called from outside `run`

    @property
    def coordinator(self) -> Node | None:
        """The coordinator; None while it is unknown."""
        found = self.member.coordinator
        return None if found is None else _node_of(found)

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
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a stable member."""
        return self.member.heartbeat_interval

    @property
    def last_heartbeat(self) -> float:
        """When the last heartbeat was sent, on the loop's clock; -inf before the first."""
        sent_at = self.member.heartbeat_sent_at
        return self._lease_clock.in_loop_time(sent_at) if sent_at else float("-inf")

    @property
    def member_id(self) -> str:
        """The member id; "" before the member has joined."""
        return self.member.member_id

    @property
    def generation_id(self) -> int:
        """The generation (or member epoch) that the member is in or joins."""
        return self.member.generation_id

    @property
    def protocols(self) -> SupportedProtocols:
        """The supported protocols, with their metadata."""
        return self.member.protocols

    @property
    def leads(self) -> bool:
        """Whether this member leads a stable generation, and rejoins when the topics change."""
        return self.member.leads

    def is_current(self, generation_id: int) -> bool:
        """Whether this is the member's current generation, and has an assignment."""
        return self.member.is_current(generation_id)

    @property
    def follows_subscription(self) -> bool:
        """Whether the assignment was computed from the subscription that was requested last."""
        is_stepped = self._rejoins_stepped == self._rejoins_requested
        return is_stepped and self.member.follows_subscription

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator accepts commits of this member now."""
        return self.member.may_commit

    @property
    def is_expelled(self) -> bool:
        """Whether the member left because the application did not poll in time."""
        leaving = self.member.leaving
        return leaving is not None and leaving.lost

    @property
    def may_be_known(self) -> bool:
        """Whether the coordinator may count this member, or hold its instance id. Under KIP-848
        only: there a member that joins again keeps its id."""
        return getattr(self.member, "may_be_known", False)

    async def confirm(self, partitions: Collection[TopicPartition], timeout: float) -> float:
        """Return infinity: the coordinator itself refuses late commits."""
        return float("inf")

    def rejoin(self, reason: str, protocols: SupportedProtocols | None = None) -> None:
        """Request a new generation, with these protocols instead if given."""
        self._rejoins_requested += 1
        self._request(RejoinRequested(now=self._now(), reason=reason, protocols=protocols))

    def subscribe(self, topics: frozenset[str], pattern: str | None) -> None:
        """Replace the subscription. Only under KIP-848, where the coordinator assigns."""
        names = tuple(sorted(topics))
        self._rejoins_requested += 1
        self._request(Subscribed(now=self._now(), topics=names, pattern=pattern))

    def invalidate_coordinator(self, reason: str) -> None:
        """Look up the coordinator again before the next request."""
        self._request(CoordinatorInvalidated(now=self._now(), reason=reason))

    def leave(
        self,
        reason: str,
        *,
        leave_group: bool | None = None,
        lost: bool = False,
        deadline: float = math.inf,
    ) -> None:
        """Leave the group, as `Leaving` describes; `closed` is set when that is done."""
        now, left_by = self._now(), self._lease_clock.from_loop_time(deadline)
        self._request(
            Leaving(now=now, reason=reason, leave_group=leave_group, lost=lost, deadline=left_by)
        )

    def _request(self, event: DriverEvent) -> None:
        """Post an event from outside `run`; the subclass posts it to another thread."""
        self._post(event)

    def _post(self, event: DriverEvent) -> None:
        if not self._is_over:
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
        """Raises: IllegalStateError if the member has neither left nor failed."""
        if not self.member.is_closed:
            raise unrequested_end(f"group {self.member.config.group_id}: the membership")

    async def _run_member(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._poll_timer = PollTimer(
                    self._application, self._application_ran_at, self._log.name
                )
                tasks.start_soon(self._watch_polls)
                if not isinstance(self.member, Member):
                    self._unnamed_changed = OneShotEvent()
                    tasks.start_soon(self._look_up_names)
                self._step(Started(now=self._now(), jitter=random.random()), tasks)
                while not self.member.is_closed:
                    self._step(await self._next_event(), tasks)
                if self._work_done is not None:
                    await self._work_done.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._is_over = True

    async def _next_event(self) -> DriverEvent:
        step_by = self._now() + self.member.config.session_timeout * _MAX_STEP_INTERVAL
        due = self._lease_clock.in_loop_time(min(self._wake_at, step_by))
        event = await self._events.take(due)
        now = self._clock()
        self._loop_delay.record(now - due, now)
        if event is None:
            self._wake_at = float("inf")
            event = Woke(now=self._now(), jitter=random.random())
        return event

    def _step(self, event: DriverEvent, tasks: TaskGroup) -> None:
        before = self.member
        self.member, effects = _advance(before, event)
        if isinstance(event, RejoinRequested | Subscribed):
            self._rejoins_stepped += 1
        if self.member.attempts != before.attempts:
            self._note_attempts(before, event)
        self._call_history(
            partial(self._history.on_step, Step(before, event, self.member, effects, self._clock()))
        )
        self._log.on_step(before, self.member)
        if self.member.ownership.acknowledged_at > before.ownership.acknowledged_at:
            self._application.on_lease_extended()
        for effect in effects:
            match effect:
                case Send():
                    tasks.start_soon(self._send, effect)
                case Revoke() | Lose():
                    self._application.on_generation_end(lost=isinstance(effect, Lose))
                    self._add_work(effect, tasks)
                case Assign() | Reconcile() | Compute():
                    self._add_work(effect, tasks)
                case LookUpNames(topic_ids=topic_ids):
                    self._unnamed_topics = topic_ids
                    self._unnamed_changed.set()
                case ReportError(error=error):
                    self._application.on_error(self._explanation(error))
                case WakeAt(time=time):
                    self._wake_at = time
                case Fail(error=error):
                    self._application.on_fatal_error(self._explanation(error))
                    if self.member.is_closed:
                        self._log.left(str(error), keeps_place=not self.member.leaves_group)
                case FallBack(error=error):
                    logger.info("%s: %s", self._log.name, error)
                    self.fell_back = True
                case Leave(doubt=doubt):  # `run` ends, because the phase is a closed one
                    self._on_left(doubt)

    def _on_left(self, doubt: str) -> None:
        group_id = self.member.config.group_id
        # The next membership would not report the end of this one's failures.
        self._cluster.troubles.forget((group_id, "membership"))
        if doubt:
            self.unanswered_id = self.member_id
        leaving = self.member.leaving
        reason = "" if leaving is None else leaving.reason
        self._log.left(reason, keeps_place=not self.member.leaves_group, doubt=doubt)

    def _note_attempts(self, before: Member | ConsumerMember, event: DriverEvent) -> None:
        """Report an error code of the coordinator, and its recovery. A coordinator that does not
        respond is reported by the connection."""
        troubles, now, group_id = self._cluster.troubles, self._clock(), before.config.group_id
        if not self.member.attempts:
            troubles.succeeded((group_id, "membership"), now)
        elif isinstance(event, Replied) and (code := _error_code(event.message)):
            problem = Problem(
                subject=f"membership of group {group_id}",
                cause=str(BrokerError(code)),
                advice=_INSTANCE_HELD
                if code == ErrorCode.UNRELEASED_INSTANCE_ID
                else "check that the coordinator's broker is well, and __consumer_offsets with its"
                " leaders and replicas",
            )
            troubles.failed((group_id, "membership"), now, problem)

    async def _send(self, send: Send) -> None:
        event: DriverEvent
        sent_at = self._clock()
        try:
            if send.coordinator is None:
                with anyio.fail_after(send.timeout):
                    response = await self._cluster.request_any(send.request)
            else:
                broker = self._cluster.broker(_node_of(send.coordinator))
                connection_id = _CONNECTION[send.route]
                with anyio.fail_after(send.timeout):
                    await broker.ready(connection_id)
                if not self.member.awaits(send.token):
                    # Without this, an outdated request would report partitions that were added
                    # since as released, and the coordinator would assign them to other members.
                    return
                sent_at = self._clock()
                response = await broker.request(
                    send.request,
                    connection_id=connection_id,
                    timeout=send.timeout,
                    lowest=send.lowest,
                    overdue=_OVERDUE_REBALANCE
                    if isinstance(send.request, _RebalanceRequest)
                    else _OVERDUE,
                )
        except TimeoutError:
            error = RequestTimeoutError(f"no broker answered within {send.timeout:g} s")
            event = SendFailed(
                now=self._now(), jitter=random.random(), token=send.token, error=error
            )
        except KafkaGroupError as error:
            logger.debug("%s: %s", self._log.name, error)
            event = SendFailed(
                now=self._now(), jitter=random.random(), token=send.token, error=error
            )
        else:
            await self._explain(send, response)
            self._measure(send.request, response, sent_at)
            change = await self._target_change(response)
            event = Replied(
                now=self._now(),
                jitter=random.random(),
                token=send.token,
                message=response,
                target_change=change,
            )
        self._post(event)

    async def _target_change(self, response: Any) -> TargetChange | None:
        """Return what a large assignment changes (KIP-848), as a thread prepares it: with 200,000
        topics the step would block the loop, and with it the heartbeats of other members."""
        member = self.member
        if isinstance(member, Member):
            return None
        # Imported here: most members are classic, and importing a consumer must stay cheap.
        from kafkagroup.member.consumer_target import is_large, prepared

        assignment = getattr(response, "assignment", None)
        if assignment is None or not is_large(assignment):
            return None
        prepare = partial(prepared, assignment, member.target, member.names)
        return await self._cluster.options.run_in_thread(prepare)

    async def _explain(self, send: Send, response: object) -> None:
        """Look up why the coordinator refuses a request to join, if its code says too little."""
        code, request = _error_code(response), send.request
        if code not in _EXPLAINED:
            return
        # Imported here: brokers rarely refuse a join.
        from kafkagroup.runtime.member import refused_joins

        if code == ErrorCode.UNSUPPORTED_ASSIGNOR:
            assignor = getattr(request, "server_assignor", None) or ""
            message = getattr(response, "error_message", None)
            self._explained = refused_joins.refused_assignor(assignor, message)
        if not isinstance(request, JoinGroupRequest) or send.coordinator is None:
            return
        if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            self._explained = refused_joins.refused_protocols(request)
        elif code == ErrorCode.INVALID_SESSION_TIMEOUT:
            node = _node_of(send.coordinator)
            self._explained = await refused_joins.refused_session_timeout(
                self._cluster.broker(node), node.node_id, request.session_timeout_ms
            )

    def _explanation(self, error: Exception) -> Exception:
        """Return the error that tells more, if there is one with the same code."""
        explained = self._explained
        if explained and isinstance(error, BrokerError) and error.code == explained.code:
            return explained
        return error

    async def _watch_polls(self) -> None:
        self.leave(await self._poll_timer.wait_until_overdue(), lost=True)

    def _call_history(self, report: Callable[[], object]) -> None:
        """Call the history; the subclass does it in the application's loop."""
        report()

    def _application_ran_at(self) -> float:
        """Return when the application's loop last ran."""
        return self._clock()

    def _measure(self, request: object, response: Any, sent: float) -> None:
        meters = self._history.meters
        match request:
            case HeartbeatRequest():
                meter = meters.heartbeat
            case JoinGroupRequest() if not response.error_code:
                meter = meters.join
            case SyncGroupRequest() if not response.error_code:
                meter = meters.sync
            case _:
                epoch = getattr(request, "member_epoch", -1)
                if epoch < 0 or (epoch == 0 and response.error_code):
                    return
                # KIP-848: a heartbeat of epoch 0 joins.
                meter = meters.heartbeat if epoch else meters.join
        now = self._clock()
        meter.record(now, now - sent)

    def _add_work(self, work: Work, tasks: TaskGroup) -> None:
        self._work.append(work)
        if self._work_done is None:
            self._work_done = OneShotEvent()
            tasks.start_soon(self._run_work, self._work_done)

    async def _run_work(self, done: OneShotEvent) -> None:
        application = self._application
        while self._work:
            match work := self._work.pop(0):
                case Revoke(token=token, deadline=deadline):
                    protocols = await application.revoke(self._lease_clock.in_loop_time(deadline))
                    self._post(Revoked(now=self._now(), token=token, protocols=protocols))
                case Lose(token=token, reason=reason):
                    protocols = await application.lose(reason)
                    self._post(Revoked(now=self._now(), token=token, protocols=protocols))
                case Assign(generation=generation):
                    await self._assign(generation)
                case Reconcile(token=token, generation=generation):
                    if await self._assign(generation):
                        self._post(AssignmentApplied(now=self._now(), token=token))
                case Compute():
                    self._post(await run_compute(application, work, self._now))
        self._work_done = None
        done.set()

    async def _assign(self, generation: GenerationInfo) -> bool:
        """Have the application apply an assignment; return whether it did."""
        failure: Exception | None = None
        try:
            await self._application.assign(generation)
        except KafkaGroupError as error:
            # Usually the leader's assignment cannot be decoded.
            failure = error
            self._post(AssignFailed(now=self._now(), error=error))
        self._poll_timer.on_assignment_applied()
        if failure is None and (member := self.member).is_current(generation.generation_id):
            now = self._clock()
            self._call_history(
                partial(self._history.on_assignment_applied, now, member, generation)
            )
        return failure is None

    async def _look_up_names(self) -> None:
        """Look up the names of assigned topics that the member knows only by id."""
        pauses = RetryBackoff(self._cluster.options)
        troubles, group_id = self._cluster.troubles, self.member.config.group_id
        while True:
            self._unnamed_changed = OneShotEvent()
            if not self._unnamed_topics:
                pauses.reset()
                troubles.succeeded((group_id, "names"), self._clock())
                await self._unnamed_changed.wait()
                continue
            try:
                names = await self._cluster.topic_names(_some(self._unnamed_topics))
            except RETRIED_ERRORS as error:  # the connection reports it
                logger.info("%s: names of topics: %s", self._log.name, error)
                await self._unnamed_changed.wait(anyio.current_time() + pauses.next())
                continue
            if names:
                self._unnamed_topics = self._unnamed_topics.difference(names)
                self._post(TopicsNamed(now=self._now(), names=names))
            elif self._unnamed_topics:  # they may have been withdrawn meanwhile
                # A broker may not know a new topic yet.
                problem = Problem(
                    subject=f"assignment of group {group_id}",
                    cause="the coordinator has assigned partitions of the topic with the id"
                    f" {next(iter(self._unnamed_topics))}, which no broker knows",
                    advice="check whether the topic was deleted, and that the brokers agree on it",
                )
                troubles.failed((group_id, "names"), self._clock(), problem)
                await self._unnamed_changed.wait(anyio.current_time() + pauses.next())


def _advance(
    member: Member | ConsumerMember, event: DriverEvent
) -> tuple[Member | ConsumerMember, Sequence[Effect | ConsumerEffect]]:
    """Step the member by the function of its protocol."""
    if isinstance(member, Member):
        return classic.step(member, cast(Event, event))
    # Imported here: most members are classic, and importing a consumer must stay cheap.
    from kafkagroup.member import consumer_protocol

    return consumer_protocol.step(member, cast(ConsumerEvent, event))


def _some(topic_ids: frozenset[UUID]) -> frozenset[UUID]:
    """Return as many as one request names. At random: some may not be known to any broker."""
    if len(topic_ids) <= _MAX_LOOKED_UP:
        return topic_ids
    return frozenset(random.sample(tuple(topic_ids), _MAX_LOOKED_UP))


def _error_code(response: Any) -> int:
    """Return the error code of a response to a member; 0 for none."""
    if isinstance(response, FindCoordinatorResponse):
        if not response.coordinators:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        response = response.coordinators[0]
    code: int = getattr(response, "error_code", 0)
    return code


def _node_of(coordinator: Coordinator) -> Node:
    return Node(coordinator.node_id, coordinator.host, coordinator.port)
