"""Deleted topics, and topics created under their names: S19.

A record, a position or a commit belongs to one log. After a deletion, records read before may still
be delivered and processed; but a commit stored for the new topic must lie within what was processed
of the new log. Where a member continues is checked with the other positions.
"""

from __future__ import annotations

from kafkagroup import TopicPartition

from ..events import Deleted, Delivered, Processed, Stored
from .recorder import Handlers, Recorder


class Topics:
    """The rule of recreated topics."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._deleted: dict[str, int] = {}
        """Name -> the event that last deleted a topic of this name."""
        self._read: dict[tuple[str, TopicPartition], set[int]] = {}
        """Member and partition -> the delivered offsets of the current log."""
        self._reached: dict[TopicPartition, int] = {}
        """Offset after the last processed record of the current log."""
        self.handlers: Handlers = {
            Deleted: self._delete,
            Delivered: self._delivered,
            Processed: self._processed,
            Stored: self._stored,
        }

    def _delete(self, number: int, event: Deleted) -> None:
        self._deleted[event.topic] = number
        self._read = {key: at for key, at in self._read.items() if key[1].topic != event.topic}
        self._reached = {tp: at for tp, at in self._reached.items() if tp.topic != event.topic}

    def _delivered(self, number: int, event: Delivered) -> None:
        tp = event.partition
        if tp.topic not in self._deleted:
            return
        sequences = self._recorder.log(tp).sequences
        if event.offset < len(sequences) and sequences[event.offset] == event.sequence:
            self._read.setdefault((event.member, tp), set()).add(event.offset)

    def _processed(self, number: int, event: Processed) -> None:
        tp = event.partition
        if event.offset in self._read.get((event.member, tp), ()):
            self._reached[tp] = max(self._reached.get(tp, 0), event.offset + 1)

    def _stored(self, number: int, event: Stored) -> None:
        tp = event.partition
        if (deleted := self._deleted.get(tp.topic)) is None:
            return
        reached = self._reached.get(tp, 0)
        if event.offset > self._recorder.log(tp).next_visible(reached):
            text = f"{tp}@{event.offset} is committed to a recreated topic, processed to {reached}"
            self._recorder.report("S19", event, text, deleted, number)
