"""Many partitions are processed in slices; changes between two slices are not lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kafkagroup import CommitFailedError, Consumer
from kafkagroup.concurrency import slices
from kafkagroup.concurrency.slices import Slices
from kafkagroup.consume.fetch_in_flight import FetchInFlight
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import AuthorizationError, ErrorCode, RequestTimeoutError
from kafkagroup.runtime.consume import positions, subscriber
from kafkagroup.runtime.consume.fetcher import Fetcher
from kafkagroup.testing.embedded import Close, Delay, EmbeddedKafka, Swallow
from kafkagroup.types import TopicPartition
from kafkagroup.wire.messages.consumer_heartbeat import ConsumerGroupHeartbeatRequest
from kafkagroup.wire.messages.fetch import FetchRequest
from kafkagroup.wire.messages.group import HeartbeatRequest
from kafkagroup.wire.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
)

pytestmark = pytest.mark.anyio

ALL = [TopicPartition("t", n) for n in range(5)]
WAIT = 4.0
"""Seconds of a long poll."""


async def turns_of_another_task(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of `work`, and how often another task ran meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await anyio.lowlevel.checkpoint()
        before = turns
        made, during = await work(), turns
        tasks.cancel_scope.cancel()
    return made, during - before


async def test_few_items_are_processed_at_once() -> None:
    items = range(slices.SLICE_SIZE)
    made, turns = await turns_of_another_task(lambda: slices.process_in_slices(list, items))
    assert (made, turns) == ([*items], 0)
    assert not slices.are_many(items)


async def test_other_tasks_run_while_many_items_are_processed() -> None:
    items = range(3 * slices.SLICE_SIZE + 1)
    sizes: list[int] = []

    def work(some: Collection[int]) -> Collection[int]:
        sizes.append(len(some))
        return some

    made, turns = await turns_of_another_task(lambda: slices.process_in_slices(work, items))
    assert made == [*items]
    assert sizes == [*[slices.SLICE_SIZE] * 3, 1]
    assert turns >= 3
    assert slices.are_many(items)


async def test_other_tasks_run_while_work_is_applied_to_many_items() -> None:
    items, done = range(2 * slices.SLICE_SIZE + 1), list[Sequence[int]]()
    _, turns = await turns_of_another_task(lambda: slices.apply_in_slices(done.append, items))
    assert [len(some) for some in done] == [slices.SLICE_SIZE, slices.SLICE_SIZE, 1]
    assert turns >= 2
    few = range(slices.SLICE_SIZE)
    done.clear()
    _, turns = await turns_of_another_task(lambda: slices.apply_in_slices(done.append, few))
    assert (done, turns) == ([few], 0)


# ---------------------------------------------------------------- of a consumer


@pytest.fixture
def reading(network: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Provide a broker with ten records in each of five partitions; two partitions count as
    many."""
    monkeypatch.setattr(slices, "SLICE_SIZE", 2)

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[tuple[EmbeddedKafka, Consumer]]:
        async with network, EmbeddedKafka({"t": 5}, listen=False) as kafka:
            network.serve_embedded(kafka)
            for tp in ALL:
                kafka.produce("t", [str(n) for n in range(10)], partition=tp.partition)
            options = {"fetch_max_wait_ms": round(WAIT * 1_000), **options}
            with anyio.fail_after(1_000):
                async with Consumer(bootstrap_servers="kafka-1", group_id="g", **options) as c:
                    yield kafka, c

    return opened


def recorded_requests(kafka: EmbeddedKafka, kind: type[Any]) -> list[list[int]]:
    """Return the partitions in each request of a kind, from now on."""
    seen: list[list[int]] = []

    def on_request(request: Any) -> bool:
        topics = request.groups[0].topics if kind is OffsetFetchRequest else request.topics
        seen.append(sorted(number for topic in topics for number in _numbers(topic)))
        return False

    kafka.fail(kind, Close(), times=None, when=on_request)
    return seen


def _numbers(topic: Any) -> Iterable[int]:
    match topic:
        case OffsetFetchRequestTopics(partition_indexes=numbers):
            return numbers
        case (
            ListOffsetsTopic(partitions=partitions)
            | OffsetCommitRequestTopic(partitions=partitions)
        ):
            return [p.partition_index for p in partitions]
        case _:
            return [p.partition for p in topic.partitions]


async def all_of(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    records = [await consumer.getone() for _ in range(count)]
    return sorted((r.partition, r.offset) for r in records)


async def test_starting_positions_of_many_partitions_are_requested_in_slices(reading: Any) -> None:
    async with reading() as (kafka, c):
        committed = recorded_requests(kafka, OffsetFetchRequest)
        starts = recorded_requests(kafka, ListOffsetsRequest)
        await c.assign(ALL)
        began = anyio.current_time()
        assert await all_of(c, 50) == [(tp.partition, n) for tp in ALL for n in range(10)]
        assert committed == starts == [[0, 1], [2, 3], [4]]
        assert anyio.current_time() == began  # the next slice does not wait for a pause


@pytest.mark.parametrize(
    "failure", [Close(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR], ids=str
)
async def test_after_a_slice_without_a_response_the_other_slices_are_not_requested(
    reading: Any, failure: Any
) -> None:
    async with reading() as (kafka, c):
        committed = recorded_requests(kafka, OffsetFetchRequest)
        kafka.fail(OffsetFetchRequest, failure, times=1)
        await c.assign(ALL)
        assert len(await all_of(c, 50)) == 50
        assert committed == [[0, 1], [0, 1], [2, 3], [4]]


async def test_while_a_group_is_denied_one_slice_of_its_offsets_is_requested_at_a_time(
    reading: Any,
) -> None:
    """All slices would be refused for the same reason."""
    async with reading() as (kafka, c):
        committed = recorded_requests(kafka, OffsetFetchRequest)
        kafka.fail(OffsetFetchRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, times=None)
        await c.assign(ALL)
        await anyio.sleep(0.01)
        assert committed == [[0, 1]]
        with pytest.raises(AuthorizationError):
            await c.getone()


def between(monkeypatch: pytest.MonkeyPatch, does: Callable[[], object]) -> None:
    """Run an action when the first slice of the next request is built."""
    ask = FetchInFlight.add

    def recorded_requests(self: FetchInFlight, partitions: Collection[OwnedPartition]) -> None:
        ask(self, partitions)
        if partitions:
            monkeypatch.setattr(FetchInFlight, "add", ask)
            does()

    monkeypatch.setattr(FetchInFlight, "add", recorded_requests)


async def test_partitions_paused_while_a_request_is_built_are_not_fetched(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading() as (kafka, c):
        fetches = recorded_requests(kafka, FetchRequest)
        between(monkeypatch, lambda: c.pause(ALL[4]))
        await c.assign(ALL)
        for tp in ALL:
            c.seek(tp, 0)  # so that all are ready for the first request
        assert await all_of(c, 40) == [(tp.partition, n) for tp in ALL[:4] for n in range(10)]
        assert not [numbers for numbers in fetches if 4 in numbers]
        c.resume(ALL[4])
        assert await all_of(c, 10) == [(4, n) for n in range(10)]


async def test_a_seek_while_a_fetch_is_built_does_not_wait_for_its_response(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same if the request takes long to build, and a thread builds it."""
    sought: list[float] = []

    async def made(_: Fetcher, make: Callable[[], Any], count: int) -> Any:
        await anyio.sleep(0.01)
        return make()

    monkeypatch.setattr(Fetcher, "_build", made)
    async with reading() as (_, c):
        await c.assign(ALL)
        await all_of(c, 50)

        def seek() -> None:
            sought.append(anyio.current_time())
            c.seek(ALL[0], 7)

        between(monkeypatch, seek)
        assert await all_of(c, 3) == [(0, 7), (0, 8), (0, 9)]
        assert anyio.current_time() - sought[0] < WAIT / 4


def record_slices(
    monkeypatch: pytest.MonkeyPatch, module: Any, note: Callable[[Sequence[Any]], object]
) -> None:
    """Call `note` after each slice that a module applies work to."""
    apply = slices.apply_in_slices

    async def recorded(work: Callable[[Sequence[Any]], object], items: Sequence[Any]) -> None:
        def noted(some: Sequence[Any]) -> None:
            work(some)
            note(some)

        await apply(noted, items)

    monkeypatch.setattr(module, "apply_in_slices", recorded)


async def test_topics_of_many_partitions_are_compared_in_slices(
    reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up of 90,000 positions blocked the loop for 80 ms before its first request."""
    compared: list[list[int]] = []
    record_slices(
        monkeypatch, positions, lambda some: compared.append([o.tp.partition for o in some])
    )
    async with reading() as (_, c):
        await c.assign(ALL)
        assert {await c.position(tp) for tp in ALL} == {0}
    assert compared[:3] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("ends", ["unsubscribes", "is fenced"])
async def test_many_partitions_are_released_in_slices(
    reading: Any, monkeypatch: pytest.MonkeyPatch, protocol: str, ends: str
) -> None:
    """To release 90,000 partitions took 40 ms of the loop. None of them is assigned meanwhile."""
    seen: list[tuple[int, int]] = []
    async with reading(heartbeat_interval_ms=500, group_protocol=protocol) as (kafka, c):
        record_slices(
            monkeypatch,
            subscriber,
            lambda _: seen.append((len(c._delivery.owned), len(c.assignment()))),
        )
        await c.subscribe("t")
        await c.wait_assignment()
        if ends == "unsubscribes":
            await c.unsubscribe()
        else:
            lose_all(kafka)
            await anyio.sleep(1.0)
        assert seen[:3] == [(3, 0), (1, 0), (0, 0)]


# ---------------------------------------------------------------- commits


def when_committing(kafka: EmbeddedKafka, part: int, does: Callable[[], object]) -> None:
    """Run an action when the broker receives the n-th part of a commit, counted from 1."""
    parts = 0

    def on_request(_: object) -> bool:
        nonlocal parts
        parts += 1
        if parts == part:
            does()
        return False

    kafka.fail(OffsetCommitRequest, Close(), times=None, when=on_request)


def lose_all(kafka: EmbeddedKafka) -> None:
    """Let the next heartbeat fail with UNKNOWN_MEMBER_ID."""
    kafka.fail(HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
    kafka.fail(ConsumerGroupHeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)


async def test_many_are_committed_in_slices(reading: Any) -> None:
    async with reading(enable_auto_commit=False) as (kafka, c):
        commits = recorded_requests(kafka, OffsetCommitRequest)
        await c.assign(ALL)
        await all_of(c, 50)
        await c.commit()
        assert commits == [[0, 1], [2, 3], [4]]
        assert kafka.committed("g", "t") == dict.fromkeys(range(5), 10)
        c.seek(ALL[3], 5)
        await c.commit()
        assert commits == [[0, 1], [2, 3], [4], [3]]


async def test_a_seek_while_other_slices_are_committed_is_committed(
    reading: Any,
) -> None:
    async with reading(enable_auto_commit=False) as (kafka, c):
        await c.assign(ALL)
        await all_of(c, 50)
        when_committing(kafka, 1, lambda: c.seek(ALL[4], 3))
        await c.commit()
        assert kafka.committed("g", "t") == {0: 10, 1: 10, 2: 10, 3: 10, 4: 3}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_partitions_lost_during_a_commit_are_not_committed(
    reading: Any, protocol: str
) -> None:
    """Its next owner may have committed more meanwhile; the application learns which offset it
    was."""
    options = {"enable_auto_commit": False, "group_protocol": protocol}
    async with reading(heartbeat_interval_ms=500, **options) as (kafka, c):
        commits = recorded_requests(kafka, OffsetCommitRequest)
        await c.subscribe("t")
        await all_of(c, 50)
        when_committing(kafka, 1, lambda: lose_all(kafka))
        kafka.fail(OffsetCommitRequest, Delay(5), times=1)
        with pytest.raises(CommitFailedError) as caught:
            await c.commit()
        assert caught.value.partitions == tuple(ALL[2:])
        assert commits == [[0, 1]]
        assert kafka.committed("g", "t") == {0: 10, 1: 10}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("auto_commit", [True, False], ids=["auto-commit", "own-commit"])
async def test_partitions_are_revoked_after_all_slices_are_committed(
    reading: Any, protocol: str, auto_commit: bool
) -> None:
    async with reading(
        enable_auto_commit=auto_commit,
        auto_commit_interval_ms=1_000,
        group_protocol=protocol,
        heartbeat_interval_ms=500,
    ) as (kafka, c):
        await c.subscribe("t")
        await all_of(c, 50)
        kafka.fail(OffsetCommitRequest, Delay(1), times=None)
        async with anyio.create_task_group() as tasks:
            if auto_commit:
                tasks.start_soon(c.getone)  # the record in flight is processed
                await anyio.sleep(1.5)
            else:
                tasks.start_soon(c.commit)
                await anyio.sleep(0.5)
            assert len(kafka.committed("g", "t")) < 5
            async with Consumer(
                "t", bootstrap_servers="kafka-1", group_id="g", group_protocol=protocol
            ) as other:
                while not other.assignment():
                    await anyio.sleep(0.01)
                assert kafka.committed("g", "t") == dict.fromkeys(range(5), 10)
                assert {tp: await other.position(tp) for tp in other.assignment()} == (
                    dict.fromkeys(other.assignment(), 10)
                )
            tasks.cancel_scope.cancel()


async def test_given_offsets_of_many_partitions_are_committed_only_if_all_are_owned(
    reading: Any,
) -> None:
    async with reading(enable_auto_commit=False) as (kafka, c):
        await c.assign(ALL[:4])
        with pytest.raises(CommitFailedError) as caught:
            await c.commit(dict.fromkeys(ALL, 4))
        assert (caught.value.partitions, kafka.committed("g", "t")) == ((ALL[4],), {})
        commits = recorded_requests(kafka, OffsetCommitRequest)
        await c.commit(dict.fromkeys(ALL[:4], 4))
        assert commits == [[0, 1], [2, 3]]
        assert kafka.committed("g", "t") == dict.fromkeys(range(4), 4)


async def test_all_slices_of_a_commit_share_a_deadline_and_acknowledged_ones_count(
    reading: Any,
) -> None:
    async with reading(enable_auto_commit=False, request_timeout_ms=5_000) as (kafka, c):
        await c.assign(ALL)
        await all_of(c, 50)
        kafka.fail(OffsetCommitRequest, Delay(1))
        fault = kafka.fail(OffsetCommitRequest, Swallow(), times=None)
        started = anyio.current_time()
        with pytest.raises(RequestTimeoutError):
            await c.commit()
        assert anyio.current_time() - started == pytest.approx(5)
        fault.stop()
        commits = recorded_requests(kafka, OffsetCommitRequest)
        await c.commit()
        # Those without a response once more: the earlier commit may still be executed.
        assert commits == [[2, 3], [2, 3], [4]]
        assert kafka.committed("g", "t") == dict.fromkeys(range(5), 10)


# ---------------------------------------------------------------- work that yields


def work(story: list[str], count: int) -> Generator[None, None, str]:
    for n in range(count):
        if n:
            yield
        story.append(f"slice {n}")
    return "done"


async def noted(story: list[str], count: int, *, first: bool) -> str:
    """Run the work while another task records each of its turns."""

    async def turn() -> None:
        while True:
            story.append("other")
            await anyio.lowlevel.checkpoint()

    sliced = Slices(work(story, count))
    if first:
        sliced.do_one()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn)
        result = await sliced.do_rest()
        tasks.cancel_scope.cancel()
    return result


async def test_other_tasks_run_between_two_slices() -> None:
    story: list[str] = []
    assert await noted(story, 3, first=False) == "done"
    # trio runs the tasks that are ready in any order: the other one may miss one gap, not both.
    assert "other" in story[story.index("slice 0") : story.index("slice 2")]


async def test_one_slice_runs_without_yielding() -> None:
    story: list[str] = []
    assert await noted(story, 1, first=False) == "done"
    assert story[0] == "slice 0"


async def test_the_first_slice_needs_no_task() -> None:
    story: list[str] = []
    sliced = Slices(work(story, 2))
    sliced.do_one()
    assert story == ["slice 0"]
    assert await sliced.do_rest() == "done"
    assert story == ["slice 0", "slice 1"]


async def test_errors_of_a_slice_are_raised() -> None:
    def fail() -> Generator[None, None, None]:
        yield
        raise ValueError("no good")

    sliced = Slices(fail())
    sliced.do_one()
    with pytest.raises(ValueError, match="no good"):
        await sliced.do_rest()
