"""Two clusters of Apache Kafka behind one address, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.from_thread import BlockingPortal, start_blocking_portal

from kafkagroup import (
    Consumer,
    GroupMember,
    GroupProtocol,
    HealthProblem,
    NotWrittenError,
    Producer,
)
from kafkagroup.admin import Admin, NewTopic
from kafkagroup.errors import ClusterChangedError
from kafkagroup.testing import LocalKafka
from kafkagroup.testing._listeners import Listener
from kafkagroup.testing.local import LocalKafkaUnavailable

pytestmark = pytest.mark.anyio


ENDED = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Address:
    """A port that forwards to one address after the other, in the loop of a portal."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._target = ("127.0.0.1", 0)
        self._connections: set[anyio.CancelScope] = set()
        _, self.port = portal.start_task(self._run)

    def lead_to(self, address: str) -> None:
        """Forward new connections to `address`, and close the others."""
        host, port = address.split(":")
        self._target = host, int(port)
        self._portal.call(lambda: [scope.cancel() for scope in self._connections])

    async def _run(self, *, task_status: Any) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            task_status.started(listener.extra(anyio.abc.SocketAttribute.local_port))
            await listener.serve(self._forward)

    async def _forward(self, client: ByteStream) -> None:
        async with client:
            with suppress(*ENDED):
                async with await anyio.connect_tcp(*self._target) as server:
                    async with anyio.create_task_group() as tasks:
                        self._connections.add(tasks.cancel_scope)
                        for ends in ((client, server), (server, client)):
                            tasks.start_soon(self._copy, *ends, tasks.cancel_scope)
                    self._connections.discard(tasks.cancel_scope)

    async def _copy(self, source: ByteStream, sink: ByteStream, scope: anyio.CancelScope) -> None:
        with suppress(*ENDED):
            async for data in source:
                await sink.send(data)
        scope.cancel()


class Swapped:
    """Two clusters with topics of the same names, and the address that leads to one of them."""

    def __init__(self, proxy: Address, clusters: list[LocalKafka]) -> None:
        self.proxy = proxy
        self.address = f"127.0.0.1:{proxy.port}"
        self.clusters = clusters

    def lead_to(self, number: int) -> None:
        self.proxy.lead_to(self.clusters[number].address(1, "P"))

    async def create(self, name: str) -> None:
        for kafka in self.clusters:
            async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
                await admin.create_topics([NewTopic(name=name, partitions=1)])

    async def write(self, number: int, name: str, values: list[str]) -> None:
        servers = self.clusters[number].bootstrap_servers
        async with Producer(bootstrap_servers=servers) as producer:
            await producer.send_many(name, [value.encode() for value in values])

    async def committed(self, number: int, group: str) -> list[int]:
        async with Admin(bootstrap_servers=self.clusters[number].bootstrap_servers) as admin:
            found = (await admin.committed([group]))[group]
            return [one.offset for one in found.values()]


@pytest.fixture(scope="module")
def swapped() -> Iterator[Swapped]:
    with start_blocking_portal() as portal:
        proxy = Address(portal)
        listener = Listener(advertised_ports=[proxy.port])
        clusters = [LocalKafka(listeners={"P": listener}) for _ in range(2)]
        try:
            for kafka in clusters:
                kafka.start()
        except LocalKafkaUnavailable as error:
            pytest.skip(f"no Kafka on this machine: {error}")
        yield Swapped(proxy, clusters)
        for kafka in clusters:
            kafka.stop()
        portal.call(portal.stop, True)


async def values_of(consumer: Consumer, count: int) -> list[str]:
    return [(await consumer.getone()).value.decode() for _ in range(count)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_nothing_is_read_from_or_committed_to_another_cluster(
    swapped: Swapped, name: str, protocol: Any
) -> None:
    swapped.lead_to(0)
    await swapped.create(name)
    await swapped.write(0, name, [str(n) for n in range(10)])
    await swapped.write(1, name, ["foreign"] * 3)
    options: Any = {"group_protocol": protocol, "auto_commit_interval_ms": 200}
    with anyio.fail_after(90):
        async with Consumer(
            name, bootstrap_servers=swapped.address, group_id=name, **options
        ) as consumer:
            assert await values_of(consumer, 9) == [str(n) for n in range(9)]
            await anyio.sleep(1)
            swapped.lead_to(1)
            assert await values_of(consumer, 1) == ["9"]
            with pytest.raises(ClusterChangedError):
                await consumer.getone()
            assert HealthProblem.CLUSTER in {f.problem for f in consumer.health().findings}
            swapped.lead_to(0)
            await swapped.write(0, name, ["next"])
            while (await consumer.getone()).value != b"next":
                pass
        assert await swapped.committed(1, name) == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_other_cluster_is_adopted(swapped: Swapped, name: str, protocol: Any) -> None:
    swapped.lead_to(0)
    await swapped.create(name)
    await swapped.write(0, name, [str(n) for n in range(10)])
    await swapped.write(1, name, [f"new {n}" for n in range(5)])
    async with Admin(bootstrap_servers=swapped.clusters[1].bootstrap_servers) as admin:
        await admin.alter_offsets(name, {(name, 0): 3})
    options: Any = {"group_protocol": protocol, "on_cluster_change": "adopt"}
    with anyio.fail_after(90):
        async with Consumer(
            name, bootstrap_servers=swapped.address, group_id=name, **options
        ) as consumer:
            assert await values_of(consumer, 10) == [str(n) for n in range(10)]
            swapped.lead_to(1)
            assert await values_of(consumer, 2) == ["new 3", "new 4"]
            await consumer.commit()
        assert await swapped.committed(1, name) == [5]


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_member_of_any_group_joins_in_the_adopted_cluster(
    swapped: Swapped, name: str, threaded: bool
) -> None:
    swapped.lead_to(0)
    protocol = GroupProtocol("work", "any", b"", lambda members: dict.fromkeys(members, b"x"))
    options: Any = {"on_cluster_change": "adopt", "heartbeat_thread": threaded}
    with anyio.fail_after(90):
        async with GroupMember(
            name, protocol, bootstrap_servers=swapped.address, **options
        ) as member:
            first = await anext(member)
            swapped.lead_to(1)
            await first.over.wait()
            await anext(member)
            async with Admin(bootstrap_servers=swapped.clusters[1].bootstrap_servers) as admin:
                assert len((await admin.describe_group(name)).members) == 1


async def test_a_producer_writes_nothing_to_another_cluster(swapped: Swapped, name: str) -> None:
    swapped.lead_to(0)
    await swapped.create(name)
    async with Producer(bootstrap_servers=swapped.address, delivery_timeout_ms=10_000) as producer:
        await producer.send(name, b"one")
        swapped.lead_to(1)
        with pytest.raises(NotWrittenError, match="belongs to cluster"), anyio.fail_after(30):
            await producer.send(name, b"two")
        waiting = producer.send_nowait(name, b"three")
        swapped.lead_to(0)
        await waiting
    async with Consumer(
        bootstrap_servers=swapped.clusters[1].bootstrap_servers, group_id=None
    ) as consumer:
        assert await consumer.end_offsets((name, 0)) == {(name, 0): 0}
