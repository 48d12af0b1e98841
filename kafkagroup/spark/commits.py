"""A stream's offsets given back to the group: so that lag shows, and a new query can go on there.

What holds, however the driver dies: the group's offset of a partition never passes the end of a
batch in Spark's commit log, and never goes back, unless that is asked for. A restart reads Spark's
checkpoint, not the group; exactly once is up to the sink. Three may write, each only what is in the
commit log: the source (after the next batch is planned, so never the last one), `CommitListener`
(after each batch, soon) and `reconcile` (at the start, and once a query has ended; only it covers
the last batch before a crash).

A note beside each committed offset says of which topic it is, and whether it is where a query was
to begin: of one that died in its first batch, which has no commit log yet, the next takes the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.streaming import StreamingQueryListener

from kafkagroup.errors import ConfigurationError, ErrorCode, IllegalStateError, KafkaGroupError
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import SourceOptions, parse_options
from kafkagroup.spark.ranges import Note, Positions
from kafkagroup.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CommitListener", "commit", "file_system", "pin", "reconcile"]

logger = logging.getLogger(__name__)


def pin(session: Logs, options: SourceOptions, planned: Positions) -> Positions:
    """Where a new query begins, committed before it is known to anybody: what moves, as the ends of
    logs do, must be the same when a query that died in its first batch is started again.

    Raises: IllegalStateError where the group has members, or has come further than `planned` and
    the option `rewind` is not set.
    """
    assert options.group_id is not None
    group, offsets = options.group_id, dict(planned.offsets)
    explicit = options.starting_offsets.kind == "offsets"
    for tp, committed in session.committed(group, offsets).items():
        note = Note.of(committed)
        if not note.is_of(planned.topic_ids[tp.topic]):
            continue
        if note.first:
            if not explicit:
                offsets[tp] = committed.offset
        elif committed.offset > offsets[tp] and not options.rewind:
            raise IllegalStateError(
                f"group {group!r} has committed {committed.offset} of {tp}, and the query is to"
                f" begin at {offsets[tp]}: begin with startingOffsets=group, or say rewind=true"
            )
    pinned = attrs.evolve(planned, offsets=offsets)
    _write(session, group, pinned, offsets, first=True)
    return pinned


def commit(
    session: Logs,
    group: str,
    done: Positions,
    timeout: float | None = None,
    *,
    renew: bool = False,
) -> dict[TopicPartition, int]:
    """Commit the end of a batch that is in Spark's commit log; answer what was not there before.

    With `renew`, what was there is committed again: brokers forget the offsets of a group without
    members when `offsets.retention.minutes` have passed since their last commit.

    Raises: IllegalStateError where the group has members; BrokerError; TransportError.
    """
    news, again = dict(done.offsets), {}
    for tp, committed in session.committed(group, done.offsets, timeout).items():
        note = Note.of(committed)
        if not note.is_of(done.topic_ids[tp.topic]):
            continue
        ahead = committed.offset - done.offsets[tp]
        if ahead > 0 or (ahead == 0 and not note.first):
            del news[tp]
            if renew and ahead == 0:
                again[tp] = committed.offset
    if written := news | again:
        _write(session, group, done, written, timeout=timeout)
    return news


def _write(
    session: Logs,
    group: str,
    positions: Positions,
    offsets: Mapping[TopicPartition, int],
    first: bool = False,
    timeout: float | None = None,
) -> None:
    notes = {
        topic: Note(topic_id, first).to_text() for topic, topic_id in positions.topic_ids.items()
    }
    try:
        noted = {tp: OffsetAndMetadata(at, notes[tp.topic]) for tp, at in offsets.items()}
        session.commit(group, noted, timeout)
    except KafkaGroupError as error:
        if getattr(error, "code", None) == ErrorCode.UNKNOWN_MEMBER_ID:
            raise IllegalStateError(
                f"group {group!r} has members: its offsets are theirs; stop them, or take another"
                " group.id"
            ) from error
        raise


class CommitListener(StreamingQueryListener):
    """Commits each batch soon after it has ended: `spark.streams.addListener(CommitListener(o))`.

    `options` are those of the source; of its queries are those that read for the same `group.id`.
    A commit that fails is logged: the next batch's, or `reconcile`, makes up for it.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = _with_group(options)

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        for source in event.progress.sources:
            done = _positions(source.endOffset, self._options.group_id)
            if done is None:
                continue
            assert done.group is not None
            try:
                with Logs(self._options) as session:
                    commit(session, done.group, done)
            except KafkaGroupError as error:
                logger.warning("the offsets of batch %d: %s", event.progress.batchId, error)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def reconcile(
    spark: SparkSession, checkpoint: str, options: Mapping[str, str], *, renew: bool = False
) -> dict[TopicPartition, int]:
    """Commit the last batch in a checkpoint's commit log; answer what the group did not have.

    Call it before a query is started from `checkpoint`, and after it has ended. `options` are those
    of the source; `renew` commits again what the group has already, so that it does not expire
    while partitions are idle.

    Raises: ConfigurationError where the checkpoint has no offsets of that group; IllegalStateError
    where the group has members; BrokerError; TransportError.
    """
    parsed = _with_group(options)
    last = _last_batch(spark, f"{checkpoint}/commits")
    if last is None:
        return {}
    lines = _read(spark, f"{checkpoint}/offsets/{last}").splitlines()
    found = [p for line in lines if (p := _positions(line, parsed.group_id)) is not None]
    if not found:
        raise ConfigurationError(f"{checkpoint} has no offsets of group {parsed.group_id!r}")
    news: dict[TopicPartition, int] = {}
    with Logs(parsed) as session:
        for done in found:
            assert done.group is not None
            news |= commit(session, done.group, done, renew=renew)
    return news


def _with_group(options: Mapping[str, str]) -> SourceOptions:
    parsed = parse_options(options)
    if parsed.group_id is None:
        raise ConfigurationError("option group.id is missing")
    return parsed


def _positions(text: str | None, group: str | None) -> Positions | None:
    """What a source of ours has written for that group; None for anything else."""
    try:
        found = Positions.from_json(json.loads(text or "null"))
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    return found if found.group == group else None


def _last_batch(spark: SparkSession, folder: str) -> int | None:
    """The highest number among the files of a log of Spark's."""
    files, path = file_system(spark, folder)
    if not files.exists(path):
        return None
    names = (status.getPath().getName() for status in files.listStatus(path))
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _read(spark: SparkSession, file: str) -> str:
    files, path = file_system(spark, file)
    stream = files.open(path)
    try:
        return str(_jvm(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def file_system(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """The file system, whichever it is, and the path in it."""
    jvm = _jvm(spark)
    path = jvm.org.apache.hadoop.fs.Path(name)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
