"""What follows when a broker refuses a request about a partition: the error is raised and reported,
and the request is repeated after a back-off.

The cause may end without the application: an ACL is granted, a disk is replaced. So a refused
partition does not wait for a seek. A partition waits for a seek only if the client itself finds
damage in its data, or if only the application can choose its position.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable

from kafkagroup._backoff import backoff
from kafkagroup._text import escaped
from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.consume.owned import OwnedPartition
from kafkagroup.errors import AuthorizationError, BrokerError
from kafkagroup.runtime.consume.error_channel import ErrorChannel
from kafkagroup.transport.options import ClientOptions
from kafkagroup.transport.trouble import Problem, Troubles

__all__ = ["Refusals", "retry_time"]


class Refusals:
    """The refusals of one consumer's partitions."""

    def __init__(self, errors: ErrorChannel, troubles: Troubles, options: ClientOptions) -> None:
        self._errors = errors
        self._troubles = troubles
        self._options = options
        self._clock = loop_clock()

    def refuse(
        self, owned: OwnedPartition, error: BrokerError, about: Hashable | None = None
    ) -> None:
        """Report a refusal, and let the application's next call raise it, at most once a minute.
        The caller of `refuse` repeats the request after a back-off.

        `about`: what is refused, if not this partition alone, such as all fetches from a broker:
        the error is then raised for all partitions together.
        """
        if owned.revoked:
            return
        self._errors.refuse_partition(owned, error, owned.tp if about is None else about)
        problem = Problem(
            subject=f"reading topic {escaped(owned.tp.topic)}",
            cause=str(BrokerError(error.code)),  # without the partition: one warning for all
            advice=_advice(error),
            has_own_finding=True,  # `health()` reports refused partitions by itself
        )
        self._troubles.failed(("refused", owned.tp), self._clock(), problem)

    def refuse_look_up(
        self, owned: OwnedPartition, error: BrokerError, about: Hashable | None = None
    ) -> None:
        """Do as `refuse` for a look-up of the position, and set `owned.look_up_at`: when to repeat
        it."""
        now = self._clock()
        owned.look_up_at = retry_time(self._options, owned.count_failure(), now)
        self.refuse(owned, error, about)

    def end(self, owned: OwnedPartition) -> None:
        """Note that a request about the partition has succeeded."""
        owned.refusal = None
        if self._troubles.ongoing:  # else no failure to end
            self._troubles.succeeded(("refused", owned.tp), self._clock())


def retry_time(options: ClientOptions, attempts: int, now: float) -> float:
    """Return when to repeat the requests about a partition, after `attempts` failures in a row.
    Both times are on the loop's clock.

    The time is rounded up to full ticks, so that one request repeats those about a hundred
    partitions. Ticks grow with the back-off: with short ticks, ten brokers would get many requests
    a second.
    """
    first, most = options.retry_backoff, options.retry_backoff_max
    pause = backoff(attempts, first, most, random.random())
    tick = max(2 * first, backoff(attempts, first, most, 0.5) / 2)  # 0.5: the mean, without jitter
    return math.ceil((now + pause) / tick) * tick


def _advice(error: BrokerError) -> str:
    if isinstance(error, AuthorizationError) and error.operation:
        return f"allow this principal {error.operation} on {error.resource}; the client asks again"
    return "check the logs of the partition's brokers; the client asks again"
