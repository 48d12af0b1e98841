"""The topics whose metadata a client needs. A refresh requests these, and drops all other metadata.

Each part of the client names a topic only while it needs the topic. Otherwise a topic that is
deleted long after its last use would be requested as long as the client lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

__all__ = ["TopicsInUse"]


class TopicsInUse:
    """The topics that the parts of one client need at the moment."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[str]]] = []
        self._call_counts: Counter[str] = Counter()
        """Topic -> the number of calls in progress that need it."""

    def follow(self, source: Callable[[], Iterable[str]]) -> None:
        """Add the topics that `source` returns at each refresh."""
        self._sources.append(source)

    @contextmanager
    def during(self, topics: Iterable[str]) -> Iterator[None]:
        """Return a context in which these topics are needed, for the time of one call."""
        needed = frozenset(topics)
        self._call_counts.update(needed)
        try:
            yield
        finally:
            self._call_counts -= Counter(needed)  # drops the counts that become 0

    def current(self) -> frozenset[str]:
        """Return the topics that are needed now."""
        return frozenset(self._call_counts).union(*(source() for source in self._sources))
