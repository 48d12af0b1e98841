"""Which partitions are new: created while this consumer was subscribed to their topic. Pure.

All records of a new partition are younger than the subscription, so that a reset policy such as
`latest` would lose some. Only metadata responses since the subscription prove that a partition is
new: its topic had fewer partitions in the first response that described the topic; or the topic was
absent from two responses, since one broker may lag behind; or the topic had another id before. A
response with an error for the topic proves nothing, except for the error that it does not exist.

A single response is enough to know a topic's partition count, although its broker may lag behind:
the partitions that it lacks were then added moments before, and a few records too many are better
than a loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from uuid import UUID

from kafkagroup._values import frozen
from kafkagroup.types import TopicPartition
from kafkagroup.wire.schema import NO_ID

__all__ = ["Described", "NewPartitions"]

_PROOF = 2
"""The number of responses without a topic that prove that it did not exist."""


@frozen
class Described:
    """A topic as a metadata response describes it."""

    topic_id: UUID
    """`NO_ID` from brokers before 2.8."""
    partition_count: int


class NewPartitions:
    """The partitions of the subscribed topics that are new to this consumer."""

    def __init__(self) -> None:
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._complete_count = 0
        """The number of responses with all topics (`note_response`) since the subscription by this
        pattern."""
        self._absences: dict[str, int] = {}
        """Topic -> the number of responses that lacked it since one described it; 0 if there were
        only responses with another error for it. A confirmed absence counts as `_PROOF`
        responses."""
        self._old: dict[str, Described] = {}
        """Topic -> its id, as first described or as last found to be new, and how many of its
        partitions are not new."""

    def subscribe(self, topics: frozenset[str], pattern: re.Pattern[str] | None) -> bool:
        """Follow these topics and those that the pattern matches; return whether some of them were
        not followed before, so that responses for them may be missing. The topics that the
        application has added do not count as new."""
        has_added = pattern != self._pattern or (pattern is None and not topics <= self._topics)
        if pattern != self._pattern:
            self._complete_count = 0
        self._topics, self._pattern = topics, pattern
        self._absences = {t: n for t, n in self._absences.items() if self._follows(t)}
        self._old = {t: old for t, old in self._old.items() if self._follows(t)}
        return has_added

    def forget(self) -> None:
        """Forget all responses, and follow the same topics."""
        self._complete_count = 0
        self._absences.clear()
        self._old.clear()

    def _follows(self, topic: str) -> bool:
        pattern = self._pattern
        return topic in self._topics or (pattern is not None and bool(pattern.fullmatch(topic)))

    @property
    def needs_complete_response(self) -> bool:
        """Whether complete responses are missing that would prove that a topic is new."""
        return self._pattern is not None and self._complete_count < _PROOF

    @property
    def needs_response(self) -> bool:
        """Whether responses are missing that would prove that partitions are new. Partitions that
        are created before these responses arrive follow the reset policy."""
        # None: no response was about the topic. 1: one response without it proves nothing. A topic
        # with 0, which has another error, is not waited for.
        return self.needs_complete_response or any(
            topic not in self._old and self._absences.get(topic) in (None, 1)
            for topic in self._topics
        )

    def note_response(
        self,
        described: Mapping[str, Described],
        absent: Iterable[str] = (),
        denied: Iterable[str] = (),
        *,
        is_complete: bool = False,
    ) -> None:
        """Note a metadata response. `absent`: the requested topics that do not exist; one that was
        described before is among them only if its absence is confirmed. `denied`: the requested
        topics with another error, which proves nothing. `is_complete`: `described` has all topics
        of the cluster that this client may describe."""
        if is_complete:
            absent = (*absent, *(topic for topic in self._old if topic not in described))
        for topic in absent:
            if topic in self._old:
                self._absences[topic] = _PROOF
            elif self._follows(topic):
                self._absences[topic] = self._absences.get(topic, 0) + 1
        for topic in denied:
            if self._follows(topic):
                self._absences.setdefault(topic, 0)
        for topic, found in described.items():
            if self._follows(topic):
                self._note_described(topic, found)
        self._complete_count += is_complete
        if self._complete_count > _PROOF:
            # A topic that a complete response lacks is new when it returns, so its entries can be
            # dropped: without this, topics that come and go for months would fill the memory. The
            # first two responses drop none: they may be of a broker that lags behind.
            for topic in absent:
                if topic not in self._topics:
                    self._old.pop(topic, None)
                    self._absences.pop(topic, None)

    def _note_described(self, topic: str, found: Described) -> None:
        was_absent = self._absences.pop(topic, 0) >= _PROOF
        old = self._old.get(topic)
        if old is None:
            # Complete responses that did not have the topic prove its absence, too.
            was_absent |= self._pattern is not None and self._complete_count >= _PROOF
            is_new = was_absent
        elif NO_ID in (old.topic_id, found.topic_id):
            is_new = was_absent
        else:
            is_new = old.topic_id != found.topic_id
        if is_new:
            self._old[topic] = Described(found.topic_id, 0)
        elif old is None:
            self._old[topic] = found

    def is_new(self, tp: TopicPartition) -> bool:
        """Return whether the partition is proven to be new."""
        old = self._old.get(tp.topic)
        return old is not None and tp.partition >= old.partition_count
