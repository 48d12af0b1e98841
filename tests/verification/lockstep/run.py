"""Run a script on two coordinators, in step, until their responses differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from .compare import Difference, Names, compare
from .coordinator import Coordinator
from .embedded import EmbeddedCoordinator
from .requests import topic_id
from .script import Ask, Clients, Script, Step, Topics, Wait
from .targets import follow
from .wire import decode_response, encode_request

__all__ = ["Divergence", "Side", "run"]

_APART_MS = 1
"""Milliseconds between requests: no two deadlines that requests set are due together."""


@attrs.frozen
class Divergence:
    """The first step whose responses differ."""

    index: int
    """Of the step."""
    asked: Ask
    """The request with the different answer; it may be older than the step."""
    differences: Sequence[Difference]
    left: Any
    """The decoded answers; None for a coordinator that has not answered."""
    right: Any

    @property
    def kind(self) -> tuple[str, str]:
        """What to preserve when a script gets shorter: the request's name, and the field."""
        return type(self.asked.request).__name__, self.differences[0].path


class Side:
    """One coordinator, its clients, and the requests that it has not answered."""

    def __init__(self, coordinator: Coordinator, seed: int) -> None:
        self.coordinator = coordinator
        self.clients = Clients()
        self.names = Names()
        self._pending: dict[int, tuple[int, Ask]] = {}
        coordinator.reset(seed)

    def take(self, index: int, step: Step) -> dict[int, tuple[Ask, Any]]:
        """Take a step. Returns the responses that came: index of the request -> both."""
        coordinator = self.coordinator
        match step:
            case Wait():
                coordinator.advance(step.milliseconds)
            case Topics():
                coordinator.set_topics({name: (topic_id(name, i), n) for name, i, n in step.topics})
            case Ask():
                coordinator.advance(_APART_MS)
                request = self.clients.resolve(step.request)
                data = encode_request(request, step.version, step.client)
                try:
                    ticket = coordinator.submit(data)
                except Exception as error:
                    # A fault of the embedded coordinator: the other one never raises here.
                    return {index: (step, error)}
                self._pending[ticket] = (index, step)
        return dict(map(self._answer, coordinator.responses()))

    def _answer(self, came: tuple[int, bytes]) -> tuple[int, tuple[Ask, Any]]:
        ticket, data = came
        index, ask = self._pending.pop(ticket)
        if not data:
            return index, (ask, "connection closed")
        response = decode_response(ask.request, ask.version, data)
        if ask.is_honest:
            self.clients.learn(ask.client, response)
        return index, (ask, response)


def run(script: Script, left: Coordinator, right: Coordinator) -> Divergence | None:
    """Return the first divergence, or None if the coordinators agree to the end."""
    one, other = Side(left, script.seed), Side(right, script.seed)
    if isinstance(right, EmbeddedCoordinator):
        follow(right, left)
    for index, step in enumerate(script.steps):
        mine, theirs = one.take(index, step), other.take(index, step)
        for asked in sorted(mine.keys() | theirs.keys()):
            ask, response = mine.get(asked) or (theirs[asked][0], None)
            other_response = theirs.get(asked, (ask, None))[1]
            differences = compare(response, other_response, ask.version, one.names, other.names)
            if differences:
                return Divergence(index, ask, differences, response, other_response)
    return None
