"""Structs that are created on access."""

from __future__ import annotations

import gc

import pytest

from kafkagroup.wire.codec import decode, encode
from kafkagroup.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkagroup.wire.rows import Rows

PARTITIONS = tuple(
    MetadataResponsePartition(
        error_code=0,
        partition_index=index,
        leader_id=index % 7,
        leader_epoch=index,
        replica_nodes=(index % 7, 8),
        isr_nodes=(8,),
        offline_replicas=(index % 7,),
    )
    for index in range(20)
)


def response(version: int) -> MetadataResponse:
    """Return the decoded response."""
    topic = MetadataResponseTopic(error_code=0, name="t", partitions=PARTITIONS)
    sent = MetadataResponse(brokers=(), topics=(topic,))
    return decode(MetadataResponse, version, encode(sent, version))


@pytest.fixture
def rows() -> Rows[MetadataResponsePartition]:
    found = response(13).topics[0].partitions
    assert isinstance(found, Rows)
    return found


def test_rows_behave_as_a_tuple(rows: Rows[MetadataResponsePartition]) -> None:
    assert len(rows) == 20
    assert tuple(rows) == PARTITIONS
    assert (rows[3], rows[-1], rows[2:4]) == (PARTITIONS[3], PARTITIONS[-1], PARTITIONS[2:4])
    assert rows == PARTITIONS
    assert rows not in (PARTITIONS[1:], response(4).topics[0].partitions[1:])
    assert (hash(rows), repr(rows)) == (hash(PARTITIONS), repr(PARTITIONS))
    assert PARTITIONS[5] in rows
    assert rows == response(13).topics[0].partitions


def test_a_message_with_rows_is_compared_and_encoded_as_usual() -> None:
    assert response(13) == response(13)
    assert encode(response(13), 13) == encode(response(13), 13)
    assert response(4).topics[0].partitions[0].offline_replicas == ()


def test_the_garbage_collector_does_not_track_rows(rows: Rows[MetadataResponsePartition]) -> None:
    """A collection stopped all threads for 50 ms, to traverse 245,000 partitions of one
    response."""
    for _ in range(3):
        gc.collect()
    assert not any(map(gc.is_tracked, rows._rows))
