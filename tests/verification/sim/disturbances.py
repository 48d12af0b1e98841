"""What the faults of `surroundings` do in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import anyio
import attrs

from kafkagroup.concurrency import clock
from kafkagroup.errors import ErrorCode
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded.faults import Action, Close, Fault, Swallow
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.group import LeaveGroupRequest
from kafkagroup.wire.messages.metadata import FindCoordinatorRequest
from kafkagroup.wire.messages.sasl import SaslAuthenticateRequest

from .checker.recorder import is_join
from .events import Ended, Event, Sent, StillCounted
from .groups import GroupView
from .login import Logins
from .loop import ReadyQueue
from .network import Agenda, Network
from .process import Process
from .schedule import GROUP, NODES, MemberPlan, Plan, PlannedAction
from .threads import SimulatedThreads

__all__ = ["Disturbances"]

_LOOK_AFTER = 1.5
"""Seconds after the end of a process until what it has sent has arrived, on slow links, too."""

_LOOK_AT_END = 0.1
"""The same at the end of a run, without any fault."""

_HIDDEN_BEFORE, _HIDDEN_AFTER = 2.5, 1.5
"""Seconds for which the coordinator is hidden: before the members close, so that all of them have
lost it, and then."""

_LOST: dict[str, Action] = {
    "unread": Close(before=True),
    "unanswered": Close(),
    "silent": Swallow(),
}


@attrs.define
class Disturbances:
    """Carries out these faults. `later` undoes something after some seconds, at the latest when the
    run is healed."""

    plan: Plan
    kafka: EmbeddedKafka
    network: Network
    agenda: Agenda
    group: GroupView
    logins: Logins
    threads: SimulatedThreads
    record_event: Callable[..., None]
    later: Callable[..., None]
    add_rule: Callable[[Fault], None]
    start_guest: Callable[[MemberPlan], Process]
    _ended: list[str] = attrs.field(factory=list)
    """Processes that have ended and were not looked for."""
    _awaited: dict[str, tuple[Process, PlannedAction]] = attrs.field(factory=dict)
    """Guest -> its process, and the action that ends it."""
    _joins: Counter[str] = attrs.field(factory=Counter)
    """Guest -> how many joins it has sent."""

    def do(self, action: PlannedAction) -> None:
        """Begin a fault."""
        getattr(self, f"_{action.what}")(action)

    def on_event(self, event: Event) -> None:
        """See to what follows from an event of the run."""
        if isinstance(event, Ended):
            self._ended.append(event.member)
            self.agenda.at(event.time + _LOOK_AFTER, self._look_for, event.member)
        elif isinstance(event, Sent) and event.member in self._awaited and is_join(event):
            self._on_join(event)

    # ------------------------------------------------------------ logging in

    def _login_fails(self, action: PlannedAction) -> None:
        self.logins.fail(action.member, action.code)
        self.later(action.seconds, self.logins.mend, action.member)

    def _broker_refuses_login(self, action: PlannedAction) -> None:
        refusal = ErrorCode.SASL_AUTHENTICATION_FAILED
        rule = self.kafka.fail(
            SaslAuthenticateRequest, refusal, times=None, node_id=action.node or None
        )
        self.add_rule(rule)
        self.later(action.seconds, rule.stop)

    # ------------------------------------------------------------ silence

    def _drop_idle(self, action: PlannedAction) -> None:
        self.network.idle_limit = action.seconds
        self.later(self.plan.heal, self._keep_idle)

    def _keep_idle(self) -> None:
        self.network.idle_limit = float("inf")

    # ------------------------------------------------------------ threads

    def _slow_threads(self, action: PlannedAction) -> None:
        self.threads.slow[action.member] = float(action.count)
        self.later(action.seconds, self.threads.slow.pop, action.member, None)

    def _slow_names(self, action: PlannedAction) -> None:
        until = min(action.at + action.seconds, self.plan.heal)
        self.threads.hangs_until[action.member] = until

    # ------------------------------------------------------------ joining

    def _lose_join(self, action: PlannedAction) -> None:
        """Lose the responses to joins of static members of a consumer group."""

        def is_static_join(request: Any) -> bool:
            return request.member_epoch == 0 and request.instance_id is not None

        rule = self.kafka.fail(
            ConsumerGroupHeartbeatRequest, Close(), times=action.count, when=is_static_join
        )
        self.add_rule(rule)
        self.later(action.seconds, rule.stop)

    def _pass_by(self, action: PlannedAction) -> None:
        """Start a guest, which ends when it has sent its first or second join."""
        name = f"g{len(self._joins) + 1}"
        self._joins[name] = 0
        for node in range(1, NODES + 1):
            self.network.link(name, node).delay = action.seconds
        like = self.plan.members[0]
        guest = self.start_guest(attrs.evolve(like, name=name, instance=None, leave=None))
        self._awaited[name] = guest, action

    def _on_join(self, event: Sent) -> None:
        guest, action = self._awaited[event.member]
        self._joins[event.member] += 1
        if self._joins[event.member] == action.count:
            end = guest.cancel if action.code == "cancel" else guest.stop
            self.agenda.at(event.time, end)

    def end_guests(self) -> None:
        """End those whose joins nobody has seen."""
        for guest, _ in self._awaited.values():
            guest.stop()

    # ------------------------------------------------------------ leaving

    def _part_badly(self, action: PlannedAction) -> None:
        """Let the next requests fail with which a member leaves."""
        self.later(action.seconds, self._fail_leaving(action.code, action.count, action.member))

    def _fail_leaving(self, how: str, times: int, slot: str = "") -> Callable[[], None]:
        response = _LOST.get(how) or ErrorCode[how]
        seen: Counter[str] = Counter()

        def is_hit(request: Any) -> bool:
            member_id = _leaver(request)
            if member_id is None or not self._is_of(slot, member_id):
                return False
            seen[member_id] += 1
            return seen[member_id] <= times

        rules = [
            self.kafka.fail(api, response, times=None, when=is_hit)
            for api in (LeaveGroupRequest, ConsumerGroupHeartbeatRequest)
        ]

        def stop() -> None:
            for rule in rules:
                rule.stop()

        return stop

    def _is_of(self, slot: str, member_id: str) -> bool:
        """Whether a member id is of this slot; any is without one."""
        return not slot or any(
            member_id in self.group.counted(name)
            for name in {socket.process for socket in self.network.sockets.values()}
            if name.partition(".")[0] == slot
        )

    async def part(self) -> None:
        """Let the end of all memberships meet what the plan says."""
        if self.plan.parting == "hidden":
            rule = self.kafka.fail(
                FindCoordinatorRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE, times=None
            )
            cluster = self.kafka._cluster
            others = sorted(cluster.live_ids)
            self.kafka.move_coordinator(GROUP, others[self.plan.seed % len(others)])
            await anyio.sleep(_HIDDEN_BEFORE)
            self.agenda.at(anyio.current_time() + _HIDDEN_AFTER, rule.stop)
        elif self.plan.parting:
            self._fail_leaving(self.plan.parting, 1)

    async def look_for_all(self) -> None:
        """Look for all processes that have ended, at the end of the run."""
        await anyio.sleep(_LOOK_AT_END)
        for process in tuple(self._ended):
            self._look_for(process)

    def _look_for(self, process: str) -> None:
        """Look once whether the coordinator counts a process that has ended."""
        if process in self._ended:
            self._ended.remove(process)
            if ids := self.group.counted(process):
                self.record_event(StillCounted, member=process, ids=ids)


def _leaver(request: Any) -> str | None:
    """Return the id of the member that leaves by this request; None if it does not leave."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return str(request.member_id) if request.member_epoch < 0 else None
    ids = [request.member_id, *(member.member_id for member in request.members)]
    return next(filter(None, ids), None)


def count_suspends(stack: ExitStack, ready_queue: ReadyQueue) -> None:
    """Give clients a clock that counts suspends, as the system's does."""
    clocks = mock.patch.multiple(
        clock,
        _counting_clock=lambda: ready_queue.true_now,
        _is_real_time=lambda: True,
        create=True,
    )
    stack.enter_context(clocks)
