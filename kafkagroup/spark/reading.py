"""Reading for tables and streams: the offsets of a bound, and the rows of one task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kafkagroup.errors import ConfigurationError, ErrorCode
from kafkagroup.spark.option_values import Bound
from kafkagroup.spark.options import SourceOptions
from kafkagroup.spark.ranges import CommitMetadata, DataLossError, Range
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from kafkagroup.spark.logs import Logs
    from kafkagroup.wire.messages.fetch import PartitionData

__all__ = ["FetchSize", "clamped", "positions_at", "read", "report_data_loss"]

logger = logging.getLogger(__name__)

_MAX_EMPTY_RESPONSES = 20
"""After this many empty responses in a row, of half a second each, the remaining records of the
task count as lost: an unclean leader election has truncated the log."""

_INITIAL_BYTES_PER_OFFSET = 256.0
"""The estimate before the first response that advances the position."""
_MARGIN = 1.1
"""The factor by which a fetch is larger than the estimate: a fetch that is slightly too small makes
another one necessary."""
_MIN_FETCH_BYTES = 64 << 10
"""A smaller fetch would take no less time."""


def positions_at(
    session: Logs,
    bound: Bound,
    options: SourceOptions,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    ids: Mapping[str, str],
) -> dict[TopicPartition, int]:
    """Return the offset of a bound in each partition. `starts` and `ends` are those of the logs,
    `ids` the topic ids.

    In a partition for which the bound has no offset, a start is the log's start, so that no record
    is skipped, and an end is the log's end. A start by `group` has no offset for a partition in
    which the group has committed none since the topic was created.

    Raises: ConfigurationError for a partition that does not exist, or, with the option
    `startingOffsetsByTimestampStrategy=error`, for one without a record at or after a start in
    time.
    """
    # `is`, not `==`: an end may be equal to the start. Both may be the object `LATEST`, which needs
    # no distinction.
    is_start = bound is options.starting_offsets
    if unknown := sorted({*bound.offsets, *bound.timestamps} - set(starts)):
        raise ConfigurationError(
            f"offsets of partitions that are not read: {', '.join(map(str, unknown))}"
        )
    match bound.kind:
        case "earliest":
            return dict(starts)
        case "latest":
            return dict(ends)
        case "timestamp" | "timestamps":
            times = bound.timestamps
            if bound.kind == "timestamp":
                times = dict.fromkeys(starts, bound.timestamp)
            found = session.first_offsets(times)
            late = sorted(tp for tp, at in found.items() if at is None)
            if late and is_start and options.timestamp_strategy == "error":
                raise ConfigurationError(
                    "no record at or after the start in"
                    f" {', '.join(f'{tp} at {times[tp]}' for tp in late)}:"
                    " startingOffsetsByTimestampStrategy=latest would start at the log's end"
                )
            # A record that was appended since the ends were looked up may be above them.
            offsets = {
                tp: ends[tp] if at is None else min(at, ends[tp]) for tp, at in found.items()
            }
            return {**(starts if is_start else ends), **offsets}
        case "group":
            assert options.group_id is not None  # `parse_options` requires it
            committed = session.committed(options.group_id, starts)
            return {
                tp: at.offset
                if (at := committed.get(tp)) is not None
                and CommitMetadata.of(at).is_of_topic(ids[tp.topic])
                else starts[tp]
                for tp in starts
            }
        case "offsets":
            given = {**(starts if is_start else ends), **bound.offsets}
            # -2 and -1 are the start and the end of the log, as in `Bound.offsets`.
            return {
                tp: starts[tp] if at == -2 else ends[tp] if at == -1 else at
                for tp, at in given.items()
            }


def clamped(tp: TopicPartition, position: int, start: int, end: int, options: SourceOptions) -> int:
    """Return `position`. If it is outside of the log, which has `start` to `end`, call
    `report_data_loss`, and return the nearest position inside. Raises: DataLossError."""
    if start <= position <= end:
        return position
    report_data_loss(f"{tp} is to be read from {position}, but has {start} to {end}", options)
    return min(max(position, start), end)


def report_data_loss(what: str, options: SourceOptions) -> None:
    """Raise an error; with `failOnDataLoss=false`, log a warning instead. Raises: DataLossError."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}; failOnDataLoss=false would read the remaining records")
    logger.warning("%s", what)


class FetchSize:
    """How many bytes to fetch: about what is left of a task, which may be a few records of a large
    log."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes_per_offset = _INITIAL_BYTES_PER_OFFSET

    def of(self, offsets: int) -> int:
        """Return the bytes to fetch if the task has this many offsets left."""
        estimate = int(offsets * self._bytes_per_offset * _MARGIN)
        return min(self._max_bytes, max(_MIN_FETCH_BYTES, estimate))

    def learn(self, offsets: int, size: int) -> None:
        """Estimate further fetches by a response of `size` bytes, which advanced the position by
        `offsets`."""
        if offsets:
            self._bytes_per_offset = size / offsets


def read(
    options: SourceOptions, schema: StructType, planned: Range
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of one task. The next fetch is sent before the rows of a response are yielded.

    Raises: DataLossError; ClusterChangedError; BrokerError; DecodeError for a damaged batch.
    """
    from kafkagroup.spark.frames import arrow_schema
    from kafkagroup.spark.rows import Rows
    from kafkagroup.spark.worker_sessions import session_of_task

    rows = Rows(options, planned, arrow_schema(schema))
    size = FetchSize(options.max_partition_fetch_bytes)
    position, empty_responses = planned.start, 0
    with session_of_task(options, planned.cluster_id) as session:

        def start_fetch() -> Future[PartitionData]:
            max_bytes = size.of(planned.end - position)
            return session.start_fetch(planned.tp, planned.topic_id, position, max_bytes)

        fetch = start_fetch()
        while True:
            try:
                data = fetch.result()
            except DataLossError as error:  # the topic was deleted or recreated
                report_data_loss(str(error), options)
                return
            batches: Iterator[pyarrow.RecordBatch] = iter(())
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                starts, ends = session.log_bounds([planned.tp])
                start, end = starts[planned.tp], ends[planned.tp]
                lost = f"{planned.tp} is to be read at {position}, but has {start} to {end}"
                if start >= planned.end:
                    lost += f": retention has moved past {planned.end}, where this task ends"
                report_data_loss(lost, options)
                # Above the log's end there is nothing left to read.
                position = start if position < start else planned.end
            else:
                before = position
                position, batches = rows.convert(data, before)
                size.learn(position - before, len(data.records or b""))
                empty_responses = empty_responses + 1 if position == before else 0
                if empty_responses == _MAX_EMPTY_RESPONSES:
                    report_data_loss(
                        f"{planned.tp} is to be read up to {planned.end}, but ends at {before}",
                        options,
                    )
                    position = planned.end
            if position >= planned.end:
                yield from batches
                return
            fetch = start_fetch()
            yield from batches
