"""To which partition a record goes when the metadata changes, or is not believed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import anyio
import attrs
import pytest
from runtime.produce.logs import SERVERS, cluster

from kafkagroup import Producer
from kafkagroup.errors import ConfigurationError, NotWrittenError, TransportError
from kafkagroup.testing import EmbeddedKafka
from kafkagroup.testing.embedded import Change, Close, Swallow
from kafkagroup.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
)
from kafkagroup.wire.messages.produce import ProduceRequest

pytestmark = pytest.mark.anyio

_Partitions = Iterable[MetadataResponsePartition]


def _change_partitions(change: Callable[[_Partitions], _Partitions]) -> Change:
    """Change the partitions of each topic in a Metadata response."""

    def changed(response: MetadataResponse) -> MetadataResponse:
        topics = [
            attrs.evolve(topic, partitions=tuple(change(topic.partitions)))
            for topic in response.topics
        ]
        return attrs.evolve(response, topics=tuple(topics))

    return Change(changed)


async def _recreate(kafka: EmbeddedKafka, partitions: int) -> None:
    kafka.delete_topic("t")
    await anyio.sleep(2)
    kafka.create_topic("t", partitions)


async def test_recreated_with_fewer_partitions() -> None:
    async with cluster(topics={"t": 6}) as kafka:
        async with Producer(**SERVERS, metadata_max_age_ms=500) as producer:
            for n in range(20):
                await producer.send("t", b"", key=b"%d" % n)
            await _recreate(kafka, 2)
            await anyio.sleep(10)
            for n in range(20):
                written = await producer.send("t", b"", key=b"%d" % n)
                assert written.partition < 2
            for _ in range(5):
                assert (await producer.send("t", bytes(17_000))).partition < 2
            kafka.add_partitions("t", 6)
            await anyio.sleep(10)
            assert (await producer.send("t", b"", partition=5)).offset == 0


@pytest.mark.parametrize("is_sent", [True, False])
async def test_records_of_a_partition_that_vanishes(is_sent: bool) -> None:
    """Those that wait fail at once; those in flight, with the end of their attempt."""
    async with cluster(topics={"t": 6}) as kafka:
        async with Producer(
            **SERVERS, metadata_max_age_ms=500, request_timeout_ms=10_000, linger_ms=20_000
        ) as producer:
            await producer.send("t", b"", partition=0)
            if is_sent:
                kafka.fail(ProduceRequest, Swallow(), times=1)
            future = producer.send_nowait("t", b"", partition=5)
            if is_sent:
                with anyio.move_on_after(1):
                    await producer.flush()
            await _recreate(kafka, 2)
            with anyio.fail_after(11 if is_sent else 8):
                with pytest.raises(
                    NotWrittenError, match=r"recreated with fewer partitions \(2\)"
                ) as raised:
                    await future
                await producer.flush()
            assert raised.value.is_maybe_written == is_sent
            assert producer.metrics().buffered_bytes == 0


async def test_fewer_partitions_under_the_same_id() -> None:
    """The broker lags behind."""
    async with cluster(topics={"t": 6}) as kafka:
        async with Producer(**SERVERS, metadata_max_age_ms=500) as producer:
            await producer.send("t", b"", partition=5)
            kafka.fail(
                MetadataRequest, _change_partitions(lambda them: tuple(them)[:2]), times=None
            )
            await anyio.sleep(10)
            assert (await producer.send("t", b"", partition=5)).offset == 1


@pytest.mark.parametrize("missing", [0, 1])
async def test_records_wait_while_the_metadata_leaves_out_a_partition(missing: int) -> None:
    async with cluster(topics={"t": 3}) as kafka:
        hidden = {missing}
        without = _change_partitions(
            lambda them: [p for p in them if p.partition_index not in hidden]
        )
        async with Producer(**SERVERS, delivery_timeout_ms=15_000) as producer:
            kafka.fail(MetadataRequest, without, times=None)
            with pytest.raises(NotWrittenError, match=f"but not partition {missing}"):
                await producer.send("t", b"", key=b"1")
            future = producer.send_nowait("t", b"", partition=missing)
            await anyio.sleep(12)
            assert f"but not partition {missing}" in str(producer.health())
            hidden.clear()
            assert (await future).offset == 0
            assert "but not partition" not in str(producer.health())


async def test_a_partition_number_beyond_the_others_is_not_believed() -> None:
    def add_one(them: _Partitions) -> _Partitions:
        *others, last = them
        return (*others, last, attrs.evolve(last, partition_index=7))

    async with cluster(topics={"t": 3}) as kafka:
        async with Producer(**SERVERS, metadata_max_age_ms=500) as producer:
            await producer.send("t", b"")
            kafka.fail(MetadataRequest, _change_partitions(add_one), times=None)
            await anyio.sleep(5)
            with pytest.raises(ConfigurationError, match="0 to 2"):
                await producer.send("t", b"", partition=3)
            for _ in range(20):
                await producer.send("t", bytes(17_000))


def _without_leader(number: int) -> Change:
    def changed(partition: MetadataResponsePartition) -> MetadataResponsePartition:
        if partition.partition_index != number:
            return partition
        epoch = partition.leader_epoch + 1
        return attrs.evolve(partition, leader_id=-1, leader_epoch=epoch, error_code=5)

    return _change_partitions(lambda them: [changed(partition) for partition in them])


async def test_the_partition_for_records_without_key_loses_its_leader() -> None:
    async with cluster(topics={"t": 4}) as kafka:
        async with Producer(**SERVERS, metadata_max_age_ms=1_000) as producer:
            number = (await producer.send("t", b"")).partition
            kafka.fail(MetadataRequest, _without_leader(number), times=None)
            await anyio.sleep(5)
            assert (await producer.send("t", b"")).partition != number


@pytest.mark.parametrize("is_lost_later", [True, False])
async def test_the_error_at_the_deadline_names_the_missing_leader(is_lost_later: bool) -> None:
    async with cluster() as kafka:
        async with Producer(
            **SERVERS, delivery_timeout_ms=15_000, metadata_max_age_ms=1_000
        ) as producer:
            if is_lost_later:
                await producer.send("t", b"")
            kafka.fail(MetadataRequest, _without_leader(0), times=None)
            await anyio.sleep(5)
            with pytest.raises(NotWrittenError, match="t/0 has no leader"):
                await producer.send("t", b"")


async def test_a_partition_that_was_added_is_looked_up() -> None:
    async with cluster(topics={"t": 2}) as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"")
        kafka.add_partitions("t", 8)
        await anyio.sleep(400)  # so long that an idle topic is not refreshed any more
        async with anyio.create_task_group() as tasks:
            for number in range(2, 8):
                tasks.start_soon(partial(producer.send, "t", b"", partition=number))
        kafka.add_partitions("t", 9)
        await anyio.sleep(2)
        (written,) = await producer.send_many("t", [b""], partition=8)
        assert written.partition == 8


async def test_a_partition_that_was_added_is_looked_up_in_the_background() -> None:
    async with cluster(topics={"t": 2}) as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"")
        kafka.add_partitions("t", 4)
        with pytest.raises(ConfigurationError, match="0 to 1"):
            producer.send_nowait("t", b"", partition=3)
        await anyio.sleep(1)
        assert (await producer.send_nowait("t", b"", partition=3)).partition == 3


async def test_a_partition_that_does_not_exist_is_looked_up_once_a_second() -> None:
    async with cluster(topics={"t": 2}) as kafka, Producer(**SERVERS) as producer:
        await producer.send("t", b"")
        count = 0

        def counted(response: MetadataResponse) -> MetadataResponse:
            nonlocal count
            count += 1
            return response

        kafka.fail(MetadataRequest, Change(counted), times=None)
        for _ in range(100):
            with pytest.raises(ConfigurationError, match="0 to 1"):
                await producer.send("t", b"", partition=3)
            with pytest.raises(ConfigurationError, match="0 to 1"):
                producer.send_nowait("t", b"", partition=3)
            await anyio.sleep(0.05)
        assert 4 <= count <= 6


async def test_a_partition_that_cannot_be_looked_up() -> None:
    async with cluster(topics={"t": 2}) as kafka:
        async with Producer(**SERVERS, request_timeout_ms=2_000) as producer:
            await producer.send("t", b"")
            kafka.fail(MetadataRequest, Close(), times=None)
            with pytest.raises(NotWrittenError) as raised:
                await producer.send("t", b"", partition=3)
            assert isinstance(raised.value.why, TransportError)
            assert not raised.value.is_maybe_written
