"""The listener that `register` installs: it commits each batch soon after it has ended.

A source is called again only when the next batch is planned, and not at all after `stop` or the
trigger Once. Spark reports each batch to listeners, but not the options of its source, which have
the brokers' addresses and the login. So the listener reads them from the query's plan in this
process.

Nothing here raises: a query must not depend on a listener.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.streaming import StreamingQueryListener

from kafkagroup.errors import ClusterChangedError
from kafkagroup.spark.commits import RENEWAL_INTERVAL, commit, positions_of, renew
from kafkagroup.spark.files import is_connect
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.options import SourceOptions, parse_options
from kafkagroup.spark.ranges import Positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QueryCommits", "install"]

logger = logging.getLogger(__name__)

_COMMIT_INTERVAL = 1.0
"""Seconds between two commits of a source: each opens a connection."""
_COMMIT_TIMEOUT = 5.0
"""Seconds for each call of a commit: meanwhile Spark reports nothing to other listeners."""
_FAILURE_PAUSE = 10.0
"""Seconds without a further commit after a failed one."""

_installed: set[str] = set()
"""The ids of the JVM's sessions that have the listener. Several objects of Python may stand for one
session."""


def install(spark: SparkSession, source_name: str) -> None:
    """Install the listener, once in a session. With Spark Connect the plans of queries are on the
    server, where the listener cannot read them: only the source commits."""
    if is_connect(spark):
        return
    try:
        session = str(spark._jsparkSession.sessionUUID())
        if session not in _installed:
            spark.streams.addListener(QueryCommits(spark, source_name))
            _installed.add(session)
    except Exception as error:  # py4j's, or a method that another release lacks
        logger.warning("offsets are committed by the source only: %s", error)


@attrs.define(eq=False)
class _Source:
    """A source of a running query."""

    options: SourceOptions
    ends: tuple[Positions, ...] = ()
    """The ends of the last batch: several if sources of the query share group and topics."""
    is_committed: bool = False
    """Whether `ends` are committed."""
    next_commit_at: float = -math.inf
    """When the next commit may be sent, on the clock of `time.monotonic`."""
    other_clusters: set[str | None] = attrs.field(factory=set)
    """The ids of the clusters whose positions are those of another source."""

    def note(self, ends: Iterable[Positions]) -> None:
        """Keep those of the `ends` of a batch that may be this source's. The query has one end for
        each of its sources."""
        own = tuple(filter(self._may_own, ends))
        if own and own != self.ends:
            self.ends, self.is_committed = own, False

    def _may_own(self, positions: Positions) -> bool:
        return (
            # None: planned while the query had no option `group.id`.
            positions.group in (None, self.options.group_id)
            and positions.cluster_id not in self.other_clusters
            and any(map(self.options.selects, positions.offsets))
        )

    def flush(self, *, at_once: bool) -> None:
        """Commit the last batch, if it is not committed; without `at_once`, not before
        `next_commit_at`."""
        may_commit = at_once or time.monotonic() >= self.next_commit_at
        if self.ends and not self.is_committed and may_commit:
            self.is_committed = self._apply(commit)
            pause = _COMMIT_INTERVAL if self.is_committed else _FAILURE_PAUSE
            self.next_commit_at = time.monotonic() + pause

    def renew(self) -> None:
        """Commit the last batch again if the broker has deleted it."""
        if self.is_committed and time.monotonic() >= self.next_commit_at + RENEWAL_INTERVAL:
            self._apply(renew)
            # The next renewal is an interval later; a new batch may be committed at once.
            self.next_commit_at = time.monotonic()

    def _apply(self, write: Callable[[Logs, str, Positions], object]) -> bool:
        """Call `write`, which is `commit` or `renew`, for each of `ends`; return whether no call
        failed. If an end is of another cluster, it is another source's, and no failure."""
        group = self.options.group_id
        assert group is not None  # as `options.listener_commits` is true
        timeout = min(_COMMIT_TIMEOUT, self.options.api_timeout)
        try:
            with Logs(attrs.evolve(self.options, api_timeout=timeout)) as session:
                for end in self.ends:
                    try:
                        write(session, group, end)
                    except ClusterChangedError as error:
                        logger.info("not this source's: %s", error)
                        self.other_clusters.add(end.cluster_id)
        except Exception as error:  # such as OSError, if the process may open no more files
            logger.warning("offsets are not committed to group %r: %s", group, error)
            return False
        return True


class QueryCommits(StreamingQueryListener):
    """Commits the batches of all queries of a session whose source has a group, unless the option
    `commit` is `source` or `off`."""

    def __init__(self, spark: SparkSession, source_name: str) -> None:
        self._spark = spark
        self._source_name = source_name
        self._sources: dict[str, list[_Source]] = {}
        """Run id -> the sources of this library that the query has, and that the listener
        commits."""

    def onQueryStarted(self, event: Any) -> None:
        self._sources_of(event)

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        ends = [end for s in progress.sources if (end := positions_of(s.endOffset)) is not None]
        for source in self._sources_of(progress):
            source.note(ends)
            source.flush(at_once=False)

    def onQueryIdle(self, event: Any) -> None:
        for source in self._sources_of(event):
            source.flush(at_once=False)
            source.renew()

    def onQueryTerminated(self, event: Any) -> None:
        for source in self._sources.pop(str(event.runId), ()):
            source.flush(at_once=True)

    def _sources_of(self, query: Any) -> list[_Source]:
        """Return the sources of a query, from its event or progress. The first call for a run reads
        the plan."""
        run = str(query.runId)
        if run not in self._sources:
            options = self._options_of(str(query.id))
            self._sources[run] = [_Source(each) for each in options if each.listener_commits]
        return self._sources[run]

    def _options_of(self, query_id: str) -> list[SourceOptions]:
        """Return the options of each source of this library that a running query has."""
        try:
            query: Any = self._spark._jsparkSession.streams().get(query_id)
            if query is None:
                return []
            leaves = query.streamingQuery().analyzedPlan().collectLeaves()
            relations = [leaves.apply(n) for n in range(leaves.size())]
            return [
                parse_options(dict(relation.extraOptions().asCaseSensitiveMap()))
                for relation in relations
                if relation.getClass().getSimpleName() == "StreamingRelationV2"
                and relation.sourceName().lower() == self._source_name
            ]
        except Exception as error:  # py4j's, or a method that another release lacks
            logger.warning(
                "query %s: offsets are committed by the source only: %s", query_id, error
            )
            return []
