"""The metrics of kafka-python, under its names. Each is read from the main API on access.

Durations whose name has no unit are in milliseconds, and NaN if nothing was measured in the last
minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import attrs

from kafkagroup import GroupMetrics, RequestMetrics
from kafkagroup.compat.kafka_python.client import SubscriptionState
from kafkagroup.compat.kafka_python.heartbeat import Heartbeat

__all__ = [
    "ConsumerCoordinatorMetrics",
    "GroupCoordinatorMetrics",
    "KafkaMetric",
    "MetricName",
    "Metrics",
]


class MetricName(NamedTuple):
    """The name of a metric."""

    name: str
    group: str
    description: str = ""
    tags: tuple[tuple[str, str], ...] = ()


@attrs.frozen
class KafkaMetric:
    """One metric."""

    metric_name: MetricName
    _measure: Callable[[], float]

    def value(self) -> float:
        """Return the current value."""
        return self._measure()


class Metrics:
    """All metrics of one or several coordinators."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, KafkaMetric] = {}

    @property
    def metrics(self) -> Mapping[MetricName, KafkaMetric]:
        """All metrics by name."""
        return MappingProxyType(self._metrics)

    def metric_name(
        self, name: str, group: str, description: str = "", tags: Mapping[str, str] | None = None
    ) -> MetricName:
        """Return a name for `add_metric`."""
        return MetricName(name, group, description, tuple(sorted((tags or {}).items())))

    def add_metric(self, metric_name: MetricName, measurable: Callable[[], float]) -> None:
        """Register a metric; `measurable` returns its current value."""
        self._metrics[metric_name] = KafkaMetric(metric_name, measurable)


class GroupCoordinatorMetrics:
    """The metrics of a member of any group."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        metrics: Metrics,
        prefix: str,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.heartbeat = heartbeat
        self.metrics = metrics
        self.metric_group_name = f"{prefix}-coordinator-metrics"
        observed = heartbeat.metrics
        for name, what, measure in (
            (
                "heartbeat-response-time-max",
                "The longest wait for the response to a heartbeat",
                lambda: observed().heartbeat.maximum * 1000,
            ),
            ("heartbeat-rate", "Heartbeats a second", lambda: observed().heartbeat.rate),
            ("join-time-avg", "The mean time of joins", lambda: observed().join.average * 1000),
            ("join-time-max", "The longest join", lambda: observed().join.maximum * 1000),
            ("join-rate", "Joins a second", lambda: observed().join.rate),
            ("sync-time-avg", "The mean time of syncs", lambda: observed().sync.average * 1000),
            ("sync-time-max", "The longest sync", lambda: observed().sync.maximum * 1000),
            ("sync-rate", "Syncs a second", lambda: observed().sync.rate),
            (
                "last-heartbeat-seconds-ago",
                "Since the last heartbeat was sent",
                lambda: observed().last_heartbeat_seconds_ago,
            ),
        ):
            metrics.add_metric(
                metrics.metric_name(name, self.metric_group_name, what, tags), measure
            )

    @property
    def heartbeat_latency(self) -> RequestMetrics:
        """Latency of heartbeats, in seconds."""
        return self.heartbeat.metrics().heartbeat

    @property
    def join_latency(self) -> RequestMetrics:
        """Latency of JoinGroup requests, in seconds."""
        return self.heartbeat.metrics().join

    @property
    def sync_latency(self) -> RequestMetrics:
        """Latency of SyncGroup requests, in seconds."""
        return self.heartbeat.metrics().sync


class ConsumerCoordinatorMetrics:
    """The metrics that a consumer has in addition to those of a group member."""

    def __init__(
        self, metrics: Metrics, metric_group_prefix: str, subscription: SubscriptionState
    ) -> None:
        self.metrics = metrics
        self.metric_group_name = f"{metric_group_prefix}-coordinator-metrics"
        self._subscription = subscription

        # Looked up at each access: the attribute may be replaced.
        def observed() -> GroupMetrics:
            return subscription.observed()

        for name, what, measure in (
            (
                "commit-latency-avg",
                "The mean time of commits",
                lambda: observed().commit.average * 1000,
            ),
            ("commit-latency-max", "The longest commit", lambda: observed().commit.maximum * 1000),
            ("commit-rate", "Commits a second", lambda: observed().commit.rate),
            (
                "assigned-partitions",
                "The partitions that this consumer owns",
                lambda: float(len(subscription.assigned_partitions())),
            ),
        ):
            metrics.add_metric(metrics.metric_name(name, self.metric_group_name, what), measure)

    @property
    def commit_latency(self) -> RequestMetrics:
        """Latency of commits, in seconds."""
        return self._subscription.observed().commit
