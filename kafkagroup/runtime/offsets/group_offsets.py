"""Commit and fetch a group's offsets, on the main connection to the coordinator, where no JoinGroup
in its purgatory delays them.

The sets of codes in `wire.error_codes` define which errors are retried; the others are permanent. A
commit succeeds or raises as a whole, except that a deleted topic does not keep the others from
being committed; a look-up has a result for each partition. The caller sends one commit at a time:
see `runtime.consume.committer`.
"""

from __future__ import annotations

import logging
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import suppress
from itertools import count
from uuid import UUID

import anyio

from kafkagroup._text import escaped
from kafkagroup._values import define, field
from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    CommitFailedError,
    ErrorCode,
    FencedError,
    KafkaGroupError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
    broker_error,
)
from kafkagroup.runtime.member.metrics import Meter
from kafkagroup.runtime.offsets.offset_requests import commit_offsets, fetch_offsets
from kafkagroup.runtime.offsets.values import GroupCommit, Identity, Offsets
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import Node
from kafkagroup.transport.options import Address
from kafkagroup.transport.retry import RetryBackoff, part_until
from kafkagroup.transport.trouble import Problem
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.error_codes import (
    ABSENT,
    COORDINATOR_MOVED,
    FENCED_COMMITS,
    RETRIED_COMMITS,
    RETRIED_LOOK_UPS,
)
from kafkagroup.wire.messages.offsets import (
    OffsetCommitResponse,
    OffsetFetchResponse,
    OffsetFetchResponsePartitions,
)
from kafkagroup.wire.schema import NO_ID

__all__ = [
    "CommittedOffsets",
    "GroupOffsets",
    "answered_partitions",
    "committed_offset",
]

logger = logging.getLogger(__name__)

_COMMITTING = "committing"
_READING = "reading"
"""Each names one kind of request in the messages and keys of `Troubles`."""

_PENDING_TRANSACTION = (
    "a producer has a transaction open that commits these offsets: check that it is alive; the"
    " broker aborts it after its transaction.timeout.ms"
)
"""The advice while a pending transaction may still change the offsets (KIP-447)."""

_RECHECK_INTERVAL = 1.0
"""Seconds between metadata refreshes for a topic that commits have found deleted."""

_LEAST_TIMEOUT = 1.0
"""Seconds that the request of a commit may take at least; the deadline of the commit cancels it
nevertheless."""

_MAX_UNKNOWN = 5
"""How many times in a row a topic must be unknown before that is an error: not all brokers know a
new topic at once."""


@define
class CommittedOffsets:
    """The result of one OffsetFetch request. Partitions in neither field need another request."""

    offsets: dict[TopicPartition, OffsetAndMetadata | None] = field(factory=dict)
    """None where nothing is committed."""
    errors: dict[TopicPartition, BrokerError] = field(factory=dict)
    """Refusals, which a retry changes only if their cause is removed."""
    is_refused_as_whole: bool = False
    """Whether the error is of the group, and so the same for all partitions."""


class _Retry(Exception):
    """The request must be retried after a pause."""

    def __init__(self, error: BrokerError) -> None:
        self.error = error


class GroupOffsets:
    """The committed offsets of one group."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        *,
        max_retries: int | None = None,
        backoff: float | None = None,
    ) -> None:
        """A failed commit is retried `max_retries` times; None: until its timeout. The first pause
        takes `backoff` seconds; None: the cluster's `retry_backoff`."""
        self._last_coordinator: Node | None = None
        """The coordinator that was found for the last request."""
        self._cluster = cluster
        self._group_id = group_id
        self._max_retries = max_retries
        self._backoff = backoff
        self._deleted_counts: dict[tuple[str, UUID], int] = {}
        """How often in a row commits were refused for a topic, by name and id, that the metadata
        did not have either. Kept between commits: otherwise each commit of a revocation and of a
        rejoin would retry again, and the group waits for them."""
        self._unanswered: set[TopicPartition] = set()
        """The partitions of commits that got no response, or were cancelled before it: the
        coordinator may still execute them."""
        self._refreshed_at = float("-inf")
        """When `refresh_metadata` was last called, on the loop's clock."""

    @property
    def coordinator(self) -> Node | None:
        """The group's coordinator; None while it must be looked up."""
        return self._cluster.coordinators.known(self._group_id)

    def invalidate_coordinator(self) -> None:
        """Have the coordinator looked up again before the next request, unless another request has
        found a new one since."""
        self._cluster.coordinators.invalidate(self._group_id, node=self._last_coordinator)

    def forget_cluster(self) -> None:
        """Forget which topics and commits failed in the earlier cluster: another one is adopted."""
        self._deleted_counts.clear()
        self._unanswered.clear()

    async def connect(self) -> None:
        """Connect to the coordinator while the member joins, so that the first look-up of committed
        offsets takes fewer round trips. A failure is ignored: the look-up connects again."""
        with suppress(_Retry, BrokerError, *RETRIED_ERRORS):
            await (await self._coordinator()).ready()

    def pauses(self) -> RetryBackoff:
        """Return new pauses, for the retries of one operation at the coordinator."""
        return RetryBackoff(self._cluster.options, self._backoff)

    async def commit(
        self, commit: GroupCommit, deadline: float, meter: Meter | None = None
    ) -> Offsets:
        """Send a commit; return the offsets that the coordinator has acknowledged. Retry until
        `deadline`, on the loop's clock, or until the retries are used up. `meter` records how long
        responses take.

        Raises: CommitFailedError when the identity is no longer a member of the generation,
        FencedError, BrokerError, AuthenticationError, TransportError, RemoteProtocolError. For a
        topic that was deleted or recreated, BrokerError is raised after the others are committed.
        """
        # The ids of the positions are used even if metadata has another id or none: offsets of a
        # deleted topic must not be committed to a new topic of the same name.
        ids = self._topic_ids(commit.offsets, commit.topic_ids)
        deleted = await self._deleted_topics({tp.topic for tp in commit.offsets}, ids, deadline)
        partitions = frozenset(tp for tp in commit.offsets if tp.topic not in deleted)
        acknowledged: Offsets = {}
        if partitions:
            acknowledged = await self._commit_with_retries(commit, partitions, ids, deadline, meter)
        if deleted:
            # Their offsets are not sent: an application that commits after each record would send a
            # request for each that must fail.
            raise self._deleted_error(min(deleted), ids)
        return acknowledged

    async def _commit_with_retries(
        self,
        commit: GroupCommit,
        partitions: Collection[TopicPartition],
        ids: Mapping[str, UUID],
        deadline: float,
        meter: Meter | None,
    ) -> Offsets:
        """Commit these partitions until that succeeds, as `commit` describes."""
        called_at = anyio.current_time()
        acknowledged: Offsets | None = None
        last: Exception | None = None
        pauses: RetryBackoff | None = None
        slow: set[Address] = set()
        with anyio.CancelScope(deadline=deadline):
            for retry in count():
                is_last = self._max_retries is not None and retry >= self._max_retries
                if retry:
                    logger.info("group %s: the commit is retried: %s", self._group_id, last)
                    pauses = pauses or self.pauses()
                    await pauses.wait(deadline)
                try:
                    acknowledged = await self._commit_once(
                        commit, partitions, ids, deadline, meter, slow, is_last=is_last
                    )
                except _Retry as again:
                    last = again.error
                    self._report_failure(_COMMITTING, again.error)
                    topic = await self._find_deleted_topic(again.error, partitions, ids)
                    if topic is None:
                        self._reset_deleted_counts(partitions, ids)
                    elif self._count_deleted(topic, ids) >= _MAX_UNKNOWN:
                        raise self._deleted_error(topic, ids) from None
                except RETRIED_ERRORS as error:
                    # If all brokers refused the credentials, a retry would not log in either.
                    self._cluster.logins.raise_suspended()
                    self.invalidate_coordinator()
                    last = error
                else:
                    self._reset_deleted_counts(partitions, ids)
                    self._report_success(_COMMITTING)
                    if self._unanswered.isdisjoint(acknowledged):
                        return acknowledged
                    return await self._commit_once_more(
                        commit, acknowledged, ids, part_until(deadline), meter, slow
                    )
                if is_last:
                    break
        if acknowledged is not None:
            return acknowledged  # the deadline has ended the repetition
        if last is not None and not isinstance(last, RequestTimeoutError):
            raise last
        raise RequestTimeoutError(
            f"the coordinator did not answer the commit of group {self._group_id!r} within"
            f" {anyio.current_time() - called_at:.3g} s: check its broker, or allow more time"
        ) from last

    async def _commit_once_more(
        self,
        commit: GroupCommit,
        acknowledged: Offsets,
        ids: Mapping[str, UUID],
        deadline: float,
        meter: Meter | None,
        slow: set[Address],
    ) -> Offsets:
        """Repeat a commit that has succeeded, because an earlier one got no response: the
        coordinator may have executed the earlier commit after this one, and most likely has by now.
        Return the acknowledged offsets; if the repetition fails, those of the first time."""
        try:
            repeated = await self._commit_once(commit, acknowledged, ids, deadline, meter, slow)
        except (_Retry, KafkaGroupError) as error:
            logger.info("group %s: the commit is not repeated: %s", self._group_id, error)
            return acknowledged
        self._unanswered.difference_update(repeated)
        return repeated

    async def _deleted_topics(
        self, topics: Collection[str], ids: Mapping[str, UUID], deadline: float
    ) -> set[str]:
        """Return the topics that earlier commits have found deleted or recreated, if the metadata
        still agrees. It is refreshed for them once a second at most, and not beyond the deadline.
        """
        keys = {topic: (topic, ids.get(topic, NO_ID)) for topic in topics}
        deleted = {t for t, key in keys.items() if self._deleted_counts.get(key, 0) >= _MAX_UNKNOWN}
        if deleted and anyio.current_time() >= self._refreshed_at + _RECHECK_INTERVAL:
            with anyio.CancelScope(deadline=deadline):
                await self.refresh_metadata(deleted)
        for topic in sorted(deleted):
            if not self._cluster.was_deleted_or_recreated(*keys[topic]):
                deleted.remove(topic)
                del self._deleted_counts[keys[topic]]
        return deleted

    async def refresh_metadata(self, topics: Collection[str]) -> bool:
        """Refresh the metadata, including that of these topics; return whether that succeeded."""
        self._refreshed_at = anyio.current_time()
        try:
            with self._cluster.topics.during(topics):
                await self._cluster.refresh()
        except RETRIED_ERRORS:
            return False
        return True

    def has_topic(self, topic: str, ids: Mapping[str, UUID]) -> bool:
        """Return whether the metadata has the topic, and with the same id if it has one in `ids`.
        Callers check this because brokers before 4.1 do not check the ids of commits."""
        return not self._cluster.was_deleted_or_recreated(topic, ids.get(topic, NO_ID))

    def _deleted_error(self, topic: str, ids: Mapping[str, UUID]) -> BrokerError:
        has_id = ids.get(topic, NO_ID) != NO_ID
        return BrokerError(
            ErrorCode.UNKNOWN_TOPIC_ID if has_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"committing topic {topic!r} of group {self._group_id!r}: it was deleted, or recreated,"
            " after it was read",
        )

    async def _find_deleted_topic(
        self,
        error: BrokerError,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[str, UUID],
    ) -> str | None:
        """If the error is an unknown topic, return the first that was deleted or recreated,
        according to the metadata. None if the metadata has all of them: then the coordinator may
        not know one yet. None also if the metadata cannot be refreshed, and for other errors."""
        topics = {tp.topic for tp in partitions}
        if error.code not in ABSENT or not await self.refresh_metadata(topics):
            return None
        for topic in sorted(topics):
            if self._cluster.was_deleted_or_recreated(topic, topic_ids.get(topic, NO_ID)):
                return topic
        return None

    def _reset_deleted_counts(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> None:
        for topic in {tp.topic for tp in partitions}:
            self._deleted_counts.pop((topic, topic_ids.get(topic, NO_ID)), None)

    def _count_deleted(self, topic: str, topic_ids: Mapping[str, UUID]) -> int:
        """Count a commit that was refused for a deleted topic; return how often in a row it was."""
        key = topic, topic_ids.get(topic, NO_ID)
        self._deleted_counts[key] = self._deleted_counts.get(key, 0) + 1
        return self._deleted_counts[key]

    async def _commit_once(
        self,
        commit: GroupCommit,
        partitions: Collection[TopicPartition],
        topic_ids: Mapping[str, UUID],
        deadline: float,
        meter: Meter | None,
        slow: set[Address],
        *,
        is_last: bool = False,
    ) -> Offsets:
        """Send a commit of these partitions once; return their offsets, the newest at this attempt.
        `deadline`: that of all attempts; `is_last`: whether no other attempt may follow. `slow`:
        the brokers that did not answer an attempt in time; this call may add one.
        """
        broker = await self._coordinator()
        # This also waits while the broker throttles: the checks below must directly precede the
        # request.
        await broker.ready()
        identity = commit.identity
        offsets = {tp: offset for tp, offset in commit.newest().items() if tp in partitions}
        if not commit.is_current():
            # The member left the generation meanwhile: the coordinator would refuse the commit. If
            # this static member has rejoined, the code would be FENCED_INSTANCE_ID, as if another
            # process had replaced it.
            raise CommitFailedError(
                f"commit of {min(offsets)} failed: group {self._group_id!r} has rebalanced since"
                f" generation {identity.generation_id}; the next owner of the partition starts at"
                " the last commit that succeeded"
            )
        # The connection may be dead without a sign, so an attempt gets a part of the time. If this
        # broker did not answer an earlier attempt, it may be slow, and gets all the time left.
        ends_at = deadline if is_last or broker.address in slow else part_until(deadline)
        sent_at = anyio.current_time()
        try:
            response = await commit_offsets(
                broker,
                self._group_id,
                commit.generation_id,  # not the identity's: under KIP-848 its epoch may be higher
                identity.member_id,
                offsets,
                group_instance_id=identity.group_instance_id,
                topic_ids=topic_ids,
                # Not less, even if the deadline is closer: a timeout closes the connection. At the
                # deadline the caller cancels the request.
                timeout=min(
                    max(ends_at - sent_at, _LEAST_TIMEOUT), self._cluster.options.request_timeout
                ),
            )
        except (TransportError, RemoteProtocolError, anyio.get_cancelled_exc_class()) as error:
            self._unanswered.update(offsets)
            if isinstance(error, RequestTimeoutError):
                slow.add(broker.address)
            raise
        if meter is not None:
            meter.record(anyio.current_time(), anyio.current_time() - sent_at)
        try:
            self._check_commit(response, offsets)
        except FencedError:
            if commit.is_current():
                raise
            raise CommitFailedError(
                f"commit of {min(offsets)} failed: this static member has rejoined group"
                f" {self._group_id!r} since the commit began; commit again in the new generation"
            ) from None
        return offsets

    def _check_commit(
        self, response: OffsetCommitResponse, partitions: Iterable[TopicPartition]
    ) -> None:
        """Raises: the error of the first partition that has one, as `_Retry` if a retry may
        succeed; RemoteProtocolError if a partition is missing."""
        unanswered = set(partitions)
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                if tp not in unanswered:
                    continue
                unanswered.remove(tp)
                if (code := partition.error_code) == ErrorCode.NONE:
                    continue
                where = f"committing {escaped(topic.name)}/{partition.partition_index}"
                if code == ErrorCode.REBALANCE_IN_PROGRESS:
                    raise CommitFailedError(
                        f"{where}: {BrokerError(code)}: commit again when the member has rejoined,"
                        " if it still owns the partition"
                    )
                if code in FENCED_COMMITS:
                    raise CommitFailedError(
                        f"{where}: {BrokerError(code)}: the group has rebalanced; the partition's"
                        " next owner starts at the last commit that succeeded"
                    )
                if code == ErrorCode.FENCED_INSTANCE_ID:
                    raise FencedError(f"{where}: another member took this group_instance_id")
                self._note_coordinator_moved(code)
                error = self._error(code, where, "READ", topic.name)
                raise _Retry(error) if code in RETRIED_COMMITS else error
        if unanswered:
            raise RemoteProtocolError(f"the coordinator did not answer for {min(unanswered)}")

    def _error(self, code: int, what: str, operation: str, topic: str | None) -> BrokerError:
        group = self._group_id
        return broker_error(
            code, f"{what} of group {group!r}", operation=operation, topic=topic, group=group
        )

    def _note_coordinator_moved(self, code: int) -> None:
        if code in COORDINATOR_MOVED:
            self.invalidate_coordinator()

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition; None for a partition without one.

        Retries until all are reported, without a timeout. Raises: BrokerError, which names the
        partition or the group, for an error that a retry would not change; AuthenticationError when
        no broker accepts the credentials.
        """
        wanted = tuple(dict.fromkeys(partitions))
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        unknown: dict[TopicPartition, int] = {}
        pauses = self.pauses()
        while missing := [tp for tp in wanted if tp not in found]:
            result = await self.fetch_once(missing, unknown)
            if result.errors:
                raise result.errors[min(result.errors)]
            found |= result.offsets
            if len(found) < len(wanted):
                self._cluster.logins.raise_suspended()
                await pauses.wait()
        return found

    async def fetch_once(
        self,
        partitions: Collection[TopicPartition],
        unknown: MutableMapping[TopicPartition, int],
        member: Identity | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> CommittedOffsets:
        """Send one OffsetFetch request. Errors of the network are not raised, nor are error codes:
        partitions whose look-up must be retried are in neither field of the result.

        A failed look-up must never count as "no offset". `unknown` counts how often in a row the
        coordinator did not know a partition's topic; pass the same mapping with each retry.
        `member` names a member to a coordinator that checks its epoch (KIP-848). `topic_ids` as in
        `GroupCommit`.

        Raises: UnsupportedVersionError, for a broker that does not know the request.
        """
        try:
            broker = await self._coordinator()
            # KIP-447: without require_stable the coordinator returns an offset that a pending
            # transaction is about to change.
            response = await fetch_offsets(
                broker,
                self._group_id,
                partitions,
                require_stable=True,
                member=None if member is None else (member.member_id, member.generation_id),
                topic_ids=self._topic_ids(partitions, topic_ids),
            )
            found = self._parse(response, partitions, unknown)
            if len(found.offsets) == len(partitions):
                self._report_success(_READING)
            if any(tp in unknown for tp in partitions):
                # The topic may have been recreated; the next request then has its new id, unless
                # `topic_ids` has the old one.
                await self.refresh_metadata({tp.topic for tp in partitions})
            return found
        except _Retry as retry:
            self._report_failure(_READING, retry.error)
            logger.info("group %s: committed offsets: %s", self._group_id, retry.error)
        except RETRIED_ERRORS as error:
            self.invalidate_coordinator()
            logger.info("group %s: committed offsets: %s", self._group_id, error)
        except BrokerError as error:
            errors = dict.fromkeys(partitions, error)
            return CommittedOffsets(errors=errors, is_refused_as_whole=True)
        return CommittedOffsets()

    def _parse(
        self,
        response: OffsetFetchResponse,
        partitions: Collection[TopicPartition],
        unknown: MutableMapping[TopicPartition, int],
    ) -> CommittedOffsets:
        """Sort a response into offsets and errors. Raises: the error of the group as a whole, as
        `_Retry` if a retry may succeed."""
        for group in response.groups:
            if code := group.error_code:
                self._note_coordinator_moved(code)
                error = self._error(code, "reading offsets", "DESCRIBE", None)
                raise _Retry(error) if code in RETRIED_LOOK_UPS else error
        found = CommittedOffsets()
        unanswered = set(partitions)
        for tp, data in answered_partitions(response):
            if tp not in unanswered:
                continue
            unanswered.remove(tp)
            code, times = data.error_code, unknown.pop(tp, 0) + 1
            self._note_coordinator_moved(code)
            if code == ErrorCode.NONE:
                found.offsets[tp] = committed_offset(data)
                continue
            error = self._error(code, f"reading the offset of {tp}", "DESCRIBE", tp.topic)
            if code in ABSENT and times < _MAX_UNKNOWN:
                unknown[tp] = times
            elif code in ABSENT or code not in RETRIED_LOOK_UPS:
                found.errors[tp] = error
                continue
            self._report_failure(_READING, error)
            logger.info("%s", error)
        if unanswered:
            missing = RemoteProtocolError(f"the response lacks the offset of {min(unanswered)}")
            self._report_failure(_READING, missing)
            logger.info(
                "group %s: the response lacks the offset of %s", self._group_id, min(unanswered)
            )
        return found

    def _report_failure(self, what: str, error: BrokerError | RemoteProtocolError) -> None:
        """Report a failed request that is retried; `what`: `_COMMITTING` or `_READING`. A request
        without a response is reported by the connection."""
        problem = Problem(
            subject=f"{what} offsets of group {self._group_id}",
            cause=str(error),
            advice=_PENDING_TRANSACTION
            if getattr(error, "code", 0) == ErrorCode.UNSTABLE_OFFSET_COMMIT
            else "check the coordinator's broker, and __consumer_offsets with its leaders",
        )
        key = self._group_id, what
        self._cluster.troubles.failed(key, anyio.current_time(), problem)

    def _report_success(self, what: str) -> None:
        if (troubles := self._cluster.troubles).ongoing:  # else no failure to end
            troubles.succeeded((self._group_id, what), anyio.current_time())

    def _topic_ids(
        self, partitions: Iterable[TopicPartition], known: Mapping[str, UUID] | None = None
    ) -> Mapping[str, UUID]:
        """Return the ids of all topics of these partitions, or {} if one is unknown: a request has
        either names or ids. `known`: ids that count instead of the metadata's."""
        known = known or {}
        others = {tp.topic for tp in partitions} - known.keys()
        found = self._cluster.topic_ids(others)
        return {**found, **known} if len(found) == len(others) else {}

    async def _coordinator(self) -> BrokerClient:
        """Return the coordinator. Raises: what the look-up raises; `_Retry` in place of a
        BrokerError that a retry may change."""
        try:
            self._last_coordinator = node = await self._cluster.coordinators.find(self._group_id)
        except BrokerError as error:
            if error.retriable:
                raise _Retry(error) from None
            raise
        return self._cluster.broker(node)


def answered_partitions(
    response: OffsetFetchResponse,
) -> Iterator[tuple[TopicPartition, OffsetFetchResponsePartitions]]:
    """Yield each partition of a response, with its result."""
    for group in response.groups:
        for topic in group.topics:
            for data in topic.partitions:
                yield TopicPartition(topic.name, data.partition_index), data


def committed_offset(data: OffsetFetchResponsePartitions) -> OffsetAndMetadata | None:
    """Return the committed offset of a partition; None without one."""
    # Every negative offset means that nothing is committed, not only -1.
    if data.committed_offset < 0:
        return None
    return OffsetAndMetadata(
        data.committed_offset, data.metadata or "", data.committed_leader_epoch
    )
