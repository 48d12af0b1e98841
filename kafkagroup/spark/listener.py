"""The listener that `register` installs: it commits each batch soon after it has ended.

A source is called again only when the next batch is planned, and not at all after `stop` or the
trigger Once. Spark reports each batch to listeners, but neither its source's options, which have
the brokers' addresses and the login. So they are read from the query's plan in this process.

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
"""Seconds for each request of a commit: meanwhile Spark reports nothing to other listeners."""
_FAILURE_PAUSE = 10.0
"""Seconds after a failed commit without another one."""

_installed: set[str] = set()
"""The ids of the JVM's sessions that have the listener. Several objects of Python may stand for one
session."""


def install(spark: SparkSession, source_name: str) -> None:
    """Install the listener, once in a session. A session of Spark Connect has the plans of its
    queries on the server: there only the source commits."""
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
    again_at: float = -math.inf
    """When the next request may be sent."""
    other_clusters: set[str | None] = attrs.field(factory=set)
    """The clusters whose positions are those of another source."""

    def note(self, ends: Iterable[Positions]) -> None:
        """Note the ends of a batch of all sources of the query."""
        own = tuple(filter(self._may_own, ends))
        if own and own != self.ends:
            self.ends, self.is_committed = own, False

    def _may_own(self, positions: Positions) -> bool:
        return (
            positions.group in (None, self.options.group_id)
            and positions.cluster_id not in self.other_clusters
            and any(map(self.options.selects, positions.offsets))
        )

    def flush(self, *, at_once: bool) -> None:
        """Commit the last batch, unless that was done or must wait."""
        if self.ends and not self.is_committed and (at_once or time.monotonic() >= self.again_at):
            self.is_committed = self._write(commit)
            pause = _COMMIT_INTERVAL if self.is_committed else _FAILURE_PAUSE
            self.again_at = time.monotonic() + pause

    def renew(self) -> None:
        """Commit the last batch again if the broker has deleted it."""
        if self.is_committed and time.monotonic() >= self.again_at + RENEWAL_INTERVAL:
            self._write(renew)
            self.again_at = time.monotonic()

    def _write(self, write: Callable[[Logs, str, Positions], object]) -> bool:
        """Apply a function to each end; return whether it has not failed."""
        group = self.options.group_id
        assert group is not None
        timeout = min(_COMMIT_TIMEOUT, self.options.api_timeout)
        try:
            with Logs(attrs.evolve(self.options, api_timeout=timeout)) as session:
                for end in self.ends:
                    try:
                        write(session, group, end)
                    except ClusterChangedError as error:
                        logger.info("not this source's: %s", error)
                        self.other_clusters.add(end.cluster_id)
        except Exception as error:  # also of a file that the login names
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
        """Run id -> the query's sources; none for other queries."""

    def onQueryStarted(self, event: Any) -> None:
        self._of(event)

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        ends = [end for s in progress.sources if (end := positions_of(s.endOffset)) is not None]
        for source in self._of(progress):
            source.note(ends)
            source.flush(at_once=False)

    def onQueryIdle(self, event: Any) -> None:
        for source in self._of(event):
            source.flush(at_once=False)
            source.renew()

    def onQueryTerminated(self, event: Any) -> None:
        for source in self._sources.pop(str(event.runId), ()):
            source.flush(at_once=True)

    def _of(self, query: Any) -> list[_Source]:
        run = str(query.runId)
        if run not in self._sources:
            options = self._options_of(str(query.id))
            self._sources[run] = [_Source(given) for given in options if given.listener_commits]
        return self._sources[run]

    def _options_of(self, query_id: str) -> list[SourceOptions]:
        """Return the options of each source of a running query that is this library's."""
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
