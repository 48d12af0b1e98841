"""What the queue of generations does with each call of the driver and of the application."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import anyio
import pytest

from kafkagroup.concurrency.clock import LeaseClock
from kafkagroup.errors import ConfigurationError, IllegalStateError
from kafkagroup.member.vocabulary import Compute, GenerationInfo
from kafkagroup.runtime.member.generations import Generation, GenerationQueue
from kafkagroup.runtime.member.membership_log import MembershipLog

pytestmark = pytest.mark.anyio


class Queue:
    """A queue whose member has a lease of ten seconds."""

    def __init__(self, *, timed: bool = True) -> None:
        self.offset = 1000.0
        """How far the lease clock, which has its own zero, is ahead of the loop's."""
        self.lease_expires_at = self.lease_now() + 10.0
        self.expiries: list[float] = []
        self.queue = GenerationQueue(
            {"plain": lambda members: {"a": b"x"}},
            lambda: self.lease_expires_at,
            lambda: self.expiries.append(anyio.current_time()),
            max_stall=7.0,
            log=MembershipLog("member", "c", "g"),
            timed=timed,
        )
        self.queue.bind_clock(LeaseClock(self.lease_now, anyio.current_time))

    def lease_now(self) -> float:
        return anyio.current_time() + self.offset

    async def begin(self, number: int = 1) -> Generation:
        await self.queue.assign(GenerationInfo(number, "a", "a", "plain", {}, b"x"))
        assert self.queue.pending is not None
        return self.queue.pending

    def state(self) -> tuple[Generation | None, Generation | None, Generation | None]:
        queue = self.queue
        return queue.latest, queue.pending, queue.current


async def test_a_generation_is_pending_until_the_application_takes_it() -> None:
    work = Queue()
    assert work.state() == (None, None, None)
    assert (work.queue.ongoing, work.queue.is_ongoing) == (None, False)
    generation = await work.begin()
    assert work.state() == (generation, generation, None)
    assert (work.queue.ongoing, work.queue.is_ongoing) == (generation, True)
    work.queue.take(generation)
    assert work.state() == (generation, None, generation)
    work.queue.release()
    assert work.state() == (generation, None, None)
    assert not generation.over.is_set()


async def test_a_generation_ends_with_its_lease_once() -> None:
    work = Queue()
    generation = await work.begin()
    await anyio.sleep(9.9)
    assert (work.queue.is_ongoing, work.queue.ongoing) == (True, generation)
    await anyio.sleep(0.1)
    # `is_ongoing` is for other threads: it ends nothing.
    assert (work.queue.is_ongoing, generation.over.is_set(), work.expiries) == (False, False, [])
    assert (work.queue.ongoing, generation.over.is_set()) == (None, True)
    assert work.queue.ongoing is None
    assert work.expiries == [anyio.current_time()]


async def test_a_watched_lease_that_is_extended_ends_later() -> None:
    work = Queue()
    start = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.queue.watch_leases)
        await anyio.sleep(1)
        generation = await work.begin()
        await anyio.sleep(5)
        work.lease_expires_at += 5.0
        work.queue.on_lease_extended()
        assert generation.lease_expires_at == pytest.approx(start + 15)
        await generation.over.wait()
        assert work.expiries == pytest.approx([start + 15])
        # The next one is watched as well.
        work.lease_expires_at += 10.0
        later = await work.begin(2)
        await later.over.wait()
        assert work.expiries == pytest.approx([start + 15, start + 25])
        tasks.cancel_scope.cancel()


async def test_scopes_end_with_the_lease_and_move_with_it() -> None:
    work = Queue()
    start = anyio.current_time()
    generation = await work.begin()
    with generation.scope() as scope:
        assert scope.deadline == pytest.approx(start + 10)
        work.lease_expires_at += 5.0
        work.queue.on_lease_extended()
        assert scope.deadline == pytest.approx(start + 15)
        # A suspend, which the loop's clock does not count, brings the end nearer.
        work.offset += 14.5
        assert work.queue.ongoing is generation
        assert scope.deadline == pytest.approx(start + 0.5)
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert anyio.current_time() == pytest.approx(start + 0.5)


async def test_beside_a_heartbeat_thread_scopes_have_no_deadline() -> None:
    """After a blocked loop resumes, the deadline would cancel them before the loop has seen that
    the lease was extended."""
    work = Queue(timed=False)
    generation = await work.begin()
    with generation.scope() as scope:
        assert scope.deadline == float("inf")
        work.queue.on_lease_extended()
        assert scope.deadline == float("inf")
        await anyio.sleep(20)
        assert not scope.cancel_called
        assert work.queue.ongoing is None
        assert scope.cancel_called


async def test_beside_a_heartbeat_thread_a_scope_after_the_lease_is_cancelled() -> None:
    """Nothing has noticed the end of the lease yet, and no deadline cancels the scope."""
    work = Queue(timed=False)
    generation = await work.begin()
    called = {}
    for seconds in (9.5, 0.5):
        await anyio.sleep(seconds)
        with generation.scope() as scope:
            called[seconds] = scope.cancel_called
    assert called == {9.5: False, 0.5: True}
    assert not generation.over.is_set()


def test_a_scope_in_another_event_loop_is_refused() -> None:
    """No task there would be cancelled."""

    async def begin() -> Generation:
        return await Queue().begin()

    async def enter(generation: Generation) -> None:
        with generation.scope():
            pass

    generation = anyio.run(begin)
    with pytest.raises(IllegalStateError, match="only in the event loop that started it"):
        anyio.run(enter, generation)


@pytest.mark.parametrize("end", ["revoked", "lost", "closed", "failed"])
async def test_the_end_of_a_generation_cancels_its_scopes(end: str) -> None:
    work = Queue()
    generation = await work.begin()
    error = ConfigurationError("failed")
    with ExitStack() as stack:
        scopes = [stack.enter_context(generation.scope()) for _ in range(2)]
        match end:
            case "revoked":
                work.queue.on_generation_end(lost=False)
            case "lost":
                await work.queue.lose("it was fenced")
            case "closed":
                work.queue.close()
            case "failed":
                work.queue.on_fatal_error(error)
        assert [scope.cancel_called for scope in scopes] == [True, True]
    assert generation.over.is_set()
    assert work.expiries == []
    assert (work.queue.ongoing, work.queue.is_ongoing) == (None, False)
    assert work.queue.is_closed is (end == "closed")
    assert work.queue.error is (error if end == "failed" else None)
    with generation.scope() as late:
        assert late.cancel_called


async def test_a_revocation_waits_for_the_application_until_its_deadline() -> None:
    work = Queue()
    start = anyio.current_time()
    work.queue.take(await work.begin())
    await work.queue.revoke(start + 2)
    assert anyio.current_time() == start + 2
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.queue.revoke, start + 9)
        await anyio.sleep(3)
        work.queue.release()
    assert anyio.current_time() == start + 5


async def test_an_untaken_generation_is_revoked_at_once() -> None:
    """The application must not take it any more: other members get its work. The driver reports
    no end of a generation that one of its steps begins and revokes."""
    work = Queue()
    start = anyio.current_time()
    generation = await work.begin()
    await work.queue.revoke(start + 60)
    assert (anyio.current_time(), work.state()) == (start, (generation, None, None))
    assert generation.over.is_set()
    lost = await work.begin(2)
    await work.queue.lose("it was fenced")
    assert (lost.over.is_set(), work.state()) == (True, (lost, None, None))


async def test_the_work_of_a_closed_member_is_awaited_in_all_scopes() -> None:
    work = Queue()
    await work.queue.wait_vacated()
    start = anyio.current_time()
    generation = await work.begin()

    async def clean_up(seconds: float) -> None:
        with generation.scope(), anyio.CancelScope(shield=True):
            await anyio.sleep(seconds)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clean_up, 1)
        tasks.start_soon(clean_up, 3)
        await anyio.sleep(0.5)
        work.queue.close()
        await work.queue.wait_vacated()
        assert anyio.current_time() == start + 3


async def test_a_reported_error_is_raised_once_and_the_generation_is_taken_again() -> None:
    work = Queue()
    generation = await work.begin()
    work.queue.take(generation)
    work.queue.raise_error()
    work.queue.on_error(ConfigurationError("reported"))
    assert work.queue.has_report
    work.queue.release()
    with pytest.raises(ConfigurationError, match="reported"):
        work.queue.raise_error()
    assert not work.queue.has_report
    assert work.queue.pending is generation
    work.queue.raise_error()
    work.queue.on_fatal_error(ConfigurationError("failed"))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="failed"):
            work.queue.raise_error()


async def test_every_change_wakes_the_application() -> None:
    work = Queue()
    queue = work.queue
    seen: list[int] = []

    async def watch() -> None:
        while True:
            await queue.changed.wait()
            seen.append(len(seen))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        await work.begin()
        await anyio.wait_all_tasks_blocked()
        changes = [
            queue.release,
            lambda: queue.report(ConfigurationError("reported")),
            lambda: queue.on_fatal_error(ConfigurationError("failed")),
            queue.close,
        ]
        for change in changes:
            change()
            await anyio.wait_all_tasks_blocked()
        assert len(seen) == 5
        tasks.cancel_scope.cancel()


async def test_an_event_loop_may_stall_for_the_limit() -> None:
    assert Queue().queue.poll_due_at(100.0) == 107.0


async def test_every_member_gets_what_the_strategy_of_the_group_assigned() -> None:
    work = Queue()

    async def computed(name: str) -> Mapping[str, bytes]:
        return await work.queue.compute(
            Compute(token=1, protocol_name=name, members={"a": b"", "b": b""}, instance_ids={})
        )

    assert await computed("plain") == {"a": b"x", "b": b""}
    work.queue.strategies = {"new": lambda members: {"b": b"y", "c": b""}}
    with pytest.raises(ConfigurationError, match=r"'new' assigned to unknown members: \['c'\]"):
        await computed("new")
    work.queue.strategies = {"new": lambda members: {"b": b"y"}}
    assert await computed("new") == {"a": b"", "b": b"y"}


async def test_a_generation_shows_its_number_member_and_leadership() -> None:
    clock = LeaseClock(anyio.current_time, anyio.current_time)
    members = {"a": b"1", "b": b"2"}
    leading = Generation(
        GenerationInfo(3, "a", "a", "plain", members, b"x"), 1.0, clock, timed=True
    )
    following = Generation(GenerationInfo(3, "b", "a", "plain", {}, b""), 1.0, clock, timed=True)
    assert (repr(leading), repr(following)) == (
        "<Generation 3 of a, leads>",
        "<Generation 3 of b>",
    )
    assert (leading.is_leader, following.is_leader, following.leader_id) == (True, False, "a")
    assert (leading.members, leading.assignment, leading.protocol_name) == (members, b"x", "plain")
