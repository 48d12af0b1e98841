"""kafka-python's `Heartbeat`: the times of heartbeats and of the session. It sends nothing.

The `Heartbeat` of a coordinator reads the times from the metrics of its member. A separate one has
the times that its caller sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from kafkagroup import ConfigurationError, GroupMetrics

__all__ = ["Heartbeat"]


class Heartbeat:
    """When the last heartbeat was sent and answered, and when the next one is due.

    Times are seconds on the monotonic clock: the wall clock may jump. -inf stands for never.
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = {
        "heartbeat_interval_ms": 3000,
        "session_timeout_ms": 30000,
    }

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        observed: Callable[[], GroupMetrics] | None = None,
        **configs: Any,
    ) -> None:
        """Configs that are not in DEFAULT_CONFIG are ignored. `clock` returns the time in seconds.
        `observed` returns the metrics of the member whose heartbeats these are; None if the caller
        sets the times. Raises: ConfigurationError."""
        self.config = {k: configs.get(k, default) for k, default in self.DEFAULT_CONFIG.items()}
        self.interval: float = self.config["heartbeat_interval_ms"] / 1000
        self.timeout: float = self.config["session_timeout_ms"] / 1000
        if self.interval > self.timeout:
            raise ConfigurationError(
                f"heartbeat_interval_ms={self.config['heartbeat_interval_ms']} must not be more"
                f" than session_timeout_ms={self.config['session_timeout_ms']}"
            )
        self._clock = clock
        self._observed = observed
        self.last_send = float("-inf")
        self.last_receive = float("-inf")
        self.last_reset = clock()

    def metrics(self) -> GroupMetrics:
        """Return the member's metrics; empty ones without a member."""
        return GroupMetrics() if self._observed is None else self._observed()

    def _update(self) -> float:
        """Read when the member last sent and received a heartbeat; return the time now."""
        now = self._clock()
        if self._observed is not None:
            found = self._observed()
            self.last_send = max(self.last_send, now - found.last_heartbeat_seconds_ago)
            if found.session_seconds_left > 0:
                # The session ends one timeout after the last acknowledged heartbeat was sent. So
                # this is when that heartbeat was sent, a little before the response to it.
                received_at = now + found.session_seconds_left - self.timeout
                self.last_receive = max(self.last_receive, received_at)
        return now

    def sent_heartbeat(self) -> None:
        """Record that a heartbeat was sent."""
        self.last_send = self._clock()

    def received_heartbeat(self) -> None:
        """Record that a heartbeat was answered."""
        self.last_receive = self._clock()

    def reset_session_timeout(self) -> None:
        """Restart the session timeout."""
        self.last_reset = self._clock()

    def ttl(self) -> float:
        """Seconds until the next heartbeat is due."""
        now = self._update()
        return max(0.0, max(self.last_send, self.last_reset) + self.interval - now)

    def should_heartbeat(self) -> bool:
        """Whether a heartbeat is due."""
        return self.ttl() == 0

    def session_expired(self) -> bool:
        """Whether no heartbeat was answered for the length of the session timeout."""
        now = self._update()
        return now - max(self.last_receive, self.last_reset) > self.timeout
