"""Commit a stream's offsets to the group, to make its lag visible and to let a new query continue.

Only batches in Spark's commit log are committed, even if the driver fails, and each commit first
looks up the group's offset, below which it does not go unless the topic was recreated. A restart
uses Spark's checkpoint, not the group; exactly-once delivery depends on the sink. Three components
commit batches: the source (when the next batch is planned, or there is none to plan), a listener
(soon after each batch: the one that `register` installs, or a `CommitListener`), and `reconcile`
(before a query starts and after it has ended).

Before the first batch, the source commits the start of a new query (`pin`). It is below the group's
offset only if `rewind` allows it, if that is itself the start of a query, or if the topic was
recreated.

The metadata of each commit has the topic's id, and whether the offset is the start of a query. If a
query fails in its first batch, before there is a commit log, it starts there again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.streaming import StreamingQueryListener

from kafkagroup.errors import ConfigurationError, ErrorCode, IllegalStateError, KafkaGroupError
from kafkagroup.spark.checkpoints import positions_of_sources
from kafkagroup.spark.files import last_number, read_text
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import SourceOptions, parse_options
from kafkagroup.spark.planning import may_be_same_topic
from kafkagroup.spark.ranges import CommitMetadata, Positions
from kafkagroup.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "RENEWAL_INTERVAL",
    "CommitListener",
    "commit",
    "pin",
    "positions_of",
    "reconcile",
    "renew",
]

logger = logging.getLogger(__name__)

RENEWAL_INTERVAL = 60.0
"""Seconds between two look-ups of what an idle query has committed."""


def pin(session: Logs, options: SourceOptions, planned: Positions) -> Positions:
    """Commit the start of a new query, and return it. A query that failed in its first batch must
    start at the same offsets again, although a log's end has moved.

    Raises: IllegalStateError if the group has members, or if its offsets are above `planned` and
    the option `rewind` is not set.
    """
    assert options.group_id is not None  # as `options.commits` is true
    group, offsets = options.group_id, dict(planned.offsets)
    # Offsets that the query names apply, even if an earlier start of it was committed.
    is_explicit = options.starting_offsets.kind == "offsets"
    for tp, committed in session.committed(group, offsets).items():
        metadata = CommitMetadata.of(committed)
        if not metadata.is_of_topic(planned.topic_ids[tp.topic]):
            continue
        if metadata.is_start:
            if not is_explicit:
                offsets[tp] = committed.offset
        elif committed.offset > offsets[tp] and not options.rewind:
            raise IllegalStateError(
                f"group {group!r} has committed {committed.offset} of {tp}, but the query begins at"
                f" {offsets[tp]}: give startingOffsets=group, or rewind=true"
            )
    pinned = attrs.evolve(planned, offsets=offsets)
    _write(session, group, pinned, offsets, is_start=True)
    return pinned


def commit(
    session: Logs,
    group: str,
    done: Positions,
    timeout: float | None = None,
    *,
    renew: bool = False,
) -> dict[TopicPartition, int]:
    """Commit the end of a batch that is in Spark's commit log; return the offsets that are new.
    `timeout`: seconds for each request to the group; None: the option's.

    With `renew`, unchanged offsets are committed again: brokers delete the offsets of a group
    without members `offsets.retention.minutes` after their last commit.

    Raises: IllegalStateError if the group has members; ClusterChangedError; BrokerError;
    TransportError.
    """
    session.expect_cluster(done.cluster_id)
    new, again = dict(done.offsets), {}
    for tp, committed in session.committed(group, done.offsets, timeout).items():
        metadata = CommitMetadata.of(committed)
        if not metadata.is_of_topic(done.topic_ids[tp.topic]):
            continue
        ahead = committed.offset - done.offsets[tp]
        # The commit of a query's start is replaced even at the same offset: from now on its
        # metadata must say that it is the end of a batch.
        if ahead > 0 or (ahead == 0 and not metadata.is_start):
            del new[tp]
            if renew and ahead == 0:
                again[tp] = committed.offset
    if written := new | again:
        _write(session, group, done, written, timeout=timeout)
    return new


def renew(
    session: Logs,
    group: str,
    positions: Positions,
    *,
    is_start: bool = False,
    timeout: float | None = None,
) -> None:
    """Commit again those of the committed `positions` that the group does not have any more:
    brokers delete the offsets of a group without members `offsets.retention.minutes` after their
    last commit. Offsets that the group has stay as they are. `is_start`: the positions are the
    start of a query.

    Raises: as `commit`.
    """
    found = session.committed(group, positions.offsets, timeout)
    missing = {tp: at for tp, at in positions.offsets.items() if tp not in found}
    if not missing:
        return
    # The coordinator deletes the offsets of a deleted topic, which are not those of a recreated
    # one.
    ids = session.ends_of(positions).topic_ids
    old = positions.topic_ids
    current = {
        tp: at
        for tp, at in missing.items()
        if tp.topic in ids and may_be_same_topic(tp.topic, ids, old)
    }
    if current:
        _write(session, group, positions, current, is_start, timeout)


def _write(
    session: Logs,
    group: str,
    positions: Positions,
    offsets: Mapping[TopicPartition, int],
    is_start: bool = False,
    timeout: float | None = None,
) -> None:
    """Commit offsets with their `CommitMetadata`. Raises: IllegalStateError if the group has
    members."""
    metadata = {
        topic: CommitMetadata(topic_id, is_start).to_text()
        for topic, topic_id in positions.topic_ids.items()
    }
    try:
        commits = {tp: OffsetAndMetadata(at, metadata[tp.topic]) for tp, at in offsets.items()}
        session.commit(group, commits, timeout)
    except KafkaGroupError as error:
        if getattr(error, "code", None) == ErrorCode.UNKNOWN_MEMBER_ID:
            raise IllegalStateError(
                f"group {group!r} has members, which commit its offsets; stop them, or give another"
                " group.id"
            ) from error
        raise


class CommitListener(StreamingQueryListener):
    """Commits each batch soon after it has ended: `spark.streams.addListener(CommitListener(o))`.

    `options` are the source's options; the listener commits for all queries with their `group.id`.
    A failed commit is logged, and the commit of the next batch or `reconcile` replaces it.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options, self._group = _with_group(options)
        self._last_batches: dict[str, tuple[list[Positions], float]] = {}
        """Query id -> the ends of its last batch, one for each source with the group, and when
        their commit or renewal was last tried, on the clock of `time.monotonic`."""

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        ends = [
            done
            for source in event.progress.sources
            if (done := positions_of(source.endOffset)) is not None and done.group == self._group
        ]
        if ends:
            self._last_batches[str(event.progress.id)] = ends, time.monotonic()
        self._apply(commit, ends, f"offsets of batch {event.progress.batchId} are not committed")

    def onQueryIdle(self, event: Any) -> None:
        ends, renewed_at = self._last_batches.get(str(event.id), ([], 0.0))
        now = time.monotonic()
        if not ends or now < renewed_at + RENEWAL_INTERVAL:
            return
        self._last_batches[str(event.id)] = ends, now
        self._apply(renew, ends, f"offsets of group {self._group!r} are not renewed")

    def onQueryTerminated(self, event: Any) -> None:
        self._last_batches.pop(str(event.id), None)

    def _apply(
        self, write: Callable[[Logs, str, Positions], object], ends: list[Positions], failure: str
    ) -> None:
        """Call `write`, which is `commit` or `renew`, for each end. `failure`: what to log before
        the error of one that fails, after which the others are written all the same."""
        for done in ends:
            try:
                with Logs(self._options) as session:
                    write(session, self._group, done)
            except (KafkaGroupError, OSError) as error:  # OSError: no file descriptor is left
                logger.warning("%s: %s", failure, error)


def reconcile(
    spark: SparkSession, checkpoint: str, options: Mapping[str, str], *, renew: bool = False
) -> dict[TopicPartition, int]:
    """Commit the last batch in a checkpoint's commit log; return the offsets that are new.

    Call it before a query is started from `checkpoint`, and after it has ended. `options` are the
    source's options; `renew` also commits unchanged offsets, so that those of idle partitions do
    not expire.

    Raises: ConfigurationError if the checkpoint has no offsets of that group; IllegalStateError if
    the group has members; BrokerError; TransportError.
    """
    parsed, group = _with_group(options)
    last = last_number(spark, f"{checkpoint}/commits")
    if last is None:
        return {}
    sources = positions_of_sources(read_text(spark, f"{checkpoint}/offsets/{last}"))
    known = [positions for positions in sources if positions is not None]
    found = [positions for positions in known if positions.group == group]
    # Positions without a group are of Spark's own connector, or of a query without group.id: there
    # is nothing to commit yet, and no error.
    if not found and all(positions.group for positions in known):
        raise ConfigurationError(f"{checkpoint} has no offsets of group {group!r}")
    new: dict[TopicPartition, int] = {}
    with Logs(parsed) as session:
        for done in found:
            new |= commit(session, group, done, renew=renew)
    return new


def _with_group(options: Mapping[str, str]) -> tuple[SourceOptions, str]:
    """Return the options and their group. Raises: ConfigurationError if they have none."""
    parsed = parse_options(options)
    if parsed.group_id is None:
        raise ConfigurationError("option group.id is missing")
    return parsed, parsed.group_id


def positions_of(text: str | None) -> Positions | None:
    """Return the positions if this library's source has written `text`; None for other sources,
    also for Spark's own connector."""
    try:
        given = json.loads(text or "null")
        return Positions.from_json(given) if Positions.is_own(given) else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
