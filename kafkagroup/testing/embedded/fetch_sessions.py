"""Fetch sessions (KIP-227): a node remembers what a client fetches, and sends only the changes.

Only this module decides which partitions a fetch reads, and which of them its response contains;
`reads` reads them. No I/O and no clock. Source: the fetch sessions of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.wire.messages.fetch import FetchPartition, FetchRequest, PartitionData

__all__ = ["FetchSession", "FetchSessions", "FetchedPartition"]

_NO_SESSION, _INITIAL_EPOCH, _FINAL_EPOCH = 0, 0, -1
"""The session id that means no session; the epoch of a fetch that creates a session; the epoch of a
fetch that uses none."""

_FIRST_WITH_TOPIC_IDS = 13
"""The first version of Fetch that identifies topics by id."""
_EVICTABLE_AFTER = 120.0
"""Seconds without a fetch after which a session may be evicted."""


class FetchedPartition(NamedTuple):
    """A partition as the client identifies it: by topic name, or from Fetch v13 on by topic id. The
    other field is "" or the zero UUID."""

    topic: str
    topic_id: UUID
    partition: int


@attrs.define(eq=False)
class _SentState:
    """A fetched partition, and what was last sent about it."""

    requested: FetchPartition
    high_watermark: int = -1
    log_start: int = -1

    def update(self, data: PartitionData) -> bool:
        """Record what can be sent now. Returns whether it differs from what was sent last."""
        # After an error, -1 marks the partition as changed, so that the next response contains it.
        must_resend = bool(data.error_code) or data.diverging_epoch.epoch >= 0
        before = (self.high_watermark, self.log_start)
        self.high_watermark = -1 if must_resend else data.high_watermark
        self.log_start = data.log_start_offset
        return must_resend or bool(data.records) or before != (self.high_watermark, self.log_start)


@attrs.define(eq=False)
class FetchSession:
    """The partitions that one client fetches from one node. A session with id 0 serves a single
    fetch, and is not kept."""

    session_id: int
    uses_topic_ids: bool
    last_used_at: float
    """The time of its last request, on the clock of `Caller.now`."""
    epoch: int = 0
    """The epoch of its last request; 0 for a single fetch."""
    _sent: dict[FetchedPartition, _SentState] = attrs.field(factory=dict)

    def change(self, request: FetchRequest) -> None:
        """Add or update the partitions that the request names, and drop those it forgets."""
        for topic in request.topics:
            for requested in topic.partitions:
                partition = FetchedPartition(topic.topic, topic.topic_id, requested.partition)
                self._sent.setdefault(partition, _SentState(requested)).requested = requested
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self._sent.pop(FetchedPartition(forgotten.topic, forgotten.topic_id, index), None)

    @property
    def has_partitions(self) -> bool:
        return bool(self._sent)

    def __iter__(self) -> Iterator[tuple[FetchedPartition, FetchPartition]]:
        return ((partition, sent.requested) for partition, sent in tuple(self._sent.items()))

    def select_changed(
        self, results: Iterable[tuple[FetchedPartition, PartitionData]]
    ) -> list[tuple[FetchedPartition, PartitionData]]:
        """Return the results to send: all in the first response, then only the changed ones."""
        changed = []
        is_first = self.epoch <= _INITIAL_EPOCH
        for partition, data in results:
            sent = self._sent.get(partition)
            if sent is None:
                # Dropped from the session by a later request, while this fetch was pending.
                continue
            if sent.update(data) or is_first:
                changed.append((partition, data))
            if data.records and not is_first:
                # Moved to the end: the next fetch reads the others first, before its limit of bytes
                # is used up.
                self._sent[partition] = self._sent.pop(partition)
        return changed


class FetchSessions:
    """The sessions of one node, at most `slots`; the least recently used comes first."""

    def __init__(self, new_id: Callable[[], int], slots: int) -> None:
        self._new_id = new_id
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}

    def clear(self) -> None:
        """Drop all sessions, as the death of the node does."""
        self._sessions.clear()

    def open(self, request: FetchRequest, caller: Caller) -> FetchSession | ErrorCode:
        """Return the session of a fetch, updated with the partitions that the request adds and
        forgets; or an error."""
        uses_topic_ids = caller.version >= _FIRST_WITH_TOPIC_IDS
        if request.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            # Both epochs close the session that the request names, if any.
            self._sessions.pop(request.session_id, None)
            session_id = (
                _NO_SESSION if request.session_epoch == _FINAL_EPOCH else self._free_id(caller.now)
            )
            session = FetchSession(session_id, uses_topic_ids, caller.now)
            if session_id:
                self._sessions[session_id] = session
        else:
            found = self._sessions.get(request.session_id)
            if found is None:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if found.epoch + 1 != request.session_epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            if found.uses_topic_ids != uses_topic_ids:
                return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
            # Moved to the end: the most recently used session.
            session = self._sessions[found.session_id] = self._sessions.pop(found.session_id)
            session.epoch += 1
            session.last_used_at = caller.now
        session.change(request)
        if session.epoch > _INITIAL_EPOCH and not session.has_partitions:
            # As in Kafka, a session that has no partitions left is closed.
            del self._sessions[session.session_id]
            session.session_id = _NO_SESSION
        return session

    def _free_id(self, now: float) -> int:
        """Return an id for a new session; 0 if all slots hold sessions in use. If there is no free
        slot, evict a session that is not in use."""
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or oldest.last_used_at + _EVICTABLE_AFTER > now:
                return _NO_SESSION
            del self._sessions[oldest.session_id]
        return self._new_id()
