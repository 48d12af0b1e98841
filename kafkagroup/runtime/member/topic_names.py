"""Looks up the names of assigned topics that a member knows only by id (KIP-848)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from uuid import UUID

import anyio

from kafkagroup.concurrency.one_shot_event import OneShotEvent
from kafkagroup.errors import RETRIED_ERRORS
from kafkagroup.transport.cluster import Cluster
from kafkagroup.transport.retry import RetryBackoff
from kafkagroup.transport.trouble import Problem

__all__ = ["TopicNames"]

logger = logging.getLogger(__name__)

_MAX_LOOKED_UP = 2_000
"""The most topics whose names one request asks for: a coordinator may assign 200,000."""


class TopicNames:
    """The names of one member's topics."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        client_name: str,
        on_named: Callable[[Mapping[UUID, str]], object],
    ) -> None:
        """`client_name`: how log lines name the client. `on_named`: called with names by topic id;
        each name is passed once."""
        self._cluster = cluster
        self._group_id = group_id
        self._client_name = client_name
        self._on_named = on_named
        self._unnamed: frozenset[UUID] = frozenset()
        """The topics whose names are looked up."""
        self._changed = OneShotEvent()
        """Set when `_unnamed` has changed."""

    def look_up(self, topic_ids: frozenset[UUID]) -> None:
        """Look up the names of these topics, and stop looking up any others."""
        self._unnamed = topic_ids
        self._changed.set()

    async def run(self) -> None:
        """Look up names until cancelled."""
        cluster, key = self._cluster, (self._group_id, "names")
        pauses = RetryBackoff(cluster.options)
        while True:
            self._changed = OneShotEvent()
            if not self._unnamed:
                pauses.reset()
                cluster.troubles.succeeded(key, anyio.current_time())
                await self._changed.wait()
                continue
            try:
                names = await cluster.topic_names(_some(self._unnamed))
            except RETRIED_ERRORS as error:  # the connection reports it
                logger.info("%s: names of topics: %s", self._client_name, error)
                await self._changed.wait(anyio.current_time() + pauses.next())
                continue
            if names:
                self._unnamed = self._unnamed.difference(names)
                self._on_named(names)
            elif self._unnamed:  # `look_up` may have withdrawn them meanwhile
                # Retry: a broker may not know a new topic yet.
                cluster.troubles.failed(key, anyio.current_time(), self._problem())
                await self._changed.wait(anyio.current_time() + pauses.next())

    def _problem(self) -> Problem:
        return Problem(
            subject=f"assignment of group {self._group_id}",
            cause="the coordinator has assigned partitions of the topic with the id"
            f" {next(iter(self._unnamed))}, which no broker knows",
            advice="check whether the topic was deleted, and that the brokers agree on it",
        )


def _some(topic_ids: frozenset[UUID]) -> frozenset[UUID]:
    """Return as many topics as one request may name. They are chosen at random: topics that no
    broker knows yet must not keep the others from being looked up."""
    if len(topic_ids) <= _MAX_LOOKED_UP:
        return topic_ids
    return frozenset(random.sample(tuple(topic_ids), _MAX_LOOKED_UP))
