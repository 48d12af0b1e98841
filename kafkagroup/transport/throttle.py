"""How long a broker asked this client to wait before the next request (KIP-219)."""

from __future__ import annotations

from kafkagroup.concurrency.clock import loop_clock
from kafkagroup.transport.options import Address

__all__ = ["BrokerThrottle"]

_MAX_THROTTLE = 30.0
"""Seconds. A longer throttle time is a bug or an attack; it is cut to this."""


class BrokerThrottle:
    """The throttle of one address. All clients of that address share it, and all connections."""

    def __init__(self, address: Address, deadlines: dict[Address, float]) -> None:
        """`deadlines`: the address of each throttled broker -> when requests may be sent again, on
        the loop's clock. Its owner may remove those that have passed."""
        self._address = address
        self._deadlines = deadlines

    @property
    def throttled_until(self) -> float:
        """When requests may be sent again; 0 if the broker does not throttle."""
        return self._deadlines.get(self._address, 0.0)

    def on_response(self, message: object) -> None:
        """Extend the throttle by what a response asks for."""
        # KIP-219: the broker responds at once, and expects the client to wait before the next
        # request.
        throttle = min(getattr(message, "throttle_time_ms", 0) / 1000, _MAX_THROTTLE)
        if throttle > 0:
            # Not `anyio.current_time`: this may be called outside of any task, where it fails.
            until = loop_clock()() + throttle
            self._deadlines[self._address] = max(self.throttled_until, until)
