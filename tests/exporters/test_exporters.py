"""Metrics as Prometheus and OpenTelemetry read them: the text of a scrape, the values of a
reader."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from kafkagroup import (
    Consumer,
    Election,
    GroupMember,
    GroupMetrics,
    GroupProtocol,
    RequestMetrics,
    Shards,
    TopicPartition,
)
from kafkagroup._values import fields
from kafkagroup.events import RebalanceCause
from kafkagroup.exporters.opentelemetry import observe
from kafkagroup.exporters.prometheus import GroupCollector
from kafkagroup.runtime.produce.metrics import ProducerMetrics
from kafkagroup.testing.embedded import EmbeddedKafka

METRICS = GroupMetrics(
    heartbeat=RequestMetrics(rate=1.0, average=0.25, maximum=0.5),
    join=RequestMetrics(rate=0.125, average=2.0, maximum=3.0),
    sync=RequestMetrics(rate=0.125, average=0.5, maximum=0.75),
    commit=RequestMetrics(rate=0.25, average=0.125, maximum=0.375),
    rebalance=RequestMetrics(rate=0.0625, average=4.0, maximum=5.0),
    rebalances=3,
    rebalance_causes={RebalanceCause.JOINING: 1, RebalanceCause.MEMBER_LEFT: 2},
    losses=1,
    last_heartbeat_seconds_ago=0.5,
    session_seconds_left=44.5,
    loop_delay=0.125,
    assigned_partitions=2,
    lag={TopicPartition("orders", 0): 7, TopicPartition("orders", 1): 0},
    skipped_records=6,
    buffered_bytes=4096,
    fetching_bytes=1024,
)

SCRAPED = """
kafkagroup_heartbeat_rate{client="billing"} 1.0
kafkagroup_heartbeat_response_time_avg{client="billing"} 0.25
kafkagroup_heartbeat_response_time_max{client="billing"} 0.5
kafkagroup_join_rate{client="billing"} 0.125
kafkagroup_join_time_avg{client="billing"} 2.0
kafkagroup_join_time_max{client="billing"} 3.0
kafkagroup_sync_rate{client="billing"} 0.125
kafkagroup_sync_time_avg{client="billing"} 0.5
kafkagroup_sync_time_max{client="billing"} 0.75
kafkagroup_commit_rate{client="billing"} 0.25
kafkagroup_commit_latency_avg{client="billing"} 0.125
kafkagroup_commit_latency_max{client="billing"} 0.375
kafkagroup_rebalance_rate{client="billing"} 0.0625
kafkagroup_rebalance_latency_avg{client="billing"} 4.0
kafkagroup_rebalance_latency_max{client="billing"} 5.0
kafkagroup_rebalances_total{client="billing"} 3.0
kafkagroup_rebalance_causes_total{cause="joining",client="billing"} 1.0
kafkagroup_rebalance_causes_total{cause="member left",client="billing"} 2.0
kafkagroup_membership_losses_total{client="billing"} 1.0
kafkagroup_last_heartbeat_seconds_ago{client="billing"} 0.5
kafkagroup_session_seconds_left{client="billing"} 44.5
kafkagroup_loop_delay_seconds{client="billing"} 0.125
kafkagroup_assigned_partitions{client="billing"} 2.0
kafkagroup_records_lag{client="billing",partition="0",topic="orders"} 7.0
kafkagroup_records_lag{client="billing",partition="1",topic="orders"} 0.0
kafkagroup_skipped_records_total{client="billing"} 6.0
kafkagroup_buffered_bytes{client="billing"} 4096.0
kafkagroup_fetching_bytes{client="billing"} 1024.0
"""


WRITTEN = ProducerMetrics(
    produce=RequestMetrics(rate=8.0, average=0.125, maximum=0.5),
    written_records=70,
    written_bytes=700,
    failed_records=2,
    retried_batches=3,
    buffered_bytes=40,
)

SCRAPED_PRODUCER = """
kafkagroup_produce_rate{client="orders"} 8.0
kafkagroup_produce_latency_avg{client="orders"} 0.125
kafkagroup_produce_latency_max{client="orders"} 0.5
kafkagroup_written_records_total{client="orders"} 70.0
kafkagroup_written_bytes_total{client="orders"} 700.0
kafkagroup_failed_records_total{client="orders"} 2.0
kafkagroup_retried_batches_total{client="orders"} 3.0
kafkagroup_unwritten_bytes{client="orders"} 40.0
"""


class Member:
    def __init__(self, metrics: GroupMetrics | ProducerMetrics) -> None:
        self._metrics = metrics

    def metrics(self) -> GroupMetrics | ProducerMetrics:
        return self._metrics


def scrape(members: dict[str, Any]) -> list[str]:
    """Return the lines of a scrape that have values."""
    registry = CollectorRegistry()
    registry.register(GroupCollector(members))
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def read(members: dict[str, Any]) -> list[str]:
    """Return the same from OpenTelemetry, in the format of a scrape."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe(members, provider.get_meter("kafkagroup"))
    data = reader.get_metrics_data()
    lines = []
    for resource in data.resource_metrics if data is not None else ():
        for metric in resource.scope_metrics[0].metrics:
            total = "_total" if hasattr(metric.data, "is_monotonic") else ""
            for point in metric.data.data_points:
                labels = ",".join(f'{k}="{v}"' for k, v in sorted(point.attributes.items()))
                name = metric.name.replace(".", "_")
                lines.append(f"{name}{total}{{{labels}}} {float(point.value)}")
    provider.shutdown()
    return lines


BOTH = pytest.mark.parametrize("export", [scrape, read])


@BOTH
def test_every_metric_of_a_member(export: Any) -> None:
    assert export({"billing": Member(METRICS)}) == SCRAPED.split("\n")[1:-1]


@BOTH
def test_every_metric_of_a_producer(export: Any) -> None:
    assert export({"orders": Member(WRITTEN)}) == SCRAPED_PRODUCER.split("\n")[1:-1]
    names = fields(ProducerMetrics)
    assert all(getattr(WRITTEN, name) != getattr(ProducerMetrics(), name) for name in names)


def test_every_metric_is_exported() -> None:
    """A new metric must be exported too. The last rebalance is an event, not a metric."""
    exported = {
        "heartbeat",
        "join",
        "sync",
        "commit",
        "rebalance",
        "rebalances",
        "rebalance_causes",
        "losses",
        "last_heartbeat_seconds_ago",
        "session_seconds_left",
        "loop_delay",
        "assigned_partitions",
        "lag",
        "skipped_records",
        "buffered_bytes",
        "fetching_bytes",
    }
    assert set(fields(GroupMetrics)) - exported == {"last_rebalance"}
    assert all(getattr(METRICS, name) != getattr(GroupMetrics(), name) for name in exported)


@BOTH
def test_unknown_values_are_omitted(export: Any) -> None:
    assert math.isinf(GroupMetrics().last_heartbeat_seconds_ago)
    lines = export({"new": Member(GroupMetrics())})
    assert [line for line in lines if "avg" in line or "max" in line or "ago" in line] == []
    assert 'kafkagroup_heartbeat_rate{client="new"} 0.0' in lines


@BOTH
def test_several_and_stopped_members_are_exported(export: Any) -> None:
    idle = Consumer("t", bootstrap_servers="nowhere:9092")
    members = {"a": Member(METRICS), "idle": idle, "b": Member(METRICS)}
    rates = [line for line in export(members) if line.startswith("kafkagroup_heartbeat_rate")]
    assert rates == [
        'kafkagroup_heartbeat_rate{client="a"} 1.0',
        'kafkagroup_heartbeat_rate{client="b"} 1.0',
    ]


@BOTH
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_metrics_of_running_clients_can_be_read_in_another_thread(
    export: Any, backend: Any
) -> None:
    """Prometheus' server scrapes in a thread, without an event loop."""
    found: list[str] = []

    async def run() -> None:
        protocol = GroupProtocol("workers", "all", b"", lambda m: dict.fromkeys(m, b""))
        with EmbeddedKafka({"orders": 2}) as kafka:
            kafka.produce("orders", ["one", "two"], partition=0)
            where = kafka.bootstrap_servers
            consumer = Consumer("orders", bootstrap_servers=where, group_id="g")
            member = GroupMember("w", protocol, bootstrap_servers=where)
            election = Election("leader", bootstrap_servers=where)
            shards = Shards("indexing", 4, bootstrap_servers=where)
            with anyio.fail_after(20):
                async with consumer, member, election, shards:
                    await consumer.getone()
                    for taker in (member, election, shards):
                        await anext(taker)
                    members = {"consumer": consumer, "member": member}
                    members |= {"election": election, "shards": shards}
                    thread = threading.Thread(target=lambda: found.extend(export(members)))
                    thread.start()
                    await anyio.to_thread.run_sync(thread.join)

    anyio.run(run, backend=backend)
    for line in (
        'kafkagroup_assigned_partitions{client="consumer"} 2.0',
        'kafkagroup_records_lag{client="consumer",partition="0",topic="orders"} 1.0',
        'kafkagroup_rebalances_total{client="consumer"} 1.0',
        'kafkagroup_rebalances_total{client="member"} 1.0',
        'kafkagroup_rebalances_total{client="election"} 1.0',
        'kafkagroup_rebalances_total{client="shards"} 1.0',
    ):
        assert line in found


def test_neither_exporter_is_imported_by_default() -> None:
    code = (
        "import sys, kafkagroup; kafkagroup.Consumer;"
        "print({'prometheus_client', 'opentelemetry'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
