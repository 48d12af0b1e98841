"""How long the responses of a broker throttle this client (KIP-219), as its clients share it."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from kafkagroup.transport.options import Address
from kafkagroup.transport.throttle import BrokerThrottle, forget_ended
from kafkagroup.wire.messages.group import HeartbeatResponse
from kafkagroup.wire.messages.sasl import SaslHandshakeResponse

pytestmark = pytest.mark.anyio

HERE, THERE = ("kafka-1", 9092), ("kafka-2", 9092)


def response(throttle_time_ms: int) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=0, throttle_time_ms=throttle_time_ms)


async def test_the_throttle_that_ends_last_counts() -> None:
    """A shorter one in a later response ends no longer one, nor does one of another broker."""
    deadlines: dict[Address, float] = {}
    here, there = BrokerThrottle(HERE, deadlines), BrokerThrottle(THERE, deadlines)
    here.on_response(response(8_000))
    await anyio.sleep(1)
    here.on_response(response(2_000))
    there.on_response(response(3_000))
    assert (here.seconds_left, there.seconds_left) == (pytest.approx(7), pytest.approx(3))
    await anyio.sleep(6)
    here.on_response(response(2_000))
    assert here.seconds_left == BrokerThrottle(HERE, deadlines).seconds_left == pytest.approx(2)
    assert deadlines.keys() == {HERE, THERE}
    forget_ended(deadlines)
    assert deadlines.keys() == {HERE}


async def test_a_wait_ends_with_the_throttle_that_ends_last() -> None:
    throttle = BrokerThrottle(HERE, {})
    throttle.on_response(response(3_000))
    began_at = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(throttle.wait)
        await anyio.sleep(2)
        throttle.on_response(response(3_000))
    assert anyio.current_time() - began_at == pytest.approx(5)
    await throttle.wait()
    assert anyio.current_time() - began_at == pytest.approx(5), "nothing is left to wait for"


async def test_a_suspend_does_not_prolong_a_throttle(suspend: Callable[[float], None]) -> None:
    """The broker goes on counting, as the session does: a heartbeat was late by the suspend."""
    throttle = BrokerThrottle(HERE, {})
    throttle.on_response(response(5_000))
    began_at = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(throttle.wait)
        await anyio.sleep(1)
        suspend(60)
    assert anyio.current_time() - began_at == pytest.approx(1, abs=0.11)
    assert throttle.seconds_left == 0


async def test_a_response_without_a_throttle_time_throttles_nothing() -> None:
    deadlines: dict[Address, float] = {}
    throttle = BrokerThrottle(HERE, deadlines)
    for message in (response(0), response(-1), SaslHandshakeResponse(error_code=0, mechanisms=())):
        throttle.on_response(message)
    assert (throttle.seconds_left, deadlines) == (0.0, {})
