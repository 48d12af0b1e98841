"""The application of a simulated process records what its consumer has done."""

import anyio
import pytest

from kafkagroup import TopicPartition
from kafkagroup.errors import AuthenticationError, NotAssignedError, OffsetOutOfRangeError
from verification.sim.events import Polling, Raised, Sought
from verification.sim.process import Process
from verification.sim.schedule import MemberPlan

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)


def _recorded():
    """Return a process, and the list of the events that it records."""
    plan = MemberPlan(name="a", start=0.0, topics=("t",), assignors=("range",), persists=True)
    recorded = []

    def record_event(kind, **fields):
        recorded.append(kind(time=anyio.current_time() - began, **fields))

    began = anyio.current_time()
    return Process("a", plan, "broker:9092", "seed", record_event, lambda _: ()), recorded


async def test_a_seek_is_recorded_only_if_the_consumer_accepts_it():
    """A revocation began while the application looked up an offset. Its seek was refused, but
    recorded: the checker then required a commit of the offset that it had sought to."""
    process, recorded = _recorded()
    delivery = process.consumer._delivery
    delivery.assign(delivery.create([T0]))
    process._seek(T0, 5)
    assert recorded == [Sought(time=0.0, member="a", partition=T0, offset=5)]
    assert process.is_behind({T0: 6})
    delivery.revoke([T0])
    with pytest.raises(NotAssignedError):
        process._seek(T0, 9)
    assert len(recorded) == 1
    assert process.is_behind({T0: 6})  # from 5 on, as before


@pytest.mark.parametrize(
    ("error", "pause"), [(AuthenticationError("refused"), 1.0), (OffsetOutOfRangeError({T0: 9}), 0)]
)
async def test_the_first_poll_after_an_error_is_recorded(error, pause):
    """The checker cannot tell otherwise when the application waits for records again."""
    process, recorded = _recorded()
    outcomes = [error, None, None]

    async def take():
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        process._stopping = not outcomes

    process._take_each = take
    await process._consume()
    assert outcomes == []
    raised = Raised(time=0.0, member="a", error=type(error).__name__)
    assert recorded == [raised, Polling(time=pause, member="a")]
