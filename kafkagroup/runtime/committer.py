"""Commit the offsets of the partitions that a consumer owns, one commit at a time.

A commit waits for the earlier ones and reads its offsets only then: an earlier one may belong to a
revocation, after which partitions are released. Released partitions are never committed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from uuid import UUID

import anyio

from kafkagroup._values import evolve
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.losses import Losses
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import (
    BrokerError,
    CommitFailedError,
    ConfigurationError,
    ErrorCode,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
)
from kafkagroup.options import ConsumerOptions
from kafkagroup.runtime.change_signal import ChangeSignal
from kafkagroup.runtime.current_membership import CurrentMembership
from kafkagroup.runtime.metrics import Meter
from kafkagroup.runtime.offsets import GroupOffsets, Identity
from kafkagroup.runtime.slices import process_in_slices, slices
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.schema import NO_ID

__all__ = ["Committer"]

logger = logging.getLogger(__name__)


class Committer:
    """The commits of one consumer."""

    def __init__(
        self,
        options: ConsumerOptions,
        delivery: Delivery,
        membership: CurrentMembership,
        changed: ChangeSignal,
        meter: Meter,
        is_in_callback: Callable[[], bool],
    ) -> None:
        """`changed`: signals when partitions are lost. `is_in_callback`: whether the current task
        runs a rebalance listener."""
        self.group_offsets: GroupOffsets | None = None
        """Sends the commits; None without a group."""
        self.is_automatic = options.enable_auto_commit
        """Whether processed records are committed automatically."""
        self._options = options
        self._delivery = delivery
        self._membership = membership
        self._changed = changed
        self._meter = meter
        self._is_in_callback = is_in_callback
        self._losses = Losses()
        """The partitions that were lost with delivered records not committed."""
        self._is_handling_loss = False
        """Whether partitions were lost and `on_partitions_lost` has not returned yet."""
        self._waiting_commit_count = 0
        """The number of `commit_delivered` calls that the application waits for."""
        self._committing = anyio.Lock()

    def bind(self, group_offsets: GroupOffsets) -> None:
        """Send commits with `group_offsets`."""
        self.group_offsets = group_offsets

    def disable_auto_commit(self) -> None:
        """Commit only what the application commits explicitly."""
        self.is_automatic = False

    # ------------------------------------------------------------ lost partitions

    def begin_loss(self) -> None:
        """Note that partitions are lost; the rebalance listener is called next."""
        self._is_handling_loss = True

    def end_loss(self) -> None:
        """Note that the rebalance listener has returned, or that a rebalance without a loss
        begins."""
        self._is_handling_loss = False

    def note_lost(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Note partitions before they are released against the application's will."""
        # With auto-commit, report only the loss of records in flight, unless a `commit()` waits.
        reports_all = self._waiting_commit_count > 0 or not self._options.enable_auto_commit
        for tp in partitions:
            owned = self._delivery.owned.get(tp)
            if owned is not None and (reports_all or self._delivery.has_in_flight((tp,))):
                self._losses.add(owned, reason)

    def on_poll(self) -> None:
        """With auto-commit, forget the losses, unless a `commit()` waits: by polling, the
        application leaves earlier records to the auto-commit."""
        if self._options.enable_auto_commit and not self._waiting_commit_count:
            self._losses.forget()

    # ------------------------------------------------------------ commits

    async def commit_processed(
        self,
        timeout: float,
        note: str = "",
        among: Mapping[TopicPartition, OwnedPartition] | None = None,
    ) -> None:
        """Commit the processed offsets that are not committed yet: of all owned partitions, or of
        those in `among` that are still owned. `timeout`, `note` and errors are as for `commit`."""
        async with self._exclusive(timeout) as deadline:
            owned = self._delivery.owned if among is None else among
            for some in slices(await process_in_slices(_with_offsets, owned.values())):
                # Read now: the previous commit may have been that of a revocation, and while many
                # partitions are committed, others may be released.
                if offsets := self._delivery.to_commit(some):
                    await self._commit_with_note(offsets, _seconds_until(deadline), note)

    async def commit_delivered(self, timeout: float, note: str = "") -> None:
        """Commit the processed records; raise an error if delivered records were lost before. The
        caller has marked the records in flight as processed.

        Raises: CommitFailedError with the partitions lost since the last call, after the owned
        partitions are committed and the rebalance listener has returned. A call by the listener
        itself does not raise it. Also what `commit` raises.
        """
        if self._is_in_callback():
            return await self.commit_processed(timeout, note)
        deadline = anyio.current_time() + timeout
        self._waiting_commit_count += 1
        try:
            await self._commit_owned(deadline, note)
            while self._is_handling_loss and anyio.current_time() < deadline:
                await self._changed.wait(deadline)
        finally:
            self._waiting_commit_count -= 1
        if (error := self._losses.take(self._delivery.owned)) is not None:
            raise error
        return None

    async def _commit_owned(self, deadline: float, note: str) -> None:
        # Without partitions that are assigned meanwhile: none of their records was delivered yet.
        owned: Mapping[TopicPartition, OwnedPartition] = dict(self._delivery.owned)
        while True:
            owned, identity = self._still_owned(owned), self._membership.identity
            try:
                left = max(deadline - anyio.current_time(), 0.0)
                return await self.commit_processed(left, note, owned)
            except CommitFailedError:
                if not await self._were_lost(owned, identity, deadline):
                    raise

    def _still_owned(
        self, before: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        """Return the partitions that were owned throughout, not released and assigned again."""
        owned = self._delivery.owned
        return {tp: partition for tp, partition in before.items() if owned.get(tp) is partition}

    async def _were_lost(
        self,
        before: Mapping[TopicPartition, OwnedPartition],
        identity: Identity,
        deadline: float,
    ) -> bool:
        """Return whether partitions of `before` were lost. Wait until the member must know it, at
        most until `deadline`."""
        driver = self._membership.driver
        if driver is None:
            return False
        interval = driver.heartbeat_interval
        heartbeat_by = anyio.current_time() + 2 * interval
        while (now := anyio.current_time()) < deadline:
            if len(self._still_owned(before)) < len(before):
                return True
            # The coordinator may have refused the commit because it has removed the member, which
            # learns that from its next heartbeat: wait for two intervals.
            may_be_unaware = self._membership.may_commit and self._membership.identity is identity
            has_lease = now < driver.ownership.lease_expires_at
            if has_lease and (not may_be_unaware or now >= heartbeat_by):
                return False
            until = heartbeat_by if now < heartbeat_by else now + interval
            await self._changed.wait(min(until, deadline))
        return False

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout: float,
        note: str = "",
    ) -> None:
        """Commit `offsets` within `timeout` seconds. Offsets without metadata get `note` as their
        metadata, unless the broker finds it too long.

        Raises: ConfigurationError without a group; RequestTimeoutError if earlier commits, or the
        first of many partitions, take all the time; CommitFailedError for partitions that are not
        owned, or while the group rebalances; what `GroupOffsets.commit` raises. After an error,
        some of many partitions may be committed.
        """
        async with self._exclusive(timeout) as deadline:
            self._owned(offsets)  # check all before any is committed
            for some in slices(tuple(offsets.items())):
                await self._commit_with_note(dict(some), _seconds_until(deadline), note)

    async def _commit_with_note(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float, note: str
    ) -> None:
        deadline = anyio.current_time() + timeout
        if note:
            noted = {tp: o if o.metadata else evolve(o, metadata=note) for tp, o in offsets.items()}
            try:
                return await self._commit(noted, timeout)
            except BrokerError as error:
                if error.code != ErrorCode.OFFSET_METADATA_TOO_LARGE:
                    raise
                logger.warning("committing without the note: %s", error)
        return await self._commit(offsets, deadline - anyio.current_time())

    async def wait_for_commits(self, timeout: float) -> None:
        """Wait for the commits that were requested before, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            async with self._committing:
                pass

    @asynccontextmanager
    async def _exclusive(self, timeout: float) -> AsyncIterator[float]:
        """Hold the commit lock, in the order of the calls; yield the deadline.

        Waiting for earlier commits counts towards the deadline: closing must not wait for commits
        to a dead coordinator.
        """
        deadline = anyio.current_time() + timeout
        try:
            with anyio.fail_after(timeout):
                await self._committing.acquire()
        except TimeoutError:
            raise RequestTimeoutError(
                f"the commits before this one were not answered within {timeout:g} s"
            ) from None
        try:
            yield deadline
        finally:
            self._committing.release()

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float
    ) -> None:
        deadline = anyio.current_time() + timeout
        _, owned = self._owned(offsets)
        failure: BrokerError | None = None
        for some in _by_topic_id(offsets, owned):
            try:
                await self._commit_part(some, deadline)
            except BrokerError as error:
                # The positions in a deleted topic must not keep those in its successor from being
                # committed.
                failure = failure or error
        if failure is not None:
            raise failure

    async def _commit_part(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
    ) -> None:
        """Commit offsets that have one topic id for each topic name."""
        group_offsets, owned = self._owned(offsets)
        membership = self._membership
        if not membership.may_commit:
            raise CommitFailedError(
                "the group is rebalancing; commit again after the rebalance, for the partitions"
                " that are still assigned"
            )
        identity, driver = membership.identity, membership.driver

        def is_current() -> bool:
            owned_now = self._delivery.owned
            still_owned = all(owned_now.get(tp) is one for tp, one in owned.items())
            return still_owned and membership.identity is identity and membership.may_commit

        for tp, offset in offsets.items():
            owned[tp].begin_commit(offset.offset)
        while True:
            until = deadline
            if driver is not None:
                left = deadline - anyio.current_time()
                until = min(until, await driver.confirm(offsets.keys(), left))
            try:
                await group_offsets.commit(
                    identity,
                    offsets,
                    timeout=until - anyio.current_time(),
                    is_current=is_current,
                    epoch=lambda: membership.generation_id,
                    topic_ids=_topic_ids(owned.values()),
                    meter=self._meter,
                )
                break
            except (TransportError, RemoteProtocolError, BrokerError):
                # With a coordinator `until` is the deadline. Without one, ownership must be
                # confirmed again before the next attempt.
                if not (is_current() and until <= anyio.current_time() < deadline):
                    raise
        for tp, offset in offsets.items():
            owned[tp].acknowledge(offset.offset)

    def _owned(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[GroupOffsets, dict[TopicPartition, OwnedPartition]]:
        """Return the `GroupOffsets`, and the `OwnedPartition` of each partition. Raises:
        ConfigurationError; CommitFailedError for partitions that are not owned."""
        if self.group_offsets is None:
            raise ConfigurationError("a consumer without group_id cannot commit; give group_id")
        owned: dict[TopicPartition, OwnedPartition] = {}
        not_owned: list[TopicPartition] = []
        for tp in partitions:
            if (partition := self._delivery.owned.get(tp)) is None:
                not_owned.append(tp)
            else:
                owned[tp] = partition
        if not_owned:
            not_owned.sort()
            raise CommitFailedError(
                f"not assigned to this consumer: {', '.join(map(str, not_owned))}; their owner"
                " commits them",
                tuple(not_owned),
            )
        return self.group_offsets, owned

    # ------------------------------------------------------------ auto-commit

    def _not_revoked(self) -> Mapping[TopicPartition, OwnedPartition]:
        """Return the partitions that are not being revoked. A revocation commits the others itself,
        and would have to wait for an auto-commit that included them."""
        owned = self._delivery.owned
        if not any(o.revoked for o in owned.values()):
            return owned
        return {tp: o for tp, o in owned.items() if not o.revoked}

    async def auto_commit(self, report: Callable[[Exception], None]) -> None:
        """Commit processed records at each `auto_commit_interval`. `report` is called with a
        BrokerError that is not retriable. Raises: FencedError, and other errors that end the
        consumer."""
        while True:
            await anyio.sleep(self._options.auto_commit_interval)
            if not (self._membership.may_commit and self.is_automatic):
                continue  # no warning: this is normal during a rebalance
            try:
                await self.commit_processed(
                    self._options.request_timeout, among=self._not_revoked()
                )
            except CommitFailedError as error:
                logger.warning("auto-commit: %s", error)
            except (TransportError, RemoteProtocolError) as error:
                # If it lasts, the connection logs a warning.
                logger.info("auto-commit: %s", error)
            except BrokerError as error:
                if error.retriable:
                    # The next commit covers this one. An error would end an application that could
                    # continue. GroupOffsets warns of the refusal.
                    logger.info("auto-commit: %s", error)
                else:
                    report(error)


def _topic_ids(owned: Iterable[OwnedPartition]) -> dict[str, UUID]:
    """Return the ids of the positions' topics, by name, where known."""
    return {o.tp.topic: o.topic_id for o in owned if o.topic_id != NO_ID}


def _by_topic_id(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    owned: Mapping[TopicPartition, OwnedPartition],
) -> list[dict[TopicPartition, OffsetAndMetadata]]:
    """Split offsets into parts that have one topic id for each topic name.

    There is one part, unless partitions of one topic have different ids: some are in a deleted
    topic and others in the topic that has replaced it, or the id of some is not known yet.
    """
    parts: list[tuple[dict[str, UUID], dict[TopicPartition, OffsetAndMetadata]]] = []
    for tp, offset in offsets.items():
        topic_id = owned[tp].topic_id
        for topic_ids, part in parts:
            if topic_ids.setdefault(tp.topic, topic_id) == topic_id:
                part[tp] = offset
                break
        else:
            parts.append(({tp.topic: topic_id}, {tp: offset}))
    return [part for _, part in parts]


def _with_offsets(owned: Iterable[OwnedPartition]) -> list[OwnedPartition]:
    """Return the partitions that have an offset to commit."""
    return [o for o in owned if o.to_commit() is not None]


def _seconds_until(deadline: float) -> float:
    """Return the seconds until a commit's deadline. Raises: RequestTimeoutError after it: the
    first of many partitions have taken all the time."""
    left = deadline - anyio.current_time()
    if left < 0:
        raise RequestTimeoutError(
            "commit failed: its deadline passed before all partitions were sent; commit again"
        )
    return left
