"""Plant a bug: a patch of the product, active while its context is entered, in the test process
only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import attrs

from kafkagroup.member.ownership import Ownership
from kafkagroup.member.vocabulary import Leave, Replied, WakeAt, Woke
from kafkagroup.runtime.consume import engine as engines
from kafkagroup.runtime.member import driver as drivers

__all__ = [
    "Bug",
    "Planter",
    "after_step",
    "around",
    "around_step",
    "before_step",
    "bug",
    "change_lease",
    "heartbeats_while_waiting",
    "left",
    "mistake",
    "own_only_if",
    "replace",
    "reset_without_asking",
    "response_of",
    "wake",
    "with_options",
]

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
    """Replace a public attribute of the product: a change inside a class must not end its bugs."""
    if name.startswith("_") and not name.endswith("__"):
        raise ValueError(f"{name} is private: plant the bug in what is public, or in a step")
    stack.enter_context(mock.patch.object(owner, name, new))


def around(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method by the result of `make(method)`."""
    replace(stack, owner, name, wraps(getattr(owner, name))(make(getattr(owner, name))))


def with_options(stack: ExitStack, change: Callable[[Any, Any], Mapping[str, Any]]) -> None:
    """Run each consumer with other options: `change(session, spawn)` returns those that differ."""

    def make(init: Any) -> Any:
        def faulty(
            self: Any, session: Any, cluster: Any, spawn: Any, *rest: Any, **named: Any
        ) -> None:
            session.options = attrs.evolve(session.options, **change(session, spawn))
            init(self, session, cluster, spawn, *rest, **named)

        return faulty

    around(stack, engines.Engine, "__init__", make)


def before_step(stack: ExitStack, protocol: str, change: Callable[[Any, Any], Any]) -> None:
    """Step the members of a protocol with `change(member, event)`, which returns both."""
    around_step(stack, protocol, lambda step: lambda *given: step(*change(*given)))


def after_step(
    stack: ExitStack, protocol: str, change: Callable[[Any, Any, Any, tuple[Any, ...]], Any]
) -> None:
    """Go on with `change(before, event, member, effects)` instead of a step's result: the member
    before and after an event, and the effects. It returns the last two."""

    def make(step: Any) -> Any:
        return lambda before, event: change(before, event, *step(before, event))

    around_step(stack, protocol, make)


def change_lease(
    stack: ExitStack, protocol: str, change: Callable[[Ownership, float], float]
) -> None:
    """Have all code but the steps of a protocol's members get `change(ownership, expires_at)`
    instead of the time when a lease expires."""
    expires_at, is_in_step = Ownership.lease_expires_at, [False]

    def make(step: Any) -> Any:
        def stepping(*given: Any) -> Any:
            is_in_step[0] = True
            try:
                return step(*given)
            finally:
                is_in_step[0] = False

        return stepping

    def changed(self: Any) -> float:
        expires: float = expires_at.__get__(self)
        return expires if is_in_step[0] else change(self, expires)

    around_step(stack, protocol, make)
    replace(stack, Ownership, "lease_expires_at", property(changed))


def own_only_if(stack: ExitStack, protocol: str, condition: Callable[[Any], bool]) -> None:
    """Have the lease of a protocol's members count as expired unless `condition(member)` holds."""
    # With the ownership itself: another one must not get the same id.
    owning: dict[int, tuple[Ownership, bool]] = {}

    def note(before: Any, event: Any, member: Any, effects: Any) -> Any:
        owning[id(member.ownership)] = member.ownership, condition(member)
        return member, effects

    after_step(stack, protocol, note)
    change_lease(
        stack, protocol, lambda own, at: at if owning.get(id(own), (own, True))[1] else 0.0
    )


def around_step(stack: ExitStack, protocol: str, make: Callable[[Any], Any]) -> None:
    """Replace the step of a protocol's members by the result of `make(step)`."""
    _drive(stack, protocol, lambda step, _: make(step))


def _drive(stack: ExitStack, protocol: str, make: Callable[[Any, Any], Any]) -> None:
    """Replace the step of a protocol's members by the result of `make(step, application)`."""

    def driving(init: Any) -> Any:
        def faulty(self: Any, cluster: Any, run: Any, member: Any, app: Any, *rest: Any) -> None:
            if run.coordinator_assigns == (protocol == "consumer"):
                run = attrs.evolve(run, step=make(run.step, app))
            init(self, cluster, run, member, app, *rest)

        return faulty

    around(stack, drivers.Driver, "__init__", driving)


def response_of(event: Any, *kinds: type) -> Any:
    """Return the response that an event brings, if it is of one of these kinds; else None."""
    message = event.message if isinstance(event, Replied) else None
    return message if isinstance(message, kinds) else None


def mistake(stack: ExitStack, protocol: str, codes: Mapping[int, int], *kinds: type) -> None:
    """Let members take error codes of these responses for others."""

    def change(member: Any, event: Any) -> Any:
        message = response_of(event, *kinds)
        if message is not None and message.error_code in codes:
            message = attrs.evolve(message, error_code=codes[message.error_code])
            event = attrs.evolve(event, message=message)
        return member, event

    before_step(stack, protocol, change)


def left(step: Any, member: Any, event: Any, effects: Iterable[Any]) -> Any:
    """Return a member that is leaving as one that has left, with its effects."""
    gone, _ = step(attrs.evolve(member, leave_by=event.now), Woke(now=event.now))
    return gone, (*effects, Leave())


def wake(member: Any, effects: Iterable[Any], at: float) -> Any:
    """Return the member and its effects, and wake it then."""
    return member, (*effects, WakeAt(time=at))


def heartbeats_while_waiting(stack: ExitStack, protocol: str) -> None:
    """Send heartbeats only while the application waits in the client."""

    def make(step: Any, application: Any) -> Any:
        def faulty(member: Any, event: Any) -> Any:
            waits = application._session.polls.is_waiting
            if not waits and member.next_heartbeat_at <= event.now:
                member = attrs.evolve(member, next_heartbeat_at=event.now + 0.1)
            return step(member, event)

        return faulty

    _drive(stack, protocol, make)


def reset_without_asking(check: Any) -> None:
    """In place of `RangeCheck.wake`: reset the positions that a leader has refused as out of range,
    without its start and end."""
    doubted = [owned for owned in check._delivery.owned.values() if owned.is_out_of_range]
    for owned in doubted:
        owned.request_reset()
    if doubted:
        check._engine.look_up_positions()
