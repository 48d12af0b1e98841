"""How long a broker asked this client to wait before the next request (KIP-219)."""

from __future__ import annotations

from kafkagroup.concurrency.clock import lease_clock
from kafkagroup.transport.options import Address

__all__ = ["BrokerThrottle", "forget_ended"]

_MAX_THROTTLE = 30.0
"""Seconds. A longer throttle time is cut to this, so that no response stops the client for long."""


class BrokerThrottle:
    """The throttle of one address, which all connections of a client to that address share."""

    def __init__(self, address: Address, deadlines: dict[Address, float]) -> None:
        """`deadlines`: the address of each throttled broker -> when requests may be sent again, on
        the lease clock. Unlike the loop's clock, the lease clock runs while this system is
        suspended: in that time the throttle may end, and so may a member's session."""
        self._address = address
        self._deadlines = deadlines

    @property
    def seconds_left(self) -> float:
        """For how many seconds no request may be sent; 0 if the broker does not throttle."""
        until = self._deadlines.get(self._address)
        return 0.0 if until is None else max(0.0, until - lease_clock().now())

    async def wait(self) -> None:
        """Wait until requests may be sent. The throttle may be extended meanwhile."""
        await lease_clock().sleep_out(lambda: self.seconds_left)

    def on_response(self, message: object) -> None:
        """Extend the throttle to the end of the time for which a response asks the client to wait,
        if it asks."""
        # KIP-219: the broker responds at once, and expects the client to wait before the next
        # request. `getattr`, because some responses do not have the field.
        throttle = min(getattr(message, "throttle_time_ms", 0) / 1000, _MAX_THROTTLE)
        if throttle > 0:
            until = lease_clock().now() + throttle
            self._deadlines[self._address] = max(self._deadlines.get(self._address, until), until)


def forget_ended(deadlines: dict[Address, float]) -> None:
    """Remove the throttles that have ended."""
    if deadlines:  # usually there are none, and no clock need be read
        now = lease_clock().now()
        for address in [address for address, until in deadlines.items() if until <= now]:
            del deadlines[address]
