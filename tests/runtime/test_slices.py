"""Work in slices: others run between two, and nowhere else."""

from __future__ import annotations

from collections.abc import Generator

import anyio
import pytest

from kafkagroup.runtime.slices import Slices

pytestmark = pytest.mark.anyio


def work(story: list[str], count: int) -> Generator[None, None, str]:
    for n in range(count):
        if n:
            yield
        story.append(f"slice {n}")
    return "done"


async def noted(story: list[str], count: int, *, first: bool) -> str:
    """Do the work while another task notes each of its turns."""

    async def turn() -> None:
        while True:
            story.append("other")
            await anyio.lowlevel.checkpoint()

    slices = Slices(work(story, count))
    if first:
        slices.do_one()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn)
        result = await slices.do_rest()
        tasks.cancel_scope.cancel()
    return result


async def test_other_tasks_run_between_two_slices() -> None:
    story: list[str] = []
    assert await noted(story, 3, first=False) == "done"
    # trio runs the tasks that are ready in any order: the other one may miss one gap, not both.
    assert "other" in story[story.index("slice 0") : story.index("slice 2")]


async def test_one_slice_keeps_the_loop() -> None:
    story: list[str] = []
    assert await noted(story, 1, first=False) == "done"
    assert story[0] == "slice 0"


async def test_the_first_slice_needs_no_task() -> None:
    story: list[str] = []
    slices = Slices(work(story, 2))
    slices.do_one()
    assert story == ["slice 0"]
    assert await slices.do_rest() == "done"
    assert story == ["slice 0", "slice 1"]


async def test_what_the_work_raises_is_raised() -> None:
    def fail() -> Generator[None, None, None]:
        yield
        raise ValueError("no good")

    slices = Slices(fail())
    slices.do_one()
    with pytest.raises(ValueError, match="no good"):
        await slices.do_rest()
