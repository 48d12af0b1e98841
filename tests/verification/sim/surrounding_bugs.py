"""Planted bugs of clients that trust their surroundings; see `bugs`."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any
from unittest import mock

import anyio
import attrs
from anyio import to_thread

from kafkagroup.concurrency import clock
from kafkagroup.consume.delivery_permit import DeliveryPermit
from kafkagroup.errors import ErrorCode
from kafkagroup.member.vocabulary import Leaving
from kafkagroup.runtime.consume import reader as readers
from kafkagroup.runtime.offsets import group_offsets as offsets
from kafkagroup.transport import broker, logins, names, threads
from kafkagroup.transport import connection as connections
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatResponse
from kafkagroup.wire.messages.group import HeartbeatResponse

from .planting import (
    Bug,
    after_step,
    around,
    around_step,
    before_step,
    bug,
    left,
    replace,
    response_of,
)

__all__ = ["BUGS"]

BUGS: dict[str, Bug] = {}


# ------------------------------------------------------------------ logins


@bug(BUGS, "classic", "L15", kinds=["logins"])
def raises_what_no_broker_has_refused(stack: ExitStack) -> None:
    """The application gets each error of its source of credentials."""

    def make(failed: Any) -> Any:
        def faulty(self: Any, address: Any, error: Any, now: float) -> None:
            failed(self, address, error, now)
            self._report(error, now)

        return faulty

    around(stack, logins.Logins, "failed", make)


@bug(BUGS, "classic", "L15", "L2", kinds=["logins"])
def does_not_log_in_again_after_a_refusal(stack: ExitStack) -> None:
    """A client whose login was refused is of no use any more."""

    def suspend(self: Any, error: Any) -> None:
        vars(self)["suspended"] = error or vars(self).get("suspended")

    whole = property(lambda self: vars(self).get("suspended"), suspend)
    stack.enter_context(mock.patch.object(logins.Logins, "suspended", whole, create=True))


# ------------------------------------------------------------------ connections


@bug(BUGS, "classic", "L14", kinds=["silent_connections"])
def spends_a_call_on_one_connection(stack: ExitStack) -> None:
    """A connection that was idle is not checked, and an attempt may take as long as the call."""
    replace(stack, broker, "part_of", lambda timeout: timeout)
    replace(stack, offsets, "part_until", lambda deadline: deadline)
    replace(stack, connections.BrokerConnection, "is_doubtful", property(lambda self: False))


# ------------------------------------------------------------------ leaving


def _leaves_once(stack: ExitStack, protocol: str) -> None:
    def make(step: Any) -> Any:
        def faulty(before: Any, event: Any) -> Any:
            member, effects = step(before, event)
            if (before.phase.name, member.phase.name) != ("LEAVING", "DEPARTING"):
                return member, effects
            return left(step, member, event, effects)

        return faulty

    around_step(stack, protocol, make)


@bug(BUGS, "classic", "L12", kinds=["partings"])
def leaves_with_one_request(stack: ExitStack) -> None:
    """A member has closed when LeaveGroup was refused, or its response lost."""
    _leaves_once(stack, "classic")


@bug(BUGS, "consumer", "L12", kinds=["partings"])
def leaves_a_consumer_group_with_one_request(stack: ExitStack) -> None:
    """The same for the heartbeat by which a member of a consumer group leaves."""
    _leaves_once(stack, "consumer")


@bug(BUGS, "classic", "L12", kinds=["partings"])
def leaves_only_a_known_coordinator(stack: ExitStack) -> None:
    """A member that does not know its coordinator closes without leaving."""

    def make(step: Any) -> Any:
        def faulty(before: Any, event: Any) -> Any:
            member, effects = step(before, event)
            begins = member.phase.name == "DEPARTING" and before.phase.name != "LEAVING"
            if not begins or before.coordinator is not None:
                return member, effects
            return left(step, member, event, effects)

        return faulty

    around_step(stack, "classic", make)


@bug(BUGS, "classic", "L12", kinds=["guests"])
def does_not_wait_for_its_member_id(stack: ExitStack) -> None:
    """A member that closes during its first JoinGroup is gone before it gets an id (KIP-394)."""

    def change(member: Any, event: Any) -> Any:
        if isinstance(event, Leaving) and not member.member_id:
            event = attrs.evolve(event, deadline=event.now)
        return member, event

    before_step(stack, "classic", change)


@bug(BUGS, "consumer", "L13", kinds=["lost_joins"])
def does_not_release_its_own_join(stack: ExitStack) -> None:
    """A static member whose join was not answered joins again and again."""

    def change(member: Any, event: Any) -> Any:
        return attrs.evolve(member, can_release=False), event

    before_step(stack, "consumer", change)


# ------------------------------------------------------------------ clocks


@bug(BUGS, "classic", "S27", "S1", kinds=["suspends"])
def counts_a_lease_on_the_clock_of_its_loop(stack: ExitStack) -> None:
    """A lease stands still while the machine is suspended."""

    def make(init: Any) -> Any:
        def faulty(self: Any, now: Any, loop_now: Any) -> None:
            init(self, loop_now, loop_now)

        return faulty

    around(stack, clock.LeaseClock, "__init__", make)


def _lease_from_response(stack: ExitStack, protocol: str) -> None:
    def change(before: Any, event: Any, member: Any, effects: Any) -> Any:
        response = response_of(event, HeartbeatResponse, ConsumerGroupHeartbeatResponse)
        if response is None or not before.awaits(event.token):
            return member, effects
        is_rebalancing = response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        if not response.error_code or (is_rebalancing and not before.is_unsynced):
            timeout = member.config.session_timeout
            ownership = member.ownership.acknowledge(event.now, timeout)
            member = attrs.evolve(member, ownership=ownership)
        return member, effects

    after_step(stack, protocol, change)


@bug(BUGS, "classic", "S27", "S1")
def begins_its_lease_with_the_response(stack: ExitStack) -> None:
    """The lease runs from when a heartbeat is answered, not from when it was sent."""
    _lease_from_response(stack, "classic")


@bug(BUGS, "consumer", "S27", "S1")
def consumer_begins_its_lease_with_the_response(stack: ExitStack) -> None:
    """The same under KIP-848."""
    _lease_from_response(stack, "consumer")


@bug(BUGS, "classic", "S27", "S1")
def extends_its_lease_beyond_the_rebalance_timeout(stack: ExitStack) -> None:
    """Heartbeats during a rebalance extend the lease like others, though the coordinator removes a
    member that does not rejoin in time."""

    def change(before: Any, event: Any, member: Any, effects: Any) -> Any:
        response = response_of(event, HeartbeatResponse)
        is_due = response is not None and event.token == before.heartbeat_in_flight
        if is_due and response.error_code and not before.is_unsynced:
            sent_at, timeout = before.heartbeat_sent_at, before.config.session_timeout
            member = attrs.evolve(member, ownership=member.ownership.acknowledge(sent_at, timeout))
        return member, effects

    after_step(stack, "classic", change)


@bug(BUGS, "classic", "S27", kinds=["stalls"])
def delivers_a_backlog_without_looking_at_the_lease(stack: ExitStack) -> None:
    """Once a record was delivered, the next ones are, too, until something changes: a process that
    has stalled delivers one after its lease has expired."""

    def make(ready: Any) -> Any:
        def faulty(self: Any) -> Any:
            if self._permit.expires_at > -math.inf:
                self._permit.expires_at = math.inf
            return ready(self)

        return faulty

    around(stack, readers.Reader, "ready", make)


@bug(BUGS, "classic", "S27", kinds=["stalls"])
def delivers_for_a_moment_after_its_lease(stack: ExitStack) -> None:
    """The time until the next look at the lease is not limited by the lease."""

    def make(grant: Any) -> Any:
        def faulty(self: Any, until: float, ahead: float) -> None:
            grant(self, max(until, anyio.current_time() + 0.001 + ahead), ahead)

        return faulty

    around(stack, DeliveryPermit, "grant", make)


# ------------------------------------------------------------------ threads


@bug(BUGS, "classic", "L16", kinds=["busy_threads"])
def waits_for_a_name_that_it_knows(stack: ExitStack) -> None:
    """There is no fallback to the addresses of the last look-up."""

    class PatientJob(threads.Job[Any]):
        async def wait(self, until: float = math.inf) -> bool:
            return await super().wait()

    replace(stack, names, "Job", PatientJob)


@bug(BUGS, "classic", "L17", kinds=["busy_threads"])
def runs_its_jobs_in_threads_of_the_application(stack: ExitStack) -> None:
    """Long jobs run in anyio's worker threads."""

    async def shared(self: Any, work: Any) -> Any:
        return await to_thread.run_sync(work, abandon_on_cancel=True)

    replace(stack, threads.WorkerThreads, "__call__", shared)
