"""Every coroutine of a consumer and a member, cancelled at every await; then the application
continues.

After each cancellation no record may be lost, delivered twice or out of order, and no task or
connection may be left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest
from live.cancelling import (
    ONE,
    OTHER,
    RECORDS,
    TIMEOUT,
    ZERO,
    Canceller,
    anyio_backend,
    broker,
    cancel_at_each_suspension,
    settle,
    timing,
)
from memory_network import Network

from kafkagroup import ClosedError, Consumer, GroupMember, GroupProtocol, TopicPartition
from kafkagroup.testing import EmbeddedKafka

__all__ = ["anyio_backend", "timing"]

pytestmark = pytest.mark.anyio


@attrs.define(eq=False)
class Reader:
    """A consumer, and the records that it has delivered, in order."""

    consumer: Consumer
    kafka: EmbeddedKafka
    canceller: Canceller
    seen: list[tuple[TopicPartition, int]] = attrs.field(factory=list)

    def take(self, records: Iterable[Any]) -> None:
        self.seen += [(TopicPartition(r.topic, r.partition), r.offset) for r in records]

    async def read(self, total: int) -> None:
        """Read until there are `total` records in all."""
        while len(self.seen) < total:
            self.take([await self.consumer.getone()])

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition. Asserts that all records were read once, in
        order."""
        found: dict[TopicPartition, int] = {}
        for tp, offset in self.seen:
            assert offset == found.get(tp, 0), (tp, self.seen)
            found[tp] = offset + 1
        return found

    def committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets. In a partition without delivered records a commit stores
        the start."""
        offsets = self.kafka.committed_offsets("g")
        return {tp: o.offset for tp, o in offsets.items() if o.offset}

    def check_not_ahead(self) -> None:
        positions = self.positions()
        assert all(o <= positions.get(tp, 0) for tp, o in self.committed().items())


Act = Callable[[Reader], Coroutine[Any, Any, None]]


async def getone(reader: Reader) -> None:
    reader.take([await reader.canceller.cancel_in(reader.consumer.getone())])


async def anext_(reader: Reader) -> None:
    reader.take([await reader.canceller.cancel_in(anext(reader.consumer))])


async def getmany(reader: Reader) -> None:
    found = await reader.canceller.cancel_in(reader.consumer.getmany(timeout=5))
    for records in found.values():
        reader.take(records)


async def next_batch(reader: Reader) -> None:
    reader.take(await reader.canceller.cancel_in(anext(reader.consumer.batches(4))))


def late(act: Act) -> Act:
    """Wait for a record that is produced a second later."""

    async def produced(reader: Reader) -> None:
        await reader.read(RECORDS)

        async def produce() -> None:
            await anyio.sleep(1)
            reader.kafka.produce("t", [b""] * 2)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            await act(reader)

    produced.__name__ = f"{act.__name__}-late"
    return produced


async def commit(reader: Reader) -> None:
    await reader.canceller.cancel_in(reader.consumer.commit())
    assert reader.committed() == reader.positions()


async def commit_given(reader: Reader) -> None:
    given = reader.positions()
    await reader.canceller.cancel_in(reader.consumer.commit(given))
    assert reader.committed() == given


async def committed(reader: Reader) -> None:
    await reader.canceller.cancel_in(reader.consumer.committed([ZERO, ONE]))


async def wait_assignment(reader: Reader) -> None:
    assert await reader.canceller.cancel_in(reader.consumer.wait_assignment()) == {ZERO, ONE}


async def beginning_offsets(reader: Reader) -> None:
    assert await reader.canceller.cancel_in(reader.consumer.beginning_offsets([ZERO])) == {ZERO: 0}


async def end_offsets(reader: Reader) -> None:
    assert await reader.canceller.cancel_in(reader.consumer.end_offsets([OTHER])) == {OTHER: 3}


async def offsets_for_times(reader: Reader) -> None:
    await reader.canceller.cancel_in(reader.consumer.offsets_for_times({ZERO: 1}))


async def lag(reader: Reader) -> None:
    found = await reader.canceller.cancel_in(reader.consumer.lag())
    assert sum(found.values()) == RECORDS - len(reader.seen)


@pytest.mark.parametrize(
    "act", [getone, anext_, getmany, next_batch, committed, end_offsets, wait_assignment]
)
async def test_a_consumer_cancelled_before_the_first_assignment_continues(
    act: Act, timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, _):
            async with Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g") as consumer:
                reader = Reader(consumer, kafka, canceller)
                await canceller.run(act(reader))
                reader.check_not_ahead()
                await reader.read(RECORDS)
                await consumer.commit()
                assert reader.positions() == reader.committed() == {ZERO: 6, ONE: 6}

    await cancel_at_each_suspension(timing, story)


@pytest.mark.parametrize(
    "act",
    [
        getone,
        late(getone),
        late(anext_),
        late(getmany),
        late(next_batch),
        commit,
        commit_given,
        committed,
        beginning_offsets,
        end_offsets,
        offsets_for_times,
        lag,
    ],
)
async def test_a_consumer_cancelled_in_any_call_continues(act: Act, timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, network):
            async with Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g") as consumer:
                reader = Reader(consumer, kafka, canceller)
                await reader.read(3)
                await anyio.sleep(1)  # longer than records are delivered without a checkpoint
                await canceller.run(act(reader))
                reader.check_not_ahead()
                # The cancelled commit may have happened or not; the next one covers it.
                await consumer.commit()
                assert reader.committed() == reader.positions()
                await reader.read(kafka.log_end("t", 0) + kafka.log_end("t", 1))
                await consumer.commit()
                assert reader.committed() == reader.positions()
                assert network.open <= 4  # main, group, offsets, fetch

    await cancel_at_each_suspension(timing, story)


async def test_cancelling_the_connecting_leaves_no_connection_open(timing: str) -> None:
    """The unused connection of a cancelled call would stay open as long as the consumer."""

    async def story(canceller: Canceller) -> None:
        async with broker(nodes=3) as (kafka, network):
            for node_id, tp in enumerate((ZERO, ONE, OTHER), 1):
                kafka.move_leader(*tp, node_id)
            async with Consumer(bootstrap_servers="kafka-1:9092") as consumer:

                async def act() -> None:
                    await canceller.cancel_in(consumer.end_offsets([ZERO, ONE, OTHER]))

                await canceller.run(act())
                assert await consumer.end_offsets([ZERO, ONE, OTHER]) == {ZERO: 6, ONE: 6, OTHER: 3}
                await settle()
                assert network.open == 3  # one to each leader

    await cancel_at_each_suspension(timing, story)


async def rebalanced(reader: Reader, total: int) -> None:
    """Read more, and commit everything."""
    await reader.read(total)
    await reader.consumer.commit()
    assert reader.committed() == reader.positions()


@pytest.mark.parametrize("to_end", [False, True])
async def test_a_cancelled_seek_moves_each_partition_completely_or_not_at_all(
    to_end: bool, timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, _):
            async with Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g") as consumer:
                reader = Reader(consumer, kafka, canceller)
                await reader.read(8)
                stood = reader.positions()
                seek = consumer.seek_to_end if to_end else consumer.seek_to_beginning

                async def act() -> None:
                    await canceller.cancel_in(seek())

                await canceller.run(act())
                target = 6 if to_end else 0
                for tp in (ZERO, ONE):
                    position = await consumer.position(tp)
                    assert position == target or (canceller.has_cancelled and position == stood[tp])
                await seek(ONE)
                assert await consumer.position(ONE) == target
                kafka.produce("t", [b""], partition=1)
                consumer.pause(ZERO)
                record = await consumer.getone()
                assert (record.partition, record.offset) == (1, target)

    await cancel_at_each_suspension(timing, story)


async def test_a_cancelled_position_call_can_be_repeated(timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, _):
            async with Consumer(bootstrap_servers="kafka-1:9092", group_id="g") as consumer:
                reader = Reader(consumer, kafka, canceller)
                await consumer.assign([ZERO, ONE])

                async def act() -> None:
                    assert await canceller.cancel_in(consumer.position(ONE)) == 0

                await canceller.run(act())
                assert await consumer.position(ONE) == 0
                await rebalanced(reader, RECORDS)

    await cancel_at_each_suspension(timing, story)


@pytest.mark.parametrize("again", [False, True])
async def test_a_cancelled_assign_can_be_repeated(again: bool, timing: str) -> None:
    """The partitions that it had released can be assigned again, in one call with the rest."""

    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, _):
            async with Consumer(bootstrap_servers="kafka-1:9092", group_id="g") as consumer:
                reader = Reader(consumer, kafka, canceller)
                await consumer.assign([ZERO])
                await reader.read(2)
                # Without this commit, the record in flight would rightly be redelivered.
                await consumer.commit()

                async def act() -> None:
                    await canceller.cancel_in(consumer.assign([ONE]))

                await canceller.run(act())
                if again:
                    await consumer.assign([ONE])
                    assert consumer.assignment() == {ONE}
                await consumer.assign([ZERO, ONE])
                await rebalanced(reader, RECORDS)

    await cancel_at_each_suspension(timing, story)


async def test_a_cancelled_subscribe_can_be_repeated(timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, _):
            async with Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g") as consumer:
                reader = Reader(consumer, kafka, canceller)
                await reader.read(3)

                async def act() -> None:
                    await canceller.cancel_in(consumer.subscribe(pattern="[tu]"))

                await canceller.run(act())
                if canceller.has_cancelled:
                    await consumer.subscribe("t", "u")
                await rebalanced(reader, RECORDS + 3)

    await cancel_at_each_suspension(timing, story)


@pytest.mark.parametrize("again", [False, True])
async def test_a_cancelled_unsubscribe_can_be_repeated(again: bool, timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, _):
            async with Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g") as consumer:
                reader = Reader(consumer, kafka, canceller)
                await reader.read(3)
                await consumer.commit()

                async def act() -> None:
                    await canceller.cancel_in(consumer.unsubscribe())

                await canceller.run(act())
                if again:
                    await consumer.unsubscribe()
                    assert consumer.assignment() == frozenset()
                    assert kafka.group_state("g") == "Empty"
                await consumer.subscribe("t")
                await rebalanced(reader, RECORDS)

    await cancel_at_each_suspension(timing, story)


# ---------------------------------------------------------------- opening and closing


async def check_closed(kafka: EmbeddedKafka, network: Network, consumer: Consumer) -> None:
    """Check that the consumer is closed, leaves nothing open, and another one finds all records."""
    assert network.open == 0
    assert kafka.group_state("g") in ("Empty", "Dead")
    with pytest.raises(ClosedError):
        await consumer.getone()
    assert [record async for record in consumer] == []
    committed = kafka.committed("g", "t")
    async with Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g") as after:
        with anyio.fail_after(TIMEOUT):
            seen = [await after.getone() for _ in range(RECORDS - sum(committed.values()))]
    for partition in (0, 1):
        found = [record.offset for record in seen if record.partition == partition]
        assert found == list(range(committed.get(partition, 0), 6))


async def enter(consumer: Consumer, canceller: Canceller) -> None:
    await canceller.cancel_in(consumer.__aenter__())
    await consumer.__aexit__(None, None, None)


async def exit_(consumer: Consumer, canceller: Canceller) -> None:
    await consumer.__aenter__()
    for _ in range(3):
        await consumer.getone()
    await canceller.cancel_in(consumer.__aexit__(None, None, None))


async def run(consumer: Consumer, canceller: Canceller) -> None:
    async def stop() -> None:
        await anyio.sleep(1)
        await consumer.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        await canceller.cancel_in(consumer.run())


async def start(consumer: Consumer, canceller: Canceller) -> None:
    await canceller.cancel_in(consumer.start())
    await consumer.stop()


async def stop_what_was_started(consumer: Consumer, canceller: Canceller) -> None:
    await consumer.start()
    for _ in range(3):
        await consumer.getone()
    await canceller.cancel_in(consumer.stop())


@pytest.mark.parametrize("act", [enter, exit_, run, start, stop_what_was_started])
async def test_a_consumer_cancelled_while_opening_or_closing_is_closed(
    act: Callable[[Consumer, Canceller], Coroutine[Any, Any, None]],
    timing: str,
    anyio_backend_name: str,
) -> None:
    if anyio_backend_name == "trio" and act in (start, stop_what_was_started):
        pytest.skip("start() is for asyncio")

    async def story(canceller: Canceller) -> None:
        async with broker() as (kafka, network):
            consumer = Consumer("t", bootstrap_servers="kafka-1:9092", group_id="g")
            await canceller.run(act(consumer, canceller))
            if act is stop_what_was_started:
                await consumer.stop()
            if act in (exit_, stop_what_was_started):
                assert sum(kafka.committed("g", "t").values()) == 2  # all but the record in flight
            await check_closed(kafka, network, consumer)

    await cancel_at_each_suspension(timing, story)


# ---------------------------------------------------------------- members of any group


@asynccontextmanager
async def membership() -> AsyncIterator[tuple[GroupMember, EmbeddedKafka]]:
    protocol = GroupProtocol("workers", "all", b"", lambda members: dict.fromkeys(members, b"x"))
    async with broker() as (kafka, _):
        yield GroupMember("g", protocol, bootstrap_servers="kafka-1:9092"), kafka


@pytest.mark.parametrize("rejoining", [False, True])
async def test_a_member_cancelled_while_waiting_for_a_generation_continues(
    rejoining: bool, timing: str
) -> None:
    async def story(canceller: Canceller) -> None:
        async with membership() as (member, _), member:
            if rejoining:
                await anext(member)
                member.rejoin()
            got = []

            async def act() -> None:
                got.append(await canceller.cancel_in(anext(member)))

            await canceller.run(act())
            if not got:
                got.append(await anext(member))
            (generation,) = got
            assert generation is member.generation
            assert (generation.generation_id, generation.assignment) == (1 + rejoining, b"x")
            with generation.scope():
                await anyio.sleep(TIMEOUT / 2)
            assert not generation.over.is_set()
            member.rejoin()
            assert (await anext(member)).generation_id == 2 + rejoining

    await cancel_at_each_suspension(timing, story)


async def test_a_member_observed_by_others_continues_after_a_cancellation(timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        async with membership() as (member, _), member:

            async def act() -> None:
                await canceller.cancel_in(member.wait_generation())
                await canceller.cancel_in(member.describe())

            await canceller.run(act())
            assert await member.wait_generation() is await anext(member)
            assert [m.member_id for m in (await member.describe()).members] == [member.member_id]

    await cancel_at_each_suspension(timing, story)


@pytest.mark.parametrize("way", ["enter", "exit", "stop"])
async def test_a_member_cancelled_while_opening_or_closing_is_closed(way: str, timing: str) -> None:
    async def story(canceller: Canceller) -> None:
        async with membership() as (member, kafka):

            async def stop() -> None:
                async with member:
                    await anext(member)
                    await canceller.cancel_in(member.stop())

            async def enter_or_exit() -> None:
                opening = member.__aenter__()
                await (canceller.cancel_in(opening) if way == "enter" else opening)
                closing = member.__aexit__(None, None, None)
                await (canceller.cancel_in(closing) if way == "exit" else closing)

            await canceller.run(stop() if way == "stop" else enter_or_exit())
            assert kafka.group_state("g") in ("Empty", "Dead")
            assert [generation async for generation in member] == []

    await cancel_at_each_suspension(timing, story)
