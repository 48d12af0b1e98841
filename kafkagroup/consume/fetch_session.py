"""Fetch sessions (KIP-227): after a first full request, only what has changed is said. Pure.

One session for each connection of long polls. An idle consumer of a thousand partitions then costs
the broker an empty request, not a thousand entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kafkagroup._values import frozen
from kafkagroup.errors import ErrorCode
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import FetchPartition
from kafkagroup.wire.schema import NO_ID

__all__ = ["FetchSession", "SessionRequest", "sessionless"]

_NO_SESSION = 0
_NO_SESSION_EPOCH = -1
_FIRST_EPOCH = 0
_LAST_EPOCH = 2**31 - 1

_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


@frozen
class SessionRequest:
    """What to put into the next fetch."""

    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, FetchPartition]
    """Those that are new or have changed."""
    forgotten: tuple[TopicPartition, ...]
    """Those that the broker shall not answer for any more."""
    topic_ids: Mapping[str, UUID]
    """Of every topic in the request."""
    by_id: bool
    """Whether the session names topics by their ids; else the request must be of a version that
    names them by name."""

    @property
    def full(self) -> bool:
        """Whether it says everything, and so needs nothing of an earlier session."""
        return self.epoch <= _FIRST_EPOCH


def sessionless(
    wanted: Mapping[TopicPartition, FetchPartition], topic_ids: Mapping[str, UUID]
) -> SessionRequest:
    """Return a request that belongs to no session and starts none.

    For fetches of a few partitions now and then: the broker's cache of sessions has a thousand
    slots for all its clients, and each session that is rarely used would take one from a session
    that saves something.
    """
    ids = {tp.topic: topic_ids.get(tp.topic, NO_ID) for tp in wanted}
    by_id = NO_ID not in ids.values()
    return SessionRequest(_NO_SESSION, _NO_SESSION_EPOCH, wanted, (), ids, by_id)


class FetchSession:
    """The session with one broker: what it was told last. Mutable: one step a fetch."""

    def __init__(self) -> None:
        self._id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._told: dict[TopicPartition, FetchPartition] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._by_id = True
        self.ends: dict[TopicPartition, int] = {}
        """Where each log ends, as the broker said last; it says so again only when that changes,
        whoever owns the partition by then."""

    def request(
        self, wanted: Mapping[TopicPartition, FetchPartition], topic_ids: Mapping[str, UUID]
    ) -> SessionRequest:
        """What to say so that the broker answers for exactly the `wanted` partitions."""
        ids = {tp.topic: topic_ids.get(tp.topic, NO_ID) for tp in wanted}
        by_id = NO_ID not in ids.values()
        if by_id != self._by_id or any(self._topic_ids.get(t, ids[t]) != ids[t] for t in ids):
            # A session goes by name or by id, never by both, and one that goes by name would take
            # a topic made anew for the old one.
            self.reset()
        told, known = self._told, self._topic_ids
        self._told, self._topic_ids, self._by_id = dict(wanted), ids, by_id
        if self._epoch == _FIRST_EPOCH:
            return SessionRequest(self._id, self._epoch, wanted, (), ids, by_id)
        # A partition that was just answered goes to the end of the broker's list, so that a busy
        # one does not starve the others; that happens by itself as its offset has changed.
        changed = {tp: entry for tp, entry in wanted.items() if told.get(tp) != entry}
        forgotten = tuple(tp for tp in told if tp not in wanted)
        for tp in forgotten:
            self.ends.pop(tp, None)
        # What is forgotten goes by the id that it had: metadata may have lost it.
        known = {**known, **ids}
        named = {tp.topic: known[tp.topic] for tp in (*changed, *forgotten)}
        return SessionRequest(self._id, self._epoch, changed, forgotten, named, by_id)

    def answered(self, session_id: int, error_code: int) -> None:
        """Take the session part of an answer."""
        first = self._epoch == _FIRST_EPOCH
        if error_code or session_id == _NO_SESSION or not (first or session_id == self._id):
            # Not found, or the broker has no room for a session: say everything again.
            self.reset()
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND or not error_code:
                self._id = _NO_SESSION
            return
        self._id = session_id
        self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else _FIRST_EPOCH + 1

    def reset(self) -> None:
        """Begin a new session, also after a request without an answer: nobody knows what the broker
        has heard. The id goes along once more, so that it drops the old session."""
        self._epoch = _FIRST_EPOCH
        self._told = {}
        self._topic_ids = {}
        self.ends = {}

    @staticmethod
    def is_session_error(error_code: int) -> bool:
        """Whether an error is of the session alone: a full request mends it at once."""
        return error_code in _SESSION_ERRORS
