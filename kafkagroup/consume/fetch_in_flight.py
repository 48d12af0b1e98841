"""A fetch request in flight: which positions its response may advance. Pure.

A partition may be in two requests in flight, a long poll and an immediate fetch. The response that
comes first counts: it advances the position, so that the other response is for an earlier position.
An error counts only in the response to the later request: the earlier one may have gone to a former
leader. A partition that was revoked and assigned again at the same position adopts the long poll.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.types import TopicPartition

__all__ = ["FetchInFlight", "ImmediateFetchSchedule"]

_FIRST_PAUSE = 0.005
_MAX_PAUSE = 0.25
"""Seconds between immediate fetches of partitions that have nothing new."""
_GROWTH = 3
"""The factor by which each pause grows. It gives five fetches within the half second that a long
poll takes; a group that rebalances continuously sends these fetches for each assignment."""


class FetchInFlight:
    """One fetch request, from before it is sent until its response is processed."""

    __slots__ = ("_id", "_requested", "topic_ids")

    def __init__(self, fetch_id: int, partitions: Collection[OwnedPartition] = ()) -> None:
        """`fetch_id` is higher than that of every earlier request."""
        self._id = fetch_id
        self._requested: dict[TopicPartition, tuple[OwnedPartition, int, int]] = {}
        """The partitions of the request, each as it was assigned then, with its `fetch_offset` and
        its `checked_epoch` at that time."""
        self.topic_ids: dict[str, UUID] = {}
        """The id of each topic in the request, NO_ID where it is unknown."""
        self.add(partitions)

    def add(self, partitions: Collection[OwnedPartition]) -> None:
        """Add partitions, at their current positions, before the request is sent. Their topics are
        in `topic_ids`."""
        for owned in partitions:
            self._requested[owned.tp] = (owned, owned.fetch_offset, owned.checked_epoch)
            owned.note_fetch(self._id)

    @property
    def partitions(self) -> list[OwnedPartition]:
        """The partitions that the request asks for."""
        return [owned for owned, _, _ in self._requested.values()]

    def requests(self, tp: TopicPartition) -> bool:
        """Return whether the request asks for a partition."""
        return tp in self._requested

    def find(self, tp: TopicPartition) -> OwnedPartition | None:
        """Return the partition if the response counts for it: it was not revoked, the application
        has not called `seek`, no other leader was validated, and no other response had these
        records."""
        requested = self._requested.get(tp)
        return requested[0] if requested is not None and self.covers(requested[0]) else None

    def covers(self, owned: OwnedPartition) -> bool:
        """Return whether the response has the records that `owned` needs next."""
        requested = self._requested.get(owned.tp)
        return (
            0 < owned.first_fetch_id <= self._id  # the request is no older than the position
            and not owned.revoked
            and requested == (owned, owned.fetch_offset, owned.checked_epoch)
        )

    def is_of_current_leader(self, owned: OwnedPartition) -> bool:
        """Return whether no other leader was validated since the request was sent."""
        requested = self._requested.get(owned.tp)
        return (
            requested is not None and requested[0] is owned and requested[2] == owned.checked_epoch
        )

    def is_latest(self, owned: OwnedPartition) -> bool:
        """Return whether no later request asks for `owned`."""
        return owned.fetch_id == self._id

    def adopt(self, owned: OwnedPartition, leader_epoch: int, topic_id: UUID) -> bool:
        """Let the pending response count for a partition that was revoked and assigned again since
        the request was sent; return whether it does. The position, the topic id and the leader
        epoch must be those of the request.

        Without this, a group that rebalances again and again would send extra fetches, beside the
        long poll, for each assignment.
        """
        # Without an entry `before` is `owned` itself, which is not revoked: the result is False. It
        # is also False if a request for the new assignment exists: `owned.fetch_id`.
        before, offset, epoch = self._requested.get(owned.tp, (owned, 0, -1))
        if (
            not before.revoked
            or owned.fetch_id
            or (owned.fetch_offset, leader_epoch) != (offset, epoch)
            or topic_id != self.topic_ids.get(owned.tp.topic)
        ):
            return False
        owned.checked_epoch = epoch
        owned.note_fetch(self._id)
        self._requested[owned.tp] = (owned, offset, epoch)
        return True


class ImmediateFetchSchedule:
    """When to send the next immediate fetch for partitions that had no new records.

    A broker responds to an immediate fetch at once, so the client must pause between them.
    """

    def __init__(self) -> None:
        self._empty: set[OwnedPartition] = set()
        """The partitions for which the last response had no records."""
        self._fetch: FetchInFlight | None = None
        """The request of that response."""
        self._pause = _FIRST_PAUSE
        self.due_at = 0.0
        """When the partitions without new records are due, on the loop's clock."""

    def is_due(self, partitions: Collection[OwnedPartition], now: float) -> bool:
        """Return whether to fetch these partitions now: one of them is new to this schedule or has
        a new position, or the pause is over."""
        return now >= self.due_at or not all(
            o in self._empty and self._fetch is not None and self._fetch.covers(o)
            for o in partitions
        )

    def on_response(
        self,
        fetch: FetchInFlight,
        partitions: Collection[OwnedPartition],
        now: float,
        *,
        is_empty: bool,
    ) -> None:
        """Note for which of the requested `partitions` the response to `fetch` had no records.
        `now`: the time on the loop's clock. `is_empty`: whether the response had no records at
        all."""
        self._fetch = fetch
        # A partition that got records has another `fetch_offset` now: `fetch` does not cover it.
        self._empty = {o for o in partitions if fetch.covers(o)}
        self._pause = min(_GROWTH * self._pause, _MAX_PAUSE) if is_empty else _FIRST_PAUSE
        self.due_at = now + self._pause
