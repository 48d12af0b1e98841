"""Fixtures of the tests that run on the embedded broker and on real Kafka."""

import uuid
from collections.abc import Awaitable, Callable

import pytest
from brokers import append, numbered

from kafkagroup import TopicPartition
from kafkagroup.broker import Broker
from kafkagroup.wire.batch_writing import NewRecord
from kafkagroup.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)


@pytest.fixture(params=["asyncio", "trio", pytest.param("uvloop", marks=pytest.mark.long)])
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, bool]]:
    if request.param != "uvloop":
        return request.param
    pytest.importorskip("uvloop", reason="NOT TESTED on uvloop: it is not installed")
    return "asyncio", {"use_uvloop": True}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip uvloop on real Kafka: neither affects the other."""
    both = {"uvloop", "kafka"}
    items[:] = [item for item in items if not both <= set(_ids(item))]


def _ids(item: pytest.Item) -> list[str]:
    callspec = getattr(item, "callspec", None)
    return [] if callspec is None else callspec.id.split("-")


@pytest.fixture(params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Return the broker's address; the plugin's `kafka` is real Apache Kafka if available."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def name() -> str:
    """Return a topic or group name of this test, as all tests share the broker."""
    return f"test-{uuid.uuid4().hex[:8]}"


Fill = Callable[..., Awaitable[None]]


@pytest.fixture
def fill(bootstrap: str, name: str) -> Fill:
    """Make the topic `name`, and append records to it: `await fill(partitions, values_of_each)`."""
    host, port = bootstrap.split(",")[0].split(":")

    async def create(
        partitions: int, values: dict[int, list[NewRecord]] | int = 0, topic: str = name
    ) -> None:
        if isinstance(values, int):
            values = {p: numbered(p, values) for p in range(partitions) if values}
        async with Broker.open(host, int(port)) as broker:
            new = CreatableTopic(
                name=topic,
                num_partitions=partitions,
                replication_factor=1,
                assignments=(),
                # Records of 1970, as tests have them, would be deleted by their age.
                configs=(CreatableTopicConfig(name="retention.ms", value="-1"),),
            )
            await broker.request(CreateTopicsRequest(topics=(new,)))
            for partition, records in values.items():
                await append(broker, TopicPartition(topic, partition), records)

    return create


@pytest.fixture
def produce(bootstrap: str, name: str) -> Fill:
    """Append records to a partition of the topic `name`."""
    host, port = bootstrap.split(",")[0].split(":")

    async def add(partition: int, records: list[NewRecord]) -> None:
        async with Broker.open(host, int(port)) as broker:
            await append(broker, TopicPartition(name, partition), records)

    return add
