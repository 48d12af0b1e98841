"""Reading: Fetch with its long poll, ListOffsets, OffsetForLeaderEpoch.

A fetch that finds too little stays pending until enough is appended, a partition has an error, or
its `max_wait_ms` is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.testing.embedded.cluster import Cluster, Partition
from kafkagroup.testing.embedded.coordinator import Caller
from kafkagroup.testing.embedded.evolve import evolve
from kafkagroup.testing.embedded.fetch_sessions import FetchedPartition, FetchSession
from kafkagroup.testing.embedded.log import PartitionLog, TimedOffset
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kafkagroup.wire.messages.offsets import (
    EpochEndOffset as EpochEnd,
)
from kafkagroup.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

__all__ = ["check_leader", "ends_of_epochs", "fetch", "list_offsets"]

_LEADER_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

_NO_OFFSET = TimedOffset()
_NO_VERSION = 32767
"""Above every version: an unknown special timestamp is always refused."""

_LATEST, _MAX_TIMESTAMP = -1, -3

_SPECIAL_TIMESTAMPS: dict[int, tuple[int, Callable[[PartitionLog], TimedOffset]]] = {
    _LATEST: (0, lambda log: log.latest()),
    -2: (0, lambda log: log.earliest()),
    _MAX_TIMESTAMP: (7, lambda log: log.at_max_timestamp()),
    -4: (8, lambda log: log.earliest()),  # the earliest on local storage
    -5: (9, lambda log: _NO_OFFSET),  # the latest on tiered storage
    -6: (11, lambda log: _NO_OFFSET),  # the earliest that is not on tiered storage yet
}
"""Special timestamp -> the version of ListOffsets that introduced it, and the look-up (KIP-405,
734, 1005, 1023). There is no tiered storage."""


def check_leader(
    cluster: Cluster,
    node_id: int,
    topic: str,
    index: int,
    epoch: int,
    *,
    allow_followers: bool = False,
) -> tuple[Partition | None, ErrorCode]:
    """Return the partition (None if it does not exist), and the error for serving it to a client
    that knows leader `epoch`; -1 if the client knows none.

    Every node has a replica; with `allow_followers`, any node may serve.
    """
    partition = cluster.partition(topic, index)
    if partition is None:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if epoch >= 0 and epoch < partition.leader_epoch:
        return partition, ErrorCode.FENCED_LEADER_EPOCH
    if epoch > partition.leader_epoch:
        return partition, ErrorCode.UNKNOWN_LEADER_EPOCH
    if partition.leader != node_id and not allow_followers:
        return partition, ErrorCode.NOT_LEADER_OR_FOLLOWER
    return partition, ErrorCode.NONE


# ---------------------------------------------------------------- fetch


@attrs.define(eq=False)
class _FetchAttempt:
    """One attempt to answer a fetch, and what it has found."""

    version: int
    read_committed: bool
    bytes_left: int
    """Bytes that may still be added to the response."""
    size: int = 0
    """Bytes that were added."""
    existing_count: int = 0
    """Partitions that exist. Without any, waiting would bring no records."""
    must_answer_now: bool = False
    """Whether the response cannot wait, for example because of an error. As in Kafka, the error of
    a partition that does not exist does not count."""
    new_leaders: set[int] = attrs.field(factory=set)
    """New leaders, which the response names with their addresses (KIP-951)."""


def fetch(
    cluster: Cluster,
    node_id: int,
    request: FetchRequest,
    caller: Caller,
    reply: Callable[[FetchResponse], None],
) -> None:
    """Answer a fetch as soon as there is enough to send, at the latest after `max_wait_ms`."""
    session = cluster.nodes[node_id].fetch_sessions.open(request, caller)
    if isinstance(session, ErrorCode):
        reply(FetchResponse(error_code=session, responses=()))
        return
    key = object()

    def try_to_answer(*, is_last: bool) -> None:
        attempt = _FetchAttempt(caller.version, bool(request.isolation_level), request.max_bytes)
        results = [
            (partition_id, _read(cluster, node_id, partition_id, requested, attempt))
            for partition_id, requested in session
        ]
        is_complete = (
            attempt.size >= request.min_bytes
            or not attempt.existing_count
            or attempt.must_answer_now
        )
        if is_complete or is_last:
            cluster.fetch_callbacks.pop(key, None)
            cluster.timers.cancel(key)
            reply(_response(cluster, session, results, attempt))

    def on_timeout(_now: float) -> None:
        try_to_answer(is_last=True)

    # Both are registered before the first attempt, which removes them if it answers.
    cluster.fetch_callbacks[key] = lambda: try_to_answer(is_last=False)
    cluster.timers.schedule(key, caller.now + request.max_wait_ms / 1000, on_timeout)
    try_to_answer(is_last=request.max_wait_ms <= 0)


def _response(
    cluster: Cluster,
    session: FetchSession,
    results: list[tuple[FetchedPartition, PartitionData]],
    attempt: _FetchAttempt,
) -> FetchResponse:
    # Absent partitions come last, as in Kafka: a topic may then occur twice.
    changed = sorted(
        session.select_changed(results), key=lambda item: _ABSENT.get(item[1].error_code, 0)
    )
    topics = tuple(
        FetchableTopicResponse(
            topic=topic, topic_id=topic_id, partitions=tuple(data for _, data in found)
        )
        for (topic, topic_id), found in groupby(changed, key=lambda item: item[0][:2])
    )
    nodes = (cluster.nodes[node] for node in sorted(attempt.new_leaders) if node in cluster.nodes)
    endpoints = tuple(NodeEndpoint(node_id=n.node_id, host=n.host, port=n.port) for n in nodes)
    return FetchResponse(session_id=session.session_id, responses=topics, node_endpoints=endpoints)


_ABSENT: Mapping[int, int] = {
    ErrorCode.UNKNOWN_TOPIC_ID: 1,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 2,
}
"""The errors of absent partitions, in the order in which a response has them after all others."""


def _read(
    cluster: Cluster,
    node_id: int,
    partition_id: FetchedPartition,
    requested: FetchPartition,
    attempt: _FetchAttempt,
) -> PartitionData:
    """Return the entry of a partition in the response, and count it in `attempt`."""
    name = partition_id.topic
    if attempt.version >= 13:
        found = cluster.topic_by_id(partition_id.topic_id)
        if found is None:
            return _refused(requested.partition, ErrorCode.UNKNOWN_TOPIC_ID)
        name = found.name
    partition, error = check_leader(
        cluster,
        node_id,
        name,
        requested.partition,
        requested.current_leader_epoch,
        # KIP-392: versions that carry the client's rack may read from a follower.
        allow_followers=attempt.version >= 11,
    )
    if partition is None:
        return _refused(requested.partition, error)
    tp = TopicPartition(name, requested.partition)
    if injected := cluster.injected_error(node_id, FetchRequest, tp):
        attempt.must_answer_now = True
        # As in Kafka, `aborted_transactions` is null for partitions that exist, else empty.
        return evolve(_refused(tp.partition, injected), aborted_transactions=None)
    attempt.existing_count += 1
    log = partition.log
    epoch, end = log.end_of_epoch(requested.last_fetched_epoch)
    checks_divergence = requested.last_fetched_epoch >= 0 and not error
    is_unknown_epoch = checks_divergence and end < 0
    # Whether the log that the client has read differs from this one after `last_fetched_epoch`,
    # even if this log contains `fetch_offset`.
    has_diverged = checks_divergence and (
        epoch != requested.last_fetched_epoch or end < requested.fetch_offset
    )
    is_out_of_range = not log.start <= requested.fetch_offset <= log.end
    if not error and (is_unknown_epoch or (is_out_of_range and not has_diverged)):
        error = ErrorCode.OFFSET_OUT_OF_RANGE
    if error:
        attempt.must_answer_now = True
        refused = evolve(_refused(requested.partition, error), aborted_transactions=None)
        if attempt.version < 16 or error not in _LEADER_MOVED:
            return refused
        attempt.new_leaders.add(partition.leader)
        leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
        return evolve(refused, current_leader=leader)
    readable_end, aborted = log.end, None
    if attempt.read_committed:
        readable_end = log.stable_end
        aborted = log.producers.aborted(requested.fetch_offset, readable_end)
    data = PartitionData(
        partition_index=requested.partition,
        error_code=ErrorCode.NONE,
        high_watermark=log.end,
        last_stable_offset=log.stable_end,
        log_start_offset=log.start,
        aborted_transactions=aborted,
        records=b"",
    )
    if has_diverged:
        attempt.must_answer_now = True
        return evolve(data, diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end))
    # `bytes_left` is negative after a first batch above the limit of the response.
    limit = max(min(requested.partition_max_bytes, attempt.bytes_left), 0)
    # The first batch of a response is sent whole, whatever its size: otherwise a consumer with
    # lower limits would wait forever.
    records = log.read(
        requested.fetch_offset, limit, at_least_one=not attempt.size, end=readable_end
    )
    attempt.size += len(records)
    attempt.bytes_left -= len(records)
    return evolve(data, records=records)


def _refused(index: int, error: int) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=error,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        records=b"",
    )


# ---------------------------------------------------------------- offsets and epochs


def list_offsets(
    cluster: Cluster, node_id: int, request: ListOffsetsRequest, caller: Caller
) -> ListOffsetsResponse:
    """Look up offsets by time, or by a special timestamp."""

    def answer_one(topic: str, requested: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        partition, error = check_leader(
            cluster, node_id, topic, requested.partition_index, requested.current_leader_epoch
        )
        found = _NO_OFFSET
        tp = TopicPartition(topic, requested.partition_index)
        if injected := cluster.injected_error(node_id, ListOffsetsRequest, tp):
            return ListOffsetsPartitionResponse(
                partition_index=tp.partition, error_code=injected, offset=-1, timestamp=-1
            )
        if partition is not None and not error:
            if requested.timestamp >= 0:
                found = partition.log.at_time(requested.timestamp)
            elif requested.timestamp == _LATEST and request.isolation_level:
                found = partition.log.latest_stable()
            else:
                since_version, lookup = _SPECIAL_TIMESTAMPS.get(
                    requested.timestamp, (_NO_VERSION, PartitionLog.earliest)
                )
                if caller.version >= since_version:
                    found = lookup(partition.log)
                else:
                    error = ErrorCode.UNSUPPORTED_VERSION
            is_by_time = requested.timestamp >= 0 or requested.timestamp == _MAX_TIMESTAMP
            if is_by_time and request.isolation_level and found.offset >= partition.log.stable_end:
                found = _NO_OFFSET
        return ListOffsetsPartitionResponse(
            partition_index=requested.partition_index,
            error_code=error,
            timestamp=found.timestamp,
            offset=found.offset,
            # Versions below 4 have no such field.
            leader_epoch=found.leader_epoch if caller.version >= 4 else -1,
        )

    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(answer_one(topic.name, p) for p in topic.partitions),
            )
            for topic in request.topics
        )
    )


def ends_of_epochs(
    cluster: Cluster, node_id: int, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Return the end offsets of leader epochs, which reveal log truncation (KIP-320)."""

    def answer_one(topic: str, requested: OffsetForLeaderPartition) -> EpochEnd:
        partition, error = check_leader(
            cluster, node_id, topic, requested.partition, requested.current_leader_epoch
        )
        tp = TopicPartition(topic, requested.partition)
        if injected := cluster.injected_error(node_id, OffsetForLeaderEpochRequest, tp):
            return EpochEnd(error_code=injected, partition=tp.partition)
        epoch, end = -1, -1
        if partition is not None and not error:
            epoch, end = partition.log.end_of_epoch(requested.leader_epoch)
        return EpochEnd(
            error_code=error, partition=requested.partition, leader_epoch=epoch, end_offset=end
        )

    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(answer_one(topic.topic, p) for p in topic.partitions),
            )
            for topic in request.topics
        )
    )
