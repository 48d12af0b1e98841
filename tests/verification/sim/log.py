"""Recorded events as a file: one event per line, as JSON, read and written as a stream.

    {"event": "Delivered", "time": 3.25, "member": "m1", "partition": "t/0", "offset": 7, ...}

A partition is "topic/number"; offsets are an object with partitions as keys. Omitted fields have
their defaults. Logs of several processes with a common clock are merged by time; at equal times,
the earlier log comes first.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, get_args, get_origin, get_type_hints

import attrs

from kafkagroup import TopicPartition

from . import events as vocabulary
from .events import Event

__all__ = ["from_line", "merged", "read", "to_line", "write"]

_Convert = Callable[[Any], Any]


def write(events: Iterable[Event], to: TextIO) -> None:
    """Write each event as a line."""
    for event in events:
        to.write(to_line(event) + "\n")


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a file, lazily.

    An incomplete last line, as SIGKILL leaves it, is ignored. Raises: ValueError for a line that is
    not an event.
    """
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield from_line(line)


def merged(logs: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """Merge logs, each in order of time, into one in order of time."""
    return heapq.merge(*logs, key=lambda event: event.time)


def to_line(event: Event) -> str:
    """Return one event as a line, without the newline."""
    raw: dict[str, Any] = {"event": type(event).__name__}
    for name, default, to_json, _ in _FIELDS[type(event)]:
        value = getattr(event, name)
        if value != default:
            raw[name] = value if to_json is None else to_json(value)
    return json.dumps(raw)


def from_line(line: str) -> Event:
    """Parse an event from a line. Raises: ValueError."""
    raw = json.loads(line)
    cls = _KINDS.get(raw.pop("event", None)) if isinstance(raw, dict) else None
    if cls is None:
        raise ValueError(f"no event: {line[:100]!r}")
    try:
        return cls(
            **{
                name: raw.pop(name) if from_json is None else from_json(raw.pop(name))
                for name, _, _, from_json in _FIELDS[cls]
                if name in raw
            },
            **raw,
        )
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{error}: {line[:100]!r}") from None


# ------------------------------------------------------------------ conversion by type


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("/")
    return TopicPartition(topic, int(number))


def _converters(hint: Any) -> tuple[_Convert | None, _Convert | None]:
    """Return the converters to JSON and from JSON for this type; None if JSON holds it directly."""
    if hint is TopicPartition:
        return str, _partition
    if type(None) in get_args(hint):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        to_json, from_json = _converters(inner)
        return _unless_none(to_json), _unless_none(from_json)
    if get_origin(hint) is tuple:
        to_json, from_json = _converters(get_args(hint)[0])
        return (
            lambda values: [v if to_json is None else to_json(v) for v in values],
            lambda values: tuple(v if from_json is None else from_json(v) for v in values),
        )
    if len(get_args(hint)) == 2:  # a mapping
        key_hint, value_hint = get_args(hint)
        key_to_json, key_from_json = _converters(key_hint)
        to_json, from_json = _converters(value_hint)
        return (
            lambda values: {
                k if key_to_json is None else key_to_json(k): v if to_json is None else to_json(v)
                for k, v in values.items()
            },
            lambda values: {
                k if key_from_json is None else key_from_json(k): v
                if from_json is None
                else from_json(v)
                for k, v in values.items()
            },
        )
    return None, None


def _unless_none(convert: _Convert | None) -> _Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _default(field: attrs.Attribute[Any]) -> Any:
    if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
        return field.default.factory()
    return field.default


_KINDS: dict[str, type[Event]] = {
    name: cls
    for name, cls in vars(vocabulary).items()
    if isinstance(cls, type) and issubclass(cls, Event)
}

_FIELDS = {
    cls: [
        (field.name, _default(field), *_converters(get_type_hints(cls)[field.name]))
        for field in attrs.fields(cls)
    ]
    for cls in _KINDS.values()
}
"""Kind of event -> name, default, converter to JSON and converter from JSON of each field."""
