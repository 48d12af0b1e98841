"""What kafka-python's coordinators are given: a way to the brokers, and a subscription."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import attrs

from kafkagroup import Admin, GroupMetrics, OffsetAndMetadata, Security, TopicPartition

__all__ = ["KafkaClient", "SubscriptionState"]


_FLAGS = re.compile(r"^\(\?[aimsux]+\)")


class _Options(TypedDict):
    bootstrap_servers: str | Sequence[str]
    client_id: str
    security: Security | None
    request_timeout_ms: int


@attrs.frozen(kw_only=True)
class KafkaClient:
    """Where the brokers are, and how to talk to them. It holds no connection."""

    bootstrap_servers: str | Sequence[str] = "localhost:9092"
    client_id: str = "kafkagroup"
    security: Security | None = None
    request_timeout_ms: int = 30_000

    @property
    def options(self) -> _Options:
        """The options of the main API's clients."""
        return _Options(
            bootstrap_servers=self.bootstrap_servers,
            client_id=self.client_id,
            security=self.security,
            request_timeout_ms=self.request_timeout_ms,
        )

    def admin(self) -> Admin:
        """A client that asks about groups."""
        return Admin(**self.options)


class SubscriptionState:
    """What is consumed: topics, a pattern, or partitions given by hand."""

    def __init__(self, offset_reset_strategy: str = "earliest") -> None:
        self.offset_reset_strategy = offset_reset_strategy
        """Where to start without a committed offset: "earliest", "latest" or "none"."""
        self.subscription: set[str] | None = None
        self.subscribed_pattern: re.Pattern[str] | None = None
        self.listener: Any = None
        """Told of rebalances: has `on_partitions_revoked` and `on_partitions_assigned`, functions
        or coroutine functions."""
        self.assigned_by_user: frozenset[TopicPartition] | None = None
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """What was committed when it was last refreshed."""
        self.needs_fetch_committed_offsets = True
        self.assignment: Callable[[], Iterable[TopicPartition]] = tuple
        """Asks the coordinator's consumer."""
        self.observed: Callable[[], GroupMetrics] = GroupMetrics
        """Asks the coordinator's consumer how it is."""

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """Consume these topics, or those whose name begins with a match, as `re.match` finds it."""
        self.subscription = set(topics)
        self.subscribed_pattern = None if pattern is None else re.compile(pattern)
        self.listener = listener

    def whole_pattern(self) -> re.Pattern[str] | None:
        """The pattern for the main API, which matches whole names: that, and then anything."""
        if (pattern := self.subscribed_pattern) is None:
            return None
        # The flags that it begins with are in `flags` already, and may stand nowhere else.
        inner = _FLAGS.sub("", pattern.pattern)
        end = "\n" if pattern.flags & re.VERBOSE else ""  # behind a comment that ends it
        return re.compile(f"(?:{inner}{end}).*", pattern.flags)

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Consume these partitions, without membership."""
        self.assigned_by_user = frozenset(partitions)

    def partitions_auto_assigned(self) -> bool:
        """Whether a group gives the partitions."""
        return self.assigned_by_user is None and self.subscription is not None

    def assigned_partitions(self) -> set[TopicPartition]:
        """What is consumed now."""
        return set(self.assignment())
