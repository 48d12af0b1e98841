"""Lasting trouble is reported, also with real brokers: an address without a listener, and missing
topics."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from brokers import TRIO_IS_LONG
from confluent_kafka.admin import AdminClient, NewTopic

from kafkagroup import (
    BrokerError,
    ConfigurationError,
    Consumer,
    HealthProblem,
    TopicPartition,
)
from kafkagroup.events import TroubleReported
from kafkagroup.testing import Listener, LocalKafka
from kafkagroup.testing._jars import LocalKafkaUnavailable

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """Provide a port that refuses connections. It stays bound, so no other test listens there."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture(scope="module")
def real(closed_port: int) -> Iterator[LocalKafka]:
    kafka = LocalKafka(listeners={"ASTRAY": Listener(advertised_ports=(closed_port,))})
    try:
        kafka.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")
    yield kafka
    kafka.stop()


def create(kafka: LocalKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)


async def wait_warning(caplog: pytest.LogCaptureFixture, words: str, within: float) -> str:
    """Return the warning with these words, which must be logged within the given seconds."""
    with anyio.fail_after(within):
        while True:
            for record in caplog.records:
                if record.levelno == logging.WARNING and words in record.getMessage():
                    return record.getMessage()
            await anyio.sleep(0.05)


@BOTH
@TRIO_IS_LONG
async def test_an_unreachable_advertised_address_is_reported(
    real: LocalKafka,
    closed_port: int,
    name: str,
    protocol: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await run_sync(create, real, name)
    consumer = Consumer(
        name,
        bootstrap_servers=real.bootstrap_servers_of("ASTRAY"),
        group_id=name,
        group_protocol=protocol,
    )
    async with consumer:
        events, start = consumer.events(), time.monotonic()
        line = await wait_warning(caplog, f":{closed_port}: Connection refused; check", 25.0)
        assert time.monotonic() - start > 8.0
        assert line.startswith("no progress for 1")
        assert "advertised.listeners" in line
        found = {finding.problem: finding.detail for finding in consumer.health().findings}
        assert "Connection refused" in found[HealthProblem.NO_PROGRESS]
        with anyio.fail_after(5.0):
            while not isinstance(event := await anext(events), TroubleReported):
                pass
        assert (event.cause, "broker 1 at" in event.subject) == ("Connection refused", True)


@BOTH
@TRIO_IS_LONG
async def test_missing_topics_are_reported_until_they_exist(
    real: LocalKafka, name: str, protocol: Any, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer(
        name,
        bootstrap_servers=real.bootstrap_servers,
        group_id=name,
        group_protocol=protocol,
    )
    async with consumer:
        await wait_warning(caplog, f"topic '{name}': it does not exist: UNKNOWN_TOPIC", 4.0)
        assert [f.problem for f in consumer.health().findings] == [HealthProblem.TOPIC]
        with pytest.raises(BrokerError, match=f"offsets of {name}/0: the topic does not exist"):
            await consumer.end_offsets([TopicPartition(name, 0)])
        await run_sync(create, real, name)
        with anyio.fail_after(30.0):
            while not consumer.assignment():
                await anyio.sleep(0.05)
            assert await consumer.end_offsets([TopicPartition(name, 0)]) == {
                TopicPartition(name, 0): 0
            }
        with pytest.raises(BrokerError, match=f"offsets of {name}/7: topic {name} has 1 part"):
            await consumer.end_offsets([TopicPartition(name, 7)])
        await anyio.sleep(2.0)
        assert consumer.health()
        await consumer.subscribe(f"{name}-other")
        await wait_warning(caplog, f"topic '{name}-other': it does not exist", 4.0)


@BOTH
async def test_consuming_without_a_subscription_is_an_error(
    real: LocalKafka, name: str, protocol: Any
) -> None:
    async with Consumer(
        bootstrap_servers=real.bootstrap_servers, group_id=name, group_protocol=protocol
    ) as consumer:
        with pytest.raises(ConfigurationError, match="nothing is subscribed to"):
            await consumer.getone()
