"""The group application of a consumer: applies assignments and revokes partitions.

The order of a revocation matters: stop delivering records, wait for those in flight, commit, call
the rebalance listener, and only then let the rebalance continue.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio

from kafkagroup._text import escaped
from kafkagroup._user_code import USER_ERRORS, user_error
from kafkagroup.assign import protocol_name
from kafkagroup.assign.spec import is_cooperative, user_data
from kafkagroup.callbacks import PartitionsCallback
from kafkagroup.concurrency.slices import apply_in_slices, process_in_slices
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.partitions import partition_of
from kafkagroup.consume.subscription import server_pattern
from kafkagroup.errors import ConfigurationError, KafkaGroupError
from kafkagroup.events import RebalanceCause
from kafkagroup.member.coordinated import DRAIN_FRACTION
from kafkagroup.member.vocabulary import Compute, GenerationInfo, MemberMetadata
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.large_jobs import run_job
from kafkagroup.runtime.consume.leader import Leader
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.member.interfaces import Application, OverduePoll
from kafkagroup.runtime.member.protocol import MembershipProtocol, SupportedProtocols
from kafkagroup.runtime.offsets.values import Identity
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.embedded_protocol import (
    Subscription,
    assigned_partitions,
    decode_assignment,
    encode_subscription,
)
from kafkagroup.wire.schema import NO_ID

__all__ = ["Subscriber"]

logger = logging.getLogger(__name__)

_PARTITION_BYTES = 4
"""The size of a partition's number (INT32) in an encoded assignment."""

_COMMIT_FRACTION = 0.5
"""How much of the time left before a deadline the last commit may take; callbacks need some too."""


class Subscriber(Application):
    """Applies a member's assignments and revocations to the partitions of a consumer."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        engine: FetchControl,
    ) -> None:
        self.topics: frozenset[str] = frozenset()
        """The subscribed topics."""
        self.pattern: re.Pattern[str] | None = None
        """The subscribed regular expression, which the coordinator may match."""
        self._session = session
        self._cluster = cluster
        self._engine = engine
        self._assignors = {protocol_name(a): a for a in session.options.assignors}
        self._are_cooperative = all(is_cooperative(a) for a in session.options.assignors)
        self._has_lost_all = False
        """Whether all partitions are lost, and the listener was not called yet."""
        self._revocation_wait: anyio.CancelScope | None = None
        """The wait before a revocation; cancelled when all partitions are lost."""
        self._last_assignment: tuple[Sequence[TopicPartition], int] = ((), -1)
        """The last assignment, sorted, and its generation; () and -1 before the first. Revocations
        do not change it."""
        self._revoked_in = -1
        """The generation in which partitions were revoked, until the member rejoins; else -1."""
        self._is_reassigned = False
        """Whether the generation `_revoked_in` was assigned a second time (KIP-345)."""
        self._unsubscribed_since = -1
        """The first generation of several in a row whose assignment has topics that are not
        subscribed to; else -1."""
        self._assigned_topics: frozenset[str] = frozenset()
        """The topics of the coordinator's last assignment (KIP-848)."""
        self._leader = Leader(session, cluster)
        self._pauses = RetryBackoff(cluster.options)

    @property
    def _protocol(self) -> MembershipProtocol[Any]:
        return self._session.member.protocol

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances: only if every assignor is
        cooperative, or if partitions are claimed one by one."""
        return self._protocol.claims_partitions or self._are_cooperative

    @property
    def protocol_type(self) -> str:
        """The protocol type with which members join."""
        return "consumer"

    def subscribe_to(self, topics: frozenset[str], pattern: re.Pattern[str] | None = None) -> None:
        """Subscribe to these topics from the next join on. `pattern`: the pattern that they match;
        None if the application has named them."""
        self.topics, self.pattern = topics, pattern

    def subscribes(self, topic: str) -> bool:
        """Return whether the application subscribes to a topic, which may be absent."""
        pattern = self.pattern
        return topic in self.topics or (pattern is not None and bool(pattern.fullmatch(topic)))

    @property
    def topics_in_use(self) -> frozenset[str]:
        """The topics whose metadata the member needs, besides those that it subscribes to and owns:
        those that the coordinator assigned last, and as leader those of all members."""
        driver = self._session.member.driver
        if driver is None or driver.closed.is_set():
            return frozenset()
        return self._assigned_topics | self._leader.watched_topics

    def metadata(self) -> MemberMetadata:
        """Return the metadata that a member joins with: its subscription."""
        if not self._protocol.coordinator_assigns:
            return MemberMetadata(protocols=self.protocols())
        # The coordinator matches the pattern, in its own syntax.
        pattern = None if self.pattern is None else server_pattern(self.pattern)
        return MemberMetadata(topics=tuple(sorted(self.topics)), pattern=pattern)

    def protocols(self) -> SupportedProtocols:
        """Return the supported protocols: every assignor, with the subscription and the user data
        that it adds."""
        session = self._session
        owned, last_assignment = tuple(sorted(session.delivery.owned)), self._last_assignment
        if self._protocol.claims_partitions:  # the claims tell the group what is owned
            owned, last_assignment = (), ((), -1)
        # The topics of owned partitions stay in the metadata until the partitions are revoked:
        # assignors ignore owned partitions of topics that a member does not list, and would assign
        # them to another member.
        topics = self.topics | {tp.topic for tp in owned}
        # If a follower rejoins, the coordinator rebalances only if its metadata differs from that
        # of its last join. The generation makes it differ.
        names_generation = owned or self._is_reassigned
        generation = (
            session.member.identity.generation_id if names_generation else self._unsubscribed_since
        )
        data = {name: user_data(a, *last_assignment) for name, a in self._assignors.items()}
        # Encoded once for all assignors that add the same user data, mostly none: the subscription
        # may list 90,000 partitions.
        encoded = {
            added: encode_subscription(
                Subscription(
                    topics=tuple(topics),
                    user_data=added,
                    owned=owned,
                    generation=generation,
                    rack=session.options.client_rack,
                )
            )
            for added in set(data.values())
        }
        return tuple((name, encoded[added]) for name, added in data.items())

    async def follow_topics(self) -> None:
        """As leader: request a rebalance if topics changed since the assignment was computed."""
        await self._leader.follow_topics()

    # ------------------------------------------------------------ called by the driver, at once

    def on_generation_end(self, *, lost: bool) -> None:
        """Stop delivering the partitions to revoke, at once, even while a callback runs."""
        self._session.member.is_stable = False
        self._has_lost_all = self._session.committer.is_handling_loss = lost
        if lost and self._revocation_wait is not None:
            self._revocation_wait.cancel()
        self._session.delivery.revoke(self._partitions_to_revoke(lost=lost))
        self._session.notify()

    def _partitions_to_revoke(self, *, lost: bool) -> list[TopicPartition]:
        """Return the partitions to revoke before the next join."""
        owned = self._session.delivery.owned
        # Where the coordinator assigns, `Revoke` means that the member leaves.
        if not self.cooperative or lost or self._protocol.coordinator_assigns:
            return sorted(owned)
        # Include partitions whose delivery has stopped already, even if the application has
        # subscribed to their topic again since: they must be released before they can be assigned
        # and delivered again.
        return sorted(tp for tp, one in owned.items() if one.revoked or tp.topic not in self.topics)

    def on_lease_extended(self) -> None:
        """Wake an application that waits for the ownership lease, which was extended, or for the
        assignment of a changed subscription, which the same heartbeat may have confirmed."""
        member = self._session.member
        # A classic member's generation counts only once it is applied.
        is_followed = member.protocol.coordinator_assigns and member.follow_subscription()
        if is_followed or self._session.polls.is_waiting_for_ownership:
            self._session.notify()

    def on_fatal_error(self, error: Exception) -> None:
        """Raise an error at every call of the application."""
        self._session.errors.fail(error)

    def on_error(self, error: Exception) -> None:
        """Raise an error at the application's next call."""
        self._session.errors.report(error)

    def poll_due_at(self, loop_ran_at: float) -> float:
        """Return when the next poll is due. A member without partitions need not poll; while the
        application waits in the client, only its event loop must run. `loop_ran_at`: when that loop
        last ran."""
        session = self._session
        # Read in this order, as this may be another thread: a wait that ends in between has updated
        # `last_poll_at` already.
        since = loop_ran_at if session.polls.is_waiting else session.polls.last_poll_at
        if not session.delivery.owned:
            since = anyio.current_time()
        return since + session.options.max_poll_interval

    def overdue_poll(self, loop_ran_at: float, now: float) -> OverduePoll:
        """Return why the next poll is overdue."""
        session = self._session
        limit = f"max_poll_interval_ms is {session.options.max_poll_interval * 1000:.0f}"
        if session.polls.is_waiting:
            return OverduePoll(
                reason="the application blocked its event loop",
                detail=f"its event loop has been blocked for {now - loop_ran_at:.1f} s; {limit}",
                advice="run what blocks it in a thread, for example with"
                " anyio.to_thread.run_sync, or raise max_poll_interval_ms",
            )
        seconds = now - session.polls.last_poll_at
        return OverduePoll(
            reason="the application stopped polling",
            detail=f"the application has not requested records for {seconds:.1f} s; {limit}",
            advice="process records faster, take fewer at a time, or raise max_poll_interval_ms",
        )

    # ------------------------------------------------------------ called by the driver, in order

    async def revoke(self, deadline: float) -> SupportedProtocols:
        """Drain, commit, call the listener, and release: all partitions, or of a cooperative member
        those of unsubscribed topics."""
        revoked = self._partitions_to_revoke(lost=False)
        # Again: since `on_generation_end`, an assignment of the ended generation may have been
        # applied.
        self._session.delivery.revoke(revoked)
        # An eager member's listener is called in each rebalance, even without partitions.
        await self._drain_and_release(
            revoked, deadline, call_listener=bool(revoked) or not self.cooperative
        )
        return self.protocols()

    async def lose(self, reason: str) -> SupportedProtocols:
        """Release all partitions without a commit: it would be refused, or overwrite a commit of
        the new owner."""
        partitions = self._partitions_to_revoke(lost=True)
        self._session.log.lost(partitions, reason)
        await self._release(partitions, reason)
        self._has_lost_all, self._unsubscribed_since = False, -1
        await self._call_listener(self._session.options.on_partitions_lost, partitions)
        self._session.committer.is_handling_loss = False
        self._session.notify()
        return self.protocols()

    async def assign(self, generation: GenerationInfo) -> None:
        """Apply the assignment of a generation, call the listener, and look up positions."""
        session = self._session
        # Counted from before the decoding: a thread may take seconds for a large assignment, and
        # the group waits for the revocation meanwhile.
        deadline = anyio.current_time() + session.options.rebalance_timeout * DRAIN_FRACTION
        assigned = await run_job(self._cluster, *_decoding_job(generation))
        if self._protocol.coordinator_assigns:
            self._note_new_partitions(assigned)
            # They include the topics that the coordinator found by a pattern. Do not wait for
            # their metadata: the next assignment may revoke partitions, and would wait, too.
            self._assigned_topics = frozenset(generation.topic_ids)
        if await self._rejoin_if_unsubscribed(generation, assigned):
            return
        self._update_identity(generation)
        self._last_assignment = (assigned, generation.generation_id)
        await self._leader.follow_assignment(generation)
        if not session.member.had_partitions:
            # The application had nothing to poll for, so its time begins now. Otherwise an
            # assignment must not count as a poll: a stuck application would keep its partitions for
            # as long as the group rebalances.
            session.polls.note_poll(anyio.current_time())
        revoked_count = await self._revoke_others(generation, assigned, deadline)
        if await self._own(generation, assigned):
            await self._complete_rebalance(revoked_count)

    async def _rejoin_if_unsubscribed(
        self, generation: GenerationInfo, assigned: Sequence[TopicPartition]
    ) -> bool:
        """Rejoin if members assign and the assignment has topics that are not subscribed to; return
        whether this member rejoins."""
        session, member = self._session, self._session.member
        may_rejoin = not self._protocol.coordinator_assigns and member.driver is not None
        unsubscribed = sorted({tp.topic for tp in assigned} - self.topics) if may_rejoin else []
        if not unsubscribed or member.driver is None:  # the second test is for the type checker
            self._unsubscribed_since = -1
            self._pauses.reset()
            return False
        if self._unsubscribed_since >= 0:
            # Without this pause, a leader that repeats such an assignment would cause rebalances in
            # a loop.
            await self._pauses.wait()
        else:
            self._unsubscribed_since = generation.generation_id
        # Either the subscription changed while the group rebalanced, and the leader had the old
        # one. Or this is a static member that was away: the coordinator stored its new subscription
        # and returned its old assignment (KIP-345), and would do so again for equal metadata.
        names = escaped(", ".join(unsubscribed))
        reason = f"assigned topics that are not subscribed: {names}"
        session.history.note_rejoin_request(RebalanceCause.SUBSCRIPTION, reason)
        member.driver.rejoin(reason)
        return True

    def _update_identity(self, generation: GenerationInfo) -> None:
        """Commit as a member of this generation from now on, where commits name one: commits of
        members in ZooKeeper do not."""
        member = self._session.member
        # Under KIP-848 the epoch of a member grows while partitions stay. The identity stays, too:
        # with another one, the commits of these partitions that are in flight would fail. Commits
        # send the current epoch, `CurrentMember.generation_id`.
        is_same_member = (
            self._protocol.coordinator_assigns and generation.member_id == member.identity.member_id
        )
        if not self._protocol.claims_partitions and not is_same_member:
            instance_id = self._session.options.group_instance_id
            member.identity = Identity(generation.generation_id, generation.member_id, instance_id)

    async def _revoke_others(
        self, generation: GenerationInfo, assigned: Sequence[TopicPartition], deadline: float
    ) -> int:
        """Revoke the owned partitions that are not assigned any more; return their number."""
        session = self._session
        kept, ids = set(assigned), generation.topic_ids

        def others(owned: Iterable[OwnedPartition]) -> list[TopicPartition]:
            return [
                one.tp
                for one in owned
                # The topic may have been deleted and created again under the same name (KIP-848).
                if one.tp not in kept or not one.is_assigned_in(ids.get(one.tp.topic, NO_ID))
            ]

        revoked = sorted(await process_in_slices(others, session.delivery.owned.values()))
        self._is_reassigned = generation.generation_id == self._revoked_in
        self._revoked_in = generation.generation_id if revoked else -1
        if revoked:
            session.delivery.revoke(revoked)
            now = anyio.current_time()
            await self._drain_and_release(revoked, deadline, call_listener=True)
            session.history.note_revocation_time(anyio.current_time() - now)
        return len(revoked)

    async def _own(self, generation: GenerationInfo, assigned: Sequence[TopicPartition]) -> bool:
        """Own the partitions and call the listener. Return False if the member has lost its
        assignment meanwhile: then it owns none of them."""
        session, member = self._session, self._session.member
        create = partial(session.delivery.create, topic_ids=generation.topic_ids)
        created = await process_in_slices(create, assigned)
        if self._has_lost_all or (
            self._protocol.coordinator_assigns
            and not member.is_in_generation(generation.generation_id)
        ):
            return False
        member.note_assignment(has_partitions=bool(assigned))
        session.delivery.assign(created)
        session.log.assigned(assigned, [one.tp for one in created], generation)
        await self._report_assigned(created)
        member.complete_rebalance(generation.generation_id)
        self._engine.on_partitions_added()
        return True

    async def _report_assigned(self, created: Sequence[OwnedPartition]) -> None:
        """Call the listener about new partitions, and start at the offsets that it returns. While
        the listener runs, nothing is fetched from these partitions, but their positions are looked
        up: the listener may read the positions."""
        callback = self._session.options.on_partitions_assigned
        if callback is None:
            return
        added = [owned.tp for owned in created]
        for owned in created:
            owned.awaits_listener = True
        try:
            self._start_at(await self._call_listener(callback, added))
        finally:
            for owned in created:
                owned.awaits_listener = False

    async def _complete_rebalance(self, revoked_count: int) -> None:
        """Rejoin if partitions were revoked, so that other members get them; otherwise follow
        changes of the topics."""
        session, driver = self._session, self._session.member.driver
        protocol = self._protocol
        if protocol.coordinator_assigns:
            return  # KIP-848: the next heartbeat reports what is owned
        # KIP-429: a second rebalance assigns what was revoked. A static member that was away when
        # it should have rejoined, and is assigned the same generation again (KIP-345), must rejoin
        # now: otherwise no member gets these partitions.
        must_rejoin = bool(revoked_count or self._is_reassigned) and not protocol.claims_partitions
        if must_rejoin and driver is not None:
            reason = f"revoked {revoked_count or 'some'} partitions"
            session.history.note_rejoin_request(RebalanceCause.HANDOVER, reason)
            driver.rejoin(reason)
        else:
            # Topics may have changed since the assignment was computed.
            await self.follow_topics()

    def _note_new_partitions(self, assigned: Sequence[TopicPartition]) -> None:
        """Note as the cause of the rebalance that topics have new partitions, if the assignment has
        partitions that the metadata does not have yet."""
        # `assigned` is sorted: of each topic, the last partition remains.
        most = {tp.topic: tp.partition + 1 for tp in assigned}
        known = self._cluster.metadata.partition_counts(most)
        for topic, count in most.items():
            if 0 < (before := known.get(topic, 0)) < count:
                reason = f"topic {topic} went from {before} to {count} partitions or more"
                self._session.history.note_cause(RebalanceCause.TOPICS, reason)

    async def compute(self, work: Compute) -> dict[str, bytes]:
        """As leader: assign the partitions of every topic that any member subscribes to."""
        return await self._leader.compute(self._assignors[work.protocol_name], work)

    # ------------------------------------------------------------ revocation and the listener

    async def _drain_and_release(
        self, revoked: Sequence[TopicPartition], deadline: float, *, call_listener: bool
    ) -> None:
        """Wait for the records in flight, commit, call the listener, and release the partitions.

        If all is lost before the listener is called, `lose` calls it for a loss instead. After a
        loss nothing waits for commits: they would be refused, and over a dead connection they would
        keep the member from rejoining.
        """
        session = self._session
        with anyio.CancelScope() as self._revocation_wait:
            if self._has_lost_all:
                return
            await session.drain(revoked, deadline)
            if session.committer.is_automatic:
                await self._commit_before_release(self._commit_deadline(deadline))
            else:
                await session.committer.wait_for_commits(self._commit_deadline(deadline))
        if self._has_lost_all:
            return
        if call_listener:
            await self._call_listener(self._session.options.on_partitions_revoked, revoked)
        if call_listener and not self._has_lost_all:
            with anyio.CancelScope() as self._revocation_wait:
                # Commits that the callback began: in the next generation they would be refused.
                await session.committer.wait_for_commits(self._commit_deadline(deadline))
        await self._release(revoked, "a rebalance revoked it")
        session.log.revoked(revoked)

    async def _release(self, partitions: Sequence[TopicPartition], reason: str) -> None:
        """Release partitions. Their delivered records without a commit count as lost, unless the
        application has unsubscribed from the topic."""
        session = self._session
        lost = frozenset(filter(self.subscribes, {tp.topic for tp in partitions}))
        session.note_lost([tp for tp in partitions if tp.topic in lost], reason)
        await apply_in_slices(session.delivery.release, partitions)

    def _commit_deadline(self, deadline: float) -> float:
        """Return by when the last commit must end: even if the coordinator cannot be reached, there
        must be time for the listener before the deadline, or before the end of closing. A commit
        that begins late, or after the deadline, still gets half a second."""
        now = anyio.current_time()
        left = min(deadline, self._session.closing.leave_deadline) - now
        return now + max(left, 1.0) * _COMMIT_FRACTION

    async def _commit_before_release(self, deadline: float) -> None:
        try:
            await self._session.committer.commit_processed(deadline)
        except KafkaGroupError as error:
            # The rebalance continues.
            logger.warning(
                "the commit before the revocation failed: %s; the new owner continues from the last"
                " committed offset",
                error,
            )

    async def _call_listener(
        self, callback: PartitionsCallback | None, partitions: Sequence[TopicPartition]
    ) -> object:
        """Call the rebalance listener; return its result, or None if there is no listener or it
        fails."""
        if callback is None:
            return None
        session = self._session
        with session.running_callback():
            try:
                result = callback(list(partitions))
                return await result if inspect.isawaitable(result) else result
            except USER_ERRORS as error:
                # A callback has no veto: the rebalance completes, then its error surfaces.
                session.errors.report(user_error(error, "a rebalance callback"))
                return None

    def _start_at(self, offsets: object) -> None:
        """Start at the offsets that the listener returned, if any."""
        session = self._session
        if offsets is None:
            return
        if not isinstance(offsets, Mapping):
            session.errors.report(
                ConfigurationError(
                    f"on_partitions_assigned returned a {type(offsets).__name__}; expected None, or"
                    " the offsets at which to start: {TopicPartition('topic', 0): 5}"
                )
            )
            return
        for partition, given in offsets.items():
            offset = given.offset if isinstance(given, OffsetAndMetadata) else given
            try:
                tp = partition_of(partition)
                owned = session.delivery.owned.get(tp)
                if offset is None or (owned is not None and owned.revoked):
                    # No offset is chosen for it, or it was revoked while the callback ran.
                    continue
                session.seek(tp, offset)
            except KafkaGroupError as error:
                session.errors.report(error)


def _decoding_job(generation: GenerationInfo) -> tuple[Callable[[], Sequence[TopicPartition]], int]:
    """Return the job that lists the assigned partitions, sorted, and its size in bytes as `run_job`
    counts them. The job raises: DecodeError."""
    topics = generation.topics
    if topics is None:
        encoded = generation.assignment
        return partial(decode_assignment, encoded), len(encoded)
    count = sum(map(len, topics.values()))
    return partial(assigned_partitions, topics.items()), _PARTITION_BYTES * count
