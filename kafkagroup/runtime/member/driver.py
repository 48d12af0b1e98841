"""Runs a member of a group that Kafka coordinates: sends what its steps request.

Each request has a task of its own, so that a JoinGroup in the coordinator's purgatory delays
nothing.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import anyio

from kafkagroup.errors import (
    BrokerError,
    ErrorCode,
    KafkaGroupError,
    RequestTimeoutError,
)
from kafkagroup.member.consumer_vocabulary import (
    FallBack,
    LookUpNames,
    Reconcile,
    TopicsNamed,
)
from kafkagroup.member.vocabulary import (
    Assign,
    AssignFailed,
    AssignmentApplied,
    BaseEvent,
    Coordinator,
    CoordinatorInvalidated,
    Fail,
    FindCoordinator,
    GenerationInfo,
    Leave,
    Replied,
    ReportError,
    Route,
    Send,
    SendFailed,
)
from kafkagroup.runtime.member.history import History, Step
from kafkagroup.runtime.member.interfaces import Application
from kafkagroup.runtime.member.loop import MemberLoop
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import CoordinatedProtocol, CoordinatedState
from kafkagroup.transport.broker import MAIN, NO_RESPONSE, OverdueReport
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kafkagroup.member.consumer_target import TargetChange
    from kafkagroup.runtime.member.topic_names import TopicNames

__all__ = ["Driver"]

C = TypeVar("C", bound=CoordinatedState)

logger = logging.getLogger(__name__)

_RebalanceRequest = JoinGroupRequest | SyncGroupRequest
"""Requests that the coordinator holds: JoinGroup until all members have joined, SyncGroup until the
leader has sent the assignment."""

# What to report while a request stays in flight for long. A rebalance may take a while, so it is
# reported later than others, and `health()` has a finding of its own for it.
_OVERDUE = OverdueReport(NO_RESPONSE.advice, extra_wait=0.0)
_OVERDUE_REBALANCE = OverdueReport(
    "either the coordinator hangs, or another member of the group does not rejoin: the coordinator"
    " waits for it as long as its rebalance timeout",
    extra_wait=20.0,
    has_own_finding=True,
)

_INSTANCE_HELD = (
    "another member has this group_instance_id: give each member its own, or stop the other one;"
    " a member that crashed, or that got no response to its join from a broker before Kafka 4.0,"
    " keeps it until its session ends"
)

_EXPLAINED = frozenset(
    (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
    )
)
"""Codes of a refused join that do not say what to change: `_explain` looks that up."""

_CONNECTION = {Route.COORDINATOR: "group", Route.SEPARATE_CONNECTION: MAIN}
"""The route of a request -> the id of the broker's connection that sends it. A separate connection
is another one than "group", on which a JoinGroup in purgatory holds up later requests."""


class Driver(MemberLoop[C]):
    """A member of a group that Kafka coordinates, running.

    `_now` is the lease clock, that of the member's events; `_loop_now` is the loop's, that of
    reports and metrics.
    """

    _protocol: CoordinatedProtocol[C]

    def __init__(
        self,
        cluster: Cluster,
        protocol: CoordinatedProtocol[C],
        member: C,
        application: Application,
        loop_delay: LoopDelay,
        log: MembershipLog,
        history: History,
    ) -> None:
        super().__init__(protocol, member, application, log, loop_delay.record)
        self._history = history
        self._cluster = cluster
        self._loop_delay = loop_delay
        self._explained: BrokerError | None = None
        """The last refused join, as an error that tells more than its code."""
        self._rebalance_request: anyio.CancelScope | None = None
        """The scope of the task with the JoinGroup or SyncGroup in flight; None for none."""
        self._topic_names: TopicNames
        """Set when `run` starts, for a protocol that looks up names."""
        cluster.coordinators.watch(member.config.group_id, self._on_coordinator_found)

    # ------------------------------------------------------------ called from outside `run`

    @property
    def coordinator(self) -> Node | None:
        """The coordinator; None while it is unknown."""
        found = self.member.coordinator
        return None if found is None else _node_of(found)

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
    def may_be_known(self) -> bool:
        """Whether the coordinator may still have this member, or hold its instance id. Always False
        for the classic protocol, where the next member joins under a new id."""
        return self.member.may_be_known

    async def confirm(self, partitions: Collection[TopicPartition], deadline: float) -> float:
        """Return infinity, as the time until which commits may be sent: the coordinator itself
        refuses late ones."""
        return float("inf")

    def invalidate_coordinator(self, reason: str) -> None:
        """Look up the coordinator again before the next request."""
        self._post_from_outside(CoordinatorInvalidated(now=self._now(), reason=reason))

    def _on_coordinator_found(self, found: Node | None) -> None:
        """Have the member look up its coordinator again, if a commit or another request has found
        that it moved. `found`: where it is now; None if all brokers were forgotten."""
        if self.coordinator not in (None, found):
            reason = "another request found that it moved" if found else "all brokers are forgotten"
            self.invalidate_coordinator(reason)

    # ------------------------------------------------------------ running

    def _start_tasks(self, tasks: TaskGroup) -> None:
        if (topic_names := self._protocol.topic_names) is not None:
            group_id = self.member.config.group_id
            self._topic_names = topic_names(
                self._cluster, group_id, self._log.name, self._on_topics_named
            )
            tasks.start_soon(self._topic_names.run)

    def _on_topics_named(self, names: Mapping[UUID, str]) -> None:
        self._post(TopicsNamed(now=self._now(), names=names))

    def _on_step(self, before: C, event: BaseEvent, effects: Sequence[object]) -> None:
        if self.member.attempts != before.attempts:
            self._report_trouble(before, event)
        self._call_history(
            partial(
                self._history.on_step, Step(before, event, self.member, effects, self._loop_now())
            )
        )
        if before.coordinator is not None and self.member.coordinator is None:
            node, group_id = _node_of(before.coordinator), before.config.group_id
            self._cluster.coordinators.invalidate(group_id, node=node)

    def _perform(self, effect: object, tasks: TaskGroup) -> None:
        match effect:
            case FindCoordinator():
                tasks.start_soon(self._find_coordinator, effect)
            case Send(request=JoinGroupRequest() | SyncGroupRequest()):
                tasks.start_soon(self._send_rebalance_request, effect)
            case Send():
                tasks.start_soon(self._send, effect)
            case Assign() | Reconcile():
                self._add_work(effect, tasks)
            case LookUpNames(topic_ids=topic_ids):
                self._topic_names.look_up(topic_ids)
            case ReportError(error=error):
                self._application.on_error(self._explanation(error))
            case Fail(error=error):
                explained = self._explanation(error)
                self._application.on_fatal_error(explained)
                if self.member.is_closed:  # else `Leave` follows
                    self._log.left(str(explained), keeps_place=not self.member.leaves_group)
            case FallBack(error=error):
                logger.info("%s: joins by the classic protocol: %s", self._log.name, error)
                self.fell_back = True
            case Leave(doubt=doubt):  # `run` ends, because the phase is a closed one
                self._on_left(doubt)

    def _on_left(self, doubt: str) -> None:
        group_id = self.member.config.group_id
        # The next membership would not report the end of this one's failures.
        self._cluster.troubles.forget((group_id, "membership"))
        # Without a response to leaving, the coordinator may still have the member.
        self.unanswered_id = self.member.member_id if doubt else ""
        leaving = self.member.leaving
        reason = "" if leaving is None else leaving.reason
        self._log.left(reason, keeps_place=not self.member.leaves_group, doubt=doubt)

    def _report_trouble(self, before: C, event: BaseEvent) -> None:
        """Report that the coordinator returned an error code, or that requests succeed again. The
        connection reports a coordinator that does not respond."""
        troubles, now, group_id = self._cluster.troubles, self._loop_now(), before.config.group_id
        if not self.member.attempts:
            troubles.succeeded((group_id, "membership"), now)
        elif code := _error_code(event):
            problem = Problem(
                subject=f"membership of group {group_id}",
                cause=str(BrokerError(code)),
                advice=_INSTANCE_HELD
                if code == ErrorCode.UNRELEASED_INSTANCE_ID
                else "check that the coordinator's broker is well, and __consumer_offsets with its"
                " leaders and replicas",
            )
            troubles.failed((group_id, "membership"), now, problem)

    async def _find_coordinator(self, effect: FindCoordinator) -> None:
        try:
            with anyio.fail_after(effect.timeout):
                node = await self._cluster.coordinators.find(self.member.config.group_id)
        except (TimeoutError, KafkaGroupError) as error:
            self._post_failure(effect, error)
        else:
            self._post_reply(effect, Coordinator(node.node_id, node.host, node.port))

    async def _send_rebalance_request(self, send: Send) -> None:
        """Send a JoinGroup or SyncGroup, on a new connection if an earlier one has no response."""
        if self._rebalance_request is not None:
            # The member no longer waits for the earlier one. On its connection the coordinator
            # would read this request only after that response, which may not come.
            self._rebalance_request.cancel()
            broker = self._cluster.broker(_node_of(send.coordinator))
            await broker.disconnect(_CONNECTION[send.route])
        scope = self._rebalance_request = anyio.CancelScope()
        with scope:
            await self._send(send)
        if self._rebalance_request is scope:
            self._rebalance_request = None

    async def _send(self, send: Send) -> None:
        broker = self._cluster.broker(_node_of(send.coordinator))
        connection_id = _CONNECTION[send.route]
        try:
            with anyio.fail_after(send.timeout):
                await broker.ready(connection_id)
            if not self.member.awaits(send.token):
                # An outdated heartbeat lacks partitions that were added since: the coordinator
                # would take them as released, and assign them to other members.
                return
            sent_at = self._loop_now()
            response = await broker.request(
                send.request,
                connection_id=connection_id,
                timeout=send.timeout,
                lowest=send.lowest,
                overdue=_OVERDUE_REBALANCE
                if isinstance(send.request, _RebalanceRequest)
                else _OVERDUE,
            )
        except (TimeoutError, KafkaGroupError) as error:
            self._post_failure(send, error)
        else:
            self._measure(send.request, response, sent_at)
            if getattr(response, "error_code", 0) in _EXPLAINED:
                await self._explain(send, response)
            # The part of the step that takes too long for the loop: comparing a large target.
            prepare = self._protocol.preparation(self.member, response)
            run_in_thread = self._cluster.options.run_in_thread
            change = None if prepare is None else await run_in_thread(prepare)
            self._post_reply(send, response, change)

    def _post_failure(self, effect: FindCoordinator | Send, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            what = "no broker named the coordinator"
            if isinstance(effect, Send):
                what = "the connection to the coordinator was not ready"
            error = RequestTimeoutError(f"{what} within {effect.timeout:g} s")
        else:
            logger.debug("%s: %s", self._log.name, error)
        self._post(
            SendFailed(now=self._now(), jitter=random.random(), token=effect.token, error=error)
        )

    def _post_reply(
        self, effect: FindCoordinator | Send, message: object, change: TargetChange | None = None
    ) -> None:
        self._post(
            Replied(
                now=self._now(),
                jitter=random.random(),
                token=effect.token,
                message=message,
                sender=effect.coordinator if isinstance(effect, Send) else None,
                target_change=change,
            )
        )

    async def _explain(self, send: Send, response: Any) -> None:
        """Look up why the coordinator refuses a request to join: the error code says too little."""
        # Imported here: brokers rarely refuse a join.
        from kafkagroup.runtime.member import refused_joins

        code, request = response.error_code, send.request
        if code == ErrorCode.UNSUPPORTED_ASSIGNOR:
            assignor = getattr(request, "server_assignor", None) or ""
            message = getattr(response, "error_message", None)
            self._explained = refused_joins.refused_assignor(assignor, message)
        if not isinstance(request, JoinGroupRequest):
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

    def _call_history(self, report: Callable[[], object]) -> None:
        """Call the history. `ThreadedDriver` overrides this to call it in the application's
        loop."""
        report()

    def _measure(self, request: object, response: Any, sent_at: float) -> None:
        meters = self._history.meters
        match request:
            case HeartbeatRequest():
                meter = meters.heartbeat
            case JoinGroupRequest() if not response.error_code:
                meter = meters.join
            case SyncGroupRequest() if not response.error_code:
                meter = meters.sync
            case _:
                # KIP-848: a heartbeat of epoch 0 joins, one of an epoch below 0 leaves. Other
                # requests, such as LeaveGroup, have no epoch.
                epoch = getattr(request, "member_epoch", -1)
                if epoch < 0 or (epoch == 0 and response.error_code):
                    return
                meter = meters.heartbeat if epoch else meters.join
        now = self._loop_now()
        meter.record(now, now - sent_at)

    async def _call(self, effect: object) -> None:
        match effect:
            case Assign(generation=generation):
                await self._assign(generation)
            case Reconcile(token=token, generation=generation):
                if await self._assign(generation):
                    self._post(AssignmentApplied(now=self._now(), token=token))
            case _:
                await super()._call(effect)

    async def _assign(self, generation: GenerationInfo) -> bool:
        """Have the application apply an assignment; return whether it did."""
        failure: Exception | None = None
        try:
            await self._application.assign(generation)
        except KafkaGroupError as error:
            # Usually the leader's assignment cannot be decoded.
            failure = error
            self._post(AssignFailed(now=self._now(), error=error))
        # Also after a failure, which does no harm: the timer only reads again when a poll is due.
        self._poll_timer.on_assignment_applied()
        if failure is None and (member := self.member).is_current(generation.generation_id):
            now = self._loop_now()
            self._call_history(
                partial(self._history.on_assignment_applied, now, member, generation)
            )
        return failure is None


def _error_code(event: BaseEvent) -> int:
    """Return the error code with which a broker refused a member's request; 0 if the event has
    none."""
    match event:
        case Replied(message=message):
            code: int = getattr(message, "error_code", 0)
            return code
        case SendFailed(error=BrokerError(code=code)):
            return code
    return 0


def _node_of(coordinator: Coordinator) -> Node:
    return Node(coordinator.node_id, coordinator.host, coordinator.port)
