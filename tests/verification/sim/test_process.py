"""The application of a simulated process records what its consumer has done."""

import pytest

from kafkagroup import TopicPartition
from kafkagroup.errors import NotAssignedError
from verification.sim.events import Sought
from verification.sim.process import Process
from verification.sim.schedule import MemberPlan

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)


async def test_a_seek_is_recorded_only_if_the_consumer_accepts_it():
    """A revocation began while the application looked up an offset. Its seek was refused, but
    recorded: the checker then required a commit of the offset that it had sought to."""
    plan = MemberPlan(name="a", start=0.0, topics=("t",), assignors=("range",))
    recorded = []

    def record_event(kind, **fields):
        recorded.append(kind(time=0.0, **fields))

    process = Process("a", plan, "broker:9092", "seed", record_event, lambda _: ())
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
