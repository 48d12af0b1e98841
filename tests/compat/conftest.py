"""The compat classes run on the embedded broker and on real Kafka, like the main API; those with
groups in ZooKeeper on a real ZooKeeper too."""

import anyio.to_thread
import pytest
from kazoo.client import KazooClient
from live.conftest import anyio_backend, bootstrap, fill, name, produce

from kafkagroup.testing import LocalZooKeeper
from kafkagroup.testing.local import LocalKafkaUnavailable

__all__ = ["anyio_backend", "bootstrap", "fill", "name", "produce"]


@pytest.fixture(scope="package")
def zookeeper():
    ensemble = LocalZooKeeper()
    try:
        ensemble.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real ZooKeeper on this machine: {error}")
    yield ensemble
    ensemble.stop()


@pytest.fixture
def keeper(zookeeper):
    """Return a ZooKeeper client of the test."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def members_in(keeper):
    """Return the members of the group at a path."""

    async def members(group):
        return await anyio.to_thread.run_sync(keeper.get_children, f"{group}/members")

    return members
