"""The tasks of a running consumer, and how it gets and releases partitions.

A consumer owns the partitions that its group assigns, all partitions of its topics, or those that
the application assigns. Only this module knows which of the three applies.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import uuid4

import anyio

from kafkagroup._text import escaped
from kafkagroup._values import evolve
from kafkagroup.concurrency.coalescing_task import Spawn
from kafkagroup.consume.delivery import Delivery
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.consume.released import ReleasedPartitions
from kafkagroup.errors import (
    RETRIED_ERRORS,
    ClusterChangedError,
    KafkaGroupError,
)
from kafkagroup.events import RebalanceCause
from kafkagroup.options import ConsumerOptions, ConsumerProtocol
from kafkagroup.runtime.consume.awaiting_seek import AwaitingSeek
from kafkagroup.runtime.consume.fetcher import Fetcher
from kafkagroup.runtime.consume.interfaces import FetchControl
from kafkagroup.runtime.consume.new_partitions import NewPartitionWatch
from kafkagroup.runtime.consume.positions import Positions
from kafkagroup.runtime.consume.refusals import Refusals
from kafkagroup.runtime.consume.session import Session
from kafkagroup.runtime.consume.subscriber import Subscriber
from kafkagroup.runtime.consume.topic_watch import TopicWatch
from kafkagroup.runtime.member.classic_protocol import CLASSIC
from kafkagroup.runtime.member.interfaces import MemberFactory, RunningMember
from kafkagroup.runtime.member.members import Members, member_config
from kafkagroup.runtime.member.protocol import CoordinatedProtocol
from kafkagroup.runtime.offsets.group_offsets import GroupOffsets
from kafkagroup.runtime.offsets.log_offsets import LogOffsets
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.types import TopicPartition

__all__ = ["Engine"]

logger = logging.getLogger(__name__)


class Engine(FetchControl):
    """A running consumer."""

    def __init__(
        self,
        session: Session,
        cluster: Cluster,
        spawn: Spawn,
        member_factory: MemberFactory | None = None,
        subscriber: Callable[..., Subscriber] = Subscriber,
    ) -> None:
        """`member_factory`: creates the members of a group that Kafka does not coordinate; None if
        it does. `subscriber`: creates the `Subscriber`; clients with an extension pass another
        one."""
        self._session = session
        self._options = session.options
        self._delivery: Delivery = session.delivery
        self._cluster = cluster
        self._spawn = spawn
        self._released = ReleasedPartitions()
        """Without a group: the positions of partitions whose topic is absent."""
        self._leaving_member: RunningMember | None = None
        """The member that is leaving. The call that made it leave may have been cancelled."""
        group_id = self._options.group_id
        if group_id is not None:
            offsets = GroupOffsets(
                cluster,
                group_id,
                max_retries=self._options.offsets_commit_max_retries,
                backoff=self._options.offsets_channel_backoff,
            )
            session.committer.bind(offsets)
        refusals = Refusals(session.errors, cluster.troubles, cluster.options)
        self.log_offsets = LogOffsets(cluster, self._options.isolation_level)
        """Requests offsets of logs from the partitions' leaders."""
        self.new_partitions = NewPartitionWatch(cluster, self._options)
        """Follows the metadata for partitions that are created during the subscription."""
        self._positions = Positions(
            session, cluster, self.log_offsets, self.new_partitions, refusals, self, spawn
        )
        self._fetcher = Fetcher(session, cluster, refusals, self, spawn)
        self.subscriber = subscriber(session, cluster, self)
        self._members = Members(
            cluster,
            self.subscriber,
            _first_protocol(self._options),
            member_factory,
            session.loop_delay,
            session.log,
            session.history,
            is_threaded=self._options.heartbeat_thread,
            client_member_id=str(uuid4()),
        )
        session.member.protocol = self._members.protocol
        self.topic_watch = TopicWatch(
            session, cluster, self.subscriber, self.new_partitions, spawn, self._follow_metadata
        )
        self._awaiting_seek = AwaitingSeek(self._delivery, cluster.troubles, spawn)
        self._delivery.on_awaiting_seek = self._awaiting_seek.report

    def start(self) -> None:
        """Start the background tasks."""
        self._spawn(self.topic_watch.run, "metadata")
        self._cluster.on_change = self.topic_watch.on_metadata
        self._cluster.watch_identity(
            on_changed=self._session.errors.report,
            on_adopted=self._on_cluster_adopted,
        )
        self._session.bind_logins(self._cluster.logins)
        if self._options.group_id is not None and self._options.enable_auto_commit:
            session = self._session
            # Reported as a refusal, which is raised at most once a minute: while an ACL is missing,
            # each auto-commit fails.
            report = partial(session.errors.report_refusal, about="auto-commit")
            self._spawn(partial(session.committer.auto_commit, report), "auto-commit")

    async def leave(self) -> None:
        """Leave the group, to close."""
        self._session.begin_close()
        # Allow logins again: credentials that were refused may be accepted by now.
        self._cluster.logins.suspended = None
        await self.unsubscribe("the consumer was closed")

    async def disconnect(self) -> None:
        """Close all connections."""
        await self._cluster.aclose()

    def wake(self) -> None:
        """Have the fetcher and the waiting tasks check again: there may be more to fetch."""
        self._fetcher.wake()
        self._session.notify()

    @property
    def fetching_bytes(self) -> int:
        """Bytes that fetch requests in flight may return."""
        return self._fetcher.in_flight_bytes

    def look_up_positions(self) -> None:
        """Look up missing positions, and validate those that need it."""
        self._positions.look_up()

    # ------------------------------------------------------------ partitions

    async def subscribe(self, topics: frozenset[str]) -> None:
        """Consume these topics instead of the earlier ones."""
        await self._subscribe(topics)
        await self.new_partitions.wait_for_proof()

    async def _subscribe(
        self,
        topics: frozenset[str],
        pattern: re.Pattern[str] | None = None,
        *,
        may_join: bool = True,
    ) -> None:
        """Consume these topics. `pattern`: the pattern that they match; None if the application
        named them. `may_join`: whether to join now if the last member has ended. If not, and it was
        expelled, the next poll of the application joins again."""
        self.topic_watch.end_nothing_to_consume()
        self.topic_watch.subscribe(topics, pattern)
        self.topic_watch.check()
        await self._wait_until_left()
        driver = self._session.member.driver
        if self._options.group_id is None:
            if pattern is None:  # with a pattern the metadata has all topics already
                await self.topic_watch.refresh()
            self._own_all()
        elif driver is None or driver.closed.is_set():
            if may_join or driver is None:
                self.join()
        else:
            reason = "the subscription changed"
            self._session.history.note_rejoin_request(RebalanceCause.SUBSCRIPTION, reason)
            self._session.member.change_subscription(lambda: driver.follows_subscription)
            driver.change_metadata(reason, self.subscriber.metadata())

    async def subscribe_by_pattern(self, pattern: re.Pattern[str]) -> None:
        """Consume the topics whose whole name matches, existing and future ones."""
        if self._session.member.protocol.coordinator_assigns:
            # The coordinator matches the topics, and assigns their partitions.
            await self._subscribe(frozenset(), pattern)
        else:
            matching = await self.topic_watch.list_matching(pattern)
            if self.topic_watch.pattern is not pattern:
                return  # another subscription, or `unsubscribe`, has replaced it meanwhile
            if not self._is_subscribed(matching, pattern):
                # Also if nothing matches: the member joins, to be there when a topic appears.
                await self._subscribe(matching, pattern)
        await self.new_partitions.wait_for_proof()

    def _is_subscribed(self, topics: frozenset[str], pattern: re.Pattern[str]) -> bool:
        """Whether a member is subscribed to these topics already: `_follow_metadata` may have
        subscribed it while they were listed. Another request would only make it join twice."""
        subscriber, driver = self.subscriber, self._session.member.driver
        is_member = driver is not None and not driver.closed.is_set()
        return is_member and (subscriber.topics, subscriber.pattern) == (topics, pattern)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Own exactly these partitions, without membership."""
        await self._wait_until_left()
        wanted = set(partitions)
        # A cancelled call may have left partitions revoked and not released.
        await self._release_partitions(
            [tp for tp, o in self._delivery.owned.items() if tp not in wanted or o.revoked]
        )
        with self._cluster.topics.during(tp.topic for tp in wanted):
            await self.topic_watch.refresh()
        self.topic_watch.end_nothing_to_consume()
        # After the last await, so that a seek of the caller precedes the look-up of the position.
        self._delivery.own(sorted(wanted))
        self.topic_watch.check()
        self.on_partitions_added()

    async def unsubscribe(self, reason: str) -> None:
        """Finish the records in flight, commit, leave the group, and own nothing."""
        # A cooperative member revokes only what is not subscribed: without topics, everything.
        self.topic_watch.subscribe(frozenset())
        self._released.forget(self.subscriber.subscribes)
        session = self._session
        driver = session.member.driver
        if driver is None:
            await self._release_partitions(list(self._delivery.owned))
        if self._members.unanswered_id and (driver is None or driver.closed.is_set()):
            # The earlier member could not leave. Another one leaves in its place: otherwise the
            # group would wait for the earlier one, see `Members.unanswered_id`.
            driver = self.join()
        if driver is None:
            return
        closing = session.closing
        closing.begin_leaving(anyio.current_time())
        driver.leave(reason, leave_group=closing.leave_group, deadline=closing.leave_deadline)
        self._leaving_member = driver
        if not session.is_in_callback:  # the member leaves once the callback has returned
            await self._wait_until_left()

    @property
    def is_leaving(self) -> bool:
        """Whether a member has yet to leave."""
        return self._leaving_member is not None and not self._leaving_member.closed.is_set()

    async def _wait_until_left(self) -> None:
        """Wait until the leaving member, if any, has left."""
        driver, session = self._leaving_member, self._session
        if driver is None:
            return
        await driver.closed.wait()
        if driver is self._leaving_member:
            self._leaving_member = None
            session.member.end()
            session.closing.end_leaving()

    @property
    def is_assigned(self) -> bool:
        """Whether the group has assigned partitions by the present subscription."""
        return self._session.member.is_stable

    def rejoin(self, reason: str) -> None:
        """Request a new generation; under KIP-848, the full assignment."""
        session = self._session
        if session.member.driver is None or session.member.driver.closed.is_set():
            return  # an expelled member joins again at the next poll
        if not session.member.protocol.coordinator_assigns:
            session.history.note_rejoin_request(RebalanceCause.REQUESTED, reason)
        session.member.driver.rejoin(reason)

    def join(self) -> RunningMember:
        """Become a member of the group, for the first time or again; return the member."""
        session, subscriber, options = self._session, self.subscriber, self._options
        config = evolve(
            member_config(options, subscriber.protocol_type),
            was_member=session.member.was_member,
            cooperative=subscriber.cooperative,
            rack=options.client_rack,
            assignor=options.group_remote_assignor,
            may_fall_back=options.group_protocol is ConsumerProtocol.AUTO,
        )
        driver = self._members.create(config, subscriber.metadata())
        session.member.begin(driver)
        self._spawn(partial(self._run_member, driver), "membership")
        if (offsets := session.committer.group_offsets) is not None:
            self._spawn(offsets.connect, "connection for offsets")
        return driver

    async def _run_member(self, driver: RunningMember) -> None:
        """Run a member until it has left or failed. Then join again after the client has adopted
        another cluster, and by the classic protocol if the coordinator supports no other. An
        expelled member joins again at the next poll."""
        await driver.run()
        session = self._session
        has_ended = driver is self._leaving_member or session.errors.failure is not None
        if session.member.is_void and not has_ended:
            self.join()
            return
        if driver.fell_back and driver is not self._leaving_member:
            self._members.fall_back_to_classic()
            session.member.protocol = self._members.protocol
            if self.topic_watch.pattern is None:
                self.join()
            else:
                await self._join_by_pattern(self.topic_watch.pattern)
            return
        if driver.is_expelled and driver is not self._leaving_member:
            session.member.is_expelled = True
            session.notify()  # an application that already waits for records must rejoin now

    async def _join_by_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe by a pattern as soon as a broker lists the topics."""
        pauses = RetryBackoff(self._cluster.options)
        while self.topic_watch.pattern is pattern:
            try:
                await self.subscribe_by_pattern(pattern)
                return
            except RETRIED_ERRORS as error:
                logger.info("metadata: %s", error)
            await pauses.wait()

    def _on_cluster_adopted(self, change: ClusterChangedError) -> None:
        """Forget the positions in the earlier cluster at once. Then rejoin, and look up positions
        in the adopted one."""
        session, delivery = self._session, self._delivery
        reason = f"cluster {escaped(change.found)} was adopted"
        self.new_partitions.forget_cluster()
        if (offsets := session.committer.group_offsets) is not None:
            offsets.forget_cluster()
        driver = session.member.driver
        if driver is not None and not driver.closed.is_set():
            session.member.is_void = True
            delivery.revoke(list(delivery.owned))
            # Without LeaveGroup: the group in the adopted cluster does not know this member.
            driver.leave(reason, leave_group=False, lost=True)
        else:
            owned = sorted(delivery.owned.items())
            session.note_lost(delivery.owned, reason)
            delivery.release([tp for tp, _ in owned])
            # Partitions of `assign` are owned again at once; those of subscribed topics, when the
            # metadata of the new cluster has them.
            if not self.subscriber.topics:
                delivery.own(tp for tp, _ in owned)
                for tp in [tp for tp, one in owned if one.paused]:
                    delivery.pause(tp)
        session.notify()

    def _own_all(self) -> None:
        """Without a group: own all partitions of the subscribed topics, and no others."""
        metadata, owned = self._cluster.metadata, self._delivery.owned
        counts = metadata.partition_counts(self.subscriber.topics)
        partitions = {TopicPartition(t, p) for t, n in counts.items() for p in range(n)}
        released = [tp for tp in owned if tp not in partitions]
        self._released.keep([owned[tp] for tp in released])
        self._delivery.release(released)
        for added in self._delivery.own(sorted(partitions)):
            self._released.restore(added, metadata.topics[added.tp.topic].topic_id)
        self._released.forget(self.subscriber.subscribes)
        self.on_partitions_added()

    async def _release_partitions(self, partitions: list[TopicPartition]) -> None:
        """Without membership: finish the records in flight, commit if that is automatic, and
        release the partitions."""
        session, closing = self._session, self._session.closing
        began_at, timeout = anyio.current_time(), closing.drain_timeout
        self._delivery.revoke(partitions)
        await session.drain(partitions, began_at + timeout)
        if session.committer.group_offsets is not None and session.committer.is_automatic:
            deadline = min(anyio.current_time() + timeout, began_at + closing.leave_timeout)
            try:
                await session.committer.commit_processed(deadline)
            except KafkaGroupError as error:
                logger.warning("the last commit failed: %s", error)
        self._delivery.release(partitions)

    def fail_partition(self, owned: OwnedPartition, error: Exception) -> None:
        """Raise `error` to the application, and fetch nothing from the partition until it seeks."""
        self._session.errors.fail_partition(owned, error)
        self._awaiting_seek.report()

    def on_partitions_added(self) -> None:
        """Look up the positions of new partitions, and fetch those that already have one."""
        self.look_up_positions()
        self.wake()

    async def _follow_metadata(self) -> None:
        """React to a change of the metadata: to new leaders, topics and partitions."""
        self.on_partitions_added()
        matching = await self.topic_watch.changed_match()
        if matching is not None:
            await self._subscribe(matching, self.topic_watch.pattern, may_join=False)
        if self._options.group_id is None and self.subscriber.topics:
            self._own_all()
        await self.subscriber.follow_topics()


def _first_protocol(options: ConsumerOptions) -> CoordinatedProtocol[Any]:
    """Return the protocol of a consumer's first member at Kafka's coordinator."""
    if options.group_id is None or options.group_protocol is ConsumerProtocol.CLASSIC:
        return CLASSIC
    # Imported here: most members are classic, and importing a consumer must stay cheap. Not when
    # the member joins: the process may have no file descriptor left to open the module.
    from kafkagroup.runtime.member.consumer_protocol import CONSUMER

    return CONSUMER
