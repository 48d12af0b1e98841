"""One partition while this consumer owns it: its positions and its buffer.

An object stands for one assignment: a partition that is revoked and assigned again gets another
object, and a response to a request for the old one is dropped. The exception is a long poll in
flight for the same position of the same topic: the new object adopts it
(`consume.fetch_in_flight`). Mutable, because it changes with each record.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum
from uuid import UUID

from kafkagroup._values import define
from kafkagroup.consume.lag import lag_of
from kafkagroup.consume.progress import UNKNOWN, Progress
from kafkagroup.consume.replica_choice import ReplicaChoice
from kafkagroup.errors import BrokerError, NoOffsetError, OffsetOutOfRangeError
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.records import RecordBatch
from kafkagroup.wire.schema import NO_ID

__all__ = ["UNKNOWN", "OwnedPartition", "TopicEvidence"]


class TopicEvidence(Enum):
    """What is known of `OwnedPartition.topic_id` besides the metadata, which may be old."""

    NONE = "none"
    """No fetch has been answered since the position was looked up: nothing was read yet."""
    READ_BY_NAME = "read by name"
    """The leader serves the topic, but by its name (Fetch below version 13, Kafka 3.1)."""
    READ_BY_ID = "read by id"
    """The leader serves this topic id: the position is of that topic, even if the metadata has
    another id."""
    REFUSED = "refused"
    """The leader served this topic id before, and refuses it now."""


_NOT_SERVED = (TopicEvidence.NONE, TopicEvidence.REFUSED)
"""No sign that the leader serves `topic_id` now."""


@define(eq=False)
class OwnedPartition(Progress):
    """The positions and the buffer of one assigned partition.

    The fields are grouped by subject; a comment above each group names the classes that set them.
    If a rule concerns several fields, it is a method here; otherwise those classes assign the
    field.
    """

    tp: TopicPartition

    # What stops delivery and fetching.
    # The application, `Delivery`, `Subscriber`, `StartCommits` and `ErrorChannel` set these.
    paused: bool = False
    revoked: bool = False
    """Whether delivery has stopped; the positions stay for the last commit."""
    awaits_start_commit: bool = False
    """Whether nothing is fetched until the position is committed: the partition is new."""
    awaits_listener: bool = False
    """Whether nothing is fetched until the rebalance listener has returned, or has sought: the
    listener may ask for the position, and then choose another one."""
    failure: Exception | None = None
    """The error that stopped the fetching until the application seeks; None if none has."""
    seek_count: int = 0
    """How often the application has called `seek`."""

    # The position.
    # `Progress` has it; `Positions`, `RangeCheck`, `Validation` and the application move it.
    needs_reset: bool = False
    """Whether the position is to be looked up by the reset policy: no offset is committed, or the
    position is outside of the log, or is of a deleted topic."""
    is_out_of_range: bool = False
    """Whether the leader refused `fetch_offset` as out of range: nothing is fetched until it has
    reported the start and the end of its log."""
    is_of_deleted_topic: bool = False
    """Whether the offsets are of a topic that was deleted and created again under the same name."""

    # The topic that the position belongs to.
    # Look-ups and fetch responses set these, not the metadata, which may be old.
    assigned_topic_id: UUID = NO_ID
    """Id of the topic that the coordinator assigned (KIP-848); NO_ID if it was assigned by name."""
    topic_id: UUID = NO_ID
    """Id of the topic that the offsets belong to; NO_ID while unknown. See `is_recreated`."""
    topic_evidence: TopicEvidence = TopicEvidence.NONE
    proven_epoch: int = -1
    """The latest leader epoch of the records that were read from topic `proven_topic_id`; -1 for
    none. A leader of an earlier epoch is not the leader any more."""
    proven_topic_id: UUID = NO_ID

    # What is fetched.
    # `Fetcher` and `ResponseHandler` fill the buffer, and `Delivery` empties it; `Validation` sets
    # `checked_epoch`, too.
    fetch_offset: int = UNKNOWN
    """Offset to fetch from next: after the last buffered batch."""
    fetch_epoch: int = -1
    """Leader epoch of the record before `fetch_offset`; -1 when unknown (KIP-320)."""
    checked_epoch: int = -1
    """Epoch of the last leader known to have the same log below `fetch_offset`; -1 for none."""
    end: int = UNKNOWN
    """The end of the log as of the last fetch: the offset of the next record to be written; under
    read_committed the last stable offset."""
    first_fetch_id: int = 0
    """Id of the first fetch request for the partition since its position was set; 0 for none."""
    fetch_id: int = 0
    """Id of the latest fetch request for the partition since then; 0 for none."""
    buffered: deque[RecordBatch] | None = None
    """The batches to deliver after the open one; None for none: most of 90,000 partitions have
    none, and an empty deque takes 600 bytes and time of each full garbage collection."""
    buffered_bytes: int = 0
    buffered_records: int = 0
    replica: ReplicaChoice | None = None
    """Which follower the partition is fetched from (KIP-392); None until the leader has named
    one."""

    # Refusals and back-off.
    # `ResponseHandler`, `Refusals` and `ErrorChannel` set these.
    refusal: BrokerError | None = None
    """The last error with which a broker refused a request about the partition; None after a
    request has succeeded. The client repeats the request."""
    failure_count: int = 0
    """How many fetches and look-ups for the partition failed in a row."""
    retry_at: float = 0.0
    """When the back-off ends, on the loop's clock."""
    look_up_at: float = 0.0
    """When to repeat a refused look-up of the position, on the loop's clock."""

    # The committed offset.
    # The `Committer`, and look-ups of committed offsets, set these.
    acknowledged: OffsetAndMetadata | None = None
    """The last committed offset that the coordinator acknowledged or reported; None for none, and
    while the coordinator may have stored a later commit of another offset."""
    renewed_at: float = -math.inf
    """When the coordinator acknowledged or reported `acknowledged`, or when its renewal was last
    tried, on the loop's clock; -inf if it must be renewed at once."""
    reported_at: float = -math.inf
    """When the coordinator reported `acknowledged`, on the loop's clock; -inf if the coordinator
    has acknowledged a commit of it instead."""
    stored: int = UNKNOWN
    """The committed offset as the last look-up found it, which another client may have moved;
    UNKNOWN if no look-up has followed `acknowledged`."""
    floor: int = UNKNOWN
    """The lowest position since the assignment began: a commit below it would undo the commits of
    other members. UNKNOWN before there is a position."""
    covered: int = UNKNOWN
    """The position at which there is nothing to commit: where delivery started, or the offset that
    the coordinator acknowledged."""

    def __attrs_pre_init__(self) -> None:
        # The generated constructor calls this method, but no constructor of a base class.
        Progress.__init__(self)

    # ------------------------------------------------------------ what stops delivery and fetching

    def revoke(self) -> None:
        """Stop delivery; the positions stay for the last commit, which renews `acknowledged`."""
        self.revoked = True
        self.renewed_at = -math.inf

    @property
    def failed(self) -> bool:
        """Whether an error has stopped the fetching until the application seeks."""
        return self.failure is not None

    @property
    def is_without_position(self) -> bool:
        """Whether only the application can set the position: there is none within the log, and no
        reset policy. False if only a look-up has failed: the next one may find the offset."""
        return isinstance(self.failure, NoOffsetError | OffsetOutOfRangeError)

    # ------------------------------------------------------------ the position

    def start_at(self, offset: int, *, leader_epoch: int = -1) -> None:
        """Continue at `offset`: a committed offset, a reset, or the application's seek.
        `leader_epoch`: that of the record before `offset`; -1 if it is unknown."""
        self._prepare_start(offset)
        self.restart(offset, leader_epoch)
        self.drop_buffer()

    def _prepare_start(self, offset: int) -> None:
        """Reset what ends with the position so far, before the caller sets `offset`."""
        if self.is_of_deleted_topic:
            # The coordinator has deleted the committed offset: if it were kept, the same offset in
            # the new topic would count as committed. `covered` is the position: what was delivered
            # of the deleted topic cannot be committed any more.
            self.acknowledged, self.covered, self.floor = None, self.position, UNKNOWN
            self.is_of_deleted_topic = False
        if not self.is_uncommitted:
            self.covered = offset
        self.floor = offset if self.floor == UNKNOWN else min(self.floor, offset)
        self.checked_epoch = -1
        self.note_topic(self.assigned_topic_id)
        self.needs_reset = self.is_out_of_range = self.awaits_start_commit = False
        self.failure = self.refusal = None
        self.failure_count = 0
        self.retry_at = self.look_up_at = 0.0

    def seek(self, offset: int) -> None:
        """Continue at the offset that the application chose."""
        covered = self.covered
        self.seek_count += 1
        self.awaits_listener = False
        self.start_at(offset)
        if covered != UNKNOWN:
            # So that the next commit commits this offset. Without an earlier position, the seek
            # only chooses where to start, and there is nothing to commit.
            self.covered = covered

    def relocate(self, offset: int) -> None:
        """Continue at `offset` after a truncation or a reset, in the same topic unless `note_topic`
        follows. Deliveries that began below `offset` stay in flight. Those of a deleted topic are
        dropped: their offsets mean nothing in its successor."""
        is_of_deleted_topic = self.is_of_deleted_topic
        topic_id, evidence = self.topic_id, self.topic_evidence
        self._prepare_start(offset)
        self.topic_id, self.topic_evidence = topic_id, evidence
        if is_of_deleted_topic:
            self.restart(offset, -1)
        else:
            self.restart_above(offset)
        self.drop_buffer()

    def continue_from(self, before: OwnedPartition) -> None:
        """Continue where an earlier assignment of the partition ended."""
        self.start_at(before.position, leader_epoch=before.leader_epoch)
        self.topic_id, self.topic_evidence = before.topic_id, before.topic_evidence
        self.proven_topic_id, self.proven_epoch = before.proven_topic_id, before.proven_epoch
        self.paused = before.paused

    def skip_to(self, offset: int, leader_epoch: int) -> None:
        """Advance the position past offsets that have no records for the application."""
        if offset <= self.position:
            return
        if not self.is_uncommitted:
            self.covered = offset
        # The epoch, too: in the previous one the log ends below this position (KIP-320).
        self.advance(offset, leader_epoch)

    def request_reset(self) -> None:
        """Request that the position is looked up by the reset policy."""
        self.needs_reset, self.is_out_of_range = True, False

    def forget_position(self) -> None:
        """Let the position be looked up again: it was found under another topic id, and nothing
        was read from it."""
        self.restart(UNKNOWN, -1)
        self.covered = self.floor = UNKNOWN
        self.acknowledged = None
        self.note_topic(self.assigned_topic_id)
        self.drop_buffer()

    def follow_truncation(self, epoch: int, leader_epoch: int) -> None:
        """Note that the log was truncated at the position: the record before it has leader epoch
        `epoch`, and the leader of `leader_epoch` has the same log below."""
        self.advance(self.position, epoch)
        self.fetch_epoch = epoch
        self.checked_epoch = leader_epoch

    def require_validation(self) -> None:
        """Let the leader report, before the next fetch, whether the log was truncated below
        `fetch_offset`."""
        self.checked_epoch, self.is_out_of_range = -1, False

    # ------------------------------------------------------------ the topic of the position

    def is_assigned_in(self, topic_id: UUID) -> bool:
        """Return whether the assignment is of this topic, and not of one that was deleted or has
        not been created yet. `topic_id`: that of the present topic of this name; NO_ID if there is
        none."""
        assigned = self.assigned_topic_id  # `is` first: see `is_of_other_topic`
        return assigned is topic_id or assigned in (NO_ID, topic_id)

    def requested_id(self, current_id: UUID) -> UUID:
        """Return the topic id to fetch by: that of the position, even if the metadata has another
        one, `current_id`. If the position's id is unknown, `current_id`."""
        if self.topic_id is not current_id and self.topic_id in (NO_ID, current_id):
            if self.topic_id != NO_ID:
                self.topic_id = current_id  # the same object: comparing it again is fast
            return current_id
        return self.topic_id

    def note_topic(self, topic_id: UUID) -> None:
        """Note the topic that the position was looked up in."""
        if topic_id != self.topic_id:
            self.topic_id, self.topic_evidence = topic_id, TopicEvidence.NONE

    def note_served(self, topic_id: UUID, evidence: TopicEvidence) -> None:
        """Note that the leader serves this position; `topic_id`: the id in the request."""
        self.topic_id, self.topic_evidence = topic_id, evidence
        if self.proven_topic_id is not topic_id and self.proven_topic_id != topic_id:
            self.proven_topic_id, self.proven_epoch = topic_id, -1

    def note_refused(self, topic_id: UUID) -> None:
        """Note that the leader refuses a topic id. The refusal does not count while nothing was
        read under this id: a broker with old metadata may have reported the id of a deleted topic
        for one that exists."""
        if self.topic_id == topic_id != NO_ID and self.topic_evidence is not TopicEvidence.NONE:
            self.topic_evidence = TopicEvidence.REFUSED

    def is_ahead_of(self, topic_id: UUID, leader_epoch: int) -> bool:
        """Return whether records prove a later leader epoch of this topic than `leader_epoch`,
        which the metadata has: the leader that the metadata names is not the leader any more."""
        return 0 <= leader_epoch < self.proven_epoch and NO_ID != self.proven_topic_id == topic_id

    def is_of_other_topic(self, topic_id: UUID) -> bool:
        """Return whether the position is of another topic than the metadata has under this name.
        That alone proves nothing: the metadata may be old."""
        # Called before each fetch. Comparing UUIDs runs Python code, and nearly always both ids are
        # the same object.
        if self.topic_id is topic_id:
            return False
        return NO_ID not in (self.topic_id, topic_id) and self.topic_id != topic_id

    def is_recreated(self, topic_id: UUID) -> bool:
        """Return whether the position is of a topic that was deleted and created again under the
        same name: the metadata has another id, and no fetch shows that the leader still serves the
        position's."""
        return self.topic_evidence in _NOT_SERVED and self.is_of_other_topic(topic_id)

    def note_topic_is_back(self) -> None:
        """Keep the position after all: the topic that it belongs to was not deleted."""
        self.is_of_deleted_topic = self.needs_reset = False

    # ------------------------------------------------------------ what is fetched

    def note_fetch(self, fetch_id: int) -> None:
        """Note a fetch request at `fetch_offset`."""
        self.first_fetch_id = self.first_fetch_id or fetch_id
        self.fetch_id = fetch_id

    def replica_choice(self) -> ReplicaChoice:
        """Return `replica`; create it first if there is none."""
        if self.replica is None:
            self.replica = ReplicaChoice()
        return self.replica

    def is_unchecked(self, leader_epoch: int) -> bool:
        """Return whether the leader of this epoch may have a different log below `fetch_offset`
        (KIP-320)."""
        return self.fetch_epoch >= 0 and leader_epoch >= 0 and leader_epoch != self.checked_epoch

    def add(self, batches: list[RecordBatch]) -> None:
        """Buffer the batches that were fetched at `fetch_offset`."""
        for batch in batches:
            if batch.next_offset > self.fetch_offset:
                if self.buffered is None:
                    self.buffered = deque()
                self.buffered.append(batch)
                self.buffered_bytes += batch.size
                self.buffered_records += batch.count
                self.fetch_offset = batch.next_offset
                self.fetch_epoch = batch.leader_epoch
                if batch.leader_epoch > self.proven_epoch:
                    self.proven_epoch = batch.leader_epoch

    def take_batch(self) -> RecordBatch:
        """Remove and return the first buffered batch; there must be one."""
        assert self.buffered is not None
        batch = self.buffered.popleft()
        if not self.buffered:
            self.buffered = None
        self.buffered_bytes -= batch.size
        self.buffered_records -= batch.count
        return batch

    def put_back(self, batch: RecordBatch) -> None:
        """Buffer a batch again that was not read to its end; reading resumes at the position."""
        if self.buffered is None:
            self.buffered = deque()
        self.buffered.appendleft(batch)
        self.buffered_bytes += batch.size
        self.buffered_records += batch.count

    def drop_buffer(self) -> None:
        """Drop what was fetched and not delivered."""
        self.buffered = None
        self.buffered_bytes = self.buffered_records = 0
        self.fetch_offset = self.position
        self.fetch_epoch = self.leader_epoch
        # Without this, a seek away and back would accept the response to a request from before it.
        self.first_fetch_id = self.fetch_id = 0

    @property
    def lag(self) -> int | None:
        """The number of offsets from the position to the end; None while either is unknown."""
        position, end = self.position, self.end  # read once: `metrics` runs in other threads
        if UNKNOWN in (position, end):
            return None
        return lag_of(position, end)

    # ------------------------------------------------------------ refusals and back-off

    @property
    def is_refused(self) -> bool:
        """Whether a broker refused the last request about the partition, and the client repeats
        it."""
        # A paused partition is not fetched, so no request is repeated, unless it is a look-up.
        is_idle = self.paused and self.position != UNKNOWN and not self.needs_reset
        return self.refusal is not None and not (self.revoked or self.failed or is_idle)

    def count_failure(self) -> int:
        """Count one more failure in a row; return how many there are."""
        self.failure_count += 1
        return self.failure_count

    def end_backoff(self) -> None:
        """Forget the failures in a row and the last refusal: a fetch has succeeded."""
        self.failure_count = 0
        self.refusal = None

    def restore_backoff(self, failure_count: int, retry_at: float) -> None:
        """Restore the back-off that setting a new position has ended."""
        self.failure_count, self.retry_at = failure_count, retry_at

    # ------------------------------------------------------------ the committed offset

    @property
    def committed(self) -> int:
        """The offset of `acknowledged`; UNKNOWN for none."""
        return UNKNOWN if self.acknowledged is None else self.acknowledged.offset

    @property
    def is_uncommitted(self) -> bool:
        """Whether there is something to commit: records that were delivered, processed or not, or a
        seek of the application. A position that a reset found does not count."""
        return self.position not in (UNKNOWN, self.covered)

    def to_commit(self) -> OffsetAndMetadata | None:
        """Return the offset to commit; None if it is unknown or committed already."""
        if self.processed in (UNKNOWN, self.committed):
            return None
        return OffsetAndMetadata(self.processed, leader_epoch=self.processed_epoch)

    def begin_commit(self, offset: int) -> None:
        """Note that this offset is being committed. If the coordinator stores it and the response
        is lost, the previous offset must be committed again after a seek back to that offset."""
        if self.committed not in (UNKNOWN, offset):
            self.acknowledged, self.covered = None, UNKNOWN

    def acknowledge(self, committed: OffsetAndMetadata, now: float) -> None:
        """Note that the coordinator has acknowledged this commit."""
        self.note_committed(committed, now)
        self.covered, self.reported_at = committed.offset, -math.inf

    def note_committed(self, committed: OffsetAndMetadata, now: float) -> None:
        """Note the committed offset that the coordinator reports."""
        self.acknowledged, self.renewed_at, self.stored = committed, now, UNKNOWN
        self.reported_at = now

    def note_stored(self, offset: int) -> bool:
        """Note the committed offset that a look-up found; return whether another client has moved
        it since the look-up before."""
        before, self.stored = self.stored, offset
        return offset not in (before, self.committed)

    def needs_renewal(self, renewed_by: float, reported_by: float = math.inf) -> bool:
        """Return whether `acknowledged` must be confirmed or sent again: it was last renewed at
        `renewed_by` or before, and the coordinator reported it at `reported_by` or before (both on
        the loop's clock). False if the position has moved below it: the next commit replaces it."""
        known = self.acknowledged
        return (
            known is not None
            and self.renewed_at <= renewed_by
            and self.reported_at <= reported_by
            and known.offset <= self.position
        )
