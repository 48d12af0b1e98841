"""The batches for one partition: in which order they are sent, under which sequence numbers, and
what becomes of them.

The rules of idempotence, with N the most batches in flight (`number` means sequence number):

- A batch gets its sequence number when it is first sent, and keeps it, with its bytes, id and
  epoch, as long as it may have been written.
- One batch is in flight until the leader has acknowledged one under this id and epoch: brokers from
  2.5 on accept any first number of a producer that they do not know (KAFKA-15591). After that N
  may be in flight.
- What was not acknowledged is sent again one batch at a time, the lowest number first.
- If a number will never be used, those after it cannot be. First the batches that may have been
  written are sent again. Then the partition begins a new epoch, at 0. In a transaction, whose epoch
  is the coordinator's, it continues with the number that the leader expects. If the leader may
  expect several, because the outcome of a batch is unknown, nothing is sent before the coordinator
  has given another epoch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from uuid import UUID

from kafkagroup.errors import KafkaGroupError
from kafkagroup.produce.batch import NO_SEQUENCE, ProduceBatch
from kafkagroup.produce.identity import NO_IDENTITY, Identities
from kafkagroup.types import TopicPartition
from kafkagroup.wire.schema import NO_ID

__all__ = ["MAX_IN_FLIGHT", "PartitionQueue"]

MAX_IN_FLIGHT = 5
"""The most batches of a partition, and requests to a broker, in flight: brokers remember the last
five batches of a producer."""

_SEQUENCES = 2**31
"""Sequence numbers are 0 to 2^31 - 1, and begin again at 0."""

_MAX_IDLE = 60.0
"""Seconds without an acknowledgement after which brokers may have forgotten a producer. By default
they do after a day, but a client cannot read their `producer.id.expiration.ms`."""


class PartitionQueue:
    """The batches of one partition, from the first record to the last response."""

    __slots__ = (
        "_acknowledged_at",
        "_expected_sequence",
        "_has_unresolved",
        "_identities",
        "_identity",
        "_in_former_log",
        "_is_confirmed",
        "_is_new_epoch_needed",
        "_is_next_refused",
        "_leader",
        "_max_in_flight",
        "_next_sequence",
        "_topic_id",
        "closed",
        "in_flight",
        "open",
        "retried",
        "retry_at",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, identities: Identities | None, max_in_flight: int
    ) -> None:
        """`identities`: None for a producer that is not idempotent. It has one batch in flight:
        others could overtake one that is sent again."""
        self.tp = tp
        self.open: ProduceBatch | None = None
        """The batch that takes further records."""
        self.closed: deque[ProduceBatch] = deque()
        """Batches that take no more records, and get the next numbers: they were never sent, or
        certainly not written."""
        self.retried: list[ProduceBatch] = []
        """Batches to send again, in the order of their numbers."""
        self.in_flight: list[ProduceBatch] = []
        """Batches that a request has. Some may have ended, by their deadline."""
        self.retry_at = -math.inf
        """When the next batch may be sent, on the loop's clock, after an attempt that failed."""
        self._identities = identities
        self._max_in_flight = max_in_flight if identities is not None else 1
        self._identity = NO_IDENTITY
        self._next_sequence = 0
        self._expected_sequence = 0
        """The number that the leader expects after what it has acknowledged."""
        self._is_confirmed = False
        """Whether the leader has acknowledged a batch under this identity."""
        self._acknowledged_at = -math.inf
        """When a batch was last acknowledged, on the loop's clock."""
        self._leader = -1
        self._topic_id = NO_ID
        self._in_former_log: frozenset[ProduceBatch] = frozenset()
        """The batches that were in flight to another cluster when the client left it."""
        self._is_new_epoch_needed = False
        """Whether the sequence of numbers cannot continue, such as after a number that will never
        be used. In a transaction it then continues with the number that the leader expects, unless
        `_has_unresolved`."""
        self._is_next_refused = False
        """Whether that is needed only because the leader has refused the next number. If an attempt
        at that batch may be in the log, it stays as it is until its deadline: a leader that was
        restarted, and knows only the last batch of each producer, refuses the ones before it."""
        self._has_unresolved = False
        """Whether it is not known which number the leader expects: the batch whose number will not
        be used may have been written, or the leader has refused a number for an unknown reason."""

    def batches(self) -> Iterator[ProduceBatch]:
        """Yield all batches, the oldest first."""
        yield from self.in_flight
        yield from self.retried
        yield from self.closed
        if self.open is not None:
            yield self.open

    @property
    def needs_coordinator_epoch(self) -> bool:
        """Whether nothing can be sent before the coordinator of the transaction has given another
        epoch."""
        return (
            self._identities is not None
            and self._identities.is_coordinated
            and self._is_new_epoch_needed
            and self._has_unresolved
            # Else it has given one since this queue last sent something.
            and self._identity == self._identities.current
        )

    def close_open(self) -> None:
        """Let the open batch take no further records: it may be sent."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None

    def follow(self, leader: int, topic_id: UUID) -> None:
        """Note the leader, and the id of the topic; NO_ID if it is not known. Another leader has
        yet to acknowledge a batch. A topic with another id has another log, whose numbers begin at
        0."""
        if leader != self._leader:
            self._leader, self._is_confirmed = leader, False
        if topic_id not in (self._topic_id, NO_ID):
            if self._topic_id != NO_ID:
                self._begin_other_log()
            self._topic_id = topic_id

    def leave_cluster(self) -> None:
        """Note that the log is that of another cluster from now on, which has none of the batches:
        there the id may be that of another producer, so they are sent under another one."""
        self._in_former_log = frozenset(self.in_flight)
        for batch in self.retried:
            batch.is_maybe_written = False
        self._begin_other_log()

    def _begin_other_log(self) -> None:
        self._is_confirmed, self._is_new_epoch_needed = False, True
        self._is_next_refused, self._expected_sequence = False, 0

    # ------------------------------------------------------------ sending

    def next(self, now: float) -> ProduceBatch | None:
        """Return the batch that may be sent now, which stays in the queue until `taken`; None if no
        batch may be sent. If a new epoch is due, begin it first."""
        if now < self.retry_at:
            return None
        if self._is_new_epoch_needed and not self.in_flight:
            # First send again, unchanged, what may have been written: its response tells. Without
            # a coordinator only the first retried batch counts. If that was not written, no later
            # one was, as brokers refuse a batch behind a missing one; and once they know the next
            # epoch they refuse late requests of this one. In a transaction the epoch continues, so
            # a late request of any of them may still be written.
            candidates = self.retried if self._is_coordinated else self.retried[:1]
            maybe_written = next((b for b in candidates if b.is_maybe_written), None)
            if maybe_written is not None:
                return maybe_written
            if not self.needs_coordinator_epoch:
                self._renumber()
        if self.retried:
            return None if self.in_flight else self.retried[0]
        if not self.closed or self._is_full(now):
            return None
        if self._identities is None:
            return self.closed[0]
        return self._numbered(self._identities)

    @property
    def _is_coordinated(self) -> bool:
        return self._identities is not None and self._identities.is_coordinated

    def _is_full(self, now: float) -> bool:
        """Return whether no further batch may be in flight."""
        if now - self._acknowledged_at > _MAX_IDLE:
            self._is_confirmed = False  # the leader may have forgotten the producer
        # A broker recognizes a batch that is sent again only if it is one of the last five that
        # were written, so no other batch may follow it before its response.
        is_alone = (
            self._identities is None
            or not self._is_confirmed
            or any(batch.is_maybe_written for batch in self.in_flight)
        )
        return len(self.in_flight) >= (1 if is_alone else self._max_in_flight)

    def _numbered(self, identities: Identities) -> ProduceBatch | None:
        """Return the next closed batch with its number; None while there is no id, while a batch of
        the earlier epoch is in flight, and while a new epoch is due."""
        if not identities.is_known:
            return None
        if self._identity != identities.current:
            if self.in_flight:
                return None  # the batches in flight are of the earlier epoch
            self._identity = identities.current
            self._next_sequence = self._expected_sequence = 0
            self._is_confirmed = False
            self._is_new_epoch_needed = self._is_next_refused = self._has_unresolved = False
        elif self._is_new_epoch_needed:
            return None  # a batch is in flight, or the coordinator has yet to give an epoch
        batch = self.closed[0]
        batch.stamp(*self._identity, self._next_sequence)
        return batch

    def _renumber(self) -> None:
        """Begin a new epoch, or in a transaction continue with the number that the leader expects.
        The retried batches were certainly not written, and are sent as if for the first time."""
        for batch in reversed(self.retried):
            batch.stamp(*NO_IDENTITY, NO_SEQUENCE)
            batch.is_maybe_written = False
            self.closed.appendleft(batch)
        self.retried.clear()
        self._is_new_epoch_needed = self._is_next_refused = self._has_unresolved = False
        if self._is_coordinated:
            self._next_sequence, self._is_confirmed = self._expected_sequence, False
        elif self._identities is not None and self._identity is not NO_IDENTITY:
            self._identities.bump(self._identity)

    def taken(self, batch: ProduceBatch) -> None:
        """Note that the batch from `next` is about to be sent, and its number is used."""
        if self.closed and self.closed[0] is batch:
            self.closed.popleft()
            if batch.base_sequence != NO_SEQUENCE:
                self._next_sequence = _sequence_after(batch)
        else:
            self.retried.remove(batch)
        self.in_flight.append(batch)

    def put_back(self, batch: ProduceBatch, at: float) -> None:
        """Note that this attempt at the batch was not sent. The batch may be sent from `at` on,
        unless it has ended. Its number is free again if no later number was used and the batch was
        certainly not written; otherwise the batch keeps its number."""
        self.in_flight.remove(batch)
        self.retry_at = max(self.retry_at, at)
        has_last_number = (
            batch.base_sequence != NO_SEQUENCE and _sequence_after(batch) == self._next_sequence
        )
        if batch.is_maybe_written or not has_last_number:
            self._restore(batch)
            return
        self._next_sequence = batch.base_sequence
        if not batch.has_ended:
            self.closed.appendleft(batch)

    # ------------------------------------------------------------ outcomes

    def acknowledged(
        self, batch: ProduceBatch, leader: int, base_offset: int, append_time: int, now: float
    ) -> None:
        """Note that the batch is in the log, as `leader` says. Of a batch that has ended before, by
        its deadline, only the number counts: it was used."""
        self.in_flight.remove(batch)
        if leader == self._leader:  # an earlier leader does not say what the present one knows
            self._is_confirmed = True
        self._acknowledged_at = now
        self.retry_at = -math.inf
        if (batch.producer_id, batch.producer_epoch) == self._identity:
            after = _sequence_after(batch)
            if _is_lower(self._expected_sequence, after):
                self._expected_sequence = after
        if not batch.has_ended:
            batch.acknowledge(base_offset, append_time)

    def failed(self, batch: ProduceBatch, error: KafkaGroupError) -> None:
        """Fail the batch: the broker has refused it, and would again."""
        self.in_flight.remove(batch)
        self._drop(batch)
        if not batch.has_ended:
            batch.fail(error)

    def _drop(self, batch: ProduceBatch) -> None:
        """Note that a batch is not sent any more: its number, if it has one, will not be used,
        unless an earlier attempt was written."""
        if batch.base_sequence != NO_SEQUENCE:
            self._is_new_epoch_needed, self._is_next_refused = True, False
            self._has_unresolved = self._has_unresolved or batch.is_maybe_written

    def retry(self, batch: ProduceBatch, at: float) -> None:
        """Send the batch again from `at` on, unless it has ended."""
        self.in_flight.remove(batch)
        if batch in self._in_former_log:
            batch.is_maybe_written = False
        self.retry_at = max(self.retry_at, at)
        self._restore(batch)

    def _restore(self, batch: ProduceBatch) -> None:
        if batch.has_ended:
            self._drop(batch)
        else:
            self._insert(batch)

    def _insert(self, batch: ProduceBatch) -> None:
        """Put a batch among the retried ones, in the order of their numbers. Without numbers it is
        put first: one batch is in flight at a time, the oldest."""
        if batch.base_sequence == NO_SEQUENCE:
            self.retried.insert(0, batch)
            return
        at = len(self.retried)
        while at and _is_before(batch, self.retried[at - 1]):
            at -= 1
        self.retried.insert(at, batch)

    def out_of_order(self, batch: ProduceBatch, at: float) -> None:
        """Send the batch again from `at` on: the leader expected another number. Either that is the
        number of an earlier batch, which is not in the log yet or never will be; or the leader has
        lost what it knew."""
        if self.is_next(batch) and not self._has_unresolved:
            if self._is_new_epoch_needed and not self._is_next_refused:
                # No attempt at this batch is in the log: a number before it will never be used, or
                # the topic has another log.
                batch.is_maybe_written = False
            elif not self._is_new_epoch_needed:
                self._is_new_epoch_needed = self._is_next_refused = True
        self.retry(batch, at)

    def is_next(self, batch: ProduceBatch) -> bool:
        """Whether all numbers before those of a batch were acknowledged, or have failed."""
        others = (*self.in_flight, *self.retried)
        return not any(_is_before(other, batch) for other in others if other is not batch)

    def number_refused(self, batch: ProduceBatch, error: KafkaGroupError) -> None:
        """In a transaction, fail a batch that the leader refuses for its number or epoch. If an
        earlier batch has failed, such a refusal follows from that; otherwise it is not known which
        number the leader expects."""
        if not self._is_new_epoch_needed:
            self._has_unresolved = True
        self.failed(batch, error)

    def producer_unknown(self, batch: ProduceBatch, at: float) -> None:
        """Send the batch again: the log has no records of this producer, and expects number 0, as
        its topic was recreated. Leaders before 2.5 respond so."""
        self._expected_sequence = 0
        self.epoch_refused(batch, at)

    def id_refused(self, batch: ProduceBatch, at: float) -> None:
        """Send the batch again, under another id: brokers do not accept this one."""
        if self._identities is not None:
            self._identities.forget(batch.producer_id)
        self.epoch_refused(batch, at)

    def epoch_refused(self, batch: ProduceBatch, at: float) -> None:
        """Send the batch again: the leader refuses its epoch, does not know the producer, or takes
        its number for one that was used before. It is sent in a new epoch, unless the coordinator
        gives the epochs, or the batch may have been written: then it stays as it is until its
        deadline."""
        self._is_new_epoch_needed = True
        self.retry(batch, at)

    def split(self, batch: ProduceBatch, halves: tuple[ProduceBatch, ...], at: float) -> None:
        """Send the two halves of a batch that was too large instead of it. They use its numbers."""
        self.in_flight.remove(batch)
        self.retry_at = max(self.retry_at, at)
        sequence = batch.base_sequence
        for half in halves:
            if sequence != NO_SEQUENCE:
                half.stamp(batch.producer_id, batch.producer_epoch, sequence)
                sequence = _sequence_after(half)
        for half in reversed(halves):  # because without numbers each becomes the first
            self._insert(half)

    def expire(self, now: float, why: KafkaGroupError) -> list[ProduceBatch]:
        """Fail the batches whose deadline has passed, and return them. Those in `open` and `closed`
        have used no number, so the sequence continues without them."""
        expired = [b for b in self.batches() if b.deadline <= now and not b.has_ended]
        for batch in expired:
            if batch is self.open:
                self.open = None
            elif batch in self.retried:
                self.retried.remove(batch)
                self._drop(batch)
            elif batch in self.in_flight:  # the response decides what becomes of its number
                batch.is_maybe_written = batch.is_maybe_written or batch.attempts > 0
            else:
                self.closed.remove(batch)
            batch.fail(why)
        return expired

    def forget_ended(self) -> None:
        """Forget the batches that have ended and are not in flight."""
        if self.open is not None and self.open.has_ended:
            self.open = None
        self.closed = deque(b for b in self.closed if not b.has_ended)
        for batch in [b for b in self.retried if b.has_ended]:
            self.retried.remove(batch)
            self._drop(batch)

    def next_deadline(self) -> float:
        """Return the earliest deadline of a batch; infinity for none."""
        return min((b.deadline for b in self.batches() if not b.has_ended), default=math.inf)

    @property
    def has_waiting(self) -> bool:
        """Whether the queue has a batch that no request has."""
        return bool(self.retried or self.closed or self.open)

    @property
    def is_idle(self) -> bool:
        """Whether the queue has no batch, not even one in flight."""
        return not (self.in_flight or self.has_waiting)


def _sequence_after(batch: ProduceBatch) -> int:
    """Return the number of the first record behind a batch that has a number."""
    return (batch.base_sequence + batch.count) % _SEQUENCES


def _is_before(one: ProduceBatch, other: ProduceBatch) -> bool:
    """Whether the numbers of a batch come before those of another, of the same partition."""
    if one.base_sequence == NO_SEQUENCE or other.base_sequence == NO_SEQUENCE:
        return False
    return _is_lower(one.base_sequence, other.base_sequence)


def _is_lower(one: int, other: int) -> bool:
    """Whether a number is before another. Numbers begin again at 0, so their distance counts."""
    return 0 < (other - one) % _SEQUENCES < _SEQUENCES // 2
