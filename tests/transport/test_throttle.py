"""How long the responses of a broker throttle this client (KIP-219), as its clients share it."""

from __future__ import annotations

import anyio
import pytest

from kafkagroup.transport.options import Address
from kafkagroup.transport.throttle import BrokerThrottle
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
    start = anyio.current_time()
    here.on_response(response(8_000))
    await anyio.sleep(1)
    here.on_response(response(2_000))
    there.on_response(response(3_000))
    assert here.throttled_until - start == pytest.approx(8)
    assert there.throttled_until - start == pytest.approx(4)
    await anyio.sleep(6)
    here.on_response(response(2_000))
    assert here.throttled_until - start == pytest.approx(9)
    assert BrokerThrottle(HERE, deadlines).throttled_until == here.throttled_until


async def test_a_response_without_a_throttle_time_throttles_nothing() -> None:
    deadlines: dict[Address, float] = {}
    throttle = BrokerThrottle(HERE, deadlines)
    for message in (response(0), response(-1), SaslHandshakeResponse(error_code=0, mechanisms=())):
        throttle.on_response(message)
    assert (throttle.throttled_until, deadlines) == (0.0, {})
