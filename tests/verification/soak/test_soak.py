"""The short forms of the soak: members in processes of their own join, leave and are killed, and
so is the broker that coordinates them. `run.py` runs the long forms."""

import pytest
from run import PARTITIONS, soak, soak_cluster, soak_zookeeper

from kafkagroup.testing import LocalKafka, LocalZooKeeper
from kafkagroup.testing.local import LocalKafkaUnavailable

# Members are killed and frozen for times that are compared with the session timeout.
pytestmark = [pytest.mark.long, pytest.mark.serial]


@pytest.mark.parametrize("source", ["embedded", "kafka"])
def test_nothing_is_lost(source, request):
    result = soak(request.getfixturevalue(source), 24_000)
    assert result.clean, result
    assert result.figures.fenced == 0
    assert result.figures.periods >= 3 * PARTITIONS


@pytest.fixture
def cluster():
    kafka = LocalKafka(nodes=3)
    try:
        kafka.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real Kafka on this machine: {error}")
    yield kafka
    kafka.stop()


def test_nothing_is_lost_when_the_coordinator_is_killed(cluster):
    result = soak_cluster(cluster, 60_000, rate=2_000, cooperative=True, twice=False)
    assert result.clean, result
    assert result.figures.periods > PARTITIONS


@pytest.fixture(params=[1, 3])
def zookeeper(request):
    ensemble = LocalZooKeeper(request.param)
    try:
        ensemble.start()
    except LocalKafkaUnavailable as error:
        pytest.skip(f"no real ZooKeeper on this machine: {error}")
    yield ensemble
    ensemble.stop()


def test_nothing_is_lost_with_the_group_in_zookeeper(zookeeper, embedded):
    result = soak_zookeeper(embedded, zookeeper, 20_000, rate=500)
    assert result.clean, result
    assert result.figures.periods > 2 * PARTITIONS
