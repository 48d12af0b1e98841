"""Prepares the next batch in a thread, if it takes long to decompress.

Not compiled, so that Python lets other threads run between two parts of the work.
"""

from __future__ import annotations

from kafkagroup.runtime.consume.session import Session
from kafkagroup.transport.threads import Job, WorkerThreads
from kafkagroup.wire.records import RecordReader

__all__ = ["Preparation"]

_MAX_AT_ONCE = 2
"""The limit of batches in preparation, each of up to `max_batch_bytes` when decompressed: the
current one, and an earlier one that was revoked or dropped and whose thread has not stopped yet."""


class Preparation:
    """Prepares the batch that a session delivers next. The caller waits for `session.changed`, and
    may stop waiting at any time: the job continues for the next caller."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # The limits of short jobs and of all jobs are the same.
        self._threads = WorkerThreads(_MAX_AT_ONCE, _MAX_AT_ONCE)
        self._reader: RecordReader | None = None
        self._job: Job[None] | None = None
        """The job that prepares the batch of `_reader`."""

    def resume(self, reader: RecordReader | None) -> bool:
        """Return whether a job was begun for this batch (None: no batch must be prepared). Forget
        the job of any other batch, and what that job has decompressed."""
        if reader is not self._reader:
            self._forget()
        return self._reader is not None

    def begin(self, reader: RecordReader) -> float:
        """Begin the job for a batch, unless it has begun. Return after how many seconds to call
        `begin` again if nothing changes: infinity, unless the process cannot start a thread now."""
        if self._job is None or reader is not self._reader:
            self._forget()
            self._reader = reader
            self._job = Job(
                lambda: self._prepare(reader), self._threads, lambda _: self._session.notify()
            )
        return self._job.begin()

    def take(self, reader: RecordReader) -> bool:
        """Return whether the batch is prepared; if it is, forget its job. Raises: MemoryError, if
        the job had too little memory."""
        job = self._job
        if job is None or reader is not self._reader or not job.has_ended:
            return False
        self._job = self._reader = None
        job.result()
        return True

    def _forget(self) -> None:
        if self._job is not None:
            self._threads.withdraw(self._job)
        self._job = self._reader = None

    def _prepare(self, reader: RecordReader) -> None:
        """Prepare a batch, in the thread, until that is done or it is not the next one any more."""
        while self._session.delivery.unprepared is reader and not reader.prepare():
            pass
