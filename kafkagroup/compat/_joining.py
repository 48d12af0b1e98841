"""Wait for a consumer's first assignment, as the originals do in their starts."""

from __future__ import annotations

import math

import anyio

from kafkagroup import Consumer
from kafkagroup.errors import JoinFailedError

__all__ = ["wait_for_assignment"]


async def wait_for_assignment(consumer: Consumer, timeout: float, option: str) -> None:
    """Wait until the group has assigned partitions to a started consumer, possibly none.

    `timeout` is in seconds; `option` is the name and value of the option that it is from, for the
    message. Raises: JoinFailedError after the timeout, when it has stopped the consumer without a
    commit; the error that ended the membership. A cancellation leaves the consumer joining.
    """
    with anyio.move_on_after(timeout) as scope:
        await consumer.wait_assignment()
    if not scope.cancelled_caught:
        return
    # It is known that the consumer has not joined: `inf` leaves this out, and finds other problems.
    health = consumer.health(joining_after=math.inf)
    is_well = health.healthy
    cause = "its other members may not have released their partitions" if is_well else str(health)
    await consumer.stop(commit=False)
    raise JoinFailedError(f"{consumer!r}: the group assigned nothing within {option}; {cause}")
