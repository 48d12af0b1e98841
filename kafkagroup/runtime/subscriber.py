"""The group application of a consumer: applies assignments and revokes partitions.

The order of a revocation matters: stop delivering records, wait for those in flight, commit, call
the rebalance listener, and only then let the rebalance continue.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import is_
from typing import TypeVar

import anyio

from kafkagroup._values import evolve, frozen
from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    MemberSpec,
    cooperative_sticky_assignor,
    protocol_name,
    range_assignor,
    roundrobin_assignor,
    sticky_assignor,
)
from kafkagroup.assign.check import valid_claims
from kafkagroup.assign.spec import is_cooperative, read_user_data, user_data
from kafkagroup.consume.basis import basis_in, encode_basis
from kafkagroup.errors import (
    ConfigurationError,
    KafkaGroupError,
    RemoteProtocolError,
    TransportError,
    escaped,
)
from kafkagroup.events import RebalanceCause
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.runtime.interfaces import AssignedCallback, PartitionsCallback, SupportedProtocols
from kafkagroup.runtime.offsets import Identity
from kafkagroup.runtime.session import Session
from kafkagroup.runtime.slices import process_in_slices
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import ClusterMetadata, Racks
from kafkagroup.transport.retry import Pauses
from kafkagroup.types import Assignment, OffsetAndMetadata, TopicPartition
from kafkagroup.wire.group_log import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

__all__ = ["Callbacks", "Subscriber"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_DRAIN_SHARE = 0.75
"""How much of the rebalance timeout a cooperative revocation may wait for records in flight."""

_LOADS_TIMEOUT = 10.0
"""Seconds that the whole group waits for the leader's `partition_loads`."""

_COMMIT_SHARE = 0.5
"""How much of the time left before a deadline the last commit may take; callbacks need some too."""


_LARGE_GROUP = 64 * 1024
"""The limit, in bytes, of subscriptions or of an assignment that are processed without a thread:
some milliseconds where nothing is compiled. 900 members once blocked the loop for two seconds."""

_PARTITION_BYTES = 32
"""The bytes of subscriptions that take as long to process as assigning one partition."""

_THREAD_SAFE = (
    range_assignor,
    roundrobin_assignor,
    sticky_assignor,
    cooperative_sticky_assignor,
)
"""The assignors that may run in a thread. An application's own assignor runs in the event loop, as
its other callbacks do."""


@frozen
class Callbacks:
    """The rebalance listener of the application."""

    assigned: AssignedCallback | None = None
    revoked: PartitionsCallback | None = None
    lost: PartitionsCallback | None = None


class Subscriber:
    """Applies a member's assignments and revocations to the partitions of a consumer."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        callbacks: Callbacks,
        on_assigned: Callable[[], None],
        *,
        claims: bool,
    ) -> None:
        self.topics: frozenset[str] = frozenset()
        """The subscribed topics."""
        self.pattern: re.Pattern[str] | None = None
        """The subscribed regular expression, which the coordinator may match."""
        self._session = session
        self._cluster = cluster
        self._callbacks = callbacks
        self._on_assigned = on_assigned
        self._assignors = {protocol_name(a): a for a in session.options.assignors}
        self._claims = claims
        """Whether partitions are claimed one by one, in ZooKeeper: the claims define the owners, no
        member leads, and the metadata need not have the owned partitions."""
        self.cooperative = claims or all(is_cooperative(a) for a in session.options.assignors)
        """Whether partitions are kept while the group rebalances: only if every assignor is
        cooperative."""
        self._has_lost_all = False
        """Whether all partitions are lost, and the listener was not called yet."""
        self._revocation_wait: anyio.CancelScope | None = None
        """The wait before a revocation; cancelled when all partitions are lost."""
        self._last_assignment: tuple[Sequence[TopicPartition], int] = ((), -1)
        """The last assignment, sorted, and its generation; kept through revocations."""
        self._had_partitions = False
        """Whether the last assignment had partitions, so that the application had to poll."""
        self._revoked_in = -1
        """The generation in which partitions were revoked, until the member rejoins; else -1."""
        self._is_reassigned = False
        """Whether that generation was assigned a second time."""
        self._computed_generation = -1
        """The generation that this member computed the assignment of."""
        self._partition_counts: dict[str, int] = {}
        """As leader: the partition counts that the assignment was computed from."""
        self._racks: Racks = {}
        """As leader, where any member has a rack: the racks of the replicas, likewise."""
        self._has_racks = False
        self._watched_topics: frozenset[str] = frozenset()
        self._unsubscribed_since = -1
        """The first generation of several in a row whose assignment has topics that are not
        subscribed to; else -1."""
        self._pauses = Pauses(cluster.options)

    def subscribe_to(self, topics: frozenset[str], pattern: re.Pattern[str] | None = None) -> None:
        """Subscribe to these topics, or by a pattern, from the next join on."""
        self.topics, self.pattern = topics, pattern

    def protocols(self) -> SupportedProtocols:
        """Return the supported protocols: every assignor, with the same subscription."""
        session = self._session
        owned, last_assignment = tuple(sorted(session.delivery.owned)), self._last_assignment
        if self._claims:
            owned, last_assignment = (), ((), -1)
        # The topics of owned partitions stay in the metadata until those are revoked: assignors
        # ignore owned partitions of other topics, and would assign them to another member.
        topics = self.topics | {tp.topic for tp in owned}
        # The coordinator rebalances for a member whose metadata differs from that of its last join:
        # the generation makes the difference.
        names_generation = owned or self._is_reassigned
        generation = (
            session.membership.identity.generation_id
            if names_generation
            else self._unsubscribed_since
        )
        return tuple(
            (
                name,
                encode_subscription(
                    Subscription(
                        topics=tuple(topics),
                        user_data=user_data(assignor, *last_assignment),
                        owned=owned,
                        generation=generation,
                        rack=session.options.client_rack,
                    )
                ),
            )
            for name, assignor in self._assignors.items()
        )

    async def follow_topics(self) -> None:
        """As leader: request a rebalance if topics changed since the assignment was computed."""
        driver = self._session.membership.driver
        if driver is None or not driver.leads:
            return
        racks = await self._replica_racks()
        # Others ran if a thread compared the racks of many partitions.
        leads = driver is self._session.membership.driver and driver.leads
        if leads and (reason := self._topic_change(racks)):
            self._session.history.note_rejoin_request(RebalanceCause.TOPICS, reason)
            driver.rejoin(reason)

    def _topic_change(self, racks: Racks) -> str | None:
        """Return why the assignment is out of date; None if it is not. `racks`: the replicas'
        current racks."""
        counts = self._cluster.metadata.partition_counts(self._watched_topics)
        for topic in sorted(self._watched_topics):
            before, now = self._partition_counts.get(topic, 0), counts.get(topic, 0)
            if before != now:
                return f"topic {topic} went from {before} to {now} partitions"
        # Nearly always the same object: comparing the racks of many partitions takes long.
        if racks is not self._racks and racks != self._racks:
            return "replicas moved to other racks"
        return None

    async def _replica_racks(self) -> Racks:
        """Return the racks of all replicas in the current metadata; empty if no member has a rack.
        The same object as before if nothing has changed."""
        while self._has_racks:
            metadata, watched, before = self._cluster.metadata, self._watched_topics, self._racks
            size = _PARTITION_BYTES * sum(metadata.partition_counts(watched).values())
            racks = await self._run_job(partial(_racks_now, metadata, watched, before), size)
            known = metadata, watched, before
            if all(map(is_, known, (self._cluster.metadata, self._watched_topics, self._racks))):
                return racks
        return {}

    # ------------------------------------------------------------ called by the driver, at once

    def on_generation_end(self, *, lost: bool) -> None:
        """Stop delivering the partitions to revoke, at once, even while a callback runs."""
        self._session.membership.begin_rebalance()
        self._has_lost_all = lost
        if lost:
            self._session.committer.begin_loss()
        else:
            self._session.committer.end_loss()
        if lost and self._revocation_wait is not None:
            self._revocation_wait.cancel()
        self._session.delivery.revoke(self._partitions_to_revoke(lost=lost))
        self._session.notify()

    def _partitions_to_revoke(self, *, lost: bool) -> list[TopicPartition]:
        """Return the partitions to revoke before the next join."""
        owned = sorted(self._session.delivery.owned)
        if self.cooperative and not lost and not self._session.membership.uses_consumer_protocol:
            return [tp for tp in owned if tp.topic not in self.topics]
        return owned

    def on_lease_extended(self) -> None:
        """Wake an application that waits for the ownership lease, which was extended."""
        if self._session.polls.is_waiting_for_ownership:
            self._session.notify()

    def on_fatal_error(self, error: Exception) -> None:
        """Raise an error at every call of the application."""
        self._session.errors.fail(error)

    def on_error(self, error: Exception) -> None:
        """Raise an error at the application's next call."""
        self._session.errors.report(error)

    def poll_due_at(self, loop_ran_at: float) -> float:
        """Return when the next poll is due. A member without partitions need not poll; while the
        application waits in the client, only the event loop must run."""
        session = self._session
        # In this order: a wait that ends in between has updated `last_poll_at` already.
        since = loop_ran_at if session.polls.is_waiting else session.polls.last_poll_at
        if not session.delivery.owned:
            since = anyio.current_time()
        return since + session.options.max_poll_interval

    # ------------------------------------------------------------ called by the driver, in order

    async def revoke(self, deadline: float) -> SupportedProtocols:
        """Drain, commit, call the listener, and release: all partitions, or of a cooperative member
        those of unsubscribed topics."""
        revoked = self._partitions_to_revoke(lost=False)
        # Again: since `on_generation_end`, an assignment of the ended generation may have been
        # applied.
        self._session.delivery.revoke(revoked)
        await self._drain_and_release(
            revoked, deadline, call_listener=bool(revoked) or not self.cooperative
        )
        return self.protocols()

    async def lose(self, reason: str) -> SupportedProtocols:
        """Release all partitions without a commit, which would be refused, or overwrite that of the
        new owner."""
        partitions = self._partitions_to_revoke(lost=True)
        logger.warning("lost %d partitions: %s", len(partitions), reason)
        self._release(partitions, reason)
        self._has_lost_all, self._unsubscribed_since = False, -1
        await self._call_listener(self._callbacks.lost, partitions)
        self._session.committer.end_loss()
        self._session.notify()
        return self.protocols()

    async def assign(self, generation: GenerationInfo) -> None:
        """Apply the assignment of a generation, call the listener, and look up positions."""
        session, encoded = self._session, generation.assignment
        assigned = await self._run_job(partial(decode_assignment, encoded), len(encoded))
        if session.membership.uses_consumer_protocol:
            self._note_new_partitions(assigned)
            await self._follow_assigned_topics({tp.topic for tp in assigned})
        if await self._rejoin_if_unsubscribed(generation, assigned):
            return
        self._identify(generation)
        owed_poll = (
            self._had_partitions and session.polls.last_poll_at > session.membership.joined_at
        )
        self._last_assignment = (assigned, generation.generation_id)
        await self._follow_as_leader(generation)
        if not owed_poll:
            # The application had nothing to poll for, so its time begins now. Otherwise an
            # assignment must not count as a poll: a stuck application would keep its partitions for
            # as long as the group rebalances.
            session.polls.note_poll(anyio.current_time())
        revoked_count = await self._revoke_others(generation, assigned)
        if await self._own(generation, assigned):
            await self._complete_rebalance(revoked_count)

    async def _rejoin_if_unsubscribed(
        self, generation: GenerationInfo, assigned: Sequence[TopicPartition]
    ) -> bool:
        """Rejoin if the assignment has topics that are not subscribed to; return whether it has."""
        session, membership = self._session, self._session.membership
        unsubscribed = sorted({tp.topic for tp in assigned} - self.topics)
        if not unsubscribed or membership.uses_consumer_protocol or membership.driver is None:
            self._unsubscribed_since = -1
            self._pauses.reset()
            return False
        if self._unsubscribed_since >= 0:
            await self._pauses.wait()  # or a leader that repeats this causes rebalances in a loop
        else:
            self._unsubscribed_since = generation.generation_id
        # Either the subscription changed while the group rebalanced, and the leader had the old
        # one. Or this is a static member that was away: the coordinator stored its new subscription
        # and returned its old assignment (KIP-345), and would do so again for equal metadata.
        names = escaped(", ".join(unsubscribed))
        reason = f"assigned topics that are not subscribed: {names}"
        session.history.note_rejoin_request(RebalanceCause.SUBSCRIPTION, reason)
        membership.driver.rejoin(reason)
        return True

    def _identify(self, generation: GenerationInfo) -> None:
        """Commit as a member of this generation from now on."""
        membership = self._session.membership
        # KIP-848: the epoch grows within one membership, and commits in flight for partitions that
        # stay must not fail for that.
        is_same_member = (
            membership.uses_consumer_protocol
            and generation.member_id == membership.identity.member_id
        )
        if not self._claims and not is_same_member:
            instance_id = self._session.options.group_instance_id
            membership.identify(
                Identity(generation.generation_id, generation.member_id, instance_id)
            )

    async def _follow_as_leader(self, generation: GenerationInfo) -> None:
        """As a leader that did not compute this assignment: follow its topics."""
        if not generation.is_leader or generation.generation_id == self._computed_generation:
            return
        # KIP-814: a static leader that was away must notice what changed in the meantime.
        size = sum(map(len, generation.members.values()))
        await self._watch_topics(
            *await self._run_job(partial(_subscriptions, generation.members), size)
        )
        self._partition_counts = basis_in(generation.assignment) or self._partition_counts

    async def _revoke_others(
        self, generation: GenerationInfo, assigned: Sequence[TopicPartition]
    ) -> int:
        """Revoke the owned partitions that are not assigned any more; return their number."""
        session = self._session
        revoked = sorted(session.delivery.owned.keys() - set(assigned))
        self._is_reassigned = generation.generation_id == self._revoked_in
        self._revoked_in = generation.generation_id if revoked else -1
        if revoked:
            session.delivery.revoke(revoked)
            now, share = anyio.current_time(), session.options.rebalance_timeout * _DRAIN_SHARE
            await self._drain_and_release(revoked, now + share, call_listener=True)
            session.history.note_revocation_time(anyio.current_time() - now)
        return len(revoked)

    async def _own(self, generation: GenerationInfo, assigned: Sequence[TopicPartition]) -> bool:
        """Own the partitions and call the listener. Return False if the member was fenced
        meanwhile, and owns none of them."""
        session, membership = self._session, self._session.membership
        created = await process_in_slices(session.delivery.create, assigned)
        if self._has_lost_all or (
            membership.uses_consumer_protocol
            and not membership.is_in_generation(generation.generation_id)
        ):
            return False
        self._had_partitions = bool(assigned)
        session.delivery.assign(created)
        added = [owned.tp for owned in created]
        self._start_at(await self._call_listener(self._callbacks.assigned, added))
        membership.complete_rebalance(generation.generation_id)
        self._on_assigned()
        return True

    async def _complete_rebalance(self, revoked_count: int) -> None:
        """Rejoin if partitions were revoked, so that other members get them; otherwise follow
        changes of the topics."""
        session, driver = self._session, self._session.membership.driver
        if session.membership.uses_consumer_protocol:
            return  # KIP-848: the next heartbeat reports what is owned
        # KIP-429: a second rebalance assigns what was revoked. A static member that was away when
        # it should have rejoined, and is assigned the same generation again (KIP-345), must rejoin
        # now: otherwise no member gets these partitions.
        if (revoked_count or self._is_reassigned) and not self._claims and driver is not None:
            reason = f"revoked {revoked_count or 'some'} partitions"
            session.history.note_rejoin_request(RebalanceCause.HANDOVER, reason)
            driver.rejoin(reason)
        else:
            # Topics may have changed since the assignment was computed.
            await self.follow_topics()

    def _note_new_partitions(self, assigned: Sequence[TopicPartition]) -> None:
        """Record new partitions as the cause of an assignment that has some which the metadata does
        not have yet."""
        most = {tp.topic: tp.partition + 1 for tp in assigned}  # sorted: each topic's last remains
        known = self._cluster.metadata.partition_counts(most)
        for topic, count in most.items():
            if 0 < (before := known.get(topic, 0)) < count:
                reason = f"topic {topic} went from {before} to {count} partitions or more"
                self._session.history.note_cause(RebalanceCause.TOPICS, reason)

    async def _follow_assigned_topics(self, topics: set[str]) -> None:
        """Follow assigned topics, also those that the coordinator found by matching a pattern."""
        self._cluster.topics.update(topics)
        if len(self._cluster.metadata.partition_counts(topics)) < len(topics):
            with suppress(TransportError, RemoteProtocolError):
                await self._cluster.refresh()

    async def compute(self, work: Compute) -> dict[str, bytes]:
        """As leader: assign the partitions of every topic that any member subscribes to."""
        assignor = self._assignors[work.protocol_name]
        size = sum(map(len, work.members.values()))
        subscriptions, topics = await self._run_job(partial(_subscriptions, work.members), size)
        await self._watch_topics(subscriptions, topics)
        size += _PARTITION_BYTES * sum(self._partition_counts.values())
        loads = await self._loads()
        if not any(assignor is known for known in _THREAD_SAFE):
            size = 0
        spec = await self._run_job(
            partial(
                _spec, assignor, subscriptions, work, self._partition_counts, self._racks, loads
            ),
            size,
        )
        assignment = await self._run_job(partial(assignor, spec), size)
        user_data_of = {
            m: self._assignment_user_data(work.instance_ids.get(m)) for m in work.members
        }
        encoded = await self._run_job(
            partial(_encoded, work.protocol_name, assignor, spec, assignment, user_data_of), size
        )
        if self._session.membership.driver is not None:
            self._computed_generation = self._session.membership.driver.generation_id
        return encoded

    async def _run_job(self, job: Callable[[], T], size: int) -> T:
        """Run a job on `size` bytes; in a thread if they are many."""
        if size <= _LARGE_GROUP:
            return job()
        return await self._cluster.options.run_in_thread(job)

    def _assignment_user_data(self, instance_id: str | None) -> bytes | None:
        """As leader: return the user data of a member's assignment. A static leader's own has the
        partition counts, to compare with when it returns (KIP-814)."""
        if instance_id is None or instance_id != self._session.options.group_instance_id:
            return None
        return encode_basis(self._partition_counts)

    async def _loads(self) -> Mapping[TopicPartition, float]:
        """As leader: return the loads that `partition_loads` reports."""
        measure = self._session.options.partition_loads
        if measure is None:
            return {}
        try:
            with anyio.fail_after(_LOADS_TIMEOUT):
                found = measure()
                return await found if inspect.isawaitable(found) else found
        except Exception as error:
            # The group waits: an assignment without loads is better than none.
            logger.warning("partition_loads failed, all count as 1.0: %r", error)
            return {}

    async def _watch_topics(
        self, subscriptions: Mapping[str, Subscription], topics: frozenset[str]
    ) -> None:
        """As leader: look up the partitions of all subscribed topics, and follow their changes."""
        self._watched_topics = topics
        self._has_racks = any(s.rack is not None for s in subscriptions.values())
        self._cluster.topics.update(self._watched_topics)
        if self._claims or (
            len(self._cluster.metadata.partition_counts(self._watched_topics))
            < len(self._watched_topics)
        ):
            # With claims every member computes the assignment, so all need the same metadata.
            # Otherwise refresh only for unknown topics: the whole group waits for the response, and
            # partitions that were added since the last refresh are noticed at the next one.
            await self._cluster.refresh()
        self._racks = await self._replica_racks()
        # From the same metadata as the racks: other tasks may have run meanwhile.
        self._partition_counts = self._cluster.metadata.partition_counts(self._watched_topics)

    # ------------------------------------------------------------ revocation and the listener

    async def _drain_and_release(
        self, revoked: Sequence[TopicPartition], deadline: float, *, call_listener: bool
    ) -> None:
        """Wait for the records in flight, commit, call the listener, and release the partitions.

        If all is lost meanwhile, the listener is called for a loss instead. A commit would be
        refused, and over a dead connection it would keep the member from rejoining.
        """
        session = self._session
        with anyio.CancelScope() as self._revocation_wait:
            if self._has_lost_all:
                return
            await session.drain(revoked, deadline)
            if session.committer.is_automatic:
                await self._commit_before_release(self._commit_timeout(deadline))
            else:
                await session.committer.wait_for_commits(self._commit_timeout(deadline))
        if self._has_lost_all:
            return
        if call_listener:
            await self._call_listener(self._callbacks.revoked, revoked)
            with anyio.CancelScope() as self._revocation_wait:
                # Commits that the callback began: in the next generation they would be refused.
                await session.committer.wait_for_commits(self._commit_timeout(deadline))
        self._release(revoked, "a rebalance revoked it")

    def _release(self, partitions: Sequence[TopicPartition], reason: str) -> None:
        """Release partitions. Their delivered records without a commit count as lost, unless the
        application has unsubscribed from the topic."""
        self._session.note_lost([tp for tp in partitions if self._subscribes(tp.topic)], reason)
        self._session.delivery.release(partitions)

    def _subscribes(self, topic: str) -> bool:
        pattern = self.pattern
        return topic in self.topics or (pattern is not None and bool(pattern.fullmatch(topic)))

    def _commit_timeout(self, deadline: float) -> float:
        """Return the seconds that a commit may take before the deadline, or before the end of
        closing: even if the coordinator cannot be reached, there must be time for the listener."""
        left = min(deadline, self._session.closing.leave_until) - anyio.current_time()
        return max(left, 1.0) * _COMMIT_SHARE

    async def _commit_before_release(self, left: float) -> None:
        try:
            await self._session.committer.commit_processed(left)
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
        """Call the rebalance listener; return its result."""
        if callback is None:
            return None
        session = self._session
        with session.running_callback():
            try:
                result = callback(list(partitions))
                return await result if inspect.isawaitable(result) else result
            except Exception as error:
                # A callback has no veto: the rebalance completes, then its error surfaces.
                session.errors.report(error)
                return None

    def _start_at(self, offsets: object) -> None:
        """Start at the offsets that the listener returned, if any."""
        if not isinstance(offsets, Mapping):
            return
        session = self._session
        for partition, given in offsets.items():
            tp = TopicPartition(*partition)
            offset = given.offset if isinstance(given, OffsetAndMetadata) else given
            owned = session.delivery.owned.get(tp)
            if offset is None or (owned is not None and owned.revoked):
                continue  # revoked while the callback ran: the next owner decides
            try:
                session.seek(tp, offset)
            except KafkaGroupError as error:
                session.errors.report(error)


def _racks_now(metadata: ClusterMetadata, topics: frozenset[str], before: Racks) -> Racks:
    """Return the racks of all replicas; `before` itself if they have not changed."""
    racks = metadata.replica_racks(topics)
    return before if racks == before else racks


def _subscriptions(members: Mapping[str, bytes]) -> tuple[dict[str, Subscription], frozenset[str]]:
    """Return each member's subscription, and the topics that any of them subscribes to."""
    # Most members subscribe to the same topics. With one tuple for all of them the garbage
    # collector, which stops all threads, traverses thousands of names instead of a million.
    equal: dict[tuple[str, ...], tuple[str, ...]] = {}
    subscriptions = {}
    for member, metadata in members.items():
        subscription = decode_subscription(metadata)
        topics = equal.setdefault(subscription.topics, subscription.topics)
        subscriptions[member] = evolve(subscription, topics=topics)
    return subscriptions, frozenset().union(*equal)


def _member(
    assignor: Assignor,
    subscription: Subscription,
    topics: frozenset[str],
    instance_id: str | None,
) -> MemberSpec:
    """Return a member as its subscription and its assignor's user data describe it."""
    claims = read_user_data(assignor, subscription.user_data)
    owned, generation = subscription.owned, subscription.generation
    if claims.owned is not None:
        owned, generation = claims.owned, claims.generation
    elif generation < 0:
        generation = claims.generation  # subscriptions before version 2 do not have it
    return MemberSpec(
        topics=topics,
        instance_id=instance_id,
        rack=subscription.rack,
        owned=owned,
        generation=generation,
        capacity=claims.capacity,
        user_data=subscription.user_data,
    )


def _spec(
    assignor: Assignor,
    subscriptions: Mapping[str, Subscription],
    work: Compute,
    counts: Mapping[str, int],
    racks: Racks,
    loads: Mapping[TopicPartition, float],
) -> GroupSpec:
    """Return the input of an assignor."""
    # One set for all members with the same topics, as in `_subscriptions`.
    topics = {names: frozenset(names) for names in {s.topics for s in subscriptions.values()}}
    return GroupSpec(
        members={
            member: _member(assignor, s, topics[s.topics], work.instance_ids.get(member))
            for member, s in subscriptions.items()
        },
        partitions=counts,
        racks=racks,
        loads=loads,
    )


def _encoded(
    name: str,
    assignor: Assignor,
    spec: GroupSpec,
    assignment: Assignment,
    user_data_of: Mapping[str, bytes | None],
) -> dict[str, bytes]:
    """Check and encode an assignor's result. `user_data_of`: each member's user data."""
    if is_cooperative(assignor):
        _check_handover(name, spec, assignment)
    return {m: encode_assignment(assignment.get(m, ()), data) for m, data in user_data_of.items()}


def _check_handover(name: str, spec: GroupSpec, assignment: Assignment) -> None:
    """Raise an error if a cooperative assignor assigns a partition that another member still owns.
    The user's own assignors may do so."""
    claims = valid_claims(spec)
    for member, partitions in assignment.items():
        for tp in partitions:
            if others := [other for other in claims.get(tp, ()) if other != member]:
                raise ConfigurationError(
                    f"assignor {name!r} hands {tp} over to {member} while {others[0]} owns it;"
                    " a cooperative assignor leaves it out for one round"
                )
