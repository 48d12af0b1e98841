"""One partition as long as this consumer owns it: positions, and what was fetched for it.

Its identity is the assignment: a partition that is revoked and assigned again is another object,
and a response to a request of the old one is dropped. Except for a long poll in flight that asks
for the same position of the same topic: the new one takes it over (`consume.fetch_in_flight`).
Mutable, as it changes for each record.
"""

from __future__ import annotations

from collections import deque
from uuid import UUID

from kafkagroup._values import define, field
from kafkagroup.consume.lag import behind
from kafkagroup.consume.progress import UNKNOWN, Progress
from kafkagroup.errors import NoOffsetError, OffsetOutOfRangeError
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.records import RecordBatch
from kafkagroup.wire.schema import NO_ID

__all__ = ["UNKNOWN", "OwnedPartition"]


@define(eq=False)
class OwnedPartition(Progress):
    """Positions and buffer of one assigned partition."""

    tp: TopicPartition
    committed: int = UNKNOWN
    """The last offset that the coordinator acknowledged or reported; UNKNOWN for none."""
    covered: int = UNKNOWN
    """The position at which nothing that the application did waits for a commit: where delivery
    started, or what the coordinator acknowledged."""
    end: int = UNKNOWN
    """The offset that the next record gets, as of the last fetch; under read_committed the last
    stable offset."""
    fetch_offset: int = UNKNOWN
    """Offset to fetch from next: behind all that is buffered."""
    fetch_epoch: int = -1
    """Leader epoch of the record before `fetch_offset`; -1 when unknown (KIP-320)."""
    checked_epoch: int = -1
    """Epoch of the last leader that was known to have all that lies below `fetch_offset`."""
    topic_id: UUID = NO_ID
    """The topic that the offsets are of; NO_ID until one is known. See `is_recreated`."""
    buffered: deque[RecordBatch] = field(factory=deque)
    buffered_bytes: int = 0
    buffered_records: int = 0
    revoked: bool = False
    """Nothing more is handed out; the positions stay for the last commit."""
    replica: int = -1
    """The broker that the leader wants us to read from (KIP-392); -1 for the leader itself."""
    replica_until: float = 0.0
    """When to ask the leader again."""
    paused: bool = False
    reset: bool = False
    """The position was not in the log: look it up by the reset policy, not by the commit."""
    failure: Exception | None = None
    """Why nothing is fetched until the application seeks."""
    retry_at: float = 0.0
    """Not fetched before this."""
    attempts: int = 0
    """Failures in a row."""
    fetch_id: int = 0
    """The latest fetch request that asks for it at `fetch_offset`; 0 for none."""

    def __attrs_pre_init__(self) -> None:
        Progress.__init__(self)

    def start_at(self, offset: int, *, leader_epoch: int = -1) -> None:
        """Read from `offset` on: a committed offset, a reset, or the application's seek."""
        if not self.is_uncommitted:
            self.covered = offset
        self.position = self.processed = self.fetch_offset = offset
        self.leader_epoch = leader_epoch
        self.checked_epoch = -1
        self.topic_id = NO_ID
        self.reset = False
        self.failure = None
        self.attempts = 0
        self.retry_at = 0.0
        self.drop_buffer()

    def read_from(self, replica: int, until: float) -> None:
        """Fetch from a follower until then (KIP-392)."""
        self.replica, self.replica_until = replica, until

    def read_from_leader(self) -> None:
        """Fetch from the leader again."""
        self.replica = -1

    def note_request(self, topic_id: UUID, leader_epoch: int) -> None:
        """A fetch request names this topic and leader: its records are of their log."""
        self.topic_id, self.checked_epoch = topic_id, leader_epoch

    def note_topic(self, topic_id: UUID) -> None:
        """The position is of this topic."""
        self.topic_id = topic_id

    def note_leader(self, leader_epoch: int) -> None:
        """The leader of this epoch has all that lies below `fetch_offset` (KIP-320)."""
        self.checked_epoch = leader_epoch

    def note_end(self, end: int) -> None:
        """A fetch response names the end of the log."""
        self.end = end

    def note_committed(self, offset: int) -> None:
        """The coordinator reports this offset as committed."""
        self.committed = offset

    def request_reset(self) -> None:
        """Look the position up by the reset policy: it is not in the log."""
        self.reset = True

    def follow_truncation(self, epoch: int, leader_epoch: int) -> None:
        """The log was cut at the position: `epoch` is that of the record before it, and the leader
        of `leader_epoch` has all that lies below."""
        self.leader_epoch = self.fetch_epoch = epoch
        self.checked_epoch = leader_epoch

    def count_failure(self) -> int:
        """Count one more failure in a row; return how many there are."""
        self.attempts += 1
        return self.attempts

    def back_off(self, until: float) -> None:
        """Fetch nothing before then."""
        self.retry_at = until

    def end_backoff(self) -> None:
        """A fetch has succeeded."""
        self.attempts = 0

    def restore_backoff(self, attempts: int, retry_at: float) -> None:
        """Keep a back-off that a new position has ended."""
        self.attempts, self.retry_at = attempts, retry_at

    def fail(self, error: Exception) -> None:
        """Fetch nothing more until the application seeks."""
        self.failure = error

    def drop_buffer(self) -> None:
        """Forget what was fetched and not handed out."""
        self.buffered.clear()
        self.buffered_bytes = self.buffered_records = 0
        self.fetch_offset = self.position
        self.fetch_epoch = self.leader_epoch
        # Without this, a seek away and back would accept a response from before it.
        self.fetch_id = 0

    def is_unchecked(self, leader_epoch: int) -> bool:
        """Whether a leader of this epoch may have another log below `fetch_offset` (KIP-320)."""
        return self.fetch_epoch >= 0 and leader_epoch >= 0 and leader_epoch != self.checked_epoch

    def is_recreated(self, topic_id: UUID) -> bool:
        """Whether the topic was deleted, and what has its name now is another."""
        # Asked before each fetch, and UUIDs are compared in Python: nearly always it is the same.
        if self.topic_id is topic_id:
            return False
        return NO_ID not in (self.topic_id, topic_id) and self.topic_id != topic_id

    def add(self, batches: list[RecordBatch]) -> None:
        """Take what was fetched from `fetch_offset` on."""
        for batch in batches:
            if batch.next_offset > self.fetch_offset:
                self.buffered.append(batch)
                self.buffered_bytes += batch.size
                self.buffered_records += batch.count
                self.fetch_offset = batch.next_offset
                self.fetch_epoch = batch.leader_epoch

    def take_batch(self) -> RecordBatch:
        """The next batch to read records from."""
        batch = self.buffered.popleft()
        self.buffered_bytes -= batch.size
        self.buffered_records -= batch.count
        return batch

    def put_back(self, batch: RecordBatch) -> None:
        """Take back a batch that was not read to its end; the position says where it is resumed."""
        self.buffered.appendleft(batch)
        self.buffered_bytes += batch.size
        self.buffered_records += batch.count

    @property
    def failed(self) -> bool:
        """Whether an error was reported to the application; nothing is fetched until it seeks."""
        return self.failure is not None

    @property
    def is_without_position(self) -> bool:
        """Whether only the application can say where to read: there is no offset in the log to go
        on from, and no reset policy. Not of a failed look-up, which finds the offset next time."""
        return isinstance(self.failure, NoOffsetError | OffsetOutOfRangeError)

    @property
    def is_uncommitted(self) -> bool:
        """Whether a commit would be of something that the application did: of records that were
        handed out, processed or not, or of a seek. The start that a reset found is none of it."""
        return self.position not in (UNKNOWN, self.covered)

    def acknowledge(self, offset: int) -> None:
        """The coordinator has taken a commit of this offset."""
        self.committed = self.covered = offset

    @property
    def lag(self) -> int | None:
        """How many offsets lie between the position and the end; None while either is unknown."""
        if UNKNOWN in (self.position, self.end):
            return None
        return behind(self.position, self.end)

    def to_commit(self) -> OffsetAndMetadata | None:
        """What to commit; None when the coordinator knows it already."""
        if self.processed in (UNKNOWN, self.committed):
            return None
        return OffsetAndMetadata(self.processed, leader_epoch=self.leader_epoch)
