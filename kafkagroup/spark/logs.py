"""Read logs, and read and commit a group's offsets without being its member."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from uuid import UUID

import anyio
import attrs

from kafkagroup.errors import (
    RETRIED_ERRORS,
    BrokerError,
    ClusterChangedError,
    ErrorCode,
    RemoteProtocolError,
    broker_error,
)
from kafkagroup.runtime.offsets.group_offsets import answered_partitions, committed_offset
from kafkagroup.runtime.offsets.log_offsets import LogOffsets
from kafkagroup.runtime.offsets.offset_requests import commit_offsets, fetch_offsets
from kafkagroup.runtime.offsets.values import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from kafkagroup.spark.cluster import Session
from kafkagroup.spark.nearest_replicas import NearestReplicas
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.planning import LogEnds, may_be_same_topic
from kafkagroup.spark.ranges import DataLossError, Positions
from kafkagroup.transport.broker import BrokerClient
from kafkagroup.transport.metadata import ClusterMetadata
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.types import OffsetAndMetadata, TopicPartition
from kafkagroup.wire.error_codes import ABSENT
from kafkagroup.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from kafkagroup.wire.schema import NO_ID

__all__ = ["Logs"]

logger = logging.getLogger(__name__)

_MAX_WAIT = 0.5
"""Seconds that a broker waits for new records."""
_MAX_RETRIES_IF_GONE = 6
"""Retries, within about 3.5 seconds, before a topic or partition counts as deleted: a broker may
not know a new one yet."""
_GONE = "the topic was deleted or recreated since the query was planned"
_MAX_VERSION_BY_NAME = 12
"""Highest version of Fetch that names topics; later ones go by topic id."""


@attrs.frozen
class _Described:
    """Topics as the metadata describes them."""

    partitions: list[TopicPartition]
    """Sorted."""
    topic_ids: dict[str, str]
    """Topic -> id; "" if the brokers have none."""
    errors: dict[str, BrokerError]
    """Topic -> why the metadata does not describe it, or some of its partitions."""


class Logs(Session):
    """A session with the requests of the source: offsets, records and commits."""

    _options: SourceOptions  # narrows the type in `Session`

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._had_no_topics = False
        """Whether the last look-up found no topic. Only the first such look-up logs a warning."""
        self._replicas = NearestReplicas()
        self._unanswered_groups: set[str] = set()
        """The groups with a commit that got no response, which the coordinator may still
        execute."""
        is_committed_only = options.isolation == "read_committed"
        self._isolation_level = READ_COMMITTED if is_committed_only else READ_UNCOMMITTED

    # ------------------------------------------------------------ partitions and offsets

    def partitions(self) -> tuple[list[TopicPartition], dict[str, str]]:
        """Return the partitions that the options select, sorted, and each topic's id. Two brokers
        are asked for the metadata, as one may not know all topics yet.

        Raises: BrokerError if a topic does not exist or may not be read, or if a partition has no
        leader until the timeout.
        """
        found = self._call(lambda: self._described(None))
        for error in found.errors.values():
            # A topic of a pattern may have been deleted since it was listed.
            if self._options.pattern is None or error.code not in ABSENT:
                raise error
        return found.partitions, found.topic_ids

    def ends_of(self, begin: Positions, unavailable: Collection[str] = ()) -> LogEnds:
        """Return the ends of the logs that the options select, for a stream at `begin`. If the
        metadata lacks a topic or partition, or has another topic id than `begin`, other brokers are
        asked; but not for the topics `unavailable`, for which they were asked before."""
        return self._call(lambda: self._ends_of(begin, unavailable))

    async def _ends_of(self, begin: Positions, unavailable: Collection[str]) -> LogEnds:
        found = await self._described(begin, unavailable)
        logs = LogOffsets(self._cluster, self._isolation_level)
        ends = await logs.each(dict.fromkeys(found.partitions, LATEST))
        errors = {tp.topic: error for tp, error in ends.errors.items()} | found.errors
        offsets = {tp: at.offset for tp, at in ends.offsets.items()}
        return LogEnds(offsets, found.topic_ids, errors, self.cluster_id)

    async def _described(
        self, begin: Positions | None, unavailable: Collection[str] = ()
    ) -> _Described:
        """Describe the topics that the options select. `begin`: a stream's positions, which are
        empty at the start of a query of the trigger AvailableNow. For a table, and before a stream
        has positions, it is None: then wait until the timeout while there are errors that may
        pass."""
        known = () if begin is None else tuple(begin.offsets)
        await self._list_topics(known, self._cluster.refresh)
        if not known:
            await self._list_topics((), self._cluster.refresh_elsewhere)
        self._warn_without_match()
        # The other half of the timeout is for the requests that follow.
        deadline = anyio.current_time() + self._options.api_timeout / 2
        pauses, responses = RetryBackoff(self._cluster.options), 1
        while True:
            found = self._selected(known)
            if begin is None:
                doubts = {t: error for t, error in found.errors.items() if error.retriable}
                may_wait = _may_pass(doubts)
            else:
                doubts = found.errors | _recreated(begin, found)
                doubts = {t: error for t, error in doubts.items() if t not in unavailable}
                # A query of the trigger AvailableNow reads only what is found at its start, so it
                # waits there for errors to pass.
                may_wait = not known and anyio.current_time() < deadline and _may_pass(doubts)
            if not doubts or (responses > _MAX_RETRIES_IF_GONE and not may_wait):
                return found
            self._note_failure(next(iter(doubts.values())))
            await pauses.wait()
            await self._retry(self._cluster.refresh_elsewhere)
            responses += 1

    async def _list_topics(
        self,
        known: Collection[TopicPartition],
        refresh: Callable[[], Awaitable[ClusterMetadata]],
    ) -> None:
        """Refresh the metadata by `refresh`. With a pattern, request all topics, and set the topics
        of this session: those that match, and those of the stream's `known` partitions that the
        options select."""
        pattern = self._options.pattern
        if pattern is None:
            await self._retry(refresh)
            return
        self._cluster.requests_all_topics = True
        try:
            listed = (await self._retry(refresh)).topics
        finally:
            self._cluster.requests_all_topics = False
        matching = {n for n, t in listed.items() if pattern.search(n) and not t.internal}
        self._topics = matching | {tp.topic for tp in known if self._options.selects(tp)}
        if self._topics - matching:
            # The list leaves out topics that this client may not describe; a request by name
            # returns their errors.
            await self._retry(self._cluster.refresh)

    def _warn_without_match(self) -> None:
        pattern = self._options.pattern
        if pattern is not None and not self._topics and not self._had_no_topics:
            logger.warning("no topic matches subscribePattern=%s", pattern.pattern)
        self._had_no_topics = not self._topics

    def _selected(self, known: Iterable[TopicPartition]) -> _Described:
        """Return what the metadata has of the selected topics. A topic has an error if it is
        missing, if it lacks a partition that is known or in the option `assign`, or if one of its
        selected partitions has no leader."""
        metadata, assigned = self._cluster.metadata, self._options.assign
        topics = {
            name: topic
            for name in sorted(self._topics)
            if (topic := metadata.topics.get(name)) is not None and topic.partitions
        }
        errors = {
            name: _topic_error(name, metadata) for name in sorted(self._topics - topics.keys())
        }
        found = {TopicPartition(name, p) for name, t in topics.items() for p in t.partitions}
        wanted = {*assigned, *filter(self._options.selects, known)}
        missing: dict[str, list[TopicPartition]] = {}
        for tp in sorted(wanted - found):
            if tp.topic in topics:
                missing.setdefault(tp.topic, []).append(tp)
        for name, partitions in missing.items():
            errors[name] = broker_error(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"no partitions {', '.join(map(str, partitions))}",
                operation="READ",
                topic=name,
            )
        if assigned:
            found &= {*assigned}
        leaderless = {*metadata.without_leader(found)}
        for tp in sorted(leaderless):
            errors[tp.topic] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
        found -= leaderless
        return _Described(
            sorted(found), {name: _id_text(t.topic_id) for name, t in topics.items()}, errors
        )

    def existing(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[list[TopicPartition], dict[str, str]]:
        """Return the given partitions that exist and have a leader, sorted, and the ids of their
        topics."""
        wanted = set(partitions)
        return self._call(lambda: self._existing(wanted))

    async def _existing(
        self, wanted: set[TopicPartition]
    ) -> tuple[list[TopicPartition], dict[str, str]]:
        with self._cluster.topics.during(tp.topic for tp in wanted):
            metadata = await self._retry(self._cluster.refresh)
            if any(metadata.leader(tp) is None for tp in wanted):
                metadata = await self._retry(self._cluster.refresh_elsewhere)
        existing = sorted(tp for tp in wanted if metadata.leader(tp) is not None)
        ids = {tp.topic: metadata.topics[tp.topic].topic_id for tp in existing}
        return existing, {topic: _id_text(topic_id) for topic, topic_id in ids.items()}

    def log_bounds(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the start and end of each log; with read_committed, the end is the last stable
        offset."""
        wanted = list(partitions)
        starts = self.offsets_at(dict.fromkeys(wanted, EARLIEST))
        return starts, self.offsets_at(dict.fromkeys(wanted, LATEST))

    def offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after each timestamp, in milliseconds; the
        log's end if there is none. The timestamp may also be EARLIEST or LATEST."""
        found = self.first_offsets(timestamps)
        late = [tp for tp, offset in found.items() if offset is None]
        ends = self.first_offsets(dict.fromkeys(late, LATEST))
        return {tp: offset for tp, offset in (found | ends).items() if offset is not None}

    def first_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record at or after each timestamp, in milliseconds; None
        if there is no such record. The timestamp may also be EARLIEST or LATEST."""
        return self._call(lambda: self._first_offsets(timestamps))

    async def _first_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        if not timestamps:
            return {}
        logs = LogOffsets(self._cluster, self._isolation_level)
        found = await logs.at(timestamps)
        return {tp: at.offset if at.offset >= 0 else None for tp, at in found.items()}

    # ------------------------------------------------------------ records

    def start_fetch(
        self, tp: TopicPartition, topic_id: str, offset: int, max_bytes: int
    ) -> Future[PartitionData]:
        """Fetch from `offset`. `topic_id`: "" if it is unknown. The records may begin before the
        offset, or be none; the error code is NONE or OFFSET_OUT_OF_RANGE. A first batch of more
        than `max_bytes` is returned whole.

        The future raises: DataLossError if the topic was deleted or recreated; ClusterChangedError;
        BrokerError if it is not retriable; the last retriable error at the timeout.
        """
        return self._portal.start_task_soon(
            self._bounded, lambda: self._fetch(tp, UUID(topic_id or NO_ID.hex), offset, max_bytes)
        )

    async def _fetch(
        self, tp: TopicPartition, topic_id: UUID, offset: int, max_bytes: int
    ) -> PartitionData:
        partition = FetchPartition(
            partition=tp.partition, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        request = partial(
            FetchRequest,
            max_wait_ms=round(_MAX_WAIT * 1000),
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=self._isolation_level,
            topics=(FetchTopic(topic=tp.topic, topic_id=topic_id, partitions=(partition,)),),
        )

        def fatal_error(error: BrokerError, attempts: int) -> DataLossError | None:
            is_gone = attempts > _MAX_RETRIES_IF_GONE and self._is_gone(tp, topic_id)
            return DataLossError(f"{tp}: {_GONE}") if is_gone else None

        async def fetch() -> PartitionData:
            data = await self._from_nearest(tp, topic_id, request)
            if data is None:
                data = await self._send(self._cluster.leader(tp), tp, topic_id, request())
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._check_range(tp, offset)
            return data

        # Meanwhile the metadata has the topic, even if the options name only a pattern.
        with self._cluster.topics.during([tp.topic]):
            return await self._retry(fetch, fatal_error)

    async def _check_range(self, tp: TopicPartition, offset: int) -> None:
        """Check that an offset that the leader has refused is outside of the log: a broker that has
        just become the leader may refuse any offset. Raises: BrokerError, retriable, if the offset
        is inside."""
        logs = LogOffsets(self._cluster, READ_UNCOMMITTED)
        start, end = [(await logs.at({tp: at}))[tp].offset for at in (EARLIEST, LATEST)]
        if start <= offset <= end:
            raise BrokerError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{tp}: its leader refuses offset {offset}, and reports its log as {start} to"
                f" {end}",
            )

    async def _from_nearest(
        self, tp: TopicPartition, topic_id: UUID, request: Callable[..., FetchRequest]
    ) -> PartitionData | None:
        """Fetch from the replica that the leader prefers for the client's rack (KIP-392). Return
        None if the leader must be asked without a rack: the client has none, the replica does not
        serve the partition, or it returns no records. The leader may have records already that the
        replica has not."""
        replicas = self._replicas
        if not self._options.client_rack or replicas.is_refused(tp):
            return None
        with_rack = request(rack_id=self._options.client_rack)
        if (node_id := replicas.preferred(tp)) is None:
            data = await self._send(self._cluster.leader(tp), tp, topic_id, with_rack)
            if (node_id := data.preferred_read_replica) < 0:
                return data
            replicas.note_preferred(tp, node_id)
        node = self._cluster.metadata.nodes.get(node_id)
        try:
            if node is not None:
                data = await self._send(self._cluster.broker(node), tp, topic_id, with_rack)
                if not data.error_code:
                    return data if data.records else None
        except ClusterChangedError:  # which is among RETRIED_ERRORS
            raise
        except (*RETRIED_ERRORS, BrokerError) as error:
            logger.info("%s is fetched from its leader, not from broker %d: %s", tp, node_id, error)
        replicas.note_refused(tp)
        return None

    async def _send(
        self, broker: BrokerClient, tp: TopicPartition, topic_id: UUID, request: FetchRequest
    ) -> PartitionData:
        response = await broker.request(
            request,
            connection_id="fetch",  # of its own: other requests need not wait behind a long poll
            timeout=self._options.request_timeout + _MAX_WAIT,
            highest=None if topic_id != NO_ID else _MAX_VERSION_BY_NAME,
        )
        found = [
            data
            for topic in response.responses
            for data in topic.partitions
            if data.partition_index == tp.partition
            and (topic.topic == tp.topic if topic.topic else topic.topic_id == topic_id)
        ]
        code = response.error_code or (found[0].error_code if found else ErrorCode.NONE)
        if code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            raise broker_error(code, f"fetching {tp}", operation="READ", topic=tp.topic)
        if not found:
            raise RemoteProtocolError(f"the broker did not answer for {tp}")
        return found[0]

    def _is_gone(self, tp: TopicPartition, topic_id: UUID) -> bool:
        """Whether the topic was deleted, or recreated with another id than `topic_id`."""
        topic = self._cluster.metadata.topics.get(tp.topic)
        return topic is not None and (
            topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            or topic_id not in (NO_ID, topic.topic_id)
        )

    # ------------------------------------------------------------ the group

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets of these partitions. Raises: BrokerError."""
        wanted = list(partitions)
        return self._call(lambda: self._committed(group, wanted), timeout)

    async def _committed(
        self, group: str, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        async def fetch() -> dict[TopicPartition, OffsetAndMetadata]:
            async with self._cluster.coordinator(group) as broker:
                response = await fetch_offsets(broker, group, partitions, require_stable=True)
                codes = [response.error_code, *(found.error_code for found in response.groups)]
                offsets = {}
                for tp, data in answered_partitions(response):
                    if tp not in partitions:
                        continue
                    codes.append(data.error_code)
                    if (offset := committed_offset(data)) is not None:
                        offsets[tp] = offset
                if code := next(filter(None, codes), 0):
                    raise broker_error(code, f"offsets of {group!r}", operation="READ", group=group)
            return offsets

        return await self._retry(fetch)

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout: float | None = None,
    ) -> None:
        """Commit offsets without membership; twice after a commit that got no response, whose
        offsets could replace these.

        Raises: BrokerError; UNKNOWN_MEMBER_ID if the group has members.
        """
        self._call(lambda: self._commit(group, offsets), timeout)

    async def _commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        async def commit() -> None:
            async with self._cluster.coordinator(group) as broker:
                is_unanswered = group in self._unanswered_groups
                self._unanswered_groups.add(group)  # also if the timeout cancels the request
                # -1 and "": without a generation and a member id.
                response = await commit_offsets(broker, group, -1, "", offsets)
                if not is_unanswered:
                    self._unanswered_groups.discard(group)
                for topic in response.topics:
                    for p in topic.partitions:
                        if p.error_code:
                            raise broker_error(
                                p.error_code,
                                f"committing {topic.name}/{p.partition_index} to group {group!r}",
                                operation="READ",
                                group=group,
                                topic=topic.name,
                            )

        await self._retry(commit)
        if group in self._unanswered_groups:
            # As `GroupOffsets` does: the coordinator may have executed an earlier request, perhaps
            # with lower offsets, after this one.
            self._unanswered_groups.discard(group)
            await self._retry(commit)


def _id_text(topic_id: UUID) -> str:
    return "" if topic_id == NO_ID else str(topic_id)


def _may_pass(errors: Mapping[str, BrokerError]) -> bool:
    """Return whether the errors may end by themselves, as that of a partition without a leader
    does: all are retriable, and none says that a topic or partition is absent."""
    return all(e.retriable and e.code not in ABSENT for e in errors.values())


def _recreated(begin: Positions, found: _Described) -> dict[str, BrokerError]:
    """Return an error for each topic whose id is not that of the positions. For such an error, the
    caller asks another broker: one whose metadata lags behind may report the id of a deleted
    topic."""
    return {
        topic: BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {topic!r} has another id")
        for topic in begin.topic_ids.keys() & found.topic_ids.keys()
        if not may_be_same_topic(topic, begin.topic_ids, found.topic_ids)
    }


def _topic_error(name: str, metadata: ClusterMetadata) -> BrokerError:
    """Return why the metadata does not describe a topic."""
    topic = metadata.topics.get(name)
    code = 0 if topic is None else topic.error_code
    return broker_error(
        code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {name!r}",
        operation="READ",
        topic=name,
    )
