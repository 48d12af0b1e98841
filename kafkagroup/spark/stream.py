"""Topics as streams: the offsets that each batch reads.

One reader plans the batches, in a process beside the driver; pickled copies of it, without
connections, read in the tasks. When a new partition is found, the batch being planned ends at that
partition's first offset, which Spark's log then keeps, and the next batch reads it.
"""

from __future__ import annotations

import logging
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

from kafkagroup.errors import BrokerError, ErrorCode, KafkaGroupError
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import Positions, Range, capped, split
from kafkagroup.spark.reading import data_loss, inside, positions_at, read
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from kafkagroup.spark.logs import Logs

__all__ = ["StreamReader"]

logger = logging.getLogger(__name__)


_COMMIT_TIMEOUT = 5.0
"""Seconds that the next batch may wait for the commit of the last one, at most twice."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A topic as a stream."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._logs: Logs | None = None
        """Connected by the first call that needs it, until `stop`."""
        self._first: Positions | None = None
        """Where the query begins, once planned: a second call must not plan another start."""
        self._target: Positions | None = None
        """Where a query of the trigger AvailableNow ends."""
        self._latest: Positions | None = None
        """The ends of the logs at the last `latestOffset`."""
        self._planned_at = time.monotonic()
        """When the last batch was planned."""
        self._committed: Positions | None = None
        """What this process has last committed to the group, if it commits the batches."""
        self._is_start = False
        """Whether that is the start of the query."""
        self._renewed_at = time.monotonic()
        """When it was committed or last renewed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamReader, (self._options, self._schema)

    # ------------------------------------------------------------ planning

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark calls this twice."""
        if self._first is None:
            options, session = self._options, self._connect()
            partitions, ids = session.partitions()
            starts, ends = session.log_bounds(partitions)
            begin = positions_at(session, options.starting_offsets, options, starts, ends, ids)
            offsets = {
                tp: inside(tp, begin[tp], starts[tp], ends[tp], options) for tp in partitions
            }
            self._first = Positions(offsets, ids, options.group_id, session.cluster_id)
            if self._commits():
                from kafkagroup.spark.commits import pin

                self._first = pin(session, options, self._first)
                self._note_committed(self._first, is_start=True)
        return self._first.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._renew()
        begin = Positions.from_json(start)
        ends = self._target or self._ends(begin)
        self._latest = ends
        offsets, new = self._split_new(begin, ends)
        if self._waits(begin, offsets) and not new:
            return start
        self._planned_at = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            offsets = capped(begin.offsets, offsets, limit.max_rows)
        if new:
            starts, _ = self._connect().log_bounds(new)
            offsets |= starts
        if begin.cluster_id is None and offsets == begin.offsets:
            return start  # of an earlier release: with the id its text differs, as if it had data
        return attrs.evolve(ends, offsets=offsets).to_json()

    def _waits(self, begin: Positions, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether there are too few unread offsets for a batch. The trigger AvailableNow reads them
        all."""
        unread = sum(offset - begin.offsets[tp] for tp, offset in offsets.items())
        waited = time.monotonic() - self._planned_at
        options = self._options
        few = unread < options.min_rows_per_batch and waited < options.max_trigger_delay
        return few and self._target is None

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Positions.from_json(start), Positions.from_json(end)
        ranges = [
            Range(tp, after.topic_ids[tp.topic], before.offsets[tp], offset, after.cluster_id)
            for tp, offset in after.offsets.items()
            if tp in before.offsets and _same_topic(tp, before, after)
        ]
        return [InputPartition(r) for r in split(ranges, self._options.min_partitions)]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the batch up to `end`, which is in Spark's commit log. An error is only logged: it
        would end the query."""
        if not (self._commits() and self._options.commit == "source"):
            return
        from kafkagroup.spark.commits import commit

        done = Positions.from_json(end)
        assert done.group is not None
        try:
            timeout = min(_COMMIT_TIMEOUT, self._options.api_timeout)
            commit(self._connect(), done.group, done, timeout)
            self._note_committed(done, is_start=False)
        except KafkaGroupError as error:
            logger.warning("offsets are not committed to group %r: %s", done.group, error)

    def _note_committed(self, positions: Positions, *, is_start: bool) -> None:
        if self._options.commit != "source":
            return  # the listener has committed more than this process knows
        self._committed, self._is_start = positions, is_start
        self._renewed_at = time.monotonic()

    def _renew(self) -> None:
        """Look up once a minute whether the group still has what was committed: a query without new
        records commits nothing, and brokers delete old offsets of a group without members."""
        held = self._committed
        if held is None or held.group is None:
            return
        from kafkagroup.spark.commits import RENEWAL_INTERVAL, renew

        if time.monotonic() < self._renewed_at + RENEWAL_INTERVAL:
            return
        self._renewed_at = time.monotonic()
        try:
            timeout = min(_COMMIT_TIMEOUT, self._options.api_timeout)
            renew(self._connect(), held.group, held, first=self._is_start, timeout=timeout)
        except KafkaGroupError as error:
            logger.warning("offsets of group %r are not renewed: %s", held.group, error)

    def stop(self) -> None:
        if self._logs is not None:
            self._logs.__exit__(None, None, None)
            self._logs = None

    def _commits(self) -> bool:
        return self._options.group_id is not None and self._options.commit != "off"

    def _connect(self) -> Logs:
        if self._logs is None:
            from kafkagroup.spark.logs import Logs

            self._logs = Logs(self._options).__enter__()
        return self._logs

    def _ends(self, begin: Positions | None = None) -> Positions:
        """Return the ends of the logs; `begin` if the topics were deleted, unless that is an
        error."""
        session = self._connect()
        session.expect_cluster(None if begin is None else begin.cluster_id)
        try:
            partitions, ids = session.partitions()
        except BrokerError as error:
            if begin is None or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            data_loss(str(error), self._options)
            return begin
        _, ends = session.log_bounds(partitions)
        return Positions(ends, ids, self._options.group_id, session.cluster_id)

    def _split_new(
        self, begin: Positions, ends: Positions
    ) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """Return the end of each partition that the stream has a position in, and the new
        partitions, of new and of recreated topics. Raises: DataLossError, see `data_loss`."""
        offsets, new = {}, []
        recreated = set()
        # Only topics that a pattern selected: for others `_ends` has raised.
        for topic in sorted({tp.topic for tp in begin.offsets} - ends.topic_ids.keys()):
            data_loss(f"topic {topic!r} was deleted", self._options)
        for tp, end in ends.offsets.items():
            if tp not in begin.offsets:
                new.append(tp)
            elif not _same_topic(tp, begin, ends):
                new.append(tp)
                recreated.add(tp.topic)
            elif end < begin.offsets[tp]:
                data_loss(
                    f"{tp} was read up to {begin.offsets[tp]}, but ends at {end}", self._options
                )
                offsets[tp] = begin.offsets[tp]
            else:
                offsets[tp] = end
        for topic in sorted(recreated):
            data_loss(f"topic {topic!r} was recreated", self._options)
        return offsets, new

    # ------------------------------------------------------------ reading

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read(self._options, self._schema, partition.value)


def _same_topic(tp: TopicPartition, one: Positions, other: Positions) -> bool:
    return one.topic_ids[tp.topic] == other.topic_ids[tp.topic]
