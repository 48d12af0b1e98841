"""kafka-python's heartbeats, metrics and futures, without a broker."""

import math

import pytest

from kafkagroup import BrokerError, ConfigurationError, GroupMetrics, RequestMetrics
from kafkagroup.compat import kafka_python
from kafkagroup.compat.kafka_python import (
    ConsumerCoordinatorMetrics,
    Future,
    GroupCoordinatorMetrics,
    Heartbeat,
    Metrics,
    SubscriptionState,
)
from kafkagroup.errors import ConnectionLostError, IllegalStateError
from kafkagroup.types import TopicPartition

pytestmark = pytest.mark.anyio


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


# ---------------------------------------------------------------- heartbeats


def test_the_defaults_are_those_of_the_original():
    assert Heartbeat.DEFAULT_CONFIG == {
        "heartbeat_interval_ms": 3000,
        "session_timeout_ms": 30000,
    }
    made = Heartbeat(group_id="others are not looked at")
    assert (made.interval, made.timeout) == (3.0, 30.0)


def test_when_the_next_heartbeat_is_due(clock):
    heartbeat = Heartbeat(clock=clock, heartbeat_interval_ms=2_000)
    assert (heartbeat.ttl(), heartbeat.should_heartbeat()) == (2.0, False)
    clock.now = 101.5
    assert (heartbeat.ttl(), heartbeat.should_heartbeat()) == (0.5, False)
    clock.now = 105.0
    assert (heartbeat.ttl(), heartbeat.should_heartbeat()) == (0.0, True)
    heartbeat.sent_heartbeat()
    assert (heartbeat.last_send, heartbeat.ttl(), heartbeat.should_heartbeat()) == (
        105.0,
        2.0,
        False,
    )


def test_when_the_session_has_expired(clock):
    heartbeat = Heartbeat(clock=clock, session_timeout_ms=10_000)
    clock.now = 110.0
    assert not heartbeat.session_expired()
    clock.now = 110.5
    assert heartbeat.session_expired()
    heartbeat.received_heartbeat()
    assert (heartbeat.last_receive, heartbeat.session_expired()) == (110.5, False)
    clock.now = 121.0
    assert heartbeat.session_expired()
    heartbeat.reset_session_timeout()
    assert (heartbeat.last_reset, heartbeat.session_expired(), heartbeat.ttl()) == (
        121.0,
        False,
        3.0,
    )


def test_the_heartbeat_object_reflects_the_members_heartbeats(clock):
    """`Heartbeat` reports the times of the member's own requests and responses."""
    found = GroupMetrics()
    heartbeat = Heartbeat(clock=clock, observed=lambda: found, session_timeout_ms=10_000)
    clock.now = 120.0
    assert (heartbeat.session_expired(), heartbeat.ttl()) == (True, 0.0)
    found = GroupMetrics(last_heartbeat_seconds_ago=1.0, session_seconds_left=8.0)
    assert (heartbeat.session_expired(), heartbeat.ttl()) == (False, 2.0)
    assert (heartbeat.last_send, heartbeat.last_receive) == (119.0, 118.0)


def test_a_heartbeat_interval_above_the_session_timeout_is_an_error():
    with pytest.raises(ConfigurationError, match="heartbeat_interval_ms=9 must not be more"):
        Heartbeat(heartbeat_interval_ms=9, session_timeout_ms=8)


# ---------------------------------------------------------------- metrics

MEASURED = GroupMetrics(
    heartbeat=RequestMetrics(rate=1.0, average=0.25, maximum=0.5),
    join=RequestMetrics(rate=2.0, average=1.5, maximum=4.0),
    sync=RequestMetrics(rate=3.0, average=0.125, maximum=0.75),
    commit=RequestMetrics(rate=4.0, average=0.0625, maximum=0.25),
    last_heartbeat_seconds_ago=2.5,
)


def test_the_metrics_of_a_member_have_the_names_of_the_original():
    """In milliseconds. The original's join-time-max and sync-time-max are averages."""
    metrics = Metrics()
    heartbeat = Heartbeat(observed=lambda: MEASURED)
    sensors = GroupCoordinatorMetrics(heartbeat, metrics, "workers", tags={"b": "1", "a": "2"})
    found = {name.name: metric.value() for name, metric in metrics.metrics.items()}
    assert found == {
        "heartbeat-response-time-max": 500.0,
        "heartbeat-rate": 1.0,
        "join-time-avg": 1500.0,
        "join-time-max": 4000.0,
        "join-rate": 2.0,
        "sync-time-avg": 125.0,
        "sync-time-max": 750.0,
        "sync-rate": 3.0,
        "last-heartbeat-seconds-ago": 2.5,
    }
    assert {(name.group, name.tags) for name in metrics.metrics} == {
        ("workers-coordinator-metrics", (("a", "2"), ("b", "1")))
    }
    assert all(name.description for name in metrics.metrics)
    assert sensors.metric_group_name == "workers-coordinator-metrics"
    assert (sensors.heartbeat_latency, sensors.join_latency, sensors.sync_latency) == (
        MEASURED.heartbeat,
        MEASURED.join,
        MEASURED.sync,
    )


def test_the_metrics_of_a_consumer_have_the_names_of_the_original():
    metrics = Metrics()
    subscription = SubscriptionState()
    subscription.observed = lambda: MEASURED
    subscription.assignment = lambda: [TopicPartition("t", 0), TopicPartition("t", 1)]
    sensors = ConsumerCoordinatorMetrics(metrics, "consumer", subscription)
    found = {name.name: metric.value() for name, metric in metrics.metrics.items()}
    assert found == {
        "commit-latency-avg": 62.5,
        "commit-latency-max": 250.0,
        "commit-rate": 4.0,
        "assigned-partitions": 2.0,
    }
    assert {name.group for name in metrics.metrics} == {"consumer-coordinator-metrics"}
    assert sensors.commit_latency == MEASURED.commit


def test_metrics_before_any_measurement():
    metrics = Metrics()
    GroupCoordinatorMetrics(Heartbeat(), metrics, "")
    found = {name.name: metric.value() for name, metric in metrics.metrics.items()}
    assert found["heartbeat-rate"] == 0.0
    assert math.isnan(found["join-time-avg"])
    assert found["last-heartbeat-seconds-ago"] == math.inf


# ---------------------------------------------------------------- futures and subscriptions


async def test_futures():
    good, bad, again = Future(), Future(), Future()
    assert (good.is_done, good.succeeded(), good.failed(), good.retriable()) == (False,) * 4
    good.success(5)
    assert (good.succeeded(), good.failed(), await good) == (True, False, 5)
    bad.failure(BrokerError(12))
    assert (bad.succeeded(), bad.failed(), bad.retriable()) == (False, True, False)
    with pytest.raises(BrokerError):
        await bad
    assert again.failure(ConnectionLostError("gone")).retriable()
    assert Future().failure(BrokerError(14)).retriable()


def test_the_callbacks_of_a_future(caplog):
    """As in kafka-python: each is called once, at once if the future is complete, after its own
    arguments; an error of one is logged and does not keep the others from being called."""
    seen = []
    good, bad, follower = Future(), Future(), Future()
    assert good.add_callback(seen.append) is good
    good.add_callback(lambda *got, **more: seen.append((got, more)), 1, more=2)
    good.add_errback(seen.append).chain(follower)
    good.add_callback(lambda value: 1 / 0).add_both(seen.append)
    assert seen == []
    good.success(5)
    good.add_callback(seen.append)
    assert seen == [5, ((1, 5), {"more": 2}), 5, 5]
    assert (follower.succeeded(), follower.value) == (True, 5)
    assert "the callback of a commit failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    seen.clear()
    error = BrokerError(12)
    bad.add_callback(seen.append).add_errback(seen.append).chain(last := Future())
    bad.failure(error).add_both(seen.append)
    assert seen == [error, error]
    assert (last.failed(), last.exception) == (True, error)
    for complete in (good, bad):
        with pytest.raises(IllegalStateError, match="already complete"):
            complete.success(6)


def test_the_error_of_a_callback_is_raised_on_request():
    class Strict(Future):
        error_on_callbacks = True

    with pytest.raises(ZeroDivisionError):
        Strict().add_callback(lambda value: 1 / 0).success(1)


def test_subscriptions():
    state = SubscriptionState("latest")
    assert (state.offset_reset_strategy, state.partitions_auto_assigned()) == ("latest", False)
    assert state.assigned_partitions() == set()
    state.subscribe(["a", "b"])
    assert (state.subscription, state.partitions_auto_assigned()) == ({"a", "b"}, True)
    state.subscribe("orders")
    assert state.subscription == {"orders"}
    state.subscribe(pattern="a.*", listener=(listener := object()))
    assert (state.subscribed_pattern.pattern, state.listener) == ("a.*", listener)
    by_hand = SubscriptionState()
    by_hand.assign_from_user([TopicPartition("t", 0)])
    assert not by_hand.partitions_auto_assigned()


def test_the_public_names_of_the_module():
    assert all(hasattr(kafka_python, name) for name in kafka_python.__all__)
