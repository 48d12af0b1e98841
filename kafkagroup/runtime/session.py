"""What the tasks of one running consumer share: what is delivered, committed, and gone wrong."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from uuid import UUID

import anyio

from kafkagroup._values import evolve
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.lease import Lease
from kafkagroup.consume.losses import Losses
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import (
    BrokerError,
    CommitFailedError,
    ConfigurationError,
    ErrorCode,
    NotAssignedError,
    RequestTimeoutError,
    TransportError,
)
from kafkagroup.options import ConsumerOptions
from kafkagroup.runtime.error_channel import ErrorChannel
from kafkagroup.runtime.history import History
from kafkagroup.runtime.interfaces import Running
from kafkagroup.runtime.lag import LoopLag
from kafkagroup.runtime.offsets import NO_MEMBERSHIP, GroupOffsets, Identity
from kafkagroup.runtime.portions import slices, together
from kafkagroup.transport.one_shot_event import OneShotEvent
from kafkagroup.transport.trouble import Troubles
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.schema import NO_ID

__all__ = ["Session"]

logger = logging.getLogger(__name__)


class Session:
    """Shared state of a consumer, from construction to close."""

    def __init__(self, options: ConsumerOptions, delivery: Delivery) -> None:
        self.options = options
        self.delivery = delivery
        self.offsets: GroupOffsets | None = None
        self.driver: Running | None = None
        self.identity: Identity = NO_MEMBERSHIP
        self.changed = OneShotEvent()
        """Set, and replaced, whenever somebody who waits should look again."""
        self.errors = ErrorChannel(self.notify)
        self.clock: Callable[[], float] = anyio.current_time
        """The loop's clock, bound to the loop once it runs: it is asked for each record."""
        self.auto_commit = options.enable_auto_commit
        """Whether what is processed is committed without being asked for."""
        self.leave_group = options.leave_group_on_close
        """Whether the group is told when this consumer goes."""
        self.assigned_to = False
        """Whether the coordinator assigns (KIP-848): the epoch then moves on while all stands."""
        self.settled = False
        """Whether a generation stands and has been taken up."""
        self.closing = False
        self.losses = Losses()
        """What was delivered of partitions that were lost before it was committed."""
        self.losing = False
        """Partitions are lost, and the application's callback has not returned yet."""
        self.commits_asked = 0
        """How many commits of all that was delivered the application waits for."""
        self.draining = False
        """Somebody waits for the record in hand to be processed."""
        self.give_up_at = float("inf")
        """When closing: how long the record in hand is waited for."""
        self.over_at = float("inf")
        """When closing: when all of it is to be over."""
        self.waiting = False
        """The application waits in the client."""
        self.unsure = False
        """It waits because nobody knows whether what there is to hand out is still its own."""
        self.joined_at = 0.0
        """When it became a member, for the first time or again."""
        self.lease = Lease()
        """Ended by all that `Reader.next` looks at."""
        self.expired = False
        """The application stayed away for `max_poll_interval_ms`; its next poll rejoins."""
        self.rejoin: Callable[[], None] = lambda: None
        """Become a member again."""
        self.callback_task: int | None = None
        """Id of the task that runs the application's callback now."""
        self.lag = LoopLag(
            options.group_id or "", options.session_timeout, threaded=options.heartbeat_thread
        )
        """How late the loop ran."""
        self.history = History()
        self.troubles = Troubles(self.history.feed.publish)
        self._committing = anyio.Lock()

    @property
    def last_poll(self) -> float:
        """When the application last came to the client or left it."""
        return self.lease.last_poll

    @last_poll.setter
    def last_poll(self, now: float) -> None:
        self.lease.last_poll = now

    def notify(self) -> None:
        """Wake everybody who waits, and have the next record look around."""
        self.lease.end()
        self.changed.set()
        self.changed = OneShotEvent()

    def count_processed(self) -> None:
        """What the application has in hand is processed."""
        self.delivery.count_processed()
        if self.draining:
            self.notify()

    def drop_in_flight(self) -> None:
        """The application does not come back for what it has in hand."""
        self.delivery.drop_in_flight()
        if self.draining:
            self.notify()

    def came_back(self) -> None:
        """The application comes for more: what it has in hand is processed."""
        self.count_processed()
        if self.options.enable_auto_commit and not self.commits_asked:
            # It leaves what it has passed over to the auto-commit.
            self.losses.forget()

    # ------------------------------------------------------------ ownership

    def lose(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Note what is being released against the application's will, before it is."""
        # What it has passed over with an auto-commit it does not commit itself.
        all_counts = self.commits_asked > 0 or not self.options.enable_auto_commit
        for tp in partitions:
            owned = self.delivery.owned.get(tp)
            if owned is not None and (all_counts or self.delivery.in_hand((tp,))):
                self.losses.add(owned, reason)
        # The next record is the application's coming back.
        self.lease.end()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on at `offset`. Raises: ConfigurationError, NotAssignedError."""
        if offset < 0:
            raise ConfigurationError(f"seek to {offset}; expected an offset of 0 or more")
        owned = self.delivery.owned.get(tp)
        if owned is None or owned.revoked:
            raise NotAssignedError(f"{tp} is not assigned to this consumer")
        self.delivery.seek(tp, offset)

    async def drain(self, partitions: Collection[TopicPartition], deadline: float) -> None:
        """Wait until what is in hand of these is processed, at most until `deadline`."""
        self.draining = True
        self.lease.end()
        try:
            with anyio.move_on_at(min(deadline, self.give_up_at)):
                while self.delivery.in_hand(partitions):
                    await self.changed.wait()
        finally:
            self.draining = False

    # ------------------------------------------------------------ commits

    @property
    def may_commit(self) -> bool:
        """Whether commits are taken: not while the group is joining."""
        return self.driver is None or self.driver.may_commit

    @property
    def generation_id(self) -> int:
        """The generation that commits are stamped with. A member's epoch (KIP-848) moves on under
        an assignment that stands, and commits of an earlier one may be refused."""
        if self.assigned_to and self.driver is not None:
            return self.driver.generation_id
        return self.identity.generation_id

    @property
    def reads_as(self) -> Identity | None:
        """On whose behalf committed offsets are read; None where the coordinator does not ask."""
        if not self.assigned_to or self.identity is NO_MEMBERSHIP:
            return None
        return evolve(self.identity, generation_id=self.generation_id)

    async def commit_processed(
        self,
        timeout: float,
        note: str = "",
        among: Mapping[TopicPartition, OwnedPartition] | None = None,
    ) -> None:
        """Commit what is processed and not yet committed, of all that is owned or of what still is
        among these. As `commit`."""
        async with self._turn(timeout) as deadline:
            owned = self.delivery.owned if among is None else among
            for some in slices(await together(_to_commit, owned.values())):
                # Read now: the commit before this one may have been that of a revocation; and where
                # there are many, others ran since, which moved positions and released partitions.
                if offsets := self.delivery.to_commit(some):
                    await self._commit_noted(offsets, _left_until(deadline), note)

    async def commit_delivered(self, timeout: float, note: str = "") -> None:
        """Commit all that was delivered, then raise what of it was lost before, once.

        Raises: CommitFailedError that names the partitions which were lost since the last time:
        when what is still owned is committed, and the application's callback has been called. A
        callback itself is not told: who asked for the commits of the application is. What `commit`
        raises.
        """
        if anyio.get_current_task().id == self.callback_task:
            return await self.commit_processed(timeout, note)
        deadline = anyio.current_time() + timeout
        self.commits_asked += 1
        try:
            await self._commit_what_is_owned(deadline, note)
            while self.losing and anyio.current_time() < deadline:
                await self.changed.wait(deadline)
        finally:
            self.commits_asked -= 1
        if (error := self.losses.take(self.delivery.owned)) is not None:
            raise error
        return None

    async def _commit_what_is_owned(self, deadline: float, note: str) -> None:
        # Not of what comes back meanwhile: nothing of that was delivered when this was asked for.
        owned: Mapping[TopicPartition, OwnedPartition] = dict(self.delivery.owned)
        while True:
            owned, identity = self._still_owned(owned), self.identity
            try:
                left = max(deadline - anyio.current_time(), 0.0)
                return await self.commit_processed(left, note, owned)
            except CommitFailedError:
                if not await self._were_lost(owned, identity, deadline):
                    raise

    def _still_owned(
        self, before: Mapping[TopicPartition, OwnedPartition]
    ) -> dict[TopicPartition, OwnedPartition]:
        """Those of the same assignment still: what came back since is not among them."""
        owned = self.delivery.owned
        return {tp: one for tp, one in before.items() if owned.get(tp) is one}

    async def _were_lost(
        self,
        before: Mapping[TopicPartition, OwnedPartition],
        identity: Identity,
        deadline: float,
    ) -> bool:
        """After a commit failed: wait until it is known whether some of the partitions were lost,
        and answer that."""
        driver, interval = self.driver, self.options.heartbeat_interval
        heard_by = anyio.current_time() + 2 * interval
        while driver is not None and (now := anyio.current_time()) < deadline:
            if len(self._still_owned(before)) < len(before):
                return True
            # The coordinator, which refused it, may know of the loss first: then the next heartbeat
            # of a member that seems to be one brings it.
            is_refused = self.may_commit and self.identity is identity
            if now < driver.lease_expires_at and (not is_refused or now >= heard_by):
                return False
            until = heard_by if now < heard_by else now + interval
            await self.changed.wait(min(until, deadline))
        return False

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout: float,
        note: str = "",
    ) -> None:
        """Commit on behalf of the assignment that stands now, within `timeout` seconds, with a
        note beside offsets without metadata; without it, if the broker finds it too long.

        Raises: RequestTimeoutError when its turn has not come by then, CommitFailedError for
        partitions that are not held; what GroupOffsets raises. Of many partitions some may be
        committed then, and others not.
        """
        async with self._turn(timeout) as deadline:
            self._owners(offsets)  # of all, before the first are committed
            for some in slices(tuple(offsets.items())):
                await self._commit_noted(dict(some), _left_until(deadline), note)

    async def _commit_noted(
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

    async def commits_answered(self, timeout: float) -> None:
        """Wait for the commits that were asked for before, at most so many seconds."""
        with anyio.move_on_after(timeout):
            async with self._committing:
                pass

    @asynccontextmanager
    async def _turn(self, timeout: float) -> AsyncIterator[float]:
        """One commit at a time, in the order they were asked for; gives the deadline.

        The commits before this one count against its deadline: closing must not wait for one that
        a dead coordinator holds up.
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
        group_offsets, owned = self._owners(offsets)
        if not self.may_commit:
            raise CommitFailedError(
                "the group is rebalancing; commit what is still owned once that is over"
            )
        identity, driver = self.identity, self.driver

        def stands() -> bool:
            mine = self.delivery.owned
            still_owned = all(mine.get(tp) is owner for tp, owner in owned.items())
            return still_owned and self.identity is identity and self.may_commit

        deadline = anyio.current_time() + timeout
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
                    stands=stands,
                    epoch=lambda: self.generation_id,
                    topic_ids=_topic_ids(owned.values()),
                    meter=self.history.meters.commit,
                )
                break
            except (TransportError, BrokerError):
                # Where a coordinator keeps the group this was all the time there is. Elsewhere it
                # is to be looked at once more whether all that is still owned.
                if not (stands() and until <= anyio.current_time() < deadline):
                    raise
        for tp, offset in offsets.items():
            owned[tp].acknowledge(offset.offset)

    def _owners(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[GroupOffsets, dict[TopicPartition, OwnedPartition]]:
        """Where to commit to, and what is owned now of these. Raises: ConfigurationError,
        CommitFailedError for partitions that are not held."""
        if self.offsets is None:
            raise ConfigurationError("a consumer without group_id has nowhere to commit to")
        owned: dict[TopicPartition, OwnedPartition] = {}
        foreign: list[TopicPartition] = []
        for tp in partitions:
            if (owner := self.delivery.owned.get(tp)) is None:
                foreign.append(tp)
            else:
                owned[tp] = owner
        if foreign:
            foreign.sort()
            raise CommitFailedError(
                f"not assigned to this consumer: {', '.join(map(str, foreign))}; their owner"
                " commits them",
                tuple(foreign),
            )
        return self.offsets, owned


def _topic_ids(owned: Iterable[OwnedPartition]) -> dict[str, UUID]:
    """The topics that the positions are of, by name, where that is known."""
    return {o.tp.topic: o.topic_id for o in owned if o.topic_id != NO_ID}


def _to_commit(owned: Iterable[OwnedPartition]) -> list[OwnedPartition]:
    """Those that something is to be committed of."""
    return [o for o in owned if o.to_commit() is not None]


def _left_until(deadline: float) -> float:
    """Seconds that are left of a commit's time. Raises: RequestTimeoutError when none are: what was
    committed before, of many partitions, may have taken them."""
    left = deadline - anyio.current_time()
    if left < 0:
        raise RequestTimeoutError("the commit was not answered before its deadline")
    return left
