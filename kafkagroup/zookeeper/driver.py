"""Run a member of a group in ZooKeeper: a session executes the requests of the member's steps.

A unit is what a member claims: a partition, or a generation (`member/zookeeper_nodes.py`). Each
request has a task of its own. kazoo's threads keep the session alive: a blocked event loop does not
end the membership, but the ownership lease may expire.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import anyio
import attrs
from anyio.abc import TaskGroup

from kafkagroup.errors import CommitFailedError, KafkaGroupError
from kafkagroup.member.vocabulary import (
    AssignFailed,
    AssignmentApplied,
    BaseEvent,
    Fail,
    Leave,
)
from kafkagroup.member.zookeeper import step
from kafkagroup.member.zookeeper_nodes import Paths, unit_of
from kafkagroup.member.zookeeper_state import LEASE_FRACTION, Member, Phase
from kafkagroup.member.zookeeper_vocabulary import (
    AssignUnits,
    Connect,
    Disconnect,
    ZooKeeperEvent,
)
from kafkagroup.runtime.member.classic_protocol import rejoin_requested
from kafkagroup.runtime.member.interfaces import Application
from kafkagroup.runtime.member.loop import MemberLoop
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import MembershipProtocol
from kafkagroup.transport.threads import post_to_loop
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition
from kafkagroup.zookeeper.session import Access, Session
from kafkagroup.zookeeper.trouble import TroubleReporter

__all__ = ["CLAIMS", "ZooKeeperDriver"]

_CONNECTING_INTERVAL = 2.0
"""Seconds between two checks whether a session has begun."""

_FOREIGN_INTERVAL = 5.0
"""Seconds between two looks for members of other libraries."""

CLAIMS = MembershipProtocol(
    step=step,
    change_metadata=rejoin_requested,
    coordinator_assigns=False,
    claims_partitions=True,
)
"""Members without a coordinator: each computes the assignment, and claims its partitions."""


class ZooKeeperDriver(MemberLoop[Member]):
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
        # Not `loop_delay.record`, which warns that heartbeats are late: kazoo's threads send them.
        super().__init__(CLAIMS, member, application, log, loop_delay.add_delay)
        self._hosts = hosts
        self._access = access
        self._paths = paths
        self._trouble = TroubleReporter(
            hosts, member.config.group_id, troubles, self._lease_clock.in_loop_time
        )
        self._session: Session | None = None

    # ------------------------------------------------------------ the state, and requests

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
        sent_at = self.member.confirm_sent_at  # 0.0 before the first
        return self._lease_clock.in_loop_time(sent_at) if sent_at else float("-inf")

    def invalidate_coordinator(self, reason: str) -> None:
        """Do nothing: there is no coordinator."""

    async def confirm(self, partitions: Collection[TopicPartition], deadline: float) -> float:
        """Check the claims of these partitions; return until when their offsets may be committed,
        on the lease clock. `deadline` is on the loop's clock.

        While the connection is lost, wait for the response: a member that must release partitions
        after a reconnection still has to send their last commit. Raises: CommitFailedError if a
        claim is not this member's, or cannot be checked.
        """
        session = self._session
        units = {unit_of(tp): tp for tp in partitions}
        with anyio.move_on_at(deadline):
            while session is not None and session is self._session and self.member.may_commit:
                sent_at = self._now()
                try:
                    held = await session.holds(units)
                except KafkaGroupError as error:
                    raise CommitFailedError(f"the claims cannot be checked: {error}") from error
                # If `held` is empty, the session was closed meanwhile.
                if not held or session is not self._session or not self.member.may_commit:
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
                # The response came too late to confirm anything: check again.
        raise CommitFailedError("the session with ZooKeeper has ended, or may have")

    def _post(self, event: BaseEvent) -> None:
        """Post an event with a random number for the step, which draws none itself."""
        super()._post(attrs.evolve(event, jitter=random.random()))

    # ------------------------------------------------------------ running

    async def _run_member(self) -> None:
        try:
            await super()._run_member()
        finally:
            self._trouble.on_end(self.member)
            if self._session is not None:
                self._session.close()

    def _start_tasks(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._watch_connecting)
        if self._paths.foreign:
            tasks.start_soon(self._watch_foreign_members)

    def _on_step(self, before: Member, event: BaseEvent, effects: Sequence[object]) -> None:
        self._trouble.on_event(before, event)

    def _perform(self, effect: Any, tasks: TaskGroup) -> None:
        match effect:
            case Connect(session=number):
                self._connect(number)
            case Disconnect():
                if self._session is not None:
                    self._session.close()
            case AssignUnits(units=units):
                if self.member.config.exclusive_generations and not units:
                    # The generation ends: the next one is claimed after the application's release.
                    self._application.on_generation_end(lost=False)
                self._add_work(effect, tasks)
            case Fail(error=error):
                self._application.on_fatal_error(error)
                self._log.left(str(error))
            case Leave():  # `run` ends, because the phase is a closed one
                leaving = self.member.leaving
                self._log.left("" if leaving is None else leaving.reason)
            case _:
                if self._session is not None:
                    tasks.start_soon(self._session.execute, effect)

    def _connect(self, number: int) -> None:
        config = self.member.config
        self._session = Session(
            number,
            self._hosts,
            config.session_timeout,
            self._paths,
            self.member.name,
            client=self._log.name,
            access=self._access,
            exclusive_generations=config.exclusive_generations,
            post=post_to_loop(),
            on_event=self._post,
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
        """Report members of other libraries that have started since this one registered: no claim
        keeps them out."""
        while True:
            await anyio.sleep(_FOREIGN_INTERVAL)
            if self._session is not None and self.member.phase is Phase.MEMBER:
                found = await self._session.foreign_members()
                if found is not None:
                    self._trouble.on_foreign_members(anyio.current_time(), found)

    # ------------------------------------------------------------ the application

    async def _call(self, effect: object) -> None:
        if isinstance(effect, AssignUnits):
            self._post(await self._assign(effect))
        else:
            await super()._call(effect)

    async def _assign(self, assign: AssignUnits) -> ZooKeeperEvent:
        try:
            if self.member.config.exclusive_generations and not assign.units:
                await self._application.revoke(self._lease_clock.in_loop_time(assign.deadline))
            else:
                await self._application.assign(assign.generation)
        except KafkaGroupError as error:
            return AssignFailed(now=self._now(), error=error)
        self._poll_timer.on_assignment_applied()
        return AssignmentApplied(now=self._now(), token=assign.token)
