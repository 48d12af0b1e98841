"""Fetch sessions (KIP-227): after a full request, later requests list only changes. Pure.

Each connection for long polls has one session. An idle consumer of a thousand partitions then sends
an empty request, not one with a thousand entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kafkagroup._values import frozen
from kafkagroup.errors import ErrorCode
from kafkagroup.types import TopicPartition
from kafkagroup.wire.error_codes import ENDED_FETCH_SESSION
from kafkagroup.wire.messages.fetch import FetchPartition
from kafkagroup.wire.schema import NO_ID

__all__ = ["FetchSession", "SessionRequest", "sessionless"]

_NO_SESSION = 0
_NO_SESSION_EPOCH = -1  # of a request that neither uses nor begins a session
_FIRST_EPOCH = 0  # of a full request, which begins a session
_LAST_EPOCH = 2**31 - 1


@frozen
class SessionRequest:
    """The session fields and partitions of the next fetch request."""

    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, FetchPartition]
    """The partitions that are new or have changed."""
    forgotten: tuple[TopicPartition, ...]
    """The partitions to remove from the session."""
    topic_ids: Mapping[str, UUID]
    """The id of every topic in the request."""
    uses_topic_ids: bool
    """Whether the session uses topic ids; if not, the request must have a version that uses topic
    names."""

    @property
    def is_full(self) -> bool:
        """Whether the request lists all partitions, so that it depends on no earlier session."""
        return self.epoch <= _FIRST_EPOCH


def sessionless(
    wanted: Mapping[TopicPartition, FetchPartition], topic_ids: Mapping[str, UUID]
) -> SessionRequest:
    """Return a request that belongs to no session and starts none.

    For occasional fetches of a few partitions: the broker's cache of sessions has a thousand slots
    for all its clients, and a session that is rarely used would take a slot from one that saves
    more.
    """
    ids = {tp.topic: topic_ids.get(tp.topic, NO_ID) for tp in wanted}
    uses_topic_ids = NO_ID not in ids.values()
    return SessionRequest(_NO_SESSION, _NO_SESSION_EPOCH, wanted, (), ids, uses_topic_ids)


class FetchSession:
    """The session with one broker: the entries of the partitions as the broker was sent them last.
    Each call of `request` updates them."""

    def __init__(self) -> None:
        self._id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._partitions: dict[TopicPartition, FetchPartition] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._uses_topic_ids = True
        self.log_ends: dict[TopicPartition, int] = {}
        """Partition -> the log end that the broker reported last. The broker sends it again only
        when it changes, so a partition that was revoked and assigned again gets it from here."""

    def request(
        self, wanted: Mapping[TopicPartition, FetchPartition], topic_ids: Mapping[str, UUID]
    ) -> SessionRequest:
        """Return a request after which the session has exactly the `wanted` partitions."""
        ids = {tp.topic: topic_ids.get(tp.topic, NO_ID) for tp in wanted}
        uses_topic_ids = NO_ID not in ids.values()
        if uses_topic_ids != self._uses_topic_ids or any(
            self._topic_ids.get(t, ids[t]) != ids[t] for t in ids
        ):
            # A session uses either topic names or topic ids. One that uses names would take a
            # recreated topic for the old one.
            self.reset()
        before, known = self._partitions, self._topic_ids
        self._partitions, self._topic_ids, self._uses_topic_ids = dict(wanted), ids, uses_topic_ids
        if self._epoch == _FIRST_EPOCH:
            return SessionRequest(self._id, self._epoch, wanted, (), ids, uses_topic_ids)
        # A partition that just returned records has a new offset, so `changed` names it, and the
        # broker moves it to the end of its list: a busy partition does not starve the others.
        changed = {tp: entry for tp, entry in wanted.items() if before.get(tp) != entry}
        forgotten = tuple(tp for tp in before if tp not in wanted)
        for tp in forgotten:
            self.log_ends.pop(tp, None)
        # A forgotten topic keeps the id that the session has: metadata may not have it any more.
        known = {**known, **ids}
        named = {tp.topic: known[tp.topic] for tp in (*changed, *forgotten)}
        return SessionRequest(self._id, self._epoch, changed, forgotten, named, uses_topic_ids)

    def on_response(self, session_id: int, error_code: int) -> None:
        """Process the session id and the error code of a fetch response."""
        is_new = self._epoch == _FIRST_EPOCH
        if error_code or session_id == _NO_SESSION or not (is_new or session_id == self._id):
            # The broker lost the session, or has no room for one: send a full request next.
            self.reset()
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND or not error_code:
                self._id = _NO_SESSION  # the broker has no session by the old id to close
            return
        self._id = session_id
        # After the last epoch comes 1: an epoch of 0 would begin a new session.
        self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else _FIRST_EPOCH + 1

    def reset(self) -> None:
        """Begin a new session with the next request. Call this also after a request without a
        response, which the broker may have processed or not. The next request has the old id once
        more, so that the broker closes the old session."""
        self._epoch = _FIRST_EPOCH
        self._partitions = {}
        self._topic_ids = {}
        self.log_ends = {}

    @staticmethod
    def is_session_error(error_code: int) -> bool:
        """Return whether an error concerns the session only: a full request resolves it at once."""
        return error_code in ENDED_FETCH_SESSION
