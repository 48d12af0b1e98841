"""Fetching from the replica in the client's rack (KIP-392); no Spark runs here."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import anyio
import pytest

pytest.importorskip("pyspark", reason="NOT TESTED on Spark: pyspark is not installed")

from kafkagroup import TopicPartition
from kafkagroup.errors import BrokerError, ConnectionLostError, ErrorCode
from kafkagroup.spark.logs import Logs
from kafkagroup.spark.nearest_replicas import NearestReplicas
from kafkagroup.spark.options import SourceOptions
from kafkagroup.types import MAX_INT32
from kafkagroup.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

TP = TopicPartition("orders", 0)


class Brokers:
    """Broker 1 leads the partition, and names broker 2 to clients that name their rack."""

    def __init__(self) -> None:
        self.metadata = SimpleNamespace(nodes={1: 1, 2: 2}, topics={})
        self.fetches: list[tuple[int, str]] = []
        """The broker and the rack of each request."""
        self.follower: Any = b"2"
        """The records of broker 2, its error code, or what it raises."""
        self.preferred = 2

    def leader(self, tp: TopicPartition) -> Any:
        return self.broker(1)

    def broker(self, node: int) -> Any:
        async def request(fetch: FetchRequest, **_: Any) -> FetchResponse:
            self.fetches.append((node, fetch.rack_id))
            if node == 2 and isinstance(self.follower, Exception):
                raise self.follower
            redirects = node == 1 and fetch.rack_id
            found = b"1" if node == 1 else self.follower
            if redirects and self.preferred > 0:
                found = b""
            data = PartitionData(
                partition_index=0,
                error_code=found if isinstance(found, int) else 0,
                high_watermark=9,
                preferred_read_replica=self.preferred if redirects else -1,
                records=found if isinstance(found, bytes) else b"",
            )
            topic = FetchableTopicResponse(topic="orders", partitions=(data,))
            return FetchResponse(responses=(topic,))

        return SimpleNamespace(request=request)


def fetch(brokers: Brokers, times: int = 1, rack: str = "here") -> list[bytes]:
    """Return the records of some fetches."""
    logs = Logs(SourceOptions(bootstrap_servers="k", subscribe=("orders",), client_rack=rack))
    logs._cluster = brokers  # type: ignore[assignment]
    request = partial(FetchRequest, max_wait_ms=1, min_bytes=1, topics=())

    async def run() -> list[bytes]:
        found = []
        for _ in range(times):
            data = await logs._from_nearest(TP, UUID(int=0), request)
            if data is None:
                data = await logs._send(logs._cluster.leader(TP), TP, UUID(int=0), request())
            found.append(bytes(data.records or b""))
        return found

    return anyio.run(run)


def test_records_come_from_the_replica_that_the_leader_names() -> None:
    """`kafka.client.rack` was an unknown option: reads between racks cost money."""
    brokers = Brokers()
    assert fetch(brokers, 2) == [b"2", b"2"]
    assert brokers.fetches == [(1, "here"), (2, "here"), (2, "here")]


def test_without_a_rack_or_a_replica_there_the_leader_is_fetched_from() -> None:
    brokers = Brokers()
    assert fetch(brokers, rack="") == [b"1"]
    brokers.preferred = -1
    assert fetch(brokers) == [b"1"]
    assert brokers.fetches == [(1, ""), (1, "here")]


@pytest.mark.parametrize(
    "refusal",
    [
        int(ErrorCode.OFFSET_OUT_OF_RANGE),
        BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ConnectionLostError("closed"),
    ],
    ids=str,
)
def test_a_replica_that_does_not_serve_is_left_for_the_leader(refusal: Any) -> None:
    brokers = Brokers()
    brokers.follower = refusal
    assert fetch(brokers, 2) == [b"1", b"1"]
    assert brokers.fetches == [(1, "here"), (2, "here"), (1, ""), (1, "")]


def test_a_replica_that_is_unknown_is_left_for_the_leader() -> None:
    brokers = Brokers()
    brokers.preferred = MAX_INT32
    assert fetch(brokers, 2) == [b"1", b"1"]
    assert brokers.fetches == [(1, "here"), (1, ""), (1, "")]


def test_the_leader_has_the_records_that_a_replica_lacks_yet() -> None:
    """A task reads only what its leader had when it was planned; empty responses of a replica that
    lags behind must not count as lost records."""
    brokers = Brokers()
    brokers.follower = b""
    assert fetch(brokers, 2) == [b"1", b"1"]
    assert brokers.fetches == [(1, "here"), (2, "here"), (1, ""), (2, "here"), (1, "")]


def test_the_leader_is_asked_again_after_five_minutes() -> None:
    now = 0.0
    replicas = NearestReplicas(lambda: now)
    replicas.note_preferred(TP, 2)
    assert replicas.preferred(TP) == 2
    now = 300.0
    assert replicas.preferred(TP) is None
    replicas.note_refused(TP)
    assert (replicas.preferred(TP), replicas.is_refused(TP)) == (None, True)
    now = 600.0
    assert not replicas.is_refused(TP)
