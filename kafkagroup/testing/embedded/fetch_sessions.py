"""Fetch sessions (KIP-227): one node remembers what a client reads, and tells it only news.

Which partitions a fetch is about, and which of them its answer holds, is decided only here; what is
read of them is `reads`' business. No I/O and no clock. Source: the fetch sessions of Apache Kafka
4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData

__all__ = ["FetchSession", "FetchSessions", "Place"]

_NONE, _FIRST, _LAST = 0, 0, -1
"""The id that stands for no session; the epochs that begin one and do without one."""

_BY_ID_SINCE = 13
_IDLE = 120.0
"""Seconds without a fetch after which a session makes room for another."""


class Place(NamedTuple):
    """A partition as the client names it: by its topic's name, or by its id."""

    topic: str
    topic_id: UUID
    partition: int


@attrs.define(eq=False)
class _Read:
    """A partition that a client reads, and what it was told of it."""

    asked: FetchPartition
    high_watermark: int = -1
    log_start: int = -1

    def take(self, data: PartitionData) -> bool:
        """Note what can be told now; whether it is news."""
        # Told again the next time, whatever it is then.
        wrong = bool(data.error_code) or data.diverging_epoch.epoch >= 0
        before = (self.high_watermark, self.log_start)
        self.high_watermark = -1 if wrong else data.high_watermark
        self.log_start = data.log_start_offset
        return wrong or bool(data.records) or before != (self.high_watermark, self.log_start)


@attrs.define(eq=False)
class FetchSession:
    """What one client reads of one node; with id 0 only for this one fetch."""

    session_id: int
    by_id: bool
    last_used: float
    epoch: int = 0
    """Of the last request."""
    _reads: dict[Place, _Read] = attrs.field(factory=dict)

    def change(self, request: FetchRequest) -> None:
        """Read what the request names too, from where it says, and no more what it forgets."""
        for topic in request.topics:
            for asked in topic.partitions:
                place = Place(topic.topic, topic.topic_id, asked.partition)
                self._reads.setdefault(place, _Read(asked)).asked = asked
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                self._reads.pop(Place(gone.topic, gone.topic_id, index), None)

    @property
    def reads_anything(self) -> bool:
        return bool(self._reads)

    def __iter__(self) -> Iterator[tuple[Place, FetchPartition]]:
        return ((place, read.asked) for place, read in tuple(self._reads.items()))

    def news(
        self, results: Iterable[tuple[Place, PartitionData]]
    ) -> list[tuple[Place, PartitionData]]:
        """Those that the client has to hear of: all the first time, then only what has changed."""
        told = []
        first = self.epoch <= _FIRST
        for place, data in results:
            read = self._reads.get(place)
            if read is None:
                continue
            if read.take(data) or first:
                told.append((place, data))
            if data.records and not first:
                # Last in line the next time, or it would leave no room for the others.
                self._reads[place] = self._reads.pop(place)
        return told


class FetchSessions:
    """The sessions of one node, the one that was idle longest first."""

    def __init__(self, new_id: Callable[[], int], slots: int) -> None:
        self._new_id = new_id
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}

    def clear(self) -> None:
        """Forget all, as a node does that dies."""
        self._sessions.clear()

    def open(self, request: FetchRequest, caller: Caller) -> FetchSession | ErrorCode:
        """The session that a fetch is of, which knows what is to be read; or why there is none."""
        by_id = caller.version >= _BY_ID_SINCE
        if request.session_epoch in (_FIRST, _LAST):
            self._sessions.pop(request.session_id, None)
            session_id = _NONE if request.session_epoch == _LAST else self._free_id(caller.now)
            session = FetchSession(session_id, by_id, caller.now)
            if session_id:
                self._sessions[session_id] = session
        else:
            found = self._sessions.get(request.session_id)
            if found is None:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if found.epoch + 1 != request.session_epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            if found.by_id != by_id:
                return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
            session = self._sessions[found.session_id] = self._sessions.pop(found.session_id)
            session.epoch += 1
            session.last_used = caller.now
        session.change(request)
        if session.epoch > _FIRST and not session.reads_anything:
            del self._sessions[session.session_id]
            session.session_id = _NONE
        return session

    def _free_id(self, now: float) -> int:
        """An id for a new session; none while all slots are taken by sessions in use."""
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or oldest.last_used + _IDLE > now:
                return _NONE
            del self._sessions[oldest.session_id]
        return self._new_id()
