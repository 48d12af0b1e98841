"""The generations of a `GroupMember`: from the driver, through a queue, to the application.

The queue ends a generation when the driver reports its end, when the lease expires, or when the
application closes the member. The driver joins the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import anyio

from kafkagroup._public import public
from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.clock import LeaseClock
from kafkagroup.errors import ConfigurationError
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.runtime.member.interfaces import Application, OverduePoll
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.runtime.member.protocol import SupportedProtocols
from kafkagroup.transport.origin import Origin

__all__ = ["Generation", "GenerationQueue", "Strategies"]

Strategies = Mapping[str, Callable[[Mapping[str, bytes]], Mapping[str, bytes]]]
"""Protocol name -> a function that computes the assignments. Its argument has each member's
metadata by member id, and its result each member's assignment by member id."""


@public
class Generation:
    """One generation of the group: its members, and this member's assignment."""

    def __init__(
        self,
        info: GenerationInfo,
        lease_expires_at: float,
        clock: LeaseClock,
        *,
        timed: bool,
    ) -> None:
        self._info = info
        self._origin = Origin(f"the member {info.member_id}")
        self._lease_expires_at = lease_expires_at
        """On the lease clock, `_clock`."""
        self._clock = clock
        self._timed = timed
        """Whether scopes have a deadline. With a heartbeat thread they have none: after a blocked
        loop resumes, the deadline would cancel them before the loop sees that it was extended."""
        self._scopes: set[anyio.CancelScope] = set()
        self._vacated = ChangeSignal()
        self.over = anyio.Event()
        """Set when the generation has ended, or may have ended. Finish the work, then request the
        next generation."""

    def __repr__(self) -> str:
        leads = ", leads" if self.is_leader else ""
        return f"<Generation {self.generation_id} of {self.member_id}{leads}>"

    @property
    def generation_id(self) -> int:
        """The generation's number, which grows with every rebalance."""
        return self._info.generation_id

    @property
    def member_id(self) -> str:
        """The member id that the coordinator gave to this member."""
        return self._info.member_id

    @property
    def leader_id(self) -> str:
        """The leader: the member that computed the assignments, or, as a static member that came
        back, got them as they were (KIP-814)."""
        return self._info.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this member is the leader, see `leader_id`."""
        return self._info.is_leader

    @property
    def protocol_name(self) -> str:
        """The name of the strategy that the coordinator picked."""
        return self._info.protocol_name

    @property
    def members(self) -> Mapping[str, bytes]:
        """Member id -> metadata on the leader; empty on other members."""
        return self._info.members

    @property
    def assignment(self) -> bytes:
        """What the leader assigned to this member."""
        return self._info.assignment

    @property
    def lease_expires_at(self) -> float:
        """When the coordinator may expire this member, on the loop's clock: one session timeout
        after the last acknowledged heartbeat was sent. Each acknowledged heartbeat extends it. If
        the system is suspended meanwhile, where the loop's clock stands still, it moves closer."""
        return self._clock.in_loop_time(self._lease_expires_at)

    @contextmanager
    def scope(self) -> Iterator[anyio.CancelScope]:
        """Run work that is cancelled when the generation ends: `with generation.scope(): ...`.

        It is cancelled at `lease_expires_at` at the latest: from then on the coordinator may have
        assigned this member's work to other members.

        Raises: IllegalStateError in another process or event loop than the member's.
        """
        self._origin.check()
        with anyio.CancelScope(deadline=self._deadline) as scope:
            self._scopes.add(scope)
            try:
                if self.over.is_set() or self._lease_left <= 0.0:
                    scope.cancel()
                yield scope
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._vacated.notify()

    @property
    def _deadline(self) -> float:
        return self.lease_expires_at if self._timed else float("inf")

    @property
    def _lease_left(self) -> float:
        return self._lease_expires_at - self._clock.now()

    def _extend(self, lease_expires_at: float) -> None:
        self._lease_expires_at = lease_expires_at
        for scope in self._scopes:
            scope.deadline = self._deadline

    async def _wait_vacated(self) -> None:
        """Wait until every scope has ended."""
        while self._scopes:
            await self._vacated.wait()

    def _end(self) -> None:
        self.over.set()
        for scope in self._scopes:
            scope.cancel()


class GenerationQueue(Application):
    """Receives generations from the driver, and passes them on to the application."""

    def __init__(
        self,
        strategies: Strategies,
        lease_expires_at: Callable[[], float],
        on_lease_expired: Callable[[], object],
        *,
        max_stall: float,
        timed: bool,
        log: MembershipLog,
    ) -> None:
        """`lease_expires_at`: returns the end of the member's lease, on the lease clock.
        `on_lease_expired`: called after a generation was ended because the lease has expired.
        `max_stall`: seconds that the event loop may be stalled while a thread sends heartbeats.
        `timed`: whether scopes have a deadline."""
        self.strategies = strategies
        self.lease_expires_at = lease_expires_at
        self._on_lease_expired = on_lease_expired
        self.max_stall = max_stall
        self.timed = timed
        self._log = log
        self._clock: LeaseClock
        """Set by `bind_clock`."""
        self.latest: Generation | None = None
        """The generation that began last."""
        self.current: Generation | None = None
        """The generation that the application took last and has not released."""
        self.pending: Generation | None = None
        """The latest generation, while the application has not taken it."""
        self.error: Exception | None = None
        """The error that ended the membership: every call raises it."""
        self._reported: Exception | None = None
        """An error for the application's next call that takes a generation to raise, once."""
        self.is_closed = False
        """Whether the member leaves, or has left, because the application closed it."""
        self.changed = ChangeSignal()

    def bind_clock(self, clock: LeaseClock) -> None:
        """Use the lease clock of the loop that runs; before the membership begins."""
        self._clock = clock

    @property
    def ongoing(self) -> Generation | None:
        """The generation that began last, unless it has ended. It ends here if its lease has
        expired: after a suspend the application may run before `watch_leases` does."""
        latest = self.latest
        if latest is None or latest.over.is_set():
            return None
        if self._lease_left() > 0.0:
            return latest
        latest._end()
        self._on_lease_expired()
        return None

    @property
    def is_ongoing(self) -> bool:
        """Whether the generation that began last has not ended and its lease lasts. Changes
        nothing: any thread may ask."""
        latest = self.latest
        if latest is None or latest.over.is_set():
            return False
        return self.lease_expires_at() > self._clock.now()

    def report(self, error: Exception) -> None:
        """Raise an error at the application's next call, once; a later error replaces one that was
        not raised yet. The membership continues."""
        self._reported = error
        self.changed.notify()

    @property
    def has_report(self) -> bool:
        """Whether the application has yet to get an error that was reported."""
        return self._reported is not None

    def raise_error(self) -> None:
        """Raise the error that ended the membership, or the one that was reported, if any."""
        if self.error is not None:
            raise self.error
        if (error := self._reported) is not None:
            self._reported = None
            # The call that raises has released the generation, which continues: the application
            # takes it again by the next call.
            self.pending = self.pending or self.ongoing
            raise error

    def take(self, generation: Generation) -> None:
        """Note that the application works on this generation."""
        self.current, self.pending = generation, None

    def release(self) -> None:
        """Release the generation that the application worked on."""
        self.current = None
        self.changed.notify()

    def close(self) -> None:
        """End the generation, and the application's iteration: the member leaves the group."""
        self.is_closed = True
        self.on_generation_end(lost=False)
        self.changed.notify()

    async def wait_vacated(self) -> None:
        """Wait until the work in the scopes of the latest generation has ended."""
        if self.latest is not None:
            await self.latest._wait_vacated()

    async def watch_leases(self) -> None:
        """End each generation whose lease expires; run until cancelled.

        The end cancels the scopes. If the coordinator responds later and still knows the member,
        the generation continues there, but here no work starts before the next one.
        """
        while True:
            if self.ongoing is None:
                await self.changed.wait()
            else:
                await self._clock.sleep_out(self._lease_left)

    def _lease_left(self) -> float:
        """Return for how many seconds the lease lasts; 0 or less if it has expired. While it lasts,
        move the deadlines of the scopes to its end."""
        until = self.lease_expires_at()
        left = until - self._clock.now()
        if left > 0.0 and self.latest is not None and not self.latest.over.is_set():
            # A deadline is on the loop's clock, which may have been stopped. And with a heartbeat
            # thread, the lease may have been extended without a call here so far.
            self.latest._extend(until)
        return left

    # ------------------------------------------------------------ called by the driver

    def on_generation_end(self, *, lost: bool) -> None:
        if self.latest is not None:
            self.latest._end()

    def on_lease_extended(self) -> None:
        if self.latest is not None:
            self.latest._extend(self.lease_expires_at())

    def on_error(self, error: Exception) -> None:
        self.report(error)

    def on_fatal_error(self, error: Exception) -> None:
        self.error = error
        self.on_generation_end(lost=True)
        self.changed.notify()

    def poll_due_at(self, loop_ran_at: float) -> float:
        return loop_ran_at + self.max_stall

    def overdue_poll(self, loop_ran_at: float, now: float) -> OverduePoll:
        limit = f"rebalance_timeout_ms is {self.max_stall * 1000:.0f}"
        return OverduePoll(
            reason="the application blocked its event loop",
            detail=f"its event loop has been blocked for {now - loop_ran_at:.1f} s; {limit}",
            advice="run what blocks it in a thread, for example with anyio.to_thread.run_sync, or"
            " raise rebalance_timeout_ms",
        )

    async def revoke(self, deadline: float) -> SupportedProtocols | None:
        # The driver has called `on_generation_end` before. But a generation that one step begins
        # and revokes was not in the queue then, and the application may have taken it since.
        self.on_generation_end(lost=False)
        self.pending = None
        with anyio.move_on_at(deadline):
            while self.current is not None:
                await self.changed.wait()
        self._log.generation_revoked()
        return None

    async def lose(self, reason: str) -> SupportedProtocols | None:
        # The scopes are cancelled. The assignment is lost already: do not wait for the work.
        self.on_generation_end(lost=True)
        self.pending = None
        self._log.generation_lost(reason)
        return None

    async def assign(self, generation: GenerationInfo) -> None:
        self.latest = self.pending = Generation(
            generation, self.lease_expires_at(), self._clock, timed=self.timed
        )
        self._log.generation_assigned(generation)
        self.changed.notify()

    async def compute(self, work: Compute) -> dict[str, bytes]:
        assigned = self.strategies[work.protocol_name](work.members)
        unknown = sorted(set(assigned) - set(work.members))
        if unknown:
            raise ConfigurationError(
                f"{work.protocol_name!r} assigned to unknown members: {unknown}"
            )
        return {member: bytes(assigned.get(member, b"")) for member in work.members}
