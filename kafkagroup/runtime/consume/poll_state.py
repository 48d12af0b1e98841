"""When the application polls, and whether it waits in the client.

A member that owns partitions must poll within `max_poll_interval_ms`. The heartbeat thread may read
these fields between any two statements, so the order in which they are written matters.
"""

from __future__ import annotations

from kafkagroup.consume.delivery_permit import DeliveryPermit

__all__ = ["PollState"]


class PollState:
    """The polls of one consumer. Times are on its loop's clock."""

    def __init__(self, permit: DeliveryPermit) -> None:
        """`permit` stores the time of the last poll: `Reader.ready` updates it there for each
        record that it delivers."""
        self.is_waiting = False
        """Whether the application waits in the client."""
        self.is_waiting_for_ownership = False
        """Whether the application waits because the ownership lease has expired."""
        self._permit = permit

    @property
    def last_poll_at(self) -> float:
        """When the application last entered or left the client."""
        return self._permit.last_poll_at

    def note_poll(self, now: float) -> None:
        """Note that the application polls, or does what is treated as a poll."""
        self._permit.note_poll(now)

    def begin_wait(self, *, owns: bool) -> None:
        """Note that the application waits in the client. `owns`: whether the member's ownership
        lease is valid. If so, the application waits for records; else until the lease is
        extended."""
        self.is_waiting_for_ownership = not owns  # first: it tells what `is_waiting` means
        self.is_waiting = True

    def end_wait(self, now: float) -> None:
        """Note that the application leaves the client."""
        # First: otherwise the heartbeat thread could see an application that does not wait, and the
        # time of its previous poll.
        self._permit.note_poll(now)
        self.is_waiting = self.is_waiting_for_ownership = False
