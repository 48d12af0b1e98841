"""Records delivered without a full check for each: how long that lasts, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from kafkagroup import Consumer, ConsumerBusyError
from kafkagroup.concurrency.clock import LeaseClock
from kafkagroup.errors import ClosedError, ConfigurationError, NotStartedError
from kafkagroup.member.ownership import Ownership
from kafkagroup.runtime.consume.reader import NothingArrived, Reader, Records
from kafkagroup.transport.origin import Origin
from kafkagroup.types import Record, TopicPartition
from kafkagroup.wire.batch_writing import NewRecord, encode_batch
from kafkagroup.wire.records import read_batches

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)


class Reading:
    """A consumer that owns a partition with ten records, and never opens a connection."""

    def __init__(self, lease_timeout: float = float("inf"), **options: Any) -> None:
        self.consumer = Consumer(**options)
        self.session = self.consumer._session
        self.reader = self.consumer._reader
        self.delivery = self.consumer._delivery
        self.now = anyio.current_time()
        self.suspended = 0.0
        self.session.clock = lambda: self.now
        self.session.lease_clock = LeaseClock(self.lease_now, self.session.clock)
        self.reader.use_clock(self.session.lease_clock)
        ownership = Ownership(
            is_assigned=True, acknowledged_at=self.lease_now(), lease_timeout=lease_timeout
        )
        self.member = SimpleNamespace(ownership=ownership)
        self.session.member.driver = SimpleNamespace(member=self.member)  # type: ignore[assignment]
        (owned,) = self.delivery.own([TP])
        owned.start_at(0)
        data = encode_batch([NewRecord(None, b"%d" % n) for n in range(10)])
        self.delivery.add(owned, list(read_batches(data, topic="t", partition=0)))

    def lease_now(self) -> float:
        return self.now + 1000.0 + self.suspended  # clocks have zeros of their own

    async def next(self) -> int:
        record: Record = await self.reader.next(self.delivery.next_record)
        return record.offset

    def ready(self) -> int | None:
        record = self.reader.ready()
        return None if record is None else record.offset


def test_in_real_time_records_are_ready_for_a_millisecond() -> None:
    """By the clock of leases, which is read in C where that is compiled."""

    async def lease_granted_at() -> tuple[float, float, float]:
        reading = Reading()
        reading.session.bind_clock()
        reading.reader.bind(Origin("the consumer"))
        now = reading.session.lease_clock.now
        before = now()
        await reading.next()
        return before, reading.session.permit.expires_at - 0.001, now()

    before, granted_at, after = anyio.run(lease_granted_at)
    assert before - 1e-6 <= granted_at <= after + 1e-6


async def test_no_record_is_ready_before_the_first_full_check() -> None:
    reading = Reading()
    assert reading.ready() is None
    assert await reading.next() == 0
    assert [reading.ready() for _ in range(9)] == list(range(1, 10))
    assert reading.ready() is None


async def test_only_the_task_that_polled_gets_ready_records() -> None:
    """Its records are delivered without checks. Another task must poll first, and a thread must
    never get one."""
    reading = Reading()
    reader = reading.reader
    reader.bind(Origin("the consumer"))
    found: list[Any] = []

    def take() -> None:
        found.append(reader.ready_here())

    async def take_in_task() -> None:
        take()
        assert await reading.next() == 2
        take()

    take()
    assert await reading.next() == 0
    take()
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_in_task)
    take()
    assert [getattr(record, "offset", None) for record in found] == [None, 1, None, None, 3, None]


async def test_only_the_iterator_that_took_the_last_record_gets_ready_ones() -> None:
    reading = Reading()
    reader = reading.reader
    reader.bind(Origin("the consumer"))
    waited: list[Any] = []

    async def wait() -> Any:
        waited.append(await reader.next(reading.delivery.next_record))
        return waited[-1]

    one, other = Records(reader, wait), Records(reader, wait)
    taken = [(await anext(records)).offset for records in (one, one, other, other, one)]
    assert taken == [0, 1, 2, 3, 4]
    assert [record.offset for record in waited] == [0, 2, 4]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.next)
    # Another task has polled since.
    assert (await anext(one)).offset == 6
    assert [record.offset for record in waited] == [0, 2, 4, 6]


async def test_a_second_task_cannot_poll_while_one_waits() -> None:
    reading = Reading()
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.reader.next, nothing)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ConsumerBusyError):
            await reading.next()
        tasks.cancel_scope.cancel()
    assert await reading.next() == 0


async def test_a_poll_is_noted_and_counts_the_previous_record_as_processed() -> None:
    reading = Reading()
    reading.session.clock = anyio.current_time
    await reading.next()
    await anyio.sleep(5)
    assert await reading.next() == 1
    assert reading.session.polls.last_poll_at == anyio.current_time()
    assert reading.delivery.owned[TP].processed == 1


@pytest.mark.parametrize("is_expelled", [True, False])
async def test_waiting_for_a_record_requests_a_member_that_was_expelled_again(
    is_expelled: bool,
) -> None:
    requests: list[float] = []
    reading = Reading()
    reading.session.clock = anyio.current_time
    reading.session.member.is_expelled = is_expelled
    reader = Reader(reading.session, lambda: requests.append(anyio.current_time()))
    with pytest.raises(NothingArrived):
        await reader.next(lambda: None, anyio.current_time() + 1.0)
    assert len(requests) == is_expelled


async def test_a_poll_whose_time_is_over_looks_again_after_other_tasks_have_run() -> None:
    """A record that has arrived meanwhile is delivered, even with a timeout of 0."""
    reading = Reading()
    reading.session.clock = anyio.current_time
    looks = 0

    def take() -> None:
        nonlocal looks
        looks += 1

    start = anyio.current_time()
    for seconds in (0.0, 2.0):
        until = anyio.current_time() + seconds
        with pytest.raises(NothingArrived):
            await reading.reader.next(take, until)
        assert anyio.current_time() == until
    assert (looks, anyio.current_time()) == (4, start + 2.0)


async def test_taking_a_ready_record_counts_the_previous_one_as_processed() -> None:
    reading = Reading()
    await reading.next()
    reading.now += 0.0005
    reading.ready()
    owned = reading.delivery.owned[TP]
    assert (owned.position, owned.processed) == (2, 1)
    assert reading.session.polls.last_poll_at == pytest.approx(reading.now)


async def test_other_tasks_run_after_a_few_milliseconds() -> None:
    reading = Reading()
    await reading.next()
    reading.now += 0.0009
    assert reading.ready() == 1
    reading.now += 0.0002
    assert reading.ready() is None


async def test_no_record_is_ready_after_the_lease_expired() -> None:
    """Also within the millisecond in which other tasks need not run."""
    reading = Reading(lease_timeout=0.0005)
    await reading.next()
    reading.now += 0.0004
    assert reading.ready() == 1
    reading.now += 0.0002
    assert reading.ready() is None


async def test_no_record_is_delivered_without_an_assignment() -> None:
    """The generation has ended, and its partitions are not released yet."""
    reading = Reading()
    reading.session.clock = anyio.current_time
    assigned = reading.member.ownership
    reading.member.ownership = Ownership()
    with pytest.raises(NothingArrived):
        await reading.reader.next(reading.delivery.next_record, anyio.current_time() + 1.0)
    reading.member.ownership = assigned
    assert await reading.next() == 0


async def test_an_iterator_is_its_own_iterator() -> None:
    """`async for` takes what `aiter()` returned."""
    reading = Reading()
    reading.reader.bind(Origin("the consumer"))

    async def wait() -> Any:
        return await reading.reader.next(reading.delivery.next_record)

    records = Records(reading.reader, wait)
    assert (await anext(records)).offset == 0
    async for record in records:
        assert record.offset == 1
        break


async def test_iterating_a_consumer_that_was_not_started_is_an_error() -> None:
    """Only that of one that was stopped ends."""
    with pytest.raises(NotStartedError):
        async for _ in Consumer("t"):
            raise AssertionError


async def test_a_second_task_cannot_poll_while_one_lets_others_run() -> None:
    """It does after each millisecond: the second poll counted the record of the first as
    processed."""
    reading = Reading()
    busy: list[bool] = []

    async def other() -> None:
        try:
            await reading.next()
        except ConsumerBusyError:
            busy.append(True)

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(other)
    assert busy == [True]
    assert reading.delivery.owned[TP].position == 1


async def test_no_record_is_ready_after_a_suspend_that_the_loops_clock_did_not_count() -> None:
    """A laptop's lid is closed during a batch. The loop's clock stood still meanwhile, so the rest
    of the millisecond that needs no checks was delivered: up to 110 records of another member."""
    reading = Reading(lease_timeout=45.0)
    await reading.next()
    assert reading.ready() == 1
    reading.suspended = 60.0
    assert reading.ready() is None
    with anyio.move_on_after(5.0):
        await reading.next()
    assert reading.delivery.owned[TP].position == 2
    ownership = reading.member.ownership
    reading.member.ownership = ownership.acknowledge(reading.lease_now(), 45.0)
    assert await reading.next() == 2
    assert [reading.ready() for _ in range(7)] == list(range(3, 10))


async def test_a_suspend_does_not_count_as_time_without_a_poll() -> None:
    """A suspend of an hour is not an application that is stuck: it must not be expelled for it."""
    reading = Reading(lease_timeout=7200.0)
    await reading.next()
    reading.suspended = 3600.0
    assert await reading.next() == 1
    reading.now += 0.0005
    assert reading.ready() == 2
    assert reading.session.polls.last_poll_at == pytest.approx(reading.now)


@pytest.mark.parametrize(
    "change",
    [
        lambda session: session.errors.report(ConfigurationError("reported")),
        lambda session: session.errors.fail(ConfigurationError("failed")),
        lambda session: session.notify(),
        lambda session: session.note_lost([TP], "the generation has ended"),
    ],
    ids=["tell", "fail", "notify", "lose"],
)
async def test_a_membership_change_is_handled_before_the_next_record(change: Any) -> None:
    reading = Reading()
    await reading.next()
    change(reading.session)
    assert reading.ready() is None


async def test_an_error_is_raised_before_the_next_record() -> None:
    reading = Reading()
    await reading.next()
    reading.session.errors.report(ConfigurationError("reported"))
    with pytest.raises(ConfigurationError, match="reported"):
        await reading.next()
    assert await reading.next() == 1


async def test_no_record_is_ready_after_closing() -> None:
    reading = Reading()
    await reading.next()
    reading.session.begin_close()
    assert reading.ready() is None
    with pytest.raises(ClosedError):
        await reading.next()


async def test_draining_is_notified_of_each_processed_record() -> None:
    """Without the checks, the revocation of the record in flight would not be noticed."""
    reading = Reading()
    await reading.next()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.session.drain, [TP], anyio.current_time() + 60)
        await anyio.wait_all_tasks_blocked()
        assert reading.ready() is None
        reading.delivery.revoke([TP])
        with anyio.move_on_after(1):
            await reading.next()
    assert anyio.current_time() < reading.now + 2


async def test_a_batch_can_be_iterated_repeatedly() -> None:
    reading = Reading()
    batch = reading.delivery.next_batch(4)
    assert batch is not None
    for _ in range(2):
        assert [record.offset for record in batch] == [0, 1, 2, 3]
    assert (len(batch), batch.records) == (4, tuple(batch))
    assert batch.to_arrow().column("offset").to_pylist() == [0, 1, 2, 3]
    batch = reading.delivery.next_batch(100)
    assert batch is not None
    assert [record.offset for record in batch.records] == [4, 5, 6, 7, 8, 9]


async def test_arrow_batches_contain_bytes() -> None:
    with pytest.raises(ConfigurationError, match="leave out the deserializers"):
        Consumer(value_deserializer=bytes.decode).batches(arrow=True)
