"""Plant a bug: a patch of the product, active while its context is entered, in the test process
only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import attrs

from kafkagroup.runtime.member import driver as drivers

__all__ = ["Bug", "Planter", "around", "bug", "heartbeats_while_waiting", "replace"]

Planter = Callable[[ExitStack], None]


@attrs.frozen
class Bug:
    """A bug that can be planted."""

    name: str
    breaks: frozenset[str]
    """The invariants, at least one of which must reveal it."""
    text: str
    """What is wrong, in one line."""
    plant: Callable[[], AbstractContextManager[object]]
    protocol: str = "classic"
    """The kind of runs that show it."""
    kinds: frozenset[str] = frozenset()
    """The kinds of faults that these runs must have."""


def bug(
    bugs: MutableMapping[str, Bug], protocol: str, *breaks: str, kinds: Iterable[str] = ()
) -> Callable[[Planter], Planter]:
    """Register a planter. Its docstring describes the bug."""

    def register(planter: Planter) -> Planter:
        @contextmanager
        def planted() -> Iterator[None]:
            with ExitStack() as stack:
                planter(stack)
                yield

        name = planter.__name__.strip("_")
        bugs[name] = Bug(
            name, frozenset(breaks), planter.__doc__ or "", planted, protocol, frozenset(kinds)
        )
        return planter

    return register


def replace(stack: ExitStack, owner: Any, name: str, new: Any) -> None:
    """Replace an attribute of the product."""
    stack.enter_context(mock.patch.object(owner, name, new))


def around(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method by the result of `make(method)`."""
    replace(stack, owner, name, wraps(getattr(owner, name))(make(getattr(owner, name))))


def heartbeats_while_waiting(stack: ExitStack, step_type: type) -> None:
    """Send heartbeats only while the application waits in the client, in either protocol."""
    waits = True

    def stepping(step: Any) -> Any:
        def steps(self: Any, event: Any, tasks: Any) -> None:
            nonlocal waits
            waits = self._application._session.polls.is_waiting
            step(self, event, tasks)

        return steps

    def heartbeat_in_flight(beat: Any) -> Any:
        def beats(self: Any) -> None:
            if waits:
                beat(self)
            elif self.member.next_heartbeat_at <= self.now:
                self._set(next_heartbeat_at=self.now + 0.1)

        return beats

    around(stack, drivers.Driver, "_step", stepping)
    around(stack, step_type, "_heartbeat_when_due", heartbeat_in_flight)
