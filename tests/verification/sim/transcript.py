"""A run as text: one line per event; consecutive deliveries share a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from kafkagroup import TopicPartition

from .events import (
    Appended,
    Assigned,
    Committed,
    Connecting,
    Delivered,
    Event,
    Faulted,
    Formed,
    OfMember,
    Processed,
    Responded,
    Sent,
    Stored,
    Worked,
)

__all__ = ["transcript"]

_BEATS = "ConsumerGroupHeartbeat"
"""Heartbeats are shown only if they report or change something."""

_QUIET = ("Heartbeat", "Fetch", "Metadata", "ApiVersions", "FindCoordinator")
"""Requests that are shown only if they fail."""


def transcript(
    events: Sequence[Event], *, wire: bool = True, marks: Iterable[Event] = ()
) -> Iterator[str]:
    """Yield the lines, with an arrow before those of `marks`."""
    marked = {id(event) for event in marks}
    run: list[Delivered] = []
    for event in events:
        if isinstance(event, Delivered) and id(event) not in marked:
            if run and (run[-1].member, run[-1].partition) != (event.member, event.partition):
                yield _delivered(run)
                run = []
            run.append(event)
            continue
        if id(event) not in marked and not _is_listed(event, wire):
            continue
        if run:
            yield _delivered(run)
            run = []
        arrow = "=>" if id(event) in marked else "  "
        who = event.member if isinstance(event, OfMember) else ""
        yield f"{arrow} {event.time:8.3f} {who:8} {_text(event)}".rstrip()
    if run:
        yield _delivered(run)


def _is_listed(event: Event, wire: bool) -> bool:
    match event:
        case Appended() | Processed() | Worked() | Connecting():
            return False
        case Sent(api=api) if api == _BEATS:
            return wire and (event.generation <= 0 or event.owned is not None)
        case Responded(api=api, error="NONE") if api == _BEATS:
            return wire and event.assigned is not None
        case Sent(api=api):
            return wire and api not in _QUIET
        case Responded(api=api, error=error):
            return wire and (api not in _QUIET or error != "NONE")
    return True


def _delivered(run: Sequence[Delivered]) -> str:
    first, last = run[0], run[-1]
    offsets = [event.offset for event in run]
    steady = offsets == list(range(first.offset, first.offset + len(run)))
    shown = f"{first.offset}-{last.offset}" if steady and len(run) > 1 else _many(offsets)
    return f"   {first.time:8.3f} {first.member:8} delivered {first.partition} {shown}"


def _many(offsets: Sequence[int]) -> str:
    return ",".join(map(str, offsets))


def _text(event: Event) -> str:
    match event:
        case Faulted(text=text):
            return f"*** {text}"
        case Sent():
            return " ".join(["->", event.api, f"#{event.connection}", *_details(event)])
        case Responded():
            return " ".join(
                ["<-", event.api, f"#{event.connection}", event.error, *_details(event)]
            )
        case Stored():
            return (
                f"broker stored {event.partition} {event.offset} of generation {event.generation}"
            )
        case Formed():
            shares = (f"{m[:8]}: {_partitions(tps)}" for m, tps in event.assignment.items())
            return f"generation {event.generation} ({event.protocol}) " + "; ".join(shares)
        case Assigned():
            return f"assigned {_partitions(event.partitions)} in generation {event.generation}"
        case Committed():
            return f"commit {event.token}: {event.outcome}"
    fields = attrs.asdict(event, recurse=False)
    shown = (f"{key}={_value(v)}" for key, v in fields.items() if key not in ("time", "member"))
    return " ".join([type(event).__name__.lower(), *shown])


def _details(event: Sent | Responded) -> Iterator[str]:
    if event.generation >= 0 or event.api == _BEATS:
        yield f"generation={event.generation}"
    if event.offsets:
        yield _value(event.offsets)
    if isinstance(event, Sent) and (event.owned or (event.api == _BEATS and event.owned == ())):
        yield f"owned={_partitions(event.owned)}"
    if isinstance(event, Responded) and event.assigned is not None:
        yield f"assigned={_partitions(event.assigned)}"


def _partitions(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(map(str, partitions)) or "nothing"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}:{item}" for key, item in value.items())
    if isinstance(value, tuple):
        return _partitions(value)
    return str(value)
