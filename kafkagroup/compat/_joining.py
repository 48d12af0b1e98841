"""Wait for a consumer's first assignment, as the originals do in their starts."""

from __future__ import annotations

import math

import anyio

from kafkagroup import Consumer
from kafkagroup.errors import JoinFailedError

__all__ = ["wait_for_assignment"]


async def wait_for_assignment(consumer: Consumer, timeout: float, option: str) -> None:
    """Wait until the group has assigned partitions to a started consumer, possibly none.

    `timeout` is in seconds, `option` its name and value for the message. Raises: JoinFailedError
    after the timeout, when the consumer is closed; the error that ended the membership. A
    cancellation leaves the consumer joining.
    """
    with anyio.move_on_after(timeout) as scope:
        await consumer.wait_assignment()
    if not scope.cancelled_caught:
        return
    health = consumer.health(joining_after=math.inf)  # that it has not joined is known
    cause = "its other members may not have released their partitions" if health else str(health)
    await consumer.stop(commit=False)
    raise JoinFailedError(f"{consumer!r}: the group assigned nothing within {option}; {cause}")
