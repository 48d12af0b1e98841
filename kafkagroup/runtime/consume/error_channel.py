"""Errors that the consumer's background tasks report to the application.

The error that ends the consumer is raised at every call; a missing position at every call until the
application seeks; the refusal of a broker at most once a minute, while it lasts; any other error by
a single call. Only the `raise_*` methods raise; reporting never does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import anyio

from kafkagroup._values import frozen
from kafkagroup.consume.owned import UNKNOWN, OwnedPartition
from kafkagroup.errors import (
    AuthenticationError,
    BrokerError,
    KafkaGroupError,
    NoOffsetError,
    OffsetOutOfRangeError,
)
from kafkagroup.types import TopicPartition

__all__ = ["ErrorChannel", "no_position"]

_RAISE_INTERVAL = 60.0
"""Seconds between two errors of the same refusal, while it lasts: the request is repeated each
second, and an application that logs each error would write nothing else."""


@frozen
class _Refusal:
    """A refusal of a broker that is not raised yet."""

    owned: OwnedPartition
    error: BrokerError
    offset: int
    """The fetch offset when the broker refused: the refusal is raised after the records before
    it."""
    seek_count: int
    """How often the application had sought by then."""

    @classmethod
    def of(cls, owned: OwnedPartition, error: BrokerError) -> _Refusal:
        """Return a refusal at the partition's present fetch offset."""
        return cls(owned, error, owned.fetch_offset, owned.seek_count)

    @property
    def is_outdated(self) -> bool:
        """Whether the application has sought since, or does not own the partition any more."""
        return self.owned.revoked or self.owned.seek_count != self.seek_count

    @property
    def is_next(self) -> bool:
        """Whether all records that were fetched before the refusal are delivered, or were dropped
        by a reset."""
        return self.owned.position >= self.offset or self.owned.fetch_offset < self.offset


class ErrorChannel:
    """The errors of one consumer that its application has not seen yet."""

    def __init__(self, on_error: Callable[[], None]) -> None:
        """`on_error`: called after each report, to wake a waiting application."""
        self.failure: Exception | None = None
        """The error that has ended the consumer, raised by every call; None if there is none."""
        self._on_error = on_error
        self._reported: list[Exception] = []
        """Each is raised by one call only."""
        self._of_partitions: list[tuple[OwnedPartition, Exception]] = []
        """Each is raised by one call only, after the records that were fetched before it."""
        self._refusals: dict[tuple[Hashable, int], _Refusal] = {}
        """What is refused (`about` of `refuse_partition`), and the error code -> the refusal to
        raise."""
        self._raised_at: dict[tuple[Hashable, int], float] = {}
        """What is refused, and the error code -> when that was last raised, on the loop's clock.
        Entries older than a minute are dropped."""
        self._without_position: dict[TopicPartition, OwnedPartition] = {}
        """Partitions that wait for a seek, raised by every call until then. `raise_next` drops
        those that have a position again or are revoked."""

    def report(self, error: Exception) -> None:
        """Let the application's next call raise an error; no later call raises it again."""
        self._reported.append(error)
        self._on_error()

    def report_refused_login(self, error: AuthenticationError) -> None:
        """Let the application's next call raise that a broker refused the credentials. Each call
        tries them again: of several refusals before that call only the last one is raised."""
        self._reported = [e for e in self._reported if not isinstance(e, AuthenticationError)]
        self.report(error)

    @property
    def has_refused_login(self) -> bool:
        """Whether the application has yet to get a refusal of the credentials."""
        return any(isinstance(error, AuthenticationError) for error in self._reported)

    def fail(self, error: Exception) -> None:
        """Let every call from now on raise an error. The first failure stays."""
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
        owned.failure = error
        if owned.is_without_position:
            self._without_position[owned.tp] = owned
        else:
            self._of_partitions.append((owned, error))
        self._on_error()

    def refuse_partition(self, owned: OwnedPartition, error: BrokerError, about: Hashable) -> None:
        """Report that a broker refuses a request about a partition, which the client repeats.

        `about`: what is refused, either the partition or, for several partitions together, what
        they have in common, such as their broker. Each pair of an `about` and an error code is
        raised once a minute at most.
        """
        is_new = owned.refusal is None
        owned.refusal = error
        if is_new:
            self._on_error()  # a call that waits for the position wakes, and raises the refusal
        key = about, error.code
        known = self._refusals.get(key)
        if (known is None or known.is_outdated) and self._may_raise(key):
            self._refusals[key] = _Refusal.of(owned, error)
            self._on_error()

    def report_refusal(self, error: BrokerError, about: Hashable) -> None:
        """Let the application's next call raise a refusal that is not a partition's. `about`: what
        is refused. Each pair of an `about` and an error code is raised once a minute at most."""
        key = about, error.code
        if self._may_raise(key):
            self._raised_at[key] = anyio.current_time()
            self.report(error)

    def _may_raise(self, key: tuple[Hashable, int]) -> bool:
        """Return whether a refusal was not raised in the last minute."""
        since = anyio.current_time() - _RAISE_INTERVAL
        self._raised_at = {k: at for k, at in self._raised_at.items() if at > since}
        return key not in self._raised_at

    def take_reported(self) -> list[Exception]:
        """Return the reported errors that no call has raised, and drop them."""
        taken, self._reported = self._reported, []
        return taken

    @property
    def has_reports(self) -> bool:
        """Whether the consumer has failed, or an error waits that is not a partition's."""
        return self.failure is not None or bool(self._reported)

    @property
    def is_pending(self) -> bool:
        """Whether `raise_next` has an error to raise, or an outdated one to drop."""
        return bool(
            self.failure is not None
            or self._reported
            or any(not owned.awaits_listener for owned in self._without_position.values())
            or any(_is_next(owned) for owned, _ in self._of_partitions)
            or any(r.is_next or r.is_outdated for r in self._refusals.values())
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
        self._raise_refusal()
        self._without_position = {
            tp: owned
            for tp, owned in self._without_position.items()
            if owned.is_without_position and not owned.revoked
        }
        # Not those for which a rebalance listener still runs: it may seek.
        unsought = [o for o in self._without_position.values() if not o.awaits_listener]
        if unsought:
            raise no_position(unsought)

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

    def _raise_refusal(self) -> None:
        self._refusals = {k: r for k, r in self._refusals.items() if not r.is_outdated}
        for key, refusal in self._refusals.items():
            if refusal.is_next:
                del self._refusals[key]
                self._raised_at[key] = anyio.current_time()
                raise refusal.error

    def raise_without_position(self, owned: OwnedPartition) -> None:
        """Raise why a partition has no position, if its look-up has failed or is refused."""
        if owned.is_without_position:
            raise no_position([owned])
        if owned.position == UNKNOWN and (error := owned.failure or owned.refusal) is not None:
            raise error


def _is_next(owned: OwnedPartition) -> bool:
    """Return whether all records that were fetched before the failure are delivered."""
    return owned.position == owned.fetch_offset


def no_position(partitions: Iterable[OwnedPartition]) -> KafkaGroupError:
    """Return one error that names all of these partitions: there is no reset policy."""
    ordered = sorted(partitions, key=lambda owned: owned.tp)
    out_of_range = {o.tp: o.position for o in ordered if o.position != UNKNOWN}
    if len(out_of_range) == len(ordered):
        return OffsetOutOfRangeError(out_of_range)
    return NoOffsetError(tuple(o.tp for o in ordered), out_of_range)
