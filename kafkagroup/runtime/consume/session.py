"""What the tasks of one running consumer share.

Each part has a file of its own: the member, the commits, the errors, the polls, the close.
`Session` joins them where a change of one must wake a task or end the delivery permit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.clock import LeaseClock, current_time, lease_clock
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.delivery_permit import DeliveryPermit
from kafkagroup.consume.partitions import offset_of
from kafkagroup.errors import (
    IllegalStateError,
    NoOffsetError,
    NotAssignedError,
    OffsetOutOfRangeError,
)
from kafkagroup.options import ConsumerOptions
from kafkagroup.runtime.consume.close_sequence import CloseSequence
from kafkagroup.runtime.consume.committer import Committer
from kafkagroup.runtime.consume.current_member import CurrentMember
from kafkagroup.runtime.consume.error_channel import ErrorChannel
from kafkagroup.runtime.consume.poll_state import PollState
from kafkagroup.runtime.consume.processing import Processing
from kafkagroup.runtime.member.history import History
from kafkagroup.runtime.member.loop_delay import LoopDelay
from kafkagroup.runtime.member.membership_log import MembershipLog
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    from kafkagroup.transport.logins import Logins

__all__ = ["Session"]

_TASK_CHECK_INTERVAL = 0.1
"""Seconds between two checks of the task that processes the records in flight."""


_callbacks: ContextVar[frozenset[object]] = ContextVar("kafkagroup callbacks", default=frozenset())
"""The calls of rebalance listeners, of any consumers, that the current task belongs to."""


class Session:
    """Shared state of a consumer, from construction to close."""

    def __init__(self, options: ConsumerOptions, delivery: Delivery) -> None:
        self.options = options
        self.delivery = delivery
        self.member = CurrentMember()
        self.permit = DeliveryPermit()
        """Lets `Reader.ready` deliver records without checks; any change that `Reader.next` checks
        for ends it."""
        self.changed = ChangeSignal()
        """Notified whenever a waiting task should check again."""
        self.errors = ErrorChannel(self.notify)
        self.clock: Callable[[], float] = current_time
        """The loop's clock. `bind_clock` replaces it by one that does not look up the loop."""
        self.lease_clock = LeaseClock(current_time, current_time)
        """The lease clock, which `bind_clock` replaces, too."""
        self.polls = PollState(self.permit)
        self.processing = Processing()
        self._logins: Logins | None = None
        self.closing = CloseSequence(options.close_timeout, options.leave_group_on_close)
        self._is_draining = False
        self._callback: object | None = None
        """Identifies the call of a rebalance listener that runs now; None if none does."""
        self.loop_delay = LoopDelay(
            options.group_id or "", options.session_timeout, threaded=options.heartbeat_thread
        )
        """The delays of the event loop."""
        self.log = MembershipLog("consumer", options.client_id, options.group_id)
        """The log lines of the membership."""
        self.history = History()
        self.troubles = Troubles(self.history.feed.publish)
        self.committer = Committer(
            options,
            delivery,
            self.member,
            self.changed,
            self.history.meters.commit,
            lambda: self.is_in_callback,
            lambda: self.lease_clock.now(),  # not the method: `bind_clock` replaces the clock
        )

    def bind_clock(self) -> None:
        """Use the clocks of the loop that runs now."""
        self.lease_clock = lease_clock()
        self.clock = self.lease_clock.loop_now

    def bind_logins(self, logins: Logins) -> None:
        """Report refused credentials to the application, and try them again at its next poll after
        that."""
        self._logins = logins
        logins.watch(self.errors.report_refused_login)

    def resume_logins(self) -> None:
        """Note that the application polls: if the refusal of its credentials was raised before, try
        them again."""
        if self._logins is not None and not self.errors.has_refused_login:
            self._logins.suspended = None

    def begin_close(self) -> None:
        """Deliver no more records; a waiting application gets ClosedError."""
        self.closing.has_begun = True
        self.notify()

    def notify(self) -> None:
        """Wake all waiting tasks, and have the next record checked by `Reader.next`."""
        self.permit.end()
        self.changed.notify()

    def complete_in_flight(self) -> None:
        """Note that the application polls or commits: it has processed the records in flight."""
        self.delivery.acknowledgement.complete()
        if self._is_draining:
            self.notify()

    def drop_in_flight(self) -> None:
        """Forget the records in flight: the application will not process them."""
        self.delivery.acknowledgement.forget_all()
        if self._is_draining:
            self.notify()

    def on_poll(self) -> None:
        """Note a poll."""
        self.complete_in_flight()
        self.resume_logins()
        self.committer.on_poll()

    def raise_again(self, error: Exception) -> None:
        """Let the next poll raise an error again that a poll has raised, unless each poll raises it
        anyway. That of a partition is dropped if the application seeks, or the records before it
        come again: their poll raises it anew."""
        for owned, failure in self.delivery.awaiting_seek():
            if failure is error:
                if owned.failure is error:  # not that of a deserializer, which each poll raises
                    self.errors.fail_partition(owned, error)
                return
        is_raised_anyway = isinstance(error, NoOffsetError | OffsetOutOfRangeError)
        if error is not self.errors.failure and not is_raised_anyway:
            self.errors.report(error)

    @contextmanager
    def caller_waits(self) -> Iterator[None]:
        """A context in which the current task waits for the group: a rebalance does not wait for
        the records that this task has in flight, and they do not count as processed."""
        with self.processing.caller_waits():
            if self._is_draining:
                self.notify()
            yield

    @property
    def is_in_callback(self) -> bool:
        """Whether the current task runs a rebalance listener, or was started by one that runs."""
        return self._callback is not None and self._callback in _callbacks.get()

    def refuse_in_callback(self, call: str) -> None:
        """Raises: IllegalStateError if the current task runs a rebalance listener. The rebalance
        waits for the listener, and `call` would wait for the rebalance."""
        if self.is_in_callback:
            raise IllegalStateError(
                f"{call} in a rebalance callback would wait for that callback to return: call it"
                " after the rebalance, from another task"
            )

    @contextmanager
    def running_callback(self) -> Iterator[None]:
        """A context in which the current task runs a rebalance listener."""
        self._callback = object()
        # A task has a copy of the context of the one that started it.
        before = _callbacks.set(_callbacks.get() | {self._callback})
        try:
            yield
        finally:
            _callbacks.reset(before)
            self._callback = None

    # ------------------------------------------------------------ ownership

    def note_lost(self, partitions: Collection[TopicPartition], reason: str) -> None:
        """Note partitions before they are released against the application's will."""
        self.committer.note_lost(partitions, reason)
        # The next record must be delivered by `Reader.next`, which notifies the committer of the
        # poll.
        self.permit.end()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at `offset`. Raises: ConfigurationError, NotAssignedError."""
        offset = offset_of(tp, offset)
        owned = self.delivery.owned.get(tp)
        if owned is None or owned.revoked:
            raise self.not_assigned(tp)
        self.delivery.seek(tp, offset)

    def not_assigned(self, tp: TopicPartition) -> NotAssignedError:
        """Return the error of a call for a partition that is not assigned."""
        is_early = self.member.driver is not None and not self.member.is_stable
        advice = (
            ": the group has not assigned partitions yet; await wait_assignment() first"
            if is_early
            else ""
        )
        return NotAssignedError(f"{tp} is not assigned to this consumer{advice}")

    @property
    def is_draining(self) -> bool:
        """Whether a task waits for the records in flight to be processed."""
        return self._is_draining

    async def drain(self, partitions: Collection[TopicPartition], deadline: float) -> None:
        """Wait until the records in flight of these partitions are processed, at most until
        `deadline`, and no longer than the task that took them may still process them."""
        self._is_draining = True
        self.permit.end()
        try:
            with anyio.move_on_at(min(deadline, self.closing.drain_deadline)):
                in_flight_among = self.delivery.acknowledgement.in_flight_among
                while in_flight_among(partitions) and self.processing.may_end:
                    # With a time limit: trio does not notify when the task that took the records
                    # ends.
                    await self.changed.wait(anyio.current_time() + _TASK_CHECK_INTERVAL)
        finally:
            self._is_draining = False
