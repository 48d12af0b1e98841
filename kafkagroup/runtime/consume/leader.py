"""The leader's part of a consumer group: compute the assignment, and notice when it is out of date.

The coordinator elects one member of a classic group as its leader. With claims in ZooKeeper every
member does the same computation.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from functools import partial
from operator import is_

import anyio

from kafkagroup._user_code import USER_ERRORS, user_error
from kafkagroup._values import evolve
from kafkagroup.assign import (
    Assignor,
    GroupSpec,
    MemberSpec,
    cooperative_sticky_assignor,
    range_assignor,
    roundrobin_assignor,
    sticky_assignor,
)
from kafkagroup.assign.spec import is_cooperative, read_user_data
from kafkagroup.consume.partition_counts import encode_partition_counts, partition_counts_in
from kafkagroup.errors import RETRIED_ERRORS, ConfigurationError
from kafkagroup.events import RebalanceCause
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.runtime.consume.large_jobs import run_job
from kafkagroup.runtime.consume.session import Session
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import ClusterMetadata, Racks
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.types import Assignment, TopicPartition
from kafkagroup.wire.embedded_protocol import Subscription, decode_subscription, encode_assignment

__all__ = ["Leader"]

logger = logging.getLogger(__name__)

_LOADS_TIMEOUT = 10.0
"""Seconds that the whole group waits for the leader's `partition_loads`."""

_PARTITION_COST = 32
"""How long assigning one partition takes, in the measure of `run_job`: as long as processing this
number of bytes of subscriptions."""

_THREAD_SAFE = (
    range_assignor,
    roundrobin_assignor,
    sticky_assignor,
    cooperative_sticky_assignor,
)
"""The assignors that may run in a thread. An application's own assignor runs in the event loop, as
its other callbacks do."""


class Leader:
    """Computes the assignments of the generations that this member leads."""

    def __init__(self, session: Session, cluster: Cluster) -> None:
        self._session = session
        self._cluster = cluster
        self._computed_generation = -1
        """The last generation whose assignment this member computed; -1 before the first."""
        self._partition_counts: dict[str, int] = {}
        """Topic -> the number of partitions that the assignment was computed from."""
        self._racks: Racks = {}
        """The racks of the replicas that the assignment was computed from; empty if no member has a
        rack."""
        self._has_racks = False
        """Whether any member has a rack."""
        self.watched_topics: frozenset[str] = frozenset()
        """The topics that the assignment was computed from; none if another member leads."""
        self._must_refresh = False
        """Whether the refresh before the assignment has failed, so that topics may be missing."""

    @property
    def _every_member_computes(self) -> bool:
        """Whether every member computes the assignment, not only a leader: with claims in
        ZooKeeper."""
        return self._session.member.protocol.claims_partitions

    async def follow_topics(self) -> None:
        """Request a rebalance if topics changed since the assignment was computed."""
        driver = self._session.member.driver
        if driver is None or not driver.member.leads:
            return
        racks = await self._replica_racks()
        # If a thread compared the racks of many partitions, other tasks ran meanwhile.
        leads = driver is self._session.member.driver and driver.member.leads
        if leads and (reason := self._topic_change(racks)):
            self._session.history.note_rejoin_request(RebalanceCause.TOPICS, reason)
            driver.rejoin(reason)

    def _topic_change(self, racks: Racks) -> str | None:
        """Return why the assignment is out of date; None if it is not. `racks`: the replicas'
        current racks."""
        counts = self._cluster.metadata.partition_counts(self.watched_topics)
        for topic in sorted(self.watched_topics):
            before, now = self._partition_counts.get(topic, 0), counts.get(topic, 0)
            if before != now:
                return f"topic {topic} went from {before} to {now} partitions"
        # Nearly always the same object: comparing the racks of many partitions takes long.
        if racks is not self._racks and racks != self._racks:
            return "replicas moved to other racks"
        return None

    async def _replica_racks(self) -> Racks:
        """Return the racks of all replicas in the current metadata; empty if no member has a rack.
        If they have not changed, return `_racks` itself. If other tasks change what the racks are
        computed from meanwhile, compute them again."""
        while self._has_racks:
            metadata, watched, before = self._cluster.metadata, self.watched_topics, self._racks
            size = _PARTITION_COST * sum(metadata.partition_counts(watched).values())
            racks = await run_job(
                self._cluster, partial(_racks_now, metadata, watched, before), size
            )
            known = metadata, watched, before
            if all(map(is_, known, (self._cluster.metadata, self.watched_topics, self._racks))):
                return racks
        return {}

    async def compute(self, assignor: Assignor, work: Compute) -> dict[str, bytes]:
        """Assign the partitions of every topic that any member subscribes to. Return member id ->
        encoded assignment."""
        size = sum(map(len, work.members.values()))
        subscriptions = await self.watch_topics_of(work.members)
        size += _PARTITION_COST * sum(self._partition_counts.values())
        loads = await self._loads()
        if not any(assignor is known for known in _THREAD_SAFE):
            size = 0  # so that the jobs run in the event loop
        spec = await run_job(
            self._cluster,
            partial(
                _spec, assignor, subscriptions, work, self._partition_counts, self._racks, loads
            ),
            size,
        )
        assignment = await run_job(self._cluster, partial(assignor, spec), size)
        user_data_of = self._user_data_of(work)
        encoded = await run_job(
            self._cluster,
            partial(_encoded, work.protocol_name, assignor, spec, assignment, user_data_of),
            size,
        )
        self.note_computed()
        return encoded

    async def watch_topics_of(self, members: Mapping[str, bytes]) -> dict[str, Subscription]:
        """Follow the topics of all members, given their metadata; return their subscriptions."""
        subscriptions, topics = await run_job(
            self._cluster, partial(_subscriptions, members), sum(map(len, members.values()))
        )
        await self._watch_topics(subscriptions, topics)
        return subscriptions

    def assign_now(self, assignor: Assignor, work: Compute) -> dict[str, bytes]:
        """Compute the assignment as `compute` does, but without waiting, and without loads. The
        caller has awaited `watch_topics_of`."""
        subscriptions, _ = _subscriptions(work.members)
        spec = _spec(assignor, subscriptions, work, self._partition_counts, self._racks, {})
        return _encoded(
            work.protocol_name, assignor, spec, assignor(spec), self._user_data_of(work)
        )

    def note_computed(self) -> None:
        """Note that this member has computed the assignment of its present generation."""
        if self._session.member.driver is not None:
            self._computed_generation = self._session.member.driver.member.generation_id

    def _user_data_of(self, work: Compute) -> dict[str, bytes | None]:
        """Return member id -> the user data of its assignment; None if it has none."""
        return {m: self._assignment_user_data(work.instance_ids.get(m)) for m in work.members}

    def _assignment_user_data(self, instance_id: str | None) -> bytes | None:
        """Return the user data of a member's assignment: for this member, if it is static, the
        partition counts, to compare with when it returns (KIP-814); for others, None."""
        if instance_id is None or instance_id != self._session.options.group_instance_id:
            return None
        return encode_partition_counts(self._partition_counts)

    async def _loads(self) -> Mapping[TopicPartition, float]:
        """Return the loads that `partition_loads` reports."""
        measure = self._session.options.partition_loads
        if measure is None:
            return {}
        try:
            with anyio.fail_after(_LOADS_TIMEOUT):
                found = measure()
                return await found if inspect.isawaitable(found) else found
        except USER_ERRORS as error:
            # The group waits: an assignment without loads is better than none.
            failure = user_error(error, "partition_loads")
            logger.warning("partition_loads failed, all count as 1.0: %r", failure)
            return {}

    async def _watch_topics(
        self, subscriptions: Mapping[str, Subscription], topics: frozenset[str]
    ) -> None:
        """Note the partition counts and racks of all subscribed topics, for the assignment and to
        compare later metadata with."""
        self.watched_topics = topics
        self._has_racks = any(s.rack is not None for s in subscriptions.values())
        if self._every_member_computes or (
            len(self._cluster.metadata.partition_counts(self.watched_topics))
            < len(self.watched_topics)
        ):
            # With claims every member computes the assignment, so all need the same metadata.
            # A leader refreshes only for unknown topics, as the whole group waits for the response.
            # It notices partitions that were added since the last refresh at the next one.
            await self._refresh()
        self._racks = await self._replica_racks()
        # After the racks, from the same metadata: other tasks may have run while they were read.
        self._partition_counts = self._cluster.metadata.partition_counts(self.watched_topics)

    async def _refresh(self) -> None:
        pauses = RetryBackoff(self._cluster.options)
        while True:
            try:
                await self._cluster.refresh()
                return
            except RETRIED_ERRORS as error:
                logger.warning("the metadata for the assignment is not refreshed: %s", error)
            if not self._every_member_computes:
                # The group waits. It rebalances again when the unknown topics are found.
                self._must_refresh = True
                return
            await pauses.wait()

    async def follow_assignment(self, generation: GenerationInfo) -> None:
        """Follow the topics of a generation's assignment if this member leads the generation, or if
        every member computes the assignment; otherwise follow none."""
        if not generation.is_leader:
            if not self._every_member_computes:
                self.watched_topics = frozenset()
            return
        if generation.generation_id != self._computed_generation:
            # KIP-814: a static leader that was away did not compute this assignment, and must
            # notice what has changed since.
            size = sum(map(len, generation.members.values()))
            await self._watch_topics(
                *await run_job(self._cluster, partial(_subscriptions, generation.members), size)
            )
            self._partition_counts = (
                partition_counts_in(generation.assignment) or self._partition_counts
            )
        if self._must_refresh:
            self._must_refresh = False
            self._cluster.refresh_soon()
            await self.follow_topics()  # the topics may have been found meanwhile


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
    """Return a member as its subscription describes it. If the assignor finds owned partitions in
    the user data, they take precedence."""
    decoded = read_user_data(assignor, subscription.user_data)
    owned, generation = subscription.owned, subscription.generation
    if decoded.owned is not None:
        owned, generation = decoded.owned, decoded.generation
    elif generation < 0:
        generation = decoded.generation  # subscriptions before version 2 do not have it
    return MemberSpec(
        topics=topics,
        instance_id=instance_id,
        rack=subscription.rack,
        owned=owned,
        generation=generation,
        capacity=decoded.capacity,
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
    """Raises: ConfigurationError if a cooperative assignor assigns a partition that another member
    still owns. The user's own assignors may do so."""
    from kafkagroup.assign.check import newest_claims  # large, and only leaders compute

    claimants = newest_claims(spec)
    for member, partitions in assignment.items():
        for tp in partitions:
            if others := [other for other in claimants.get(tp, ()) if other != member]:
                raise ConfigurationError(
                    f"assignor {name!r} hands {tp} over to {member} while {others[0]} owns it;"
                    " a cooperative assignor leaves it out for one round"
                )
