"""What compat objects do when their tasks start and stop."""

import anyio
import pytest

from kafkagroup.compat._tasks import TaskOwner
from kafkagroup.errors import ConnectionLostError

pytestmark = pytest.mark.anyio


class Failing(TaskOwner):
    """Fails to start, and to stop."""

    def __init__(self):
        super().__init__()
        self.story = []

    async def _start_tasks(self):
        self._tasks.spawn(self._work)
        await anyio.sleep(0.01)
        raise ZeroDivisionError

    async def _stop_tasks(self):
        raise ConnectionLostError("the broker is gone")

    async def _work(self):
        self.story.append("begins")
        try:
            await anyio.sleep_forever()
        finally:
            self.story.append("ends")


async def test_its_tasks_end_even_if_it_fails_to_start_and_to_stop():
    """The error of the stop left them running; on trio it left the task group open, too."""
    one = Failing()
    with pytest.raises(ConnectionLostError) as found:
        await one.__aenter__()
    assert isinstance(found.value.__context__, ZeroDivisionError)
    assert one.story == ["begins", "ends"]
