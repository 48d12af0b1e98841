"""The arguments of kafka-python's coordinators: the cluster's addresses, and a subscription."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import attrs

from kafkagroup import Admin, GroupMetrics, OffsetAndMetadata, Security, TopicPartition

__all__ = ["KafkaClient", "SubscriptionState"]

_FLAGS = re.compile(r"^(?:\(\?[aimsux]+\))+")
"""The global flags at the start of a pattern, such as `(?i)`."""


class _Options(TypedDict):
    bootstrap_servers: str | Sequence[str]
    client_id: str
    security: Security | None
    request_timeout_ms: int


@attrs.frozen(kw_only=True)
class KafkaClient:
    """The brokers' addresses and how to connect to them. It holds no connection."""

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
        """Return an admin client of the same cluster."""
        return Admin(**self.options)


class SubscriptionState:
    """What to consume: topics, a pattern, or manually assigned partitions."""

    def __init__(self, offset_reset_strategy: str = "earliest") -> None:
        self.offset_reset_strategy = offset_reset_strategy
        """Where to start without a committed offset: "earliest", "latest" or "none"."""
        self.subscription: set[str] | None = None
        """The subscribed topics; with a pattern, those that match, once the group was joined."""
        self.needs_partition_assignment = False
        """Whether the next `ensure_active_group` joins: the subscription has changed, or
        `mark_for_reassignment` was called."""
        self.subscribed_pattern: re.Pattern[str] | None = None
        self.listener: Any = None
        """The rebalance listener: its `on_partitions_revoked` and `on_partitions_assigned` are
        functions or coroutine functions."""
        self.assigned_by_user: frozenset[TopicPartition] | None = None
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """The committed offsets as of the last refresh."""
        self.needs_fetch_committed_offsets = True
        """Whether `committed` is outdated: the next `refresh_committed_offsets_if_needed` reads the
        offsets."""
        self.assignment: Callable[[], Iterable[TopicPartition]] = tuple
        """Returns the assignment of the coordinator's consumer."""
        self.observed: Callable[[], GroupMetrics] = GroupMetrics
        """Returns the metrics of the coordinator's consumer."""

    def subscribe(
        self, topics: str | Iterable[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """Replace the subscription: by these topics, by one topic, or, with `pattern`, by the
        topics whose name matches from its start (`re.match`). The next `ensure_active_group` joins
        with it."""
        self.subscription = {topics} if isinstance(topics, str) else set(topics)
        self.subscribed_pattern = None if pattern is None else re.compile(pattern)
        self.listener = listener
        self.needs_partition_assignment = True

    def mark_for_reassignment(self) -> None:
        """Have the next `ensure_active_group` join again."""
        self.needs_partition_assignment = True

    def whole_pattern(self) -> re.Pattern[str] | None:
        """Return the pattern for the main API, which matches whole names: `.*` is appended."""
        if (pattern := self.subscribed_pattern) is None:
            return None
        # Python allows global flags only at the start of a pattern. `pattern.flags` has them, too.
        inner = _FLAGS.sub("", pattern.pattern)
        end = "\n" if pattern.flags & re.VERBOSE else ""  # ends a trailing comment
        return re.compile(f"(?:{inner}{end}).*", pattern.flags)

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Consume these partitions, without membership."""
        self.assigned_by_user = frozenset(partitions)

    def partitions_auto_assigned(self) -> bool:
        """Whether the group assigns the partitions."""
        return self.assigned_by_user is None and self.subscription is not None

    def assigned_partitions(self) -> set[TopicPartition]:
        """Return the partitions that are assigned to the consumer now."""
        return set(self.assignment())
