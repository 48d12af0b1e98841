"""How long a broker asked this client to wait before the next request (KIP-219)."""

from __future__ import annotations

from kafkagroup.transport.clock import loop_clock

__all__ = ["BrokerThrottle"]

_MAX_THROTTLE = 30.0
"""Seconds. A longer throttle time is a bug or an attack; it is cut to this."""


class BrokerThrottle:
    """The throttle of one address. All connections to that address share it."""

    def __init__(self) -> None:
        self.throttled_until = 0.0
        """When requests may be sent again, on the loop's clock."""

    def on_response(self, message: object) -> None:
        """Extend the throttle by what a response asks for."""
        # KIP-219: the broker responds first and throttles after; it counts on us to hold back.
        throttle = min(getattr(message, "throttle_time_ms", 0) / 1000, _MAX_THROTTLE)
        if throttle > 0:
            # Not `anyio.current_time`: this may be called outside of any task, where it fails.
            self.throttled_until = max(self.throttled_until, loop_clock()() + throttle)
