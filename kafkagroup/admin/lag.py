"""The lag of groups, in offsets and in seconds.

Log ends are requested after the committed offsets, so that no lag is negative. The lag in seconds
is the age of the record at the committed offset, the oldest that the group has not processed; it
needs no estimate of the rate of records.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import attrs

from kafkagroup.admin.spec import topics_metadata
from kafkagroup.consume.lag import age_of, first_timestamp, lag_of
from kafkagroup.errors import BrokerError, KafkaGroupError, RemoteProtocolError, broker_error
from kafkagroup.runtime.client.calls import RetriedCalls
from kafkagroup.runtime.offsets.log_offsets import LogOffsets
from kafkagroup.runtime.offsets.values import EARLIEST, LATEST, READ_UNCOMMITTED
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.metadata import ClusterMetadata, Node
from kafkagroup.types import OffsetAndMetadata, TopicPartition

__all__ = ["PartitionLag", "measure"]

_FETCH_BYTES = 16 << 10
"""Enough for most records. In a response, only the first batch is sent whole if it is larger: hence
the requests of single partitions."""

_MAX_PARTITIONS = 100
"""The limit of partitions in one request: with 16 KiB each, the response stays small."""

_Position = tuple[TopicPartition, int]
"""A partition, and an offset in it."""

Committed = Mapping[TopicPartition, OffsetAndMetadata]


@attrs.frozen(kw_only=True)
class PartitionLag:
    """A group's lag in one partition."""

    committed: int
    """The group's committed offset."""
    start: int | None = None
    """The first offset in the log."""
    end: int | None = None
    """The offset of the log's next record."""
    lag: int | None = None
    """Offsets from the committed one, or from the log's start if that is higher, to the end."""
    seconds: float | None = None
    """The age of the first record that the group has not processed; 0.0 at the log's end; None if
    the age is not known."""
    reason: str | None = None
    """Why another field is None."""


async def measure(
    calls: RetriedCalls, groups: Mapping[str, Committed | KafkaGroupError]
) -> dict[str, dict[TopicPartition, PartitionLag] | KafkaGroupError]:
    """Return each group's lag in all partitions of which it has committed offsets, or its error.
    Raises: what `calls.one` raises, if a leader does not answer."""
    known = [offsets for offsets in groups.values() if not isinstance(offsets, KafkaGroupError)]
    wanted = sorted({tp for offsets in known for tp in offsets})
    reasons = await _unmeasurable(calls, wanted)
    existing = [tp for tp in wanted if tp not in reasons]
    # Keep the topics in the metadata while it is refreshed: the requests for timestamps need their
    # leaders.
    with calls.opened().topics.during(tp.topic for tp in existing):
        starts = await _log_offsets(calls, existing, EARLIEST, reasons)
        ends = await _log_offsets(calls, existing, LATEST, reasons)
        # Where the groups continue in the partitions in which they lag.
        waiting = {
            (tp, max(at.offset, starts[tp]))
            for offsets in known
            for tp, at in offsets.items()
            if tp not in reasons and max(at.offset, starts[tp]) < ends[tp]
        }
        stamps = await _timestamps(calls, sorted(waiting))
    now = time.time()
    ages_or_reasons = {
        key: str(stamp) if isinstance(stamp, KafkaGroupError) else age_of(stamp, now)
        for key, stamp in stamps.items()
    }

    def lag(tp: TopicPartition, committed: int) -> PartitionLag:
        if tp in reasons:
            return PartitionLag(committed=committed, reason=reasons[tp])
        start, end = starts[tp], ends[tp]
        if committed > end:
            reason = "the log ends before the committed offset"
            return PartitionLag(committed=committed, start=start, end=end, reason=reason)
        first = max(committed, start)
        age_or_reason = ages_or_reasons.get((tp, first), 0.0)  # 0.0 at the log's end
        return PartitionLag(
            committed=committed,
            start=start,
            end=end,
            lag=lag_of(first, end),
            seconds=None if isinstance(age_or_reason, str) else age_or_reason,
            reason=age_or_reason if isinstance(age_or_reason, str) else None,
        )

    return {
        group_id: offsets
        if isinstance(offsets, KafkaGroupError)
        else {tp: lag(tp, at.offset) for tp, at in offsets.items()}
        for group_id, offsets in groups.items()
    }


async def _unmeasurable(
    calls: RetriedCalls, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, str]:
    """Return the partitions whose lag cannot be measured, with the reasons."""

    async def read_metadata(cluster: Cluster, topic: str) -> ClusterMetadata:
        return await topics_metadata(cluster, [topic])

    partitions = list(wanted)
    found = await calls.each((tp.topic for tp in partitions), read_metadata)
    reasons = {}
    for tp in partitions:
        metadata = found[tp.topic]
        if isinstance(metadata, KafkaGroupError):
            reasons[tp] = str(metadata)
        elif tp.partition >= metadata.partition_counts([tp.topic]).get(tp.topic, 0):
            reasons[tp] = "there is no such partition"
    return reasons


async def _log_offsets(
    calls: RetriedCalls,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    reasons: dict[TopicPartition, str],
) -> dict[TopicPartition, int]:
    """Return each log's start or end, by `timestamp`: EARLIEST or LATEST. Leave out the partitions
    in `reasons`, and add those whose leader refused. Raises: what `calls.one` raises, if a leader
    does not answer."""
    logs = LogOffsets(calls.opened(), READ_UNCOMMITTED)
    requested = {tp: timestamp for tp in partitions if tp not in reasons}
    if not requested:
        return {}
    found = await calls.one(lambda _: logs.each(requested))
    reasons |= {tp: str(error) for tp, error in found.errors.items()}
    return {tp: at.offset for tp, at in found.offsets.items()}


async def _timestamps(
    calls: RetriedCalls, waiting: Sequence[_Position]
) -> dict[_Position, int | KafkaGroupError | None]:
    """Return what `_timestamp` returns or raises for each of `waiting`.

    The first requests have many partitions each, because a thousand requests take a second. A
    partition that they do not answer is then requested alone.
    """
    batches: list[tuple[Node, tuple[_Position, ...]]] = []
    metadata = calls.opened().metadata
    # A request can have a partition only once. Of the offsets that groups have in a partition,
    # `dict` keeps one; the others are requested alone below.
    for node, positions in _by_leader(metadata, dict(waiting).items()).items():
        batches += [
            (node, tuple(positions[n : n + _MAX_PARTITIONS]))
            for n in range(0, len(positions), _MAX_PARTITIONS)
        ]
    found: dict[_Position, int | KafkaGroupError | None] = {}
    for stamps in (await calls.each(batches, _timestamps_of_batch)).values():
        if not isinstance(stamps, KafkaGroupError):
            found |= stamps
    return found | await calls.each([at for at in waiting if at not in found], _timestamp)


def _by_leader(
    metadata: ClusterMetadata, waiting: Iterable[_Position]
) -> dict[Node, list[_Position]]:
    """Group by leader, without partitions whose leader is unknown."""
    found: dict[Node, list[_Position]] = {}
    for tp, offset in waiting:
        if (node := metadata.leader_node(tp)) is not None:
            found.setdefault(node, []).append((tp, offset))
    return found


async def _timestamps_of_batch(
    cluster: Cluster, batch: tuple[Node, tuple[_Position, ...]]
) -> dict[_Position, int]:
    """Return the timestamps that one response has. The leader leaves out partitions that do not
    fit, and truncates a batch beyond the limit. Errors are ignored: `_timestamp` raises them when
    it requests the partition alone."""
    node, positions = batch
    offsets = dict(positions)
    try:
        response = await cluster.broker(node).fetch_messages(
            offsets, max_wait=0, partition_max_bytes=_FETCH_BYTES
        )
        stamps = {
            (tp, offsets[tp]): first_timestamp(data.records or b"", tp, offsets[tp])
            for topic in response.responses
            for data in topic.partitions
            for tp in [TopicPartition(topic.topic, data.partition_index)]
            if tp in offsets and not data.error_code
        }
    except KafkaGroupError:
        return {}
    return {at: stamp for at, stamp in stamps.items() if stamp is not None}


async def _timestamp(cluster: Cluster, at: _Position) -> int | None:
    """Return the timestamp of the first record at or after an offset, in milliseconds; None if the
    first `_FETCH_BYTES` have no record, as in a log that ends with many transaction markers."""
    tp, offset = at
    try:
        leader = cluster.leader(tp)
    except BrokerError:
        await cluster.refresh()  # `RetriedCalls` then calls again
        raise
    response = await leader.fetch_messages(
        {tp: offset}, max_wait=0, partition_max_bytes=_FETCH_BYTES
    )
    for topic in response.responses:
        for data in topic.partitions:
            if (topic.topic, data.partition_index) != tp:
                continue
            if data.error_code:
                await cluster.refresh()
                what = f"reading {tp} at offset {offset}"
                raise broker_error(data.error_code, what, operation="READ", topic=tp.topic)
            return first_timestamp(data.records or b"", tp, offset)
    raise RemoteProtocolError(f"the leader did not answer for {tp}")
