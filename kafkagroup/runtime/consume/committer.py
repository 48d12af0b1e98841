"""Commit the offsets of the partitions that a consumer owns, one commit at a time.

A commit belongs to the assignment in which it was called. It waits for earlier commits, and one of
them may be the last commit of a revocation. So after each wait the partitions of the commit must
still be owned, as the same `OwnedPartition` objects: a partition that was released and assigned
again has another object.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from kafkagroup._values import define, evolve
from kafkagroup.concurrency.change_signal import ChangeSignal
from kafkagroup.concurrency.slices import process_in_slices, slices
from kafkagroup.consume.commits import (
    Commit,
    by_topic_id,
    check_assigned,
    check_floors,
    of_assignment,
    of_processed,
    topic_ids,
)
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.losses import Losses
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    CommitFailedError,
    ConfigurationError,
    ErrorCode,
    KafkaGroupError,
    RequestTimeoutError,
)
from kafkagroup.options import ConsumerOptions
from kafkagroup.runtime.consume.current_member import CurrentMember
from kafkagroup.runtime.member.metrics import Meter
from kafkagroup.runtime.offsets.values import GroupCommit, Identity, Offsets
from kafkagroup.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kafkagroup.runtime.offsets.group_offsets import GroupOffsets

__all__ = ["Committer"]

logger = logging.getLogger(__name__)

_REPORT_VALIDITY = 1.0
"""For this many seconds after the coordinator has reported a committed offset, a member does not
renew it."""

_REBALANCING = (
    "the group is rebalancing; commit again after the rebalance, for the partitions that are still"
    " assigned"
)

_RENEWAL_INTERVAL = 1.0
"""Seconds between two searches, by `commit(offsets)`, for other offsets to renew."""


class Committer:
    """The commits of one consumer."""

    def __init__(
        self,
        options: ConsumerOptions,
        delivery: Delivery,
        member: CurrentMember,
        changed: ChangeSignal,
        meter: Meter,
        is_in_callback: Callable[[], bool],
        lease_now: Callable[[], float],
    ) -> None:
        """`changed`: notified whenever something changes, such as when partitions are lost.
        `is_in_callback`: returns whether the current task runs a rebalance listener."""
        self.group_offsets: GroupOffsets | None = None
        """Sends the commits; None without a group."""
        self.is_automatic = options.enable_auto_commit
        """Whether processed records are committed automatically. `stop(commit=False)` turns it
        off."""
        self._options = options
        self._max_age = options.committed_offsets_max_age
        self._delivery = delivery
        self.member = member
        """The member that commits."""
        self._changed = changed
        self._meter = meter
        self._is_in_callback = is_in_callback
        self.lease_now = lease_now
        """Returns the time on the lease clock."""
        self._losses = Losses()
        """The partitions that were lost with delivered records not committed."""
        self._renewed_at = -math.inf
        """When `_renew` last ran, on the loop's clock."""
        self.is_handling_loss = False
        """Whether partitions were lost and `on_partitions_lost` has not returned yet."""
        self._waiting_commit_count = 0
        """The number of `commit_delivered` calls that the application waits for."""
        self._committing: anyio.Lock
        """Held while a commit is in flight. Set by `bind`, not here: creating a lock in an event
        loop imports anyio's backend, and the constructor may run in one."""

    def bind(self, group_offsets: GroupOffsets) -> None:
        """Send commits with `group_offsets`."""
        self.group_offsets = group_offsets
        self._committing = anyio.Lock()

    # ------------------------------------------------------------ lost partitions

    def note_lost(self, partitions: Collection[TopicPartition], reason: str) -> None:
        """Note the loss of partitions, before they are released."""
        # With auto-commit, report only the loss of records in flight, unless a `commit()` waits.
        reports_all = self._waiting_commit_count > 0 or not self._options.enable_auto_commit
        delivery = self._delivery
        in_flight = delivery.acknowledgement.in_flight_among
        for tp in partitions if reports_all else in_flight(partitions):
            if (owned := delivery.owned.get(tp)) is not None:
                self._losses.add(owned, reason)

    def on_poll(self) -> None:
        """With auto-commit, forget the losses, unless a `commit()` waits: by polling, the
        application leaves earlier records to the auto-commit."""
        if self._options.enable_auto_commit and not self._waiting_commit_count:
            self._losses.forget()

    # ------------------------------------------------------------ commits

    async def commit_processed(
        self,
        deadline: float,
        note: str = "",
        among: Mapping[TopicPartition, OwnedPartition] | None = None,
        *,
        max_age: float = math.inf,
    ) -> None:
        """Commit the processed offsets that are not committed yet: of all owned partitions, or of
        those in `among` that are still owned. Then renew the other offsets; `max_age` is that of
        `_renew`. `deadline` and `note` are as for `commit`, the errors as for `send`."""
        async with self._exclusive(deadline):
            owned = self._delivery.owned
            partitions = (owned if among is None else among).values()
            for some in slices(await process_in_slices(_with_offsets, partitions)):
                # Take the offsets only now: the previous commit may have been that of a revocation,
                # and while many partitions are committed, others may be released.
                if commits := of_processed(owned, some, is_automatic=self.is_automatic):
                    await self._commit(commits, deadline, note)
            await self._renew(partitions, max_age, deadline)

    async def commit_delivered(self, deadline: float, note: str = "") -> None:
        """Commit the processed records; raise an error if delivered records were lost before. The
        caller has marked the records in flight as processed.

        Raises: CommitFailedError with the partitions lost since the last call, after the owned
        partitions are committed, and the rebalance listener has returned or the deadline has
        passed. A call by the listener itself does not raise it. Also what `commit` raises.
        """
        if self._is_in_callback():
            return await self.commit_processed(deadline, note, max_age=self._max_age)
        self._waiting_commit_count += 1
        try:
            await self._commit_owned(deadline, note)
            while self.is_handling_loss and anyio.current_time() < deadline:
                await self._changed.wait(deadline)
        finally:
            self._waiting_commit_count -= 1
        if (error := self._losses.take(self._delivery.owned)) is not None:
            raise error
        return None

    async def _commit_owned(self, deadline: float, note: str) -> None:
        """Commit the processed offsets of the partitions that are owned now. If some are lost
        meanwhile, so that the commit fails, commit those of the others."""
        # Not those that are assigned meanwhile: none of their records was delivered yet.
        owned: Mapping[TopicPartition, OwnedPartition] = dict(self._delivery.owned)
        while True:
            owned, identity = self._still_owned(owned), self.member.identity
            try:
                return await self.commit_processed(deadline, note, owned, max_age=self._max_age)
            except CommitFailedError:
                if not await self._were_lost(owned, identity, deadline):
                    raise

    def _still_owned(
        self, before: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions of `before` that were owned ever since, not released and assigned
        again."""
        owned = self._delivery.owned
        return {tp: partition for tp, partition in before.items() if owned.get(tp) is partition}

    async def _were_lost(
        self,
        before: Mapping[TopicPartition, OwnedPartition],
        identity: Identity,
        deadline: float,
    ) -> bool:
        """Return whether partitions of `before` were lost since a commit with `identity` began. The
        member may not know of a loss yet: wait until it must know, at most until `deadline`."""
        driver = self.member.driver
        if driver is None:
            return False
        interval = driver.heartbeat_interval
        heartbeat_by = anyio.current_time() + 2 * interval
        while (now := anyio.current_time()) < deadline:
            if len(self._still_owned(before)) < len(before):
                return True
            # The coordinator may have refused the commit because it has removed the member, which
            # learns that from its next heartbeat: wait for two intervals. With an expired lease the
            # loss may follow at any time: keep waiting.
            may_be_unaware = self.member.may_commit and self.member.identity is identity
            if driver.lease_left > 0.0 and (not may_be_unaware or now >= heartbeat_by):
                return False
            until = heartbeat_by if now < heartbeat_by else now + interval
            await self._changed.wait(min(until, deadline))
        return False

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float,
        note: str = "",
    ) -> None:
        """Commit `offsets` by `deadline`, on the loop's clock. Offsets without metadata get `note`
        as their metadata, unless the broker refuses the note as too long.

        Raises: what `prepare` and `send` raise.
        """
        await self.send(self.prepare(offsets), deadline, note)

    def prepare(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Sequence[Commit]:
        """Return the commits of `offsets` in the present assignment, to be passed to `send`.

        Raises: ConfigurationError without a group; CommitFailedError for partitions that are not
        owned, and for offsets below the floor of the assignment.
        """
        self.require_group()
        owned = self._delivery.owned
        if not_owned := sorted(tp for tp in offsets if tp not in owned):
            is_early = self.member.driver is not None and not self.member.is_stable
            advice = "await wait_assignment() first" if is_early else "their owner commits them"
            raise CommitFailedError(
                f"not assigned to this consumer: {', '.join(map(str, not_owned))}; {advice}",
                tuple(not_owned),
            )
        commits = of_assignment(owned, offsets)
        self.check(commits)
        return commits

    async def send(self, commits: Sequence[Commit], deadline: float, note: str = "") -> None:
        """Commit what `prepare` returned, as `commit` does; then renew the offsets of the other
        partitions, see `_renew`.

        Raises: RequestTimeoutError if earlier commits, or those of the first of many partitions,
        take all the time; CommitFailedError for partitions that were released since `prepare`, or
        while the group rebalances; what `GroupOffsets.commit` raises. After an error, some of many
        partitions may be committed.
        """
        async with self._exclusive(deadline):
            self.check(commits)  # all of them, before the first is committed
            for some in slices(commits):
                await self._commit(some, deadline, note)
            # Renew not in each call, because an application may commit each record; but always in a
            # rebalance listener, because the revoked partitions are released afterwards.
            is_due = anyio.current_time() >= self._renewed_at + _RENEWAL_INTERVAL
            if is_due or self._is_in_callback():
                await self._renew(self._delivery.owned.values(), self._max_age, deadline)

    def prepare_processed(self) -> Sequence[Commit]:
        """Return the commits of the processed offsets that are not committed, for a transaction.
        Raises: CommitFailedError for delivered records of partitions that were lost."""
        owned = self._delivery.owned
        if (error := self._losses.take(owned)) is not None:
            raise error
        return of_processed(owned, owned.values())

    def check_transaction(self, commits: Sequence[Commit]) -> None:
        """Check that the member may commit these now, with its present identity.

        Raises: CommitFailedError while the group rebalances, for partitions that were released
        since `prepare_processed`, and for a member's offsets below the floor of the assignment.
        """
        self.check(commits)
        if not self.member.may_commit:
            raise CommitFailedError(_REBALANCING)

    def note_transaction(self, commits: Sequence[Commit], is_certain: bool) -> None:
        """Note that a transaction has committed these offsets; or, if that is not certain, that the
        group may have them."""
        now = anyio.current_time()
        for commit in commits:
            owned, offset = commit.owned, commit.offset
            if not commit.is_assigned(self._delivery.owned):
                continue
            if is_certain:
                owned.acknowledge(offset, now)
            # Below it, records in flight wait for the outcome: until then no offset may replace it.
            elif owned.processed >= offset.offset:
                owned.begin_commit(offset.offset)

    async def wait_for_commits(self, deadline: float) -> None:
        """Wait for the commits that were requested before, at most until `deadline`."""
        with anyio.move_on_at(deadline):
            async with self._committing:
                pass

    @asynccontextmanager
    async def _exclusive(self, deadline: float) -> AsyncIterator[None]:
        """Hold the commit lock, in the order of the calls.

        Waiting for earlier commits counts towards the deadline: closing must not wait for commits
        to a dead coordinator.
        """
        called_at = anyio.current_time()
        with anyio.move_on_at(deadline) as waiting:
            await self._committing.acquire()
        if waiting.cancelled_caught:
            timeout = max(deadline - called_at, 0.0)
            raise RequestTimeoutError(
                f"the commits before this one were not answered within {timeout:.4g} s"
            )
        try:
            yield
        finally:
            self._committing.release()

    async def _commit(self, commits: Sequence[Commit], deadline: float, note: str = "") -> None:
        """Commit offsets, which may have several topic ids for one topic name."""
        if anyio.current_time() > deadline:
            raise RequestTimeoutError(
                "commit failed: its deadline passed before all partitions were sent; commit again"
            )
        failure: BrokerError | None = None
        for part in by_topic_id(commits):
            try:
                await self._commit_part(part, deadline, note)
            except BrokerError as error:
                # The positions in a deleted topic must not keep those in the topic that has
                # replaced it from being committed.
                failure = failure or error
        if failure is not None:
            raise failure

    async def _commit_part(
        self, commits: Sequence[Commit], deadline: float, note: str = ""
    ) -> None:
        """Commit offsets that have one topic id for each topic name."""
        group_offsets, driver = self.require_group(), self.member.driver
        # A released partition must not be marked as being committed: it would count as a loss.
        self.check(commits)
        if not self.member.may_commit:
            raise CommitFailedError(_REBALANCING)
        member_commit = _MemberCommit(
            identity=self.member.identity,
            offsets={},
            topic_ids=topic_ids(commits),
            committer=self,
            commits=commits,
            note=note,
        )
        member_commit.newest()  # sets `offsets`, which `confirm` and `GroupOffsets.commit` read
        while True:
            if driver is not None:
                member_commit.confirmed_until = await driver.confirm(
                    member_commit.offsets.keys(), deadline
                )
            # From the lease clock to the loop's.
            may_send_until = anyio.current_time() + member_commit.confirmed_until - self.lease_now()
            try:
                acknowledged = await group_offsets.commit(
                    member_commit, min(deadline, may_send_until), self._meter
                )
                break
            except (*RETRIED_ERRORS, BrokerError, CommitFailedError) as error:
                if member_commit.note and _is_too_large(error):
                    logger.warning("committing without the note: %s", error)
                    member_commit.note = ""
                    continue
                # With claims in ZooKeeper a confirmation expires: the next attempt needs another.
                is_unconfirmed = self.lease_now() >= member_commit.confirmed_until
                if not is_unconfirmed or anyio.current_time() >= deadline:
                    raise
                # Else `is_current` would raise, because the confirmation has expired.
                member_commit.confirmed_until = math.inf
                if not member_commit.is_current():
                    raise
        now = anyio.current_time()
        for commit in commits:
            # A response for a deleted topic must not count for the one that has replaced it.
            if not commit.owned.is_recreated(commit.topic_id):
                commit.owned.acknowledge(acknowledged[commit.tp], now)

    def require_group(self) -> GroupOffsets:
        """Return `group_offsets`. Raises: ConfigurationError without a group."""
        if self.group_offsets is None:
            raise ConfigurationError("a consumer without group_id cannot commit; give group_id")
        return self.group_offsets

    def check(self, commits: Sequence[Commit]) -> None:
        """Raises: CommitFailedError unless all are of the present assignment; for a member, also if
        one is below the floor."""
        check_assigned(commits, self._delivery.owned)
        # With `assign()`, no other member can have committed since: the application may rewind.
        if self.member.driver is not None:
            check_floors(commits)

    # ------------------------------------------------------------ renewal

    async def _renew(
        self, among: Collection[OwnedPartition], max_age: float, deadline: float
    ) -> None:
        """Commit acknowledged offsets again that were last renewed `max_age` seconds ago or before,
        and those of partitions that are being revoked: the broker may have deleted them. A member
        commits them at once; a consumer without membership first looks up which are missing. An
        error is logged, and the next attempt follows `max_age` seconds later."""
        now, is_member = anyio.current_time(), self.member.commits_as_member
        renewed_by, self._renewed_at = now - max_age, now
        # Without this, each of a series of rebalances would commit what the member has just read.
        reported_by = now - _REPORT_VALIDITY if is_member else now
        to_renew = partial(_to_renew, renewed_by, reported_by)
        for some in slices(await process_in_slices(to_renew, among)):
            if is_member and not self.member.may_commit:
                return
            for owned in some:
                owned.renewed_at = now
            acknowledged = [Commit(o, o.acknowledged, o.topic_id) for o in some if o.acknowledged]
            for part in by_topic_id(acknowledged):
                try:
                    with anyio.CancelScope(deadline=deadline):
                        await self._renew_part(part, deadline, is_member=is_member)
                except KafkaGroupError as error:
                    first = min(commit.tp for commit in part)
                    logger.warning("the committed offset of %s is not renewed: %s", first, error)

    async def _renew_part(
        self, part: Sequence[Commit], deadline: float, *, is_member: bool
    ) -> None:
        """Commit these offsets again, which have one topic id for each topic name, except outdated
        ones. Without membership, commit only those that the broker has deleted."""
        group_offsets = self.require_group()
        if not is_member:
            # Every consumer imports this module, and only those without a membership renew so.
            from kafkagroup.runtime.consume.renewal import find_missing

            part = await find_missing(group_offsets, part)
        owned, ids = self._delivery.owned, topic_ids(part)
        current = [
            commit
            for commit in part
            if commit.is_assigned(owned)
            and commit.owned.acknowledged is commit.offset  # no later one since
            # The coordinator deletes the offsets of a deleted topic; a topic that replaces it has
            # others.
            and group_offsets.has_topic(commit.tp.topic, ids)
        ]
        if current:
            await self._commit_part(current, deadline)

    # ------------------------------------------------------------ auto-commit

    def _not_revoked(self) -> Mapping[TopicPartition, OwnedPartition]:
        """Return the partitions that are not being revoked. A revocation commits its partitions
        itself, and would have to wait for an auto-commit that included them."""
        owned = self._delivery.owned
        if not any(o.revoked for o in owned.values()):
            return owned
        return {tp: o for tp, o in owned.items() if not o.revoked}

    async def auto_commit(self, report: Callable[[BrokerError], None]) -> None:
        """Commit processed records every `auto_commit_interval`. `report` is called with each
        BrokerError that is not retriable. Raises: FencedError, and other errors that end the
        consumer."""
        while True:
            await anyio.sleep(self._options.auto_commit_interval)
            if not (self.member.may_commit and self.is_automatic):
                continue  # no warning: this is normal during a rebalance
            try:
                # The coordinator keeps the offsets of a group with members.
                max_age = math.inf if self.member.commits_as_member else self._max_age
                deadline = anyio.current_time() + self._options.request_timeout
                await self.commit_processed(deadline, among=self._not_revoked(), max_age=max_age)
            except CommitFailedError as error:
                logger.warning("auto-commit: %s", error)
            except RETRIED_ERRORS as error:
                # No warning here: the connection warns of an error that lasts.
                logger.info("auto-commit: %s", error)
            except BrokerError as error:
                if error.retriable:
                    # The next commit covers this one. An error would end an application that could
                    # continue. GroupOffsets warns of the refusal.
                    logger.info("auto-commit: %s", error)
                else:
                    report(error)


def _with_offsets(owned: Iterable[OwnedPartition]) -> list[OwnedPartition]:
    """Return the partitions that have an offset to commit."""
    return [o for o in owned if o.to_commit() is not None]


@define(kw_only=True)
class _MemberCommit(GroupCommit):
    """A commit by the member, of offsets that have one topic id for each topic name."""

    committer: Committer
    commits: Sequence[Commit]
    note: str
    """The metadata of offsets without any."""
    confirmed_until: float = math.inf
    """Until when it may be sent, on the lease clock, as the driver has confirmed; infinity if no
    confirmation expires."""

    @property
    def generation_id(self) -> int:
        return self.committer.member.generation_id

    def is_current(self) -> bool:
        committer = self.committer
        if committer.lease_now() >= self.confirmed_until:
            raise CommitFailedError("the claims were confirmed too long ago")
        committer.check(self.commits)
        return committer.member.identity is self.identity and committer.member.may_commit

    def newest(self) -> Offsets:
        """Return the newest offsets, and note that they are being committed."""
        offsets = {commit.tp: commit.newest for commit in self.commits}
        if self.note:
            offsets = {
                tp: offset if offset.metadata else evolve(offset, metadata=self.note)
                for tp, offset in offsets.items()
            }
        for commit in self.commits:
            commit.owned.begin_commit(offsets[commit.tp].offset)
        self.offsets = offsets
        return offsets


def _is_too_large(error: Exception) -> bool:
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    return isinstance(error, BrokerError) and error.code == code


def _to_renew(
    renewed_by: float, reported_by: float, owned: Iterable[OwnedPartition]
) -> list[OwnedPartition]:
    """Return the partitions whose acknowledged offsets were last renewed at `renewed_by` or before,
    and last reported by the coordinator at `reported_by` or before."""
    return [o for o in owned if o.needs_renewal(renewed_by, reported_by)]
