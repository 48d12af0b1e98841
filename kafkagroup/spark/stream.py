"""Topics as streams: the offsets that each batch reads.

One reader plans the batches, in a process beside the driver; pickled copies of it, without
connections, read in the tasks. When the reader finds a new partition, it adds the partition's first
offset to the end of the batch that it plans. Spark's offset log keeps that, and the next batch
reads the partition from there.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kafkagroup.errors import KafkaGroupError
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.planning import LogEnds, Plan, may_be_same_topic, plan_batch
from kafkagroup.spark.ranges import Positions, Range, capped, split
from kafkagroup.spark.reading import clamped, positions_at, read, report_data_loss
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from kafkagroup.spark.logs import Logs

__all__ = ["StreamReader"]

logger = logging.getLogger(__name__)


_COMMIT_TIMEOUT = 5.0
"""Seconds for the look-up of the group's offsets, and again for the commit. The next batch waits
for both."""
_COMMIT_PAUSE = 10.0
"""Seconds without a further commit after a failed one: each delays the next batch."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Topics as a stream. Its methods, which Spark names and calls, pass offsets as the JSON of
    `Positions`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._logs: Logs | None = None
        """Connected by the first call that needs it, until `stop`."""
        self._initial: Positions | None = None
        """Where the query begins, after the first call of `initialOffset`: the second one must
        return the same."""
        self._target: LogEnds | None = None
        """Where a query of the trigger AvailableNow ends; None for other triggers."""
        self._looked_up: set[TopicPartition] = set()
        """The partitions that the target lacked and that were then looked up once. They are not
        looked up again."""
        self._unavailable: set[str] = set()
        """The topics that were deleted or could not be read at the last plan. That was reported,
        and further plans do not wait for them."""
        self._reported: set[str] = set()
        """The losses of the last plan."""
        self._latest: Positions | None = None
        """The ends of the logs at the last `latestOffset`."""
        self._planned_at = time.monotonic()
        """When the last batch was planned."""
        self._committed: Positions | None = None
        """What this process has last committed to the group; None if it has committed nothing."""
        self._committed_is_start = False
        """Whether `_committed` is the start of the query, and not the end of a batch."""
        self._renewed_at = time.monotonic()
        """When `_committed` was committed or last renewed."""
        self._next_commit_at = -math.inf
        """When the next commit may be sent, after a failed one. This and the other times are on the
        clock of `time.monotonic`."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not the class of a subclass: a copy only reads, which no subclass changes.
        return StreamReader, (self._options, self._schema)

    # ------------------------------------------------------------ planning

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark calls this twice."""
        if self._initial is None:
            options, session = self._options, self._connect()
            partitions, ids = session.partitions()
            starts, ends = session.log_bounds(partitions)
            begin = positions_at(session, options.starting_offsets, options, starts, ends, ids)
            offsets = {
                tp: clamped(tp, begin[tp], starts[tp], ends[tp], options) for tp in partitions
            }
            self._initial = Positions(offsets, ids, options.group_id, session.cluster_id)
            if options.commits:
                from kafkagroup.spark.commits import pin

                self._initial = pin(session, options, self._initial)
                self._note_committed(self._initial, is_start=True)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._connect().ends_of(Positions({}, {}))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Positions.from_json(start)
        # Spark plans a batch when the one before is in its commit log. After the last batch, and at
        # a start without new records, it calls nothing else that could commit the batch before.
        self._commit(begin)
        self._renew()
        plan = self._plan(begin, self._ends(begin))
        self._latest = plan.latest
        offsets = plan.latest.offsets
        if self._must_wait(begin, offsets) and not plan.new:
            return start
        self._planned_at = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            offsets = capped(begin.offsets, offsets, limit.max_rows)
        if plan.new:
            starts, _ = self._connect().log_bounds(plan.new)
            offsets = {**offsets, **starts}
        elif offsets == begin.offsets:
            # Not `plan.latest`: its text may differ, for example in the cluster's id, and then
            # Spark would run a batch without data.
            return start
        return attrs.evolve(plan.latest, offsets=offsets).to_json()

    def _must_wait(self, begin: Positions, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether there are too few unread offsets for a batch. The trigger AvailableNow reads all
        of them, however few."""
        unread = sum(offset - begin.offsets[tp] for tp, offset in offsets.items())
        waited = time.monotonic() - self._planned_at
        options = self._options
        has_few = unread < options.min_rows_per_batch and waited < options.max_trigger_delay
        return has_few and self._target is None

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Positions.from_json(start), Positions.from_json(end)
        starts = self._batch_starts(before, after)
        ranges = [
            Range(tp, after.topic_ids[tp.topic], starts[tp], offset, after.cluster_id)
            for tp, offset in after.offsets.items()
            if tp in starts and may_be_same_topic(tp.topic, before.topic_ids, after.topic_ids)
        ]
        for r in ranges:
            if r.start > r.end:  # as in a first batch whose start, `latest`, was looked up again
                report_data_loss(
                    f"{r.tp} is to be read from {r.start}, but the batch was planned to end at"
                    f" {r.end}: start the query as it was first started, with startingOffsets in"
                    " JSON",
                    self._options,
                )
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        return [InputPartition(r) for r in split(ranges, least, most)]

    def _batch_starts(self, before: Positions, after: Positions) -> Mapping[TopicPartition, int]:
        """Return where a batch begins in each partition. In a batch that this source planned, new
        partitions have no rows yet, and no start. A batch that Spark's own connector planned has no
        topic ids, and reads new partitions from the log's start. If this source planned a batch on
        a cluster before Kafka 2.8, it has no topic ids either, but ends there in new partitions:
        they have no rows, too."""
        new = [tp for tp in after.offsets if tp not in before.offsets]
        if not new or any(after.topic_ids.values()):
            return before.offsets
        starts, _ = self._connect().log_bounds(new)
        return {**before.offsets, **starts}

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the batch up to `end`, which is in Spark's commit log."""
        self._commit(Positions.from_json(end))

    def _commit(self, done: Positions) -> None:
        """Commit `done`, the end of a batch that is in Spark's commit log. An error is only logged:
        if it were raised, the query would end."""
        last, group = self._committed, self._options.group_id
        if not self._options.source_commits or group is None:
            return
        if last is not None and (last.offsets, last.topic_ids) == (done.offsets, done.topic_ids):
            return
        # A query of the trigger AvailableNow ends soon: it tries each commit.
        if self._target is None and time.monotonic() < self._next_commit_at:
            return
        from kafkagroup.spark.commits import commit

        try:
            timeout = min(_COMMIT_TIMEOUT, self._options.api_timeout)
            commit(self._connect(), group, done, timeout)
            self._note_committed(done, is_start=False)
        except KafkaGroupError as error:
            self._next_commit_at = time.monotonic() + _COMMIT_PAUSE
            logger.warning("offsets are not committed to group %r: %s", group, error)

    def _note_committed(self, positions: Positions, *, is_start: bool) -> None:
        if not self._options.source_commits:
            return  # the listener commits, and this process does not know which offsets
        self._committed, self._committed_is_start = positions, is_start
        self._renewed_at = time.monotonic()

    def _renew(self) -> None:
        """Commit again what the group no longer has, once in `RENEWAL_INTERVAL`: a query without
        new records commits nothing, and brokers delete old offsets of a group without members."""
        last, group = self._committed, self._options.group_id
        if last is None or group is None:
            return
        from kafkagroup.spark.commits import RENEWAL_INTERVAL, renew

        if time.monotonic() < self._renewed_at + RENEWAL_INTERVAL:
            return
        self._renewed_at = time.monotonic()
        try:
            timeout = min(_COMMIT_TIMEOUT, self._options.api_timeout)
            renew(self._connect(), group, last, is_start=self._committed_is_start, timeout=timeout)
        except KafkaGroupError as error:
            logger.warning("offsets of group %r are not renewed: %s", group, error)

    def stop(self) -> None:
        if self._logs is not None:
            self._logs.__exit__(None, None, None)
            self._logs = None

    def _connect(self) -> Logs:
        if self._logs is None:
            from kafkagroup.spark.logs import Logs

            self._logs = Logs(self._options).__enter__()
        return self._logs

    def _ends(self, begin: Positions) -> LogEnds:
        """Return the ends of the logs: with the trigger AvailableNow those at the start of the
        query, and for partitions of `begin` that were not found then, those at the first look-up
        since."""
        session, target = self._connect(), self._target
        session.expect_cluster(begin.cluster_id)
        if target is None:
            return session.ends_of(begin, self._unavailable)
        missing = {
            tp
            for tp in begin.offsets
            if tp not in target.offsets
            or not may_be_same_topic(tp.topic, begin.topic_ids, target.topic_ids)
        }
        if missing - self._looked_up:
            found = session.ends_of(begin, target.errors)
            self._looked_up |= missing
            late = {tp: found.offsets[tp] for tp in missing if tp in found.offsets}
            ids = {tp.topic: found.topic_ids[tp.topic] for tp in late}
            self._target = target = attrs.evolve(
                target,
                offsets={**target.offsets, **late},
                topic_ids={**target.topic_ids, **ids},
                errors=found.errors,
            )
        return target

    def _plan(self, begin: Positions, ends: LogEnds) -> Plan:
        """Return what can be read. Report the losses, and the topics that cannot be read for now,
        unless the last plan had them, too.

        Raises: DataLossError, see `report_data_loss`; BrokerError for a topic that does not exist
        or may not be read.
        """
        plan = plan_batch(begin, ends, self._options)
        for loss in plan.losses:
            if loss not in self._reported:
                report_data_loss(loss, self._options)
        if plan.errors.keys() - self._unavailable:
            logger.warning("not read for now: %s", "; ".join(map(str, plan.errors.values())))
        self._reported, self._unavailable = set(plan.losses), {*plan.errors, *plan.deleted}
        return plan

    # ------------------------------------------------------------ reading

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read(self._options, self._schema, partition.value)
