"""Wait for a consumer's first assignment, as kiel's and pykafka's consumers do when they start."""

from __future__ import annotations

import math

import anyio

from kafkagroup import Consumer
from kafkagroup.errors import JoinFailedError

__all__ = ["wait_for_assignment"]


async def wait_for_assignment(consumer: Consumer, timeout: float, option: str) -> None:
    """Wait until the group has assigned partitions to a started consumer, possibly none.

    `timeout` is in seconds; `option` is "NAME=VALUE" of the option that sets it, for the message.
    After the timeout, stop the consumer without a commit, and raise JoinFailedError. Raises also
    the error that ended the membership. A cancellation leaves the consumer joining.
    """
    with anyio.move_on_after(timeout) as scope:
        await consumer.wait_assignment()
    if not scope.cancelled_caught:
        return
    # The message says already that the consumer has not joined: with `inf`, `health` reports only
    # other problems.
    health = consumer.health(joining_after=math.inf)
    is_well = health.healthy
    cause = "its other members may not have released their partitions" if is_well else str(health)
    await consumer.stop(commit=False)
    raise JoinFailedError(f"{consumer!r}: the group assigned nothing within {option}; {cause}")
