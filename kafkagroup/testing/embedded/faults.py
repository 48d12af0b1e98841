"""What goes wrong on purpose: rules that are asked before each request is handled, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kafkagroup.errors import ErrorCode
from kafkagroup.wire.schema import Request

__all__ = ["Action", "Close", "Delay", "Fault", "Faults", "Swallow", "Throttle"]


@attrs.frozen
class Close:
    """Close the connection instead of answering."""

    before: bool = False
    """Whether also before the request is carried out. False loses only the answer."""


@attrs.frozen
class Swallow:
    """Carry the request out, never answer. What is behind it on the connection waits too."""


@attrs.frozen
class Delay:
    """Carry the request out, answer later. What is behind it on the connection waits too."""

    seconds: float


@attrs.frozen
class Throttle:
    """Carry the request out, answer at once, and ask for silence (KIP-219): what comes on this
    connection meanwhile waits until it is over. Answers that are too old to ask for it say nothing.
    """

    seconds: float


Action = ErrorCode | Close | Swallow | Delay | Throttle
"""An error code is the answer, and the request is not carried out."""


@attrs.define(eq=False)
class Fault:
    """One rule, and how often it has struck."""

    api: type[Request[Any]]
    """The requests that it is for."""
    action: Action
    times: int | None = 1
    """How many it strikes; None for all until `stop`."""
    node_id: int | None = None
    """The node that it is for; None for any."""
    when: Callable[[Any], bool] | None = None
    """Which of the requests; None for any."""
    hits: int = 0

    def stop(self) -> None:
        """Strike no more."""
        self.times = self.hits

    def takes(self, node_id: int, request: Request[Any]) -> bool:
        """Whether it strikes this request; counted if so."""
        strikes = (
            type(request) is self.api
            and (self.times is None or self.hits < self.times)
            and self.node_id in (None, node_id)
            and (self.when is None or self.when(request))
        )
        self.hits += strikes
        return strikes


class Faults:
    """All rules; of several that fit, the oldest strikes."""

    def __init__(self) -> None:
        self.rules: list[Fault] = []

    def action(self, node_id: int, request: Request[Any]) -> Action | None:
        """What is to go wrong with this request."""
        return next((rule.action for rule in self.rules if rule.takes(node_id, request)), None)
