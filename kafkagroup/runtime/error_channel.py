"""Errors that the consumer's background tasks report to the application.

An error is raised at every call (the consumer has failed), once, or until the application seeks (a
partition without a position). Only the `raise_*` methods raise; reporting never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.errors import KafkaGroupError, NoOffsetError, OffsetOutOfRangeError
from kafkagroup.types import TopicPartition

__all__ = ["ErrorChannel"]


class ErrorChannel:
    """The errors of one consumer that its application has not seen yet."""

    def __init__(self, on_error: Callable[[], None]) -> None:
        """`on_error`: called after each report, to wake a waiting application."""
        self.failure: Exception | None = None
        """Raised by every call."""
        self._on_error = on_error
        self._reported: list[Exception] = []
        """Each is raised once."""
        self._of_partitions: list[tuple[OwnedPartition, Exception]] = []
        """Each is raised once, after the records that were fetched before it."""
        self._without_position: dict[TopicPartition, OwnedPartition] = {}
        """Partitions that wait for a seek, raised by every call until then. `raise_next` drops
        those that have a position again or are revoked."""

    def report(self, error: Exception) -> None:
        """Raise an error at the application's next call, once."""
        self._reported.append(error)
        self._on_error()

    def fail(self, error: Exception) -> None:
        """Raise an error at every call from now on. The first failure stays."""
        if self.failure is None:
            self.failure = error
        self._on_error()

    def fail_partition(self, owned: OwnedPartition, error: Exception) -> None:
        """Report the error of a partition, which is not fetched until the application seeks.

        A missing position is raised by every call: otherwise the consumer would silently read
        nothing of the partition. Other errors are raised once, because bad bytes in one partition
        must not block the others.
        """
        if owned.revoked:
            return
        owned.fail(error)
        if owned.is_without_position:
            self._without_position[owned.tp] = owned
        else:
            self._of_partitions.append((owned, error))
        self._on_error()

    @property
    def has_reports(self) -> bool:
        """Whether the consumer has failed, or an error waits that is not a partition's."""
        return self.failure is not None or bool(self._reported)

    @property
    def is_pending(self) -> bool:
        """Whether to call `raise_next`, which may still find nothing to raise."""
        return bool(
            self.failure is not None
            or self._reported
            or self._without_position
            or any(_is_next(owned) for owned, _ in self._of_partitions)
        )

    def raise_failure(self) -> None:
        """Raise the error that every call raises, if there is one."""
        if self.failure is not None:
            raise self.failure

    def raise_next(self) -> None:
        """Raise the next error, if there is one."""
        self.raise_failure()
        if self._reported:
            raise self._reported.pop(0)
        self._raise_of_partition()
        self._without_position = {
            tp: owned
            for tp, owned in self._without_position.items()
            if owned.is_without_position and not owned.revoked
        }
        if self._without_position:
            raise _no_position(self._without_position.values())

    def _raise_of_partition(self) -> None:
        """Raise the first error of a partition whose earlier records are all delivered."""
        # Drop errors that a seek, a revocation or a later error of the partition has replaced.
        self._of_partitions = [
            (owned, error)
            for owned, error in self._of_partitions
            if owned.failure is error and not owned.revoked
        ]
        for found in self._of_partitions:
            owned, error = found
            if _is_next(owned):
                self._of_partitions.remove(found)
                raise error

    def raise_without_position(self, owned: OwnedPartition) -> None:
        """Raise why a partition has no position, if its look-up has failed."""
        if owned.is_without_position:
            raise _no_position([owned])
        if owned.position == UNKNOWN and owned.failure is not None:
            raise owned.failure


def _is_next(owned: OwnedPartition) -> bool:
    """Return whether all records that were fetched before the failure are delivered."""
    return owned.position == owned.fetch_offset


def _no_position(partitions: Iterable[OwnedPartition]) -> KafkaGroupError:
    """Return one error that names all of these partitions."""
    ordered = sorted(partitions, key=lambda owned: owned.tp)
    out_of_range = {o.tp: o.position for o in ordered if o.position != UNKNOWN}
    if len(out_of_range) == len(ordered):
        return OffsetOutOfRangeError(out_of_range)
    return NoOffsetError(tuple(o.tp for o in ordered), out_of_range)
