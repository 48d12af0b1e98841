"""A fetch request in flight: which positions its response may advance. Pure.

A partition may be in two requests in flight, a long poll and an immediate fetch. Only the response
to the later one is taken, and only while the position is the one that was asked for. A partition
that was revoked and assigned again at the same position takes the long poll over.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.types import TopicPartition

__all__ = ["FetchInFlight", "PollSchedule"]

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.25
"""Seconds between immediate fetches of partitions that have nothing new."""
_GROWTH = 3
"""How many times longer each pause is than the one before: five fetches within the half second that
a long poll takes. A group that rebalances without end makes them for each assignment."""


class FetchInFlight:
    """One request, from before it is sent until its response is taken."""

    __slots__ = ("_asked", "_id")

    def __init__(self, fetch_id: int, partitions: Collection[OwnedPartition] = ()) -> None:
        """`fetch_id`: higher than that of every earlier request."""
        self._id = fetch_id
        self._asked: dict[TopicPartition, tuple[OwnedPartition, int, int]] = {}
        self.ask(partitions)

    def ask(self, partitions: Collection[OwnedPartition]) -> None:
        """Ask for these too, where they are now: before the request is sent."""
        for owned in partitions:
            self._asked[owned.tp] = (owned, owned.fetch_offset, owned.checked_epoch)
            owned.fetch_id = self._id

    @property
    def partitions(self) -> list[OwnedPartition]:
        """What it asks for."""
        return [owned for owned, _, _ in self._asked.values()]

    def find(self, tp: TopicPartition) -> OwnedPartition | None:
        """Return the partition if the response counts for it: not if it was revoked, the
        application sought, another leader's log was checked, or a later request asks for it."""
        asked = self._asked.get(tp)
        return asked[0] if asked is not None and self.covers(asked[0]) else None

    def covers(self, owned: OwnedPartition) -> bool:
        """Whether the response brings what `owned` needs next."""
        asked = self._asked.get(owned.tp)
        return (
            owned.fetch_id == self._id
            and not owned.revoked
            and asked == (owned, owned.fetch_offset, owned.checked_epoch)
        )

    def adopt(self, owned: OwnedPartition, leader_epoch: int, topic_id: UUID) -> bool:
        """Have the response, which is yet to come, count for a partition that was revoked since and
        is assigned again; answer whether it does. Only for the same position in the same log, which
        is good with that leader.

        A group that rebalances again and again would otherwise have each assignment fetched beside
        the long poll.
        """
        before, offset, epoch = self._asked.get(owned.tp, (owned, 0, -1))
        if (
            not before.revoked
            or owned.fetch_id
            or (owned.fetch_offset, leader_epoch, topic_id) != (offset, epoch, before.topic_id)
        ):
            return False
        owned.topic_id, owned.checked_epoch, owned.fetch_id = topic_id, epoch, self._id
        self._asked[owned.tp] = (owned, offset, epoch)
        return True


class PollSchedule:
    """When to ask again, by immediate fetches, for partitions that had nothing new.

    A broker answers an immediate fetch at once, so the pauses that a long poll would make at the
    broker are made here.
    """

    def __init__(self) -> None:
        self._empty: set[OwnedPartition] = set()
        self._fetch: FetchInFlight | None = None
        self._pause = _FIRST_PAUSE
        self.due_at = 0.0
        """When those that had nothing new are due."""

    def is_due(self, partitions: Collection[OwnedPartition], now: float) -> bool:
        """Whether to ask for them now: one is new to this schedule, has a new position, or the
        pause is over."""
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
        empty: bool,
    ) -> None:
        """Note the partitions that the response to `fetch` brought nothing for; `empty` if it
        brought nothing at all."""
        self._fetch = fetch
        self._empty = {o for o in partitions if fetch.covers(o)}
        self._pause = min(_GROWTH * self._pause, _LONGEST_PAUSE) if empty else _FIRST_PAUSE
        self.due_at = now + self._pause
