"""A GroupSpec as JSON: to write by hand, to keep, to send in with a bug report.

```json
{
  "members": {
    "a": {"topics": ["orders"], "owned": {"orders": [0, 1]}, "generation": 7},
    "b": {"topics": ["orders"], "instance_id": "node-2", "rack": "east", "capacity": 2.0}
  },
  "topics": {
    "orders": {"partitions": 2, "racks": [["east", "west"], ["west"]]},
    "audit": 4
  },
  "loads": {"orders": {"0": 120.5}}
}
```

Of a member only `topics` must be there, of the whole `members` and `topics`; what is left out is
as `GroupSpec` has it. A topic is its number of partitions, or an object with the racks of each
partition's replicas beside it. The text may come from anywhere: everything in it is checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, TypeVar

import attrs

from kafkagroup.assign.spec import GroupSpec, MemberSpec
from kafkagroup.errors import ConfigurationError
from kafkagroup.types import TopicPartition

__all__ = ["MAX_CHARACTERS", "MAX_PARTITIONS", "spec_from_json", "spec_to_json"]

T = TypeVar("T")

MAX_CHARACTERS = 64 * 1024 * 1024
"""Longest text: twenty times what 2,000 members that own 100,000 partitions take."""

MAX_PARTITIONS = 1_000_000
"""Most partitions of all topics together, ten times the largest groups planned for. A few bytes
can claim any number, and assignors walk through each partition."""

_INT32 = 2**31 - 1

_SHOWN = 40
"""Characters of a wrong value that an error shows."""

_MAX_NUMBER = 2.0**63
"""Largest load and capacity: beyond any lag or rate, and sums of a million stay finite."""


def spec_from_json(text: str) -> GroupSpec:
    """The GroupSpec that the text describes.

    Raises: ConfigurationError with the path of what is wrong, what was found, what was expected.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(
            f"the spec has {len(text)} characters; expected at most {MAX_CHARACTERS}"
        )
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except ConfigurationError:
        raise
    except (ValueError, RecursionError) as error:
        # ValueError: also an integer of thousands of digits. RecursionError: thousands of brackets.
        raise ConfigurationError(f"the spec is no JSON: {error}") from None
    root = _fields(found, "$", required=("members", "topics"), optional=("loads",))
    partitions: dict[str, int] = {}
    racks: dict[str, tuple[frozenset[str], ...]] = {}
    for name, value, path in _entries(root["topics"], "$.topics"):
        partitions[name], replicas = _topic(value, path)
        if replicas is not None:
            racks[name] = replicas
    if (total := sum(partitions.values())) > MAX_PARTITIONS:
        _refuse("$.topics", f"{total} partitions", f"at most {MAX_PARTITIONS}")
    return GroupSpec(
        members={
            name: _member(value, path)
            for name, value, path in _entries(root["members"], "$.members")
        },
        partitions=partitions,
        racks=racks,
        loads={
            TopicPartition(topic, _key(number, path)): _number(value, path)
            for topic, by_partition, topic_path in _entries(root.get("loads", {}), "$.loads")
            for number, value, path in _entries(by_partition, topic_path)
        },
    )


def spec_to_json(spec: GroupSpec) -> str:
    """The spec as text, a line for each member and topic; `spec_from_json` reads it back, but for
    the racks of topics that do not exist."""
    loads: dict[str, dict[str, float]] = {}
    for (topic, number), load in sorted(spec.loads.items()):
        loads.setdefault(topic, {})[str(number)] = load
    parts: dict[str, Mapping[str, object]] = {
        "members": {name: _member_value(of) for name, of in sorted(spec.members.items())},
        "topics": {
            name: {
                "partitions": count,
                "racks": [sorted(replicas) for replicas in spec.racks[name]],
            }
            if name in spec.racks
            else count
            for name, count in sorted(spec.partitions.items())
        },
        **({"loads": loads} if loads else {}),
    }
    return "{\n" + ",\n".join(f'  "{part}": {_lines(of)}' for part, of in parts.items()) + "\n}\n"


def _lines(entries: Mapping[str, object]) -> str:
    if not entries:
        return "{}"
    lines = (f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
    return "{\n" + ",\n".join(lines) + "\n  }"


def _member_value(member: MemberSpec) -> dict[str, object]:
    """Only what differs from the default."""
    owned: dict[str, list[int]] = {}
    for topic, number in sorted(member.owned):
        owned.setdefault(topic, []).append(number)
    value: dict[str, object] = {"topics": sorted(member.topics)}
    for field in attrs.fields(MemberSpec):
        if field.default is not attrs.NOTHING and getattr(member, field.name) != field.default:
            value[field.name] = owned if field.name == "owned" else getattr(member, field.name)
    return value


def _member(value: object, path: str) -> MemberSpec:
    of = _fields(
        value,
        path,
        required=("topics",),
        optional=("instance_id", "rack", "owned", "generation", "capacity"),
    )
    return MemberSpec(
        topics=frozenset(_list(of["topics"], f"{path}.topics", _name)),
        instance_id=_maybe(of.get("instance_id"), f"{path}.instance_id", _name),
        rack=_maybe(of.get("rack"), f"{path}.rack", _string),
        owned=tuple(
            sorted(
                TopicPartition(topic, number)
                for topic, numbers, topic_path in _entries(of.get("owned", {}), f"{path}.owned")
                for number in _once(_list(numbers, topic_path, _int), topic_path)
            )
        ),
        generation=_int(of.get("generation", -1), f"{path}.generation", least=-1),
        capacity=_number(of.get("capacity", 1.0), f"{path}.capacity", positive=True),
    )


def _topic(value: object, path: str) -> tuple[int, tuple[frozenset[str], ...] | None]:
    """Number of partitions, and their racks if they are told."""
    if not isinstance(value, dict):
        return _int(value, path, instead=", or an object"), None
    of = _fields(value, path, required=("partitions",), optional=("racks",))
    count = _int(of["partitions"], f"{path}.partitions")
    if "racks" not in of:
        return count, None
    racks = _list(of["racks"], f"{path}.racks", _racks)
    if len(racks) != count:
        _refuse(f"{path}.racks", f"racks of {len(racks)} partitions", f"of {count}, one list each")
    return count, tuple(racks)


def _racks(value: object, path: str) -> frozenset[str]:
    return frozenset(_list(value, path, _string))


# ---------------------------------------------------------------- what JSON may be


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"the spec has an object with {twice!r} twice; expected each once")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ConfigurationError(f"the spec has {name}; expected finite numbers")


def _fields(
    value: object, path: str, *, required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, object]:
    found = _dict(value, path)
    names = ", ".join((*required, *optional))
    for name in found:
        if name not in (*required, *optional):
            _refuse(_at(path, name), "a field that is not known", f"one of {names}")
    for name in required:
        if name not in found:
            _refuse(f"{path}.{name}", "nothing", "it to be there")
    return found


def _entries(value: object, path: str) -> Iterable[tuple[str, object, str]]:
    """Name, value and path of each entry."""
    for name, entry in _dict(value, path).items():
        _name(name, path)
        yield name, entry, _at(path, name)


def _dict(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        _refuse(path, _shown(value), "an object")
    return value


def _list(value: object, path: str, of: Callable[[object, str], T]) -> list[T]:
    if not isinstance(value, list):
        _refuse(path, _shown(value), "a list")
    return [of(entry, f"{path}[{index}]") for index, entry in enumerate(value)]


def _maybe(value: object, path: str, of: Callable[[object, str], T]) -> T | None:
    return None if value is None else of(value, path)


def _once(numbers: list[int], path: str) -> list[int]:
    if len(set(numbers)) < len(numbers):
        _refuse(path, "a partition twice", "each once")
    return numbers


def _string(value: object, path: str) -> str:
    if not isinstance(value, str):
        _refuse(path, _shown(value), "a string")
    return value


def _name(value: object, path: str) -> str:
    name = _string(value, path)
    if not name:
        _refuse(path, "an empty name", "a character or more")
    return name


def _int(value: object, path: str, *, least: int = 0, instead: str = "") -> int:
    # True is an int to Python, and is none here.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _INT32:
        _refuse(path, _shown(value), f"an integer from {least} to {_INT32}{instead}")
    return value


def _key(name: str, path: str) -> int:
    """A partition's number as an object's key. "00" or "1_0" would be other names for it."""
    if not (name.isascii() and name.isdecimal()) or (len(name) > 1 and name[0] == "0"):
        _refuse(path, "that key", "a partition's number")
    return _int(int(name) if len(name) <= 10 else _INT32 + 1, path)


def _number(value: object, path: str, *, positive: bool = False) -> float:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value <= _MAX_NUMBER
        or (positive and not value)
    ):
        least = "above 0" if positive else "from 0"
        _refuse(path, _shown(value), f"a number {least} to {_MAX_NUMBER:g}")
    return float(value)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name)}]"


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _refuse(path: str, found: str, expected: str) -> NoReturn:
    raise ConfigurationError(f"{path}: found {found}; expected {expected}")
