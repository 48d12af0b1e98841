"""Reading for tables and streams: the offsets of a bound, and the rows of one task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kafkagroup.errors import ConfigurationError, ErrorCode
from kafkagroup.spark.options import Bound, SourceOptions
from kafkagroup.spark.ranges import CommitMetadata, DataLossError, Range
from kafkagroup.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from kafkagroup.spark.logs import Logs

__all__ = ["data_loss", "inside", "positions_at", "read"]

logger = logging.getLogger(__name__)

_MAX_EMPTY_RESPONSES = 20
"""After so many empty responses in a row, of half a second each, the records of the plan count as
lost: an unclean leader election has truncated the log."""


def positions_at(
    session: Logs,
    bound: Bound,
    options: SourceOptions,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    ids: Mapping[str, str],
) -> dict[TopicPartition, int]:
    """Return the offset of a bound in each partition.

    For the start, a partition without an offset in the bound, without a commit, or with a commit of
    a topic that was recreated since begins at its log's start, so that no record is skipped.

    Raises: ConfigurationError for a partition that does not exist.
    """
    match bound.kind:
        case "earliest":
            return dict(starts)
        case "latest":
            return dict(ends)
        case "timestamp":
            return session.offsets_at(dict.fromkeys(starts, bound.timestamp))
        case "group":
            assert options.group_id is not None
            committed = session.committed(options.group_id, starts)
            return {
                tp: at.offset
                if (at := committed.get(tp)) is not None
                and CommitMetadata.of(at).is_of(ids[tp.topic])
                else starts[tp]
                for tp in starts
            }
        case "offsets":
            if unknown := sorted(set(bound.offsets) - set(starts)):
                raise ConfigurationError(
                    f"offsets of partitions that are not read: {', '.join(map(str, unknown))}"
                )
            default = starts if bound is options.starting_offsets else ends
            given = {**default, **bound.offsets}
            return {
                tp: starts[tp] if at == -2 else ends[tp] if at == -1 else at
                for tp, at in given.items()
            }


def inside(tp: TopicPartition, position: int, start: int, end: int, options: SourceOptions) -> int:
    """Return a position in the log, the nearest one if this is outside. Raises: DataLossError, see
    `data_loss`."""
    if start <= position <= end:
        return position
    data_loss(f"{tp} is to be read from {position}, but has {start} to {end}", options)
    return min(max(position, start), end)


def data_loss(what: str, options: SourceOptions) -> None:
    """Log a warning. Raises: DataLossError instead, with the option `failOnDataLoss`."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}; failOnDataLoss=false would read the remaining records")
    logger.warning("%s", what)


def read(
    options: SourceOptions, schema: StructType, planned: Range
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of one task. The next fetch is sent before the rows of the last are yielded.

    Raises: DataLossError; BrokerError; DecodeError for a damaged batch.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    from kafkagroup.spark.logs import Logs
    from kafkagroup.spark.rows import Rows

    rows = Rows(options, planned, to_arrow_schema(schema, timezone="UTC"))
    position, empty_responses = planned.start, 0
    with Logs(options) as session:
        fetch = session.start_fetch(planned.tp, planned.topic_id, position)
        while True:
            data = fetch.result()
            batches: Iterator[pyarrow.RecordBatch] = iter(())
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                starts, ends = session.log_bounds([planned.tp])
                start, end = starts[planned.tp], ends[planned.tp]
                data_loss(
                    f"{planned.tp} is to be read at {position}, but has {start} to {end}", options
                )
                position = start if position < start else planned.end
            else:
                before = position
                position, batches = rows.convert(data, before)
                empty_responses = empty_responses + 1 if position == before else 0
                if empty_responses == _MAX_EMPTY_RESPONSES:
                    data_loss(
                        f"{planned.tp} is to be read up to {planned.end}, but ends at {before}",
                        options,
                    )
                    position = planned.end
            if position >= planned.end:
                yield from batches
                return
            fetch = session.start_fetch(planned.tp, planned.topic_id, position)
            yield from batches
